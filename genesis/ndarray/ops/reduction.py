"""Reductions, and what is made of them: means, variances, softmax, positions of extremes.

`axis` is one axis, several, or None for all. Sums of bool and integers are int64. Half precisions
are widened where an intermediate result would otherwise be rounded or overflow.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from genesis.ir import ops
from genesis.ir.dtype import bool_, int64, uint8, uint64
from genesis.ir.ops import Op
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops import complexes
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.movement import normal_axes, normal_axis

Axes = int | Sequence[int] | None


def _kept(value: Value, axes: tuple[int, ...], keepdims: bool, full: Value) -> Value:
    """A reduced value with its axes put back as extents of 1, if wanted."""
    if not keepdims:
        return value
    return primitive.reshape(value, _ones(full, axes))


def _ones(full: Value, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if d in axes else s for d, s in enumerate(full.shape))


def _spread(op: Op, x: Value, axes: tuple[int, ...]) -> Value:
    """A reduction repeated over the axes it folded, so that it combines with x again."""
    folded = primitive.reshape(primitive.reduce(op, x, axes), _ones(x, axes))
    return primitive.expand(folded, x.shape)


def _floats(name: str, x: NDArray) -> Value:
    """The value, widened; integers are an error as in PyTorch."""
    if not x.dtype.is_float:
        raise TypeError(f"{name}: needs floating point, not {x.dtype}; cast with .astype first")
    return cast(x.value, x.dtype.accumulator)


def _additive(
    x: NDArray, axis: Axes = None, keepdims: bool = False, *, op: Op = ops.SUM
) -> NDArray:
    axes = normal_axes(op.name, axis, x.ndim)
    value = x.value
    if not (x.dtype.is_float or x.dtype.is_complex) and x.dtype is not uint64:
        value = cast(value, int64)
    return wrap(_kept(primitive.reduce(op, value, axes), axes, keepdims, value))


sum = variant(_additive, "sum", "The sum over axes.")
prod = variant(_additive, "prod", "The product over axes.", op=ops.PROD)


def mean(x: NDArray, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """The mean over axes."""
    if x.dtype.is_complex:
        return complexes.complex(mean(x.real, axis, keepdims), mean(x.imag, axis, keepdims))
    axes = normal_axes("mean", axis, x.ndim)
    value = _floats("mean", x)
    return wrap(cast(_kept(_mean(value, axes), axes, keepdims, value), x.dtype))


def _mean(value: Value, axes: tuple[int, ...]) -> Value:
    total = primitive.reduce(ops.SUM, value, axes)
    count = primitive.extent(primitive.count(value, axes), value.dtype, value.device)
    return elementwise(ops.DIV, total, count)


def var(x: NDArray, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> NDArray:
    """The variance over axes: squared distances from the mean, over the count less `correction`."""
    if x.dtype.is_complex:  # the distance squared is the sum of those of the parts
        re, im = (var(part, axis, correction, keepdims) for part in (x.real, x.imag))
        return re + im
    return wrap(cast(_variance("var", x, axis, correction, keepdims), x.dtype))


def std(x: NDArray, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> NDArray:
    """The square root of the variance."""
    if x.dtype.is_complex:
        return wrap(elementwise(ops.SQRT, var(x, axis, correction, keepdims).value))
    variance = _variance("std", x, axis, correction, keepdims)
    return wrap(cast(elementwise(ops.SQRT, variance), x.dtype))


def _variance(name: str, x: NDArray, axis: Axes, correction: int, keepdims: bool) -> Value:
    axes = normal_axes(name, axis, x.ndim)
    value = _floats(name, x)
    middle = primitive.reshape(_mean(value, axes), _ones(value, axes))
    distance = elementwise(ops.SUB, value, primitive.expand(middle, value.shape))
    total = primitive.reduce(ops.SUM, elementwise(ops.MUL, distance, distance), axes)
    # The mean is rounded; what it is off by is the mean of the distances.
    rest = primitive.reduce(ops.SUM, distance, axes)
    number = primitive.extent(primitive.count(value, axes), value.dtype, value.device)
    rest = elementwise(ops.DIV, elementwise(ops.MUL, rest, rest), number)
    total = elementwise(ops.SUB, total, rest)
    count = primitive.count(value, axes) - correction
    if isinstance(count, int):
        count = builtins.max(count, 0)
    result = elementwise(ops.DIV, total, primitive.extent(count, value.dtype, value.device))
    return _kept(result, axes, keepdims, value)


def _extreme(
    x: NDArray, axis: Axes = None, keepdims: bool = False, *, op: Op = ops.AMAX
) -> NDArray:
    axes = normal_axes(op.name, axis, x.ndim)
    value = x.value
    if primitive.count(value, axes) == 0:
        raise ValueError(f"{op.name}: no elements along axes {axes} of shape {x.shape}")
    if x.dtype is bool_:
        value = cast(value, uint8)
    return wrap(cast(_kept(primitive.reduce(op, value, axes), axes, keepdims, value), x.dtype))


_BEST = "The {} element over axes; NaN if there is one."
amax = variant(_extreme, "amax", _BEST.format("greatest"))
amin = variant(_extreme, "amin", _BEST.format("least"), op=ops.AMIN)
max = amax
min = amin


def _truth(x: NDArray, axis: Axes = None, keepdims: bool = False, *, name: str = "any") -> NDArray:
    axes = normal_axes(name, axis, x.ndim)
    value = cast(cast(x.value, bool_), uint8)
    found = primitive.reduce(ops.AMAX if name == "any" else ops.AMIN, value, axes)
    return wrap(cast(_kept(found, axes, keepdims, value), bool_))


any = variant(_truth, "any", "Whether any element is non-zero (not, when there is none).")
all = variant(_truth, "all", "Whether all elements are non-zero (so, when there is none).")


def _position(
    x: NDArray, axis: int | None = None, keepdims: bool = False, *, name: str = "argmax"
) -> NDArray:
    if axis is None:
        value, a = primitive.reshape(x.value, (x.size,)), 0
    else:
        value, a = x.value, normal_axis(name, axis, x.ndim)
    if primitive.count(value, (a,)) == 0:
        raise ValueError(f"{name}: no elements along axis {axis} of shape {x.shape}")
    if x.dtype is bool_:
        value = cast(value, uint8)
    best = _spread(ops.AMAX if name == "argmax" else ops.AMIN, value, (a,))
    found = elementwise(ops.EQ, value, best)
    if x.dtype.is_float:
        found = elementwise(ops.OR, found, elementwise(ops.NE, value, value))
    at = primitive.along(primitive.iota(value.shape[a], value.device), a, value.shape)
    never = primitive.extent(value.shape[a], int64, value.device)
    first = primitive.reduce(ops.AMIN, primitive.where(found, at, never), (a,))
    # There always is one; said so that the position needs no check when it is used as an index.
    last = primitive.extent(value.shape[a] - 1, int64, value.device)
    first = elementwise(ops.MIN, first, last)
    if not keepdims:
        return wrap(first)
    return wrap(primitive.reshape(first, (1,) * x.ndim if axis is None else _ones(value, (a,))))


_ARGUMENT = "The position of the first {0} element (NaN is {0}), in the flat array for None."
argmax = variant(_position, "argmax", _ARGUMENT.format("greatest"))
argmin = variant(_position, "argmin", _ARGUMENT.format("least"))


def logsumexp(x: NDArray, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """log(sum(exp(x))) over axes, without overflow."""
    axes = normal_axes("logsumexp", axis, x.ndim)
    value = _floats("logsumexp", x)
    # Where the greatest element is infinite, x - greatest would be NaN.
    greatest = primitive.reduce(ops.AMAX, value, axes)
    zero = constant(0, value.dtype, value.device)
    infinity = constant(math.inf, value.dtype, value.device)
    finite = elementwise(ops.LT, elementwise(ops.ABS, greatest), infinity)
    shift = primitive.where(finite, greatest, zero)
    spread = primitive.expand(primitive.reshape(shift, _ones(value, axes)), value.shape)
    total = primitive.reduce(
        ops.SUM, elementwise(ops.EXP, elementwise(ops.SUB, value, spread)), axes
    )
    result = elementwise(ops.ADD, elementwise(ops.LOG, total), shift)
    return wrap(cast(_kept(result, axes, keepdims, value), x.dtype))


def softmax(x: NDArray, axis: int = -1) -> NDArray:
    """exp(x) over its sum along an axis."""
    axes = (normal_axis("softmax", axis, x.ndim),)
    value = _floats("softmax", x)
    powers = elementwise(ops.EXP, elementwise(ops.SUB, value, _spread(ops.AMAX, value, axes)))
    return wrap(cast(elementwise(ops.DIV, powers, _spread(ops.SUM, powers, axes)), x.dtype))


def log_softmax(x: NDArray, axis: int = -1) -> NDArray:
    """The logarithm of softmax."""
    axes = (normal_axis("log_softmax", axis, x.ndim),)
    value = _floats("log_softmax", x)
    shifted = elementwise(ops.SUB, value, _spread(ops.AMAX, value, axes))
    total = _spread(ops.SUM, elementwise(ops.EXP, shifted), axes)
    return wrap(cast(elementwise(ops.SUB, shifted, elementwise(ops.LOG, total)), x.dtype))


__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "log_softmax", "logsumexp", "max", "mean",
    "min", "prod", "softmax", "std", "sum", "var",
]  # fmt: skip
