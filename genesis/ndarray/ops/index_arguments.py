"""Positions: what an index means, whatever it was given as.

Lists and NumPy arrays are checked at the call, and so are arrays that lie in memory. What is in
range by construction (`genesis.ndarray.core.integer_ranges`) needs no check; any other index is
checked when it is needed (`genesis.ndarray.core.index_checks`).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import int64
from genesis.ir.size import Dim, Size, bounds, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.index_checks import code, from_start, require
from genesis.ndarray.core.integer_ranges import span
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.core.realisation import backend_of, read_code, realize_values
from genesis.ndarray.core.value import Checked, Value, lock, thread

#: Up to this many indices NumPy is quicker than starting a program.
SHORT = 1 << 15

_worst: WeakKeyDictionary[Value, int] = WeakKeyDictionary()
_least: WeakKeyDictionary[Value, int] = WeakKeyDictionary()


def positions(name: str, index: Any, extent: Dim, axis: int, device: str) -> Value:
    """An index into an axis as int64 positions, counted from its start, checked or to be checked.

    `index` is an integer, an array, a NumPy array or nested lists of integers.
    """
    if not isinstance(index, NDArray):
        return _given(name, index, extent, axis, device)
    if not index.dtype.is_integer:
        raise TypeError(f"{name}: positions must be integers, not {index.dtype}")
    value = index.value
    known = None if value.memory is not None else span(value)
    least = bounds(extent)[0]
    inside = known is not None and -least <= known[0] and known[1] < least
    inside = inside or (type(value) is Checked and value.extent == extent)
    if not inside and index.size != 0:
        value = _checked(name, value, extent, axis)
    value = cast(value, int64)
    if known is not None and known[0] >= 0:
        return value
    zero = constant(0, int64, value.device)
    shifted = elementwise(ops.ADD, value, primitive.extent(extent, int64, value.device))
    return primitive.where(elementwise(ops.LT, value, zero), shifted, value)


def counted(name: str, index: NDArray, extent: Dim, axis: int) -> NDArray:
    """An index that never counts from the end: negative positions do not exist, either."""
    value = index.value
    known = None if value.memory is not None else span(value)
    if not index.dtype.is_integer or index.size == 0 or (known is not None and known[0] >= 0):
        return index
    if thread.recorder is None and not isinstance(extent, Size) and in_memory(value):
        require(name, _worst_of(value), extent, axis)
        least = _least_of(value)
        if least < 0:
            raise IndexError(
                f"{name}: index {least} is out of range for axis {axis} of size {extent}"
            )
        return index
    value = cast(value, int64)
    zero = constant(0, int64, value.device)
    below = elementwise(ops.SUB, value, primitive.extent(extent, int64, value.device))
    value = primitive.where(elementwise(ops.LT, value, zero), below, value)
    return wrap(Checked(value, name, extent, from_start(axis)))


def _given(name: str, index: Any, extent: Dim, axis: int, device: str) -> Value:
    """Positions that are known at the call."""
    from genesis.ndarray.ops.creation import asarray

    found = np.asarray(index)
    if found.size == 0:
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name}: positions must be integers, not {found.dtype}")
    found = found.astype(np.int64)
    if isinstance(extent, Size):
        array = asarray(found, device=device)
        return positions(name, array, extent, axis, device)
    if found.size:
        require(name, int(_zigzag(found).max()), extent, axis)
    wrapped = np.where(found < 0, found + extent, found)
    return asarray(wrapped, device=device).value


def _checked(name: str, value: Value, extent: Dim, axis: int) -> Value:
    """`value`, checked now if it lies in memory, or else when it is needed."""
    if thread.recorder is None and not isinstance(extent, Size) and in_memory(value):
        require(name, _worst_of(value), extent, axis)
        return value
    return Checked(value, name, extent, axis)


def in_memory(value: Value) -> bool:
    """Whether a value lies in memory, or is a view of one that does."""
    while value.memory is None and value.op.is_movement and value.op is not ops.PAD:
        value = value.inputs[0]
    return value.memory is not None


def _worst_of(value: Value) -> int:
    """The greatest zigzag code of indices that lie in memory."""
    found = _worst.get(value)
    if found is not None:
        return found
    if product(value.shape) <= SHORT:
        found = int(_zigzag(_contents(value)).max())
    else:
        worst = code(value)
        realize_values([worst])
        found = read_code(worst)
    if value.memory is not None and not value.attr:  # nobody else can write there
        _worst[value] = found
    return found


def _least_of(value: Value) -> int:
    """The least of indices that lie in memory."""
    found = _least.get(value)
    if found is not None:
        return found
    if product(value.shape) <= SHORT:
        found = int(_contents(value).min())
    else:
        wide = cast(value, int64)
        found = int(_contents(primitive.reduce(ops.AMIN, wide, tuple(range(len(wide.shape))))))
    if value.memory is not None and not value.attr:
        _least[value] = found
    return found


def _contents(value: Value) -> np.ndarray[Any, Any]:
    with lock:
        realize_values([value])
        assert value.memory is not None
        download = backend_of(value.device).download
        window = download(value.memory, value.dtype, value.shape, value.strides, value.offset)  # type: ignore[arg-type]
        return window.astype(np.int64)


def _zigzag(index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ((index << 1) ^ (index >> 63)).view(np.uint64)


__all__ = ["counted", "in_memory", "positions"]
