"""`scan`: a loop that is one operation, compiled once however often it runs.

The body is called once, on stand-ins for a carry and for one element of the xs. What results is a
graph over those, the attribute of a SCAN node. Whatever in it depends on neither is computed once,
outside: it is a further input, like the arrays the body uses through its closure. The state of a
random generator that the body draws from becomes one more carry, so every repetition draws anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import ref

from genesis.ir import ops
from genesis.ir.node import Node, Recurrence, node, topological
from genesis.ir.size import Dim, bounds
from genesis.ndarray.core.body_recorder import BodyRecorder
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import parameter
from genesis.ndarray.core.value import Several, Value, recorded_by, thread
from genesis.ndarray.ops.creation import asarray, zeros
from genesis.ndarray.pytree import Structure, flatten, unflatten

Body = Callable[[Any, Any], tuple[Any, Any]]


def scan(
    body: Body, carry: Any, xs: Any = None, length: Dim | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Repeat ``carry, y = body(carry, x)`` over the first axis of `xs`.

    Gives the last carry and the ys, stacked along a new first axis. Carry, xs and ys are arrays or
    nested tuples, lists and dictionaries of arrays; None stands for nothing. The carry keeps its
    structure, dtypes and shapes. Without `xs`, `length` says how often. `reverse` begins with the
    last element; the ys are in the order of the xs all the same.

    >>> from genesis import ndarray as nd
    >>> total, sums = nd.scan(lambda c, x: (c + x, c + x), nd.array(0.0), nd.arange(1.0, 5.0))
    >>> total.item(), sums.tolist()
    (10.0, [1.0, 3.0, 6.0, 10.0])
    """
    carries = _Tree.of("carry", carry)
    elements = _Tree.of("xs", xs)
    count = _length(elements, length)
    recorder = BodyRecorder("scan", thread.recorder)
    with recorded_by(recorder):
        carry_in = [parameter(x.dtype, x.shape, x.device) for x in carries.arrays]
        each = [parameter(x.dtype, x.shape[1:], x.device) for x in elements.arrays]
        result = body(carries.filled(map(wrap, carry_in)), elements.filled(map(wrap, each)))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"scan: the body returns (carry, y), not {type(result).__name__}")
        after, ys = _Tree.of("carry", result[0]), _Tree.of("y", result[1])
        _check_carry(carries, after)
        carry_out, one = [x.value for x in after.arrays], [x.value for x in ys.arrays]
    if count == 0:
        empty = [zeros((0, *y.shape), y.dtype, y.device) for y in ys.arrays]
        return carries.filled([x.copy() for x in carries.arrays]), ys.filled(empty)
    firsts = [x.value for x in carries.arrays]
    xs_given = [x.value for x in elements.arrays]
    states = sorted(recorder.states, key=id)  # in one order, so that nobody waits in a circle
    with ExitStack() as locks:
        for state in states:
            locks.enter_context(state.lock)
            carry_in.append(recorder.states[state])
            carry_out.append(recorder.now[state])
            firsts.append(state.value)
        recorded = RecordedBody(carry_in, each, carry_out, one, recorder.outside)
        lasts, stacks = repeated(recorded, firsts, xs_given, count, reverse)
        own = len(carries.arrays)
        for state, first, last in zip(states, firsts[own:], lasts[own:], strict=True):
            if last is not first:
                state.write(last)
    finished = [wrap(value) for value in lasts[:own]]
    return carries.filled(finished), ys.filled([wrap(value) for value in stacks])


class _Tree:
    """A nested structure of arrays, some of whose leaves may be None."""

    def __init__(self, name: str, leaves: list[NDArray | None], structure: Structure) -> None:
        self.name = name
        self.leaves = leaves
        self.structure = structure
        self.arrays = [x for x in leaves if x is not None]

    @staticmethod
    def of(name: str, tree: Any) -> _Tree:
        """The arrays in a tree; numbers and NumPy arrays become arrays."""
        leaves, structure = flatten(tree)
        arrays = [x if x is None or isinstance(x, NDArray) else asarray(x) for x in leaves]
        return _Tree(name, arrays, structure)

    def filled(self, arrays: Iterable[NDArray]) -> Any:
        """The tree with other arrays."""
        rest = iter(arrays)
        return unflatten(self.structure, [x if x is None else next(rest) for x in self.leaves])

    def names(self) -> list[str]:
        """What a user calls each leaf."""
        return list(_paths(self.structure, self.name))


def _paths(structure: Structure, prefix: str) -> Iterator[str]:
    if structure is None:
        yield prefix
        return
    kind, keys, members = structure
    names = keys if keys is not None else getattr(kind, "_fields", range(len(members)))
    for name, member in zip(names, members, strict=True):
        is_field = keys is None and isinstance(name, str)
        yield from _paths(member, f"{prefix}.{name}" if is_field else f"{prefix}[{name!r}]")


