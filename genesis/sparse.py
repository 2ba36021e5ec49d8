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


def sampled_addmm(
    input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> SparseTensor:
    """``beta * input + alpha * mat1 @ mat2`` where the sparse matrix `input` has elements.

    >>> import genesis
    >>> x = genesis.eye(2).to_sparse_csr()
    >>> genesis.sparse.sampled_addmm(x, genesis.ones(2, 3), genesis.ones(3, 2)).to_dense()
    tensor([[4., 0.],
            [0., 4.]])
    """
    row, column = input.indices()
    products = (mat1[row] * mat2.transpose(0, 1)[column]).sum(-1)
    return input.with_values(beta * input.values() + alpha * products)


__all__ = ["addmm", "mm", "sampled_addmm", "sum"]
