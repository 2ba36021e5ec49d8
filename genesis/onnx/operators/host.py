"""Operators on NumPy arrays: what shapes, indices and texts are computed with."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from genesis.ir.size import Size
from genesis.onnx.dtypes import numpy_dtype
from genesis.onnx.registry import Implementation, on_host
from genesis.onnx.values import ints, is_symbolic, real_type, settled

_function: Any
_LARGEST = 1 << 24  # elements of an array that is made here


def host(name: str) -> Callable[[Implementation], Implementation]:
    """Enter a function; results that are integers by now become such."""

    def entered(function: Implementation) -> Implementation:
        def called(*args: Any, **options: Any) -> Any:
            return settled(function(*args, **options))

        called.__kwdefaults__ = function.__kwdefaults__
        return on_host(name)(called)

    return entered


def _bounded(shape: Any) -> list[Any]:
    extents = ints(shape) or []
    if reduce(lambda a, b: a * b, extents, 1) > _LARGEST:
        raise ValueError(f"an array of shape {extents} is too large to be computed beforehand")
    return extents


def _array(x: Any, like: Any) -> Any:
    """A result of the same type, also where NumPy gives a number."""
    return np.asarray(x, dtype=like.dtype)


def _quotient(a: Any, b: Any) -> Any:
    if a.dtype == object or b.dtype == object:
        return np.asarray(a // b, object)
    if a.dtype.kind in "iu":
        if np.any(b == 0):
            raise ZeroDivisionError("an integer is divided by zero")
        return _array(
            np.trunc(a / b) if a.dtype.kind == "i" and np.any((a < 0) | (b < 0)) else a // b, a
        )
    with np.errstate(all="ignore"):
        return _array(a / b, a)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Implementation:
    def computed(a: Any, b: Any, **_: Any) -> Any:
        with np.errstate(all="ignore"):
            if a.dtype != object and b.dtype != object:
                return np.asarray(function(a, b), a.dtype)
            found = np.asarray(function(a, b), object)
            real = real_type(a, b)
            return found if real is None or is_symbolic(found) else found.astype(real)

    return computed


def _variadic(function: Callable[[Any, Any], Any]) -> Implementation:
    # NumPy takes the first of two equals: sizes come first, as what stays a size is for all sizes.
    return lambda *arrays, **_: reduce(
        _arithmetic(function), sorted(arrays, key=lambda x: not is_symbolic(x))
    )


for _name, _function in {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Pow": np.power,
}.items():  # fmt: skip
    host(_name)(_arithmetic(_function))
for _name, _function in {"Min": np.minimum, "Max": np.maximum, "Sum": np.add}.items():
    host(_name)(_variadic(_function))
host("Div")(lambda a, b, **_: _quotient(a, b))


def _equal(a: Any, b: Any) -> Any:
    """Whether elements are equal; sizes are compared so that what is found is taken note of."""
    if a.dtype == object and b.dtype == object and not (is_symbolic(a) or is_symbolic(b)):
        return np.equal(a, b)  # texts
    if a.dtype == object or b.dtype == object:
        return np.logical_and(np.less_equal(a, b), np.less_equal(b, a))
    return np.equal(a, b)


for _name, _function in {
    "Equal": _equal, "Less": np.less, "Greater": np.greater, "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or,
    "Xor": np.logical_xor,
}.items():  # fmt: skip
    host(_name)(lambda a, b, f=_function, **_: np.asarray(f(a, b), bool))
for _name, _function in {"Not": np.logical_not, "IsNaN": np.isnan}.items():
    host(_name)(lambda a, f=_function: np.asarray(f(a), bool))
for _name, _function in {
    "Neg": np.negative, "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt,
    "Round": np.round, "Exp": np.exp, "Log": np.log, "Identity": np.array,
}.items():  # fmt: skip
    host(_name)(lambda a, f=_function, **_: _array(f(a), a) if not isinstance(a, list) else a)


@host("Mod")
def _mod(a: Any, b: Any, *, fmod: int = 0) -> Any:
    return np.asarray((np.fmod if fmod else np.mod)(a, b), a.dtype)


@host("Cast")
def _cast(x: Any, *, to: int, saturate: int = 1, round_mode: str = "up", **_: Any) -> Any:
    from genesis.onnx.operators.elementwise import cast_on_host

    return cast_on_host(x, numpy_dtype(to), bool(saturate), round_mode)


@host("CastLike")
def _cast_like(x: Any, like: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    from genesis.onnx.operators.elementwise import cast_on_host

    return cast_on_host(x, like.dtype, bool(saturate), round_mode)


@host("Where")
def _where(condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b)


@host("Shape")
def _shape(x: Any, *, start: int = 0, end: int | None = None) -> Any:
    return np.array(x.shape[start:end], np.int64)


@host("Size")
def _size(x: Any) -> Any:
    return np.array(x.size, np.int64)


@host("Gather")
def _gather(x: Any, indices: Any, *, axis: int = 0) -> Any:
    return np.asarray(np.take(x, indices.astype(np.int64), axis), x.dtype)


@host("GatherND")
def _gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    if batch_dims:
        raise NotImplementedError("GatherND of constants with batch_dims")
    return np.asarray(x[tuple(np.moveaxis(indices, -1, 0))], x.dtype)


@host("Concat")
def _concat(*arrays: Any, axis: int = 1) -> Any:
    return np.concatenate(arrays, axis)


@host("Slice")
def _slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None, **_: Any) -> Any:
    from genesis.onnx.operators.movement import slices

    return x[slices(x.shape, starts, ends, axes, steps)]


@host("Squeeze")
def _squeeze(x: Any, axes: Any = None) -> Any:
    return np.squeeze(x, None if axes is None else tuple(ints(axes) or ()))


@host("Unsqueeze")
def _unsqueeze(x: Any, axes: Any) -> Any:
    return np.expand_dims(x, tuple(ints(axes) or ()))


@host("Reshape")
def _reshape(x: Any, shape: Any, *, allowzero: int = 0, **_: Any) -> Any:
    from genesis.onnx.operators.movement import target_shape

    return x.reshape(target_shape(x.shape, shape, allowzero))


@host("Flatten")
def _flatten(x: Any, *, axis: int = 1) -> Any:
    axis = axis % (x.ndim + 1) if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


@host("Transpose")
def _transpose(x: Any, *, perm: Any = None) -> Any:
    return np.transpose(x, perm)


@host("Expand")
def _expand(x: Any, shape: Any) -> Any:
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_bounded(shape)))))


@host("Tile")
def _tile(x: Any, repeats: Any, **_: Any) -> Any:
    _bounded([n * m for n, m in zip(x.shape, ints(repeats) or (), strict=True)])
    return np.tile(x, ints(repeats) or ())


@host("Range")
def _range(start: Any, limit: Any, delta: Any, **_: Any) -> Any:
    first, last, step = (x.item() for x in (start, limit, delta))
    if step == 0:
        raise ValueError("Range with a step of 0")
    count = -(-(last - first) // step)
    _bounded([max(0, count)])
    if isinstance(first, Size) and isinstance(count, int) and isinstance(step, int):
        return np.array([*(first + k * step for k in range(count)), None], object)[:-1]
    if start.dtype == object or limit.dtype == object or delta.dtype == object:
        return np.arange(int(first), int(last), int(step), dtype=np.int64)
    return np.arange(first, last, step, dtype=start.dtype)


@host("ConstantOfShape")
def _constant_of_shape(shape: Any, *, value: Any = None) -> Any:
    number = np.zeros(1, np.float32) if value is None else value
    extents = ints(shape) or []
    if not all(isinstance(n, int) for n in extents) or np.prod(extents, dtype=float) > 1024:
        from genesis import full

        return full(tuple(extents), number.item(), dtype=number.dtype)
    return np.full(extents, number.item(), number.dtype)


@host("Split")
def _split(
    x: Any, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int = 1
) -> Any:
    from genesis.onnx.operators.movement import split_sizes

    parts = split_sizes(x.shape[axis], ints(split), num_outputs or outputs)
    return tuple(np.split(x, np.cumsum(parts)[:-1], axis))


@host("NonZero")
def _nonzero(x: Any) -> Any:
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


@host("CumSum")
def _cumsum(x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
    k = int(axis)
    y = np.flip(x, k) if reverse else x
    total = np.cumsum(y, k, dtype=x.dtype)
    total = total - y if exclusive else total
    return np.flip(total, k) if reverse else total


@host("ScatterND")
def _scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    if reduction != "none":
        raise NotImplementedError("ScatterND of constants with a reduction")
    y = np.array(x, dtype=object if updates.dtype == object else x.dtype)
    y[tuple(np.moveaxis(indices, -1, 0))] = updates
    return y


def _reducing(function: Callable[..., Any]) -> Implementation:
    def computed(
        x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        chosen = ints(axes)
        if not chosen:
            if noop_with_empty_axes:
                return x
            chosen = None
        result = function(
            x, axis=None if chosen is None else tuple(chosen), keepdims=bool(keepdims)
        )
        return np.asarray(result, x.dtype)

    return computed


for _name, _function in {
    "ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMin": np.min, "ReduceMax": np.max,
}.items():  # fmt: skip
    host(_name)(_reducing(_function))
