"""Making arrays: from data, from one number, from a rule.

Data is copied into memory at once; everything else is an expression (a constant repeated, a count
along an axis) that costs nothing until it is used, and nothing then if it fuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import (
    DType,
    Number,
    Scalar,
    as_dtype,
    complex64,
    float32,
    float64,
    int64,
    weak,
)
from genesis.ir.size import Dim, Size
from genesis.ndarray.core import primitive
from genesis.ndarray.core.device import chosen
from genesis.ndarray.core.interop import copied, from_numpy
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.ops.elementwise import astype
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.movement import as_shape
from genesis.ndarray.ops.scalar_overflow import fitting
from genesis.ndarray.ops.special.formula import Term

ShapeLike = Dim | Sequence[Dim]


def array(data: Any, dtype: Any = None, device: str | None = None) -> NDArray:
    """An array with a copy of nested lists, a scalar, a NumPy array or another array.

    Python numbers become bool, int64, float32 or complex64; NumPy arrays keep their type.

    >>> array([[1, 2], [3, 4]]) * 0.5
    array([[0.5, 1. ],
           [1.5, 2. ]], dtype=float32)
    """
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(data, NDArray):
        moved = data if device is None else data.to(device)
        return moved.copy() if target is None else astype(moved, target)
    return copied(_as_numpy(data, target), device)


def asarray(data: Any, dtype: Any = None, device: str | None = None) -> NDArray:
    """`data` as an array, sharing memory where possible; see `array`."""
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(data, NDArray):
        moved = data if device is None else data.to(device)
        return moved if target is None or moved.dtype is target else astype(moved, target)
    if isinstance(data, np.ndarray) or hasattr(data, "__array_interface__"):
        return from_numpy(_as_numpy(data, target), device)
    return array(data, target, device)


def _as_numpy(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    if isinstance(data, np.ndarray | np.generic) or hasattr(data, "__array_interface__"):
        found = np.asarray(data)
    else:
        try:
            found = np.array(data)
        except ValueError:
            raise ValueError("array: nested lists must all have the same lengths") from None
        if dtype is None and found.dtype in (np.float64, np.complex128):
            dtype = float32 if found.dtype == np.float64 else complex64
    if found.dtype == object:
        raise TypeError(f"array: cannot make an array of {type(data).__name__} objects")
    return found if dtype is None else found.astype(dtype.numpy, copy=False)


# ---- one number


def full(shape: ShapeLike, value: Number, dtype: Any = None, device: str | None = None) -> NDArray:
    """An array of one number repeated."""
    sizes = _shape("full", shape)
    target = weak(value) if dtype is None else as_dtype(dtype)
    number = fitting("full", value, target)
    return wrap(primitive.broadcast(primitive.scalar(number, target, chosen(device)), sizes))


def zeros(shape: ShapeLike, dtype: Any = float32, device: str | None = None) -> NDArray:
    """An array of zeros."""
    return full(_shape("zeros", shape), 0, dtype, device)


def ones(shape: ShapeLike, dtype: Any = float32, device: str | None = None) -> NDArray:
    """An array of ones."""
    return full(_shape("ones", shape), 1, dtype, device)


def full_like(x: NDArray, value: Number, dtype: Any = None) -> NDArray:
    """An array like x, of one number repeated."""
    return full(x.shape, value, x.dtype if dtype is None else dtype, x.device)


def zeros_like(x: NDArray, dtype: Any = None) -> NDArray:
    """An array like x, of zeros."""
    return full_like(x, 0, dtype)


def ones_like(x: NDArray, dtype: Any = None) -> NDArray:
    """An array like x, of ones."""
    return full_like(x, 1, dtype)


def _shape(name: str, shape: ShapeLike) -> Shape:
    return as_shape(name, tuple(shape) if isinstance(shape, Sequence) else (shape,))


# ---- a rule


def arange(
    start: Scalar | Size,
    stop: Scalar | Size | None = None,
    step: Scalar = 1,
    dtype: Any = None,
    device: str | None = None,
) -> NDArray:
    """start, start + step, .. below stop; with one argument from 0 to below it.

    >>> arange(2, 10, 3).tolist()
    [2, 5, 8]
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: step must not be 0")
    symbolic = isinstance(start, Size) or isinstance(stop, Size)
    floats = any(isinstance(x, float) for x in (start, stop, step))
    target = as_dtype(dtype) if dtype is not None else float32 if floats else int64
    where = chosen(device)
    if symbolic:
        if floats or step != 1:
            raise ValueError("arange: with a symbolic size, step must be 1 and all integers")
        size: Dim = stop - start  # type: ignore[operator, assignment]
        value = cast(primitive.iota(0 if size <= 0 else size, where), int64)
        if start != 0:
            first = primitive.extent(start, int64, where)  # type: ignore[arg-type]
            value = elementwise(ops.ADD, value, first)
        return wrap(cast(value, target))
    count = max(0, math.ceil((stop - start) / step))  # type: ignore[operator]
    # Counted in float64 so that every element is rounded once.
    wide = float64 if floats else int64
    value = cast(primitive.iota(count, where), wide)
    if step != 1:
        value = elementwise(ops.MUL, value, primitive.scalar(step, wide, where))
    if start != 0:
        value = elementwise(ops.ADD, value, primitive.scalar(start, wide, where))  # type: ignore[arg-type]
    return wrap(cast(value, target))


