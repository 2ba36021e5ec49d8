"""The recipe for contractions: tiles of the result that matrix instructions sum up.

``sum over k of left[m, k] * right[k, n]`` is computed by tiles of rows m and columns n, of a size
that leaves no multiprocessor without work. Several axes of rows (the pixels of a convolution) are
counted through by one, and so are short axes of summation: an implicit matrix product. Neighbouring
blocks share operands, so they are ordered in groups that the second-level cache holds. Where there
are few tiles and much to sum, parts of the sum are tiles of their own, and added in a second phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from genesis.backends.base import GPU
from genesis.compiler.schedule.gpu.relayout import BANDWIDTH, LAUNCH, relayout, unmasked
from genesis.compiler.schedule.gpu.rows import rows as row_recipe
from genesis.compiler.schedule.gpu.tiles import decoded, fuse, tile
from genesis.compiler.schedule.heuristics import extent, points
from genesis.compiler.schedule.operands import Operands, operands
from genesis.compiler.schedule.respecialise import rebuild, respecialise, static
from genesis.compiler.schedule.steps import interchange, split_reduction
from genesis.ir import ops
from genesis.ir.dtype import float32, int32
from genesis.ir.kernel import Axis, AxisKind, Carry, Kernel, Loop, Phase, expressions
from genesis.ir.node import mentions, topological
from genesis.ir.rewrite import substitute


class Shape(NamedTuple):
    """The rows and columns of a tile, and what part of the chip's speed such tiles reach."""

    rows: int
    columns: int
    speed: float


#: Tiles for matrix instructions on 16-bit numbers, on float32 in six of those products, and for
#: wider numbers without them.
HALF = (
    Shape(128, 256, 1.0), Shape(256, 128, 1.0), Shape(128, 128, 0.9), Shape(64, 256, 0.8),
    Shape(64, 128, 0.65), Shape(128, 64, 0.65), Shape(64, 64, 0.45), Shape(32, 64, 0.25),
    Shape(64, 32, 0.25), Shape(16, 128, 0.25), Shape(16, 64, 0.15), Shape(32, 32, 0.13),
    Shape(64, 16, 0.15), Shape(16, 32, 0.08), Shape(32, 16, 0.08), Shape(16, 16, 0.04),
)  # fmt: skip
SINGLE = (
    Shape(128, 128, 1.0), Shape(64, 128, 0.95), Shape(128, 64, 0.95),
    *(s for s in HALF if s.rows * s.columns <= 64 * 64),
)  # fmt: skip
WIDE = tuple(s for s in HALF if s.rows * s.columns <= 32 * 64)
#: Rows of tiles that are done together, column by column.
GROUP = 8
#: Axes of summation shorter than this are counted through together.
INNER = 32
#: What a part of a sum has at least, and the parts at most.
PART = 256
PARTS = 64
#: The largest tile whose elements meet others, loaded for each: the registers are to hold both.
MEETING = 128 * 128
#: Products of 16-bit numbers a multiprocessor does in a second: with what memory moves, and what
#: another launch takes, enough of a model to choose by.
PRODUCTS = 3.7e12


