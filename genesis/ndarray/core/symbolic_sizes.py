"""One program for graphs that differ in sizes only.

The last short batch, sequences of thirty lengths, as many rows as a mask selects: a program would
have to be compiled for each. So graphs are told by what is left of them without their numbers. The
first of a kind is compiled as it is. When another comes, it is compiled with symbols in the places
of the sizes that have changed, for all that come after; where those show that the symbols were too
few, it is done again. A graph is only run by such a program if it is, number for number, what the
program's graph is for the values of its symbols. What other lines of the user's compute is another
kind: layers of two widths are not a layer of any width. A size that comes again and again gets a
program of its own, after all.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement
from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import DType, index
from genesis.ir.node import Leaf, LibraryCall, Node, Recurrence, node, topological
from genesis.ir.size import UNBOUNDED, Dim, Size, evaluate

#: Kinds of graphs, and descriptions of nodes, that are remembered.
MAX_KINDS = 1 << 9
MAX_DESCRIPTIONS = 1 << 16
#: How often graphs of a kind are compiled with other symbols.
MAX_FORMS = 4
#: So many runs, more than half of those of its kind, get a size a program of its own.
HOT = 64
#: The greatest size that is expected where several are symbolic: the product of two, times a width,
#: is a number of 64 bits.
MANY = 1 << 25

_LEAST = 2  # 0 and 1 mean other things to broadcasting, and so are never symbols
_HOLE = object()
_STEPS = (ops.SLICE, ops.PAD, ops.UPDATE)  # their attributes say where elements are

_kinds: dict[Any, _Kind] = {}
_descriptions: dict[Any, int] = {}

Column = tuple[int, ...]  # a number in each of several graphs


@dataclass
class _Kind:
    """Graphs that differ in numbers only."""

    seen: list[tuple[int, ...]] = field(default_factory=list)
    form: _Form | None = None
    forms: int = 0
    hopeless: bool = False
    own: set[tuple[int, ...]] = field(default_factory=set)  # have programs of their own
    runs: int = 0


@dataclass(frozen=True)
class _Form:
    """A graph with symbols in it."""

    roots: tuple[Node, ...]
    nodes: tuple[Node, ...]  # in the order of every graph's
    numbers: tuple[Dim, ...]
    places: dict[str, int]  # which of the numbers a symbol is
    most: int  # that a symbol may be

    def sizes(self, vector: tuple[int, ...]) -> dict[str, int] | None:
        """The values of the symbols that make it the graph with these numbers; None: none do."""
        sizes = {name: vector[k] for name, k in self.places.items()}
        if max(sizes.values()) > self.most:
            return None
        numbers = zip(self.numbers, vector, strict=True)
        return sizes if all(evaluate(n, sizes) == m for n, m in numbers) else None


class Use:
    """The runs of a graph, as one of its kind."""

    __slots__ = ("_before", "_kind", "_runs", "_vector")

    def __init__(self, kind: _Kind, vector: tuple[int, ...]) -> None:
        self._kind, self._vector = kind, vector
        self._runs, self._before = 0, kind.runs

    def again(self, general: bool) -> bool:
        """It runs again, by a program for many sizes; whether it is to have one of its own now."""
        kind = self._kind
        kind.runs += 1
        if not general:
            return False
        self._runs += 1
        if self._runs < HOT:
            return False
        often = 2 * self._runs > kind.runs - self._before
        self._runs, self._before = 0, kind.runs
        if often:
            kind.own.add(self._vector)
        return often


@dataclass(frozen=True)
class GeneralForm:
    """A graph for many sizes, and the sizes that make it the one that was asked for.

    `meaning` says which node of that one a node of this stands for.
    """

    roots: tuple[Node, ...]
    sizes: dict[str, int]
    meaning: dict[Node, Node]


def general_form(
    roots: tuple[Node, ...], donated: frozenset[int], device: str, where: Hashable
) -> tuple[Use, GeneralForm | None]:
    """The graph for many sizes that this one is a case of; None if there is none (yet).

    `where` is the place in the user's code.
    """
    if len(_descriptions) > MAX_DESCRIPTIONS:
        forget()
    order = topological(roots)
    numbers = _Numbers()
    key = _described(order, numbers), tuple(map(order.index, roots)), donated, device, where
    kind = _kinds.pop(key, None) or _Kind()
    _kinds[key] = kind  # those met longest ago come first
    if len(_kinds) > MAX_KINDS:
        del _kinds[next(iter(_kinds))]
    vector = tuple(numbers.values)
    sizes = None if kind.form is None else kind.form.sizes(vector)
    if sizes is None and _is_new(kind, vector, numbers):
        kind.seen.append(vector)
        if len(kind.seen) > 1:
            kind.form = _with_symbols(kind.seen, numbers, order, roots)
            kind.forms += 1
            if kind.form is None or kind.forms > MAX_FORMS:
                kind.hopeless, kind.form = True, None
            else:
                sizes = kind.form.sizes(vector)
    use = Use(kind, vector)
    if kind.form is None or sizes is None or vector in kind.own:
        return use, None
    meaning = dict(zip(kind.form.nodes, order, strict=True))
    return use, GeneralForm(kind.form.roots, sizes, meaning)


def _is_new(kind: _Kind, vector: tuple[int, ...], numbers: _Numbers) -> bool:
    """Whether a graph has other sizes than those of its kind, not only other constants."""
    if kind.hopeless or not numbers.extents:
        return False
    return all(any(vector[k] != other[k] for k in numbers.extents) for other in kind.seen)


def refuse(roots: tuple[Node, ...]) -> None:
    """There is no program for all sizes of these graphs."""
    for kind in _kinds.values():
        if kind.form is not None and kind.form.roots == roots:
            kind.hopeless, kind.form = True, None


def forget() -> None:
    """Begin anew with every kind of graph."""
    _kinds.clear()
    _descriptions.clear()


# ---- numbers in a graph


class _Numbers:
    """The numbers that were taken out of a graph, and which of them were extents of a shape."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.extents: set[int] = set()

    def shape(self, x: Any) -> Any:
        """A shape without its numbers."""
        first = len(self.values)
        found = self.without(x)
        self.extents.update(range(first, len(self.values)))
        return found

    def without(self, x: Any) -> Any:
        """Anything without its numbers."""
        if isinstance(x, tuple):
            return tuple([self.without(y) for y in x])
        if type(x) is int and x >= _LEAST:
            self.values.append(x)
            return _HOLE
        return x


