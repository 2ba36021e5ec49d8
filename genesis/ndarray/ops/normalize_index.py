"""Positions: what an index means, whatever it was given as.

Lists and NumPy arrays are checked at the call, and so are arrays that lie in memory. What is in
range by construction (`genesis.ndarray.core.integer_ranges`) needs no check; any other index is
checked when it is needed (`genesis.ndarray.core.index_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import int64
from genesis.ir.node import topological
from genesis.ir.size import Dim, Size, bounds, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.index_checks import from_start, require
from genesis.ndarray.core.integer_ranges import Range, range_of
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.core.realisation import backend_of, realize_values
from genesis.ndarray.core.value import NO_AXIS, Checked, Value, lock, thread

#: Up to this many indices NumPy is quicker than starting a program.
SHORT = 1 << 15

#: Least and greatest numbers for which it is known whether a check passes.
MOST = 1 << 8

_ranges: WeakKeyDictionary[Value, Range] = WeakKeyDictionary()


def positions(name: str, index: Any, extent: Dim, axis: int, device: str) -> Value:
    """An index into an axis as int64 positions, counted from its start, checked or to be checked.

    `index` is an integer, an array, a NumPy array or nested lists of integers.
    """
    if not isinstance(index, NDArray):
        return _given(name, index, extent, axis, device)
    if not index.dtype.is_integer:
        raise TypeError(f"{name}: positions must be integers, not {index.dtype}")
    value = index.value
    known = None if value.memory is not None else range_of(value)
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
    if not index.dtype.is_integer or index.size == 0:
        return index
    if check_now(name, value, extent, from_start(axis)):
        return index
    known = range_of(value)
    if known is not None and known[0] >= 0:
        return index
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
        require(name, max(_code(int(found.min())), _code(int(found.max()))), extent, axis)
    wrapped = np.where(found < 0, found + extent, found)
    return asarray(wrapped, device=device).value


def _checked(name: str, value: Value, extent: Dim, axis: int) -> Value:
    """`value`, checked now if it lies in memory, or else when it is needed."""
    return value if check_now(name, value, extent, axis) else Checked(value, name, extent, axis)


def check_now(name: str, value: Value, extent: Dim, axis: int) -> bool:
    """Make a check, as `Checked` has it, of an index that lies in memory; whether it does."""
    if thread.recorder is not None or isinstance(extent, Size):
        return False
    found = None
    for found in ranges_in_memory(value):
        if inside(found, extent, axis):
            return True
    if found is None:
        return False
    least, greatest = found
    whole = extent if axis <= from_start(0) and least < 0 else 0
    require(name, max(_code(least - whole), _code(greatest)), extent, axis)
    return True


def ranges_in_memory(value: Value) -> Iterator[Range]:
    """The least and the greatest of integers that lie in memory: bounds, and then exactly.

    All rows of a table of indices, as they come one by one, are in range if the table is.
    """
    base = _base(value)
    if base is not None:
        if base is not value and _is_steady(base) and product(base.shape) <= SHORT:
            yield _range_in_memory(base)
        yield _range_in_memory(value)


def inside(found: Range, extent: int, axis: int) -> bool:
    """Whether a check, as `Checked` has it, passes."""
    return found[1] < extent and found[0] >= (0 if axis <= from_start(0) else -extent)


class KnownChecks:
    """The checks in a graph that is built again and again (`genesis.ndarray.core.subgraph_copies`).

    Where what an index is made of lies in memory, its least and its greatest say which integers the
    index can be; mostly that is enough.
    """

    def __init__(self, places: Mapping[Value, int], inputs: Sequence[Value]) -> None:
        """Of values with their places in a graph, in which inputs come first."""
        self._inputs = list(inputs)
        self._checks: list[tuple[Checked, list[int]]] = []
        for check in [v for v in places if type(v) is Checked]:
            below = topological([check], lambda v: () if places[v] < len(inputs) else v.inputs)  # type: ignore[arg-type,return-value]
            self._checks.append((check, [k for k, v in enumerate(inputs) if v in below]))
        self._passed: dict[Any, bool] = {}  # by check and the least and greatest of inputs
        #: Whether all are of positions in an axis, and made of integers.
        self.decidable = all(
            check.axis != NO_AXIS
            and type(check.extent) is int
            and all(inputs[k].dtype.is_integer for k in below)
            for check, below in self._checks
        )

    def pass_for(self, inputs: Sequence[Value]) -> bool:
        """Whether all checks are known to pass for other inputs."""
        return all(self._passes(number, inputs) for number in range(len(self._checks)))

    def _passes(self, number: int, inputs: Sequence[Value]) -> bool:
        check, below = self._checks[number]
        for ranges in zip(*[ranges_in_memory(inputs[k]) for k in below], strict=False):
            passed = self._passed.get((number, ranges))
            if passed is None:
                known = dict(zip([self._inputs[k] for k in below], ranges, strict=True))
                found = range_of(check.inputs[0], known)
                passed = found is not None and inside(found, check.extent, check.axis)  # type: ignore[arg-type]
                if len(self._passed) >= MOST:
                    self._passed.clear()
                self._passed[number, ranges] = passed
            if passed:
                return True
        return False


def _base(value: Value) -> Value | None:
    """What lies in memory, if a value does or is a view of that."""
    while value.memory is None and value.op.is_movement and value.op is not ops.PAD:
        value = value.inputs[0]
    return None if value.memory is None else value


def is_readable(value: Value) -> bool:
    """Whether a value lies in memory, or is a view of one that does, and nobody records."""
    return thread.recorder is None and _base(value) is not None


def _range_in_memory(value: Value) -> Range:
    """The least and the greatest of integers that lie in memory."""
    found = _ranges.get(value)
    if found is not None:
        return found
    if product(value.shape) <= SHORT:
        contents = _contents(value)
        found = int(contents.min()), int(contents.max())
    else:
        wide, axes = cast(value, int64), tuple(range(len(value.shape)))
        ends = [primitive.reduce(op, wide, axes) for op in (ops.AMIN, ops.AMAX)]
        realize_values(ends)
        found = int(_contents(ends[0])), int(_contents(ends[1]))
    if _is_steady(value):
        _ranges[value] = found
    return found


def _is_steady(value: Value) -> bool:
    """Whether it lies in memory, and nobody else can write there."""
    return value.memory is not None and not value.attr and value.memory.owner is None


def _contents(value: Value) -> np.ndarray[Any, Any]:
    with lock:
        realize_values([value])
        value.require_whole("looking at indices")
        assert value.memory is not None
        download = backend_of(value.device).download
        window = download(value.memory, value.dtype, value.shape, value.strides, value.offset)  # type: ignore[arg-type]
        return window.astype(np.int64)


def _code(index: int) -> int:
    """The zigzag code of an index, as `code` computes it."""
    return ~(index << 1) if index < 0 else index << 1


__all__ = ["KnownChecks", "check_now", "counted", "is_readable", "positions"]
