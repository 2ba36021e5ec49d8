"""Indexing: reading at positions that are data, writing there, and parts replaced.

An operator's list of indices has None where a dimension is taken whole; bool and uint8 tensors in
it are masks. All tensors in it count for where their dimensions go, also those of shape ().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.ir.dtype import bool_, float16, float32, uint8
from genesis.ir.size import Dim, product
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import Implementation, Unsupported, implements, operators, table

Indices = Sequence[NDArray | None]


def _key(indices: Indices) -> tuple[Any, ...]:
    """The indices of an operator as those of ``x[...]``."""
    wide = any(k is not None and k.ndim > 0 for k in indices)
    key: list[Any] = []
    for k in indices:
        if k is None:
            key.append(slice(None))
            continue
        if k.dtype in (bool_, uint8):
            if k.ndim == 0:
                raise Unsupported("a mask without dimensions among indices")
            k = nd.astype(k, bool_)
        elif k.ndim == 0 and wide:
            k = nd.reshape(k, (1,))  # one without dimensions would count as an integer
        key.append(k)
    return tuple(key)


@implements("index.Tensor", "_unsafe_index.Tensor")
def _index(x: NDArray, indices: Indices) -> Any:
    return functional.getitem(x, _key(indices))


@implements("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(
    x: NDArray, indices: Indices, values: NDArray, accumulate: bool = False, unsafe: bool = False
) -> Any:
    return functional.index_put(x, _key(indices), values, accumulate)


@implements("_unsafe_masked_index")
def _masked_index(x: NDArray, mask: NDArray, indices: Indices, fill: Any) -> NDArray:
    """What is masked out may be out of range: it is not read."""
    return nd.masked_fill(_index(x, _inside(x, indices)), ~mask, fill)


def _inside(x: NDArray, indices: Indices) -> Indices:
    """Indices moved into their dimensions."""
    return [
        None if k is None else nd.clip(k, -extent, extent - 1)
        for k, extent in zip(indices, x.shape, strict=False)
    ]


# ---- along a dimension

table(functional, """
    index_add index_copy index_fill.int_Scalar index_fill.int_Tensor index_select
    put take take_along_dim
