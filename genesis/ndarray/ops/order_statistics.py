"""Statistics of order: medians, quantiles, the most frequent element, histograms.

Single places of the order are selected (`sorting.selected`), which takes a fraction of the time of
sorting. How many NaN a row has decides which place is meant, so places are data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from genesis.ir.dtype import float32, float64, int64
from genesis.ir.size import Dim, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant
from genesis.ndarray.core.value_checks import demand
from genesis.ndarray.ops.creation import asarray, linspace, zeros
from genesis.ndarray.ops.cumulative import cummax
from genesis.ndarray.ops.elementwise import (
    ceil,
    clip,
    floor,
    isfinite,
    isnan,
    minimum,
    round,
    where,
)
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.gather_scatter import combined
from genesis.ndarray.ops.grids import bucketize
from genesis.ndarray.ops.movement import concat, moveaxis, narrow
from genesis.ndarray.ops.reduction import amax, amin, argmax
from genesis.ndarray.ops.reduction import sum as total
from genesis.ndarray.ops.sorting import Sorted, along, reduced, selected, sort, with_last
from genesis.ndarray.ops.special.formula import Term


def _middle(
    x: NDArray, axis: int | None = None, keepdims: bool = False, *, name: str = "median"
) -> Any:
    """The middle element, the lower one of two; NaN if there is one.

    Along an axis with its position (of the first NaN, if there is one), else of the whole array.

    >>> from genesis import ndarray as nd
    >>> nd.median(nd.array([4.0, 1.0, 3.0, 2.0])).item()
    2.0
    """
    if axis is None:
        if x.size == 0:
            if not x.dtype.is_float:
                raise ValueError(f"{name}: there are no elements in shape {x.shape}")
            return wrap(constant(math.nan, x.dtype, x.device))
        values = _middle(x.reshape((x.size,)), 0, name=name).values
        return values.reshape((1,) * x.ndim) if keepdims else values
    last, a = _rows(name, x, axis)
    n = Term(primitive.extent(last.shape[-1], int64, x.device))
    ranks = wrap((n - 1).divide(2).value).expand((*last.shape[:-1], 1))
    if x.dtype.is_float:
        nans = total(isnan(last), -1, keepdims=True)
        # NaN come last, so the first of them follows the numbers.
        rest = wrap(n.value) - nans
        ranks = (rest - 1) // 2 if name == "nanmedian" else where(nans > 0, rest, ranks)
    return reduced(selected(last, ranks), x, a, keepdims)


_NUMBERS = "`{}` of the elements that are not NaN; NaN if there are none."
median = variant(_middle, "median")
nanmedian = variant(_middle, "nanmedian", _NUMBERS.format("median"))


def _rows(name: str, x: NDArray, axis: int) -> tuple[NDArray, int]:
    """The array with an axis moved to the end, which has elements, and the axis."""
    last, a = with_last(name, x, axis)
    if last.shape[-1] == 0:
        raise ValueError(f"{name}: no elements along axis {axis} of shape {x.shape}")
    return last, a


# ---- quantiles

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


#: So many quantiles at once are selected one by one; for more the array is sorted.
_FEW = 2


def _quantiles(
    x: NDArray,
    q: Any,
    axis: int | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
    *,
    name: str = "quantile",
) -> NDArray:
    """The elements below which a fraction `q` of the others lies; NaN if there is one.

    Several fractions are a first axis of the result. Where one lies between two elements,
    `interpolation` is linear, lower, higher, midpoint or nearest.
    """
    if x.dtype not in (float32, float64):
        raise TypeError(f"{name}: needs float32 or float64, not {x.dtype}; cast with .astype first")
    if interpolation not in _INTERPOLATIONS:
        raise ValueError(
            f"{name}: interpolation is one of {', '.join(_INTERPOLATIONS)}, not {interpolation!r}"
        )
    fractions = _fractions(name, q, x)
    rest: Shape
    ones: Shape
    if axis is None:
        last, rest, ones = x.reshape((1, x.size)), (), (1,) * x.ndim
    else:
        last, a = _rows(name, x, axis)
        rest = last.shape[:-1]
        ones = tuple(1 if d == a else extent for d, extent in enumerate(x.shape))
    if last.shape[-1] == 0:
        raise ValueError(f"{name}: there are no elements in shape {x.shape}")
    skip = name == "nanquantile"
    nans = total(isnan(last), -1, keepdims=True)
    n = wrap(primitive.extent(last.shape[-1], int64, x.device))
    count = (n - nans if skip else n).astype(fractions.dtype)
    place = (fractions.reshape((-1,)) * (count - 1)).astype(float64)
    place = clip(place, 0.0).expand((*last.shape[:-1], fractions.size))
    rule = {"lower": floor, "higher": ceil, "nearest": round}.get(interpolation)
    if rule is not None:
        found = _at(last, rule(place).astype(int64))
    else:
        low = floor(place)
        ends = _at(last, concat([low, ceil(place)], -1).astype(int64))
        m = fractions.size
        first, second = (narrow(ends, last.ndim - 1, start, m) for start in (0, m))
        weight = 0.5 if interpolation == "midpoint" else (place - low).astype(x.dtype)
        # Where both are one element, infinity less infinity would be NaN.
        found = where(first == second, first, first + (second - first) * weight)
    missing = nans == n if skip else nans > 0
    found = where(missing, math.nan, found)
    rows = moveaxis(found, -1, 0)
    rows = rows.reshape((fractions.size, *(ones if keepdims else rest)))
    return rows if fractions.ndim else rows[0]


quantile = variant(_quantiles, "quantile")
nanquantile = variant(_quantiles, "nanquantile", _NUMBERS.format("quantile"))


def _at(last: NDArray, ranks: NDArray) -> NDArray:
    """The elements at some places of the order of each row."""
    if bool(ranks.shape[-1] <= 2 * _FEW):
        return selected(last, ranks).values
    return along(sort(last).values, ranks, -1)


def _fractions(name: str, q: Any, x: NDArray) -> NDArray:
    # Numbers in float64: float32 could not tell the places of long rows apart.
    fractions = asarray(q, dtype=None if isinstance(q, NDArray) else float64, device=x.device)
    if not fractions.dtype.is_float:
        raise TypeError(f"{name}: q must be floating point, not {fractions.dtype}")
    if fractions.ndim > 1:
        raise ValueError(f"{name}: q is a number or a vector, not of shape {fractions.shape}")
    numbers = [q] if isinstance(q, int | float) else q if isinstance(q, list | tuple) else []
    for number in numbers:
        if not 0 <= number <= 1:
            raise ValueError(f"{name}: q must be between 0 and 1, not {number}")
    return fractions


# ---- the most frequent element


def mode(x: NDArray, axis: int = -1, keepdims: bool = False) -> Sorted:
    """The most frequent element along an axis, the least of several, and its last position."""
    last, a = _rows("mode", x, axis)
    if 0 in last.shape:
        empty = Sorted(last[..., :1], zeros((*last.shape[:-1], 1), int64, x.device))
        return reduced(empty, x, a, keepdims)
    values, order = sort(last)
    end, n = last.ndim - 1, last.shape[-1]
    at = wrap(primitive.along(primitive.iota(n, x.device), end, last.shape))
    changes = narrow(values, end, 1, n - 1) != narrow(values, end, 0, n - 1)
    first = wrap(constant(0, int64, x.device)).expand((*last.shape[:-1], 1))
    starts = concat([first, where(changes, narrow(at, end, 1, n - 1), 0)], -1)
    # The count of a run grows along it, so its end is where it is greatest.
    ends = argmax(at - cummax(starts, -1).values, -1, keepdims=True)
    return reduced(Sorted(along(values, ends, -1), along(order, ends, -1)), x, a, keepdims)


# ---- histograms


class Histogram(NamedTuple):
    """Counts, or densities, and the edges of the bins."""

    hist: NDArray
    bin_edges: NDArray


def histogram(
    x: NDArray,
    bins: int | Sequence[float] | NDArray,
    range: tuple[float, float] | None = None,
    weights: NDArray | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements lie in each bin, or the sum of their weights.

    `bins` are edges in ascending order, or a number of bins of one width over `range`, by default
    from the least to the greatest element. The last bin includes its upper edge. With `density`
    the integral over all bins is 1.

    >>> from genesis import ndarray as nd
    >>> nd.histogram(nd.array([0.5, 1.5, 1.7]), bins=2, range=(0.0, 2.0)).hist.tolist()
    [1.0, 2.0]
    """
    if x.dtype not in (float32, float64):
        raise TypeError(f"histogram: needs float32 or float64, not {x.dtype}; use .astype first")
    if weights is not None and weights.shape != x.shape:
        raise ValueError(f"histogram: weights {weights.shape} for elements of shape {x.shape}")
    flat = x.reshape((x.size,))
    if isinstance(bins, int):
        low, high = _range("histogram", flat, range)
        edges = _edges(low, high, bins)
        place = _uniform(flat, low, high, bins)
    else:
        edges = asarray(bins, device=x.device).astype(x.dtype)
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise ValueError(f"histogram: edges are a vector of two or more, not {edges.shape}")
        # What lies below the first edge has no place, -1, anyway.
        place = minimum(bucketize(flat, edges, right=True) - 1, edges.shape[0] - 2)
        place = where(flat <= narrow(edges, 0, edges.shape[0] - 1, 1), place, -1)
    held = None if weights is None else weights.reshape((x.size,)).astype(x.dtype)
    counts = _counted(place, held, edges.shape[0] - 1, x)
    if density:
        widths = narrow(edges, 0, 1, counts.shape[0]) - narrow(edges, 0, 0, counts.shape[0])
        counts = counts / (total(counts) * widths)
    return Histogram(counts, edges)


