"""Order: sorting, elements by their rank, and counting.

What is chosen are elements of the input, so the gradient goes back to the places they came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, lerp, mul, where
from genesis.functional.comparison import isnan
from genesis.functional.error_messages import normal_dim
from genesis.functional.function import Function, is_tensor, plain, with_gradient
from genesis.functional.movement import (
    movedim,
    permute,
    ravel,
    reshape,
    squeeze,
    unsqueeze,
)
from genesis.functional.reduction import Extremes, shared
from genesis.functional.registry import method
from genesis.functional.rounding_and_remainders import ceil, floor
from genesis.functional.rounding_and_remainders import round as rounded
from genesis.functional.scattering import added, gather
from genesis.ir.dtype import float64, int32, int64


class Chosen(Function):
    """Elements that an array function chooses along a dimension, and where they are."""

    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, choose: Callable[..., Any]) -> Any:
        ctx.dim, ctx.shape = dim, x.shape
        values, indices = choose(x)
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        (indices,) = ctx.saved_tensors
        base = nd.zeros(ctx.shape, grad.dtype, grad.device)
        return added(base, ctx.dim, indices, grad), None, None


def chosen(
    name: str, x: Any, dim: int, keepdim: bool, choose: Callable[[Any, int], Any]
) -> Extremes:
    """What an array function of an axis chooses, and where; see `Chosen`."""
    line = x if x.shape else reshape(x, (1,))
    axis = normal_dim(name, dim, len(line.shape))
    found = Chosen.apply(line, axis, lambda a: choose(a, axis))
    if not x.shape:
        return Extremes(*(reshape(part, ()) for part in found))
    return Extremes(*(found if keepdim else (squeeze(part, axis) for part in found)))


@method
def sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Extremes:
    """The elements in order along a dimension, and the positions they had; always stable."""
    return chosen("sort", input, dim, True, lambda x, axis: nd.sort(x, axis, descending))


@method
def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """The positions that put the elements along a dimension in order."""
    return plain(nd.argsort, input, dim, descending)


@method
def msort(input: Any) -> Any:
    """The elements in order along the first dimension."""
    return sort(input, 0).values


@method
def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremes:
    """The k largest or smallest elements along a dimension, and their positions."""
    return chosen("topk", input, dim, True, lambda x, axis: nd.topk(x, k, axis, largest))


@method
def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Extremes:
    """The k-th smallest element along a dimension, counted from 1, and its position."""
    return chosen("kthvalue", input, dim, keepdim, lambda x, axis: nd.kthvalue(x, k, axis, True))


@with_gradient(shared)
def _median(x: Any, dims: Any) -> Any:
    return nd.median(x)


@with_gradient(shared)
def _nanmedian(x: Any, dims: Any) -> Any:
    return nd.nanmedian(x)


@method
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower one of two; along a dimension also its position."""
    if dim is None:
        return _median(input, tuple(range(len(input.shape))))
    return chosen("median", input, dim, keepdim, lambda x, axis: nd.median(x, axis, True))


@method
def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """`median` of the elements that are not NaN."""
    if dim is None:
        return _nanmedian(input, tuple(range(len(input.shape))))
    return chosen("nanmedian", input, dim, keepdim, lambda x, axis: nd.nanmedian(x, axis, True))


@method
def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Extremes:
    """The most frequent element along a dimension, the least of several, and a position of it."""
    return chosen("mode", input, dim, keepdim, lambda x, axis: nd.mode(x, axis, True))


# ---- quantiles


@method
def quantile(
    input: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """The elements below which a fraction `q` of the others lies; NaN if there is one."""
    _require_floats("quantile", input)
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


def _require_floats(name: str, x: Any) -> None:
    if not x.dtype.is_float:
        raise TypeError(f"{name}: needs floating point, not {x.dtype}")


@method
def nanquantile(
    input: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """`quantile` of the elements that are not NaN."""
    _require_floats("nanquantile", input)
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


_METHODS: dict[str, Callable[..., Any]] = {"lower": floor, "higher": ceil, "nearest": rounded}


def _quantile(
    name: str, x: Any, q: Any, dim: int | None, keepdim: bool, method: str, skip: bool
) -> Any:
    if method not in ("linear", "midpoint", *_METHODS):
        raise ValueError(f"{name}: there is no interpolation {method!r}")
    rank = len(x.shape)
    axis = 0 if dim is None else normal_dim(name, dim, max(rank, 1))
    line = ravel(x) if dim is None else movedim(x, axis, -1) if x.shape else reshape(x, (1,))
    if line.shape[-1] == 0:
        raise ValueError(f"{name}: there are no elements in shape {tuple(x.shape)}")
    if isinstance(q, int | float) and not 0 <= q <= 1:
        raise ValueError(f"{name}: q is a fraction from 0 to 1, not {q}")
    fractions = q if hasattr(q, "dtype") else plain(nd.asarray, q, x.dtype)
    several = len(fractions.shape) == 1
    fractions = cast(reshape(fractions, (-1,)), x.dtype)
    ordered = sort(line).values
    unknown = isnan(line)
    some = plain(nd.any, unknown, -1, True)
    if skip:
        counted = cast(plain(nd.sum, plain(nd.logical_not, unknown), -1, True), x.dtype)
        last = plain(nd.maximum, counted - 1, 0)
    else:
        last = cast(some, x.dtype) * 0 + (line.shape[-1] - 1)
    ranks = mul(last, fractions)
    if method in _METHODS:
        found = gather(ordered, -1, cast(_METHODS[method](ranks), int64))
    else:
        low, high = floor(ranks), ceil(ranks)
        weight = ranks - low if method == "linear" else 0.5
        below, above = (gather(ordered, -1, cast(r, int64)) for r in (low, high))
        found = lerp(below, above, weight)
    if not skip:
        found = where(some, float("nan"), found)
    return _placed(found, rank, dim, axis, keepdim, several)


def _placed(x: Any, rank: int, dim: int | None, axis: int, keepdim: bool, several: bool) -> Any:
    """Results for each row along the last dimension, in PyTorch's places."""
    x = permute(x, (len(x.shape) - 1, *range(len(x.shape) - 1)))
    if keepdim and dim is None:
        x = reshape(x, (-1, *(1 for _ in range(rank))))
    elif keepdim and rank:
        x = unsqueeze(x, axis + 1)
    elif not rank:
        x = reshape(x, (-1,))
    return x if several else squeeze(x, 0)


# ---- counting, which has no gradient


@method
def unique(
    input: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in order, where each is among them, and how often there is each."""
    return plain(nd.unique, input, sorted, return_inverse, return_counts, dim)


@method
def unique_consecutive(
    input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The first of every group of equal neighbours; see `unique`."""
    return plain(nd.unique_consecutive, input, return_inverse, return_counts, dim)


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Whether each element is one of `test_elements`, which may repeat whatever is assumed."""
    return plain(nd.isin, elements, test_elements, invert)


@method
def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements lie in each of some bins of one width between two numbers."""
    return plain(nd.histc, input, bins, min, max)


@method
def histogram(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """How many elements lie in each bin, and the edges of the bins."""
    return plain(nd.histogram, input, bins, range, weight, density)


def histogramdd(
    input: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """How many points, whose coordinates are the last dimension, lie in each cell of a grid."""
    edges = bins if isinstance(bins, int) else [b.array if is_tensor(b) else b for b in bins]
    found, *sides = plain(
        lambda *given: (lambda h: (h.hist, *h.bin_edges))(nd.histogramdd(*given)),
        *(input, edges, range, weight, density),
    )
    return nd.HistogramDD(found, tuple(sides))


@method
def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number occurs, or the sum of its weights, which is float64 if they are not."""
    if minlength < 0:
        raise ValueError(f"bincount: minlength {minlength} is negative")
    if weights is not None and not weights.dtype.is_float:
        weights = cast(weights, float64)
    counted = plain(nd.demand, input, lambda x: x < 0, "bincount: numbers are negative")
    return plain(nd.bincount, counted, weights, minlength)


def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Where values belong in rows that are in order: before equal elements, or behind them."""
    if side not in (None, "left", "right"):
        raise ValueError(f"searchsorted: side is 'left' or 'right', not {side!r}")
    if right and side == "left":
        raise ValueError("searchsorted: side is 'left', but right is True")
    behind = right or side == "right"
    return plain(nd.searchsorted, sorted_sequence, input, behind, sorter, out_int32)


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """Which interval between ordered boundaries a value lies in."""
    found = plain(nd.bucketize, input, boundaries, right)
    return cast(found, int32) if out_int32 else found


__all__ = [
    "argsort", "bincount", "bucketize", "histc", "histogram", "histogramdd", "isin", "kthvalue",
    "median", "mode", "msort", "nanmedian", "nanquantile", "quantile", "searchsorted", "sort",
    "topk", "unique", "unique_consecutive",
]  # fmt: skip
