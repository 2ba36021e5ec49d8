"""Operators that normalise: softmax and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import functional as fn
from genesis.ir.dtype import as_dtype
from genesis.onnx.dtypes import numpy_dtype
from genesis.onnx.registry import operator

operator("Softmax", since=13)(lambda x, *, axis=-1: fn.softmax(x, axis))
operator("LogSoftmax", since=13)(lambda x, *, axis=-1: fn.log_softmax(x, axis))


def _as_matrix(x: Any, axis: int) -> Any:
    from genesis.onnx.operators.movement import flatten

    return flatten(x, axis=axis)


@operator("Softmax")
def softmax(x: Any, *, axis: int = 1) -> Any:
    """The softmax over an axis and all that follow it."""
    return fn.softmax(_as_matrix(x, axis), 1).reshape(*x.shape)


@operator("LogSoftmax")
def log_softmax(x: Any, *, axis: int = 1) -> Any:
    """The logarithm of the softmax over an axis and all that follow it."""
    return fn.log_softmax(_as_matrix(x, axis), 1).reshape(*x.shape)


def _first_greatest(x: Any, axis: int) -> Any:
    from genesis import arange

    shape = [1] * x.ndim
    shape[axis] = -1
    place = arange(x.shape[axis]).reshape(*shape)
    return (fn.argmax(x, axis, True) == place).to(x.dtype)


@operator("Hardmax", since=13)
def hardmax(x: Any, *, axis: int = -1) -> Any:
    """One at the first greatest element."""
    return _first_greatest(x, axis % x.ndim)


@operator("Hardmax")
def hardmax_matrix(x: Any, *, axis: int = 1) -> Any:
    """One at the first greatest element of an axis and all that follow it."""
    return _first_greatest(_as_matrix(x, axis), 1).reshape(*x.shape)


@operator("BatchNormalization")
def batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, spatial: int = 1, is_test: int = 0,
    consumed_inputs: Any = None, outputs: int = 1, version: int = 15,
) -> Any:  # fmt: skip
    """Channels with mean 0 and variance 1, scaled and shifted."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    if not spatial:
        shape = (1, *x.shape[1:])
    if training_mode:
        axes = (0, *range(2, x.ndim))
        seen, spread = fn.mean(x, axes), fn.var(x, axes, correction=0)
        y = _normalised(x, scale, bias, seen, spread, epsilon, shape)
        return (
            y, (mean * momentum + seen * (1 - momentum)).to(mean.dtype),
            (var * momentum + spread * (1 - momentum)).to(var.dtype),
        )[:outputs]  # fmt: skip
    return _normalised(x, scale, bias, mean, var, epsilon, shape)


def _normalised(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float, shape: Any
) -> Any:
    factor = scale / fn.sqrt(var + epsilon)
    return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)).to(x.dtype)


@operator("InstanceNormalization")
def instance_norm(
    x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5, consumed_inputs: Any = None
) -> Any:
    """Channels of each image with mean 0 and variance 1, scaled and shifted."""
    return fn.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


@operator("GroupNormalization", since=21)
def group_norm(
    x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """Groups of channels with mean 0 and variance 1, each channel scaled and shifted."""
    return fn.group_norm(x, num_groups, scale, bias, epsilon)


@operator("GroupNormalization", since=18)
def group_norm_by_group(
    x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5
) -> Any:
    """Groups of channels with mean 0 and variance 1, each group scaled and shifted."""
    each = x.shape[1] // num_groups
    return fn.group_norm(
        x, num_groups, fn.repeat_interleave(scale, each), fn.repeat_interleave(bias, each), epsilon
    )


@operator("LayerNormalization")
def layer_norm(
    x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """The last axes with mean 0 and variance 1, scaled and shifted."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    kind = numpy_dtype(stash_type)
    if outputs == 1 and x.dtype.numpy == kind and scale.ndim == len(axes):
        return fn.layer_norm(x, [x.shape[a] for a in axes], scale, bias, epsilon)
    wide = x.to(as_dtype(kind))
    mean = fn.mean(wide, axes, True)
    inverse = fn.rsqrt(fn.var(wide, axes, correction=0, keepdim=True) + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    y = y if bias is None else y + bias
    return y if outputs == 1 else (y, mean, inverse)[:outputs]


@operator("RMSNormalization")
def rms_norm(
    x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """The last axes divided by their root mean square, and scaled."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.to(as_dtype(numpy_dtype(stash_type)))
    inverse = fn.rsqrt(fn.mean(fn.square(wide), axes, True) + epsilon)
    return (wide * inverse).to(x.dtype) * scale.to(x.dtype)


@operator("LpNormalization")
def lp_normalization(x: Any, *, axis: int = -1, p: int = 2) -> Any:
    """An axis divided by its norm, where that is not zero."""
    if p == 1:
        norm = fn.sum(fn.abs(x), axis, True)
    else:
        norm = fn.sqrt(fn.sum(fn.square(x), axis, True))
    return fn.where(norm == 0, fn.mul(x, 0), x / norm)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x: Any, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    """Axes with mean 0 and variance 1."""
    mean = fn.mean(x, tuple(axes), True)
    spread = fn.mean(fn.square(x), tuple(axes), True) - fn.square(mean)
    return (x - mean) / (fn.sqrt(spread) + 1e-9)


@operator("LRN")
def lrn(x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    """Channels divided by the squares of their neighbours."""
    ends = [(0, 0)] * (x.ndim - 2)
    from genesis.onnx.operators.contraction import padded

    squares = padded(fn.square(x), [((size - 1) // 2, size // 2), *ends])
    total = fn.sum(fn.unfold(squares, 1, size, 1), -1)
    return x / fn.pow(bias + alpha / size * total, beta)
