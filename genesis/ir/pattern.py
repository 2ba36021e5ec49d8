"""Patterns: what a kernel is, said by whoever wrote it.

Fusion knows what it puts together, and a schedule depends on it; the loops in between do not show
it. So a plain kernel carries its pattern: which of its parts plays which role. Parts are told by
*name* (of an axis, a local or a buffer), which steps that rewrite a kernel keep. A pattern takes no
part in what a kernel computes. A kernel without one has no more to say than its statements: rows of
reductions, or elements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contraction:
    """A sum of products: the outermost of its loops carries `accumulator`."""

    accumulator: str


@dataclass(frozen=True)
class OnlineSoftmax:
    """Attention: a softmax of scores, summed against values in one pass over the keys.

    The loop over the keys names a `score` and its `weight`, and carries the greatest score so far
    (`peak`), the `total` of the weights and the `weighted` sum of the values. A score is made from
    a query times a key, which is `product`; None if that is not summed by a loop.
    """

    product: str | None
    score: str
    weight: str
    peak: str
    total: str
    weighted: str


@dataclass(frozen=True)
class Gradient:
    """A result of attention backward: a `weight` times a row along `axis`, summed in `sums`.

    What becomes of the sums is `stored`, another buffer or the same.
    """

    weight: str
    axis: str
    sums: str
    stored: str


@dataclass(frozen=True)
class AttentionBackward:
    """The gradients of attention: every row meets every column.

    For each such pair there are `products`, `weights` made from those, and what they add to the
    `results`.
    """

    row: str
    column: str
    products: tuple[str, ...]
    weights: tuple[str, ...]
    results: tuple[Gradient, ...]


@dataclass(frozen=True)
class ColumnSums:
    """Rows gone through one after the other, each of which adds to the `sums` of its columns."""

    sums: tuple[str, ...]


@dataclass(frozen=True)
class Prefix:
    """A loop that names its `elements`, and the `states` they lead to, which it carries."""

    elements: tuple[str, ...]
    states: tuple[str, ...]


@dataclass(frozen=True)
class Scatter:
    """Writes into `target` where an index says, after what was there before if that is copied."""

    target: str


Pattern = Contraction | OnlineSoftmax | AttentionBackward | ColumnSums | Prefix | Scatter
