"""Normalisation: layer, RMS, group, batch and weight norm, and their gradients.

All but the last are `genesis.functional.normalization.Standardize` over different axes, with the
statistics that PyTorch hands from forward to backward.

Statistics have the dtype of the weights, if there are weights in float32 to an input in half
precision, else that of the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.functional.normalization import EPS, Standardize, moments, scaled
from genesis.ir.dtype import DType, uint8
from genesis.ir.size import product
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.backward import gradient_of
from genesis.torch.aten.half_precision import wide
from genesis.torch.aten.reduction import pair
from genesis.torch.aten.registry import Unsupported, implements

Maybe = NDArray | None
Axes = tuple[int, ...]


def _statistics_dtype(x: NDArray, *parameters: Maybe) -> DType:
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def _gradients(
    grad: NDArray,
    y: NDArray,
    rstd: NDArray,
    weight: Maybe,
    axes: Axes,
    summed: Axes,
    wanted: Sequence[bool],
    centred: bool = True,
) -> tuple[Maybe, ...]:
    """Those of what was standardised to y, of the weight, and of the bias.

    The statistics are those over some `axes`; if there are none, they do not depend on it.
    """
    to_x = to_weight = to_bias = None
    if wanted[0]:
        inner = grad if weight is None else grad * weight
        to_x = inner * rstd
        if axes:
            saved, how = (y, rstd, None), {"axes": axes, "centred": centred}
            to_x = gradient_of(Standardize, saved, inner, None, **how)[0]
    if wanted[1]:
        to_weight = nd.sum(grad * y, summed)
    if wanted[2]:
        to_bias = nd.sum(grad, summed)
    return to_x, to_weight, to_bias


def _formed(found: Iterable[Maybe], *forms: tuple[Sequence[Any], DType]) -> tuple[Maybe, ...]:
    """Gradients in the shapes and the types of what they are for."""
    return tuple(
        x if x is None or (x.shape, x.dtype) == form else nd.reshape(x, form[0]).astype(form[1])
        for x, form in zip(found, forms, strict=True)
    )


# ---- over the last dimensions


def _last(x: NDArray, normalized_shape: Sequence[Any]) -> tuple[Axes, Axes]:
    """The axes before the normalised ones, and these."""
    first = x.ndim - len(normalized_shape)
    return tuple(range(first)), tuple(range(first, x.ndim))


@implements("native_layer_norm")
def _layer_norm(
    input: NDArray, normalized_shape: Sequence[Any], weight: Maybe, bias: Maybe, eps: float
) -> tuple[NDArray, NDArray, NDArray]:
    _, axes = _last(input, normalized_shape)
    dtype = _statistics_dtype(input, weight, bias)
    x = wide(input)
    mean, variance = moments(x, axes, True)
    rstd = nd.rsqrt(variance + eps)
    result = scaled((x - mean) * rstd, weight, bias, input.dtype)
    return result, nd.astype(mean, dtype), nd.astype(rstd, dtype)


@implements("native_layer_norm_backward")
def _layer_norm_backward(
    grad: NDArray,
    input: NDArray,
    normalized_shape: Sequence[Any],
    mean: NDArray,
    rstd: NDArray,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    batch, axes = _last(input, normalized_shape)
    scale = wide(rstd)
    y = (wide(input) - wide(mean)) * scale
    there = (
        output_mask[0], output_mask[1] and weight is not None, output_mask[2] and bias is not None
    )  # fmt: skip
    found = _gradients(wide(grad), y, scale, weight, axes, batch, there)
    learnt = normalized_shape, _statistics_dtype(input, weight, bias)
    return _formed(found, (input.shape, input.dtype), learnt, learnt)


@implements("_fused_rms_norm")
def _rms_norm(
    input: NDArray, normalized_shape: Sequence[Any], weight: Maybe, eps: float | None
) -> tuple[NDArray, NDArray]:
    _, axes = _last(input, normalized_shape)
    x = wide(input)
    small = EPS[x.dtype.name] if eps is None else eps
    rstd = nd.rsqrt(nd.mean(nd.square(x), axes, keepdims=True) + small)
    return scaled(x * rstd, weight, None, input.dtype), rstd


@implements("_fused_rms_norm_backward")
def _rms_norm_backward(
    grad: NDArray,
    input: NDArray,
    normalized_shape: Sequence[Any],
    rstd: NDArray,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    batch, axes = _last(input, normalized_shape)
    scale = wide(rstd)
    there = output_mask[0], output_mask[1] and weight is not None, False
    found = _gradients(wide(grad), wide(input) * scale, scale, weight, axes, batch, there, False)
    learnt = normalized_shape, _statistics_dtype(input, weight)
    return _formed(found[:2], (input.shape, input.dtype), learnt)


# ---- over groups of channels


def _grouped(x: NDArray, *shape: Any) -> NDArray:
    return nd.reshape(wide(x), shape)


@implements("native_group_norm")
def _group_norm(
    input: NDArray, weight: Maybe, bias: Maybe, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[NDArray, NDArray, NDArray]:
    C = index(C)  # that groups divide it is not known of a symbol
    x = _grouped(input, N, group, C // group, HxW)
    mean, variance = moments(x, (2, 3), True)
    rstd = nd.rsqrt(variance + eps)
    weight, bias = (
        p if p is None else nd.reshape(p, (group, C // group, 1)) for p in (weight, bias)
    )
    result = nd.reshape(scaled((x - mean) * rstd, weight, bias, input.dtype), input.shape)
    dtype = _statistics_dtype(input, weight, bias)
    mean, rstd = (nd.astype(nd.reshape(s, (N, group)), dtype) for s in (mean, rstd))
    return result, mean, rstd


@implements("native_group_norm_backward")
def _group_norm_backward(
    grad: NDArray,
    input: NDArray,
    mean: NDArray,
    rstd: NDArray,
    weight: Maybe,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    C = index(C)
    x, g = (_grouped(a, N, group, C // group, HxW) for a in (input, grad))
    middle, scale = (_grouped(s, N, group, 1, 1) for s in (mean, rstd))
    laid = None if weight is None else _grouped(weight, group, C // group, 1)
    found = _gradients(g, (x - middle) * scale, scale, laid, (2, 3), (0, 3), output_mask)
    learnt = (C,), _statistics_dtype(input, weight)
    return _formed(found, (input.shape, input.dtype), learnt, learnt)


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
        mean, variance = moments(x, axes, True)
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
        if input.device == "cpu":
            saved = nd.zeros((0,), dtype), nd.zeros((0,), dtype)
        else:  # as PyTorch has it there
            flat = [nd.reshape(s, (input.shape[1],)) for s in (mean, rstd)]
            saved = nd.astype(flat[0], dtype), nd.astype(flat[1], dtype)
    y = (x - mean) * rstd
    weight, bias = (p if p is None else _channelwise(input, p) for p in (weight, bias))
    return scaled(y, weight, bias, input.dtype), *saved, *followed


@implements("native_batch_norm")
def _native_batch_norm(*given: Any) -> tuple[Any, ...]:
    running_mean, training = given[3], given[5]
    if training and running_mean is not None:
        raise Unsupported("this form of batch norm writes running statistics behind one's back")
    return _batch_norm(*given)[:3]


@implements("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    input: NDArray, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


implements("_native_batch_norm_legit_functional")(_batch_norm)


@implements("_native_batch_norm_legit_no_training")
def _batch_norm_no_training(*given: Any) -> tuple[Any, ...]:
    how: list[Any] = [*given[:-2], False, *given[-2:]]
    return _batch_norm(*how)[:3]


@implements("_batch_norm_no_update")
def _batch_norm_no_update(input: NDArray, *given: Any) -> tuple[Any, ...]:
    return *_batch_norm_no_training(input, *given), _nothing(input)


@implements("_batch_norm_with_update_functional")
def _batch_norm_with_update(input: NDArray, *given: Any) -> tuple[Any, ...]:
    how: list[Any] = [*given[:-2], True, *given[-2:]]
    result = _batch_norm(input, *how)
    return *result[:3], _nothing(input), *result[3:]


def _nothing(x: NDArray) -> NDArray:
    return nd.zeros((0,), uint8, x.device)


@implements("batch_norm_update_stats")
def _batch_norm_update_stats(
    input: NDArray, running_mean: Maybe, running_var: Maybe, momentum: float
) -> tuple[NDArray, NDArray]:
    if running_mean is not None or running_var is not None:
        raise Unsupported("this operator writes running statistics behind one's back")
    mean, variance = moments(wide(input), _batch_axes(input), True)
    return pair(nd.astype(nd.reshape(s, (-1,)), input.dtype) for s in (mean, variance))


@implements("native_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(
    grad: NDArray,
    input: NDArray,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Maybe = None,
) -> tuple[Maybe, ...]:
    axes = _batch_axes(input)
    mean, rstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    if mean is None or rstd is None:
        raise Unsupported("the gradient of batch norm without statistics")
    mean, rstd = _channelwise(input, mean), _channelwise(input, rstd)
    if not train:
        rstd = nd.rsqrt(rstd + eps)
    y = (wide(input) - mean) * rstd
    laid = None if weight is None else _channelwise(input, weight)
    if train and laid is not None and output_mask[0]:
        # The weight is the same along the axes: its gradient and that of x share their sums.
        given, how = (y, rstd, laid), {"axes": axes, "centred": True}
        to_x, *_, to_weight = gradient_of(Standardize, given, None, None, wide(grad), **how)
        every = to_x, to_weight, nd.sum(wide(grad), axes, keepdims=True)
        found = tuple(x if wanted else None for x, wanted in zip(every, output_mask, strict=True))
    else:
        found = _gradients(wide(grad), y, rstd, laid, axes if train else (), axes, output_mask)
    learnt = input.shape[1:2], _statistics_dtype(input, weight, running_mean, save_mean)
    return _formed(found, (input.shape, input.dtype), learnt, learnt)


# ---- of weights


@implements("_weight_norm_interface")
def _weight_norm(v: NDArray, g: NDArray, dim: int = 0) -> tuple[NDArray, NDArray]:
    axes = tuple(d for d in range(v.ndim) if d != dim)
    norms = nd.sqrt(nd.sum(nd.square(wide(v)), axes, keepdims=True))
    return nd.astype(wide(v) * (wide(g) / norms), v.dtype), norms


@implements("_weight_norm_interface_backward")
def _weight_norm_backward(
    grad_w: NDArray, saved_v: NDArray, saved_g: NDArray, saved_norms: NDArray, dim: int
) -> tuple[NDArray, NDArray]:
    axes = tuple(d for d in range(saved_v.ndim) if d != dim)
    grad, v, g, norms = (wide(x) for x in (grad_w, saved_v, saved_g, saved_norms))
    unit = v / norms
    to_g = nd.sum(grad * unit, axes, keepdims=True)
    to_v = g / norms * (grad - unit * to_g)
    return nd.astype(to_v, saved_v.dtype), nd.astype(to_g, saved_g.dtype)
