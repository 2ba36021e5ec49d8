"""The bits of an array read as another type: views, also where elements are wider or narrower."""

from __future__ import annotations

from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import DType, as_dtype, uint8, uint16, uint32, uint64
from genesis.ir.size import Dim
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.storage import ViewStep
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops.complexes import view_as_complex, view_as_real

_UNSIGNED = {8: uint8, 16: uint16, 32: uint32, 64: uint64}  # by width


def bitcast(x: NDArray, dtype: Any) -> NDArray:
    """The same bits read as another type: a view.

    Elements of another width change the length of the last axis: the lowest bits come first.

    >>> from genesis import ndarray as nd
    >>> bitcast(nd.array([1, 258], "int16"), "uint8").tolist()
    [1, 0, 2, 1]
    """
    target = as_dtype(dtype)
    if target is x.dtype:
        return x.seen_through(ViewStep(ops.RESHAPE, None, x.shape))
    if not x.shape and target.bits == x.dtype.bits:
        return _shaped(bitcast(_shaped(x, (1,)), target), ())
    if not x.shape:
        raise ValueError(
            f"bitcast: {target} is of another width than {x.dtype}, and a scalar has no last axis"
        )
    if x.dtype.is_complex:  # pairs
        pairs = view_as_real(x)
        return bitcast(_shaped(pairs, (*x.shape[:-1], x.shape[-1] * 2)), target)
    if target.is_complex:
        parts = bitcast(x, target.real)
        count = _divided(parts.shape[-1], 2, x, target)
        return view_as_complex(_shaped(parts, (*parts.shape[:-1], count, 2)))
    many, few = (
        max(1, a // b) for a, b in ((x.dtype.bits, target.bits), (target.bits, x.dtype.bits))
    )
    if many == few:
        return x.seen_through(ViewStep(ops.BITCAST, None, x.shape, target))
    shape = (*x.shape[:-1], _divided(x.shape[-1] * many, few, x, target))
    return x.seen_through(ViewStep(ops.BITCAST, (many, few), shape, target))


def _shaped(x: NDArray, shape: Shape) -> NDArray:
    return x.seen_through(ViewStep(ops.RESHAPE, None, shape))


def _divided(count: Dim, by: int, x: NDArray, target: DType) -> Dim:
    if isinstance(count, int) and count % by:
        raise ValueError(
            f"bitcast: the last axis of shape {x.shape} holds no whole number of {target}, each of "
            f"which is {target.bits // x.dtype.bits} {x.dtype}"
        )
    return count // by


def regrouped(x: Value, dtype: DType, shape: Shape) -> Value:
    """The bits of `x` as elements of another width along the last axis, by shifts."""
    ours, theirs = _UNSIGNED[x.dtype.bits], _UNSIGNED[dtype.bits]
    bits = _as(x, ours)
    wide, narrow = (ours, theirs) if ours.bits > theirs.bits else (theirs, ours)
    count = wide.bits // narrow.bits
    split = (*(x.shape if wide is ours else shape), count)
    places = primitive.cast(primitive.iota(count, x.device), wide)
    size = primitive.constant(narrow.bits, wide, x.device)
    places = primitive.along(primitive.elementwise(ops.MUL, places, size), len(split) - 1, split)
    if wide is ours:
        whole = primitive.expand(primitive.reshape(bits, (*x.shape, 1)), split)
        parts = primitive.cast(primitive.elementwise(ops.SHR, whole, places), narrow)
        return _as(primitive.reshape(parts, shape), dtype)
    parts = primitive.cast(primitive.reshape(bits, split), wide)
    moved = primitive.elementwise(ops.SHL, parts, places)
    return _as(primitive.reduce(ops.SUM, moved, (len(split) - 1,)), dtype)


def _as(x: Value, dtype: DType) -> Value:
    return x if x.dtype is dtype else primitive.elementwise(ops.BITCAST, x, dtype=dtype)


__all__ = ["bitcast"]
