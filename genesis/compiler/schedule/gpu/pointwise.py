"""Kernels without reductions: tiles of elements that lie together.

A tile is as long as it can be along the axis on which most accesses are neighbours. Where another
buffer is contiguous along another axis (a transpose) it has sides of both; where an axis is short,
it goes on along the next in memory. Where padding short axes to powers of two would leave too many
lanes without work (images of 5 by 5 pixels), one axis counts through them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from genesis.backends.base import GPU
from genesis.compiler.schedule.gpu.tile_axes import TILE, free_axes, fuse, tile, unfuse
from genesis.compiler.schedule.steps.queries import (
    accesses,
    affinity,
    elements,
    extent,
    points,
    power,
    stride,
)
from genesis.ir import ops
from genesis.ir.index import bounds, simplify
from genesis.ir.kernel import Axis, Index, Kernel, Phase, Statement, Store, load_parts, walk
from genesis.ir.node import Node, elementwise, topological
from genesis.ir.rewrite import replaced

#: The longer side of a tile that is contiguous along two axes, and the least size of a tile.
SIDE = 64
LEAST = 128
#: Axes from here on are long enough for a tile of their own, and the share of lanes that short ones
#: should leave with work.
LONG = 32
#: Elements that lie so near to each other are read together.
NEAR = 8
BUSY = 0.7


def pointwise(kernel: Kernel, chip: GPU, number: int = 0) -> Kernel:
    """Schedule a phase whose blocks are independent, with what loops they have inside."""
    phase = kernel.phases[number]
    phase = replace(phase, body=tuple(map(_chosen_after, phase.body)))
    kernel = kernel.with_phase(number, phase)
    for axis in phase.grid:
        if _is_interleaved(phase, axis):
            kernel = unfuse(kernel, axis, number)
    phase = kernel.phases[number]
    axes = _by_affinity(phase)
    if not axes:
        return kernel
    run = _run(phase)
    if run[-1:] == axes[-1:]:
        kernel, axes = _counted_through(kernel, run, number)
        phase = kernel.phases[number]
        best = axes[-1]
    else:
        best = ([a for a in axes if extent(a) >= LONG] or axes)[-1]
    axes.remove(best)
    # Few elements are shared among all multiprocessors, in tiles that still fill a warp or more.
    share = power(points(phase.grid) // (2 * chip.multiprocessors) + 1)
    left = max(LEAST, min(TILE, share))
    rival = _rival(phase, best)
    if rival is not None:
        left = min(2 * left, SIDE * SIDE // 2)
        kernel = tile(kernel, best, min(SIDE, power(extent(best))), number)
        axes = [rival]
        left = max(1, left // SIDE)
    else:
        width = _fitting(best, left, len(axes))
        kernel = tile(kernel, best, width, number)
        left //= width
    for axis in reversed(axes):
        if left > 1:
            width = min(left, power(extent(axis)))
            kernel = tile(kernel, axis, width, number)
            left //= width
    return kernel


def _fitting(axis: Axis, most: int, others: int) -> int:
    """The width of a tile along an axis, of which the last of its tiles should waste little.

    Where the tile can go on along others, it need not be wide.
    """
    size = extent(axis)
    width = min(most, power(size))
    while others and width > LEAST and -size % width > size // 8:
        width //= 2
    return width


def _by_affinity(phase: Phase) -> list[Axis]:
    """The axes that tiles may have, that with most neighbours last."""
    return sorted(free_axes(phase), key=lambda a: (affinity(phase.body, a), extent(a)))


def _run(phase: Phase) -> list[Axis]:
    """The axes that count through what is stored, without a gap, in the order of memory."""
    stores = [s for s in walk(phase.body) if isinstance(s, Store)]
    largest = max(stores, key=lambda s: elements(s.buffer))
    free, found = set(free_axes(phase)), list[Axis]()
    for i, size in reversed(list(zip(largest.index, largest.buffer.shape, strict=True))):
        if size == 1:
            continue
        if i.op is not ops.AXIS or i.attr not in free or i.attr.extent != size:
            break
        found.insert(0, i.attr)
    return found


def _counted_through(kernel: Kernel, run: list[Axis], number: int) -> tuple[Kernel, list[Axis]]:
    """Short axes as tiles can have them: as they are, or as one; then all axes, best last."""
    phase = kernel.phases[number]
    enough = LONG if _rival(phase, run[-1]) else TILE
    short = run[-1:]
    while len(short) < len(run) and points(short) < enough and isinstance(short[0].extent, int):
        short = run[-len(short) - 1 :]
    others = [a for a in _by_affinity(phase) if a not in run]
    _, *whole = short  # the first is cut
    if points(whole) >= BUSY * prod(power(extent(a)) for a in whole):
        return kernel, [*others, *run]
    kernel, joint = fuse(kernel, short, number)
    return kernel, [*others, *run[: -len(short)], joint]


def _chosen_after(s: Statement) -> Statement:
    """A store of padded rows that loads whole vectors: what is not in a row is not chosen.

    A mask that ends amid a vector would have every number loaded for itself.
    """
    if not isinstance(s, Store) or s.value.op is not ops.WHERE:
        return s
    condition, value, other = s.value.inputs
    loads: dict[Node, Node] = {}
    for n in topological([value]):
        if n.op is ops.LOAD and load_parts(n)[2] is condition:
            buffer, at, _, _ = load_parts(n)
            if all(_exists(i, size) for i, size in zip(at, buffer.shape, strict=True)):
                loads[n] = buffer.load(*at)
    value = replaced(value, loads)
    return replace(s, value=elementwise(ops.WHERE, condition, value, other))


def _exists(at: Node, size: Index) -> bool:
    """Whether a place is inside whatever the axes are."""
    low, high = bounds(at)
    return low >= 0 and isinstance(size, int) and high < size


def _rival(phase: Phase, best: Axis) -> Axis | None:
    """Another axis along which a buffer is contiguous, or nearly so, that jumps along `best`."""
    for buffer, at in accesses(phase.body):
        along = stride(buffer, at, best)
        if along in (0, 1, -1):
            continue
        for axis in free_axes(phase):
            step = stride(buffer, at, axis) if axis != best and extent(axis) >= 16 else None
            if step is not None and (step == 1 if along is not None else 1 < step <= NEAR):
                return axis
    return None


def _is_interleaved(phase: Phase, axis: Axis) -> bool:
    """Whether rows of a block lie a few elements apart, as quantised weights do."""
    for buffer, at in accesses(phase.body):
        for n in topological(at):
            if n.op is ops.MOD and n.inputs[0] is axis.node and n.inputs[1].op is ops.CONST:
                size = int(n.inputs[1].attr)
                block, place = Axis.grid("b", 1 << 20), Axis.tile("p", size)
                known = {axis.node: block.node * size + place.node}
                step = stride(buffer, tuple(simplify(replaced(i, known)) for i in at), place)
                if step is not None and 1 < step <= NEAR:
                    return True
    return False
