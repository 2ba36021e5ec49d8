"""Quantised operators outside of the standard (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.dtypes import is_ours
from genesis.onnx.operators import elementwise, quantized
from genesis.onnx.operators.contrib_attention import self_attention
from genesis.onnx.operators.normalization import softmax
from genesis.onnx.operators.pooling import average_pool, global_average_pool
from genesis.onnx.operators.recurrent import lstm_with
from genesis.onnx.registry import Operand, operator
from genesis.onnx.values import as_tensor

_MS = "com.microsoft"

operator("QuantizeLinear", domain=_MS)(quantized.quantize_linear)
operator("DequantizeLinear", domain=_MS)(quantized.dequantize_linear)


@operator("MatMulIntegerToFloat", domain=_MS)
def matmul_integer_to_float(
    a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any = None, b_zero: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """The product of matrices of bytes, scaled."""
    y = quantized.matmul_integer(a, b, a_zero, b_zero).to(dtypes.float32) * (a_scale * b_scale)
    return y if bias is None else y + bias


@operator("DynamicQuantizeMatMul", domain=_MS)
def dynamic_quantize_matmul(
    a: Any, b: Any, b_scale: Any, b_zero: Any = None, bias: Any = None
) -> Any:
    """The product with a matrix of bytes; the other factor is quantised on the way."""
    number, scale, zero = quantized.dynamic_quantize_linear(a)
    return matmul_integer_to_float(number, b, scale, b_scale, zero, b_zero, bias)


@operator("DynamicQuantizeLSTM", domain=_MS)
def dynamic_quantize_lstm(
    x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None,
    p: Any = None, w_scale: Any = None, w_zero: Any = None, r_scale: Any = None,
    r_zero: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """An LSTM whose weights are bytes, and what they multiply is rounded to bytes, too."""

    def times(x: Any, matrix: tuple[Any, Any, Any]) -> Any:
        bytes_, scale, zero = matrix
        rows = x.reshape(-1, x.shape[-1])
        y = dynamic_quantize_matmul(rows, bytes_, scale, zero)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    for unused in ("hidden_size", "output_sequence"):
        options.pop(unused, None)
    ws = list(zip(w, w_scale, w_zero, strict=True))
    rs = list(zip(r, r_scale, r_zero, strict=True))
    return lstm_with(times, int(r.shape[1]), x, ws, rs, b, lengths, h, c, p, **options)


@operator("MatMulNBits", domain=_MS)
def matmul_nbits(
    a: Any, b: Any, scales: Any, zero_points: Operand = None, group: Any = None, bias: Any = None,
    *, K: int, N: int, bits: int = 4, block_size: int = 32, accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Any:  # fmt: skip
    """The product with a matrix of a few bits for each number, in blocks with a scale."""
    blocks = -(-K // block_size)
    numbers = _unpacked(b.reshape(N, blocks, -1), bits).to(dtypes.float32)
    if zero_points is None:
        zero: Any = float(1 << (bits - 1))
    else:
        given = as_tensor(zero_points)
        whole = given if given.dtype.is_float else _unpacked(given.reshape(N, -1), bits)
        zero = whole.to(dtypes.float32).reshape(N, -1)[:, :blocks].reshape(N, blocks, 1)
    weights = (numbers - zero) * scales.to(dtypes.float32).reshape(N, blocks, 1)
    weights = weights.reshape(N, -1)[:, :K].to(a.dtype)
    y = fn.matmul(a, fn.t(weights))
    return y if bias is None else y + bias


def _unpacked(x: Any, bits: int) -> Any:
    """Numbers of a few bits from the bytes they share, low ones first."""
    if bits == 8:
        return x
    if bits not in (2, 4):
        raise NotImplementedError(f"numbers of {bits} bits")
    parts = [
        fn.bitwise_and(fn.bitwise_right_shift(x, k), (1 << bits) - 1) for k in range(0, 8, bits)
    ]
    return fn.stack(parts, -1).reshape(*x.shape[:-1], -1)


def _number(x: Any, scale: Any, zero: Any) -> Any:
    return quantized.dequantize_linear(x, scale, zero)


def _binary(function: Any) -> Any:
    def computed(
        a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, scale: Any,
        zero: Any = None, *, image: int = 0,
    ) -> Any:  # fmt: skip
        y = function(_number(a, a_scale, a_zero), _number(b, b_scale, b_zero))
        return quantized.quantize_linear(y, scale, zero, image=image)

    return computed


operator("QLinearAdd", domain=_MS)(_binary(lambda a, b: a + b))
operator("QLinearMul", domain=_MS)(_binary(lambda a, b: a * b))


def _unary(function: Any) -> Any:
    """An operator of quantised numbers, quantised: what floats would give."""

    def computed(
        x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *, image: int = 0,
        **options: Any,
    ) -> Any:  # fmt: skip
        y = function(_number(x, x_scale, x_zero), **options)
        return quantized.quantize_linear(y, scale, zero, image=image)

    return computed


def _with_channels_first(function: Any) -> Any:
    def computed(x: Any, *, channels_last: int = 0, **options: Any) -> Any:
        if not channels_last:
            return function(x, **options)
        return fn.movedim(function(fn.movedim(x, -1, 1), **options), 1, -1)

    return computed


def _softmax(x: Any, *, axis: int = -1, opset: int = 13) -> Any:
    return fn.softmax(x, axis) if opset >= 13 else softmax(x, axis=axis)


def _mean(x: Any, *, axes: Any = None, keepdims: int = 1) -> Any:
    return fn.mean(x, tuple(axes or range(x.ndim)), bool(keepdims))


operator("QLinearSigmoid", domain=_MS)(_unary(fn.sigmoid))
operator("QLinearLeakyRelu", domain=_MS)(_unary(elementwise.leaky_relu))
operator("QLinearSoftmax", domain=_MS)(_unary(_softmax))
operator("QLinearReduceMean", domain=_MS)(_unary(_mean))
operator("QLinearAveragePool", domain=_MS)(_unary(_with_channels_first(average_pool)))
operator("QLinearGlobalAveragePool", domain=_MS)(_unary(_with_channels_first(global_average_pool)))


@operator("QLinearWhere", domain=_MS)
def qlinear_where(
    condition: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any,
    scale: Any, zero: Any = None, *, image: int = 0,
) -> Any:  # fmt: skip
    """Elements of one or the other, quantised alike."""
    y = fn.where(condition, _number(a, a_scale, a_zero), _number(b, b_scale, b_zero))
    return quantized.quantize_linear(y, scale, zero, image=image)


@operator("QGemm", domain=_MS)
def qgemm(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, c: Any = None,
    y_scale: Any = None, y_zero: Any = None, sums: Any = None, *, alpha: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """The product of matrices of bytes and a sum of integers, scaled or quantised."""
    left, right = fn.t(a) if transA else a, fn.t(b) if transB else b
    total = quantized.product(left, a_zero, right, b_zero, sums)
    total = total if c is None else total + c
    y = total.to(dtypes.float32) * (a_scale * b_scale * alpha)
    return y if y_scale is None else quantized.quantize_linear(y, y_scale, y_zero)


@operator("QAttention", domain=_MS)
def qattention(
    x: Any, weights: Any, bias: Any, x_scale: Any, scales: Any, mask: Any = None,
    x_zero: Any = None, zeros: Any = None, past: Any = None, *, num_heads: int,
    outputs: int = 1, **options: Any,
) -> Any:  # fmt: skip
    """Self-attention whose queries, keys and values are products of bytes."""
    y = matmul_integer_to_float(x, weights, x_scale, scales, x_zero, zeros, bias)
    parts = fn.chunk(y, 3, -1)
    return self_attention(parts, mask, past, num_heads=num_heads, outputs=outputs, **options)


@operator("GatherBlockQuantized", domain=_MS)
def gather_block_quantized(
    data: Operand, indices: Any, scales: Any, zeros: Operand = None, *, bits: int = 4,
    block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1,
) -> Any:  # fmt: skip
    """Slices of a tensor of a few bits for each number, in blocks with a scale."""
    packed = str(data.dtype) == "uint8" and bits < 8
    axis, along = gather_axis % data.ndim, quantize_axis % data.ndim
    if axis == along or (packed and along != data.ndim - 1):
        raise NotImplementedError("GatherBlockQuantized along the axis of its blocks")

    def numbers(x: Any) -> Any:
        taken = fn.index_select(_whole(x), axis, indices.reshape(-1))
        return (_unpacked(taken, bits) if packed else taken).to(dtypes.float32)

    y = numbers(data)
    scale = fn.index_select(scales, axis, indices.reshape(-1))
    signed = str(data.dtype) != "uint8"
    zero = (0 if signed else 1 << (bits - 1)) if zeros is None else numbers(zeros)

    def wide(x: Any) -> Any:
        repeated = fn.repeat_interleave(x, block_size, along)
        return fn.narrow(repeated, along, 0, y.shape[along])

    y = (y - (zero if zeros is None else wide(zero))) * wide(scale.to(dtypes.float32))
    shape = (*y.shape[:axis], *indices.shape, *y.shape[axis + 1 :])
    return y.to(scales.dtype).reshape(*shape)


def _whole(x: Any) -> Any:
    """Numbers of a few bits as bytes."""
    if isinstance(x, np.ndarray) and not is_ours(x.dtype):
        x = x.astype(np.int8)
    return as_tensor(x)


@operator("QLinearConcat", domain=_MS)
def qlinear_concat(scale: Any, zero: Any, *parts: Any, axis: int, image: int = 0) -> Any:
    """Quantised tensors one after the other, with a common scale."""
    numbers = [_number(*parts[k : k + 3]) for k in range(0, len(parts), 3)]
    return quantized.quantize_linear(fn.cat(numbers, axis), scale, zero, image=image)
