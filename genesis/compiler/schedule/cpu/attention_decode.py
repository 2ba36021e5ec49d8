"""Attention with few queries, as when a model writes word by word.

With one query there is nothing to reuse: keys and values are read once, and reading them is what
it costs. A block takes a span of the keys. It first writes all scores of its queries into fast
memory, a panel of keys at a time, turns them into weights, and then adds up the weighted values in
registers. Several spans leave their greatest score, total and sums, which a second phase merges.
Queries that share keys (heads in groups) are in one block, so that memory is read once for all of
them. Where the scores are minus infinity beyond some key, which may be known only from memory,
neither keys nor values beyond it are read; nor are those of spans before the first key of a window.

Products are summed in the order that suits how keys lie in memory. Where those of one feature lie
side by side, as in a cache that is kept transposed, the lanes of a vector are keys, and everything
is in the order of `attention`: how many queries there are does not change a bit of their results.

In a cache of pages what comes next may be anywhere, and no hardware foresees it. So keys prefetch
the values of their span, and values the keys of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

from genesis.backends.base import Chip
from genesis.compiler.schedule.attention_parts import (
    AttentionParts,
    first_key,
    last_key,
    shared_factor,
    stored,
    within,
)
from genesis.compiler.schedule.cpu.attention import (
    SPAN,
    Merged,
    piece,
    weighed,
    worth_of,
)
from genesis.compiler.schedule.steps.queries import even_width, extent, points, stride, together
from genesis.compiler.schedule.steps.substitute_axes import mask_loads
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, floor_div, least, simplify, static
from genesis.ir.node import TRUE, Node, both, const, elementwise, mentions, topological
from genesis.ir.rewrite import replaced, substitute

#: With fewer queries to a key than this, copying keys into panels does not pay.
FEW = 16
#: Features of keys, or values, that are multiplied in an iteration.
UNROLLED = 8


def few(p: AttentionParts, chip: Chip) -> bool:
    """Whether there are few queries."""
    return points(p.rows) < FEW


def decode(kernel: kir.Kernel, p: AttentionParts, chip: Chip) -> kir.Kernel:
    """Schedule attention with few queries."""
    return _Decode(kernel, p, chip).kernel()


class _Decode:
    def __init__(self, kernel: kir.Kernel, p: AttentionParts, chip: Chip) -> None:
        self.plain, self.p = kernel, p
        self.dtype = p.dtype
        self.line_bytes = chip.vector_bytes
        self.lanes = max(1, chip.vector_bytes // self.dtype.itemsize)
        self.accumulators = accumulators = 24 if chip.vector_registers >= 32 else 8
        columns = extent(p.column)

        # Queries: a tile of the longest axis; the others one after the other. What is decoded of a
        # key or a value is there for all of a tile.
        self.tiled = p.rows[0] if p.rows else None
        count = extent(self.tiled) if self.tiled is not None else 1
        height = -(-count // -(-count // (accumulators // 2)))
        self.r = kir.Axis.tile("r", height)
        self.across = (self.r,) if height > 1 else ()  # of what there is one for every query
        self.others = tuple(replace(a, kind=kir.AxisKind.LOOP) for a in p.rows[1:])
        self.tiles = kir.Axis.loop("rb", 1)
        self.at: dict[Node, Node] = {
            a.node: b.node for a, b in zip(p.rows[1:], self.others, strict=True)
        }
        self.row_inside = TRUE
        if self.tiled is not None:
            self.tiles = replace(self.tiles, extent=ceil_div(self.tiled.extent, height))
            row = simplify(self.tiles.node * height + self.r.node)
            self.at[self.tiled.node] = row
            self.row_inside = below(row, self.tiled.extent)
        # Where a tile's queries are among all of the block.
        loops = (*self.others, self.tiles)
        first = kir.as_index(0)
        for axis in loops:
            first = first * extent(axis) + axis.node
        self.first = simplify(first * height)
        self.local_row = simplify(self.first + self.r.node)
        rows = height * prod(map(extent, loops))

        # Keys: spans of panels.
        keys = min(static(p.keys.axis.extent) or SPAN, SPAN)
        self.spans = kir.Axis.grid("kc", ceil_div(p.keys.axis.extent, SPAN))
        self.page = piece(p.key, p.keys.axis)
        self.transposed = _transposed(p, self.page)
        vectors = min(accumulators // height, 4, -(-keys // self.lanes))
        self.panel = self.lanes * (1 << vectors.bit_length() - 1 if keys == SPAN else vectors)
        # Keys that lie side by side; several pages of them, as sums wait for each other.
        side = gcd(self.panel, self.page) if self.transposed else self.panel
        self.c, self.g = kir.Axis.tile("c", side), kir.Axis.tile("g", self.panel // side)
        self.panels = kir.Axis.loop("kp", ceil_div(self.count(), self.panel))
        self.in_panel = simplify(self.g.node * side + self.c.node)
        self.position = simplify(self.panels.node * self.panel + self.in_panel)
        self.key = simplify(self.spans.node * SPAN + self.position)
        self.exists = below(self.key, p.keys.axis.extent)

        # What lies in order in memory: as much at once as registers hold.
        self.value, self.worth = shared_factor(p.value, p.column)
        side = gcd(columns, together(self.value, p.column))
        self.width = even_width(side, self.lanes, max(1, accumulators // height))
        self.d = kir.Axis.tile("d", self.width)
        self.columns = kir.Axis.loop("db", ceil_div(columns, self.width))
        self.column = simplify(self.columns.node * self.width + self.d.node)
        self.column_inside = simplify(self.column < columns)

        whole = max(self.panel, self.lanes)
        self.room = whole * -(-keys // whole)
        self.weights = kir.Buffer("weights", self.dtype, (rows, self.room), kir.Role.STAGE)
        features = self.lanes * -(-extent(p.inner.axis) // self.lanes)
        shape = rows, features
        self.queries = kir.Buffer("queries", p.product.dtype, shape, kir.Role.STAGE)
        self.peaks = kir.Buffer("peaks", self.dtype, (rows,), kir.Role.STAGE)
        self.totals = kir.Buffer("totals", self.dtype, (rows,), kir.Role.STAGE)
        self.sums = kir.Local("sum", self.dtype, (self.d, *self.across))

    def kernel(self) -> kir.Kernel:
        p = self.p
        rows = tuple(a for a in self.plain.phases[0].grid if a in p.rows)
        batch = p.shared
        peak, total = (b.load(self.local_row) for b in (self.peaks, self.totals))
        if self.spans.extent == 1:
            at = dict(zip(p.state, (peak, total, self.sums.node), strict=True)) | self.at
            final = tuple(self.final(s, at, self.inside) for s in p.stores)
            once = tuple(self.final(s, at, self.row_inside) for s in p.once)
            return self.plain.with_phases([kir.Phase(batch, self.block(final, once))])
        where = tuple(a.node for a in (*batch, *rows))
        shape = tuple(a.extent for a in (*batch, *rows, self.spans))
        found = [
            kir.Buffer(f"span_{n}", self.dtype, (*shape, *more), kir.Role.TEMPORARY)
            for n, more in (("peaks", ()), ("totals", ()), ("sums", (p.column.extent,)))
        ]
        at_span = (*substitute([*where], self.at), self.spans.node)
        once = tuple(
            kir.Store(b, at_span, value, self.row_inside)
            for b, value in zip(found, (peak, total), strict=False)
        )
        sums = kir.Store(found[2], (*at_span, self.column), self.sums.node, self.inside)
        # What comes last of what keys depend on, heads, lies together in a page.
        grid = (*batch[:-1], self.spans, *batch[-1:])
        first = kir.Phase(grid, self.block((sums,), once))
        second = kir.Phase((*batch, *rows), self.merge(found, where))
        return self.plain.with_phases([first, second], found)

    @property
    def inside(self) -> Node:
        """Whether a query and a column of a tile exist."""
        return both(self.row_inside, self.column_inside)

    def seen(self) -> Node:
        """The keys that some query of the block looks at: all up to one."""
        keys = kir.as_index(self.p.keys.axis.extent)
        last = last_key(self.p)
        if last is None:
            return keys
        ends = {a.node: kir.as_index(a.extent) - 1 for a in self.p.rows}
        return within(replaced(last, ends), self.p.keys.axis.extent) + 1

    def count(self) -> kir.Index:
        """Those of this span."""
        left = self.seen() - self.spans.node * SPAN
        here = elementwise(ops.MIN, left, kir.as_index(SPAN))
        if last_key(self.p) is not None:
            here = elementwise(ops.MAX, here, kir.as_index(0))
        if (first := first_key(self.p)) is not None:
            first = replaced(first, {a.node: kir.as_index(0) for a in self.p.rows})
            before = elementwise(ops.LE, (self.spans.node + 1) * SPAN, first)
            here = elementwise(ops.WHERE, before, kir.as_index(0), here)
        return fixed(simplify(here))

    # ---- phase one: a span
    def block(self, inner: kir.Body, once: kir.Body = ()) -> kir.Body:
        """All queries of a block against a span, then `inner` for all columns, `once` for rows."""
        stages = map(kir.Stage, (self.weights, self.peaks, self.totals))
        convert = (kir.Stage(self.queries), *self.convert()) if self.transposed else ()
        scores = kir.Loop(self.panels, self.each_tile(self.score()))
        i = kir.Axis.loop("i", extent(self.r))
        row = simplify(self.first + i.node)
        wide = gcd(self.room, 4 * self.lanes)
        worth = worth_of(self.p, self.worth, self.spans.node * SPAN)
        weigh = weighed(
            self.weights, self.peaks, self.totals, row, self.count(), self.lanes, wide, worth
        )
        values = self.each_tile((kir.Loop(i, weigh), *once, self.add_values(inner)))
        return *stages, *convert, *self.clear(), scores, *values

    def each_tile(self, body: kir.Body) -> kir.Body:
        """Something for all queries of a block, a tile at a time."""
        return kir.nest((*reversed(self.others), self.tiles), body)

    def convert(self) -> kir.Body:
        """Queries are there as they are multiplied, by every panel: of what they are made, once."""
        p = self.p
        parts = kir.Axis.loop("qb", ceil_div(p.inner.axis.extent, self.lanes))
        q = kir.Axis.tile("q", self.lanes)
        inner = simplify(parts.node * self.lanes + q.node)
        query = replaced(p.query, {**self.at, p.inner.axis.node: inner})
        exists = below(inner, p.inner.axis.extent)
        query = mask_loads(mask_loads(query, self.row_inside, {self.r}), exists, {q})
        store = kir.Store(self.queries, (self.local_row, inner), simplify(query))
        return self.each_tile((kir.Loop(parts, (store,)),))

    def clear(self) -> kir.Body:
        """Weights are there, whatever is known of how many keys are looked at."""
        every = replace(self.panels, extent=self.room // self.panel)
        at = self.local_row, simplify(every.node * self.panel + self.in_panel)
        nothing = kir.Store(self.weights, at, const(self.dtype.min, self.dtype))
        return self.each_tile((kir.Loop(every, (nothing,)),))

    def score(self) -> kir.Body:
        """The scores of a tile's queries with the keys of a panel."""
        p, exists = self.p, self.exists
        multiply, product = self.by_keys() if self.transposed else self.by_features()
        at = {**self.at, p.keys.axis.node: self.key, p.product.node: product}
        score = mask_loads(replaced(p.score, at), self.row_inside, {self.r})
        score = mask_loads(score, exists, {self.c, self.g})
        if exists is not TRUE:
            score = elementwise(ops.WHERE, exists, score, const(score.dtype.min, score.dtype))
        store = kir.Store(self.weights, (self.local_row, self.position), simplify(score))
        return *multiply, store

    def by_keys(self) -> tuple[kir.Body, Node]:
        """Products with keys that lie side by side: a lane for each, in `attention`'s order.

        Several features at a time, as finding where they are takes longer than multiplying.
        """
        p, carry = self.p, self.p.inner.carried[0]
        key, inside = self.key, self.exists
        if not kir.tile_axes(inside) & {self.c}:  # of a page that is not there another one is read
            side = extent(self.c)
            last = (kir.as_index(p.keys.axis.extent) - 1) // side
            page = elementwise(ops.MIN, simplify(self.key // side), last)
            key, inside = simplify(page * side + self.c.node), TRUE
        count = gcd(static(p.inner.axis.extent) or 1, UNROLLED)
        steps = replace(p.inner.axis, extent=floor_div(p.inner.axis.extent, count))
        products = kir.Local("products", p.product.dtype, (self.c, self.g, *self.across))
        step = products.node
        for k in range(count):
            feature = simplify(steps.node * count + k)
            at = {p.keys.axis.node: key, p.inner.axis.node: feature}
            factor = mask_loads(replaced(p.key, at), inside, {self.c, self.g})
            query = self.queries.load(self.local_row, feature)
            step = step + elementwise(ops.MUL, query, simplify(factor))
        adding = kir.Carry(products, carry.init, step)
        return (
            kir.Loop(steps, self.values_ahead(steps, count), (adding,), p.inner.merge),
        ), products.node

    def by_features(self) -> tuple[kir.Body, Node]:
        """Products with one key after the other, in the order they lie in memory."""
        p = self.p
        size, dtype = p.inner.axis.extent, p.product.dtype
        along = even_width(
            static(size) or 1, self.lanes, max(1, self.accumulators // extent(self.r))
        )
        left = kir.as_index(self.count()) - self.panels.node * self.panel
        here = least(self.panel, fixed(simplify(left)))
        side = gcd(self.page, self.panel)
        pages, k = kir.Axis.loop("kg", 1), kir.Axis.loop("k", here)
        if side < self.panel:
            pages = replace(pages, extent=ceil_div(here, side))
            left = kir.as_index(here) - pages.node * side
            k = replace(k, extent=least(side, fixed(simplify(left))))
        steps, e = kir.Axis.loop("eb", ceil_div(size, along)), kir.Axis.tile("e", along)
        inner = simplify(steps.node * along + e.node)
        there = simplify(pages.node * side + k.node)
        key = simplify(self.spans.node * SPAN + self.panels.node * self.panel + there)
        at = {**self.at, p.keys.axis.node: key, p.inner.axis.node: inner}
        query, keys = substitute([p.query, p.key], at)
        exists = below(inner, size)
        query = mask_loads(mask_loads(query, self.row_inside, {self.r}), exists, {e})
        keys = mask_loads(keys, both(exists, below(key, p.keys.axis.extent)), {e})
        product, parts = (
            kir.Local("product", dtype, self.across),
            kir.Local("parts", dtype, (e, *self.across)),
        )
        step = parts.node + elementwise(ops.MUL, simplify(query), simplify(keys))
        products = kir.Buffer("products", dtype, (self.r.extent, self.panel), kir.Role.STAGE)
        body = (
            kir.Loop(steps, (), (kir.Carry(parts, const(0, dtype), step),)),
            kir.Reduce((product,), (parts.node,), e, kir.fold(ops.ADD, dtype)),
            kir.Store(products, (self.r.node, there), product.node),
        )
        clear = kir.Store(products, (self.r.node, self.in_panel), const(0, dtype))
        return (
            kir.Stage(products), clear, kir.Loop(pages, (kir.Loop(k, body),)),
        ), products.load(self.r.node, self.in_panel)  # fmt: skip

    def add_values(self, then: kir.Body) -> kir.Loop:
        """The weighted sum of the values, a tile of columns at a time."""
        p = self.p

        def product(j: Node) -> Node:
            at = {p.keys.axis.node: self.spans.node * SPAN + j, p.column.node: self.column}
            value = mask_loads(replaced(self.value, at), self.column_inside, {self.d})
            return self.weights.load(self.local_row, j) * simplify(value)

        loops = self.added_up(product, piece(self.value, p.keys.axis))
        return kir.Loop(self.columns, (*loops, *then))

    def added_up(self, product: Callable[[Node], Node], page: int) -> kir.Body:
        """The sum of ``product(key)`` for the keys of a span, in `attention`'s order.

        Several keys are added up in an iteration, as finding where they are takes longer; those
        that are left over, of a page that is not whole, come last.
        """
        zero, count = const(0, self.dtype), self.count()
        some = gcd(page, UNROLLED)
        group = page if page < SPAN else some
        whole, rest = floor_div(count, group), fixed(simplify(kir.as_index(count) % group))
        total = self.sums if rest == 0 else replace(self.sums, name="whole_sum")
        groups, j = kir.Axis.loop("jg", whole), kir.Axis.loop("j", group // some)
        of_group = replace(self.sums, name="group_sum")
        step = of_group.node
        ahead: kir.Body = ()
        for k in range(some):
            key = simplify(groups.node * group + j.node * some + k)
            step = step + product(key)
            ahead = (*ahead, *self.keys_ahead(key))
        inner = kir.Loop(j, ahead, (kir.Carry(of_group, total.node, step),))
        loop = kir.Loop(groups, (inner,), (kir.Carry(total, zero, of_group.node),))
        if rest == 0:
            return (loop,)
        j = kir.Axis.loop("jr", rest)
        key = simplify(kir.as_index(whole) * group + j.node)
        last = kir.Carry(self.sums, total.node, self.sums.node + product(key))
        return loop, kir.Loop(j, (), (last,))

    # ---- memory that is not in order, as pages: hardware does not foresee what is needed next
    def values_ahead(self, steps: kir.Axis, count: int) -> kir.Body:
        """With so many features of a panel of keys, as much of the values."""
        p, line = self.p, self.line(self.p.value, self.p.column)
        lines = -(-extent(p.column) // line)
        side = extent(self.c)
        u = kir.Axis.tile("u", -(-side * lines // extent(steps)))
        n = steps.node * extent(u) + u.node
        key = elementwise(ops.MIN, n // lines, kir.as_index(side - 1))
        first = self.spans.node * SPAN + self.panels.node * self.panel + self.g.node * side
        return self.ahead(p.value, first, key, {p.column: n % lines * line}, side)

    def keys_ahead(self, j: Node) -> kir.Body:
        """With the values of a key, as much of the keys of the next block: a head, or span."""
        p, line = self.p, self.line(self.p.key, self.p.inner.axis)
        side = gcd(line, self.page) if self.transposed else self.lanes  # keys of a line, or some
        t = kir.Axis.tile("t", -(-extent(p.inner.axis) // line))
        group, j = simplify(j // side), simplify(j % side)
        span, features = self.spans.node, t.node * line
        if self.transposed:
            j, features = kir.as_index(0), (j * extent(t) + t.node) * (line // side)
        places = {p.inner.axis: features}
        if p.shared:
            head = p.shared[-1]
            over = elementwise(ops.LE, kir.as_index(head.extent), head.node + 1)
            places[head] = elementwise(ops.WHERE, over, kir.as_index(0), head.node + 1)
            span = elementwise(ops.WHERE, over, span + 1, span)
        else:
            span = span + 1
        return self.ahead(p.key, span * SPAN + group * side, j, places, side)

    def line(self, factor: Node, features: kir.Axis) -> int:
        """How many numbers of a factor a line of the cache holds."""
        read = (b for b, _ in self.read(factor, features))
        return self.line_bytes // min((b.dtype.itemsize for b in read), default=self.dtype.itemsize)

    def read(
        self, factor: Node, features: kir.Axis
    ) -> Iterator[tuple[kir.Buffer, tuple[Node, ...]]]:
        """What is read of a factor, at which index; not what its features share."""
        for n in topological([factor]):
            if n.op is ops.LOAD:
                buffer, at, _, _ = kir.load_parts(n)
                if any(features.node in mentions(x) for x in at):
                    yield buffer, at

    def ahead(
        self, factor: Node, first: Node, key: Node, places: dict[kir.Axis, Node], side: int
    ) -> kir.Body:
        """Have a line prefetched: of a `key` of `side` from the `first` on, at some `places`."""
        if self.page % side or (self.page == SPAN and not self.transposed):
            return ()
        keys = self.p.keys.axis
        last = (kir.as_index(keys.extent) - 1) // side
        at = {
            a.node: elementwise(ops.MIN, x, kir.as_index(a.extent) - 1) for a, x in places.items()
        }
        at[keys.node] = elementwise(ops.MIN, first // side, last) * side + key
        features = self.p.column if factor is self.p.value else self.p.inner.axis
        where = [(b, substitute([*i], at)) for b, i in self.read(factor, features)]
        return tuple(kir.Prefetch(b, tuple(map(simplify, i))) for b, i in where)

    # ---- phase two: spans together
    def merge(self, found: Sequence[kir.Buffer], where: tuple[Node, ...]) -> kir.Body:
        """The results from what all spans left."""
        p = self.p
        merging, at = self.merged(found, where)
        body: kir.Body = (merging, *(self.final(s, at, self.column_inside) for s in p.stores))
        body = (kir.Loop(self.columns, body),)
        if not p.once:
            return body
        merging, at = self.merged(found[:2], where, "row_")
        return merging, *(self.final(s, at, TRUE) for s in p.once), *body

    def merged(
        self, found: Sequence[kir.Buffer], where: tuple[Node, ...], name: str = ""
    ) -> tuple[kir.Loop, dict[Node, Node]]:
        """A loop over all spans, and what then is the state, or as much as was `found`."""
        dtype, c = self.dtype, replace(self.spans, kind=kir.AxisKind.LOOP)
        peak, total = (kir.Local(name + n, dtype) for n in ("peak", "total"))
        sums = kir.Local(name + "sum", dtype, (self.d,))
        peaks, totals = (b.load(*where, c.node) for b in found[:2])
        merged, zero = Merged(peak.node, peaks, name=name), const(0, dtype)
        carried = [
            kir.Carry(peak, const(dtype.min, dtype), merged.peak.node),
            kir.Carry(total, zero, merged.sum(total.node, totals)),
        ]
        for b in found[2:]:
            added = b.load(*where, c.node, self.column, mask=self.column_inside)
            carried.append(kir.Carry(sums, zero, merged.sum(sums.node, added)))
        state = dict(zip(self.p.state, (peak.node, total.node, sums.node), strict=True))
        return kir.Loop(c, merged.lets, tuple(carried)), state

    def final(self, s: kir.Store, at: dict[Node, Node], inside: Node) -> kir.Store:
        """A store of the plain kernel, for a tile of columns."""
        return stored(s, {**at, self.p.column.node: self.column}, inside, {self.r, self.d})


def _transposed(p: AttentionParts, along: int) -> bool:
    """Whether so many keys lie next to each other, as in a cache that is kept transposed."""
    first, k = kir.Axis.loop("first", 1 << 20), kir.Axis.tile("k", along)
    key = simplify(replaced(p.key, {p.keys.axis.node: first.node * along + k.node}))
    loads = [kir.load_parts(n)[:2] for n in topological([key]) if n.op is ops.LOAD]
    return any(stride(b, at, k) == 1 for b, at in loads) and not any(
        stride(b, at, p.inner.axis) == 1 for b, at in loads
    )
