"""Coordinates: grids of positions, flat positions and back, and places in sorted arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import int32, int64
from genesis.ir.size import Dim, below, bounds, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops import elementwise
from genesis.ndarray.ops.creation import asarray
from genesis.ndarray.ops.elementwise import floor_divide, remainder
from genesis.ndarray.ops.gather_scatter import gather
from genesis.ndarray.ops.movement import expand, swapaxes
from genesis.ndarray.ops.normalize_index import positions
from genesis.ndarray.ops.special.formula import Term


def ravel_multi_index(indices: Sequence[Any], shape: Sequence[int]) -> NDArray:
    """Positions in a flat array from positions along each of its axes."""
    if len(indices) != len(shape):
        raise ValueError(f"ravel_multi_index: {len(indices)} indices for the shape {tuple(shape)}")
    arrays = [asarray(i) for i in indices]
    total: Any = 0
    for axis, (index, extent) in enumerate(zip(arrays, shape, strict=True)):
        where = wrap(positions("ravel_multi_index", index, extent, axis, index.device))
        total = total * extent + where
    result: NDArray = total
    return result


def unravel_index(index: Any, shape: Sequence[int]) -> tuple[NDArray, ...]:
    """Positions along each axis of an array of `shape` from positions in the flat array."""
    flat = asarray(index)
    where = wrap(positions("unravel_index", flat, product(shape), 0, flat.device))
    found: list[NDArray] = []
    for extent in reversed(shape):
        found.append(remainder(where, extent))
        where = floor_divide(where, extent)
    return tuple(reversed(found))


def tril_indices(rows: int, columns: int | None = None, offset: int = 0) -> NDArray:
    """The positions on and below a diagonal: row numbers, then column numbers."""
    return asarray(np.stack(np.tril_indices(rows, offset, columns), dtype=np.int64))


def triu_indices(rows: int, columns: int | None = None, offset: int = 0) -> NDArray:
    """The positions on and above a diagonal: row numbers, then column numbers."""
    return asarray(np.stack(np.triu_indices(rows, offset, columns), dtype=np.int64))


def meshgrid(*vectors: NDArray, indexing: str = "ij") -> tuple[NDArray, ...]:
    """Each vector along an axis of its own, repeated over the others; "xy" exchanges the first two.

    >>> from genesis import ndarray as nd
    >>> nd.meshgrid(nd.arange(2), nd.arange(3))[1].tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing is 'ij' or 'xy', not {indexing!r}")
    if any(v.ndim > 1 for v in vectors):
        raise ValueError(f"meshgrid: expected vectors, got {[v.shape for v in vectors]}")
    flat = [v.reshape(-1) for v in vectors]
    shape = tuple(v.shape[0] for v in flat)
    grids = [
        expand(v.reshape(tuple(v.shape[0] if k == d else 1 for k in range(len(flat)))), shape)
        for d, v in enumerate(flat)
    ]
    if indexing == "xy" and len(grids) > 1:
        grids = [swapaxes(g, 0, 1) for g in grids]
    return tuple(grids)


# ---- sorted arrays


def searchsorted(
    ordered: NDArray,
    values: Any,
    right: bool = False,
    sorter: NDArray | None = None,
    out_int32: bool = False,
) -> NDArray:
    """Where values belong in rows that are sorted along the last axis: before equal elements.

    With `right` after them. `sorter` are positions that sort `ordered`. NaN belongs at the end.

    >>> from genesis import ndarray as nd
    >>> nd.searchsorted(nd.array([1.0, 3.0, 5.0]), nd.array([3.0, 9.0])).tolist()
    [1, 3]
    """
    wanted = asarray(values, device=ordered.device)
    if sorter is not None:
        ordered = gather(ordered, sorter, -1)
    rows = ordered.shape[:-1]
    if ordered.ndim == 0 or (rows and wanted.shape[:-1] != rows):
        raise ValueError(
            f"searchsorted: rows of shape {ordered.shape} and values of shape {wanted.shape} "
            "must agree but for the last axis"
        )
    target = elementwise.common_dtype((ordered, wanted))
    lines, sought = (primitive.cast(x.value, target) for x in (ordered, wanted))
    found = _search(lines, sought, right)
    return wrap(primitive.cast(found, int32 if out_int32 else int64))


def bucketize(values: Any, boundaries: NDArray, right: bool = False) -> NDArray:
    """Which interval between sorted boundaries a value lies in; `searchsorted` the other way."""
    if boundaries.ndim != 1:
        raise ValueError(f"bucketize: boundaries are a vector, not of shape {boundaries.shape}")
    return searchsorted(boundaries, values, right)


def _search(rows: Value, values: Value, right: bool) -> Value:
    """A binary search without branches: the answer is built from its highest bit down."""
    device, shape = rows.device, values.shape
    size: Dim = rows.shape[-1]
    axes = range(len(rows.shape))
    places = [
        primitive.along(primitive.iota(n, device), d, shape) for d, n in enumerate(rows.shape[:-1])
    ]
    length = Term(primitive.extent(size, int64, device))
    found = Term(primitive.broadcast(primitive.constant(0, int64, device), shape))
    step = 1
    while not below(size, 2 * step) and step < bounds(size)[1]:
        step *= 2
    while step and size != 0:
        ahead = found + step
        element = primitive.gather_at(rows, [*places, (ahead - 1).value], axes)
        # Not "less": that is false of NaN, which belongs at the end.
        beyond = Term(values).binary(ops.LT if right else ops.LE, Term(element))
        smaller = ~beyond
        found = ((ahead <= length) & smaller).where(ahead, found)
        step >>= 1
    return found.value


__all__ = [
    "bucketize", "meshgrid", "ravel_multi_index", "searchsorted", "tril_indices", "triu_indices",
    "unravel_index",
]  # fmt: skip
