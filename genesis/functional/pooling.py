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
from genesis.functional.error_messages import per_axis
from genesis.functional.function import Function, one_operation
from genesis.functional.linear_map import LinearMap
from genesis.functional.registry import StatelessLayer, layer
from genesis.functional.spatial_ranks import Sizes, Wanted, of_ranks


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


@one_operation
def max_pool(
    rank: int,
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The greatest element of every window of the last {dimensions}, and where it stands if wanted.

    >>> import genesis
    >>> x = genesis.tensor([[[[1.0, 3.0], [2.0, 0.0]]]], requires_grad=True)
    >>> genesis.max_pool2d(x, 2).sum().backward()
    >>> x.grad.tolist()
    [[[[0.0, 1.0], [0.0, 0.0]]]]
    """
    how: dict[str, Any] = {
        "kernel_size": kernel_size,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
    pool = partial(_arrays("max_pool", rank), ceil_mode=ceil_mode, **how)
    return _greatest(input, rank, pool, return_indices, partial(nd.max_pool_gradient, **how))


_SLIDING = {"stride": "kernel_size"}
_MAX = "kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"
max_pool1d, max_pool2d, max_pool3d = of_ranks(
    max_pool, 1, 2, 3, layer=StatelessLayer("MaxPool{}d", settings=_MAX, defaults=_SLIDING)
)


def max_unpool(
    rank: int,
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Zeros, with `input` at the positions in the last {dimensions} that `max_pool` returned."""
    unpool = partial(
        _arrays("max_unpool", rank),
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        output_size=output_size,
    )
    return LinearMap.apply(input, unpool, partial(nd.at_positions, rank=rank), indices)


max_unpool1d, max_unpool2d, max_unpool3d = of_ranks(
    max_unpool,
    *(1, 2, 3),
    layer=StatelessLayer("MaxUnpool{}d", ("input", "indices", "output_size"), defaults=_SLIDING),
)


def adaptive_max_pool(
    rank: int, input: Any, output_size: Wanted, return_indices: bool = False
) -> Any:
    """The greatest elements of `output_size` nearly equal windows of the last {dimensions}."""
    pool = partial(_arrays("adaptive_max_pool", rank), output_size=_wanted(output_size, rank))
    return _greatest(input, rank, pool, return_indices)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = of_ranks(
    adaptive_max_pool, 1, 2, 3, layer=StatelessLayer("AdaptiveMaxPool{}d")
)


def fractional_max_pool(
    rank: int,
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """The greatest elements of windows at pseudo-random distances in the last {dimensions}."""
    pool = partial(
        _arrays("fractional_max_pool", rank),
        kernel_size=kernel_size,
        output_size=output_size,
        output_ratio=output_ratio,
        random_samples=getattr(_random_samples, "array", _random_samples),
    )
    return _greatest(input, rank, pool, return_indices)


fractional_max_pool2d, fractional_max_pool3d = of_ranks(
    fractional_max_pool,
    2,
    3,
    layer=StatelessLayer("FractionalMaxPool{}d", buffers=("_random_samples",)),
)


# ---- means


@one_operation
def avg_pool(
    rank: int,
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of every window of the last {dimensions}."""
    windows: dict[str, Any] = {
        "kernel_size": per_axis(f"avg_pool{rank}d", "kernel_size", kernel_size, rank),
        "stride": stride,
        "padding": padding,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
    }
    if rank > 1:
        windows["divisor_override"] = divisor_override
    back = partial(nd.avg_pool_gradient, lengths=_lengths(input, rank), **windows)
    return LinearMap.apply(input, partial(_arrays("avg_pool", rank), **windows), back)


avg_pool2d, avg_pool3d = of_ranks(
    avg_pool, 2, 3, layer=StatelessLayer("AvgPool{}d", defaults=_SLIDING)
)


@layer("AvgPool1d", defaults=_SLIDING)
def avg_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of every window of the last dimension."""
    return avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _wanted(output_size: Wanted, rank: int) -> Any:
    return [None] * rank if output_size is None else output_size


def adaptive_avg_pool(rank: int, input: Any, output_size: Wanted) -> Any:
    """The means of `output_size` nearly equal windows of the last {dimensions}."""
    function = _arrays("adaptive_avg_pool", rank)
    there = partial(function, output_size=_wanted(output_size, rank))
    back = partial(nd.adaptive_avg_pool_gradient, lengths=_lengths(input, rank))
    return LinearMap.apply(input, there, back)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = of_ranks(
    adaptive_avg_pool, 1, 2, 3, layer=StatelessLayer("AdaptiveAvgPool{}d")
)


def lp_pool(
    rank: int,
    input: Any,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Any:
    """The p-norm of every window of the last {dimensions}.

    Of a window that reaches beyond the edge it is as if the window went on.
    """
    if norm_type == math.inf:
        return max_pool(rank, abs(input), kernel_size, stride, ceil_mode=ceil_mode)
    mean = avg_pool(rank, pow(input, norm_type), kernel_size, stride, 0, ceil_mode)
    total = mean * math.prod(per_axis(f"lp_pool{rank}d", "kernel_size", kernel_size, rank))
    # The root has no slope at 0; a window of zeros learns nothing.
    still = eq(total, 0)
    return where(still, 0.0, pow(where(still, 1.0, total), 1 / norm_type))


lp_pool1d, lp_pool2d, lp_pool3d = of_ranks(lp_pool, 1, 2, 3, layer=StatelessLayer("LPPool{}d"))


def _arrays(name: str, rank: int) -> Callable[..., Any]:
    """The function of arrays for a rank."""
    found: Callable[..., Any] = getattr(nd, f"{name}{rank}d")
    return found


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "fractional_max_pool2d", "fractional_max_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
    "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip
