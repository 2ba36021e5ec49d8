"""Movement: the same elements in other places.

Reshape (where strides allow it), transpose, squeeze, unsqueeze, expand and split give *views*:
they share the storage, so a write to one is seen by all. The rest give new arrays; nothing here
ever computes, it only says where each element is read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from operator import index as as_int
from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import Scalar, promote_scalar
from genesis.ir.size import Dim, Size, as_size, below, product, same
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.core.storage import ViewStep, may_alias
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.ndarray.ops.scalar_overflow import fitting


def normal_axis(name: str, axis: int, rank: int) -> int:
    """A possibly negative axis as one from 0 to rank - 1."""
    number = as_int(axis)
    if not -rank <= number < rank:
        raise IndexError(f"{name}: axis {number} does not exist in an array of {rank} axes")
    return number % rank


def normal_axes(name: str, axes: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """One axis, several, or None for all, as distinct ascending numbers from 0."""
    if axes is None:
        return tuple(range(rank))
    listed = [axes] if isinstance(axes, int) else list(axes)
    found = [normal_axis(name, a, rank) for a in listed]
    if len(set(found)) != len(found):
        raise ValueError(f"{name}: axes {tuple(listed)} name an axis twice")
    return tuple(sorted(found))


def as_shape(name: str, sizes: Sequence[Any]) -> Shape:
    """Sizes given one by one or as one sequence, checked."""
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = sizes[0]
    try:
        shape = tuple(map(as_size, sizes))
    except TypeError:
        raise TypeError(f"{name}: sizes are integers, got {tuple(sizes)}") from None
    if any(isinstance(s, int) and s < 0 for s in shape):
        raise ValueError(f"{name}: sizes must not be negative, got {shape}")
    return shape


# ---- views


def reshape(x: NDArray, *shape: Any) -> NDArray:
    """The same elements in row-major order; one size may be -1 and follows from the others.

    The result is a view where strides over the storage can express it, else a copy.
    """
    target = _resolved(x, shape[0] if len(shape) == 1 and not _is_size(shape[0]) else shape)
    if target == x.shape:
        return x.seen_through()
    if may_alias(x.storage, x.steps, target):
        return x.seen_through(ViewStep(ops.RESHAPE, None, target))
    return wrap(primitive.reshape(x.value, target))


def _is_size(x: Any) -> bool:
    return isinstance(x, int | Size)


def _resolved(x: NDArray, shape: Sequence[Any]) -> Shape:
    sizes = [as_size(s) for s in shape]
    total = product(x.shape)
    if sizes.count(-1) > 1:
        raise ValueError(f"reshape: only one size may be -1, got {tuple(sizes)}")
    if -1 in sizes:
        known = product(s for s in sizes if s != -1)
        if known == 0:
            raise ValueError(f"{_misfit(x, shape)}: -1 could be any size")
        sizes[sizes.index(-1)] = total // known
    if not same(product(sizes), total) or any(below(s, 0) for s in sizes):
        raise ValueError(_misfit(x, shape))
    return tuple(sizes)


def _misfit(x: NDArray, shape: Sequence[Any]) -> str:
    listed = f"{product(x.shape)} elements of shape {x.shape}"
    return f"reshape: {listed} do not fit into shape {tuple(map(as_size, shape))}"


def permute(x: NDArray, *axes: Any) -> NDArray:
    """Axes in another order: output axis d is input axis axes[d]."""
    listed = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    order = tuple(normal_axis("permute", a, x.ndim) for a in listed)
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(f"permute: {tuple(listed)} is no order of the {x.ndim} axes of {x.shape}")
    if order == tuple(range(x.ndim)):
        return x.seen_through()
    return x.seen_through(ViewStep(ops.PERMUTE, order, tuple(x.shape[a] for a in order)))


def transpose(x: NDArray, *axes: Any) -> NDArray:
    """Axes in another order; without one, reversed."""
    return permute(x, *axes) if axes else permute(x, tuple(reversed(range(x.ndim))))


def swapaxes(x: NDArray, a: int, b: int) -> NDArray:
    """Two axes exchanged."""
    order = list(range(x.ndim))
    i, j = normal_axis("swapaxes", a, x.ndim), normal_axis("swapaxes", b, x.ndim)
    order[i], order[j] = j, i
    return permute(x, order)


def moveaxis(x: NDArray, source: int, destination: int) -> NDArray:
    """One axis moved to another position, the others kept in order."""
    i = normal_axis("moveaxis", source, x.ndim)
    order = [d for d in range(x.ndim) if d != i]
    order.insert(normal_axis("moveaxis", destination, x.ndim), i)
    return permute(x, order)


def squeeze(x: NDArray, axis: int | Sequence[int] | None = None) -> NDArray:
    """Without axes of extent 1: all of them, or those given."""
    if axis is None:
        return reshape(x, tuple(s for s in x.shape if not same(s, 1)))
    axes = normal_axes("squeeze", axis, x.ndim)
    for a in axes:
        if not same(x.shape[a], 1):
            raise ValueError(f"squeeze: axis {a} of shape {x.shape} has size {x.shape[a]}, not 1")
    return reshape(x, tuple(s for d, s in enumerate(x.shape) if d not in axes))


def unsqueeze(x: NDArray, axis: int) -> NDArray:
    """With a new axis of extent 1 at position `axis`."""
    a = normal_axis("unsqueeze", axis, x.ndim + 1)
    return reshape(x, (*x.shape[:a], 1, *x.shape[a:]))


def expand(x: NDArray, *shape: Any) -> NDArray:
    """Repeat axes of extent 1, and add leading axes, without a copy; -1 keeps a size."""
    listed = shape[0] if len(shape) == 1 and not _is_size(shape[0]) else shape
    missing = len(listed) - x.ndim
    full = (1,) * missing + x.shape
    target = tuple(
        (old if new == -1 else new) for old, new in zip(full, listed, strict=missing >= 0)
    )
    kept = missing >= 0 and -1 not in listed[:missing]
    if not kept or not all(starmap(_expands, zip(full, target, strict=True))):
        raise ValueError(f"expand: shape {x.shape} does not expand to {tuple(listed)}")
    view = reshape(x, full)
    return view if target == full else view.seen_through(ViewStep(ops.EXPAND, None, target))


def _expands(old: Dim, new: Dim) -> bool:
    return old == 1 or same(old, new) or same(old, 1)


def broadcast_to(x: NDArray, shape: Sequence[Dim]) -> NDArray:
    """`x` repeated to a shape it broadcasts to."""
    return expand(x, tuple(shape))


def narrow(x: NDArray, axis: int, start: Dim, length: Dim, step: int = 1) -> NDArray:
    """The elements start, start + step, .. of one axis."""
    steps = tuple((start, step) if d == axis else (0, 1) for d in range(x.ndim))
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    return x.seen_through(ViewStep(ops.SLICE, steps, shape))


def split(x: NDArray, sizes: Dim | Sequence[Dim], axis: int = 0) -> list[NDArray]:
    """Consecutive pieces along an axis: of one size (the last may be smaller), or sizes given."""
    a = normal_axis("split", axis, x.ndim)
    total = x.shape[a]
    if isinstance(sizes, int | Size):
        if sizes <= 0:
            raise ValueError(f"split: pieces must have a positive size, not {sizes}")
        sizes = list(_pieces(total if isinstance(sizes, Size) else as_int(total), sizes))
    if not same(sum(sizes), total):
        raise ValueError(f"split: sizes {tuple(sizes)} do not add up to {total} (axis {a})")
    pieces = []
    start: Dim = 0
    for size in sizes:
        pieces.append(narrow(x, a, start, size))
        start = start + size
    return pieces


def _pieces(total: Dim, each: Dim) -> Iterator[Dim]:
    start: Dim = 0
    while start < total:
        yield each if start + each <= total else total - start
        start = start + each


def diagonal(x: NDArray, first: int = 0, second: int = 1) -> NDArray:
    """The elements with equal index on two axes of one size; their axis is the last."""
    i, j = normal_axis("diagonal", first, x.ndim), normal_axis("diagonal", second, x.ndim)
    if i == j or not same(x.shape[i], x.shape[j]):
        raise ValueError(f"diagonal: axes {i} and {j} of {x.shape} must be two of one size")
    return wrap(diagonal_value(x.value, i, j))


def diagonal_value(x: Value, i: int, j: int) -> Value:
    """The diagonal over axes i and j, as the last axis: every (n + 1)-th of n*n elements."""
    n = as_int(x.shape[i])  # it becomes a stride
    order = [d for d in range(len(x.shape)) if d not in (i, j)]
    moved = primitive.permute(x, [*order, i, j])
    flat = primitive.reshape(moved, (*moved.shape[:-2], n * n))
    steps = ((0, 1),) * len(order) + ((0, n + 1),)
    return primitive.slice_(flat, steps, (*flat.shape[:-1], n))


# ---- new arrays


def flip(x: NDArray, axis: int | Sequence[int] | None = None) -> NDArray:
    """Reversed along the given axes, or all."""
    axes = normal_axes("flip", axis, x.ndim)
    steps = tuple((s - 1, -1) if d in axes and s else (0, 1) for d, s in enumerate(x.shape))
    return wrap(primitive.slice_(x.value, steps, x.shape))


def pad(
    x: NDArray,
    widths: Sequence[tuple[Dim, Dim]],
    value: Scalar | NDArray = 0,
    steps: Sequence[int] | None = None,
) -> NDArray:
    """`value` around x, of x's type if it is an array: (before, after) for every axis.

    Negative numbers cut off.

    `steps` above 1 also put ``step - 1`` copies of the value between neighbours.
    """
    steps = [1] * x.ndim if steps is None else list(steps)
    if len(widths) != x.ndim or len(steps) != x.ndim or any(s < 1 for s in steps):
        raise ValueError(f"pad: need widths and positive steps for the {x.ndim} axes of {x.shape}")
    spread = [
        s if step == 1 else (s - 1) * step + 1 for s, step in zip(x.shape, steps, strict=True)
    ]
    shape = tuple(low + s + high for s, (low, high) in zip(spread, widths, strict=True))
    if any(below(s, 0) for s in shape):
        raise ValueError(f"pad: widths {tuple(widths)} cut more off than shape {x.shape} has")
    places = tuple((low, step) for (low, _), step in zip(widths, steps, strict=True))
    if isinstance(value, NDArray):
        return wrap(primitive.pad(x.value, places, shape, value.value))
    dtype = promote_scalar(x.dtype, value)
    fill = primitive.scalar(fitting("pad", value, dtype), dtype, x.device)
    return wrap(primitive.pad(cast(x.value, dtype), places, shape, fill))


def windows(x: NDArray, axis: int, size: int, stride: int = 1, dilation: int = 1) -> NDArray:
    """Sliding windows along an axis; the window's elements become the last axis. A view.

    >>> from genesis import ndarray as nd
    >>> windows(nd.arange(5), axis=0, size=3, stride=2).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    a = normal_axis("windows", axis, x.ndim)
    reach = (size - 1) * dilation + 1
    if size < 1 or stride < 1 or dilation < 1 or x.shape[a] < reach:
        raise ValueError(
            f"windows: size {size}, stride {stride}, dilation {dilation} do not fit axis {a} "
            f"of shape {x.shape}"
        )
    count = (x.shape[a] - reach) // stride + 1
    shape = (*x.shape[:a], count, *x.shape[a + 1 :], size)
    attr = (a, 1 if count == 1 else stride, dilation)  # one window: no step to another
    return x.seen_through(ViewStep(ops.WINDOW, attr, shape))


