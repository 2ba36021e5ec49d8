"""Streaming: a softmax that is only summed against values never needs to exist.

``softmax(scores) @ values`` can be computed in one pass over the keys by carrying the greatest
score so far, the total of the weights and the weighted sum, rescaled whenever a greater score
appears (online softmax). `find` recognises that shape in a graph however it was written: the
scores are any elementwise expression of one contraction (scaled, masked, biased, soft-capped).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genesis.ir import ops
from genesis.ir.node import Node, const, elementwise


@dataclass(frozen=True)
class Stream:
    """``contract(softmax(scores), values)``; `side` is the softmax's place among the inputs."""

    side: int
    axis: int  # of the scores, summed over
    scores: Node
    inner: Node  # the contraction the scores are made from


def find(order: Sequence[Node], roots: frozenset[Node]) -> dict[Node, Stream]:
    """The contractions of a graph that can be streamed: nothing else needs the softmax."""
    users: dict[Node, set[Node]] = {}
    for n in order:
        for i in n.inputs:
            users.setdefault(i, set()).add(n)
    found: dict[Node, Stream] = {}
    for n in order:
        if n.op is ops.CONTRACT:
            for side in (0, 1):
                stream = _match(n, side, users, roots)
                if stream is not None:
                    found[n] = stream
                    break
    return found


def _match(
    n: Node, side: int, users: dict[Node, set[Node]], roots: frozenset[Node]
) -> Stream | None:
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
    # Everything between the scores and the result is used for this and nothing else.
    inside = {weights, powers, shifted, spread, total, peak, shifted.inputs[1]}
    inside |= {spread.inputs[0], shifted.inputs[1].inputs[0]}
    made, inner = _made_from(scores)
    if inner is None:
        return None
    private = inside | made
    if n.inputs[1 - side] in private:  # the values are the softmax itself
        return None
    for m in private:
        if m in roots or not users.get(m, set()) <= private | {n}:
            return None
    return Stream(side, axis, scores, inner)


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


def _made_from(scores: Node) -> tuple[set[Node], Node | None]:
    """The elementwise nodes of the scores' shape, and the only contraction below them."""
    seen: set[Node] = set()
    found: set[Node] = set()
    stack = [scores]
    while stack:
        n = stack.pop()
        if n in seen or n.shape != scores.shape:
            continue
        if n.op is ops.CONTRACT:
            seen.add(n)
            found.add(n)
        elif n.op.is_elementwise:
            seen.add(n)
            stack.extend(n.inputs)
    return seen, found.pop() if len(found) == 1 else None


def finite(peak: Node) -> Node:
    """What scores are shifted by: 0 where there is nothing but minus infinity so far."""
    nothing = peak.equal(const(peak.dtype.min, peak.dtype))
    return elementwise(ops.WHERE, nothing, const(0, peak.dtype), peak)
