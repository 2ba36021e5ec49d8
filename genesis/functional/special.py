"""Special functions: error functions, gamma functions, Bessel functions and their relatives.

What is written under a function's name is its derivative; see `scalar`. Derivatives of Bessel
functions follow from the recurrences between neighbouring orders.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.activation import log_softmax, sigmoid, softmax
from genesis.functional.arithmetic import where
from genesis.functional.comparison import gt, lt
from genesis.functional.elementary import cos, exp, exp2, expm1, log, log1p, sinc
from genesis.functional.elementwise_function import rule, scalar
from genesis.functional.function import plain, with_gradient
from genesis.functional.polynomials import (
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    hermite_polynomial_h,
    hermite_polynomial_he,
    laguerre_polynomial_l,
    legendre_polynomial_p,
    shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from genesis.functional.reduction import logsumexp
from genesis.functional.registry import aten, by_rule, method
from genesis.functional.rounding_and_remainders import round

expit = sigmoid


def _logit(x: Any, eps: float | None = None) -> Any:
    slope = 1 / (x * (1 - x))
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    return where(lt(x, low), outside, where(gt(x, high), outside, slope))


_Logit = rule(nd.logit, _logit)


@method(in_place=True)
@aten("logit")
@by_rule(_Logit)
def logit(input: Any, eps: float | None = None) -> Any:
    """``log(input / (1 - input))``; `input` is first moved into ``eps .. 1 - eps``, if given."""
    return _Logit.apply(input, eps)


# ---- error functions


@method(in_place=True)
@scalar(nd.erf)
def erf(x: Any) -> Any:
    """The error function."""
    return exp(-(x * x)) * (2 / math.sqrt(math.pi))


@method(in_place=True)
@scalar(nd.erfc)
def erfc(x: Any) -> Any:
    """``1 - erf(input)``, accurate where that is small."""
    return exp(-(x * x)) * (-2 / math.sqrt(math.pi))


@scalar(nd.erfcx)
def erfcx(x: Any) -> Any:
    """``exp(input**2) * erfc(input)``."""
    return x * erfcx(x) * 2 - 2 / math.sqrt(math.pi)


@method(in_place=True)
@scalar(nd.erfinv, of_result=True)
def erfinv(y: Any) -> Any:
    """The inverse of the error function."""
    return exp(y * y) * (math.sqrt(math.pi) / 2)


@scalar(nd.ndtr)
def ndtr(x: Any) -> Any:
    """The normal distribution's cumulative probability."""
    return exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


@scalar(nd.ndtri, of_result=True)
def ndtri(y: Any) -> Any:
    """The inverse of `ndtr`."""
    return exp(y * y * 0.5) * math.sqrt(2 * math.pi)


@scalar(nd.log_ndtr)
def log_ndtr(x: Any) -> Any:
    """The logarithm of `ndtr`, accurate far into the lower tail."""
    return math.sqrt(2 / math.pi) / erfcx(x * -math.sqrt(0.5))


# ---- the gamma function


@method(in_place=True)
@scalar(nd.lgamma)
def lgamma(x: Any) -> Any:
    """The logarithm of the absolute value of the gamma function."""
    return digamma(x)


@method(in_place=True)
@scalar(nd.digamma)
def digamma(x: Any) -> Any:
    """The derivative of `lgamma`."""
    return polygamma(1, x)


def _polygamma(x: Any, n: int) -> Any:
    return polygamma(n + 1, x)


_Polygamma = rule(lambda x, n: nd.polygamma(n, x), _polygamma)


def polygamma(n: int, input: Any) -> Any:
    """The derivative of order n of `digamma`."""
    return digamma(input) if n == 0 else _Polygamma.apply(input, n)


def multigammaln(input: Any, p: int) -> Any:
    """The logarithm of the gamma function of dimension p."""
    if p < 1:
        raise ValueError(f"multigammaln: the dimension must be positive, not {p}")
    total = lgamma(input) + p * (p - 1) / 4 * math.log(math.pi)
    for k in range(1, p):
        total = total + lgamma(input - k / 2)
    return total


@method(in_place=True)
def mvlgamma(input: Any, p: int) -> Any:
    """`multigammaln`, by its older name."""
    return multigammaln(input, p)


def _incomplete_gamma(grad: Any, input: Any, other: Any, needs: Any) -> Any:
    if needs[0]:
        raise NotImplementedError("igamma: there is no derivative by its first argument here")
    return None, grad * exp((input - 1) * log(other) - other - lgamma(input))


@method(in_place=True)
@with_gradient(_incomplete_gamma)
def igamma(input: Any, other: Any) -> Any:
    """The share of the gamma function of `input` that lies below `other`: `gammainc`."""
    return nd.gammainc(input, other)


def _other_incomplete_gamma(grad: Any, input: Any, other: Any, needs: Any) -> Any:
    return _incomplete_gamma(-grad, input, other, needs)


@method(in_place=True)
@with_gradient(_other_incomplete_gamma)
def igammac(input: Any, other: Any) -> Any:
    """``1 - igamma(input, other)``, accurate where that is small: `gammaincc`."""
    return nd.gammaincc(input, other)


