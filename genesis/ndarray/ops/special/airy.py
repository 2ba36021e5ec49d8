"""The Airy function, computed in float64 for every type.

Around 0 it is a polynomial; above 1 it decays, and below -5 it is a wave, both with fitted
amplitudes. What it decays by and the wave's phase are ``z = |x|**1.5 / 1.5``, known to twice the
precision: an error of z would be one of the result, z times as large.
"""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ndarray.ops.elementary import times_exp
from genesis.ndarray.ops.special.coefficients import AIRY, AIRY_BELOW, AIRY_FAR, AIRY_P, AIRY_Q
from genesis.ndarray.ops.special.formula import Term, polynomial, wide


@wide
def airy_ai(x: Term) -> Term:
    """The Airy function Ai, a solution of ``y'' = x * y``."""
    a = abs(x)
    root = a.apply(ops.SQRT)
    z, rest = _phase(a, root)
    size = 1 / root.apply(ops.SQRT)
    # Beyond 104 nothing is left.
    decay = (x > 110).where(-800, -z)
    above = times_exp(size * polynomial(4 / 3 / z - 1, AIRY_FAR), 0.0, decay, -rest)
    near = polynomial(x * 0.8 + 0.2, AIRY)
    below = polynomial((x * 4 + 13) / 7, AIRY_BELOW)
    waves = size * _waves(a, z, rest)
    value = (x > 1).where(above, (x > -1.5).where(near, (x > -5).where(below, waves)))
    return a.equals(math.inf).where(0, value)


def _phase(a: Term, root: Term) -> tuple[Term, Term]:
    """a**1.5 / 1.5 as a sum of two."""
    low = root.fma(-root, a) / (root + root)  # of the root
    cube = a * root
    cube_low = a.fma(root, -cube) + a * low
    z = cube / 1.5
    return z, (z.fma(-1.5, cube) + cube_low) / 1.5


def _waves(a: Term, z: Term, rest: Term) -> Term:
    """a**0.25 * Ai(-a) for large a."""
    w = 250 / (a * a * a) - 1
    p, q = polynomial(w, AIRY_P), polynomial(w, AIRY_Q) / z
    sine, cosine = z.apply(ops.SIN), z.apply(ops.COS)
    sine, cosine = cosine.fma(rest, sine), sine.fma(-rest, cosine)
    # sine and cosine an eighth of a turn further
    return math.sqrt(0.5) * (p * (sine + cosine) - q * (cosine - sine))


__all__ = ["airy_ai"]
