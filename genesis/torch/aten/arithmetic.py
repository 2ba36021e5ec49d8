"""Sums, products, quotients, powers, rounding and copies."""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType, float64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.precision import exact_numbers, rounded_once, widened
from genesis.torch.aten.registry import Kernel, kernel

# ---- functions that arrays have


_UNARY: dict[str, Kernel] = {
    "acos": nd.acos,
    "acosh": nd.acosh,
    "asin": nd.asin,
    "asinh": nd.asinh,
    "atan": nd.atan,
    "atanh": nd.atanh,
    "ceil": nd.ceil,
    "cos": nd.cos,
    "cosh": nd.cosh,
    "deg2rad": nd.deg2rad,
    "erf": nd.erf,
    "exp": nd.exp,
    "exp2": nd.exp2,
    "expm1": nd.expm1,
    "floor": nd.floor,
    "frac": nd.frac,
    "log": nd.log,
    "log10": nd.log10,
    "log1p": nd.log1p,
    "log2": nd.log2,
    "neg": nd.neg,
    "rad2deg": nd.rad2deg,
    "reciprocal": nd.reciprocal,
    "round": nd.round,
    "rsqrt": rounded_once(nd.rsqrt),
    "sin": nd.sin,
    "sinh": nd.sinh,
    "sqrt": nd.sqrt,
    "square": nd.square,
    "tan": nd.tan,
    "tanh": nd.tanh,
    "trunc": nd.trunc,
}

_BINARY: dict[str, Kernel] = {
    "atan2": nd.atan2,
    "copysign.Scalar": nd.copysign,
    "copysign.Tensor": nd.copysign,
    "div.Scalar": exact_numbers(nd.divide),
    "div.Tensor": exact_numbers(nd.divide),
    "true_divide.Tensor": exact_numbers(nd.divide),
    "fmod.Scalar": nd.fmod,
    "fmod.Tensor": nd.fmod,
    "gcd": nd.gcd,
    "hypot": nd.hypot,
    "lcm": nd.lcm,
    "logaddexp2": nd.logaddexp2,
    "lerp.Scalar": rounded_once(nd.lerp),
    "lerp.Tensor": rounded_once(nd.lerp),
    "mul.Scalar": exact_numbers(nd.multiply),
    "mul.Tensor": exact_numbers(nd.multiply),
    "nextafter": nd.nextafter,
    "remainder.Scalar": nd.remainder,
    "remainder.Scalar_Tensor": nd.remainder,
    "remainder.Tensor": nd.remainder,
}

for _name, _function in {**_UNARY, **_BINARY}.items():
    kernel(_name)(_function)


@kernel("abs")
def _abs(x: NDArray) -> NDArray:
    return x if x.dtype.kind == "bool" else nd.abs(x)


@kernel("sinc")
def _sinc(x: NDArray) -> NDArray:
    if not x.dtype.is_complex:
        return nd.sinc(x)
    angle = x * math.pi
    return nd.where(x == 0, 1, nd.sin(angle) / angle)


@kernel("sign")
def _sign(x: NDArray) -> NDArray:
    return x if x.dtype.kind == "bool" else nd.sign(x)


@kernel("round.decimals")
def _round(x: NDArray, decimals: int) -> NDArray:
    return nd.round(x, decimals)


# ---- sums, products, quotients


_sum, _difference = exact_numbers(nd.add), exact_numbers(nd.subtract)


