"""Sparse matrices by PyTorch's names; `genesis.tensor.sparse` says what they are."""

from __future__ import annotations

from typing import Any

from genesis.tensor.sparse import SparseTensor
from genesis.tensor.tensor import Tensor


def mm(sparse: SparseTensor, dense: Tensor) -> Tensor:
    """The product of a sparse matrix and a dense one; both have gradients.

    >>> import genesis
    >>> genesis.sparse.mm(genesis.eye(2).to_sparse(), genesis.ones(2, 1))
    tensor([[1.],
            [1.]])
    """
    if not isinstance(sparse, SparseTensor):
        raise TypeError(f"sparse.mm: the first matrix is a {type(sparse).__name__}, not sparse")
    found: Tensor = sparse.matmul(dense)
    return found


def sum(input: SparseTensor, dim: int | None = None) -> Any:
    """The sum of all elements, or along a dimension, as a dense tensor."""
    return input.sum(dim)


def addmm(
    mat: Tensor, mat1: SparseTensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """``beta * mat + alpha * mat1 @ mat2`` for a sparse `mat1`."""
    return beta * mat + alpha * mm(mat1, mat2)


__all__ = ["addmm", "mm", "sum"]
