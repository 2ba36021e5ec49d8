"""Operators on quantised numbers: integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis import ndarray as nd
from genesis.compress.int8_products import as_bytes
from genesis.compress.int8_products import sums as byte_sums
from genesis.ir import dtype as dtypes
from genesis.ir.dtype import as_dtype
from genesis.onnx.dtypes import is_ours, numpy_dtype
from genesis.onnx.operators.contraction import conv, padded, windows
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
    output_dtype: int = 0, precision: int = 0, saturate: int = 1, image: int = 0,
) -> Any:  # fmt: skip
    """Numbers as integers: x / scale + zero_point, rounded and brought into range.

    Those of an `image` lie in memory with channels last.
    """
    kind = _kind(zero_point, output_dtype)
    scale, zero = _floats(scale), None if zero_point is None else _numbers(zero_point)
    y = x.to(dtypes.float32) / _along(scale, x, axis, block_size).to(dtypes.float32)
    shift = 0 if zero is None else _along(zero, x, axis, block_size).to(dtypes.float32)
    if not np.dtype(kind).name.startswith(("int", "uint")):
        return cast_on_host(as_host(y + shift), kind, bool(saturate))
    if kind in (np.int8, np.uint8):
        return _nearest(fn.round(y) + shift, as_dtype(kind), image)
    y = fn.round(y) + shift
    low, high = _range(kind)
    y = fn.clamp(y, low, high)
    return y.to(as_dtype(kind)) if is_ours(kind) else cast_on_host(as_host(y), kind)


def _nearest(y: Any, dtype: Any, image: int) -> Any:
    """Integers as bytes; of images with channels last in memory, as convolutions read them."""
    if y.ndim != 4 or not image:
        return as_bytes(y, dtype)
    return fn.permute(as_bytes(fn.permute(y, (0, 2, 3, 1)), dtype), (0, 3, 1, 2))


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
def dynamic_quantize_linear(x: Any, *, image: int = 0) -> Any:
    """Numbers as bytes, with the scale and the zero point that their range asks for."""
    low, high = fn.clamp(fn.amin(x), max=0), fn.clamp(fn.amax(x), min=0)
    scale = (high - low) / 255
    scale = fn.where(scale == 0, fn.mul(scale, 0) + 1, scale)
    zero = fn.clamp(fn.round(-low / scale), 0, 255)
    y = _nearest(fn.round(x / scale) + zero, dtypes.uint8, image)
    return y, scale, as_bytes(zero, dtypes.uint8)


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


#: Columns that lie together in quadruples, which one instruction multiplies and adds up.
_COLUMNS = 32


def _byte_product(a: Any, a_zero: Any, b: Any, b_zero: Any, columns: Any = None) -> Any:
    """The sum of (a - a_zero)(b - b_zero), a (.., M, K) and b (K, N), of bytes as they are.

    Zero points are one, or one for each row and column. What they add is known from the sums of
    rows and of `columns`, which are given or computed.
    """
    wide, k, n = dtypes.int32, a.shape[-1], b.shape[-1]
    if a.dtype is b.dtype is dtypes.uint8:  # the instruction wants one factor with a sign
        b = (b ^ 128).view(dtypes.int8)
        b_zero = (fn.mul(b[0, 0], 0) if b_zero is None else b_zero).to(wide) - 128
        columns = None
    whole = fn.pad(b, (0, -n % _COLUMNS)).to(wide)
    total = fn.narrow(fn.matmul(a.to(wide), whole), -1, 0, n)
    of_a = None if a_zero is None else _spread(a_zero, (-1, 1))
    of_b = None if b_zero is None else _spread(b_zero, (-1,))
    if of_a is not None:
        sums = fn.sum(b.to(wide), 0, dtype=wide) if columns is None else columns
        total = total - of_a * sums
    if of_b is not None:
        sums = fn.sum(a.to(wide), -1, dtype=wide)
        total = total - of_b * fn.unsqueeze(sums, -1)
    return total if of_a is None or of_b is None else total + of_a * of_b * k


def _spread(zero: Any, shape: tuple[int, ...]) -> Any:
    wide = zero.to(dtypes.int32)
    return wide.reshape(()) if zero.numel() == 1 else wide.reshape(*shape)


def _takes_bytes(a: Any, b: Any) -> bool:
    """Whether a product can be computed of bytes as they are: in quadruples, of whole matrices."""
    return b.ndim == 2 and all(isinstance(n, int) and n for n in b.shape) and b.shape[0] % 4 == 0


def product(a: Any, a_zero: Any, b: Any, b_zero: Any, columns: Any = None) -> Any:
    """The product of matrices of bytes, exactly."""
    if _takes_bytes(a, b) and (a_zero is None or a_zero.ndim < 2):
        return _byte_product(a, a_zero, b, b_zero, columns=columns)
    return fn.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


@operator("MatMulInteger")
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The product of matrices of bytes, exactly."""
    return product(a, a_zero, b, b_zero)


@operator("ConvInteger")
def conv_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, **options: Any) -> Any:
    """The convolution of bytes, exactly."""
    return conv(_centred(x, x_zero), _centred(w, w_zero, 0), **options)


def _requantized(y: Any, scale: Any, zero: Any, image: int = 0) -> Any:
    return _nearest(fn.round(y * scale) + zero.to(dtypes.float32), zero.dtype, image)


