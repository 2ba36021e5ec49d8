"""Counting: histograms, and sums by number or by segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import float32, float64
from genesis.ir.size import product
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.reduction import dimension, pair
from genesis.torch.aten.registry import Unsupported, implements

Maybe = NDArray | None


@implements("bincount")
def _bincount(self: NDArray, weights: Maybe = None, minlength: Any = 0) -> NDArray:
    if weights is not None and weights.dtype is not float32:
        weights = nd.astype(weights, float64)
    return nd.bincount(self, weights, minlength)


@implements("histc")
def _histc(self: NDArray, bins: int = 100, min: float = 0, max: float = 0) -> NDArray:
    if self.dtype.is_integer:  # not on PyTorch's CPU, but its other devices count integers, too
        return nd.histc(self.astype(float64), bins, min, max).astype(self.dtype)
    return nd.histc(self, bins, min, max)


@implements("histogram.bins_tensor")
def _histogram(
    self: NDArray, bins: NDArray, *, weight: Maybe = None, density: bool = False
) -> tuple[NDArray, NDArray]:
    return pair(nd.histogram(self, bins, None, weight, density))


@implements("histogram.bin_ct")
def _histogram_of_count(
    self: NDArray,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Maybe = None,
    density: bool = False,
) -> tuple[NDArray, NDArray]:
    ends = None if range is None else (range[0], range[1])
    return pair(nd.histogram(self, bins, ends, weight, density))


# ---- of several dimensions


@implements("_histogramdd_bin_edges")
def _edges(
    self: NDArray, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: Any
) -> list[NDArray]:
    return nd.histogramdd_edges(self, bins, range)


@implements("_histogramdd_from_bin_cts")
def _histogramdd_of_counts(
    self: NDArray, bins: Sequence[int], *, range: Sequence[float] | None = None, **how: Any
) -> NDArray:
    return _histogramdd(self, _edges(self, bins, range=range), **how)


@implements("_histogramdd_from_bin_tensors")
def _histogramdd(
    self: NDArray, bins: Sequence[NDArray], *, weight: Maybe = None, density: bool = False
) -> NDArray:
    return nd.histogramdd(self, list(bins), None, weight, density).hist


# ---- by segment

_START = {"sum": 0, "mean": 0, "prod": 1, "max": -math.inf, "min": math.inf}
_FOLD = {"prod": "prod", "max": "amax", "min": "amin"}


class _Segments:
    """Parts of an axis one after another, all those of the axes before it in one row."""

    def __init__(self, data: NDArray, lengths: Maybe, offsets: Maybe, axis: int) -> None:
        if lengths is None and offsets is None:
            raise Unsupported("segment_reduce needs lengths or offsets")
        self.axis = axis = dimension(axis, data.ndim)
        self.shape, batch = data.shape, data.shape[:axis]
        if offsets is not None:
            starts, ends = offsets[..., :-1], offsets[..., 1:]
            lengths = ends - starts
        else:
            assert lengths is not None
            ends = nd.cumsum(lengths, -1)
            starts = ends - lengths
        self.count, rows, n = lengths.shape[-1], product(batch), data.shape[axis]
        lengths, starts, ends = (nd.reshape(a, (rows, -1)) for a in (lengths, starts, ends))
        at = nd.broadcast_to(nd.arange(n, device=data.device), (rows, n))
        number = nd.searchsorted(ends, at, right=True)
        row = nd.unsqueeze(nd.arange(rows, device=data.device), 1)
        inside = nd.logical_and(number < self.count, at >= starts[:, :1])
        #: The segment of every element; those of none are in one more.
        self.number = nd.reshape(
            nd.where(inside, row * self.count + number, rows * self.count), (-1,)
        )
        self.total = rows * self.count
        inner = len(data.shape) - axis - 1
        self.lengths = nd.reshape(lengths, (-1, *(1,) * inner))

    def rows(self, data: NDArray) -> NDArray:
        return nd.reshape(data, (-1, *self.shape[self.axis + 1 :]))

    def fold(self, rows: NDArray, reduce: str, start: float) -> NDArray:
        shape = (self.total + 1, *rows.shape[1:])
        base = nd.full(shape, start, rows.dtype, rows.device)
        if reduce in _FOLD:
            return nd.index_reduce(base, self.number, rows, _FOLD[reduce])
        return nd.index_add(base, self.number, rows)

    def of_elements(self, folded: NDArray) -> NDArray:
        """What each element's segment has; `folded` may lack the one of no segment."""
        last = nd.zeros((self.total + 1 - folded.shape[0], *folded.shape[1:]), folded.dtype)
        return nd.take(nd.concat([folded, last]), self.number, 0)


@implements("segment_reduce")
def _segment_reduce(
    data: NDArray,
    reduce: str,
    *,
    lengths: Maybe = None,
    indices: Maybe = None,
    offsets: Maybe = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> NDArray:
    parts = _Segments(data, lengths, offsets, axis)
    start = _START[reduce] if initial is None else initial
    result = parts.fold(parts.rows(data), reduce, start)[: parts.total]
    if reduce == "mean":
        empty = nd.equal(parts.lengths, 0)
        mean = result / nd.astype(parts.lengths, data.dtype)
        result = nd.where(empty, math.nan if initial is None else float(initial), mean)
    shape = (*data.shape[: parts.axis], parts.count, *data.shape[parts.axis + 1 :])
    return nd.reshape(result, shape)


@implements("_segment_reduce_backward")
def _segment_reduce_backward(
    grad: NDArray,
    output: NDArray,
    data: NDArray,
    reduce: str,
    *,
    lengths: Maybe = None,
    offsets: Maybe = None,
    axis: int = 0,
    initial: Any = None,
) -> NDArray:
    parts = _Segments(data, lengths, offsets, axis)
    rows, to_result, result = (parts.rows(a) for a in (data, grad, output))
    if reduce == "mean":
        to_result = to_result / nd.astype(parts.lengths, data.dtype)
    each = parts.of_elements(to_result)
    if reduce in ("max", "min"):
        best = parts.of_elements(result)
        chosen = nd.logical_or(nd.equal(rows, best), nd.logical_and(nd.isnan(rows), nd.isnan(best)))
        shared = parts.fold(nd.astype(chosen, data.dtype), "sum", 0)
        each = nd.where(chosen, each / parts.of_elements(shared), 0.0)
    elif reduce == "prod":
        zero = nd.equal(rows, 0)
        zeros = parts.of_elements(parts.fold(nd.astype(zero, data.dtype), "sum", 0))
        start = 1 if initial is None else initial
        others = parts.of_elements(parts.fold(nd.where(zero, 1.0, rows), "prod", start))
        others = nd.where(zero, others, others / rows)
        each = nd.where(nd.equal(zeros, nd.astype(zero, data.dtype)), each * others, 0.0)
    return nd.reshape(each, data.shape)
