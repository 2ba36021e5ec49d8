"""Online softmax: a softmax that is only summed against values never needs to exist.

``softmax(scores) @ values`` can be computed in one pass over the keys by carrying the greatest
score so far, the total of the weights and the weighted sum, rescaled whenever a greater score
appears (online softmax). `find` recognises that shape in a graph however it was written: the
scores are any elementwise expression of one contraction (scaled, masked, biased, soft-capped). The
gradients are several contractions of what is made from scores, which a block at a time
is all that ever exists of them, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from genesis.compiler.fuse.cost import SMALL, count
from genesis.ir import ops
from genesis.ir.node import Node, const, elementwise, topological

#: The longest rows of which attention backward keeps blocks in fast memory.
LONGEST = 256
#: Blocks that attention backward should have, unless there is little to do: cores share them.
BLOCKS = 4


@dataclass(frozen=True)
class StreamedSoftmax:
    """``contract(softmax(scores), values)``; `side` is the softmax's place among the inputs."""

    side: int
    axis: int  # of the scores, summed over
    scores: Node
    inner: Node  # the contraction the scores are made from
    peak: Node  # the greatest score of every row, which others may use, too
    total: Node  # and the total that its weights are divided by


@dataclass(frozen=True)
class AttentionGradients:
    """Contractions of what is made, element by element, from a few products of short rows.

    Each of `results` sums one of `weights` over one of the axes `row` and `column` of the weights.
    All weights are elementwise functions of `products`, which are contractions. What is `stored` of
    a result is itself, or what it is converted to.
    """

    results: tuple[Node, ...]
    weights: tuple[Node, ...]  # one for every result
    products: tuple[Node, ...]
    row: int
    column: int
    stored: tuple[Node, ...]


@dataclass(frozen=True)
class Found:
    """Softmaxes and gradients of attention in a graph by what they store, and what is inside them.

    Scores that are also needed elsewhere are computed again inside.
    """

    softmaxes: Mapping[Node, StreamedSoftmax]
    gradients: Mapping[Node, AttentionGradients]
    inside: Mapping[Node, frozenset[Node]]


@dataclass(frozen=True)
class _Candidate:
    what: StreamedSoftmax | AttentionGradients
    results: tuple[Node, ...]
    inside: frozenset[Node]
    private: frozenset[Node]  # what of that must not be needed elsewhere
    known: frozenset[Node] = frozenset()  # of which it can tell others


def find(order: Sequence[Node], roots: frozenset[Node], convert_gradients: bool = False) -> Found:
    """The contractions of a graph that can be streamed: nothing else needs what is inside.

    With `convert_gradients`, gradients of attention convert their results on the way to memory.
    """
    users: dict[Node, set[Node]] = {}
    for n in order:
        for i in n.inputs:
            users.setdefault(i, set()).add(n)
    contractions = [n for n in order if n.op is ops.CONTRACT]
    candidates = [c for n in contractions for side in (0, 1) if (c := _stream(n, side)) is not None]
    taken = {n for c in candidates for n in c.results}
    candidates += _sweeps([n for n in contractions if n not in taken], order)
    while True:
        within = {n for c in candidates for n in (*c.inside, *c.known, *c.results)}
        kept = [
            c
            for c in candidates
            if c.private.isdisjoint(roots) and all(users[m] <= within for m in c.private)
        ]
        if len(kept) == len(candidates):
            break
        candidates = kept
    softmaxes = {n: c.what for c in kept for n in c.results if isinstance(c.what, StreamedSoftmax)}
    gradients: dict[Node, AttentionGradients] = {}
    inside = {n: c.inside for c in kept for n in c.results}
    for c in kept:
        if isinstance(c.what, AttentionGradients):
            to = {n: _converted(n, users, roots) if convert_gradients else n for n in c.results}
            found = replace(c.what, stored=tuple(to[n] for n in c.what.results))
            gradients |= dict.fromkeys(found.stored, found)
            inside |= dict.fromkeys(found.stored, c.inside)
    return Found(softmaxes, gradients, inside)


def _converted(n: Node, users: Mapping[Node, set[Node]], roots: frozenset[Node]) -> Node:
    """What a node is converted to, if that is all it is needed for."""
    (user, *others) = users.get(n) or {n}
    return user if user.op is ops.CAST and not others and n not in roots else n


def _stream(n: Node, side: int) -> _Candidate | None:
    weights = n.inputs[side]
    if weights.op is not ops.DIV:
        return None
    powers, spread = weights.inputs
    total = _spread_of(spread, ops.SUM)
    if total is None or total.inputs[0] is not powers or powers.op is not ops.EXP:
        return None
    shifted = powers.inputs[0]
    if shifted.op is not ops.SUB:
        return None
    scores = shifted.inputs[0]
    peak = _spread_of(shifted.inputs[1], ops.AMAX)
    if peak is None or peak.inputs[0] is not scores or peak.attr != total.attr:
        return None
    (axis,) = peak.attr
    labels, others = n.attr[side], n.attr[1 - side]
    alone = [x for x in labels if x not in n.attr[2]]
    if alone != [labels[axis]] or labels[axis] not in others:
        return None
    made, products = _made_from(scores)
    private = {weights, powers, shifted, spread, shifted.inputs[1]}
    inside = frozenset(made | private)
    if len(products) != 1 or n.inputs[1 - side] in inside:  # or the values are the softmax itself
        return None
    known = {peak, total, spread.inputs[0], shifted.inputs[1].inputs[0]}
    stream = StreamedSoftmax(side, axis, scores, *products, peak, total)
    return _Candidate(stream, (n,), inside, frozenset(private), frozenset(known))


