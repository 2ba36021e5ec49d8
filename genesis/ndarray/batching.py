"""Batching: the graph of one example becomes the graph of many, by a rule for each primitive.

There are few primitives, so there are few rules, and everything composed of primitives follows,
gradients and random numbers included. A value that depends on what differs between examples gets
a first axis for them; any other stays as it is and is computed once. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from genesis.ir import ops
from genesis.ir.dtype import bool_, uint64
from genesis.ir.node import LibraryCall, Node, Recurrence, topological
from genesis.ir.ops import Op
from genesis.ir.size import Dim
from genesis.ndarray.core import primitive
from genesis.ndarray.core.primitive import elementwise, permute, reshape
from genesis.ndarray.core.value import Checked, Value
from genesis.ndarray.ops.library_calls import call
from genesis.ndarray.ops.scan import RecordedBody, repeated


def batched(
    roots: Sequence[Value], known: Mapping[Value, Value], count: Dim, outside: Collection[Value]
) -> dict[Value, Value]:
    """The values that `roots` are made of, for `count` examples; what is not in it is the same.

    `known` says what some values, the stand-ins, are for all examples. Values from `outside` do
    not depend on those.
    """
    found = _Found(known, count)

    def before(v: Value) -> tuple[Value, ...]:
        return () if v in outside or v in known else v.inputs

    for v in topological(roots, before):
        if v in known or not any(map(found.differs, before(v))):
            continue
        if v.op in (ops.SCAN, ops.CALL):
            found.several[v] = (_scan if v.op is ops.SCAN else _call)(v, found)
            continue
        made = _RULES[v.op](v, found)
        made.code, made.instruction = v.code, v.instruction  # the user's line, not `vmap`'s
        found.values[v] = made
    return found.values


def everywhere(x: Value, count: Dim) -> Value:
    """A value that all examples have in common, for each of them."""
    return primitive.broadcast(x, (count, *x.shape))


def summed(x: Value) -> Value:
    """The sum over examples; the products of a contraction are summed where they are made."""
    if x.op is ops.RESHAPE and type(x) is Value and x.inputs[0].shape[:1] == x.shape[:1]:
        return reshape(summed(x.inputs[0]), x.shape[1:])
    if x.op is ops.PERMUTE and x.attr[0] == 0:
        return permute(summed(x.inputs[0]), tuple(a - 1 for a in x.attr[1:]))
    if x.op is ops.ADD and x.inputs[0].shape == x.inputs[1].shape:
        return elementwise(ops.ADD, *map(summed, x.inputs))
    if x.op is ops.CONTRACT:
        lhs, rhs, out = x.attr
        if out[0] in lhs and out[0] in rhs:
            return primitive.contract(x.inputs[0], x.inputs[1], lhs, rhs, out[1:])
    return primitive.reduce(ops.SUM, x, (0,))


def split(state: Value, count: Dim) -> tuple[Value, Value]:
    """Random states for examples, each with a key of its own, and what `state` goes on as."""
    device = state.device
    key, offset = (
        reshape(primitive.slice_(state, ((k, 1),), (1,)), ()) for k in range(2)
    )  # fmt: skip
    numbers = primitive.cast(primitive.iota(count, device), uint64)
    keys = elementwise(ops.RANDOM, key, elementwise(ops.ADD, offset, numbers))
    states = primitive.broadcast(primitive.constant(0, uint64, device), (count, 2))
    states = primitive.update(states, reshape(keys, (count, 1)), ((0, 1), (0, 1)))
    advanced = elementwise(ops.ADD, offset, primitive.extent(count, uint64, device))
    return states, primitive.update(state, reshape(advanced, (1,)), ((1, 1),))


class _Found:
    """What is known of values for all examples."""

    def __init__(self, known: Mapping[Value, Value], count: Dim) -> None:
        self.values = dict(known)
        self.several: dict[Value, list[Value]] = {}  # results of loops and of library calls
        self.count = count

    def differs(self, v: Value) -> bool:
        """Whether examples may have different values."""
        return v in self.values or v in self.several

    def __getitem__(self, v: Value) -> Value:
        return self.values.get(v, v)

    def full(self, v: Value) -> Value:
        """A value with an axis of examples."""
        x = self.values.get(v)
        return everywhere(v, self.count) if x is None else x

    def like(self, v: Value, rank: int) -> Value:
        """An operand of an elementwise operation of some rank: a scalar stands for every shape."""
        x = self.values.get(v)
        if x is None:
            return everywhere(v, self.count) if v.shape else v
        return x if v.shape else reshape(x, (self.count, *(1,) * rank))


_Rule = Callable[[Value, _Found], Value]
_RULES: dict[Op, _Rule] = {}


def _rule(*operations: Op) -> Callable[[_Rule], _Rule]:
    def added(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operations, rule))
        return rule

    return added


def _same(v: Value, inputs: tuple[Value, ...], count: Dim, attr: object = None) -> Value:
    """The operation of `v` on inputs with an axis of examples."""
    return Value(v.op, inputs, attr, v.dtype, (count, *v.shape), v.device)


@_rule(*(op for op in ops.ALL.values() if op.is_elementwise), ops.COMPLEX)
def _elementwise(v: Value, found: _Found) -> Value:
    shape = (found.count, *v.shape)
    operands = [found.like(i, len(v.shape)) for i in v.inputs]
    return _same(
        v, tuple(primitive.expand(x, shape) if x.shape else x for x in operands), found.count
    )


@_rule(ops.REAL, ops.IMAG, ops.AS_REAL, ops.AS_COMPLEX)
def _parts(v: Value, found: _Found) -> Value:
    return _same(v, (found[v.inputs[0]],), found.count)


# ---- movement


@_rule(ops.RESHAPE)
def _reshape(v: Value, found: _Found) -> Value:
    x = found[v.inputs[0]]
    if isinstance(v, Checked):
        return Checked(x, v.name, v.extent, v.axis)
    return reshape(x, (found.count, *v.shape))


@_rule(ops.PERMUTE)
def _permute(v: Value, found: _Found) -> Value:
    return permute(found[v.inputs[0]], (0, *(a + 1 for a in v.attr)))


@_rule(ops.EXPAND)
def _expand(v: Value, found: _Found) -> Value:
    return primitive.expand(found[v.inputs[0]], (found.count, *v.shape))


@_rule(ops.SLICE)
def _slice(v: Value, found: _Found) -> Value:
    return _same(v, (found[v.inputs[0]],), found.count, ((0, 1), *v.attr))


@_rule(ops.PAD)
def _pad(v: Value, found: _Found) -> Value:
    x, fill = found.full(v.inputs[0]), v.inputs[1]
    steps, shape = ((0, 1), *v.attr), (found.count, *v.shape)
    if not found.differs(fill):
        return primitive.pad(x, steps, shape, fill)
    zero, no = (primitive.constant(0, dtype, v.device) for dtype in (v.dtype, bool_))
    there = primitive.broadcast(primitive.constant(1, bool_, v.device), x.shape)
    there = primitive.pad(there, steps, shape, no)
    around = primitive.expand(found.like(fill, len(v.shape)), shape)
    return primitive.where(there, primitive.pad(x, steps, shape, zero), around)


@_rule(ops.WINDOW)
def _window(v: Value, found: _Found) -> Value:
    axis, stride, dilation = v.attr
    return _same(v, (found[v.inputs[0]],), found.count, (axis + 1, stride, dilation))


# ---- reductions, contraction, prefixes


@_rule(*ops.REDUCTIONS)
def _reduce(v: Value, found: _Found) -> Value:
    return _same(v, (found[v.inputs[0]],), found.count, tuple(a + 1 for a in v.attr))


@_rule(ops.CONTRACT)
def _contract(v: Value, found: _Found) -> Value:
    lhs, rhs, out = v.attr
    lhs, rhs = (
        ("example", *labels) if found.differs(x) else labels
        for x, labels in zip(v.inputs, (lhs, rhs), strict=True)
    )
    x, y = (found[i] for i in v.inputs)
    return primitive.contract(x, y, lhs, rhs, ("example", *out))


@_rule(ops.PREFIX)
def _prefix(v: Value, found: _Found) -> Value:
    inputs = tuple(found.full(x) for x in v.inputs)
    return _same(v, inputs, found.count, replace(v.attr, axis=v.attr.axis + 1))


# ---- indexing


@_rule(ops.GATHER)
def _gather(v: Value, found: _Found) -> Value:
    x, *indices = v.inputs
    first, rank = v.attr[0], len(indices[0].shape)
    if not any(map(found.differs, indices)):
        return primitive.gather_at(found[x], indices, [a + 1 for a in v.attr])
    if not found.differs(x):
        picked = primitive.gather_at(x, [found.full(i) for i in indices], v.attr)
        return _to_front(picked, first)
    numbers, axes = _by_example(indices, v.attr, found)
    picked = primitive.gather_at(found[x], numbers, axes)
    return _moved(picked, 1, rank, first)


@_rule(ops.SCATTER)
def _scatter(v: Value, found: _Found) -> Value:
    x, *indices, updates = v.inputs
    axes, mode = v.attr
    target, new = found.full(x), found.full(updates)
    if not any(map(found.differs, indices)):
        return primitive.scatter(target, indices, new, [a + 1 for a in axes], mode)
    rank = len(indices[0].shape)
    numbers, places = _by_example(indices, axes, found)
    return primitive.scatter(target, numbers, _moved(new, axes[0] + 1, rank, 0), places, mode)


def _by_example(
    indices: Sequence[Value], axes: Sequence[int], found: _Found
) -> tuple[list[Value], list[int]]:
    """Indices into a value with an axis of examples, each for its own."""
    full = [found.full(i) for i in indices]
    numbers = primitive.along(primitive.iota(found.count, full[0].device), 0, full[0].shape)
    return [primitive.cast(numbers, full[0].dtype), *full], [0, *(a + 1 for a in axes)]


def _moved(x: Value, start: int, length: int, by: int) -> Value:
    """`x` with `length` axes from `start` on behind the `by` that follow, or first of all but 0."""
    axes = list(range(len(x.shape)))
    block = axes[start : start + length]
    del axes[start : start + length]
    place = 1 + by
    return permute(x, (*axes[:place], *block, *axes[place:]))


def _to_front(x: Value, axis: int) -> Value:
    return permute(x, (axis, *(d for d in range(len(x.shape)) if d != axis)))


@_rule(ops.UPDATE)
def _update(v: Value, found: _Found) -> Value:
    return _same(v, tuple(map(found.full, v.inputs)), found.count, ((0, 1), *v.attr))


# ---- boundaries


@_rule(ops.ITEM)
def _item(v: Value, found: _Found) -> Value:
    number: int = v.attr
    return found.several[v.inputs[0]][number]


def _call(v: Value, found: _Found) -> list[Value]:
    """Functions of the library work on the last axes of what they are given."""
    attr: LibraryCall = v.attr
    results = [(dtype, (found.count, *shape)) for dtype, shape in attr.results]
    return call(attr.name, attr.options, [found.full(x) for x in v.inputs], results)


def _scan(v: Value, found: _Found) -> list[Value]:
    """A loop whose body is that of all examples; what differs in a carry later does so at first."""
    loop: Recurrence = v.attr
    count, carries, ends = found.count, loop.carries, loop.carries + loop.xs
    differs = [found.differs(x) for x in v.inputs]
    constants = v.inputs[ends:]
    outside = {*constants, *map(found.__getitem__, constants)}
    while True:
        ones = [_stand_in(x, k >= carries) for k, x in enumerate(v.inputs[:ends])]
        many = [_with_axis(x, count) if d else x for x, d in zip(ones, differs, strict=False)]
        known = {x: y for x, y in zip(ones, many, strict=True) if x is not y}
        known |= {x: found.values[x] for x in constants if found.differs(x)}
        body = _values(loop.body, [*ones, *constants], v.device)
        made = batched(body, known, count, outside)
        late = [k for k in range(carries) if body[k] in made and not differs[k]]
        if not late:
            break
        for k in late:
            differs[k] = True
    after = [
        made[x] if x in made else everywhere(x, count) if d else x
        for x, d in zip(body[:carries], differs, strict=False)
    ]
    each = [made.get(x, x) for x in body[carries:]]
    firsts = [found.full(x) if d else x for x, d in zip(v.inputs[:carries], differs, strict=False)]
    xs = [_to_front(found[x], 1) if found.differs(x) else x for x in v.inputs[carries:ends]]
    recorded = RecordedBody(many[:carries], many[carries:], after, each, outside)
    lasts, stacks = repeated(recorded, firsts, xs, loop.length, loop.reverse)
    lasts = [x if d else everywhere(x, count) for x, d in zip(lasts, differs, strict=False)]
    stacks = [
        _to_front(x, 1) if one in made else everywhere(x, count)
        for x, one in zip(stacks, body[carries:], strict=True)
    ]
    return [*lasts, *stacks]


def _stand_in(x: Value, along: bool) -> Value:
    return primitive.parameter(x.dtype, x.shape[1:] if along else x.shape, x.device)


def _with_axis(x: Value, count: Dim) -> Value:
    return primitive.parameter(x.dtype, (count, *x.shape), x.device)


def _values(roots: Sequence[Node], parameters: Sequence[Value], device: str) -> list[Value]:
    """The nodes of a body as values, with these in the places of its parameters."""
    made: dict[Node, Value] = {}
    for n in topological(roots):
        if n.op is ops.PARAMETER:
            made[n] = parameters[n.attr]
        else:
            inputs = tuple(made[i] for i in n.inputs)
            made[n] = Value(n.op, inputs, n.attr, n.dtype, n.shape, device)
    return [made[n] for n in roots]
