"""Linear algebra: solutions, determinants, functions and norms of matrices.

Matrices are the last two dimensions; dimensions before them are a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.linalg import LinAlgError as LinAlgError

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, conj, mul, sub, where
from genesis.functional.complexes import imag
from genesis.functional.contraction import matmul
from genesis.functional.cumulative import cumprod
from genesis.functional.diagonals import diagonal as diagonal_of
from genesis.functional.diagonals import tril
from genesis.functional.elementary import abs, log, squared_size
from genesis.functional.error_messages import broadcast_shapes, normal_dim
from genesis.functional.factorisation import (
    adjoint,
    cholesky,
    cholesky_ex,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    ldl_factor,
    ldl_factor_ex,
    ldl_solve,
    lu,
    lu_factor,
    lu_factor_ex,
    qr,
    require,
    required,
    solve_triangular,
    svd,
    svdvals,
)
from genesis.functional.function import Function, plain, with_gradient
from genesis.functional.joining import cat, roll
from genesis.functional.movement import (
    expand,
    movedim,
    narrow,
    reshape,
    select,
    squeeze,
    transpose,
    unsqueeze,
)
from genesis.functional.norms_and_distances import vector_norm
from genesis.functional.reduction import amax, amin, sum
from genesis.functional.registry import method
from genesis.functional.zero_gradient import unrelated
from genesis.ir.size import product
from genesis.ndarray import linalg as arrays
from genesis.ndarray.linalg import LeastSquares, LogDeterminant

# ---- inverses and solutions


def _inverse_gradient(grad: Any, result: Any) -> Any:
    turned = adjoint(result)
    return -matmul(matmul(turned, grad), turned)


@method
@with_gradient(_inverse_gradient)
def inv(A: Any) -> Any:
    """The inverse."""
    return arrays.inv(A)


def _solve_gradient(grad: Any, a: Any, result: Any, needs: Any) -> Any:
    to_b = _solve(adjoint(a), grad)
    return -matmul(to_b, adjoint(result)) if needs[0] else None, to_b


@with_gradient(_solve_gradient)
def _solve(a: Any, b: Any) -> Any:
    return arrays.solve(a, b)


def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    """X with A X = B, or X A = B; B is a matrix, or a vector for each matrix A."""
    require("solve", A, square=True)
    vector = len(B.shape) == 1 or (
        len(B.shape) == len(A.shape) - 1 and tuple(B.shape) == tuple(A.shape[:-1])
    )
    if vector:
        return squeeze(_solve(A, unsqueeze(B, -1)), -1)
    if not left:
        return transpose(_solve(transpose(A, -1, -2), transpose(B, -1, -2)), -1, -2)
    return _solve(A, B)


def _regular(A: Any) -> tuple[Any, Any]:
    """Where matrices have an inverse, and the first zero on the diagonal of U where not."""
    info = plain(lambda a: arrays.first_pivot(arrays.lu_factor(a).LU), A)
    return plain(lambda x: (x == 0)[..., None, None], info), info


class InverseInfo(NamedTuple):
    """Inverses, and 0 where there is one."""

    inverse: Any
    info: Any


class SolutionInfo(NamedTuple):
    """Solutions, and 0 where there is one."""

    result: Any
    info: Any


def inv_ex(A: Any, *, check_errors: bool = False) -> InverseInfo:
    """The inverse, and for every matrix 0; or NaN, and which diagonal element of U is zero."""
    require("inv_ex", A, square=True)
    regular, info = _regular(A)
    found = where(regular, inv(where(regular, A, _identity(A))), math.nan)
    return InverseInfo(cast(found, A.dtype), required("inv_ex", info, check_errors))


def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> SolutionInfo:
    """`solve`, and for every matrix 0; or NaN, and which diagonal element of U is zero."""
    require("solve_ex", A, square=True)
    regular, info = _regular(A)
    found = solve(where(regular, A, _identity(A)), B, left=left)
    known = regular if len(found.shape) > len(A.shape) - 1 else squeeze(regular, -1)
    found = cast(where(known, found, math.nan), found.dtype)
    return SolutionInfo(found, required("solve_ex", info, check_errors))


@method
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Any:
    """X with A X = B, given the Cholesky factor of A."""
    lower = adjoint(L) if upper else L
    half = solve_triangular(lower, B, upper=False)
    return solve_triangular(adjoint(lower), half, upper=True)


def _identity(x: Any, rows: Any = None) -> Any:
    """The identity, with as many columns as `x` has."""
    n = x.shape[-1]
    return nd.eye(n if rows is None else rows, n, dtype=x.dtype, device=x.device)


@method
def cholesky_inverse(L: Any, upper: bool = False) -> Any:
    """The inverse of A, given its Cholesky factor."""
    return cholesky_solve(expand(_identity(L), tuple(L.shape)), L, upper)


def lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """X with A X = B (X A = B, or with the adjoint of A), given the `lu_factor` of A."""
    order = plain(arrays.permutation, pivots, LU.shape[-1], LU.dtype)
    factors = conj(LU) if adjoint else LU
    b = B if left else transpose(B, -1, -2)
    if adjoint == left:  # a system with the transposed matrix, Uᵀ Lᵀ Pᵀ
        turned = transpose(factors, -1, -2)
        half = solve_triangular(turned, b, upper=False)
        half = solve_triangular(turned, half, upper=True, unitriangular=True)
        found = matmul(order, half)
    else:
        half = matmul(transpose(order, -1, -2), b)
        half = solve_triangular(factors, half, upper=False, unitriangular=True)
        found = solve_triangular(factors, half, upper=True)
    return found if left else transpose(found, -1, -2)


def _pinv_gradient(grad: Any, a: Any, result: Any) -> Any:
    """The rank is taken as constant (Golub and Pereyra, 1973)."""
    turned, back = adjoint(result), adjoint(grad)
    onto = matmul(back, matmul(result, turned))
    across = matmul(matmul(turned, result), back)
    found = onto - matmul(a, matmul(result, onto)) + across - matmul(matmul(across, result), a)
    return found - matmul(turned, matmul(grad, turned))


@with_gradient(_pinv_gradient)
def _pinv(a: Any, rtol: Any, atol: Any, hermitian: bool) -> Any:
    return arrays.pinv(a, rtol, hermitian, atol)


def pinv(A: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """The pseudo-inverse; singular values up to `atol`, or `rtol` times the largest, are zero.

    Of a `hermitian` matrix only the lower triangle is read. Tolerances may be tensors, with one
    for every matrix.
    """
    require("pinv", A, hermitian)
    return _pinv(A, rtol, atol, hermitian)


class LeastSquaresSolution(Function):
    """The shortest X of those with the least |A X - B|."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, rcond: float | None) -> Any:
        ctx.rcond = rcond
        solution, _, rank, values = arrays.lstsq(a, b, rcond)
        ctx.save_for_backward(a, b)
        ctx.mark_non_differentiable(rank, values)
        return solution, rank, values

    @staticmethod
    def backward(ctx: Any, grad: Any, *_: Any) -> Any:
        a, b = ctx.saved_tensors
        p = pinv(a, rtol=ctx.rcond)
        to_a = _pinv_gradient(matmul(grad, adjoint(b)), a, p)
        return to_a, matmul(adjoint(p), grad), None


def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The shortest X of those with the least |A X - B|, residuals, ranks and singular values.

    A `driver`, one of LAPACK's names, changes nothing of the way it is found; it leaves out those
    of the other results that this function of LAPACK does not give.
    """
    require("lstsq", A)
    if driver not in (None, "gels", "gelsd", "gelss", "gelsy"):
        raise ValueError(f"lstsq: driver is gels, gelsd, gelss or gelsy, not {driver!r}")
    vector = len(B.shape) == len(A.shape) - 1
    b = unsqueeze(B, -1) if vector else B
    x, rank, values = LeastSquaresSolution.apply(A, b, rcond)
    if A.shape[-2] > A.shape[-1]:
        residuals = sum(squared_size(matmul(A, x) - b), -2)
    else:
        residuals = unrelated(A, plain(lambda a: nd.zeros((0,), a.dtype.real, a.device), A))
    x = squeeze(x, -1) if vector else x
    if driver is None:
        return LeastSquares(x, residuals, rank, values)
    least = driver in ("gelsd", "gelss")
    return LeastSquares(
        x,
        unrelated(A, _none_of(residuals)) if driver == "gelsy" else residuals,
        _none_of(rank) if driver == "gels" else rank,
        values if least else _none_of(values),
    )


def _none_of(x: Any) -> Any:
    """What stands for a result that is not given."""
    return plain(lambda a: nd.zeros((0,), a.dtype, a.device), x)


def tensorinv(A: Any, ind: int = 2) -> Any:
    """The inverse for `tensordot` over the first `ind` dimensions."""
    shape = tuple(A.shape)
    if product(shape[:ind]) != product(shape[ind:]):
        raise ValueError(f"linalg.tensorinv: shape {shape} is not square when cut at {ind}")
    n = product(shape[ind:])
    return reshape(inv(reshape(A, (n, n))), shape[ind:] + shape[:ind])


def tensorsolve(A: Any, B: Any, dims: Sequence[int] | None = None) -> Any:
    """X with tensordot(A, X) = B."""
    if dims is not None:
        A = movedim(A, tuple(dims), tuple(range(len(A.shape) - len(dims), len(A.shape))))
    shape = tuple(A.shape[len(B.shape) :])
    if product(shape) != product(B.shape):
        raise ValueError(
            f"linalg.tensorsolve: shapes {tuple(A.shape)} and {tuple(B.shape)} do not fit together"
        )
    n = product(shape)
    return reshape(solve(reshape(A, (n, n)), reshape(B, (n,))), shape)


# ---- determinants


def _det_gradient(grad: Any, A: Any, result: Any) -> Any:
    return unsqueeze(unsqueeze(grad * conj(result), -1), -1) * adjoint(inv(A))


@method
@with_gradient(_det_gradient)
def det(A: Any) -> Any:
    """The determinant; it has a gradient where the matrix is invertible."""
    return arrays.det(A)


class SignLog(Function):
    """The sign and the logarithm of the size of a determinant."""

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        sign, logarithm = arrays.slogdet(a)
        ctx.save_for_backward(a, sign)
        return sign, logarithm

    @staticmethod
    def backward(ctx: Any, to_sign: Any, to_log: Any) -> Any:
        a, sign = ctx.saved_tensors
        if a.dtype.is_complex:  # a real sign is constant
            to_log = to_log - mul(imag(conj(to_sign) * sign), 1j)
        return unsqueeze(unsqueeze(to_log, -1), -1) * adjoint(inv(a))


@method
def slogdet(A: Any) -> LogDeterminant:
    """Sign, and logarithm of the absolute value, of the determinant."""
    return LogDeterminant(*SignLog.apply(A))


@method
def logdet(input: Any) -> Any:
    """The logarithm of the determinant; NaN where that is negative."""
    sign, logarithm = slogdet(input)
    return log(sign) + logarithm


# ---- functions of matrices


def _exponential_gradient(grad: Any, A: Any) -> Any:
    turned, n = adjoint(A), A.shape[-1]
    # The derivative in a direction is the corner of the exponential of a block matrix.
    above = cat([turned, grad], -1)
    below = cat([plain(nd.zeros_like, turned), turned], -1)
    block = _matrix_exp(cat([above, below], -2))
    return narrow(narrow(block, -2, 0, n), -1, n, n)


@with_gradient(_exponential_gradient)
def _matrix_exp(A: Any) -> Any:
    return arrays.matrix_exp(A)


@method
def matrix_exp(A: Any) -> Any:
    """The exponential: the sum of A^k / k!; of half precisions computed in float32."""
    return cast(_matrix_exp(cast(A, A.dtype.accumulator)), A.dtype)


@method
def matrix_power(A: Any, n: int) -> Any:
    """A multiplied by itself, n times; a negative n is a power of the inverse."""
    require("matrix_power", A, square=True)
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        return unrelated(A, plain(lambda a: nd.broadcast_to(_identity(a), a.shape), A))
    result = None
    while n:
        if n % 2:
            result = A if result is None else matmul(result, A)
        n //= 2
        A = matmul(A, A) if n else A
    return result


def multi_dot(tensors: Sequence[Any]) -> Any:
    """The product of several matrices, in the order that takes the least work."""
    chain = list(tensors)
    if len(chain) < 2:
        raise ValueError(f"linalg.multi_dot: needs at least two matrices, got {len(chain)}")
    first, last = len(chain[0].shape) == 1, len(chain[-1].shape) == 1
    chain[0] = unsqueeze(chain[0], 0) if first else chain[0]
    chain[-1] = unsqueeze(chain[-1], -1) if last else chain[-1]
    splits = arrays.cheapest_order([*(m.shape[0] for m in chain), chain[-1].shape[1]])

    def multiplied(i: int, j: int) -> Any:
        if i == j:
            return chain[i]
        k = splits[i, j]
        return matmul(multiplied(i, k), multiplied(k + 1, j))

    result = multiplied(0, len(chain) - 1)
    result = select(result, 0, 0) if first else result
    return select(result, -1, 0) if last else result


def householder_product(A: Any, tau: Any) -> Any:
    """The first columns of the product of reflections I - tau v vᴴ."""
    require("householder_product", A)
    one = _identity(A, A.shape[-2])
    vectors = tril(A, -1) + one
    result = unrelated(A, plain(lambda a: nd.broadcast_to(one, a.shape), A))
    for k in reversed(range(int(tau.shape[-1]))):
        v = narrow(vectors, -1, k, 1)
        scale = unsqueeze(narrow(tau, -1, k, 1), -1)
        result = sub(result, scale * matmul(v, matmul(adjoint(v), result)))
    return result


# ---- norms


def matrix_norm(
    A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A norm of matrices: fro, nuc, or 1, 2, inf and their negatives."""
    require("matrix_norm", A)
    if dtype is not None:
        A = cast(A, dtype)
    rank = len(A.shape)
    rows, columns = (normal_dim("linalg.matrix_norm", d, rank) for d in dim)
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    x = movedim(A, (rows, columns), (-2, -1))
    if ord == "nuc":
        result = sum(svdvals(x), -1)
    elif ord in (2, -2):
        result = (amax if ord == 2 else amin)(svdvals(x), -1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = sum(abs(x), -2 if ord in (1, -1) else -1)
        result = (amax if ord > 0 else amin)(sums, -1)
    else:
        raise ValueError(f"linalg.matrix_norm: there is no norm {ord!r}")
    if keepdim:
        for d in sorted((rows, columns)):
            result = unsqueeze(result, d)
    return result


def norm(
    A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A norm of vectors, or of matrices where `dim` names two dimensions or `ord` says so."""
    two = isinstance(dim, tuple | list) and len(dim) == 2
    if ord is not None and dim is None and len(A.shape) > 2:
        raise ValueError(f"norm: which dimensions of {len(A.shape)} is ord={ord!r} for? Give dim")
    if ord is not None and (two or isinstance(ord, str) or (dim is None and len(A.shape) == 2)):
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


def cond(A: Any, p: Any = None) -> Any:
    """The condition number: a norm of A times that of its inverse."""
    if p in (None, 2, -2):
        values = svdvals(A)
        greatest, least = select(values, -1, 0), select(values, -1, -1)
        return least / greatest if p == -2 else greatest / least
    inverse, code = inv_ex(A)
    found = matrix_norm(A, p) * matrix_norm(inverse, p)
    return where(plain(nd.equal, code, 0), found, math.inf)


def matrix_rank(A: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """How many singular values are above `atol` and above `rtol` times the largest."""
    return plain(arrays.matrix_rank, A, rtol, hermitian, atol)


# ---- vectors


def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    """The sum of products along a dimension, x conjugated."""
    return sum(conj(x) * y, dim)


def cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """The cross product of vectors of three along a dimension."""
    shape = broadcast_shapes("linalg.cross", tuple(input.shape), tuple(other.shape))
    axis = normal_dim("linalg.cross", dim, len(shape))
    if input.shape[dim] != 3 or other.shape[dim] != 3:
        raise ValueError(f"linalg.cross: dim {dim} of shape {shape} must have 3 elements")
    a, b = expand(input, shape), expand(other, shape)
    return roll(a, -1, axis) * roll(b, -2, axis) - roll(a, -2, axis) * roll(b, -1, axis)


def vander(x: Any, N: int | None = None) -> Any:
    """Powers of x along a new last dimension: 1, x, x**2, .."""
    x = x if x.shape else unsqueeze(x, 0)
    count = int(x.shape[-1]) if N is None else N
    if count < 1:
        raise ValueError(f"linalg.vander: N must be positive, not {count}")
    column = unsqueeze(x, -1)
    one = plain(nd.ones_like, column)
    if count < 2:
        return narrow(one, -1, 0, count)
    powers = cumprod(expand(column, (*x.shape, count - 1)), -1)
    return cat([one, powers], -1)


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """The diagonals of matrices."""
    return diagonal_of(A, offset, dim1, dim2)


@method
def pinverse(input: Any, rcond: float = 1e-15) -> Any:
    """`pinv` by another name."""
    return pinv(input, rtol=rcond)


inverse = inv

__all__ = [
    "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "cond", "cross", "det",
    "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "householder_product", "inv", "inv_ex",
    "ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex",
    "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot",
    "norm", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals",
    "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip
