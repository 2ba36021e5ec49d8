"""Packing: the right-hand operand of a contraction, copied into panels.

A panel holds, for every k, the elements of a tile's columns next to each other. The copy should
cost no more than reading the operand once and writing the panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from genesis.compiler.schedule.contraction_operands import Operands, reach
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.loop_transforms import branch
from genesis.compiler.schedule.steps.queries import SHORT, extent, page, points, stride
from genesis.compiler.schedule.steps.substitute_axes import mask_loads, respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import LinearIndex, below, ceil_div, fixed, least, simplify, static
from genesis.ir.node import TRUE, Node, both, is_const, mentions, topological
from genesis.ir.rewrite import replaced

#: Elements that a block packs, about.
PACK_BLOCK = 1 << 16
#: Rows of a panel that are staged together, at most.
STAGED = 1 << 12
#: Bytes that are read together.
CACHE_LINE = 64


@dataclass(frozen=True)
class PanelSource:
    """What goes into panels, and what of them `right` is: what is at `at`, under `mask`."""

    operand: Operands
    grid: Sequence[kir.Axis]
    at: tuple[Node, ...]
    mask: Node = TRUE

    @property
    def batch(self) -> list[kir.Axis]:
        """The axes that have panels of their own."""
        return self.operand.batch(self.grid)

    def read(self, packed: kir.Buffer, columns: kir.Axis, lane: kir.Axis) -> Node:
        """`right` in its panels."""
        batch = (a.node for a in self.batch)
        return packed.load(*batch, columns.node, *self.at, lane.node, mask=self.mask)


def source(found: Operands, grid: Sequence[kir.Axis]) -> PanelSource:
    """What to pack: `right` as it is summed, or, where it is read under a mask, all that is there.

    A strided gradient goes through the taps of a window several times, each time under a mask that
    lets some of them pass. In panels of the window itself every tap is once, and no zeros are.
    """
    whole = PanelSource(found, grid, tuple(a.node for a in found.sums))
    right, outside = found.right, TRUE
    while right.op is ops.WHERE and is_const(right.inputs[2], 0):
        outside, right = both(outside, right.inputs[0]), right.inputs[1]
    if right.op is not ops.LOAD:
        return whole
    buffer, at, mask, other = kir.load_parts(right)
    mask = both(outside, mask)
    along = [d for d, i in enumerate(at) if found.column.node in mentions(i)]
    plain = [at[d] is found.column.node and buffer.shape[d] == found.column.extent for d in along]
    if mask is TRUE or not is_const(other, 0) or plain != [True] or buffer.strides is not None:
        return whole
    if found.column.node in mentions(mask):
        return whole
    # Of a panel, what the innermost loop goes through lies together.
    depth = {a.node: k for k, a in enumerate(found.sums)}
    rest = [d for d in range(len(at)) if d not in along]
    rest.sort(key=lambda d: max((depth.get(x, -1) for x in mentions(at[d])), default=-1))
    axes = {d: kir.Axis.loop(f"w{d}", buffer.shape[d]) for d in rest}
    every = buffer.load(*(axes[d].node if d in axes else i for d, i in enumerate(at)))
    operand = replace(found, right=every, sums=tuple(axes.values()))
    return PanelSource(operand, (), tuple(at[d] for d in rest), mask)


def pack(found: Operands, grid: Sequence[kir.Axis], width: int) -> tuple[kir.Buffer, kir.Phase]:
    """The phase that copies `right` into zero-padded panels of `width` columns; their buffer.

    Elements are visited as they lie in memory. Where neighbours belong to one column, a cache line
    each of several columns is read and turned in registers.
    """
    batch = found.batch(grid)
    columns = kir.Axis.grid(found.column.name + "b", ceil_div(found.column.extent, width))
    shape = (*(a.extent for a in batch), columns.extent, *(a.extent for a in found.sums))
    packed = kir.Buffer("packed", found.right.dtype, (*shape, width), kir.Role.TEMPORARY)
    run = contiguous_run(found)
    together = gcd(CACHE_LINE // packed.dtype.itemsize, width) if run else width
    if (in_page := page(found.right, found.column)) >= SHORT:
        together = gcd(together, in_page)
    groups = kir.Axis.loop(found.column.name + "g", width // together)
    tile = kir.Axis.tile(found.column.name + "u", together)
    lane = groups.node * together + tile.node
    at = columns.node * width + lane
    right = replaced(found.right, {found.column.node: at})
    right = mask_loads(right, below(at, found.column.extent), [tile])

    def store(value: Node, places: Mapping[kir.Axis, Node]) -> kir.Store:
        sums = (places.get(a, a.node) for a in found.sums)
        index = (*(a.node for a in batch), columns.node, *sums, lane)
        return kir.Store(packed, tuple(map(simplify, index)), simplify(value))

    order = sorted(found.sums, key=lambda a: -reach(found.right, a))
    nest: kir.Body = (store(right, {}),)
    rows = 1  # of a panel, that `nest` writes
    if run:
        nest, parts, rows = _turned(right, run, tile, store)
        order = [*(a for a in order if a not in run), parts]
    # The outermost axis joins the grid, in chunks, so that all cores pack.
    outer, *inner = order
    block = decide("pack", [PACK_BLOCK, PACK_BLOCK >> 2, PACK_BLOCK << 2])
    chunk = max(1, block // (points(inner) * width * rows))
    chunks = kir.Axis.grid(outer.name + "b", ceil_div(outer.extent, chunk))
    left = kir.as_index(outer.extent) - chunks.node * chunk
    part = replace(outer, extent=least(chunk, fixed(simplify(left))))
    nest = kir.nest(inner, nest)
    nest = (kir.Loop(part, respecialise(nest, {outer.node: chunks.node * chunk + part.node})),)
    return packed, kir.Phase((*batch, columns, chunks), (kir.Loop(groups, nest),))


def _turned(
    right: Node,
    run: Mapping[kir.Axis, bool],
    tile: kir.Axis,
    store: Callable[[Node, Mapping[kir.Axis, Node]], kir.Store],
) -> tuple[kir.Body, kir.Axis, int]:
    """Packing the columns of `tile` along a run: a body, the axis that repeats it, and its rows.

    Lines of one axis are stored as they are turned. Rows of several axes belong all over the panel:
    lines are turned into a stage and rows are copied from there, which spares the divisions that
    would decode where they belong.
    """
    *inner, outermost = run
    weights = [points(inner[:k]) for k in range(len(run))]
    n, inside = extent(outermost), weights[-1]
    line = min(CACHE_LINE // right.dtype.itemsize, n * inside)
    name = "".join(a.name for a in run)
    # A part ends after a point of the outermost axis and, if it can, after a whole line.
    whole = line // gcd(inside, line)
    step = whole if n % whole == 0 else n
    if not inner or n * inside == line or step * inside > STAGED:
        joined = kir.Axis.loop(name, n * inside)
        digits = [joined.node // w % extent(a) for a, w in zip(run, weights, strict=True)]
        nest = (store(_joined(right, run, joined.node), _places(run, digits)),)
        return *_in_lines(nest, joined, line), line
    parts = kir.Axis.loop(outermost.name + "p", n // step)
    lines = kir.Axis.loop(name + "l", -(-step * inside // line))
    column = kir.Axis.tile(name + "t", line)
    at = lines.node * line + column.node
    value = _joined(right, run, parts.node * (step * inside) + at)
    value = mask_loads(value, simplify(at < step * inside), [column])
    turned = kir.Buffer("turned", right.dtype, (extent(lines) * line, tile.extent), kir.Role.STAGE)
    turn = kir.Loop(lines, (kir.Store(turned, (at, tile.node), simplify(value)),))
    copied = [*inner, replace(outermost, extent=step)]
    position = sum((a.node * w for a, w in zip(copied, weights, strict=True)), kir.as_index(0))
    digits = [*(a.node for a in inner), parts.node * step + copied[-1].node]
    row = store(turned.load(simplify(position), tile.node), _places(run, digits))
    return (kir.Stage(turned), turn, *kir.nest(copied, (row,))), parts, step * inside


def _places(run: Mapping[kir.Axis, bool], digits: Iterable[Node]) -> dict[kir.Axis, Node]:
    """Where the axes of a run are at a position in it, given its digits."""
    pairs = zip(run.items(), digits, strict=True)
    return {a: extent(a) - 1 - d if backwards else d for (a, backwards), d in pairs}


def contiguous_run(found: Operands) -> dict[kir.Axis, bool]:
    """The summation axes that count through a piece of memory in `right`, innermost first.

    With each comes whether it counts backwards, as the window of a gradient does. Empty where the
    piece is shorter than half a cache line, or `right` is more than an array of known shape.
    """
    loads = [n for n in topological([found.right]) if n.op is ops.LOAD]
    if len(loads) != 1:
        return {}
    buffer, where, mask, _ = kir.load_parts(loads[0])
    if mask is not TRUE or buffer.strides is not None or None in map(static, buffer.shape):
        return {}
    steps = {a: stride(buffer, where, a) for a in found.sums if static(a.extent) is not None}
    run: dict[kir.Axis, bool] = {}
    while following := [
        a for a in steps if steps[a] in (points(run), -points(run)) and a not in run
    ]:
        run[following[0]] = steps[following[0]] == -points(run)
    return run if 2 * points(run) * buffer.dtype.itemsize >= CACHE_LINE else {}


def _joined(right: Node, run: Mapping[kir.Axis, bool], position: Node) -> Node:
    """`right`, read at a position in `run` instead of at its axes; one of its indices has them."""

    def index(i: Node) -> Node:
        linear = LinearIndex.of(i)
        steps = {a: linear.terms.pop(a.node, 0) for a in run}
        if not any(steps.values()):
            return i
        first = linear.constant + sum(min(0, k) * (extent(a) - 1) for a, k in steps.items())
        return LinearIndex(linear.terms, first).emit() + position

    (load,) = (n for n in topological([right]) if n.op is ops.LOAD)
    buffer, where, mask, other = kir.load_parts(load)
    read = buffer.load(*map(index, where), mask=mask, other=other)
    return replaced(right, {load: read})


def _in_lines(nest: kir.Body, axis: kir.Axis, line: int) -> tuple[kir.Body, kir.Axis]:
    """`nest` for tiles of `line` points of an axis, and the axis that counts them."""
    length = extent(axis)
    lines = replace(axis, name=axis.name + "l", extent=ceil_div(length, line))
    at = lines.node * line + kir.Axis.tile(axis.name + "t", line).node
    full = respecialise(nest, {axis.node: at})
    if length % line == 0:
        return full, lines
    partial = respecialise(nest, {axis.node: at}, simplify(at < length))
    return branch(simplify(lines.node < length // line), full, partial), lines
