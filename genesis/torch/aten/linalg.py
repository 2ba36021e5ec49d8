"""Linear algebra: factorisations by LAPACK as host steps of a program, the rest around them.

Operators ending in ``_ex`` report a matrix that does not fit by a number instead of an error.
Determinants and `linalg_solve` are left to PyTorch: which matrix they factor, and so what their
gradients start from, depends on how its memory is laid out, which arrays do not tell.
"""

from __future__ import annotations

from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.functional.linalg import lu_solve
from genesis.ir.dtype import DType, float32, float64, int32, int64
from genesis.ir.node import Form
from genesis.ndarray import NDArray
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.ops.elementwise import broadcast_shapes
from genesis.ndarray.ops.library_calls import call
from genesis.torch.aten.registry import Implementation, Unsupported, implements, operators, table


def _lapack(*operands: NDArray) -> None:
    for x in operands:
        if x.dtype.real not in (float32, float64):
            raise Unsupported(f"LAPACK does not work in {x.dtype}")


def _by_lapack(function: Implementation) -> Implementation:
    """A function of matrices that LAPACK computes."""

    def checked(*args: Any) -> Any:
        _lapack(*(x for x in args if isinstance(x, NDArray)))
        return function(*args)

    return checked


table(nd.linalg, """
    cholesky_inverse cholesky_solve _cholesky_solve_helper=cholesky_solve linalg_eig=eig
    linalg_eigvals=eigvals _linalg_eigvals=eigvals linalg_matrix_exp=matrix_exp
""", _by_lapack)  # fmt: skip


def _called(
    name: str, options: tuple[Any, ...], operands: list[NDArray], *results: Form
) -> list[NDArray]:
    """An operation of the library. Where there are no elements there is nothing to call."""
    if any(0 in x.shape for x in operands):
        return [nd.zeros(shape, dtype, operands[0].device) for dtype, shape in results]
    values = call(f"linalg.{name}", options, [x.value for x in operands], results)
    return [wrap(value) for value in values]


def _nothing(like: NDArray, dtype: DType | None = None) -> NDArray:
    """What stands for a result that was not asked for."""
    return nd.zeros((0,), dtype or like.dtype, like.device)


def _adjoint(x: NDArray) -> NDArray:
    return nd.conj(nd.swapaxes(x, -1, -2))


# ---- Cholesky


@implements("linalg_cholesky_ex")
def _cholesky_ex(
    x: NDArray, *, upper: bool = False, check_errors: bool = False
) -> tuple[NDArray, NDArray]:
    _lapack(x)
    found, info = nd.linalg.cholesky_ex(x, upper)
    return found, info


@implements("cholesky")
def _cholesky(x: NDArray, upper: bool = False) -> NDArray:
    _lapack(x)
    return nd.linalg.cholesky(_adjoint(x) if upper else x, upper)


# ---- LU and what is solved by it


@implements("linalg_lu_factor_ex")
def _lu_factor_ex(
    x: NDArray, *, pivot: bool = True, check_errors: bool = False
) -> tuple[NDArray, NDArray, NDArray]:
    _lapack(x)
    if not pivot:
        raise Unsupported("an LU decomposition without exchanges of rows")
    factors, pivots = nd.linalg.lu_factor(x)
    return factors, pivots.astype(int32), nd.linalg.first_pivot(factors)


@implements("linalg_lu")
def _lu(x: NDArray, *, pivot: bool = True) -> tuple[NDArray, NDArray, NDArray]:
    factors, pivots, _ = _lu_factor_ex(x, pivot=pivot)
    return _lu_unpack(factors, pivots)