@operator("QLinearMatMul")
def qlinear_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    """A product of quantised matrices, quantised."""
    total = product(a, a_zero, b, b_zero).to(dtypes.float32)
    left = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.shape[0] > 1 else a_scale
    factor = left.to(dtypes.float32) * b_scale.to(dtypes.float32) / y_scale.to(dtypes.float32)
    return _requantized(total, factor, y_zero)


@operator("QLinearConv")
def qlinear_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    b: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, quantised."""
    total = conv_integer(x, w, x_zero, w_zero, **options)
    return _requantized_conv(total, b, x_scale * w_scale / y_scale, y_zero)


def _requantized_conv(total: Any, b: Any, scale: Any, zero: Any) -> Any:
    along = (-1, *(1,) * (total.ndim - 2))
    total = total if b is None else total + b.reshape(*along)
    return _requantized(total.to(dtypes.float32), scale.reshape(*along), zero, 1)


# ---- what optimised graphs have: products of bytes that become floats


@operator("QuantizedMatMul", domain="genesis")
def quantized_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any = None, sums: Any = None
) -> Any:
    """A product of quantised matrices, as floats."""
    total = product(a, a_zero.reshape(()), b, b_zero, sums).to(dtypes.float32)
    return total * (a_scale.reshape(()) * b_scale)


@operator("QuantizedGemm", domain="genesis")
def quantized_gemm(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any = None, c: Any = None,
    sums: Any = None, *, transB: int = 0, **_: Any,
) -> Any:  # fmt: skip
    """A product of quantised matrices and a sum, as floats."""
    columns = fn.t(b) if transB else b
    y = quantized_matmul(a, a_scale, a_zero, columns, b_scale, b_zero, sums)
    return y if c is None else y + c


@operator("QuantizedConv", domain="genesis")
def quantized_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any = None, b: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, as floats."""
    plain = dequantize_linear(x, x_scale, x_zero)
    return conv(plain, dequantize_linear(w, w_scale, w_zero, axis=0), b, **options)


@operator("LaidConvInteger", domain="genesis")
def laid_conv_integer(
    x: Any, w: Any, x_zero: Any, w_zero: Any, sums: Any, *, group: int = 1, kernel_shape: Any,
    strides: Any = None, dilations: Any = None, pads: Any = None, auto_pad: str = "NOTSET",
) -> Any:  # fmt: skip
    """The convolution of bytes, exactly, with filters that lie as they are multiplied.

    They are of one channel each, (*taps, channels), as floats that hold the sums; or of all, packed
    (`genesis.compress.int8_products`). If those have a zero point, the last filter is of ones: what
    it gives is what the zero point adds.
    """
    steps, gaps, ends = windows(x.shape, kernel_shape, strides, dilations, pads, auto_pad)
    zero: Any = 0 if x_zero is None else x_zero.reshape(())
    if w.ndim < x.ndim:
        y = _of_one_channel(x, zero, w, steps, gaps, ends).to(dtypes.int32)
        return fn.movedim(y, -1, 1)
    if x.dtype is dtypes.int8:  # the instruction wants one factor without a sign
        x, zero = (x ^ -128).view(dtypes.uint8), (zero ^ -128)
        zero = zero.view(dtypes.uint8) if isinstance(zero, Tensor) else 128
    rows = sums.shape[0]
    image, more = fn.movedim(x, 1, -1), 0 if w_zero is None else 1
    total = byte_sums(image, w, rows + more, steps, gaps, ends, zero)
    if w_zero is not None:
        ones = fn.narrow(total, -1, rows, 1)
        total = fn.narrow(total, -1, 0, rows) - ones * w_zero.to(dtypes.int32)
    wide = zero.to(dtypes.int32) if isinstance(zero, Tensor) else zero
    return fn.movedim(total - wide * sums, -1, 1)


def _of_one_channel(
    x: Any, zero: Any, w: Any, steps: Sequence[int], gaps: Sequence[int], ends: Sequence[Any]
) -> Any:
    """The sums of windows of each channel, channels last."""
    rank, wide = x.ndim - 2, dtypes.float32
    y = padded(x.to(wide) - (zero.to(wide) if isinstance(zero, Tensor) else zero), ends)
    y = fn.movedim(y, 1, -1)
    for k in range(rank):
        y = Tensor(nd.windows(y.array, 1 + k, w.shape[k], steps[k], gaps[k]))
    return fn.sum(y * fn.movedim(w, -1, 0), tuple(range(-rank, 0)))


@operator("LaidQLinearConv", domain="genesis")
def laid_qlinear_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    b: Any, sums: Any, **options: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, quantised."""
    total = laid_conv_integer(x, w, x_zero, w_zero, sums, **options)
    return _requantized_conv(total, b, x_scale * w_scale / y_scale, y_zero)


@operator("LaidQuantizedConv", domain="genesis")
def laid_quantized_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, b: Any, sums: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, as floats."""
    along = (-1, *(1,) * (x.ndim - 2))
    total = laid_conv_integer(x, w, x_zero, w_zero, sums, **options).to(dtypes.float32)
    total = total * (x_scale.reshape(()) * w_scale).reshape(*along)
    return total if b is None else total + b.reshape(*along)


@operator("PackedMatMul", domain="genesis")
def packed_matmul(a: Any, bias: Any = None, *, weight: Any) -> Any:
    """The product with a matrix of a few bits; the other factor is rounded to bytes on the way."""
    return weight.linear(a, bias)


__all__ = ["Tensor"]
