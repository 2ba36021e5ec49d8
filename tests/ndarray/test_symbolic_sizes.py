"""Graphs that differ in sizes share a program, and are right for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis import nn, optim
from genesis.ir.dtype import float32, int8, uint8
from genesis.ir.size import Size
from genesis.ndarray.core import primitive, symbolic_sizes
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.realisation import backend_of, forget_programs, realize_values


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No graph is known before a test, and none is forgotten in it because others came before."""
    monkeypatch.setattr(symbolic_sizes, "_kinds", {})
    monkeypatch.setattr(symbolic_sizes, "_descriptions", {})
    yield


def compiled(function: Callable[..., Any], sizes: Iterable[Any]) -> list[int]:
    """How many programs each call compiles."""
    found = []
    for n in sizes:
        before = nd.statistics().compiled
        function(n)
        found.append(nd.statistics().compiled - before)
    return found


def close(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_thirty_lengths_compile_twice() -> None:
    def call(n: int) -> None:
        x = np.random.default_rng(n).standard_normal((n, 7)).astype(np.float32)
        a = nd.array(x)
        got = nd.concat([a[1:] * 2, a[:1]]).reshape(-1) + nd.sum(a) / n
        close(got.numpy(), np.concatenate([x[1:] * 2, x[:1]]).reshape(-1) + x.sum() / n)

    rng = np.random.default_rng(0)
    sizes = rng.choice(np.arange(10, 500), 30, replace=False).tolist()
    counts = compiled(call, sizes)
    assert counts[:2] == [1, 1] and not any(counts[2:])
    assert compiled(call, [1, 2]) != [0, 0]  # those mean other things, and are right, too


def test_two_sizes_that_do_not_depend_on_each_other() -> None:
    def call(sizes: tuple[int, int]) -> None:
        rng = np.random.default_rng(sizes)
        x = rng.standard_normal(sizes).astype(np.float32)
        y = rng.standard_normal((sizes[1], 5)).astype(np.float32)
        close((nd.array(x) @ nd.array(y)).reshape(-1).numpy(), (x @ y).reshape(-1))
        close(nd.concat([nd.array(x), nd.array(x[:1])], axis=0).numpy(), np.vstack([x, x[:1]]))

    # The second is the first and 3, then it is not: that takes one more.
    counts = compiled(call, [(10, 13), (20, 23), (12, 40), (31, 9), (9, 31), (100, 7)])
    assert counts == [2, 2, 2, 0, 0, 0]


def test_a_size_that_follows_from_another() -> None:
    def call(n: int) -> None:
        x = nd.arange(2 * n + 3).astype(float32)
        got = nd.sum(x.reshape(1, -1) + nd.ones((n, 1)), axis=1)
        want = np.full(n, np.arange(2 * n + 3).sum() + 2 * n + 3, np.float32)
        close(got.numpy(), want, 1e-5)

    assert compiled(call, (12, 25, 31, 44, 60)) == [1, 1, 0, 0, 0]


def test_other_constants_are_not_sizes() -> None:
    x = np.linspace(0.5, 2, 24, dtype=np.float32)

    def call(power: int) -> None:
        close((nd.array(x) ** nd.full((24,), power, float32)).numpy(), x**power)

    compiled(call, (2, 3, 4, 5))
    for n in (6, 24, 12, 18):
        close((nd.array(x[:n]) ** nd.full((n,), 3, float32)).numpy(), x[:n] ** 3)


def test_halves_of_even_sizes() -> None:
    def call(n: int) -> None:
        x = np.random.default_rng(n).standard_normal((2 * n, 3)).astype(np.float32)
        got = nd.array(x).reshape(n, 2, 3).max(axis=1)
        close(got.numpy(), x.reshape(n, 2, 3).max(axis=1))

    assert compiled(call, (20, 31, 8, 47)) == [1, 1, 0, 0]


def test_growing_arrays() -> None:
    x = nd.ones((10, 4)).realize()

    def grow(n: int) -> None:
        nonlocal x
        x = nd.concat([x, nd.ones((1, 4)) * n]).realize()

    counts = compiled(grow, range(2, 32))
    assert counts[:2] == [1, 1] and not any(counts[2:])
    assert x.shape == (40, 4) and x.numpy()[-1, 0] == 31


def test_sizes_beyond_what_was_expected_have_a_program() -> None:
    def call(sizes: tuple[int, int]) -> None:
        assert nd.ones(sizes, dtype=int8).max(axis=1).shape == sizes[:1]

    call((3, 5))
    call((4, 9))
    call((2, symbolic_sizes.MANY + 1))


def test_the_last_short_batch_trains_like_every_other() -> None:
    """A network of everything usual, against its own results in float64."""
    genesis.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.LayerNorm(8), nn.Linear(8, 5),
    )  # fmt: skip
    exact = nn.Sequential(*[type(m)(*_like(m)) for m in model]).double()
    exact.load_state_dict(
        {k: v.double() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    )
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    reference = optim.SGD(exact.parameters(), lr=0.05)
    rng = np.random.default_rng(0)
    counts = []
    for n in (32, 32, 20, 20, 27, 13, 32, 50):
        x = genesis.tensor(rng.standard_normal((n, 3, 8, 8)).astype(np.float32))
        y = genesis.tensor(rng.integers(0, 5, n))
        losses = []
        for network, steps, data in ((model, optimizer, x), (exact, reference, x.double())):
            before = nd.statistics().compiled
            loss = nn.functional.cross_entropy(network(data), y)
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses.append(loss.item())
            counts.append(nd.statistics().compiled - before)
        close(losses[0], losses[1], 1e-4)
    assert not any(counts[8:])
    for a, b in zip(model.parameters(), exact.parameters(), strict=True):
        close(a.detach().numpy(), b.detach().numpy(), 1e-3)


def _like(m: Any) -> tuple[Any, ...]:
    """The arguments that make another layer like one."""
    if isinstance(m, nn.Conv2d):
        return m.in_channels, m.out_channels, m.kernel_size, m.stride, m.padding
    names = {nn.BatchNorm2d: "num_features", nn.LayerNorm: "normalized_shape"}
    if isinstance(m, nn.Linear):
        return m.in_features, m.out_features
    if isinstance(m, nn.MaxPool2d | nn.AdaptiveAvgPool2d):
        return (2,) if isinstance(m, nn.MaxPool2d) else (1,)
    return tuple(getattr(m, name) for kind, name in names.items() if isinstance(m, kind))


def test_a_transformer_over_lengths() -> None:
    genesis.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    exact = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).double()
    exact.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})

    def call(n: int) -> None:
        x = genesis.tensor(np.random.default_rng(n).standard_normal((2, n, 16)).astype(np.float32))
        results = []
        for network, data in ((layer, x), (exact, x.double())):
            for p in network.parameters():
                p.grad = None
            network(data).square().mean().backward()
            results.append([p.grad.numpy() for p in network.parameters()])
        for a, b in zip(*results, strict=True):
            close(a, b, 1e-4)

    call(3)  # the weights are drawn
    counts = compiled(call, (12, 7, 20, 33, 5, 64))
    assert not any(counts[2:])


