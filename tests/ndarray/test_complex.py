"""Complex arrays, against NumPy and PyTorch: values, branch cuts, memory, kernels."""

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import genesis
from genesis import ndarray as nd
from genesis.compiler.graph.complex import without_complex
from genesis.ir import ops
from genesis.ir.dtype import ALL, COMPLEX, complex64, complex128, promote
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Leaf, Node, node, topological
from genesis.ir.numpy_library import sorting
from genesis.ndarray.core import realisation
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops import complexes, library_calls
from genesis.ndarray.ops.special.complex_functions import FUNCTIONS
from tests.arrays import pointer
from tests.oracle_program import OracleProgram

DTYPES = [np.complex64, np.complex128]
RNG = np.random.default_rng(3)


def numbers(*shape: int, dtype: Any = np.complex64) -> np.ndarray:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


def close(got: NDArray, want: Any, ulps: float = 16) -> None:
    """Equal shapes and dtypes, and values up to rounding relative to the greatest one."""
    found, wanted = got.numpy(), np.asarray(want)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    size = np.abs(wanted).max(initial=0)
    tolerance = ulps * np.finfo(wanted.dtype).eps * size
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


def kernels(function: Callable[..., Any], *args: Any) -> int:
    return len(genesis.explain(function, *args).kernels)


# ---- types


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("a", COMPLEX, ids=repr)
def test_promotion_is_that_of_pytorch(a: Any) -> None:
    for b in (*ALL, *COMPLEX):
        if b.name.startswith("uint") and b.bits > 8:
            continue  # PyTorch hardly knows them
        x, y = (torch.zeros(1, dtype=getattr(torch, d.name)) for d in (a, b))
        wanted = str((x + y).dtype).removeprefix("torch.")
        assert promote(a, b).name == promote(b, a).name == wanted
        scalar = torch.zeros((), dtype=getattr(torch, a.name))
        wanted = str((y + scalar).dtype).removeprefix("torch.").replace("complex32", "complex64")
        assert (nd.zeros(1, b) + nd.zeros((), a)).dtype.name == wanted
    assert (nd.zeros(3) * 2j).dtype is complex64
    assert (nd.zeros(3, genesis.float64) + 1j).dtype is complex128
    assert (nd.arange(3) + 1j).dtype is complex64
    assert (nd.zeros(3, a) * 2.5).dtype is a
    assert abs(nd.zeros(3, a)).dtype is a.real


