"""Masks: selecting by a condition.

Where the result has the shape of the input a mask is a `where` and nothing more. How many elements
a mask selects is data: those operations compute that number first, unless `size` says how many
elements the result shall have. The selected positions are compacted by a running count, which is
where each goes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import bool_, int64
from genesis.ir.size import Dim, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant
from genesis.ndarray.core.value import Value, need_contents, thread
from genesis.ndarray.ops import elementwise
from genesis.ndarray.ops.creation import asarray
from genesis.ndarray.ops.cumulative import cumsum
from genesis.ndarray.ops.indexing import fitted
from genesis.ndarray.ops.movement import stack
from genesis.ndarray.ops.reduction import sum as total


def masked_fill(x: NDArray, mask: NDArray, value: Any) -> NDArray:
    """`x` with one number where the mask holds."""
    _require_mask("masked_fill", mask)
    new = fitted(value, (), x)
    shape = elementwise.broadcast_shapes("masked_fill", x.shape, mask.shape)
    condition, old = (primitive.broadcast(v, shape) for v in (mask.value, x.value))
    return wrap(primitive.where(condition, new, old))


def masked_select(x: NDArray, mask: NDArray, size: int | None = None, fill: Any = 0) -> NDArray:
    """The elements where the mask holds, as a vector.

    With `size` it has that many elements: the first ones, or `fill` where there are too few.
    """
    _require_mask("masked_select", mask)
    shape = elementwise.broadcast_shapes("masked_select", x.shape, mask.shape)
    flat, condition = (
        primitive.reshape(primitive.broadcast(v, shape), (product(shape),))
        for v in (x.value, mask.value)
    )
    return wrap(_compacted("masked_select", flat, condition, size, fitted(fill, (), x)))


def masked_scatter(x: NDArray, mask: NDArray, source: NDArray) -> NDArray:
    """`x` with the elements of `source`, in order, where the mask holds."""
    _require_mask("masked_scatter", mask)
    shape = elementwise.broadcast_shapes("masked_scatter", x.shape, mask.shape)
    if source.dtype is not x.dtype:
        raise TypeError(f"masked_scatter: {source.dtype} does not go into {x.dtype}")
    condition = primitive.broadcast(mask.value, shape)
    if thread.recorder is None:
        wanted = int(total(wrap(condition).astype(int64)).item())
        if wanted > product(source.shape):
            raise ValueError(
                f"masked_scatter: the mask selects {wanted} elements, the source has only "
                f"{product(source.shape)}"
            )
    old = primitive.broadcast(x.value, shape)
    if product(source.shape) == 0 or 0 in shape:
        return wrap(old)
    order = primitive.reshape(_before(primitive.reshape(condition, (product(shape),))), shape)
    flat = primitive.reshape(source.value, (product(source.shape),))
    return wrap(primitive.where(condition, primitive.gather(flat, order, 0), old))


def nonzero(x: NDArray, as_tuple: bool = False, size: int | None = None) -> Any:
    """The positions of the elements that are not zero: a row of a matrix for each.

    With `as_tuple` the columns, one vector for each axis. With `size` there are that many: the
    first ones, or zeros where there are too few.

    >>> from genesis import ndarray as nd
    >>> nd.nonzero(nd.array([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    count = product(x.shape)
    flat = primitive.reshape(_truth(x), (count,))
    at = primitive.iota(count, x.device)
    where = _compacted("nonzero", at, flat, size, constant(0, int64, x.device))
    found: list[NDArray] = []
    for extent in reversed(x.shape):
        divisor = primitive.extent(extent, int64, x.device)
        found.append(wrap(primitive.elementwise(ops.MOD, where, divisor)))
        where = primitive.elementwise(ops.FLOORDIV, where, divisor)
    columns = tuple(reversed(found))
    if as_tuple:
        return columns
    if not columns:
        return wrap(primitive.reshape(where, (where.shape[0], 1)))[:, :0]
    return stack(columns, axis=1)


def argwhere(x: NDArray, size: int | None = None) -> NDArray:
    """The positions of the elements that are not zero, a row for each."""
    found: NDArray = nonzero(x, size=size)
    return found


def count_nonzero(x: NDArray, axis: Any = None) -> NDArray:
    """How many elements are not zero, over axes."""
    return total(wrap(cast(_truth(x), int64)), axis)


def write(x: NDArray, mask: Any, value: Any) -> None:
    """``x[mask] = value``: a choice by element, unless there is a value for each selected one."""
    held = asarray(mask, device=x.device)
    if isinstance(value, list):
        value = np.asarray(value)
    rank = len(getattr(value, "shape", ()))
    rest = x.shape[held.ndim :]
    if rank > len(rest) and value.shape[0] == 1 and rank == len(rest) + 1:
        value = asarray(value)[0]
        rank -= 1
    if rank > len(rest):
        where = nonzero(held, as_tuple=True)
        x[where] = value
        return
    new = fitted(value, rest, x)
    condition = primitive.reshape(held.value, (*held.shape, *[1] * len(rest)))
    condition = primitive.expand(condition, x.shape)
    x._write(primitive.where(condition, primitive.broadcast(new, x.shape), x.value))


def _compacted(name: str, flat: Value, mask: Value, size: int | None, fill: Value) -> Value:
    """The elements of a vector where a mask holds, in order."""
    count: Dim
    if size is not None:
        count = size
    else:
        need_contents(
            f"{name}: how many elements there are",
            "give their number as size=, or select with where",
        )
        count = int(total(wrap(cast(mask, int64))).item())
    base = primitive.broadcast(fill, (count,))
    if count == 0 or 0 in flat.shape:
        return base
    # What is not selected goes to a place that does not exist.
    place = primitive.where(mask, _before(mask), primitive.extent(count, int64, flat.device))
    return primitive.scatter(base, [place], flat, [0], "set")


def _before(mask: Value) -> Value:
    """How many elements before each one are selected."""
    running = cumsum(wrap(cast(mask, int64)), 0).value
    return primitive.elementwise(ops.SUB, running, cast(mask, int64))


def _truth(x: NDArray) -> Value:
    return x.value if x.dtype is bool_ else elementwise.not_equal(x, 0).value


def _require_mask(name: str, mask: NDArray) -> None:
    if mask.dtype is not bool_:
        raise TypeError(f"{name}: the mask must be bool, not {mask.dtype}")


__all__ = ["argwhere", "count_nonzero", "masked_fill", "masked_scatter", "masked_select", "nonzero"]
