"""Variances of shifted data: sums of differences from one of the values, not from the mean.

The mean has to be known before squares of differences from it can be summed, so a batch norm would
read its input twice. Whatever is subtracted first, the variance is the mean square of what is left
minus the square of its mean; only digits are lost to that if the number is far from all others. So
it is one of them: the first. A row that is one tile is read once anyway, and keeps its two sums.

CPUs do it otherwise (`genesis.compiler.schedule.cpu.merged_variance`). Two plain sums are left,
which the blocks of a GPU add up in any shape, and which fuse with what makes the values. The price
is accuracy: a first value r deviations from the mean costs a share of r² of the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.fuse.cost import count
from genesis.compiler.graph.simplify.movement import expanded, reshaped
from genesis.ir import ops
from genesis.ir.node import Node, const, elementwise, node, topological

#: Values that are one tile, if they lie together.
ROW = 1 << 14


def shifted(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with means and sums of squares of one pass; `origins` as in `without_complex`."""
    order = topological(roots)
    squares = {n: mean for n in order if (mean := _mean(n)) is not None}
    means = frozenset(squares.values())
    became: dict[Node, Node] = {}
    for n in order if squares else ():
        if n in means or n in squares:
            total, size = squares.get(n, n).inputs
            sums = _Shifted(became[total.inputs[0]], total)
            new = sums.mean(size.attr) if n in means else sums.squares(size.attr)
        else:
            new = n.with_inputs(tuple(became[i] for i in n.inputs))
        became[n] = new
        if new is not n:
            origins[new] = origins.get(n, n)
    return [became[n] for n in roots] if squares else list(roots)


class _Shifted:
    """Sums of what is left of values when the first of those that are summed is subtracted."""

    def __init__(self, x: Node, total: Node) -> None:
        axes, shape = total.attr, x.shape
        single = tuple(1 if a in axes else e for a, e in enumerate(shape))
        first = node(ops.SLICE, (x,), ((0, 1),) * len(shape), x.dtype, single)
        self.left = elementwise(ops.SUB, x, expanded(first, shape))
        self.first = reshaped(first, total.shape)
        self.axes, self.shape = axes, total.shape

    def mean(self, size: float) -> Node:
        """The mean of the values."""
        return elementwise(ops.ADD, self.first, self._mean(size))

    def squares(self, size: float) -> Node:
        """The sum of squares of differences from the mean."""
        whole = self._sum(elementwise(ops.MUL, self.left, self.left))
        own = elementwise(ops.MUL, self._sum(self.left), self._mean(size))
        return elementwise(ops.MAX, elementwise(ops.SUB, whole, own), const(0, whole.dtype))

    def _mean(self, size: float) -> Node:
        total = self._sum(self.left)
        return elementwise(ops.MUL, total, const(1 / size, total.dtype))

    def _sum(self, x: Node) -> Node:
        return node(ops.SUM, (x,), self.axes, x.dtype, self.shape)


def _mean(n: Node) -> Node | None:
    """The mean that a sum of squares is of differences from, if it takes a pass of its own."""
    if n.op is not ops.SUM or n.inputs[0].op is not ops.MUL or not n.dtype.is_float:
        return None
    away, again = n.inputs[0].inputs
    if away is not again or away.op is not ops.SUB:
        return None
    x, mean = away.inputs
    while mean.op in (ops.EXPAND, ops.RESHAPE) and count(mean.shape) >= count(n.shape):
        mean = mean.inputs[0]
    known = mean.op is ops.DIV and mean.inputs[1].op is ops.CONST
    total = mean.inputs[0] if known else None
    if total is None or total.op is not ops.SUM or total.inputs[0] is not x:
        return None
    apart = 0 in n.attr and len(n.attr) > 1 and bool(n.shape)
    large = count(x.shape) > ROW * max(1, count(n.shape))
    return mean if total.attr == n.attr and (apart or large) else None
