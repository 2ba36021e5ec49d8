"""Factorisations of matrices, with the classical gradients of their factors.

A rule here is the adjoint of the differential that follows from the factors' definition (Giles,
"Collected matrix derivative results", 2008; for unitary factors, whose differentials are
skew-Hermitian, see Walter and Lehmann, 2010). Where a factor is determined only up to a sign or a
phase, the gradient is that of a loss which does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from genesis import ndarray as nd
from genesis.functional.arithmetic import conj, where
from genesis.functional.complexes import real
from genesis.functional.contraction import matmul
from genesis.functional.diagonals import diagonal, tril, triu
from genesis.functional.function import Function, is_tensor, plain, with_gradient
from genesis.functional.joining import cat
from genesis.functional.movement import narrow, transpose, unsqueeze
from genesis.functional.registry import method
from genesis.ir.dtype import int32
from genesis.ndarray import linalg as arrays
from genesis.ndarray.linalg import LDL, LU, QR, SVD, Eigen, LUFactors


class CholeskyInfo(NamedTuple):
    """A factor, and 0 where it is whole."""

    L: Any
    info: Any


class LUInfo(NamedTuple):
    """`LUFactors`, and which diagonal element of U is the first that is zero; 0 if none is."""

    LU: Any
    pivots: Any
    info: Any


class LDLFactors(NamedTuple):
    """Both factors of L D Lᵀ in one matrix, and the exchanges of rows."""

    LD: Any
    pivots: Any


def adjoint(input: Any) -> Any:
    """The conjugate of the transposed matrix."""
    return conj(transpose(input, -1, -2))


def require(name: str, x: Any, square: bool = False) -> None:
    """Refuse what is not a matrix, or not a square one."""
    if len(x.shape) < 2:
        raise ValueError(f"linalg.{name}: needs matrices, got shape {tuple(x.shape)}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"linalg.{name}: needs square matrices, got shape {tuple(x.shape)}")


def _on_diagonal(x: Any) -> Any:
    """Where in matrices of this shape the diagonal is."""
    rows, columns = (nd.arange(n, device=x.device) for n in x.shape[-2:])
    return nd.equal(nd.unsqueeze(rows, 1), columns)


def _total(x: Any, y: Any) -> Any:
    """The sum of two matrices, one of which may be missing: None is zero."""
    return y if x is None else x if y is None else x + y


# ---- triangular systems


def _triangular_gradient(
    grad: Any, a: Any, upper: bool, unitriangular: bool, result: Any, needs: Any
) -> Any:
    to_b = _solve_triangular(adjoint(a), grad, not upper, unitriangular)
    if not needs[0]:
        return None, to_b
    least, product = int(unitriangular), -matmul(to_b, adjoint(result))
    return triu(product, least) if upper else tril(product, -least), to_b


@with_gradient(_triangular_gradient)
def _solve_triangular(a: Any, b: Any, upper: bool, unitriangular: bool) -> Any:
    return arrays.solve_triangular(a, b, upper=upper, unitriangular=unitriangular)


def solve_triangular(
    A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """X with A X = B, or X A = B, for triangular A; the other triangle is not read."""
    if left:
        return _solve_triangular(A, B, upper, unitriangular)
    turned = transpose(A, -1, -2), transpose(B, -1, -2)
    return transpose(_solve_triangular(*turned, not upper, unitriangular), -1, -2)


# ---- Cholesky, QR, LU


def _cholesky_gradient(grad: Any, result: Any) -> Any:
    upper = adjoint(result)
    below = tril(matmul(upper, grad))
    middle = solve_triangular(upper, (below + adjoint(tril(below, -1))) / 2, upper=True)
    return solve_triangular(result, middle, upper=False, left=False)


def _read_from(a: Any, upper: bool) -> Any:
    """A matrix whose lower triangle is the one that is read."""
    return nd.conj(nd.swapaxes(a, -1, -2)) if upper else a


@with_gradient(_cholesky_gradient)
def _cholesky(a: Any, upper: bool) -> Any:
    return arrays.cholesky(_read_from(a, upper))


@method
def cholesky(A: Any, *, upper: bool = False) -> Any:
    """The triangular L with A = L Lᴴ, or its adjoint; A is positive definite.

    Of A the lower triangle is read, or the `upper` one.
    """
    lower = _cholesky(A, upper)
    return adjoint(lower) if upper else lower


class CheckedCholesky(Function):
    """The factor as far as there is one, and which leading minor is not positive."""

    @staticmethod
    def forward(ctx: Any, a: Any, upper: bool) -> Any:
        lower, info = arrays.cholesky_ex(_read_from(a, upper))
        ctx.save_for_backward(lower)
        ctx.mark_non_differentiable(info)
        return lower, info

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        return _cholesky_gradient(grad, ctx.saved_tensors[0]), None


def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False) -> CholeskyInfo:
    """`cholesky`, and for every matrix 0, or which leading minor is not positive."""
    require("cholesky_ex", A, square=True)
    if check_errors:
        found = cholesky(A, upper=upper)
        return CholeskyInfo(found, _all_well(A))
    lower, info = CheckedCholesky.apply(A, upper)
    return CholeskyInfo(adjoint(lower) if upper else lower, info)


def _all_well(a: Any) -> Any:
    return plain(lambda x: nd.zeros(x.shape[:-2], int32, x.device), a)


class Factors(Function):
    """Results that the gradient needs; to it, those of which there is no gradient are None."""

    function: ClassVar[Callable[..., Any]]

    @classmethod
    def forward(cls, ctx: Any, *args: Any) -> Any:
        """The factors."""
        results = tuple(cls.function(*args))
        ctx.save_for_backward(*results)
        ctx.set_materialize_grads(False)
        return results


class TallQR(Factors):
    """Q and R of a matrix with no more columns than rows."""

    function = staticmethod(arrays.qr)

    @staticmethod
    def backward(ctx: Any, to_q: Any, to_r: Any) -> Any:
        q, r = ctx.saved_tensors
        by_r = None if to_r is None else matmul(to_r, adjoint(r))
        by_q = None if to_q is None else -matmul(adjoint(q), to_q)
        m = triu(_total(by_r, by_q))
        m = m + adjoint(m)
        inner = _total(matmul(q, where(_on_diagonal(m), real(m) / 2, m)), to_q)
        return solve_triangular(adjoint(r), inner, upper=False, left=False)


def qr(A: Any, mode: str = "reduced") -> QR:
    """A = Q R; `mode` is reduced, complete (square Q) or r (no Q). Reduced ones have gradients."""
    require("qr", A)
    m, n = A.shape[-2:]
    if mode not in ("reduced", "complete", "r") or (mode != "reduced" and m > n):
        return QR(*plain(arrays.qr, A, mode))
    if m >= n:
        q, r = TallQR.apply(A)
    else:
        q, left = TallQR.apply(narrow(A, -1, 0, m))
        r = cat([left, matmul(adjoint(q), narrow(A, -1, m, n - m))], -1)
    return QR(plain(lambda a: nd.zeros((0,), a.dtype, a.device), q) if mode == "r" else q, r)


class TriangularFactors(Factors):
    """L and U of a square matrix that needs no exchange of rows; they are known."""

    # New arrays, so that these are results and not arguments.
    function = staticmethod(lambda a, lower, upper: (lower + 0, upper + 0))

    @staticmethod
    def backward(ctx: Any, to_lower: Any, to_upper: Any) -> Any:
        lower, upper = (adjoint(x) for x in ctx.saved_tensors)
        below = None if to_lower is None else tril(matmul(lower, to_lower), -1)
        above = None if to_upper is None else triu(matmul(to_upper, upper))
        middle = _total(below, above)
        middle = solve_triangular(lower, middle, upper=True, unitriangular=True)
        return solve_triangular(upper, middle, upper=False, left=False), None, None


def _factors(A: Any) -> tuple[Any, Any, Any, Any, Any]:
    """P, L and U of the square part, and what is below or beside it (None if A is square)."""
    require("lu", A)
    m, n = A.shape[-2:]
    k = min(m, n)
    p, lower, upper = plain(arrays.lu, A)
    rows = matmul(transpose(p, -1, -2), A)
    square = narrow(narrow(rows, -2, 0, k), -1, 0, k)
    known = narrow(lower, -2, 0, k), narrow(upper, -1, 0, k)
    lower, upper = TriangularFactors.apply(square, *known)
    below = beside = None
    if m > n:
        below = solve_triangular(upper, narrow(rows, -2, k, m - k), upper=True, left=False)
    elif n > m:
        rest = narrow(rows, -1, k, n - k)
        beside = solve_triangular(lower, rest, upper=False, unitriangular=True)
    return p, lower, upper, below, beside


def lu(A: Any, *, pivot: bool = True) -> LU:
    """A = P L U."""
    _require_pivots("lu", pivot)
    p, lower, upper, below, beside = _factors(A)
    lower = lower if below is None else cat([lower, below], -2)
    return LU(p, lower, upper if beside is None else cat([upper, beside], -1))


def lu_factor(A: Any, *, pivot: bool = True) -> LUFactors:
    """Both factors of `lu` in one matrix, and the exchanges of rows."""
    _require_pivots("lu_factor", pivot)
    _, lower, upper, below, beside = _factors(A)
    found = tril(lower, -1) + upper
    if below is not None:
        found = cat([found, below], -2)
    elif beside is not None:
        found = cat([found, beside], -1)
    return LUFactors(found, plain(lambda a: arrays.lu_factor(a).pivots.astype(int32), A))


def lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> LUInfo:
    """`lu_factor`, and for every matrix 0, or which diagonal element of U is zero."""
    factors, pivots = lu_factor(A, pivot=pivot)
    info = plain(arrays.first_pivot, factors)
    return LUInfo(factors, pivots, required("lu_factor_ex", info, check_errors))


def required(name: str, info: Any, check_errors: bool) -> Any:
    """What is known of matrices; an error if it must be 0 and is not."""
    if not check_errors:
        return info
    complaint = f"linalg.{name}: a matrix is singular"
    return plain(nd.demand, info, lambda x: x != 0, complaint)


def ldl_factor(A: Any, *, hermitian: bool = False) -> LDLFactors:
    """A = L D Lᵀ (Lᴴ if `hermitian`) by the method of Bunch and Kaufman; for `ldl_solve`."""
    return LDLFactors(*plain(arrays.ldl_factor_ex, A, hermitian)[:2])


def ldl_factor_ex(A: Any, *, hermitian: bool = False, check_errors: bool = False) -> LDL:
    """`ldl_factor`, and for every matrix 0, or the first pivot that is zero."""
    factors, pivots, info = plain(arrays.ldl_factor_ex, A, hermitian)
    return LDL(factors, pivots, required("ldl_factor_ex", info, check_errors))


def ldl_solve(LD: Any, pivots: Any, B: Any, *, hermitian: bool = False) -> Any:
    """X with A X = B, given `ldl_factor` of A; without a gradient."""
    return plain(arrays.ldl_solve, LD, pivots, B, hermitian)


def _require_pivots(name: str, pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError(f"linalg.{name}: only with pivoting, which is the stable way")


# ---- singular values


class SingularValues(Factors):
    """U, S and Vᴴ with A = U S Vᴴ."""

    function = staticmethod(arrays.svd)

    @staticmethod
    def backward(ctx: Any, to_u: Any, to_s: Any, to_vh: Any) -> Any:
        u, s, vh = ctx.saved_tensors
        k, m, n = s.shape[-1], u.shape[-2], vh.shape[-1]
        u, vh = narrow(u, -1, 0, k), narrow(vh, -2, 0, k)
        row, column = unsqueeze(s, -2), unsqueeze(s, -1)
        found = None if to_s is None else matmul(u * unsqueeze(to_s, -2), vh)
        if to_u is not None:
            to_u = narrow(to_u, -1, 0, k)
            turns = _over_gaps(_skew(matmul(adjoint(u), to_u)), s, 1)
            left = matmul(u, turns * row)
            if m > k:
                scaled = to_u / row
                left = left + scaled - matmul(u, matmul(adjoint(u), scaled))
            found = _total(found, matmul(left, vh))
        if to_vh is not None:
            to_vh = narrow(to_vh, -2, 0, k)
            turns = _over_gaps(_skew(matmul(vh, adjoint(to_vh))), s, -1)
            right = matmul(column * turns, vh)
            if n > k:
                scaled = to_vh / column
                right = right + scaled - matmul(matmul(scaled, adjoint(vh)), vh)
            found = _total(found, matmul(u, right))
        return found, None


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _over_gaps(x: Any, s: Any, sign: int) -> Any:
    """Every element over the difference of two squares of singular values.

    What is on the diagonal turns the phases of both vectors, against each other: half from each.
    """
    on_diagonal, squares = _on_diagonal(x), s * s
    gaps = unsqueeze(squares, -2) - unsqueeze(squares, -1)
    return x / where(on_diagonal, unsqueeze(squares, -2) * (4 * sign), gaps)


def svd(A: Any, full_matrices: bool = True) -> SVD:
    """A = U diag(S) Vᴴ; U and V are square if `full_matrices`."""
    return SVD(*SingularValues.apply(A, full_matrices))


def svdvals(A: Any) -> Any:
    """The singular values, in descending order."""
    if is_tensor(A) and A.requires_grad:
        return svd(A, False).S
    return plain(arrays.svdvals, A)


# ---- eigenvalues


class HermitianEigen(Factors):
    """Eigenvalues and eigenvectors of Hermitian matrices."""

    function = staticmethod(arrays.eigh)

    @staticmethod
    def backward(ctx: Any, to_values: Any, to_vectors: Any) -> Any:
        values, vectors = ctx.saved_tensors
        turned = adjoint(vectors)
        found = None if to_values is None else matmul(vectors * unsqueeze(to_values, -2), turned)
        if to_vectors is not None:
            inner = _between(values, matmul(turned, to_vectors))
            inner = (inner + adjoint(inner)) / 2  # only Hermitian changes count
            found = _total(found, matmul(matmul(vectors, inner), turned))
        return found, None


def _between(values: Any, x: Any) -> Any:
    """Every element over the gap between two eigenvalues; nothing on the diagonal."""
    on_diagonal = _on_diagonal(x)
    gaps = conj(unsqueeze(values, -2) - unsqueeze(values, -1))
    return where(on_diagonal, 0.0, x / where(on_diagonal, 1.0, gaps))


def eigh(A: Any, UPLO: str = "L") -> Eigen:
    """Eigenvalues, ascending, and eigenvectors of symmetric or Hermitian matrices."""
    return Eigen(*HermitianEigen.apply(A, UPLO))


def eigvalsh(A: Any, UPLO: str = "L") -> Any:
    """The eigenvalues of symmetric or Hermitian matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