def test_gradients_of_an_lstm_over_lengths() -> None:
    genesis.manual_seed(0)
    layer, exact = nn.LSTM(3, 4, batch_first=True), nn.LSTM(3, 4, batch_first=True).double()
    exact.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})

    def call(n: int) -> None:
        x = genesis.tensor(np.random.default_rng(n).standard_normal((2, n, 3)).astype(np.float32))
        results = []
        for network, data in ((layer, x), (exact, x.double())):
            for p in network.parameters():
                p.grad = None
            network(data)[0].square().mean().backward()
            results.append([p.grad.numpy() for p in network.parameters()])
        for a, b in zip(*results, strict=True):
            close(a, b, 1e-4)

    call(5)  # the weights are drawn
    assert not any(compiled(call, (12, 7, 20, 33, 9))[2:])


def test_random_programs_for_many_sizes() -> None:
    """Chains of drawn operations, for sizes in any order, against NumPy."""
    steps: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
        (lambda x: x * 2 + 1, lambda x: x * 2 + 1),
        (lambda x: x - x.mean(axis=0), lambda x: x - x.mean(axis=0)),
        (lambda x: nd.concat([x, x[:1]]), lambda x: np.concatenate([x, x[:1]])),
        (lambda x: x[1:] if x.shape[0] > 2 else x, lambda x: x[1:] if x.shape[0] > 2 else x),
        (lambda x: x[::-1], lambda x: x[::-1]),
        (lambda x: nd.cumsum(x, axis=0) / x.shape[0], lambda x: np.cumsum(x, 0) / x.shape[0]),
        (lambda x: nd.softmax(x, axis=0), lambda x: _softmax(x)),
        (lambda x: (x @ x.T) @ x / x.shape[0], lambda x: (x @ x.T) @ x / x.shape[0]),
        (lambda x: x.reshape(-1).reshape(x.shape), lambda x: x),
        (lambda x: nd.pad(x, ((1, 1), (0, 0)))[1:-1], lambda x: x),
        (lambda x: x.T.reshape(x.shape), lambda x: x.T.reshape(x.shape)),
        (lambda x: nd.sort(x, axis=0).values, lambda x: np.sort(x, 0)),
    ]
    rng = np.random.default_rng(0)
    for _ in range(12):
        chain = [steps[k] for k in rng.integers(0, len(steps), 5)]
        for n in (9, 17, 1, 33, 2, 12):
            x = rng.standard_normal((n, 3)).astype(np.float32)
            got, want = nd.array(x), x.astype(np.float64)
            for ours, theirs in chain:
                got, want = ours(got), theirs(want)
            scale = max(1.0, float(np.abs(want).max()))
            close(got.numpy() / scale, want / scale, 1e-4)


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=0))
    return powers / powers.sum(axis=0)


