"""Factorisations and what follows from them, by LAPACK as NumPy brings it.

Operands are matrices in the last two axes, batches of them before. LAPACK works in float32, float64
and their complex counterparts. A matrix that an operation does not work for (singular, not
positive definite, no convergence) is a `LinAlgError` that says which one of its batch it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _each(name: str, function: Callable[..., Any], *operands: Array) -> tuple[Array, ...]:
    """A NumPy function of batches; an error says which matrix of a batch it does not work for."""
    try:
        result = function(*operands)
        return tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))
    except np.linalg.LinAlgError as error:
        fault = str(error)
    for where in np.ndindex(operands[0].shape[:-2]):
        try:
            function(*(x[where] for x in operands))
        except np.linalg.LinAlgError as error:
            place = f" number {where} of the batch" if where else ""
            raise np.linalg.LinAlgError(f"linalg.{name}: matrix{place}: {error}") from None
    raise np.linalg.LinAlgError(f"linalg.{name}: {fault}")


def cholesky(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """L with x = L Lᴴ; above its diagonal a device may leave anything."""
    return _each("cholesky", np.linalg.cholesky, x)


def cholesky_ex(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """L with x = L Lᴴ, and 0; or what there is of L, and which leading minor is not positive."""
    try:
        return np.linalg.cholesky(x), np.zeros(x.shape[:-2], np.int64)
    except np.linalg.LinAlgError:
        pass
    lower, order = np.zeros_like(x), np.zeros(x.shape[:-2], np.int64)
    for where in np.ndindex(x.shape[:-2]):
        size = _positive(x[where])
        lower[where][:size, :size] = np.linalg.cholesky(x[where][:size, :size])
        order[where] = 0 if size == x.shape[-1] else size + 1
    return lower, order


def _positive(x: Array) -> int:
    """The size of the largest leading block that is positive definite."""
    low, high = 0, x.shape[-1]
    while low < high:
        middle = (low + high + 1) // 2
        try:
            np.linalg.cholesky(x[:middle, :middle])
            low = middle
        except np.linalg.LinAlgError:
            high = middle - 1
    return low


def qr(options: tuple[Any], x: Array) -> tuple[Array, ...]:
    """Q and R with x = Q R; options (mode: reduced, complete or r)."""
    return _each("qr", lambda a: np.linalg.qr(a, *options), x)


def svd(options: tuple[bool, bool], x: Array) -> tuple[Array, ...]:
    """U, S and Vᴴ with x = U S Vᴴ; options (square U and V, with U and V)."""
    return _each("svd", lambda a: np.linalg.svd(a, *options), x)  # type: ignore[call-overload]


def eigh(options: tuple[Any], x: Array) -> tuple[Array, ...]:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices; options (triangle used)."""
    return _each("eigh", lambda a: np.linalg.eigh(a, *options), x)


