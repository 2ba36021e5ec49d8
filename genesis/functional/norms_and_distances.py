"""Norms of vectors, and distances."""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, pow, where
from genesis.functional.comparison import clamp_min
from genesis.functional.complexes import sgn
from genesis.functional.elementary import abs, sqrt, squared_size
from genesis.functional.error_messages import broadcast_shapes, called, normal_dim, normal_dims
from genesis.functional.function import plain, with_gradient
from genesis.functional.indexing import index_select
from genesis.functional.movement import expand, reshape, unsqueeze
from genesis.functional.reduction import amax, amin, sum
from genesis.functional.registry import layer, method
from genesis.ir.dtype import as_dtype
from genesis.ndarray import linalg as arrays


def vector_norm_gradient(grad: Any, x: Any, p: float, axes: Any, result: Any) -> Any:
    """That of the norm over axes for finite p; at 0 it is 0."""
    if p == 0:  # a count
        return None
    wide = cast(x, x.dtype.accumulator)
    kept = tuple(1 if d in axes else s for d, s in enumerate(x.shape))
    grad, length = reshape(grad, kept), reshape(result, kept)
    zero = plain(nd.equal, length, 0)
    safe = where(zero, 1.0, length)
    if p == 2:
        return where(zero, 0.0, wide * (grad / safe))
    if p == 1:
        return sgn(wide) * grad
    nothing = plain(nd.equal, x, 0)
    part = pow(where(nothing, 1.0, abs(wide)) / safe, p - 1) * grad
    return where(nothing, 0.0, sgn(wide) * part)


@with_gradient(vector_norm_gradient)
def _vector_norm(x: Any, p: float, axes: Any, keepdim: bool) -> Any:
    """(sum |x|**p) ** (1/p) for finite p."""
    wide = nd.astype(x, x.dtype.accumulator)
    return nd.astype(arrays.vector_norm(wide, p, axes, keepdim), x.dtype.real)


def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """``(sum |x| ** ord) ** (1 / ord)`` and its limits; 0 counts what is not zero."""
    if dtype is not None:
        if x.dtype.is_complex and not as_dtype(dtype).is_complex:
            raise TypeError(f"{called('vector_norm')}: of {x.dtype} the dtype is complex")
        x = cast(x, dtype)
    if not (x.dtype.is_float or x.dtype.is_complex):
        name = called("vector_norm")
        raise TypeError(f"{name}: needs floating-point or complex numbers, not {x.dtype}")
    if isinstance(dim, tuple | list) and not dim:
        dim = None
    if ord in (math.inf, -math.inf):
        return (amax if ord > 0 else amin)(abs(x), dim, keepdim)
    axes = normal_dims("norm", dim, len(x.shape)) if x.shape else ()
    if ord < 0 and any(x.shape[d] == 0 for d in axes):
        raise ValueError(
            f"{called('vector_norm')}: there is no norm {ord} of no elements, along dimensions "
            f"{axes} of shape {tuple(x.shape)}"
        )
    return _vector_norm(x, ord, axes, keepdim)


@method
def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A norm of all elements or along dimensions; "nuc" is the sum of singular values."""
    if p == "nuc":
        from genesis.functional.linalg import matrix_norm

        return matrix_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


# ---- distances


@method
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The norm of the difference."""
    return vector_norm(input - other, p)


@layer("PairwiseDistance", 2)
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """The norm of the difference of vectors in the last dimension, moved by `eps`."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> Any:
    """The distance of every row of one matrix to every row of another."""
    if len(x1.shape) < 2 or len(x2.shape) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ValueError(
            f"cdist: shapes {tuple(x1.shape)} and {tuple(x2.shape)} are not matrices of rows of "
            "one length"
        )
    if not p >= 0:
        raise ValueError(f"cdist: p must not be negative, but is {p}")
    return vector_norm(unsqueeze(x1, -2) - unsqueeze(x2, -3), p, -1)


def pdist(input: Any, p: float = 2.0) -> Any:
    """The distance of every row of a matrix to every later one, as a vector."""
    if len(input.shape) != 2:
        raise ValueError(f"pdist: needs a matrix, got shape {tuple(input.shape)}")
    if not p >= 0:
        raise ValueError(f"pdist: p must not be negative, but is {p}")
    first, second = nd.triu_indices(int(input.shape[0]), offset=1)
    return vector_norm(index_select(input, 0, first) - index_select(input, 0, second), p, -1)


@method(in_place=True)
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Parts along a dimension whose norm is greater than `maxnorm` scaled down to it."""
    if not (p > 0 and maxnorm >= 0):
        raise ValueError(f"renorm: p {p} must be positive, and maxnorm {maxnorm} not negative")
    axis = normal_dim("renorm", dim, len(input.shape))
    others = tuple(d for d in range(len(input.shape)) if d != axis)
    length = vector_norm(input, p, others, True)
    return where(length > maxnorm, input * (maxnorm / (length + 1e-7)), input)


@layer("CosineSimilarity", 2)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along a dimension."""
    if tuple(x1.shape) != tuple(x2.shape):
        shape = broadcast_shapes("cosine_similarity", x1.shape, x2.shape)
        x1, x2 = expand(x1, shape), expand(x2, shape)
    product = sum(x1 * x2, dim)
    lengths = sum(squared_size(x1), dim), sum(squared_size(x2), dim)
    return product / sqrt(clamp_min(lengths[0], eps * eps) * clamp_min(lengths[1], eps * eps))


__all__ = [
    "cdist", "cosine_similarity", "dist", "norm", "pairwise_distance", "pdist", "renorm",
    "vector_norm",
]  # fmt: skip
