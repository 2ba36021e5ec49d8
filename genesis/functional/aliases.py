"""What PyTorch also has by another name, with arguments and results of that name's own.

The functions under `linalg` and `nn.functional` are the ones to use; these are for programs that
were written with the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.functional import linalg
from genesis.functional.arithmetic import cast
from genesis.functional.contraction import matmul
from genesis.functional.diagonals import tril, triu
from genesis.functional.error_messages import broadcast_shapes, normal_dims
from genesis.functional.factorisation import adjoint, require
from genesis.functional.function import plain
from genesis.functional.interpolation import grid_sample
from genesis.functional.joining import flip
from genesis.functional.movement import chunk, expand, narrow, reshape, split, transpose
from genesis.functional.normalization import batch_norm, group_norm, layer_norm, moments
from genesis.functional.padding import pad as padded
from genesis.functional.reduction import mean, var
from genesis.functional.registry import method
from genesis.functional.zero_gradient import unrelated
from genesis.ndarray import linalg as arrays
from genesis.ndarray import random

# ---- linear algebra


class Unpacked(NamedTuple):
    """The factors of ``P L U``; what was not asked for is empty."""

    P: Any
    L: Any
    U: Any


class Singular(NamedTuple):
    """Singular values and vectors, both as columns."""

    U: Any
    S: Any
    V: Any


class Reflections(NamedTuple):
    """R with the vectors of reflections below its diagonal, and their factors."""

    a: Any
    tau: Any


class Triangular(NamedTuple):
    """A solution, and the matrix it is for."""

    solution: Any
    cloned_coefficient: Any


def _nothing(like: Any) -> Any:
    return plain(lambda x: nd.zeros((0,), x.dtype, x.device), like)


@method
def lu(A: Any, pivot: bool = True, get_infos: bool = False) -> Any:
    """`linalg.lu_factor`, and with `get_infos` whether it is singular."""
    found = linalg.lu_factor_ex(A, pivot=pivot)
    return tuple(found if get_infos else found[:2])


def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> Unpacked:
    """P, L and U with A = P L U, given `linalg.lu_factor` of A."""
    m, n = LU_data.shape[-2:]
    order = lower = upper = _nothing(LU_data)
    if unpack_pivots:
        order = plain(arrays.permutation, LU_pivots, m, LU_data.dtype)
    if unpack_data:
        size = min(m, n)
        one = nd.eye(m, size, dtype=LU_data.dtype, device=LU_data.device)
        lower = tril(narrow(LU_data, -1, 0, size), -1) + one
        upper = triu(narrow(LU_data, -2, 0, size))
    return Unpacked(order, lower, upper)


@method
def lu_solve(b: Any, LU_data: Any, LU_pivots: Any) -> Any:
    """`linalg.lu_solve`, the right-hand side first."""
    return linalg.lu_solve(LU_data, LU_pivots, b)


@method
def qr(input: Any, some: bool = True) -> Any:
    """`linalg.qr`, reduced if `some`."""
    return linalg.qr(input, "reduced" if some else "complete")


@method
def svd(input: Any, some: bool = True, compute_uv: bool = True) -> Singular:
    """`linalg.svd`, reduced if `some`, with V rather than its adjoint."""
    if compute_uv:
        u, s, vh = linalg.svd(input, full_matrices=not some)
        return Singular(u, s, adjoint(vh))
    empty = [
        plain(lambda x, n=n: nd.zeros((*x.shape[:-2], n, n), x.dtype, x.device), input)
        for n in input.shape[-2:]
    ]
    return Singular(empty[0], linalg.svdvals(input), empty[1])


@method
def triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Triangular:
    """`linalg.solve_triangular`, the right-hand side first, and A in the shape of its batch."""
    require("triangular_solve", A, square=True)
    batch = broadcast_shapes("triangular_solve", tuple(A.shape[:-2]), tuple(b.shape[:-2]))
    whole = expand(A, (*batch, *A.shape[-2:]))
    turned = _turned(A) if transpose else A
    found = linalg.solve_triangular(
        turned, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return Triangular(found, whole)


def _turned(x: Any) -> Any:
    return transpose(x, -1, -2)


@method
def geqrf(input: Any) -> Reflections:
    """The reflections that take a matrix to triangular form; for `ormqr`. No gradient."""
    return Reflections(*plain(arrays.geqrf, input))


@method
def orgqr(input: Any, input2: Any) -> Any:
    """`linalg.householder_product`."""
    return linalg.householder_product(input, input2)


@method
def ormqr(input: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    """The orthogonal matrix of the reflections `geqrf` gave, or its adjoint, times `input3`."""
    rows, columns = input.shape[-2:]
    square = padded(input, (0, rows - columns))
    q = linalg.householder_product(square, input2)
    q = adjoint(q) if transpose else q
    return matmul(q, input3) if left else matmul(input3, q)


def _range(A: Any, q: int, niter: int) -> Any:
    """An orthonormal basis of most of what `A` reaches (Halko, Martinsson and Tropp, 2009)."""
    shape = (*A.shape[:-2], A.shape[-1], q)
    drawn = random.normal(shape, dtype=A.dtype.real, generator=random.default_generator(A.device))
    found = linalg.qr(matmul(A, cast(drawn, A.dtype))).Q
    for _ in range(niter):
        found = linalg.qr(matmul(adjoint(A), found)).Q
        found = linalg.qr(matmul(A, found)).Q
    return found


def svd_lowrank(A: Any, q: int | None = 6, niter: int | None = 2, M: Any = None) -> Singular:
    """The `q` greatest singular values of ``A - M`` and their vectors, as far as chance finds them.

    `niter` further products make it likelier.
    """
    A = A if M is None else A - M
    wide = A.shape[-2] < A.shape[-1]
    matrix = adjoint(A) if wide else A
    size = min(6 if q is None else q, matrix.shape[-1])
    basis = _range(matrix, size, 2 if niter is None else niter)
    u, s, vh = linalg.svd(matmul(adjoint(basis), matrix), full_matrices=False)
    left, right = matmul(basis, u), adjoint(vh)
    return Singular(right, s, left) if wide else Singular(left, s, right)


def pca_lowrank(A: Any, q: int | None = None, center: bool = True, niter: int = 2) -> Singular:
    """`svd_lowrank` of the rows of A, less their mean if `center`: principal components."""
    size = min(6, *A.shape[-2:]) if q is None else q
    if not 0 <= size <= min(A.shape[-2:]):
        raise ValueError(f"pca_lowrank: {q} components of shape {tuple(A.shape)}")
    return svd_lowrank(A - mean(A, -2, True) if center else A, size, niter)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """Powers of the elements of a vector as columns: .., x**2, x, 1, or from 1 on.

    >>> import genesis
    >>> genesis.vander(genesis.tensor([2, 3]), 3)
    tensor([[4, 2, 1],
            [9, 3, 1]])
    """
    if len(x.shape) != 1 or (N is not None and N < 0):
        raise ValueError(f"vander: {N} powers of shape {tuple(x.shape)}, which should be a vector")
    count = int(x.shape[0]) if N is None else N
    powers = narrow(linalg.vander(x, max(count, 1)), -1, 0, count)
    return powers if increasing else flip(powers, -1)


def frobenius_norm(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """`linalg.vector_norm` of all elements, or along dimensions."""
    axes = dim if isinstance(dim, int) else tuple(dim) or None
    return linalg.vector_norm(input, 2, axes, keepdim)


def nuclear_norm(input: Any, dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    """The sum of the singular values."""
    axes = normal_dims("nuclear_norm", dim, input.ndim)
    if len(axes) != 2:
        raise ValueError(f"nuclear_norm: dim {dim} is not two dimensions, which a matrix has")
    return linalg.matrix_norm(input, "nuc", axes, keepdim)


# ---- normalisations with their statistics


def native_layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    """`layer_norm`, the means, and one over the standard deviations."""
    axes = tuple(range(len(input.shape) - len(normalized_shape), len(input.shape)))
    result = layer_norm(input, normalized_shape, weight, bias, eps)
    return result, *_statistics(input, axes, True, eps, weight)


def native_group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Any, Any, Any]:
    """`group_norm`, the means, and one over the standard deviations."""
    result = group_norm(input, group, weight, bias, eps)
    grouped = reshape(input, (N, group, C // group * HxW))
    wide = cast(grouped, grouped.dtype.accumulator)
    deviation = (var(wide, 2, correction=0) + eps) ** -0.5
    kind = input.dtype if weight is None else weight.dtype
    return result, cast(mean(wide, 2), kind), cast(deviation, kind)


def native_batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any]:
    """`batch_norm`, and in training the means and one over the standard deviations."""
    axes = (0, *range(2, len(input.shape)))
    result = batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        return result, _nothing(input), _nothing(input)
    return result, *_statistics(input, axes, False, eps, weight)


def _statistics(x: Any, axes: tuple[int, ...], keep: bool, eps: float, weight: Any) -> Any:
    """Means, and one over the standard deviations, in the type of the weights."""
    kind = x.dtype if weight is None else weight.dtype

    def found(x: Any) -> tuple[Any, Any]:
        middle, variance = moments(x.astype(x.dtype.accumulator), axes, True)
        both = middle, nd.rsqrt(variance + eps)
        return tuple(_kept(part, axes, keep).astype(kind) for part in both)

    return plain(found, x)


def _kept(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return x if keep else nd.squeeze(x, axes)


# ---- others

_SAMPLING = ("bilinear", "nearest", "bicubic")
_BEYOND = ("zeros", "border", "reflection")


def grid_sampler(
    input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """`grid_sample`, with modes by their numbers."""
    names = _SAMPLING[interpolation_mode], _BEYOND[padding_mode]
    return grid_sample(input, grid, *names, align_corners)


grid_sampler_2d = grid_sampler_3d = grid_sampler


def constant_pad_nd(input: Any, pad: Sequence[int], value: Any = 0) -> Any:
    """`pad` with a number."""
    return padded(input, pad, value=value)


def fill(input: Any, value: Any) -> Any:
    """One number, or a tensor of one, in the shape and type of `input`."""
    if not hasattr(value, "dtype"):
        return unrelated(input, plain(nd.full_like, input, value))
    return unrelated(input, expand(cast(value, input.dtype), input.shape))


@method
def unsafe_chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    """`chunk`: what is written into one of the parts is in the whole, as always."""
    return chunk(input, chunks, dim)


@method
def unsafe_split(tensor: Any, split_size: Any, dim: int = 0) -> Any:
    """`split`."""
    return split(tensor, split_size, dim)


@method
def unsafe_split_with_sizes(input: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    """`split` into parts of these sizes."""
    return split(input, split_sizes, dim)


__all__ = [
    "constant_pad_nd", "fill", "frobenius_norm", "geqrf", "grid_sampler", "grid_sampler_2d",
    "grid_sampler_3d", "lu", "lu_solve", "lu_unpack", "native_batch_norm", "native_group_norm",
    "native_layer_norm", "nuclear_norm", "orgqr", "ormqr", "pca_lowrank", "qr", "svd",
    "svd_lowrank", "triangular_solve", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "vander",
]  # fmt: skip
