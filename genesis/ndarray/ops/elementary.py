"""Elementary functions composed of primitives: exponentials, logarithms, angles, hyperbolics.

Each is a range reduction and a polynomial, chosen so that no large terms cancel: errors stay below
2 units in the last place in float32 and 4 in float64 (`docs/numerics.md`). A function with the
symmetry of its argument's sign is computed of ``|x|`` and gets the sign at the end, so that -0
stays -0.
"""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ir.dtype import float64
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.elementwise import Operand, values
from genesis.ndarray.ops.special import formula
from genesis.ndarray.ops.special.coefficients import DOUBLE, SINGLE, Elementary
from genesis.ndarray.ops.special.formula import Term, binary, polynomial, power_of_two, unary

# ---- exponentials


def constants(x: Term) -> Elementary:
    """The coefficients for the type of a term."""
    return SINGLE if x.dtype.bits == 32 else DOUBLE


def exp_reduced(x: Term, low: Term | float = 0.0) -> tuple[Term, Term, Term]:
    """(r, s, n) with ``exp(x + low) = (1 + r + s) * 2**n``, where s is small, for moderate x."""
    c = constants(x)
    n, integer = formula.nearest_integer(x * c.log2e)
    first = n.fma(-c.ln2[0], x)
    second = n.fma(-c.ln2[1], first)
    r = second + low
    lost = n.fma(-c.ln2[1], first - second) + ((second - r) + low)
    return r, (r * r).fma(polynomial(r, c.exp), lost), integer


def times_exp(y: Term, y_low: Term | float, x: Term, x_low: Term | float) -> Term:
    """``(y + y_low) * exp(x + x_low)``, rounded once where that is denormal, for moderate x."""
    r, s, n = exp_reduced(x, x_low)
    first = n >> 1
    near = y + y.fma(r, y.fma(s, y_low))
    return near * power_of_two(first) * power_of_two(n - first)


def expm1_of(x: Term) -> Term:
    """exp(x) - 1, accurate for small x."""
    r, s, n = exp_reduced(x.clamp(*constants(x).expm1_range))
    # exp(x)/2 does not overflow before the result does.
    half = power_of_two(n - 1)
    p = r + s
    far = half.fma(p, half - 0.5)
    return n.equals(0).where(x.equals(0).where(x, p), far + far)


expm1 = unary(expm1_of)


@unary
def exp10(x: Term) -> Term:
    """10 to the power of x."""
    c, limit = constants(x), 60.0 if x.dtype.bits == 32 else 400.0  # beyond both ends of the range
    a = x.clamp(-limit, limit)
    power = a * c.ln10[0]
    return times_exp(x.of(1), 0.0, power, a.fma(c.ln10[0], -power) + a * c.ln10[1])


def half_exp(x: Term) -> Term:
    """exp(x) / 2 without overflow, for x from 0 up to `sinh_limit`."""
    r, s, n = exp_reduced(x)
    return ((r + s) + 1) * power_of_two(n - 2) * 2


@unary
def sinh(x: Term) -> Term:
    """The hyperbolic sine."""
    c, a = constants(x), abs(x)
    z = x * x
    near = (a * z).fma(polynomial(z, c.sinh), a)
    half = half_exp((a > c.sinh_limit).where(c.sinh_limit, a))
    return (a > 1).where(half - 0.25 / half, near).with_sign_of(x)


@unary
def cosh(x: Term) -> Term:
    """The hyperbolic cosine."""
    limit, a = constants(x).sinh_limit, abs(x)
    half = half_exp((a > limit).where(limit, a))
    return half + 0.25 / half


# ---- logarithms


def log1p_of(x: Term) -> Term:
    """log(1 + x), accurate for small x."""
    y = x + 1
    # What the sum rounded away, by the formula that holds for any two numbers.
    back = y - x
    lost = (x - (y - back)) + (1 - back)
    logarithm = y.apply(ops.LOG)
    corrected = (abs(logarithm) < math.inf).where(logarithm + lost / y, logarithm)
    return x.equals(0).where(x, corrected)  # -0 stays -0


