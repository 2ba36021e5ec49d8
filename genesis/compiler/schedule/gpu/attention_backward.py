"""Attention backward, by two passes over tiles of scores.

What is summed over rows and what is summed over columns are phases of their own: a block owns some
columns (keys) and visits tiles of rows (queries), or the other way round. For each tile it computes
all products anew, turns them into weights and multiplies those onto sums in registers, so that no
two blocks add to the same place. A tile of rows is read once for all products it takes part in.
Where weights are zero beyond a diagonal (a causal mask), tiles past it are not visited, and only
those that it cuts are masked: a branch, as in `genesis.compiler.schedule.gpu.attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log

from genesis.backends.base import GPU
from genesis.compiler.schedule.attention_parts import (
    BackwardParts,
    ScoreProduct,
    WeightedSum,
    diagonal_offset,
)
from genesis.compiler.schedule.gpu import attention
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.tile_axes import padded
from genesis.compiler.schedule.steps.queries import extent, power
from genesis.compiler.schedule.steps.substitute_axes import mask_loads
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, least, simplify
from genesis.ir.node import TRUE, Node, both, const, elementwise, is_const, mentions, topological
from genesis.ir.rewrite import replaced, substitute


def attend_backward(kernel: kir.Kernel, p: BackwardParts, chip: GPU) -> kir.Kernel:
    """Schedule attention backward."""
    (phase,) = kernel.phases
    offset = diagonal_offset(p)
    kernel, p, before = _computed_before(kernel, _in_powers_of_two(p))
    p, factors = _scaled_after(p)
    passes = [
        _Pass(p, over_rows, offset, factors).phase(phase.grid)
        for over_rows in (False, True)
        if any(x.over_rows is over_rows for x in p.results)
    ]
    first = [pointwise(kernel.with_phases([x]), chip).phases[0] for x in before]
    return kernel.with_phases([*first, *passes])


def _computed_before(
    kernel: kir.Kernel, p: BackwardParts
) -> tuple[kir.Kernel, BackwardParts, list[kir.Phase]]:
    """What weights are made from that rows or columns alone decide, computed once, not per tile."""
    (phase,) = kernel.phases
    values = [s.value for s in p.weights]
    products = {x.carry.local.node for x in p.products}
    buffers, known = list(kernel.buffers), dict[Node, Node]()
    phases: list[kir.Phase] = []
    for axis, other in ((p.row, p.column), (p.column, p.row)):
        varying = {other.node, *products}
        whole = (n for n in topological(values) if not mentions(n).isdisjoint(varying))
        for n in dict.fromkeys(i for w in whole for i in w.inputs):
            if axis.node not in mentions(n) or not mentions(n).isdisjoint(varying):
                continue
            if n.op is ops.LOAD or not any(m.op is ops.LOAD for m in topological([n])):
                continue
            grid = (*phase.grid, replace(axis, kind=kir.AxisKind.GRID))
            at = tuple(a.node for a in grid)
            shape = tuple(a.extent for a in grid)
            buffer = kir.Buffer(f"t{len(phases)}_{axis.name}", n.dtype, shape, kir.Role.TEMPORARY)
            value = replaced(n, {axis.node: at[-1]})
            phases.append(kir.Phase(grid, (kir.Store(buffer, at, value),)))
            known[n] = buffer.load(*(a.node for a in phase.grid), axis.node)
            buffers.append(buffer)
    weights = tuple(
        replace(s, value=v) for s, v in zip(p.weights, substitute(values, known), strict=True)
    )
    return replace(kernel, buffers=tuple(buffers)), replace(p, weights=weights), phases


def _in_powers_of_two(p: BackwardParts) -> BackwardParts:
    """Powers of e as powers of 2, of which the last bits of 32 are spared, for 16-bit rows."""
    if attention.half_of(p.products[0].left) is None:
        return p
    changed = {}
    for n in topological([s.value for s in p.weights]):
        if n.op is ops.EXP and n.inputs[0].op is ops.SUB:
            changed[n] = _power(*n.inputs[0].inputs)
    values = substitute([s.value for s in p.weights], changed)
    return replace(
        p, weights=tuple(replace(s, value=v) for s, v in zip(p.weights, values, strict=True))
    )


def _scaled_after(p: BackwardParts) -> tuple[BackwardParts, dict[kir.Local, Node]]:
    """Numbers that weights are scaled by, to scale the sums by instead."""
    factors: dict[kir.Local, Node] = {}
    weights = list(p.weights)
    for k, s in enumerate(weights):
        if s.value.op is ops.MUL and s.value.inputs[1].op is ops.PARAM:
            factors[s.local] = s.value.inputs[1]
            weights[k] = replace(s, value=s.value.inputs[0])
    return replace(p, weights=tuple(weights)), factors


class _Pass:
    """A phase that sums over rows, or over columns: blocks of the `own` axis visit the `other`."""

    parted = True  # short rows of 80 are tiles of 64 and 16

    def __init__(
        self,
        p: BackwardParts,
        over_rows: bool,
        offset: int | None,
        factors: Mapping[kir.Local, Node],
    ) -> None:
        self.p, self.over_rows, self.factors = p, over_rows, factors
        self.results = [x for x in p.results if x.over_rows is over_rows]
        used = {x.weight for x in self.results}
        # What others are made from comes first.
        order = sorted(p.weights, key=lambda s: len(topological([s.value])))
        self.weights = [s for s in order if s.local in used]
        self.own, self.other = (p.column, p.row) if over_rows else (p.row, p.column)
        short = *(x.loop.axis for x in p.products), *(x.axis for x in self.results)
        large, small = (
            (attention.ROWS, attention.KEYS)
            if attention.half_of(p.products[0].left)
            else (attention.FEW_ROWS, attention.FEW_KEYS)
        )
        wide = max(map(extent, short)) > 128
        # Two sums, or wide ones, of few rows: two blocks then share a multiprocessor.
        large //= 1 + (wide or len(self.results) > 1)
        small //= 1 + wide
        self.height = min(large, max(attention.LEAST, power(extent(self.own))))
        self.width = min(small, max(attention.LEAST, padded(self.other)))
        name = "c" if over_rows else "r"
        self.block = kir.Axis.grid(f"{name}b", ceil_div(self.own.extent, self.height))
        # Of the blocks that a diagonal makes unequal, those that visit the most come first.
        self.backwards = offset is not None and not over_rows
        self.place = attention.from_end(self.block) if self.backwards else self.block.node
        self.o = kir.Axis.tile(name, self.height)
        self.v = kir.Axis.tile(f"{name}v", self.width)
        first, end = self.tiles(offset)
        self.visits = kir.Axis.loop(f"{name}vb", fixed(simplify(kir.as_index(end) - first)))
        tile = simplify(kir.as_index(first) + self.visits.node)
        self.cut = self.is_cut(tile, offset)
        at_own = simplify(self.place * self.height + self.o.node)
        at_other = simplify(tile * self.width + self.v.node)
        self.at = {self.own.node: at_own, self.other.node: at_other}
        self.own_exists = attention.exists(at_own, self.own.extent, self.height)
        self.other_exists = attention.exists(at_other, self.other.extent, self.width)

    def phase(self, batch: tuple[kir.Axis, ...]) -> kir.Phase:
        """The phase, for every point of `batch`."""
        body: list[kir.Statement] = []
        tiles: dict[Node, kir.Local] = {}
        for product in self.p.products:  # what is read of the own axis is read once
            for part in self.features(product.loop.axis):
                self.read(self.sides(product)[0], product.loop.axis, part, tiles, body)
        parts = [(k, x, e) for k, x in enumerate(self.results) for e in self.features(x.axis)]
        sums = [
            kir.Local(f"sum{k}{_after(e)}", x.weight.dtype, (e.axis, self.o)) for k, x, e in parts
        ]
        visit, added = self.visit(tiles)
        visit = self.loaded_early(visit, body)
        steps = (s.node + a for s, a in zip(sums, added, strict=True))
        zeros = (const(0, s.dtype) for s in sums)
        body.append(kir.Loop(self.visits, visit, tuple(map(kir.Carry, sums, zeros, steps))))
        for (_, x, e), total in zip(parts, sums, strict=True):
            factor = self.factors.get(x.weight)
            names = {**self.at, x.axis.node: e.at}
            names[x.store.value.inputs[0]] = total.node if factor is None else total.node * factor
            value = x.store.value.inputs[0] if x.last is x.store else x.last.value
            (value, *index) = map(simplify, substitute([value, *x.last.index], names))
            inside = both(self.own_exists, below(e.at, x.axis.extent))
            body.append(kir.Store(x.last.buffer, tuple(index), value, inside))
        grid = (
            attention.heads_together(batch, self.block) if self.backwards else (*batch, self.block)
        )
        return kir.Phase(grid, tuple(body))

    # ---- which tiles of the other axis
    def tiles(self, offset: int | None) -> tuple[kir.Index, kir.Index]:
        """The first tile, and the one after the last."""
        every = ceil_div(self.other.extent, self.width)
        if offset is None:
            return 0, every
        start = self.place * self.height
        if self.over_rows:  # rows from their column on
            first = simplify(elementwise(ops.MAX, start + offset, kir.as_index(0)) // self.width)
            return least(every, fixed(first)), every
        last = start + (self.height - offset + self.width - 1)  # columns up to their row
        end = simplify(elementwise(ops.MAX, last, kir.as_index(0)) // self.width)
        return 0, least(every, fixed(end))

    def is_cut(self, tile: Node, offset: int | None) -> Node | None:
        """Whether the diagonal cuts a tile; None if there is no diagonal."""
        if offset is None:
            return None
        own, other = self.place * self.height, tile * self.width
        if self.over_rows:
            return simplify(other < own + (self.height - 1 + offset))
        return simplify(own - offset < other + (self.width - 1))

    # ---- one tile
    def visit(self, own: Mapping[Node, kir.Local]) -> tuple[kir.Body, list[Node]]:
        """Statements, and what they add to each sum."""
        body: list[kir.Statement] = []
        tiles, names = dict(own), dict(self.at)
        added: dict[WeightedSum, list[Node]] = {}
        needed = frozenset[Node]().union(*(mentions(s.value) for s in self.weights))
        # Nothing waits for products that are added to sums: those that are waited for come first.
        for k, x in enumerate(self.p.products):
            product = x.carry.local
            if product.node in needed:
                found = kir.Local(f"product{k}", product.dtype, (self.v, self.o))
                add, parts = kir.fold(ops.ADD, found.dtype), self.features(x.loop.axis)
                each = [found] if len(parts) == 1 else []
                for e in parts:
                    a, b = (self.read(y, x.loop.axis, e, tiles, body) for y in self.sides(x))
                    if len(parts) > 1:
                        each.append(replace(found, name=f"{found.name}_{e.first}"))
                    body.append(kir.Reduce((each[-1],), (a * b,), e.axis, add))
                if len(parts) > 1:
                    body.append(kir.Let(found, each[0].node + each[1].node))
                names[product.node] = found.node
        for s in self.weights:
            for n in self.choices(s.value):
                if n not in names and self.cut is not None:
                    plain, chosen = (
                        kir.Local(f"{name}{len(names)}", n.dtype, (self.v, self.o))
                        for name in ("plain", "chosen")
                    )
                    body.append(kir.Let(plain, self.known(n.inputs[1], names)))
                    names[n.inputs[1]] = plain.node
                    masked = self.known(n, names)
                    body.append(
                        kir.Let(chosen, elementwise(ops.WHERE, self.cut, masked, plain.node))
                    )
                    names[n] = chosen.node
            weight = kir.Local(s.local.name, s.local.dtype, (self.v, self.o))
            value = self.known(s.value, names)
            if self.other_exists is not TRUE:
                value = elementwise(ops.WHERE, self.other_exists, value, const(0, value.dtype))
            body.append(kir.Let(weight, value))
            names[s.value] = weight.node
            for k, result in enumerate(self.results):
                if result.weight != s.local:
                    continue
                added[result] = []
                for e in self.features(result.axis):
                    value = self.read(result.value, result.axis, e, tiles, body)
                    half, factor = attention.half_of(value), weight.node
                    if half is not None:  # matrix instructions take both alike
                        factor = attention.cast(attention.cast(factor, half), factor.dtype)
                    more = kir.Local(f"added{k}{_after(e)}", factor.dtype, (e.axis, self.o))
                    add = kir.fold(ops.ADD, factor.dtype)
                    body.append(kir.Reduce((more,), (factor * value,), self.v, add))
                    added[result].append(more.node)
        return tuple(body), [n for x in self.results for n in added[x]]

    def loaded_early(self, visit: kir.Body, before: list[kir.Statement]) -> kir.Body:
        """Numbers per row or column: of the own ones `before` the loop, else first in a visit."""
        kept: dict[Node, Node] = {}
        first: list[kir.Statement] = []
        for n in topological(e for s in visit for e in kir.expressions(s)):
            if n.op is not ops.LOAD or any(m.op is ops.LOCAL for m in mentions(n)):
                continue
            if kir.tile_axes(n) in ({self.o}, {self.v}):
                local = kir.Local(f"kept{len(kept)}", n.dtype, tuple(kir.tile_axes(n)))
                own = mentions(n).isdisjoint((self.visits.node, self.v.node))
                (before if own else first).append(kir.Let(local, n))
                kept[n] = local.node
        return (*first, *kir.map_expressions(visit, lambda n: replaced(n, kept)))

    def sides(self, x: ScoreProduct) -> tuple[Node, Node]:
        """What a product takes of the own axis, and of the other."""
        return (x.right, x.left) if self.over_rows else (x.left, x.right)

    def features(self, axis: kir.Axis) -> tuple[attention.Part, ...]:
        """The tiles over short rows."""
        half = attention.half_of(self.p.products[0].left) is not None
        return attention.parts(f"e{extent(axis)}", extent(axis), half and self.parted)

    def read(
        self,
        value: Node,
        axis: kir.Axis,
        part: attention.Part,
        tiles: dict[Node, kir.Local],
        body: list[kir.Statement],
    ) -> Node:
        """A tile of short rows, which is read when it is first needed, as it is in memory."""
        e = part.axis
        tile = self.o if self.own.node in mentions(value) else self.v
        value = replaced(value, {**self.at, axis.node: part.at})
        value = simplify(self.masked(mask_loads(value, below(part.at, axis.extent), {e})))
        half = attention.half_of(value)
        kept = value if half is None else value.inputs[0]
        if kept not in tiles:
            tiles[kept] = kir.Local(f"tile{len(tiles)}", kept.dtype, (e, tile))
            body.append(kir.Let(tiles[kept], kept))
        node = tiles[kept].node
        return node if half is None else attention.cast(node, value.dtype)

    def known(self, value: Node, names: Mapping[Node, Node]) -> Node:
        """What weights are made from, at a tile."""
        return simplify(self.masked(replaced(value, dict(names))))

    def masked(self, value: Node) -> Node:
        """Loads are of what exists."""
        value = mask_loads(value, self.own_exists, {self.o})
        return mask_loads(value, self.other_exists, {self.v})

    def choices(self, weight: Node) -> list[Node]:
        """Where the diagonal decides."""
        axes = {self.own.node, self.other.node}
        return [
            n
            for n in topological([weight])
            if n.op is ops.WHERE
            and n.inputs[0].op in (ops.LE, ops.LT)
            and mentions(n.inputs[0]) == axes
        ]


def _after(part: attention.Part) -> str:
    """What tells the names of a later part."""
    return f"_{part.first}" if part.first else ""


def _power(x: Node, base: Node) -> Node:
    """e to the power of x - base; where x is minus infinity by choice, so is the result."""
    if x.op is ops.WHERE and is_const(x.inputs[2], x.dtype.min):
        nothing = const(0, x.dtype)
        return elementwise(ops.WHERE, x.inputs[0], _power(x.inputs[1], base), nothing)
    inverse = const(1 / log(2), x.dtype)
    scaled = x * inverse
    if x.op is ops.MUL and x.inputs[1].op in (ops.PARAM, ops.CONST):  # scaled once
        scaled = x.inputs[0] * (x.inputs[1] * inverse)
    return elementwise(ops.EXP2, scaled - base * inverse)
