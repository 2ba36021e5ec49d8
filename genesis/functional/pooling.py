"""Pooling: one number for every window.

Means are linear: their gradient is their transpose. A maximum is the element at a position, so its
gradient goes to that position, and the gradient of that is read from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import pow, where
from genesis.functional.comparison import eq
from genesis.functional.elementary import abs
from genesis.functional.function import Function
from genesis.functional.linear_map import LinearMap
from genesis.ndarray.ops.sliding_windows import per_axis

Sizes = int | Sequence[int]
Wanted = int | Sequence[int | None] | None


def _lengths(x: Any, rank: int) -> tuple[Any, ...]:
    return tuple(x.shape[len(x.shape) - rank :])


# ---- greatest elements


class MaxPool(Function):
    """Greatest elements of spatial dimensions, and their positions, as `pool` finds them.

    `put` gives what comes back for each of them to its position.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Any, rank: int, pool: Callable[..., Any], put: Callable[..., Any]
    ) -> Any:
        ctx.rank, ctx.put = rank, partial(put, lengths=_lengths(x, rank))
        values, indices = pool(x, return_indices=True)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        (indices,) = ctx.saved_tensors
        read = partial(nd.at_positions, rank=ctx.rank)
        return LinearMap.apply(grad, ctx.put, read, indices), None, None, None


def _greatest(
    x: Any,
    rank: int,
    pool: Callable[..., Any],
    return_indices: bool,
    put: Callable[..., Any] = nd.put_at_positions,
) -> Any:
    values, indices = MaxPool.apply(x, rank, pool, put)
    return (values, indices) if return_indices else values