@implements("lu_unpack")
def _lu_unpack(
    factors: NDArray, pivots: NDArray, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[NDArray, NDArray, NDArray]:
    m, n = factors.shape[-2:]
    k = min(m, n)
    order, lower, upper = _nothing(factors), _nothing(factors), _nothing(factors)
    if unpack_pivots:
        order = nd.linalg.permutation(pivots, m, factors.dtype)
    if unpack_data:
        one = nd.eye(m, k, dtype=factors.dtype, device=factors.device)
        lower = nd.tril(factors[..., :k], -1) + one
        upper = nd.triu(factors[..., :k, :])
    return order, lower, upper


@implements("linalg_lu_solve")
def _lu_solve(
    factors: NDArray, pivots: NDArray, b: NDArray, *, left: bool = True, adjoint: bool = False
) -> NDArray:
    _lapack(factors, b)
    batch = broadcast_shapes("linalg_lu_solve", factors.shape[:-2], b.shape[:-2])
    shape = (*batch, *b.shape[-2:])
    if 0 in shape or 0 in factors.shape:
        return nd.zeros(shape, b.dtype, b.device)
    found: NDArray = lu_solve(factors, pivots, b, left=left, adjoint=adjoint)
    return nd.broadcast_to(found, shape)


@implements("linalg_inv_ex")
def _inv_ex(x: NDArray, *, check_errors: bool = False) -> tuple[NDArray, NDArray]:
    _lapack(x)
    forms = (x.dtype, x.shape), (int64, x.shape[:-2])
    found, info = _called("inverse_ex", (), [x], *forms)
    return found, info.astype(int32)


# ---- triangular systems


@implements("linalg_solve_triangular")
def _solve_triangular(
    a: NDArray, b: NDArray, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> NDArray:
    _lapack(a, b)
    if not left:
        a, b, upper = nd.swapaxes(a, -1, -2), nd.swapaxes(b, -1, -2), not upper
    batch = broadcast_shapes("linalg_solve_triangular", a.shape[:-2], b.shape[:-2])
    a, b = (nd.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    (found,) = _called("triangular_ex", (upper, unitriangular), [a, b], (b.dtype, b.shape))
    return found if left else nd.swapaxes(found, -1, -2)


@implements("triangular_solve")
def _triangular_solve(
    b: NDArray, a: NDArray, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[NDArray, NDArray]:
    _lapack(a, b)
    batch = broadcast_shapes("triangular_solve", a.shape[:-2], b.shape[:-2])
    whole = nd.broadcast_to(a, (*batch, *a.shape[-2:]))
    turned, above = (nd.swapaxes(a, -1, -2), not upper) if transpose else (a, upper)
    return _solve_triangular(turned, b, upper=above, unitriangular=unitriangular), whole


# ---- orthogonal factors


@implements("linalg_qr")
def _qr(x: NDArray, mode: str = "reduced") -> tuple[NDArray, NDArray]:
    _lapack(x)
    *batch, m, n = x.shape
    if mode == "complete" and 0 in (m, n):  # Q is square, though there is nothing to factor
        one = nd.eye(m, dtype=x.dtype, device=x.device)
        return nd.broadcast_to(one, (*batch, m, m)), nd.zeros_like(x)
    q, r = nd.linalg.qr(x, mode)
    return q, r


@implements("geqrf")
def _geqrf(x: NDArray) -> tuple[NDArray, NDArray]:
    _lapack(x)
    return nd.linalg.geqrf(x)


@implements("linalg_householder_product", "orgqr")
def _householder_product(x: NDArray, tau: NDArray) -> NDArray:
    _lapack(x, tau)
    one = nd.eye(x.shape[-2], x.shape[-1], dtype=x.dtype, device=x.device)
    start = nd.broadcast_to(one, x.shape)
    if 0 in tau.shape:
        return start
    return _called("reflected", (False,), [x, tau, start], (x.dtype, x.shape))[0]


@implements("ormqr")
def _ormqr(
    x: NDArray, tau: NDArray, other: NDArray, left: bool = True, transpose: bool = False
) -> NDArray:
    _lapack(x, tau, other)
    if 0 in tau.shape or 0 in other.shape:
        return other
    if not left:  # c Q is the adjoint of Qᴴ cᴴ
        return _adjoint(_ormqr(x, tau, _adjoint(other), True, not transpose))
    return _called("reflected", (transpose,), [x, tau, other], (other.dtype, other.shape))[0]


# ---- eigenvalues and singular values


@implements("_linalg_svd")
def _svd(
    x: NDArray, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    _lapack(x)
    if not compute_uv:
        return _nothing(x), nd.linalg.svdvals(x), _nothing(x)
    if 0 in x.shape[-2:] and full_matrices:
        *batch, m, n = x.shape
        one, other = (nd.eye(k, dtype=x.dtype, device=x.device) for k in (m, n))
        nothing = nd.zeros((*batch, 0), x.dtype.real, x.device)
        return (
            nd.broadcast_to(one, (*batch, m, m)), nothing, nd.broadcast_to(other, (*batch, n, n))
        )  # fmt: skip
    u, values, vh = nd.linalg.svd(x, full_matrices)
    return u, values, vh


@implements("linalg_svdvals")
def _svdvals(x: NDArray, *, driver: str | None = None) -> NDArray:
    _lapack(x)
    return nd.linalg.svdvals(x)


@implements("_linalg_eigh")
def _eigh(x: NDArray, UPLO: str = "L", compute_v: bool = True) -> tuple[NDArray, NDArray]:
    _lapack(x)
    values, vectors = nd.linalg.eigh(x, UPLO.upper())
    return values, vectors if compute_v else _nothing(x)


# ---- pseudo-inverses and least squares


@implements("linalg_pinv.atol_rtol_tensor")
def _pinv(x: NDArray, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> NDArray:
    _lapack(x)
    *batch, m, n = x.shape
    if 0 in x.shape:
        return nd.zeros((*batch, n, m), x.dtype, x.device)
    if hermitian:
        values, u = nd.linalg.eigh(x)
        sizes, v = nd.abs(values), u
    else:
        u, values, vh = nd.linalg.svd(x, full_matrices=False)
        sizes, v = values, _adjoint(vh)
    rounding = (2.0**-23 if x.dtype.real is float32 else 2.0**-52) * max(index(m), index(n))
    least = nd.zeros((), x.dtype.real, x.device) if atol is None else atol.astype(x.dtype.real)
    part = nd.where(least > 0, 0.0, rounding) if rtol is None else rtol
    part = part.astype(x.dtype.real)
    greatest = nd.amax(sizes, -1, keepdims=True)
    kept = sizes > nd.maximum(nd.unsqueeze(least, -1), nd.unsqueeze(part, -1) * greatest)
    weights = nd.where(kept, 1 / nd.where(kept, values, 1.0), 0.0)
    return nd.matmul(v * nd.unsqueeze(weights, -2), _adjoint(u))


@implements("linalg_lstsq")
def _lstsq(
    a: NDArray, b: NDArray, rcond: float | None = None, *, driver: str | None = None
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    _lapack(a, b)
    tall = a.shape[-2] > a.shape[-1]
    if driver in ("gelsd", "gelss") and tall:
        raise Unsupported("residuals that are there only if the matrix has full rank")
    if 0 in a.shape or 0 in b.shape:
        raise Unsupported("a least-squares problem without elements")
    found, residuals, rank, values = nd.linalg.lstsq(a, b, rcond)
    some = driver in ("gelsd", "gelss")
    return (
        found,
        residuals if driver == "gels" and tall else _nothing(residuals),
        _nothing(rank) if driver == "gels" else rank,
        values if some else _nothing(values),
    )


# ---- the same by other names


operators(
    {
        "linalg_cross": lambda x, y, dim=-1: nd.linalg.cross(x, y, dim),
        "linalg_lu_factor": lambda x, pivot=True: _lu_factor_ex(x, pivot=pivot)[:2],
        "lu_solve": lambda b, factors, pivots: _lu_solve(factors, pivots, b),
        "_lu_with_info": lambda x, pivot=True, check_errors=True: _lu_factor_ex(x, pivot=pivot),
    }
)
