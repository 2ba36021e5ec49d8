"""Stretches of walks backward that came before: their gradients are built once, and then copied.

A loop goes back through the same operations in every turn. Creators whose rules are known by what
made them (`Creator.rule`) are gathered as a walk would visit them; what they are and how they are
wired is the key under which the graph of all of their gradients is found (`subgraph_copies`). It
was built by the walk itself, on stand-ins, so sums are added in its order and bits are the same. A
creator that is not known, or whose gradients somebody wants to see, ends a stretch; the walk goes
through it as always.
"""

from __future__ import annotations

import heapq
from typing import Any, Literal, NamedTuple

from genesis.autograd import anomaly
from genesis.autograd.tape import FREED, Creator, Edge, Walk
from genesis.functional.function import Context
from genesis.ir.node import topological
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.storage import Storage
from genesis.ndarray.core.subgraph_copies import NotASubgraph, Subgraph
from genesis.ndarray.core.value import MAX_DEPTH, Value, apart, thread
from genesis.tensor.tensor import Tensor

#: Creators of a stretch, at most, and stretches that are known.
LONGEST = 512
MOST = 128

#: None: it came once; False: it is not to be copied.
_known: dict[tuple[Any, ...], WalkStretch | Literal[False] | None] = {}

SAVED, GRADIENT, TOTAL = range(3)


class WalkPlace(NamedTuple):
    """A value of a walk: saved by a creator, the gradient of a result of one, a leaf's total."""

    kind: int
    number: int  # of the creator or leaf, in the order in which they are met
    slot: int

    def value(self, walk: Walk, met: list[Any]) -> Value:
        """What is there."""
        kind, number, slot = self
        x = met[number]
        if kind == SAVED:
            saved: Value = x.ctx._saved[slot]
            return saved
        gradient = walk.gradients[x][slot] if kind == GRADIENT else walk.leaves[id(x)][1]
        return gradient.value  # type: ignore[no-any-return]


class WalkStretch(NamedTuple):
    """The gradients that leave a stretch, made of what is saved and of those that enter it."""

    graph: Subgraph
    inputs: list[WalkPlace]
    visited: list[int]  # creators
    results: list[WalkPlace]


def advance(walk: Walk) -> int:
    """Go through the next stretch; gives how many creators are visited before it is tried again."""
    if thread.recorder is not None or thread.eager or anomaly.enabled:
        return LONGEST
    gradients = walk.gradients
    ahead = walk.pending[:]
    met: list[Any] = []  # creators and leaves
    numbers: dict[int, int] = {}
    order: list[int] = []
    key: list[Any] = []
    device = None
    while ahead and len(order) < LONGEST:
        creator = ahead[0][1]
        rule, form = creator.rule, creator.forms[0]
        if rule is None or creator.hooks or creator.retained or creator.ctx._saved is FREED:  # type: ignore[union-attr]
            break
        if device is None:
            device = form[2]
        elif form[2] is not device:
            break
        heapq.heappop(ahead)
        number = numbers.get(id(creator))
        if number is None:
            number = numbers[id(creator)] = len(met)
            met.append(creator)
        order.append(number)
        entered = gradients.get(creator)
        key += rule, number, None if entered is None else _given(entered)
        for edge in creator.edges:
            if edge is not None:
                source = edge.source
                number = numbers.get(id(source))
                if number is None:
                    number = numbers[id(source)] = len(met)
                    met.append(source)
                    if type(source) is Creator and source not in gradients:
                        heapq.heappush(ahead, (-source.number, source))
                key += number, edge.slot
    if len(order) < 2:
        return 1
    inside = set(order)
    for number, x in enumerate(met):
        if type(x) is not Creator:
            key.append(id(x) in walk.leaves)
        elif number not in inside:
            entered = gradients.get(x)
            key += len(x.forms), None if entered is None else _given(entered)
    form = tuple(key)
    found = _known.get(form)
    if found is None:
        again = form in _known
        if len(_known) >= MOST:
            _known.clear()
        try:
            found = _known[form] = _built(walk, met, numbers, order) if again else None
        except Exception:  # whatever it is, the walk has it as well
            found = _known[form] = False
    if not found:
        return len(order)
    made = found.graph.copy([place.value(walk, met) for place in found.inputs], device)  # type: ignore[arg-type]
    for number in found.visited:
        creator = met[number]
        gradients.pop(creator, None)
        walk.free(creator.ctx, ())
    for (kind, number, slot), place in zip(found.results, found.graph.places, strict=True):
        x, gradient = met[number], NDArray(Storage(made[place]))
        if kind == TOTAL:
            walk.leaves[id(x)] = (x, gradient)
        else:
            gradients.setdefault(x, [None] * len(x.forms))[slot] = gradient
    walk.pending = [(-creator.number, creator) for creator in gradients]
    heapq.heapify(walk.pending)
    return 0


