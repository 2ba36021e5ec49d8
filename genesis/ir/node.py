"""`Node`: the one expression class of the compiler.

Tensor graphs, index arithmetic and the scalar bodies of kernels are all immutable nodes: an
operation, inputs, an attribute, a dtype and a shape. Nodes are hash-consed: equal expressions are
one object, so common subexpressions merge on construction, comparison is ``is``, and a dictionary
keyed by nodes is a memo table. One rewrite engine (`genesis.ir.rewrite`) serves all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar, Union
from weakref import WeakValueDictionary

from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, bool_, index
from genesis.ir.ops import Op
from genesis.ir.size import Dim

Shape = tuple[Dim, ...]
Operand = Union["Node", int, float]


@dataclass(frozen=True)
class Leaf:
    """The attribute of a BUFFER node: which slot of the program, and how it lies in memory.

    Strides and offset count elements. The same slot with another layout is another leaf. In a loop,
    `steady` says that all repetitions read the same; what is `constant` hardly ever changes from
    one run of the program to the next, as weights that a function finds outside.
    """

    slot: int
    strides: tuple[Dim, ...]
    offset: Dim = 0
    steady: bool = False
    constant: bool = False


@dataclass(frozen=True)
class Recurrence:
    """The attribute of a SCAN node: what is repeated, and how often.

    `body` gives the next carries, then one element of every y. Its leaves are PARAMETERs, numbered
    like the inputs of the SCAN: `carries` of them, then `xs` that are read one element of their
    first axis at a time (the last one first if `reverse`), then what stays the same. There is at
    least one repetition.
    """

    body: tuple[Node, ...]
    carries: int
    xs: int
    length: Dim
    reverse: bool = False

    def result(self, k: int) -> Form:
        """Dtype and shape of result k: a carry as it is, a y for every repetition."""
        n = self.body[k]
        return n.dtype, n.shape if k < self.carries else (self.length, *n.shape)


#: What an array is: its dtype and its shape.
Form = tuple[DType, Shape]


#: What the names of collectives between ranks begin with, and of no other call.
COLLECTIVE = "collectives."


@dataclass(frozen=True)
class LibraryCall:
    """The attribute of a CALL node: an operation that is called, not generated.

    `operands` and `results` say what it reads and gives, row-major in memory; `options` are what
    else decides the result. The function `name` of `genesis.ir.numpy_library` defines it.
    """

    name: str
    options: tuple[Any, ...]
    operands: tuple[Form, ...]
    results: tuple[Form, ...]

    @property
    def is_collective(self) -> bool:
        """Whether ranks of a mesh take part in it together."""
        return self.name.startswith(COLLECTIVE)

    def result(self, k: int) -> Form:
        """Dtype and shape of result k."""
        return self.results[k]


@dataclass(frozen=True)
class Prefix:
    """The attribute of a PREFIX node: how elements along `axis` are combined, one after another.

    The inputs, all of the node's shape, are one *state* per element. `merge` combines two states:
    it is written with PARAMETERs of shape (), the state on the left and then that on the right, and
    must be associative; `identity`, merged from the left, changes nothing. The node is part `item`
    of the states: combined from the first element on, or from the last one back if `reverse`.
    """

    merge: tuple[Node, ...]
    identity: tuple[Node, ...]
    axis: int
    reverse: bool = False
    item: int = 0


class Node:
    """An immutable expression. Make one with `node` (or the helpers below), never directly."""

    __slots__ = ("op", "inputs", "attr", "dtype", "shape", "leaves", "__weakref__")

    op: Op
    inputs: tuple[Node, ...]
    attr: Any
    dtype: DType
    shape: Shape
    leaves: frozenset[Node] | None  # see `mentions`

    def __repr__(self) -> str:
        return show(self)

    @property
    def size(self) -> Dim:
        """The number of elements."""
        total: Dim = 1
        for extent in self.shape:
            total = total * extent
        return total

    # Arithmetic, so that index expressions and kernels read like formulas. Python ints and floats
    # become constants of the other operand's type. There is no ``==``: use `equal`.
    def __add__(self, other: Operand) -> Node:
        return _arithmetic(ops.ADD, self, other)

    def __radd__(self, other: Operand) -> Node:
        return _arithmetic(ops.ADD, other, self)

    def __sub__(self, other: Operand) -> Node:
        return _arithmetic(ops.SUB, self, other)

    def __rsub__(self, other: Operand) -> Node:
        return _arithmetic(ops.SUB, other, self)

    def __mul__(self, other: Operand) -> Node:
        return _arithmetic(ops.MUL, self, other)

    def __rmul__(self, other: Operand) -> Node:
        return _arithmetic(ops.MUL, other, self)

    def __truediv__(self, other: Operand) -> Node:
        return _arithmetic(ops.DIV, self, other)

    def __floordiv__(self, other: Operand) -> Node:
        return _arithmetic(ops.FLOORDIV, self, other)

    def __mod__(self, other: Operand) -> Node:
        return _arithmetic(ops.MOD, self, other)

    def __neg__(self) -> Node:
        return elementwise(ops.NEG, self)

    def __lt__(self, other: Operand) -> Node:
        return _arithmetic(ops.LT, self, other)

    def __le__(self, other: Operand) -> Node:
        return _arithmetic(ops.LE, self, other)

    def __gt__(self, other: Operand) -> Node:
        return _arithmetic(ops.LT, other, self)

    def __ge__(self, other: Operand) -> Node:
        return _arithmetic(ops.LE, other, self)

    def __and__(self, other: Node) -> Node:
        return both(self, other) if self.dtype is bool_ else _arithmetic(ops.AND, self, other)

    def __or__(self, other: Node) -> Node:
        return _arithmetic(ops.OR, self, other)

    def equal(self, other: Operand) -> Node:
        """The comparison ``self == other`` as a node."""
        return _arithmetic(ops.EQ, self, other)

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """The same operation on other inputs."""
        if inputs == self.inputs:
            return self
        return node(self.op, inputs, self.attr, self.dtype, self.shape)


_interned: WeakValueDictionary[Hashable, Node] = WeakValueDictionary()


def node(
    op: Op,
    inputs: tuple[Node, ...] = (),
    attr: Hashable = None,
    dtype: DType = index,
    shape: Shape = (),
) -> Node:
    """The node with these fields: the existing one if there is one."""
    key = (op, inputs, attr, dtype, shape)
    if op is ops.CONST:
        # 0.0 == -0.0 and nan != nan: constants are told apart by how they print.
        key = (op, inputs, repr(attr), dtype, shape)
    found = _interned.get(key)
    if found is None:
        found = Node()
        found.leaves = None
        found.op, found.inputs, found.attr, found.dtype, found.shape = (
            op,
            inputs,
            attr,
            dtype,
            shape,
        )
        _interned[key] = found
    return found


def const(value: Scalar, dtype: DType) -> Node:
    """A constant of shape ()."""
    if dtype is index and type(value) is int:
        return _integer(value)
    return node(ops.CONST, (), dtype.cast(value), dtype)


@lru_cache(maxsize=1 << 12)
def _integer(value: int) -> Node:
    """Index arithmetic makes the same few constants all the time."""
    return node(ops.CONST, (), index.cast(value), index)


TRUE = const(True, bool_)
FALSE = const(False, bool_)


def is_const(n: Node, value: Scalar | None = None) -> bool:
    """Whether `n` is a constant (equal to `value`, if given)."""
    return n.op is ops.CONST and (value is None or n.attr == value)


def elementwise(op: Op, *inputs: Node, dtype: DType | None = None) -> Node:
    """A scalar operation; inputs have one shape, or () which stands for every shape."""
    shape: Shape = ()
    for i in inputs:
        if i.shape:
            shape = i.shape
            break
    if dtype is None:
        if op.group == "compare":
            dtype = bool_
        elif op is ops.WHERE:
            dtype = inputs[1].dtype
        else:
            dtype = inputs[0].dtype
    return node(op, inputs, None, dtype, shape)


_FOLD: dict[Op, Callable[[Any, Any], Any]] = {
    ops.ADD: operator.add, ops.SUB: operator.sub, ops.MUL: operator.mul,
    ops.LT: operator.lt, ops.LE: operator.le, ops.EQ: operator.eq,
}  # fmt: skip


def _arithmetic(op: Op, a: Operand, b: Operand) -> Node:
    """`a op b`, folding what is plain on sight: constants, ``x + 0``, ``x * 1``, ``x // 1``."""
    like = a if isinstance(a, Node) else b
    assert isinstance(like, Node)
    x = a if isinstance(a, Node) else const(a, like.dtype)
    y = b if isinstance(b, Node) else const(b, like.dtype)
    if like.dtype is index:
        if x.op is ops.CONST and y.op is ops.CONST:
            if op in _FOLD:
                return const(_FOLD[op](x.attr, y.attr), bool_ if op.group == "compare" else index)
            if op in (ops.FLOORDIV, ops.MOD) and y.attr:
                return const(x.attr // y.attr if op is ops.FLOORDIV else x.attr % y.attr, index)
        if op is ops.ADD and is_const(x, 0):
            return y
        if op in (ops.ADD, ops.SUB) and is_const(y, 0):
            return x
        if op is ops.MUL and (is_const(x, 0) or is_const(y, 0)):
            return const(0, index)
        if op is ops.MUL and is_const(x, 1):
            return y
        if op in (ops.MUL, ops.FLOORDIV) and is_const(y, 1):
            return x
        if op is ops.MOD and is_const(y, 1):
            return const(0, index)
    return elementwise(op, x, y)


def both(a: Node, b: Node) -> Node:
    """Logical and of two conditions, dropping constants."""
    if a is TRUE or b is FALSE:
        return b
    if b is TRUE or a is FALSE or a is b:
        return a
    return elementwise(ops.AND, a, b)


class HasInputs(Hashable, Protocol):
    """A vertex of a graph: a node, or a value of the array layer."""

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What it is computed from."""
        ...


Vertex = TypeVar("Vertex", bound=HasInputs)


def topological(
    roots: Iterable[Vertex], inputs: Callable[[Vertex], Iterable[Vertex]] | None = None
) -> list[Vertex]:
    """Every node reachable from `roots`, inputs before users. Iterative: depth is no limit."""
    order: list[Vertex] = []
    seen: set[Vertex] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(root.inputs if inputs is None else inputs(root)))]
        while stack:
            n, remaining = stack[-1]
            for i in remaining:
                if i not in seen:
                    seen.add(i)
                    below = i.inputs if inputs is None else inputs(i)
                    if below:
                        stack.append((i, iter(below)))
                        break
                    order.append(i)
            else:
                order.append(n)
                stack.pop()
    return order


def mentions(n: Node) -> frozenset[Node]:
    """The leaves an expression is written with: axes, locals, parameters, sizes. Cached."""
    found = n.leaves
    if found is None:
        for m in topological([n], lambda x: () if x.leaves is not None else x.inputs):
            if m.leaves is None:
                m.leaves = _leaves(m)
        found = n.leaves
        assert found is not None
    return found


def _leaves(n: Node) -> frozenset[Node]:
    if not n.inputs:
        return frozenset((n,)) if n.op.group == "kernel" else _NOTHING
    total = n.inputs[0].leaves or _NOTHING
    for i in n.inputs[1:]:
        other = i.leaves or _NOTHING
        if not other <= total:
            total |= other
    return total


_NOTHING: frozenset[Node] = frozenset()


_INFIX = {
    ops.ADD: "+", ops.SUB: "-", ops.MUL: "*", ops.DIV: "/", ops.FLOORDIV: "//", ops.MOD: "%",
    ops.AND: "&", ops.OR: "|", ops.XOR: "^", ops.SHL: "<<", ops.SHR: ">>",
    ops.LT: "<", ops.LE: "<=", ops.EQ: "==", ops.NE: "!=",
}  # fmt: skip


def show(n: Node, limit: int = 400) -> str:
    """A readable form of an expression, cut off after about `limit` characters."""
    text = "".join(_pieces(n, limit))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _pieces(n: Node, limit: int) -> Iterator[str]:
    # An explicit stack, because graphs may be deeper than Python's recursion limit.
    length = 0
    stack: list[Node | str] = [n]
    while stack and length <= limit:
        item = stack.pop()
        parts: list[Node | str] = [item] if isinstance(item, str) else _unfold(item)
        if len(parts) == 1 and isinstance(parts[0], str):
            length += len(parts[0])
            yield parts[0]
        else:
            stack.extend(reversed(parts))


def _unfold(n: Node) -> list[Node | str]:
    if n.op is ops.CONST:
        return [repr(n.attr)]
    if n.op is ops.LOAD:
        rank = len(n.attr.shape)
        parts: list[Node | str] = [f"{n.attr.name}["]
        parts += _commas(n.inputs[:rank])
        parts.append("]")
        if n.inputs[rank] is not TRUE:
            parts += [" if ", n.inputs[rank], " else ", n.inputs[rank + 1]]
            return ["(", *parts, ")"]
        return ["".join(p) if isinstance(p, str) else p for p in parts]
    if n.op in (ops.AXIS, ops.LOCAL, ops.SYMBOL, ops.PARAM):
        return [n.attr.name]
    if n.op is ops.SIZE:
        return [repr(n.attr)]
    if n.op in _INFIX:
        return ["(", n.inputs[0], f" {_INFIX[n.op]} ", n.inputs[1], ")"]
    if n.op in (ops.CAST, ops.BITCAST):
        prefix = "" if n.op is ops.CAST else "bits."
        return [f"{prefix}{n.dtype.name}(", *_commas(n.inputs), ")"]
    extra = "" if n.attr is None else f"; {n.attr}"
    return [f"{n.op.name}(", *_commas(n.inputs), f"{extra})"]


def _commas(inputs: tuple[Node, ...]) -> list[Node | str]:
    parts: list[Node | str] = []
    for k, i in enumerate(inputs):
        parts += [", ", i] if k else [i]
    return parts