log1p = unary(log1p_of)


@unary
def log10(x: Term) -> Term:
    """The logarithm to base 10."""
    c, f = constants(x), x.format
    # x = m * 2**e with m around 1
    tiny = x < f.tiny
    bits = tiny.where(x * 2.0 ** (f.mantissa + 1), x).bits()
    root_half = x.of(math.sqrt(0.5)).bits()
    exponent = (bits - root_half) >> f.mantissa
    m = (bits - (exponent << f.mantissa)).real()
    e = exponent.cast(x.dtype)
    e = tiny.where(e - float(f.mantissa + 1), e)
    # log(m) = d + low, where d is exact
    d = m - 1
    s = d / (d + 2)
    z = s * s
    half = d * d * 0.5
    low = s * (half + z * polynomial(z, c.log)) - half
    part = d.fma(c.log10e[0], low.fma(c.log10e[0], d * c.log10e[1]))
    value = e.fma(c.log10_2[0], e.fma(c.log10_2[1], part))
    value = x.equals(math.inf).where(x, value)
    return (x > 0).where(value, x.equals(0).where(x.of(-math.inf), math.nan))


@binary
def logaddexp(a: Term, b: Term) -> Term:
    """log(exp(a) + exp(b)) without overflow."""
    distance = abs(a - b)
    sum_ = a.max(b) + log1p_of((-distance).apply(ops.EXP))
    return a.equals(b).where(a + math.log(2), sum_)


@binary
def logaddexp2(a: Term, b: Term) -> Term:
    """log2(2**a + 2**b) without overflow."""
    distance = abs(a - b)
    sum_ = a.max(b) + log1p_of((-distance).apply(ops.EXP2)) * constants(a).log2e
    return a.equals(b).where(a + 1, sum_)


@binary
def xlogy(x: Term, y: Term) -> Term:
    """x * log(y); 0 where x is 0, unless y is NaN."""
    return (x.equals(0) & y.equals(y)).where(0, x * y.apply(ops.LOG))


@binary
def xlog1py(x: Term, y: Term) -> Term:
    """x * log(1 + y); 0 where x is 0, unless y is NaN."""
    return (x.equals(0) & y.equals(y)).where(0, x * log1p_of(y))


# ---- angles


@unary
def atan(x: Term) -> Term:
    """The arc tangent."""
    return x.binary(ops.ATAN2, 1)


def _asin_parts(x: Term) -> tuple[Term, Term, Term]:
    """Whether ``|x| > 1/2``, and asin of ``|x|`` if not, of ``sqrt((1 - |x|)/2)`` if so.

    The arc sine is the sum of its argument and a small term.
    """
    a = abs(x)
    steep = a > 0.5
    z = steep.where((1 - a) * 0.5, a * a)
    s = steep.where(z.apply(ops.SQRT), a)
    return steep, s, s * z * polynomial(z, constants(x).asin)


@unary
def asin(x: Term) -> Term:
    """The arc sine."""
    quarter = constants(x).half_pi
    steep, s, more = _asin_parts(x)
    rest = quarter[0] - (s + s)
    lost = (quarter[0] - rest) - (s + s)
    far = rest - ((more + more) - (quarter[1] + lost))
    return steep.where(far, s + more).with_sign_of(x)


@unary
def acos(x: Term) -> Term:
    """The arc cosine."""
    quarter = constants(x).half_pi
    steep, s, more = _asin_parts(x)
    p = s + more
    twice = p + p
    far = (x < 0).where(2 * quarter[0] - (twice - 2 * quarter[1]), twice)
    return steep.where(far, quarter[0] - (p.with_sign_of(x) - quarter[1]))


def sin_pi(x: Term) -> Term:
    """sin(pi * x): exact in the number of half turns."""
    n = x.apply(ops.ROUND)
    sine = ((x - n) * math.pi).apply(ops.SIN)
    half = n * 0.5
    return half.equals(half.apply(ops.FLOOR)).where(sine, -sine)


