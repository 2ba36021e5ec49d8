"""Activation functions: the non-linearities of neural networks.

The smooth ones are array functions with their derivatives; see `scalar`. Those that are linear in
pieces are choices, and their gradients follow from that. With `inplace` the result is written into
the argument.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, where
from genesis.functional.comparison import clamp_min, gt, le, lt
from genesis.functional.elementary import abs, exp, square, tanh
from genesis.functional.elementwise_function import as_number, rule, scalar
from genesis.functional.error_messages import normal_dim
from genesis.functional.function import Function, one_operation, plain, with_gradient, written
from genesis.functional.movement import narrow, reshape
from genesis.functional.reduction import sum
from genesis.functional.registry import aten, by_rule, layer, method
from genesis.ir.dtype import bool_

# ---- smooth


@method(in_place=True)
@layer("Sigmoid")
@aten("sigmoid")
@scalar(nd.sigmoid, of_result=True)
def sigmoid(y: Any) -> Any:
    """``1 / (1 + exp(-input))``."""
    return y * (1 - y)


@layer("LogSigmoid")
@scalar(nd.log_sigmoid)
def logsigmoid(x: Any) -> Any:
    """The logarithm of `sigmoid`."""
    return sigmoid(-x)


@layer("SiLU")
@aten("silu")
@scalar(nd.silu, inplace=True)
def silu(x: Any) -> Any:
    """``input * sigmoid(input)``."""
    s = sigmoid(x)
    return s * (x * (1 - s) + 1)


@layer("Mish")
@aten("mish")
@scalar(nd.mish, inplace=True)
def mish(x: Any) -> Any:
    """``input * tanh(softplus(input))``."""
    # With e = exp(x), the tangent is n / (n + 2) for n = e * (e + 2).
    e = exp(where(gt(x, 20), 20.0, x))
    n = e * (e + 2)
    t = n / (n + 2)
    return t + x * sigmoid(x) * (1 - t * t)


def _gelu(x: Any, approximate: str = "none") -> Any:
    from genesis.functional.special import erf

    if approximate == "none":
        probability = (erf(x * math.sqrt(0.5)) + 1) * 0.5
        return probability + x * exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    squared = x * x
    t = tanh((x + x * squared * cubic) * scale)
    return (t + 1) * 0.5 + x * (1 - t * t) * (squared * (3 * cubic) + 1) * (0.5 * scale)


Gelu = rule(nd.gelu, _gelu)


@layer("GELU")
@aten("gelu")
@by_rule(Gelu)
def gelu(input: Any, approximate: str = "none") -> Any:
    """`input` times the normal distribution's cumulative probability; "tanh" approximates it."""
    return Gelu.apply(input, approximate)


def _softplus(x: Any, beta: float, threshold: float) -> Any:
    scaled = x * beta
    return where(gt(scaled, threshold), 1.0, sigmoid(scaled))


Softplus = rule(nd.softplus, _softplus)


@layer("Softplus")
@aten("softplus")
@by_rule(Softplus)
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """``log(1 + exp(beta * input)) / beta``; `input` itself where that is beyond the threshold."""
    return Softplus.apply(input, beta, threshold)


def _softsign(x: Any) -> Any:
    return 1 / square(abs(x) + 1)


_Softsign = rule(nd.softsign, _softsign)


@layer("Softsign")
@by_rule(_Softsign)
def softsign(input: Any) -> Any:
    """``input / (1 + abs(input))``."""
    if input.dtype.is_complex:  # no function of a complex variable has such a derivative
        return input / (abs(input) + 1)
    return _Softsign.apply(input)


@layer("Tanhshrink")
@scalar(nd.tanhshrink)
def tanhshrink(x: Any) -> Any:
    """``input - tanh(input)``."""
    return square(tanh(x))


def _elu(x: Any, alpha: float) -> Any:
    return where(gt(x, 0), 1.0, exp(x) * alpha)


