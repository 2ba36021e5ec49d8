"""Attention with few queries, as when a model writes word by word.

With one query there is nothing to reuse: keys and values are read once, and reading them is what
it costs. A block takes a chunk of the keys. It first writes all scores of its queries into fast
memory, products summed over the lanes of a vector, turns them into weights, and then adds up the
weighted values in registers. Several chunks leave their greatest score, total and sums, which a
second phase combines. Queries that share keys (heads in groups) are in one block, so that memory is
read once for all of them. Where the scores are minus infinity beyond some key, which may be known
only from memory, neither keys nor values beyond it are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.fuse.online_softmax import finite
from genesis.compiler.schedule.attention_parts import AttentionParts, last_key, stored, within
from genesis.compiler.schedule.steps.queries import even_width, extent, points, stride
from genesis.compiler.schedule.steps.substitute_axes import mask_loads
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, least, simplify, static
from genesis.ir.node import TRUE, Node, both, const, elementwise, topological
from genesis.ir.rewrite import replaced, substitute

#: With fewer queries to a key than this, copying keys into panels does not pay.
FEW = 16
#: Keys of a chunk: what a block reads should keep a thread busy for some microseconds.
CHUNK = 256


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
        self.lanes = max(1, chip.vector_bytes // self.dtype.itemsize)
        accumulators = 24 if chip.vector_registers >= 32 else 8
        columns = extent(p.column)

        # Queries: a tile of the longest axis; the others one after the other. Few enough that sums
        # of all columns fit the registers, as memory is read fastest in order.
        self.tiled = p.rows[0] if p.rows else None
        count = extent(self.tiled) if self.tiled is not None else 1
        most = max(1, accumulators // -(-columns // self.lanes))
        height = -(-count // -(-count // most))
        self.r = kir.Axis.tile("r", height)
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

        # Keys: chunks of panels.
        keys = min(static(p.keys.axis.extent) or CHUNK, CHUNK)
        self.panel = self.lanes * min(4, -(-keys // self.lanes))
        self.chunk = self.panel * -(-keys // self.panel)
        self.chunks = kir.Axis.grid("kc", ceil_div(p.keys.axis.extent, self.chunk))
        self.panels = kir.Axis.loop("kp", ceil_div(self.count(), self.panel))
        self.c = kir.Axis.tile("c", self.panel)
        self.position = simplify(self.panels.node * self.panel + self.c.node)

        # What lies in order in memory: as much at once as registers hold.
        self.vectors = max(1, accumulators // height)
        self.width = self.along(columns)
        self.d = kir.Axis.tile("d", self.width)
        self.columns = kir.Axis.loop("db", ceil_div(columns, self.width))
        self.column = simplify(self.columns.node * self.width + self.d.node)
        self.column_inside = simplify(self.column < columns)

        products = p.product.dtype
        self.products = kir.Buffer("products", products, (height, self.chunk), kir.Role.STAGE)
        self.weights = kir.Buffer("weights", self.dtype, (height, self.chunk), kir.Role.STAGE)
        self.peak, self.total = (kir.Local(n, self.dtype, (self.r,)) for n in ("peak", "total"))
        self.sums = kir.Local("sum", self.dtype, (self.d, self.r))

    def kernel(self) -> kir.Kernel:
        p = self.p
        stages = (kir.Stage(self.products), kir.Stage(self.weights))
        rows = tuple(a for a in self.plain.phases[0].grid if a in p.rows)
        batch = p.shared
        if self.chunks.extent == 1:
            final = tuple(self.final(s, self.at, self.inside) for s in p.stores)
            once = tuple(self.final(s, self.at, self.row_inside) for s in p.once)
            return self.plain.with_phases([kir.Phase(batch, (*stages, *self.block(final, once)))])
        where = tuple(a.node for a in (*batch, *rows))
        shape = tuple(a.extent for a in (*batch, *rows, self.chunks))
        found = [
            kir.Buffer(f"chunk_{n}", self.dtype, (*shape, *more), kir.Role.TEMPORARY)
            for n, more in (("peaks", ()), ("totals", ()), ("sums", (p.column.extent,)))
        ]
        at = tuple(substitute([*where], self.at))
        once = tuple(
            kir.Store(b, (*at, self.chunks.node), v.node, self.row_inside)
            for b, v in zip(found, (self.peak, self.total), strict=False)
        )
        sums = kir.Store(
            found[2], (*at, self.chunks.node, self.column), self.sums.node, self.inside
        )
        first = kir.Phase((*batch, self.chunks), (*stages, *self.block((sums,), once)))
        second = kir.Phase((*batch, *rows), self.combine(found, where))
        return self.plain.with_phases([first, second], found)

    @property
    def inside(self) -> Node:
        """Whether a query and a column of a tile exist."""
        return both(self.row_inside, self.column_inside)

    def along(self, size: kir.Index) -> int:
        """The width of a tile along something so long."""
        return even_width(static(size) or 1, self.lanes, self.vectors)

    def count(self) -> kir.Index:
        """The keys of this chunk that some query of the tile looks at."""
        keys = kir.as_index(self.p.keys.axis.extent)
        last = last_key(self.p)
        if last is not None:
            if self.tiled is not None:
                height = kir.as_index(self.r.extent)
                end = (self.tiles.node + 1) * height
                end = elementwise(ops.MIN, end, kir.as_index(self.tiled.extent))
                last = replaced(last, {**self.at, self.tiled.node: end - 1})
            keys = within(last, self.p.keys.axis.extent) + 1
        here = elementwise(ops.MIN, keys - self.chunks.node * self.chunk, kir.as_index(self.chunk))
        if last is not None:
            here = elementwise(ops.MAX, here, kir.as_index(0))
        return fixed(simplify(here))

    # ---- phase one: a chunk
    def block(self, inner: kir.Body, once: kir.Body = ()) -> kir.Body:
        """All queries of a block against a chunk, then `inner` for all columns, `once` for rows."""
        body = (*self.score(), *self.weigh(), *once, self.add_values(inner))
        return kir.nest((*reversed(self.others), self.tiles), body)

    def score(self) -> kir.Body:
        """Scores into `weights`, and the greatest."""
        p, dtype = self.p, self.dtype
        least_ = const(dtype.min, dtype)
        every = replace(self.panels, extent=self.chunk // self.panel)
        everywhere = (self.r.node, simplify(every.node * self.panel + self.c.node))
        nothing = const(0, self.products.dtype)
        fill = kir.Loop(
            every,
            (
                kir.Store(self.products, everywhere, nothing),
                kir.Store(self.weights, everywhere, least_),
            ),
        )
        key = simplify(self.chunks.node * self.chunk + self.position)
        exists = below(key, p.keys.axis.extent)
        raw = p.product.node
        at = {**self.at, p.keys.axis.node: key}
        at[raw] = self.products.load(self.r.node, self.position)
        score = replaced(p.score, at)
        masked = mask_loads(mask_loads(score, self.row_inside, {self.r}), exists, {self.c})
        masked = elementwise(ops.WHERE, exists, masked, least_) if exists is not TRUE else masked
        best = kir.Local("best", dtype, (self.c, self.r))
        value = kir.Local("score", dtype, (self.c, self.r))
        store = kir.Store(self.weights, (self.r.node, self.position), value.node)
        visit: kir.Body = (kir.Let(value, simplify(masked)), store)
        step = elementwise(ops.MAX, best.node, value.node)
        loop = kir.Loop(self.panels, (*self.multiply(), *visit), (kir.Carry(best, least_, step),))
        return fill, loop, kir.Reduce((self.peak,), (best.node,), self.c, kir.fold(ops.MAX, dtype))

    def multiply(self) -> kir.Body:
        """The products of queries with the keys of a panel, in the order keys lie in memory."""
        p = self.p
        size, dtype = p.inner.axis.extent, p.product.dtype
        left = kir.as_index(self.count()) - self.panels.node * self.panel
        if _transposed(p):
            along, together, groups = 1, self.panel, kir.Axis.loop("kg", 1)
        else:
            along, together = self.along(size), 1
            groups = kir.Axis.loop("kg", least(self.panel, fixed(simplify(left))))
        e, k = kir.Axis.tile("e", along), kir.Axis.tile("k", together)
        steps = kir.Axis.loop("eb", ceil_div(size, along))
        inner = simplify(steps.node * along + e.node)
        there = simplify(self.panels.node * self.panel + groups.node + k.node)
        key = simplify(self.chunks.node * self.chunk + there)
        at = {**self.at, p.keys.axis.node: key, p.inner.axis.node: inner}
        query, keys = substitute([p.query, p.key], at)
        exists = below(inner, size)
        query = mask_loads(mask_loads(query, self.row_inside, {self.r}), exists, {e})
        keys = mask_loads(keys, both(exists, below(key, p.keys.axis.extent)), {e, k})
        across = (k, self.r) if together > 1 else (self.r,)
        product, parts = (
            kir.Local("product", dtype, across),
            kir.Local("parts", dtype, (e, *across)),
        )
        step = parts.node + elementwise(ops.MUL, simplify(query), simplify(keys))
        body = (
            kir.Loop(steps, (), (kir.Carry(parts, const(0, dtype), step),)),
            kir.Reduce((product,), (parts.node,), e, kir.fold(ops.ADD, dtype)),
            kir.Store(self.products, (self.r.node, there), product.node),
        )
        return (kir.Loop(groups, body),)

    def weigh(self) -> kir.Body:
        """Scores become weights; their total."""
        dtype = self.dtype
        base = kir.Local("base", dtype, (self.r,))
        parts = kir.Local("totals", dtype, (self.c, self.r))
        weight = kir.Local("weight", dtype, (self.c, self.r))
        at = (self.r.node, self.position)
        power = elementwise(ops.EXP, self.weights.load(*at) - base.node)
        body = (kir.Let(weight, power), kir.Store(self.weights, at, weight.node))
        carry = kir.Carry(parts, const(0, dtype), parts.node + weight.node)
        return (
            kir.Let(base, finite(self.peak.node)),
            kir.Loop(self.panels, body, (carry,)),
            kir.Reduce((self.total,), (parts.node,), self.c, kir.fold(ops.ADD, dtype)),
        )

    def add_values(self, then: kir.Body) -> kir.Loop:
        """The weighted sum of the values, a tile of columns at a time."""
        p = self.p
        j = kir.Axis.loop("j", self.count())
        key = simplify(self.chunks.node * self.chunk + j.node)
        at = {p.keys.axis.node: key, p.column.node: self.column}
        value = mask_loads(replaced(p.value, at), self.column_inside, {self.d})
        step = self.sums.node + self.weights.load(self.r.node, j.node) * simplify(value)
        loop = kir.Loop(j, (), (kir.Carry(self.sums, const(0, self.dtype), step),))
        return kir.Loop(self.columns, (loop, *then))

    # ---- phase two: chunks together
    def combine(self, found: Sequence[kir.Buffer], where: tuple[Node, ...]) -> kir.Body:
        """The results from what all chunks left."""
        dtype = self.dtype
        c = replace(self.chunks, kind=kir.AxisKind.LOOP)
        peaks, totals = (b.load(*where, c.node) for b in found[:2])
        sums = found[2].load(*where, c.node, self.column, mask=self.column_inside)
        peak, total, base = (kir.Local(n, dtype) for n in ("peak", "total", "base"))
        merged = kir.Local("sum", dtype, (self.d,))
        zero, least_ = const(0, dtype), const(dtype.min, dtype)
        scale = elementwise(ops.EXP, peaks - base.node)
        best = elementwise(ops.MAX, peak.node, peaks)
        at = dict(zip(self.p.state, (peak.node, total.node, merged.node), strict=True))
        stores = tuple(self.final(s, at, self.column_inside) for s in self.p.stores)
        once = tuple(self.final(s, at, TRUE) for s in self.p.once)
        adding = kir.Loop(c, (), (kir.Carry(merged, zero, merged.node + sums * scale),))
        return (
            kir.Loop(c, (), (kir.Carry(peak, least_, best),)),
            kir.Let(base, finite(peak.node)),
            kir.Loop(c, (), (kir.Carry(total, zero, total.node + totals * scale),)),
            *once,
            kir.Loop(self.columns, (adding, *stores)),
        )

    def final(self, s: kir.Store, at: dict[Node, Node], inside: Node) -> kir.Store:
        """A store of the plain kernel, for a tile of columns."""
        own = dict(
            zip(self.p.state, (self.peak.node, self.total.node, self.sums.node), strict=True)
        )
        at = {**own, **at, self.p.column.node: self.column}
        return stored(s, at, inside, {self.r, self.d})


def _transposed(p: AttentionParts) -> bool:
    """Whether neighbouring keys lie next to each other, as in a cache that is kept transposed."""
    loads = [kir.load_parts(n)[:2] for n in topological([p.key]) if n.op is ops.LOAD]
    return any(stride(b, at, p.keys.axis) == 1 for b, at in loads) and not any(
        stride(b, at, p.inner.axis) == 1 for b, at in loads
    )
