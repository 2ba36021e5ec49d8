"""Prefixes: cumulative sums, and whatever else is carried and stored on the way.

Where there are many rows, each is walked from end to end: along memory a tile is scanned at a time,
across it a vector of rows is done at once, as for reductions. Few long rows are cut into chunks of
a size that only the shape decides. A first phase combines the elements of every whole chunk; in the
second each chunk combines the states of those before it, and starts from there.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.rows import CHUNK, CHUNKS, ENOUGH_ROWS, best_row_axis, vectorised
from genesis.compiler.schedule.steps.queries import extent, lanes, points
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import merged, nodes, parts_of_prefix
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import ceil_div, fixed, floor_div, least, simplify
from genesis.ir.pattern import Prefix


def prefix(kernel: kir.Kernel, found: Prefix, chip: Chip) -> kir.Kernel:
    """Schedule a kernel whose last loop carries a prefix."""
    (phase,) = kernel.phases
    (*others, loop) = phase.body
    assert isinstance(loop, kir.Loop)
    across = best_row_axis(phase)
    side_by_side = min(extent(across), lanes(phase.body, chip) * 4) if across else 1
    rows = points(phase.grid)
    length = extent(loop.axis)
    few = rows // side_by_side < ENOUGH_ROWS and rows * length >= 4 * CHUNK
    chunk = _power(max(CHUNK // side_by_side, length // CHUNKS))
    if few and not others and length >= 2 * chunk:
        kernel = split_prefix(kernel, loop, chunk)
    for number, part in enumerate(kernel.phases):
        kernel = vectorised(kernel, number, part, chip)
    return kernel


def split_prefix(kernel: kir.Kernel, loop: kir.Loop, chunk: int) -> kir.Kernel:
    """Walk chunks of the one loop in parallel, each from the state that those before it leave."""
    (phase,) = kernel.phases
    assert phase.body == (loop,) and loop.merge is not None
    axis = loop.axis

    # Axes have other names in the first phase, as its tiles may have other extents.
    rows = [replace(a, name=a.name + "c") for a in phase.grid]
    whole = kir.Axis.grid(axis.name + "b", floor_div(axis.extent, chunk))
    inner = replace(axis, name=axis.name + "c", extent=chunk)
    turned = {a.node: row.node for a, row in zip(phase.grid, rows, strict=True)}
    turned[axis.node] = whole.node * chunk + inner.node
    total = respecialise((_total(kernel, loop, inner),), turned)
    shape = (*(a.extent for a in rows), whole.extent)
    buffers = [
        kir.Buffer(f"chunks{k}", c.local.dtype, shape, kir.Role.TEMPORARY)
        for k, c in enumerate(loop.carried)
    ]
    at = (*(a.node for a in rows), whole.node)
    stores = tuple(
        kir.Store(b, at, c.local.node) for b, c in zip(buffers, loop.carried, strict=True)
    )

    block = replace(whole, extent=ceil_div(axis.extent, chunk))
    earlier = kir.Axis.loop(axis.name + "e", block.node)
    states = [kir.Local(f"chunk{k}", c.local.dtype) for k, c in enumerate(loop.carried)]
    loads = [b.load(*(a.node for a in phase.grid), earlier.node) for b in buffers]
    steps = merged(loop.merge, nodes(states), loads)
    # No merge is named: the states are few, and stay in order.
    start = kir.Loop(
        earlier, (), tuple(map(kir.Carry, states, [c.init for c in loop.carried], steps))
    )
    rest = kir.as_index(axis.extent) - block.node * chunk
    inner = replace(axis, extent=least(chunk, fixed(simplify(rest))))
    carried = tuple(replace(c, init=v.node) for c, v in zip(loop.carried, states, strict=True))
    walk = replace(loop, axis=inner, carried=carried)
    walked = respecialise((walk,), {axis.node: block.node * chunk + inner.node})
    by_chunk = kir.Phase((*rows, whole), (*total, *stores))
    return kernel.with_phases(
        [by_chunk, kir.Phase((*phase.grid, block), (start, *walked))], buffers
    )


def _total(kernel: kir.Kernel, loop: kir.Loop, axis: kir.Axis) -> kir.Loop:
    """The loop without what it stores; where the order does not matter, as a plain reduction."""
    parts = parts_of_prefix(loop, kernel.pattern)
    assert loop.merge is not None and parts is not None
    fold = kir.simple_fold(loop.merge)
    if fold is None or fold not in ops.COMMUTATIVE:
        return replace(loop, axis=axis, body=(*parts.elements, *parts.states))
    steps = merged(
        loop.merge, nodes(c.local for c in loop.carried), [x.value for x in parts.elements]
    )
    carried = tuple(replace(c, step=x) for c, x in zip(loop.carried, steps, strict=True))
    return kir.Loop(axis, (), carried, loop.merge)


def _power(n: int) -> int:
    """The least power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()
