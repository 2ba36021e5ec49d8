"""Weights are repacked once, and what was repacked is never used for other weights."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
import genesis.torch
from genesis import ndarray as nd
from genesis.ndarray.core.realisation import forget_programs

Floats = npt.NDArray[np.float32]


def numbers(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def own(x: Floats) -> nd.NDArray:
    """An array in memory of its own."""
    return (nd.array(x) * 1).realize()


def convolved(x: nd.NDArray, w: nd.NDArray) -> nd.NDArray:
    return nd.convolution(x, w, None, 1, 1, 1, 1)


def expected(x: nd.NDArray, w: nd.NDArray) -> Floats:
    """Exact: all numbers are small integers."""
    pair = (torch.from_numpy(np.array(a)) for a in (x, w))
    return np.asarray(torch.conv2d(*pair, padding=1))


def live() -> int:
    gc.collect()
    return genesis.memory.stats().live_bytes


def kept_by(call: Callable[[], object]) -> int:
    """The bytes that three calls leave behind, of which the first may compile."""
    call()
    before = live()
    call()
    call()
    return live() - before


X = numbers(1, 16, 9, 9)
W = numbers(48, 16, 3, 3, seed=1)
PACKED = W.nbytes


def test_weights_are_repacked_once_and_given_back_with_the_function() -> None:
    w, x = own(W), own(X)

    def run_once() -> None:
        run = genesis.jit(lambda x: convolved(x, w))
        assert kept_by(lambda: run(x)) >= PACKED
        np.testing.assert_array_equal(run(x), expected(x, w))

    start = live()
    run_once()
    assert live() <= start


def test_arguments_are_not_kept() -> None:
    x, w = own(X), own(W)
    run = genesis.jit(convolved)
    assert kept_by(lambda: run(x, w)) == 0


def test_a_program_found_on_disk_keeps_as_much() -> None:
    w, x = own(W), own(X)

    def keeps() -> int:
        run = genesis.jit(lambda x: convolved(x, w))
        return kept_by(lambda: run(x))

    first = keeps()
    forget_programs()
    assert keeps() == first >= PACKED


CHANGES: list[Callable[[nd.NDArray], None]] = [
    lambda w: None,
    lambda w: w.__setitem__((3, 2), 1.0),
    lambda w: w.__setitem__(slice(None), w + 1),
    lambda w: w[5:7].__setitem__(slice(None), nd.ones((2, 16, 3, 3))),
    lambda w: w.reshape(48, -1).T.__setitem__(0, -2.0),
    lambda w: doubled(w),
    lambda w: nd.realize(w),
]


@genesis.jit
def doubled(w: nd.NDArray) -> None:
    w[:] = w * 2


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, len(CHANGES) - 1), max_size=8), st.booleans())
def test_changed_weights_are_never_missed(changes: list[int], seen: bool) -> None:
    w, x = _shared
    w[:] = nd.array(W)
    for change in changes:
        held = w.copy() if seen else None  # somebody who still sees the old contents
        CHANGES[change](w)
        for _ in range(2):
            np.testing.assert_array_equal(_run(x), expected(x, w))
        del held


_shared = own(W), own(X)


@genesis.jit
def _run(x: nd.NDArray) -> nd.NDArray:
    return convolved(x, _shared[0])


def test_memory_of_others_is_read_anew() -> None:
    source = W.copy()
    w, x = nd.from_numpy(source), own(X)
    run = genesis.jit(lambda x: convolved(x, w))
    assert kept_by(lambda: run(x)) == 0
    source += 1
    np.testing.assert_array_equal(run(x), expected(x, nd.array(source)))


def test_memory_that_nobody_can_write_is_as_good_as_ones_own(tmp_path: Path) -> None:
    genesis.save({"w": genesis.tensor(W)}, tmp_path / "weights.safetensors")
    loaded, x = genesis.load(tmp_path / "weights.safetensors")["w"], genesis.tensor(X)
    run = genesis.jit(lambda x: genesis.nn.functional.conv2d(x, loaded, padding=1))
    assert kept_by(lambda: run(x)) >= PACKED
    window = np.asarray(own(W))  # read-only, on memory that is written to
    mine = nd.from_numpy(window)
    other = genesis.jit(lambda x: convolved(x, mine))
    assert kept_by(lambda: other(own(X))) == 0


def test_weights_that_a_function_writes_are_not_kept() -> None:
    w, x = own(W), own(X)

    @genesis.jit
    def step(x: nd.NDArray) -> nd.NDArray:
        y = convolved(x, w)
        w[:] = w + 1
        return y

    now = own(W)
    for _ in range(4):
        np.testing.assert_array_equal(step(x), expected(x, now))
        now[:] = now + 1
    assert kept_by(lambda: step(x)) == 0


def test_weights_of_a_loop() -> None:
    w, xs = own(numbers(64, 64, seed=2)), own(numbers(3, 32, 64))

    @genesis.jit
    def run(xs: nd.NDArray) -> nd.NDArray:
        def step(h: nd.NDArray, x: nd.NDArray) -> tuple[nd.NDArray, nd.NDArray]:
            h = nd.tanh(h @ w + x)
            return h, h

        return nd.scan(step, nd.zeros((32, 64)), xs)[1]

    def slow() -> Floats:
        h = np.zeros((32, 64), np.float32)
        rows = []
        for x in np.array(xs):
            h = np.tanh(h @ np.array(w) + x)
            rows.append(h)
        return np.stack(rows)

    for factor in (1.0, 1.0, 0.5):
        w[:] = w * factor
        for _ in range(3):
            np.testing.assert_allclose(run(xs), slow(), atol=1e-4)


def test_a_run_keeps_what_it_reads() -> None:
    w, x = own(W), own(X)
    run = genesis.jit(lambda x: convolved(x, w) + 0 * w[0, 0, 0, 0])
    allowed = [expected(x, own(W + k)) for k in range(2)]
    wrong: list[Floats] = []

    def often() -> None:
        for _ in range(200):
            y = np.array(run(x))
            if not any(np.array_equal(y, a) for a in allowed):
                wrong.append(y)

    threads = [threading.Thread(target=often) for _ in range(2)]
    for t in threads:
        t.start()
    for k in range(100):
        w[:] = nd.array(W + k % 2)
    for t in threads:
        t.join()
    assert not wrong


# ---- under torch.compile


@pytest.fixture
def model() -> torch.nn.Module:
    torch._dynamo.reset()
    layers = torch.nn.Conv2d(16, 48, 3), torch.nn.ReLU(), torch.nn.Conv2d(48, 32, 3)
    return torch.nn.Sequential(*layers).eval()


def test_frozen_parameters(model: torch.nn.Module) -> None:
    frozen = torch.compile(model, backend="genesis", options={"freeze": True})
    x = torch.randn(1, 16, 12, 12)
    with torch.no_grad():
        assert kept_by(lambda: frozen(x)) >= PACKED
        for change in (
            lambda p: None,
            lambda p: p.mul_(2),  # what PyTorch sees is seen here, too
            lambda p: setattr(p, "data", torch.randn_like(p)),
        ):
            change(model[0].weight)
            for _ in range(3):
                torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-4)
    # With gradients, nothing is frozen.
    frozen(x).sum().backward()
    assert model[0].weight.grad is not None


def test_parameters_are_not_frozen_unless_asked_for(model: torch.nn.Module) -> None:
    run = torch.compile(model, backend="genesis")
    x = torch.randn(1, 16, 12, 12)
    with torch.no_grad():
        assert kept_by(lambda: run(x)) < PACKED
        model[0].weight.data.mul_(2)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