def _max_pool(
    rank: int,
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    how: dict[str, Any] = {
        "kernel_size": kernel_size,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
    pool = partial(
        (nd.max_pool1d, nd.max_pool2d, nd.max_pool3d)[rank - 1], ceil_mode=ceil_mode, **how
    )
    return _greatest(input, rank, pool, return_indices, partial(nd.max_pool_gradient, **how))


def max_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of every window of the last dimension, and where it stands if wanted."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of every window of the last two dimensions.

    >>> import genesis
    >>> x = genesis.tensor([[[[1.0, 3.0], [2.0, 0.0]]]], requires_grad=True)
    >>> max_pool2d(x, 2).sum().backward()
    >>> x.grad.tolist()
    [[[[0.0, 1.0], [0.0, 0.0]]]]
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of every window of the last three dimensions."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _max_unpool(
    rank: int,
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
) -> Any:
    function = (nd.max_unpool1d, nd.max_unpool2d, nd.max_unpool3d)[rank - 1]
    unpool = partial(
        function, kernel_size=kernel_size, stride=stride, padding=padding, output_size=output_size
    )
    return LinearMap.apply(input, unpool, partial(nd.at_positions, rank=rank), indices)


def max_unpool1d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Zeros, with `input` at the positions that `max_pool1d` returned."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Zeros, with `input` at the positions that `max_pool2d` returned."""
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Zeros, with `input` at the positions that `max_pool3d` returned."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


def adaptive_max_pool1d(input: Any, output_size: Wanted, return_indices: bool = False) -> Any:
    """The greatest elements of `output_size` nearly equal windows of the last dimension."""
    pool = partial(nd.adaptive_max_pool1d, output_size=_wanted(output_size, 1))
    return _greatest(input, 1, pool, return_indices)


def adaptive_max_pool2d(input: Any, output_size: Wanted, return_indices: bool = False) -> Any:
    """The greatest elements of nearly equal windows of the last two dimensions."""
    pool = partial(nd.adaptive_max_pool2d, output_size=_wanted(output_size, 2))
    return _greatest(input, 2, pool, return_indices)


def adaptive_max_pool3d(input: Any, output_size: Wanted, return_indices: bool = False) -> Any:
    """The greatest elements of nearly equal windows of the last three dimensions."""
    pool = partial(nd.adaptive_max_pool3d, output_size=_wanted(output_size, 3))
    return _greatest(input, 3, pool, return_indices)


def _fractional(
    rank: int,
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None,
    output_ratio: float | Sequence[float] | None,
    return_indices: bool,
    samples: Any,
) -> Any:
    function = (nd.fractional_max_pool2d, nd.fractional_max_pool3d)[rank - 2]
    pool = partial(
        function,
        kernel_size=kernel_size,
        output_size=output_size,
        output_ratio=output_ratio,
        random_samples=getattr(samples, "array", samples),
    )
    return _greatest(input, rank, pool, return_indices)


def fractional_max_pool2d(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """The greatest elements of windows at pseudo-random distances, over two dimensions."""
    return _fractional(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


def fractional_max_pool3d(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """The greatest elements of windows at pseudo-random distances, over three dimensions."""
    return _fractional(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


# ---- means


def _avg_pool(
    rank: int, input: Any, kernel_size: Sizes, stride: Sizes | None, *options: Any
) -> Any:
    size = per_axis(f"avg_pool{rank}d", "kernel_size", kernel_size, rank)
    names = ("padding", "ceil_mode", "count_include_pad", "divisor_override")
    windows = {"kernel_size": size, "stride": stride, **dict(zip(names, options, strict=False))}
    function = (nd.avg_pool1d, nd.avg_pool2d, nd.avg_pool3d)[rank - 1]
    back = partial(nd.avg_pool_gradient, lengths=_lengths(input, rank), **windows)
    return LinearMap.apply(input, partial(function, **windows), back)


def avg_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of every window of the last dimension."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of every window of the last two dimensions."""
    return _avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of every window of the last three dimensions."""
    return _avg_pool(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _wanted(output_size: Wanted, rank: int) -> Any:
    return [None] * rank if output_size is None else output_size


def _adaptive_avg(rank: int, input: Any, output_size: Wanted) -> Any:
    function = (nd.adaptive_avg_pool1d, nd.adaptive_avg_pool2d, nd.adaptive_avg_pool3d)[rank - 1]
    there = partial(function, output_size=_wanted(output_size, rank))
    back = partial(nd.adaptive_avg_pool_gradient, lengths=_lengths(input, rank))
    return LinearMap.apply(input, there, back)


def adaptive_avg_pool1d(input: Any, output_size: Wanted) -> Any:
    """The means of `output_size` nearly equal windows of the last dimension."""
    return _adaptive_avg(1, input, output_size)


def adaptive_avg_pool2d(input: Any, output_size: Wanted) -> Any:
    """The means of nearly equal windows of the last two dimensions, as many along each as given."""
    return _adaptive_avg(2, input, output_size)


def adaptive_avg_pool3d(input: Any, output_size: Wanted) -> Any:
    """The means of nearly equal windows of the last three dimensions."""
    return _adaptive_avg(3, input, output_size)


def _lp_pool(
    rank: int,
    input: Any,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None,
    ceil_mode: bool,
) -> Any:
    """The p-norm of every window: of a window that reaches beyond the edge, as if it went on."""
    if norm_type == math.inf:
        return _max_pool(rank, abs(input), kernel_size, stride, 0, 1, ceil_mode, False)
    mean = _avg_pool(rank, pow(input, norm_type), kernel_size, stride, 0, ceil_mode)
    total = mean * math.prod(per_axis(f"lp_pool{rank}d", "kernel_size", kernel_size, rank))
    # The root has no slope at 0; a window of zeros learns nothing.
    still = eq(total, 0)
    return where(still, 0.0, pow(where(still, 1.0, total), 1 / norm_type))


def lp_pool1d(
    input: Any,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Any:
    """The p-norm of every window of the last dimension."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Any,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Any:
    """The p-norm of every window of the last two dimensions."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Any,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Any:
    """The p-norm of every window of the last three dimensions."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "fractional_max_pool2d", "fractional_max_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
    "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip
