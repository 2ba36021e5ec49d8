"""Sparse matrices: positions and values of the elements that are not zero.

A sparse tensor is two tensors, so it costs what it holds. Values have gradients; positions are
data. It is made, multiplied with dense matrices, added, transposed and made dense again: what graph
networks and word counts need. Anything else is said with `to_dense`. Its last dimensions may be
dense: then what has a position is not a number but a row, or a block, of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.ir.dtype import int64
from genesis.ndarray.core.value import thread
from genesis.tensor.creation import as_tensor, zeros
from genesis.tensor.memory_formats import Size, layout, sparse_coo, sparse_csr
from genesis.tensor.tensor import Tensor


class SparseTensor:
    """Elements by their positions: `indices` has a row for each dimension that is sparse.

    `values` has a first dimension for the positions, and those of the tensor that are dense.

    >>> import genesis
    >>> x = genesis.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3))
    >>> x.to_dense()
    tensor([[0., 0., 3.],
            [4., 0., 5.]])
    >>> x @ genesis.ones(3, 1)
    tensor([[3.],
            [9.]])
    """

    is_sparse = True
    layout: layout = sparse_coo

    def __init__(
        self, indices: Tensor, values: Tensor, shape: Sequence[int], coalesced: bool = False
    ) -> None:
        self._at, self._values = indices, values
        self.shape = Size(shape)
        self._coalesced = coalesced

    # ---- what it is
    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._values.dtype

    @property
    def device(self) -> Any:
        """Where the elements are."""
        return self._values.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for the values."""
        return self._values.requires_grad

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def sparse_dim(self) -> int:
        """The number of dimensions that are given by positions."""
        return int(self._at.shape[0])

    def dense_dim(self) -> int:
        """The number of dimensions, the last ones, that are in each value."""
        return self.ndim - self.sparse_dim()

    def size(self, dim: int | None = None) -> Any:
        """The extents of all dimensions, or of one."""
        return self.shape if dim is None else self.shape[dim]

    def indices(self) -> Tensor:
        """The positions, a row for each dimension."""
        return self._at

    def values(self) -> Tensor:
        """The elements at these positions."""
        return self._values

    def _nnz(self) -> int:
        return int(self._at.shape[1])

    _indices = indices

    def is_coalesced(self) -> bool:
        """Whether every position is there once, in order."""
        return self._coalesced

    def __repr__(self) -> str:
        return (
            f"tensor(indices={self._at!r}, values={self._values!r}, size={tuple(self.shape)}, "
            f"nnz={self._nnz()}, layout={self.layout!r})"
        )

    # ---- other forms
    def with_values(self, values: Tensor) -> SparseTensor:
        """Other elements at the same positions."""
        return SparseTensor(self._at, values, self.shape, self._coalesced)

    def to_dense(self) -> Tensor:
        """All elements, zeros included; what is there twice is added."""
        empty = zeros(*self.shape, dtype=self.dtype, device=self.device)
        found: Tensor = functional.index_put(empty, list(self._at), self._values, accumulate=True)
        return found

    def coalesce(self) -> SparseTensor:
        """Every position once, in order, with the sum of its elements."""
        if self._coalesced or not self._nnz():
            return SparseTensor(self._at, self._values, self.shape, True)
        extents = self.shape[: self.sparse_dim()]
        flat = self._at[0] * 0
        for row, extent in zip(self._at, extents, strict=True):
            flat = flat * extent + row
        order, where = functional.unique(flat, return_inverse=True)
        shape = (order.shape[0], *self._values.shape[1:])
        total = zeros(*shape, dtype=self.dtype, device=self.device)
        total = functional.index_add(total, 0, where, self._values)
        rows = []
        for extent in reversed(extents):
            rows.append(order % extent)
            order = functional.div(order, extent, rounding_mode="floor")
        return SparseTensor(functional.stack(rows[::-1]), total, self.shape, True)

    def to_sparse_csr(self) -> SparseCSRTensor:
        """The same matrix by rows."""
        self._require_matrix("to_sparse_csr")
        matrix = self.coalesce()
        rows, columns = matrix._at
        counts = functional.bincount(rows, minlength=int(self.shape[0]))
        start = zeros(1, dtype=int64, device=self.device)
        ends = functional.cat([start, functional.cumsum(counts, 0)])
        return SparseCSRTensor(ends, columns, matrix._values, self.shape)

    def to_sparse(self, *args: Any) -> SparseTensor:
        """This tensor by positions."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """With values of another dtype, or on another device."""
        values = self._values.to(*args, **kwargs)
        return SparseTensor(self._at.to(values.device), values, self.shape, self._coalesced)

    def detach(self) -> SparseTensor:
        """The same elements, apart from the graph."""
        return SparseTensor(self._at, self._values.detach(), self.shape, self._coalesced)

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Record gradients for the values."""
        self._values.requires_grad_(requires_grad)
        return self

    def t(self) -> SparseTensor:
        """Rows as columns."""
        self._require_matrix("t")
        return SparseTensor(functional.flip(self._at, (0,)), self._values, self.shape[::-1])

    T = property(t)

    # ---- arithmetic
    def matmul(self, other: Any) -> Any:
        """The product with a dense matrix or vector."""
        self._require_matrix("matmul")
        if not isinstance(other, Tensor) or other.ndim not in (1, 2):
            raise TypeError("a sparse matrix is multiplied with a dense matrix or vector")
        if other.shape[0] != self.shape[1]:
            raise ValueError(f"matmul: shapes {self.shape} and {other.shape} do not fit")
        rows, columns = self._at
        picked = functional.index_select(other, 0, columns)
        values = self._values if other.ndim == 1 else functional.unsqueeze(self._values, 1)
        empty = zeros(self.shape[0], *other.shape[1:], dtype=picked.dtype, device=other.device)
        return functional.index_add(empty, 0, rows, picked * values)

    mm = mv = __matmul__ = matmul

    def __add__(self, other: Any) -> Any:
        if isinstance(other, SparseTensor):
            if other.shape != self.shape or other.sparse_dim() != self.sparse_dim():
                raise ValueError(
                    f"add: shapes {self.shape} and {other.shape}, of which {self.sparse_dim()} and "
                    f"{other.sparse_dim()} dimensions are sparse, do not fit"
                )
            at = functional.cat([self._at, other.to_sparse()._at], 1)
            values = functional.cat([self._values, other._values])
            return SparseTensor(at, values, self.shape).coalesce()
        return self.to_dense() + other

    __radd__ = __add__

    def __mul__(self, other: Any) -> SparseTensor:
        if isinstance(other, Tensor) and other.ndim:
            picked = functional.expand(other, tuple(self.shape))[tuple(self._at)]
            return SparseTensor(self._at, self._values * picked, self.shape, self._coalesced)
        return SparseTensor(self._at, self._values * other, self.shape, self._coalesced)

    __rmul__ = __mul__

    def __neg__(self) -> SparseTensor:
        return self.__mul__(-1)

    def __truediv__(self, other: Any) -> SparseTensor:
        return self.__mul__(1 / other)

    def sum(self, dim: int | None = None) -> Tensor:
        """The sum of all elements, or along a dimension, as a dense tensor."""
        found: Tensor
        if dim is None:
            found = functional.sum(self._values)
        else:
            found = functional.sum(self.to_dense(), dim)
        return found

    def _require_matrix(self, name: str) -> None:
        if self.ndim != 2 or self.dense_dim():
            raise ValueError(
                f"{name}: a sparse tensor of shape {self.shape} with {self.dense_dim()} dense "
                "dimensions is no sparse matrix"
            )


class SparseCSRTensor(SparseTensor):
    """A sparse matrix by rows: row i has the elements from ``crow[i]`` to below ``crow[i + 1]``."""

    layout: layout = sparse_csr

    def __init__(self, crow: Tensor, col: Tensor, values: Tensor, shape: Sequence[int]) -> None:
        counts = crow[1:] - crow[:-1]
        numbers = nd.arange(int(shape[0]), device=crow.device)
        rows = functional.repeat_interleave(
            Tensor(numbers), counts, output_size=int(values.shape[0])
        )
        super().__init__(functional.stack([rows, col]), values, shape)
        self._crow, self._col = crow, col

    def with_values(self, values: Tensor) -> SparseTensor:
        """Other elements at the same positions."""
        return SparseCSRTensor(self._crow, self._col, values, self.shape)

    def crow_indices(self) -> Tensor:
        """Where rows begin, and where the last one ends."""
        return self._crow

    def col_indices(self) -> Tensor:
        """The columns of the elements."""
        return self._col

    def to_sparse(self, *args: Any) -> SparseTensor:
        """The same matrix by positions."""
        return SparseTensor(self._at, self._values, self.shape)

    to_sparse_coo = to_sparse


def _parts(values: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    made = as_tensor(values, dtype, device)
    return made.requires_grad_() if requires_grad and made.creator is None else made


def _require_inside(name: str, index: Tensor, extent: int) -> None:
    if thread.recorder is None and index.shape[0]:
        low, high = int(index.min().item()), int(index.max().item())
        if low < 0 or high >= extent:
            raise ValueError(f"{name}: indices from {low} to {high} for a size of {extent}")


def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool = False,
) -> SparseTensor:
    """A sparse tensor of elements and their positions, a row for each dimension."""
    at = as_tensor(indices, int64, device)
    found = _parts(values, dtype, device, requires_grad)
    if at.ndim != 2 or found.ndim < 1 or at.shape[1] != found.shape[0]:
        raise ValueError(
            f"sparse_coo_tensor: indices of shape {at.shape} for values of shape {found.shape}; a "
            "row of indices for each sparse dimension, a column for each value"
        )
    dense = tuple(found.shape[1:])
    if size is None:
        size = [*(int(row.max().item()) + 1 for row in at), *dense]
    count = int(at.shape[0])
    if len(size) != count + len(dense) or tuple(size[count:]) != dense:
        raise ValueError(
            f"sparse_coo_tensor: {count} rows of indices and values of shape {tuple(found.shape)} "
            f"for shape {tuple(size)}"
        )
    for row, extent in zip(at, size[:count], strict=True):
        _require_inside("sparse_coo_tensor", row, extent)
    return SparseTensor(at, found, size, is_coalesced)