def test_conversions() -> None:
    x = nd.array([1 + 2j, -3j, 0])
    assert x.dtype is complex64
    close(x.astype(complex128), np.array([1 + 2j, -3j, 0]))
    close(nd.array([1, 2]).astype(complex64), np.array([1, 2], np.complex64))
    assert x.astype(genesis.bool_).tolist() == [True, True, False]
    with pytest.warns(nd.ComplexWarning, match="complex64 to float32 drops the imaginary part"):
        assert x.astype(genesis.float32).tolist() == [1, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x.real.tolist() == [1, 0, 0]
    assert complex(x[0]) == x[0].item() == 1 + 2j
    assert "1.+2.j" in repr(x) and "complex64" in repr(x)
    close(nd.full((2,), 1 + 1j), np.full(2, 1 + 1j, np.complex64))
    close(nd.eye(2, dtype=complex64), np.eye(2, dtype=np.complex64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_shared_with_others(dtype: Any) -> None:
    source = numbers(4, 6, dtype=dtype)
    for view in (source, source.T, source[::-1, 1::2], source[2]):
        x = nd.from_numpy(view)
        assert np.shares_memory(x.numpy(), source)
        close(x * 1j, view * dtype(1j))
    tensor = torch.from_numpy(source.copy())
    assert nd.from_dlpack(tensor).numpy().tobytes() == source.tobytes()
    assert torch.from_dlpack(nd.array(source)).numpy().tobytes() == source.tobytes()


def test_parts_and_pairs() -> None:
    a = numbers(3, 4)
    x = nd.array(a)
    close(x.real, a.real)
    close(x.imag, a.imag)
    close(x.conj(), a.conj())
    close(nd.view_as_real(x), a.view(np.float32).reshape(3, 4, 2))
    close(nd.view_as_complex(nd.array(a.view(np.float32).reshape(3, 4, 2))), a)
    close(nd.complex(x.imag, x.real), a.imag + 1j * a.real)
    close(nd.polar(abs(x), nd.angle(x)), a)
    close(nd.sgn(x), a / np.abs(a))
    assert nd.sgn(nd.array([0j])).tolist() == [0]
    real = nd.array([-1.0, 2.0, float("nan")])
    assert nd.angle(real).numpy()[:2].tolist() == [np.float32(np.pi), 0]
    assert np.isnan(nd.angle(real).numpy()[2])
    assert nd.conj(real).dtype is nd.real(real).dtype is genesis.float32
    assert nd.imag(real).tolist() == [0, 0, 0]
    assert nd.isreal(nd.array([1j, 2 + 0j])).tolist() == [False, True]
    assert nd.is_complex(x) and not nd.is_complex(x.real)


# ---- arithmetic


def grid(real: Any, *extra: float) -> np.ndarray:
    """Every pair of ordinary and extreme parts, signed zeros included."""
    info = np.finfo(real)
    sizes = [0, 1e-3, 0.5, 1, 2, 3.7, 20, 100, info.tiny, 1e-20, 1e18, info.max / 3, np.inf, *extra]
    parts = np.array([*sizes, *(-s for s in sizes), np.nan], real)
    z = np.empty((len(parts), len(parts)), np.result_type(real, np.complex64))
    z.real, z.imag = parts[:, None], parts
    return z.reshape(-1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic(dtype: Any) -> None:
    a, b = numbers(500, dtype=dtype), numbers(500, dtype=dtype)
    x, y = nd.array(a), nd.array(b)
    close(x + y, a + b)
    close(x - 2j, a - dtype(2j))
    close(x * y * 1.5, a * b * dtype(1.5))
    close(3 / x, dtype(3) / a, ulps=4)
    close(-x, -a)
    close(x**3, a**3)
    close(x**-2, a**-2)
    close(x**y, a**b)
    close(2**x, dtype(2) ** a)
    close(nd.square(x), a * a)
    close(nd.reciprocal(x), 1 / a)
    close(nd.lerp(x, y, 0.25), a + dtype(0.25) * (b - a))
    assert (x == x).all().item() and not (x == y).any().item()
    assert (x != x.real).all().item()
    x += y
    close(x, a + b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_with_infinities(dtype: Any) -> None:
    z = grid(dtype(0).real.dtype)
    w = RNG.permutation(z)
    x, y = nd.array(z), nd.array(w)
    with np.errstate(all="ignore"):
        for got, want in ((x + y, z + w), (x - y, z - w), (x * y, z * w)):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
        np.testing.assert_allclose(abs(x).numpy(), np.abs(z), rtol=1e-6)
        assert nd.isnan(x).tolist() == np.isnan(z).tolist()
        assert nd.isinf(x).tolist() == np.isinf(z).tolist()
        assert nd.isfinite(x).tolist() == np.isfinite(z).tolist()
        # NumPy multiplies with the reciprocal, which overflows for tiny divisors.
        wide = np.clongdouble if dtype is np.complex128 else np.complex128
        true = (z.astype(wide) / w.astype(wide)).astype(dtype)
        ordinary = np.isfinite(z) & np.isfinite(w) & (w != 0)
    limits = np.finfo(dtype)
    found = (x / y).numpy()
    inside = ordinary & (np.abs(true) < limits.max / 4) & (np.abs(true) > limits.tiny * 1e3)
    error = np.abs(found[inside] - true[inside]) / np.abs(true[inside])
    # Smith's ratio may underflow: then the smaller part of the result is lost.
    assert error.max() < 8 * limits.eps
    with np.errstate(all="ignore"):
        zero = (nd.array(z) / 0j).numpy()
        assert np.isinf(zero[np.isfinite(z) & (z != 0)]).all()
        assert np.isnan(zero[z == 0]).all()
    assert (nd.array([1, 1j], genesis.complex64) / complex(np.inf, 1)).tolist() == [0, 0]


# ---- functions

REFERENCE: dict[str, Callable[..., Any]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "rsqrt": lambda z: 1 / np.sqrt(z),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "silu": lambda z: z / (1 + np.exp(-z)),
    "softsign": lambda z: z / (1 + np.abs(z)), "tanhshrink": lambda z: z - np.tanh(z),
}  # fmt: skip


def call(name: str, x: NDArray) -> np.ndarray:
    function = getattr(nd, name, None)
    return (function(x) if function else wrap(complexes.function(name, x.value))).numpy()


def cases(dtype: Any) -> np.ndarray:
    """Ordinary numbers, large and small ones, and numbers near 1, -1 and 0."""
    near = [at + 1e-3 * numbers(100, dtype=np.complex128) for at in (1, -1, 0, 1j)]
    scaled = np.exp(RNG.uniform(-5, 3, 400)) * np.exp(1j * RNG.uniform(-4, 4, 400))
    return np.concatenate([numbers(500, dtype=np.complex128), scaled, *near]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, dtype: Any) -> None:
    """Accuracy in units of the modulus; the special values where C99 fixes them."""
    w, z = cases(dtype), grid(dtype(0).real.dtype, np.pi / 2)
    got = call(name, nd.array(np.concatenate([w, z])))
    reference = REFERENCE.get(name) or getattr(np, name)
    wide = w.astype(np.complex128 if dtype is np.complex64 else np.clongdouble)
    exact = reference(wide)
    eps = np.finfo(dtype).eps
    if name in ("log1p", "expm1"):  # NumPy cancels there, in any type
        exact = np.where(np.abs(wide) < 0.01, _series(name, wide), exact)
    size = np.abs(exact)
    if name == "tanhshrink":  # a difference, and near its roots a sine, of rounded numbers
        size = np.maximum(size, np.abs(wide))
    elif name == "sinc":
        size = np.maximum(size, np.exp(np.pi * np.abs(wide.imag)))
    error = np.abs(got[: len(w)] - exact) / size / eps
    limit = 4 + np.abs(w).max() if name in ("exp2",) else 4
    assert error.max() < limit, (w[error.argmax()], error.max())
    composed = ("silu", "sinc", "softsign", "tanhshrink")
    if name in ("exp2", "expm1", "log1p", "rsqrt", "sigmoid", *composed):
        return  # not functions of C99; NumPy composes them and overflows on the way
    with np.errstate(all="ignore"):
        want = reference(z)
    _same_kind(z, got[len(w) :], want, eps)


def _series(name: str, z: np.ndarray) -> np.ndarray:
    signs = [1, -1 / 2, 1 / 3, -1 / 4, 1 / 5, -1 / 6, 1 / 7, -1 / 8]
    factorials = np.cumprod([1, *(1 / k for k in range(2, 9))])
    terms = signs if name == "log1p" else factorials
    return sum(np.longdouble(c) * z ** (k + 1) for k, c in enumerate(terms))


def _same_kind(z: np.ndarray, got: np.ndarray, want: np.ndarray, eps: float) -> None:
    """NaN, infinity and the sign of every part; values up to rounding."""
    for g, w in ((got.real, want.real), (got.imag, want.imag)):
        wrong = np.isnan(g) != np.isnan(w)
        wrong |= np.isinf(g) != np.isinf(w)
        # Where the other part is NaN, C99 leaves signs open; nor does it say that of 0 at infinity.
        known = ~np.isnan(want) & np.isfinite(z)
        small = (np.abs(g) < 8 * eps * np.abs(want)) & (g != 0) & (w != 0)
        wrong |= known & ~small & (np.signbit(g) != np.signbit(w))
        assert not wrong.any(), list(zip(z[wrong], got[wrong], want[wrong], strict=True))[:5]
    finite = np.isfinite(want)
    with np.errstate(all="ignore"):
        distance = np.abs(got - want)[finite]
        allowed = np.maximum(16 * eps * np.abs(want), 4 * np.finfo(want.dtype).tiny)[finite]
    assert (distance <= allowed).all(), z[finite][distance > allowed][:5]


def test_branch_cuts_are_continuous_from_the_side_of_the_signed_zero() -> None:
    reals = np.array([-3, -2, -1.5, 1.5, 2, 3], np.float64)
    for name in ("sqrt", "log", "asin", "acos", "atanh", "acosh"):
        for side in (0.0, -0.0):
            on = call(name, nd.complex(nd.array(reals), nd.full((6,), side, genesis.float64)))
            beside = call(name, nd.array(reals + 1j * np.copysign(1e-14, side)))
            np.testing.assert_allclose(on, beside, atol=1e-6)


# ---- reductions and contractions


@pytest.mark.parametrize("axis", [None, 0, (0, 2), 1])
def test_reductions(axis: Any) -> None:
    a = numbers(4, 5, 3)
    x, t = nd.array(a), torch.from_numpy(a)
    dim = tuple(range(3)) if axis is None else axis
    close(x.sum(axis), t.sum(dim).numpy())
    close(x.mean(axis, keepdims=True), t.mean(dim, keepdim=True).numpy())
    close(x.var(axis), t.var(dim).numpy())
    close(x.std(axis, correction=0), t.std(dim, correction=0).numpy())
    close(x.prod(axis), a.prod(axis))
    assert x.any().item() and (x * 0 == 0).all().item()


def test_reductions_of_nothing() -> None:
    x = nd.zeros((0, 3), complex64)
    assert x.sum().item() == 0 and x.prod(0).tolist() == [1, 1, 1]
    assert (x @ nd.zeros((3, 2), complex64)).shape == (0, 2)
    assert (nd.zeros((2, 0), complex64) @ x).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize(
    "spec, shapes",
    [
        ("ij,jk->ik", [(5, 7), (7, 6)]),
        ("ij,kj->ki", [(5, 7), (6, 7)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bij,jb->ib", [(2, 3, 4), (4, 2)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ijk,kjl->li", [(2, 3, 4), (4, 3, 5)]),
        ("ii->i", [(4, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ],
)
def test_contractions(spec: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(7)  # sums that cancel are no matter of which tests ran before
    arrays = [
        (rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(np.complex64) for s in shapes
    ]
    wanted = np.einsum(spec, *(a.astype(np.complex128) for a in arrays)).astype(np.complex64)
    close(nd.einsum(spec, *map(nd.array, arrays)), wanted)
    mixed = [nd.array(arrays[0]).real, *map(nd.array, arrays[1:])]
    if len(mixed) > 1:
        wanted = np.einsum(spec, arrays[0].real, *arrays[1:])
        close(nd.einsum(spec, *mixed), wanted)
        if len(mixed) == 2:
            other = np.einsum(spec, arrays[0], arrays[1].real)
            close(nd.einsum(spec, nd.array(arrays[0]), mixed[1].real), other)


def test_products_of_matrices() -> None:
    a, b, v = numbers(3, 4, 5), numbers(5, 6), numbers(5)
    x, y, w = nd.array(a), nd.array(b), nd.array(v)
    close(x @ y, a @ b)
    close(x @ w, a @ v)
    close(nd.dot(w, w.conj()), np.dot(v, v.conj()))
    close(nd.tensordot(x, y, 1), np.tensordot(a, b, 1))
    close(nd.outer(w, w), np.outer(v, v))
    close(x.real @ y, (a.real @ b).astype(np.complex64))
    close(x @ y.real, (a @ b.real).astype(np.complex64))
    close((x * 2) @ (y + 1), (a * 2) @ (b + 1))


# ---- movement, indexing, writing


def test_movement() -> None:
    a = numbers(4, 6)
    x = nd.array(a)
    close(x.reshape(3, 8).T + 0, a.reshape(3, 8).T)
    close(x[::-1, 1::2] * 1j, a[::-1, 1::2] * np.complex64(1j))
    close(nd.flip(x, 1), a[:, ::-1])
    close(nd.concat([x, x.conj()], 1), np.concatenate([a, a.conj()], 1))
    close(nd.stack([x, x * 2], -1), np.stack([a, a * 2], -1))
    close(nd.roll(x, 2, 1), np.roll(a, 2, 1))
    close(nd.pad(x, ((1, 0), (0, 2))), np.pad(a, ((1, 0), (0, 2))))
    close(nd.where(x.real > 0, x, 1j), np.where(a.real > 0, a, np.complex64(1j)))
    close(nd.where(x.real > 0, x, 0.0), np.where(a.real > 0, a, np.complex64(0)))
    close(nd.tril(x), np.tril(a))
    close(nd.broadcast_to(x[:1], (4, 6)) - x, a[:1] - a)
    windows = np.lib.stride_tricks.sliding_window_view(a, 3, 1).sum(-1)
    close(nd.stack([x[:, i : i + 4] for i in range(3)]).sum(0), windows)


def test_indexing_and_writing() -> None:
    a = numbers(5, 4)
    x = nd.array(a)
    where = np.array([3, 0, 3])
    close(x[nd.array(where)], a[where])
    close(nd.take(x * 1j, nd.array(where), 1), (a * np.complex64(1j))[:, where])
    y = x.copy()
    x[1] = 2 - 3j
    x[2:, ::2] *= 1j
    x[:, 3] = nd.array(a[:, 0]).real
    a[1] = 2 - 3j
    a[2:, ::2] *= np.complex64(1j)
    first = y.numpy()[:, 0].real
    a[:, 3] = first
    close(x, a)
    close(x.T + y.T, a.T + y.numpy().T)
    x[nd.array(where[:2])] = 1j
    a[where[:2]] = 1j
    close(x, a)


def test_writes_are_done_in_place() -> None:
    x = (nd.zeros((64, 64), complex64) + 1).realize()
    before = pointer(x)
    x[3:5] = 2j
    x[:, 0] += 1j
    x.realize()
    assert pointer(x) == before
    wanted = np.ones((64, 64), np.complex64)
    wanted[3:5] = 2j
    wanted[:, 0] += np.complex64(1j)
    close(x, wanted)


def test_functions_that_are_recorded() -> None:
    a, b = numbers(6, 8), numbers(6, 8)
    state = nd.zeros((6, 8), complex64).realize()

    @genesis.jit
    def step(x: NDArray, y: NDArray, factor: complex) -> Any:
        state[2:4] = state[2:4] * 0.5 + x[2:4]
        return nd.exp(x * factor) @ y.T, state.sum()

    total = np.zeros((6, 8), np.complex64)
    before = pointer(state)
    for k in range(3):
        product, last = step(nd.array(a), nd.array(b), 1 + 2j)
        total[2:4] = total[2:4] * np.complex64(0.5) + a[2:4]
        close(product, np.exp(a * np.complex64(1 + 2j)) @ b.T)
        close(last, total.sum())
        if k:
            assert pointer(state) == before
        before = pointer(state)
    view = nd.array(numbers(9, 8))
    close(step(view[2:8], nd.array(b), 2j)[0], np.exp(view.numpy()[2:8] * np.complex64(2j)) @ b.T)


def test_loops() -> None:
    a = numbers(5, 3)

    def body(carry: NDArray, x: NDArray) -> tuple[NDArray, NDArray]:
        new = carry * (0.5 + 0.5j) + x
        return new, nd.abs(new)

    last, sizes = nd.scan(body, nd.zeros((3,), complex64), nd.array(a))
    carry, wanted = np.zeros(3, np.complex64), []
    for row in a:
        carry = carry * np.complex64(0.5 + 0.5j) + row
        wanted.append(np.abs(carry))
    close(last, carry)
    close(sizes, np.stack(wanted))


def test_running_results() -> None:
    a = numbers(3, 200)
    close(nd.cumsum(nd.array(a), 1), np.cumsum(a, 1))
    close(nd.cumprod(nd.array(a), 0), np.cumprod(a, 0))


def test_calls_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operand and a result that are complex are complex for the function that is called."""

    def turned(options: tuple[Any, ...], x: np.ndarray) -> tuple[np.ndarray]:
        assert x.dtype == np.complex64
        return (x.conj().T,)

    monkeypatch.setattr(sorting, "turned", turned, raising=False)
    monkeypatch.setattr(sorting, "__all__", [*sorting.__all__, "turned"])
    a = numbers(2, 3)
    operand = (nd.array(a) * 2j).value
    (result,) = library_calls.call("sorting.turned", (), [operand], [(complex64, (3, 2))])
    close(wrap(result) + 1, (a * np.complex64(2j)).conj().T + 1)


def test_random_numbers() -> None:
    source = nd.random.Generator(5)
    x = nd.random.normal((20000,), 1 - 1j, 2.0, complex64, source).numpy()
    assert x.dtype == np.complex64
    assert abs(x.mean() - (1 - 1j)) < 0.05 and abs(x.var() - 4) < 0.1
    assert abs(np.cov(x.real, x.imag)[0, 1]) < 0.05
    assert abs(x.real.var() - 2) < 0.1
    u = nd.random.uniform((1000,), dtype=complex128, generator=source).numpy()
    assert 0 <= u.real.min() and u.imag.max() < 1 and u.dtype == np.complex128


def test_the_oracle_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(4, 5), numbers(5, 3)

    def results() -> list[np.ndarray]:
        x, y = nd.array(a), nd.array(b)
        x[1:3, ::2] = 1 - 1j
        product = nd.exp(x) @ y
        last, _ = nd.scan(lambda c, row: (c * row + 1j, c), nd.ones((5,), complex64), x)
        picked = nd.concat([x[:, ::-1], x.conj()])[nd.array([6, 0])]
        arrays = [x, product, product.sum(0), abs(product), last, picked, nd.view_as_real(y / 2j)]
        nd.realize(*arrays)
        return [z.numpy() for z in arrays]

    compiled = results()
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    monkeypatch.setattr("genesis.compiler.compile_graph", OracleProgram)
    for got, want in zip(compiled, results(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# ---- errors and costs


def test_errors_name_the_operation() -> None:
    x = nd.array([1j, 2])
    for name in ("less", "greater", "less_equal", "greater_equal"):
        with pytest.raises(TypeError, match=f"{name}: complex64 numbers have no order"):
            getattr(nd, name)(x, 1)
    for name in ("amax", "amin"):
        with pytest.raises(TypeError, match=f"{name}: complex64"):
            getattr(nd, name)(x)
    for name in ("erf", "floor", "bitwise_not"):
        with pytest.raises(TypeError, match="not defined for complex64"):
            getattr(nd, name)(x)
    with pytest.raises(TypeError, match="not defined for complex64"):
        nd.remainder(x, 2)
    with pytest.raises(TypeError, match="not defined for complex64"):
        nd.maximum(x, 2)
    with pytest.raises(TypeError, match=r"complex number .* is no float32"):
        nd.full((2,), 1j, genesis.float32).realize()
    real = nd.zeros(2)
    with pytest.raises(TypeError, match="a complex64 result does not fit into float32"):
        real += 1j
    with pytest.raises(ValueError, match="view_as_complex: the last axis must have two"):
        nd.view_as_complex(nd.zeros((2, 3)))
    with pytest.raises(TypeError, match="view_as_real: needs complex"):
        nd.view_as_real(real)
    with pytest.raises(TypeError, match="complex: needs real numbers"):
        nd.complex(x, 1)


def test_how_many_kernels() -> None:
    x, y, z = (nd.array(numbers(300, 40)).realize() for _ in range(3))
    assert kernels(lambda a, b, c: a * b + c * (2 - 1j) - a, x, y, z) == 1
    assert kernels(lambda a, b: nd.tanh(nd.exp(a) / b), x, y) == 1
    assert kernels(lambda a: (a * a.conj()).sum(1), x) == 1
    assert kernels(lambda a, b: a @ b.T, x, y) <= 2


# ---- the compiler's pass

SHAPE = (3, 4)


def _graph(draw: Callable[..., Any]) -> Node:
    """A random graph of what stays complex: movement, indexing, updates."""
    x = node(ops.BUFFER, (), Leaf(0, (8, 2), 1), complex64, SHAPE)
    n: Node = node(ops.RESHAPE, (x,), None, complex64, SHAPE)
    fill = node(
        ops.COMPLEX, tuple(node(ops.CONST, (), v, complex64.real) for v in (1.5, -2.0)),
        None, complex64,
    )  # fmt: skip
    for _ in range(draw(st.integers(1, 4))):
        rows, columns = n.shape
        match draw(st.integers(0, 6)):
            case 0:
                n = node(ops.PERMUTE, (n,), (1, 0), complex64, (columns, rows))
            case 1:
                n = node(ops.RESHAPE, (n,), None, complex64, (columns, rows))
            case 2:
                n = node(ops.SLICE, (n,), ((rows - 1, -1), (0, 1)), complex64, n.shape)
            case 3:
                shape = (rows + 1, columns)
                n = node(ops.PAD, (n, fill), ((1, 1), (0, 1)), complex64, shape)
            case 4:
                value = node(ops.SLICE, (n,), ((0, 1), (0, 1)), complex64, (1, columns))
                n = node(ops.UPDATE, (n, value), ((rows - 1, 1), (0, 1)), complex64, n.shape)
            case 5:
                parts = (node(ops.IMAG, (n,), None, complex64.real, n.shape),
                         node(ops.REAL, (n,), None, complex64.real, n.shape))  # fmt: skip
                n = node(ops.COMPLEX, parts, None, complex64, n.shape)
            case _:
                pairs = node(ops.AS_REAL, (n,), None, complex64.real, (*n.shape, 2))
                turned = node(ops.PERMUTE, (pairs,), (1, 0, 2), pairs.dtype, (columns, rows, 2))
                n = node(ops.AS_COMPLEX, (turned,), None, complex64, (columns, rows))
    return n


@given(st.data())
@settings(max_examples=60)
def test_the_pass_keeps_the_meaning(data: st.DataObject) -> None:
    root = _graph(data.draw)
    (real,) = without_complex([root])
    assert not any(n.dtype.is_complex or n.op.group == "complex" for n in topological([real]))
    memory = numbers(32)
    (wanted,) = evaluate([root], [memory], [])
    (found,) = evaluate([real], [memory.view(np.float32)], [])
    assert np.array_equal(found, np.stack([wanted.real, wanted.imag], -1))