def _zeta(grad: Any, input: Any, other: Any, needs: Any) -> Any:
    if needs[0]:
        raise NotImplementedError("zeta: there is no derivative by the exponent here")
    return None, grad * -input * zeta(input + 1, other)


@with_gradient(_zeta)
def zeta(input: Any, other: Any) -> Any:
    """The Hurwitz zeta function: the sum of ``(other + k) ** -input`` over all k."""
    return nd.zeta(input, other)


# ---- Bessel functions


def _over(y: Any, x: Any, at_zero: float) -> Any:
    """y / x, and what it tends to at 0."""
    zero = plain(nd.equal, x, 0)
    return where(zero, at_zero, y / where(zero, 1.0, x))


@method(in_place=True)
@scalar(nd.i0)
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0."""
    return i1(x)


@scalar(nd.i1)
def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 1."""
    return i0(x) - _over(i1(x), x, 0.5)


@scalar(nd.i0e)
def i0e(x: Any) -> Any:
    """``exp(-abs(input)) * i0(input)``."""
    return i1e(x) - plain(nd.sign, x) * i0e(x)


@scalar(nd.i1e)
def i1e(x: Any) -> Any:
    """``exp(-abs(input)) * i1(input)``."""
    return i0e(x) - _over(i1e(x), x, 0.5) - plain(nd.sign, x) * i1e(x)


@scalar(nd.bessel_j0)
def bessel_j0(x: Any) -> Any:
    """The Bessel function of the first kind and order 0."""
    return -bessel_j1(x)


@scalar(nd.bessel_j1)
def bessel_j1(x: Any) -> Any:
    """The Bessel function of the first kind and order 1."""
    return bessel_j0(x) - _over(bessel_j1(x), x, 0.5)


@scalar(nd.bessel_y0)
def bessel_y0(x: Any) -> Any:
    """The Bessel function of the second kind and order 0."""
    return -bessel_y1(x)


@scalar(nd.bessel_y1)
def bessel_y1(x: Any) -> Any:
    """The Bessel function of the second kind and order 1."""
    return bessel_y0(x) - bessel_y1(x) / x


@scalar(nd.k0)
def modified_bessel_k0(x: Any) -> Any:
    """The modified Bessel function of the second kind and order 0."""
    return -modified_bessel_k1(x)


@scalar(nd.k1)
def modified_bessel_k1(x: Any) -> Any:
    """The modified Bessel function of the second kind and order 1."""
    return -modified_bessel_k0(x) - modified_bessel_k1(x) / x


@scalar(nd.k0e)
def scaled_modified_bessel_k0(x: Any) -> Any:
    """``exp(input) * modified_bessel_k0(input)``."""
    return scaled_modified_bessel_k0(x) - scaled_modified_bessel_k1(x)


@scalar(nd.k1e)
def scaled_modified_bessel_k1(x: Any) -> Any:
    """``exp(input) * modified_bessel_k1(input)``."""
    near = scaled_modified_bessel_k1(x)
    return near - scaled_modified_bessel_k0(x) - near / x


def airy_ai(input: Any) -> Any:
    """The Airy function Ai, a solution of ``y'' = x * y``; without a gradient."""
    return plain(nd.airy_ai, input)


# ---- products with a logarithm


def _xlogy_gradient(grad: Any, x: Any, y: Any, shift: int) -> Any:
    nothing = plain(nd.logical_and, plain(nd.equal, x, 0), plain(nd.less_equal, y, -shift))
    safe = where(nothing, 1.0, y)
    slope = where(nothing, 0.0, log1p(safe) if shift else log(safe))
    return grad * slope, grad * x / (y + shift)


@with_gradient(_xlogy_gradient)
def _xlogy(x: Any, y: Any, shift: int) -> Any:
    """x * log(y + shift), 0 where x is."""
    return (nd.xlog1py if shift else nd.xlogy)(x, y)


@method(in_place=True)
def xlogy(input: Any, other: Any) -> Any:
    """``input * log(other)``, 0 where `input` is."""
    return _xlogy(*_tensors(input, other), 0)


def xlog1py(input: Any, other: Any) -> Any:
    """``input * log1p(other)``, 0 where `input` is."""
    return _xlogy(*_tensors(input, other), 1)


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands of which one may be a number."""
    if not hasattr(x, "dtype"):
        x = plain(nd.full_like, y, x)
    return x, y if hasattr(y, "dtype") else plain(nd.full_like, x, y)


@scalar(lambda x: nd.where(nd.equal(x, 0), 1.0, nd.sin(x) / x))
def spherical_bessel_j0(x: Any) -> Any:
    """``sin(input) / input``, 1 at 0."""
    return where(x == 0, 0.0, (cos(x) - spherical_bessel_j0(x)) / x)


@scalar(lambda x: nd.where(nd.less(x, 0), -math.inf, -nd.xlogy(x, x)))
def entr(x: Any) -> Any:
    """``-input * log(input)``, 0 at 0, minus infinity below."""
    return -1 - log(x)


gammaln, psi, gammainc, gammaincc = lgamma, digamma, igamma, igammac
modified_bessel_i0, modified_bessel_i1 = i0, i1

__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr",
    "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e",
    "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit",
    "logsumexp", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
    "modified_bessel_k1", "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy",
    "zeta",
]  # fmt: skip
