"""Convolutions to or from few pixels: products of few rows with the weights as they lie in memory.

A convolution is scheduled for many pixels: its weights are packed, or read across, which pays when
each is used again and again. With a handful of pixels the weights are all the work there is, and
reading them once, in order, is the best that can be done. So the windows, which are small then, are
laid out as rows: that is a matrix product like that of a linear layer with a small batch. So is the
gradient of the weights, which is written once, in order. A transposed convolution of few pixels is
such a product, too: what each pixel gives to all that it reaches, added up where they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from genesis.compiler.fuse.access_patterns import FEW_ROWS
from genesis.compiler.fuse.cost import count
from genesis.compiler.graph.cpu.winograd import with_contractions
from genesis.compiler.graph.simplify.movement import reshaped
from genesis.compiler.graph.simplify.reductions import contraction
from genesis.ir import ops
from genesis.ir.node import Node, elementwise, is_const, node

#: Pixels that are rows of a product.
FEW = 16
#: Elements of a window whose sum is written out.
MOST_TAPS = 81
#: Weights whose gradient is a product of rows for more pixels: they do not stay in a cache.
MANY_WEIGHTS = 1 << 19


def few_pixels(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with such products; `origins` as in `without_complex`."""
    return with_contractions(roots, origins, lambda n: _as_rows(n) or _as_columns(n) or _as_sums(n))


def _as_rows(n: Node) -> Node | None:
    """A contraction of few windows with weights as one of rows; None if it is something else.

    Windows have their pixels on both sides of what is summed, weights what is summed last.
    """
    left, right, out = n.attr
    windows, weights = n.inputs
    if (roles := _roles(n)) is None:
        return None
    extents, pixels, made, summed = roles
    if [x for x in right if extents[x] != 1] != [*made, *summed]:
        return None
    apart = max(map(left.index, pixels)) > min(map(left.index, summed))
    p, m, k = (count(tuple(extents[x] for x in labels)) for labels in (pixels, made, summed))
    if not apart or p > FEW:
        return None
    total = contraction(
        _matrix(windows, left, pixels, summed), reshaped(weights, (m, k)), [0, 1], [2, 1], [0, 2]
    )
    shown = [*pixels, *made]
    split = reshaped(total, tuple(extents[x] for x in shown))
    return reshaped(_permuted(split, [shown.index(x) for x in out if x in shown]), n.shape)


def _as_columns(n: Node) -> Node | None:
    """A contraction over few pixels, as of the gradient of weights, as one of rows.

    What the windows have is last in the result, in the same order.
    """
    left, right, out = n.attr
    gradient, windows = n.inputs
    if (roles := _roles(n)) is None:
        return None
    extents, made, seen, pixels = roles
    if [x for x in out if extents[x] != 1] != [*made, *seen]:
        return None
    p, m, k = (count(tuple(extents[x] for x in labels)) for labels in (pixels, made, seen))
    few = p <= FEW or (p <= FEW_ROWS and m * k >= MANY_WEIGHTS)
    if not few or not _has_windows(windows):
        return None
    sides = _matrix(gradient, left, pixels, made), _matrix(windows, right, pixels, seen)
    return reshaped(contraction(*sides, [0, 1], [0, 2], [1, 2]), n.shape)


class _Reach(NamedTuple):
    """A contraction of windows that see few pixels with weights, and the roles of its labels."""

    n: Node
    seen: Node  # the pixels, before anything is put around them
    padded: Node
    windows: dict[int, Node]  # by the label of what is in them
    extents: dict[int, int]  # of the pixels and the weights
    pixels: list[int]
    channel: int
    reached: list[int]  # what the weights have beside channels

    @property
    def rows(self) -> int:
        """How many pixels there are."""
        return count(tuple(self.extents[x] for x in self.pixels))


def _as_sums(n: Node) -> Node | None:
    """A contraction of windows that see few pixels, as of a transposed convolution, as one of rows.

    Its result is what each pixel gives to all that it reaches; that is added up where they meet.
    """
    found = _reach(n)
    if found is None or (share := _shares(found)) is None:
        return None
    left, _, out = n.attr
    names = [*found.pixels, *found.reached]
    total: Node | None = None
    for at in product(*(range(found.extents[tap]) for tap in found.windows)):
        steps, shape = [(0, 1)] * len(names), list(share.shape)
        for (tap, window), k in zip(found.windows.items(), at, strict=True):
            axis, stride, dilation = window.attr
            d, inside = names.index(left[axis]), names.index(tap)
            steps[d], shape[d] = (k * dilation, stride), window.shape[axis]
            steps[inside], shape[inside] = (k, 1), 1
        term = node(ops.SLICE, (share,), tuple(steps), n.dtype, tuple(shape))
        total = term if total is None else elementwise(ops.ADD, total, term)
    assert total is not None
    shown = [x for x in out if x in names]
    order = [names.index(x) for x in (*found.windows, *shown)]
    return reshaped(_permuted(total, order), n.shape)


