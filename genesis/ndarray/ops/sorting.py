"""Sorting, and what follows from it: the first few, single places, distinct elements, membership.

All of it rests on three operations of the library (`genesis.ir.numpy_library.sorting`). They are
stable: equal elements keep their order, so every result is the only right one. NaN comes after
every number and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from genesis.ir.dtype import bool_, int64
from genesis.ir.size import Dim
from genesis.ndarray.core import primitive
from genesis.ndarray.core.interop import realize
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import constant
from genesis.ndarray.core.value import need_contents
from genesis.ndarray.ops.creation import asarray, zeros
from genesis.ndarray.ops.cumulative import cumsum
from genesis.ndarray.ops.elementwise import isnan, where
from genesis.ndarray.ops.grids import searchsorted
from genesis.ndarray.ops.library_calls import call
from genesis.ndarray.ops.movement import concat, moveaxis, narrow, normal_axis
from genesis.ndarray.ops.reduction import any as any_of


class Sorted(NamedTuple):
    """Elements in order, and the positions they had."""

    values: NDArray
    indices: NDArray


def sort(x: NDArray, axis: int = -1, descending: bool = False, stable: bool = True) -> Sorted:
    """The elements in order along an axis, and the positions they had.

    It is always stable; that one need not ask for it is PyTorch's `stable=True`.

    >>> from genesis import ndarray as nd
    >>> values, indices = nd.sort(nd.array([3.0, 1.0, 2.0]))
    >>> values.tolist(), indices.tolist()
    ([1.0, 2.0, 3.0], [1, 2, 0])
    """
    last, a = with_last("sort", x, axis)
    if not x.shape or 0 in x.shape:
        return Sorted(x, zeros(x.shape, int64, x.device))
    form = last.shape
    found = call("sorting.sort", (descending,), [last.value], [(x.dtype, form), (int64, form)])
    return _back(found, a)


def argsort(x: NDArray, axis: int = -1, descending: bool = False, stable: bool = True) -> NDArray:
    """The positions that put the elements along an axis in order."""
    return sort(x, axis, descending, stable).indices


def msort(x: NDArray) -> NDArray:
    """The elements in order along the first axis."""
    return sort(x, 0).values


def lexsort(keys: Sequence[NDArray], axis: int = -1) -> NDArray:
    """The positions that put the last key in order, where it is equal the one before it, and so on.

    >>> from genesis import ndarray as nd
    >>> nd.lexsort([nd.array([2, 1, 0]), nd.array([5, 4, 5])]).tolist()
    [1, 2, 0]
    """
    if not keys:
        raise ValueError("lexsort: needs at least one key")
    order = argsort(keys[0], axis)
    for key in keys[1:]:
        if key.shape != keys[0].shape:
            raise ValueError(f"lexsort: keys of shapes {keys[0].shape} and {key.shape} differ")
        order = along(order, argsort(along(key, order, axis), axis), axis) if key.shape else order
    return order


def topk(x: NDArray, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Sorted:
    """The k largest or smallest elements along an axis, and the positions they had.

    They come in order whether `sorted` asks for it or not.
    """
    last, a = with_last("topk", x, axis)
    n: Dim = last.shape[-1]
    _require_rank("topk", k, 0, n, x)
    if k == 0 or 0 in last.shape:
        shape = (*last.shape[:-1], k)
        empty = zeros(shape, x.dtype, x.device), zeros(shape, int64, x.device)
        return Sorted(*(moveaxis(part, -1, a) for part in empty))
    if isinstance(n, int) and n > _LONG and 4 * k >= n:  # all threads sort one row
        return Sorted(*(narrow(part, a, 0, k) for part in sort(x, axis, largest)))
    form = (*last.shape[:-1], k)
    found = call("sorting.topk", (k, largest), [last.value], [(x.dtype, form), (int64, form)])
    values, indices = _back(found, a)
    return Sorted(values, indices) if x.shape else Sorted(values.squeeze(), indices.squeeze())


#: Rows beyond this are better sorted by all threads together.
_LONG = 1 << 16


def kthvalue(x: NDArray, k: int, axis: int = -1, keepdims: bool = False) -> Sorted:
    """The k-th smallest element along an axis, counted from 1, and its position."""
    last, a = with_last("kthvalue", x, axis)
    _require_rank("kthvalue", k, 1, last.shape[-1], x)
    ranks = wrap(constant(k - 1, int64, x.device))
    return reduced(selected(last, ranks.expand((*last.shape[:-1], 1))), x, a, keepdims)


def selected(last: NDArray, ranks: NDArray) -> Sorted:
    """Elements of the last axis by their ranks in order, several for each row, from 0 on."""
    forms = [(last.dtype, ranks.shape), (int64, ranks.shape)]
    if 0 in ranks.shape:
        return Sorted(*(zeros(shape, dtype, last.device) for dtype, shape in forms))
    values, indices = call("sorting.select", (), [last.value, ranks.value], forms)
    return Sorted(wrap(values), wrap(indices))


def reduced(found: Sorted, x: NDArray, axis: int, keepdims: bool) -> Sorted:
    """What was found for each row, one element, in place of an axis of x."""
    parts = [moveaxis(part, -1, axis) for part in found]
    if not (keepdims and x.shape):
        parts = [part.squeeze(axis) for part in parts]
    return Sorted(*parts)


def isin(elements: Any, test_elements: Any, invert: bool = False) -> NDArray:
    """Whether each element is one of `test_elements`; NaN is none."""
    x = asarray(elements)
    tested = asarray(test_elements, device=x.device).reshape(-1)
    if tested.shape[0] == 0:
        found = wrap(constant(False, bool_, x.device)).expand(x.shape)
    else:
        if tested.dtype.is_float:  # a search would go astray among NaN
            least = topk(tested, 1, largest=False).values
            tested = where(isnan(tested), least, tested)
        ordered = sort(tested).values
        place = searchsorted(ordered, x.reshape(-1)).value
        found = wrap(primitive.gather(ordered.value, place, 0)).reshape(x.shape) == x
    return ~found if invert else found


# ---- distinct elements


def unique(
    x: NDArray,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """The distinct elements, or those along an axis, in order whether `sorted` asks for it or not.

    With `return_inverse` also where each element is among them, with `return_counts` also how often
    there is each. Every NaN is distinct. How many there are depends on data: x is computed here.

    >>> from genesis import ndarray as nd
    >>> values, counts = nd.unique(nd.array([3, 1, 3, 2, 1]), return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 2, 3], [2, 1, 2])
    """
    _require_data("unique", x)
    if axis is None:
        values, order = sort(x.reshape(-1))
        return _grouped(values, _changes(values), order, x.shape, return_inverse, return_counts)
    a = normal_axis("unique", axis, x.ndim)
    rows = moveaxis(x, a, 0)
    ranks, order = sort(_row_ranks(rows))
    first = wrap(primitive.gather(rows.value, order.value, 0))
    shape = (x.shape[a],)
    found = _grouped(first, _changes(ranks), order, shape, return_inverse, return_counts)
    return _moved(found, a)


def unique_consecutive(
    x: NDArray, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None
) -> Any:
    """The first of every group of equal neighbours; the arguments are those of `unique`."""
    _require_data("unique_consecutive", x)
    if axis is None:
        flat = x.reshape(-1)
        return _grouped(flat, _changes(flat), None, x.shape, return_inverse, return_counts)
    a = normal_axis("unique_consecutive", axis, x.ndim)
    rows = moveaxis(x, a, 0)
    changes = _changes(rows)
    if rows.ndim > 1:
        changes = any_of(changes, tuple(range(1, rows.ndim)))
    shape = (x.shape[a],)
    return _moved(_grouped(rows, changes, None, shape, return_inverse, return_counts), a)


def _changes(rows: NDArray) -> NDArray:
    """Whether each element along the first axis differs from the one before; the first one does."""
    n = rows.shape[0]
    if n == 0:
        return rows != rows
    start = wrap(constant(True, bool_, rows.device)).expand((1, *rows.shape[1:]))
    return concat([start, narrow(rows, 0, 1, n - 1) != narrow(rows, 0, 0, n - 1)])


def _grouped(
    rows: NDArray,
    changes: NDArray,
    order: NDArray | None,
    shape: Sequence[Dim],
    return_inverse: bool,
    return_counts: bool,
) -> Any:
    """The first of the rows of each group, the groups of elements in `order`, the groups' sizes."""
    n, device = rows.shape[0], rows.device
    group = cumsum(changes.astype(int64), 0) - 1
    realize(*[part for part in (rows, changes, group, order) if part is not None])
    count = int(group[-1].item()) + 1 if n else 0
    # What is not the first of a group goes to a place that does not exist.
    place = primitive.where(changes.value, group.value, constant(count, int64, device))

    def firsts(x: NDArray) -> NDArray:
        base = zeros((count, *x.shape[1:]), x.dtype, device)
        if 0 in base.shape:
            return base
        return wrap(primitive.scatter(base.value, [place], x.value, [0], "set"))

    results = [firsts(rows)]
    if return_inverse:
        inverse = group
        if order is not None and n:
            base = zeros((n,), int64, device).value
            inverse = wrap(primitive.scatter(base, [order.value], group.value, [0], "set"))
        results.append(inverse.reshape(tuple(shape)))
    if return_counts:
        starts = firsts(wrap(primitive.iota(n, device)))
        end = wrap(primitive.broadcast(constant(int(n), int64, device), (min(count, 1),)))
        results.append(concat([starts[1:], end]) - starts)
    return tuple(results) if len(results) > 1 else results[0]


