"""A row of a product with constant weights has the same bits alone and among others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import genesis
from genesis import functional
from genesis.backends.cpu.chip import host
from genesis.compiler.schedule.cpu.contraction import contraction
from genesis.compiler.schedule.cpu.contraction.contraction import by_height
from genesis.compress import quantize
from genesis.ir import kernel as kir
from genesis.ir.dtype import float32
from genesis.ir.interpret import interpret
from genesis.ir.kernel_builder import Builder

Floats = npt.NDArray[np.float32]
ROWS = (1, 2, 3, 5, 6, 7, 8, 13, 33, 200)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = genesis.get_num_threads()
    genesis.set_num_threads(request.param)
    yield request.param
    genesis.set_num_threads(before)


def numbers(*shape: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def of_any_size(function: Callable[[Any], Any], width: int) -> Callable[[Floats], Floats]:
    """The function recorded once for all numbers of rows."""
    jitted = genesis.jit(function)
    for n in (3, 5, 9):
        jitted(genesis.tensor(np.ones((n, width), np.float32)))

    def call(x: Floats) -> Floats:
        y: Floats = jitted(genesis.tensor(x)).numpy()
        assert jitted.captures <= 4  # fewer than there are numbers of rows
        return y

    return call


def of_this_size(function: Callable[[Any], Any], x: Floats) -> Floats:
    """A recording for one number of rows, after weights were packed once."""
    jitted = genesis.jit(function)
    for _ in range(2):
        jitted(genesis.tensor(x))
    y: Floats = jitted(genesis.tensor(x)).numpy()
    return y


def check(
    function: Callable[[Any], Any],
    width: int,
    exact: npt.NDArray[Any],
    x: Floats,
    precision: float = 1e-6,
) -> None:
    """All rows have the same bits in all ways to compute some of them, and are right."""
    symbolic = of_any_size(function, width)
    whole = symbolic(x)
    magnitude = np.abs(exact).max() + 1
    np.testing.assert_allclose(whole, exact, rtol=0, atol=precision * magnitude * width**0.5)
    for n in ROWS:
        some = np.random.default_rng(n).permutation(len(x))[:n]
        np.testing.assert_array_equal(symbolic(x[some]), whole[some], f"{n} of any number")
    for n in (1, 2, 7, 33):
        np.testing.assert_array_equal(of_this_size(function, x[:n]), whole[:n], f"{n} rows")


SHAPES = [*product((1, 3, 40, 130), (7, 64, 515)), (64, 1), (520, 1200), (96, 4096)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_have_the_same_bits_in_any_company(shape: tuple[int, int], threads: int) -> None:
    w, x = numbers(*shape, seed=1), numbers(max(ROWS), shape[1], seed=2)
    weights, bias = genesis.tensor(w), genesis.tensor(numbers(shape[0], seed=3))
    exact = x.astype(np.float64) @ w.T.astype(np.float64) + bias.numpy()
    check(lambda x: functional.linear(x, weights, bias), shape[1], exact, x)


def test_matrices_that_lie_the_other_way() -> None:
    w, x = numbers(300, 90, seed=1), numbers(max(ROWS), 300, seed=2)
    weights = genesis.tensor(w)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    check(lambda x: x @ weights, 300, exact, x)


def test_bfloat16_by_twos() -> None:
    weights = genesis.tensor(numbers(130, 512, seed=1)).to(genesis.bfloat16)
    x = genesis.tensor(numbers(max(ROWS), 512, seed=2)).to(genesis.bfloat16).to(genesis.float32)
    exact = x.numpy().astype(np.float64) @ weights.to(genesis.float32).numpy().T.astype(np.float64)

    def product(x: Any) -> Any:
        x = x.to(genesis.bfloat16).to(genesis.float32)
        return functional.linear(x, weights.to(genesis.float32))

    check(product, 512, exact, x.numpy())


@pytest.mark.parametrize("dtype", [genesis.bfloat16, genesis.float16])
def test_weights_of_sixteen_bits(dtype: Any) -> None:
    weights = genesis.tensor(numbers(130, 515, seed=1)).to(dtype)
    x = numbers(max(ROWS), 515, seed=2)
    exact = x.astype(np.float64) @ weights.to(genesis.float32).numpy().T.astype(np.float64)
    check(lambda x: functional.linear(x, weights.to(genesis.float32)), 515, exact, x)


@pytest.mark.parametrize("format", ["bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("shape", [(130, 96), pytest.param((64, 515), marks=pytest.mark.slow)])
def test_quantised_weights(shape: tuple[int, int], format: str, threads: int) -> None:
    weights = quantize(genesis.tensor(numbers(*shape, seed=1)), format)
    x = numbers(max(ROWS), shape[1], seed=2)
    exact = x.astype(np.float64) @ weights.dequantize().numpy().T.astype(np.float64)
    # The input is rounded to 8 bits or 16.
    check(weights.linear, shape[1], exact, x, 1e-6 if format == "float16" else 1e-2)


def test_all_sizes_share_one_copy_of_the_weights() -> None:
    weights = genesis.tensor(numbers(256, 512, seed=1))
    weights.numpy()  # it is there
    jitted = genesis.jit(lambda x: functional.linear(x, weights))

    def live(n: int) -> int:
        jitted(genesis.tensor(np.ones((n, 512), np.float32)))
        return genesis.memory.stats().live_bytes

    for n in (3, 5, 7):
        live(n)
    before = live(9)
    assert all(live(n) - before < weights.nbytes // 2 for n in range(10, 20))


def test_programs_share_one_copy_of_the_weights() -> None:
    weights = genesis.tensor(numbers(256, 512, seed=1))
    x = genesis.tensor(numbers(40, 512, seed=2))
    plain = x.numpy() @ weights.numpy().T
    functions = [
        genesis.jit(lambda x: functional.linear(x, weights)),
        genesis.jit(lambda x: functional.relu(functional.linear(x[:1], weights)) * 2.0),
        genesis.jit(lambda x: x.sum() + functional.linear(x[:9] + 1.0, weights)),
    ]
    live = []
    for f in functions:
        for _ in range(3):
            f(x)
        live.append(genesis.memory.stats().live_bytes)
    assert max(live) - live[0] < weights.nbytes // 2
    np.testing.assert_allclose(functions[0](x).numpy(), plain, atol=1e-3)
    np.testing.assert_allclose(functions[1](x).numpy(), 2 * plain[:1].clip(0), atol=1e-3)
    expected = x.numpy().sum() + (x.numpy()[:9] + 1) @ weights.numpy().T
    np.testing.assert_allclose(functions[2](x).numpy(), expected, atol=3e-2)
    with genesis.no_grad():
        weights.mul_(-1.0)
    for _ in range(3):
        np.testing.assert_allclose(functions[1](x).numpy(), 2 * (-plain[:1]).clip(0), atol=1e-3)
        np.testing.assert_allclose(functions[0](x).numpy(), -plain, atol=1e-3)


def packs(jitted: Any, x: Any) -> bool:
    """Whether a call copies weights into panels."""
    for _ in range(2):
        jitted(x)
    return "packed" in str(genesis.explain(jitted, x))


def test_only_what_stays_the_same_is_packed_for_few_rows() -> None:
    w, x = numbers(512, 1024, seed=1), genesis.tensor(numbers(1, 1024, seed=2))
    own, foreign = genesis.tensor(w), genesis.from_numpy(w)
    trained = genesis.tensor(w, requires_grad=True)

    def written(x: Any) -> Any:
        y = functional.linear(x, own)
        own.add_(1.0)
        return y

    assert packs(genesis.jit(lambda x: functional.linear(x, own)), x)
    assert not packs(genesis.jit(lambda x: functional.linear(x, foreign)), x)
    assert not packs(genesis.jit(lambda x: functional.linear(x, trained)), x)
    assert not packs(genesis.jit(written), x)
    with genesis.no_grad():
        assert packs(genesis.jit(lambda x: functional.linear(x, trained)), x)


def test_new_weights_are_seen() -> None:
    weights = genesis.tensor(numbers(100, 50, seed=1))
    jitted = genesis.jit(lambda x: functional.linear(x, weights))
    for n in (3, 5, 7, 1, 2, 9):
        x = numbers(n, 50, seed=n)
        for _ in range(3):
            np.testing.assert_allclose(
                jitted(genesis.tensor(x)).numpy(), x @ weights.numpy().T, rtol=1e-5, atol=1e-3
            )
        with genesis.no_grad():
            weights.mul_(-2.0)


def test_proven_for_all_sizes() -> None:
    weights = genesis.tensor(numbers(100, 50, seed=1))
    jitted = genesis.jit(lambda x: functional.linear(x, weights))
    for n in (3, 5, 7):
        x = genesis.tensor(numbers(n, 50, seed=n))
        jitted(x)
    assert "all proven" in str(genesis.explain(jitted, x))


@pytest.mark.parametrize("m", range(1, 12))
def test_tiles_of_every_height(m: int) -> None:
    k = Builder("copy")
    x, y = k.input("x", float32, m), k.output("y", float32, m)
    rows, tiles = kir.Axis.grid("r", m), kir.Axis.grid("t", -(-m // 4))
    inner = kir.Axis.tile("i", 4)
    at = tiles.node * 4 + inner.node
    body = by_height((kir.Store(y, (at,), x[at]),), rows, inner, tiles.node)
    made = kir.Kernel("copy", (x, y), (), (), (kir.Phase((tiles,), body),))
    result = np.zeros(m, np.float32)
    interpret(made, {"x": np.arange(m, dtype=np.float32), "y": result})
    np.testing.assert_array_equal(result, np.arange(m))


@pytest.mark.parametrize(("side", "whole"), [(32, True), (48, True), (31, False)])
def test_planes_that_share_sets_of_the_cache_are_stored_by_whole_lines(
    side: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    choose = contraction._line_tile

    def noted(*given: Any) -> contraction.Tile | None:
        chosen.append(choose(*given))
        return chosen[-1]

    monkeypatch.setattr(contraction, "_line_tile", noted)
    x, w = numbers(1, 8, side, side, seed=1), numbers(32, 8, 1, 1, seed=side)
    weight = genesis.tensor(w)
    y = of_this_size(lambda x: functional.relu(functional.conv2d(x, weight)), x)
    expected = np.einsum("nchw,oc->nohw", x.astype(np.float64), w[:, :, 0, 0])
    np.testing.assert_allclose(y, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)
    assert chosen
    if host().vector_bytes == 64:
        assert any(tile == contraction.Tile(16, 16) for tile in chosen) == whole