def _reach(n: Node) -> _Reach | None:
    left, right, out = n.attr
    seen, weights = n.inputs
    windows: dict[int, Node] = {}
    while seen.op is ops.WINDOW:
        windows[left[len(seen.shape) - 1]] = seen
        seen = seen.inputs[0]
    padded = seen
    if padded.op is ops.PAD and is_const(padded.inputs[1], 0):
        seen = padded.inputs[0]
    labels = left[: len(seen.shape)]
    extents = dict(zip((*labels, *right), (*seen.shape, *weights.shape), strict=True))
    if not all(isinstance(e, int) for e in (*n.shape, *padded.shape, *extents.values())):
        return None
    channels = [x for x in labels if x in right and x not in out and extents[x] != 1]
    pixels = [x for x in labels if x not in right]
    if not windows or len(channels) != 1 or n.dtype.accumulator is not n.dtype:
        return None
    reached = [x for x in right if x in windows or (x in out and x not in left)]
    places = {left[w.attr[0]] for w in windows.values()}
    apart = places <= {*pixels} <= {*out} and {*windows} <= {*right} - {*out}
    others = {*labels, *right} - {*pixels, *reached, *channels}
    found = _Reach(n, seen, padded, windows, extents, pixels, channels[0], reached)
    taps = count(tuple(extents[x] for x in windows))
    few = 0 < found.rows <= FEW and taps <= MOST_TAPS
    return found if few and apart and all(extents[x] == 1 for x in others) else None


def _shares(found: _Reach) -> Node | None:
    """What pixels give: as wide as they are padded, then what the weights have beside channels.

    The weights are multiplied as they lie. What is done to them is done to the products, which is
    the same as long as their channels stay where they are: before everything else.
    """
    n, seen, padded, _, extents, pixels, channel, reached = found
    left, right, _ = n.attr
    base, moves, axis = _from_channel(n.inputs[1], right.index(channel))
    if base.shape[axis] != extents[channel] or count(base.shape[:axis]) != 1:
        return None
    matrix = reshaped(base, (extents[channel], count(base.shape[axis + 1 :])))
    pixel_rows = _matrix(seen, left[: len(seen.shape)], pixels, [channel])
    share = contraction(pixel_rows, matrix, [0, 1], [1, 2], [0, 2])
    share = reshaped(share, (*base.shape[:axis], found.rows, *base.shape[axis + 1 :]))
    for move, at in moves:
        shape = (*move.shape[:at], found.rows, *move.shape[at + 1 :])
        share = node(move.op, (share, *move.inputs[1:]), move.attr, move.dtype, shape)
    share = _matrix(share, right, [channel], reached)
    share = reshaped(share, tuple(extents[x] for x in (*pixels, *reached)))
    if padded is seen:
        return share
    axes = [left.index(x) for x in pixels]
    lows = (*[padded.attr[d] for d in axes], *[(0, 1)] * len(reached))
    shape = (*[padded.shape[d] for d in axes], *share.shape[len(axes) :])
    return node(ops.PAD, (share, padded.inputs[1]), lows, n.dtype, shape)


def _from_channel(x: Node, axis: int) -> tuple[Node, list[tuple[Node, int]], int]:
    """What a value is moved from, with nothing moved along an axis before which there is nothing.

    And the moves, first to last, with where they have the axis; and where it is before them.
    """
    moves: list[tuple[Node, int]] = []
    while count(x.shape[:axis]) == 1 and x.op in (ops.RESHAPE, ops.SLICE, ops.PAD):
        before = x.inputs[0]
        at = next((d for d, e in enumerate(before.shape) if e != 1), 0)
        moved = x.op is not ops.RESHAPE and x.attr[axis] != (0, 1)
        filled = x.op is ops.PAD and not is_const(x.inputs[1], 0)
        if moved or filled or before.shape[at : at + 1] != x.shape[axis : axis + 1]:
            break
        moves.insert(0, (x, axis))
        x, axis = before, at
    return x, moves, axis


def _roles(n: Node) -> tuple[dict[int, int], list[int], list[int], list[int]] | None:
    """Extents by label, and labels of several elements: of the left side, the right, summed.

    None where some have none of these roles, a role is nobody's, or sizes are not known.
    """
    left, right, out = n.attr
    extents = dict(zip((*left, *right), (*n.inputs[0].shape, *n.inputs[1].shape), strict=True))
    several = [x for x, e in extents.items() if e != 1]
    of_left = [x for x in left if x in several and x in out and x not in right]
    of_right = [x for x in right if x in several and x in out and x not in left]
    summed = [x for x in right if x in several and x in left and x not in out]
    whole = set(several) == {*of_left, *of_right, *summed} and of_left and of_right and summed
    if not whole or not all(isinstance(e, int) for e in extents.values()):
        return None
    return extents, of_left, of_right, summed


def _matrix(x: Node, labels: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Node:
    """A value as a matrix with some of its labels along rows, some along columns; others are 1."""
    single = [label for label in labels if label not in (*rows, *columns)]
    moved = _permuted(x, [labels.index(label) for label in (*single, *rows, *columns)])
    shape = moved.shape[len(single) :]
    return reshaped(moved, (count(shape[: len(rows)]), count(shape[len(rows) :])))


def _has_windows(x: Node) -> bool:
    """Whether a value is another one seen through windows, or what one of them sees of its edge."""
    while x.op.is_movement and x.op not in (ops.WINDOW, ops.PAD):
        x = x.inputs[0]
    return x.op in (ops.WINDOW, ops.PAD)


def _permuted(x: Node, order: Sequence[int]) -> Node:
    return node(ops.PERMUTE, (x,), tuple(order), x.dtype, tuple(x.shape[d] for d in order))
