"""`jit` and sizes: one program for all lengths, unless the code depends on the number."""

from collections.abc import Callable

import numpy as np
import pytest
from arrays import compiled, ramp, vector

import genesis
from genesis import ndarray as nd
from genesis.ir.size import Size
from genesis.ndarray.core.ndarray import NDArray

jit = genesis.jit


# ---- sizes

LENGTHS = [3, 7, 1, 2, 16, 17, 31, 64, 100, 255, 512, 5]


def check_lengths(
    function: Callable[..., NDArray],
    arguments: Callable[[int], tuple[NDArray, ...]],
    lengths: list[int] = LENGTHS,
    programs: int = 2,
) -> None:
    """The first length has a program of its own, the second makes the one for all others."""
    f = jit(function)
    before = compiled()
    for n in lengths:
        given = arguments(n)
        want = function(*given)
        used = compiled() - before
        want.realize()
        before = compiled() - used
        got = f(*given)
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=1e-5)
    assert compiled() - before <= programs
    assert f.captures == programs


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: x.sum(), lambda n: (ramp(n),)),
        (lambda x: x.sum(axis=0), lambda n: (ramp(n, 5),)),
        (lambda x: x.max(axis=1) + x.mean(axis=1), lambda n: (ramp(5, n),)),
        (lambda x: nd.softmax(x, axis=-1), lambda n: (ramp(3, n),)),
        (lambda x: nd.softmax(x, axis=0), lambda n: (ramp(n, 3),)),
        (
            lambda x: (x - x.mean(-1, True)) * nd.rsqrt(x.var(-1, 0, keepdims=True) + 1e-5),
            lambda n: (ramp(3, n),),
        ),
        (lambda x, y: nd.concat([x, y, x], axis=0), lambda n: (ramp(n, 2), ramp(3, 2))),
        (lambda x: nd.concat([x[:1], x], axis=1), lambda n: (ramp(1, n),)),
        (lambda x: nd.windows(nd.pad(x, ((2, 2),)), 0, 3).sum(-1), lambda n: (ramp(n),)),
        (lambda x: x[1:].sum() + x[:-1].sum() if x.ndim else x, lambda n: (ramp(n + 1),)),
        (lambda x: nd.tanh(x).reshape(-1) * 2, lambda n: (ramp(n, 3),)),
        (lambda x: x.T @ x, lambda n: (ramp(n, 4),)),
        (lambda x: x @ x.T, lambda n: (ramp(n, 4),)),
        (lambda x: nd.arange(x.shape[0], dtype="float32") + x, lambda n: (ramp(n),)),
        (lambda x: x.argmax() + x.argmin(), lambda n: (nd.sin(ramp(n)),)),
        (lambda x, w: x @ w, lambda n: (ramp(n, 6), ramp(6, 5))),
        (lambda x, w: x @ w, lambda n: (ramp(4, n), ramp(n, 5))),
        (lambda x, w: x @ w, lambda n: (ramp(4, 6), ramp(6, n))),
        (lambda x, w: x @ w, lambda n: (ramp(n, n + 1), ramp(n + 1, 5))),
        (lambda x, w: nd.softmax(x @ w), lambda n: (ramp(n, 3), ramp(3, 2 * n))),
        (
            lambda x: nd.random.uniform(x.shape, generator=nd.random.Generator(1)),
            lambda n: (ramp(n),),
        ),
        (lambda x: (x + x.shape[0]) / x.size, lambda n: (ramp(n),)),
        (lambda x: nd.where(x > 1, x, 0).sum(), lambda n: (ramp(n, 2, 3),)),
    ],
    ids=[
        "sum", "column sums", "row max", "softmax", "softmax columns", "layer norm", "concat",
        "concat with one", "windows", "differences", "flatten", "gram", "outer gram", "arange",
        "argmax", "matmul m", "matmul k", "matmul n", "matmul m and k", "matmul m and n",
        "random", "size as number", "where",
    ],
)  # fmt: skip
def test_one_program_serves_all_lengths(
    function: Callable[..., NDArray], arguments: Callable[[int], tuple[NDArray, ...]]
) -> None:
    check_lengths(function, arguments)


def test_every_length_to_512() -> None:
    f = jit(lambda x: nd.softmax(x).sum() + x.sum())
    before = compiled()
    data = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    for n in [4, *range(1, 513)]:
        np.testing.assert_allclose(f(data[:n]).item(), 1 + data[:n].sum(), rtol=1e-4, atol=1e-4)
    assert compiled() - before == 2 == f.captures