def _described(order: Sequence[Node], numbers: _Numbers) -> bytes:
    """What is left of a graph without its numbers, which are put aside."""
    places = {n: k for k, n in enumerate(order)}
    words = array("q")
    for k, n in enumerate(order):
        inputs = tuple([k - places[i] for i in n.inputs])
        about = n.op, inputs, n.dtype, numbers.shape(n.shape), _attribute(n, numbers)
        words.append(_descriptions.setdefault(about, len(_descriptions)))
    return words.tobytes()


def _attribute(n: Node, numbers: _Numbers) -> Any:
    attr = n.attr
    if isinstance(attr, Leaf):
        layout = numbers.without((attr.strides, attr.offset))
        return replace(attr, strides=(), offset=0), layout
    if n.op in _STEPS:
        return numbers.without(attr)
    if n.op is ops.CONST:
        return repr(attr) if (size := _size_in(n)) is None else numbers.without(size)
    if isinstance(attr, Recurrence):
        inside = topological(attr.body)
        body = _described(inside, numbers), tuple(map(inside.index, attr.body))
        return body, attr.carries, attr.xs, numbers.shape((attr.length,)), attr.reverse
    if isinstance(attr, LibraryCall):
        forms = [(dtype, numbers.shape(s)) for dtype, s in (*attr.operands, *attr.results)]
        return attr.name, attr.options, len(attr.operands), tuple(forms)
    return attr


def _size_in(n: Node) -> int | None:
    """The size that a constant may be."""
    value = n.attr
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= _LEAST else None


# ---- numbers as functions of symbols


def _with_symbols(
    vectors: Sequence[tuple[int, ...]],
    numbers: _Numbers,
    order: Sequence[Node],
    roots: tuple[Node, ...],
) -> _Form | None:
    """The graph that graphs with such numbers are cases of; None if there is none."""
    columns: list[Column] = list(zip(*vectors, strict=True))
    extents = dict.fromkeys(c for k, c in enumerate(columns) if k in numbers.extents and _varies(c))
    symbols: dict[Column, Size] = {}
    # What varies least comes first: others are multiples of it, not it a fraction of theirs.
    chosen: list[Column] = []
    for column in sorted(extents, key=lambda c: max(c) - min(c)):
        if _expressed(column, dict.fromkeys(chosen, _ANY)) is None:
            chosen.append(column)
    if not chosen:
        return None
    most = UNBOUNDED if len(chosen) == 1 else max(MANY, 2 * max(map(max, chosen)))
    for k, column in enumerate(chosen):
        symbols[column] = Size.symbol(f"size{k}", _LEAST, most)
    found = {c: _expressed(c, symbols) for c in dict.fromkeys(columns)}
    expressions = tuple(x for c in columns if (x := found[c]) is not None)
    if len(expressions) < len(columns):
        return None
    places = {f"size{k}": columns.index(column) for k, column in enumerate(chosen)}
    made = _rebuilt(order, iter(expressions))
    nodes = tuple(made[n] for n in order)
    return _Form(tuple(made[r] for r in roots), nodes, expressions, places, most)


_ANY = Size.symbol("any", _LEAST)


def _varies(column: Column) -> bool:
    return any(n != column[0] for n in column)


def _line(column: Column, other: Column) -> tuple[int, int] | None:
    """`a` and `b` such that one is ``a * other + b`` everywhere; None if there are none."""
    pairs = sorted(set(zip(other, column, strict=True)))
    (x, y), (last_x, last_y) = pairs[0], pairs[-1]
    if x == last_x or (last_y - y) % (last_x - x):
        return None
    slope = (last_y - y) // (last_x - x)
    ahead = y - slope * x
    fits = slope > 0 and all(slope * p + ahead == q for p, q in pairs)
    return (slope, ahead) if fits else None


def _expressed(column: Column, symbols: dict[Column, Size]) -> Dim | None:
    """A number of every graph as one expression, the simplest that there is."""
    if not _varies(column):
        return column[0]
    if column in symbols:
        return symbols[column]
    lines = [(line, s) for c, s in symbols.items() if (line := _line(column, c)) is not None]
    for (slope, ahead), symbol in lines:
        if not ahead:
            return symbol * slope
    for (one, first), (other, second) in combinations_with_replacement(symbols.items(), 2):
        line = _line(column, tuple(a * b for a, b in zip(one, other, strict=True)))
        if line is not None and not line[1]:
            return first * second * line[0]
    for (one, first), (other, second) in combinations(symbols.items(), 2):
        if column == tuple(a + b for a, b in zip(one, other, strict=True)):
            return first + second
    for (slope, ahead), symbol in lines:
        return symbol * slope + ahead
    return None


def _scalar(size: Size, dtype: DType) -> Node:
    """A size as a value."""
    found = node(ops.SIZE, (), size, index, ())
    return found if dtype is index else node(ops.CAST, (found,), None, dtype, ())


def _rebuilt(order: Sequence[Node], numbers: Iterator[Dim]) -> dict[Node, Node]:
    """The nodes of a graph with other numbers, in the order in which they were put aside."""

    def filled(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple([filled(y) for y in x])
        return next(numbers) if type(x) is int and x >= _LEAST else x

    made: dict[Node, Node] = {}
    for n in order:
        shape, attr = filled(n.shape), n.attr
        if isinstance(attr, Leaf):
            strides, offset = filled((attr.strides, attr.offset))
            attr = replace(attr, strides=strides, offset=offset)
        elif n.op in _STEPS:
            attr = filled(attr)
        elif n.op is ops.CONST and (size := _size_in(n)) is not None:
            value = filled(size)
            if isinstance(value, Size):
                made[n] = _scalar(value, n.dtype)
                continue
        elif isinstance(attr, Recurrence):
            inside = _rebuilt(topological(attr.body), numbers)
            body = tuple(inside[r] for r in attr.body)
            attr = replace(attr, body=body, length=filled(attr.length))
        elif isinstance(attr, LibraryCall):
            operands = tuple((dtype, filled(s)) for dtype, s in attr.operands)
            results = tuple((dtype, filled(s)) for dtype, s in attr.results)
            attr = replace(attr, operands=operands, results=results)
        made[n] = node(n.op, tuple(made[i] for i in n.inputs), attr, n.dtype, shape)
    return made