@kernel("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, alpha: Any = 1) -> NDArray:
    return _sum(x, y) if alpha == 1 else _plus_multiple(x, y, alpha)


@kernel("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, alpha: Any = 1) -> NDArray:
    return _difference(x, y) if alpha == 1 else _plus_multiple(x, y, -alpha)


@kernel("rsub.Tensor", "rsub.Scalar")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> NDArray:
    return _sub(y, x, alpha)


def _plus_multiple(x: Any, y: Any, factor: Any) -> NDArray:
    (a, b), dtype = widened(x, y)
    multiple = nd.multiply(b, factor) if isinstance(b, NDArray) else b * factor
    return nd.add(a, multiple).astype(dtype)


@kernel("div.Tensor_mode", "div.Scalar_mode")
def _div(x: Any, y: Any, rounding_mode: str | None = None) -> NDArray:
    return nd.divide(x, y, rounding_mode)


@kernel("floor_divide", "floor_divide.Scalar")
def _floor_divide(x: Any, y: Any) -> NDArray:
    return nd.floor_divide(x, y)


@kernel("prims::fma")
def _fma(x: Any, y: Any, z: Any) -> NDArray:
    return nd.fma(x, y, z)


@kernel("addcmul")
def _addcmul(x: Any, first: Any, second: Any, value: Any = 1) -> NDArray:
    (a, b, c), dtype = widened(x, first, second)
    product = b * c if value == 1 else b * c * value
    return nd.add(a, product).astype(dtype)


@kernel("addcdiv")
def _addcdiv(x: Any, first: Any, second: Any, value: Any = 1) -> NDArray:
    (a, b, c), dtype = widened(x, first, second)
    quotient = b / c if value == 1 else b * value / c
    return nd.add(a, quotient).astype(dtype)


@kernel("ldexp.Tensor")
def _ldexp(x: Any, exponent: Any) -> NDArray:
    # PyTorch takes fractions in exponents, too.
    return rounded_once(lambda a, b: nd.multiply(a, nd.pow(2.0, b)))(x, exponent)


@kernel("frexp.Tensor")
def _frexp(x: NDArray) -> tuple[NDArray, NDArray]:
    return nd.frexp(x)


@kernel("logaddexp")
def _logaddexp(x: NDArray, y: NDArray) -> NDArray:
    if not x.dtype.is_complex:
        return nd.logaddexp(x, y)
    first = nd.real(x) >= nd.real(y)
    greater, less = nd.where(first, x, y), nd.where(first, y, x)
    return greater + nd.log1p(nd.exp(less - greater))


# ---- powers

_power = rounded_once(nd.pow)


@kernel("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(x: Any, exponent: Any) -> NDArray:
    return _power(x, exponent)


@kernel("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar")
def _float_power(x: Any, exponent: Any) -> NDArray:
    dtype = common_dtype((x, exponent))
    if not dtype.is_complex:
        return nd.float_power(x, exponent)
    wide = dtype.complex if dtype.complex.bits == 128 else float64.complex
    base = x.astype(wide) if isinstance(x, NDArray) else x
    power = exponent.astype(wide) if isinstance(exponent, NDArray) else exponent
    return nd.pow(base, power)


# ---- greatest, least, ranges

_RANGES: dict[str, Kernel] = {
    "fmax": nd.fmax,
    "fmin": nd.fmin,
    "maximum": nd.maximum,
    "minimum": nd.minimum,
    "clamp": nd.clip,
    "clamp.Tensor": nd.clip,
}

for _name, _function in _RANGES.items():
    kernel(_name)(_function)


@kernel("clamp_min", "clamp_min.Tensor")
def _clamp_min(x: NDArray, low: Any) -> NDArray:
    return nd.maximum(x, low)


@kernel("clamp_max", "clamp_max.Tensor")
def _clamp_max(x: NDArray, high: Any) -> NDArray:
    return nd.minimum(x, high)


# ---- copies and conversions


@kernel(
    "alias", "alias_copy", "clone", "contiguous", "detach", "detach_copy", "lift", "lift_fresh",
    "lift_fresh_copy", "positive",
)  # fmt: skip
def _same(x: NDArray) -> NDArray:
    return x


@kernel("_to_copy", "to.dtype", "to.dtype_layout", "prims::convert_element_type")
def _convert(x: NDArray, dtype: DType | None = None, *_: Any, **__: Any) -> NDArray:
    return x if dtype is None else converted(x, dtype)


@kernel("copy")
def _copy(x: NDArray, source: Any, non_blocking: bool = False) -> NDArray:
    new = converted(nd.asarray(source), x.dtype)
    return nd.broadcast_to(new, x.shape)


@kernel("fill.Scalar", "fill.Tensor")
def _fill(x: NDArray, value: Any) -> NDArray:
    if isinstance(value, NDArray):
        return nd.broadcast_to(converted(value, x.dtype), x.shape)
    return nd.full_like(x, value)


def converted(x: NDArray, dtype: DType) -> NDArray:
    """`x` in another type; the imaginary part of what becomes real is dropped."""
    drops = x.dtype.is_complex and not dtype.is_complex and dtype.kind != "bool"
    return (nd.real(x) if drops else x).astype(dtype)
