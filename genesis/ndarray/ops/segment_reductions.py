"""Sums by label: segments, counts, and the gradient of a table's rows.

Each is a scatter of data onto the place its label names. Labels need not be sorted.
"""

from __future__ import annotations

from typing import Any

from genesis.ir.dtype import int64
from genesis.ir.size import Dim
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import constant
from genesis.ndarray.core.value import need_contents
from genesis.ndarray.ops import elementwise
from genesis.ndarray.ops.creation import arange, asarray, zeros
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.gather_scatter import combined, index_reduce
from genesis.ndarray.ops.indexing import fitted
from genesis.ndarray.ops.movement import unsqueeze
from genesis.ndarray.ops.normalize_index import positions
from genesis.ndarray.ops.reduction import amax, amin


def _segments(
    x: NDArray, segments: Any, count: Dim, *, mode: str = "add", name: str = "segment_sum"
) -> NDArray:
    """The sums of the rows of `x` that belong to each of `count` segments.

    >>> from genesis import ndarray as nd
    >>> nd.segment_sum(nd.array([1.0, 2.0, 3.0]), [1, 0, 1], 3).tolist()
    [2.0, 4.0, 0.0]
    """
    where = positions(name, segments, count, 0, x.device)
    if where.shape != x.shape[:1]:
        raise ValueError(
            f"{name}: {where.shape} segments for the rows of an array of shape {x.shape}"
        )
    start = {"add": 0, "max": x.dtype.min, "min": x.dtype.max}[mode]
    base = primitive.broadcast(constant(start, x.dtype, x.device), (count, *x.shape[1:]))
    return wrap(combined(base, [where], x.value, [0], mode))


_ROW = "The {} row of each segment by element; an empty one has the {} number there is."
segment_sum = variant(_segments, "segment_sum")
segment_max = variant(_segments, "segment_max", _ROW.format("greatest", "least"), mode="max")
segment_min = variant(_segments, "segment_min", _ROW.format("least", "greatest"), mode="min")


def segment_mean(x: NDArray, segments: Any, count: Dim) -> NDArray:
    """The mean of the rows of each segment; of an empty one 0."""
    base = zeros((count, *x.shape[1:]), dtype=x.dtype, device=x.device)
    return index_reduce(base, segments, x, "mean", include_self=False)


def embedding_gradient(
    gradient: NDArray, index: Any, count: Dim, padding_idx: int | None = None
) -> NDArray:
    """What flows back to a table of `count` rows from rows that `embedding` took.

    Row `padding_idx` gets nothing.
    """
    if isinstance(count, int) and count < 0:
        raise ValueError(f"embedding_gradient: a table of {count} rows")
    where = positions("embedding_gradient", index, count, 0, gradient.device)
    width = gradient.shape[len(where.shape) :]
    new = fitted(gradient, (*where.shape, *width), gradient)
    if padding_idx is not None:
        skipped = padding_idx % count if isinstance(count, int) else padding_idx
        where = elementwise.where(wrap(where) == skipped, -1, wrap(where)).value
    base = primitive.broadcast(constant(0, gradient.dtype, gradient.device), (count, *width))
    return wrap(combined(base, [where], new, [0], "add"))


def bincount(
    x: NDArray, weights: NDArray | None = None, minlength: int = 0, size: int | None = None
) -> NDArray:
    """How often each number occurs, or the sum of its weights.

    There is a count for every number up to the greatest, at least `minlength` and exactly `size`.
    """
    if x.ndim != 1 or not x.dtype.is_integer:
        raise TypeError(f"bincount: expected a vector of integers, got {x.dtype}{x.shape}")
    if weights is not None and weights.shape != x.shape:
        raise ValueError(f"bincount: weights {weights.shape} for an array of shape {x.shape}")
    length = size if size is not None else max(minlength, _classes("bincount", x))
    if length == 0:
        return zeros(0, dtype=int64 if weights is None else weights.dtype, device=x.device)
    ones = primitive.broadcast(constant(1, int64, x.device), x.shape)
    new = ones if weights is None else weights.value
    where = positions("bincount", x, length, 0, x.device)
    base = primitive.broadcast(constant(0, new.dtype, x.device), (length,))
    return wrap(combined(base, [where], new, [0], "add"))


def one_hot(index: Any, num_classes: int | None = None) -> NDArray:
    """1 at the position each index names, 0 elsewhere, along a new last axis, in int64."""
    x = asarray(index)
    count = _classes("one_hot", x) if num_classes is None else num_classes
    where = wrap(positions("one_hot", x, count, x.ndim, x.device))
    return (unsqueeze(where, -1) == arange(count, device=x.device)).astype(int64)


def _classes(name: str, x: NDArray) -> int:
    """One more than the greatest number of an array."""
    need_contents(f"{name}: the size of the result", "say how large it is (size=, num_classes=)")
    if x.size == 0:
        return 0
    least, most = int(amin(x).item()), int(amax(x).item())
    if least < 0:
        raise ValueError(f"{name}: numbers must not be negative, got {least}")
    return most + 1


__all__ = [
    "bincount", "embedding_gradient", "one_hot", "segment_max", "segment_mean", "segment_min",
    "segment_sum",
]  # fmt: skip
