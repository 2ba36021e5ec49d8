"""The incomplete gamma functions, computed in float64 for every type.

``P(a, x)`` is the share of the gamma function's integral up to x, and ``Q = 1 - P`` the rest. The
lesser of both is computed, the other one is what is missing to 1: by a power series below the mean
a, by a continued fraction above it, and for large a, where both converge slowly around the mean, by
Temme's expansion, which is uniform there: the tail of a normal distribution and a correction. All
have the same number of terms for every element.
"""

from __future__ import annotations

import math
from functools import cache

from genesis.ir import ops
from genesis.ndarray.ops.elementary import expm1_of
from genesis.ndarray.ops.special.coefficients import LGAMMA, STIRLING
from genesis.ndarray.ops.special.error_functions import erfcx_of
from genesis.ndarray.ops.special.formula import Term, polynomial, wide_binary
from genesis.ndarray.ops.special.gamma import BERNOULLI, lgamma_of

_LARGE = 20.0  # from this a on there is Temme's expansion
_TERMS = 60  # of the series and of the fraction


@wide_binary
def gammainc(a: Term, x: Term) -> Term:
    """The lower incomplete gamma function over the gamma function: from 0 to 1 as x grows."""
    lower, value = _lesser(a, x)
    inside = lower.where(value, 1 - value)
    return _at_the_ends(a, x, x.equals(0).where(0, inside), 0.0, 1.0)


@wide_binary
def gammaincc(a: Term, x: Term) -> Term:
    """The upper incomplete gamma function over the gamma function: from 1 to 0 as x grows."""
    lower, value = _lesser(a, x)
    inside = lower.where(1 - value, value)
    return _at_the_ends(a, x, x.equals(0).where(1, inside), 1.0, 0.0)


def _at_the_ends(a: Term, x: Term, inside: Term, first: float, last: float) -> Term:
    """What is inside, and the limits where one of both numbers is 0 or infinite."""
    far, wide = x.equals(math.inf), a.equals(math.inf)
    value = far.where(last, wide.where(first, inside))
    value = (a.equals(0) & (x > 0)).where(last, value)
    undefined = (far & wide) | (a.equals(0) & x.equals(0)) | (a < 0) | (x < 0)
    return undefined.where(math.nan, value)


def _lesser(a: Term, x: Term) -> tuple[Term, Term]:
    """P or Q, whichever is better known, and before it whether it is P."""
    distance = (x - a) / a
    excess = _excess(distance, x / a)
    decay = (-(a * excess)).apply(ops.EXP)
    logarithm = x.apply(ops.LOG)
    uniform = (a >= _LARGE) & (excess < 0.5)
    # Close to 0, P may be close to 1.
    upper = ~uniform & (x < 1.5) & (a < (x < 0.5).where(-0.4 / logarithm, x))
    lower = uniform.where(distance < 0, ~upper & ((x < a + 1) | (x < 1.5)))
    density = _density(a, x, decay)
    value = lower.where(density * _series(a, x), density * a / _fraction(a, x))
    value = upper.where(_close_to_zero(a, x, logarithm), value)
    return lower, uniform.where(_uniform(a, distance, excess, decay), value)


def _excess(distance: Term, ratio: Term) -> Term:
    """``distance - log(1 + distance)``, which is of second order for small distances."""
    s = distance / (distance + 2)
    z = s * s
    near = s * (distance - z * polynomial(z, [2 / (2 * k + 3) for k in range(28)]))
    return (abs(s) < 0.55).where(near, distance - ratio.apply(ops.LOG))


def _lgamma1p(a: Term) -> Term:
    """lgamma(1 + a), in proportion to a where that is small."""
    return (a < 2).where(a * (a - 1) * polynomial(a - 1, LGAMMA), lgamma_of(a + 1))


def _density(a: Term, x: Term, decay: Term) -> Term:
    """``x**a * exp(-x) / gamma(1 + a)``; `decay` is that over its maximum, at x = a."""
    small = x.binary(ops.POW, a) * (-x).apply(ops.EXP) * (-_lgamma1p(a)).apply(ops.EXP)
    inverse = 1 / a
    stirling = inverse * polynomial(inverse * inverse, STIRLING)
    large = decay * (-stirling).apply(ops.EXP) / (a * (2 * math.pi)).apply(ops.SQRT)
    return (a < 4).where(small, large)


