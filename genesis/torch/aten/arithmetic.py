"""Sums, products, quotients, powers, rounding and copies."""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType, float64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.half_precision import exact_numbers, rounded_once, widened
from genesis.torch.aten.registry import Implementation, implements, operators, table

# ---- functions that arrays have

table(nd, """
    acos acosh asin asinh atan atanh atan2 ceil copysign.Scalar copysign.Tensor cos cosh deg2rad
    div.Scalar_mode=divide div.Tensor_mode=divide erf exp exp2 expm1 floor floor_divide
    floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac frexp.Tensor gcd hypot lcm log log10
    log1p log2 logaddexp2 maximum minimum neg nextafter prims::fma=fma rad2deg reciprocal
    remainder.Scalar remainder.Scalar_Tensor remainder.Tensor round round.decimals sin sinh sqrt
    square tan trunc clamp=clip clamp.Tensor=clip clamp_max=minimum clamp_max.Tensor=minimum
    clamp_min=maximum clamp_min.Tensor=maximum
""")  # fmt: skip
table(nd, """
    div.Scalar=divide div.Tensor=divide true_divide.Tensor=divide mul.Scalar=multiply
    mul.Tensor=multiply
""", exact_numbers)  # fmt: skip
table(nd, "lerp.Scalar lerp.Tensor pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar rsqrt",
      rounded_once)  # fmt: skip


def _but_bool(function: Implementation) -> Implementation:
    return lambda x: x if x.dtype.kind == "bool" else function(x)


table(nd, "abs sgn sign", _but_bool)


@implements("sinc")
def _sinc(x: NDArray) -> NDArray:
    if not x.dtype.is_complex:
        return nd.sinc(x)
    angle = x * math.pi
    return nd.where(x == 0, 1, nd.sin(angle) / angle)


# ---- sums, products, quotients


_sum, _difference = exact_numbers(nd.add), exact_numbers(nd.subtract)


def _sub(x: Any, y: Any, alpha: Any = 1) -> NDArray:
    return _difference(x, y) if alpha == 1 else _plus_multiple(x, y, -alpha)


def _plus_multiple(x: Any, y: Any, factor: Any) -> NDArray:
    (a, b), dtype = widened(x, y)
    multiple = nd.multiply(b, factor) if isinstance(b, NDArray) else b * factor
    return nd.add(a, multiple).astype(dtype)


@implements("addcmul")
def _addcmul(x: Any, first: Any, second: Any, value: Any = 1) -> NDArray:
    (a, b, c), dtype = widened(x, first, second)
    product = b * c if value == 1 else b * c * value
    return nd.add(a, product).astype(dtype)


@implements("addcdiv")
def _addcdiv(x: Any, first: Any, second: Any, value: Any = 1) -> NDArray:
    (a, b, c), dtype = widened(x, first, second)
    quotient = b / c if value == 1 else b * value / c
    return nd.add(a, quotient).astype(dtype)


@implements("logaddexp")
def _logaddexp(x: NDArray, y: NDArray) -> NDArray:
    if not x.dtype.is_complex:
        return nd.logaddexp(x, y)
    first = nd.real(x) >= nd.real(y)
    greater, less = nd.where(first, x, y), nd.where(first, y, x)
    return greater + nd.log1p(nd.exp(less - greater))


# ---- powers


@implements("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar")
def _float_power(x: Any, exponent: Any) -> NDArray:
    dtype = common_dtype((x, exponent))
    if not dtype.is_complex:
        return nd.float_power(x, exponent)
    wide = dtype.complex if dtype.complex.bits == 128 else float64.complex
    base = x.astype(wide) if isinstance(x, NDArray) else x
    power = exponent.astype(wide) if isinstance(exponent, NDArray) else exponent
    return nd.pow(base, power)


# ---- copies and conversions


@implements("copy")
def _copy(x: NDArray, source: Any, non_blocking: bool = False) -> NDArray:
    new = converted(nd.asarray(source), x.dtype)
    return nd.broadcast_to(new, x.shape)


@implements("fill.Scalar", "fill.Tensor")
def _fill(x: NDArray, value: Any) -> NDArray:
    if isinstance(value, NDArray):
        return nd.broadcast_to(converted(value, x.dtype), x.shape)
    return nd.full_like(x, value)


def converted(x: NDArray, dtype: DType) -> NDArray:
    """`x` in another type; the imaginary part of what becomes real is dropped."""
    drops = x.dtype.is_complex and not dtype.is_complex and dtype.kind != "bool"
    return (nd.real(x) if drops else x).astype(dtype)


operators(
    {
        "add.Tensor add.Scalar": lambda x, y, alpha=1: (
            _sum(x, y) if alpha == 1 else _plus_multiple(x, y, alpha)
        ),
        "sub.Tensor sub.Scalar": _sub,
        "rsub.Tensor rsub.Scalar": lambda x, y, alpha=1: _sub(y, x, alpha),
        # PyTorch takes fractions in exponents, too.
        "ldexp.Tensor": rounded_once(lambda x, exponent: nd.multiply(x, nd.pow(2.0, exponent))),
        "alias alias_copy clone contiguous detach detach_copy lift lift_fresh": lambda x: x,
        "lift_fresh_copy positive resolve_conj resolve_neg": lambda x: x,
        "_to_copy to.dtype to.dtype_layout prims::convert_element_type": (
            lambda x, dtype=None, *_, **__: x if dtype is None else converted(x, dtype)
        ),
    }
)
