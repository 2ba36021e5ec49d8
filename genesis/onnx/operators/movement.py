"""Operators that move elements: shapes, joining, slicing, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir.dtype import as_dtype
from genesis.onnx.registry import Host, Operand, operator
from genesis.onnx.values import as_tensor, ints, sizes
from genesis.tensor.tensor import Tensor


@operator("Shape")
def shape(x: Any, *, start: int = 0, end: int | None = None) -> Any:
    """The sizes of a tensor."""
    return sizes(tuple(x.shape)[start:end])


@operator("Size")
def size(x: Any) -> Any:
    """How many elements a tensor has."""
    count: Any = 1
    for n in x.shape:
        count = count * n
    return sizes((count,)).reshape(())


def target_shape(current: Sequence[Any], wanted: Any, allowzero: int = 0) -> tuple[Any, ...]:
    """What a reshape asks for: 0 stands for the size that is there."""
    extents = ints(wanted) or []
    return tuple(
        current[k] if isinstance(n, int) and n == 0 and not allowzero else n
        for k, n in enumerate(extents)
    )


@operator("Reshape")
def reshape(x: Any, shape: Host, *, allowzero: int = 0, consumed_inputs: Any = None) -> Any:
    """The elements in another shape."""
    return fn.reshape(x, target_shape(x.shape, shape, allowzero))


@operator("Flatten")
def flatten(x: Any, *, axis: int = 1) -> Any:
    """A matrix: the axes before `axis`, and the others."""
    rows: Any = 1
    columns: Any = 1
    axis = axis + x.ndim if axis < 0 else axis
    for k, n in enumerate(x.shape):
        rows, columns = (rows * n, columns) if k < axis else (rows, columns * n)
    return fn.reshape(x, (rows, columns))


@operator("Transpose")
def transpose(x: Any, *, perm: Sequence[int] | None = None) -> Any:
    """The axes in another order; reversed, if none is given."""
    return fn.permute(x, tuple(perm if perm is not None else range(x.ndim)[::-1]))


@operator("Squeeze")
def squeeze(x: Any, axes: Host = None) -> Any:
    """Without axes of one element."""
    chosen = [a for a, n in enumerate(x.shape) if n == 1] if axes is None else ints(axes) or []
    for a in chosen:
        if x.shape[a] != 1:
            raise ValueError(f"axis {a} of shape {tuple(x.shape)} has more than one element")
    gone = {a % x.ndim for a in chosen}
    return fn.reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in gone))


@operator("Unsqueeze")
def unsqueeze(x: Any, axes: Host) -> Any:
    """With axes of one element."""
    chosen = ints(axes) or []
    for a in sorted(a % (x.ndim + len(chosen)) for a in chosen):
        x = fn.unsqueeze(x, a)
    return x


@operator("Expand")
def expand(x: Any, shape: Host) -> Any:
    """Repeated along axes of one element."""
    wanted = ints(shape) or []
    current = [1] * (len(wanted) - x.ndim) + list(x.shape)
    wanted = [1] * (len(current) - len(wanted)) + wanted
    return fn.expand(
        x,
        tuple(
            n if isinstance(m, int) and m == 1 else m for n, m in zip(current, wanted, strict=True)
        ),
    )


@operator("Tile", since=6)
def tile(x: Any, repeats: Host) -> Any:
    """Repeated along every axis."""
    return fn.tile(x, tuple(ints(repeats) or ()))


@operator("Tile")
def tile_axis(x: Any, tiles: Host, axis: Host) -> Any:
    """Repeated along one axis."""
    repeats = [1] * x.ndim
    repeats[int(axis)] = int(tiles)
    return fn.tile(x, tuple(repeats))


@operator("Concat")
def concat(*values: Any, axis: int = 1) -> Any:
    """Tensors one after the other along an axis."""
    return fn.cat(list(values), axis)


def split_sizes(extent: Any, given: Sequence[Any] | None, parts: int) -> list[Any]:
    """The sizes of the parts of an axis: as given, or equal but for the last."""
    if given is not None:
        return list(given)
    if parts < 1:
        raise ValueError("Split into no parts")
    each = -(-extent // parts)
    return [each] * (parts - 1) + [extent - each * (parts - 1)]


@operator("Split")
def split(
    x: Any, split: Host = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int = 1
) -> Any:
    """Parts along an axis."""
    return tuple(fn.split(x, split_sizes(x.shape[axis], ints(split), num_outputs or outputs), axis))


def slices(
    shape: Sequence[Any], starts: Any, ends: Any, axes: Any, steps: Any
) -> tuple[slice, ...]:
    """What Slice takes of each axis, as Python says it."""
    begin, end = ints(starts) or [], ints(ends) or []
    chosen = ints(axes) if axes is not None else list(range(len(begin)))
    step = ints(steps) if steps is not None else [1] * len(begin)
    found = [slice(None)] * len(shape)
    for b, e, a, s in zip(begin, end, chosen or (), step or (), strict=True):
        found[a] = _bounded(b, e, s, shape[a])
    return tuple(found)


def _bounded(begin: Any, end: Any, step: int, extent: Any) -> slice:
    """A slice in which Python reads no number differently than ONNX does."""
    if step > 0:
        last = None if isinstance(end, int) and end >= 1 << 31 else end
        return slice(begin, last, step)
    if not isinstance(extent, int):
        extent = int(extent)
    begin = min(begin + extent if begin < 0 else begin, extent - 1)
    end = max(end + extent if end < 0 else end, -1)
    return slice(begin, None if end < 0 else end, step)


@operator("Slice")
def slice_(x: Any, starts: Host, ends: Host, axes: Host = None, steps: Host = None) -> Any:
    """A part of some axes."""
    for axis, part in enumerate(slices(x.shape, starts, ends, axes, steps)):
        if part == slice(None):
            continue
        if part.step is not None and part.step < 0:
            places = range(*part.indices(int(x.shape[axis])))
            if not places:
                x = fn.narrow(x, axis, 0, 0)
            else:
                low, high = places[-1], places[0] + 1
                kept = slice(low, high, -part.step)
                x = fn.flip(x[(slice(None),) * axis + (kept,)], (axis,))
        else:
            x = x[(slice(None),) * axis + (part,)]
    return x


@operator("Pad")
def pad(
    x: Any, pads: Host = None, value: Operand = None, axes: Host = None, *,
    mode: str = "constant", paddings: Any = None,
) -> Any:  # fmt: skip
    """More elements at both ends of axes."""
    given = ints(pads if pads is not None else paddings) or []
    chosen = [a % x.ndim for a in (ints(axes) if axes is not None else range(x.ndim)) or ()]
    half = len(given) // 2
    if half != len(chosen):
        raise ValueError(f"{len(given)} pads for {len(chosen)} axes")
    ends = {a: (given[k], given[k + half]) for k, a in enumerate(chosen)}
    if mode == "constant":
        return _constant_pad(x, ends, 0 if value is None else value)
    for axis, (before, after) in ends.items():
        x = _mirrored(x, axis, before, after, mode)
    return x


def _constant_pad(x: Any, ends: dict[int, tuple[Any, Any]], value: Any) -> Any:
    number = value.item() if not isinstance(value, int | float) else value
    flat = [n for axis in reversed(range(x.ndim)) for n in ends.get(axis, (0, 0))]
    return fn.pad(x, flat, value=number)


def _mirrored(x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    """An axis continued by its own elements, in any number."""
    n = int(x.shape[axis])
    if mode == "reflect" and 0 <= before < n and 0 <= after < n:
        first, last = fn.narrow(x, axis, 1, before), fn.narrow(x, axis, n - 1 - after, after)
        return fn.cat([fn.flip(first, (axis,)), x, fn.flip(last, (axis,))], axis)
    places = np.arange(-before, n + after)
    if mode == "edge":
        places = np.clip(places, 0, n - 1)
    elif mode == "wrap":
        places = places % n
    elif mode == "reflect":
        period = max(2 * (n - 1), 1)
        places = np.abs((places + n - 1) % period - (n - 1)) if n > 1 else places * 0
    else:
        raise ValueError(f"Pad has no mode {mode!r}")
    return fn.index_select(x, axis, as_tensor(places))


@operator("DepthToSpace")
def depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Channels as blocks of pixels."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        y = fn.permute(x.reshape(n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))
    else:
        y = fn.permute(x.reshape(n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))
    return y.reshape(n, c // (b * b), h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Blocks of pixels as channels."""
    n, c, h, w = x.shape
    b = blocksize
    y = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return fn.permute(y, order).reshape(n, c * b * b, h // b, w // b)


@operator("Trilu")
def trilu(x: Any, k: Host = None, *, upper: int = 1) -> Any:
    """The upper or the lower triangle."""
    return (fn.triu if upper else fn.tril)(x, 0 if k is None else int(k))


@operator("EyeLike")
def eye_like(x: Any, *, dtype: int | None = None, k: int = 0) -> Any:
    """Ones on a diagonal."""
    from genesis import arange
    from genesis.onnx.dtypes import numpy_dtype

    rows, columns = x.shape
    ones = arange(rows).reshape(-1, 1) + k == arange(columns).reshape(1, -1)
    return ones.to(as_dtype(numpy_dtype(dtype)) if dtype is not None else x.dtype)


@operator("Constant")
def constant(
    *, value: Any = None, value_float: Any = None, value_floats: Any = None, value_int: Any = None,
    value_ints: Any = None, value_string: Any = None, value_strings: Any = None,
    sparse_value: Any = None,
) -> Any:  # fmt: skip
    """A value that stands in the model."""
    typed = (
        (value_float, np.float32), (value_floats, np.float32), (value_int, np.int64),
        (value_ints, np.int64), (value_string, object), (value_strings, object),
    )  # fmt: skip
    for given, dtype in typed:
        if given is not None:
            return np.array(given, dtype)
    return value if value is not None else sparse_value


@operator("ConstantOfShape")
def constant_of_shape(shape: Host, *, value: Any = None) -> Any:
    """A tensor full of one number."""
    from genesis import full

    number = np.zeros(1, np.float32) if value is None else value
    return full(tuple(ints(shape) or ()), number.item(), dtype=number.dtype)


@operator("Range")
def range_(start: Host, limit: Host, delta: Host, *, stash_type: int | None = None) -> Any:
    """Numbers from one to another."""
    from genesis.onnx.registry import find_on_host

    return as_tensor(find_on_host("", "Range")(start, limit, delta))  # type: ignore[misc]


@operator("ReverseSequence")
def reverse_sequence(x: Any, lengths: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    """The beginnings of sequences, backwards."""
    from genesis import arange

    n = x.shape[time_axis]
    moved = fn.movedim(x, (batch_axis, time_axis), (0, 1))
    step, ends = arange(n).reshape(1, n), lengths.reshape(-1, 1)
    places = fn.where(step < ends, ends - 1 - step, step)
    places = places.reshape(*places.shape, *(1,) * (x.ndim - 2)).expand(tuple(moved.shape))
    return fn.movedim(fn.gather(moved, 1, places), (0, 1), (batch_axis, time_axis))


@operator("CenterCropPad")
def center_crop_pad(x: Any, shape: Host, *, axes: Sequence[int] | None = None) -> Any:
    """Cut or continued on both sides to given sizes."""
    chosen = [a % x.ndim for a in (axes if axes is not None else range(x.ndim))]
    for axis, wanted in zip(chosen, ints(shape) or (), strict=True):
        less = wanted - int(x.shape[axis])
        if less < 0:
            x = fn.narrow(x, axis, -less // 2, wanted)
        else:
            x = _constant_pad(x, {axis: (less // 2, less - less // 2)}, 0)
    return x


@operator("Dropout")
def dropout(
    x: Any, ratio: Host = None, training_mode: Host = None, *, seed: int | None = None,
    is_test: int = 0, consumed_inputs: Any = None, outputs: int = 1, version: int = 13,
) -> Any:  # fmt: skip
    """Some elements zero, in training."""
    from genesis import ones_like, rand

    rate = 0.5 if ratio is None else float(ratio)
    if training_mode is None or not bool(training_mode) or rate == 0:
        mask = ones_like(x, dtype="bool" if version >= 10 else x.dtype)
        return (x, mask)[:outputs]
    kept = rand(*x.shape) >= rate
    return (fn.where(kept, x / (1 - rate), fn.mul(x, 0)), kept)[:outputs]


__all__ = ["Tensor", "slices", "split_sizes", "target_shape"]
