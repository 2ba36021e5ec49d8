"""Lower: a fused group becomes a kernel in its plainest form.

The value of each element is pulled through the group: elementwise operations become scalar
expressions, movement rewrites the index, padding becomes a mask on the loads, a reduction becomes
a loop with a carried value. Nothing is tiled yet; the plain kernel says *what* is computed and the
schedule (`genesis.compiler.schedule`) decides how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from genesis.compiler.fuse import groups
from genesis.compiler.fuse.concatenation import between
from genesis.compiler.fuse.online_softmax import AttentionGradients, StreamedSoftmax, finite
from genesis.compiler.lower.movement import Indices, Memo, placed, source
from genesis.ir import kernel as kir
from genesis.ir import ops, pattern
from genesis.ir.dtype import index as index_dtype
from genesis.ir.index import simplify
from genesis.ir.node import (
    TRUE,
    Node,
    Prefix,
    Shape,
    both,
    const,
    elementwise,
    mentions,
    node,
    topological,
)
from genesis.ir.rewrite import substitute
from genesis.ir.size import Dim, Size, Symbol, product


@dataclass(frozen=True)
class Lowered:
    """A plain kernel, and what its arguments are.

    `arguments` gives for every buffer of the kernel the graph node whose value it holds, `scalars`
    the slot of every parameter, `members` the nodes computed here.
    """

    kernel: kir.Kernel
    arguments: tuple[Node, ...]
    scalars: tuple[int, ...]
    members: tuple[Node, ...]


def lower(group: groups.FusionGroup, stored: frozenset[Node], memo: Memo | None = None) -> Lowered:
    """The plain kernel of a group; `stored` are the nodes that live in buffers.

    `memo` remembers simplified index expressions; the groups of a program can share one.
    """
    return _Lowering(group, stored, {} if memo is None else memo).run()


def extents(shape: Shape) -> tuple[kir.Index, ...]:
    """A shape as buffer extents: ints and index expressions."""
    return tuple(kir.as_index(e) if isinstance(e, Size) else e for e in shape)


#: What each reduction starts from, given the type it accumulates in.
_START: dict[ops.Op, Callable[[Node], Node]] = {
    ops.SUM: lambda like: const(0, like.dtype),
    ops.PROD: lambda like: const(1, like.dtype),
    ops.AMAX: lambda like: const(like.dtype.min, like.dtype),
    ops.AMIN: lambda like: const(like.dtype.max, like.dtype),
}


class _Lowering:
    def __init__(self, group: groups.FusionGroup, stored: frozenset[Node], memo: Memo) -> None:
        self.group = group
        self.stored = stored - group.made - group.inside  # by other kernels
        self.index_memo = memo
        self.values: dict[tuple[Node, Indices, Node], Node] = {}
        self.buffers: dict[Node, kir.Buffer] = {}
        self.params: dict[int, kir.Param] = {}
        self.members: dict[Node, None] = {}
        self.body: list[kir.Statement] = []
        self.pattern: pattern.Pattern | None = None
        self.accumulators: dict[Node, str] = {}  # what sums products, in order
        self.reductions = 0
        self.depth = 0  # of the reduction whose summands are being computed
        self.prefixes: tuple[kir.Local, ...] = ()
        self.carrying: kir.Loop | None = (
            None  # carries the prefixes; its axis and stores are to come
        )
        self.normal: dict[Node, Node] = {}  # peak, total and sum of a streamed softmax
        self.sums = {
            n: kir.Buffer(
                f"sums{k}", n.dtype.accumulator, extents((product(n.shape),)), kir.Role.STAGE
            )
            for k, n in enumerate(group.column_sums)
        }

    def run(self) -> Lowered:
        group, root = self.group, self.group.root
        if root.op is ops.SCATTER:
            grid: tuple[kir.Axis, ...] = self.scatter(root)
            self.body += self.of_rows()
        elif group.gradients is not None:
            grid = self.attention_gradients(group.gradients)
        else:
            # Axes that reductions are not computed for are visited inside the row.
            rows = group.axes if group.rows is None else group.rows
            inner = [a for a in groups.axes_of(group.at) if a not in rows]
            loops = [replace(a, kind=kir.AxisKind.LOOP) for a in inner]
            turned = {a.node: b.node for a, b in zip(inner, loops, strict=True)}
            if group.prefix is not None and group.prefix.how.reverse:
                turned = {a: kir.as_index(a.attr.extent) - 1 - b for a, b in turned.items()}
            grid = tuple(a for a in groups.axes_of(group.at) if a in rows)
            if group.column_sums:
                turned |= {a.node: replace(a, kind=kir.AxisKind.LOOP).node for a in grid}
            self.stores(turned, tuple(loops))
            if group.column_sums:
                self.around(grid)
                grid = ()
        buffers = sorted(self.buffers.items(), key=lambda item: item[1].role is not kir.Role.INPUT)
        phase = kir.Phase(grid, tuple(self.body))
        kernel = kir.Kernel(
            self.name(),
            tuple(b for _, b in buffers),
            tuple(self.params.values()),
            _symbols(phase, [b for _, b in buffers]),
            (phase,),
            self.pattern or self.contraction(),
        )
        return Lowered(
            kernel, tuple(n for n, _ in buffers), tuple(self.params), tuple(self.members)
        )

    def contraction(self) -> pattern.Contraction | None:
        """A kernel is one if it sums products, however that was written.

        Of several sums, the one that fusion says, or the innermost.
        """
        for n in (self.group.contraction, *self.accumulators):
            if n in self.accumulators:
                return pattern.Contraction(self.accumulators[n])
        return None

    # ---- what is stored
    def stores(self, turned: dict[Node, Node], loops: tuple[kir.Axis, ...]) -> None:
        """Store the root and every further value, each at the level of its own axes."""
        group = self.group
        innermost: list[kir.Store] = []
        outside: list[kir.Store] = []
        # Inputs first: a value computed here is used, not read back.
        for n, at in [*reversed(group.also), (group.root, group.at)]:
            level = tuple(substitute(at, turned))
            mask = TRUE
            if group.softmax is not None:  # what is of a row is stored in its first column
                for axis in groups.axes_of(group.at):
                    if axis not in groups.axes_of(level):
                        mask = both(mask, axis.node.equal(kir.as_index(0)))
            uses_loops = any(a in loops for a in groups.axes_of(level))
            for buffer, where, value, kept in self.written(n, level):
                at = tuple(map(self.tidy, where))
                store = kir.Store(buffer, at, self.tidy(value), both(mask, self.tidy(kept)))
                (innermost if uses_loops else outside).append(store)
        # What reads most is stored first: then others may be written over what it has read.
        for stores in (innermost, outside):
            stores.sort(key=lambda s: -_inputs_read(s))
        innermost[:0] = self.added(tuple(substitute(group.at, turned)), loops)
        self.body += outside
        nest = kir.nest(loops, tuple(innermost))
        if self.carrying is not None:
            (axis,) = loops
            body = (*self.carrying.body, *innermost)
            nest = (replace(self.carrying, axis=axis, body=body),)
        if innermost:
            self.body += nest

    def written(self, n: Node, at: Indices) -> list[tuple[kir.Buffer, Indices, Node, Node]]:
        """Where a value that the kernel stores is written, what, and under which condition."""
        if n is self.group.root and self.group.in_place:
            self.members[n] = None
            *mask, value = (
                self.value(x, at if x.shape else (), TRUE) for x in groups.written_where(n)
            )
            if mask:
                self.members[n.inputs[1]] = None
            where = _shifted(at, n.attr)
            return [(self.buffer(n, kir.Role.INOUT), where, value, mask[0] if mask else TRUE)]
        if n not in self.group.pieces:
            value = self.values[n, at, TRUE] = self.define(n, at, TRUE)
            return [(self.buffer(n, kir.Role.OUTPUT), at, value, TRUE)]
        self.members |= dict.fromkeys(between(n, self.group.pieces[n]))
        buffer, zero = self.buffer(n, kir.Role.OUTPUT), const(0, n.dtype)
        return [
            (buffer, _shifted(at, pad.attr), self.value(pad.inputs[0], at, TRUE) + zero, TRUE)
            for pad in self.group.pieces[n]
        ]

    def added(self, at: Indices, loops: tuple[kir.Axis, ...]) -> list[kir.Store]:
        """What an element adds to the sums of its column."""
        shape, stores = self.group.root.shape, []
        column = self.place([a.node for a in loops], [a.extent for a in loops])
        for n, sums in self.sums.items():
            (x,) = n.inputs
            there, _ = source(node(ops.RESHAPE, (x,), None, x.dtype, shape), at, self.index_memo)
            value = _cast(self.value(x, there, TRUE), sums.dtype)
            stores.append(kir.Store(sums, (column,), self.tidy(sums.load(column) + value)))
        return stores

    def around(self, rows: tuple[kir.Axis, ...]) -> None:
        """Put all rows between the start of the sums of columns and what is made of them."""
        self.pattern = pattern.ColumnSums(tuple(b.name for b in self.sums.values()))
        nest, self.body = tuple(self.body), [*map(kir.Stage, self.sums.values())]
        for axis in reversed(rows):
            nest = (kir.Loop(replace(axis, kind=kir.AxisKind.LOOP), nest),)
        (length,) = next(iter(self.sums.values())).shape
        start = kir.Axis.loop("c", length)
        zeros = [kir.Store(b, (start.node,), const(0, b.dtype)) for b in self.sums.values()]
        self.body += [kir.Loop(start, tuple(zeros)), *nest]
        made: dict[Indices, list[kir.Store]] = {}
        for n, at in self.group.columns:
            own = {a.node: kir.Axis.loop(f"c{a.name}", a.extent).node for a in groups.axes_of(at)}
            here = tuple(substitute(at, own))
            value = self.values[n, here, TRUE] = self.define(n, here, TRUE)
            store = kir.Store(self.buffer(n, kir.Role.OUTPUT), here, self.tidy(value))
            made.setdefault(here, []).append(store)
        for here, stores in made.items():
            self.nest(here, *stores)

    def place(self, at: Sequence[Node], shape: Sequence[kir.Index | Size]) -> Node:
        """Where an element of a row-major array lies."""
        total = kir.as_index(0)
        for i, extent in zip(at, shape, strict=True):
            total = total * kir.as_index(extent) + i
        return self.tidy(total)

    def scatter(self, n: Node) -> tuple[kir.Axis, ...]:
        """Owner-computes: a block owns one position of every other axis, and all of the indexed.

        An index that only counts along the updates (``x[i, index[i]]``) is such an axis, too.
        """
        base, *where, updates = n.inputs
        axes, mode = n.attr
        at = groups.iteration(n.shape, "i", kir.AxisKind.GRID)
        each = groups.iteration(where[0].shape, "e", kir.AxisKind.LOOP)
        for axis, index in zip(axes, where, strict=True):
            counted = self.position(index, each)
            if counted in each and counted.attr in _loops(each, extents(n.shape)[axis]):
                each = tuple(at[axis] if i is counted else i for i in each)
        there, inside = list(at), TRUE
        for axis, index in zip(axes, where, strict=True):
            there[axis] = target = self.position(index, each)
            exists = both(target >= 0, target < kir.as_index(n.shape[axis]))
            inside = both(inside, self.tidy(exists))
        grid = tuple(a for a in groups.axes_of(at) if a.node in there)
        out = self.buffer(n, kir.Role.INOUT if self.group.in_place else kir.Role.OUTPUT)
        if not self.group.in_place:
            rest = [a for a in groups.axes_of(at) if a not in grid]
            copied = {a.node: replace(a, kind=kir.AxisKind.LOOP).node for a in rest}
            here = tuple(copied.get(i, i) for i in at)
            self.nest(here, kir.Store(out, here, self.tidy(self.value(base, here, TRUE))))
        first = axes[0]
        others = [i for d, i in enumerate(at) if d not in axes]
        new = self.value(updates, (*others[:first], *each, *others[first:]), TRUE)
        combine = ops.MODES[mode]
        if combine is not None:
            new = elementwise(combine, out.load(*there, mask=inside), new)
        self.nest(each, kir.Store(out, tuple(there), self.tidy(new), inside))
        self.members[n] = None
        self.pattern = pattern.Scatter(out.name)
        return grid

    def of_rows(self) -> list[kir.Store]:
        """What a scatter's kernel stores besides: reductions of the rows it owns."""
        stores = []
        for n, at in reversed(self.group.also):
            value = self.values[n, at, TRUE] = self.define(n, at, TRUE)
            stores.append(kir.Store(self.buffer(n, kir.Role.OUTPUT), at, self.tidy(value)))
        return stores

    def attention_gradients(self, wanted: AttentionGradients) -> tuple[kir.Axis, ...]:
        """Visit all rows for every column, and add to all results what is made of the two."""
        at = groups.gradients_index(wanted)
        results = groups.gradients_results(wanted, at)
        sums: dict[Node, tuple[kir.Buffer, Indices]] = {}
        converted: list[tuple[Indices, kir.Statement]] = []
        for n, stored in zip(wanted.results, wanted.stored, strict=True):
            there = results[n][0]
            out = self.buffer(stored, kir.Role.OUTPUT)
            sums[n] = out, there
            if stored is not n:
                here = tuple(
                    i for i in there if i.op is ops.AXIS and i.attr.kind is kir.AxisKind.LOOP
                )
                shape = tuple(i.attr.extent for i in here)
                sums[n] = kir.Buffer(f"sums{len(converted)}", n.dtype, shape, kir.Role.STAGE), here
                self.body.append(kir.Stage(sums[n][0]))
                value = _cast(sums[n][0].load(*here), stored.dtype)
                converted.append((there, kir.Store(out, there, value)))
            self.nest(there, kir.Store(*sums[n], const(0, n.dtype)))
            self.members[n] = self.members[stored] = None
        before, self.body = self.body, []
        weights: dict[Node, kir.Local] = {}
        lets: list[kir.Let] = []
        for n in dict.fromkeys(wanted.weights):
            weights[n] = kir.Local(f"weight{len(weights)}", n.dtype.accumulator)
            value = self.tidy(_cast(self.value(n, at, TRUE), n.dtype.accumulator))
            lets.append(kir.Let(weights[n], value))
        self.body += lets
        gradients: list[pattern.Gradient] = []
        for n, weight, stored in zip(wanted.results, wanted.weights, wanted.stored, strict=True):
            there, other, where = results[n]
            value = self.tidy(_cast(self.value(other, where, TRUE), n.dtype))
            total, here = sums[n]
            new = total.load(*here) + _cast(weights[weight].node, n.dtype) * value
            (column,) = (a for a in groups.axes_of(there) if a.node not in at)
            self.body.append(kir.Loop(column, (kir.Store(total, here, new),)))
            parts = weights[weight], column, total, self.buffers[stored]
            gradients.append(pattern.Gradient(*(x.name for x in parts)))
        row, column = at[wanted.row].attr, at[wanted.column].attr
        if self.accumulators.keys() == set(wanted.products):
            products, names = self.accumulators.values(), (v.name for v in weights.values())
            self.pattern = pattern.AttentionBackward(
                row.name, column.name, tuple(products), tuple(names), tuple(gradients)
            )
        self.body = [*before, kir.Loop(column, (kir.Loop(row, tuple(self.body)),))]
        for there, store in converted:
            self.nest(there, store)
        return tuple(a for a in groups.axes_of(at) if a.kind is kir.AxisKind.GRID)

    def position(self, index: Node, at: Indices) -> Node:
        """Where an index points."""
        return self.tidy(_cast(self.value(index, at, TRUE), index_dtype))

    def nest(self, at: Indices, *innermost: kir.Statement) -> None:
        """Put statements into loops over the LOOP axes of an index."""
        for a in reversed(groups.axes_of(at)):
            if a.kind is kir.AxisKind.LOOP:
                innermost = (kir.Loop(a, innermost),)
        self.body += innermost

    # ---- values
    def value(self, n: Node, at: Indices, mask: Node) -> Node:
        """The scalar expression of element `at` of `n`; memory is touched only where `mask`."""
        key = (n, at, mask)
        found = self.values.get(key)
        if found is None:
            if n in self.stored or n.op is ops.BUFFER:
                role = kir.Role.INPUT
                found = self.buffer(n, role).load(*(self.tidy(i) for i in at), mask=mask)
            else:
                found = self.define(n, at, mask)
            self.values[key] = found
        return found

    def define(self, n: Node, at: Indices, mask: Node) -> Node:
        """Compute `n` here."""
        if n.op.group != "leaf":
            self.members[n] = None
        if n.op.is_elementwise:
            inputs = [self.value(i, at if i.shape else (), mask) for i in n.inputs]
            return node(n.op, tuple(inputs), None, n.dtype)
        if n.op.is_movement:
            inner, condition = source(n, at, self.index_memo)
            value = self.value(n.inputs[0], inner, self.tidy(both(mask, condition)))
            if n.op is ops.PAD and condition is not TRUE:
                fill = self.value(n.inputs[1], (), mask)
                return elementwise(ops.WHERE, condition, value, fill)
            return value
        stream = self.group.softmax
        if stream is not None and n in (stream.peak, stream.total, self.group.contraction):
            if not self.normal:
                self.streamed(stream)
            return self.normal[n]
        if n in self.sums:
            return _cast(self.sums[n].load(self.place(at, n.shape)), n.dtype)
        if n.op in ops.REDUCTIONS:
            reduced = tuple(n.inputs[0].shape[a] for a in n.attr)
            loops = self.loops(reduced)
            outside, self.body = self.body, []
            self.depth += 1
            x = self.value(n.inputs[0], groups.reduced_index(n, at, loops), mask)
            self.depth -= 1
            made, self.body = self.body, outside
            return self.reduce(n, groups.axes_of(loops), x, made)
        if n.op is ops.CONTRACT:
            summed = groups.summed_labels(n)
            loops = self.loops(tuple(summed.values()))
            left, right = groups.contraction_index(n, at, dict(zip(summed, loops, strict=True)))
            total = n.dtype.accumulator
            a = _cast(self.value(n.inputs[0], left, mask), total)
            b = _cast(self.value(n.inputs[1], right, mask), total)
            return self.reduce(n, groups.axes_of(loops), elementwise(ops.MUL, a, b))
        if n.op is ops.PREFIX:
            return self.prefix(n, at, mask)
        return self.indexed(n, at, mask)

    def indexed(self, n: Node, at: Indices, mask: Node) -> Node:
        if n.op is ops.GATHER:
            x, *where = n.inputs
            first, rank = n.attr[0], len(where[0].shape)
            picked: dict[int, Node] = {}
            inside = mask
            for axis, index in zip(n.attr, where, strict=True):
                raw = self.value(index, at[first : first + rank], mask)
                extent = x.shape[axis]
                there = elementwise(ops.MIN, _cast(raw, index_dtype), kir.as_index(extent - 1))
                picked[axis] = self.tidy(elementwise(ops.MAX, there, const(0, index_dtype)))
                inside = both(inside, self.tidy(kir.as_index(extent) > 0))
            others = iter((*at[:first], *at[first + rank :]))
            indices = (picked[d] if d in picked else next(others) for d in range(len(x.shape)))
            return self.value(x, tuple(indices), inside)
        if n.op is ops.UPDATE:
            found, condition = placed(at, n.attr, n.inputs[1].shape)
            condition = self.tidy(condition)
            inner = tuple(self.tidy(i) for i in found)
            new = self.value(n.inputs[1], inner, self.tidy(both(mask, condition)))
            old = self.value(n.inputs[0], at, mask)
            return elementwise(ops.WHERE, condition, new, old)
        if n.op is ops.CONST:
            return n
        if n.op is ops.SCALAR:
            name = f"p{len(self.params)}"
            return self.params.setdefault(n.attr, kir.Param(name, n.dtype)).node
        if n.op is ops.IOTA:
            return _cast(at[0], n.dtype)
        if n.op is ops.SIZE:
            return _cast(kir.as_index(n.attr), n.dtype)
        raise NotImplementedError(f"lowering {n.op}")

    def reduce(
        self, n: Node, axes: Sequence[kir.Axis], x: Node, made: Sequence[kir.Statement] = ()
    ) -> Node:
        """A loop nest that folds `x`; gives the result in n's type.

        Of what `x` is `made` by, that which depends on where the nest is belongs inside.
        """
        total = n.dtype.accumulator
        op = ops.FOLD.get(n.op, ops.ADD)
        x = self.tidy(_cast(x, total))
        if not axes:
            self.body += made
            return _cast(x, n.dtype)
        number = self.reductions
        self.reductions += 1
        names = [f"acc{number}" + "_" * level for level in range(len(axes))]
        accs = [kir.Local(name, total) for name in names]
        inits = [_START.get(n.op, _START[ops.SUM])(x), *(a.node for a in accs[:-1])]
        steps = [*(a.node for a in accs[1:]), elementwise(op, accs[-1].node, x)]
        if op is ops.ADD and x.op is ops.MUL:
            self.accumulators[n] = names[0]
        merge = kir.fold(op, total)
        places = {a.node for a in axes}
        inside = [s for s in made if not places.isdisjoint(topological(_evaluated(s)))]
        self.body += [s for s in made if s not in inside]
        nest: tuple[kir.Statement, ...] = tuple(inside)
        for axis, acc, init, step in zip(
            reversed(axes), reversed(accs), reversed(inits), reversed(steps), strict=True
        ):
            nest = (kir.Loop(axis, nest, (kir.Carry(acc, init, step),), merge),)
        self.body += nest
        return _cast(accs[0].node, n.dtype)

    def prefix(self, n: Node, at: Indices, mask: Node) -> Node:
        """The state up to here, which the loop around the stores carries."""
        how: Prefix = n.attr
        if n.shape[how.axis] == 1:
            return self.value(n.inputs[how.item], at, mask)
        if not self.prefixes:
            values = [self.tidy(self.value(i, at, mask)) for i in n.inputs]
            types = [i.dtype for i in n.inputs]
            left, right, before, here, self.prefixes = (
                tuple(kir.Local(f"{name}{k}", dtype) for k, dtype in enumerate(types))
                for name in ("left", "right", "before", "here", "prefix")
            )
            places = [node(ops.PARAMETER, (), k, dtype) for k, dtype in enumerate((*types, *types))]
            merge, steps = (
                substitute(how.merge, {p: v.node for p, v in zip(places, state, strict=True)})
                for state in ((*left, *right), (*before, *here))
            )
            names = (tuple(v.name for v in state) for state in (here, self.prefixes))
            self.pattern = pattern.Prefix(*names)
            self.carrying = kir.Loop(
                kir.Axis.loop("", 0),
                (*map(kir.Let, here, values), *map(kir.Let, self.prefixes, steps)),
                tuple(map(kir.Carry, before, how.identity, (p.node for p in self.prefixes))),
                kir.Merge(left, right, tuple(merge)),
            )
        return self.prefixes[how.item].node

    def streamed(self, stream: StreamedSoftmax) -> None:
        """Online softmax: carry the greatest score, the total weight and the weighted sum."""
        n, at, mask = self.group.contraction, self.group.streamed_at, TRUE
        assert n is not None
        summed = groups.summed_labels(n)
        loops = self.loops(tuple(summed.values()))
        self.reductions += 1
        indices = groups.contraction_index(n, at, dict(zip(summed, loops, strict=True)))
        dtype = n.dtype.accumulator
        outside, self.body = self.body, []
        score = self.tidy(_cast(self.value(stream.scores, indices[stream.side], mask), dtype))
        value = self.value(n.inputs[1 - stream.side], indices[1 - stream.side], mask)
        value = self.tidy(_cast(value, dtype))
        inner, self.body = self.body, outside
        peak, total, acc = (kir.Local(name, dtype) for name in ("peak", "total", "weighted"))
        score_, best, base, weight, scale = (
            kir.Local(name, dtype) for name in ("score", "best", "base", "weight", "scale")
        )
        lets = (
            kir.Let(score_, score),
            kir.Let(best, elementwise(ops.MAX, peak.node, score_.node)),
            kir.Let(base, finite(best.node)),
            kir.Let(weight, elementwise(ops.EXP, score_.node - base.node)),
            kir.Let(scale, elementwise(ops.EXP, peak.node - base.node)),
        )
        zero = const(0, dtype)
        carried = (
            kir.Carry(peak, const(dtype.min, dtype), best.node),
            kir.Carry(total, zero, total.node * scale.node + weight.node),
            kir.Carry(acc, zero, acc.node * scale.node + weight.node * value),
        )
        axes = groups.axes_of(loops)
        if axes:
            (axis,) = axes
            self.body.append(kir.Loop(axis, (*inner, *lets), carried))
            names = (v.name for v in (score_, weight, peak, total, acc))
            self.pattern = pattern.OnlineSoftmax(self.accumulators.get(stream.inner), *names)
            results = (peak.node, total.node, acc.node / total.node)
        else:  # a single key
            self.body += inner
            results = (score, const(1, dtype), value)
        # A row of nothing but minus infinity has weights that are not numbers, and so their total.
        alone = results[0].equal(const(dtype.min, dtype))
        whole = elementwise(ops.WHERE, alone, const(math.nan, dtype), results[1])
        told = {stream.peak: results[0], stream.total: whole, n: results[2]}
        self.normal = {x: _cast(value, x.dtype) for x, value in told.items()}

    # ---- pieces
    def loops(self, shape: Shape) -> Indices:
        return groups.iteration(
            shape, f"k{self.reductions}" + "_" * (self.depth + 1), kir.AxisKind.LOOP
        )

    def buffer(self, n: Node, role: kir.Role) -> kir.Buffer:
        found = self.buffers.get(n)
        if found is None:
            letter = "a" if role is kir.Role.INPUT else "y"
            number = sum(b.name[0] == letter for b in self.buffers.values())
            strides: tuple[kir.Index, ...] | None = None
            offset: kir.Index = 0
            if n.op is ops.BUFFER and not groups.is_row_major(n):
                strides, offset = extents(n.attr.strides), extents((n.attr.offset,))[0]
            kept = (n.attr.steady, n.attr.constant) if n.op is ops.BUFFER else ()
            name = f"{letter}{number}"
            found = kir.Buffer(name, n.dtype, extents(n.shape), role, strides, offset, *kept)
            self.buffers[n] = found
        return found

    def tidy(self, n: Node) -> Node:
        return simplify(n, self.index_memo)

    def name(self) -> str:
        names = [m.op.name for m in self.members if not m.op.is_movement]
        shown = list(dict.fromkeys(names or ["copy"]))
        return "_".join(shown if len(shown) <= 4 else [*shown[:2], *shown[-2:]])


