"""Operands of contractions in memory as matrix units want to read them.

A tile of an operand is read fast where either its rows or what is summed over lie next to each
other in memory, in whole vectors, and as the numbers that are multiplied. The pixels of a
convolution's image do not, once several axes of them are counted through by one, and neither do the
windows of its weights: such an operand is copied first, with the axis of summation (the channels)
last. Where windows of pixels are summed over (the gradient of a convolution's weights), so are both
operands, with the channels that become rows and columns of tiles last: a row of pixels that begins
anywhere has no whole vectors. Weights that are rounded to 16 bits where they are multiplied are
rounded in a copy, once instead of by every block. Rows that are not multiples of a vector get zeros
at their ends in a copy, up to the end of the last tile, so that nothing has to be masked. The copy
reads and writes an operand once; the contraction reads it many times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from genesis.backends.base import GPU
from genesis.compiler.schedule.contraction_operands import Operands
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.tile_axes import fuse, tile
from genesis.compiler.schedule.steps.queries import elements, extent, points
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.index import static
from genesis.ir.node import TRUE, Node, both, const, is_const, mentions, topological
from genesis.ir.rewrite import replaced

#: How often an element must be read for a copy in another order to pay.
READS = 32
#: The sides of a tile that is copied.
SIDE = 64
#: Products that a matrix instruction is given at a time along a sum of 16-bit numbers.
BLOCK = 64
#: Bytes of a vector, of which rows should be multiples.
VECTOR = 16
#: What a product takes longer, in parts of its time, where all its blocks round an operand, and
#: where rows are not whole vectors; and the seconds of an element that is loaded by itself, as all
#: of a tile then are.
ROUNDING = 0.25
UNEVEN = 1.0
ALONE = 3e-12
#: Bytes that memory moves in a second, and what another launch takes.
BANDWIDTH = 4e12
LAUNCH = 3e-6


@dataclass(frozen=True)
class Relaid:
    """A contraction that reads copies, the phases that make them, and those padded with zeros."""

    kernel: kir.Kernel
    copies: Sequence[kir.Phase] = ()
    padded: frozenset[kir.Buffer] = frozenset()


@dataclass(frozen=True)
class _Copy:
    """`value`, which is made of one load, is read from `copy` instead."""

    value: Node
    load: Node
    copy: kir.Buffer
    order: tuple[int, ...]  # the dimensions of what is copied
    ended: frozenset[Node]  # the axes along which there are zeros up to the end of the last tile

    @property
    def padded(self) -> bool:
        """Whether every lane of a tile reads what it should without a mask."""
        _, at, mask, _ = kir.load_parts(self.load)
        return mask is TRUE and self.ended.issuperset(at)


def channels_of(found: Operands, grid: Sequence[kir.Axis]) -> dict[kir.Buffer, int]:
    """The dimension of channels of both operands of a sum over windows of pixels; else nothing."""
    loads = [n for n in topological([found.left, found.right]) if n.op is ops.LOAD]
    sums, free = ({a.node for a in axes} for axes in (found.sums, grid))
    last = [mentions(kir.load_parts(n)[1][last_place(n)]) for n in loads if n.attr.shape]
    # The pixels are summed over, and the windows are results: not the other way round.
    shifted = any(_points(i & sums) > _points(i & free) > 1 for i in last)
    known = all(static(a.extent) is not None for a in found.sums)
    if len(loads) != 2 or len(found.sums) < 2 or not (shifted and known):
        return {}
    places = {n.attr: _channels(n, free, sums) for n in loads}
    whole = {buffer: place for buffer, place in places.items() if place is not None}
    return whole if len(whole) == len(loads) else {}


def _points(axes: Iterable[Node]) -> int:
    return points(a.attr for a in axes)


def _channels(load: Node, free: set[Node], sums: set[Node]) -> int | None:
    """The longest dimension that an axis of the result counts through alone, by whole vectors."""
    buffer, at, _, _ = kir.load_parts(load)
    if sums.isdisjoint(mentions(at[last_place(load)])):
        return None
    vector = VECTOR // load.dtype.itemsize
    whole = [
        d for d, i in enumerate(at) if i in free and (static(buffer.shape[d]) or 1) % vector == 0
    ]
    return max(whole, key=lambda d: static(buffer.shape[d]) or 1, default=None)


def relayout(
    kernel: kir.Kernel,
    found: Operands,
    channels: dict[kir.Buffer, int],
    tiles: Sequence[Sequence[kir.Axis]],
    sides: tuple[int, int],
    time: float,
    chip: GPU,
) -> Relaid:
    """The kernel with operands read from copies where that pays.

    `tiles` are the axes that become the rows and the columns of tiles with those `sides`, `time`
    is what the contraction takes if all goes well, and `channels` is what `channels_of` says.
    """
    (phase,) = kernel.phases
    reads = points((*phase.grid, *found.sums))
    ends = _ends(found, tiles, sides)
    copies: dict[Node, _Copy] = {}

    def loaded(factor: Node) -> float:
        """How many elements of a factor all tiles load."""
        left = any(a.node in mentions(factor) for a in tiles[0])
        return reads / sides[1 if left else 0]

    for factor in (found.left, found.right):
        loads = [n for n in topological([factor]) if n.op is ops.LOAD]
        if len(loads) != 1 or any(c.load is loads[0] for c in copies.values()):
            continue
        (load,) = loads
        value = _rounded(factor, load)
        place = _place(load, found.sums[-1])
        if load.attr in channels:
            order = _with_last(load, channels[load.attr])
            copies[value] = _copy(value, load, len(copies), order, {})
        elif place is not None and (load.dtype.itemsize == 1 or not _contiguous(load, tiles)):
            if reads >= READS * elements(load.attr):
                copies[value] = _copy(value, load, len(copies), _with_last(load, place), {})
        elif _moved(value, load) < _slower(factor, value, load, ends, time, loaded(factor)):
            order = tuple(range(len(load.attr.shape)))
            copies[value] = _copy(value, load, len(copies), order, ends)
    if not copies:
        return Relaid(kernel)
    moved = {v: _read(c) for v, c in copies.items()}
    body = kir.map_expressions(phase.body, lambda n: replaced(n, moved))
    body = _whole_blocks(body, found, ends, copies)
    buffers = (*kernel.buffers, *(c.copy for c in copies.values()))
    kernel = replace(kernel, buffers=buffers, phases=(kir.Phase(phase.grid, body),))
    padded = frozenset(c.copy for c in copies.values() if c.padded)
    return Relaid(kernel, [_copied(kernel, c, chip) for c in copies.values()], padded)


def unmasked(kernel: kir.Kernel, padded: frozenset[kir.Buffer]) -> kir.Kernel:
    """The kernel without masks where they keep off zeros, which is what masked lanes load."""

    def read(n: Node) -> Node:
        loads = [m for m in topological([n]) if m.op is ops.LOAD and m.attr in padded]
        return replaced(n, {m: m.attr.load(*kir.load_parts(m)[1]) for m in loads})

    if not padded:
        return kernel
    return kernel.with_phases(
        replace(p, body=kir.map_expressions(p.body, read)) for p in kernel.phases
    )


# ---- what to copy


def _rounded(factor: Node, load: Node) -> Node:
    """What a factor is made of: numbers as they are loaded, or rounded to 16 bits."""
    value = factor.inputs[0] if factor.op is ops.CAST else factor
    rounded = value.op is ops.CAST and value.inputs[0] is load and value.dtype.bits == 16
    return value if rounded and is_const(kir.load_parts(load)[3], 0) else load


def _place(load: Node, axis: kir.Axis) -> int | None:
    """The dimension that an axis alone counts through, unless it is the last."""
    _, at, _, _ = kir.load_parts(load)
    places = [d for d, i in enumerate(at) if axis.node in mentions(i)]
    if len(places) != 1 or at[places[0]] is not axis.node or places[0] == last_place(load):
        return None
    return places[0]


def _with_last(load: Node, place: int) -> tuple[int, ...]:
    """The dimensions of an operand, one of them last."""
    return (*(d for d in range(len(load.attr.shape)) if d != place), place)


def last_place(load: Node) -> int:
    """The dimension along which neighbours lie next to each other: the last of several elements."""
    several = [d for d, extent in enumerate(load.attr.shape) if extent != 1]
    return several[-1] if several else len(load.attr.shape) - 1


def _contiguous(load: Node, tiles: Sequence[Sequence[kir.Axis]]) -> bool:
    """Whether rows or columns, counted through by their last axis, lie in whole vectors."""
    _, at, _, _ = kir.load_parts(load)
    return any(
        at[last_place(load)] is axes[-1].node and (len(axes) == 1 or extent(axes[-1]) % SIDE == 0)
        for axes in tiles
        if axes
    )


def _slower(
    factor: Node, value: Node, load: Node, ends: dict[Node, int], time: float, loaded: float
) -> float:
    """What reading an operand where it is, so many elements, adds to the time of a product."""
    buffer, at, mask, _ = kir.load_parts(load)
    half = factor.op is ops.CAST and value.dtype.is_float and value.dtype.bits == 16
    if not (half or factor.dtype is float32) or mask is not TRUE:
        return 0.0
    known = at[-1] in ends and buffer.shape[-1] == at[-1].attr.extent
    uneven = known and at[-1].attr.extent * value.dtype.itemsize % VECTOR != 0
    return time * ROUNDING * (value is not load) + uneven * max(time * UNEVEN, loaded * ALONE)


def _moved(value: Node, load: Node) -> float:
    """The time that a copy takes."""
    size = value.dtype.itemsize + load.dtype.itemsize
    return LAUNCH + elements(load.attr) * size / BANDWIDTH


def _ends(
    found: Operands, tiles: Sequence[Sequence[kir.Axis]], sides: tuple[int, int]
) -> dict[Node, int]:
    """Where the last tile ends along axes that are tiled alone."""
    ends = {}
    for axes, side in zip((*tiles, found.sums), (*sides, BLOCK), strict=True):
        size = static(axes[0].extent) if len(axes) == 1 else None
        if size is not None:
            ends[axes[0].node] = -(-size // side) * side
    return ends


# ---- the copies, and reading them


def _copy(
    value: Node, load: Node, number: int, order: tuple[int, ...], ends: dict[Node, int]
) -> _Copy:
    buffer, at, _, _ = kir.load_parts(load)
    sizes = list(zip(at, buffer.shape, strict=True))
    ended = frozenset(i for i, n in sizes if i in ends and i.attr.extent == n)
    shape = [ends[i] if i in ended else n for i, n in sizes]
    copy = kir.Buffer(
        f"{buffer.name}_packed{number}",
        value.dtype,
        tuple(shape[d] for d in order),
        kir.Role.TEMPORARY,
    )
    return _Copy(value, load, copy, order, ended)


def _read(c: _Copy) -> Node:
    """What was copied, where the contraction reads it."""
    _, at, mask, other = kir.load_parts(c.load)
    other = other if c.value is c.load else const(0, c.value.dtype)
    return c.copy.load(*(at[d] for d in c.order), mask=mask, other=other)


def _whole_blocks(
    body: kir.Body, found: Operands, ends: dict[Node, int], copies: dict[Node, _Copy]
) -> kir.Body:
    """Whole blocks of products to the end of the copies, if every operand can have zeros there."""
    axis = found.sums[0]
    end = ends.get(axis.node, axis.extent)
    if end == axis.extent:
        return body
    inside: dict[Node, Node] = {}
    for factor in (found.left, found.right):
        value = factor.inputs[0] if factor.op is ops.CAST else factor
        if value in copies:
            if axis.node not in copies[value].ended:
                return body
        elif value.op is ops.LOAD and kir.load_parts(value)[2] is TRUE:
            buffer, at, _, _ = kir.load_parts(value)
            inside[value] = buffer.load(*at, mask=axis.node < axis.extent)
        else:
            return body
    longer = replace(axis, extent=end)
    body = kir.map_expressions(body, lambda n: replaced(n, inside))
    body = tuple(
        replace(s, axis=longer) if isinstance(s, kir.Loop) and s.axis == axis else s for s in body
    )
    return respecialise(body, {axis.node: longer.node})


def _copied(kernel: kir.Kernel, c: _Copy, chip: GPU) -> kir.Phase:
    """The copy, in tiles along what lies next to each other before and after."""
    source, _, _, _ = kir.load_parts(c.load)
    grid = tuple(kir.Axis.grid(f"{c.copy.name}{d}", n) for d, n in enumerate(c.copy.shape))
    at = [grid[c.order.index(d)].node for d in range(len(c.order))]
    inside = TRUE
    for i, n in zip(at, source.shape, strict=True):
        if i.attr.extent != n:
            inside = both(inside, i < n)
    value = replaced(c.value, {c.load: source.load(*at, mask=inside)})
    store = kir.Store(c.copy, tuple(a.node for a in grid), value)
    kernel = kernel.with_phases([kir.Phase(grid, (store,))])
    last = c.order.index(len(c.order) - 1)
    if last == len(c.order) - 1:
        return pointwise(kernel, chip).phases[0]
    first = last  # of the axes up to there that are neighbours in both, and of known extents
    while (
        first
        and c.order[first - 1] == c.order[first] - 1
        and static(grid[first].extent) is not None
    ):
        first -= 1
    kernel, rows = fuse(kernel, grid[first : last + 1])
    kernel = tile(tile(kernel, rows, SIDE), grid[-1], SIDE)
    return kernel.phases[0]
