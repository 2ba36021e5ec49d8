"""Reductions and normalisations of the elements that a mask selects; True is selected.

What is left out counts as the number that changes nothing: 0 in a sum, 1 in a product.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import functional as fn
from genesis.ir.dtype import int64
from genesis.tensor.creation import ones_like
from genesis.tensor.tensor import Tensor


def _filled(input: Tensor, mask: Any, identity: float) -> Any:
    if mask is None:
        return input
    if input.dtype.is_integer and math.isinf(identity):
        limits = 2 ** (input.dtype.bits - (input.dtype.kind == "int")) - 1
        least = -limits - 1 if input.dtype.kind == "int" else 0
        return fn.where(mask, input, limits if identity > 0 else least)
    return fn.where(mask, input, identity)


def _dims(input: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _count(input: Tensor, dim: Any, keepdim: bool, mask: Any) -> Any:
    ones = ones_like(input, dtype=int64)
    selected = ones if mask is None else fn.where(mask, ones, 0)
    return fn.sum(selected, _dims(input, dim), keepdim)


def sum(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The sum of the selected elements.

    >>> import genesis
    >>> from genesis import masked
    >>> masked.sum(genesis.tensor([1.0, 2.0, 3.0]), mask=genesis.tensor([True, False, True]))
    tensor(4.)
    """
    return fn.sum(_filled(input, mask, 0), _dims(input, dim), keepdim, dtype=dtype)


def prod(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The product of the selected elements."""
    found = _filled(input, mask, 1)
    for d in sorted((d % max(input.ndim, 1) for d in _dims(input, dim)), reverse=True):
        found = fn.prod(found, d, keepdim, dtype=dtype)
    return found if dtype is None else found.to(dtype)


def mean(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The mean of the selected elements."""
    total = sum(input, dim, keepdim=keepdim, dtype=dtype, mask=mask)
    return total / _count(input, dim, keepdim, mask)


def amax(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The greatest of the selected elements."""
    given = input if dtype is None else input.to(dtype)
    return fn.amax(_filled(given, mask, -math.inf), _dims(input, dim), keepdim)


def amin(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The least of the selected elements."""
    given = input if dtype is None else input.to(dtype)
    return fn.amin(_filled(given, mask, math.inf), _dims(input, dim), keepdim)


def argmax(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """Where the greatest of the selected elements is, in the dtype of `input` as in PyTorch."""
    found = fn.argmax(_filled(input, mask, -math.inf), dim, keepdim)
    return found.to(input.dtype if dtype is None else dtype)


def argmin(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """Where the least of the selected elements is, in the dtype of `input` as in PyTorch."""
    found = fn.argmin(_filled(input, mask, math.inf), dim, keepdim)
    return found.to(input.dtype if dtype is None else dtype)


def cumsum(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
    """The sums of the selected elements up to each."""
    return fn.cumsum(_filled(input, mask, 0), dim, dtype=dtype)


def cumprod(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
    """The products of the selected elements up to each."""
    return fn.cumprod(_filled(input, mask, 1), dim, dtype=dtype)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Any:
    """The variance of the selected elements."""
    less = correction if correction is not None else float(unbiased is not False)
    given = input if dtype is None else input.to(dtype)
    given = given if given.dtype.is_float or given.dtype.is_complex else given.float()
    count = _count(given, dim, True, mask)
    middle = fn.sum(_filled(given, mask, 0), _dims(input, dim), True) / count
    apart = fn.abs(_filled(given - middle, mask, 0))
    total = fn.sum(apart * apart, _dims(input, dim), keepdim)
    spread = total / fn.clamp(_count(given, dim, keepdim, mask) - less, min=0)
    return spread.to(given.dtype)


def std(input: Tensor, dim: Any = None, unbiased: bool | None = None, **options: Any) -> Any:
    """The standard deviation of the selected elements; options as those of `var`."""
    return fn.sqrt(var(input, dim, unbiased, **options))


def norm(
    input: Tensor,
    ord: float | None = 2.0,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Any:
    """The norm of the selected elements."""
    order = 2.0 if ord is None else ord
    filled = _filled(input, mask, math.inf if order == -math.inf else 0)
    return fn.linalg.vector_norm(filled, order, _dims(input, dim), keepdim, dtype=dtype)


def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The median of the selected elements."""
    given = input if dtype is None else input.to(dtype)
    return fn.nanmedian(_filled(given, mask, math.nan), dim, keepdim)[0]


def logsumexp(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The logarithm of the sum of the selected elements' exponentials."""
    given = input if dtype is None else input.to(dtype)
    given = given if given.dtype.is_float or given.dtype.is_complex else given.float()
    return fn.logsumexp(_filled(given, mask, -math.inf), _dims(input, dim), keepdim)


def logaddexp(
    input: Tensor,
    other: Tensor,
    *,
    dtype: Any = None,
    input_mask: Any = None,
    other_mask: Any = None,
) -> Any:
    """``log(exp(input) + exp(other))`` of what is selected of both."""
    x, y = (z if dtype is None else z.to(dtype) for z in (input, other))
    return fn.logaddexp(_filled(x, input_mask, -math.inf), _filled(y, other_mask, -math.inf))


def softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
    """The softmax of the selected elements."""
    return fn.softmax(_filled(_real(input, dtype), mask, -math.inf), dim)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
    """The logarithm of the softmax of the selected elements."""
    return fn.log_softmax(_filled(_real(input, dtype), mask, -math.inf), dim)


def softmin(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
    """The softmax of the selected elements' negatives."""
    return fn.softmax(-_filled(_real(input, dtype), mask, math.inf), dim)


def _real(input: Tensor, dtype: Any) -> Any:
    return input if dtype is None else input.to(dtype)


def normalize(
    input: Tensor,
    ord: float,
    dim: int,
    *,
    eps: float = 1e-12,
    dtype: Any = None,
    mask: Any = None,
) -> Any:
    """The selected elements over their norm, which is at least `eps`."""
    given = _real(input, dtype)
    length = norm(given, ord, dim, keepdim=True, mask=mask)
    return _filled(given, mask, 0) / fn.clamp(length, min=eps)


__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp",
    "logsumexp", "mean", "median", "norm", "normalize", "prod", "softmax", "softmin", "std", "sum",
    "var",
]  # fmt: skip