def _given(gradients: list[Any]) -> tuple[bool, ...]:
    return tuple([g is not None for g in gradients])


def _built(walk: Walk, met: list[Any], numbers: dict[int, int], order: list[int]) -> WalkStretch:
    """Walk through a stretch on stand-ins."""
    inputs: dict[Value, WalkPlace] = {}

    def stand_in(place: WalkPlace) -> Value:
        value = place.value(walk, met)
        made = primitive.parameter(value.dtype, value.shape, value.device)
        inputs[made] = place
        return made

    with apart():
        shadow = Walk(graph=False, retain=True)
        shadows: list[Any] = []
        for number, x in enumerate(met):
            if type(x) is not Creator:
                shadows.append(Tensor(wrap(primitive.parameter(x.dtype, x.array.shape, x.device))))
                if id(x) in walk.leaves:
                    total = wrap(stand_in(WalkPlace(TOTAL, number, 0)))
                    shadow.leaves[id(shadows[-1])] = (shadows[-1], total)
                continue
            ctx = Context()
            ctx.__dict__.update(x.ctx.__dict__)
            ctx.materialize_grads = x.ctx.materialize_grads  # type: ignore[union-attr]
            made = Creator(x.function, ctx, ())
            made.number, made.forms = x.number, x.forms
            shadows.append(made)
            if x in walk.gradients:
                shadow.gradients[made] = [
                    None if g is None else wrap(stand_in(WalkPlace(GRADIENT, number, slot)))
                    for slot, g in enumerate(walk.gradients[x])
                ]
        for number in order:
            x, made = met[number], shadows[number]
            made.edges = [
                None if e is None else Edge(shadows[numbers[id(e.source)]], *e[1:]) for e in x.edges
            ]
            made.ctx._saved = [
                stand_in(WalkPlace(SAVED, number, slot)) for slot in range(len(x.ctx._saved))
            ]
        inside = {shadows[number]: number for number in order}
        shadow.pending = [(-c.number, c) for c in shadow.gradients]
        heapq.heapify(shadow.pending)
        visited = []
        while shadow.pending and shadow.pending[0][1] in inside:
            _, creator = heapq.heappop(shadow.pending)
            visited.append(inside[creator])
            shadow.step(creator, shadow.gradients.pop(creator))
        results: dict[WalkPlace, Value] = {}
        places = {id(x): number for number, x in enumerate(shadows)}
        for creator, gradients in shadow.gradients.items():
            for slot, g in enumerate(gradients):
                if g is not None:
                    results[WalkPlace(GRADIENT, places[id(creator)], slot)] = g.value
        for leaf, g in shadow.leaves.values():
            results[WalkPlace(TOTAL, places[id(leaf)], 0)] = g.value
        results = {place: v for place, v in results.items() if inputs.get(v) != place}
        read = [v for v in topological(results.values()) if v in inputs]
        graph = Subgraph(read, list(results.values()))
    if graph.height > MAX_DEPTH // 2:
        raise NotASubgraph("it is too deep")
    graph.order = {}
    return WalkStretch(graph, [inputs[v] for v in read], visited, list(results))


Walk.advance = staticmethod(advance)

__all__: list[str] = []
