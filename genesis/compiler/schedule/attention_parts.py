"""Attention taken apart: plain kernels of it, forward and backward, as any chip schedules them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from genesis.compiler.schedule.steps.queries import carrying, extent, factors, lets
from genesis.compiler.schedule.steps.substitute_axes import mask_loads, respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType, index
from genesis.ir.index import LinearIndex, fixed, simplify, static
from genesis.ir.node import Node, both, elementwise, is_const, mentions, topological
from genesis.ir.pattern import AttentionBackward, Gradient, OnlineSoftmax
from genesis.ir.rewrite import replaced, substitute


@dataclass(frozen=True)
class AttentionParts:
    """The parts of a plain kernel."""

    keys: kir.Loop  # over the keys, carrying peak, total and the weighted sum
    inner: kir.Loop  # the contraction that gives one score
    query: Node
    key: Node
    score: Node  # written with `product`
    value: Node
    product: kir.Local
    peak: kir.Local
    total: kir.Local
    weighted: kir.Local
    rows: tuple[kir.Axis, ...]  # that neither keys nor values depend on, longest first
    column: kir.Axis
    shared: tuple[kir.Axis, ...]  # that keys or values depend on, too
    stores: tuple[kir.Store, ...]
    once: tuple[kir.Store, ...]  # what is stored of a row rather than of every column

    @property
    def dtype(self) -> DType:
        """What is computed in."""
        return self.weighted.dtype

    @property
    def state(self) -> tuple[Node, Node, Node]:
        """What is carried: peak, total and the weighted sum."""
        return self.peak.node, self.total.node, self.weighted.node

    @property
    def row(self) -> kir.Axis:
        """The longest of the rows."""
        return self.rows[0]

    @property
    def batch(self) -> tuple[kir.Axis, ...]:
        """The grid without the longest of the rows and the columns."""
        return (*self.shared, *self.rows[1:])


def attention(kernel: kir.Kernel) -> AttentionParts | None:
    """The parts of a plain kernel of attention; None: it is another, or of a form not planned for.

    Planned for is a score that is summed along one axis, and values with one axis of their own.
    Sums go by whole vectors: beyond the end, what is multiplied must be zero.
    """
    found = kernel.pattern
    if not isinstance(found, OnlineSoftmax) or found.product is None:
        return None
    (phase,) = kernel.phases
    keys, weighted = carrying(phase.body, found.weighted)
    inner, product = carrying(keys.body, found.product)
    named, stores = lets(keys.body), tuple(s for s in phase.body if isinstance(s, kir.Store))
    others = [s for s in (*phase.body, *keys.body) if not isinstance(s, kir.Store | kir.Let)]
    if others != [keys, inner] or inner.body:
        return None
    query, key = factors(product)
    if keys.axis.node in mentions(query):
        query, key = key, query
    key, scale = shared_factor(key, inner.axis)
    if not is_zero_beyond(query, key, inner.axis):
        return None
    score, weight = named[found.score].value, named[found.weight].local.node
    if scale is not None:
        score = replaced(score, {product.local.node: product.local.node * scale})
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


def shared_factor(factor: Node, axis: kir.Axis) -> tuple[Node, Node | None]:
    """A factor of a sum along `axis` without what is the same all along it: the scale of a key."""
    if factor.op is ops.MUL:
        for own, shared in (factor.inputs, factor.inputs[::-1]):
            if axis.node not in mentions(shared) and axis.node in mentions(own):
                return own, shared
    return factor, None


def is_zero_beyond(left: Node, right: Node, axis: kir.Axis) -> bool:
    """Whether a product is zero beyond the end of an axis, if what is read there is.

    Numbers that are made from their places go on there, and may become anything.
    """
    made = [not _vanishes(x, axis) for x in (left, right)]
    return not any(made) or (
        not all(made) and axis.node not in mentions(left if made[0] else right)
    )


def _vanishes(x: Node, axis: kir.Axis) -> bool:
    """Whether a factor is zero where what it reads along an axis is."""
    if x.op is ops.LOAD:
        _, at, _, other = kir.load_parts(x)
        return is_const(other, 0) and any(axis.node in mentions(i) for i in at)
    if x.op in (ops.CAST, ops.NEG, ops.ABS):
        return _vanishes(x.inputs[0], axis)
    if x.op in (ops.ADD, ops.SUB, ops.WHERE):
        values = x.inputs[1:] if x.op is ops.WHERE else x.inputs
        return all(is_const(v, 0) or _vanishes(v, axis) for v in values)
    if x.op in (ops.MUL, ops.DIV):
        first, second = x.inputs
        pairs = [(first, second)] if x.op is ops.DIV else [(first, second), (second, first)]
        return any(
            _vanishes(a, axis)
            and (axis.node not in mentions(b) or (x.op is ops.MUL and _vanishes(b, axis)))
            for a, b in pairs
        )
    return False


def _in_column(s: kir.Store, column: kir.Axis) -> kir.Store:
    """What a store of something per row does in the one column in which it does something."""
    first = {column.node: kir.as_index(0)}
    value, mask = substitute([s.value, s.mask], first)
    return replace(s, value=value, mask=simplify(mask))


def stored(
    s: kir.Store, at: dict[Node, Node], inside: Node, tiles: Collection[kir.Axis]
) -> kir.Store:
    """A store of the plain kernel where axes and state are what `at` says, of what is `inside`."""
    value, mask, *index = map(simplify, substitute([s.value, s.mask, *s.index], at))
    return kir.Store(s.buffer, tuple(index), mask_loads(value, inside, tiles), both(mask, inside))


def heads_in_groups(kernel: kir.Kernel) -> kir.Kernel:
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
        kernel = kernel.with_phases([kir.Phase(grid, body)])
        return heads_in_groups(kernel)
    return kernel


def diagonal(p: AttentionParts) -> Node | None:
    """The last key a row sees, when the score is ``where(key <= row + c, .., -inf)``."""
    last = last_key(p)
    return last if last is not None and LinearIndex.of(last).terms == {p.row.node: 1} else None


def last_key(p: AttentionParts) -> Node | None:
    """The last key that is looked at, where scores are minus infinity beyond it.

    It is written with the axes of the grid, never falling along the rows, and may be data.
    """
    return _limit(p, -1)


def first_key(p: AttentionParts) -> Node | None:
    """The first key that is looked at, where scores are minus infinity before it: of a window."""
    return _limit(p, 1)


def _limit(p: AttentionParts, sign: int) -> Node | None:
    key, rows = p.keys.axis.node, [a.node for a in p.rows]
    for condition in needed(p.score):
        bound = bounds_on(condition)
        if bound is None or bound.terms.pop(key, 0) != sign:
            continue
        limit = bound.times(-sign)
        # A sum with data in it may wrap around, and so must be the one that is compared.
        plain = all(t.op in (ops.AXIS, ops.SYMBOL) for t in limit.terms)
        if (plain or key in condition.inputs) and _rises(limit, rows, key):
            return limit.emit()
    return None


def _rises(limit: LinearIndex, rows: Sequence[Node], key: Node) -> bool:
    """Whether a sum never falls along the rows, and is the same for all keys."""
    return all(
        mentions(term).isdisjoint([key, *rows]) or (coefficient > 0 and term in rows)
        for term, coefficient in limit.terms.items()
    )


def within(last: Node, keys: kir.Index) -> Node:
    """A last key that may be data, cut down to those that exist, or -1."""
    last = elementwise(ops.MIN, last, kir.as_index(keys) - 1)
    return elementwise(ops.MAX, last, kir.as_index(-1))


def bounds_on(condition: Node) -> LinearIndex | None:
    """What a condition on indices says is not negative, or None."""
    if condition.op not in (ops.LE, ops.LT) or condition.inputs[0].dtype is not index:
        return None
    smaller, greater = condition.inputs
    return LinearIndex.of(simplify(greater - smaller - int(condition.op is ops.LT)))


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


# ---- backward


@dataclass(frozen=True)
class ScoreProduct:
    """A contraction that weights are made from: rows of `left` with rows of `right`."""

    loop: kir.Loop
    carry: kir.Carry
    left: Node  # depends on the row
    right: Node  # depends on the column


@dataclass(frozen=True)
class WeightedSum:
    """What is added up: ``weight * value``, over rows or over columns."""

    store: kir.Store
    weight: kir.Local
    value: Node
    axis: kir.Axis  # along the short rows of the result
    over_rows: bool
    last: kir.Store  # what is stored of the sum in the end


@dataclass(frozen=True)
class BackwardParts:
    """The parts of a plain kernel."""

    row: kir.Axis
    column: kir.Axis
    products: tuple[ScoreProduct, ...]
    weights: tuple[kir.Let, ...]
    results: tuple[WeightedSum, ...]


def attention_backward(kernel: kir.Kernel) -> BackwardParts | None:
    """The parts of a plain kernel of attention backward; None: it is another, or not planned for.

    Planned for are products of what is zero beyond its end, as in attention.
    """
    found = kernel.pattern
    if not isinstance(found, AttentionBackward):
        return None
    (phase,) = kernel.phases
    loops = [s for s in kir.walk(phase.body) if isinstance(s, kir.Loop)]
    rows = next(s for s in loops if s.axis.name == found.row and found.weights[0] in lets(s.body))
    columns = next(s for s in loops if s.axis.name == found.column and rows in s.body)
    named, inner = lets(rows.body), {s.axis.name: s for s in rows.body if isinstance(s, kir.Loop)}
    stored = {s.buffer.name: s for s in kir.walk(phase.body) if isinstance(s, kir.Store)}
    products = tuple(_product(*carrying(rows.body, name), rows.axis) for name in found.products)
    if not all(is_zero_beyond(x.left, x.right, x.loop.axis) for x in products):
        return None
    return BackwardParts(
        rows.axis,
        columns.axis,
        products,
        tuple(named[name] for name in found.weights),
        tuple(_result(x, inner[x.axis], named, rows.axis, stored[x.stored]) for x in found.results),
    )


def _product(loop: kir.Loop, carry: kir.Carry, row: kir.Axis) -> ScoreProduct:
    left, right = factors(carry)
    if row.node in mentions(right):
        left, right = right, left
    return ScoreProduct(loop, carry, left, right)


def _result(
    x: Gradient, loop: kir.Loop, named: dict[str, kir.Let], row: kir.Axis, last: kir.Store
) -> WeightedSum:
    (store,) = loop.body
    assert isinstance(store, kir.Store)
    weight = named[x.weight].local
    _, added = store.value.inputs
    (value,) = (factor for factor in added.inputs if factor is not weight.node)
    over_rows = all(row.node not in mentions(i) for i in store.index)
    return WeightedSum(
        store, weight, value, loop.axis, over_rows, store if x.sums == x.stored else last
    )


def diagonal_offset(p: BackwardParts) -> int | None:
    """How far behind its column the first row is whose weights are not zero, if that is fixed."""
    common: set[Node] | None = None
    for s in p.weights:
        here = set(_nonzero_where(s.value))
        common = here if common is None else common & here
    for condition in sorted(common or (), key=str):
        bound = bounds_on(condition)
        if bound is not None and bound.terms == {p.column.node: -1, p.row.node: 1}:
            return -bound.constant
    return None


def _nonzero_where(weight: Node) -> Iterator[Node]:
    """Conditions without which a weight is zero."""
    if weight.op is ops.MUL:
        for x in weight.inputs:
            yield from _nonzero_where(x)
    elif weight.op is ops.WHERE and is_const(weight.inputs[1], 0):
        yield from _nonzero_where(weight.inputs[2])
    elif weight.op is ops.EXP and weight.inputs[0].op is ops.SUB:
        yield from needed(weight.inputs[0].inputs[0])
