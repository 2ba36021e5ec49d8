"""Reductions over dimensions, and gradients that spread back over them."""

from __future__ import annotations

import builtins
import math
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, conj, where
from genesis.functional.complexes import real
from genesis.functional.elementary import exp
from genesis.functional.error_messages import normal_dim, normal_dims
from genesis.functional.function import Function, plain, with_gradient
from genesis.functional.movement import expand, permute, reshape
from genesis.functional.registry import method
from genesis.ir.dtype import bool_, floating, int64, uint8
from genesis.ir.size import Size, product
from genesis.ndarray.ops.variance_and_distance import Extrema


def _kept(x: Any, dims: tuple[int, ...]) -> tuple[Any, ...]:
    """The shape of `x` with the given dimensions reduced to 1."""
    return tuple(1 if d in dims else s for d, s in enumerate(x.shape))


def _count(x: Any, dims: tuple[int, ...]) -> Any:
    """How many elements each result is made of."""
    return product(x.shape[d] for d in dims)


# ---- sums and products


class Sum(Function):
    """The sum over dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Any, dims: Any, keepdim: bool) -> Any:
        ctx.kept, ctx.shape = _kept(x, dims), x.shape
        return nd.sum(x, dims, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return expand(reshape(grad, ctx.kept), ctx.shape), None, None


@method
def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum over dimensions, or of all elements."""
    dims = _dims("sum", input, dim)
    found = Sum.apply(input if dtype is None else cast(input, dtype), dims, keepdim)
    return found if dtype is None else cast(found, dtype)


def _dims(name: str, x: Any, dim: Any) -> tuple[int, ...]:
    """The dimensions to reduce; none given means all, and a scalar passes for a vector of one."""
    if dim is None:
        return tuple(range(len(x.shape)))
    given = None if isinstance(dim, tuple | list) and not dim else dim
    found = normal_dims(name, given, builtins.max(len(x.shape), 1))
    return found if x.shape else ()


class Mean(Function):
    """The mean over dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Any, dims: Any, keepdim: bool) -> Any:
        ctx.kept, ctx.shape = _kept(x, dims), x.shape
        ctx.count = _count(x, dims)
        return nd.mean(x, dims, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return expand(reshape(grad / ctx.count, ctx.kept), ctx.shape), None, None


@method
def mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean over dimensions, or of all elements."""
    dims = _dims("mean", input, dim)
    return Mean.apply(input if dtype is None else cast(input, dtype), dims, keepdim)


@method
def nansum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of the elements that are not NaN."""
    return sum(where(plain(nd.isnan, input), 0, input), dim, keepdim, dtype=dtype)


@method
def nanmean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean of the elements that are not NaN."""
    if not (input.dtype.is_float or input.dtype.is_complex):
        raise TypeError(f"nanmean: needs floating-point or complex numbers, not {input.dtype}")
    known = plain(nd.logical_not, plain(nd.isnan, input))
    total = nansum(input, dim, keepdim, dtype=dtype)
    return total / cast(sum(known, dim, keepdim), total.dtype)


def _prod_gradient(grad: Any, x: Any, dims: Any) -> Any:
    from genesis.functional.cumulative import products_without

    kept = _kept(x, dims)
    # The reduced dimensions as one, last: so that a product goes along one dimension.
    order = [*(d for d in range(len(kept)) if d not in dims), *dims]
    moved = permute(x, order)
    line = reshape(moved, (*moved.shape[: len(order) - len(dims)], _count(x, dims)))
    others = permute(reshape(products_without(line, -1), moved.shape), _inverse(order))
    return reshape(grad, kept) * conj(others)


@with_gradient(_prod_gradient)
def _prod(x: Any, dims: Any, keepdim: bool) -> Any:
    return nd.prod(x, dims, keepdim)


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


