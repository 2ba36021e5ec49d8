"""Floating-point numbers looked at as such: their signs, bits, fractions, and special values."""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ir.dtype import DType, bool_, float64, int16, int32, int64, uint64
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops import elementwise
from genesis.ndarray.ops.bitcast import bitcast
from genesis.ndarray.ops.elementwise import (
    Operand,
    float_value,
    isfinite,
    isnan,
    maximum,
    minimum,
    require,
)
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.special.formula import Term, binary, power_of_two, result, terms, unary

_INTEGERS = {16: int16, 32: int32, 64: int64}  # by width

# ---- signs and bits


def signbit(x: Operand) -> NDArray:
    """Whether the sign is minus, also of -0."""
    (value,) = elementwise.values("signbit", (x,))
    if not value.dtype.is_float:
        return wrap((Term(value) < 0).value)
    integer = primitive.elementwise(ops.BITCAST, value, dtype=_INTEGERS[value.dtype.bits])
    return wrap((Term(integer) < 0).value)


@binary
def copysign(x: Term, y: Term) -> Term:
    """The size of x with the sign of y."""
    return x.with_sign_of(y)


def nextafter(a: Operand, b: Operand) -> NDArray:
    """The next number after a in the direction of b."""
    x, y = map(Term, elementwise.float_values("nextafter", (a, b)))
    dtype = x.dtype
    integer = _INTEGERS[dtype.bits]
    bits = Term(primitive.elementwise(ops.BITCAST, x.value, dtype=integer))
    sign = Term(primitive.elementwise(ops.BITCAST, y.value, dtype=integer)) & (-1 << dtype.bits - 1)
    # Numbers of one sign are in the order of their bits; away from 0 is up.
    away = (x < y).equals(x > 0)
    step = away.where(bits + 1, bits - 1)
    step = x.equals(0).where(sign | 1, step)
    moved = Term(primitive.elementwise(ops.BITCAST, step.value, dtype=dtype))
    there = x.equals(y).where(y, moved)
    return wrap((x.differs(x) | y.differs(y)).where(math.nan, there).value)


@unary
def frac(x: Term) -> Term:
    """x without its integer part."""
    return x - x.apply(ops.TRUNC)


def frexp(x: Operand) -> tuple[NDArray, NDArray]:
    """(m, e) with ``x = m * 2**e`` and m from 1/2 up to 1, e of int32."""
    (term,), dtype = terms("frexp", (x,))
    require("frexp", dtype, "float")
    f = term.format
    tiny = abs(term) < f.tiny
    scaled = tiny.where(term * 2.0**f.mantissa, term)
    bits = scaled.bits()
    field = (bits >> f.mantissa) & (2 * f.bias + 1)
    exponent = (field - (f.bias - 1)) - tiny.where(bits.of(f.mantissa), 0)
    half = f.bias - 1 << f.mantissa
    m = ((bits & ~((2 * f.bias + 1) << f.mantissa)) | half).real()
    plain = (abs(term) < math.inf) & term.differs(0)
    return result(plain.where(m, term), dtype), wrap(plain.where(exponent, 0).cast(int32).value)


def ldexp(x: Operand, exponent: Operand) -> NDArray:
    """``x * 2**exponent`` for integer exponents, rounded once."""
    dtype = elementwise.float_values("ldexp", (x, exponent))[0].dtype
    number, power = map(Term, elementwise.values("ldexp", (x, exponent), float64))
    n = power.clamp(-2200, 2200).cast(int64)
    for _ in range(2):  # steps that only round where the result is 0 or infinite
        step = (n < -1022).where(-960, (n > 1000).where(1000, n.of(0)))
        number = number * power_of_two(step)
        n = n - step
    return result(number * power_of_two(n), dtype)


# ---- special values


def _is_number(x: Operand, *, number: float = math.inf, name: str = "isposinf") -> NDArray:
    return wrap(Term(float_value(name, x)).equals(number).value)


isposinf = variant(_is_number, "isposinf", "Whether x is plus infinity.")
isneginf = variant(_is_number, "isneginf", "Whether x is minus infinity.", number=-math.inf)


def nan_to_num(
    x: Operand, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> NDArray:
    """x with NaN and infinities replaced; infinities by the greatest finite numbers if None."""
    (value,) = elementwise.values("nan_to_num", (x,))
    if not value.dtype.is_float:
        return wrap(value)
    term, greatest = Term(value), _greatest(value.dtype)
    high = greatest if posinf is None else posinf
    low = -greatest if neginf is None else neginf
    finite = term.equals(math.inf).where(term.argument(high), term)
    finite = term.equals(-math.inf).where(term.argument(low), finite)
    return wrap(term.differs(term).where(term.argument(nan), finite).value)


def _greatest(dtype: DType) -> float:
    """The greatest finite number: all bits of the mantissa set, and all but one of the exponent."""
    layouts = {"float16": (10, 15), "bfloat16": (7, 127), "float64": (52, 1023)}
    mantissa, bias = layouts.get(dtype.name, (23, 127))
    return (2 - 2.0**-mantissa) * 2.0**bias


def heaviside(x: Operand, at_zero: Operand) -> NDArray:
    """0 for negative x and NaN, 1 for positive x, `at_zero` for 0."""
    a, b = map(Term, elementwise.values("heaviside", (x, at_zero)))
    step = (a > 0).where(b.of(1), b.of(0))
    return wrap(a.equals(0).where(b, step).value)


# ---- greatest and least without NaN, closeness


def _number_of(a: Operand, b: Operand, *, name: str = "fmax") -> NDArray:
    x, y = map(Term, elementwise.values(name, (a, b)))
    first = x >= y if name == "fmax" else x <= y
    return wrap((y.differs(y) | first).where(x, y).value)


fmax = variant(_number_of, "fmax", "The greater one; NaN loses.")
fmin = variant(_number_of, "fmin", "The lesser one; NaN loses.")


def isclose(
    a: Operand, b: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> NDArray:
    """Whether ``|a - b| <= atol + rtol * |b|``; infinities are close to themselves only."""
    x, y = map(wrap, elementwise.values("isclose", (a, b)))
    same = x == y
    if x.dtype is bool_:
        return same
    if x.dtype.is_integer:
        # The distance of two integers fits the unsigned type of their width, not always their own.
        u, v = (i.astype(uint64 if x.dtype is uint64 else int64) for i in (x, y))
        distance = bitcast(maximum(u, v) - minimum(u, v), uint64).astype(float64)
        y = y.astype(float64)
    else:
        distance = abs(x - y)
    close = same | ((distance <= abs(y) * rtol + atol) & isfinite(y))
    return close | (isnan(x) & isnan(y)) if equal_nan else close


def allclose(
    a: Operand, b: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, see `isclose`."""
    return bool(isclose(a, b, rtol, atol, equal_nan).all().item())


def array_equal(a: NDArray, b: NDArray) -> bool:
    """Whether both have the same shape and equal elements."""
    return a.shape == b.shape and bool((a == b).all().item())


__all__ = [
    "allclose", "array_equal", "copysign", "fmax", "fmin", "frac", "frexp", "heaviside", "isclose",
    "isneginf", "isposinf", "ldexp", "nan_to_num", "nextafter", "signbit",
]  # fmt: skip
