"""Contractions: tiles of the result that matrix instructions sum up.

``sum over k of left[m, k] * right[k, n]`` is computed by tiles of rows m and columns n, of a size
that leaves no multiprocessor without work. Several axes of rows (the pixels of a convolution) are
counted through by one, and so are short axes of summation: an implicit matrix product. Neighbouring
blocks share operands, so they are ordered in groups that the second-level cache holds. Where there
are few tiles and much to sum, parts of the sum are tiles of their own, and added in a second phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from genesis.backends.base import GPU
from genesis.compiler.schedule.contraction_operands import Operands, operands
from genesis.compiler.schedule.gpu.operand_layout import (
    BANDWIDTH,
    BLOCK,
    LAUNCH,
    channels_of,
    last_place,
    relayout,
    unmasked,
)
from genesis.compiler.schedule.gpu.rows import rows as schedule_rows
from genesis.compiler.schedule.gpu.tile_axes import fuse, joined, tile, unfuse
from genesis.compiler.schedule.steps.loop_transforms import interchange, split_reduction
from genesis.compiler.schedule.steps.queries import extent, points
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import float32, int32
from genesis.ir.index import simplify, static
from genesis.ir.node import Node, mentions, topological
from genesis.ir.pattern import Contraction
from genesis.ir.rewrite import replaced


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
#: The largest tile whose elements meet none, one, .. others, loaded for each: the registers are to
#: hold them all.
MEETING = (inf, 128 * 128, 128 * 128, 64 * 128)
#: Products of 16-bit numbers a multiprocessor does in a second: with what memory moves, and what
#: another launch takes, enough of a model to choose by.
PRODUCTS = 3.7e12
#: Storing so many elements takes as long as a product of each: in large tiles nothing else happens
#: meanwhile, while small ones share a multiprocessor with others.
STORED = 256
_NOWHERE: Mapping[kir.Buffer, int] = {}


def groups_apart(kernel: kir.Kernel) -> kir.Kernel:
    """A contraction with an axis each for its groups and the columns of one, if one counts both.

    The channels of a grouped convolution's gradient are such an axis: both factors depend on it.
    """
    if not isinstance(kernel.pattern, Contraction) or operands(kernel) is not None:
        return kernel
    apart = kernel
    for axis in kernel.phases[0].grid:
        apart = unfuse(apart, axis)
    return kernel if operands(apart) is None else apart


def contract(kernel: kir.Kernel, found: Operands, chip: GPU) -> kir.Kernel:
    """Schedule a contraction."""
    channels = channels_of(found, kernel.phases[0].grid)
    if channels:
        kernel = _with_sums(kernel, found, joined(found.loop, found.sums))
    else:
        kernel = _summed_by_one(kernel, found)
    again = operands(kernel)
    assert again is not None
    kernel = _as_operands_lie(kernel, again, channels)
    rows, columns, batch = _roles(kernel, again)
    sizes = points(rows), points(columns), points(batch)
    meets = _meets(kernel, again, rows, columns)
    shape, parts, time = _chosen(again, sizes, chip, MEETING[min(meets, len(MEETING) - 1)])
    relaid = relayout(kernel, again, channels, (rows, columns), shape[:2], time, chip)
    kernel, copies = _counted_by_one(relaid.kernel, again), relaid.copies
    if parts == 1:
        product = unmasked(_to_the_end(_tiled(kernel, rows, columns, shape)), relaid.padded)
        return product.with_phases((*copies, *product.phases))
    length = points(again.sums) if _joins(again) else extent(again.sums[0])
    kernel = split_reduction(kernel, length // parts, outermost=True)
    total = schedule_rows(kernel.with_phases(kernel.phases[1:]), chip)
    first = _tiled(kernel.with_phases(kernel.phases[:1]), rows, columns, shape)
    first = unmasked(_to_the_end(first), relaid.padded)
    buffers = {b.name: b for b in (*kernel.buffers, *total.buffers)}
    phases = (*copies, *first.phases, *total.phases)
    return replace(kernel, buffers=tuple(buffers.values()), phases=phases)


def _roles(
    kernel: kir.Kernel, found: Operands
) -> tuple[list[kir.Axis], list[kir.Axis], list[kir.Axis]]:
    """The grid axes of the rows, of the columns, and of neither."""
    (phase,) = kernel.phases
    left, right = mentions(found.left), mentions(found.right)
    rows = [a for a in phase.grid if a.node in left and a.node not in right]
    columns = [a for a in phase.grid if a.node in right and a.node not in left]
    return rows, columns, [a for a in phase.grid if a not in rows and a not in columns]


def _as_operands_lie(
    kernel: kir.Kernel, found: Operands, channels: Mapping[kir.Buffer, int]
) -> kir.Kernel:
    """Of several axes of rows or columns, that along which the operand has vectors comes last."""
    (phase,) = kernel.phases
    grid = list(phase.grid)
    last = _neighbours(found, channels)
    for axes in _roles(kernel, found)[:2]:
        places = [grid.index(a) for a in axes]
        for place, axis in zip(places, sorted(axes, key=lambda a: a.node in last), strict=True):
            grid[place] = axis
    return kernel.with_phase(0, kir.Phase(tuple(grid), phase.body))


def _summed_by_one(kernel: kir.Kernel, found: Operands) -> kir.Kernel:
    """The longest axis of summation innermost; if that is short, one axis through them all."""
    if len(found.sums) == 1:
        return kernel
    longest = max(reversed(found.sums), key=extent)
    known = all(static(a.extent) is not None for a in found.sums[1:])
    if extent(longest) < INNER and known:
        order = sorted(found.sums, key=lambda a: a.node in _neighbours(found))
        return _with_sums(kernel, found, joined(interchange(found.loop, order), order))
    order = [*(a for a in found.sums if a != longest), longest]
    return _with_sums(kernel, found, interchange(found.loop, order))


def _neighbours(found: Operands, channels: Mapping[kir.Buffer, int] = _NOWHERE) -> set[Node]:
    """What counts through elements that lie, or will lie, next to each other in an operand."""
    loads = [n for n in topological([found.left, found.right]) if n.op is ops.LOAD]
    return {
        kir.load_parts(n)[1][channels.get(n.attr, last_place(n))] for n in loads if n.attr.shape
    }


def _counted_by_one(kernel: kir.Kernel, found: Operands) -> kir.Kernel:
    """One axis through all axes of summation: what is loaded ahead then never runs out."""
    if not _joins(found):
        return kernel
    again = operands(kernel)
    assert again is not None
    return _with_sums(kernel, again, joined(again.loop, again.sums))


def _joins(found: Operands) -> bool:
    """Whether blocks along one axis through all of a sum do not cross from one place to another."""
    known = all(static(a.extent) is not None for a in found.sums)
    return len(found.sums) > 1 and known and extent(found.sums[-1]) % BLOCK == 0


def _with_sums(kernel: kir.Kernel, found: Operands, nest: kir.Loop) -> kir.Kernel:
    (phase,) = kernel.phases
    body = tuple(nest if s is found.loop else s for s in phase.body)
    return kernel.with_phase(0, kir.Phase(phase.grid, body))


def _meets(
    kernel: kir.Kernel, found: Operands, rows: Sequence[kir.Axis], columns: Sequence[kir.Axis]
) -> int:
    """How much every element of the result is put together with that is loaded for it."""
    (phase,) = kernel.phases
    after = [e for s in phase.body if s is not found.loop for e in kir.expressions(s)]
    loads = [mentions(n) for n in topological(after) if n.op is ops.LOAD]
    return sum(
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
            elements = shape.rows * shape.columns
            if parts == 1 and elements > most:
                continue
            turns = -(-tiles * parts // chip.multiprocessors)
            each = elements * length / parts / (shape.speed * speed)
            time = turns * (each + elements * elements / STORED / PRODUCTS)
            if parts > 1:
                time += LAUNCH + 8 * parts * batch * rows * columns / BANDWIDTH
            if time < best[2]:
                best = (shape, parts, time)
    return best


def _shapes(found: Operands) -> tuple[tuple[Shape, ...], float]:
    """The tiles to choose from, and products a multiprocessor does in a second."""
    factors = (found.left, found.right)
    narrow = all(f.op is ops.CAST and f.inputs[0].dtype.bits <= 16 for f in factors)
    total = found.dtype
    if narrow and (total is int32 or all(f.inputs[0].dtype.bits == 8 for f in factors)):
        return HALF, 2 * PRODUCTS
    if total is not float32:
        return WIDE, PRODUCTS / 64
    if narrow:
        return HALF, PRODUCTS
    return SINGLE, PRODUCTS / 14


def _divisions(found: Operands) -> list[int]:
    """Into how many parts of equal length the sum can be cut; of several axes, the first is."""
    one = len(found.sums) == 1 or _joins(found)
    length = static(found.sums[0].extent)
    if length is None:
        return [1]
    if one:
        length = points(found.sums)
    most = min(PARTS, points(found.sums) // PART)
    whole = BLOCK if one else 1
    return [1, *(n for n in range(2, most + 1) if length % (whole * n) == 0)]


def _tiled(
    kernel: kir.Kernel, rows: Sequence[kir.Axis], columns: Sequence[kir.Axis], shape: Shape
) -> kir.Kernel:
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
        return kernel.with_phase(0, kir.Phase((*others, down, along), phase.body))
    outer = replace(down, name=down.name + "g", extent=count // group)  # type: ignore[operator]
    inner = replace(down, name=down.name + "i", extent=group)
    body = respecialise(phase.body, {down.node: outer.node * group + inner.node})
    return kernel.with_phase(0, kir.Phase((*others, outer, along, inner), body))


def _to_the_end(kernel: kir.Kernel) -> kir.Kernel:
    """Operands with longer rows than are asked for, read to their end: vectors then stay whole.

    What is read too much is of elements of the result that are not stored.
    """

    def read(n: Node) -> Node:
        longer: dict[Node, Node] = {}
        for m in topological([n]):
            if m.op is not ops.LOAD:
                continue
            buffer, at, mask, other = kir.load_parts(m)
            if mask.op is ops.LT and mask.inputs[0] in at and kir.tile_axes(mask):
                end = simplify(mask.inputs[0] < buffer.shape[at.index(mask.inputs[0])])
                longer[m] = buffer.load(*at, mask=end, other=other)
        return replaced(n, longer)

    def whole(s: kir.Statement) -> kir.Statement:
        return kir.map_expressions((s,), read)[0] if isinstance(s, kir.Loop) else s

    return kernel.with_phases(replace(p, body=tuple(map(whole, p.body))) for p in kernel.phases)


def _tail_known(axes: Sequence[kir.Axis]) -> Sequence[kir.Axis]:
    """The axes that one axis can count through: of the last, those with known extents."""
    first = len(axes) - 1
    while first and static(axes[first].extent) is not None:
        first -= 1
    return axes[first:]
