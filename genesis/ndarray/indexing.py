"""Indexing: what ``x[...]`` means.

Integers, slices, None and Ellipsis give a view: one SLICE, then one RESHAPE that drops the axes of
integers and adds those of None. One array of integers picks elements along its axis (a gather) and
gives a new array.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any, NamedTuple

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import index as index_dtype
from genesis.ir.size import Dim, Size
from genesis.ndarray import primitive
from genesis.ndarray.layout import Shape
from genesis.ndarray.movement import normal_axis
from genesis.ndarray.ndarray import NDArray, wrap
from genesis.ndarray.primitive import constant, elementwise
from genesis.ndarray.storage import Step
from genesis.ndarray.value import Value


class Index(NamedTuple):
    """A parsed index: how to slice, the shape to reshape to, and at most one array of positions."""

    steps: tuple[tuple[Dim, int], ...]
    sliced: Shape
    shape: Shape
    axis: int  # of `shape`, the array applies to
    positions: NDArray | None


def getitem(x: NDArray, key: Any) -> NDArray:
    """``x[key]``"""
    index = parse(x.shape, key)
    view = x.seen_through(*_steps(x.shape, index))
    return view if index.positions is None else take(view, index.positions, index.axis)


def setitem(x: NDArray, key: Any, value: Any) -> None:
    """``x[key] = value``"""
    index = parse(x.shape, key)
    if index.positions is not None:
        raise TypeError(
            "setting elements at an array of positions is not supported; "
            "use scatter_add, or where with a condition"
        )
    x.seen_through(*_steps(x.shape, index)).assign(value)


def _steps(shape: Shape, index: Index) -> list[Step]:
    steps = []
    if index.sliced != shape or any(step != (0, 1) for step in index.steps):
        steps.append(Step(ops.SLICE, index.steps, index.sliced))
    if index.shape != index.sliced:
        steps.append(Step(ops.RESHAPE, None, index.shape))
    return steps


def parse(shape: Shape, key: Any) -> Index:
    """The meaning of an index for an array of this shape."""
    items = list(key) if isinstance(key, tuple) else [key]
    named = [k for k in items if k is not None and k is not Ellipsis]
    dots = [d for d, k in enumerate(items) if k is Ellipsis]
    if len(named) > len(shape):
        raise IndexError(f"{len(named)} indices for an array of shape {shape}")
    if len(dots) > 1:
        raise IndexError("an index can only have a single Ellipsis ('...')")
    at = dots[0] if dots else len(items)
    items[at : at + 1] = [slice(None)] * (len(shape) - len(named))

    steps: list[tuple[Dim, int]] = []
    sliced: list[Dim] = []
    final: list[Dim] = []
    positions: NDArray | None = None
    axis = 0
    kinds = ""  # of the indices in order, to find integers apart from an array
    for item in items:
        if item is None:
            final.append(1)
            kinds += ":"
            continue
        d = len(sliced)
        if isinstance(item, slice):
            start, length, step = _slice(item, shape[d])
            steps.append((start, step))
            sliced.append(length)
            final.append(length)
            kinds += ":"
            continue
        array = _positions(item)
        if array is None:
            steps.append((_integer(item, shape[d], d), 1))
            sliced.append(1)
            kinds += "i"
            continue
        if positions is not None:
            raise IndexError("only one axis at a time can be indexed by an array")
        positions, axis = array, len(final)
        steps.append((0, 1))
        sliced.append(shape[d])
        final.append(shape[d])
        kinds += "a"
    if positions is not None and ":" in kinds.strip(":") and "i" in kinds:
        raise IndexError("an array and an integer as indices must be next to each other")
    return Index(tuple(steps), tuple(sliced), tuple(final), axis, positions)


def _positions(item: Any) -> NDArray | None:
    """An index that is an array of integers; None for one integer."""
    if isinstance(item, bool | np.bool_):
        raise IndexError("a bool is no index")
    if isinstance(item, list | np.ndarray):
        from genesis.ndarray.creation import asarray

        item = asarray(np.asarray(item, np.int64) if item == [] else np.asarray(item))
    if not isinstance(item, NDArray):
        return None
    if item.dtype.kind == "bool":
        raise IndexError(
            "boolean masks are not supported: the result's size depends on data; "
            "use where(mask, x, other)"
        )
    if not item.dtype.is_integer:
        raise IndexError(f"indices must be integers, not {item.dtype}")
    return item


def _integer(item: Any, extent: Dim, axis: int) -> Dim:
    if isinstance(item, Size):
        return item
    try:
        number = as_int(item)
    except TypeError:
        raise IndexError(
            f"indices are integers, slices, None, ... or an array, not {type(item).__name__}"
        ) from None
    if not (-extent <= number and number < extent):
        raise IndexError(f"index {number} is out of range for axis {axis} of size {extent}")
    return number if number >= 0 else extent + number


def _slice(item: slice, extent: Dim) -> tuple[Dim, Dim, int]:
    """The start, length and step of a slice of an axis."""
    step = 1 if item.step is None else as_int(item.step)
    if step == 0:
        raise ValueError("a slice's step must not be 0")
    if (
        isinstance(extent, int)
        and not isinstance(item.start, Size)
        and not isinstance(item.stop, Size)
    ):
        start, stop, step = item.indices(extent)
        return start, len(range(start, stop, step)), step
    if step < 0:
        raise ValueError(f"a negative step needs an axis of known size, not {extent}")
    start_, stop_ = _edge(item.start, extent, 0), _edge(item.stop, extent, extent)
    return start_, (stop_ - start_ + step - 1) // step, step


def _edge(bound: Any, extent: Dim, default: Dim) -> Dim:
    """A bound of a slice of a symbolic axis; what its bounds cannot decide is an error."""
    if bound is None:
        return default
    position: Dim = bound if isinstance(bound, Size) else as_int(bound)
    if position < 0:
        position = position + extent
    return position if position <= extent else extent


# ---- positions in arrays


def take(x: NDArray, positions: NDArray, axis: int = 0) -> NDArray:
    """The elements at integer positions along an axis; negative ones count from the end."""
    a = normal_axis("take", axis, x.ndim)
    if x.shape[a] == 0 and positions.size != 0:
        raise IndexError(f"take: axis {a} of shape {x.shape} has no elements")
    return wrap(primitive.gather(x.value, wrapped("take", positions, x.shape[a]), a))


def wrapped(name: str, positions: NDArray, extent: Dim) -> Value:
    """Integer positions as int64, negative ones counted from the end."""
    if not positions.dtype.is_integer:
        raise TypeError(f"{name}: positions must be integers, not {positions.dtype}")
    where = primitive.cast(positions.value, index_dtype)
    zero = constant(0, index_dtype, where.device)
    size = primitive.extent(extent, index_dtype, where.device)
    negative = elementwise(ops.LT, where, zero)
    return primitive.where(negative, elementwise(ops.ADD, where, size), where)


def take_along_axis(x: NDArray, positions: NDArray, axis: int) -> NDArray:
    """``x[.., positions[.., i, ..], ..]``: a position of its own for every element."""
    a = normal_axis("take_along_axis", axis, x.ndim)
    if positions.ndim != x.ndim or any(
        s != t for d, (s, t) in enumerate(zip(positions.shape, x.shape, strict=False)) if d != a
    ):
        raise ValueError(
            f"take_along_axis: positions {positions.shape} may differ from {x.shape} only at "
            f"axis {a}"
        )
    flat = _flat_positions("take_along_axis", positions, x.shape, a)
    everything = primitive.reshape(x.value, (x.size,))
    return wrap(primitive.gather(everything, flat, 0))


def _flat_positions(name: str, positions: NDArray, shape: Sequence[Dim], axis: int) -> Value:
    """Row-major positions in an array of `shape` from positions along one axis of it."""
    where = wrapped(name, positions, shape[axis])
    device = where.device
    flat: Value | None = None
    for d, size in enumerate(shape):
        if d == axis:
            at = where
        else:
            at = primitive.along(primitive.iota(positions.shape[d], device), d, positions.shape)
        if flat is None:
            flat = at
        else:
            scaled = elementwise(ops.MUL, flat, primitive.extent(size, index_dtype, device))
            flat = elementwise(ops.ADD, scaled, at)
    assert flat is not None
    return flat


def scatter_add(x: NDArray, positions: NDArray, updates: NDArray, axis: int = 0) -> NDArray:
    """`x` with `updates` added at integer positions along an axis; equal positions add up."""
    a = normal_axis("scatter_add", axis, x.ndim)
    expected = x.shape[:a] + positions.shape + x.shape[a + 1 :]
    if updates.shape != expected:
        raise ValueError(
            f"scatter_add: positions {positions.shape} on axis {a} of {x.shape} need updates of "
            f"shape {expected}, not {updates.shape}"
        )
    where = wrapped("scatter_add", positions, x.shape[a])
    added = primitive.cast(updates.value, x.dtype)
    return wrap(primitive.scatter_add(x.value, where, added, a))
