"""Operators that read and write where data says."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import Host, Operand, operator
from genesis.onnx.values import as_host, as_tensor, ints
from genesis.tensor.tensor import Tensor


def _from_start(indices: Any, extent: Any) -> Any:
    """Indices that count from the end, counted from the beginning."""
    indices = indices.to(dtypes.int64)
    return fn.where(indices < 0, indices + extent, indices)


@operator("Gather")
def gather(x: Any, indices: Operand, *, axis: int = 0) -> Any:
    """Slices of an axis, in the shape of the indices."""
    axis %= x.ndim
    if isinstance(indices, np.ndarray) and indices.size == 1 and indices.dtype != object:
        place = int(indices.reshape(()))
        if not -x.shape[axis] <= place < x.shape[axis]:
            raise IndexError(f"index {place} of axis {axis} with {x.shape[axis]} elements")
        picked = fn.select(x, axis, place)
        for _ in range(indices.ndim):
            picked = fn.unsqueeze(picked, axis)
        return picked
    places = _from_start(as_tensor(indices), x.shape[axis])
    taken = fn.index_select(x, axis, places.reshape(-1))
    return taken.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


@operator("GatherElements")
def gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    """An element for each index."""
    return fn.gather(x, axis, _from_start(indices, x.shape[axis]))


@operator("GatherND")
def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    """Slices at places with several coordinates."""
    depth = int(indices.shape[-1])
    tail = x.shape[batch_dims + depth :]
    batch = x.shape[:batch_dims]
    flat = x.reshape(_product(x.shape[: batch_dims + depth]), *tail)
    places = _flat_places(indices, x.shape[batch_dims : batch_dims + depth])
    if batch_dims:
        from genesis import arange

        each = _product(x.shape[batch_dims : batch_dims + depth])
        base = arange(_product(batch)).reshape(*batch, *(1,) * (places.ndim - batch_dims)) * each
        places = places + base
    return fn.index_select(flat, 0, places.reshape(-1)).reshape(*indices.shape[:-1], *tail)


def _product(extents: Any) -> Any:
    total: Any = 1
    for n in extents:
        total = total * n
    return total


def _flat_places(indices: Any, extents: Any) -> Any:
    """Places with coordinates as places in a row of all."""
    place: Any = 0
    for k, n in enumerate(extents):
        place = place * n + _from_start(fn.select(indices, -1, k), n)
    return place if isinstance(place, Tensor) else fn.sum(indices, -1).to(dtypes.int64)


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements")
@operator("Scatter")
def scatter_elements(
    x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none"
) -> Any:
    """A tensor with other elements at some places."""
    places = _from_start(indices, x.shape[axis])
    if reduction == "none":
        return fn.scatter(x, axis, places, updates)
    return fn.scatter_reduce(x, axis, places, updates, _REDUCTIONS[reduction])


@operator("ScatterND")
def scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    """A tensor with other slices at some places."""
    depth = int(indices.shape[-1])
    tail = x.shape[depth:]
    flat = x.reshape(_product(x.shape[:depth]), _product(tail))
    places = _flat_places(indices, x.shape[:depth]).reshape(-1, 1)
    values = updates.reshape(places.shape[0], _product(tail))
    places = places.expand(tuple(values.shape))
    if reduction == "none":
        return fn.scatter(flat, 0, places, values).reshape(*x.shape)
    return fn.scatter_reduce(flat, 0, places, values, _REDUCTIONS[reduction]).reshape(*x.shape)


@operator("TensorScatter")
def tensor_scatter(
    past: Any, update: Any, starts: Any = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """A cache with new entries from given places on."""
    from genesis import arange, zeros

    axis %= past.ndim
    moved, new = fn.movedim(past, axis, 1), fn.movedim(update, axis, 1)
    begin = starts if starts is not None else zeros(past.shape[0], dtype="int64")
    places = begin.reshape(-1, 1) + arange(new.shape[1]).reshape(1, -1)
    if mode == "circular":
        places = places % moved.shape[1]
    places = places.reshape(*places.shape, *(1,) * (past.ndim - 2)).expand(tuple(new.shape))
    return fn.movedim(fn.scatter(moved, 1, places, new), 1, axis)


@operator("NonZero")
def nonzero(x: Any) -> Any:
    """The places of what is not zero, a row for each axis."""
    return np.array(np.nonzero(as_host(x)), np.int64).reshape(x.ndim, -1)


@operator("Compress")
def compress(x: Any, condition: Host, *, axis: int | None = None) -> Any:
    """The slices for which a condition holds."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    return fn.index_select(x, axis, as_tensor(np.nonzero(condition)[0]))


@operator("OneHot")
def one_hot(indices: Any, depth: Host, values: Any, *, axis: int = -1) -> Any:
    """One value at the place of an index, another everywhere else."""
    from genesis import arange

    n = int(depth.reshape(()))
    axis %= indices.ndim + 1
    places = fn.unsqueeze(_from_start(indices, n), axis)
    wide = arange(n).reshape(*(n if k == axis else 1 for k in range(indices.ndim + 1)))
    return fn.where(places == wide, values[1], values[0])


@operator("TopK")
def topk(x: Any, k: Host, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """The greatest or least elements of an axis, and where they are."""
    found = fn.sort(x, axis, bool(largest), stable=True)
    count = int(np.asarray(k).reshape(()))
    return fn.narrow(found[0], axis, 0, count), fn.narrow(found[1], axis, 0, count)


@operator("Unique")
def unique(x: Operand, *, axis: int | None = None, sorted: int = 1) -> Any:
    """Elements or slices without repetitions, and where they are."""
    array = as_host(x)
    y, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        y = np.take(y, order, axis or 0)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    return y, *(a.astype(np.int64) for a in (first, inverse, counts))


__all__ = ["ints"]