def _cast(n: Node, dtype: object) -> Node:
    return n if n.dtype is dtype else elementwise(ops.CAST, n, dtype=dtype)  # type: ignore[arg-type]


def _shifted(at: Indices, places: Sequence[tuple[Dim, int]]) -> Indices:
    """Where "element i goes to low + step*i" puts an element."""
    return tuple(i * s + kir.as_index(low) for i, (low, s) in zip(at, places, strict=True))


def _loops(at: Indices, extent: kir.Index) -> list[kir.Axis]:
    """The loops of an index that run as far as `extent`."""
    return [a for a in groups.axes_of(at) if a.kind is kir.AxisKind.LOOP and a.extent == extent]


def _evaluated(s: kir.Statement) -> list[Node]:
    """The expressions of a statement and of those in it."""
    return [e for x in kir.walk((s,)) for e in kir.expressions(x)]


def _inputs_read(store: kir.Store) -> int:
    loads = [n for n in topological(kir.expressions(store)) if n.op is ops.LOAD]
    return len({n.attr for n in loads if n.attr.role is kir.Role.INPUT})


def _symbols(phase: kir.Phase, buffers: Sequence[kir.Buffer]) -> tuple[Symbol, ...]:
    """Every size symbol a kernel mentions, by name."""
    sizes: list[kir.Index] = [a.extent for a in phase.grid]
    for b in buffers:
        sizes += [*b.shape, *(b.strides or ()), b.offset]
    roots = [e for e in sizes if isinstance(e, Node)]
    for s in kir.walk(phase.body):
        roots += kir.expressions(s)
    found = {leaf.attr for n in roots for leaf in mentions(n) if leaf.op is ops.SYMBOL}
    return tuple(sorted(found, key=lambda s: s.name))
