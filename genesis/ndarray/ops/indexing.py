"""Indexing: what ``x[...]`` means, read and written.

Integers, slices, None and Ellipsis give a view: one SLICE, then one RESHAPE that drops the axes of
integers and adds those of None. With arrays of integers or masks among the indices the rest is
applied first, and one gather picks the elements; the rule where their axes go is NumPy's. A write
of a slice is an update whose place is part of the program. Where there is an integer the place is
an argument, so that ``x[t] = row`` is one program for every t, and arrays make it a scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any, NamedTuple

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import bool_, int64
from genesis.ir.size import Dim, Size, as_size
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.storage import ViewStep
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops import elementwise
from genesis.ndarray.ops.normalize_index import positions
from genesis.ndarray.ops.scalar_overflow import fitting

#: Where a block starts along an axis; None: it takes all of it.
Start = Dim | Value | None


class Item(NamedTuple):
    """One index with the axis it applies to; None adds an axis and has none of its own."""

    key: Any  # int | Size | slice | None | an array of integers
    axis: int


def getitem(x: NDArray, key: Any) -> NDArray:
    """``x[key]``"""
    steps = _plain(x.shape, key)
    if steps is not None:
        return x.seen_through(*steps)
    if type(key) is NDArray and key.dtype.is_integer and x.shape:
        where = positions("indexing", key, x.shape[0], 0, x.device)
        return wrap(primitive.gather(x.value, where, 0))
    x, key = _unfolded(x, key)
    items = parse(x.shape, key)
    moving = [i for i in items if _starts_at_data(i.key)]
    if moving:
        for run, axis in moving:
            x = wrap(primitive.gather(x.value, _run(x, run, axis), axis))
        items = [Item(slice(None), i.axis) if _starts_at_data(i.key) else i for i in items]
    view = x.seen_through(*_steps(x.shape, items))
    if not any(_is_array(i.key) for i in items):
        return view
    picked = _Picked.of(x, items)
    rest = [i for i in items if not isinstance(i.key, int | Size)]
    axes = [k for k, i in enumerate(rest) if _is_array(i.key)]
    found = primitive.gather_at(view.value, picked.positions, axes)
    return wrap(_moved(found, axes[0], picked.place, len(picked.shape)))


def setitem(x: NDArray, key: Any, value: Any) -> None:
    """``x[key] = value``"""
    if _writes_itself(x, key, value):
        return
    value = fitting("assignment", value, x.dtype) if x.dtype.is_integer else value
    x, key = _unfolded(x, key)
    mask = _only_mask(x, key)
    if mask is not None:
        from genesis.ndarray.ops.masks import write

        write(x, mask, value)
        return
    items = parse(x.shape, key)
    if any(_is_array(i.key) for i in items):
        _scatter(x, items, value)
    elif not (_is_placed(items) and _place(x, items, value)):
        x.seen_through(*_steps(x.shape, items)).assign(value)


def _writes_itself(x: NDArray, key: Any, value: Any) -> bool:
    """Whether the value is the view that is written: ``x[0] += 1`` ends with ``x[0] = x[0]``."""
    if not isinstance(value, NDArray) or value.storage is not x.storage:
        return False
    steps = _plain(x.shape, key)
    return steps is not None and value.steps == (*x.steps, *steps)


def _unfolded(x: NDArray, key: Any) -> tuple[NDArray, Any]:
    """The same index without masks that have no dimensions: each gets a new one, of extent 1."""
    keys = key if isinstance(key, tuple) else (key,)
    if not any(map(_is_flag, keys)):
        return x, key
    named = sum(_axes_of(k) for k in map(_as_key, keys) if not _is_flag(k))
    shape, found, axis = list(x.shape), [], 0
    for k in keys:
        if _is_flag(k):
            shape.insert(axis, 1)
            k = k.reshape(1) if isinstance(k, NDArray) else np.array([bool(k)])
            axis += 1
        else:
            axis += len(x.shape) - named if k is Ellipsis else _axes_of(_as_key(k))
        found.append(k)
    return x.seen_through(ViewStep(ops.RESHAPE, None, tuple(shape))), tuple(found)


def _is_flag(k: Any) -> bool:
    """Whether an index is a mask without dimensions."""
    return isinstance(k, bool | np.bool_) or (_is_mask(k) and not k.shape)


# ---- views


def _plain(shape: Shape, key: Any) -> list[ViewStep] | None:
    """The view of an index of plain integers and slices, which most are; None: it is another."""
    keys = key if type(key) is tuple else (key,)
    if len(keys) > len(shape):
        return None
    slices: list[tuple[Dim, int]] = []
    sliced: list[Dim] = []
    final: list[Dim] = []
    for k, extent in zip(keys, shape):  # noqa: B905 (the other axes are taken whole)
        if type(extent) is not int:
            return None
        if type(k) is int and -extent <= k < extent:
            slices.append((k % extent, 1))
            sliced.append(1)
        elif type(k) is slice and type(k.start) in _EDGES and type(k.stop) in _EDGES:
            start, length, step = _slice(k, extent)
            slices.append((start, step))
            sliced.append(length)
            final.append(length)
        else:
            return None
    rest = shape[len(keys) :]
    return _seen(shape, (*slices, *[(0, 1)] * len(rest)), (*sliced, *rest), (*final, *rest))


_EDGES = (int, type(None))


def _seen(shape: Shape, slices: Any, sliced: Shape, final: Shape) -> list[ViewStep]:
    steps = []
    if sliced != shape or any(step != (0, 1) for step in slices):
        steps.append(ViewStep(ops.SLICE, slices, sliced))
    if final != sliced:
        steps.append(ViewStep(ops.RESHAPE, None, final))
    return steps


def parse(shape: Shape, key: Any) -> list[Item]:
    """The indices in order, with Ellipsis and masks written out: every axis has exactly one."""
    keys = [_as_key(k) for k in (key if isinstance(key, tuple) else (key,))]
    named = sum(_axes_of(k) for k in keys)
    if named > len(shape):
        raise IndexError(f"{named} indices for an array of shape {shape}")
    dots = [d for d, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single Ellipsis ('...')")
    at = dots[0] if dots else len(keys)
    keys[at : at + 1] = [slice(None)] * (len(shape) - named)
    items: list[Item] = []
    axis = 0
    for k in keys:
        for part in _without_masks(k, shape[axis : axis + _axes_of(k)]):
            items.append(Item(_normal(part, shape, axis), axis))
            axis += part is not None
    return items


def _as_key(k: Any) -> Any:
    if isinstance(k, list):
        k = np.asarray(k)
        k = k.astype(np.int64) if k.size == 0 else k
    if isinstance(k, np.ndarray) and k.dtype.kind not in "biu":
        raise IndexError(f"indices must be integers, not {k.dtype}")
    if isinstance(k, NDArray) and not (k.dtype.is_integer or _is_mask(k)):
        raise IndexError(f"indices must be integers, not {k.dtype}")
    return k


def _axes_of(k: Any) -> int:
    """How many axes an index takes."""
    if k is None or k is Ellipsis:
        return 0
    return len(k.shape) if _is_mask(k) else 1


def _is_mask(k: Any) -> bool:
    if isinstance(k, np.ndarray):
        return bool(k.dtype.kind == "b")
    return isinstance(k, NDArray) and k.dtype is bool_


def _is_array(k: Any) -> bool:
    return isinstance(k, NDArray | np.ndarray)


def _starts_at_data(k: Any) -> bool:
    return isinstance(k, slice) and (isinstance(k.start, NDArray) or isinstance(k.stop, NDArray))


def _without_masks(k: Any, shape: Shape) -> Sequence[Any]:
    """A mask as the positions where it holds, one array for each of its axes."""
    if not _is_mask(k):
        return (k,)
    if tuple(k.shape) != shape:
        raise IndexError(f"a mask of shape {tuple(k.shape)} does not fit axes of shape {shape}")
    if isinstance(k, np.ndarray):
        return np.nonzero(k)
    from genesis.ndarray.ops.masks import nonzero

    found: tuple[NDArray, ...] = nonzero(k, as_tuple=True)
    return found


def _normal(k: Any, shape: Shape, axis: int) -> Any:
    """An index checked, and counted from the start of its axis."""
    if k is None or _is_array(k) or isinstance(k, Size):
        return k
    if isinstance(k, slice):
        return k
    try:
        number = as_int(k)
    except TypeError:
        raise IndexError(
            f"indices are integers, slices, None, ... or arrays, not {type(k).__name__}"
        ) from None
    extent = shape[axis]
    if not (-extent <= number and number < extent):
        raise IndexError(f"index {number} is out of range for axis {axis} of size {extent}")
    return number if number >= 0 else extent + number


def _steps(shape: Shape, items: Sequence[Item]) -> list[ViewStep]:
    """The view that integers, slices and None describe; axes with arrays are left whole."""
    slices: list[tuple[Dim, int]] = []
    sliced: list[Dim] = []
    final: list[Dim] = []
    for key, axis in items:
        if key is None:
            final.append(1)
            continue
        start: Dim = 0
        length, step = shape[axis], 1
        if isinstance(key, slice):
            start, length, step = _slice(key, shape[axis])
        elif not _is_array(key):
            start, length = key, 1
        slices.append((start, step))
        sliced.append(length)
        if not isinstance(key, int | Size):
            final.append(length)
    return _seen(shape, tuple(slices), tuple(sliced), tuple(final))


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
        run = range(*item.indices(extent))
        return (run.start, len(run), step) if run else (0, 0, 1)
    if step < 0:
        raise ValueError(f"a negative step needs an axis of known size, not {extent}")
    start_, stop_ = _edge(item.start, extent, 0), _edge(item.stop, extent, extent)
    if stop_ <= start_:
        return 0, 0, 1
    return start_, (stop_ - start_ + step - 1) // step, step


def _edge(bound: Any, extent: Dim, default: Dim) -> Dim:
    """A bound of a slice of a symbolic axis; what its bounds cannot decide is an error."""
    if bound is None:
        return default
    position = as_size(bound)
    if position < 0:
        position = position + extent
    if position < 0:
        return 0
    return position if position <= extent else extent


# ---- arrays among the indices


class _Picked(NamedTuple):
    """What the arrays among indices pick: positions of one shape, and where its axes go."""

    positions: list[Value]
    shape: Shape
    place: int  # of the axes in the result

    @staticmethod
    def of(x: NDArray, items: Sequence[Item], integers: bool = False) -> _Picked:
        """The positions of arrays, and of the integers if they are wanted as well."""
        found: list[Value] = []
        for key, axis in items:
            if _is_array(key):
                found.append(positions("indexing", key, x.shape[axis], axis, x.device))
            elif integers and isinstance(key, int | Size):
                found.append(_place_of(key, x.device))
        shape = elementwise.broadcast_shapes("indexing", *(v.shape for v in found))
        # NumPy's rule: next to each other they stay where they are, else they come first.
        advanced = [k for k, i in enumerate(items) if _is_array(i.key) or _is_integer(i.key)]
        together = advanced[-1] - advanced[0] == len(advanced) - 1
        place = advanced[0] if together else 0
        return _Picked([primitive.broadcast(v, shape) for v in found], shape, place)


def _is_integer(key: Any) -> bool:
    return isinstance(key, int | Size)


def _place_of(key: Dim, device: str) -> Value:
    """An integer as an argument of the program: another one does not compile again."""
    if isinstance(key, Size):
        return primitive.extent(key, int64, device)
    return Value(ops.SCALAR, (), key, int64, (), device)


def _moved(x: Value, source: int, target: int, count: int) -> Value:
    """`count` neighbouring axes at another place among the others."""
    if source == target or not count:
        return x
    block = list(range(source, source + count))
    rest = [d for d in range(len(x.shape)) if d not in block]
    return primitive.permute(x, [*rest[:target], *block, *rest[target:]])


def _scatter(x: NDArray, items: list[Item], value: Any) -> None:
    """Write at positions; of equal ones the last write stays."""
    for key, _ in items:
        if _starts_at_data(key):
            raise IndexError("a slice that starts at an array cannot be written next to arrays")
    whole = [Item(slice(None), i.axis) if _is_integer(i.key) else i for i in items]
    whole = [i for i in whole if i.key is not None]
    view = x.seen_through(*_steps(x.shape, whole))
    picked = _Picked.of(x, items, integers=True)
    rest = [i for i in items if not (_is_array(i.key) or _is_integer(i.key))]
    lengths = [1 if i.key is None else view.shape[i.axis] for i in rest]
    new = fitted(value, (*lengths[: picked.place], *picked.shape, *lengths[picked.place :]), x)
    axes = [i.axis for i in items if _is_array(i.key) or _is_integer(i.key)]
    before = sum(i.key is not None for i in rest[: picked.place])
    kept = [length for length, i in zip(lengths, rest, strict=True) if i.key is not None]
    new = primitive.reshape(new, (*kept[:before], *picked.shape, *kept[before:]))
    new = _moved(new, before, axes[0], len(picked.shape))
    if 0 in new.shape:
        return
    view._write(primitive.scatter(view.value, picked.positions, new, axes, "set"))


def fitted(value: Any, shape: Shape, x: NDArray) -> Value:
    """What is assigned, in the type of `x` and broadcast to `shape`."""
    if isinstance(value, list):
        value = np.asarray(value)
    (new,) = elementwise.values("assignment", (fitting("assignment", value, x.dtype),), x.dtype)
    missing = len(new.shape) - len(shape)
    if missing > 0 and all(s == 1 for s in new.shape[:missing]):
        new = primitive.reshape(new, new.shape[missing:])
    if elementwise.broadcast_shapes("assignment", shape, new.shape) != shape:
        raise ValueError(f"assignment: shape {new.shape} does not fit into {shape}")
    return primitive.broadcast(new, shape)


def _only_mask(x: NDArray, key: Any) -> Any:
    """The mask, if it is all there is of an index."""
    if isinstance(key, tuple):
        keys = [k for k in key if k is not Ellipsis]
        key = keys[0] if len(keys) == 1 and key[0] is not Ellipsis else None
    key = _as_key(key) if isinstance(key, list | np.ndarray | NDArray) else None
    if not _is_mask(key):
        return None
    if tuple(key.shape) != x.shape[: len(key.shape)]:
        raise IndexError(f"a mask of shape {tuple(key.shape)} does not fit the shape {x.shape}")
    return key


# ---- places that are arguments


def _is_placed(items: Sequence[Item]) -> bool:
    """Whether a write without arrays goes to a place that is known when the program runs."""
    if any(_starts_at_data(i.key) for i in items):
        return True
    plain = all(not isinstance(i.key, slice) or i.key.step in (None, 1) for i in items)
    return plain and any(isinstance(i.key, int) for i in items)


def _run(x: NDArray, key: slice, axis: int) -> Value:
    """The positions of a slice that starts at an array of shape ()."""
    start, length = _start(x, key, axis)
    return primitive.elementwise(ops.ADD, start, primitive.iota(length, x.device))


def _start(x: NDArray, key: slice, axis: int) -> tuple[Value, int]:
    """Where a slice that starts at an array starts, moved so that it fits, and its length."""
    length = _length(key)
    if length is None or key.step not in (None, 1):
        raise IndexError(
            "a slice that starts at an array needs a length known at the call: write it as "
            "x[t : t + 4], or use dynamic_slice and dynamic_update"
        )
    extent = x.shape[axis]
    start = positions("indexing", key.start, extent, axis, x.device)
    if length > extent:
        raise IndexError(f"a slice of length {length} does not fit axis {axis} of size {extent}")
    last = primitive.extent(extent - length, int64, x.device)
    return primitive.elementwise(ops.MIN, start, last), length


def _length(key: slice) -> int | None:
    """The n of ``t : t + n``."""
    if not isinstance(key.start, NDArray) or not isinstance(key.stop, NDArray):
        return None
    start, stop = key.start.value, key.stop.value
    if stop.op is not ops.ADD or stop.inputs[0] is not start:
        return None
    count = stop.inputs[1]
    known = count.op in (ops.CONST, ops.SCALAR) and not count.shape
    return int(count.attr) if known and count.attr >= 0 else None


def _place(x: NDArray, items: Sequence[Item], value: Any) -> bool:
    """Write one block whose place is an argument of the program; False if that cannot be done."""
    starts: list[Start] = []
    block: list[Dim] = []
    seen: list[Dim] = []
    for key, axis in items:
        if key is None:
            seen.append(1)
            continue
        start: Start
        length: Dim
        if isinstance(key, slice) and _starts_at_data(key):
            start, length = _start(x, key, axis)
        elif isinstance(key, slice):
            low, length, _ = _slice(key, x.shape[axis])
            whole = length == x.shape[axis]
            start = None if whole else low
        else:
            start, length = key, 1
        starts.append(start)
        block.append(length)
        if isinstance(key, slice):
            seen.append(length)
    new = fitted(value, tuple(seen), x)
    if 0 in block:
        return True
    lifted = _lifted(x, starts, block)
    if lifted is not None:
        starts, block = lifted
        storage = x.storage
        new = primitive.reshape(new, tuple(block))
        storage.write(placed(storage.value, new, starts))
    elif any(_starts_at_data(i.key) for i in items):
        x._write(placed(x.value, primitive.reshape(new, tuple(block)), starts))
    else:
        return False
    return True


def _lifted(
    x: NDArray, starts: list[Start], block: list[Dim]
) -> tuple[list[Start], list[Dim]] | None:
    """A block of a view as a block of its storage: only that is done in place."""
    shapes = [x.storage.value.shape, *(step.shape for step in x.steps)]
    for step, shape in zip(reversed(x.steps), reversed(shapes[:-1]), strict=True):
        if step.op is ops.SLICE and all(stride == 1 for _, stride in step.attr):
            starts = [
                None if length == extent else _shifted(start, low)
                for start, (low, _), length, extent in zip(
                    starts, step.attr, block, shape, strict=True
                )
            ]
        elif step.op is ops.RESHAPE and [e for e in shape if e != 1] == [
            e for e in step.shape if e != 1
        ]:
            long = [k for k, e in enumerate(step.shape) if e != 1]
            kept = iter([(starts[k], block[k]) for k in long])
            pairs = [(None, 1) if e == 1 else next(kept) for e in shape]
            starts, block = [p[0] for p in pairs], [p[1] for p in pairs]
        else:
            return None
    return starts, block


def _shifted(start: Start, low: Dim) -> Start:
    """A start inside a slice, as one in what was sliced."""
    if isinstance(start, Value):
        return primitive.elementwise(ops.ADD, start, _place_of(low, start.device))
    return low if start is None else start + low


def placed(x: Value, block: Value, starts: Sequence[Start]) -> Value:
    """`x` with a block of the same rank at `starts`; None: it takes the whole axis."""
    axes = [d for d, start in enumerate(starts) if start is not None]
    if not axes or 0 in block.shape:
        return x if 0 in block.shape else block
    shape = tuple(block.shape[d] for d in axes)
    where: list[Value] = []
    for k, d in enumerate(axes):
        start = starts[d]
        assert start is not None
        at = start if isinstance(start, Value) else _place_of(start, x.device)
        run = primitive.broadcast(at, shape)
        if shape[k] != 1:
            count = primitive.along(primitive.iota(shape[k], x.device), k, shape)
            run = primitive.elementwise(ops.ADD, run, count)
        where.append(run)
    rest = [d for d in range(len(x.shape)) if d not in axes]
    first = axes[0]
    new = primitive.permute(block, [*rest[:first], *axes, *rest[first:]])
    return primitive.scatter(x, where, new, axes, "set")
