"""Functions of a complex variable, as formulas on the real and the imaginary part.

Each takes the two parts and gives two. Values at infinities, NaN, signed zeros and along the branch
cuts are those of C99's Annex G; errors are a few units in the last place of the modulus. What would
overflow or cancel on the way is scaled or written differently (Kahan, "Branch cuts for complex
elementary functions", 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from genesis.ir import ops
from genesis.ir.dtype import float32, float64
from genesis.ndarray.ops.elementary import expm1_of, log1p_of
from genesis.ndarray.ops.special.formula import Term

#: Beyond 2**edge and below 2**-edge squares are taken of numbers scaled by 2**-shift, 2**shift.
_EDGE = {float32: 60, float64: 500}
_SHIFT = {float32: 100, float64: 800}
#: exp is finite up to here, and exp(-2x) is nothing next to 1 from here on.
_OVERFLOW = {float32: 88.0, float64: 709.0}
_SATURATED = {float32: 10.0, float64: 20.0}

Parts = tuple[Term, Term]
Function = Callable[[Term, Term], Parts]


def _atan2(y: Term, x: Term) -> Term:
    return y.binary(ops.ATAN2, x)


def _asinh(x: Term) -> Term:
    size = abs(x)
    square = size * size
    small = log1p_of(size + square / ((square + 1).apply(ops.SQRT) + 1))
    far = size > 2.0**30
    return far.where(size.apply(ops.LOG) + math.log(2), small).with_sign_of(x)


def _infinite(x: Term) -> Term:
    return abs(x).equals(math.inf)


def _finite(x: Term) -> Term:
    return abs(x) < math.inf


def _scaled(x: Term, y: Term) -> tuple[Term, Term, Term]:
    """Both magnitudes scaled so that squares neither overflow nor underflow, and the exponent.

    That is a multiple of the type's shift, given as -1, 0 or 1: scaled = true * 2**(shift * it).
    """
    a, b = abs(x), abs(y)
    greatest = a.max(b)
    edge, shift = 2.0 ** _EDGE[x.dtype], 2.0 ** _SHIFT[x.dtype]
    large, small = greatest > edge, greatest < 1 / edge
    factor = large.where(1 / shift, small.where(shift, x.of(1)))
    exponent = large.where(-1, small.where(1, x.of(0)))
    return a * factor, b * factor, exponent


def _unscaled(x: Term, exponent: Term, half: bool = False) -> Term:
    shift = 2.0 ** (_SHIFT[x.dtype] // 2 if half else _SHIFT[x.dtype])
    factor = exponent.equals(-1).where(shift, exponent.equals(1).where(1 / shift, x.of(1)))
    return x * factor


# ---- modulus, division


def modulus(x: Term, y: Term) -> Term:
    """The distance from zero; infinite where a part is, whatever the other one."""
    a, b, exponent = _scaled(x, y)
    length = _unscaled((a * a + b * b).apply(ops.SQRT), exponent)
    return (_infinite(x) | _infinite(y)).where(math.inf, length)


def direction(x: Term, y: Term) -> Parts:
    """The number of modulus 1 in the same direction; 0 for 0."""
    a, b, _ = _scaled(x, y)
    length = (a * a + b * b).apply(ops.SQRT)
    nothing = length.equals(0)
    return (
        nothing.where(0, (a / length).with_sign_of(x)),
        nothing.where(0, (b / length).with_sign_of(y)),
    )


def divide(a: Term, b: Term, c: Term, d: Term) -> Parts:
    """(a + ib) / (c + id), by Smith's algorithm: the divisor's lesser part over the greater."""
    # Near the largest number the sum below would overflow.
    huge = abs(c).max(abs(d)) > 2.0 ** (_EDGE[a.dtype] * 2)
    factor = huge.where(2.0**-4, a.of(1))
    c, d = c * factor, d * factor
    flat = ~(abs(c) < abs(d))
    greater, lesser = flat.where(c, d), flat.where(d, c)
    ratio = lesser / greater
    ratio = greater.equals(0).where(0, ratio)  # both are 0: then each part is divided by 0
    below = greater + lesser * ratio
    below = greater.equals(0).where(abs(greater), below)
    real = flat.where(a + b * ratio, a * ratio + b)
    imag = flat.where(b - a * ratio, b * ratio - a)
    return real / below * factor, imag / below * factor


# ---- powers and logarithms


def exp(x: Term, y: Term) -> Parts:
    """e to the power of z."""
    # Where exp(x) overflows the product with a small sine need not: half the exponent, twice.
    large = x > _OVERFLOW[x.dtype]
    power = large.where(x * 0.5, x).apply(ops.EXP)
    again = large.where(power, x.of(1))
    lost = _infinite(x) & ~_finite(y)
    cos = lost.where(1, y.apply(ops.COS))
    sin = lost.where((x < 0).where(0, x.of(math.nan)), y.apply(ops.SIN))
    return power * cos * again, y.equals(0).where(y, power * sin * again)


def exp2(x: Term, y: Term) -> Parts:
    """2 to the power of z."""
    return exp(x * math.log(2), y * math.log(2))


def expm1(x: Term, y: Term) -> Parts:
    """e to the power of z, less 1."""
    sine = (y * 0.5).apply(ops.SIN)
    near = expm1_of(x) * y.apply(ops.COS) - sine * sine * 2
    real, imag = exp(x, y)
    return (abs(x) < 1).where(near, real - 1), imag


def log(x: Term, y: Term) -> Parts:
    """The logarithm with an imaginary part from -pi to pi."""
    return _log_modulus(x, y), _atan2(y, x)


def _log_modulus(x: Term, y: Term) -> Term:
    a, b, exponent = _scaled(x, y)
    shift = _SHIFT[x.dtype] * math.log(2)
    far = (a * a + b * b).apply(ops.LOG) * 0.5 - exponent * shift
    # Near 1 the square of the modulus less 1, without cancellation that would show.
    greater, lesser = abs(x).max(abs(y)), abs(x).min(abs(y))
    near = log1p_of((greater - 1) * (greater + 1) + lesser * lesser) * 0.5
    result = ((greater > 0.5) & (greater < 2)).where(near, far)
    return (_infinite(x) | _infinite(y)).where(math.inf, result)


def _over(x: Term, y: Term, divisor: float) -> Parts:
    real, imag = log(x, y)
    return real * (1 / divisor), imag * (1 / divisor)


def log2(x: Term, y: Term) -> Parts:
    """The logarithm to base 2."""
    return _over(x, y, math.log(2))


def log10(x: Term, y: Term) -> Parts:
    """The logarithm to base 10."""
    return _over(x, y, math.log(10))


def log1p(x: Term, y: Term) -> Parts:
    """The logarithm of 1 + z."""
    near = log1p_of(x * (x + 2) + y * y) * 0.5
    close = abs(x).max(abs(y)) < 0.5
    real, imag = log(x + 1, y)
    return close.where(near, real), imag


def sqrt(x: Term, y: Term) -> Parts:
    """The root with a real part that is not negative."""
    a, b, exponent = _scaled(x, y)
    length = _infinite(x).where(math.inf, (a * a + b * b).apply(ops.SQRT))
    root = ((a + length) * 0.5).apply(ops.SQRT)
    greater = _unscaled(root, exponent, half=True)
    lesser = _unscaled(b / (root * 2), exponent, half=True)
    left = x < 0
    real, imag = left.where(lesser, greater), left.where(greater, lesser).with_sign_of(y)
    above, zero = _infinite(y), x.equals(0) & y.equals(0)
    real = above.where(math.inf, zero.where(0, real))
    return real, (above | zero).where(y, imag)


def rsqrt(x: Term, y: Term) -> Parts:
    """1 over the root."""
    return divide(x.of(1), x.of(0), *sqrt(x, y))


def power(x: Term, y: Term, u: Term, v: Term) -> Parts:
    """z to the power of w: exp(w log z)."""
    angle, length = _atan2(y, x), _log_modulus(x, y)
    real, imag = exp(u * length - v * angle, v * length + u * angle)
    zero = x.equals(0) & y.equals(0)
    constant_one = u.equals(0) & v.equals(0)
    at_zero = constant_one.where(1, (u > 0).where(0, u.of(math.nan)))
    real = zero.where(at_zero, real)
    return real, zero.where((at_zero.differs(at_zero)).where(math.nan, u.of(0)), imag)


def sigmoid(x: Term, y: Term) -> Parts:
    """1 / (1 + exp(-z)), with a power that cannot overflow."""
    right = x > 0
    real, imag = exp(-abs(x), right.where(-y, y))
    return divide(right.where(1, real), right.where(0, imag), real + 1, imag)


# ---- hyperbolic and trigonometric functions


def _hyperbolic(x: Term) -> tuple[Term, Term, Term]:
    """cosh(x), |sinh(x)|, and a factor that both still have to be multiplied with."""
    size = abs(x)
    large = size > _OVERFLOW[x.dtype]
    less = expm1_of(large.where(size * 0.5, size))
    power = less + 1
    half = power * 0.5
    cosh, sinh = half + x.of(0.5) / power, (less + less / power) * 0.5
    return large.where(half, cosh), large.where(half, sinh), large.where(power, x.of(1))


def _nothing(x: Term, y: Term, product: Term) -> Term:
    """A product with a factor that is 0 where x or y is: 0, though the other is not finite."""
    zero = (x.equals(0) | y.equals(0)) & product.differs(product)
    return zero.where(x.of(0).with_sign_of(x) * x.of(1).with_sign_of(y), product)


def cosh(x: Term, y: Term) -> Parts:
    """The hyperbolic cosine."""
    even, odd, factor = _hyperbolic(x)
    lost = _infinite(x) & ~_finite(y)
    real = lost.where(math.inf, even * y.apply(ops.COS) * factor)
    imag = odd.with_sign_of(x) * y.apply(ops.SIN) * factor
    return real, _nothing(x, y, imag)


def sinh(x: Term, y: Term) -> Parts:
    """The hyperbolic sine."""
    even, odd, factor = _hyperbolic(x)
    lost = _infinite(x) & ~_finite(y)
    real = lost.where(x, odd.with_sign_of(x) * y.apply(ops.COS) * factor)
    imag = even * y.apply(ops.SIN) * factor
    real = (x.equals(0) & real.differs(real)).where(x, real)
    return real, y.equals(0).where(y, imag)


def tanh(x: Term, y: Term) -> Parts:
    """The hyperbolic tangent."""
    size, most = abs(x), _SATURATED[x.dtype]
    far = size > most
    even, odd, _ = _hyperbolic(far.where(0, size))
    sin, cos = y.apply(ops.SIN), y.apply(ops.COS)
    below = odd * odd + cos * cos
    real = far.where(1, odd * even / below).with_sign_of(x)
    turn = sin * cos
    fading = turn * (size * -2).apply(ops.EXP) * 4
    imag = far.where(fading, turn / below)
    imag = (_infinite(x) & ~_finite(y)).where(x.of(0).with_sign_of(y), imag)
    unknown = far & ~_infinite(x) & ~_finite(y)
    real = x.equals(0).where(x, unknown.where(math.nan, real))
    return real, y.equals(0).where(y, imag)


def _turned(function: Function) -> Function:
    """f(iz) / i: sin from sinh, tan from tanh, asinh from asin, atan from atanh."""

    def turned(x: Term, y: Term) -> Parts:
        real, imag = function(-y, x)
        return imag, -real

    return turned


def cos(x: Term, y: Term) -> Parts:
    """The cosine."""
    return cosh(-y, x)


sin = _turned(sinh)
tan = _turned(tanh)


# ---- their inverses


def _roots(x: Term, y: Term) -> tuple[Term, Term, Term, Term]:
    """The parts of the roots of 1 - z and of 1 + z."""
    return *sqrt(x.of(1) - x, -y), *sqrt(x + 1, y)


def _is_far(x: Term, y: Term) -> Term:
    edge = 2.0 ** _EDGE[x.dtype]
    return (abs(x) > edge) | (abs(y) > edge)


def asin(x: Term, y: Term) -> Parts:
    """The arc sine, with a real part from -pi/2 to pi/2."""
    u, v, p, q = _roots(x, y)
    far = _is_far(x, y)
    real = far.where(_atan2(x, abs(y)), _atan2(x, u * p - v * q))
    imag = far.where(_log_modulus(x, y) + math.log(2), abs(_asinh(u * q - v * p)))
    return x.equals(0).where(x, real), imag.with_sign_of(y)


def acos(x: Term, y: Term) -> Parts:
    """The arc cosine, with a real part from 0 to pi."""
    u, v, p, q = _roots(x, y)
    far = _is_far(x, y)
    real = far.where(_atan2(abs(y), x), _atan2(u, p) * 2)
    imag = far.where(_log_modulus(x, y) + math.log(2), abs(_asinh(p * v - q * u)))
    return (x.equals(0) & ~_infinite(y)).where(math.pi / 2, real), imag.with_sign_of(-y)


def acosh(x: Term, y: Term) -> Parts:
    """The inverse hyperbolic cosine, with a real part that is not negative."""
    real, imag = acos(x, y)
    return abs(imag), real.with_sign_of(y)


def atanh(x: Term, y: Term) -> Parts:
    """The inverse hyperbolic tangent, with an imaginary part from -pi/2 to pi/2."""
    a, b = abs(x), abs(y)
    far = _is_far(x, y)
    s, t, exponent = _scaled(x, y)
    shrunk = s / (s * s + t * t) * (2.0 ** -_SHIFT[x.dtype])  # the real part of 1/z
    distant = exponent.equals(-1).where(shrunk, x.of(math.nan))
    distant = (_infinite(x) | _infinite(y)).where(0, distant)
    apart = x.of(1) - a
    near = log1p_of(a * 4 / (apart * apart + b * b)) * 0.25
    beside = (b * b + 4).apply(ops.LOG) * 0.25 - b.apply(ops.LOG) * 0.5
    real = far.where(distant, a.equals(1).where(beside, near)).with_sign_of(x)
    turn = _atan2(y * 2, apart * (a + 1) - b * b) * 0.5
    imag = far.where(y.of(math.pi / 2).with_sign_of(y), turn)
    unknown = y.differs(y) | (x.differs(x) & ~_infinite(y))
    return x.equals(0).where(x, real), unknown.where(math.nan, imag)


asinh = _turned(asin)
atan = _turned(atanh)


# ---- composed of these


def silu(x: Term, y: Term) -> Parts:
    """z sigmoid(z)."""
    u, v = sigmoid(x, y)
    return x * u - y * v, x * v + y * u


def tanhshrink(x: Term, y: Term) -> Parts:
    """z - tanh(z)."""
    u, v = tanh(x, y)
    return x - u, y - v


def softsign(x: Term, y: Term) -> Parts:
    """z / (1 + |z|)."""
    size = modulus(x, y) + 1
    return x / size, y / size


def sinc(x: Term, y: Term) -> Parts:
    """sin(pi z) / (pi z), 1 at 0."""
    zero = x.equals(0) & y.equals(0)
    u, v = divide(*sin(x * math.pi, y * math.pi), zero.where(1, x * math.pi), y * math.pi)
    return zero.where(1, u), zero.where(0, v)


#: The functions of one variable, by the name under which an array is asked for them.
FUNCTIONS: dict[str, Function] = {
    "acos": acos, "acosh": acosh, "asin": asin, "asinh": asinh, "atan": atan, "atanh": atanh,
    "cos": cos, "cosh": cosh, "exp": exp, "exp2": exp2, "expm1": expm1, "log": log,
    "log10": log10, "log1p": log1p, "log2": log2, "rsqrt": rsqrt, "sigmoid": sigmoid,
    "silu": silu, "sin": sin, "sinc": sinc, "sinh": sinh, "softsign": softsign, "sqrt": sqrt,
    "tan": tan, "tanh": tanh, "tanhshrink": tanhshrink,
}  # fmt: skip