@method
def prod(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The product over a dimension, or of all elements."""
    dims = _dims("prod", input, dim)
    found = _prod(input if dtype is None else cast(input, dtype), dims, keepdim)
    return found if dtype is None else cast(found, dtype)


# ---- extremes


class Extremes(NamedTuple):
    """Values and where they are."""

    values: Any
    indices: Any


def shared(grad: Any, x: Any, dims: Any, result: Any) -> Any:
    """The gradient of one of the elements over dimensions; equal ones share it.

    None is equal to NaN, of which the gradient is NaN for all.
    """
    kept = _kept(x, dims)
    chosen = plain(nd.equal, x, reshape(result, kept))
    count = plain(nd.sum, chosen, dims, True)
    share = reshape(grad, kept) / cast(count, grad.dtype)
    unknown = plain(nd.not_equal, reshape(result, kept), reshape(result, kept))
    return where(unknown, math.nan, where(chosen, share, 0.0))


def shared_by_all(grad: Any, x: Any, result: Any) -> Any:
    """The gradient of one of all elements; equal ones share it, as those that are NaN do."""
    both = plain(nd.logical_and, plain(nd.isnan, x), plain(nd.isnan, result))
    chosen = plain(nd.logical_or, plain(nd.equal, x, result), both)
    return where(chosen, grad / cast(plain(nd.sum, chosen), grad.dtype), 0.0)


@with_gradient(shared)
def _amax(x: Any, dims: Any, keepdim: bool) -> Any:
    return nd.amax(x, dims, keepdim)


@with_gradient(shared)
def _amin(x: Any, dims: Any, keepdim: bool) -> Any:
    return nd.amin(x, dims, keepdim)


@with_gradient(shared_by_all)
def _greatest(x: Any) -> Any:
    return nd.amax(x)


@with_gradient(shared_by_all)
def _least(x: Any) -> Any:
    return nd.amin(x)


@method
def amax(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest element over dimensions."""
    return _amax(input, _dims("amax", input, dim), keepdim)


@method
def amin(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The least element over dimensions."""
    return _amin(input, _dims("amin", input, dim), keepdim)


@method
def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Extrema:
    """The least and the greatest elements over a dimension."""
    return Extrema(amin(input, dim, keepdim), amax(input, dim, keepdim))


class Best(Function):
    """The extreme along a dimension and its first position, where all of the gradient goes."""

    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, keepdim: bool, greatest: bool) -> Any:
        ctx.kept, ctx.dim, ctx.shape = _kept(x, (dim,)), dim, x.shape
        indices = (nd.argmax if greatest else nd.argmin)(x, dim, keepdim)
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return (nd.amax if greatest else nd.amin)(x, dim, keepdim), indices

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        (indices,) = ctx.saved_tensors
        there = plain(_positions, reshape(indices, ctx.kept), ctx.dim, ctx.shape)
        return where(there, reshape(grad, ctx.kept), 0.0), None, None, None


def _positions(indices: nd.NDArray, axis: int, shape: Any) -> nd.NDArray:
    """Where the position along an axis is the one named."""
    at = nd.arange(shape[axis], device=indices.device)
    line = nd.reshape(at, tuple(shape[axis] if d == axis else 1 for d in range(len(shape))))
    return nd.equal(line, indices)


def _extreme(name: str, input: Any, dim: Any, keepdim: bool, greatest: bool) -> Any:
    if dim is None:
        return (_greatest if greatest else _least)(input)
    if not isinstance(dim, int):
        from genesis.functional.comparison import maximum, minimum

        return (maximum if greatest else minimum)(input, dim)
    if not input.shape:
        normal_dim(name, dim, 1)
        return Extremes(input, plain(lambda x: nd.zeros((), int64, x.device), input))
    axis = normal_dim(name, dim, len(input.shape))
    return Extremes(*Best.apply(input, axis, keepdim, greatest))


@method
def max(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest element; along a dimension also its position; `maximum` of two tensors."""
    return _extreme("max", input, dim, keepdim, True)


@method
def min(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The least element; along a dimension also its position; `minimum` of two tensors."""
    return _extreme("min", input, dim, keepdim, False)


def _require_order(name: str, input: Any) -> None:
    if input.dtype is bool_:
        raise TypeError(f"{name}: bool has no order; convert it to a number first")


@method
def argmax(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The position of the greatest element, in the flat tensor if no dimension is given."""
    _require_order("argmax", input)
    return plain(nd.argmax, input, dim if input.shape else None, keepdim)


@method
def argmin(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The position of the least element, in the flat tensor if no dimension is given."""
    _require_order("argmin", input)
    return plain(nd.argmin, input, dim if input.shape else None, keepdim)


# ---- truth


@method
def any(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is non-zero."""
    return _truth(plain(nd.any, input, _dims("any", input, dim), keepdim), input)


@method
def all(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements are non-zero."""
    return _truth(plain(nd.all, input, _dims("all", input, dim), keepdim), input)


def _truth(found: Any, input: Any) -> Any:
    """Bools; but uint8 was there before them, and stays itself."""
    return cast(found, uint8) if input.dtype is uint8 else found


@method
def count_nonzero(input: Any, dim: Any = None) -> Any:
    """How many elements are not zero."""
    return plain(nd.count_nonzero, input, _dims("count_nonzero", input, dim))


# ---- spread


def _from_mean(x: Any, dims: Any, correction: Any) -> tuple[Any, Any]:
    """How far elements are from their mean, and what the sum of squares is divided by."""
    wide = cast(x, x.dtype.accumulator)
    return wide - mean(wide, dims, True), builtins.max(_count(x, dims) - correction, 0)


def _var_gradient(grad: Any, x: Any, dims: Any, correction: Any) -> Any:
    away, divisor = _from_mean(x, dims, correction)
    return reshape(grad, _kept(x, dims)) * _twice_over(divisor, away) * away


def _twice_over(divisor: Any, like: Any) -> Any:
    if isinstance(divisor, Size):
        return plain(lambda x: nd.ratio(2, divisor, x), like)
    return 2 / divisor if divisor else float("nan")


@with_gradient(_var_gradient)
def _var(x: Any, dims: Any, correction: Any, keepdim: bool) -> Any:
    return nd.var(x, dims, correction, keepdim)


def _std_gradient(grad: Any, x: Any, dims: Any, correction: Any, result: Any) -> Any:
    (away, divisor), kept = _from_mean(x, dims, correction), _kept(x, dims)
    result = reshape(result, kept)
    zero = plain(nd.equal, result, 0)
    scale = reshape(grad, kept) / where(zero, 1.0, result)
    return where(zero, 0.0, scale / divisor if divisor else scale * float("nan")) * away


@with_gradient(_std_gradient)
def _std(x: Any, dims: Any, correction: Any, keepdim: bool) -> Any:
    return nd.std(x, dims, correction, keepdim)


def _correction(dim: Any, unbiased: bool | None, correction: Any) -> tuple[Any, Any]:
    """Dimensions and correction: a bool in place of dimensions is `unbiased`."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        return dim, int(unbiased)
    return dim, 1 if correction is None else correction


@method
def var(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Any:
    """The variance: squared distances from the mean, over their number less `correction`."""
    dim, less = _correction(dim, unbiased, correction)
    return _var(input, _dims("var", input, dim), less, keepdim)


@method
def std(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Any:
    """The standard deviation, the square root of `var`."""
    dim, less = _correction(dim, unbiased, correction)
    return _std(input, _dims("std", input, dim), less, keepdim)


def var_mean(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> tuple[Any, Any]:
    """The variance and the mean."""
    dim, less = _correction(dim, unbiased, correction)
    return var(input, dim, None, keepdim, correction=less), mean(input, dim, keepdim)


def std_mean(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> tuple[Any, Any]:
    """The standard deviation and the mean."""
    dim, less = _correction(dim, unbiased, correction)
    return std(input, dim, None, keepdim, correction=less), mean(input, dim, keepdim)


# ---- exponentials


def _logsumexp_gradient(grad: Any, x: Any, dims: Any, result: Any) -> Any:
    wide, kept = cast(x, x.dtype.accumulator), _kept(x, dims)
    return reshape(grad, kept) * conj(exp(wide - reshape(result, kept)))


@with_gradient(_logsumexp_gradient)
def _logsumexp(x: Any, dims: Any, keepdim: bool) -> Any:
    if not x.dtype.is_complex:
        return nd.logsumexp(x, dims, keepdim)
    greatest = nd.amax(nd.real(x), dims, True)
    shift = nd.where(nd.isfinite(greatest), greatest, 0.0)
    total = nd.log(nd.sum(nd.exp(x - shift), dims, True)) + shift
    return total if keepdim else nd.reshape(total, nd.sum(greatest, dims).shape)


@method
def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """``log(sum(exp(input)))`` over dimensions, without overflow."""
    input = cast(input, floating(input.dtype))
    dims = _dims("logsumexp", input, dim)
    return _logsumexp(input, dims, keepdim)


# ---- gradients of broadcast operands


def sum_to(input: Any, shape: Any) -> Any:
    """The sum over whatever broadcasting from `shape` repeated."""
    extra = len(input.shape) - len(shape)
    axes = [*range(extra)]
    axes += [
        d + extra for d, (a, b) in enumerate(zip(input.shape[extra:], shape, strict=True)) if a != b
    ]
    return reshape(sum(input, tuple(axes)), shape) if axes else input


def fit(gradient: Any, shape: Any, dtype: Any) -> Any:
    """A gradient in the shape and dtype of the argument it belongs to."""
    if gradient.shape != shape:
        gradient = sum_to(gradient, shape)
    if gradient.dtype.is_complex and not dtype.is_complex:
        gradient = real(gradient)
    return gradient if gradient.dtype is dtype else cast(gradient, dtype)


__all__ = [
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "logsumexp",
    "max", "mean", "min", "nanmean", "nansum", "prod", "std", "std_mean", "sum", "var", "var_mean",
]  # fmt: skip
