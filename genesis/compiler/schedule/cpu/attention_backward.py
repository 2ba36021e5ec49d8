"""Attention backward, a tile of scores at a time.

A block owns one head. It takes the columns (keys) a panel at a time, and for each panel passes over
the rows (queries). A tile of all products is computed in registers and turned into weights, which
go to fast memory. From there they are multiplied onto what is summed over columns, a row at a time
in the result itself, and onto what is summed over rows, which stays in fast memory until the pass
ends. Where weights are zero beyond a diagonal (a causal mask), rows before it are not visited.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.attention_parts import (
    BackwardParts,
    ScoreProduct,
    WeightedSum,
    diagonal_offset,
)
from genesis.compiler.schedule.cpu.attention import tile_height
from genesis.compiler.schedule.steps.queries import even_width, extent
from genesis.compiler.schedule.steps.substitute_axes import mask_loads
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, least, simplify
from genesis.ir.node import TRUE, Node, both, const, elementwise, mentions
from genesis.ir.rewrite import replaced, substitute

#: Register tiles of rows that are visited before their weights are summed over rows.
TILES = 8
#: Columns of a register tile that is summed over rows; panels have a multiple of that.
ACROSS = 4


def attend_backward(kernel: kir.Kernel, p: BackwardParts, chip: Chip) -> kir.Kernel:
    """Schedule attention backward."""
    return _Schedule(kernel, p, chip).kernel()


class _Schedule:
    def __init__(self, kernel: kir.Kernel, p: BackwardParts, chip: Chip) -> None:
        self.plain, self.p = kernel, p
        self.dtype = p.products[0].carry.local.dtype
        self.lanes = max(1, chip.vector_bytes // self.dtype.itemsize)
        self.vectors = 4 if chip.vector_registers >= 32 else 2
        self.height = tile_height(p.row, chip, self.vectors)
        self.width = self.lanes * self.vectors
        self.rows = self.height * TILES

        self.panels = kir.Axis.loop("jb", ceil_div(p.column.extent, self.width))
        self.c = kir.Axis.tile("c", self.width)
        self.at_column = simplify(self.panels.node * self.width + self.c.node)
        first = self.first()
        tiles = simplify(kir.as_index(ceil_div(p.row.extent, self.height)) - first)
        self.blocks = kir.Axis.loop("ib", ceil_div(fixed(tiles), TILES))
        self.start = simplify(first * self.height + self.blocks.node * self.rows)
        left = fixed(simplify(tiles - self.blocks.node * TILES))
        self.tile = kir.Axis.loop("it", least(TILES, left))
        self.r = kir.Axis.tile("r", self.height)
        self.local_row = simplify(self.tile.node * self.height + self.r.node)
        self.at_row = simplify(self.start + self.local_row)

        self.packed = [
            kir.Buffer(
                f"panel{k}", x.right.dtype, (self.padded(x.loop.axis), self.width), kir.Role.STAGE
            )
            for k, x in enumerate(p.products)
        ]
        self.weights = {
            s.local: kir.Buffer(
                f"{s.local.name}s", s.local.dtype, (self.rows, self.width), kir.Role.STAGE
            )
            for s in p.weights
        }
        self.sums = {
            x: kir.Buffer(
                f"sums{k}", x.weight.dtype, (self.width, self.padded(x.axis)), kir.Role.STAGE
            )
            for k, x in enumerate(p.results)
            if x.over_rows
        }

    def kernel(self) -> kir.Kernel:
        (phase,) = self.plain.phases
        stages = map(kir.Stage, (*self.packed, *self.weights.values(), *self.sums.values()))
        visits = kir.Loop(self.tile, self.visits())
        panel: kir.Body = (
            *(self.pack(x, b) for x, b in zip(self.p.products, self.packed, strict=True)),
            *(self.clear(x) for x in self.sums),
            kir.Loop(self.blocks, (visits, *(self.add_rows(x) for x in self.sums))),
            *(self.finish(x) for x in self.sums),
        )
        zeros = [self.zero(x) for x in self.p.results if not x.over_rows]
        body = (*stages, *zeros, kir.Loop(self.panels, panel))
        return self.plain.with_phases([kir.Phase(phase.grid, body)])

    # ---- before and after the rows
    def pack(self, product: ScoreProduct, packed: kir.Buffer) -> kir.Statement:
        """The rows of this panel's columns, turned so that columns lie together."""
        axis = product.loop.axis
        k, u = (kir.Axis.tile(name, self.lanes) for name in ("kt", "ct"))
        lines = kir.Axis.loop("kl", ceil_div(axis.extent, self.lanes))
        groups = kir.Axis.loop("cl", self.vectors)
        at_k = simplify(lines.node * self.lanes + k.node)
        local = simplify(groups.node * self.lanes + u.node)
        column = simplify(self.panels.node * self.width + local)
        value = replaced(product.right, {axis.node: at_k, self.p.column.node: column})
        value = mask_loads(value, below(at_k, axis.extent), {k})
        value = mask_loads(value, below(column, self.p.column.extent), {u})
        return kir.Loop(
            groups, (kir.Loop(lines, (kir.Store(packed, (at_k, local), simplify(value)),)),)
        )

    def zero(self, x: WeightedSum) -> kir.Statement:
        """Nothing added yet to a result that is summed over columns."""
        columns, _, at, inside = self.tiled(x)
        index = tuple(substitute(x.store.index, {x.axis.node: at}))
        store = kir.Store(x.store.buffer, index, const(0, x.store.buffer.dtype), inside)
        return kir.Loop(self.p.row, (kir.Loop(columns, (store,)),))

    def clear(self, x: WeightedSum) -> kir.Statement:
        """Nothing added yet to what is summed over rows."""
        columns, _, at, _ = self.tiled(x)
        group, column = self.columns_across()
        zero = kir.Store(self.sums[x], (column, at), const(0, self.sums[x].dtype))
        return kir.Loop(group, (kir.Loop(columns, (zero,)),))

    def finish(self, x: WeightedSum) -> kir.Statement:
        """What is summed over rows into the result."""
        columns, _, at, inside = self.tiled(x)
        group, local = self.columns_across()
        column = simplify(self.panels.node * self.width + local)
        index = tuple(substitute(x.store.index, {x.axis.node: at, self.p.column.node: column}))
        inside = both(inside, below(column, self.p.column.extent))
        store = kir.Store(x.store.buffer, index, self.sums[x].load(local, at), inside)
        return kir.Loop(group, (kir.Loop(columns, (store,)),))

    # ---- rows
    def visits(self) -> kir.Body:
        """A register tile of rows against a panel; the last tile may be partial."""
        inside = below(self.at_row, self.p.row.extent)
        if inside is TRUE:
            return self.visit(TRUE)
        full = below(self.at_row - self.r.node + (self.height - 1), self.p.row.extent)
        if full.op is ops.CONST:
            return self.visit(inside)
        return (kir.If(full, self.visit(TRUE), self.visit(inside)),)

    def visit(self, rows: Node) -> kir.Body:
        """Products, weights, and what is summed over columns; loads are masked by `rows`."""
        p, tiles = self.p, (self.c, self.r)
        body: list[kir.Statement] = []
        at: dict[Node, Node] = {p.row.node: self.at_row, p.column.node: self.at_column}
        columns = below(self.at_column, p.column.extent)
        waiting = {x.carry.local.node for x in p.products}
        weights = list(p.weights)
        for k, x in enumerate(p.products):
            carry = x.carry
            found = kir.Local(f"product{k}", carry.local.dtype, tiles)
            left = simplify(mask_loads(replaced(x.left, at), rows, {self.r}))
            right = self.packed[k].load(x.loop.axis.node, self.c.node)
            step = found.node + elementwise(ops.MUL, left, right)
            body.append(
                kir.Loop(x.loop.axis, (), (kir.Carry(found, carry.init, step),), x.loop.merge)
            )
            at[carry.local.node] = found.node
            waiting.remove(carry.local.node)
            # What is known goes to fast memory: the next product needs the registers.
            for s in [s for s in weights if mentions(s.value).isdisjoint(waiting)]:
                value = mask_loads(replaced(s.value, at), rows, {self.r})
                local = kir.Local(s.local.name, s.local.dtype, tiles)
                body.append(kir.Let(local, simplify(mask_loads(value, columns, {self.c}))))
                there = (self.local_row, self.c.node)
                body.append(kir.Store(self.weights[s.local], there, local.node))
                at[s.value] = self.weights[s.local].load(*there)
                weights.remove(s)
            if any(found.node in mentions(w) for w in substitute([s.value for s in weights], at)):
                held = kir.Buffer(
                    f"held{k}", found.dtype, (self.height, self.width), kir.Role.STAGE
                )
                body += [kir.Stage(held), kir.Store(held, (self.r.node, self.c.node), found.node)]
                at[carry.local.node] = held.load(self.r.node, self.c.node)
        return (*body, *(self.add_columns(x, rows) for x in p.results if not x.over_rows))

    def add_columns(self, x: WeightedSum, rows: Node) -> kir.Statement:
        """The tile's weights times the panel's values, onto the result."""
        p = self.p
        columns, d, at, inside = self.tiled(x)
        left = kir.as_index(p.column.extent) - self.panels.node * self.width
        j = kir.Axis.loop("j", least(self.width, fixed(simplify(left))))
        key = simplify(self.panels.node * self.width + j.node)
        value = replaced(x.value, {p.column.node: key, x.axis.node: at})
        value = simplify(mask_loads(value, inside, {d}))
        index = substitute(x.store.index, {p.row.node: self.at_row, x.axis.node: at})
        there = tuple(map(simplify, index))
        exists = both(rows, inside)
        total = kir.Local(f"sum_{x.axis.name}", x.weight.dtype, (d, self.r))
        weight = self.weights[x.weight].load(self.local_row, j.node)
        carry = kir.Carry(
            total, x.store.buffer.load(*there, mask=exists), total.node + weight * value
        )
        store = kir.Store(x.store.buffer, there, total.node, exists)
        return kir.Loop(columns, (kir.Loop(j, (), (carry,)), store))

    def add_rows(self, x: WeightedSum) -> kir.Statement:
        """The weights of a block of rows times the rows, onto the sums of the panel."""
        p = self.p
        columns, d, at, inside = self.tiled(x)
        group, local = self.columns_across()
        left = kir.as_index(p.row.extent) - self.start
        i = kir.Axis.loop("i", least(self.rows, fixed(simplify(left))))
        row = simplify(self.start + i.node)
        value = replaced(x.value, {p.row.node: row, x.axis.node: at})
        value = simplify(mask_loads(value, inside, {d}))
        total = kir.Local(f"sum_{x.axis.name}", x.weight.dtype, (d, *kir.tile_axes(local)))
        weight = self.weights[x.weight].load(i.node, local)
        sums = self.sums[x]
        carry = kir.Carry(total, sums.load(local, at), total.node + weight * value)
        store = kir.Store(sums, (local, at), total.node)
        # Rows stay in cache while the panel's columns pass by.
        return kir.Loop(columns, (kir.Loop(group, (kir.Loop(i, (), (carry,)), store)),))

    # ---- pieces
    def tiled(self, x: WeightedSum) -> tuple[kir.Axis, kir.Axis, Node, Node]:
        """Along the short rows of a result: blocks, a tile, the place, and if that exists."""
        size = extent(x.axis)
        width = even_width(size, self.lanes, self.vectors)
        d = kir.Axis.tile(f"d{x.axis.name}", width)
        columns = kir.Axis.loop(f"db{x.axis.name}", ceil_div(size, width))
        at = simplify(columns.node * width + d.node)
        return columns, d, at, below(at, size)

    def columns_across(self) -> tuple[kir.Axis, Node]:
        """A loop over tiles of a panel's columns, and the place in the panel."""
        group = kir.Axis.loop("cg", self.width // ACROSS)
        tile = kir.Axis.tile("ca", ACROSS)
        return group, simplify(group.node * ACROSS + tile.node)

    def padded(self, axis: kir.Axis) -> int:
        return -(-extent(axis) // self.lanes) * self.lanes

    def first(self) -> Node:
        """The first tile of rows that a panel has weights for."""
        behind = diagonal_offset(self.p)
        if behind is None:
            return kir.as_index(0)
        row = elementwise(ops.MAX, self.panels.node * self.width + behind, kir.as_index(0))
        tiles = kir.as_index(ceil_div(self.p.row.extent, self.height))
        return simplify(elementwise(ops.MIN, row // self.height, tiles))
