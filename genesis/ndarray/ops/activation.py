"""Activation functions: the non-linearities of neural networks.

Formulas that do not overflow and do not cancel, computed in float32 for half precisions.
Parameters are passed at run time, so another slope or threshold compiles nothing anew.
"""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.elementary import atanh_of, expm1_of, log1p_of
from genesis.ndarray.ops.elementwise import Operand, clip, maximum, require, values
from genesis.ndarray.ops.special.formula import Term, result, terms, unary

# ---- smooth


def _sigmoid(x: Term) -> Term:
    """By exp of a negative number, which neither overflows nor loses what is small."""
    e = (-abs(x)).apply(ops.EXP)
    return (x < 0).where(e, 1) / (e + 1)


@unary
def sigmoid(x: Term) -> Term:
    """1 / (1 + exp(-x))"""
    return _sigmoid(x)


@unary
def log_sigmoid(x: Term) -> Term:
    """The logarithm of sigmoid."""
    return x.min(0) - log1p_of((-abs(x)).apply(ops.EXP))


def logit(x: Operand, eps: float | None = None) -> NDArray:
    """log(x / (1 - x)), the inverse of sigmoid; x is first moved into eps .. 1 - eps, if given."""
    (p,), dtype = terms("logit", (x,))
    require("logit", dtype, "float")
    if eps is not None:
        low, high = p.argument(eps), p.argument(1 - eps)
        p = (p < low).where(low, (p > high).where(high, p))
    distance = p + p - 1
    middle = atanh_of(distance) * 2
    outer = (p / (1 - p)).apply(ops.LOG)
    return result((abs(distance) < 0.5).where(middle, outer), dtype)


def softplus(x: Operand, beta: float = 1.0, threshold: float = 20.0) -> NDArray:
    """log(1 + exp(beta*x)) / beta, and x itself where beta*x is above the threshold."""
    (term,), dtype = terms("softplus", (x,))
    if beta == 1:
        scaled, smooth = term, _softplus(term)
    else:
        scaled = term * term.argument(beta)
        smooth = _softplus(scaled) / term.argument(beta)
    return result((scaled > scaled.argument(threshold)).where(term, smooth), dtype)


def _softplus(x: Term) -> Term:
    return x.max(0) + log1p_of((-abs(x)).apply(ops.EXP))


@unary
def silu(x: Term) -> Term:
    """x * sigmoid(x), also called swish."""
    return x * _sigmoid(x)


@unary
def mish(x: Term) -> Term:
    """x * tanh(softplus(x))"""
    # With e = exp(x), the tangent is n / (n + 2) for n = e * (e + 2).
    e = (x > 20).where(20, x).apply(ops.EXP)
    n = e * (e + 2)
    return x * (n / (n + 2))


@unary
def _gelu_erf(x: Term) -> Term:
    return x * 0.5 * ((x * math.sqrt(0.5)).apply(ops.ERF) + 1)


@unary
def _gelu_tanh(x: Term) -> Term:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.apply(ops.TANH) + 1)


def gelu(x: Operand, approximate: str = "none") -> NDArray:
    """x times the normal distribution's cumulative probability; approximate: "none" or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return _gelu_erf(x) if approximate == "none" else _gelu_tanh(x)


@unary
def softsign(x: Term) -> Term:
    """x / (1 + abs(x))"""
    return x / (abs(x) + 1)


@unary
def tanhshrink(x: Term) -> Term:
    """x - tanh(x)"""
    return x - x.apply(ops.TANH)


def elu(x: Operand, alpha: float = 1.0) -> NDArray:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    (term,), dtype = terms("elu", (x,))
    return result((term > 0).where(term, expm1_of(term) * term.argument(alpha)), dtype)


def celu(x: Operand, alpha: float = 1.0) -> NDArray:
    """x where it is positive, alpha * (exp(x/alpha) - 1) elsewhere."""
    (term,), dtype = terms("celu", (x,))
    scale = term.argument(alpha)
    return result((term > 0).where(term, expm1_of(term / scale) * scale), dtype)


#: Chosen so that activations keep mean 0 and variance 1 (Klambauer et al., 2017).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@unary
def selu(x: Term) -> Term:
    """Scaled `elu` that keeps the mean and variance of its inputs."""
    return (x > 0).where(x * _SELU_SCALE, expm1_of(x) * (_SELU_ALPHA * _SELU_SCALE))


# ---- piecewise linear


def relu(x: Operand) -> NDArray:
    """The greater of x and 0."""
    return maximum(x, 0)


def relu6(x: Operand) -> NDArray:
    """x moved into the range from 0 to 6."""
    return clip(x, 0, 6)


def hardtanh(x: Operand, min_value: float = -1.0, max_value: float = 1.0) -> NDArray:
    """x moved into a range."""
    return clip(x, min_value, max_value)


def leaky_relu(x: Operand, negative_slope: float = 0.01) -> NDArray:
    """x where it is positive, x times the slope elsewhere."""
    (term,), dtype = terms("leaky_relu", (x,))
    return result((term > 0).where(term, term * term.argument(negative_slope)), dtype)


@unary
def hardsigmoid(x: Term) -> Term:
    """x/6 + 1/2 moved into the range from 0 to 1."""
    return (x + 3).max(0).min(6) / 6


@unary
def hardswish(x: Term) -> Term:
    """x * hardsigmoid(x)"""
    return x * ((x + 3).max(0).min(6) / 6)


def softshrink(x: Operand, lambd: float = 0.5) -> NDArray:
    """x moved toward 0 by `lambd`, and 0 where it is nearer."""
    (term,), dtype = terms("softshrink", (x,))
    step = term.argument(lambd)
    high, low = term - step, term + step
    zero = term.differs(term).where(term, 0)
    return result((term > step).where(high, (term < -step).where(low, zero)), dtype)


def hardshrink(x: Operand, lambd: float = 0.5) -> NDArray:
    """x, and 0 where it is within `lambd` of 0."""
    (term,), dtype = terms("hardshrink", (x,))
    step = term.argument(lambd)
    return result((abs(term) <= step).where(0, term), dtype)


def threshold(x: Operand, threshold: float, value: float) -> NDArray:
    """x where it is above the threshold, `value` elsewhere."""
    (v,) = values("threshold", (x,))
    term = Term(v)
    above = (term <= term.argument(threshold)).where(term.argument(value), term)
    return wrap(above.value)


__all__ = [
    "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "log_sigmoid", "logit", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus",
    "softshrink", "softsign", "tanhshrink", "threshold",
]  # fmt: skip
