"""Activation functions and their backward operators, in float32 for half precisions."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.activation import hardswish_gradient
from genesis.functional.registry import operations
from genesis.ir import ops
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementary import expm1_of
from genesis.ndarray.ops.movement import narrow, normal_axis
from genesis.ndarray.ops.special.formula import result, terms
from genesis.torch.aten.backward import backward
from genesis.torch.aten.half_precision import exact_numbers, rounded_once, widened
from genesis.torch.aten.registry import generator, implementations, implements, operators, table

_times = exact_numbers(nd.multiply)

table(nd, """
    celu hardshrink hardsigmoid hardswish leaky_relu relu relu6 selu softshrink threshold
""")  # fmt: skip


@implements("elu")
def _elu(x: NDArray, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> NDArray:
    (t,), dtype = terms("elu", (x,))
    below = expm1_of(t * t.argument(input_scale)) * t.argument(alpha * scale)
    return result((t <= 0).where(below, t * t.argument(scale)), dtype)


@implements("elu_backward")
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


@implements("hardtanh_backward")
def _hardtanh_backward(grad: Any, x: Any, min_val: float, max_val: float) -> NDArray:
    outside = nd.less_equal(x, min_val) | nd.greater_equal(x, max_val)
    return nd.where(outside, 0, grad)


@implements("leaky_relu_backward")
def _leaky_relu_backward(
    grad: NDArray, x: NDArray, negative_slope: float, self_is_result: bool = False
) -> NDArray:
    return nd.where(x > 0, grad, _times(grad, negative_slope))


@implements("_prelu_kernel_backward")
def _prelu_backward(grad: Any, x: Any, weight: Any) -> tuple[NDArray, NDArray]:
    (g, t, w), dtype = widened(grad, x, weight)
    positive = t > 0
    of_weight = nd.where(positive, 0, g * t)
    return nd.where(positive, g, g * w).astype(dtype), of_weight.astype(dtype)


@implements("rrelu_with_noise_functional")
def _rrelu(
    x: NDArray, noise: NDArray, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> tuple[NDArray, NDArray]:
    if not training:
        return nd.leaky_relu(x, (lower + upper) / 2), noise
    drawn = nd.random.uniform(x.shape, lower, upper, x.dtype, generator())
    slopes = nd.where(x <= 0, drawn, 1)
    return x * slopes, slopes


@implements("rrelu_with_noise_backward")
def _rrelu_backward(
    grad: Any, x: Any, noise: Any, lower: float, upper: float, training: bool, is_result: bool
) -> NDArray:
    if training and upper - lower > 1e-6:
        return nd.multiply(grad, noise)
    return _leaky_relu_backward(grad, x, (lower + upper) / 2)


# ---- gated: one half of a dimension opens the other


def _halves(x: NDArray, dim: int) -> tuple[NDArray, NDArray]:
    axis = normal_axis("glu", dim, x.ndim)
    half = x.shape[axis] // 2
    return narrow(x, axis, 0, half), narrow(x, axis, half, half)


@implements("glu")
def _glu(x: NDArray, dim: int = -1) -> NDArray:
    a, b = _halves(x, dim)
    return rounded_once(lambda a, b: a * nd.sigmoid(b))(a, b)


@implements("glu_backward")
def _glu_backward(grad: NDArray, x: NDArray, dim: int) -> NDArray:
    (g, t), dtype = widened(grad, x)
    a, b = _halves(t, dim)
    s = nd.sigmoid(b)
    opened = g * s
    return nd.concat([opened, opened * a * (1 - s)], dim).astype(dtype)


@implements("glu_jvp")
def _glu_jvp(y: NDArray, x: NDArray, dx: NDArray, dim: int) -> NDArray:
    (out, t, dt), dtype = widened(y, x, dx)
    (_, b), (da, db) = _halves(t, dim), _halves(dt, dim)
    s = nd.sigmoid(b)
    return nd.add(da * s, out * (1 - s) * db).astype(dtype)


@implements("glu_backward_jvp")
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


operators(
    {
        "silu": lambda x: x * nd.sigmoid(x) if x.dtype.is_complex else nd.silu(x),
        "hardtanh": lambda x, min_val=-1, max_val=1: nd.clip(
            x, x.dtype.cast(min_val), x.dtype.cast(max_val)
        ),
        # PyTorch keeps the second result for the backward operator, which needs only x here.
        "log_sigmoid_forward": lambda x: (nd.log_sigmoid(x), nd.exp(-nd.abs(x))),
        "log_sigmoid_backward": rounded_once(lambda grad, x, buffer: grad * nd.sigmoid(-x)),
        "hardswish_backward": rounded_once(hardswish_gradient),
        "_prelu_kernel": rounded_once(lambda x, weight: nd.where(x > 0, x, x * weight)),
        "threshold_backward": lambda grad, x, threshold: nd.where(
            nd.less_equal(x, threshold), 0, grad
        ),
        "hardshrink_backward softshrink_backward": lambda grad, x, lambd: nd.where(
            nd.less_equal(nd.abs(x), lambd), 0, grad
        ),
        "hardsigmoid_backward": lambda grad, x: nd.where(nd.abs(x) < 3, _times(grad, 1 / 6), 0),
    }
)

for _entry in operations.values():  # elementwise functions that say which operators they are
    for _name in _entry.aten:
        if f"aten::{_name}" not in implementations:
            implements(_name)(_entry.rule.function)
        backward(f"{_name}_backward", _entry.rule)
