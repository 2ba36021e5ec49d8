"""Convolutions to few pixels: products of few rows with the weights as they lie in memory.

A convolution is scheduled for many pixels: its weights are packed, or read across, which pays when
each is used again and again. With a handful of pixels the weights are all the work there is, and
reading them once, in order, is the best that can be done. So the windows, which are small then, are
laid out as rows: that is a matrix product like that of a linear layer with a small batch. So is the
gradient of the weights, which is written once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.fuse.cost import count
from genesis.compiler.fuse.demands import FEW_ROWS
from genesis.compiler.graph.cpu.winograd import with_contractions
from genesis.compiler.graph.simplify.movement import reshaped
from genesis.compiler.graph.simplify.reductions import contraction
from genesis.ir import ops
from genesis.ir.node import Node, node

#: Pixels that are rows of a product.
FEW = 16
#: Weights whose gradient is a product of rows for more pixels: they do not stay in a cache.
MANY_WEIGHTS = 1 << 19


def few_pixels(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with such products; `origins` as in `without_complex`."""
    return with_contractions(roots, origins, lambda n: _as_rows(n) or _as_columns(n))


def _as_rows(n: Node) -> Node | None:
    """A contraction of few windows with weights as one of rows; None if it is something else.

    Windows have their pixels on both sides of what is summed, weights what is summed last.
    """
    left, right, out = n.attr
    windows, weights = n.inputs
    extents = dict(zip((*left, *right), (*windows.shape, *weights.shape), strict=True))
    several = {x: e for x, e in extents.items() if e != 1}
    pixels = [x for x in left if x in several and x in out and x not in right]
    made = [x for x in right if x in several and x in out and x not in left]
    summed = [x for x in right if x in several and x in left and x not in out]
    ordered = [x for x in right if x in several] == [*made, *summed]
    whole = several.keys() == {*pixels, *made, *summed} and bool(pixels and made and summed)
    if not (ordered and whole) or not all(isinstance(e, int) for e in extents.values()):
        return None
    apart = max(map(left.index, pixels)) > min(map(left.index, summed))
    p, m, k = (count(tuple(extents[x] for x in labels)) for labels in (pixels, made, summed))
    if not apart or p > FEW:
        return None
    single = [x for x in left if x not in several]
    rows = reshaped(
        _permuted(windows, [left.index(x) for x in (*single, *pixels, *summed)]), (p, k)
    )
    total = contraction(rows, reshaped(weights, (m, k)), [0, 1], [2, 1], [0, 2])
    shown = [*pixels, *made]
    split = reshaped(total, tuple(extents[x] for x in shown))
    return reshaped(_permuted(split, [shown.index(x) for x in out if x in shown]), n.shape)


def _as_columns(n: Node) -> Node | None:
    """A contraction over few pixels, as of the gradient of weights, as one of rows.

    What the windows have is last in the result, in the same order.
    """
    left, right, out = n.attr
    gradient, windows = n.inputs
    extents = dict(zip((*left, *right), (*gradient.shape, *windows.shape), strict=True))
    several = {x: e for x, e in extents.items() if e != 1}
    pixels = [x for x in left if x in several and x in right and x not in out]
    made = [x for x in left if x in several and x in out and x not in right]
    seen = [x for x in right if x in several and x in out and x not in left]
    whole = several.keys() == {*pixels, *made, *seen} and bool(pixels and made and seen)
    if not whole or [x for x in out if x in several] != [*made, *seen]:
        return None
    if not all(isinstance(e, int) for e in extents.values()):
        return None
    p, m, k = (count(tuple(extents[x] for x in labels)) for labels in (pixels, made, seen))
    few = p <= FEW or (p <= FEW_ROWS and m * k >= MANY_WEIGHTS)
    if not few or not _has_windows(windows):
        return None

    def rows(x: Node, labels: Sequence[int], kept: Sequence[int], length: int) -> Node:
        single = [label for label in labels if label not in several]
        order = [labels.index(label) for label in (*single, *pixels, *kept)]
        return reshaped(_permuted(x, order), (p, length))

    sides = rows(gradient, left, made, m), rows(windows, right, seen, k)
    return reshaped(contraction(*sides, [0, 1], [0, 2], [1, 2]), n.shape)


def _has_windows(x: Node) -> bool:
    """Whether a value is another one seen through windows, or what one of them sees of its edge."""
    while x.op.is_movement and x.op not in (ops.WINDOW, ops.PAD):
        x = x.inputs[0]
    return x.op in (ops.WINDOW, ops.PAD)


def _permuted(x: Node, order: Sequence[int]) -> Node:
    return node(ops.PERMUTE, (x,), tuple(order), x.dtype, tuple(x.shape[d] for d in order))
