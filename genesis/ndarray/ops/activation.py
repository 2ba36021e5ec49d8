"""Activation functions: the non-linearities of neural networks.

Formulas that do not overflow and do not cancel, computed in float32 for half precisions.
Parameters are passed at run time, so another slope or threshold compiles nothing anew.
"""

from __future__ import annotations

import math

from genesis.ir import ops
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.elementary import atanh_of, expm1_of, log1p_of
from genesis.ndarray.ops.elementwise import Operand, clip, maximum, values
from genesis.ndarray.ops.special.formula import Term, unary

# ---- smooth


def _sigmoid(x: Term) -> Term:
    """1 / (1 + exp(-x))"""
    e = (-abs(x)).apply(ops.EXP)  # which neither overflows nor loses what is small
    return (x < 0).where(e, 1) / (e + 1)


sigmoid = unary(_sigmoid)


@unary
def log_sigmoid(x: Term) -> Term:
    """The logarithm of sigmoid."""
    return x.min(0) - log1p_of((-abs(x)).apply(ops.EXP))


@unary
def logit(x: Term, eps: float | None = None) -> Term:
    """log(x / (1 - x)), the inverse of sigmoid; x is first moved into eps .. 1 - eps, if given."""
    if eps is not None:
        low, high = x.argument(eps), x.argument(1 - eps)
        x = (x < low).where(low, (x > high).where(high, x))
    distance = x + x - 1
    middle = atanh_of(distance) * 2
    outer = (x / (1 - x)).apply(ops.LOG)
    return (abs(distance) < 0.5).where(middle, outer)


@unary
def softplus(x: Term, beta: float = 1.0, threshold: float = 20.0) -> Term:
    """log(1 + exp(beta*x)) / beta, and x itself where beta*x is above the threshold."""
    scaled = x if beta == 1 else x * x.argument(beta)
    smooth = scaled.max(0) + log1p_of((-abs(scaled)).apply(ops.EXP))
    smooth = smooth if beta == 1 else smooth / x.argument(beta)
    return (scaled > scaled.argument(threshold)).where(x, smooth)


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


@unary
def elu(x: Term, alpha: float = 1.0) -> Term:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    return (x > 0).where(x, expm1_of(x) * x.argument(alpha))


@unary
def celu(x: Term, alpha: float = 1.0) -> Term:
    """x where it is positive, alpha * (exp(x/alpha) - 1) elsewhere."""
    scale = x.argument(alpha)
    return (x > 0).where(x, expm1_of(x / scale) * scale)


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


@unary
def leaky_relu(x: Term, negative_slope: float = 0.01) -> Term:
    """x where it is positive, x times the slope elsewhere."""
    return (x > 0).where(x, x * x.argument(negative_slope))


@unary
def hardsigmoid(x: Term) -> Term:
    """x/6 + 1/2 moved into the range from 0 to 1."""
    return (x + 3).max(0).min(6) / 6


@unary
def hardswish(x: Term) -> Term:
    """x * hardsigmoid(x)"""
    return x * ((x + 3).max(0).min(6) / 6)


@unary
def softshrink(x: Term, lambd: float = 0.5) -> Term:
    """x moved toward 0 by `lambd`, and 0 where it is nearer."""
    step = x.argument(lambd)
    high, low = x - step, x + step
    zero = x.differs(x).where(x, 0)
    return (x > step).where(high, (x < -step).where(low, zero))


@unary
def hardshrink(x: Term, lambd: float = 0.5) -> Term:
    """x, and 0 where it is within `lambd` of 0."""
    return (abs(x) <= x.argument(lambd)).where(0, x)


def threshold(x: Operand, threshold: float, value: float) -> NDArray:
    """x where it is above the threshold, `value` elsewhere."""
    term = Term(*values("threshold", (x,)))
    return wrap((term <= term.argument(threshold)).where(term.argument(value), term).value)


__all__ = [
    "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "log_sigmoid", "logit", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus",
    "softshrink", "softsign", "tanhshrink", "threshold",
]  # fmt: skip