def _length(xs: _Tree, length: Dim | None) -> Dim:
    """How often the body runs."""
    for name, x in zip(xs.names(), xs.leaves, strict=True):
        if x is None:
            continue
        if not x.shape:
            raise ValueError(f"scan: {name} has shape (): there is no axis to go along")
        if length is None:
            length = x.shape[0]
        elif x.shape[0] != length:
            raise ValueError(
                f"scan: {name} has {x.shape[0]} elements where there should be {length}"
            )
    if length is None:
        raise ValueError("scan: give xs or a length")
    low, _ = bounds(length)
    if low < 0 or (low == 0 and length != 0):
        raise ValueError(f"scan: a length of {length} may be less than 1")
    return length


def _check_carry(before: _Tree, after: _Tree) -> None:
    is_none = [x is None for x in before.leaves] != [x is None for x in after.leaves]
    if before.structure != after.structure or is_none:
        raise ValueError(
            f"scan: the body changes the structure of the carry, from {before.names()} to "
            f"{after.names()}"
        )
    for name, a, b in zip(before.names(), before.leaves, after.leaves, strict=True):
        if a is None or b is None:
            continue
        if a.dtype is not b.dtype or a.shape != b.shape:
            raise ValueError(
                f"scan: the body turns {name} of {a.dtype} {a.shape} into {b.dtype} {b.shape}; a "
                "carry must keep its dtype and shape"
            )


# ---- from values to a SCAN


class RecordedBody(NamedTuple):
    """What one call of the body made of the stand-ins it was given, and what it read from outside.

    With the states of random generators as further carries.
    """

    carry_in: list[Value]
    x: list[Value]
    carry_out: list[Value]
    y: list[Value]
    outside: set[Value]


def repeated(
    recorded: RecordedBody, firsts: Sequence[Value], xs: Sequence[Value], length: Dim, reverse: bool
) -> tuple[list[Value], list[Value]]:
    """The last carries and the stacked ys.

    What the body hands on unchanged is no carry, a y that is an x stays where it is, and ys that
    are the same are stacked once.
    """
    parameters, inputs, nexts = [], [], []
    same: dict[Value, Value] = {}
    for first, before, after in zip(firsts, recorded.carry_in, recorded.carry_out, strict=True):
        if after is before:
            same[before] = first
        else:
            parameters.append(before)
            inputs.append(first)
            nexts.append(after)
    carries = len(inputs)
    stacks = dict(zip(recorded.x, xs, strict=True))
    ys = [y for y in dict.fromkeys(recorded.y) if y not in stacks]
    roots = [*nexts, *ys]
    if not roots:
        return list(firsts), [stacks[y] for y in recorded.y]
    body, constants = _graph(roots, [*parameters, *recorded.x], same, recorded.outside)
    loop = Recurrence(body, carries, len(xs), length, reverse)
    inputs += [*xs, *constants]
    device = (inputs or roots)[0].device
    whole = Several(ops.SCAN, tuple(inputs), loop, roots[0].dtype, (), device)
    items = []
    for k in range(len(roots)):
        items.append(Value(ops.ITEM, (whole,), k, *loop.result(k), device))
        whole.items.append(ref(items[k]))
    rest = iter(items)
    lasts = [same[s] if s in same else next(rest) for s in recorded.carry_in]
    stacks |= zip(ys, rest, strict=True)
    return lasts, [stacks[y] for y in recorded.y]


def _graph(
    roots: Sequence[Value],
    parameters: Sequence[Value],
    same: dict[Value, Value],
    outside: set[Value],
) -> tuple[tuple[Node, ...], list[Value]]:
    """The body as nodes over numbered parameters, and the values of those that stay the same."""
    positions = {v: k for k, v in enumerate(parameters)}
    order = topological(roots, lambda v: () if v in outside and not _is_free(v) else v.inputs)
    stand_ins = {*parameters, *same}
    changing = set(stand_ins)
    for v in order:
        if not changing.isdisjoint(v.inputs):
            changing.add(v)
    # Moving and repeating what stays the same costs nothing where it is used.
    inside = {v for v in order if v in changing or _is_free(v)} - stand_ins
    needed = set(roots)
    for v in reversed(order):
        if v in needed and v in inside:
            needed.update(v.inputs)
    nodes: dict[Value, Node] = {}
    constants: dict[Value, int] = {}
    for v in order:
        if v not in needed:
            continue
        if v in inside:
            nodes[v] = node(v.op, tuple(nodes[i] for i in v.inputs), v.attr, v.dtype, v.shape)
            continue
        position = positions.get(v)
        if position is None:
            source = same.get(v, v)
            position = constants.setdefault(source, len(parameters) + len(constants))
        nodes[v] = node(ops.PARAMETER, (), position, v.dtype, v.shape)
    return tuple(nodes[v] for v in roots), list(constants)


def _is_free(v: Value) -> bool:
    constant = v.op in (ops.CONST, ops.IOTA, ops.SIZE)
    return v.memory is None and (constant or v.op.is_movement)


__all__ = ["scan"]
