"""Where an element lies: indices and strides as one number, written so that little is kept.

A schedule takes numbers apart into places along several axes, and adds numbers of blocks, loops and
lanes in any order. What memory runs on through is put together again, and what is the same for a
whole tile is added up before lanes come in: such an address takes one register, not one per lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from genesis.ir import ops
from genesis.ir.index import simplify
from genesis.ir.kernel import Buffer, as_index, tile_axes
from genesis.ir.node import Node, is_const


def offset(buffer: Buffer, indices: Sequence[Node]) -> Node:
    """Where an element lies, in elements from the buffer's pointer.

    Places that one number was taken apart into, and that memory runs on through, are that number.
    """
    places = list(zip(indices, buffer.layout, strict=True))
    sizes = list(buffer.shape)
    for d in range(len(places) - 1, 0, -1):
        (high, far), (low, near) = places[d - 1 : d + 1]
        size = sizes[d]
        if isinstance(size, int) and far is near * size:
            whole = _whole(high, low, size)
            if whole is not None:
                places[d - 1 : d + 1] = [(whole, near)]
                sizes[d - 1 : d + 1] = [sizes[d - 1] * size]
    total = as_index(buffer.offset)
    for i, stride in places:
        total = total + _scalars_first(i) * stride
    return total


def _scalars_first(n: Node) -> Node:
    """A sum with what is the same for a whole tile added up first: one number to keep, not many."""
    terms, rest = list[Node](), [n]
    while rest:
        term = rest.pop()
        if term.op is ops.ADD:
            rest += reversed(term.inputs)
        else:
            terms.append(term)
    terms.sort(key=lambda t: bool(tile_axes(t)))
    return reduce(add, terms)


def _whole(high: Node, low: Node, size: int) -> Node | None:
    """The number of which `low` is the remainder of division by `size` and `high` the quotient."""
    count = None
    if high.op is ops.MOD and high.inputs[1].op is ops.CONST:
        high, count = high.inputs[0], int(high.inputs[1].attr)
    if high.op is not ops.FLOORDIV or not is_const(high.inputs[1], size):
        return None
    number = high.inputs[0]
    if simplify(number % size) is not low:
        return None
    return number if count is None else simplify(number % (size * count))