@dataclass(frozen=True)
class _Use:
    """A contraction that sums weights over one of their axes."""

    result: Node
    weights: Node
    axis: int
    inside: frozenset[Node]
    products: tuple[Node, ...]


def _sweeps(contractions: Sequence[Node], order: Sequence[Node]) -> Iterator[_Candidate]:
    """Contractions that share the products they are made from."""
    together: list[list[_Use]] = []
    for n in contractions:
        use = _use(n, 0) or _use(n, 1)
        if use is not None:
            joined = [
                uses for uses in together if any(set(use.products) & set(u.products) for u in uses)
            ]
            together = [uses for uses in together if uses not in joined]
            together.append([*chain.from_iterable(joined), use])
    place: dict[Node, int] = {}
    for uses in together:
        axes = sorted({u.axis for u in uses})
        products = dict.fromkeys(p for u in uses for p in u.products)
        shape = uses[0].weights.shape
        if len(axes) != 2 or not all(_is_table(p, *axes) for p in products):
            continue
        blocks = count(tuple(e for d, e in enumerate(shape) if d not in axes))
        if blocks < BLOCKS and count(shape) > SMALL:
            continue
        place = place or {n: k for k, n in enumerate(order)}
        results = tuple(u.result for u in uses)
        if not (_depend(results, place) or _nested(products)):
            weights = tuple(u.weights for u in uses)
            row, column = axes
            gradients = AttentionGradients(results, weights, tuple(products), row, column, results)
            inside = frozenset(chain.from_iterable(u.inside for u in uses))
            yield _Candidate(gradients, results, inside, inside - products.keys())


def _depend(nodes: Sequence[Node], place: Mapping[Node, int]) -> bool:
    """Whether one of some nodes is made from another; `place` is where nodes are in order."""
    first = min(place[n] for n in nodes)

    def later(n: Node) -> list[Node]:
        return [i for i in n.inputs if place[i] >= first]

    below = topological([i for n in nodes for i in later(n)], later)
    return not set(nodes).isdisjoint(below)


def _nested(products: Collection[Node]) -> bool:
    """Whether an operand of a product would itself be computed from one, in the same kernel."""

    def computed_along(n: Node) -> tuple[Node, ...]:
        return n.inputs if n.op.is_elementwise or n.op.is_movement else ()

    below = topological([i for n in products for i in n.inputs], computed_along)
    return not set(products).isdisjoint(below)


def _use(n: Node, side: int) -> _Use | None:
    weights, labels, others = n.inputs[side], n.attr[side], n.attr[1 - side]
    inside = {weights}
    if weights.op is ops.PERMUTE:
        labels = tuple(labels[weights.attr.index(d)] for d in range(len(labels)))
        weights = weights.inputs[0]
    columns = [d for d, x in enumerate(others) if x not in labels]
    summed = [d for d, x in enumerate(labels) if x not in n.attr[2]]
    if len(columns) != 1 or len(summed) != 1 or labels[summed[0]] not in others:
        return None
    if not weights.op.is_elementwise or not weights.dtype is n.dtype is n.dtype.accumulator:
        return None
    made, products = _made_from(weights)
    other = n.inputs[1 - side]
    if not products or other in made or not _is_short(other.shape[columns[0]]):
        return None
    return _Use(n, weights, summed[0], frozenset(inside | made), products)


def _is_table(n: Node, row: int, column: int) -> bool:
    """Whether a contraction is of short rows, some for `row` and others for `column`."""
    left, right, out = n.attr
    summed = [d for d, x in enumerate(left) if x not in out]
    if len(summed) != 1 or left[summed[0]] not in right or set(right) - set(out) - set(left):
        return False
    sides = {(out[row] in labels, out[column] in labels) for labels in (left, right)}
    long = n.shape[row] != 1 and n.shape[column] != 1
    return (
        long and _is_short(n.inputs[0].shape[summed[0]]) and sides == {(True, False), (False, True)}
    )


def _is_short(extent: object) -> bool:
    return isinstance(extent, int) and 1 < extent <= LONGEST


def _spread_of(n: Node, op: ops.Op) -> Node | None:
    """The reduction over one axis that `n` repeats along that axis, if it is one."""
    if n.op is not ops.EXPAND or n.inputs[0].op is not ops.RESHAPE:
        return None
    kept, reduced = n.inputs[0], n.inputs[0].inputs[0]
    if reduced.op is not op or len(reduced.attr) != 1:
        return None
    (axis,) = reduced.attr
    shape = reduced.inputs[0].shape
    same = kept.shape == (*shape[:axis], 1, *shape[axis + 1 :]) and n.shape == shape
    return reduced if same else None


def _made_from(x: Node) -> tuple[set[Node], tuple[Node, ...]]:
    """The elementwise nodes of x's shape that it is made from, and the contractions below them."""
    seen: set[Node] = set()
    found: dict[Node, None] = {}
    stack = [x]
    while stack:
        n = stack.pop()
        if n in seen or n.shape != x.shape:
            continue
        if n.op is ops.CONTRACT:
            seen.add(n)
            found[n] = None
        elif n.op.is_elementwise:
            seen.add(n)
            stack.extend(n.inputs)
    return seen, tuple(found)


def finite(peak: Node) -> Node:
    """What scores are shifted by: 0 where there is nothing but minus infinity so far."""
    nothing = peak.equal(const(peak.dtype.min, peak.dtype))
    return elementwise(ops.WHERE, nothing, const(0, peak.dtype), peak)
