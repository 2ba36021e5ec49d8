"""Linear algebra, against PyTorch, NumPy and what defines each factorisation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import ndarray as nd

L = nd.linalg
KINDS = ["float32", "float64", "complex64", "complex128"]
CASES: list[tuple[str, tuple[int, ...]]] = [
    *((kind, (2,)) for kind in KINDS),
    *(("float64", batch) for batch in ((), (2, 3), (0,))),
]


def matrices(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if "complex" in kind else x).astype(kind)


def positive(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    x = matrices(rng, kind, *shape)
    return (x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1])).astype(kind)


def close(found: nd.NDArray, expected: Any, scale: float = 1.0) -> None:
    """Equal within the precision of the dtype."""
    given = found.numpy()
    wanted = expected.resolve_conj().numpy() if isinstance(expected, torch.Tensor) else expected
    assert given.dtype == wanted.dtype and given.shape == wanted.shape
    limit = scale * (2e-4 if given.dtype in (np.float32, np.complex64) else 1e-9)
    np.testing.assert_allclose(given, wanted, rtol=limit, atol=limit)


def adjoint(x: nd.NDArray) -> nd.NDArray:
    return nd.conj(nd.swapaxes(x, -1, -2))


# ---- factorisations


@pytest.mark.parametrize(("kind", "batch"), CASES)
def test_factorisations(rng: np.random.Generator, kind: str, batch: tuple[int, ...]) -> None:
    x, p = matrices(rng, kind, *batch, 5, 3), positive(rng, kind, *batch, 4, 4)
    lower = L.cholesky(nd.array(p))
    close(lower, torch.linalg.cholesky(torch.from_numpy(p)))
    close(L.cholesky(nd.array(p), upper=True), adjoint(lower).numpy())
    for given in (x, np.ascontiguousarray(x.swapaxes(-1, -2))):
        for mode in ("reduced", "complete"):
            q, r = L.qr(nd.array(given), mode)
            close(nd.matmul(q, r), given)
            one = np.broadcast_to(np.eye(q.shape[-1]), (*batch, q.shape[-1], q.shape[-1]))
            close(nd.matmul(adjoint(q), q), one.astype(kind))
            assert np.array_equal(r.numpy(), np.triu(r.numpy()))
        for full in (False, True):
            u, s, vh = L.svd(nd.array(given), full)
            expected = torch.linalg.svd(torch.from_numpy(given), full)
            assert [t.shape for t in (u, s, vh)] == [tuple(t.shape) for t in expected]
            close(s, expected.S)
            k = s.shape[-1]
            close(nd.matmul(u[..., :k] * nd.unsqueeze(s, -2), vh[..., :k, :]), given)
    close(L.svdvals(nd.array(x)), torch.linalg.svdvals(torch.from_numpy(x)))
    values, vectors = L.eigh(nd.array(p))
    close(values, torch.linalg.eigvalsh(torch.from_numpy(p)))
    close(nd.matmul(nd.array(p), vectors), (vectors * nd.unsqueeze(values, -2)).numpy(), 10)


@pytest.mark.parametrize(("kind", "batch"), CASES)
def test_lu(rng: np.random.Generator, kind: str, batch: tuple[int, ...]) -> None:
    for m, n in ((4, 4), (5, 3), (3, 5)):
        x = matrices(rng, kind, *batch, m, n)
        p, lower, upper = L.lu(nd.array(x))
        expected = torch.linalg.lu(torch.from_numpy(x))
        for found, wanted in zip((p, lower, upper), expected, strict=True):
            close(found, wanted)
    x, b = matrices(rng, kind, *batch, 4, 4), matrices(rng, kind, *batch, 4, 2)
    factors, pivots = L.lu_factor(nd.array(x))
    expected = torch.linalg.lu_factor(torch.from_numpy(x))
    close(factors, expected.LU)
    np.testing.assert_array_equal(pivots.numpy(), expected.pivots.numpy())
    close(L.lu_solve(factors, pivots, nd.array(b)), np.linalg.solve(x, b), 10)


@pytest.mark.parametrize("kind", KINDS)
def test_eigenvalues(rng: np.random.Generator, kind: str) -> None:
    x = matrices(rng, kind, 2, 5, 5)
    values, vectors = L.eig(nd.array(x))
    wide = x.astype(vectors.numpy().dtype)
    close(nd.matmul(nd.array(wide), vectors), (vectors * nd.unsqueeze(values, -2)).numpy(), 10)
    expected = np.linalg.eigvals(x)
    np.testing.assert_allclose(np.sort(L.eigvals(nd.array(x)).numpy()), np.sort(expected), 2e-3)


# ---- solutions


@pytest.mark.parametrize(("kind", "batch"), CASES)
def test_solutions(rng: np.random.Generator, kind: str, batch: tuple[int, ...]) -> None:
    a, b = positive(rng, kind, *batch, 4, 4), matrices(rng, kind, *batch, 4, 3)
    x, y = nd.array(a), nd.array(b)
    close(L.inv(x), np.linalg.inv(a).astype(kind))
    close(L.solve(x, y), np.linalg.solve(a, b))
    rows = np.ascontiguousarray(b.swapaxes(-1, -2))
    tensors = torch.from_numpy(a), torch.from_numpy(rows)
    close(L.solve(x, nd.array(rows), left=False), torch.linalg.solve(*tensors, left=False))
    close(L.solve(x, y[..., 0]), np.linalg.solve(a, b[..., :1])[..., 0])
    close(L.cholesky_solve(y, L.cholesky(x)), np.linalg.solve(a, b))
    close(L.cholesky_inverse(L.cholesky(x, upper=True), upper=True), np.linalg.inv(a))
    for upper in (False, True):
        for unit in (False, True):
            options: dict[str, Any] = {"upper": upper, "unitriangular": unit}
            expected = torch.linalg.solve_triangular(
                torch.from_numpy(a), torch.from_numpy(b), **options
            )
            close(L.solve_triangular(x, y, **options), expected, 100)
            expected = torch.linalg.solve_triangular(*tensors, left=False, **options)
            close(L.solve_triangular(x, nd.array(rows), left=False, **options), expected, 100)


def test_large_triangles(rng: np.random.Generator) -> None:
    a = np.tril(rng.standard_normal((100, 100))) + 10 * np.eye(100)
    b = rng.standard_normal((100, 3))
    close(L.solve_triangular(nd.array(a), nd.array(b), upper=False), np.linalg.solve(a, b))
    close(L.solve_triangular(nd.array(a.T), nd.array(b), upper=True), np.linalg.solve(a.T, b))


def test_batches_broadcast(rng: np.random.Generator) -> None:
    a, b = positive(rng, "float64", 4, 4), rng.standard_normal((3, 4, 2))
    close(L.solve(nd.array(a), nd.array(b)), np.linalg.solve(a, b))
    close(L.solve_triangular(nd.array(a), nd.array(b), upper=True), np.linalg.solve(np.triu(a), b))


def test_least_squares(rng: np.random.Generator) -> None:
    for m, n in ((6, 4), (4, 6), (5, 5)):
        a, b = rng.standard_normal((2, m, n)), rng.standard_normal((2, m, 3))
        found = L.lstsq(nd.array(a), nd.array(b))
        expected = torch.linalg.lstsq(torch.from_numpy(a), torch.from_numpy(b), driver="gelsd")
        close(found.solution, expected.solution)
        close(found.residuals, expected.residuals)
        np.testing.assert_array_equal(found.rank.numpy(), expected.rank.numpy())
        close(found.singular_values, expected.singular_values)
        close(L.pinv(nd.array(a)), torch.linalg.pinv(torch.from_numpy(a)))
    deficient = rng.standard_normal((5, 2)) @ rng.standard_normal((2, 4))
    close(L.pinv(nd.array(deficient)), np.linalg.pinv(deficient))
    assert L.matrix_rank(nd.array(deficient)).item() == 2
    assert L.matrix_rank(nd.zeros((3, 3))).item() == 0
    symmetric = deficient @ deficient.T
    assert L.matrix_rank(nd.array(symmetric), hermitian=True).item() == 2


# ---- functions of matrices


@pytest.mark.parametrize(("kind", "batch"), CASES)
def test_determinants(rng: np.random.Generator, kind: str, batch: tuple[int, ...]) -> None:
    for n in (0, 1, 4):
        x = matrices(rng, kind, *batch, n, n)
        tensor = torch.from_numpy(x)
        close(L.det(nd.array(x)), torch.linalg.det(tensor))
        for found, wanted in zip(L.slogdet(nd.array(x)), torch.linalg.slogdet(tensor), strict=True):
            close(found, wanted)
    assert L.det(nd.zeros((2, 2))).item() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_exponentials_and_powers(rng: np.random.Generator, kind: str) -> None:
    x = matrices(rng, kind, 2, 4, 4)
    for scale in (0, 0.1, 1, 3):
        given = (x * scale).astype(kind)
        expected = torch.linalg.matrix_exp(torch.from_numpy(given)).numpy()
        np.testing.assert_allclose(
            L.matrix_exp(nd.array(given)).numpy(), expected, 2e-3, 1e-3 * np.abs(expected).max()
        )
    for n in (0, 1, 2, 5, -1, -2):
        close(L.matrix_power(nd.array(x), n), np.linalg.matrix_power(x, n), 300)


def test_norms(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 6, 4))
    array, tensor = nd.array(x), torch.from_numpy(x)
    for order in ("fro", "nuc", 1, 2, -1, -2, math.inf, -math.inf):
        for axis, keepdims in (((-2, -1), False), ((0, 2), True), ((2, 1), False)):
            expected = torch.linalg.matrix_norm(tensor, order, axis, keepdims)
            close(L.matrix_norm(array, order, axis, keepdims), expected)
    for order in (0, 0.5, 1, 2, 3, math.inf, -math.inf):
        for axis, keepdims in ((1, False), ((0, 2), True), (None, False)):
            expected = torch.linalg.vector_norm(tensor, order, axis, keepdims)
            close(L.vector_norm(array, order, axis, keepdims), expected)
    close(L.norm(array), torch.linalg.norm(tensor))
    close(L.norm(array[0], "nuc"), torch.linalg.norm(tensor[0], "nuc"))
    close(L.norm(array, 1, (0, 1)), torch.linalg.norm(tensor, 1, (0, 1)))
    square = nd.array(x[:, :4])
    for p in (None, 1, 2, -2, "fro", math.inf):
        close(L.cond(square, p), torch.linalg.cond(tensor[:, :4], p), 100)
    z = x + 1j * rng.standard_normal(x.shape)
    close(L.vector_norm(nd.array(z), 2, 1), torch.linalg.vector_norm(torch.from_numpy(z), 2, 1))


def test_products(rng: np.random.Generator) -> None:
    chain = [rng.standard_normal(shape) for shape in ((3, 10), (10, 2), (2, 8), (8, 5))]
    close(L.multi_dot([nd.array(m) for m in chain]), np.linalg.multi_dot(chain))
    ends = [chain[0][0], *chain[1:3], chain[3][:, 0]]
    found = L.multi_dot([nd.array(m) for m in ends])
    np.testing.assert_allclose(found.numpy(), np.linalg.multi_dot(ends))
    a, b = rng.standard_normal((2, 5, 3)), rng.standard_normal((5, 3))
    close(L.cross(nd.array(a), nd.array(b)), np.cross(a, b))
    close(L.cross(nd.array(a.swapaxes(1, 2)), nd.array(b.T), 1), np.cross(a, b).swapaxes(1, 2))
    v = rng.standard_normal((2, 4))
    for n in (None, 2, 6):
        close(L.vander(nd.array(v), n), torch.linalg.vander(torch.from_numpy(v), N=n))
    x = rng.standard_normal((2, 5, 3))
    h, tau = torch.geqrf(torch.from_numpy(x))
    expected = torch.linalg.householder_product(h, tau)
    close(L.householder_product(nd.array(h.numpy()), nd.array(tau.numpy())), expected)


# ---- programs and errors


def test_in_a_recorded_function(rng: np.random.Generator) -> None:
    function = genesis.jit(lambda a, b: nd.exp(L.solve(a * 2, b)).sum() + L.det(a))
    for _ in range(3):
        a, b = positive(rng, "float64", 4, 4), rng.standard_normal((4, 2))
        expected = np.exp(np.linalg.solve(a * 2, b)).sum() + np.linalg.det(a)
        np.testing.assert_allclose(function(nd.array(a), nd.array(b)).item(), expected)
    assert function.captures == 1


FAILING: list[tuple[str, Callable[[nd.NDArray], Any]]] = [
    ("cholesky", L.cholesky),
    ("inverse", L.inv),
    ("solve", lambda x: L.solve(x, nd.ones((3, 1), dtype="float64"))),
    ("triangular", lambda x: L.solve_triangular(x, nd.ones((3, 1), dtype="float64"), upper=True)),
]


@pytest.mark.parametrize(("name", "function"), FAILING)
def test_matrices_that_do_not_work(name: str, function: Callable[[nd.NDArray], Any]) -> None:
    good = np.eye(3)
    batch = nd.array(np.stack([good, good, np.zeros((3, 3))]))
    with pytest.raises(np.linalg.LinAlgError, match=rf"linalg\.{name}: matrix number \(2,\)"):
        function(batch).realize()
    with pytest.raises(np.linalg.LinAlgError, match=rf"linalg\.{name}: matrix: "):
        function(nd.array(np.zeros((3, 3)))).realize()


def test_bad_input() -> None:
    x = nd.zeros((2, 3))
    for name in ("cholesky", "inv", "eig", "eigh", "det", "slogdet", "matrix_exp"):
        with pytest.raises(ValueError, match=r"needs square matrices, got shape \(2, 3\)"):
            getattr(L, name)(x)
        with pytest.raises(ValueError, match=r"needs matrices, got an array of shape \(3,\)"):
            getattr(L, name)(nd.zeros(3))
        with pytest.raises(TypeError, match="not in int64; cast with"):
            getattr(L, name)(nd.eye(3, dtype="int64"))
    for name in ("qr", "svd", "svdvals", "lu", "lu_factor", "pinv"):
        with pytest.raises(TypeError, match="not in float16"):
            getattr(L, name)(nd.eye(3, dtype="float16"))
    with pytest.raises(ValueError, match="do not fit together"):
        L.solve(nd.eye(3), nd.zeros((2, 2)))
    with pytest.raises(ValueError, match="mode is 'reduced', 'complete' or 'r'"):
        L.qr(x, "full")
    with pytest.raises(ValueError, match="there is no norm 'max'"):
        L.matrix_norm(x, "max")
    with pytest.raises(ValueError, match="must have 3 elements"):
        L.cross(nd.zeros(4), nd.zeros(4))
