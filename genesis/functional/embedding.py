"""Tables of vectors: rows looked up, and rows of whole bags folded into one.

Looking up is picking rows, its gradient adds up what arrives for each row. A bag is a run of
positions: which bag a position is in follows from where the bags begin, so sums, means and maxima
of bags are scatters of rows to bags, and their gradients are reads.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, where
from genesis.functional.comparison import maximum
from genesis.functional.function import is_tensor, plain, with_gradient
from genesis.functional.indexing import embedding as rows
from genesis.functional.indexing import index_add
from genesis.functional.movement import unsqueeze
from genesis.functional.reduction import amax, sum
from genesis.functional.scattering import index_reduce
from genesis.functional.value_checks import demanded
from genesis.ir.dtype import bool_, int64
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import unwatched


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """The rows of a table at the positions in `input`.

    Row `padding_idx` gets no gradient. With `max_norm`, rows that are looked up and longer than
    that are first shortened to it, in place. `scale_grad_by_freq` divides the gradient of a row
    by how often it was looked up.
    """
    _require_dense("embedding", sparse)
    if max_norm is not None:
        _shorten(input, weight, max_norm, norm_type)
    found = unwatched(rows, input, weight, padding_idx)
    return _by_frequency(found, input, weight.shape[0]) if scale_grad_by_freq else found


def _by_frequency_gradient(grad: Any, index: Any, count: Any) -> Any:
    def often(index: NDArray) -> NDArray:
        return nd.take(nd.bincount(nd.reshape(index, (-1,)), size=count), index, 0)

    return grad / unsqueeze(cast(plain(often, index), grad.dtype), -1)


@with_gradient(_by_frequency_gradient)
def _by_frequency(x: Any, index: Any, count: Any) -> Any:
    """Rows as they are; their gradients are divided by how often each was looked up."""
    return x.copy()


def _require_dense(name: str, sparse: bool) -> None:
    if sparse:
        raise NotImplementedError(
            f"{name}: there are no sparse gradients; use sparse=False, whose gradient is one "
            "scatter into a dense table"
        )


def _shorten(input: Any, weight: Any, max_norm: float, norm_type: float) -> None:
    """Shorten the rows that are looked up to a length, in place."""
    index, table = (x.array if is_tensor(x) else x for x in (input, weight))
    flat = nd.reshape(index, (-1,))
    found = nd.embedding(table, flat)
    size = nd.abs(found)
    if norm_type == math.inf:
        length = nd.amax(size, 1, True)
    else:
        length = nd.pow(nd.sum(nd.pow(size, norm_type), 1, True), 1 / norm_type)
    short = nd.where(length > max_norm, found * (max_norm / (length + 1e-7)), found)
    table.assign(nd.index_copy(table, flat, short))


# ---- bags


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The "sum", "mean" or "max" of the rows of every bag; of an empty one 0.

    The bags are the rows of a matrix `input`; or a vector is cut into bags that begin at
    `offsets`, and with `include_last_offset` end at the last of them. `padding_idx` is in no bag.
    With mode "sum", rows may be weighted by `per_sample_weights` of the shape of `input`.
    """
    _require_dense("embedding_bag", sparse)
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode is 'sum', 'mean' or 'max', not {mode!r}")
    rank = len(input.shape)
    if rank not in (1, 2) or (rank == 1) != (offsets is not None):
        raise ValueError(
            "embedding_bag: needs a matrix without offsets or a vector with them, got shape "
            f"{tuple(input.shape)} {'without' if offsets is None else 'with'} offsets"
        )
    if per_sample_weights is not None:
        if mode != "sum":
            raise ValueError(f"embedding_bag: per_sample_weights need mode 'sum', not {mode!r}")
        if tuple(per_sample_weights.shape) != tuple(input.shape):
            raise ValueError(
                f"embedding_bag: per_sample_weights {tuple(per_sample_weights.shape)} must have "
                f"the shape of the input {tuple(input.shape)}"
            )
    if offsets is not None:
        complaint = "embedding_bag: the first of the offsets is not 0"
        offsets = demanded(offsets, lambda x: x[:1] != 0, complaint)
    found = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    counted = _counted(input, padding_idx, weight.shape[0])
    if per_sample_weights is not None:
        found = found * unsqueeze(per_sample_weights, -1)
    if rank == 2:
        return _matrix(found, counted, mode)
    bags, count = _bags(input, offsets, include_last_offset)
    return _runs(found, counted, bags, count, mode)


def _counted(input: Any, padding_idx: int | None, size: Any) -> Any:
    """Which positions count, as a column; those of padding do not."""
    if padding_idx is None:
        return unsqueeze(plain(lambda i: nd.ones(i.shape, bool_, i.device), input), -1)
    skipped = padding_idx + size if padding_idx < 0 else padding_idx
    return unsqueeze(plain(nd.not_equal, input, skipped), -1)


def _matrix(found: Any, counted: Any, mode: str) -> Any:
    """Bags that are rows of a matrix: (bags, positions, width) folded over the positions."""
    empty = plain(lambda c: nd.logical_not(nd.any(c, 1)), counted)
    if mode == "max":
        if found.shape[1] == 0:
            return sum(found, 1)
        return where(empty, 0.0, amax(where(counted, found, -math.inf), 1))
    total = sum(where(counted, found, 0.0), 1)
    if mode == "sum":
        return total
    return total / maximum(cast(plain(nd.sum, counted, 1), total.dtype), 1)


def _bags(input: Any, offsets: Any, include_last_offset: bool) -> tuple[Any, int]:
    """The number of the bag that each position is in, and how many there are."""
    count = offsets.shape[0] - bool(include_last_offset)

    def numbered(index: NDArray, begin: NDArray) -> NDArray:
        places = nd.arange(index.shape[0], device=index.device)
        bag = nd.searchsorted(begin[:count].astype(int64), places, right=True) - 1
        # What lies before the first bag is in none: it is put into one too many, and cut off.
        outside = bag < 0
        if include_last_offset:
            outside = outside | (places >= begin[count])
        return nd.where(outside, count, bag)

    return plain(numbered, input, offsets), count


def _runs(found: Any, counted: Any, bags: Any, count: int, mode: str) -> Any:
    """Bags that are runs of positions: rows (positions, width) scattered to them."""
    like = found.array if is_tensor(found) else found
    nothing = nd.zeros((count + 1, found.shape[1]), found.dtype, like.device)
    sizes = plain(lambda c, b: nd.segment_sum(c.astype(like.dtype), b, count + 1), counted, bags)[
        :count
    ]
    if mode == "max":
        low = nd.full((count + 1, found.shape[1]), -math.inf, found.dtype, like.device)
        best = index_reduce(low, 0, bags, where(counted, found, -math.inf), "amax")[:count]
        return where(sizes > 0, best, 0.0)
    total = index_add(nothing, 0, bags, where(counted, found, 0.0))[:count]
    return total if mode == "sum" else total / maximum(sizes, 1)


__all__ = ["embedding", "embedding_bag"]