@unary
def sinc(x: Term) -> Term:
    """sin(pi*x) / (pi*x), 1 at 0."""
    return x.equals(0).where(1, sin_pi(x) / (x * math.pi))


def deg2rad(x: Operand) -> NDArray:
    """Degrees as radians."""
    (term,), dtype = formula.terms("deg2rad", (x,))
    return formula.result(term * (math.pi / 180), dtype)


def rad2deg(x: Operand) -> NDArray:
    """Radians as degrees."""
    (term,), dtype = formula.terms("rad2deg", (x,))
    return formula.result(term * (180 / math.pi), dtype)


@binary
def hypot(a: Term, b: Term) -> Term:
    """sqrt(a*a + b*b) without overflow."""
    f = a.format
    x, y = abs(a), abs(b)
    greater = (x < y).where(y, x)
    # Scaled by a power of two where a square would leave the range.
    step = 2.0 ** (f.bias * 3 // 4)
    large, small = greater > step**0.5, greater < step**-0.5
    scale = large.where(1 / step, small.where(step, x.of(1)))
    back = large.where(step, small.where(1 / step, x.of(1)))
    u, v = x * scale, y * scale
    length = u.fma(u, v * v).apply(ops.SQRT) * back
    infinite = x.equals(math.inf) | y.equals(math.inf)
    return infinite.where(math.inf, length)


# ---- inverse hyperbolics


@unary
def asinh(x: Term) -> Term:
    """The inverse hyperbolic sine."""
    a = abs(x)
    z = a * a
    near = (a * z).fma(polynomial(z, constants(x).asinh), a)
    return (a > 1).where(_log_of_sum(a, z + 1), near).with_sign_of(x)


@unary
def acosh(x: Term) -> Term:
    """The inverse hyperbolic cosine."""
    t = x - 1
    root = (t + t).apply(ops.SQRT)
    near = (root * t).fma(polynomial(t, constants(x).acosh), root)
    return (x > 2).where(_log_of_sum(x, x.fma(x, -1)), near)


def _log_of_sum(x: Term, square: Term) -> Term:
    """log(x + sqrt(square)) where the square is ``x*x`` plus or minus 1."""
    large = x > 2.0 ** (x.format.mantissa + 5)  # the root is x, and the square may overflow
    root = square.apply(ops.SQRT)
    y = large.where(x, x + root)
    lost = x - (y - root)
    return y.apply(ops.LOG) + large.where(math.log(2), lost / y)


def atanh_of(x: Term) -> Term:
    """The inverse hyperbolic tangent."""
    a = abs(x)
    z = a * a
    near = (a * z).fma(polynomial(z, constants(x).atanh), a)
    far = ((a + 1) / (1 - a)).apply(ops.LOG) * 0.5
    return (a > 0.5).where(far, near).with_sign_of(x)


atanh = unary(atanh_of)


# ---- interpolation, powers in float64


def lerp(a: Operand, b: Operand, weight: Operand) -> NDArray:
    """a + weight * (b - a), exact at both ends."""
    (x, y, w), dtype = formula.terms("lerp", (a, b, weight))
    distance = y - x
    if isinstance(weight, int | float):  # it is known which end is nearer
        return formula.result(
            x + w * distance if abs(weight) < 0.5 else y - distance * (1 - w), dtype
        )
    return formula.result((abs(w) < 0.5).where(x + w * distance, y - distance * (1 - w)), dtype)


def float_power(a: Operand, b: Operand) -> NDArray:
    """a to the power of b, in float64."""
    x, y = (Term(v) for v in values("float_power", (a, b), float64))
    return wrap(x.binary(ops.POW, y).value)


__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "deg2rad", "exp10", "expm1",
    "float_power", "hypot", "lerp", "log10", "log1p", "logaddexp", "logaddexp2", "rad2deg", "sinc",
    "sinh", "xlog1py", "xlogy",
]  # fmt: skip
