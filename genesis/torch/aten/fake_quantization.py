"""Fake quantization: values rounded to the steps that an integer type would have.

The mask tells where the integer was in range, which is where a gradient passes.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.movement import normal_axis
from genesis.torch.aten.registry import implements


@implements("fake_quantize_per_tensor_affine_cachemask")
def _per_tensor(
    x: NDArray, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[NDArray, NDArray]:
    wide = x.astype(x.dtype.accumulator)
    step = nd.round(wide * nd.divide(1, scale)) + zero_point
    inside = (step >= quant_min) & (step <= quant_max)
    value = (nd.clip(step, quant_min, quant_max) - zero_point) * scale
    return value.astype(x.dtype), inside


@implements("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _per_tensor_if_enabled(
    x: NDArray, scale: NDArray, zero_point: NDArray, enabled: NDArray, least: int, most: int
) -> tuple[NDArray, NDArray]:
    value, inside = _per_tensor(x, scale.reshape(()), zero_point.reshape(()), least, most)
    on = enabled.reshape(()) != 0
    return nd.where(on, value, x), nd.logical_or(inside, nd.logical_not(on))


@implements("fake_quantize_per_channel_affine_cachemask")
def _per_channel(
    x: NDArray, scale: NDArray, zero_point: NDArray, axis: int, quant_min: int, quant_max: int
) -> tuple[NDArray, NDArray]:
    channel = normal_axis("fake_quantize_per_channel_affine", axis, x.ndim)
    shape = tuple(x.shape[d] if d == channel else 1 for d in range(x.ndim))
    return _per_tensor(x, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


@implements(
    "fake_quantize_per_tensor_affine_cachemask_backward",
    "fake_quantize_per_channel_affine_cachemask_backward",
)
def _backward(grad: NDArray, mask: NDArray) -> NDArray:
    return nd.where(mask, grad, 0)