_Elu = rule(nd.elu, _elu)


@layer("ELU")
@by_rule(_Elu)
def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """`input` where it is positive, ``alpha * (exp(input) - 1)`` elsewhere."""
    return written(input, _Elu.apply(input, alpha), inplace)


def _celu(x: Any, alpha: float) -> Any:
    return where(gt(x, 0), 1.0, exp(x / alpha))


_Celu = rule(nd.celu, _celu)


@layer("CELU")
@by_rule(_Celu)
def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """`input` where it is positive, ``alpha * (exp(input / alpha) - 1)`` elsewhere."""
    if alpha == 0:
        raise ValueError("celu: alpha must not be 0")
    return written(input, _Celu.apply(input, alpha), inplace)


#: Chosen so that activations keep mean 0 and variance 1 (Klambauer et al., 2017).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@layer("SELU")
@scalar(nd.selu, inplace=True)
def selu(x: Any) -> Any:
    """Scaled `elu` that keeps the mean and variance of its inputs."""
    return where(gt(x, 0), _SELU_SCALE, exp(x) * (_SELU_ALPHA * _SELU_SCALE))


# ---- linear in pieces


class Relu(Function):
    """max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        result = nd.relu(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (result,) = ctx.saved_tensors
        return where(le(result, 0), 0.0, grad)


@method(in_place=True)
@layer("ReLU")
def relu(input: Any, inplace: bool = False) -> Any:
    """``max(input, 0)``."""
    if input.dtype is bool_:
        raise TypeError("relu: not defined for bool")
    return written(input, Relu.apply(input), inplace)


@layer("Hardtanh")
@one_operation
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """`input` moved into a range."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")
    min_val, max_val = (as_number(x, input.dtype) for x in (min_val, max_val))
    capped = where(lt(input, max_val), input, _capped(input, max_val))
    return written(input, where(le(input, min_val), min_val, capped), inplace)


def _capped(x: Any, high: float) -> Any:
    """A number, but NaN where x is."""
    return where(plain(nd.isnan, x), x, high)


@layer("ReLU6")
def relu6(input: Any, inplace: bool = False) -> Any:
    """`input` moved into the range from 0 to 6."""
    return hardtanh(input, 0.0, 6.0, inplace)


@layer("LeakyReLU")
@one_operation
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """`input` where it is positive, times the slope elsewhere."""
    return written(input, where(gt(input, 0), input, input * negative_slope), inplace)


@method
def prelu(input: Any, weight: Any) -> Any:
    """`leaky_relu` with slopes that are learnt: one, or one for each channel."""
    if len(weight.shape) == 1 and weight.shape[0] != 1:
        if len(input.shape) < 2 or input.shape[1] != weight.shape[0]:
            raise ValueError(
                f"prelu: {weight.shape[0]} slopes for an input of shape {tuple(input.shape)}; give "
                "one, or one for each channel (dimension 1)"
            )
        weight = reshape(weight, (-1, *(1 for _ in input.shape[2:])))
    elif len(weight.shape) > len(input.shape):
        weight = reshape(weight, ())
    return where(gt(input, 0), input, input * weight)