def contract(kernel: Kernel, found: Operands, chip: GPU) -> Kernel:
    """Schedule a contraction."""
    kernel = _summed_by_one(kernel, found)
    again = operands(kernel)
    assert again is not None
    rows, columns, batch = _roles(kernel, again)
    sizes = points(rows), points(columns), points(batch)
    meets = _meets(kernel, again, rows, columns)
    shape, parts, time = _chosen(again, sizes, chip, MEETING if meets else inf)
    relaid = relayout(kernel, again, (rows, columns), shape[:2], time, chip)
    kernel, copies = relaid.kernel, relaid.copies
    if parts == 1:
        product = unmasked(_tiled(kernel, rows, columns, shape), relaid.padded)
        return product.with_phases((*copies, *product.phases))
    kernel = split_reduction(kernel, extent(again.sums[0]) // parts, outermost=True)
    total = row_recipe(kernel.with_phases(kernel.phases[1:]), chip)
    first = _tiled(kernel.with_phases(kernel.phases[:1]), rows, columns, shape)
    first = unmasked(first, relaid.padded)
    buffers = {b.name: b for b in (*kernel.buffers, *total.buffers)}
    phases = (*copies, *first.phases, *total.phases)
    return replace(kernel, buffers=tuple(buffers.values()), phases=phases)


def _roles(kernel: Kernel, found: Operands) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The grid axes of the rows, of the columns, and of neither."""
    (phase,) = kernel.phases
    left, right = mentions(found.left), mentions(found.right)
    rows = [a for a in phase.grid if a.node in left and a.node not in right]
    columns = [a for a in phase.grid if a.node in right and a.node not in left]
    return rows, columns, [a for a in phase.grid if a not in rows and a not in columns]


def _summed_by_one(kernel: Kernel, found: Operands) -> Kernel:
    """The longest axis of summation innermost; if that is short, one axis through them all."""
    if len(found.sums) == 1:
        return kernel
    (phase,) = kernel.phases
    longest = max(found.sums, key=extent)
    known = all(static(a.extent) is not None for a in found.sums[1:])
    if extent(longest) >= INNER or not known:
        order = [*(a for a in found.sums if a != longest), longest]
        nest = interchange(found.loop, order)
    else:
        nest = _joined(found.loop, found.sums)
    body = tuple(nest if s is found.loop else s for s in phase.body)
    return rebuild(kernel, 0, Phase(phase.grid, body))


def _joined(nest: Loop, axes: Sequence[Axis]) -> Loop:
    """A nest of summation loops as one loop."""
    deep = nest
    names = {}
    while deep.body:
        (inner,) = deep.body
        assert isinstance(inner, Loop)
        deep = inner
        names[deep.carried[0].local.node] = nest.carried[0].local.node
    size = axes[0].extent
    for axis in axes[1:]:
        size = size * axis.extent
    joint = Axis("".join(a.name for a in axes), AxisKind.LOOP, size)
    (step,) = substitute([deep.carried[0].step], names)
    outer = nest.carried[0]
    loop = Loop(joint, (), (Carry(outer.local, outer.init, step),), nest.merge)
    (result,) = respecialise((loop,), decoded(joint, axes))
    assert isinstance(result, Loop)
    return result


def _meets(kernel: Kernel, found: Operands, rows: Sequence[Axis], columns: Sequence[Axis]) -> bool:
    """Whether every element of the result is put together with something loaded for it."""
    (phase,) = kernel.phases
    after = [e for s in phase.body if s is not found.loop for e in expressions(s)]
    loads = [mentions(n) for n in topological(after) if n.op is ops.LOAD]
    return any(
        any(a.node in names for a in rows) and any(a.node in names for a in columns)
        for names in loads
    )


def _chosen(
    found: Operands, sizes: tuple[int, int, int], chip: GPU, most: float
) -> tuple[Shape, int, float]:
    """The tiles, and the parts of the sum, that take the least time, and that time.

    Tiles of the result itself have at most so many elements; those of parts are only stored.
    """
    rows, columns, batch = sizes
    length = points(found.sums)
    shapes, speed = _shapes(found)
    best = (shapes[0], 1, inf)
    for shape in shapes:
        tiles = batch * -(-rows // shape.rows) * -(-columns // shape.columns)
        for parts in _divisions(found):
            if parts == 1 and shape.rows * shape.columns > most:
                continue
            turns = -(-tiles * parts // chip.multiprocessors)
            time = turns * shape.rows * shape.columns * length / parts / (shape.speed * speed)
            if parts > 1:
                time += LAUNCH + 8 * parts * batch * rows * columns / BANDWIDTH
            if time < best[2]:
                best = (shape, parts, time)
    return best


def _shapes(found: Operands) -> tuple[tuple[Shape, ...], float]:
    """The tiles to choose from, and products a multiprocessor does in a second."""
    factors = (found.left, found.right)
    narrow = all(f.op is ops.CAST and f.inputs[0].dtype.bits <= 16 for f in factors)
    total = found.loop.carried[0].local.dtype
    if narrow and (total is int32 or all(f.inputs[0].dtype.bits == 8 for f in factors)):
        return HALF, 2 * PRODUCTS
    if total is not float32:
        return WIDE, PRODUCTS / 64
    if narrow:
        return HALF, PRODUCTS
    return SINGLE, PRODUCTS / 14


def _divisions(found: Operands) -> list[int]:
    """Into how many parts of equal length the sum can be cut; of several axes, the first is."""
    length = static(found.sums[0].extent)
    if length is None:
        return [1]
    most = min(PARTS, points(found.sums) // PART)
    whole = 64 if len(found.sums) == 1 else 1
    return [1, *(n for n in range(2, most + 1) if length % (whole * n) == 0)]


def _tiled(kernel: Kernel, rows: Sequence[Axis], columns: Sequence[Axis], shape: Shape) -> Kernel:
    """One phase in tiles, in groups of blocks that share operands."""
    kernel, row = fuse(kernel, _tail_known(rows))
    kernel, column = fuse(kernel, _tail_known(columns))
    kernel = tile(kernel, row, shape.rows, exact=True)
    kernel = tile(kernel, column, shape.columns, exact=True)
    (phase,) = kernel.phases
    by_name = {a.name: a for a in phase.grid}
    down, along = by_name.get(row.name + "b"), by_name.get(column.name + "b")
    others = [a for a in phase.grid if a not in (down, along)]
    if down is None or along is None:
        return kernel
    count = static(down.extent)
    group = 1 if count is None else max(g for g in range(1, GROUP + 1) if count % g == 0)
    if group == 1:
        return rebuild(kernel, 0, Phase((*others, down, along), phase.body))
    outer = replace(down, name=down.name + "g", extent=count // group)  # type: ignore[operator]
    inner = replace(down, name=down.name + "i", extent=group)
    body = respecialise(phase.body, {down.node: outer.node * group + inner.node})
    return rebuild(kernel, 0, Phase((*others, outer, along, inner), body))


def _tail_known(axes: Sequence[Axis]) -> Sequence[Axis]:
    """The axes that one axis can count through: of the last, those with known extents."""
    first = len(axes) - 1
    while first and static(axes[first].extent) is not None:
        first -= 1
    return axes[first:]


__all__ = ["contract"]