class HistogramDD(NamedTuple):
    """Counts, or densities, and the edges of the bins of every axis."""

    hist: NDArray
    bin_edges: tuple[NDArray, ...]


def histogramdd_edges(
    x: NDArray, bins: Sequence[int], range: Sequence[float] | None = None
) -> list[NDArray]:
    """The edges of so many bins of one width for every coordinate of points."""
    points = x.reshape(-1, x.shape[-1])
    found = []
    for d, count in enumerate(bins):
        ends = None if range is None else (range[2 * d], range[2 * d + 1])
        found.append(histogram(points[:, d], count, ends).bin_edges)
    return found


def histogramdd(
    x: NDArray,
    bins: int | Sequence[Any],
    range: Sequence[float] | None = None,
    weight: NDArray | None = None,
    density: bool = False,
) -> HistogramDD:
    """How many points, whose coordinates are the last axis, lie in each cell of a grid.

    `bins` are numbers of bins of one width for every coordinate, or arrays of their edges.
    """
    points = x.reshape(-1, x.shape[-1])
    each: list[Any] = [bins] * int(x.shape[-1]) if isinstance(bins, int) else list(bins)
    if len(each) != x.shape[-1]:
        raise ValueError(f"histogramdd: {len(each)} bins for points of shape {x.shape}")
    counted = all(isinstance(one, int) for one in each)
    edges: list[NDArray] = histogramdd_edges(x, each, range) if counted else each
    shape = tuple(ends.shape[0] - 1 for ends in edges)
    size = product(shape)
    place: Any = 0
    inside: Any = True
    for d, ends in enumerate(edges):
        along, last = points[:, d], ends[-1]
        at = where(along == last, shape[d] - 1, bucketize(along, ends, right=True) - 1)
        inside = (along >= ends[0]) & (along <= last) & inside
        place = place * shape[d] + at
    weights = None if weight is None else weight.reshape(-1).astype(x.dtype)
    result = _counted(where(inside, place, -1), weights, size, x).reshape(shape)
    if density:
        result = result / result.sum()
        for d, ends in enumerate(edges):
            widths = ends[1:] - ends[:-1]
            result = result / widths.reshape(-1, *(1,) * (len(shape) - d - 1))
    return HistogramDD(result, tuple(edges))


