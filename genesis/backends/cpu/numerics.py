"""What the vector mathematics is built of: polynomials, scaling by powers of two, exact sums.

All of it is arithmetic on `Value`s of float32 or float64; nothing here branches or calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.backends.cpu.coefficients import DOUBLE, SINGLE, Format
from genesis.backends.cpu.emit import Value


def format_of(x: Value) -> Format:
    """The constants of a value's type."""
    return SINGLE if x.element == "float" else DOUBLE


def polynomial(t: Value, coefficients: Sequence[float]) -> Value:
    """``c0 + c1*t + c2*t**2 + ..`` by Horner's rule."""
    result = t.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.fma(t, c)
    return result


def clamp(x: Value, low: float, high: float) -> Value:
    """`x` within bounds, NaN kept. Written so that each line is one min or max instruction."""
    x = (x.like(high) < x).select(high, x)
    return (x.like(low) > x).select(low, x)


def bits_of(x: Value) -> Value:
    """A float's bits as an integer."""
    return x.convert("bitcast", format_of(x).integer)


def real_of(bits: Value) -> Value:
    """The float that has these bits."""
    return bits.convert("bitcast", "float" if bits.element == "i32" else "double")


def with_sign_of(x: Value, sign: Value) -> Value:
    """The size of one number and the sign of another."""
    return x.intrinsic("copysign", sign)


def round_to_integer(t: Value) -> tuple[Value, Value]:
    """`t` rounded, as a float and as an integer, for ``|t| < 2**(mantissa - 1)``."""
    f = format_of(t)
    shifted = t + f.rounder
    # Bits, not a conversion: converting NaN would be undefined.
    bits = f.bias + f.mantissa << f.mantissa | 1 << (f.mantissa - 1)
    return shifted - f.rounder, bits_of(shifted) - bits


def times_power_of_two(x: Value, n: Value) -> Value:
    """``x * 2**n`` rounded once, for any result: zero, denormal, normal or infinite."""
    f = format_of(x)
    if x.out.module.scalef and x.width:
        if n.element != "i32":
            n = n.convert("trunc", "i32")
        name = f"llvm.ldexp.v{x.width}f{32 if x.element == 'float' else 64}.v{x.width}i32"
        return x.out.call(name, x.element, x.width, x, n)
    # In two steps that cannot overflow on their own; the first is exact.
    half = n >> 1
    first = real_of((half + f.bias) << f.mantissa)
    second = real_of((n - half + f.bias) << f.mantissa)
    return x * first * second


def near_power_of_two(n: Value) -> Value:
    """``2**n`` where that is a normal number."""
    f = SINGLE if n.element == "i32" else DOUBLE
    return real_of((n + f.bias) << f.mantissa)


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """``a + b`` and its rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """The same for ``|a| >= |b|``."""
    s = a + b
    return s, b - (s - a)


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """``a * b`` and its rounding error."""
    p = a * b
    return p, a.fma(b, -p)


def any_lane(condition: Value) -> Value:
    """Whether a condition holds in some lane, as a scalar to branch on."""
    if not condition.width:
        return condition
    mask = f"i{condition.width}"
    return condition.out.op(f"bitcast {condition} to {mask}", mask).differs(0)


__all__ = [
    "any_lane", "bits_of", "clamp", "fast_two_sum", "format_of", "near_power_of_two", "polynomial",
    "real_of", "round_to_integer", "times_power_of_two", "two_product", "two_sum", "with_sign_of",
]  # fmt: skip