def test_extents_that_vary_one_at_a_time() -> None:
    f = jit(lambda x, w: nd.softmax(x @ w))
    for m, n in [(3, 4), (4, 4), (4, 5), (5, 5), (5, 6), (6, 6), (6, 7), (7, 7), (9, 9), (1, 8)]:
        x, w = ramp(m, 3), ramp(3, n)
        np.testing.assert_allclose(f(x, w).numpy(), nd.softmax(x @ w).numpy(), rtol=1e-4, atol=1e-6)
    assert f.captures == 3


def test_equal_extents_may_come_apart() -> None:
    f = jit(lambda x, y: x.sum() + 2 * y.sum())
    for a, b in [(3, 3), (4, 4), (5, 5), (5, 6), (7, 9)]:
        assert f(nd.ones(a), nd.ones(b)).item() == a + 2 * b
    assert f.captures == 3


def test_state_of_symbolic_size() -> None:
    total = vector(0)

    @jit
    def f(x: NDArray) -> NDArray:
        total[:] = total + x.sum()
        x *= 2
        return x[1:] if x.ndim else x

    expected = 0.0
    for n in (3, 4, 5, 9, 2):
        x = ramp(n)
        expected += x.numpy().sum()
        want = (x * 2).tolist()
        assert f(x).tolist() == want[1:]
        assert x.tolist() == want and total.item() == pytest.approx(expected)
    assert f.captures == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 10 if x.shape[0] == 5 else x,
        lambda x: x * 10 if x.shape[0] != 5 else x,
        lambda x: x * 10 if x.shape[0] > 4 else x,
        lambda x: x * 10 if x.shape == (5,) else x,
        lambda x: x * 10 if x.shape[0] in (2, 5) else x,
        lambda x: x * {5: 10.0}.get(x.shape[0], 1.0),
        lambda x: x * 10 if x.shape[0] % 5 == 0 else x,
        lambda x: x * 10 if not x.shape[0] - 5 else x,
        lambda x: x * 10 if len(x) == 5 else x,
        lambda x: sum((x[k] for k in range(x.shape[0])), nd.zeros(())),
        lambda x: sum((y * 2 for y in x), nd.zeros(())),
        lambda x: x.reshape(5, 1) if int(x.shape[0]) == 5 else x,
        lambda x: x * float(x.shape[0]),
        lambda x: x * (x.shape[0] ** 0.5),
        lambda x: x[: min(x.shape[0], 3)],
        lambda x: x * "ab*"[x.shape[0] % 3].count("*"),
        lambda x: nd.flip(x),
    ],
)
def test_code_that_depends_on_a_size(function: Callable[[NDArray], NDArray]) -> None:
    f = jit(function)
    for n in (3, 4, 5, 6, 5, 2, 10):
        got, want = f(ramp(n)), function(ramp(n))
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_a_reshape_to_a_fixed_size() -> None:
    f = jit(lambda x: x.reshape(2, 6).sum(axis=1))
    for shape in ((3, 4), (4, 3), (2, 6), (12, 1)):
        x = ramp(*shape)
        assert f(x).tolist() == x.reshape(2, 6).sum(axis=1).tolist()
    with pytest.raises(ValueError, match="reshape"):
        f(ramp(5, 5))


def test_sizes_are_returned_as_numbers() -> None:
    f = jit(lambda x: (x * 1, x.shape, x.shape[0] * 2, {"n": x.size}))
    for n in (3, 4, 5):
        y, shape, double, more = f(ramp(n, 2))
        assert y.shape == shape == (n, 2) and double == 2 * n and more == {"n": 2 * n}
        assert not any(isinstance(k, Size) for k in (*shape, double, more["n"]))


def test_a_size_becomes_zero() -> None:
    state = vector(1, 1)

    @jit
    def f(x: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        state[:] = state + x.sum()
        return x * 2, x.sum(axis=0), nd.concat([x, x]) + 1

    for n in (3, 0, 4, 0, 5, 1, 9):
        doubled, total, both = f(nd.ones((n, 2)))
        assert doubled.shape == (n, 2) and total.tolist() == [n, n]
        assert both.shape == (2 * n, 2) and (both.numpy() == 2).all()
    assert state.tolist() == [45, 45]
    assert f.captures == 3


def test_views_of_symbolic_length() -> None:
    data = ramp(100, 3)
    f = jit(lambda x: x.sum(axis=0))
    for start, n in [(0, 4), (10, 5), (3, 7), (50, 50), (99, 1)]:
        np.testing.assert_allclose(
            f(data[start : start + n]).numpy(), data.numpy()[start : start + n].sum(0), rtol=1e-6
        )
    assert f.captures == 2
    for n in (4, 5, 6):  # not packed: every length is recorded
        assert f(data[:n, 1:]).tolist() == data[:n, 1:].sum(axis=0).tolist()
