"""Attention: blocks of queries against blocks of keys.

A block owns some rows (queries). A few rows at a time meet a span of keys: their scores, tile by
tile from registers, go to fast memory, where they become weights with the greatest score known so
far; and the weighted values are added to sums, which are rescaled as the greatest score grows. Keys
are packed once into panels, as the right-hand side of any contraction; a span is several panels, so
that what is done once for a row and a span costs little. Where the scores are minus infinity beyond
a diagonal (a causal mask), keys past it are not visited, and those of the panel that it cuts are
looked at by vectors. Nor are spans before the first key of a window. Both may be known only from
memory, as in a piece of a longer text; what is left out would have weighed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

from genesis.backends.base import Chip
from genesis.compiler.fuse.online_softmax import finite
from genesis.compiler.schedule.attention_parts import (
    AttentionParts,
    diagonal,
    first_key,
    last_key,
    shared_factor,
    stored,
    within,
)
from genesis.compiler.schedule.contraction_operands import Operands
from genesis.compiler.schedule.cpu.contraction.packing import pack
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.queries import even_width, extent, page, together
from genesis.compiler.schedule.steps.substitute_axes import mask_loads, respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, floor_div, least, simplify, static
from genesis.ir.node import TRUE, Node, both, const, elementwise, mentions
from genesis.ir.rewrite import replaced

#: Register tiles of rows that share a pass over the keys: what is best, and others that may suit.
TILES = (16, 4, 8, 32)
#: Keys of a span, counted from the first key: the same for any number of them, of queries, and for
#: any schedule, as it decides in which order numbers are added up.
SPAN = 256


def attend(kernel: kir.Kernel, p: AttentionParts, chip: Chip) -> kir.Kernel:
    """Schedule attention."""
    return _Schedule(kernel, p, chip).kernel()


@dataclass(frozen=True)
class _Strip:
    """Keys of a span from some key on: so many tiles of them."""

    loop: kir.Axis
    tile: kir.Axis
    first: kir.Index = 0

    @property
    def key(self) -> Node:
        """A key of the tile, in the span."""
        return simplify(self.first + self.loop.node * extent(self.tile) + self.tile.node)


class _Schedule:
    def __init__(self, kernel: kir.Kernel, p: AttentionParts, chip: Chip) -> None:
        self.plain = kernel
        self.p = p
        self.dtype = p.dtype
        lanes = max(1, chip.vector_bytes // self.dtype.itemsize)
        self.lanes = lanes
        vectors = decide("vectors", [4, 2] if chip.vector_registers >= 32 else [2, 1])
        self.height = tile_height(p.row, chip, vectors)
        self.width = lanes * vectors
        self.value, self.worth = shared_factor(p.value, p.column)
        side = gcd(extent(p.column), together(self.value, p.column))
        self.column_width = even_width(side, lanes, vectors)
        shared = decide("tiles", TILES)
        self.rows = self.height * shared

        # Axes. A block owns `rows` rows: `shared` register tiles of `height`.
        self.block = kir.Axis.grid("ib", ceil_div(p.row.extent, self.rows))
        tiles = ceil_div(p.row.extent, self.height)
        left = simplify(kir.as_index(tiles) - self.block.node * shared)
        self.tile = kir.Axis.loop("it", least(shared, fixed(left)))
        self.r = kir.Axis.tile("r", self.height)
        self.d = kir.Axis.tile("d", self.column_width)
        self.local_row = self.tile.node * self.height + self.r.node
        self.at_row = simplify(self.block.node * self.rows + self.local_row)
        keys = static(p.keys.axis.extent)
        self.span = SPAN if keys is None else min(SPAN, self.width * -(-keys // self.width))
        self.spans = kir.Axis.loop("js", ceil_div(p.keys.axis.extent, self.span))
        self.strips = self.cut(lanes)
        self.columns = kir.Axis.loop("db", ceil_div(p.column.extent, self.column_width))
        self.local_column = simplify(self.columns.node * self.column_width + self.d.node)
        padded = ceil_div(p.column.extent, self.column_width)

        # Fast memory: what is carried from one span of keys to the next.
        assert isinstance(padded, int)
        width = padded * self.column_width
        self.sums = kir.Buffer("sums", self.dtype, (self.rows, width), kir.Role.STAGE)
        self.peaks = kir.Buffer("peaks", self.dtype, (self.rows,), kir.Role.STAGE)
        self.totals = kir.Buffer("totals", self.dtype, (self.rows,), kir.Role.STAGE)
        # And what a tile's rows have of the current one, beside their weights.
        self.tops, self.parts, self.before, self.now = (
            kir.Buffer(n, self.dtype, (self.height,), kir.Role.STAGE)
            for n in ("tops", "parts", "before", "now")
        )
        self.weights = kir.Buffer("weights", self.dtype, (self.height, self.span), kir.Role.STAGE)

    def kernel(self) -> kir.Kernel:
        p = self.p
        found = Operands(p.inner, (p.inner.axis,), p.query, p.key, p.row, p.keys.axis)
        packed, packing = pack(found, self.plain.phases[0].grid, self.width)
        inside = mentions(p.key)
        where = [a.node for a in p.batch if a.node in inside]
        carried = self.sums, self.peaks, self.totals
        stages = map(
            kir.Stage, (*carried, self.tops, self.parts, self.before, self.now, self.weights)
        )
        body: tuple[kir.Statement, ...] = (
            *stages,
            *self.start(),
            replace_extent(
                kir.Loop(self.spans, (kir.Loop(self.tile, self.visits(packed, where)),)),
                self.limit(),
            ),
            self.finish(),
        )
        attending = kir.Phase((*p.batch, self.block), body)
        return self.plain.with_phases([packing, attending], [packed])

    # ---- the three parts of a block
    def start(self) -> tuple[kir.Statement, ...]:
        """Nothing seen yet. Weights are there, too: which are read may be data."""
        zero, least_ = const(0, self.dtype), const(self.dtype.min, self.dtype)
        every = _Strip(
            replace(self.strips[0].loop, extent=self.span // self.width), self.strips[0].tile
        )
        nothing = (
            kir.Store(self.peaks, (self.local_row,), least_),
            kir.Store(self.totals, (self.local_row,), zero),
            kir.Loop(
                self.columns, (kir.Store(self.sums, (self.local_row, self.local_column), zero),)
            ),
        )
        clear = kir.Loop(every.loop, (kir.Store(self.weights, (self.r.node, every.key), zero),))
        return clear, kir.Loop(self.tile, nothing)

    def visits(self, packed: kir.Buffer, where: list[Node]) -> tuple[kir.Statement, ...]:
        """One register tile of rows against one span of keys; the last tile may be partial."""
        rows = below(self.at_row, self.p.row.extent)
        scores: list[kir.Statement] = []
        for strip in self.strips:
            panel = simplify(self.spans.node * (self.span // self.width) + strip.key // self.width)
            key = packed.load(
                *where, panel, self.p.inner.axis.node, simplify(strip.key % self.width)
            )
            score: tuple[kir.Statement, ...] = self.score(strip, key, TRUE)
            if rows is not TRUE:
                score = (kir.If(self.full_rows(), score, self.score(strip, key, rows)),)
            scores.append(kir.Loop(strip.loop, score))
        body = (*scores, *self.weigh(), kir.Loop(self.columns, self.add_values()))
        at, visited = simplify(self.spans.node * self.span), TRUE
        if (last := self.last(self.last_row)) is not None:
            visited = simplify(at <= last)
        if (first := self.first(self.first_row)) is not None:
            visited = both(visited, simplify(first < at + self.span))
        return body if visited is TRUE else (kir.If(visited, body),)

    def score(self, strip: _Strip, key: Node, rows_inside: Node) -> tuple[kir.Statement, ...]:
        """The scores of a tile of keys, with loads masked by `rows_inside`."""
        p, c = self.p, strip.tile
        carry = p.inner.carried[0]
        at_key = simplify(self.spans.node * self.span + strip.key)
        keys_inside = below(at_key, p.keys.axis.extent)
        at = {p.row.node: self.at_row, p.keys.axis.node: at_key}

        query = mask_loads(replaced(p.query, at), rows_inside, {self.r})
        products = kir.Local("products" + c.name, carry.local.dtype, (c, self.r))
        product = elementwise(ops.MUL, query, key)
        step = elementwise(ops.ADD, products.node, product)
        contraction = kir.Loop(
            p.inner.axis, (), (kir.Carry(products, carry.init, step),), p.inner.merge
        )

        written = replaced(p.score, {**at, carry.local.node: products.node})
        score = mask_loads(mask_loads(written, rows_inside, {self.r}), keys_inside, {c})
        if keys_inside is not TRUE:
            score = elementwise(ops.WHERE, keys_inside, score, const(score.dtype.min, score.dtype))
        return contraction, kir.Store(self.weights, (self.r.node, strip.key), simplify(score))

    def weigh(self) -> kir.Body:
        """The scores of a tile's rows become weights; what came before is merged with them."""
        i = kir.Axis.loop("i", self.height)
        seen, wide = self.seen(), self.width if len(self.strips) == 1 else self.lanes
        worth = worth_of(self.p, self.worth, self.spans.node * self.span)
        rows = weighed(self.weights, self.tops, self.parts, i.node, seen, self.lanes, wide, worth)
        row, r = self.local_row, self.r.node
        merged = Merged(self.peaks.load(row), self.tops.load(r), (self.r,))
        total = merged.sum(self.totals.load(row), self.parts.load(r))
        return (
            kir.Loop(i, rows),
            *merged.lets,
            kir.Store(self.totals, (row,), total),
            kir.Store(self.before, (r,), merged.before.node),
            kir.Store(self.now, (r,), merged.now.node),
            kir.Store(self.peaks, (row,), merged.peak.node),
        )

    def add_values(self) -> tuple[kir.Statement, ...]:
        """The tile's weights times the span's values, merged with what came before."""
        p, r = self.p, self.r.node
        inside = below(self.local_column, p.column.extent)

        def product(j: Node) -> Node:
            key = self.spans.node * self.span + j
            at = {p.keys.axis.node: key, p.column.node: self.local_column}
            value = mask_loads(replaced(self.value, at), inside, {self.d})
            return self.weights.load(r, j) * simplify(value)

        sums = kir.Local("sum", self.dtype, (self.d, self.r))
        where = (self.local_row, self.local_column)
        before, now = self.before.load(r), self.now.load(r)
        return (
            added_up(sums, product, self.seen(), piece(self.value, p.keys.axis)),
            kir.Store(self.sums, where, self.sums.load(*where) * before + sums.node * now),
        )

    def finish(self) -> kir.Statement:
        """Divide by the totals, apply the epilogue, store."""
        p = self.p
        peak, total, weighted = p.state
        at = {p.row.node: self.at_row, p.column.node: self.local_column}
        at[total] = self.totals.load(self.local_row)
        at[peak] = self.peaks.load(self.local_row)
        at[weighted] = self.sums.load(self.local_row, self.local_column)
        inside = both(below(self.at_row, p.row.extent), below(self.local_column, p.column.extent))
        tiles = {self.r, self.d}
        full = tuple(stored(s, at, TRUE, tiles) for s in p.stores)
        body: tuple[kir.Statement, ...] = full
        if inside is not TRUE:
            masked = tuple(stored(s, at, inside, tiles) for s in p.stores)
            body = masked
            columns = below(self.local_column, p.column.extent)
            if columns is TRUE:
                body = (kir.If(self.full_rows(), full, masked),)
        once = tuple(stored(s, at, below(self.at_row, p.row.extent), tiles) for s in p.once)
        return kir.Loop(self.tile, (*once, kir.Loop(self.columns, body)))

    # ---- pieces
    def cut(self, lanes: int) -> tuple[_Strip, ...]:
        """The keys of a span that are seen, as they are multiplied.

        That is by panels, but the one that a diagonal cuts by vectors.
        """
        seen, c = self.seen(), kir.Axis.tile("c", self.width)
        if diagonal(self.p) is None or self.width == lanes:
            return (_Strip(kir.Axis.loop("jb", ceil_div(seen, self.width)), c),)
        whole, v = floor_div(seen, self.width), kir.Axis.tile("v", lanes)
        first = simplify(kir.as_index(whole) * self.width)
        rest = ceil_div(fixed(simplify(kir.as_index(seen) - first)), lanes)
        vectors = _Strip(kir.Axis.loop("jv", rest), v, first)
        return _Strip(kir.Axis.loop("jb", whole), c), vectors

    def full_rows(self) -> Node:
        """Whether all rows of the current register tile exist."""
        return below(self.last_row, self.p.row.extent)

    @property
    def first_row(self) -> Node:
        """The first row of the current register tile."""
        return self.at_row - self.r.node

    @property
    def last_row(self) -> Node:
        """The last row of the current register tile."""
        return self.first_row + (self.height - 1)

    def seen(self) -> kir.Index:
        """The keys of the current span that some row of the tile sees."""
        keys = kir.as_index(self.p.keys.axis.extent)
        last = self.last(self.last_row)
        if last is not None:
            keys = elementwise(ops.MIN, keys, last + 1)
        left = simplify(keys - self.spans.node * self.span)
        return least(self.span, fixed(left))

    def limit(self) -> kir.Index:
        """Spans to visit: all, or those up to the diagonal of a causal mask."""
        every = self.spans.extent
        # The last row of the block sees keys up to `last`; further spans weigh nothing.
        last = self.last(self.block.node * self.rows + (self.rows - 1))
        if last is None:
            return every
        seen = simplify((last + self.span) // self.span)
        seen = elementwise(ops.MAX, seen, const(1, seen.dtype))
        return fixed(simplify(elementwise(ops.MIN, kir.as_index(every), seen)))

    def last(self, row: Node) -> Node | None:
        """The last key that the rows up to `row` see, where that is told."""
        last = last_key(self.p)
        if last is None:
            return None
        if diagonal(self.p) is not None:
            return replaced(last, {self.p.row.node: row})
        row = elementwise(ops.MIN, row, kir.as_index(self.p.row.extent) - 1)
        return within(replaced(last, {self.p.row.node: row}), self.p.keys.axis.extent)

    def first(self, row: Node) -> Node | None:
        """The first key that the rows from `row` on see, where that is told."""
        first = first_key(self.p)
        return None if first is None else replaced(first, {self.p.row.node: row})


# ---- the order of a row's sums: of scores, of a span's weights and values, and of spans


def weighed(
    weights: kir.Buffer,
    peaks: kir.Buffer,
    totals: kir.Buffer,
    row: Node,
    seen: kir.Index,
    lanes: int,
    wide: int,
    worth: Callable[[Node, kir.Axis], Node] | None = None,
) -> kir.Body:
    """A row's scores of a span become weights; their peak and total.

    Lanes add up every so many keys whatever the span: those that are not seen add zeros. The
    greatest is the same in any order, of so many keys at a time as are there. What is kept of a
    weight is multiplied with what it is ``worth(key, lanes)``.
    """
    dtype = weights.dtype
    vectors, v = kir.Axis.loop("jw", ceil_div(seen, lanes)), kir.Axis.tile("v", lanes)
    panels, w = kir.Axis.loop("jm", ceil_div(seen, wide)), kir.Axis.tile("w", wide)
    best, parts, weight = (
        kir.Local(n, dtype, (a,)) for n, a in (("best", w), ("part", v), ("weight", v))
    )
    top, base, total = (kir.Local(n, dtype) for n in ("top", "base", "total"))
    at = row, simplify(vectors.node * lanes + v.node)
    score = weights.load(*at)
    more = weights.load(row, simplify(panels.node * wide + w.node))
    greater = kir.Carry(best, const(dtype.min, dtype), elementwise(ops.MAX, best.node, more))
    kept = weight.node if worth is None else weight.node * worth(at[1], v)
    weigh = (
        kir.Let(weight, elementwise(ops.EXP, score - base.node)),
        kir.Store(weights, at, kept),
    )
    adding = kir.Carry(parts, const(0, dtype), parts.node + weight.node)
    return (
        kir.Loop(panels, (), (greater,)),
        kir.Reduce((top,), (best.node,), w, kir.fold(ops.MAX, dtype)),
        kir.Let(base, finite(top.node)),
        kir.Loop(vectors, weigh, (adding,)),
        kir.Reduce((total,), (parts.node,), v, kir.fold(ops.ADD, dtype)),
        kir.Store(peaks, (row,), top.node),
        kir.Store(totals, (row,), total.node),
    )


def worth_of(
    p: AttentionParts, worth: Node | None, first: Node
) -> Callable[[Node, kir.Axis], Node] | None:
    """What a value is multiplied with in all of its columns, by its place in a span."""

    def of(at: Node, lanes: kir.Axis) -> Node:
        assert worth is not None
        key = simplify(first + at)
        found = replaced(worth, {p.keys.axis.node: key})
        return simplify(mask_loads(found, below(key, p.keys.axis.extent), {lanes}))

    return None if worth is None else of


def added_up(
    sums: kir.Local, product: Callable[[Node], Node], count: kir.Index, together: int
) -> kir.Loop:
    """The sum of ``product(key)`` for so many keys of a span, in their order.

    Of pages that lie anywhere, every one is looked up once.
    """
    zero = const(0, sums.dtype)
    if together >= SPAN:
        j = kir.Axis.loop("j", count)
        return kir.Loop(j, (), (kir.Carry(sums, zero, sums.node + product(j.node)),))
    pages = kir.Axis.loop("jp", ceil_div(count, together))
    left = simplify(kir.as_index(count) - pages.node * together)
    j = kir.Axis.loop("j", least(together, fixed(left)))
    of_page = replace(sums, name="page_" + sums.name)
    step = of_page.node + product(simplify(pages.node * together + j.node))
    inner = kir.Loop(j, (), (kir.Carry(of_page, sums.node, step),))
    return kir.Loop(pages, (inner,), (kir.Carry(sums, zero, of_page.node),))


def piece(factor: Node, axis: kir.Axis) -> int:
    """Keys of a span, neighbours along `axis`, that are in one page: all, if there are no pages."""
    return gcd(SPAN, page(factor, axis))


class Merged:
    """What spans so far and the next one say of a row, together."""

    def __init__(
        self, before: Node, now: Node, tiles: tuple[kir.Axis, ...] = (), name: str = ""
    ) -> None:
        self.peak, base, self.before, self.now = (
            kir.Local(name + n, now.dtype, tiles) for n in ("higher", "common", "old", "new")
        )
        self.lets: kir.Body = (
            kir.Let(self.peak, elementwise(ops.MAX, before, now)),
            kir.Let(base, finite(self.peak.node)),
            kir.Let(self.before, elementwise(ops.EXP, before - base.node)),
            kir.Let(self.now, elementwise(ops.EXP, now - base.node)),
        )

    def sum(self, before: Node, now: Node) -> Node:
        """Sums of what was weighed with two peaks, weighed with the greater."""
        return before * self.before.node + now * self.now.node


def tile_height(row: kir.Axis, chip: Chip, vectors: int) -> int:
    """Rows of a register tile `vectors` wide.

    The more, the fewer loads to a product; but a last tile that is partial costs about double.
    """
    most, rows = (chip.vector_registers - vectors - 2) // vectors, static(row.extent)
    if rows is None:
        return most

    def cost(height: int) -> float:
        tiles = -(-rows // height) + (rows % height != 0)
        return tiles * (height * vectors + 0.2 * (height + vectors))

    return min(rows, min(range(most, most // 2, -1), key=cost))


def replace_extent(loop: kir.Loop, size: kir.Index) -> kir.Loop:
    """The loop with another extent: names its axis anew everywhere inside."""
    if size == loop.axis.extent:
        return loop
    axis = replace(loop.axis, extent=size)
    return replace(loop, axis=axis, body=respecialise(loop.body, {loop.axis.node: axis.node}))
