"""Operators on quantised numbers: integers with a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.ir.dtype import as_dtype
from genesis.onnx.dtypes import is_ours, numpy_dtype
from genesis.onnx.operators.contraction import conv
from genesis.onnx.operators.elementwise import cast_on_host
from genesis.onnx.registry import Operand, operator
from genesis.onnx.values import as_host, as_tensor
from genesis.tensor.tensor import Tensor


def _along(scale: Any, x: Any, axis: int, block: int = 0) -> Any:
    """A scale or zero point as it is broadcast: one, or one for each slice or block."""
    if scale is None or scale.ndim == 0 or scale.numel() == 1:
        return scale if scale is None else scale.reshape(())
    axis %= x.ndim
    if block:
        wide = fn.repeat_interleave(scale, block, axis)
        return fn.narrow(wide, axis, 0, x.shape[axis])
    return scale.reshape(*(-1 if k == axis else 1 for k in range(x.ndim)))


def _numbers(x: Any) -> Any:
    """Quantised numbers as a tensor, also where Genesis does not have their type."""
    if isinstance(x, np.ndarray) and not is_ours(x.dtype):
        kind = np.int8 if np.dtype(x.dtype).name.startswith(("int", "uint")) else np.float32
        x = x.astype(kind)
    return as_tensor(x)


def _floats(x: Any) -> Any:
    """A scale as a tensor; powers of two in 8 bits become floats."""
    return as_tensor(
        x.astype(np.float32) if isinstance(x, np.ndarray) and not is_ours(x.dtype) else x
    )


@operator("QuantizeLinear")
def quantize_linear(
    x: Any, scale: Operand, zero_point: Operand = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Any:  # fmt: skip
    """Numbers as integers: x / scale + zero_point, rounded and brought into range."""
    kind = _kind(zero_point, output_dtype)
    scale, zero = _floats(scale), None if zero_point is None else _numbers(zero_point)
    y = x.to(dtypes.float32) / _along(scale, x, axis, block_size).to(dtypes.float32)
    shift = 0 if zero is None else _along(zero, x, axis, block_size).to(dtypes.float32)
    if not np.dtype(kind).name.startswith(("int", "uint")):
        return cast_on_host(as_host(y + shift), kind, bool(saturate))
    y = fn.round(y) + shift
    low, high = _range(kind)
    y = fn.clamp(y, low, high)
    return y.to(as_dtype(kind)) if is_ours(kind) else cast_on_host(as_host(y), kind)


def _kind(zero_point: Any, output_dtype: int) -> np.dtype[Any]:
    if zero_point is None:
        return numpy_dtype(output_dtype) if output_dtype else np.dtype(np.uint8)
    dtype = zero_point.dtype
    kind: np.dtype[Any] = np.dtype(getattr(dtype, "numpy", dtype))
    return kind


def _range(kind: np.dtype[Any]) -> tuple[int, int]:
    import ml_dtypes

    info: Any = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


@operator("DequantizeLinear")
def dequantize_linear(
    x: Operand, scale: Operand, zero_point: Operand = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Any:  # fmt: skip
    """Integers as numbers: (x - zero_point) scale."""
    numbers, scale = _numbers(x), _floats(scale)
    kind = as_dtype(numpy_dtype(output_dtype)) if output_dtype else scale.dtype
    wide = numbers.to(dtypes.float32)
    if zero_point is not None:
        wide = wide - _along(_numbers(zero_point), numbers, axis, block_size).to(dtypes.float32)
    return (wide * _along(scale, numbers, axis, block_size).to(dtypes.float32)).to(kind)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Any) -> Any:
    """Numbers as bytes, with the scale and the zero point that their range asks for."""
    low, high = fn.clamp(fn.amin(x), max=0), fn.clamp(fn.amax(x), min=0)
    scale = (high - low) / 255
    scale = fn.where(scale == 0, fn.mul(scale, 0) + 1, scale)
    zero = fn.clamp(fn.round(-low / scale), 0, 255)
    y = fn.clamp(fn.round(x / scale) + zero, 0, 255)
    return y.to(dtypes.uint8), scale, zero.to(dtypes.uint8)


def _centred(x: Any, zero: Any, axis: int | None = None) -> Any:
    """Integers less their zero point."""
    wide = x.to(dtypes.int32)
    if zero is None:
        return wide
    if zero.ndim == 1 and axis is not None and zero.shape[0] != 1:
        zero = zero.reshape(*(-1 if k == axis % x.ndim else 1 for k in range(x.ndim)))
    elif zero.ndim == 1 and zero.shape[0] == 1:
        zero = zero.reshape(())
    return wide - zero.to(dtypes.int32)


@operator("MatMulInteger")
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The product of matrices of bytes, exactly."""
    return fn.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


@operator("ConvInteger")
def conv_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, **windows: Any) -> Any:
    """The convolution of bytes, exactly."""
    return conv(_centred(x, x_zero), _centred(w, w_zero, 0), **windows)


def _requantized(y: Any, scale: Any, zero: Any) -> Any:
    low, high = _range(zero.dtype.numpy)
    shifted = fn.round(y * scale) + zero.to(dtypes.float32)
    return fn.clamp(shifted, low, high).to(zero.dtype)


@operator("QLinearMatMul")
def qlinear_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    """A product of quantised matrices, quantised."""
    product = fn.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1)).to(dtypes.float32)
    left = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.shape[0] > 1 else a_scale
    factor = left.to(dtypes.float32) * b_scale.to(dtypes.float32) / y_scale.to(dtypes.float32)
    return _requantized(product, factor, y_zero)


@operator("QLinearConv")
def qlinear_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    b: Any = None, **windows: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, quantised."""
    total = conv(_centred(x, x_zero), _centred(w, w_zero, 0), b, **windows).to(dtypes.float32)
    scale = x_scale * w_scale / y_scale
    if scale.numel() > 1:
        scale = scale.reshape(1, -1, *(1,) * (x.ndim - 2))
    return _requantized(total, scale, y_zero)


__all__ = ["Tensor"]
