"""Operators on quantised numbers: integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping
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
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Any:  # fmt: skip
    """Numbers as integers: x / scale + zero_point, rounded and brought into range."""
    kind = _kind(zero_point, output_dtype)
    scale, zero = _floats(scale), None if zero_point is None else _numbers(zero_point)
    y = x.to(dtypes.float32) / _along(scale, x, axis, block_size).to(dtypes.float32)
    shift = 0 if zero is None else _along(zero, x, axis, block_size).to(dtypes.float32)
    if not np.dtype(kind).name.startswith(("int", "uint")):
        return cast_on_host(as_host(y + shift), kind, bool(saturate))
    if kind in (np.int8, np.uint8):
        return _nearest(fn.round(y) + shift, as_dtype(kind))
    y = fn.round(y) + shift
    low, high = _range(kind)
    y = fn.clamp(y, low, high)
    return y.to(as_dtype(kind)) if is_ours(kind) else cast_on_host(as_host(y), kind)


def _nearest(y: Any, dtype: Any) -> Any:
    """Integers as bytes; of images with channels last in memory, as convolutions read them."""
    if y.ndim != 4:
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


#: Bytes that one instruction multiplies and adds up, and columns that lie together in quadruples.
_QUAD, _COLUMNS = 4, 32
#: Filters from which on windows that lie in memory are worth it, where they overlap.
_MANY = 16


def _byte_product(
    a: Any, a_zero: Any, b: Any, b_zero: Any, rows: Any = None, columns: Any = None
) -> Any:
    """The sum of (a - a_zero)(b - b_zero), a (.., M, K) and b (K, N), of bytes as they are.

    Zero points are one, or one for each row and column. What they add is known from the sums of
    `rows` and `columns`, which are given or computed.
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
        sums = fn.sum(a.to(wide), -1, dtype=wide) if rows is None else rows
        total = total - of_b * fn.unsqueeze(sums, -1)
    return total if of_a is None or of_b is None else total + of_a * of_b * k


def _spread(zero: Any, shape: tuple[int, ...]) -> Any:
    wide = zero.to(dtypes.int32)
    return wide.reshape(()) if zero.numel() == 1 else wide.reshape(*shape)


def _takes_bytes(a: Any, b: Any) -> bool:
    """Whether a product can be computed of bytes as they are: in quadruples, of whole matrices."""
    return b.ndim == 2 and all(isinstance(n, int) and n for n in b.shape) and b.shape[0] % 4 == 0


def _product(a: Any, a_zero: Any, b: Any, b_zero: Any, columns: Any = None) -> Any:
    """The product of matrices of bytes, exactly."""
    if _takes_bytes(a, b) and (a_zero is None or a_zero.ndim < 2):
        return _byte_product(a, a_zero, b, b_zero, columns=columns)
    return fn.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


@operator("MatMulInteger")
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The product of matrices of bytes, exactly."""
    return _product(a, a_zero, b, b_zero)


@operator("ConvInteger")
def conv_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, **options: Any) -> Any:
    """The convolution of bytes, exactly."""
    if _suits_bytes(x, w, options):
        return _byte_conv(x, w, x_zero, w_zero, **options)
    return conv(_centred(x, x_zero), _centred(w, w_zero, 0), **options)


def _suits_bytes(x: Any, w: Any, options: Mapping[str, Any]) -> bool:
    """Whether a convolution is best a product of bytes: of pixels, or with many filters."""
    if x.ndim != 4 or options.get("group", 1) != 1 or not all(isinstance(n, int) for n in x.shape):
        return False
    pixels = tuple(w.shape[2:]) == (1, 1) and not any(options.get("pads") or ())
    return w.shape[1] * w.shape[2] * w.shape[3] % _QUAD == 0 and (pixels or w.shape[0] >= _MANY)


def _byte_conv(
    x: Any, w: Any, x_zero: Any, w_zero: Any, sums: Any = None, *, kernel_shape: Any = None,
    strides: Any = None, dilations: Any = None, pads: Any = None, group: int = 1,
    auto_pad: str = "NOTSET",
) -> Any:  # fmt: skip
    """A convolution of images of bytes as a product: windows are the columns of a matrix."""
    from genesis import ones

    filters, kernel = w.shape[0], list(w.shape[2:])
    steps, gaps, ends = windows(x.shape, kernel, strides, dilations, pads, auto_pad)

    def columns(image: Any) -> Any:
        """Channels, taps, images, places."""
        y = padded(image, ends)
        for k in range(2):
            y = Tensor(nd.windows(y.array, 2 + k, kernel[k], steps[k], gaps[k]))
        return fn.permute(y, (1, 4, 5, 0, 2, 3))

    right = columns(x)
    if x_zero is not None and any(before or after for before, after in ends):
        inside = columns(ones(1, 1, *x.shape[2:], dtype=dtypes.bool_))
        right = fn.where(inside, right, x_zero.reshape(()))
    places = right.shape[3:]
    matrix = right.reshape(w[0].numel(), -1)
    total = _byte_product(w.reshape(filters, -1), w_zero, matrix, x_zero, rows=sums)
    return fn.transpose(total.reshape(filters, *places), 0, 1)


def _requantized(y: Any, scale: Any, zero: Any) -> Any:
    return _nearest(fn.round(y * scale) + zero.to(dtypes.float32), zero.dtype)


@operator("QLinearMatMul")
def qlinear_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    """A product of quantised matrices, quantised."""
    product = _product(a, a_zero, b, b_zero).to(dtypes.float32)
    left = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.shape[0] > 1 else a_scale
    factor = left.to(dtypes.float32) * b_scale.to(dtypes.float32) / y_scale.to(dtypes.float32)
    return _requantized(product, factor, y_zero)


@operator("QLinearConv")
def qlinear_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    b: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, quantised."""
    total = conv_integer(x, w, x_zero, w_zero, **options)
    if b is not None:
        total = total + b.reshape(1, -1, *(1,) * (x.ndim - 2))
    total = total.to(dtypes.float32)
    scale = x_scale * w_scale / y_scale
    if scale.numel() > 1:
        scale = scale.reshape(1, -1, *(1,) * (x.ndim - 2))
    return _requantized(total, scale, y_zero)


# ---- what optimised graphs have: products of bytes that become floats


@operator("QuantizedMatMul", domain="genesis")
def quantized_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any = None, sums: Any = None
) -> Any:
    """A product of quantised matrices, as floats."""
    total = _product(a, a_zero.reshape(()), b, b_zero, sums).to(dtypes.float32)
    return total * (a_scale.reshape(()) * b_scale)


@operator("QuantizedConv", domain="genesis")
def quantized_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any = None, b: Any = None,
    sums: Any = None, *, channels: int = 0, **options: Any,
) -> Any:  # fmt: skip
    """A convolution of quantised images, as floats.

    Where `channels` are given, the weight is packed (`genesis.compress.int8_products`).
    """
    along = (-1, *(1,) * (x.ndim - 2))
    if not channels:
        plain = dequantize_linear(x, x_scale, x_zero)
        return conv(plain, dequantize_linear(w, w_scale, w_zero, axis=0), b, **options)
    zero = x_zero.reshape(())
    if x.dtype is dtypes.int8:  # the instruction wants one factor without a sign
        x, zero = (x ^ -128).view(dtypes.uint8), (zero ^ -128).view(dtypes.uint8)
    given = [options.get(name) for name in ("strides", "dilations", "pads")]
    how = options.get("auto_pad", "NOTSET")
    steps, gaps, ends = windows(x.shape, list(w.shape[1:3]), given[0], given[1], given[2], how)
    image = fn.permute(x, (0, 2, 3, 1))
    total = byte_sums(image, w, sums.shape[0], steps, gaps, ends, zero)
    total = (total - zero.to(dtypes.int32) * sums).to(dtypes.float32)
    total = fn.permute(total * (x_scale.reshape(()) * w_scale), (0, 3, 1, 2))
    return total if b is None else total + b.reshape(*along)


@operator("PackedMatMul", domain="genesis")
def packed_matmul(a: Any, bias: Any = None, *, weight: Any) -> Any:
    """The product with a matrix of a few bits; the other factor is rounded to bytes on the way."""
    return weight.linear(a, bias)


__all__ = ["Tensor"]
