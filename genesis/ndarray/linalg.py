"""Linear algebra: factorisations, solutions, determinants, functions of matrices.

Matrices are the last two axes; axes before them are a batch. The factorisations are operations of
the library (`genesis.ir.numpy_library.linalg`), everything else is composed of them and of
contractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any, NamedTuple

from genesis.ir.dtype import DType, float32, float64, int32, int64, promote
from genesis.ir.node import Form
from genesis.ir.size import Dim
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.complexes import conj
from genesis.ndarray.ops.contraction import matmul
from genesis.ndarray.ops.creation import arange, eye, tril, triu, zeros
from genesis.ndarray.ops.elementwise import broadcast_shapes, exp, sqrt, where
from genesis.ndarray.ops.library_calls import call
from genesis.ndarray.ops.movement import broadcast_to, concat, diagonal, moveaxis, normal_axis
from genesis.ndarray.ops.reduction import amax, amin, argmax
from genesis.ndarray.ops.reduction import sum as total

#: What counts as zero: a number, or one for every matrix of a batch.
Tolerance = float | NDArray | None


class QR(NamedTuple):
    """Q has orthonormal columns, R is upper triangular."""

    Q: NDArray
    R: NDArray


class SVD(NamedTuple):
    """Singular vectors, and values in descending order."""

    U: NDArray
    S: NDArray
    Vh: NDArray


class Eigen(NamedTuple):
    """Eigenvalues, and eigenvectors in columns."""

    eigenvalues: NDArray
    eigenvectors: NDArray


class LU(NamedTuple):
    """A permutation, a unit lower and an upper triangular matrix: x = P L U."""

    P: NDArray
    L: NDArray
    U: NDArray


class LUFactors(NamedTuple):
    """Both factors in one matrix, and which row each row was exchanged with, counted from 1."""

    LU: NDArray
    pivots: NDArray


class Info(NamedTuple):
    """A result, and 0 for every matrix that it was found for."""

    result: NDArray
    info: NDArray


class LDL(NamedTuple):
    """Both factors of L D Lᵀ in one matrix, the exchanges, and the first pivot that is zero."""

    LD: NDArray
    pivots: NDArray
    info: NDArray


class LogDeterminant(NamedTuple):
    """The sign, and the logarithm of the absolute value, of a determinant."""

    sign: NDArray
    logabsdet: NDArray


class LeastSquares(NamedTuple):
    """A solution, the sums of squared residuals, the rank and the singular values."""

    solution: NDArray
    residuals: NDArray
    rank: NDArray
    singular_values: NDArray


def _matrices(name: str, x: NDArray, square: bool = False) -> None:
    if x.ndim < 2:
        raise ValueError(f"linalg.{name}: needs matrices, got an array of shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"linalg.{name}: needs square matrices, got shape {x.shape}")
    if x.dtype.real not in (float32, float64):
        raise TypeError(
            f"linalg.{name}: works in float32 and float64 and their complex types, not in "
            f"{x.dtype}; cast with .astype first"
        )


def _called(
    name: str, options: tuple[Any, ...], operands: Sequence[NDArray], *results: Form
) -> list[NDArray]:
    """An operation of the library. Where there are no elements there is nothing to call."""
    if any(0 in x.shape for x in operands):
        return [zeros(shape, dtype, operands[0].device) for dtype, shape in results]
    values = call(f"linalg.{name}", options, [x.value for x in operands], results)
    return [wrap(value) for value in values]


def _adjoint(x: NDArray) -> NDArray:
    return conj(x.swapaxes(-1, -2))


def cholesky(x: NDArray, upper: bool = False) -> NDArray:
    """The triangular L with x = L Lᴴ, or its adjoint; x is positive definite.

    >>> from genesis import ndarray as nd
    >>> nd.linalg.cholesky(nd.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    _matrices("cholesky", x, square=True)
    (lower,) = _called("cholesky", (), [x], (x.dtype, x.shape))
    return _adjoint(lower) if upper else lower


def cholesky_ex(x: NDArray, upper: bool = False) -> Info:
    """`cholesky`, and 0; or what there is of it, and which leading minor is not positive."""
    _matrices("cholesky_ex", x, square=True)
    x = _adjoint(x) if upper else x
    lower, info = _called("cholesky_ex", (), [x], (x.dtype, x.shape), (int64, x.shape[:-2]))
    return Info(_adjoint(lower) if upper else lower, info.astype(int32))


def ldl_factor_ex(x: NDArray, hermitian: bool = False) -> LDL:
    """x = L D Lᵀ (Lᴴ if `hermitian`), D with blocks of one or two rows, as LAPACK writes it."""
    _matrices("ldl_factor_ex", x, square=True)
    forms = (x.dtype, x.shape), (int64, x.shape[:-1]), (int64, x.shape[:-2])
    factors, pivots, info = _called("ldl", (hermitian and x.dtype.is_complex,), [x], *forms)
    return LDL(factors, pivots.astype(int32), info.astype(int32))


def ldl_solve(factors: NDArray, pivots: NDArray, b: NDArray, hermitian: bool = False) -> NDArray:
    """X with A X = b, given `ldl_factor_ex` of A."""
    factors, b = _same("ldl_solve", factors, b, square=True)
    if b.ndim < 2 or b.shape[-2] != factors.shape[-1] or pivots.shape != factors.shape[:-1]:
        raise ValueError(
            f"linalg.ldl_solve: factors {factors.shape}, pivots {pivots.shape} and a right-hand "
            f"side {b.shape} do not fit together"
        )
    factors, b = _batched("ldl_solve", factors, b)
    places = broadcast_to(pivots.astype(int64), factors.shape[:-1])
    options = (hermitian and factors.dtype.is_complex,)
    return _called("ldl_solve", options, [factors, places, b], (b.dtype, b.shape))[0]


def geqrf(x: NDArray) -> tuple[NDArray, NDArray]:
    """R with the vectors of Householder reflections below its diagonal, and their factors."""
    _matrices("geqrf", x)
    *batch, m, n = x.shape
    forms = (x.dtype, x.shape), (x.dtype, (*batch, min(m, n)))
    vectors, factors = _called("reflections", (), [x], *forms)
    return vectors, factors


def qr(x: NDArray, mode: str = "reduced") -> QR:
    """x = Q R; `mode` is reduced, complete (square Q) or r (no Q)."""
    _matrices("qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"linalg.qr: mode is 'reduced', 'complete' or 'r', not {mode!r}")
    *batch, m, n = x.shape
    k = m if mode == "complete" else min(m, n)
    r = (x.dtype, (*batch, k, n))
    if mode == "r":
        return QR(zeros((0,), x.dtype, x.device), _called("qr", (mode,), [x], r)[0])
    return QR(*_called("qr", (mode,), [x], (x.dtype, (*batch, m, k)), r))


def svd(x: NDArray, full_matrices: bool = True) -> SVD:
    """x = U diag(S) Vᴴ; U and V are square if `full_matrices`."""
    _matrices("svd", x)
    *batch, m, n = x.shape
    k = min(m, n)
    u = (x.dtype, (*batch, m, m if full_matrices else k))
    vh = (x.dtype, (*batch, n if full_matrices else k, n))
    return SVD(*_called("svd", (full_matrices, True), [x], u, (x.dtype.real, (*batch, k)), vh))


def svdvals(x: NDArray) -> NDArray:
    """The singular values, in descending order."""
    _matrices("svdvals", x)
    *batch, m, n = x.shape
    return _called("svd", (False, False), [x], (x.dtype.real, (*batch, min(m, n))))[0]


def eigh(x: NDArray, uplo: str = "L") -> Eigen:
    """Eigenvalues, ascending, and eigenvectors of symmetric or Hermitian matrices.

    Only the lower (L) or upper (U) triangle is read.
    """
    _matrices("eigh", x, square=True)
    if uplo not in ("L", "U"):
        raise ValueError(f"linalg.eigh: uplo is 'L' or 'U', not {uplo!r}")
    values = (x.dtype.real, x.shape[:-1])
    return Eigen(*_called("eigh", (uplo,), [x], values, (x.dtype, x.shape)))


def eigvalsh(x: NDArray, uplo: str = "L") -> NDArray:
    """The eigenvalues of symmetric or Hermitian matrices, ascending."""
    return eigh(x, uplo).eigenvalues


def eig(x: NDArray) -> Eigen:
    """Eigenvalues and eigenvectors, which are complex."""
    _matrices("eig", x, square=True)
    kind = x.dtype.complex
    return Eigen(*_called("eig", (), [x], (kind, x.shape[:-1]), (kind, x.shape)))


def eigvals(x: NDArray) -> NDArray:
    """The eigenvalues, which are complex."""
    return eig(x).eigenvalues


def inv(x: NDArray) -> NDArray:
    """The inverse."""
    _matrices("inv", x, square=True)
    return _called("inverse", (), [x], (x.dtype, x.shape))[0]


def _same(name: str, a: NDArray, b: NDArray, square: bool = False) -> tuple[NDArray, NDArray]:
    dtype: DType = promote(a.dtype, b.dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    _matrices(name, a, square)
    return a, b


def _batched(name: str, a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    batch = broadcast_shapes(f"linalg.{name}", a.shape[:-2], b.shape[:-2])
    return broadcast_to(a, batch + a.shape[-2:]), broadcast_to(b, batch + b.shape[-2:])


def solve(a: NDArray, b: NDArray, left: bool = True) -> NDArray:
    """X with a X = b, or X a = b; b is a matrix, or a vector for each matrix a."""
    a, b = _same("solve", a, b, square=True)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if vector:
        b = b.unsqueeze(-1)
    if not left:
        return solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)
    if b.ndim < 2 or b.shape[-2] != a.shape[-1]:
        raise ValueError(f"linalg.solve: shapes {a.shape} and {b.shape} do not fit together")
    a, b = _batched("solve", a, b)
    (x,) = _called("solve", (), [a, b], (b.dtype, b.shape))
    return x.squeeze(-1) if vector else x


def solve_triangular(
    a: NDArray, b: NDArray, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> NDArray:
    """X with a X = b, or X a = b, for triangular a; the other triangle is not read."""
    a, b = _same("solve_triangular", a, b, square=True)
    _matrices("solve_triangular", b)
    if not left:
        flipped = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
        found = solve_triangular(*flipped, upper=not upper, unitriangular=unitriangular)
        return found.swapaxes(-1, -2)
    if b.shape[-2] != a.shape[-1]:
        raise ValueError(
            f"linalg.solve_triangular: shapes {a.shape} and {b.shape} do not fit together"
        )
    a, b = _batched("solve_triangular", a, b)
    return _called("triangular", (upper, unitriangular), [a, b], (b.dtype, b.shape))[0]


def cholesky_solve(b: NDArray, factor: NDArray, upper: bool = False) -> NDArray:
    """X with A X = b, given the Cholesky factor of A."""
    lower = _adjoint(factor) if upper else factor
    half = solve_triangular(lower, b, upper=False)
    return solve_triangular(_adjoint(lower), half, upper=True)


def cholesky_inverse(factor: NDArray, upper: bool = False) -> NDArray:
    """The inverse of A, given its Cholesky factor."""
    _matrices("cholesky_inverse", factor, square=True)
    n = factor.shape[-1]
    one = broadcast_to(eye(n, dtype=factor.dtype, device=factor.device), factor.shape)
    return cholesky_solve(one, factor, upper)


def lu_factor(x: NDArray) -> LUFactors:
    """Both factors of the LU decomposition in one matrix, and the exchanges of rows."""
    _matrices("lu_factor", x)
    *batch, m, n = x.shape
    factors, pivots = _called("lu", (), [x], (x.dtype, x.shape), (int64, (*batch, min(m, n))))
    return LUFactors(factors, pivots + 1)


def lu(x: NDArray) -> LU:
    """x = P L U."""
    factors, pivots = lu_factor(x)
    m, n = x.shape[-2:]
    k = min(m, n)
    one = eye(m, k, dtype=x.dtype, device=x.device)
    lower = tril(factors[..., :k], -1) + one
    upper = triu(factors[..., :k, :])
    return LU(permutation(pivots, m, x.dtype), lower, upper)


def first_pivot(factors: NDArray) -> NDArray:
    """Which diagonal element of the factor U is the first that is zero, counted from 1; or 0."""
    size = min(factors.shape[-2:])
    if size == 0:
        return zeros(factors.shape[:-2], int32, factors.device)
    zero = (diagonal(factors[..., :size, :size], -2, -1) == 0).astype(int32)
    return where(amax(zero, -1) > 0, argmax(zero, -1) + 1, 0).astype(int32)


def permutation(pivots: NDArray, m: Any, dtype: DType) -> NDArray:
    """The matrix P of the exchanges of rows: applied to L U it gives the rows their places."""
    if 0 in pivots.shape:
        one = eye(m, dtype=dtype, device=pivots.device)
        return broadcast_to(one, (*pivots.shape[:-1], m, m))
    pivots = pivots.astype(int64)
    (order,) = _called("exchanged", (m,), [pivots], (int64, (*pivots.shape[:-1], m)))
    position = arange(m, device=pivots.device)
    columns = order.unsqueeze(-2) == position.unsqueeze(-1)
    return columns.astype(dtype)


def lu_solve(factors: NDArray, pivots: NDArray, b: NDArray) -> NDArray:
    """X with A X = b, given the `lu_factor` of A."""
    _matrices("lu_solve", factors, square=True)
    _matrices("lu_solve", b)
    n = factors.shape[-1]
    if pivots.shape != factors.shape[:-1] or b.shape[-2] != n:
        raise ValueError(
            f"linalg.lu_solve: factors {factors.shape}, pivots {pivots.shape} and a right-hand "
            f"side {b.shape} do not fit together"
        )
    order = permutation(pivots, n, factors.dtype)
    half = solve_triangular(factors, matmul(_adjoint(order), b), upper=False, unitriangular=True)
    return solve_triangular(factors, half, upper=True)


def slogdet(x: NDArray) -> LogDeterminant:
    """Sign, and logarithm of the absolute value, of the determinant."""
    _matrices("slogdet", x, square=True)
    batch = x.shape[:-2]
    if x.shape[-1] == 0:
        one = zeros(batch, x.dtype, x.device) + 1
        return LogDeterminant(one, zeros(batch, x.dtype.real, x.device))
    return LogDeterminant(*_called("determinant", (), [x], (x.dtype, batch), (x.dtype.real, batch)))


def det(x: NDArray) -> NDArray:
    """The determinant."""
    sign, logarithm = slogdet(x)
    return sign * exp(logarithm)


def matrix_exp(x: NDArray) -> NDArray:
    """The sum of x^k / k!."""
    _matrices("matrix_exp", x, square=True)
    return _called("exponential", (), [x], (x.dtype, x.shape))[0]


def matrix_power(x: NDArray, n: int) -> NDArray:
    """x multiplied by itself, n times; a negative n is a power of the inverse."""
    _matrices("matrix_power", x, square=True)
    if n < 0:
        return matrix_power(inv(x), -n)
    result: NDArray | None = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        x = matmul(x, x) if n else x
    one = eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return broadcast_to(one, x.shape) if result is None else result


def lstsq(a: NDArray, b: NDArray, rcond: float | None = None) -> LeastSquares:
    """The shortest X of those with the least |a X - b|."""
    a, b = _same("lstsq", a, b)
    vector = b.ndim == a.ndim - 1
    if vector:
        b = b.unsqueeze(-1)
    if b.ndim < 2 or b.shape[-2] != a.shape[-2]:
        raise ValueError(f"linalg.lstsq: shapes {a.shape} and {b.shape} do not fit together")
    a, b = _batched("lstsq", a, b)
    *batch, m, n = a.shape
    results = [(b.dtype, (*batch, n, b.shape[-1])), (int64, tuple(batch))]
    results.append((a.dtype.real, (*batch, min(m, n))))
    x, rank, values = _called("lstsq", (rcond,), [a, b], *results)
    rest = abs(matmul(a, x) - b)
    residuals = total(rest * rest, -2)
    if m <= n:
        residuals = zeros((0,), residuals.dtype, residuals.device)
    return LeastSquares(x.squeeze(-1) if vector else x, residuals, rank, values)


def pinv(
    x: NDArray, rcond: Tolerance = None, hermitian: bool = False, atol: Tolerance = None
) -> NDArray:
    """The pseudo-inverse; singular values that `_above` leaves out count as zero.

    Of a `hermitian` matrix only the lower triangle is read.
    """
    _matrices("pinv", x)
    if x.size == 0:
        return _adjoint(x)
    if hermitian:
        values, vectors = eigh(x)
        kept = _above(x, abs(values), rcond, atol)
        left = right = vectors
    else:
        right, values, vh = svd(x, full_matrices=False)
        kept, left = _above(x, values, rcond, atol), _adjoint(vh)
    weights = where(kept, 1 / where(kept, values, 1.0), 0.0)
    return matmul(left * weights.unsqueeze(-2), _adjoint(right))


def matrix_rank(
    x: NDArray, rtol: Tolerance = None, hermitian: bool = False, atol: Tolerance = None
) -> NDArray:
    """How many singular values are not zero, within the precision of the type or as told."""
    _matrices("matrix_rank", x)
    if 0 in x.shape[-2:]:
        return zeros(x.shape[:-2], int64, x.device)
    s = abs(eigvalsh(x)) if hermitian else svdvals(x)
    return total(_above(x, s, rtol, atol), -1)


def _above(x: NDArray, s: NDArray, rtol: Tolerance, atol: Tolerance) -> NDArray:
    """Which singular values are above `atol` and above `rtol` times the largest.

    Without either, above what rounding of the type makes of zero. An array has a tolerance for
    every matrix.
    """
    if rtol is None:
        rounding = 2.0**-23 if x.dtype.real is float32 else 2.0**-52
        rtol = rounding * max(as_int(d) for d in x.shape[-2:])
        if isinstance(atol, NDArray):
            rtol = where(atol > 0, 0.0, rtol)
        elif atol:
            rtol = 0.0
    least = 0.0 if atol is None else atol
    relative, least = (t.unsqueeze(-1) if isinstance(t, NDArray) else t for t in (rtol, least))
    return (s > relative * amax(s, -1, keepdims=True)) & (s > least)


def vector_norm(x: NDArray, ord: float = 2, axis: Any = None, keepdims: bool = False) -> NDArray:
    """(sum |x|**ord) ** (1 / ord), and its limits; 0 counts what is not zero."""
    size = abs(x)
    if ord == float("inf"):
        return amax(size, axis, keepdims)
    if ord == -float("inf"):
        return amin(size, axis, keepdims)
    if ord == 0:
        return total((size != 0).astype(size.dtype), axis, keepdims)
    if ord == 1:
        return total(size, axis, keepdims)
    dtype = size.dtype
    if dtype.is_float:  # powers of half-precision numbers leave its range before their root is back
        size = size.astype(dtype.accumulator)
    if ord == 2:
        result = sqrt(total(size * size, axis, keepdims))
    else:
        result = total(size**ord, axis, keepdims) ** (1 / ord)
    return result.astype(dtype) if dtype.is_float else result


def matrix_norm(
    x: NDArray, ord: float | str = "fro", axis: tuple[int, int] = (-2, -1), keepdims: bool = False
) -> NDArray:
    """A norm of matrices: fro, nuc, or 1, 2, inf and their negatives."""
    rows, columns = (normal_axis("linalg.matrix_norm", a, x.ndim) for a in axis)
    x = moveaxis(moveaxis(x, rows, -1), columns - (columns > rows), -1)
    if ord == "fro":
        result = vector_norm(x, 2, (-2, -1))
    elif ord == "nuc":
        result = total(svdvals(x), -1)
    elif ord in (2, -2):
        values = svdvals(x)
        result = amax(values, -1) if ord == 2 else amin(values, -1)
    elif ord in (1, -1, float("inf"), -float("inf")):
        sums = total(abs(x), -2 if ord in (1, -1) else -1)
        result = amax(sums, -1) if ord > 0 else amin(sums, -1)
    else:
        raise ValueError(f"linalg.matrix_norm: there is no norm {ord!r}")
    if keepdims:
        for a in sorted((rows, columns)):
            result = result.unsqueeze(a)
    return result


def norm(x: NDArray, ord: Any = None, axis: Any = None, keepdims: bool = False) -> NDArray:
    """A norm of vectors, or of matrices where `axis` names two axes or `ord` says so."""
    if ord is None:
        return vector_norm(x, 2, axis, keepdims)
    matrix = isinstance(ord, str) or (axis is None and x.ndim == 2)
    if matrix or (isinstance(axis, tuple | list) and len(axis) == 2):
        return matrix_norm(x, ord, (-2, -1) if axis is None else tuple(axis), keepdims)
    return vector_norm(x, ord, axis, keepdims)


def cond(x: NDArray, p: Any = None) -> NDArray:
    """The condition number: a norm of x times that of its inverse."""
    _matrices("cond", x)
    if 0 in x.shape[-2:]:
        raise ValueError(f"linalg.cond: a matrix without elements, shape {x.shape}")
    if p in (None, 2, -2):
        values = svdvals(x)
        ratio = values[..., 0] / values[..., -1]
        return ratio if p != -2 else 1 / ratio
    return matrix_norm(x, p) * matrix_norm(inv(x), p)


def multi_dot(matrices: Sequence[NDArray]) -> NDArray:
    """The product of several matrices, in the order that takes the least work."""
    count = len(matrices)
    if count < 2:
        raise ValueError(f"linalg.multi_dot: needs at least two matrices, got {count}")
    first, last = matrices[0].ndim == 1, matrices[-1].ndim == 1
    chain = list(matrices)
    chain[0] = chain[0].unsqueeze(0) if first else chain[0]
    chain[-1] = chain[-1].unsqueeze(-1) if last else chain[-1]
    splits = cheapest_order([*(m.shape[0] for m in chain), chain[-1].shape[1]])

    def multiplied(i: int, j: int) -> NDArray:
        if i == j:
            return chain[i]
        k = splits[i, j]
        return matmul(multiplied(i, k), multiplied(k + 1, j))

    result = multiplied(0, count - 1)
    result = result[0] if first else result
    return result[..., 0] if last else result


def trace(x: NDArray, offset: int = 0) -> NDArray:
    """The sum of the diagonal, or of one above (below, if negative) it, of the last two axes."""
    if x.ndim < 2:
        raise ValueError(f"linalg.trace: needs matrices, got an array of shape {x.shape}")
    m, n = (as_int(d) for d in x.shape[-2:])
    length = max(0, min(m + min(offset, 0), n - max(offset, 0)))
    part = x[..., max(0, -offset) : max(0, -offset) + length, max(0, offset) :][..., :length]
    return total(diagonal(part, -2, -1), -1)


def cheapest_order(sizes: Sequence[Dim]) -> dict[tuple[int, int], int]:
    """Where to split the product of the matrices i to j, given the sizes between them."""
    edges, count = [as_int(s) for s in sizes], len(sizes) - 1
    cost, splits = dict.fromkeys(((i, i) for i in range(count)), 0), {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], splits[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + edges[i] * edges[k + 1] * edges[j + 1], k)
                for k in range(i, j)
            )
    return splits


def cross(a: NDArray, b: NDArray, axis: int = -1) -> NDArray:
    """The cross product of vectors of three along an axis."""
    shape = broadcast_shapes("linalg.cross", a.shape, b.shape)
    a, b = (moveaxis(broadcast_to(x, shape), axis, -1) for x in (a, b))
    if a.shape[-1] != 3:
        raise ValueError(f"linalg.cross: axis {axis} of shape {shape} must have 3 elements")
    turned = [x[..., [k, m, n]] for x in (a, b) for k, m, n in ((1, 2, 0), (2, 0, 1))]
    a1, a2, b1, b2 = turned
    return moveaxis(a1 * b2 - a2 * b1, -1, axis)


def vander(x: NDArray, n: int | None = None) -> NDArray:
    """Powers of x along a new last axis: 1, x, x**2, .."""
    if not x.shape:
        raise ValueError("linalg.vander: needs at least one axis, got shape ()")
    count = as_int(x.shape[-1]) if n is None else n
    powers = broadcast_to(x.unsqueeze(-1), (*x.shape, max(count - 1, 0)))
    from genesis.ndarray.ops.cumulative import cumprod

    one = x.unsqueeze(-1) * 0 + 1
    return concat([one, cumprod(powers, -1)], -1)[..., :count]


def householder_product(x: NDArray, tau: NDArray) -> NDArray:
    """The first columns of the product of reflections I - tau v vᴴ."""
    _matrices("householder_product", x)
    if tau.ndim != x.ndim - 1:
        raise ValueError(f"linalg.householder_product: shapes {x.shape} and {tau.shape}")
    m, n = (as_int(d) for d in x.shape[-2:])
    one = eye(m, n, dtype=x.dtype, device=x.device)
    result = broadcast_to(one, x.shape)
    vectors = tril(x, -1) + one
    for k in reversed(range(as_int(tau.shape[-1]))):
        v = vectors[..., k : k + 1]
        result = result - tau[..., k : k + 1].unsqueeze(-1) * matmul(v, matmul(_adjoint(v), result))
    return result


__all__ = [
    "LDL", "LU", "Eigen", "Info", "LUFactors", "LeastSquares", "LogDeterminant", "QR", "SVD",
    "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "cond", "cross", "det", "eig",
    "eigh", "eigvals", "eigvalsh", "householder_product", "inv", "lstsq", "lu", "lu_factor",
    "lu_solve", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm",
    "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "trace", "vander",
    "vector_norm",
]  # fmt: skip
