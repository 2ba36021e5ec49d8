"""Pooling over windows of unequal size or at irregular places.

Adaptive pooling cuts an axis into a given number of nearly equal windows; fractional pooling puts
windows of one size at random distances. Where each window begins and ends is integer arithmetic,
and all windows are read by one gather; equal windows side by side need not even that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from operator import index as as_int

import numpy as np

from genesis.ir.dtype import int64
from genesis.ir.size import Dim, product, same
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops import pooling
from genesis.ndarray.ops import sliding_windows as sliding
from genesis.ndarray.ops.elementwise import minimum, trunc, where
from genesis.ndarray.ops.function_variants import of_ranks
from genesis.ndarray.ops.movement import concat, expand, narrow, permute, reshape
from genesis.ndarray.ops.pooling import Pooled, greatest, require_float
from genesis.ndarray.ops.reduction import amax
from genesis.ndarray.ops.sliding_windows import PerAxis, batched, counting, number, pick, spread
from genesis.ndarray.random import uniform

Sizes = int | Sequence[Dim | None]  # None keeps an axis as it is

#: The most different windows of an axis that are averaged one by one.
UNROLLED = 16


# ---- adaptive


def adaptive_avg_pool(x: NDArray, output_size: Sizes, *, rank: int = 1) -> NDArray:
    """Means of nearly equal windows over {axes}, the last, as many along each as given."""
    require_float(f"adaptive_avg_pool{rank}d", x)
    lengths, wanted = _sizes(f"adaptive_avg_pool{rank}d", rank, x, output_size)
    even = _even(lengths, wanted)
    if even is not None and all(isinstance(k, int) for k in even):
        return pooling.avg_pool(x, even)  # type: ignore[arg-type]
    if even is not None:
        wide = _blocks(x.astype(x.dtype.accumulator), wanted, even)
        return wide.mean(tuple(range(-rank, 0))).astype(x.dtype)
    pairs = [(as_int(n), as_int(o)) for n, o in zip(lengths, wanted, strict=True)]
    if all(o // gcd(n, o) <= UNROLLED for n, o in pairs):
        total = x.astype(x.dtype.accumulator)
        for a, (n, o) in enumerate(pairs, x.ndim - rank):
            total = _means(total, a, n, o)
        return total.astype(x.dtype)
    cuts = [_cuts(n, o, x) for n, o in pairs]
    total = _sums(x.astype(x.dtype.accumulator), cuts)
    for a, (_, _, count) in enumerate(cuts):
        total = total / spread(count.astype(total.dtype), 0, rank - a)
    return total.astype(x.dtype)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = of_ranks(adaptive_avg_pool, 1, 2, 3)


def _blocks(x: NDArray, counts: Sequence[Dim], sizes: Sequence[Dim]) -> NDArray:
    """Equal windows side by side: ``(.., *spatial) -> (.., *counts, *sizes)``."""
    rank = len(counts)
    first = x.ndim - rank
    split = [s for pair in zip(counts, sizes, strict=True) for s in pair]
    blocks = reshape(x, (*x.shape[:first], *split))
    order = (*range(first, first + 2 * rank, 2), *range(first + 1, first + 2 * rank, 2))
    return permute(blocks, (*range(first), *order))


def _means(x: NDArray, axis: int, n: int, count: int) -> NDArray:
    """Means of `count` windows along one axis of n, each taken by itself.

    Where windows begin and end repeats along the axis; a period of it has but a few of them.
    """
    periods = gcd(n, count)
    period, each = n // periods, count // periods
    folded = reshape(x, (*x.shape[:axis], periods, period, *x.shape[axis + 1 :]))
    parts = []
    for k in range(each):
        start, stop = k * period // each, -(-(k + 1) * period // each)
        part = narrow(folded, axis + 1, start, stop - start)
        parts.append(part.mean(axis + 1, keepdims=True))
    return reshape(concat(parts, axis + 1), (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def adaptive_avg_pool_gradient(gradient: NDArray, lengths: Sequence[Dim]) -> NDArray:
    """The gradient of an adaptive mean for its input, whose spatial axes have the given lengths.

    The windows that an element is in are themselves such windows: element h of n is in windows
    ``floor(h*o / n)`` to ``ceil((h + 1)*o / n)`` of o. So the way back is a sum of their shares.
    """
    rank = len(lengths)
    batched("adaptive_avg_pool_gradient", gradient, rank)
    counts = gradient.shape[gradient.ndim - rank :]
    if any(n < 1 for n in (*lengths, *counts)):
        raise ValueError(
            f"adaptive_avg_pool_gradient: no windows of shape {tuple(lengths)} give the gradient's "
            f"shape {gradient.shape}"
        )
    even = _even(lengths, counts)
    if even is not None and all(isinstance(k, int) for k in even):
        return pooling.avg_pool_gradient(gradient, lengths, even)  # type: ignore[arg-type]
    if even is not None:
        shares = gradient.astype(gradient.dtype.accumulator) / product(even)
        lead = gradient.shape[: gradient.ndim - rank]
        shares = reshape(shares, (*lead, *(s for n in counts for s in (n, 1))))
        pairs = zip(counts, even, strict=True)
        shares = expand(shares, (*lead, *(s for pair in pairs for s in pair)))
        return reshape(shares, (*lead, *lengths)).astype(gradient.dtype)
    lengths, counts = [as_int(n) for n in lengths], tuple(as_int(n) for n in counts)
    total = gradient.astype(gradient.dtype.accumulator)
    for a, (n, o) in enumerate(zip(lengths, counts, strict=True)):
        total = total / spread(_cuts(n, o, total)[2].astype(total.dtype), a, rank)
    cuts = [_cuts(o, n, total) for n, o in zip(lengths, counts, strict=True)]
    return _sums(total, cuts).astype(gradient.dtype)


def _sums(x: NDArray, cuts: Sequence[Cut]) -> NDArray:
    """The sums over windows of the last axes."""
    rank = len(cuts)
    seen = pick(x, _places([at for at, _, _ in cuts]))
    for a, (_, inside, _) in enumerate(cuts):
        seen = where(_place(inside, a, rank), seen, 0)
    return seen.sum(tuple(range(-rank, 0)))


def _adaptive_max_pool(
    x: NDArray, output_size: Sizes, return_indices: bool = False, *, rank: int = 1
) -> Pooled:
    """Greatest elements, with their positions if wanted, of nearly equal windows over {axes}."""
    lengths, wanted = _sizes(f"adaptive_max_pool{rank}d", rank, x, output_size)
    even = _even(lengths, wanted)
    if even is not None and all(isinstance(k, int) for k in even):
        return pooling.max_pool(x, even, return_indices=return_indices)  # type: ignore[arg-type]
    if even is not None:
        blocks = _blocks(x, wanted, even)
        if not return_indices:
            return amax(blocks, tuple(range(-rank, 0)))
        places = reshape(counting(product(lengths), x), lengths)
        return greatest(blocks, _blocks(places, wanted, even), rank)
    # A window that is shorter than the longest sees its last element again.
    cuts = [_cuts(n, o, x)[0] for n, o in zip(lengths, wanted, strict=True)]
    return _maxima(x, _places(cuts), rank, return_indices)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = of_ranks(
    _adaptive_max_pool, 1, 2, 3
)


def _sizes(name: str, rank: int, x: NDArray, output_size: Sizes) -> tuple[Shape, list[Dim]]:
    """The lengths of the spatial axes, and how many windows each is cut into."""
    batched(name, x, rank)
    lengths = x.shape[x.ndim - rank :]
    listed = [output_size] * rank if isinstance(output_size, int) else list(output_size)
    wanted = [n if o is None else o for n, o in zip(lengths, listed, strict=False)]
    if len(listed) != rank or any(n < 1 for n in (*wanted, *lengths)):
        raise ValueError(
            f"{name}: cannot cut the last {rank} axes of shape {x.shape} into {output_size} windows"
        )
    return lengths, wanted


def _even(lengths: Sequence[Dim], wanted: Sequence[Dim]) -> list[Dim] | None:
    """The size of the windows if they are equal and side by side."""
    pairs = list(zip(lengths, wanted, strict=True))
    return [n // o for n, o in pairs] if all(same(n % o, 0) for n, o in pairs) else None


#: Of windows along an axis: positions (count, longest), which are inside, and lengths.
Cut = tuple[NDArray, NDArray, NDArray]


def _cuts(length: Dim, windows: Dim, x: NDArray) -> Cut:
    """Window i goes from ``floor(i*n / count)`` to ``ceil((i + 1)*n / count)``."""
    n, count = as_int(length), as_int(windows)
    numbers = np.arange(count)
    longest = int(np.max(-(-(numbers + 1) * n // count) - numbers * n // count))
    i, each = counting(count, x), number(count, x)
    start = i * number(n, x) // each
    end = ((i + 1) * number(n, x) + number(count - 1, x)) // each
    at = reshape(start, (count, 1)) + counting(longest, x)
    last = reshape(end, (count, 1))
    return minimum(at, last - 1), at < last, end - start


# ---- fractional


def _fractional_max_pool(
    x: NDArray,
    kernel_size: PerAxis,
    output_size: PerAxis | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    random_samples: NDArray | None = None,
    *,
    rank: int = 2,
    name: str = "fractional_max_pool",
) -> Pooled:
    """Greatest elements of windows over {axes}, at pseudo-random distances (Graham 2014).

    The output's size is given, or its ratio to the input's. `random_samples` (batch, channels,
    axes) between 0 and 1 choose the distances of each plane; drawn if not given. Of two axes the
    last one has the first of them, three have them in order.
    """
    batch, single = batched(name, x, rank)
    size = sliding.per_axis(name, "kernel_size", kernel_size, rank)
    lengths = [as_int(n) for n in batch.shape[2:]]
    if (output_size is None) == (output_ratio is None):
        raise ValueError(f"{name}: give output_size or output_ratio")
    if output_ratio is not None:
        ratios = [output_ratio] * rank if isinstance(output_ratio, int | float) else output_ratio
        output_size = [int(n * r) for n, r in zip(lengths, ratios, strict=True)]
    assert output_size is not None
    wanted = sliding.per_axis(name, "output_size", output_size, rank)
    if any(o < 1 or k < 1 or o + k - 1 > n for n, k, o in zip(lengths, size, wanted, strict=True)):
        raise ValueError(
            f"{name}: {wanted} windows of {size} do not fit the spatial axes of {x.shape}"
        )
    if random_samples is None:
        random_samples = uniform((*batch.shape[:2], rank), dtype=x.dtype)
    if random_samples.shape != (*batch.shape[:2], rank):
        raise ValueError(
            f"{name}: random_samples need shape {(*batch.shape[:2], rank)}, "
            f"not {random_samples.shape}"
        )
    places = [_spaced(counting(batch.shape[d], x), d, 2 + 2 * rank) for d in range(2)]
    for a, (n, k, o) in enumerate(zip(lengths, size, wanted, strict=True)):
        begin = _beginnings(random_samples[:, :, 1 - a if rank == 2 else a], n, k, o)
        shape = (*begin.shape[:2], *(o if d == a else 1 for d in range(rank)), *(1,) * rank)
        places.append(reshape(begin, shape) + _spaced(counting(k, x), rank + a, 2 * rank))
    found = _maxima(batch, places, rank, return_indices)
    if not single:
        return found
    return tuple(r[0] for r in found) if isinstance(found, tuple) else found[0]  # type: ignore[return-value]


def _beginnings(samples: NDArray, n: int, size: int, count: int) -> NDArray:
    """Where windows begin along an axis of n: (batch, channels, count)."""
    i = counting(count, samples)
    last = number(n - size, samples)
    if count == 1:
        return reshape(last, (1, 1, 1)).expand(*samples.shape, 1)
    u = samples.unsqueeze(-1)
    alpha = (n - size) / (count - 1)
    steps = trunc((i.astype(u.dtype) + u) * alpha) - trunc(u * alpha)
    return where(i < number(count - 1, samples), steps.astype(int64), last)


fractional_max_pool2d, fractional_max_pool3d = of_ranks(_fractional_max_pool, 2, 3)


# ---- windows by their positions


def _place(table: NDArray, axis: int, rank: int) -> NDArray:
    """A table (windows, elements) of one axis, laid into (*windows, *elements) of all."""
    shape = [1] * (2 * rank)
    shape[axis], shape[rank + axis] = map(as_int, table.shape)
    return reshape(table, shape)


def _places(tables: Sequence[NDArray]) -> list[NDArray]:
    return [_place(table, a, len(tables)) for a, table in enumerate(tables)]


def _spaced(x: NDArray, axis: int, rank: int) -> NDArray:
    return reshape(x, tuple(x.shape[0] if d == axis else 1 for d in range(rank)))


def _maxima(x: NDArray, places: Sequence[NDArray], rank: int, return_indices: bool) -> Pooled:
    """The greatest of the elements at these places, and its position among the spatial axes."""
    seen = pick(x, places)
    if not return_indices:
        return amax(seen, tuple(range(-rank, 0)))
    spatial = places[len(places) - rank :]
    flat = spatial[0]
    for n, p in zip(x.shape[x.ndim - rank + 1 :], spatial[1:], strict=True):
        flat = flat * number(n, x) + p
    return greatest(seen, flat, rank)


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_avg_pool_gradient", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
]  # fmt: skip