""")  # fmt: skip


# ---- masks, one part replaced


def _replaced(scatter: Implementation) -> Implementation:
    return lambda x, src, *where: scatter(x, nd.astype(src, x.dtype), *where)


table(functional, "slice_scatter select_scatter diagonal_scatter", _replaced)


# ---- tables


@implements("embedding_dense_backward")
def _embedding_backward(
    grad: NDArray, indices: NDArray, num_weights: Dim, padding_idx: int, scale_grad_by_freq: bool
) -> NDArray:
    if scale_grad_by_freq:
        ones = nd.ones((product(indices.shape),), grad.dtype.accumulator, grad.device)
        counts = nd.segment_sum(ones, nd.reshape(indices, (-1,)), num_weights)
        grad = grad / nd.unsqueeze(nd.astype(nd.take(counts, indices), grad.dtype), -1)
    skipped = padding_idx if padding_idx >= 0 else None
    return nd.embedding_gradient(grad, indices, num_weights, skipped)


# ---- bags of rows

_SUM, _MEAN, _MAX = range(3)


def _bags(indices: NDArray, offsets: NDArray, count: Dim) -> NDArray:
    """The number of the bag that each index is in."""
    places = nd.arange(indices.shape[0], device=indices.device)
    bag = nd.searchsorted(offsets[:count], places, right=True) - 1
    return nd.astype(nd.maximum(bag, 0), offsets.dtype)


@implements("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight: NDArray,
    indices: NDArray,
    offsets: NDArray,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: NDArray | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """The bags folded, the bag of each index, the sizes of bags, and where a maximum was."""
    count = offsets.shape[0] - include_last_offset
    bag = _bags(indices, offsets, count)
    counted = nd.ones(indices.shape, bool_, indices.device)
    if padding_idx >= 0:
        counted = indices != padding_idx
    size = nd.segment_sum(nd.astype(counted, offsets.dtype), bag, count)
    rows = nd.astype(nd.embedding(weight, indices), weight.dtype.accumulator)
    if per_sample_weights is not None:
        rows = rows * nd.unsqueeze(per_sample_weights, -1)
    if mode == _MAX:
        folded, best = _greatest(rows, indices, bag, counted, count)
    else:
        folded = nd.segment_sum(nd.where(nd.unsqueeze(counted, -1), rows, 0), bag, count)
        if mode == _MEAN:
            folded = folded / nd.astype(nd.unsqueeze(nd.maximum(size, 1), -1), folded.dtype)
        best = nd.zeros(size.shape, offsets.dtype, offsets.device)
    plain = padding_idx < 0 and weight.dtype in (float32, float16)
    if mode == _SUM and plain:
        bag = bag[:0]  # PyTorch's tracer does not expect it where nothing but a sum needs it
    return nd.astype(folded, weight.dtype), bag, size, best


def _greatest(
    rows: NDArray, indices: NDArray, bag: NDArray, counted: NDArray, count: Dim
) -> tuple[NDArray, NDArray]:
    """The greatest of each bag by element, and the index it is from; 0 of an empty bag."""
    there = nd.unsqueeze(counted, -1)
    best = nd.segment_max(nd.where(there, rows, rows.dtype.min), bag, count)
    wins = there & (rows == nd.embedding(best, bag))
    places = nd.unsqueeze(nd.arange(bag.shape[0], device=bag.device), -1)
    first = nd.segment_min(nd.where(wins, places, bag.shape[0]), bag, count)
    found = first < bag.shape[0]
    where = nd.take(indices, nd.where(found, first, 0))
    return nd.where(found, best, 0), nd.astype(nd.where(found, where, 0), bag.dtype)


@implements("_embedding_bag_backward")
def _embedding_bag_backward(
    grad: NDArray, indices: NDArray, offsets: NDArray, offset2bag: NDArray, *how: Any
) -> NDArray:
    if how[5]:
        raise Unsupported("a sparse gradient of an embedding bag")
    bags = _bags(indices, offsets, grad.shape[0])
    return _bag_dense_backward(grad, indices, bags, *how[:5], *how[6:])


@implements("_embedding_bag_dense_backward")
def _bag_dense_backward(
    grad: NDArray,
    indices: NDArray,
    offset2bag: NDArray,
    bag_size: NDArray,
    maximum_indices: NDArray,
    num_weights: Dim,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: NDArray | None,
    padding_idx: int = -1,
) -> NDArray:
    if mode == _MAX:
        full = nd.unsqueeze(bag_size, -1) > 0
        base = nd.zeros((num_weights, grad.shape[1]), grad.dtype, grad.device)
        return nd.scatter_add(base, maximum_indices, nd.where(full, grad, 0), 0)
    if mode == _MEAN:
        grad = grad / nd.astype(nd.unsqueeze(nd.maximum(bag_size, 1), -1), grad.dtype)
    rows = nd.embedding(grad, offset2bag)
    if per_sample_weights is not None:
        rows = rows * nd.unsqueeze(per_sample_weights, -1)
    return _embedding_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@implements("_embedding_bag_per_sample_weights_backward")
def _bag_weights_backward(
    grad: NDArray, weight: NDArray, indices: NDArray, offsets: NDArray, *how: Any
) -> NDArray:
    padding_idx = how[2] if how[2:] else -1  # after the bags and the mode
    bag = _bags(indices, offsets, grad.shape[0])
    products = nd.sum(nd.embedding(grad, bag) * nd.embedding(weight, indices), -1)
    return products if padding_idx < 0 else nd.where(indices == padding_idx, 0, products)


operators(
    {
        "masked_select": lambda x, mask: nd.masked_select(x, nd.astype(mask, bool_)),
        "masked_scatter": lambda x, mask, source: nd.masked_scatter(
            x, nd.astype(mask, bool_), source
        ),
        "_unsafe_masked_index_put_accumulate": lambda x, mask, indices, values: _index_put(
            x, _inside(x, indices), nd.masked_fill(values, ~mask, 0), True
        ),
        "embedding": lambda weight, indices, *_, **__: nd.embedding(weight, indices),
    }
)
