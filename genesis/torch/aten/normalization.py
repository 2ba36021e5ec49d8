"""Normalisation: layer, RMS, group, batch and weight norm, and their gradients.

All but the last are one formula over different axes: y is x less its mean, over the root of its
variance. With the gradient g of y, that of x is ``(g - mean(g) - y * mean(g * y)) / root``: two
independent sums.

Statistics have the dtype of the weights, if there are weights in float32 to an input in half
precision, else that of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType, uint8
from genesis.ir.size import product
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.reduction import pair, wide
from genesis.torch.aten.registry import Unsupported, kernel

Maybe = NDArray | None
Axes = tuple[int, ...]

#: The distance from 1 to the next number, which RMS norm adds by default.
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _statistics_dtype(x: NDArray, *parameters: Maybe) -> DType:
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def _moments(x: NDArray, axes: Axes) -> tuple[NDArray, NDArray]:
    """The mean and the variance over axes, which are kept."""
    mean = nd.mean(x, axes, keepdims=True)
    return mean, nd.mean(nd.square(x - mean), axes, keepdims=True)


def _scaled(x: NDArray, weight: Maybe, bias: Maybe, dtype: DType) -> NDArray:
    if weight is not None:
        x = x * wide(weight)
    if bias is not None:
        x = x + wide(bias)
    return nd.astype(x, dtype)


def _standard_gradient(g: NDArray, y: NDArray, rstd: NDArray, axes: Axes) -> NDArray:
    """The gradient of what was standardised to y, from that of y."""
    shared = nd.mean(g, axes, keepdims=True) + y * nd.mean(g * y, axes, keepdims=True)
    return (g - shared) * rstd


# ---- over the last dimensions


def _last(x: NDArray, normalized_shape: Sequence[Any]) -> tuple[Axes, Axes]:
    """The axes before the normalised ones, and these."""
    first = x.ndim - len(normalized_shape)
    return tuple(range(first)), tuple(range(first, x.ndim))


@kernel("native_layer_norm")
def _layer_norm(
    input: NDArray, normalized_shape: Sequence[Any], weight: Maybe, bias: Maybe, eps: float
) -> tuple[NDArray, NDArray, NDArray]:
    _, axes = _last(input, normalized_shape)
    dtype = _statistics_dtype(input, weight, bias)
    x = wide(input)
    mean, variance = _moments(x, axes)
    rstd = nd.rsqrt(variance + eps)
    result = _scaled((x - mean) * rstd, weight, bias, input.dtype)
    return result, nd.astype(mean, dtype), nd.astype(rstd, dtype)


@kernel("native_layer_norm_backward")
def _layer_norm_backward(
    grad_out: NDArray,
    input: NDArray,
    normalized_shape: Sequence[Any],
    mean: NDArray,
    rstd: NDArray,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    batch, axes = _last(input, normalized_shape)
    grad, scale = wide(grad_out), wide(rstd)
    y = (wide(input) - wide(mean)) * scale
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        inner = grad if weight is None else grad * wide(weight)
        to_x = nd.astype(_standard_gradient(inner, y, scale, axes), input.dtype)
    if output_mask[1] and weight is not None:
        to_weight = nd.astype(nd.sum(grad * y, batch), weight.dtype)
    if output_mask[2] and bias is not None:
        to_bias = nd.astype(nd.sum(grad, batch), bias.dtype)
    return to_x, to_weight, to_bias


@kernel("_fused_rms_norm")
def _rms_norm(
    input: NDArray, normalized_shape: Sequence[Any], weight: Maybe, eps: float | None
) -> tuple[NDArray, NDArray]:
    _, axes = _last(input, normalized_shape)
    x = wide(input)
    small = _EPS[x.dtype.name] if eps is None else eps
    rstd = nd.rsqrt(nd.mean(nd.square(x), axes, keepdims=True) + small)
    return _scaled(x * rstd, weight, None, input.dtype), rstd


@kernel("_fused_rms_norm_backward")
def _rms_norm_backward(
    grad_out: NDArray,
    input: NDArray,
    normalized_shape: Sequence[Any],
    rstd: NDArray,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
    batch, axes = _last(input, normalized_shape)
    grad, scale = wide(grad_out), wide(rstd)
    y = wide(input) * scale
    to_x = to_weight = None
    if output_mask[0]:
        inner = grad if weight is None else grad * wide(weight)
        to_x = (inner - y * nd.mean(inner * y, axes, keepdims=True)) * scale
        to_x = nd.astype(to_x, input.dtype)
    if output_mask[1] and weight is not None:
        to_weight = nd.astype(nd.sum(grad * y, batch), weight.dtype)
    return to_x, to_weight


# ---- over groups of channels


def _grouped(x: NDArray, *shape: Any) -> NDArray:
    return nd.reshape(wide(x), shape)


@kernel("native_group_norm")
def _group_norm(
    input: NDArray, weight: Maybe, bias: Maybe, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[NDArray, NDArray, NDArray]:
    C = index(C)  # that groups divide it is not known of a symbol
    x = _grouped(input, N, group, C // group, HxW)
    mean, variance = _moments(x, (2, 3))
    rstd = nd.rsqrt(variance + eps)
    weight, bias = (
        p if p is None else nd.reshape(p, (group, C // group, 1)) for p in (weight, bias)
    )
    result = nd.reshape(_scaled((x - mean) * rstd, weight, bias, input.dtype), input.shape)
    dtype = _statistics_dtype(input, weight, bias)
    mean, rstd = (nd.astype(nd.reshape(s, (N, group)), dtype) for s in (mean, rstd))
    return result, mean, rstd


@kernel("native_group_norm_backward")
def _group_norm_backward(
    grad_out: NDArray,
    input: NDArray,
    mean: NDArray,
    rstd: NDArray,
    weight: Maybe,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    C = index(C)
    x, grad = (_grouped(a, N, group, C // group, HxW) for a in (input, grad_out))
    middle, scale = (_grouped(s, N, group, 1, 1) for s in (mean, rstd))
    y = (x - middle) * scale
    dtype = input.dtype if weight is None else weight.dtype
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        inner = grad if weight is None else grad * _grouped(weight, group, C // group, 1)
        to_x = nd.astype(_standard_gradient(inner, y, scale, (2, 3)), input.dtype)
        to_x = nd.reshape(to_x, input.shape)
    if output_mask[1]:
        to_weight = nd.astype(nd.reshape(nd.sum(grad * y, (0, 3)), (C,)), dtype)
    if output_mask[2]:
        to_bias = nd.astype(nd.reshape(nd.sum(grad, (0, 3)), (C,)), dtype)
    return to_x, to_weight, to_bias


# ---- over the batch


def _channelwise(x: NDArray, per_channel: NDArray) -> NDArray:
    """A number for each channel in the shape that broadcasts against x."""
    return nd.reshape(wide(per_channel), (1, x.shape[1], *(1,) * (x.ndim - 2)))


def _batch_axes(x: NDArray) -> Axes:
    return (0, *range(2, x.ndim))


def _followed(running: Maybe, now: NDArray, momentum: float) -> Maybe:
    if running is None:
        return None
    return nd.astype(wide(running) * (1 - momentum) + now * momentum, running.dtype)


def _batch_norm(
    input: NDArray,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """The result, the statistics for the gradient, and the running statistics after it."""
    x, axes = wide(input), _batch_axes(input)
    dtype = _statistics_dtype(input, weight, bias, running_mean, running_var)
    if training:
        mean, variance = _moments(x, axes)
        rstd = nd.rsqrt(variance + eps)
        flat = [nd.reshape(s, (input.shape[1],)) for s in (mean, variance, rstd)]
        count = product(input.shape[a] for a in axes)
        # The running variance is that of all there could be, not of these alone.
        unbiased = flat[1] * count / (count - 1)
        followed = (
            _followed(running_mean, flat[0], momentum),
            _followed(running_var, unbiased, momentum),
        )
        saved = nd.astype(flat[0], dtype), nd.astype(flat[2], dtype)
    else:
        if running_mean is None or running_var is None:
            raise Unsupported("batch norm without statistics")
        mean = _channelwise(input, running_mean)
        rstd = nd.rsqrt(_channelwise(input, running_var) + eps)
        followed = running_mean, running_var
        saved = nd.zeros((0,), dtype, input.device), nd.zeros((0,), dtype, input.device)
    y = (x - mean) * rstd
    weight, bias = (p if p is None else _channelwise(input, p) for p in (weight, bias))
    return _scaled(y, weight, bias, input.dtype), *saved, *followed


@kernel("native_batch_norm")
def _native_batch_norm(
    input: NDArray,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    if training and running_mean is not None:
        raise Unsupported("this form of batch norm writes running statistics behind one's back")
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[:3]


@kernel("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    input: NDArray, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


kernel("_native_batch_norm_legit_functional")(_batch_norm)


@kernel("_native_batch_norm_legit_no_training")
def _batch_norm_no_training(
    input: NDArray,
    weight: Maybe,
    bias: Maybe,
    running_mean: NDArray,
    running_var: NDArray,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


def _nothing(x: NDArray) -> NDArray:
    return nd.zeros((0,), uint8, x.device)


@kernel("_batch_norm_with_update_functional")
def _batch_norm_with_update(
    input: NDArray,
    weight: Maybe,
    bias: Maybe,
    running_mean: NDArray,
    running_var: NDArray,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    result = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *result[:3], _nothing(input), *result[3:]


@kernel("_batch_norm_no_update")
def _batch_norm_no_update(
    input: NDArray,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    result = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return *result[:3], _nothing(input)


@kernel("batch_norm_update_stats")
def _batch_norm_update_stats(
    input: NDArray, running_mean: Maybe, running_var: Maybe, momentum: float
) -> tuple[NDArray, NDArray]:
    if running_mean is not None or running_var is not None:
        raise Unsupported("this operator writes running statistics behind one's back")
    mean, variance = _moments(wide(input), _batch_axes(input))
    return pair(nd.astype(nd.reshape(s, (-1,)), input.dtype) for s in (mean, variance))


@kernel("native_batch_norm_backward")
def _native_batch_norm_backward(
    grad_out: NDArray,
    input: NDArray,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    grad, axes = wide(grad_out), _batch_axes(input)
    mean, rstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    if mean is None or rstd is None:
        raise Unsupported("the gradient of batch norm without statistics")
    mean, rstd = _channelwise(input, mean), _channelwise(input, rstd)
    if not train:
        rstd = nd.rsqrt(rstd + eps)
    y = (wide(input) - mean) * rstd
    dtype = _statistics_dtype(input, weight, running_mean, save_mean)
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        inner = grad if weight is None else grad * _channelwise(input, weight)
        to_x = _standard_gradient(inner, y, rstd, axes) if train else inner * rstd
        to_x = nd.astype(to_x, input.dtype)
    if output_mask[1]:
        to_weight = nd.astype(nd.sum(grad * y, axes), dtype)
    if output_mask[2]:
        to_bias = nd.astype(nd.sum(grad, axes), dtype)
    return to_x, to_weight, to_bias


@kernel("batch_norm_backward")
def _batch_norm_backward(
    grad_out: NDArray,
    input: NDArray,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Maybe = None,
) -> tuple[Maybe, Maybe, Maybe]:
    return _native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps,
        output_mask,
    )  # fmt: skip


# ---- of weights


@kernel("_weight_norm_interface")
def _weight_norm(v: NDArray, g: NDArray, dim: int = 0) -> tuple[NDArray, NDArray]:
    axes = tuple(d for d in range(v.ndim) if d != dim)
    norms = nd.sqrt(nd.sum(nd.square(wide(v)), axes, keepdims=True))
    return nd.astype(wide(v) * (wide(g) / norms), v.dtype), norms


@kernel("_weight_norm_interface_backward")
def _weight_norm_backward(
    grad_w: NDArray, saved_v: NDArray, saved_g: NDArray, saved_norms: NDArray, dim: int
) -> tuple[NDArray, NDArray]:
    axes = tuple(d for d in range(saved_v.ndim) if d != dim)
    grad, v, g, norms = (wide(x) for x in (grad_w, saved_v, saved_g, saved_norms))
    unit = v / norms
    to_g = nd.sum(grad * unit, axes, keepdims=True)
    to_v = g / norms * (grad - unit * to_g)
    return nd.astype(to_v, saved_v.dtype), nd.astype(to_g, saved_g.dtype)
