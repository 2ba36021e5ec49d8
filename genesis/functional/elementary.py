"""Elementary functions: exponentials, logarithms, roots, trigonometric and hyperbolic functions.

What is written under a function's name is its derivative, or stands behind it; see `scalar`.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, conj, mul, where
from genesis.functional.arithmetic import pow as power
from genesis.functional.complexes import real, sgn
from genesis.functional.elementwise_function import scalar, smooth
from genesis.functional.error_messages import require_float
from genesis.functional.function import plain, with_gradient
from genesis.functional.registry import aten, layer, method
from genesis.ir.dtype import complex128, float64

# ---- exponentials and logarithms

exp = smooth("exp", nd.exp, "``e ** input``.", of_result=lambda y: y)
exp2 = smooth("exp2", nd.exp2, "``2 ** input``.", of_result=lambda y: y * math.log(2))
expm1 = smooth(
    "expm1", nd.expm1, "``e ** input - 1``, accurate for small numbers.", of_result=lambda y: y + 1
)
log = smooth("log", nd.log, "The natural logarithm.", of_argument=lambda x: 1 / x)
log2 = smooth(
    "log2", nd.log2, "The logarithm to base 2.", of_argument=lambda x: 1 / (x * math.log(2))
)
log10 = smooth(
    "log10", nd.log10, "The logarithm to base 10.", of_argument=lambda x: 1 / (x * math.log(10))
)
log1p = smooth(
    "log1p",
    nd.log1p,
    "``log(1 + input)``, accurate for small numbers.",
    of_argument=lambda x: 1 / (x + 1),
)


def _logaddexp(grad: Any, input: Any, other: Any, scale: float = 1.0) -> Any:
    from genesis.functional.activation import sigmoid

    # Equal infinities share like all equal numbers.
    difference = where(plain(nd.equal, input, other), 0.0, input - other) * scale
    return grad * sigmoid(difference), grad * sigmoid(-difference)


@with_gradient(lambda grad, input, other: _logaddexp(grad, input, other))
def _real_logaddexp(input: Any, other: Any) -> Any:
    return nd.logaddexp(input, other)


@method
def logaddexp(input: Any, other: Any) -> Any:
    """``log(exp(input) + exp(other))`` without overflow."""
    require_float("logaddexp", input, other)
    if not input.dtype.is_complex:
        return _real_logaddexp(input, other)
    larger = plain(lambda x, y: nd.real(x) >= nd.real(y), input, other)
    most, least = where(larger, input, other), where(larger, other, input)
    return most + log(exp(least - most) + 1)


@method
@with_gradient(lambda grad, input, other: _logaddexp(grad, input, other, math.log(2)))
def logaddexp2(input: Any, other: Any) -> Any:
    """``log2(2**input + 2**other)`` without overflow."""
    return nd.logaddexp2(input, other)


# ---- roots and powers


sqrt = smooth("sqrt", nd.sqrt, "The square root.", of_result=lambda y: 0.5 / y)
rsqrt = smooth("rsqrt", nd.rsqrt, "``1 / sqrt(input)``.", of_result=lambda y: y * y * y * -0.5)
square = smooth("square", nd.square, "``input * input``.", of_argument=lambda x: x * 2)
reciprocal = smooth("reciprocal", nd.reciprocal, "``1 / input``.", of_result=lambda y: -(y * y))


@method(in_place=True)
def float_power(input: Any, exponent: Any) -> Any:
    """``input ** exponent`` in float64, or in complex128."""
    dtypes = [x.dtype for x in (input, exponent) if hasattr(x, "dtype")]
    kind = complex128 if any(d.is_complex for d in dtypes) else float64
    wide = [cast(x, kind) if hasattr(x, "dtype") else x for x in (input, exponent)]
    return power(*wide)


def _hypot(grad: Any, input: Any, other: Any, result: Any) -> Any:
    part = grad / result
    return part * input, part * other


@method(in_place=True)
@with_gradient(_hypot)
def hypot(input: Any, other: Any) -> Any:
    """The length of the hypotenuse: ``sqrt(input**2 + other**2)`` without overflow."""
    return nd.hypot(input, other)


# ---- trigonometric functions


@method(in_place=True)
@scalar(nd.sin)
def sin(x: Any) -> Any:
    """The sine."""
    return cos(x)


@method(in_place=True)
@scalar(nd.cos)
def cos(x: Any) -> Any:
    """The cosine."""
    return -sin(x)


tan = smooth("tan", nd.tan, "The tangent.", of_result=lambda y: y * y + 1)
asin = smooth("asin", nd.asin, "The arc sine.", of_argument=lambda x: rsqrt(1 - x * x))
acos = smooth("acos", nd.acos, "The arc cosine.", of_argument=lambda x: -rsqrt(1 - x * x))
atan = smooth("atan", nd.atan, "The arc tangent.", of_argument=lambda x: 1 / (x * x + 1))


def _atan2(grad: Any, input: Any, other: Any) -> Any:
    total = other * other + input * input
    origin = plain(nd.equal, total, 0)  # has no angle; its derivative is taken for 0
    part = where(origin, 0.0, grad / where(origin, 1.0, total))
    return part * other, -part * input


@method(in_place=True)
@with_gradient(_atan2)
def atan2(input: Any, other: Any) -> Any:
    """The angle of the point ``(other, input)``, from -pi to pi."""
    return nd.atan2(input, other)


@method(in_place=True)
def deg2rad(input: Any) -> Any:
    """Degrees as radians."""
    return mul(input, math.pi / 180)


@method(in_place=True)
def rad2deg(input: Any) -> Any:
    """Radians as degrees."""
    return mul(input, 180 / math.pi)


@method(in_place=True)
@scalar(nd.sinc)
def sinc(x: Any) -> Any:
    """``sin(pi * input) / (pi * input)``, 1 at 0."""
    zero = plain(nd.equal, x, 0)
    safe = where(zero, 1.0, x)
    near = x * (-math.pi * math.pi / 3)  # what the quotient tends to, and its derivative, at 0
    return where(zero, near, (cos(safe * math.pi) - sinc(safe)) / safe)


# ---- hyperbolic functions


@method(in_place=True)
@scalar(nd.sinh)
def sinh(x: Any) -> Any:
    """The hyperbolic sine."""
    return cosh(x)


@method(in_place=True)
@scalar(nd.cosh)
def cosh(x: Any) -> Any:
    """The hyperbolic cosine."""
    return sinh(x)


@method(in_place=True)
@layer("Tanh")
@aten("tanh")
@scalar(nd.tanh, of_result=True)
def tanh(y: Any) -> Any:
    """The hyperbolic tangent."""
    return 1 - y * y


asinh = smooth(
    "asinh", nd.asinh, "The inverse hyperbolic sine.", of_argument=lambda x: rsqrt(x * x + 1)
)
acosh = smooth(
    "acosh",
    nd.acosh,
    "The inverse hyperbolic cosine.",
    of_argument=lambda x: rsqrt(x - 1) * rsqrt(x + 1),
)
atanh = smooth(
    "atanh", nd.atanh, "The inverse hyperbolic tangent.", of_argument=lambda x: 1 / (1 - x * x)
)


# ---- size


@method(in_place=True)
@with_gradient(lambda grad, input: grad * sgn(input))
def abs(input: Any) -> Any:
    """The absolute value, which is real."""
    return nd.abs(input)


def squared_size(input: Any) -> Any:
    """``abs(input) ** 2``, also of complex numbers, smooth at 0."""
    return real(input * conj(input)) if input.dtype.is_complex else input * input


arccos, arcsin, arctan, arctan2 = acos, asin, atan, atan2
arccosh, arcsinh, arctanh = acosh, asinh, atanh
absolute = abs

__all__ = [
    "abs", "absolute", "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
    "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "deg2rad",
    "exp", "exp2", "expm1", "float_power", "hypot", "log", "log10", "log1p", "log2", "logaddexp",
    "logaddexp2", "rad2deg", "reciprocal", "rsqrt", "sin", "sinc", "sinh", "sqrt", "square", "tan",
    "tanh",
]  # fmt: skip
