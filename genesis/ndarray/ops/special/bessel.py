"""Bessel functions of orders 0 and 1, and Airy's, computed in float64 for every type.

Close to 0 each is a polynomial (with the first root as a factor, and the logarithm apart); far
away it is the decaying wave it resembles there, with fitted amplitudes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import factorial

from genesis.ir import ops
from genesis.ndarray.ops.elementary import times_exp
from genesis.ndarray.ops.elementwise import Unary
from genesis.ndarray.ops.special import coefficients as fitted
from genesis.ndarray.ops.special.formula import Term, polynomial, wide


def _of_order(
    formula: Callable[[Term, int, bool], Term], order: int, scaled: bool, name: str, doc: str
) -> Unary:
    def of_order(x: Term) -> Term:
        return formula(x, order, scaled)

    of_order.__name__, of_order.__doc__ = name, doc
    return wide(of_order)


# ---- modified, of the first kind


# The power series of both (the second over x/2): all terms are positive, none cancel.
_SERIES = [[0.25**k / (factorial(k) * factorial(k + n)) for k in range(23)] for n in (0, 1)]
_FAR = (fitted.I0_FAR, fitted.I1_FAR)


def _growing(x: Term, order: int, scaled: bool) -> Term:
    """I0, which is even, or I1, which is odd; times exp(-abs(x)) if scaled."""
    a = abs(x)
    near = polynomial(a * a, _SERIES[order])
    near = near * a * 0.5 if order else near
    far = polynomial(16 / a - 1, _FAR[order]) / a.apply(ops.SQRT)
    if scaled:
        near = near * (-a).apply(ops.EXP)
    else:  # which may be finite where exp(a) is not
        far = (a > 720).where(a * math.inf, times_exp(far, 0.0, (a > 720).where(720, a), 0.0))
    value = (a > 8).where(far, near)
    return value.with_sign_of(x) if order else value


_FIRST = "The modified Bessel function of the first kind and order {}."
i0 = _of_order(_growing, 0, False, "i0", _FIRST.format(0))
i0e = _of_order(_growing, 0, True, "i0e", "exp(-abs(x)) * i0(x)")
i1 = _of_order(_growing, 1, False, "i1", _FIRST.format(1))
i1e = _of_order(_growing, 1, True, "i1e", "exp(-abs(x)) * i1(x)")


# ---- modified, of the second kind


def _decaying(x: Term, order: int, scaled: bool) -> Term:
    """K0 or K1, times exp(x) if scaled; NaN for negative x."""
    z = x * x
    growing = polynomial(z, _SERIES[order][:10])
    log = (x * 0.5).apply(ops.LOG)
    if order:
        near = 1 / x + x * (log * 0.5 * growing + polynomial(z + z - 1, fitted.K1))
    else:
        near = polynomial(z + z - 1, fitted.K0) - log * growing
    near = x.equals(0).where(math.inf, near)
    far = polynomial(2 / x - 1, (fitted.K0_FAR, fitted.K1_FAR)[order]) / x.apply(ops.SQRT)
    if scaled:
        near = near * x.apply(ops.EXP)
    else:
        far = times_exp(far, 0.0, -(x > 750).where(750, x), 0.0)
    return (x > 1).where(x.equals(math.inf).where(0, far), near)


_SECOND = "The modified Bessel function of the second kind and order {}; NaN for negative x."
k0 = _of_order(_decaying, 0, False, "k0", _SECOND.format(0))
k0e = _of_order(_decaying, 0, True, "k0e", "exp(x) * k0(x)")
k1 = _of_order(_decaying, 1, False, "k1", _SECOND.format(1))
k1e = _of_order(_decaying, 1, True, "k1e", "exp(x) * k1(x)")


# ---- of the first and second kind


def _near(x: Term) -> tuple[Term, Term]:
    """x*x, and the variable of the polynomials up to 5."""
    z = x * x
    return z, z * 0.08 - 1


def _j0_near(x: Term) -> Term:
    z, v = _near(x)
    return (z - fitted.J0_ROOT[0] - fitted.J0_ROOT[1]) * polynomial(v, fitted.J0)


def _j1_near(x: Term) -> Term:
    z, v = _near(x)
    return x * ((z - fitted.J1_ROOT[0] - fitted.J1_ROOT[1]) * polynomial(v, fitted.J1))


def _waves(x: Term, p: tuple[float, ...], q: tuple[float, ...]) -> tuple[Term, Term, Term, Term]:
    """For large x: the amplitudes of both waves, and sin(x) + cos(x), sin(x) - cos(x).

    These are the waves themselves, shifted by an eighth of a turn, but for a factor that the
    amplitudes have.
    """
    w = 25 / (x * x)
    size = math.sqrt(1 / math.pi) / x.apply(ops.SQRT)
    sine, cosine = x.apply(ops.SIN), x.apply(ops.COS)
    return size * polynomial(w, p), size * polynomial(w, q) / x, sine + cosine, sine - cosine


def _joined(x: Term, near: Term, far: Term) -> Term:
    return (x > 5).where(x.equals(math.inf).where(0, far), near)


@wide
def bessel_j0(x: Term) -> Term:
    """The Bessel function of the first kind and order 0."""
    a = abs(x)
    p, q, plus, minus = _waves(a, fitted.P0_FAR, fitted.Q0_FAR)
    return _joined(a, _j0_near(a), p * plus - q * minus)


@wide
def bessel_j1(x: Term) -> Term:
    """The Bessel function of the first kind and order 1."""
    a = abs(x)
    p, q, plus, minus = _waves(a, fitted.P1_FAR, fitted.Q1_FAR)
    value = _joined(a, _j1_near(a), p * minus + q * plus)
    return (value.bits() ^ (x.bits() & x.format.sign)).real()


@wide
def bessel_y0(x: Term) -> Term:
    """The Bessel function of the second kind and order 0; NaN for negative x."""
    _, v = _near(x)
    near = x.apply(ops.LOG) * (2 / math.pi) * _j0_near(x) + polynomial(v, fitted.Y0)
    p, q, plus, minus = _waves(x, fitted.P0_FAR, fitted.Q0_FAR)
    return _joined(x, near, p * minus + q * plus)


@wide
def bessel_y1(x: Term) -> Term:
    """The Bessel function of the second kind and order 1; NaN for negative x."""
    _, v = _near(x)
    logarithm = x.apply(ops.LOG)
    regular = x * polynomial(v, fitted.Y1)
    near = (logarithm * _j1_near(x) * (2 / math.pi) + regular) - (2 / math.pi) / x
    p, q, plus, minus = _waves(x, fitted.P1_FAR, fitted.Q1_FAR)
    return x.equals(0).where(-math.inf, _joined(x, near, q * minus - p * plus))


# ---- Airy's function

# Around 0 it is a polynomial; above 1 it decays, and below -5 it is a wave, both with fitted
# amplitudes. What it decays by and the wave's phase are ``z = |x|**1.5 / 1.5``, known to twice the
# precision: an error of z would be one of the result, z times as large.


@wide
def airy_ai(x: Term) -> Term:
    """The Airy function Ai, a solution of ``y'' = x * y``."""
    a = abs(x)
    root = a.apply(ops.SQRT)
    z, rest = _airy_phase(a, root)
    size = 1 / root.apply(ops.SQRT)
    # Beyond 104 nothing is left.
    decay = (x > 110).where(-800, -z)
    above = times_exp(size * polynomial(4 / 3 / z - 1, fitted.AIRY_FAR), 0.0, decay, -rest)
    near = polynomial(x * 0.8 + 0.2, fitted.AIRY)
    below = polynomial((x * 4 + 13) / 7, fitted.AIRY_BELOW)
    waves = size * _airy_waves(a, z, rest)
    value = (x > 1).where(above, (x > -1.5).where(near, (x > -5).where(below, waves)))
    return a.equals(math.inf).where(0, value)


def _airy_phase(a: Term, root: Term) -> tuple[Term, Term]:
    """a**1.5 / 1.5 as a sum of two."""
    low = root.fma(-root, a) / (root + root)  # of the root
    cube = a * root
    cube_low = a.fma(root, -cube) + a * low
    z = cube / 1.5
    return z, (z.fma(-1.5, cube) + cube_low) / 1.5


def _airy_waves(a: Term, z: Term, rest: Term) -> Term:
    """a**0.25 * Ai(-a) for large a."""
    w = 250 / (a * a * a) - 1
    p, q = polynomial(w, fitted.AIRY_P), polynomial(w, fitted.AIRY_Q) / z
    sine, cosine = z.apply(ops.SIN), z.apply(ops.COS)
    sine, cosine = cosine.fma(rest, sine), sine.fma(-rest, cosine)
    # sine and cosine an eighth of a turn further
    return math.sqrt(0.5) * (p * (sine + cosine) - q * (cosine - sine))


__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "i0", "i0e", "i1", "i1e", "k0",
    "k0e", "k1", "k1e",
]  # fmt: skip
