"""What is stored in blocks is gathered where it is used, and once more where it is used again late.

The weights of a layer are read in the forward pass and in the backward pass. In the graph these are
readers of one node; kept in between, the gathered weights of all layers would be there at once,
which storing them in blocks was to avoid. So readers that lie far apart get a gathering each: far
is where others of `BUCKET` bytes are gathered in between. At the turn of the passes, and in a
network that is small, everything is gathered once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from genesis.compiler.partition import buckets
from genesis.compiler.partition.resharding import elements
from genesis.ir import ops
from genesis.ir.node import Node, node, topological


def regathered(
    roots: Sequence[Node], origins: Mapping[Node, Node]
) -> tuple[tuple[Node, ...], dict[Node, Node]]:
    """The graph with gatherings for readers that lie far apart, and the origins of its nodes."""
    order = topological(roots)
    source = _sources(order)
    turns = _turns(order, source)
    made: dict[tuple[Node, int], Node] = {}
    found: dict[Node, Node] = {}

    def taken(n: Node, turn: int) -> Node:
        """A node for readers of a turn: of what is gathered there is one for each."""
        key = n, turn if n in source else 0
        if key not in made:
            made[key] = (
                _called(n, turn)
                if source.get(n) is n
                else n.with_inputs(tuple(taken(i, turn) for i in n.inputs))
            )
            found.setdefault(made[key], origins.get(n, n))
        return made[key]

    level = _levels(order)
    for n in order:
        if n not in source:
            inputs = [
                taken(i, bisect_right(turns[source[i]], level[n]) if i in source else 0)
                for i in n.inputs
            ]
            made[n, 0] = n.with_inputs(tuple(inputs))
            found.setdefault(made[n, 0], origins.get(n, n))
    return tuple(taken(n, 0) for n in roots), found


def _levels(order: Sequence[Node]) -> dict[Node, int]:
    """When nodes can be computed, counted in operations."""
    level: dict[Node, int] = {}
    for n in order:
        moves = n.op.is_movement or n.op is ops.ITEM or buckets.is_collective(n)
        level[n] = max((level[i] for i in n.inputs), default=0) + (not moves)
    return level


def _sources(order: Sequence[Node]) -> dict[Node, Node]:
    """Results of gathering inputs, and what is only moved of these, each with the result."""
    stored: set[Node] = set()  # inputs, and what is only moved of these
    found: dict[Node, Node] = {}
    for n in order:
        if n.op is ops.BUFFER or (_moves(n) and n.inputs[0] in stored):
            stored.add(n)
        elif n.op is ops.ITEM and _gathers(n.inputs[0]):
            if n.inputs[0].inputs[0] in stored:
                found[n] = n
        elif _moves(n) and n.inputs[0] in found:
            found[n] = found[n.inputs[0]]
    return found


def _gathers(n: Node) -> bool:
    return buckets.is_collective(n) and n.attr.name == "collectives.all_gather"


def _moves(n: Node) -> bool:
    return n.op.is_movement and len(n.inputs) == 1


def _turns(order: Sequence[Node], source: Mapping[Node, Node]) -> dict[Node, list[int]]:
    """For everything that is gathered, the levels from which on it is gathered again."""
    level = _levels(order)
    reads: dict[Node, set[int]] = {n: set() for n in source.values()}
    for n in order:
        if n not in source:
            for i in n.inputs:
                if i in source:
                    reads[source[i]].add(level[n])
    first = sorted((min(at), elements(n.shape) * n.dtype.itemsize) for n, at in reads.items() if at)
    levels = [at for at, _ in first]
    before = list(accumulate((nbytes for _, nbytes in first), initial=0))

    def between(a: int, b: int) -> int:
        """Bytes that are first read between two levels."""
        return before[bisect_left(levels, b)] - before[bisect_right(levels, a)]

    far = buckets.BUCKET
    return {
        n: [b for a, b in pairwise(sorted(at)) if between(a, b) >= far] for n, at in reads.items()
    }


def _called(n: Node, turn: int) -> Node:
    """The result of gathering something for a turn: the same collective, but not the same node."""
    if not turn:
        return n
    (call,) = n.inputs
    again = replace(call.attr, options=(*call.attr.options, turn))
    return node(
        ops.ITEM, (node(ops.CALL, call.inputs, again, call.dtype),), n.attr, n.dtype, n.shape
    )
