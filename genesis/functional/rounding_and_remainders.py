"""Rounding, signs, remainders and the parts of floating-point numbers.

Functions that are constant in steps have the gradient 0, as in PyTorch: it is there, so that a
graph stays connected, and it is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.functional.arithmetic import divisor, mul, pow, where, zeros
from genesis.functional.complexes import complex, imag, real
from genesis.functional.elementwise_function import Unary, binary, unary
from genesis.functional.error_messages import named, require_float, require_same_dtype
from genesis.functional.function import Function, plain, with_gradient
from genesis.functional.registry import method
from genesis.ir.dtype import bool_


def _steps(name: str, function: Callable[..., Any], doc: str) -> Unary:
    def computed(input: Any) -> Any:
        return function(input)

    named(computed, name).__doc__ = doc
    return method(in_place=True)(with_gradient(lambda grad: zeros(grad)[0])(computed))


floor = _steps("floor", nd.floor, "The greatest integer not above `input`.")
ceil = _steps("ceil", nd.ceil, "The least integer not below `input`.")
trunc = _steps("trunc", nd.trunc, "`input` without its fraction.")
sign = _steps("sign", nd.sign, "-1, 0 or 1: the sign.")
fix = trunc


@with_gradient(lambda grad: zeros(grad)[0])
def _round(x: Any, decimals: int) -> Any:
    return nd.round(x, decimals)


@method(in_place=True)
def round(input: Any, *, decimals: int = 0) -> Any:
    """The nearest number with so many decimal places, halves to even."""
    if input.dtype is bool_:
        raise TypeError("round: not defined for bool")
    return _round(input, decimals)


@with_gradient(lambda grad: grad)
def _frac(input: Any) -> Any:
    return nd.frac(input)


@method(in_place=True)
def frac(input: Any) -> Any:
    """`input` without its integer part."""
    require_float("frac", input)
    return _frac(input)


# ---- division with remainder


@method(in_place=True)
def floor_divide(input: Any, other: Any) -> Any:
    """The quotient rounded down; it has no gradient."""
    return plain(nd.floor_divide, input, divisor("floor_divide", input, other))


def _of_divisor(grad: Any, x: Any, y: Any, mode: str, needs: Any) -> Any:
    return grad, -grad * plain(nd.divide, x, y, rounding_mode=mode) if needs[1] else None


@with_gradient(_of_divisor)
def _remainder(x: Any, y: Any, mode: str) -> Any:
    return (nd.remainder if mode == "floor" else nd.fmod)(x, y)


@method(in_place=True)
def remainder(input: Any, other: Any) -> Any:
    """What is left of `input` after `floor_divide`; it has the sign of `other`."""
    return _remainder(input, divisor("remainder", input, other), "floor")


@method(in_place=True)
def fmod(input: Any, other: Any) -> Any:
    """What is left of `input` after dividing and rounding toward 0; it has its sign."""
    return _remainder(input, divisor("fmod", input, other), "trunc")


# ---- parts of numbers


def _copysign(grad: Any, input: Any, result: Any) -> Any:
    signs = plain(nd.multiply, plain(nd.sign, input), plain(nd.sign, result))
    return grad * signs, plain(nd.zeros_like, grad)


@method(in_place=True)
@with_gradient(_copysign)
def copysign(input: Any, other: Any) -> Any:
    """The size of `input` with the sign of `other`."""
    return nd.copysign(input, other)


def _scaled(grad: Any, n: Any) -> Any:
    return _ldexp(grad, n)


@with_gradient(_scaled)
def _ldexp(x: Any, n: Any) -> Any:
    return nd.ldexp(x, n)


@method(in_place=True)
def ldexp(input: Any, other: Any) -> Any:
    """``input * 2**other``."""
    if isinstance(other, int) or (hasattr(other, "dtype") and other.dtype.is_integer):
        return _ldexp(input, other)
    return mul(input, pow(2.0, other))


class MantissaExponent(NamedTuple):
    """``mantissa * 2**exponent``, the mantissa from 1/2 up to 1."""

    mantissa: Any
    exponent: Any


class Frexp(Function):
    """Mantissa and exponent."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        mantissa, exponent = nd.frexp(x)
        ctx.save_for_backward(exponent)
        return mantissa, exponent

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        (exponent,) = ctx.saved_tensors
        return _ldexp(grad, plain(nd.neg, exponent))


@method
def frexp(input: Any) -> MantissaExponent:
    """Mantissa, from 1/2 up to 1, and exponent of floating-point numbers."""
    if not input.dtype.is_float:
        raise TypeError(f"frexp: needs floating point, not {input.dtype}")
    return MantissaExponent(*Frexp.apply(input))


nextafter = binary(
    "nextafter",
    nd.nextafter,
    "The next number after `input` in the direction of `other`; it has no gradient.",
)
signbit = unary("signbit", nd.signbit, "Whether the sign is minus, also of -0.")


@method(in_place=True)
def heaviside(input: Any, values: Any) -> Any:
    """0 for negative numbers, 1 for positive ones, `values` at 0; it has no gradient."""
    require_same_dtype("heaviside", input, values)
    return plain(nd.heaviside, input, values)


@with_gradient(lambda grad, x: where(plain(nd.isfinite, x), grad, 0.0))
def _nan_to_num(x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    return nd.nan_to_num(x, nan, posinf, neginf)


@method(in_place=True)
def nan_to_num(
    input: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """NaN and infinities replaced; infinities by the greatest finite numbers if not given."""
    if input.dtype.is_complex:
        parts = (nan_to_num(part(input), nan, posinf, neginf) for part in (real, imag))
        return complex(*parts)
    return _nan_to_num(input, 0.0 if nan is None else nan, posinf, neginf)


gcd = binary("gcd", nd.gcd, "The greatest common divisor of integers.")
lcm = binary("lcm", nd.lcm, "The least common multiple of integers.")

__all__ = [
    "ceil", "copysign", "fix", "floor", "floor_divide", "fmod", "frac", "frexp", "gcd",
    "heaviside", "lcm", "ldexp", "nan_to_num", "nextafter", "remainder", "round", "sign",
    "signbit", "trunc",
]  # fmt: skip
