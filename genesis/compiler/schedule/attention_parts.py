"""Attention taken apart: a plain kernel of online softmax, as the schedules of any chip want it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from genesis.compiler.schedule.steps.queries import carrying, extent, factors, lets
from genesis.compiler.schedule.steps.substitute_axes import mask_loads, respecialise
from genesis.ir import ops
from genesis.ir.dtype import DType, index
from genesis.ir.index import Linear, fixed, simplify, static
from genesis.ir.kernel import Axis, Index, Kernel, Let, Local, Loop, Phase, Store, as_index
from genesis.ir.node import Node, both, elementwise, is_const, mentions, topological
from genesis.ir.pattern import OnlineSoftmax
from genesis.ir.rewrite import substitute


@dataclass(frozen=True)
class AttentionParts:
    """The parts of a plain kernel."""

    keys: Loop  # over the keys, carrying peak, total and the weighted sum
    inner: Loop  # the contraction that gives one score
    query: Node
    key: Node
    score: Node  # written with `product`
    value: Node
    product: Local
    peak: Local
    total: Local
    weighted: Local
    rows: tuple[Axis, ...]  # that neither keys nor values depend on, longest first
    column: Axis
    shared: tuple[Axis, ...]  # that keys or values depend on, too
    stores: tuple[Store, ...]
    once: tuple[Store, ...]  # what is stored of a row rather than of every column

    @property
    def dtype(self) -> DType:
        """What is computed in."""
        return self.weighted.dtype

    @property
    def state(self) -> tuple[Node, Node, Node]:
        """What is carried: peak, total and the weighted sum."""
        return self.peak.node, self.total.node, self.weighted.node

    @property
    def row(self) -> Axis:
        """The longest of the rows."""
        return self.rows[0]

    @property
    def batch(self) -> tuple[Axis, ...]:
        """The grid without the longest of the rows and the columns."""
        return (*self.shared, *self.rows[1:])


def attention(kernel: Kernel) -> AttentionParts | None:
    """The parts of a plain kernel of attention; None: it is another, or of a form not planned for.

    Planned for is a score that is summed along one axis, and values with one axis of their own.
    """
    found = kernel.pattern
    if not isinstance(found, OnlineSoftmax) or found.product is None:
        return None
    (phase,) = kernel.phases
    keys, weighted = carrying(phase.body, found.weighted)
    inner, product = carrying(keys.body, found.product)
    named, stores = lets(keys.body), tuple(s for s in phase.body if isinstance(s, Store))
    others = [s for s in (*phase.body, *keys.body) if not isinstance(s, Store | Let)]
    if others != [keys, inner] or inner.body:
        return None
    query, key = factors(product)
    if keys.axis.node in mentions(query):
        query, key = key, query
    score, weight = named[found.score].value, named[found.weight].local.node
    # The weighted sum is rescaled, and what is added is a weight times a value.
    (added,) = (x for x in weighted.step.inputs if weight in x.inputs)
    (value,) = (x for x in added.inputs if x is not weight)
    in_query, in_key, in_value = (mentions(x) for x in (query, key, value))
    columns = [a for a in phase.grid if a.node in in_value and a.node not in in_query | in_key]
    if len(columns) != 1 or static(columns[0].extent) is None or keys.axis.node in in_query:
        return None
    if keys.axis.node not in in_key or keys.axis.node not in in_value:
        return None
    (column,) = columns
    if column.node in mentions(score):
        return None
    shared = tuple(a for a in phase.grid if a.node in in_key | in_value and a != column)
    rows = [a for a in phase.grid if a not in (*shared, column)]
    rows.sort(key=lambda a: -extent(a))
    wide = tuple(s for s in stores if column.node in set(topological(s.index)))
    once = tuple(_in_column(s, column) for s in stores if s not in wide)
    carried = {c.local.name: c.local for c in keys.carried}
    peak, total = carried[found.peak], carried[found.total]
    return AttentionParts(
        keys, inner, query, key, score, value, product.local, peak, total, weighted.local,
        tuple(rows), column, shared, wide, once,
    )  # fmt: skip


def _in_column(s: Store, column: Axis) -> Store:
    """What a store of something per row does in the one column in which it does something."""
    first = {column.node: as_index(0)}
    value, mask = substitute([s.value, s.mask], first)
    return replace(s, value=value, mask=simplify(mask))


def stored(s: Store, at: dict[Node, Node], inside: Node, tiles: Collection[Axis]) -> Store:
    """A store of the plain kernel where axes and state are what `at` says, of what is `inside`."""
    value, mask, *index = map(simplify, substitute([s.value, s.mask, *s.index], at))
    return Store(s.buffer, tuple(index), mask_loads(value, inside, tiles), both(mask, inside))


def heads_in_groups(kernel: Kernel) -> Kernel:
    """Attention whose keys are told by ``head // n``, with the n heads on an own axis."""
    p = attention(kernel)
    if p is None:
        return kernel
    (phase,) = kernel.phases
    nodes = topological([p.key, p.value])
    for axis in p.shared:
        users = [n for n in nodes if axis.node in n.inputs]
        sizes = {n.inputs[1] for n in users if n.op is ops.FLOORDIV and n.inputs[0] is axis.node}
        if len(sizes) != 1 or any(n.op is not ops.FLOORDIV for n in users):
            continue
        size, count = fixed(sizes.pop()), static(axis.extent)
        if not isinstance(size, int) or count is None or count % size:
            continue
        group = replace(axis, name=axis.name + "g", extent=count // size)
        head = replace(axis, name=axis.name + "h", extent=size)
        body = respecialise(phase.body, {axis.node: group.node * size + head.node})
        at = phase.grid.index(axis)
        grid = (*phase.grid[:at], group, head, *phase.grid[at + 1 :])
        kernel = kernel.with_phases([Phase(grid, body)])
        return heads_in_groups(kernel)
    return kernel


def diagonal(p: AttentionParts) -> Node | None:
    """The last key a row sees, when the score is ``where(key <= row + c, .., -inf)``."""
    last = last_key(p)
    return last if last is not None and Linear.of(last).terms == {p.row.node: 1} else None


def last_key(p: AttentionParts) -> Node | None:
    """The last key that is looked at, where scores are minus infinity beyond it.

    It is written with the axes of the grid, never falling along the rows, and may be data.
    """
    key, rows = p.keys.axis.node, [a.node for a in p.rows]
    for condition in needed(p.score):
        bound = bounds_on(condition)
        if bound is None or bound.terms.pop(key, 0) != -1:
            continue
        # A sum with data in it may wrap around, and so must be the one that is compared.
        plain = all(t.op in (ops.AXIS, ops.SYMBOL) for t in bound.terms)
        alone = [t for t in bound.terms if not mentions(t).isdisjoint([key, *rows])]
        rising = all(t in rows and bound.terms[t] > 0 for t in alone)
        if rising and (plain or condition.inputs[0] is key):
            return bound.emit()
    return None


def within(last: Node, keys: Index) -> Node:
    """A last key that may be data, cut down to those that exist, or -1."""
    last = elementwise(ops.MIN, last, as_index(keys) - 1)
    return elementwise(ops.MAX, last, as_index(-1))


def bounds_on(condition: Node) -> Linear | None:
    """What a condition on indices says is not negative, or None."""
    if condition.op not in (ops.LE, ops.LT) or condition.inputs[0].dtype is not index:
        return None
    smaller, greater = condition.inputs
    return Linear.of(simplify(greater - smaller - int(condition.op is ops.LT)))


def needed(score: Node) -> list[Node]:
    """Conditions without which a score is minus infinity."""
    if score.op is ops.ADD:
        return [c for term in score.inputs for c in needed(term)]
    if score.op is not ops.WHERE or not is_const(score.inputs[2], score.dtype.min):
        return []
    condition, then, _ = score.inputs
    return [*_conjuncts(condition), *needed(then)]


def _conjuncts(condition: Node) -> list[Node]:
    if condition.op is ops.AND:
        return [c for part in condition.inputs for c in _conjuncts(part)]
    return [condition]
