"""gather, scatter and their relatives: a position along one dimension for every element.

``gather`` reads ``x[i, index[i, j], ..]`` and `scatter` writes there. Adding is the transpose of
reading. Other ways to fold values together distribute the gradient over what took part.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, where
from genesis.functional.error_messages import broadcast_shapes, normal_dim
from genesis.functional.function import plain, with_gradient
from genesis.functional.indexing import getitem
from genesis.functional.masked_and_nonzero import masked_fill
from genesis.functional.movement import expand, ravel, reshape
from genesis.functional.registry import method
from genesis.ndarray import NDArray
from genesis.ndarray.ops.normalize_index import counted


def _put_back(grad: Any, axis: int, index: Any, shape: Any) -> Any:
    return added(nd.zeros(shape, grad.dtype, grad.device), axis, index, grad)


@with_gradient(_put_back)
def _gather(x: NDArray, axis: int, index: NDArray, shape: Any) -> Any:
    return nd.gather(x, index, axis)


def read(x: Any, axis: int, index: Any) -> Any:
    """``x[i, index[i, j], ..]``"""
    return _gather(x, axis, index, x.shape)


def _read_again(grad: Any, axis: int, index: Any, needs: Any) -> Any:
    return grad, None, None, read(grad, axis, index) if needs[3] else None


@with_gradient(_read_again)
def _scatter_add(x: NDArray, axis: int, index: NDArray, values: NDArray) -> Any:
    return nd.scatter_add(x, index, values, axis)


added = _scatter_add  #: x with values added where `read` would read


def _without_replaced(grad: Any, axis: int, index: Any, needs: Any) -> Any:
    kept = _scatter(grad, axis, index, 0) if needs[0] else None
    return kept, None, None, read(grad, axis, index) if needs[3] else None


@with_gradient(_without_replaced)
def _scatter(x: NDArray, axis: int, index: NDArray, values: Any) -> Any:
    """x with values written where `read` would read; of equal places the last stays."""
    return nd.scatter(x, index, values, axis)


def _prepared(name: str, input: Any, dim: int, index: Any, src: Any) -> tuple[Any, int, Any, Any]:
    """All with at least one dimension, and no more values than positions."""
    if not input.shape:
        input, index = reshape(input, (1,)), ravel(index)
        src = ravel(src) if hasattr(src, "shape") else src
    axis = normal_dim(name, dim, len(input.shape))
    if hasattr(src, "shape"):
        fits = len(src.shape) == len(index.shape) and all(
            n <= m for n, m in zip(index.shape, src.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{name}: positions of shape {tuple(index.shape)} need values at least as large, "
                f"not {tuple(src.shape)}"
            )
        if src.dtype is not input.dtype:
            raise TypeError(f"{name}: values of {src.dtype} for a tensor of {input.dtype}")
        if src.shape != index.shape:
            src = getitem(src, tuple(slice(n) for n in index.shape))
    return input, axis, _counted(name, index, input, axis), src


def _counted(name: str, index: Any, x: Any, axis: int) -> Any:
    return plain(lambda i: counted(name, i, x.shape[axis], axis), index)


@method
def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """``input[i, index[i, j], ..]``: a position along `dim` for every element of the result.

    `sparse_grad` is accepted and changes nothing: a gradient is never sparse here.
    """
    if not input.shape:
        flat = gather(reshape(input, (1,)), dim, ravel(index))
        return reshape(flat, index.shape)
    axis = normal_dim("gather", dim, len(input.shape))
    if len(input.shape) == 1 and not index.shape:
        return reshape(gather(input, dim, reshape(index, (1,))), ())
    if 0 in index.shape and len(index.shape) != len(input.shape):  # of any rank: it reads nothing
        return reshape(ravel(input)[:0], index.shape)
    return read(input, axis, _counted("gather", index, input, axis))


@method
def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """`gather` with the input and the positions broadcast against each other; None: as one row."""
    if dim is None:
        return take_along_dim(ravel(input), ravel(indices), 0)
    axis = normal_dim("take_along_dim", dim, len(input.shape))
    if len(input.shape) != len(indices.shape):
        raise ValueError(
            f"take_along_dim: positions of shape {tuple(indices.shape)} must have as many "
            f"dimensions as {tuple(input.shape)}"
        )
    rests = [tuple(1 if d == axis else n for d, n in enumerate(x.shape)) for x in (input, indices)]
    common = broadcast_shapes("take_along_dim", *rests)
    wide = [(*common[:axis], x.shape[axis], *common[axis + 1 :]) for x in (input, indices)]
    extent = input.shape[axis]
    places = plain(lambda i: nd.where(i < 0, i + extent, i), indices)  # those count from the end
    return gather(expand(input, wide[0]), axis, expand(places, wide[1]))


@method(in_place=True)
def scatter(
    input: Any,
    dim: int,
    index: Any,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> Any:
    """`input` with ``input[i, index[i, j], ..]`` replaced by `src`, a tensor or a number.

    With `reduce` "add" or "multiply" they are combined with what is there.
    """
    given = src if value is None else value
    if given is None:
        raise TypeError("scatter: needs src or value")
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise ValueError(f"scatter: reduce is None, 'add' or 'multiply', not {reduce!r}")
        if not hasattr(given, "shape"):
            given = nd.full(index.shape, given, input.dtype, input.device)
        return scatter_reduce(input, dim, index, given, "sum" if reduce == "add" else "prod")
    x, axis, places, values = _prepared("scatter", input, dim, index, given)
    return reshape(_scatter(x, axis, places, values), input.shape)


@method(in_place=True)
def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:
    """`input` with `src` added at ``input[i, index[i, j], ..]``."""
    x, axis, places, values = _prepared("scatter_add", input, dim, index, src)
    return reshape(added(x, axis, places, values), input.shape)


@method(in_place=True)
def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """`scatter` that folds: `reduce` is "sum", "prod", "mean", "amax" or "amin".

    Without `include_self` what was there before takes no part where there are values.
    """
    x, axis, places, values = _prepared("scatter_reduce", input, dim, index, src)
    if reduce in ("sum", "mean"):
        base = x if include_self else _scatter(x, axis, places, 0)
        total = added(base, axis, places, values)
        if reduce == "mean":
            total = _mean(total, x, axis, places, include_self)
        return reshape(total, input.shape)
    folded = {"prod": _scatter_prod, "amax": _scatter_extreme, "amin": _scatter_extreme}.get(reduce)
    if folded is None:
        raise ValueError(
            f"scatter_reduce: reduce is 'sum', 'prod', 'mean', 'amax' or 'amin', not {reduce!r}"
        )
    return reshape(folded(x, axis, places, values, reduce, include_self), input.shape)


def _mean(total: Any, x: Any, axis: int, index: Any, include_self: bool) -> Any:
    def counted(like: NDArray, places: NDArray) -> NDArray:
        wide = like.dtype.accumulator
        base = nd.full(like.shape, 1 if include_self else 0, wide, like.device)
        ones = nd.full(places.shape, 1, wide, like.device)
        return nd.maximum(nd.scatter_add(base, places, ones, axis), 1)

    count = plain(counted, x, index)
    if x.dtype.is_integer:
        return plain(nd.floor_divide, total, count)
    return cast(total / count, x.dtype)


def _extreme_gradient(
    grad: Any, x: Any, axis: int, index: Any, values: Any, own: bool, result: Any
) -> Any:
    mine = cast(x == result, grad.dtype)
    theirs = cast(values == read(result, axis, index), grad.dtype)
    share = grad / plain(nd.scatter_add, mine, index, theirs, axis)
    to_x = mine * share
    to_x = to_x if own else _scatter(to_x, axis, index, 0)
    return to_x, None, None, theirs * read(share, axis, index)


@with_gradient(_extreme_gradient)
def _scatter_extreme(
    x: NDArray, axis: int, index: NDArray, values: NDArray, reduce: str, own: bool
) -> Any:
    """The greatest or least of what goes to a place; equal ones share the gradient."""
    return nd.scatter_reduce(x, index, values, axis, reduce, own)


def _prod_gradient(
    grad: Any, x: Any, axis: int, index: Any, values: Any, own: bool, result: Any
) -> Any:
    # The product of the others: with one zero replaced by 1, and divided by everything else.
    one = masked_fill(x, x == 0, 1.0)
    to_x = grad * _scatter_prod(one, axis, index, values, "prod", own) / one
    zero = values == 0
    number = plain(_zeros, zero, index, x, axis)
    alone = zero & (number == 1)
    filled = masked_fill(values, alone, 1.0)
    others = _scatter_prod(x, axis, index, filled, "prod", own)
    single = read(grad * others, axis, index)
    divided = read(grad * result, axis, index) / masked_fill(values, zero, 1.0)
    to_x = to_x if own else _scatter(to_x, axis, index, 0)
    return to_x, None, None, where(alone, single, divided)


@with_gradient(_prod_gradient)
def _scatter_prod(
    x: NDArray, axis: int, index: NDArray, values: NDArray, reduce: str, own: bool
) -> Any:
    """The product of what goes to a place."""
    return nd.scatter_reduce(x, index, values, axis, "prod", own)


def _zeros(zero: NDArray, index: NDArray, like: NDArray, axis: int) -> NDArray:
    """How many zeros go to the place each value goes to."""
    base = nd.zeros(like.shape, "int64", like.device)
    return nd.gather(nd.scatter_add(base, index, zero.astype("int64"), axis), index, axis)


@method(in_place=True)
def index_reduce(
    input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """`input` with parts folded in at positions along a dimension; see `scatter_reduce`."""
    if not input.shape:
        rows = (reshape(x, (-1,)) for x in (input, source))
        folded = index_reduce(next(rows), dim, index, next(rows), reduce, include_self=include_self)
        return reshape(folded, ())
    axis = normal_dim("index_reduce", dim, len(input.shape))
    thin = tuple(-1 if d == axis else 1 for d in range(len(input.shape)))
    everywhere = expand(reshape(index, thin), source.shape)
    return scatter_reduce(input, axis, everywhere, source, reduce, include_self=include_self)


__all__ = [
    "gather", "index_reduce", "scatter", "scatter_add", "scatter_reduce", "take_along_dim",
]  # fmt: skip