def _series(a: Term, x: Term) -> Term:
    """1 + x/(a+1) + x*x/((a+1)*(a+2)) + .., as a quotient, so that there is one division."""
    inverse = 1 / (a + 1)
    ratio = x * inverse
    over = under = a.of(1)
    for n in reversed(range(_TERMS)):
        under = under * inverse.fma(n, 1)
        over = over.fma(ratio, under)
    return over / under


def _fraction(a: Term, x: Term) -> Term:
    """x+1-a - 1*(1-a)/(x+3-a - 2*(2-a)/(x+5-a - ..))"""
    start = x - a
    value = start + (2 * _TERMS + 1)
    for n in range(_TERMS, 0, -1):
        value = start + (2 * n - 1) - (n - a) * n / value
    return value


def _close_to_zero(a: Term, x: Term, logarithm: Term) -> Term:
    """Q by what P is short of 1, for x < 1.5: the power series of both has alternating signs."""
    exponent = a * logarithm - _lgamma1p(a)
    power, total = a.of(1), a.of(0)
    for n in range(1, 27):
        power = power * x * (-1 / n)
        total = total + power / (a + n)
    return -expm1_of(exponent) - exponent.apply(ops.EXP) * a * total


def _uniform(a: Term, distance: Term, excess: Term, decay: Term) -> Term:
    """The lesser of P and Q for large a, with ``excess < 0.5``."""
    eta = (excess + excess).apply(ops.SQRT).with_sign_of(distance)
    inverse = 1 / a
    total = a.of(0)
    for coefficients in reversed(_temme()):
        total = total * inverse + polynomial(eta, coefficients)
    correction = total / (a * (2 * math.pi)).apply(ops.SQRT)
    half = 0.5 * erfcx_of((a * excess).apply(ops.SQRT))
    return decay * (half + (distance < 0).where(-correction, correction))


@cache
def _temme() -> list[list[float]]:
    """The coefficients of powers of eta, for every power of 1/a, as far as they count.

    With ``eta*eta/2 = m - log(1 + m)`` the first row is 1/m - 1/eta, and a row follows from the one
    before by ``(derivative)/eta + (-1)**k * g/m``, g the coefficients of Stirling's series.
    """
    from fractions import Fraction  # takes as long to import as a tenth of Genesis

    orders, length = 11, 27
    count = length + 2 * orders
    m = [Fraction(0), Fraction(1)]  # of eta, from m*m' = eta*(1 + m)
    for n in range(2, count + 2):
        products = sum((m[i] * m[n + 1 - i] for i in range(2, n)), Fraction(0))
        m.append((2 * m[n - 1] / (n + 1) - products) / 2)
    inverse = [Fraction(1)]  # of eta/m
    for n in range(1, count + 1):
        inverse.append(-sum((m[i + 1] * inverse[n - i] for i in range(1, n + 1)), Fraction(0)))
    log = {2 * k + 1: Fraction(b) / ((2 * k + 1) * (2 * k + 2)) for k, b in enumerate(BERNOULLI)}
    stirling = [Fraction(1)]
    for n in range(1, orders):
        terms = (j * log[j] * stirling[n - j] for j in range(1, n + 1, 2))
        stirling.append(sum(terms, Fraction(0)) / n)
    first = inverse[1:]
    rows = [first]
    for k in range(1, orders):
        before, g = rows[-1], (-1) ** k * stirling[k]
        rows.append([(n + 2) * before[n + 2] + g * first[n] for n in range(len(before) - 2)])
    kept = []
    for k, row in enumerate(rows):
        counting = [n for n, c in enumerate(row) if abs(c) > 2.0**-56 * _LARGE**k]
        kept.append([float(c) for c in row[: counting[-1] + 1]])
    return kept


__all__ = ["gammainc", "gammaincc"]
