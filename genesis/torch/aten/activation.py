"""Activation functions and their backward operators, each in closed form.

Formulas are written with terms (`genesis.ndarray.ops.special.formula`), which are float32 for half
precisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.ir import ops
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementary import expm1_of
from genesis.ndarray.ops.movement import narrow, normal_axis
from genesis.ndarray.ops.special.formula import Term, result, terms
from genesis.torch.aten.precision import rounded_once, widened
from genesis.torch.aten.registry import Kernel, generator, kernel

_FUNCTIONS: dict[str, Kernel] = {
    "celu": nd.celu,
    "hardshrink": nd.hardshrink,
    "hardsigmoid": nd.hardsigmoid,
    "hardswish": nd.hardswish,
    "leaky_relu": nd.leaky_relu,
    "logit": nd.logit,
    "mish": nd.mish,
    "relu": nd.relu,
    "relu6": nd.relu6,
    "selu": nd.selu,
    "sigmoid": nd.sigmoid,
    "softplus": nd.softplus,
    "softshrink": nd.softshrink,
    "threshold": nd.threshold,
}

for _name, _function in _FUNCTIONS.items():
    kernel(_name)(_function)


def _slope(name: str) -> Callable[[Callable[..., Term]], Callable[..., Term]]:
    """Register a backward operator, given the slope in terms of its second argument."""

    def register(slope: Callable[..., Term]) -> Callable[..., Term]:
        @kernel(name)
        def backward(grad: Any, x: Any, *numbers: Any, **named: Any) -> NDArray:
            (g, t), dtype = terms(name, (grad, x))
            return result(g * slope(t, *numbers, **named), dtype)

        return slope

    return register


@kernel("silu")
def _silu(x: NDArray) -> NDArray:
    return x * nd.sigmoid(x) if x.dtype.is_complex else nd.silu(x)


@kernel("hardtanh")
def _hardtanh(x: NDArray, min_val: float = -1, max_val: float = 1) -> NDArray:
    return nd.clip(x, x.dtype.cast(min_val), x.dtype.cast(max_val))


@kernel("gelu")
def _gelu(x: NDArray, approximate: str = "none") -> NDArray:
    return nd.gelu(x, approximate)


# ---- of smooth functions


@kernel("sigmoid_backward")
def _sigmoid_backward(grad: Any, y: Any) -> NDArray:
    return rounded_once(lambda g, s: g * nd.conj((1 - s) * s))(grad, y)


@kernel("tanh_backward")
def _tanh_backward(grad: Any, y: Any) -> NDArray:
    return rounded_once(lambda g, t: g * nd.conj(1 - t * t))(grad, y)


def _sigmoid(x: Term) -> Term:
    e = (-abs(x)).apply(ops.EXP)
    return (x < 0).where(e, 1) / (e + 1)


@kernel("silu_backward")
def _silu_backward(grad: Any, x: Any) -> NDArray:
    def formula(g: NDArray, t: NDArray) -> NDArray:
        s = nd.sigmoid(t)
        return g * nd.conj(s * (t * (1 - s) + 1))

    return rounded_once(formula)(grad, x)


@_slope("gelu_backward")
def _gelu_slope(x: Term, approximate: str = "none") -> Term:
    if approximate == "none":
        probability = (x * math.sqrt(0.5)).apply(ops.ERF) * 0.5 + 0.5
        density = (x * x * -0.5).apply(ops.EXP) * (1 / math.sqrt(2 * math.pi))
        return probability + x * density
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    t = ((x + x * square * cubic) * scale).apply(ops.TANH)
    return (t + 1) * 0.5 + x * (1 - t * t) * (square * (3 * cubic) + 1) * (0.5 * scale)


@_slope("mish_backward")
def _mish_slope(x: Term) -> Term:
    # With e = exp(x), tanh(softplus(x)) is n / (n + 2) for n = e * (e + 2).
    e = (x > 20).where(20, x).apply(ops.EXP)
    n = e * (e + 2)
    t = n / (n + 2)
    return t + x * _sigmoid(x) * (1 - t * t)


@kernel("log_sigmoid_forward")
def _log_sigmoid(x: NDArray) -> tuple[NDArray, NDArray]:
    # PyTorch keeps the second result for the backward operator, which needs only x here.
    return nd.log_sigmoid(x), nd.exp(-nd.abs(x))


@kernel("log_sigmoid_backward")
def _log_sigmoid_backward(grad: Any, x: Any, buffer: Any) -> NDArray:
    (g, t), dtype = terms("log_sigmoid_backward", (grad, x))
    return result(g * _sigmoid(-t), dtype)


@_slope("softplus_backward")
def _softplus_slope(x: Term, beta: float, threshold: float) -> Term:
    scaled = x * x.argument(beta)
    return (scaled > x.argument(threshold)).where(1, _sigmoid(scaled))


@_slope("logit_backward")
def _logit_slope(x: Term, eps: float | None = None) -> Term:
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    beyond = (x < x.argument(low)) | (x > x.argument(high))
    return beyond.where(outside, 1 / (x * (1 - x)))


@kernel("elu")
def _elu(x: NDArray, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> NDArray:
    (t,), dtype = terms("elu", (x,))
    below = expm1_of(t * t.argument(input_scale)) * t.argument(alpha * scale)
    return result((t <= 0).where(below, t * t.argument(scale)), dtype)


@kernel("elu_backward")
def _elu_backward(
    grad: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any
) -> NDArray:
    (g, t), dtype = terms("elu_backward", (grad, x))
    steep = t.argument(input_scale)
    if is_result:
        below = steep * (t + t.argument(alpha * scale))
    else:
        below = (t * steep).apply(ops.EXP) * t.argument(input_scale * alpha * scale)
    return result(g * (t <= 0).where(below, t.argument(scale)), dtype)


# ---- of functions that are linear in pieces


@kernel("threshold_backward")
def _threshold_backward(grad: Any, x: Any, threshold: float) -> NDArray:
    return nd.where(nd.less_equal(x, threshold), 0, grad)


@kernel("hardtanh_backward")
def _hardtanh_backward(grad: Any, x: Any, min_val: float, max_val: float) -> NDArray:
    outside = nd.less_equal(x, min_val) | nd.greater_equal(x, max_val)
    return nd.where(outside, 0, grad)


@kernel("hardshrink_backward", "softshrink_backward")
def _shrink_backward(grad: Any, x: Any, lambd: float) -> NDArray:
    return nd.where(nd.less_equal(nd.abs(x), lambd), 0, grad)


@kernel("hardsigmoid_backward")
def _hardsigmoid_backward(grad: Any, x: Any) -> NDArray:
    (g, t), dtype = terms("hardsigmoid_backward", (grad, x))
    inside = (t > -3) & (t < 3)
    return result(inside.where(g * (1 / 6), 0), dtype)


@kernel("hardswish_backward")
def _hardswish_backward(grad: Any, x: Any) -> NDArray:
    (g, t), dtype = terms("hardswish_backward", (grad, x))
    inside = g * (t / 3 + 0.5)
    return result((t <= -3).where(0, (t < 3).where(inside, g)), dtype)


@kernel("leaky_relu_backward")
def _leaky_relu_backward(
    grad: Any, x: Any, negative_slope: float, self_is_result: bool = False
) -> NDArray:
    (g, t), dtype = terms("leaky_relu_backward", (grad, x))
    return result((t > 0).where(g, g * g.argument(negative_slope)), dtype)


@kernel("_prelu_kernel")
def _prelu(x: Any, weight: Any) -> NDArray:
    return rounded_once(lambda t, w: nd.where(t > 0, t, t * w))(x, weight)


@kernel("_prelu_kernel_backward")
def _prelu_backward(grad: Any, x: Any, weight: Any) -> tuple[NDArray, NDArray]:
    (g, t, w), dtype = widened(grad, x, weight)
    positive = t > 0
    of_weight = nd.where(positive, 0, g * t)
    return nd.where(positive, g, g * w).astype(dtype), of_weight.astype(dtype)


@kernel("rrelu_with_noise_functional")
def _rrelu(
    x: NDArray,
    noise: NDArray,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> tuple[NDArray, NDArray]:
    if not training:
        return nd.leaky_relu(x, (lower + upper) / 2), noise
    drawn = nd.random.uniform(x.shape, lower, upper, x.dtype, generator())
    slopes = nd.where(x <= 0, drawn, 1)
    return x * slopes, slopes


@kernel("rrelu_with_noise_backward")
def _rrelu_backward(
    grad: Any,
    x: Any,
    noise: Any,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> NDArray:
    if training and upper - lower > 1e-6:
        return nd.multiply(grad, noise)
    return _leaky_relu_backward(grad, x, (lower + upper) / 2)


# ---- gated: one half of a dimension opens the other


def _halves(x: NDArray, dim: int) -> tuple[NDArray, NDArray]:
    axis = normal_axis("glu", dim, x.ndim)
    half = x.shape[axis] // 2
    return narrow(x, axis, 0, half), narrow(x, axis, half, half)


@kernel("glu")
def _glu(x: NDArray, dim: int = -1) -> NDArray:
    (t,), dtype = widened(x)
    a, b = _halves(t, dim)
    return nd.multiply(a, nd.sigmoid(b)).astype(dtype)


@kernel("glu_backward")
def _glu_backward(grad: NDArray, x: NDArray, dim: int) -> NDArray:
    (g, t), dtype = widened(grad, x)
    a, b = _halves(t, dim)
    s = nd.sigmoid(b)
    opened = g * s
    return nd.concat([opened, opened * a * (1 - s)], dim).astype(dtype)


@kernel("glu_jvp")
def _glu_jvp(y: NDArray, x: NDArray, dx: NDArray, dim: int) -> NDArray:
    (out, t, dt), dtype = widened(y, x, dx)
    (_, b), (da, db) = _halves(t, dim), _halves(dt, dim)
    s = nd.sigmoid(b)
    return nd.add(da * s, out * (1 - s) * db).astype(dtype)


@kernel("glu_backward_jvp")
def _glu_backward_jvp(
    grad_x: NDArray, grad: NDArray, x: NDArray, dgrad: NDArray, dx: NDArray, dim: int
) -> NDArray:
    (g, t, dg, dt), dtype = widened(grad, x, dgrad, dx)
    (a, b), (da, db) = _halves(t, dim), _halves(dt, dim)
    s = nd.sigmoid(b)
    slope = s * (1 - s)
    first = dg * s + g * slope * db
    second = slope * (dg * a + g * da + g * a * (1 - 2 * s) * db)
    return nd.concat([first, second], dim).astype(dtype)
