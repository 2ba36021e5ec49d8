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
from genesis.compiler.schedule.attention_parts import AttentionParts, last_key, within
from genesis.compiler.schedule.cpu.contraction.packing import mask_loads
from genesis.compiler.schedule.steps.queries import extent, points, stride
from genesis.compiler.schedule.steps.substitute_axes import ceil_div, fixed, least, static
from genesis.ir import ops
from genesis.ir.index import simplify
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Body,
    Buffer,
    Carry,
    Index,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    Reduce,
    Role,
    Stage,
    Store,
    as_index,
    fold,
    load_parts,
)
from genesis.ir.node import TRUE, Node, both, const, elementwise, topological
from genesis.ir.rewrite import substitute

#: With fewer queries to a key than this, copying keys into panels does not pay.
FEW = 16
#: Keys of a chunk: what a block reads should keep a thread busy for some microseconds.
CHUNK = 256


def few(p: AttentionParts, chip: Chip) -> bool:
    """Whether there are few queries."""
    return points(p.rows) < FEW


def decode(kernel: Kernel, p: AttentionParts, chip: Chip) -> Kernel:
    """Schedule attention with few queries."""
    return _Decode(kernel, p, chip).kernel()


class _Decode:
    def __init__(self, kernel: Kernel, p: AttentionParts, chip: Chip) -> None:
        self.plain, self.p = kernel, p
        self.dtype = p.dtype
        self.lanes = max(1, chip.vector_bytes // self.dtype.itemsize)
        accumulators = 24 if chip.vector_registers >= 32 else 8
        columns = static(p.column.extent)
        assert columns is not None

        # Queries: a tile of the longest axis; the others one after the other. Few enough that sums
        # of all columns fit the registers, as memory is read fastest in order.
        self.tiled = p.rows[0] if p.rows else None
        count = extent(self.tiled) if self.tiled is not None else 1
        most = max(1, accumulators // -(-columns // self.lanes))
        height = -(-count // -(-count // most))
        self.r = Axis("r", AxisKind.TILE, height)
        self.others = tuple(replace(a, kind=AxisKind.LOOP) for a in p.rows[1:])
        self.tiles = Axis("rb", AxisKind.LOOP, 1)
        self.at: dict[Node, Node] = {
            a.node: b.node for a, b in zip(p.rows[1:], self.others, strict=True)
        }
        self.row_inside = TRUE
        if self.tiled is not None:
            self.tiles = replace(self.tiles, extent=ceil_div(self.tiled.extent, height))
            row = simplify(self.tiles.node * height + self.r.node)
            self.at[self.tiled.node] = row
            self.row_inside = simplify(row < as_index(self.tiled.extent))

        # Keys: chunks of panels.
        keys = min(static(p.keys.axis.extent) or CHUNK, CHUNK)
        self.panel = self.lanes * min(4, -(-keys // self.lanes))
        self.chunk = self.panel * -(-keys // self.panel)
        self.chunks = Axis("kc", AxisKind.GRID, ceil_div(p.keys.axis.extent, self.chunk))
        self.panels = Axis("kp", AxisKind.LOOP, ceil_div(self.count(), self.panel))
        self.c = Axis("c", AxisKind.TILE, self.panel)
        self.position = simplify(self.panels.node * self.panel + self.c.node)

        # What lies in order in memory: as much at once as registers hold.
        self.vectors = max(1, accumulators // height)
        self.width = self.along(columns)
        self.d = Axis("d", AxisKind.TILE, self.width)
        self.columns = Axis("db", AxisKind.LOOP, ceil_div(columns, self.width))
        self.column = simplify(self.columns.node * self.width + self.d.node)
        self.column_inside = simplify(self.column < columns)

        products = p.product.dtype
        self.products = Buffer("products", products, (height, self.chunk), Role.STAGE)
        self.weights = Buffer("weights", self.dtype, (height, self.chunk), Role.STAGE)
        self.peak, self.total = (Local(n, self.dtype, (self.r,)) for n in ("peak", "total"))
        self.sums = Local("sum", self.dtype, (self.d, self.r))

    def kernel(self) -> Kernel:
        p = self.p
        stages = (Stage(self.products), Stage(self.weights))
        rows = tuple(a for a in self.plain.phases[0].grid if a in p.rows)
        batch = p.shared
        if self.chunks.extent == 1:
            final = tuple(self.final(s, self.at, self.inside) for s in p.stores)
            once = tuple(self.final(s, self.at, self.row_inside) for s in p.once)
            return self.plain.with_phases([Phase(batch, (*stages, *self.block(final, once)))])
        where = tuple(a.node for a in (*batch, *rows))
        shape = tuple(a.extent for a in (*batch, *rows, self.chunks))
        found = [
            Buffer(f"chunk_{n}", self.dtype, (*shape, *more), Role.TEMPORARY)
            for n, more in (("peaks", ()), ("totals", ()), ("sums", (p.column.extent,)))
        ]
        at = tuple(substitute([*where], self.at))
        once = tuple(
            Store(b, (*at, self.chunks.node), v.node, self.row_inside)
            for b, v in zip(found, (self.peak, self.total), strict=False)
        )
        sums = Store(found[2], (*at, self.chunks.node, self.column), self.sums.node, self.inside)
        first = Phase((*batch, self.chunks), (*stages, *self.block((sums,), once)))
        second = Phase((*batch, *rows), self.combine(found, where))
        buffers = (*self.plain.buffers, *found)
        return replace(self.plain, buffers=buffers, phases=(first, second))

    @property
    def inside(self) -> Node:
        """Whether a query and a column of a tile exist."""
        return both(self.row_inside, self.column_inside)

    def along(self, size: Index) -> int:
        """The width of a tile along something so long."""
        length = static(size) or 1
        fits = [v for v in range(self.vectors, 0, -1) if length % (self.lanes * v) == 0]
        return self.lanes * (fits[0] if fits else 1)

    def count(self) -> Index:
        """The keys of this chunk that some query of the tile looks at."""
        keys = as_index(self.p.keys.axis.extent)
        last = last_key(self.p)
        if last is not None:
            if self.tiled is not None:
                height = as_index(self.r.extent)
                end = (self.tiles.node + 1) * height
                end = elementwise(ops.MIN, end, as_index(self.tiled.extent))
                last = substitute([last], {**self.at, self.tiled.node: end - 1})[0]
            keys = within(last, self.p.keys.axis.extent) + 1
        here = elementwise(ops.MIN, keys - self.chunks.node * self.chunk, as_index(self.chunk))
        if last is not None:
            here = elementwise(ops.MAX, here, as_index(0))
        return fixed(simplify(here))

    # ---- phase one: a chunk
    def block(self, inner: Body, once: Body = ()) -> Body:
        """All queries of a block against a chunk, then `inner` for all columns, `once` for rows."""
        body = (*self.score(), *self.weigh(), *once, self.add_values(inner))
        body = (Loop(self.tiles, body),)
        for axis in self.others:
            body = (Loop(axis, body),)
        return body

    def score(self) -> Body:
        """Scores into `weights`, and the greatest."""
        p, dtype = self.p, self.dtype
        least_ = const(dtype.min, dtype)
        every = replace(self.panels, extent=self.chunk // self.panel)
        everywhere = (self.r.node, simplify(every.node * self.panel + self.c.node))
        nothing = const(0, self.products.dtype)
        fill = Loop(
            every,
            (Store(self.products, everywhere, nothing), Store(self.weights, everywhere, least_)),
        )
        key = simplify(self.chunks.node * self.chunk + self.position)
        exists = simplify(key < as_index(p.keys.axis.extent))
        raw = p.product.node
        at = {**self.at, p.keys.axis.node: key}
        at[raw] = self.products.load(self.r.node, self.position)
        score = substitute([p.score], at)[0]
        masked = mask_loads(mask_loads(score, self.row_inside, {self.r}), exists, {self.c})
        masked = elementwise(ops.WHERE, exists, masked, least_) if exists is not TRUE else masked
        best = Local("best", dtype, (self.c, self.r))
        value = Local("score", dtype, (self.c, self.r))
        store = Store(self.weights, (self.r.node, self.position), value.node)
        visit: Body = (Let(value, simplify(masked)), store)
        step = elementwise(ops.MAX, best.node, value.node)
        loop = Loop(self.panels, (*self.multiply(), *visit), (Carry(best, least_, step),))
        return fill, loop, Reduce((self.peak,), (best.node,), self.c, fold(ops.MAX, dtype))

    def multiply(self) -> Body:
        """The products of queries with the keys of a panel, in the order keys lie in memory."""
        p = self.p
        size, dtype = p.inner.axis.extent, p.product.dtype
        left = as_index(self.count()) - self.panels.node * self.panel
        if _transposed(p):
            along, together, groups = 1, self.panel, Axis("kg", AxisKind.LOOP, 1)
        else:
            along, together = self.along(size), 1
            groups = Axis("kg", AxisKind.LOOP, least(self.panel, fixed(simplify(left))))
        e, k = Axis("e", AxisKind.TILE, along), Axis("k", AxisKind.TILE, together)
        steps = Axis("eb", AxisKind.LOOP, ceil_div(size, along))
        inner = simplify(steps.node * along + e.node)
        there = simplify(self.panels.node * self.panel + groups.node + k.node)
        key = simplify(self.chunks.node * self.chunk + there)
        at = {**self.at, p.keys.axis.node: key, p.inner.axis.node: inner}
        query, keys = substitute([p.query, p.key], at)
        exists = simplify(inner < as_index(size))
        query = mask_loads(mask_loads(query, self.row_inside, {self.r}), exists, {e})
        keys = mask_loads(keys, both(exists, simplify(key < as_index(p.keys.axis.extent))), {e, k})
        across = (k, self.r) if together > 1 else (self.r,)
        product, parts = Local("product", dtype, across), Local("parts", dtype, (e, *across))
        step = parts.node + elementwise(ops.MUL, simplify(query), simplify(keys))
        body = (
            Loop(steps, (), (Carry(parts, const(0, dtype), step),)),
            Reduce((product,), (parts.node,), e, fold(ops.ADD, dtype)),
            Store(self.products, (self.r.node, there), product.node),
        )
        return (Loop(groups, body),)

    def weigh(self) -> Body:
        """Scores become weights; their total."""
        dtype = self.dtype
        base = Local("base", dtype, (self.r,))
        parts = Local("totals", dtype, (self.c, self.r))
        weight = Local("weight", dtype, (self.c, self.r))
        at = (self.r.node, self.position)
        power = elementwise(ops.EXP, self.weights.load(*at) - base.node)
        body = (Let(weight, power), Store(self.weights, at, weight.node))
        carry = Carry(parts, const(0, dtype), parts.node + weight.node)
        return (
            Let(base, finite(self.peak.node)),
            Loop(self.panels, body, (carry,)),
            Reduce((self.total,), (parts.node,), self.c, fold(ops.ADD, dtype)),
        )

    def add_values(self, then: Body) -> Loop:
        """The weighted sum of the values, a tile of columns at a time."""
        p = self.p
        j = Axis("j", AxisKind.LOOP, self.count())
        key = simplify(self.chunks.node * self.chunk + j.node)
        at = {p.keys.axis.node: key, p.column.node: self.column}
        value = mask_loads(substitute([p.value], at)[0], self.column_inside, {self.d})
        step = self.sums.node + self.weights.load(self.r.node, j.node) * simplify(value)
        loop = Loop(j, (), (Carry(self.sums, const(0, self.dtype), step),))
        return Loop(self.columns, (loop, *then))

    # ---- phase two: chunks together
    def combine(self, found: Sequence[Buffer], where: tuple[Node, ...]) -> Body:
        """The results from what all chunks left."""
        dtype = self.dtype
        c = replace(self.chunks, kind=AxisKind.LOOP)
        peaks, totals = (b.load(*where, c.node) for b in found[:2])
        sums = found[2].load(*where, c.node, self.column, mask=self.column_inside)
        peak, total, base = (Local(n, dtype) for n in ("peak", "total", "base"))
        merged = Local("sum", dtype, (self.d,))
        zero, least_ = const(0, dtype), const(dtype.min, dtype)
        scale = elementwise(ops.EXP, peaks - base.node)
        best = elementwise(ops.MAX, peak.node, peaks)
        at = dict(zip(self.p.state, (peak.node, total.node, merged.node), strict=True))
        stores = tuple(self.final(s, at, self.column_inside) for s in self.p.stores)
        once = tuple(self.final(s, at, TRUE) for s in self.p.once)
        adding = Loop(c, (), (Carry(merged, zero, merged.node + sums * scale),))
        return (
            Loop(c, (), (Carry(peak, least_, best),)),
            Let(base, finite(peak.node)),
            Loop(c, (), (Carry(total, zero, total.node + totals * scale),)),
            *once,
            Loop(self.columns, (adding, *stores)),
        )

    def final(self, s: Store, at: dict[Node, Node], inside: Node) -> Store:
        """A store of the plain kernel, for a tile of columns."""
        own = dict(
            zip(self.p.state, (self.peak.node, self.total.node, self.sums.node), strict=True)
        )
        at = {**own, **at, self.p.column.node: self.column}
        index = tuple(simplify(i) for i in substitute(s.index, at))
        value = mask_loads(simplify(substitute([s.value], at)[0]), inside, {self.r, self.d})
        return Store(s.buffer, index, value, both(s.mask, inside))


def _transposed(p: AttentionParts) -> bool:
    """Whether neighbouring keys lie next to each other, as in a cache that is kept transposed."""
    loads = [load_parts(n)[:2] for n in topological([p.key]) if n.op is ops.LOAD]
    return any(stride(b, at, p.keys.axis) == 1 for b, at in loads) and not any(
        stride(b, at, p.inner.axis) == 1 for b, at in loads
    )
