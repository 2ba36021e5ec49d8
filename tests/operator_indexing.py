"""Cases of indexing by data: gathers, scatters, masks and searches."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from genesis import ndarray as nd
from tests.operator_cases import COUNTED, REAL, case
from tests.operator_draw import (
    FLOATS,
    Draw,
    Operand,
)

# ---- indexing: gather and scatter


def _indexed(d: Draw, dtype: str, least: int = 1) -> tuple[Operand, Operand, int]:
    """An array, positions along one of its axes in an array of the same rank, and the axis."""
    x = d.array(d.shape(1, least=least), dtype)
    axis = d.axis(x.n.shape)
    shape = [d.integer(0, n) for n in x.n.shape]
    shape[axis] = d.integer(0, 6)
    return x, d.index(shape, x.n.shape[axis]), axis


@case("gather")
def _gather(d: Draw, name: str) -> None:
    for dtype in ("bool", "int8", *REAL, "complex64"):
        x, index, axis = _indexed(d, dtype)
        d.same(nd.gather(x.a, index.a, axis), torch.gather(x.t, axis, index.t.long()))


@case()
def _take_along_axis(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    index = d.index(x.n.shape, x.n.shape[axis], negative=True)
    d.same(nd.take_along_axis(x.a, index.a, axis), np.take_along_axis(x.n, index.n, axis))


@case()
def _take(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    index = d.index(d.shape(), x.n.size, negative=True)
    d.same(nd.take(x.a, index.a), np.take(x.n, index.n))
    axis = d.axis(x.n.shape)
    index = d.index(d.shape(0, 2), x.n.shape[axis], negative=True)
    d.same(nd.take(x.a, index.a, axis), np.take(x.n, index.n, axis))


@case()
def _index_select(d: Draw) -> None:
    for dtype in ("bool", "int16", *FLOATS, "complex128"):
        x = d.array(d.shape(1, least=1), dtype)
        axis = d.axis(x.n.shape)
        index = d.index((d.integer(0, 6),), x.n.shape[axis])
        d.same(nd.index_select(x.a, index.a, axis), torch.index_select(x.t, axis, index.t))


@case()
def _embedding(d: Draw) -> None:
    x = d.array((5, d.integer(0, 4)), d.pick(FLOATS))
    index = d.index(d.shape(), 5)
    d.same(nd.embedding(x.a, index.a), F.embedding(index.t.long(), x.t))


@case()
def _embedding_gradient(d: Draw) -> None:
    index = d.index(d.shape(0, 2), 5)
    g = d.array((*index.n.shape, 3), "float64")
    want = np.zeros((6, 3))
    np.add.at(want, index.n.astype(np.int64), g.n)
    d.same(nd.embedding_gradient(g.a, index.a, 6), want, 4)


@case("scatter_add")
def _scatter_add(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x, index, axis = _indexed(d, dtype)
        y = d.array(index.n.shape, dtype)
        d.same(nd.scatter_add(x.a, index.a, y.a, axis),
               torch.scatter_add(x.t, axis, index.t.long(), y.t), 4)  # fmt: skip


@case("scatter_reduce")
def _scatter_reduce(d: Draw, name: str) -> None:
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        x, index, axis = _indexed(d, "float64")
        y = d.array(index.n.shape, "float64")
        own = d.pick((True, False))
        got = nd.scatter_reduce(x.a, index.a, y.a, axis, reduce, own)
        want = torch.scatter_reduce(x.t, axis, index.t.long(), y.t, reduce, include_self=own)
        d.same(got, want, 4)


@case("scatter")
def _scatter(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    index = d.permutation(x.n.shape, axis)
    y = d.array(x.n.shape)
    d.same(nd.scatter(x.a, index.a, y.a, axis), torch.scatter(x.t, axis, index.t, y.t))


def _rows(d: Draw, dtype: str = "float32") -> tuple[Operand, Operand, Operand, int]:
    """An array, distinct positions along an axis, and as many slices of it."""
    x = d.array(d.shape(1, least=1), dtype)
    axis = d.axis(x.n.shape)
    n = x.n.shape[axis]
    count = d.integer(0, n)
    index = d.rng.permutation(n)[:count]
    shape = list(x.n.shape)
    shape[axis] = count
    return x, Operand(nd.array(index), index), d.array(shape, dtype), axis


@case()
def _index_add(d: Draw) -> None:
    for dtype in ("int32", *FLOATS):
        x, index, y, axis = _rows(d, dtype)
        d.same(nd.index_add(x.a, index.a, y.a, axis, alpha=2),
               torch.index_add(x.t, axis, index.t, y.t, alpha=2))  # fmt: skip


@case()
def _index_copy(d: Draw) -> None:
    x, index, y, axis = _rows(d)
    d.same(nd.index_copy(x.a, index.a, y.a, axis), torch.index_copy(x.t, axis, index.t, y.t))


@case()
def _index_fill(d: Draw) -> None:
    x, index, _, axis = _rows(d)
    d.same(nd.index_fill(x.a, index.a, 2.5, axis), torch.index_fill(x.t, axis, index.t, 2.5))


@case()
def _index_reduce(d: Draw) -> None:
    for reduce in ("prod", "mean", "amax", "amin"):
        x, index, y, axis = _rows(d, "float64")
        d.same(nd.index_reduce(x.a, index.a, y.a, reduce, axis),
               torch.index_reduce(x.t, axis, index.t, y.t, reduce))  # fmt: skip


@case()
def _put(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    index = d.rng.permutation(x.n.size)[: d.integer(0, x.n.size)]
    y = d.array(index.shape)
    for more in (False, True):
        d.same(nd.put(x.a, nd.array(index), y.a, more),
               x.t.clone().put_(torch.from_numpy(index), y.t, more))  # fmt: skip


@case()
def _select(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    at = d.integer(-x.n.shape[axis], x.n.shape[axis] - 1)
    d.same(nd.select(x.a, at, axis), torch.select(x.t, axis, at))


@case()
def _select_scatter(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    at = d.integer(-x.n.shape[axis], x.n.shape[axis] - 1)
    part = d.array(torch.select(x.t, axis, at).shape)
    d.same(nd.select_scatter(x.a, part.a, at, axis), torch.select_scatter(x.t, part.t, axis, at))


@case()
def _slice_scatter(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    n = x.n.shape[axis]
    start, step = d.integer(0, n), d.integer(1, 3)
    shape = list(x.n.shape)
    shape[axis] = len(range(start, n, step))
    part = d.array(shape)
    d.same(nd.slice_scatter(x.a, part.a, axis, start, n, step),
           torch.slice_scatter(x.t, part.t, axis, start, n, step))  # fmt: skip


@case()
def _diagonal_scatter(d: Draw) -> None:
    x = d.array(d.shape(2, least=2))
    k = d.integer(-1, 1)
    part = d.array(torch.diagonal(x.t, k).shape)
    d.same(nd.diagonal_scatter(x.a, part.a, k), torch.diagonal_scatter(x.t, part.t, k))


@case()
def _dynamic_slice(d: Draw) -> None:
    x = d.array((7, 5))
    i, j = d.integer(0, 4), d.integer(0, 3)
    d.same(nd.dynamic_slice(x.a, [i, nd.array(j)], (3, 2)), x.n[i : i + 3, j : j + 2])


@case()
def _dynamic_update(d: Draw) -> None:
    x, y = d.array((7, 5)), d.array((3, 2))
    i, j = d.integer(0, 4), d.integer(0, 3)
    want = x.n.copy()
    want[i : i + 3, j : j + 2] = y.n
    d.same(nd.dynamic_update(x.a, y.a, [nd.array(i), j]), want)


@case()
def _masked_fill(d: Draw) -> None:
    for dtype in ("bool", "int8", *REAL, "complex64"):
        x = d.array(d.shape(1), dtype)
        mask = d.array(x.n.shape[1:], "bool")
        d.same(nd.masked_fill(x.a, mask.a, 1), torch.masked_fill(x.t, mask.t, 1))


@case()
def _masked_select(d: Draw) -> None:
    for dtype in ("bool", "int8", *FLOATS):
        x = d.array(d.shape(1), dtype)
        mask = d.array(x.n.shape, "bool")
        d.same(nd.masked_select(x.a, mask.a), torch.masked_select(x.t, mask.t))


@case()
def _masked_scatter(d: Draw) -> None:
    x = d.array(d.shape(1))
    mask = d.array(x.n.shape, "bool")
    source = d.array((x.n.size,))
    d.same(nd.masked_scatter(x.a, mask.a, source.a), torch.masked_scatter(x.t, mask.t, source.t))


@case("nonzero", "argwhere")
def _nonzero(d: Draw, name: str) -> None:
    for dtype in ("bool", "int32", "float32"):
        x = d.array(d.shape(1), dtype)
        d.same(getattr(nd, name)(x.a), getattr(torch, name)(x.t))


@case()
def _one_hot(d: Draw) -> None:
    index = d.index(d.shape(), 6)
    d.same(nd.one_hot(index.a, 6), F.one_hot(index.t.long(), 6))


@case()
def _bincount(d: Draw) -> None:
    index = d.index((d.integer(1, 20),), 6)
    w = d.array(index.n.shape, "float64")
    d.same(nd.bincount(index.a, minlength=3), torch.bincount(index.t, minlength=3))
    d.same(nd.bincount(index.a, w.a), torch.bincount(index.t, w.t), 4)


@case("segment_sum", "segment_mean", "segment_max", "segment_min")
def _segment(d: Draw, name: str) -> None:
    x = d.array((d.integer(1, 9), *d.shape(0, 2)), "float64")
    index = d.index(x.n.shape[:1], 4)
    count = 4
    reduce = {"segment_sum": "sum", "segment_mean": "mean", "segment_max": "amax",
              "segment_min": "amin"}[name]  # fmt: skip
    empty = {"segment_max": -np.inf, "segment_min": np.inf}.get(name, 0.0)
    start = torch.full((count, *x.n.shape[1:]), empty, dtype=torch.float64)
    where = index.t.long().reshape(-1, *(1,) * (x.n.ndim - 1)).expand(x.n.shape)
    want = torch.scatter_reduce(start, 0, where, x.t, reduce, include_self=False)
    d.same(getattr(nd, name)(x.a, index.a, count), want, 4)


@case("searchsorted", "bucketize")
def _searchsorted(d: Draw, name: str) -> None:
    for dtype in ("int32", *FLOATS):
        edges = np.sort(d.numbers((d.integer(0, 9),), dtype))
        x = d.array(d.shape(), dtype)
        right = d.pick((True, False))
        given = (nd.array(edges), x.a) if name == "searchsorted" else (x.a, nd.array(edges))
        want = np.searchsorted(edges, x.n, "right" if right else "left")
        d.same(getattr(nd, name)(*given, right=right), np.asarray(want, np.int64))


@case()
def _ravel_multi_index(d: Draw) -> None:
    shape = (3, 4, 5)
    parts = [d.index((6,), n) for n in shape]
    want = np.ravel_multi_index([p.n for p in parts], shape)
    d.same(nd.ravel_multi_index([p.a for p in parts], shape), np.asarray(want, np.int64))


@case()
def _unravel_index(d: Draw) -> None:
    index = d.index(d.shape(), 60)
    want = np.unravel_index(index.n.astype(np.int64), (3, 4, 5))
    d.same(nd.unravel_index(index.a, (3, 4, 5)), [np.asarray(w, np.int64) for w in want])
