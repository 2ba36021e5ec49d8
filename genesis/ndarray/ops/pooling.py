"""Pooling: a reduction of every window of the trailing (spatial) axes.

Padding and windows are index arithmetic, so a pooling is one kernel that reads its input where it
lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis.ir.dtype import int32, int64
from genesis.ir.size import Dim, Size, product
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.creation import zeros
from genesis.ndarray.ops.elementwise import abs, isnan, maximum, minimum, pow, where
from genesis.ndarray.ops.gather_scatter import scatter
from genesis.ndarray.ops.movement import expand, reshape, windows
from genesis.ndarray.ops.reduction import amax, amin
from genesis.ndarray.ops.sliding_windows import (
    PerAxis,
    added,
    batched,
    counting,
    number,
    pad_spatial,
    parameters,
    per_axis,
    slide,
    spread,
)

Pooled = NDArray | tuple[NDArray, NDArray]


# ---- greatest elements


def max_pool(
    x: NDArray,
    kernel_size: Sequence[int],
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pooled:
    """The greatest element of every window; NaN if there is one.

    `kernel_size` has a size for each spatial axis. The stride is the window's size if not given.
    `ceil_mode` lets the last window reach beyond the far edge. With `return_indices` also the
    position of the (first) greatest element, counted over the spatial axes in row-major order.

    >>> from genesis import ndarray as nd
    >>> max_pool(nd.array([[1.0, 3.0, 2.0, 5.0]]), (2,)).tolist()
    [[3.0, 5.0]]
    """
    return _max_pool("max_pool", len(kernel_size), x, kernel_size, stride, padding, dilation,
                     ceil_mode, return_indices)  # fmt: skip


def max_pool1d(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pooled:
    """`max_pool` over one spatial axis."""
    return _max_pool("max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode,
                     return_indices)  # fmt: skip


def max_pool2d(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pooled:
    """`max_pool` over two spatial axes."""
    return _max_pool("max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode,
                     return_indices)  # fmt: skip


def max_pool3d(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pooled:
    """`max_pool` over three spatial axes."""
    return _max_pool("max_pool3d", 3, x, kernel_size, stride, padding, dilation, ceil_mode,
                     return_indices)  # fmt: skip


def _max_pool(
    name: str,
    rank: int,
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    dilation: PerAxis,
    ceil_mode: bool,
    return_indices: bool,
) -> Pooled:
    size, step, apart, edge = _parameters(name, rank, x, kernel_size, stride, padding, dilation)
    edges, _ = _extended(name, x, size, step, apart, edge, ceil_mode)
    seen = slide(pad_spatial(x, edges, x.dtype.min), size, step, apart)
    if not return_indices:
        return amax(seen, tuple(range(-rank, 0)))
    lengths = x.shape[x.ndim - rank :]
    count = product(lengths)
    # Numbers as narrow as the elements usually are fit into as many lanes.
    narrow = int32 if count < (1 << 31) - 1 else int64
    places = reshape(counting(count, x).astype(narrow), lengths)
    # Positions in the padding are behind all others, so a window of -inf finds its own first.
    places = slide(pad_spatial(places, edges, narrow.max), size, step, apart)
    return greatest(seen, places, rank)


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


def max_unpool1d(
    x: NDArray,
    indices: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> NDArray:
    """`max_unpool` over one spatial axis, to the size that such a pooling starts from."""
    return _max_unpool("max_unpool1d", 1, x, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    x: NDArray,
    indices: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> NDArray:
    """`max_unpool` over two spatial axes, to the size that such a pooling starts from."""
    return _max_unpool("max_unpool2d", 2, x, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    x: NDArray,
    indices: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> NDArray:
    """`max_unpool` over three spatial axes, to the size that such a pooling starts from."""
    return _max_unpool("max_unpool3d", 3, x, indices, kernel_size, stride, padding, output_size)


def _max_unpool(
    name: str,
    rank: int,
    x: NDArray,
    indices: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    output_size: Sequence[Dim] | None,
) -> NDArray:
    size, step, _, edge = _parameters(name, rank, x, kernel_size, stride, padding, 1)
    if output_size is None:
        each = zip(x.shape[x.ndim - rank :], size, step, edge, strict=True)
        output_size = [(n - 1) * s - 2 * p + k for n, k, s, p in each]
    return max_unpool(x, indices, output_size[len(output_size) - rank :])


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


# ---- means


def avg_pool(
    x: NDArray,
    kernel_size: Sequence[int],
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> NDArray:
    """The mean of every window.

    `kernel_size` has a size for each spatial axis. Padding counts as zeros, or not at all without
    `count_include_pad`; what `ceil_mode` lets the last window see beyond it never counts. A
    `divisor_override` replaces the count.

    >>> from genesis import ndarray as nd
    >>> avg_pool(nd.array([[1.0, 3.0, 2.0, 6.0]]), (2,)).tolist()
    [[2.0, 4.0]]
    """
    return _avg_pool("avg_pool", len(kernel_size), x, kernel_size, stride, padding, ceil_mode,
                     count_include_pad, divisor_override)  # fmt: skip


def avg_pool1d(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> NDArray:
    """`avg_pool` over one spatial axis."""
    return _avg_pool("avg_pool1d", 1, x, kernel_size, stride, padding, ceil_mode,
                     count_include_pad, None)  # fmt: skip


def avg_pool2d(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> NDArray:
    """`avg_pool` over two spatial axes."""
    return _avg_pool("avg_pool2d", 2, x, kernel_size, stride, padding, ceil_mode,
                     count_include_pad, divisor_override)  # fmt: skip


def avg_pool3d(
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> NDArray:
    """`avg_pool` over three spatial axes."""
    return _avg_pool("avg_pool3d", 3, x, kernel_size, stride, padding, ceil_mode,
                     count_include_pad, divisor_override)  # fmt: skip


def _avg_pool(
    name: str,
    rank: int,
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> NDArray:
    if not x.dtype.is_float:
        raise TypeError(f"{name}: needs floating point, not {x.dtype}; cast with .astype first")
    if divisor_override == 0:
        raise ValueError(f"{name}: divisor_override must not be 0")
    size, step, apart, edge = _parameters(name, rank, x, kernel_size, stride, padding, 1)
    edges, counts = _extended(name, x, size, step, apart, edge, ceil_mode)
    wide = x.astype(x.dtype.accumulator)
    total = slide(pad_spatial(wide, edges), size, step, apart).sum(tuple(range(-rank, 0)))
    lengths = x.shape[x.ndim - rank :]
    geometry = lengths, counts, size, step, edge
    return _divided(total, geometry, count_include_pad, divisor_override).astype(x.dtype)


def _divided(
    total: NDArray,
    geometry: Sequence[Sequence[Any]],
    count_include_pad: bool,
    divisor_override: int | None,
) -> NDArray:
    """Something for every window, divided by how many elements count in it."""
    if divisor_override is not None:
        return total / divisor_override
    fixed = 1
    for a, (n, count, k, s, p) in enumerate(zip(*geometry, strict=True)):
        before, after = (p, n + p) if count_include_pad else (0, n)
        if p <= before and (count - 1) * s - p + k <= after:
            fixed *= k
            continue
        # Counted by arithmetic, axis by axis, so that it stays in the kernel of the sum.
        start = counting(count, total) * number(s, total) - number(p, total)
        end = minimum(start + number(k, total), number(after, total))
        inside = end - maximum(start, number(-before, total))
        total = total / spread(inside.astype(total.dtype), a, len(geometry[0]))
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
    rank = len(kernel_size)
    step = kernel_size if stride is None or stride == () else stride
    name = "avg_pool_gradient"
    size, step, apart, edge = parameters(name, rank, kernel_size, step, 1, padding)
    counts = _counted(name, gradient, lengths, rank)
    wide = gradient.astype(gradient.dtype.accumulator)
    geometry = lengths, counts, size, step, edge
    shares = _divided(wide, geometry, count_include_pad, divisor_override)
    shares = expand(reshape(shares, (*shares.shape, *(1,) * rank)), (*shares.shape, *size))
    return added(shares, lengths, step, apart, edge).astype(gradient.dtype)


def lp_pool1d(
    x: NDArray,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> NDArray:
    """`lp_pool` over one spatial axis."""
    return _lp_pool("lp_pool1d", 1, x, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    x: NDArray,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> NDArray:
    """`lp_pool` over two spatial axes."""
    return _lp_pool("lp_pool2d", 2, x, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    x: NDArray,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> NDArray:
    """`lp_pool` over three spatial axes."""
    return _lp_pool("lp_pool3d", 3, x, norm_type, kernel_size, stride, ceil_mode)


def _lp_pool(
    name: str,
    rank: int,
    x: NDArray,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    ceil_mode: bool,
) -> NDArray:
    """The p-norm of every window: of a window that reaches beyond the edge, as if it went on."""
    if norm_type == 0:
        raise ValueError(f"{name}: there is no norm of order 0")
    if norm_type in (math.inf, -math.inf):
        side = 1 if norm_type > 0 else -1
        best = _max_pool(name, rank, abs(x) * side, kernel_size, stride, 0, 1, ceil_mode, False)
        assert isinstance(best, NDArray)
        return best * side
    size = per_axis(name, "kernel_size", kernel_size, rank)
    mean = _avg_pool(name, rank, pow(x, norm_type), size, stride, 0, ceil_mode, True, None)
    return pow(mean * product(size), 1 / norm_type)


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


def _counted(name: str, gradient: NDArray, lengths: Sequence[Dim], rank: int) -> Shape:
    """The numbers of windows along the axes of the gradient of a pooling."""
    batched(name, gradient, rank)
    if len(lengths) != rank:
        raise ValueError(f"{name}: {tuple(lengths)} are lengths of {len(lengths)} axes, not {rank}")
    return gradient.shape[gradient.ndim - rank :]


def _parameters(
    name: str,
    rank: int,
    x: NDArray,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    dilation: PerAxis,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, strides, dilations and paddings of the windows over x, checked."""
    batched(name, x, rank)
    step = kernel_size if stride is None or stride == () else stride
    found = parameters(name, rank, kernel_size, step, dilation, padding)
    size, _, apart, edge = found
    if any(2 * p > d * (k - 1) + 1 for k, d, p in zip(size, apart, edge, strict=True)):
        raise ValueError(f"{name}: padding {edge} must be at most half of kernel_size {size}")
    return found


def _extended(
    name: str,
    x: NDArray,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
) -> tuple[list[tuple[Dim, Dim]], list[Dim]]:
    """What to add before and after each axis so that all windows fit, and their number."""
    edges: list[tuple[Dim, Dim]] = []
    counts: list[Dim] = []
    lengths = x.shape[x.ndim - len(size) :]
    for n, k, s, d, p in zip(lengths, size, stride, dilation, padding, strict=True):
        reach = d * (k - 1) + 1
        room = n + 2 * p - reach
        if room < 0 and not (ceil_mode and room > -s):
            raise ValueError(
                f"{name}: windows of {tuple(size)} with dilation {tuple(dilation)} do not fit "
                f"shape {x.shape} padded by {tuple(padding)}"
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
    "avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool_gradient",
    "local_response_norm", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool", "max_pool1d",
    "max_pool2d", "max_pool3d", "max_unpool", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip
