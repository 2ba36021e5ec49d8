"""Pooling: a reduction of every window of the trailing (spatial) axes.

Padding and windows are index arithmetic, so a pooling is one kernel that reads its input where it
lies. A greatest element is at a position, to which gradients go back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis.ir.dtype import float64, int32, int64
from genesis.ir.size import Dim, Size, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.realisation import backend_of
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops import sliding_windows as sliding
from genesis.ndarray.ops.creation import zeros
from genesis.ndarray.ops.elementwise import abs, isnan, maximum, minimum, pow, where
from genesis.ndarray.ops.function_variants import of_ranks
from genesis.ndarray.ops.gather_scatter import combined, scatter
from genesis.ndarray.ops.movement import expand, reshape, windows
from genesis.ndarray.ops.reduction import amax, amin
from genesis.ndarray.ops.sliding_windows import PerAxis, Window, counting, number, pad_spatial

Pooled = NDArray | tuple[NDArray, NDArray]


# ---- greatest elements


def _max_pool(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    rank: int | None = None,
    name: str = "max_pool",
) -> Pooled:
    """The greatest element of every window over {axes}; NaN if there is one.

    `kernel_size` has a size for each of them. The stride is the window's size if not given.
    `ceil_mode` lets the last window reach beyond the far edge. With `return_indices` also the
    position of the (first) greatest element, counted over the spatial axes in row-major order.

    >>> from genesis import ndarray as nd
    >>> max_pool(nd.array([[1.0, 3.0, 2.0, 5.0]]), (2,)).tolist()
    [[3.0, 5.0]]
    """
    rank = len(kernel_size) if rank is None else rank  # type: ignore[arg-type]
    window = _window(name, rank, kernel_size, stride, padding, dilation)
    edges, _ = _laid(name, x, window, ceil_mode)
    if not return_indices:
        return _maxima(x, window, edges)
    lengths = x.shape[x.ndim - rank :]
    count = product(lengths)
    # Numbers as narrow as the elements usually are fit into as many lanes.
    narrow = int32 if count < (1 << 31) - 1 else int64
    places = reshape(counting(count, x).astype(narrow), lengths)
    # Positions in the padding are behind all others, so a window of -inf finds its own first.
    places = sliding.slide(pad_spatial(places, edges, narrow.max), window)
    seen = sliding.slide(pad_spatial(x, edges, x.dtype.min), window)
    return greatest(seen, places, rank)


max_pool, max_pool1d, max_pool2d, max_pool3d = of_ranks(_max_pool, None, 1, 2, 3)


def _maxima(x: NDArray, window: Window, edges: sliding.Edges) -> NDArray:
    seen = sliding.slide(pad_spatial(x, edges, x.dtype.min), window)
    return amax(seen, tuple(range(-len(edges), 0)))


def greatest(seen: NDArray, places: NDArray, rank: int) -> tuple[NDArray, NDArray]:
    """The greatest element over the last axes, and the least of the places where it stands."""
    axes = tuple(range(-rank, 0))
    best = amax(seen, axes, keepdims=True)
    found = seen == best
    if seen.dtype.is_float:
        found = found | isnan(seen)
    never = number(places.dtype.max, seen).astype(places.dtype)  # type: ignore[arg-type]
    first = amin(where(found, places, never), axes)
    return reshape(best, best.shape[:-rank]), first.astype(int64)


def _max_unpool(
    x: NDArray,
    indices: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    output_size: Sequence[Dim] | None = None,
    *,
    rank: int = 1,
    name: str = "max_unpool",
) -> NDArray:
    """`max_unpool` over {axes}, to the size that such a pooling starts from."""
    window = _window(name, rank, kernel_size, stride, padding)
    _require_half(name, x, window)
    if output_size is None:
        each = zip(x.shape[x.ndim - rank :], *window, strict=True)
        output_size = [(n - 1) * s - 2 * p + k for n, k, s, _, p in each]
    return max_unpool(x, indices, output_size[len(output_size) - rank :])


max_unpool1d, max_unpool2d, max_unpool3d = of_ranks(_max_unpool, 1, 2, 3)


def max_unpool(x: NDArray, indices: NDArray, output_size: Sequence[Dim]) -> NDArray:
    """Zeros of the given spatial size, with x at the positions that `max_pool` returned.

    Of several values for one position the last one stays.

    >>> from genesis import ndarray as nd
    >>> max_unpool(nd.array([[3.0, 5.0]]), nd.array([[1, 3]]), (4,)).tolist()
    [[0.0, 3.0, 0.0, 5.0]]
    """
    rank = len(output_size)
    if x.shape != indices.shape or x.ndim < rank or not indices.dtype.is_integer:
        raise ValueError(
            f"max_unpool: values {x.shape} and positions {indices.shape} ({indices.dtype}) must be "
            f"alike, with {rank} spatial axes"
        )
    lead = x.shape[: x.ndim - rank]
    planes = product(lead)
    each = product(x.shape[len(lead) :])
    nothing = zeros((planes, product(output_size)), dtype=x.dtype, device=x.device)
    rows = reshape(x, (planes, each)), reshape(indices, (planes, each))
    return reshape(scatter(nothing, rows[1], rows[0], 1), (*lead, *output_size))


# ---- positions that a pooling returned


def at_positions(x: NDArray, indices: NDArray, rank: int) -> NDArray:
    """Of each plane of x the elements at positions that a pooling returned."""
    lead = x.shape[: x.ndim - rank]
    axes, where = _places(indices, lead, x.shape[len(lead) :])
    planes = reshape(x, (product(lead), *axes))
    found = primitive.gather_at(planes.value, where, range(len(where)))
    return reshape(wrap(found), indices.shape)


def put_at_positions(x: NDArray, indices: NDArray, lengths: Sequence[Dim]) -> NDArray:
    """The transpose of `at_positions`: zeros of spatial lengths, with x added at positions."""
    lead = x.shape[: x.ndim - len(lengths)]
    axes, where = _places(indices, lead, lengths)
    nothing = zeros((product(lead), *axes), dtype=x.dtype, device=x.device)
    new = reshape(x, (product(lead), *x.shape[len(lead) :])).value
    total = combined(nothing.value, where, new, tuple(range(len(where))), "add")
    return reshape(wrap(total), (*lead, *lengths))


def _places(
    indices: NDArray, lead: Sequence[Dim], lengths: Sequence[Dim]
) -> tuple[Sequence[Dim], list[Value]]:
    """The axes of a plane as they are indexed, and the indices: of planes, then in each of them.

    A plane is one axis where it can be: positions are counted along that. Of several symbolic sizes
    it cannot, for nothing would be known about their product.
    """
    planes = product(lead)
    at = reshape(indices.astype(int64), (planes, *indices.shape[len(lead) :]))
    rows = primitive.along(primitive.iota(planes, at.device), 0, at.shape)
    if sum(isinstance(n, Size) for n in lengths) < 2:
        return (product(lengths),), [rows, at.value]
    along: list[Value] = []
    for n in reversed(lengths[1:]):
        along.insert(0, (at % number(n, at)).value)
        at = at // number(n, at)
    return lengths, [rows, at.value, *along]


def max_pool_gradient(
    gradient: NDArray,
    indices: NDArray,
    lengths: Sequence[Dim],
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
) -> NDArray:
    """The gradient of `max_pool` for its input, whose spatial axes have the given lengths.

    A core goes from window to window and adds. Where many threads would have to wait for each
    other then, each element looks at the few windows it lies in instead.
    """
    if not backend_of(gradient.device).chip.contends_in_scatters:
        return put_at_positions(gradient, indices, lengths)
    name, rank = "max_pool_gradient", len(lengths)
    window = _window(name, rank, kernel_size, stride, padding, dilation)
    sliding.batched(name, gradient, rank)
    return looked_up(gradient, indices, lengths, window)


def looked_up(
    gradient: NDArray, indices: NDArray, lengths: Sequence[Dim], window: Window
) -> NDArray:
    """For each element the sum of what comes from windows whose positions are its own."""
    rank = len(lengths)
    each = zip(lengths, gradient.shape[gradient.ndim - rank :], *window, strict=True)
    # The last window may reach farther than the padding does.
    edges = [(p, max(0, (c - 1) * s + d * (k - 1) + 1 - n - p)) for n, c, k, s, d, p in each]
    places = reshape(counting(product(lengths), gradient).astype(indices.dtype), lengths)
    places = sliding.slide(pad_spatial(places, edges, -1), window)
    ones = (1,) * rank
    wide = reshape(gradient.astype(gradient.dtype.accumulator), (*gradient.shape, *ones))
    found = reshape(indices, (*indices.shape, *ones)) == places
    shares = where(found, wide, zeros((), dtype=wide.dtype, device=wide.device))
    return sliding.added(shares, lengths, window).astype(gradient.dtype)


# ---- means


def _avg_pool(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    rank: int | None = None,
    name: str = "avg_pool",
) -> NDArray:
    """The mean of every window over {axes}.

    `kernel_size` has a size for each of them. Padding counts as zeros, or not at all without
    `count_include_pad`; what `ceil_mode` lets the last window see beyond it never counts. A
    `divisor_override` replaces the count.

    >>> from genesis import ndarray as nd
    >>> avg_pool(nd.array([[1.0, 3.0, 2.0, 6.0]]), (2,)).tolist()
    [[2.0, 4.0]]
    """
    rank = len(kernel_size) if rank is None else rank  # type: ignore[arg-type]
    if x.dtype is not int64:  # of these the mean is cut to an integer
        require_float(name, x)
    if divisor_override == 0:
        raise ValueError(f"{name}: divisor_override must not be 0")
    window = _window(name, rank, kernel_size, stride, padding)
    return _means(name, x, window, ceil_mode, count_include_pad, divisor_override)


avg_pool, avg_pool1d, avg_pool2d, avg_pool3d = of_ranks(_avg_pool, None, 1, 2, 3)


def _means(
    name: str,
    x: NDArray,
    window: Window,
    ceil_mode: bool,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> NDArray:
    edges, counts = _laid(name, x, window, ceil_mode)
    wide = x.astype(x.dtype.accumulator)
    total = sliding.slide(pad_spatial(wide, edges), window).sum(tuple(range(-len(edges), 0)))
    lengths = x.shape[x.ndim - len(edges) :]
    total = total.astype(float64) if x.dtype is int64 else total
    mean = _divided(total, lengths, counts, window, count_include_pad, divisor_override)
    return mean.astype(x.dtype)


def _divided(
    total: NDArray,
    lengths: Sequence[Dim],
    counts: Sequence[Dim],
    window: Window,
    count_include_pad: bool,
    divisor_override: int | None,
) -> NDArray:
    """Something for every window, divided by how many elements count in it."""
    if divisor_override is not None:
        return total / divisor_override
    fixed = 1
    for a, (n, count, k, s, _, p) in enumerate(zip(lengths, counts, *window, strict=True)):
        before, after = (p, n + p) if count_include_pad else (0, n)
        if p <= before and (count - 1) * s - p + k <= after:
            fixed *= k
            continue
        # Counted by arithmetic, axis by axis, so that it stays in the kernel of the sum.
        start = counting(count, total) * number(s, total) - number(p, total)
        end = minimum(start + number(k, total), number(after, total))
        inside = end - maximum(start, number(-before, total))
        total = total / sliding.spread(inside.astype(total.dtype), a, len(lengths))
    return total / fixed


def avg_pool_gradient(
    gradient: NDArray,
    lengths: Sequence[Dim],
    kernel_size: Sequence[int],
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> NDArray:
    """The gradient of `avg_pool` for its input, whose spatial axes have the given lengths."""
    name, rank = "avg_pool_gradient", len(kernel_size)
    window = _window(name, rank, kernel_size, stride, padding)
    sliding.batched(name, gradient, rank)
    if len(lengths) != rank:
        raise ValueError(f"{name}: {tuple(lengths)} are lengths of {len(lengths)} axes, not {rank}")
    counts = gradient.shape[gradient.ndim - rank :]
    wide = gradient.astype(gradient.dtype.accumulator)
    shares = _divided(wide, lengths, counts, window, count_include_pad, divisor_override)
    shares = expand(reshape(shares, (*shares.shape, *(1,) * rank)), (*shares.shape, *window.size))
    return sliding.added(shares, lengths, window).astype(gradient.dtype)


def _lp_pool(
    x: NDArray,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
    *,
    rank: int = 1,
    name: str = "lp_pool",
) -> NDArray:
    """The p-norm of every window over {axes}.

    Of a window that reaches beyond the edge it is as if the window went on.
    """
    if norm_type == 0:
        raise ValueError(f"{name}: there is no norm of order 0")
    window = _window(name, rank, kernel_size, stride, 0)
    if norm_type in (math.inf, -math.inf):
        side = 1 if norm_type > 0 else -1
        return _maxima(abs(x) * side, window, _laid(name, x, window, ceil_mode)[0]) * side
    powers = pow(x, norm_type)
    require_float(name, powers)
    mean = _means(name, powers, window, ceil_mode)
    return pow(mean * product(window.size), 1 / norm_type)


lp_pool1d, lp_pool2d, lp_pool3d = of_ranks(_lp_pool, 1, 2, 3)


def local_response_norm(
    x: NDArray, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> NDArray:
    """x divided by a power of the mean square over `size` neighbouring channels (axis 1)."""
    if x.ndim < 3 or size < 1:
        raise ValueError(
            f"local_response_norm: needs (batch, channels, *spatial) and a positive size, got "
            f"shape {x.shape} and size {size}"
        )
    edges = [(size // 2, (size - 1) // 2)] + [(0, 0)] * (x.ndim - 2)
    squares = windows(pad_spatial(x * x, edges), 1, size)
    return x / pow(squares.sum(-1) * (alpha / size) + k, beta)


# ---- geometry


def require_float(name: str, x: NDArray) -> None:
    """Refuse what has no mean."""
    if not x.dtype.is_float:
        raise TypeError(f"{name}: needs floating point, not {x.dtype}; cast with .astype first")


def _window(
    name: str,
    rank: int,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    dilation: PerAxis = 1,
) -> Window:
    """The windows that parameters describe, side by side without a stride."""
    step = kernel_size if stride is None or stride == () else stride
    return sliding.parameters(name, rank, kernel_size, step, dilation, padding)


def _require_half(name: str, x: NDArray, window: Window) -> None:
    """Refuse another rank than that of the windows, and windows that lie in their padding."""
    size, _, apart, edge = window
    sliding.batched(name, x, len(size))
    if any(2 * p > d * (k - 1) + 1 for k, d, p in zip(size, apart, edge, strict=True)):
        raise ValueError(f"{name}: padding {edge} must be at most half of kernel_size {size}")


def _laid(
    name: str, x: NDArray, window: Window, ceil_mode: bool
) -> tuple[list[tuple[Dim, Dim]], list[Dim]]:
    """What to add before and after each axis so that all windows fit, and their number."""
    _require_half(name, x, window)
    edges: list[tuple[Dim, Dim]] = []
    counts: list[Dim] = []
    for n, k, s, d, p in zip(x.shape[x.ndim - len(window.size) :], *window, strict=True):
        reach = d * (k - 1) + 1
        room = n + 2 * p - reach
        if room < 0 and not (ceil_mode and room > -s):
            raise ValueError(
                f"{name}: windows of {window.size} with dilation {window.dilation} do not fit "
                f"shape {x.shape} padded by {window.padding}"
            )
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1  # a window must not start beyond the input and what pads it on the left
        after = (count - 1) * s + reach - n - p
        if isinstance(after, Size) and not ceil_mode:
            after = p  # maybe more than is looked at, but known
        edges.append((p, max(0, after)))
        counts.append(count)
    return edges, counts


__all__ = [
    "at_positions", "avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool_gradient",
    "local_response_norm", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool", "max_pool1d",
    "max_pool2d", "max_pool3d", "max_pool_gradient", "max_unpool", "max_unpool1d", "max_unpool2d",
    "max_unpool3d", "put_at_positions",
]  # fmt: skip
