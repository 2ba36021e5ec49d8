"""Diagonals and triangles of matrices.

A diagonal is a view: with the two dimensions as one, it is every (columns + 1)-th element. What
makes a matrix of a diagonal is the transpose of that view, so each is the other's gradient.
"""

from __future__ import annotations

from operator import index as as_int
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast
from genesis.functional.error_messages import normal_dim
from genesis.functional.function import with_gradient
from genesis.functional.movement import Overwrite, clone, ravel, unview, view_through
from genesis.functional.registry import method
from genesis.ir import ops
from genesis.ndarray.core.storage import Steps, ViewStep


def _steps(name: str, shape: Any, offset: int, dim1: int, dim2: int) -> Steps:
    """The way from an array to one of its diagonals, which becomes the last dimension."""
    rank = len(shape)
    i, j = normal_dim(name, dim1, rank), normal_dim(name, dim2, rank)
    if i == j:
        raise ValueError(f"{name}: dim1 {dim1} and dim2 {dim2} are the same dimension")
    order = (*(d for d in range(rank) if d not in (i, j)), i, j)
    moved = tuple(shape[d] for d in order)
    rest, rows, columns = moved[:-2], moved[-2], as_int(moved[-1])  # it becomes a stride
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    start = 0 if length == 0 else max(offset, 0) + max(-offset, 0) * columns
    places = ((0, 1),) * len(rest) + ((start, columns + 1),)
    steps = (
        ViewStep(ops.PERMUTE, order, moved),
        ViewStep(ops.RESHAPE, None, (*rest, rows * columns)),
        ViewStep(ops.SLICE, places, (*rest, length)),
    )
    return steps[1:] if order == tuple(range(rank)) else steps


@method
def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements with equal index on two dimensions, as a view; `offset` of them to the right."""
    return view_through(input, _steps("diagonal", input.shape, offset, dim1, dim2))


@method
def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices whose diagonal is the last dimension of `input`, and zero elsewhere."""
    rank = len(input.shape) + 1
    size = input.shape[-1] + abs(offset)
    i, j = normal_dim("diag_embed", dim1, rank), normal_dim("diag_embed", dim2, rank)
    rest = iter(input.shape[:-1])
    shape = tuple(size if d in (i, j) else next(rest) for d in range(rank))
    return unview(input, _steps("diag_embed", shape, offset, i, j), shape)


@method
def diag(input: Any, diagonal: int = 0) -> Any:
    """The diagonal of a matrix, or the matrix with a vector as its diagonal."""
    if len(input.shape) == 1:
        return diag_embed(input, diagonal)
    if len(input.shape) != 2:
        raise RuntimeError(f"diag: needs a vector or a matrix, got shape {tuple(input.shape)}")
    return clone(view_through(input, _steps("diag", input.shape, diagonal, 0, 1)))


@method
def diagflat(input: Any, offset: int = 0) -> Any:
    """The matrix with all elements of `input` as its diagonal."""
    return diag_embed(ravel(input), offset)


@method
def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A copy of `input` with a diagonal replaced."""
    steps = _steps("diagonal_scatter", input.shape, offset, dim1, dim2)
    if tuple(src.shape) != tuple(steps[-1].shape):
        raise ValueError(
            f"diagonal_scatter: a diagonal of shape {steps[-1].shape} cannot be replaced by one "
            f"of shape {tuple(src.shape)}"
        )
    return Overwrite.apply(input, cast(src, input.dtype), steps)


def _tril(grad: Any, diagonal: int) -> Any:
    return tril(grad, diagonal)


@method(in_place=True)
@with_gradient(_tril)
def tril(input: Any, diagonal: int = 0) -> Any:
    """The lower triangle of matrices, zeros above it."""
    return nd.tril(input, diagonal)


def _triu(grad: Any, diagonal: int) -> Any:
    return triu(grad, diagonal)


@method(in_place=True)
@with_gradient(_triu)
def triu(input: Any, diagonal: int = 0) -> Any:
    """The upper triangle of matrices, zeros below it."""
    return nd.triu(input, diagonal)


__all__ = ["diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "tril", "triu"]