def linspace(
    start: Scalar, stop: Scalar, count: Dim, dtype: Any = float32, device: str | None = None
) -> NDArray:
    """`count` numbers at equal distances, both ends included."""
    if count < 0:
        raise ValueError(f"linspace: count must not be negative, got {count}")
    where = chosen(device)
    at = Term(cast(primitive.iota(count, where), float64))
    first, last = at.argument(float(start)), at.argument(float(stop))
    distance = at.argument(0.0)
    if isinstance(count, Size) and count > 1:
        gaps = Term(primitive.extent(count - 1, float64, where))
        distance = at.argument(float(stop - start)) / gaps
    elif isinstance(count, int) and count > 1:
        distance = at.argument((stop - start) / (count - 1))
    # The upper half counts down from the end, so that the end is exact.
    left = Term(primitive.extent(count - 1, float64, where)) - at
    # A single one counts as lower.
    lower = at < Term(primitive.extent((count + 1) // 2, float64, where))
    either = lower.where(at * distance + first, last - left * distance)
    return wrap(cast(either.value, as_dtype(dtype)))


def eye(
    rows: Dim, columns: Dim | None = None, dtype: Any = float32, device: str | None = None
) -> NDArray:
    """Ones on the diagonal, zeros elsewhere."""
    where = chosen(device)
    shape = (rows, rows if columns is None else columns)
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise ValueError(f"eye: sizes must not be negative, got {shape}")
    row = primitive.along(primitive.iota(shape[0], where), 0, shape)
    column = primitive.along(primitive.iota(shape[1], where), 1, shape)
    return wrap(cast(elementwise(ops.EQ, row, column), as_dtype(dtype)))


def _triangle(x: NDArray, diagonal: int = 0, *, name: str = "tril") -> NDArray:
    if x.ndim < 2:
        raise ValueError(f"{name}: needs a matrix, got shape {x.shape}")
    row = primitive.along(primitive.iota(x.shape[-2], x.device), x.ndim - 2, x.shape)
    column = primitive.along(primitive.iota(x.shape[-1], x.device), x.ndim - 1, x.shape)
    edge = elementwise(ops.ADD, row, constant(diagonal, int64, x.device))
    inside = elementwise(ops.LE, *((column, edge) if name == "tril" else (edge, column)))
    return wrap(primitive.where(inside, x.value, constant(0, x.dtype, x.device)))


tril = variant(_triangle, "tril", "The lower triangle of matrices, zeros above it.")
triu = variant(_triangle, "triu", "The upper triangle of matrices, zeros below it.")

__all__ = [
    "arange", "array", "asarray", "eye", "full", "full_like", "linspace", "ones", "ones_like",
    "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip
