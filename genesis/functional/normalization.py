"""Normalisation: layer, group, instance, batch and RMS norm, and local response normalisation.

All but the last are one operation, `Standardize`: elements divided by the root of their mean
square over some dimensions, after their mean was taken off (or not, for RMS norm). What differs is
over which dimensions. The gradient is written out in terms of the result, so that a gradient takes
two independent sums instead of the chain of them that the formula's parts would give.

Half precisions are normalised in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, pow
from genesis.functional.elementary import rsqrt
from genesis.functional.function import Function, is_tensor, one_operation
from genesis.functional.movement import reshape
from genesis.functional.padding import pad
from genesis.functional.reduction import mean, sum
from genesis.functional.strided import unfold
from genesis.ir.size import product, same

Axes = tuple[int, ...]

#: The distance from 1 to the next number.
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Standardize(Function):
    """x in units of its root mean square over dimensions, and the reciprocal of that root.

    With a weight that is the same all along those dimensions, also the first times the weight: its
    gradient and that of x then need the same sums.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, axes: Axes, eps: float, centred: bool, weight: Any) -> Any:
        ctx.axes, ctx.centred = axes, centred
        ctx.set_materialize_grads(False)
        middle, square = moments(x, axes, centred)
        scale = nd.rsqrt(square + eps)
        result = (x if middle is None else x - middle) * scale
        ctx.save_for_backward(result, scale, weight)
        return (result, scale) if weight is None else (result, scale, result * weight)

    @staticmethod
    def backward(ctx: Any, grad: Any, to_scale: Any, weighted: Any = None) -> Any:
        result, scale, weight = ctx.saved_tensors
        count = product(result.shape[a] for a in ctx.axes)
        parts = []
        to_weight = None
        for g, factor in ((grad, scale), (weighted, None if weight is None else scale * weight)):
            if g is None:
                continue
            along = sum(g * result, ctx.axes, True)
            part = g - result * (along / count)
            if ctx.centred:
                part = part - sum(g, ctx.axes, True) / count
            parts.append(part * factor)
            to_weight = along  # the last is that of the weight, if there is one
        if to_scale is not None:
            parts.append(result * (to_scale * scale * scale / -count))
        total = None
        for part in parts:
            total = part if total is None else total + part
        return total, None, None, None, None if weighted is None else to_weight


def moments(x: Any, axes: Axes, centred: bool) -> tuple[Any, Any]:
    """Of arrays: the mean, if it is wanted, and the mean square of what is left."""
    if not centred:
        return None, nd.mean(x * x, axes, True)
    middle = nd.mean(x, axes, True)
    away = x - middle
    return middle, nd.mean(away * away, axes, True)


def scaled(x: Any, weight: Any, bias: Any, dtype: Any) -> Any:
    """Times the weight plus the bias, where there are, in a dtype."""
    if weight is not None:
        x = x * weight
    return cast(x if bias is None else x + bias, dtype)


# ---- over the last dimensions


def _last(name: str, input: Any, normalized_shape: Sequence[int], *parameters: Any) -> Axes:
    """The dimensions that `normalized_shape` says, checked."""
    shape = tuple(normalized_shape)
    rank = len(input.shape)
    fits = 0 < len(shape) <= rank and tuple(input.shape[rank - len(shape) :]) == shape
    if not fits or any(p is not None and tuple(p.shape) != shape for p in parameters):
        given = [tuple(p.shape) for p in parameters if p is not None]
        raise ValueError(
            f"{name}: normalized_shape {shape} must be the last dimensions of the input "
            f"{tuple(input.shape)} and the shape of weight and bias {given}"
        )
    return tuple(range(rank - len(shape), rank))


@one_operation
def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Mean 0 and variance 1 over the last dimensions, then times the weight plus the bias."""
    axes = _last("layer_norm", input, normalized_shape, weight, bias)
    wide = cast(input, input.dtype.accumulator)
    result, _ = Standardize.apply(wide, axes, eps, True, None)
    return scaled(result, weight, bias, input.dtype)


@one_operation
def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    """Mean square 1 over the last dimensions, then times the weight.

    `eps` is the dtype's own, the distance from 1 to the next number, if not given.
    """
    axes = _last("rms_norm", input, normalized_shape, weight)
    wide = cast(input, input.dtype.accumulator)
    small = EPS[input.dtype.real.name] if eps is None else eps
    if input.dtype.is_complex:
        scale = rsqrt(mean(wide * wide, axes, True) + small)
        return scaled(wide * scale, weight, None, wide.dtype)
    result, _ = Standardize.apply(wide, axes, small, False, None)
    return scaled(result, weight, None, input.dtype)


# ---- over channels


def _channels(name: str, input: Any, *parameters: Any) -> tuple[int, ...]:
    """The shape that lays a number for each channel along dimension 1, checked."""
    shape = tuple(input.shape)
    channels = shape[1] if len(shape) > 1 else None
    if channels is None or any(p is not None and tuple(p.shape) != (channels,) for p in parameters):
        given = [tuple(p.shape) for p in parameters if p is not None]
        raise ValueError(
            f"{name}: needs an input (batch, channels, ..) and weights and statistics of one "
            f"number for each channel, got shapes {shape} and {given}"
        )
    return (1, channels, *(1,) * (len(shape) - 2))


def _laid(x: Any, shape: tuple[int, ...]) -> Any:
    return None if x is None else reshape(x, shape)


@one_operation
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Mean 0 and variance 1 over the channels of every group and all positions."""
    along = _channels("group_norm", input, weight, bias)
    batch, channels, *spatial = input.shape
    if num_groups < 1 or as_int(channels) % num_groups:
        raise ValueError(f"group_norm: {num_groups} groups do not divide {channels} channels")
    if batch * (as_int(channels) // num_groups) * product(spatial) == 1:
        raise ValueError(f"group_norm: one value in all for a group, of {tuple(input.shape)}")
    wide = cast(input, input.dtype.accumulator)
    grouped = reshape(wide, (batch, num_groups, as_int(channels) // num_groups, *spatial))
    result, _ = Standardize.apply(grouped, tuple(range(2, len(grouped.shape))), eps, True, None)
    result = reshape(result, input.shape)
    return scaled(result, _laid(weight, along), _laid(bias, along), input.dtype)


@one_operation
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Mean 0 and variance 1 of every channel over batch and positions.

    In training these are the batch's own, and running statistics, if there are, are moved
    towards them by `momentum`, in place. Otherwise the running statistics are used.
    """
    return _normalized(
        "batch_norm", (0, *range(2, len(input.shape))), input, running_mean, running_var, weight,
        bias, training, momentum, eps,
    )  # fmt: skip


def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Mean 0 and variance 1 of every channel of every example over all positions."""
    return _normalized(
        "instance_norm", tuple(range(2, len(input.shape))), input, running_mean, running_var,
        weight, bias, use_input_stats, momentum, eps,
    )  # fmt: skip


def _normalized(
    name: str,
    axes: Axes,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    from_input: bool,
    momentum: Any,
    eps: float,
) -> Any:
    if tuple(input.shape) == (0,):
        return input * 1  # nothing, of no channels
    along = _channels(name, input, running_mean, running_var, weight, bias)
    if from_input and same(product(input.shape[a] for a in axes), 1):
        raise ValueError(
            f"{name}: one value for each channel has no variance; input {tuple(input.shape)}"
        )
    wide = cast(input, input.dtype.accumulator)
    weight, bias = _laid(weight, along), _laid(bias, along)
    if from_input:
        result, _, *weighted = Standardize.apply(wide, axes, eps, True, weight)
        if running_mean is not None:
            _follow(wide, axes, running_mean, running_var, momentum)
        if weighted:
            (result,), weight = weighted, None
    elif running_mean is None or running_var is None:
        raise ValueError(f"{name}: without running statistics it needs the input's own")
    else:
        scale = rsqrt(cast(running_var, wide.dtype) + eps)
        middle = reshape(cast(running_mean, wide.dtype), along)
        result = (wide - middle) * reshape(scale, along)
    return scaled(result, weight, bias, input.dtype)


def _follow(x: Any, axes: Axes, running_mean: Any, running_var: Any, momentum: Any) -> None:
    """Move running statistics towards those of x. The variance is that of all there could be."""
    array, middle, square, part = (
        a.array if is_tensor(a) else a for a in (x, running_mean, running_var, momentum)
    )
    count = product(array.shape[a] for a in axes)
    now, var = moments(array, axes, True)
    rest = tuple(d for d in range(len(array.shape)) if d != 1)  # of instances: their mean
    for kept, new in ((middle, now), (square, var * nd.ratio(count, count - 1, var))):
        kept.assign(kept * (1 - part) + nd.mean(new, rest) * part)


# ---- over neighbouring channels


def local_response_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """Divided by a power of the mean square over `size` neighbouring channels."""
    rank = len(input.shape)
    if rank < 3 or size < 1:
        raise ValueError(
            f"local_response_norm: needs (batch, channels, ..) and a positive size, got shape "
            f"{tuple(input.shape)} and size {size}"
        )
    around = (*(0, 0) * (rank - 2), size // 2, (size - 1) // 2)
    squares = mean(unfold(pad(input * input, around), 1, size, 1), -1)
    return input / pow(squares * alpha + k, beta)


__all__ = [
    "batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "rms_norm",
]  # fmt: skip