@layer("RReLU")
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """`leaky_relu` with random slopes in a range while training, the middle of it otherwise."""
    if not lower <= upper:
        raise ValueError(f"rrelu: the lower bound {lower} is above the upper one, {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    source = nd.random.default_generator(input.device)
    noise = nd.random.uniform(input.shape, lower, upper, input.dtype, source)
    return written(input, where(gt(input, 0), input, input * noise), inplace)


@layer("Hardsigmoid")
@one_operation
def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """``input / 6 + 1/2`` moved into the range from 0 to 1."""
    return written(input, hardtanh(input + 3, 0.0, 6.0) / 6, inplace)


def hardswish_gradient(grad: Any, x: Any) -> Any:
    """That of `hardswish`."""
    return where(le(x, -3), 0.0, where(lt(x, 3), grad * (x / 3 + 0.5), grad))


@with_gradient(hardswish_gradient)
def _hardswish(x: Any) -> Any:
    return nd.hardswish(x)


@layer("Hardswish")
def hardswish(input: Any, inplace: bool = False) -> Any:
    """``input * hardsigmoid(input)``."""
    return written(input, _hardswish(input), inplace)


@layer("Softshrink")
@one_operation
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """`input` moved toward 0 by `lambd`, and 0 where it is nearer."""
    if lambd < 0:
        raise ValueError(f"softshrink: lambd must not be negative, got {lambd}")
    moved = where(gt(input, 0), input - lambd, input + lambd)
    return where(le(abs(input), lambd), 0.0, moved)


@method
@layer("Hardshrink")
@one_operation
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """`input`, and 0 where it is within `lambd` of 0."""
    return where(le(abs(input), lambd), 0.0, input)


@layer("Threshold")
@one_operation
def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """`input` where it is above the threshold, `value` elsewhere."""
    result = where(le(input, threshold), as_number(value, input.dtype), input)
    return written(input, result, inplace)


@layer("GLU")
@one_operation
def glu(input: Any, dim: int = -1) -> Any:
    """The first half along a dimension, times the sigmoid of the second half."""
    axis = normal_dim("glu", dim, len(input.shape))
    if input.shape[axis] % 2:
        raise ValueError(f"glu: dim {axis} of size {input.shape[axis]} has no two halves")
    half = input.shape[axis] // 2
    return narrow(input, axis, 0, half) * sigmoid(narrow(input, axis, half, half))


# ---- along a dimension


def softmax_gradient(grad: Any, dim: Any, result: Any) -> Any:
    """That of `softmax`, from its result."""
    wide = cast(result, result.dtype.accumulator)
    part = grad * wide
    return part - wide * sum(part, dim, True)


@method
@layer("Softmax", settings=("dim",))
@with_gradient(softmax_gradient)
def softmax(input: Any, dim: int = -1, dtype: Any = None) -> Any:
    """``exp(input)`` over its sum along a dimension."""
    wide = input if dtype is None else nd.astype(input, dtype)
    return nd.softmax(wide, dim) if wide.shape else _alone(nd.softmax, wide, dim)


def log_softmax_gradient(grad: Any, dim: Any, result: Any) -> Any:
    """That of `log_softmax`, from its result."""
    wide = cast(result, result.dtype.accumulator)
    return grad - exp(wide) * sum(cast(grad, wide.dtype), dim, True)


@method
@layer("LogSoftmax", settings=("dim",))
@with_gradient(log_softmax_gradient)
def log_softmax(input: Any, dim: int = -1, dtype: Any = None) -> Any:
    """The logarithm of `softmax`."""
    wide = input if dtype is None else nd.astype(input, dtype)
    return nd.log_softmax(wide, dim) if wide.shape else _alone(nd.log_softmax, wide, dim)


def _alone(function: Any, x: Any, dim: int) -> Any:
    """A function along a dimension of a tensor that has none: of one number."""
    return nd.reshape(function(nd.reshape(x, (1,)), normal_dim("softmax", dim, 1)), ())


@layer("Softmin", settings=("dim",))
def softmin(input: Any, dim: int = -1, dtype: Any = None) -> Any:
    """`softmax` of the negative."""
    return softmax(-input, dim, dtype)


def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """`input` over its norm along a dimension, which counts as at least `eps`."""
    from genesis.functional.norms_and_distances import vector_norm

    x = cast(input, input.dtype.accumulator)  # half precisions are rounded once
    return cast(x / clamp_min(vector_norm(x, p, dim, True), eps), input.dtype)


__all__ = [
    "celu", "elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "leaky_relu", "log_softmax", "logsigmoid", "mish", "normalize", "prelu", "relu",
    "relu6", "rrelu", "selu", "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "tanhshrink", "threshold",
]  # fmt: skip