class GeneralEigen(Factors):
    """Eigenvalues and eigenvectors of length 1."""

    function = staticmethod(arrays.eig)

    @staticmethod
    def backward(ctx: Any, to_values: Any, to_vectors: Any) -> Any:
        from genesis.functional.linalg import solve

        values, vectors = ctx.saved_tensors
        turned = adjoint(vectors)
        found = None if to_values is None else unsqueeze(to_values, -1) * turned
        if to_vectors is not None:
            inner = matmul(turned, to_vectors)
            # What changes the length of a vector is no part of it.
            along = real(diagonal(inner, 0, -2, -1))
            inner = inner - matmul(turned, vectors) * unsqueeze(along, -2)
            found = _total(found, matmul(_between(values, inner), turned))
        return solve(turned, found)


def eig(A: Any) -> Eigen:
    """Eigenvalues and eigenvectors, which are complex."""
    return Eigen(*GeneralEigen.apply(A))


def eigvals(A: Any) -> Any:
    """The eigenvalues, which are complex."""
    return eig(A).eigenvalues


__all__ = [
    "adjoint", "cholesky", "cholesky_ex", "eig", "eigh", "eigvals", "eigvalsh", "ldl_factor",
    "ldl_factor_ex", "ldl_solve", "lu", "lu_factor", "lu_factor_ex", "qr", "require", "required",
    "solve_triangular", "svd", "svdvals",
]  # fmt: skip