def histc(x: NDArray, bins: int = 100, min: float = 0, max: float = 0) -> NDArray:
    """How many elements lie in each of some bins of one width between two numbers.

    Where these are equal, between the least and the greatest element.
    """
    if not x.dtype.is_float:
        raise TypeError(f"histc: needs floating point, not {x.dtype}; cast with .astype first")
    flat = x.reshape((x.size,))
    low, high = _range("histc", flat, None if min == max else (min, max))
    return _counted(_uniform(flat, low, high, bins), None, bins, x)


def _range(name: str, flat: NDArray, given: tuple[float, float] | None) -> tuple[NDArray, NDArray]:
    """The ends of the bins; where they would be equal, 1/2 apart from there."""
    if given is not None:
        low, high = given
        if not low <= high or math.isinf(low) or math.isinf(high):
            raise ValueError(f"{name}: the range from {low} to {high} is not one")
        ends = [asarray(end, dtype=flat.dtype, device=flat.device) for end in given]
    elif flat.shape[0] == 0:
        ends = [asarray(end, dtype=flat.dtype, device=flat.device) for end in (0.0, 1.0)]
    else:
        complaint = f"{name}: the range of the elements is not finite"
        ends = [demand(x, lambda y: ~isfinite(y), complaint) for x in (amin(flat), amax(flat))]
    first, second = ends
    same = first == second
    return where(same, first - 0.5, first), where(same, second + 0.5, second)


def _edges(low: NDArray, high: NDArray, bins: int) -> NDArray:
    if bins < 1:
        raise ValueError(f"histogram: needs at least one bin, not {bins}")
    part = linspace(0.0, 1.0, bins + 1, dtype=low.dtype, device=low.device)
    return where(part == 1, high, low + (high - low) * part)


def _uniform(flat: NDArray, low: NDArray, high: NDArray, bins: int) -> NDArray:
    """The bin of each element; -1 outside."""
    if bins < 1:
        raise ValueError(f"histc: needs at least one bin, not {bins}")
    place = floor((flat - low) / (high - low) * bins).astype(int64)
    place = where(place >= bins, bins - 1, place)
    return where((flat >= low) & (flat <= high), place, -1)


def _counted(place: NDArray, weights: NDArray | None, bins: Dim, x: NDArray) -> NDArray:
    """The sums of weights, or counts, of the elements at each place; -1 does not exist."""
    kind = int64 if weights is None else x.dtype
    base = primitive.broadcast(constant(0, kind, x.device), (bins,))
    ones = primitive.broadcast(constant(1, int64, x.device), place.shape)
    new = ones if weights is None else weights.value
    return wrap(cast(combined(base, [place.value], new, [0], "add"), x.dtype))


__all__ = [
    "HistogramDD", "histc", "histogram", "histogramdd", "histogramdd_edges", "median", "mode",
    "nanmedian", "nanquantile", "quantile",
]  # fmt: skip