def test_a_size_that_comes_again_and_again_gets_a_program_of_its_own() -> None:
    def call(n: int) -> None:
        close((nd.arange(n).astype(float32) * 2).numpy(), np.arange(n) * 2)

    assert compiled(call, (50, 60)) == [1, 1]
    counts = compiled(call, [70] * (2 * symbolic_sizes.HOT))
    assert sum(counts) == 1 and counts.index(1) >= symbolic_sizes.HOT - 1
    # Not where it takes turns with others, whoever of them was first.
    assert not any(compiled(call, [50, 81, 82, 83] * (2 * symbolic_sizes.HOT)))


def test_other_lines_are_other_kinds() -> None:
    """Two layers of a loop have their own programs: these may be faster than one for both."""
    x = nd.ones((40, 30)).realize()
    before = nd.statistics().compiled
    for _ in range(3):
        a = (x.T + 1).realize()
        b = (a[:20].T + 1).realize()
    assert nd.statistics().compiled - before == 2 and b.shape == (40, 20)
    assert all(kind.form is None for kind in symbolic_sizes._kinds.values())


@pytest.mark.parametrize("wrap", [lambda f: f, genesis.jit], ids=["plain", "jit"])
def test_bits_do_not_depend_on_what_came_before_where_that_is_asked_for(wrap: Any) -> None:
    """A program for one size may add in another order than one for many."""

    def last(sizes: list[int]) -> bytes:
        forget_programs()
        symbolic_sizes.forget()
        mean = wrap(lambda x: (x * x).mean())
        draws = [np.random.default_rng(n).standard_normal((n, 512), np.float32) for n in sizes]
        found: list[bytes] = [mean(nd.array(x)).numpy().tobytes() for x in draws]
        return found[-1]

    genesis.use_deterministic_algorithms(True)
    try:
        assert genesis.are_deterministic_algorithms_enabled()
        assert last([512]) == last([96, 512]) == last([96, 77, 512])
    finally:
        genesis.use_deterministic_algorithms(False)
    assert not genesis.are_deterministic_algorithms_enabled()


def test_results_have_symbolic_sizes_that_no_kernel_knows() -> None:
    """A reshape and its inverse cancel, and what is left is all numbers but for the result."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=n).astype(np.float32) for n in ((1024, 256), (256, 256)))
    a, b = (Size.symbol(f"size{k}", 2, 4096) for k in range(2))
    for first, second in ((32, 128), (64, 64)):
        there = primitive.reshape(nd.array(x).value, (64, a, b))
        back = wrap(primitive.reshape(there, (1024, 256)))
        result = primitive.reshape((back @ nd.array(w) + 1).value, (64, b, a))
        realize_values([result], {"size0": first, "size1": second})
        assert result.memory is not None
        got = np.frombuffer(backend_of("cpu").download(result.memory, uint8, (x.nbytes,)), "f4")
        np.testing.assert_allclose(got, (x @ w + 1).reshape(-1), rtol=1e-4, atol=1e-3)


def test_sizes_are_symbols_beside_an_input_whose_axes_have_changed() -> None:
    @genesis.jit
    def f(x: Any, y: Any) -> Any:
        return genesis.sum(x) + y * 2

    for rank, n in ((0, 3), (1, 4), (1, 5), (1, 6), (1, 7), (0, 8), (0, 9)):
        x, y = np.full((1,) * rank, 2.0, np.float32), np.arange(n, dtype=np.float32)
        close(f(genesis.from_numpy(x), genesis.from_numpy(y)).numpy(), 2 + 2 * y)
    assert f.captures == 4
