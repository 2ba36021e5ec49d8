"""What a program saves for the one that computes its gradients: a minimum cut.

Whatever gradients need that is known before they are given is saved, or computed again from what
is. Both have a price, in the units of `genesis.compiler.fuse.cost`. What is saved is loaded by the
second program, and stored by the first unless it does so anyway. What is computed again costs its
arithmetic, and a store and a load where an operation that does not fuse reads it. Only elementwise
operations and movement are computed again; loops, contractions and reductions never are. The
cheapest choice is a minimum cut through the graph of values; among equals the one that computes
least again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from genesis.ir import ops
from genesis.ir.node import topological
from genesis.ir.size import Size, evaluate, product
from genesis.ndarray.core.value import Several, Value

NEVER = math.inf  #: a price that nobody pays
#: What else the first program may compute for the second: reductions that never round, so that
#: gradients have the same bits as where nothing is saved.
_EXACT = (ops.ITEM, ops.AMAX, ops.AMIN)


class Price(NamedTuple):
    """What it costs to save a value, and to compute it again; and whether it has to be there."""

    save: float
    again: float
    is_asked: bool


def cut(gradients: Sequence[Value], results: Sequence[Value]) -> list[Value]:
    """What a program that computes `results` saves for one that computes `gradients`."""
    prices = priced(gradients, results)
    # A value is two vertices: is it left to the first program, and is it there for the second?
    numbers = {v: 2 * n for n, v in enumerate(prices)}
    source, sink = 2 * len(prices), 2 * len(prices) + 1
    network = FlowNetwork(sink + 1)
    for v, (save, again, is_asked) in prices.items():
        n = numbers[v]
        network.add(n, n + 1, save)
        network.add(source, n, again)
        for i in v.inputs:
            network.add(numbers[i] + 1, n, NEVER)
        if is_asked:
            network.add(n + 1, sink, NEVER)
    before = network.cut(source, sink)
    return [v for v, n in numbers.items() if n in before and n + 1 not in before and not _there(v)]


def priced(gradients: Sequence[Value], results: Sequence[Value]) -> dict[Value, Price]:
    """What is known before gradients are given, inputs first, with prices."""
    from genesis.compiler.fuse.cost import BYTES_PRICE, LOAD_PRICE  # loads the compiler

    forward = topological(results)
    inside = set(forward)
    order = topological(gradients)
    known = _known(order, inside)
    later = [v for v in order if v not in known]
    asked = {*chain.from_iterable(v.inputs for v in later), *gradients}
    written = _written(forward, results)
    in_memory = _in_memory(later)
    often = _evaluations(order)
    prices: dict[Value, Price] = {}
    for v in order:
        if v in known:
            size = _elements(v)
            floats = size * v.dtype.itemsize / 4
            save = floats * (LOAD_PRICE if _there(v) or v in written else BYTES_PRICE)
            again = v.op.cost * often[v] + (BYTES_PRICE * floats if v in in_memory else 0)
            is_given = _there(v) or (v in inside and not _fuses(v))
            prices[v] = Price(
                NEVER if type(v) is Several else save, NEVER if is_given else again, v in asked
            )
    return prices


def _there(v: Value) -> bool:
    """Whether a value is an input, or no more than a number."""
    return v.memory is not None or v.op.group == "leaf"


def _fuses(v: Value) -> bool:
    return v.op.is_movement or v.op.is_elementwise


def _known(order: Iterable[Value], forward: set[Value]) -> set[Value]:
    """What is known before gradients are given, with no more than the first program reads."""
    known: set[Value] = set()
    for v in order:
        new = v.memory is None and (_fuses(v) or v.op in _EXACT or v.op.group == "leaf")
        if v in forward or (new and known.issuperset(v.inputs)):
            known.add(v)
    return known


def _written(forward: Iterable[Value], results: Iterable[Value]) -> set[Value]:
    """What the first program stores anyway.

    That is what operations read that do not fuse, and what they give; the latter with what is
    fused to it, as long as nothing else reads it.
    """
    readers: dict[Value, list[Value]] = {}
    for v in forward:
        for i in v.inputs:
            readers.setdefault(i, []).append(v)
    written = {*results, *_in_memory(forward)}
    for v in forward:
        if not _fuses(v) and not _there(v):
            while v not in written and (after := _only(readers.get(v, []))) is not None:
                v = after
            written.add(v)
    return written


def _only(readers: Sequence[Value]) -> Value | None:
    """The one operation that reads a value, if it fuses."""
    return readers[0] if len(readers) == 1 and _fuses(readers[0]) else None


def _in_memory(values: Iterable[Value]) -> set[Value]:
    """What operations that do not fuse read, reductions aside: they compute it on the way."""
    found: set[Value] = set()
    for v in values:
        if not _fuses(v) and v.op.group != "reduce":
            for i in v.inputs:
                while i.op.is_movement:
                    i = i.inputs[0]
                found.add(i)
    return found


def _evaluations(order: Sequence[Value]) -> dict[Value, int]:
    """How often each operation is evaluated where it is fused: once for every element that is read.

    What is expanded is evaluated with its reader, a reduction once for every element it reads.
    """
    often = {v: _elements(v) for v in order}
    for v in reversed(order):
        if v.op.group == "reduce":
            often[v] = max(often[v], *(_elements(i) for i in v.inputs))
        elif _fuses(v):
            for i in v.inputs:
                often[i] = max(often[i], often[v])
    return often


def _elements(v: Value) -> int:
    from genesis.compiler.fuse.cost import TYPICAL

    size = product(v.shape)
    if not isinstance(size, Size):
        return size
    return evaluate(size, {s.name: TYPICAL for s in size.symbols})


class FlowNetwork:
    """A directed graph with capacities.

    >>> network = FlowNetwork(4)
    >>> for edge in (0, 1, 9), (1, 2, 2), (0, 2, 1), (2, 3, 9):
    ...     network.add(*edge)
    >>> network.cut(0, 3)
    {0, 1}
    """

    def __init__(self, vertices: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(vertices)]  # each with its reverse
        self._ends: list[int] = []
        self._left: list[float] = []

    def add(self, start: int, end: int, capacity: float) -> None:
        """Another edge."""
        for a, b, c in ((start, end, capacity), (end, start, 0)):
            self._edges[a].append(len(self._ends))
            self._ends.append(b)
            self._left.append(c)

    def cut(self, source: int, sink: int) -> set[int]:
        """The vertices on the source's side of the minimum cut nearest to the sink (Dinic)."""
        while sink in (levels := self._levels(source)):
            tried = [0] * len(self._edges)
            while path := self._path(source, sink, levels, tried):
                flow = min(self._left[e] for e in path)
                for e in path:
                    self._left[e] -= flow
                    self._left[e ^ 1] += flow
        return set(range(len(self._edges))) - self._reaching(sink)

    def _reaching(self, sink: int) -> set[int]:
        """The vertices from which the sink can still be reached."""
        found = {sink}
        for v in (queue := [sink]):
            for e in self._edges[v]:
                if self._left[e ^ 1] and self._ends[e] not in found:
                    found.add(self._ends[e])
                    queue.append(self._ends[e])
        return found

    def _levels(self, source: int) -> dict[int, int]:
        """How far from the source the vertices are that can still be reached."""
        levels = {source: 0}
        for v in (queue := [source]):
            for e in self._edges[v]:
                if self._left[e] and self._ends[e] not in levels:
                    levels[self._ends[e]] = levels[v] + 1
                    queue.append(self._ends[e])
        return levels

    def _path(
        self, source: int, sink: int, levels: Mapping[int, int], tried: list[int]
    ) -> list[int]:
        """The edges of a shortest way that can take more; `tried`: how many of each vertex not."""
        path: list[int] = []
        v = source
        while v != sink:
            e = self._next(v, levels, tried)
            if e is not None:
                path.append(e)
                v = self._ends[e]
            elif path:
                v = self._ends[path.pop() ^ 1]
                tried[v] += 1
            else:
                break
        return path

    def _next(self, v: int, levels: Mapping[int, int], tried: list[int]) -> int | None:
        edges = self._edges[v]
        for k in range(tried[v], len(edges)):
            e = edges[k]
            if self._left[e] and levels.get(self._ends[e]) == levels[v] + 1:
                tried[v] = k
                return e
        tried[v] = len(edges)
        return None
