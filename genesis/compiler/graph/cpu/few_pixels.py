"""Convolutions to few pixels: a product of few rows with the weights as they lie in memory.

A convolution is scheduled for many pixels: its weights are packed, or read across, which pays when
each is used again and again. With a handful of pixels the weights are all the work there is, and
reading them once, in order, is the best that can be done. So the windows, which are small then, are
laid out as rows: that is a matrix product like that of a linear layer with a small batch.
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


def few_pixels(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with such products; `origins` as in `without_complex`."""
    return with_contractions(roots, origins, _as_rows)


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
    if not apart or p > FEW_ROWS:
        return None
    single = [x for x in left if x not in several]
    rows = reshaped(
        _permuted(windows, [left.index(x) for x in (*single, *pixels, *summed)]), (p, k)
    )
    total = contraction(rows, reshaped(weights, (m, k)), [0, 1], [2, 1], [0, 2])
    shown = [*pixels, *made]
    split = reshaped(total, tuple(extents[x] for x in shown))
    return reshaped(_permuted(split, [shown.index(x) for x in out if x in shown]), n.shape)


def _permuted(x: Node, order: Sequence[int]) -> Node:
    return node(ops.PERMUTE, (x,), tuple(order), x.dtype, tuple(x.shape[d] for d in order))
