"""Pooling and its way back.

A mean's gradient is its transpose. A maximum is an element at a position, so its gradient is put
where the position says, and a second derivative is read from there.
"""

from __future__ import annotations

from functools import partial
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ir.size import product
from genesis.ndarray import NDArray
from genesis.ndarray.ops.sliding_windows import per_axis
from genesis.torch.aten.registry import Implementation, Unsupported, implements

Sizes = Any


def _lengths(x: NDArray, rank: int) -> tuple[int, ...]:
    return tuple(map(index, x.shape[x.ndim - rank :]))


def _windows(
    rank: int, kernel_size: Sizes, stride: Sizes = None, padding: Sizes = 0, *rest: Any
) -> tuple[Any, ...]:
    """Sizes, strides and paddings for each axis, and what else says how to pool."""
    size = per_axis("pool", "kernel_size", kernel_size, rank)
    step = size if stride is None or stride == [] else per_axis("pool", "stride", stride, rank)
    return size, step, per_axis("pool", "padding", padding, rank), *rest


# ---- greatest elements


def _max_pool(rank: int, x: NDArray, *windows: Any) -> Any:
    pool: Any = partial(nd.max_pool, return_indices=True)
    return pool(x, *_windows(rank, *windows))


def _max_pool_backward(
    rank: int, grad: NDArray, x: NDArray, kernel_size: Sizes, stride: Sizes, *rest: Any
) -> NDArray:
    padding, dilation, _, indices = rest
    windows = _windows(rank, kernel_size, stride, padding, dilation)
    return nd.max_pool_gradient(grad, indices, _lengths(x, rank), *windows)


def _adaptive_max_pool(rank: int, x: NDArray, output_size: Sizes) -> Any:
    function = (nd.adaptive_max_pool1d, nd.adaptive_max_pool2d, nd.adaptive_max_pool3d)[rank - 1]
    return function(x, per_axis("pool", "output_size", output_size, rank), return_indices=True)


def _fractional_max_pool(
    rank: int, x: NDArray, kernel_size: Sizes, output_size: Sizes, random_samples: NDArray
) -> Any:
    function = nd.fractional_max_pool2d if rank == 2 else nd.fractional_max_pool3d
    return function(x, kernel_size, output_size, None, True, random_samples)


def _positions_backward(rank: int, grad: NDArray, x: NDArray, *how: Any) -> NDArray:
    return nd.put_at_positions(grad, how[-1], _lengths(x, rank))


def _max_unpool(
    rank: int, x: NDArray, indices: NDArray, output_size: Sizes, *_: Any, **__: Any
) -> NDArray:
    return nd.max_unpool(x, indices, per_axis("pool", "output_size", output_size, rank))


# ---- means


def _avg_pool(rank: int, x: NDArray, *windows: Any) -> NDArray:
    how = _windows(rank, *windows)
    if not (x.dtype.is_float or x.dtype.is_integer):
        raise Unsupported(f"a mean of {x.dtype}")
    if x.dtype.is_float:
        return nd.avg_pool(x, *how)
    # Of integers it is rounded towards 0; float64 has those up to 2**53.
    return nd.trunc(nd.avg_pool(x.astype(float64), *how)).astype(x.dtype)


def _avg_pool_backward(rank: int, grad: NDArray, x: NDArray, *windows: Any) -> NDArray:
    return nd.avg_pool_gradient(grad, _lengths(x, rank), *_windows(rank, *windows))


def _adaptive_avg_pool(rank: int, x: NDArray, output_size: Sizes) -> NDArray:
    function = (nd.adaptive_avg_pool1d, nd.adaptive_avg_pool2d, nd.adaptive_avg_pool3d)[rank - 1]
    wanted = per_axis("pool", "output_size", output_size, rank)
    if 0 in wanted or product(x.shape) == 0:
        return nd.zeros((*x.shape[: x.ndim - rank], *wanted), x.dtype, x.device)
    return function(x, wanted)


def _adaptive_avg_pool_backward(rank: int, grad: NDArray, x: NDArray) -> NDArray:
    if product(grad.shape) == 0:
        return nd.zeros_like(x)
    return nd.adaptive_avg_pool_gradient(grad, _lengths(x, rank))


_FUNCTIONS: dict[str, Implementation] = {
    "max_pool{}d_with_indices": _max_pool,
    "adaptive_max_pool{}d": _adaptive_max_pool,
    "avg_pool{}d": _avg_pool,
    "adaptive_avg_pool{}d": _adaptive_avg_pool,
}
#: What there is of planes and volumes only.
_OF_PLANES: dict[str, Implementation] = {
    "max_pool{}d_with_indices_backward": _max_pool_backward,
    "adaptive_max_pool{}d_backward": _positions_backward,
    "fractional_max_pool{}d": _fractional_max_pool,
    "fractional_max_pool{}d_backward": _positions_backward,
    "max_unpool{}d": _max_unpool,
    "avg_pool{}d_backward": _avg_pool_backward,
    "_adaptive_avg_pool{}d": _adaptive_avg_pool,
    "_adaptive_avg_pool{}d_backward": _adaptive_avg_pool_backward,
}
for _rank in (1, 2, 3):
    for _name, _function in (_FUNCTIONS if _rank == 1 else _FUNCTIONS | _OF_PLANES).items():
        implements(_name.format(_rank))(partial(_function, _rank))