def _moved(found: Any, axis: int) -> Any:
    if isinstance(found, tuple):
        return (moveaxis(found[0], 0, axis), *found[1:])
    return moveaxis(found, 0, axis)


def _row_ranks(rows: NDArray) -> NDArray:
    """Numbers that order and tell apart rows as their elements do, from the first to the last.

    Each column is ranked; then two neighbouring columns of ranks become one, until there is one.
    """
    n = rows.shape[0]
    if 0 in rows.shape:
        return zeros((n,), int64, rows.device)
    columns = _ranks(moveaxis(rows.reshape(n, -1), 0, -1))
    while columns.shape[0] > 1:
        count = int(columns.shape[0])
        pairs = narrow(columns, 0, 0, count // 2 * 2).reshape(count // 2, 2, n)
        merged = _ranks(pairs[:, 0] * n + pairs[:, 1])
        last = narrow(columns, 0, count // 2 * 2, count % 2)
        columns = concat([merged, last]) if count % 2 else merged
    return columns[0]


def _ranks(x: NDArray) -> NDArray:
    """How many different elements of its row come before each element."""
    values, order = sort(x)
    ranks = cumsum(moveaxis(_changes(moveaxis(values, -1, 0)), 0, -1).astype(int64), -1) - 1
    rows = primitive.along(primitive.iota(x.shape[0], x.device), 0, x.shape)
    base = zeros(x.shape, int64, x.device).value
    scattered = primitive.scatter(base, [rows, order.value], ranks.value, [0, 1], "set")
    return wrap(scattered).realize()


# ---- common parts


def along(x: NDArray, indices: NDArray, axis: int) -> NDArray:
    """The elements at positions along an axis that are known to exist."""
    a = normal_axis("sort", axis, x.ndim)
    places = [
        indices.value if d == a else primitive.along(primitive.iota(n, x.device), d, indices.shape)
        for d, n in enumerate(indices.shape)
    ]
    return wrap(primitive.gather_at(x.value, places, range(x.ndim)))


def with_last(name: str, x: NDArray, axis: int) -> tuple[NDArray, int]:
    """The array with an axis moved to the end, and the axis; a number is a row of one."""
    if x.dtype.is_complex:
        raise TypeError(f"{name}: {x.dtype} numbers have no order; take the real part or abs")
    a = normal_axis(name, axis, max(1, x.ndim))
    return (moveaxis(x, a, -1) if x.shape else x.unsqueeze(0)), a


def _back(found: Sequence[Any], axis: int) -> Sorted:
    values, indices = (moveaxis(wrap(value), -1, axis) for value in found)
    return Sorted(values, indices)


def _require_rank(name: str, k: int, least: int, n: Dim, x: NDArray) -> None:
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"{name}: k is an integer, not {k!r}")
    if k < least or k > n:
        raise ValueError(f"{name}: k = {k} is not between {least} and {n}, shape {x.shape}")


def _require_data(name: str, x: NDArray) -> None:
    if x.dtype.is_complex:
        raise TypeError(f"{name}: {x.dtype} numbers have no order; take the real part or abs")
    need_contents(f"{name}: how many elements there are", "call it outside")


__all__ = [
    "argsort", "isin", "kthvalue", "lexsort", "msort", "sort", "topk", "unique",
    "unique_consecutive",
]  # fmt: skip
