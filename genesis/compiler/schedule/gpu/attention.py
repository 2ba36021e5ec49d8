"""The recipe for streamed softmax: a tile of queries against tiles of keys.

A block owns some rows (queries) and carries, in registers, the greatest score so far, the total of
the weights and the weighted sum of values. For every tile of keys it computes a tile of scores,
turns it into weights, rescales what it carries and adds the weighted values: two matrix products.
Where the scores are minus infinity beyond a diagonal (a causal mask), tiles of keys past it are not
visited, and only those that it cuts are masked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

from genesis.compiler.schedule.attention import Parts, diagonal
from genesis.compiler.schedule.gpu.tiles import padded, power
from genesis.compiler.schedule.heuristics import extent
from genesis.compiler.schedule.packing import mask_loads
from genesis.compiler.schedule.respecialise import ceil_div, fixed, floor_div, least, static
from genesis.compiler.streaming import finite
from genesis.ir import ops
from genesis.ir.dtype import DType, bfloat16, float16
from genesis.ir.index import simplify
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Carry,
    Index,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    Reduce,
    Statement,
    Store,
    as_index,
    fold,
    tile_axes,
)
from genesis.ir.node import TRUE, Node, both, const, elementwise, topological
from genesis.ir.rewrite import substitute

#: Rows of a block, and keys it visits at a time.
ROWS, KEYS = 128, 64
#: The same where no matrix instruction multiplies the numbers: the products are written out.
FEW_ROWS, FEW_KEYS = 64, 32
#: The widest head that is one tile.
WIDEST = 256
LEAST = 16  # extents of a matrix instruction's operands


def attend(kernel: Kernel, p: Parts) -> Kernel:
    """Schedule a streaming kernel; a single query is one row of a tile."""
    rows = p.rows or (Axis("one", AxisKind.GRID, 1),)
    return _Attention(replace(p, rows=rows), not p.rows).kernel(kernel)


@dataclass(frozen=True)
class _Tiles:
    """Consecutive tiles of keys: how many, where each is, and what is to be masked in them."""

    name: str  # which ends the names of what is computed for each
    axis: Axis
    at: Node  # the keys of a tile
    inside: Node  # whether they exist
    diagonal: bool  # whether some are past the diagonal


class _Attention:
    def __init__(self, p: Parts, single: bool) -> None:
        self.p = p
        self.single = single  # of the rows of a tile only the first is asked for
        self.dtype: DType = p.keys.carried[2].local.dtype
        self.half = _half(p.query)
        rows, keys = (FEW_ROWS, FEW_KEYS) if self.half is None else (ROWS, KEYS)
        if extent(p.column) > 128:
            keys //= 2
        self.rows = min(rows, max(LEAST, power(extent(p.row))))
        self.width = min(keys, max(LEAST, padded(p.keys.axis)))
        self.block = Axis("ib", AxisKind.GRID, ceil_div(p.row.extent, self.rows))
        self.r = Axis("r", AxisKind.TILE, self.rows)
        self.c = Axis("c", AxisKind.TILE, self.width)
        self.at_row = simplify(self.block.node * self.rows + self.r.node)
        columns = static(p.column.extent)
        assert columns is not None
        # A head of another size than a power of two is rounded up, and what is past it masked.
        self.d = Axis("d", AxisKind.TILE, max(LEAST, power(columns)))
        self.rows_inside = _inside(self.at_row, p.row.extent)
        self.columns_inside = _inside(self.d.node, p.column.extent)

    def kernel(self, plain: Kernel) -> Kernel:
        """The kernel."""
        p, dtype, r = self.p, self.dtype, self.r
        zero = const(0, dtype)
        state: tuple[Node, ...] = (const(dtype.min, dtype), zero, zero)
        query, body = self.query()
        for tiles in self.tiles():
            carried = (
                Local(f"peak{tiles.name}", dtype, (r,)),
                Local(f"total{tiles.name}", dtype, (r,)),
                Local(f"weighted{tiles.name}", dtype, (self.d, r)),
            )
            visit, results = self.visit(tiles, query, *carried)
            body.append(Loop(tiles.axis, visit, tuple(map(Carry, carried, state, results))))
            state = tuple(v.node for v in carried)
        return plain.with_phases([Phase((*p.batch, self.block), (*body, *self.finish(state)))])

    # ---- which keys
    def tiles(self) -> list[_Tiles]:
        """All keys, in tiles that need no mask where there are such, and others after them."""
        extent_, width = self.p.keys.axis.extent, self.width
        every, whole = ceil_div(extent_, width), floor_div(extent_, width)
        last = diagonal(self.p)
        if last is not None:
            first_row = self.block.node * self.rows
            seen, all_seen = (
                simplify((substitute([last], {self.p.row.node: row})[0] + more) // width)
                for row, more in ((first_row + (self.rows - 1), width), (first_row, 1))
            )
            one = const(1, seen.dtype)
            every = least(every, fixed(simplify(elementwise(ops.MAX, seen, one))))
            none = const(0, all_seen.dtype)
            whole = least(whole, fixed(simplify(elementwise(ops.MAX, all_seen, none))))
        found: list[_Tiles] = []
        if whole != 0:
            found.append(self.some(0, whole, False))
        if whole != every:
            left = fixed(simplify(as_index(every) - as_index(whole)))
            found.append(self.some(whole, left, last is not None))
        return found

    def some(self, first: Index, count: Index, masked: bool) -> _Tiles:
        """`count` tiles from `first` on."""
        name = "_last" if masked or first != 0 else ""
        axis = Axis(f"jb{name}", AxisKind.LOOP, count)
        at = simplify((as_index(first) + axis.node) * self.width + self.c.node)
        return _Tiles(name, axis, at, _inside(at, self.p.keys.axis.extent), masked)

    # ---- one tile of keys
    def visit(
        self, tiles: _Tiles, query: Node | None, peak: Local, total: Local, acc: Local
    ) -> tuple[tuple[Statement, ...], tuple[Node, ...]]:
        """Statements, and what is carried on."""
        p, dtype, r, c, d = self.p, self.dtype, self.r, self.c, self.d
        at = {p.row.node: self.at_row, p.keys.axis.node: tiles.at, p.column.node: d.node}
        statements = self.scores(tiles, query, at)
        scores = p.inner.carried[0].local
        known = {**at, scores.node: Local(f"scores{tiles.name}", scores.dtype, (c, r)).node}
        score = substitute([p.score if tiles.diagonal else _below_diagonal(p)], known)[0]
        score = mask_loads(score, both(self.rows_inside, tiles.inside), {r, c})
        if tiles.inside is not TRUE:
            lowest = const(score.dtype.min, score.dtype)
            score = elementwise(ops.WHERE, tiles.inside, score, lowest)
        value = mask_loads(
            substitute([p.value], at)[0], both(tiles.inside, self.columns_inside), {c, d}
        )
        score_ = Local(f"score{tiles.name}", score.dtype, (c, r))
        weight = Local(f"weight{tiles.name}", dtype, (c, r))
        best, higher, base, scale, some = (
            Local(name + tiles.name, dtype, (r,))
            for name in ("best", "higher", "base", "scale", "some")
        )
        added = Local(f"added{tiles.name}", dtype, (d, r))
        # Weights are rounded to what the values are, so that matrix instructions take both.
        half = _half(value)
        rounded = weight.node
        if half is not None:
            rounded = _cast(_cast(weight.node, half), dtype)
        statements += [
            Let(score_, simplify(score)),
            Reduce((best,), (score_.node,), c, fold(ops.MAX, dtype)),
            Let(higher, elementwise(ops.MAX, peak.node, best.node)),
            Let(base, finite(higher.node)),
            Let(scale, self.power(peak.node, base.node)),
            Let(weight, self.power(score_.node, base.node)),
            # Matrix units work on their own: the total is summed up meanwhile.
            Reduce((added,), (rounded * simplify(value),), c, fold(ops.ADD, dtype)),
            Reduce((some,), (weight.node,), c, fold(ops.ADD, dtype)),
        ]
        results = (
            higher.node,
            total.node * scale.node + some.node,
            acc.node * scale.node + added.node,
        )
        return tuple(statements), results

    def power(self, x: Node, base: Node) -> Node:
        """e to the power of x - base; what is rounded to 16 bits is spared the last bits of 32."""
        if self.half is None:
            return elementwise(ops.EXP, x - base)
        scale = const(1 / log(2), x.dtype)
        return elementwise(ops.EXP2, x * scale - base * scale)

    def query(self) -> tuple[Node | None, list[Statement]]:
        """The queries, read once: as they are in memory, which is what is multiplied."""
        p = self.p
        e = self.inner
        if e is None:
            return None, []
        at = {p.row.node: self.at_row, p.inner.axis.node: e.node}
        inside = both(self.rows_inside, _inside(e.node, p.inner.axis.extent))
        query = simplify(mask_loads(substitute([p.query], at)[0], inside, {self.r, e}))
        kept = query if self.half is None else query.inputs[0]
        local = Local("query", kept.dtype, (e, self.r))
        node = local.node if self.half is None else _cast(local.node, query.dtype)
        return node, [Let(local, kept)]

    @property
    def inner(self) -> Axis | None:
        """The tile over the features of queries and keys, if they fit one."""
        size = static(self.p.inner.axis.extent)
        if size is None or size > WIDEST:
            return None
        return Axis("e", AxisKind.TILE, max(LEAST, power(size)))

    def scores(self, tiles: _Tiles, query: Node | None, at: dict[Node, Node]) -> list[Statement]:
        """The product of queries and keys: of whole tiles, if that can be."""
        p, r, c, e = self.p, self.r, self.c, self.inner
        carry, axis = p.inner.carried[0], p.inner.axis
        scores = Local(f"scores{tiles.name}", carry.local.dtype, (c, r))
        if query is None or e is None:
            left = mask_loads(substitute([p.query], at)[0], self.rows_inside, {r})
            right = mask_loads(substitute([p.key], at)[0], tiles.inside, {c})
            step = scores.node + simplify(left) * simplify(right)
            return [Loop(axis, (), (Carry(scores, carry.init, step),), p.inner.merge)]
        inside = both(tiles.inside, _inside(e.node, axis.extent))
        key = substitute([p.key], {**at, axis.node: e.node})[0]
        key = simplify(mask_loads(key, inside, {c, e}))
        return [Reduce((scores,), (query * key,), e, fold(ops.ADD, scores.dtype))]

    def finish(self, state: tuple[Node, ...]) -> tuple[Statement, ...]:
        """Divide by the totals, apply the epilogue, store."""
        p = self.p
        at = {p.row.node: self.at_row, p.column.node: self.d.node}
        at |= {c.local.node: v for c, v in zip(p.keys.carried, state, strict=True)}
        rows = TRUE if self.single else self.rows_inside
        stores: list[Statement] = []
        inverse = Local("inverse", self.dtype, (self.r,))
        divided = {n: n.inputs[0] * inverse.node for n in self.quotients()}
        if divided:
            stores.append(Let(inverse, const(1, self.dtype) / state[1]))
        for number, s in enumerate((*p.stores, *p.once)):
            inside = both(rows, self.columns_inside) if s in p.stores else rows
            index = tuple(simplify(i) for i in substitute(s.index, at))
            value = simplify(substitute(substitute([s.value], divided), at)[0])
            value = mask_loads(value, inside, {self.r, self.d})
            if self.single:
                stores.append(self.first_row(value, f"first{number}"))
                value = stores[-1].locals[0].node  # type: ignore[attr-defined]
            stores.append(Store(s.buffer, index, value, both(s.mask, inside)))
        return tuple(stores)

    def quotients(self) -> list[Node]:
        """What is divided by the totals: by one number a row, if it is rounded to 16 bits."""
        total = self.p.keys.carried[1].local.node
        values = topological(s.value for s in self.p.stores)
        found = [n for n in values if n.op is ops.DIV and n.inputs[1] is total]
        return [] if self.half is None else found

    def first_row(self, value: Node, name: str) -> Reduce:
        """What the first row of a tile has."""
        tiles = tuple(a for a in (self.d,) if a in tile_axes(value))
        nothing = const(0, value.dtype)
        picked = elementwise(ops.WHERE, self.r.node.equal(0), value, nothing)
        local = Local(name, value.dtype, tiles)
        return Reduce((local,), (picked,), self.r, fold(ops.ADD, value.dtype))


def _inside(at: Node, size: Index) -> Node:
    return simplify(at < as_index(size))


def _below_diagonal(p: Parts) -> Node:
    """The score of a key that is not past the diagonal, if that is all its mask is about."""
    if diagonal(p) is None or p.score.op is not ops.WHERE:
        return p.score
    return p.score.inputs[1] if p.score.inputs[0].op in (ops.LE, ops.LT) else p.score


def _half(n: Node) -> DType | None:
    """The 16-bit type that a value was converted from."""
    if n.op is ops.CAST and n.inputs[0].dtype in (float16, bfloat16):
        return n.inputs[0].dtype
    return None


def _cast(n: Node, dtype: DType) -> Node:
    return elementwise(ops.CAST, n, dtype=dtype)


__all__ = ["attend"]
