"""Attention: a tile of queries against tiles of keys.

A block owns some rows (queries) and carries, in registers, the greatest score so far, the total of
the weights and the weighted sum of values. For every tile of keys it computes a tile of scores,
turns it into weights, rescales what it carries and adds the weighted values: two matrix products.
Where the scores are minus infinity beyond a diagonal (a causal mask), tiles of keys past it are not
visited, and only those that it cuts are masked. That is a branch inside of one loop: NVIDIA's
assembler does not let matrix products overlap with anything if two loops add to the same registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import NamedTuple

from genesis.backends.base import GPU
from genesis.compiler.fuse.online_softmax import finite
from genesis.compiler.schedule.attention_parts import (
    AttentionParts,
    diagonal,
    last_key,
    stored,
    within,
)
from genesis.compiler.schedule.gpu.tile_axes import padded
from genesis.compiler.schedule.steps.queries import extent, power
from genesis.compiler.schedule.steps.substitute_axes import mask_loads
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType, bfloat16, float16
from genesis.ir.index import below, ceil_div, fixed, floor_div, least, simplify, static
from genesis.ir.node import TRUE, Node, both, const, elementwise, is_const, topological
from genesis.ir.rewrite import replaced

#: Rows of a block, and keys it visits at a time.
ROWS, KEYS = 128, 64
#: Keys at a time of heads that are at most so wide.
MANY_KEYS, NARROW = 128, 64
#: The same where no matrix instruction multiplies the numbers: the products are written out.
FEW_ROWS, FEW_KEYS = 64, 32
#: The widest head that is one tile.
WIDEST = 256
LEAST = 16  # extents of a matrix instruction's operands


def attend(kernel: kir.Kernel, p: AttentionParts, chip: GPU) -> kir.Kernel:
    """Schedule attention; a single query is one row of a tile."""
    return AttentionTiles(*with_a_row(p)).kernel(kernel)


def with_a_row(p: AttentionParts) -> tuple[AttentionParts, bool]:
    """The parts with a row, and whether there was none."""
    rows = p.rows or (kir.Axis.grid("one", 1),)
    return replace(p, rows=rows), not p.rows


class Part(NamedTuple):
    """A tile of features, and the first of them."""

    axis: kir.Axis
    first: int

    @property
    def at(self) -> Node:
        """Where its features are."""
        return simplify(self.axis.node + self.first)


def parts(name: str, size: int, several: bool) -> tuple[Part, ...]:
    """The tiles of so many features: two, or one up to a power of two; what is past is masked."""
    even = -(-size // LEAST) * LEAST
    sizes = [1 << k for k in reversed(range(even.bit_length())) if even >> k & 1]
    if len(sizes) != 2 or not several:
        return (Part(kir.Axis.tile(name, max(LEAST, power(size))), 0),)
    names = name, f"{name}_{sizes[0]}"
    return tuple(
        Part(kir.Axis.tile(each, n), first)
        for each, n, first in zip(names, sizes, (0, sizes[0]), strict=True)
    )


class AttentionTiles:
    """Attention by tiles."""

    negates = False  # queries, where the scale is negative, rather than scores
    parted = True  # heads of 80 features are tiles of 64 and 16

    def __init__(self, p: AttentionParts, single: bool) -> None:
        self.p = p
        self.single = single  # of the rows of a tile only the first is asked for
        self.dtype = p.dtype
        self.half = half_of(p.query)
        self.scaled = None if self.half is None else _scaled(p)
        self.unit = kir.Local("unit", self.dtype, ())  # of scores, as an exponent of 2
        rows, keys = (FEW_ROWS, FEW_KEYS) if self.half is None else (ROWS, KEYS)
        if self.dtype.bits == 64:  # every product of a tile is in a register before it is added
            rows = keys = LEAST
        elif self.half is not None:
            keys = self.most_keys(p)
        elif extent(p.column) > 128:
            keys //= 2
        self.rows = min(rows, max(LEAST, power(extent(p.row))))
        self.width = min(keys, max(LEAST, padded(p.keys.axis)))
        self.causal = diagonal(p)
        self.block = kir.Axis.grid("ib", ceil_div(p.row.extent, self.rows))
        # Of the blocks that a diagonal makes unequal, those that visit the most keys come first.
        self.place = self.block.node if self.causal is None else from_end(self.block)
        self.r = kir.Axis.tile("r", self.rows)
        self.c = kir.Axis.tile("c", self.width)
        self.at_row = simplify(self.place * self.rows + self.r.node)
        self.columns = self.parts("d", extent(p.column))
        self.d = self.columns[0].axis
        self.rows_inside = below(self.at_row, p.row.extent)
        count, self.plain = self.tiles()
        self.keys = kir.Axis.loop("jb", count)
        self.tile = self.keys.node
        self.at_key = simplify(self.tile * self.width + self.c.node)
        self.keys_inside = exists(self.at_key, p.keys.axis.extent, self.width)
        self.columns_inside = below(self.d.node, p.column.extent)

    def most_keys(self, p: AttentionParts) -> int:
        """Keys to visit at a time: more of narrow heads, where a tile has no diagonal in it."""
        narrow = extent(p.column) <= NARROW and self.scaled is not None and diagonal(p) is None
        return MANY_KEYS if narrow else KEYS

    def parts(self, name: str, size: int) -> tuple[Part, ...]:
        """The tiles of so many features."""
        return parts(name, size, self.parted and self.half is not None)

    def kernel(self, plain: kir.Kernel) -> kir.Kernel:
        """The kernel."""
        p = self.p
        body, state = self.streamed()
        grid = (*p.batch, self.block)
        if self.causal is not None:
            grid = heads_together(p.batch, self.block)
        return plain.with_phases([kir.Phase(grid, (*body, *self.finish(state)))])

    def streamed(self) -> tuple[list[kir.Statement], tuple[Node, ...]]:
        """The pass over the keys; peak, total and the parts of the weighted sum after it."""
        dtype, r = self.dtype, self.r
        zero = const(0, dtype)
        start = const(dtype.min, dtype), zero, *[zero for _ in self.columns]
        carried = (
            kir.Local("peak", dtype, (r,)),
            kir.Local("total", dtype, (r,)),
            *(kir.Local(f"weighted{x.first or ''}", dtype, (x.axis, r)) for x in self.columns),
        )
        query, body = self.query()
        body += self.units()
        visit, results = self.visit(query, *carried)
        body.append(kir.Loop(self.keys, visit, tuple(map(kir.Carry, carried, start, results))))
        return body, tuple(v.node for v in carried)

    def units(self) -> list[kir.Statement]:
        """What `power` multiplies with."""
        if self.half is None:
            return []
        return [kir.Let(self.unit, self.natural(const(1 / log(2), self.dtype)))]

    # ---- which keys
    def tiles(self) -> tuple[kir.Index, kir.Index]:
        """How many tiles are visited, and how many of those, the first, need no mask."""
        extent_, width = self.p.keys.axis.extent, self.width
        every, whole = ceil_div(extent_, width), floor_div(extent_, width)
        last = self.causal
        if last is not None:
            first_row = self.place * self.rows
            seen, all_seen = (
                simplify((replaced(last, {self.p.row.node: row}) + more) // width)
                for row, more in ((first_row + (self.rows - 1), width), (first_row, 1))
            )
            one = const(1, seen.dtype)
            every = least(every, fixed(simplify(elementwise(ops.MAX, seen, one))))
            none = const(0, all_seen.dtype)
            whole = least(whole, fixed(simplify(elementwise(ops.MAX, all_seen, none))))
        elif (known := last_key(self.p)) is not None:  # by data: all tiles are masked
            final = kir.as_index(self.p.row.extent) - 1
            row = elementwise(ops.MIN, self.block.node * self.rows + (self.rows - 1), final)
            seen = within(replaced(known, {self.p.row.node: row}), extent_)
            every = least(every, fixed(simplify((seen + width) // width)))
        return every, whole

    # ---- one tile of keys
    def visit(
        self, query: Sequence[Node], peak: kir.Local, total: kir.Local, *sums: kir.Local
    ) -> tuple[tuple[kir.Statement, ...], tuple[Node, ...]]:
        """Statements, and what is carried on."""
        p, dtype, r, c = self.p, self.dtype, self.r, self.c
        at = {p.row.node: self.at_row, p.keys.axis.node: self.at_key}
        statements = self.scores(query, at)
        score, weight = kir.Local("score", dtype, (c, r)), kir.Local("weight", dtype, (c, r))
        best, higher, base, scale, some = (
            kir.Local(name, dtype, (r,)) for name in ("best", "higher", "base", "scale", "some")
        )
        added = [kir.Local(f"added{x.first or ''}", dtype, (x.axis, r)) for x in self.columns]
        statements += [
            *self.score(score, at),
            kir.Reduce((best,), (score.node,), c, kir.fold(ops.MAX, dtype)),
            kir.Let(higher, elementwise(ops.MAX, peak.node, best.node)),
            kir.Let(base, finite(higher.node)),
            kir.Let(scale, self.power(peak.node, base.node)),
            kir.Let(weight, self.power(score.node, base.node)),
            # Matrix units work on their own: the total is summed up meanwhile.
            *(
                self.weighted(*parts, weight.node, at)
                for parts in zip(added, self.columns, strict=True)
            ),
            kir.Reduce((some,), (weight.node,), c, kir.fold(ops.ADD, dtype)),
        ]
        results = (
            higher.node,
            total.node * scale.node + some.node,
            *(x.node * scale.node + more.node for x, more in zip(sums, added, strict=True)),
        )
        return tuple(statements), results

    def weighted(
        self, local: kir.Local, part: Part, weight: Node, at: dict[Node, Node]
    ) -> kir.Reduce:
        """What a tile of keys adds to a part of the weighted sum."""
        inside = both(self.keys_inside, below(part.at, self.p.column.extent))
        value = replaced(self.p.value, {**at, self.p.column.node: part.at})
        value = simplify(mask_loads(value, inside, {self.c, part.axis}))
        # Weights are rounded to what the values are, so that matrix instructions take both.
        half = half_of(value)
        rounded = weight if half is None else cast(cast(weight, half), local.dtype)
        return kir.Reduce((local,), (rounded * value,), self.c, kir.fold(ops.ADD, local.dtype))

    def score(self, local: kir.Local, at: dict[Node, Node]) -> tuple[kir.Statement, ...]:
        """The scores of a tile: masked where it is cut by the diagonal, or by the end of keys."""
        p = self.p
        product = p.product
        scores = kir.Local("scores", product.dtype, local.tiles).node
        known = {**at, product.node: scores}

        def told(score: Node) -> Node:
            score = replaced(score, known)
            score = mask_loads(score, self.rows_inside, {self.r})
            return simplify(mask_loads(score, self.keys_inside, {self.c}))

        plain, below = kir.Local("plain", local.dtype, local.tiles), _below_diagonal(p)
        rare = [simplify(simplify(kir.as_index(self.plain) - self.tile) <= 0)]
        if self.scaled is not None:
            known[self.scaled] = scores
        always = kir.Let(plain, told(below))
        if self.scaled is None or self.negates:
            known[below] = plain.node
        else:
            # A negative scale turns the order of scores around.
            rare.append(_is_negative(self.scaled))
            minus, one = (const(x, self.scaled.dtype) for x in (-1, 1))
            known[self.scaled] = scores * elementwise(ops.WHERE, rare[1], minus, one)
        masked = told(p.score)
        if self.keys_inside is not TRUE:
            lowest = const(masked.dtype.min, masked.dtype)
            masked = elementwise(ops.WHERE, self.keys_inside, masked, lowest)
        if masked is plain.node:
            return (kir.Let(local, always.value),)
        (first, *others) = [x for x in rare if not is_const(x, 0)] or rare
        either = elementwise(ops.OR, first, *others) if others else first
        return always, kir.Let(local, elementwise(ops.WHERE, either, masked, plain.node))

    def power(self, x: Node, base: Node) -> Node:
        """e to the power of x - base; what is rounded to 16 bits is spared the last bits of 32."""
        if self.half is None:
            return elementwise(ops.EXP, x - base)
        return elementwise(ops.EXP2, x * self.unit.node - base * self.unit.node)

    def natural(self, score: Node) -> Node:
        """What a score is: the size of its scale is only taken into account here.

        If that is 0, minus infinity is to remain what it is.
        """
        if self.scaled is None:
            return score
        size = elementwise(ops.ABS, self.scaled.inputs[1])
        return score * elementwise(ops.MAX, size, const(1e-37, size.dtype))

    def query(self) -> tuple[list[Node], list[kir.Statement]]:
        """The parts of the queries, read once: as they are in memory, and multiplied."""
        nodes: list[Node] = []
        body: list[kir.Statement] = []
        for part in self.features:
            node, let = self._query(part)
            nodes.append(node)
            body.append(let)
        return nodes, body

    def _query(self, part: Part) -> tuple[Node, kir.Statement]:
        p = self.p
        at = {p.row.node: self.at_row, p.inner.axis.node: part.at}
        inside = both(self.rows_inside, below(part.at, p.inner.axis.extent))
        query = simplify(mask_loads(replaced(p.query, at), inside, {self.r, part.axis}))
        kept = query if self.half is None else query.inputs[0]
        if self.scaled is not None and self.negates:
            signs = (const(x, kept.dtype) for x in (-1, 1))
            kept = simplify(kept * elementwise(ops.WHERE, _is_negative(self.scaled), *signs))
        local = kir.Local(f"query{part.first or ''}", kept.dtype, (part.axis, self.r))
        node = local.node if self.half is None else cast(local.node, query.dtype)
        return node, kir.Let(local, kept)

    @property
    def features(self) -> tuple[Part, ...]:
        """The tiles over the features of queries and keys, if they fit; else none."""
        size = static(self.p.inner.axis.extent)
        return () if size is None or size > WIDEST else self.parts("e", size)

    def scores(self, query: Sequence[Node], at: dict[Node, Node]) -> list[kir.Statement]:
        """The product of queries and keys: of whole tiles, if that can be."""
        p, r, c = self.p, self.r, self.c
        (carry,), axis = p.inner.carried, p.inner.axis
        scores = kir.Local("scores", carry.local.dtype, (c, r))
        if not query:
            left = mask_loads(replaced(p.query, at), self.rows_inside, {r})
            right = mask_loads(replaced(p.key, at), self.keys_inside, {c})
            step = scores.node + simplify(left) * simplify(right)
            return [kir.Loop(axis, (), (kir.Carry(scores, carry.init, step),), p.inner.merge)]
        found: list[kir.Statement] = []
        parts = [scores] if len(query) == 1 else []
        for own, part in zip(query, self.features, strict=True):
            if len(query) > 1:
                parts.append(replace(scores, name=f"scores{part.first}"))
            inside = both(self.keys_inside, below(part.at, axis.extent))
            key = replaced(p.key, {**at, axis.node: part.at})
            key = simplify(mask_loads(key, inside, {c, part.axis}))
            add = kir.fold(ops.ADD, scores.dtype)
            found.append(kir.Reduce((parts[-1],), (own * key,), part.axis, add))
        if len(query) > 1:
            found.append(kir.Let(scores, parts[0].node + parts[1].node))
        return found

    def finish(self, state: tuple[Node, ...]) -> tuple[kir.Statement, ...]:
        """Divide by the totals, apply the epilogue, store."""
        p = self.p
        peak, total, *sums = state
        rows = TRUE if self.single else self.rows_inside
        stores: list[kir.Statement] = []
        inverse = kir.Local("inverse", self.dtype, (self.r,))
        divided = {n: n.inputs[0] * inverse.node for n in self.quotients()}
        if divided:
            stores.append(kir.Let(inverse, const(1, self.dtype) / total))
        for part, weighted in zip(self.columns, sums, strict=True):
            at = {p.row.node: self.at_row, p.column.node: part.at}
            at |= dict(zip(p.state, (self.natural(peak), total, weighted), strict=True))
            columns = below(part.at, p.column.extent)
            for s in (*p.stores, *(() if part.first else p.once)):
                inside = both(rows, columns) if s in p.stores else rows
                own = replace(s, value=replaced(s.value, divided))
                store = stored(own, at, inside, {self.r, part.axis})
                if self.single:
                    first = self.first_row(store.value, f"first{len(stores)}", part.axis)
                    stores.append(first)
                    store = replace(store, value=first.locals[0].node)
                stores.append(store)
        return tuple(stores)

    def quotients(self) -> list[Node]:
        """What is divided by the totals: by one number a row, if it is rounded to 16 bits."""
        total = self.p.total.node
        values = topological(s.value for s in self.p.stores)
        found = [n for n in values if n.op is ops.DIV and n.inputs[1] is total]
        return [] if self.half is None else found

    def first_row(self, value: Node, name: str, columns: kir.Axis) -> kir.Reduce:
        """What the first row of a tile has."""
        tiles = (columns,) if columns in kir.tile_axes(value) else ()
        nothing = const(0, value.dtype)
        picked = elementwise(ops.WHERE, self.r.node.equal(0), value, nothing)
        local = kir.Local(name, value.dtype, tiles)
        return kir.Reduce((local,), (picked,), self.r, kir.fold(ops.ADD, value.dtype))


def _scaled(p: AttentionParts) -> Node | None:
    """The product times a number, if that is all that a score is: then products are compared."""
    score = p.score
    while score.op is ops.WHERE and is_const(score.inputs[2], score.dtype.min):
        score = score.inputs[1]
    product = p.product.node
    scaled = score.op is ops.MUL and score.inputs[0] is product
    return score if scaled and score.inputs[1].op in (ops.PARAM, ops.CONST) else None


def _is_negative(scaled: Node) -> Node:
    scale = scaled.inputs[1]
    return elementwise(ops.LT, scale, const(0, scale.dtype))


def exists(at: Node, size: kir.Index, width: int) -> Node:
    """Whether places in tiles of that width exist: all do if the tiles divide an axis."""
    known = static(size)
    return TRUE if known is not None and known % width == 0 else below(at, size)


def _below_diagonal(p: AttentionParts) -> Node:
    """The score of a key that is not past the diagonal, if that is all its mask is about."""
    if diagonal(p) is None or p.score.op is not ops.WHERE:
        return p.score
    return p.score.inputs[1] if p.score.inputs[0].op in (ops.LE, ops.LT) else p.score


def from_end(block: kir.Axis) -> Node:
    """The number of a block, counted from the last."""
    return simplify(kir.as_index(block.extent) - 1 - block.node)


def heads_together(batch: tuple[kir.Axis, ...], block: kir.Axis) -> tuple[kir.Axis, ...]:
    """Blocks of several heads by turns: those that are as long as each other, one after another."""
    return (*batch[:-1], block, *batch[-1:])


def half_of(n: Node) -> DType | None:
    """The 16-bit type that a value was converted from."""
    if n.op is ops.CAST and n.inputs[0].dtype in (float16, bfloat16):
        return n.inputs[0].dtype
    return None


def cast(n: Node, dtype: DType) -> Node:
    """A value as another type."""
    return elementwise(ops.CAST, n, dtype=dtype)
