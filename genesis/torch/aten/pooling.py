"""Pooling and its way back.

A mean's gradient is its transpose. A maximum is an element at a position, so its gradient is put
where the position says, and a second derivative is read from there.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ir.size import product
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import Unsupported, kernel

Sizes = Any
Pair = tuple[NDArray, NDArray]


def _per_axis(sizes: Sizes, rank: int) -> tuple[int, ...]:
    listed = (sizes,) if isinstance(sizes, int) else tuple(map(index, sizes))
    return listed * rank if len(listed) == 1 else listed


def _lengths(x: NDArray, rank: int) -> tuple[int, ...]:
    return tuple(map(index, x.shape[x.ndim - rank :]))


def _step(stride: Sizes, size: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return size if stride is None or stride == [] else _per_axis(stride, rank)


# ---- greatest elements


def _max_pool(rank: int) -> Callable[..., Pair]:
    def pool(
        x: NDArray,
        kernel_size: Sizes,
        stride: Sizes = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Pair:
        size = _per_axis(kernel_size, rank)
        edge, apart = _per_axis(padding, rank), _per_axis(dilation, rank)
        step = _step(stride, size, rank)
        found = nd.max_pool(x, size, step, edge, apart, ceil_mode, return_indices=True)
        assert isinstance(found, tuple)
        return found

    return pool


def _max_pool_backward(rank: int) -> Callable[..., NDArray]:
    def backward(
        grad_output: NDArray,
        x: NDArray,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: NDArray,
    ) -> NDArray:
        return nd.put_at_positions(grad_output, indices, _lengths(x, rank))

    return backward


def _adaptive_max_pool(rank: int) -> Callable[..., Pair]:
    function = (nd.adaptive_max_pool1d, nd.adaptive_max_pool2d, nd.adaptive_max_pool3d)[rank - 1]

    def pool(x: NDArray, output_size: Sizes) -> Pair:
        found = function(x, _per_axis(output_size, rank), return_indices=True)
        assert isinstance(found, tuple)
        return found

    return pool


def _positions_backward(rank: int) -> Callable[..., NDArray]:
    def backward(grad_output: NDArray, x: NDArray, indices: NDArray) -> NDArray:
        return nd.put_at_positions(grad_output, indices, _lengths(x, rank))

    return backward


def _max_unpool(rank: int) -> Callable[..., NDArray]:
    def unpool(x: NDArray, indices: NDArray, output_size: Sizes, *_: Any, **__: Any) -> NDArray:
        return nd.max_unpool(x, indices, _per_axis(output_size, rank))

    return unpool


def _fractional_max_pool(rank: int) -> Callable[..., Pair]:
    function = nd.fractional_max_pool2d if rank == 2 else nd.fractional_max_pool3d

    def pool(x: NDArray, kernel_size: Sizes, output_size: Sizes, random_samples: NDArray) -> Pair:
        size, wanted = _per_axis(kernel_size, rank), _per_axis(output_size, rank)
        found = function(x, size, wanted, None, True, random_samples)
        assert isinstance(found, tuple)
        return found

    return pool


def _fractional_backward(rank: int) -> Callable[..., NDArray]:
    def backward(
        grad_output: NDArray, x: NDArray, kernel_size: Sizes, output_size: Sizes, indices: NDArray
    ) -> NDArray:
        return nd.put_at_positions(grad_output, indices, _lengths(x, rank))

    return backward


for _rank in (1, 2, 3):
    kernel(f"max_pool{_rank}d_with_indices")(_max_pool(_rank))
    kernel(f"adaptive_max_pool{_rank}d")(_adaptive_max_pool(_rank))
for _rank in (2, 3):
    kernel(f"max_pool{_rank}d_with_indices_backward")(_max_pool_backward(_rank))
    kernel(f"adaptive_max_pool{_rank}d_backward")(_positions_backward(_rank))
    kernel(f"max_unpool{_rank}d")(_max_unpool(_rank))
    kernel(f"fractional_max_pool{_rank}d")(_fractional_max_pool(_rank))
    kernel(f"fractional_max_pool{_rank}d_backward")(_fractional_backward(_rank))


# ---- means


def _avg_pool(rank: int) -> Callable[..., NDArray]:
    def pool(
        x: NDArray,
        kernel_size: Sizes,
        stride: Sizes = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> NDArray:
        size = _per_axis(kernel_size, rank)
        where = _step(stride, size, rank), _per_axis(padding, rank)
        if not (x.dtype.is_float or x.dtype.is_integer):
            raise Unsupported(f"a mean of {x.dtype}")
        # Of integers it is rounded towards 0; float64 has those up to 2**53.
        wide = x.astype(float64) if x.dtype.is_integer else x
        mean = nd.avg_pool(wide, size, *where, ceil_mode, count_include_pad, divisor_override)
        return nd.trunc(mean).astype(x.dtype) if x.dtype.is_integer else mean

    return pool


def _avg_pool_backward(rank: int) -> Callable[..., NDArray]:
    def backward(
        grad_output: NDArray,
        x: NDArray,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> NDArray:
        size = _per_axis(kernel_size, rank)
        where = _step(stride, size, rank), _per_axis(padding, rank)
        return nd.avg_pool_gradient(
            grad_output, _lengths(x, rank), size, *where, ceil_mode, count_include_pad,
            divisor_override,
        )  # fmt: skip

    return backward


def _adaptive_avg_pool(rank: int) -> Callable[..., NDArray]:
    function = (nd.adaptive_avg_pool1d, nd.adaptive_avg_pool2d, nd.adaptive_avg_pool3d)[rank - 1]

    def pool(x: NDArray, output_size: Sizes) -> NDArray:
        wanted = _per_axis(output_size, rank)
        if 0 in wanted or product(x.shape) == 0:
            return nd.zeros((*x.shape[: x.ndim - rank], *wanted), x.dtype, x.device)
        return function(x, wanted)

    return pool


def _adaptive_avg_pool_backward(rank: int) -> Callable[..., NDArray]:
    def backward(grad_output: NDArray, x: NDArray) -> NDArray:
        if product(grad_output.shape) == 0:
            return nd.zeros_like(x)
        return nd.adaptive_avg_pool_gradient(grad_output, _lengths(x, rank))

    return backward


for _rank in (1, 2, 3):
    kernel(f"avg_pool{_rank}d")(_avg_pool(_rank))
    kernel(f"adaptive_avg_pool{_rank}d")(_adaptive_avg_pool(_rank))
for _rank in (2, 3):
    kernel(f"avg_pool{_rank}d_backward")(_avg_pool_backward(_rank))
    kernel(f"_adaptive_avg_pool{_rank}d")(_adaptive_avg_pool(_rank))
    kernel(f"_adaptive_avg_pool{_rank}d_backward")(_adaptive_avg_pool_backward(_rank))