def eig(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """Eigenvalues and eigenvectors, complex."""

    def complexes(a: Array) -> tuple[Array, ...]:
        kind = np.result_type(a.dtype, np.complex64)
        return tuple(part.astype(kind) for part in np.linalg.eig(a))

    return _each("eig", complexes, x)


def inverse(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """The inverse."""
    return _each("inverse", np.linalg.inv, x)


def inverse_ex(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """The inverse, and 0; or NaN, and which diagonal element of the factor U is zero."""
    try:
        return np.linalg.inv(x), np.zeros(x.shape[:-2], np.int64)
    except np.linalg.LinAlgError:
        pass
    factors, _ = lu((), x)
    zero = np.diagonal(factors, 0, -2, -1) == 0
    singular = zero.any(-1)
    usable = np.where(singular[..., None, None], np.eye(x.shape[-1], dtype=x.dtype), x)
    found = np.where(singular[..., None, None], np.nan, _each("inverse", np.linalg.inv, usable)[0])
    return found.astype(x.dtype), np.where(singular, zero.argmax(-1) + 1, 0)


def solve(options: tuple[()], a: Array, b: Array) -> tuple[Array, ...]:
    """X with a X = b, for matrices b."""
    return _each("solve", np.linalg.solve, a, b)


def determinant(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """Sign, and logarithm of the absolute value, of the determinant."""
    return _each("determinant", np.linalg.slogdet, x)


def lu(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """Both factors of the LU decomposition in one matrix, and the rows that were exchanged.

    Row i was exchanged with row pivots[i], counted from 0, in this order.
    """
    factors = np.array(x)
    rows, columns = x.shape[-2:]
    pivots = np.zeros((*x.shape[:-2], min(rows, columns)), np.int64)
    flat, flat_pivots = factors.reshape(-1, rows, columns), pivots.reshape(-1, min(rows, columns))
    # All matrices of a batch at once, a column at a time.
    batch = np.arange(len(flat))
    for k in range(min(rows, columns)):
        column = flat[:, k:, k]
        # As LAPACK does: the size of a complex number is the sum of those of its parts.
        p = k + np.argmax(np.abs(column.real) + np.abs(column.imag), axis=1)
        flat_pivots[:, k] = p
        upper = flat[:, k, :].copy()
        flat[:, k, :] = flat[batch, p]
        flat[batch, p] = np.where((p == k)[:, None], flat[:, k, :], upper)
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = flat[:, k, k]
            scale = flat[:, k + 1 :, k] / np.where(pivot == 0, 1, pivot)[:, None]
        flat[:, k + 1 :, k] = scale
        flat[:, k + 1 :, k + 1 :] -= scale[:, :, None] * flat[:, None, k, k + 1 :]
    return factors, pivots


def exchanged(options: tuple[int], pivots: Array) -> tuple[Array, ...]:
    """The order of rows after exchanges, counted from 1, as `lu` gives them; options (rows)."""
    (rows,) = options
    batch = np.arange(pivots[..., 0].size)
    order = np.broadcast_to(np.arange(rows), (len(batch), rows)).copy()
    for k, other in enumerate(pivots.reshape(len(batch), -1).T - 1):
        # A pivot outside of the matrix exchanges nothing: the operand may hold anything.
        other = np.where((other >= 0) & (other < rows), other, k)
        order[batch, k], order[batch, other] = order[batch, other], order[batch, k].copy()
    return (order.reshape(*pivots.shape[:-1], rows),)


def triangular(options: tuple[bool, bool], a: Array, b: Array) -> tuple[Array, ...]:
    """X with a X = b for triangular a; options (upper, ones on the diagonal)."""
    solve = np.linalg.solve
    return (_by_blocks(*options, a, b, lambda x, y: _each("triangular", solve, x, y)[0]),)


def triangular_ex(options: tuple[bool, bool], a: Array, b: Array) -> tuple[Array, ...]:
    """As `triangular`, but a zero on the diagonal divides as any other number does."""
    upper, _ = options
    return (_by_blocks(*options, a, b, lambda x, y: _substituted(x, y, upper)),)


def _by_blocks(
    upper: bool, unit: bool, a: Array, b: Array, solved: Callable[[Array, Array], Array]
) -> Array:
    """Blocks on the diagonal are solved one after the other; products do the rest."""
    result = np.array(b)
    n, size = a.shape[-1], 32
    starts: Sequence[int] = range(0, n, size)
    for start in reversed(starts) if upper else starts:
        rows = slice(start, min(start + size, n))
        block = a[..., rows, rows]
        block = np.triu(block, 1 if unit else 0) if upper else np.tril(block, -1 if unit else 0)
        if unit:
            block = block + np.eye(block.shape[-1], dtype=a.dtype)
        result[..., rows, :] = solved(block, result[..., rows, :])
        rest = slice(0, start) if upper else slice(start + size, n)
        result[..., rest, :] -= a[..., rest, rows] @ result[..., rows, :]
    return result


def _substituted(a: Array, b: Array, upper: bool) -> Array:
    """X with a X = b, row by row if there are zeros on the diagonal."""
    if np.diagonal(a, 0, -2, -1).all():
        return np.linalg.solve(a, b)
    result = np.array(b)
    n = a.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        for k in reversed(range(n)) if upper else range(n):
            result[..., k, :] /= a[..., k, k, None]
            rest = slice(0, k) if upper else slice(k + 1, n)
            result[..., rest, :] -= a[..., rest, k, None] * result[..., None, k, :]
    return result


def reflections(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """R with the vectors of Householder reflections below its diagonal, and their factors."""
    transposed, factors = np.linalg.qr(x, "raw")
    return np.swapaxes(transposed, -1, -2), factors


def reflected(options: tuple[bool], vectors: Array, factors: Array, x: Array) -> tuple[Array, ...]:
    """The product of the reflections I - tau v vᴴ, times x; options (its adjoint instead)."""
    (adjoint,) = options
    result, count = np.array(x), factors.shape[-1]
    v = np.tril(vectors[..., :count], -1) + np.eye(vectors.shape[-2], count, dtype=x.dtype)
    for k in range(count) if adjoint else reversed(range(count)):
        each, factor = v[..., k, None], factors[..., k, None, None]
        factor = factor.conj() if adjoint else factor
        result -= factor * (each @ (np.swapaxes(each.conj(), -1, -2) @ result))
    return (result,)


def ldl(options: tuple[bool], x: Array) -> tuple[Array, ...]:
    """L and D of x = L D Lᵀ (Lᴴ) in one matrix, the exchanges, and the first pivot that is zero.

    The method of Bunch and Kaufman, with LAPACK's choice of pivots and its way to write them down:
    row k was exchanged with row pivots[k] - 1; two equal negative numbers stand for a block of two
    rows, of which the second was exchanged. Options (Hermitian rather than symmetric).
    """
    factors = np.tril(x)
    pivots = np.zeros(x.shape[:-1], np.int64)
    info = np.zeros(x.shape[:-2], np.int64)
    for where in np.ndindex(x.shape[:-2]):
        info[where] = _ldl(factors[where], pivots[where], *options)
    return factors, pivots, info


def _size(x: Array) -> Array:
    found: Array = np.abs(x.real) + np.abs(x.imag)
    return found


def _ldl(a: Array, pivots: Array, hermitian: bool) -> int:
    """The factors of one matrix, of which the lower triangle is read, written over it."""
    n, k, info = len(a), 0, 0
    turned = np.conj if hermitian else np.asarray
    if hermitian:
        np.fill_diagonal(a, a.diagonal().real)
    while k < n:
        at, wide = _pivot(a, k)
        if at < 0:  # the column is zero
            info, at = info or k + 1, k
        last = k + 1 if wide else k
        if at != last:
            _exchange(a, last, at, turned)
            if wide:
                a[[last, at], k] = a[[at, last], k]
        rest = slice(last + 1, n)
        block = a[k : last + 1, k : last + 1]
        whole = np.tril(block) + turned(np.tril(block, -1)).T
        if whole.any():
            columns = np.linalg.solve(whole.T, a[rest, k : last + 1].T).T
            a[rest, rest] -= np.tril(columns @ turned(a[rest, k : last + 1]).T)
            a[rest, k : last + 1] = columns
        if hermitian:
            np.fill_diagonal(a[rest, rest], a[rest, rest].diagonal().real)
        pivots[k : last + 1] = -(at + 1) if wide else at + 1
        k = last + 1
    return info


def _pivot(a: Array, k: int) -> tuple[int, bool]:
    """Which row to bring to k, or to k + 1 as the second of a block; -1 if there is only zero."""
    share, own = (1 + math.sqrt(17)) / 8, _size(a[k, k])
    below = _size(a[k + 1 :, k])
    most = below.max(initial=0)
    if max(own, most) == 0:
        return -1, False
    if own >= share * most:
        return k, False
    row = k + 1 + int(below.argmax())
    others = max(_size(a[row, k:row]).max(), _size(a[row + 1 :, row]).max(initial=0))
    if own * others >= share * most * most:
        return k, False
    return row, bool(_size(a[row, row]) < share * others)


def _exchange(a: Array, p: int, q: int, turned: Callable[[Array], Array]) -> None:
    """Exchange rows and columns p < q of what is below and to the right of p."""
    a[q + 1 :, [p, q]] = a[q + 1 :, [q, p]]
    upper, left = a[p + 1 : q, p].copy(), a[q, p + 1 : q].copy()
    a[p + 1 : q, p], a[q, p + 1 : q] = turned(left), turned(upper)
    a[q, p] = turned(a[q, p])
    a[p, p], a[q, q] = a[q, q].copy(), a[p, p].copy()


def ldl_solve(options: tuple[bool], a: Array, pivots: Array, b: Array) -> tuple[Array, ...]:
    """X with A X = b, given `ldl` of A; options (Hermitian rather than symmetric)."""
    result = np.array(b)
    for where in np.ndindex(a.shape[:-2]):
        _ldl_solve(a[where], pivots[where], result[where], *options)
    return (result,)


def _ldl_solve(a: Array, pivots: Array, b: Array, hermitian: bool) -> None:
    turned = np.conj if hermitian else np.asarray
    blocks, k = [], 0
    while k < len(a):
        last = min(k + (1 if pivots[k] < 0 else 0), len(a) - 1)
        # A pivot outside of the matrix exchanges nothing: the operand may hold anything.
        at = abs(int(pivots[k])) - 1
        blocks.append((k, last, at if 0 <= at < len(a) else last))
        k = last + 1
    for k, last, at in blocks:
        b[[last, at]] = b[[at, last]]
        b[last + 1 :] -= a[last + 1 :, k : last + 1] @ b[k : last + 1]
        block = a[k : last + 1, k : last + 1]
        whole = np.tril(block) + turned(np.tril(block, -1)).T
        b[k : last + 1] = _each("ldl_solve", np.linalg.solve, whole, b[k : last + 1])[0]
    for k, last, at in reversed(blocks):
        b[k : last + 1] -= turned(a[last + 1 :, k : last + 1]).T @ b[last + 1 :]
        b[[last, at]] = b[[at, last]]


def lstsq(options: tuple[float | None], a: Array, b: Array) -> tuple[Array, ...]:
    """The shortest X of those with the least |a X - b|; options (relative cut-off)."""
    (rcond,) = options
    limit = np.finfo(a.dtype).eps * max(a.shape[-2:]) if rcond is None else rcond
    u, s, vh = _each("lstsq", lambda x: np.linalg.svd(x, full_matrices=False), a)
    kept = s > limit * s[..., :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where(kept, 1 / np.where(kept, s, 1), 0).astype(s.dtype)
    x = np.swapaxes(vh.conj(), -1, -2) @ (weights[..., None] * (np.swapaxes(u.conj(), -1, -2) @ b))
    return x, kept.sum(-1).astype(np.int64), s


def exponential(options: tuple[()], x: Array) -> tuple[Array, ...]:
    """The sum of x^k / k!, by its Padé approximant of degree 13 after halving the argument.

    The argument is halved until its norm is below 5.4, where that approximant is exact to the last
    bit of float64, and the result squared as often.
    """
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    norm = np.abs(wide).sum(-2).max(-1, initial=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        halvings = np.maximum(np.ceil(np.log2(norm / 5.4)), 0)
    finite = np.isfinite(norm)
    halvings = np.where(finite, halvings, 0).astype(np.int64)
    wide = np.where(finite[..., None, None], wide, np.nan) / np.exp2(halvings)[..., None, None]
    b = [math.comb(13, k) * math.factorial(26 - k) / math.factorial(26) for k in range(14)]
    one = np.eye(x.shape[-1])
    x2 = wide @ wide
    x4 = x2 @ x2
    x6 = x4 @ x2
    odd = x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2) + b[7] * x6 + b[5] * x4 + b[3] * x2
    odd = wide @ (odd + b[1] * one)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2) + b[6] * x6 + b[4] * x4 + b[2] * x2
    even = even + b[0] * one
    usable = finite[..., None, None]
    below, above = np.where(usable, even - odd, one), np.where(usable, even + odd, np.nan)
    result = np.linalg.solve(below, above)
    for k in range(int(halvings.max(initial=0))):
        result = np.where((halvings > k)[..., None, None], result @ result, result)
    return (result.astype(x.dtype),)


__all__ = [
    "cholesky", "cholesky_ex", "determinant", "eig", "eigh", "exchanged", "exponential", "inverse",
    "inverse_ex", "ldl", "ldl_solve", "lstsq", "lu", "qr", "reflected", "reflections", "solve",
    "svd", "triangular", "triangular_ex",
]  # fmt: skip
