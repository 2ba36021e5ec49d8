"""Quantised operators outside of the standard (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.operators import elementwise, quantized
from genesis.onnx.operators.pooling import global_average_pool
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
        zero: Any = None,
    ) -> Any:  # fmt: skip
        y = function(_number(a, a_scale, a_zero), _number(b, b_scale, b_zero))
        return quantized.quantize_linear(y, scale, zero)

    return computed


operator("QLinearAdd", domain=_MS)(_binary(lambda a, b: a + b))
operator("QLinearMul", domain=_MS)(_binary(lambda a, b: a * b))


@operator("QLinearSigmoid", domain=_MS)
def qlinear_sigmoid(x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    """The sigmoid of quantised numbers, quantised."""
    return quantized.quantize_linear(fn.sigmoid(_number(x, x_scale, x_zero)), scale, zero)


@operator("QLinearLeakyRelu", domain=_MS)
def qlinear_leaky_relu(
    x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *, alpha: float = 0.01
) -> Any:
    """A line with a bend, of quantised numbers, quantised."""
    y = elementwise.leaky_relu(_number(x, x_scale, x_zero), alpha=alpha)
    return quantized.quantize_linear(y, scale, zero)


@operator("QLinearGlobalAveragePool", domain=_MS)
def qlinear_global_average_pool(
    x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None, *, channels_last: int = 0
) -> Any:
    """The mean of all pixels, quantised."""
    if channels_last:
        raise NotImplementedError("QLinearGlobalAveragePool with channels last")
    return quantized.quantize_linear(global_average_pool(_number(x, x_scale, x_zero)), scale, zero)


@operator("QLinearConcat", domain=_MS)
def qlinear_concat(scale: Any, zero: Any, *parts: Any, axis: int) -> Any:
    """Quantised tensors one after the other, with a common scale."""
    numbers = [_number(*parts[k : k + 3]) for k in range(0, len(parts), 3)]
    return quantized.quantize_linear(fn.cat(numbers, axis), scale, zero)


__all__ = ["np"]
