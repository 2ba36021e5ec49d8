"""Programs for sizes that only data decides.

How many elements a mask selects is another number at every turn of a loop, and a program for each
would have to be compiled. So whoever computes such a number notes it here. When graphs differ in
nothing but noted numbers, and what follows from them, the third of them is compiled with symbols in
their places, for all that come after. A graph is only run by such a program if it is, number for
number, what the program's graph is for the values of its symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import DType, index
from genesis.ir.node import Leaf, Node, node, topological
from genesis.ir.size import UNBOUNDED, Dim, Size, evaluate

#: Numbers that are remembered as decided by data, and kinds of graphs.
MAX_NOTED = 1 << 12
MAX_FAMILIES = 1 << 10
#: Graphs of a kind that are compiled as they are before one is compiled for all.
STATIC = 2

_LEAST = 2  # 0 and 1 mean other things to broadcasting, and so are never symbols
_HOLE = object()

#: Numbers that data decided, the latest last.
noted: dict[int, None] = {}
_families: dict[Any, _Family] = {}


@dataclass
class _Family:
    """Graphs that differ in numbers only."""

    seen: list[tuple[int, ...]] = field(default_factory=list)
    numbers: tuple[Dim, ...] = ()  # with symbols in them
    places: dict[str, int] = field(default_factory=dict)  # where the value of a symbol is found
    nodes: tuple[Node, ...] = ()  # of the graph with symbols, in the order of every graph's
    roots: tuple[Node, ...] = ()
    hopeless: bool = False


@dataclass(frozen=True)
class GeneralForm:
    """A graph for many sizes, and the sizes that make it the one that was asked for.

    `meaning` says which node of that one a node of this stands for.
    """

    roots: tuple[Node, ...]
    sizes: dict[str, int]
    meaning: dict[Node, Node]


def note(size: int) -> None:
    """Remember a number that data decided."""
    if size >= _LEAST:
        noted.pop(size, None)
        noted[size] = None
        if len(noted) > MAX_NOTED:
            del noted[next(iter(noted))]


def general_form(
    roots: tuple[Node, ...], donated: frozenset[int], device: str
) -> GeneralForm | None:
    """The graph for many sizes that this one is a case of; None if there is none (yet)."""
    order = topological(roots)
    numbers: list[int] = []
    kind = tuple(_described(order, numbers)), donated, device, len(roots)
    family = _families.get(kind)
    if family is None:
        if not any(n in noted for n in numbers):
            return None
        if len(_families) >= MAX_FAMILIES:
            del _families[next(iter(_families))]
        family = _families[kind] = _Family()
    vector = tuple(numbers)
    if family.hopeless:
        return None
    if not family.roots:
        if len(family.seen) < STATIC:
            if vector not in family.seen:
                family.seen.append(vector)
            return None
        if not _generalise(family, vector, order, roots):
            family.hopeless = True
            return None
    sizes = {name: vector[k] for name, k in family.places.items()}
    same = all(evaluate(n, sizes) == m for n, m in zip(family.numbers, vector, strict=True))
    if not same:
        return None
    return GeneralForm(family.roots, sizes, dict(zip(family.nodes, order, strict=True)))


def refuse(roots: tuple[Node, ...]) -> None:
    """There is no program for all sizes of these graphs."""
    for family in _families.values():
        if family.roots == roots:
            family.roots, family.hopeless = (), True


# ---- numbers in a graph


def _described(order: Sequence[Node], numbers: list[int]) -> Iterator[Any]:
    """Everything about a graph but its numbers, which are put aside."""
    places = {n: k for k, n in enumerate(order)}
    for n in order:
        inputs = tuple(places[i] for i in n.inputs)
        shape = _without(n.shape, numbers)
        yield n.op, inputs, n.dtype, shape, _attribute(n, numbers)


def _attribute(n: Node, numbers: list[int]) -> Any:
    if isinstance(n.attr, Leaf):
        layout = _without((n.attr.strides, n.attr.offset), numbers)
        return replace(n.attr, strides=(), offset=0), layout
    if n.op in (ops.SLICE, ops.PAD):
        return _without(n.attr, numbers)
    if n.op is ops.CONST:
        return repr(n.attr) if (size := _size_in(n)) is None else _without(size, numbers)
    return n.attr


def _size_in(n: Node) -> int | None:
    """The size that a constant may be."""
    value = n.attr
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= _LEAST else None


def _without(x: Any, numbers: list[int]) -> Any:
    if isinstance(x, tuple):
        return tuple(_without(y, numbers) for y in x)
    if type(x) is int and x >= _LEAST:
        numbers.append(x)
        return _HOLE
    return x


# ---- numbers as functions of symbols


def _generalise(
    family: _Family, vector: tuple[int, ...], order: Sequence[Node], roots: tuple[Node, ...]
) -> bool:
    """Whether a family has a graph with symbols, which it is given."""
    columns = list(zip(*family.seen, vector, strict=True))
    symbols: dict[tuple[int, ...], Size] = {}
    for k, column in enumerate(columns):
        if _varies(column) and column not in symbols and all(n in noted for n in column):
            if any(_line(column, known) is not None for known in symbols):
                continue  # it is another one times a number, or plus one
            name = f"data{len(symbols)}"
            symbols[column] = Size.symbol(name, _LEAST, UNBOUNDED)
            family.places[name] = k
    found = [_expressed(column, symbols) for column in columns]
    numbers = tuple(x for x in found if x is not None)
    if not symbols or len(numbers) < len(found):
        return False
    family.numbers = numbers
    made = _rebuilt(order, iter(numbers))
    family.nodes = tuple(made.values())
    family.roots = tuple(made[r] for r in roots)
    return True


def _varies(column: tuple[int, ...]) -> bool:
    return any(n != column[0] for n in column)


def _line(column: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, int] | None:
    """`a` and `b` such that one is ``a * other + b`` everywhere; None if there are none."""
    pairs = sorted(set(zip(other, column, strict=True)))
    (x, y), (last_x, last_y) = pairs[0], pairs[-1]
    if x == last_x or (last_y - y) % (last_x - x):
        return None
    slope = (last_y - y) // (last_x - x)
    ahead = y - slope * x
    fits = slope > 0 and all(slope * p + ahead == q for p, q in pairs)
    return (slope, ahead) if fits else None


def _expressed(column: tuple[int, ...], symbols: dict[tuple[int, ...], Size]) -> Dim | None:
    """A number of every graph as one expression."""
    if not _varies(column):
        return column[0]
    for known, symbol in symbols.items():
        line = _line(column, known)
        if line is not None:
            return symbol * line[0] + line[1]
    for one, first in symbols.items():
        for other, second in symbols.items():
            products = tuple(a * b for a, b in zip(one, other, strict=True))
            line = _line(column, products)
            if line is not None and not line[1]:
                return first * second * line[0]
    return None


def _scalar(size: Size, dtype: DType) -> Node:
    """A size as a value."""
    found = node(ops.SIZE, (), size, index, ())
    return found if dtype is index else node(ops.CAST, (found,), None, dtype, ())


def _rebuilt(order: Sequence[Node], numbers: Iterator[Dim]) -> dict[Node, Node]:
    """The nodes of a graph with other numbers, in the order in which they were put aside."""

    def filled(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(filled(y) for y in x)
        return next(numbers) if type(x) is int and x >= _LEAST else x

    made: dict[Node, Node] = {}
    for n in order:
        shape, attr = filled(n.shape), n.attr
        if isinstance(attr, Leaf):
            strides, offset = filled((attr.strides, attr.offset))
            attr = replace(attr, strides=strides, offset=offset)
        elif n.op in (ops.SLICE, ops.PAD):
            attr = filled(attr)
        elif n.op is ops.CONST and (size := _size_in(n)) is not None:
            value = filled(size)
            if isinstance(value, Size):
                made[n] = _scalar(value, n.dtype)
                continue
        made[n] = node(n.op, tuple(made[i] for i in n.inputs), attr, n.dtype, shape)
    return made