def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseCSRTensor:
    """A sparse matrix by rows: where they begin, the columns, and the elements."""
    crow, col = (as_tensor(x, int64, device) for x in (crow_indices, col_indices))
    found = _parts(values, dtype, device, requires_grad)
    if size is None:
        size = (int(crow.shape[0]) - 1, int(col.max().item()) + 1)
    starts = crow.tolist()
    fits = len(starts) == size[0] + 1 and starts[0] == 0 and starts[-1] == found.shape[0]
    if not fits or starts != sorted(starts) or col.shape != found.shape:
        raise ValueError(
            f"sparse_csr_tensor: rows from {crow.shape} positions, {col.shape} columns and "
            f"{found.shape} values make no matrix of shape {tuple(size)}"
        )
    _require_inside("sparse_csr_tensor", col, size[1])
    return SparseCSRTensor(crow, col, found, size)


def to_sparse(x: Tensor, layout: Any = None, sparse_dim: int | None = None) -> SparseTensor:
    """The elements of a tensor that are not zero, and where they are.

    Or the blocks that are not all zero, if only the first `sparse_dim` dimensions are sparse.
    """
    count = x.ndim if sparse_dim is None else sparse_dim
    if not 0 < count <= x.ndim and x.ndim:
        raise ValueError(f"to_sparse: {count} of {x.ndim} dimensions cannot be sparse")
    there = x if count == x.ndim else functional.any(x != 0, tuple(range(count, x.ndim)))
    at = functional.transpose(functional.nonzero(there), 0, 1)
    found = SparseTensor(at, x[tuple(at)], x.shape, True)
    return found.to_sparse_csr() if layout is sparse_csr else found


__all__ = ["SparseCSRTensor", "SparseTensor", "sparse_coo_tensor", "sparse_csr_tensor"]
