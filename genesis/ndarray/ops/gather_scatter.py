"""Reading and writing at positions that are data: the named operations.

Two primitives are behind all of them. A gather reads ``x[.., i, .., j, ..]`` with arrays of one
shape as indices; a scatter combines updates into such places, one after the other in row-major
order of the indices. What differs between the operations is only which axes are indexed, and by
what. Results are new arrays; ``x[index] = value`` writes in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import bool_, int64, uint8
from genesis.ir.size import Dim, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops import elementwise
from genesis.ndarray.ops.creation import asarray
from genesis.ndarray.ops.indexing import fitted, placed
from genesis.ndarray.ops.movement import normal_axis
from genesis.ndarray.ops.normalize_index import positions

Index = Any  # an array of integers, a NumPy array, nested lists or an integer

# ---- reading


def take(x: NDArray, index: Index, axis: int | None = None) -> NDArray:
    """The elements at positions along an axis, or of the flat array for None.

    >>> from genesis import ndarray as nd
    >>> nd.take(nd.array([[1, 2], [3, 4]]), [3, 0]).tolist()
    [4, 1]
    """
    if axis is None:
        x, axis = x.reshape(-1), 0
    a = normal_axis("take", axis, x.ndim)
    where = positions("take", index, x.shape[a], a, x.device)
    return wrap(primitive.gather(x.value, where, a))


def index_select(x: NDArray, index: Index, axis: int = 0) -> NDArray:
    """The parts of `x` at the positions of a vector along an axis."""
    a = normal_axis("index_select", axis, x.ndim)
    where = positions("index_select", index, x.shape[a], a, x.device)
    if len(where.shape) != 1:
        raise ValueError(f"index_select: positions are a vector, not of shape {where.shape}")
    return wrap(primitive.gather(x.value, where, a))


def embedding(weights: NDArray, index: Index) -> NDArray:
    """The rows of a table at positions of any shape."""
    if not weights.shape:
        raise ValueError("embedding: the table needs at least one axis, got shape ()")
    where = positions("embedding", index, weights.shape[0], 0, weights.device)
    return wrap(primitive.gather(weights.value, where, 0))


def gather(x: NDArray, index: Index, axis: int) -> NDArray:
    """``x[i, index[i, j], ..]``: a position along an axis for every element of the result.

    `index` has the rank of `x` and is at most as large along the other axes.
    """
    a = normal_axis("gather", axis, x.ndim)
    where = positions("gather", index, x.shape[a], a, x.device)
    return wrap(_along("gather", x.value, where, a))


def take_along_axis(x: NDArray, index: Index, axis: int, name: str = "take_along_axis") -> NDArray:
    """`gather` with `x` and `index` broadcast against each other along the other axes.

    Errors are those of the operation `name`.
    """
    a = normal_axis(name, axis, x.ndim)
    where = positions(name, index, x.shape[a], a, x.device)
    if len(where.shape) != x.ndim:
        raise ValueError(f"{name}: positions {where.shape} must have the rank of {x.shape}")
    others = [
        tuple(1 if d == a else extent for d, extent in enumerate(shape))
        for shape in (x.shape, where.shape)
    ]
    common = elementwise.broadcast_shapes(name, *others)
    wide, index_shape = (
        (*common[:a], shape[a], *common[a + 1 :]) for shape in (x.shape, where.shape)
    )
    value = primitive.expand(x.value, wide)
    return wrap(_along(name, value, primitive.expand(where, index_shape), a))


def _along(name: str, x: Value, where: Value, axis: int) -> Value:
    return primitive.gather_at(x, _everywhere(name, x.shape, where, axis), range(len(x.shape)))


def _everywhere(name: str, shape: Shape, where: Value, axis: int) -> list[Value]:
    """Indices for every axis: `where` along one, and its own places along the others."""
    fits = len(where.shape) == len(shape) and all(
        n <= extent
        for d, (n, extent) in enumerate(zip(where.shape, shape, strict=True))
        if d != axis
    )
    if not fits:
        raise ValueError(
            f"{name}: positions of shape {where.shape} must have the rank of {shape}, and may be "
            f"larger only along axis {axis}"
        )
    return [
        where if d == axis else primitive.along(primitive.iota(n, where.device), d, where.shape)
        for d, n in enumerate(where.shape)
    ]


def dynamic_slice(x: NDArray, starts: Sequence[Any], sizes: Sequence[int]) -> NDArray:
    """A block of `x`; where it starts is data, and moved so that the block fits.

    >>> from genesis import ndarray as nd
    >>> nd.dynamic_slice(nd.arange(6), [nd.array(9)], [2]).tolist()
    [4, 5]
    """
    value = x.value
    found = _starts("dynamic_slice", x, starts, sizes)
    for d, (start, size) in enumerate(zip(found, sizes, strict=True)):
        if start is not None:
            run = primitive.elementwise(ops.ADD, start, primitive.iota(size, x.device))
            value = primitive.gather(value, run, d)
    return wrap(value)


def dynamic_update(x: NDArray, block: NDArray, starts: Sequence[Any]) -> NDArray:
    """`x` with a block replaced; where it starts is data, and moved so that the block fits."""
    new = cast(block.value, x.dtype)
    return wrap(placed(x.value, new, _starts("dynamic_update", x, starts, block.shape)))


def _starts(
    name: str, x: NDArray, starts: Sequence[Any], sizes: Sequence[Dim]
) -> list[Value | None]:
    """Starts that leave room for a block; None where it takes the whole axis."""
    if not len(starts) == len(sizes) == x.ndim:
        raise ValueError(
            f"{name}: an array of shape {x.shape} needs {x.ndim} starts and sizes, got "
            f"{len(starts)} and {tuple(sizes)}"
        )
    found: list[Value | None] = []
    for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size > x.shape[d]:
            raise ValueError(f"{name}: a block of {tuple(sizes)} does not fit into {x.shape}")
        if size == x.shape[d]:
            found.append(None)
            continue
        (value,) = elementwise.values(name, (start,), int64)
        if value.shape:
            raise ValueError(f"{name}: starts are single integers, not of shape {value.shape}")
        last = primitive.extent(x.shape[d] - size, int64, x.device)
        value = primitive.elementwise(ops.MIN, value, last)
        found.append(primitive.elementwise(ops.MAX, value, constant(0, int64, x.device)))
    return found


# ---- parts along an axis: index_add and its relatives


def index_add(
    x: NDArray, index: Index, updates: NDArray, axis: int = 0, alpha: float = 1
) -> NDArray:
    """`x` with ``alpha * updates`` added at positions along an axis; equal positions add up.

    >>> from genesis import ndarray as nd
    >>> nd.index_add(nd.zeros(3), [0, 2, 2], nd.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.0, 5.0]
    """
    scaled = updates if alpha == 1 else updates * alpha
    return _indexed("index_add", x, index, scaled, axis, "add")


def index_copy(x: NDArray, index: Index, updates: NDArray, axis: int = 0) -> NDArray:
    """`x` with parts replaced at positions along an axis; the last of equal positions stays."""
    return _indexed("index_copy", x, index, updates, axis, "set")


def index_fill(x: NDArray, index: Index, value: Any, axis: int = 0) -> NDArray:
    """`x` with one number at positions along an axis."""
    return _indexed("index_fill", x, index, value, axis, "set")


def index_reduce(
    x: NDArray,
    index: Index,
    updates: NDArray,
    reduce: str,
    axis: int = 0,
    include_self: bool = True,
) -> NDArray:
    """`x` with updates folded in at positions along an axis: "prod", "mean", "amax" or "amin"."""
    a, where, new = _parts("index_reduce", x, index, updates, axis)
    return wrap(_folded("index_reduce", x.value, [where], new, [a], reduce, include_self))


def _indexed(name: str, x: NDArray, index: Index, updates: Any, axis: int, mode: str) -> NDArray:
    a, where, new = _parts(name, x, index, updates, axis)
    return wrap(combined(x.value, [where], new, [a], mode))


def _parts(
    name: str, x: NDArray, index: Index, updates: Any, axis: int
) -> tuple[int, Value, Value]:
    a = normal_axis(name, axis, x.ndim)
    where = positions(name, index, x.shape[a], a, x.device)
    shape = (*x.shape[:a], *where.shape, *x.shape[a + 1 :])
    if isinstance(updates, NDArray) and updates.shape != shape:
        raise ValueError(
            f"{name}: positions {where.shape} on axis {a} of {x.shape} need updates of shape "
            f"{shape}, not {updates.shape}"
        )
    return a, where, fitted(updates, shape, x)


# ---- single elements along an axis: scatter and its relatives


def scatter(
    x: NDArray, index: Index, updates: Any, axis: int = 0, reduce: str | None = None
) -> NDArray:
    """`x` with ``x[i, index[i, j], ..]`` replaced by updates (an array, or one number).

    With `reduce` "add" or "multiply" they are combined with what is there; without, the last one
    of several for one place stays. Updates may be larger than `index`: the rest is not used.
    """
    modes = {None: "set", "add": "add", "multiply": "mul"}
    if reduce not in modes:
        raise ValueError(f"scatter: reduce is None, 'add' or 'multiply', not {reduce!r}")
    where, new = _elements("scatter", x, index, updates, axis)
    return wrap(combined(x.value, where, new, range(x.ndim), modes[reduce]))


def scatter_add(x: NDArray, index: Index, updates: NDArray, axis: int = 0) -> NDArray:
    """`x` with updates added at ``x[i, index[i, j], ..]``; equal positions add up."""
    where, new = _elements("scatter_add", x, index, updates, axis)
    return wrap(combined(x.value, where, new, range(x.ndim), "add"))


def scatter_reduce(
    x: NDArray, index: Index, updates: NDArray, axis: int, reduce: str, include_self: bool = True
) -> NDArray:
    """`scatter` that folds: `reduce` is "sum", "prod", "mean", "amax" or "amin".

    Without `include_self` what was there before takes no part where there are updates.
    """
    where, new = _elements("scatter_reduce", x, index, updates, axis)
    axes = range(x.ndim)
    return wrap(_folded("scatter_reduce", x.value, where, new, axes, reduce, include_self))


def _elements(
    name: str, x: NDArray, index: Index, updates: Any, axis: int
) -> tuple[list[Value], Value]:
    a = normal_axis(name, axis, x.ndim)
    where = positions(name, index, x.shape[a], a, x.device)
    indices = _everywhere(name, x.shape, where, a)
    if isinstance(updates, NDArray):
        fits = updates.ndim == x.ndim and all(
            n <= extent for n, extent in zip(where.shape, updates.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{name}: positions of shape {where.shape} need updates at least as large, not "
                f"{updates.shape}"
            )
        updates = updates[tuple(slice(n) for n in where.shape)]
    return indices, fitted(updates, where.shape, x)


def put(x: NDArray, index: Index, values: Any, accumulate: bool = False) -> NDArray:
    """`x` with elements of the flat array replaced, or added to."""
    size = product(x.shape)
    where = positions("put", index, size, 0, x.device)
    new = fitted(values, where.shape, x)
    flat = primitive.reshape(x.value, (size,))
    mode = "add" if accumulate else "set"
    return wrap(primitive.reshape(combined(flat, [where], new, [0], mode), x.shape))


# ---- combining


def combined(
    x: Value, where: Sequence[Value], updates: Value, axes: Sequence[int], mode: str
) -> Value:
    """A scatter; half precisions add and multiply in float32, bool as numbers would."""
    if x.dtype is bool_ and mode != "set":
        mode = "max" if mode in ("add", "max") else "min"
        return cast(_scattered(cast(x, uint8), where, cast(updates, uint8), axes, mode), bool_)
    if mode in ("add", "mul"):
        wide = x.dtype.accumulator
        return cast(_scattered(cast(x, wide), where, cast(updates, wide), axes, mode), x.dtype)
    return _scattered(x, where, updates, axes, mode)


def _scattered(
    x: Value, where: Sequence[Value], updates: Value, axes: Sequence[int], mode: str
) -> Value:
    """A scatter by positions in one row, whose loop can be cut into equal pieces."""
    if 0 in updates.shape:
        return x
    if len(axes) == 1 and len(where[0].shape) != 1:
        first, rank = axes[0], len(where[0].shape)
        count = product(where[0].shape)
        shape = (*updates.shape[:first], count, *updates.shape[first + rank :])
        where = [primitive.reshape(where[0], (count,))]
        updates = primitive.reshape(updates, shape)
    return primitive.scatter(x, where, updates, axes, mode)


_FOLDS = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}


def _folded(
    name: str,
    x: Value,
    where: Sequence[Value],
    updates: Value,
    axes: Sequence[int],
    reduce: str,
    include_self: bool,
) -> Value:
    if reduce not in _FOLDS:
        raise ValueError(f"{name}: reduce is one of {', '.join(_FOLDS)}, not {reduce!r}")
    if x.dtype is bool_:
        raise TypeError(f"{name}: bool does not fold; cast it to an integer type")
    mode, dtype, device = _FOLDS[reduce], x.dtype, x.device
    base = x
    if not include_self:
        marks = primitive.broadcast(constant(True, bool_, device), updates.shape)
        nowhere = primitive.broadcast(constant(False, bool_, device), x.shape)
        touched = combined(nowhere, where, marks, axes, "set")
        start = {"add": 0, "mul": 1, "max": dtype.min, "min": dtype.max}[mode]
        base = primitive.where(touched, constant(start, dtype, device), x)
    if reduce != "mean":
        return combined(base, where, updates, axes, mode)
    # Sum and count in the wide type: a half precision cannot even count to 3000.
    wide = dtype.accumulator
    one = constant(1, wide, device)
    ones = primitive.broadcast(one, updates.shape)
    counted = primitive.broadcast(constant(1 if include_self else 0, wide, device), x.shape)
    count = combined(counted, where, ones, axes, "add")
    count = primitive.elementwise(ops.MAX, count, one)
    total = combined(cast(base, wide), where, cast(updates, wide), axes, "add")
    divide = ops.DIV if dtype.is_float else ops.FLOORDIV
    return cast(primitive.elementwise(divide, total, count), dtype)


# ---- one part replaced


def select(x: NDArray, index: int, axis: int = 0) -> NDArray:
    """The part of `x` at one position of an axis, as a view."""
    return _selected("select", x, index, axis)


def _selected(name: str, x: NDArray, index: int, axis: int) -> NDArray:
    a = normal_axis(name, axis, x.ndim)
    extent = x.shape[a]
    if isinstance(extent, int) and not -extent <= index < extent:
        raise IndexError(f"{name}: index {index} is out of range for axis {a} of size {extent}")
    return x[(*[slice(None)] * a, index)]


def select_scatter(x: NDArray, part: Any, index: int, axis: int = 0) -> NDArray:
    """A copy of `x` with the part at one position of an axis replaced."""
    result = x.copy()
    _selected("select_scatter", result, index, axis).assign(part)
    return result


def slice_scatter(
    x: NDArray,
    part: Any,
    axis: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> NDArray:
    """A copy of `x` with a slice along an axis replaced."""
    a = normal_axis("slice_scatter", axis, x.ndim)
    if step == 0:
        raise ValueError("slice_scatter: the step must not be 0")
    result = x.copy()
    result[(*[slice(None)] * a, slice(start, stop, step))] = part
    return result


def diagonal_scatter(
    x: NDArray, part: Any, offset: int = 0, axis1: int = 0, axis2: int = 1
) -> NDArray:
    """A copy of `x` with a diagonal replaced; in `part` the diagonal is the last axis."""
    i, j = (normal_axis("diagonal_scatter", a, x.ndim) for a in (axis1, axis2))
    if i == j:
        raise ValueError(f"diagonal_scatter: axes {axis1} and {axis2} are the same")
    rows, columns = (int(x.shape[a]) for a in (i, j))
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    rest = [extent for d, extent in enumerate(x.shape) if d not in (i, j)]
    new = fitted(asarray(part) if not isinstance(part, int | float) else part, (*rest, length), x)
    count = primitive.iota(length, x.device)
    low = primitive.extent(max(0, -offset), int64, x.device)
    right = primitive.extent(max(0, offset), int64, x.device)
    where = {a: primitive.elementwise(ops.ADD, count, n) for a, n in ((i, low), (j, right))}
    axes = sorted(where)
    last = len(rest)
    new = primitive.permute(new, [*range(axes[0]), last, *range(axes[0], last)])
    return wrap(combined(x.value, [where[a] for a in axes], new, axes, "set"))


__all__ = [
    "diagonal_scatter", "dynamic_slice", "dynamic_update", "embedding", "gather", "index_add",
    "index_copy", "index_fill", "index_reduce", "index_select", "put", "scatter", "scatter_add",
    "scatter_reduce", "select", "select_scatter", "slice_scatter", "take", "take_along_axis",
]  # fmt: skip
