"""Convolutions to few pixels: a product of few rows with the weights as they lie in memory.

A convolution is scheduled for many pixels: its weights are packed, or read across, which pays when
each is used again and again. With a handful of pixels the weights are all the work there is, and
reading them once, in order, is the best that can be done. So the windows, which are small then, are
laid out as rows: that is a matrix product like that of a linear layer with a small batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from genesis.compiler.fuse.cost import count
from genesis.compiler.fuse.demands import FEW_ROWS
from genesis.compiler.graph.simplify.movement import reshaped
from genesis.compiler.graph.simplify.reductions import contraction
from genesis.ir import ops
from genesis.ir.node import Node, node, topological

Labels = tuple[int, ...]


def few_pixels(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with such products; `origins` as in `without_complex`."""
    order = topological(roots)
    if not any(n.op is ops.CONTRACT and _windows(n) for n in order):
        return list(roots)
    became: dict[Node, Node] = {}
    known: set[Node] = set()

    def inputs(m: Node) -> tuple[Node, ...]:
        return () if m in known else m.inputs

    for n in order:
        same = n.with_inputs(tuple([became[i] for i in n.inputs]))
        found = _windows(same) if n.op is ops.CONTRACT else None
        became[n] = new = same if found is None else _as_rows(same, found)
        if new is not n:
            made = [m for m in topological([new], inputs) if m not in known]
            origins.update({m: origins.get(n, n) for m in made})
        known.add(new)
    return [became[n] for n in roots]


class _Windows(NamedTuple):
    """The labels of a contraction that are of pixels, of channels made, and summed over."""

    pixels: Labels
    made: Labels
    summed: Labels


def _windows(n: Node) -> _Windows | None:
    """What a contraction of few windows with weights is over; None if it is something else.

    Windows have their pixels on both sides of what is summed, weights what is summed last.
    """
    left, right, out = n.attr
    windows, weights = n.inputs
    extents = dict(zip((*left, *right), (*windows.shape, *weights.shape), strict=True))
    if not all(isinstance(extents[x], int) for x in extents):
        return None
    single = {x for x in extents if extents[x] == 1}
    pixels = tuple(x for x in left if x in out and x not in right and x not in single)
    made = tuple(x for x in right if x in out and x not in left and x not in single)
    summed = tuple(x for x in right if x not in out and x in left and x not in single)
    several = {x for x in extents if x not in single}
    if several != {*pixels, *made, *summed} or not (pixels and made and summed):
        return None
    ordered = tuple(x for x in right if x not in single) == (*made, *summed)
    places = [left.index(x) for x in pixels], [left.index(x) for x in summed]
    apart = max(places[0]) > min(places[1])
    if not (ordered and apart) or count(tuple(extents[x] for x in pixels)) > FEW_ROWS:
        return None
    return _Windows(pixels, made, summed)


def _as_rows(n: Node, found: _Windows) -> Node:
    """The same contraction, of rows."""
    left, right, out = n.attr
    windows, weights = n.inputs
    extents = dict(zip((*left, *right), (*windows.shape, *weights.shape), strict=True))
    p, m, k = (count(tuple(extents[x] for x in labels)) for labels in found)
    single = [x for x in left if x not in (*found.pixels, *found.summed)]
    order = (*single, *found.pixels, *found.summed)
    rows = reshaped(_permuted(windows, [left.index(x) for x in order]), (p, k))
    total = contraction(rows, reshaped(weights, (m, k)), [0, 1], [2, 1], [0, 2])
    shown = (*found.pixels, *found.made)
    split = reshaped(total, tuple(extents[x] for x in shown))
    wanted = [x for x in out if x in shown]
    return reshaped(_permuted(split, [shown.index(x) for x in wanted]), n.shape)


def _permuted(x: Node, order: Sequence[int]) -> Node:
    shape = tuple(x.shape[d] for d in order)
    return node(ops.PERMUTE, (x,), tuple(order), x.dtype, shape)
