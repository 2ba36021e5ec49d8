"""The error function's relatives: complement, inverses, and the normal distribution.

All tails come from one smooth function, ``erfcx(a) = exp(a*a) * erfc(a)``: the exponential takes
the square of its argument with the square's rounding error, so that results keep their precision
down to the smallest numbers.
"""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ndarray.ops.elementary import constants, log1p_of, times_exp
from genesis.ndarray.ops.special import coefficients as fitted
from genesis.ndarray.ops.special.formula import Term, polynomial, unary, wide


def _scaled(a: Term, low: Term | float = 0.0) -> tuple[Term, Term]:
    """erfcx(a + low) for finite a >= 0 and a small term, and what the result rounded away."""
    c = constants(a)
    k = c.erfcx_center
    above, below = a + k, a - k
    above_low, below_low = a - (above - k) + low, (a - below) - k + low
    inverse = 1 / above
    t = below * inverse
    rest = (-t).fma(above, below) + (-t).fma(above_low, below_low)
    t = rest.fma(inverse, t)
    slope = polynomial(t, c.erfcx[1:])
    numerator = slope.fma(t, c.erfcx[0])
    lost = slope.fma(t, c.erfcx[0] - numerator)
    quotient = numerator * inverse
    rest = (-quotient).fma(above, numerator) + (-quotient).fma(above_low, lost)
    return quotient, rest * inverse


def _square(x: Term) -> tuple[Term, Term]:
    square = x * x
    return square, x.fma(x, -square)


def _limited(x: Term, single: float, double: float) -> Term:
    """|x| up to where a result has vanished; NaN stays."""
    limit, a = single if x.dtype.bits == 32 else double, abs(x)
    return (a > limit).where(limit, a)


@unary
def erfc(x: Term) -> Term:
    """1 - erf(x), accurate where erf is close to 1."""
    a = _limited(x, 10.2, 27.3)
    square, lost = _square(a)
    tail = times_exp(*_scaled(a), -square, -lost)
    return (x < 0).where(2 - tail, tail)


def _normal_tail(x: Term) -> Term:
    """The probability of a normal variable beyond |x|."""
    a = _limited(x, 14.5, 38.7)
    square, lost = _square(a)
    root = constants(x).root_half
    scaled, low = _scaled(a * root[0], a.fma(root[0], -(a * root[0])) + a * root[1])
    return times_exp(scaled * 0.5, low * 0.5, square * -0.5, lost * -0.5)


def _ndtr(x: Term) -> Term:
    """The normal distribution's cumulative probability."""
    tail = _normal_tail(x)
    return (x > 0).where(1 - tail, tail)


ndtr = unary(_ndtr)


def erfcx_of(a: Term) -> Term:
    """exp(a*a) * erfc(a) for finite a >= 0."""
    return _scaled(a)[0]


@wide
def erfcx(x: Term) -> Term:
    """exp(x*x) * erfc(x), which neither overflows nor vanishes for positive x."""
    a = abs(x)
    scaled, low = _scaled(a)
    value = a.equals(math.inf).where(0, scaled + low)
    square, lost = _square(x)
    power = square.apply(ops.EXP)
    mirrored = (power + power) - value
    # The square's rounding error times the exponential's slope, where that is finite.
    mirrored = (power < math.inf).where((lost * power).fma(2, mirrored), power)
    return (x < 0).where(mirrored, value)


@wide
def log_ndtr(x: Term) -> Term:
    """The logarithm of `ndtr`, accurate far into the lower tail."""
    a = abs(x)
    scaled, low = _scaled(a * math.sqrt(0.5))
    lower = ((scaled + low) * 0.5).apply(ops.LOG) - x * x * 0.5
    upper = log1p_of(-_ndtr(-x))
    return (x < -1).where(x.equals(-math.inf).where(x, lower), upper)


# ---- inverses


def _inverse_center(x: Term) -> Term:
    """erfinv(x) for x*x <= 1/2."""
    return x * polynomial(x * x, fitted.ERFINV)


def _inverse_tail(q: Term, far: bool) -> Term:
    """The y with erfc(y) = q for 0 < q < 0.3; only for q > 1e-17 unless `far`."""
    t = (-q.apply(ops.LOG)).apply(ops.SQRT)
    y = (t < 3).where(
        polynomial(t - 2, fitted.ERFCINV_NEAR), polynomial(t - 4.5, fitted.ERFCINV_MIDDLE)
    )
    if far:
        farther = t * polynomial((1 / t - 0.1) * (1 / 0.07), fitted.ERFCINV_FAR)
        y = (t > 6).where(farther, y)
    return y


@unary
def erfinv(x: Term) -> Term:
    """The inverse of the error function."""
    a = abs(x)
    if x.dtype.bits == 32:
        w = -(-x).fma(x, 1).apply(ops.LOG)
        far = polynomial(w.apply(ops.SQRT) - 3, fitted.ERFINV_SINGLE_FAR)
        value = x * (w < 5).where(polynomial(w - 2.625, fitted.ERFINV_SINGLE), far)
        return a.equals(1).where(x * math.inf, value)
    tail = a.equals(1).where(math.inf, _inverse_tail(1 - a, False)).with_sign_of(x)
    return (a > 0.7).where(tail, _inverse_center(x))


@wide
def ndtri(p: Term) -> Term:
    """The inverse of `ndtr`."""
    upper = p >= 0.5
    q = upper.where(1 - p, p)
    x = q + q
    tail = _inverse_tail(x, True)
    y = (x < 0.3).where(x.equals(0).where(math.inf, tail), _inverse_center(1 - x))
    return upper.where(y, -y) * math.sqrt(2)


__all__ = ["erfc", "erfcx", "erfinv", "log_ndtr", "ndtr", "ndtri"]