def concat(arrays: Sequence[NDArray], axis: int = 0) -> NDArray:
    """Arrays joined along an axis they already have."""
    if not arrays:
        raise ValueError("concat: need at least one array")
    dtype = common_dtype(arrays)
    first = arrays[0]
    a = normal_axis("concat", axis, first.ndim)
    for x in arrays:
        if x.ndim != first.ndim or any(
            d != a and not same(s, t)
            for d, (s, t) in enumerate(zip(x.shape, first.shape, strict=True))
        ):
            listed = ", ".join(str(y.shape) for y in arrays)
            raise ValueError(f"concat: shapes {listed} may differ only at axis {a}")
    total: Dim = 0
    ends: list[Dim] = []
    for x in arrays:
        total = total + x.shape[a]
        ends.append(total)
    shape = (*first.shape[:a], total, *first.shape[a + 1 :])
    position = primitive.along(primitive.iota(total, first.device), a, shape)
    # Every piece is padded to the full extent; the position says which one is meant.
    result: Value | None = None
    for x, end in zip(reversed(arrays), reversed(ends), strict=True):
        places = tuple((end - x.shape[a] if d == a else 0, 1) for d in range(x.ndim))
        fill = constant(0, dtype, x.device)
        piece = primitive.pad(cast(x.value, dtype), places, shape, fill)
        if result is None:
            result = piece
        else:
            before = elementwise(ops.LT, position, primitive.extent(end, position.dtype, x.device))
            result = primitive.where(before, piece, result)
    assert result is not None
    return wrap(result)


def stack(arrays: Sequence[NDArray], axis: int = 0) -> NDArray:
    """Arrays of one shape joined along a new axis."""
    if not arrays:
        raise ValueError("stack: need at least one array")
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ValueError(f"stack: shapes {', '.join(str(x.shape) for x in arrays)} differ")
    a = normal_axis("stack", axis, arrays[0].ndim + 1)
    return concat([unsqueeze(x, a) for x in arrays], a)


def roll(x: NDArray, shift: int, axis: int) -> NDArray:
    """Shifted along an axis; what leaves at one end enters at the other."""
    a = normal_axis("roll", axis, x.ndim)
    n = x.shape[a]
    cut = shifted(-shift, n)
    if same(cut, 0):
        return wrap(x.value)
    return concat([narrow(x, a, cut, n - cut), narrow(x, a, 0, cut)], a)


def shifted(shift: int, n: Dim) -> Dim:
    """Where the first element comes from, if all are shifted: ``shift % n``, of nothing 0."""
    if n == 0:
        return 0
    if isinstance(n, Size) and -n <= shift and shift < n:  # as it usually is
        return shift if shift >= 0 else n + shift
    return shift % n


def tile(x: NDArray, repeats: Sequence[int]) -> NDArray:
    """The whole array repeated along every axis."""
    if len(repeats) < x.ndim:
        raise ValueError(f"tile: {len(repeats)} repeats for the {x.ndim} axes of {x.shape}")
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    pairs = list(zip(repeats, shape, strict=True))
    value = primitive.reshape(x.value, tuple(s for _, size in pairs for s in (1, size)))
    value = primitive.expand(value, tuple(s for pair in pairs for s in pair))
    return wrap(primitive.reshape(value, tuple(r * s for r, s in pairs)))


def repeat(x: NDArray, repeats: int, axis: int) -> NDArray:
    """Every element repeated along an axis, next to itself."""
    a = normal_axis("repeat", axis, x.ndim)
    before, n, after = x.shape[:a], x.shape[a], x.shape[a + 1 :]
    value = primitive.reshape(x.value, (*before, n, 1, *after))
    value = primitive.expand(value, (*before, n, repeats, *after))
    return wrap(primitive.reshape(value, (*before, n * repeats, *after)))


__all__ = [
    "broadcast_to", "concat", "diagonal", "expand", "flip", "moveaxis", "permute", "repeat",
    "reshape", "roll", "split", "squeeze", "stack", "swapaxes", "tile", "transpose", "unsqueeze",
    "windows",
]  # fmt: skip
