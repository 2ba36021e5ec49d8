"""The gamma function's logarithm and its derivatives, and the Hurwitz zeta function.

Computed in float64 for every type. Around 2 a polynomial gives the function, which the recurrence
``f(x) = f(x + 1) - ..`` takes down to 0; above 3 it is Stirling's series, fitted rather than
asymptotic; a reflection formula gives the negative side. Roots and poles are factors of their own.
"""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ir.dtype import float64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementary import sin_pi
from genesis.ndarray.ops.elementwise import Operand, require
from genesis.ndarray.ops.special import coefficients as fitted
from genesis.ndarray.ops.special.formula import Term, polynomial, result, terms, wide, wide_binary


def lgamma_of(x: Term) -> Term:
    """The logarithm of the absolute value of the gamma function."""
    a = abs(x)
    low, high = a < 1, a >= 3
    # lgamma(2 + v), and the logarithm of what takes that argument to a
    v = low.where(a - 1, high.where(a - 3, a - 2))
    log = (high & (a < 4)).where(a - 1, a).apply(ops.LOG)
    near = v * (v + 1) * polynomial(v, fitted.LGAMMA) + low.where(-log, high.where(log, 0))
    inverse = 1 / a
    rest = inverse.fma(
        polynomial(inverse * inverse, fitted.STIRLING), 0.5 * math.log(2 * math.pi) - 0.5
    )
    far = (a - 0.5) * (log - 1) + rest
    positive = (a < 4).where(near, a.equals(math.inf).where(a, far))
    reflected = math.log(math.pi) - (a * abs(sin_pi(a))).apply(ops.LOG) - positive
    reflected = a.equals(a.apply(ops.FLOOR)).where(math.inf, reflected)
    # Close to 0 the logarithm is all there is, on both sides.
    return (x < -(2.0**-60)).where(reflected, positive)


lgamma = wide(lgamma_of)


@wide
def multigammaln(x: Term, p: int) -> Term:
    """The logarithm of the gamma function of dimension p, for ``x > (p - 1) / 2``."""
    if p < 1:
        raise ValueError(f"multigammaln: the dimension is at least 1, not {p}")
    total = lgamma_of(x)
    for k in range(1, p):
        total = total + lgamma_of(x - k / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def _digamma(x: Term) -> Term:
    """The derivative of `lgamma`; NaN at the poles below 0."""
    negative = x < 0
    y = negative.where(1 - x, x)
    inverse = 1 / y
    low = y < 1
    root, rest = fitted.DIGAMMA_ROOT
    v = low.where(y - 1, y - 2)
    distance = low.where(y - (root - 1), y - root) - rest
    near = distance * polynomial(v, fitted.DIGAMMA) - low.where(inverse, 0)
    w = inverse * inverse
    far = y.apply(ops.LOG) - inverse.fma(0.5, w * polynomial(w, fitted.DIGAMMA_FAR))
    positive = (y < 3).where(near, far)
    return negative.where(positive - math.pi / _tan_pi(x), positive)


def _tan_pi(x: Term) -> Term:
    """tan(pi * x); NaN for integers, where the functions here have poles."""
    rest = x - x.apply(ops.ROUND)
    return rest.equals(0).where(math.nan, (rest * math.pi).apply(ops.TAN))


digamma = wide(_digamma)


def _trigamma(y: Term) -> Term:
    """The derivative of digamma for y > 0."""
    low = y < 1
    inverse = 1 / y
    w = inverse * inverse
    near = polynomial(low.where(y - 1, y - 2), fitted.TRIGAMMA) + low.where(w, 0)
    far = inverse.fma(w.fma(polynomial(w, fitted.TRIGAMMA_FAR), inverse * 0.5), inverse)
    return (y < 3).where(near, far)


def polygamma(n: int, x: Operand) -> NDArray:
    """The derivative of order n of digamma."""
    if n < 0:
        raise ValueError(f"polygamma: the order is not negative, got {n}")
    (term,), dtype = terms("polygamma", (x,))
    require("polygamma", dtype, "float")
    y = term.cast(float64)
    return result(_digamma(y) if n == 0 else _polygamma(n, y), dtype)


def _polygamma(n: int, x: Term) -> Term:
    sign = 1 if n % 2 else -1
    negative = x < 0
    y = negative.where(1 - x, x)
    if n == 1:
        positive = _trigamma(y)
    else:
        positive = _zeta(y.of(n + 1), y) * (sign * math.factorial(n))
    # (-1)**n times the same of 1 - x, minus pi times the nth derivative of cot(pi*x)
    cot = 1 / _tan_pi(x)
    derivative = polynomial(cot, _cotangent_derivative(n)) * math.pi ** (n + 1)
    reflected = -sign * positive - derivative
    pole = (x <= 0) & x.equals(x.apply(ops.FLOOR))
    return pole.where(sign * math.inf, negative.where(reflected, positive))


def _cotangent_derivative(n: int) -> list[float]:
    """The polynomial of c that the nth derivative of cot is, by ``c' = -(1 + c*c)``."""
    p = [0, 1]
    for _ in range(n):
        slope = [k * a for k, a in enumerate(p)][1:]
        p = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return [float(a) for a in p]


# ---- the Hurwitz zeta function

#: Bernoulli's numbers of even order.
BERNOULLI = (
    "1/6", "-1/30", "1/42", "-1/30", "5/66", "-691/2730", "7/6", "-3617/510", "43867/798",
    "-174611/330", "854513/138", "-236364091/2730",
)  # fmt: skip
_TERMS = 10  # summed one by one before the rest is an integral


def _zeta(s: Term, q: Term) -> Term:
    """The sum of ``(q + k)**-s`` by Euler and Maclaurin's formula, for s > 1 and q > 0."""
    total = q.binary(ops.POW, -s)
    for k in range(1, _TERMS):
        total = total + (q + k).binary(ops.POW, -s)
    w = q + _TERMS
    last = w.binary(ops.POW, -s)
    total = total + last * (w / (s - 1) + 0.5)
    # Beyond this order nothing is left of `last`, and the factors would overflow.
    order = (s > 1100).where(1100, s)
    inverse = 1 / w
    factor = last * order * inverse
    for j, number in enumerate(BERNOULLI, 1):
        over, _, under = number.partition("/")
        total = total + factor * (int(over) / int(under or 1) / math.factorial(2 * j))
        factor = factor * (order + (2 * j - 1)) * (order + 2 * j) * inverse * inverse
    return total


@wide_binary
def zeta(s: Term, q: Term) -> Term:
    """The Hurwitz zeta function: the sum of ``(q + k)**-s`` over all k.

    NaN for s < 1, and for q < 0 unless s is an integer; infinite for s = 1 and where q is 0, -1, ..
    """
    whole = q.apply(ops.FLOOR)
    negative = q < 0
    # The terms of negative numbers are those of positive ones up to their sign, so many of them.
    first = negative.where(q - whole, q)
    mirrored = _zeta(s, 1 - first) - _zeta(s, 1 - q)
    odd = (s * 0.5).differs((s * 0.5).apply(ops.FLOOR))
    rest = s.equals(s.apply(ops.FLOOR)).where(odd.where(-mirrored, mirrored), math.nan)
    value = _zeta(s, first)
    value = negative.where(value + rest, value)
    value = ((q <= 0) & q.equals(whole)).where(math.inf, value)
    return s.equals(1).where(math.inf, (s > 1).where(value, math.nan))


__all__ = ["digamma", "lgamma", "multigammaln", "polygamma", "zeta"]
