"""Pieces: values put together from others of one shape, as the gradient of a split is.

Such a value is a sum of pieces padded with zeros, each in its own place. Visiting its elements
would compute every piece under a mask. Its kernel visits the elements of a piece instead, and
stores those of all pieces at once: what they have in common is computed once.
"""

from __future__ import annotations

from genesis.ir import ops
from genesis.ir.node import Node, is_const


def pieces(n: Node) -> tuple[Node, ...]:
    """The padded pieces, in order, that lie side by side along an axis and are all of `n`."""
    found: list[Node] = []
    stack = [n]
    while stack:
        x = stack.pop()
        if x.op is ops.ADD:
            stack += x.inputs
        elif x.op is ops.PAD and is_const(x.inputs[1], 0):
            found.append(x)
        else:
            return ()
    shape = found[0].inputs[0].shape
    cut = [d for d, (whole, part) in enumerate(zip(n.shape, shape, strict=True)) if whole != part]
    if len(cut) != 1 or any(x.inputs[0].shape != shape for x in found):
        return ()
    (axis,) = cut
    part = shape[axis]
    if not isinstance(part, int) or n.shape[axis] != part * len(found):
        return ()
    by_place = {x.attr: x for x in found}
    wanted = [
        tuple((k * part if d == axis else 0, 1) for d in range(len(shape)))
        for k in range(len(found))
    ]
    return tuple(by_place[w] for w in wanted) if by_place.keys() == set(wanted) else ()


def between(n: Node, found: tuple[Node, ...]) -> frozenset[Node]:
    """The value and what there is between it and its pieces, these included."""
    inside: set[Node] = set()
    stack = [n]
    while stack:
        x = stack.pop()
        inside.add(x)
        if x not in found:
            stack += x.inputs
    return frozenset(inside)
