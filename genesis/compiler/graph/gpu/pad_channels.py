"""Few channels: convolutions of images of three colours, with a fourth channel of zeros.

A convolution reads windows of pixels, all channels of a pixel at once. Three of 16 bits are no
vector, and where every colour is a plane of its own, they do not even lie together. So the image is
copied once, with its channels last and zeros up to a vector of 8 or 16 bytes, and so are the
weights; the gradient for the weights reads the same copy, and forgets what it has for the zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from genesis.compiler.graph.simplify.reductions import contraction
from genesis.compiler.lower.movement import runs
from genesis.ir import ops
from genesis.ir.node import Node, const, node

#: Channels that fill a vector.
WHOLE = (4, 8)


def even_channels(n: Node) -> Node:
    """A contraction of 16-bit numbers, with windows of whole vectors if it has windows of few."""
    for side, x in enumerate(n.inputs):
        found = _found(n, side) if x.dtype.bits == 16 and x.dtype.is_float else None
        if found is not None:
            label, size = found.label, found.size
            pair = [found.rebuilt(), n.inputs[1 - side]]
            others = n.attr[1 - side]
            if label in others:
                pair[1] = _lengthened(pair[1], others.index(label), size)
            a, b = pair if side == 0 else reversed(pair)
            total = contraction(a, b, *n.attr)
            steps = ((0, 1),) * len(n.shape)
            part = node(ops.SLICE, (total,), steps, n.dtype, n.shape)
            return part if label in n.attr[2] else total
    return n


class _Windows(NamedTuple):
    """Windows over an image: the movement that makes them of it, and where its channels are."""

    chain: Sequence[Node]  # from the image on
    places: Sequence[int]  # the axis of channels, of the image and after every movement
    label: int  # of channels
    size: int  # that they should have

    def rebuilt(self) -> Node:
        """The same windows of an image of more channels."""
        first = self.chain[0].inputs[0]
        result = _lengthened(first, self.places[0], self.size)
        for n, place in zip(self.chain, self.places[1:], strict=True):
            shape = (*n.shape[:place], self.size, *n.shape[place + 1 :])
            result = node(n.op, (result, *n.inputs[1:]), n.attr, n.dtype, shape)
        return result


def _found(n: Node, side: int) -> _Windows | None:
    """The windows that an operand of a contraction consists of, if they have few channels."""
    labels, others, out = n.attr[side], n.attr[1 - side], n.attr[2]
    chain: list[Node] = []
    x = n.inputs[side]
    while x.op in (ops.WINDOW, ops.PAD, ops.RESHAPE):
        chain.insert(0, x)
        x = x.inputs[0]
    if not chain or chain[-1].op is not ops.WINDOW:
        return None
    # Channels are summed over with the weights, or for them, with what comes back for each place.
    wanted, shared = (others, out) if labels[chain[-1].attr[0]] in out else (out, others)
    for axis, extent in enumerate(x.shape):
        size = next((w for w in WHOLE if isinstance(extent, int) and 1 < extent < w), None)
        places = _places(chain, axis) if size is not None else None
        if size is None or places is None:
            continue
        label = labels[places[-1]]
        if label in wanted and label not in shared:
            return _Windows(chain, places, label, size)
    return None


def _places(chain: Sequence[Node], axis: int) -> list[int] | None:
    """Where an axis is after every movement of a chain with windows, none of which concerns it."""
    places = [axis]
    for n in chain:
        axis, shape = places[-1], n.inputs[0].shape
        if n.op is ops.WINDOW and n.attr[0] == axis:
            return None
        if n.op is ops.PAD and (n.attr[axis] != (0, 1) or n.shape[axis] != shape[axis]):
            return None
        if n.op is ops.RESHAPE:
            (kept,) = (new for old, new in runs(shape, n.shape) if axis in old)
            same = [d for d in kept if n.shape[d] == shape[axis]]
            if len(same) != 1 or any(n.shape[d] != 1 for d in kept if d != same[0]):
                return None
            axis = same[0]
        places.append(axis)
    return places if any(n.op is ops.WINDOW and n.shape[-1] != 1 for n in chain) else None


def _lengthened(x: Node, axis: int, size: int) -> Node:
    """`x` with zeros behind an axis, which is the last in memory."""
    rank = len(x.shape)
    order = (*(d for d in range(rank) if d != axis), axis)
    back = tuple(order.index(d) for d in range(rank))
    shape = (*(x.shape[d] for d in order[:-1]), size)
    last = node(ops.PERMUTE, (x,), order, x.dtype, tuple(x.shape[d] for d in order))
    padded = node(ops.PAD, (last, const(0, x.dtype)), ((0, 1),) * rank, x.dtype, shape)
    return node(ops.PERMUTE, (padded,), back, x.dtype, tuple(shape[d] for d in back))
