"""`checkpoint`: the same gradients from less memory; `cond` and `while_loop`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import func, nn
from genesis.utils.checkpoint import checkpoint, checkpoint_sequential

RNG = np.random.default_rng(0)
WEIGHTS = [RNG.standard_normal((64, 64)).astype(np.float32) * 0.1 for _ in range(3)]
X = RNG.standard_normal((32, 64)).astype(np.float32)


def gradients(call: Callable[..., Any]) -> list[Any]:
    """Of a few blocks with dropout, called in some way."""
    leaves = [genesis.tensor(a, requires_grad=True) for a in (X, *WEIGHTS)]
    genesis.manual_seed(3)

    def block(y: Any, k: int) -> Any:
        return nn.functional.dropout((y @ leaves[1 + k]).tanh(), 0.3)

    y: Any = leaves[0]
    for k in range(3):
        y = call(block, y, k)
    y.square().sum().backward()
    return [x.grad.numpy() for x in leaves]


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (func.save_nothing, 1e-5),
        (func.save_products, 1e-5),
        (func.save_only("MatmulBackward", "Tanh"), 1e-5),
        (func.offload(func.save_products), 1e-5),
        (func.in_few_bits(func.save_products), 0.02),
        (func.in_few_bits(func.save_products, 4), 0.2),
    ],
)
def test_gradients_are_those_without(policy: Any, error: float) -> None:
    expected = gradients(lambda block, y, k: block(y, k))
    found = gradients(lambda block, y, k: checkpoint(block, y, k, policy=policy))
    for x, y in zip(found, expected, strict=True):
        assert np.abs(x - y).max() <= error * np.abs(y).max()


def test_less_is_kept() -> None:
    weights = [genesis.tensor(w, requires_grad=True) for w in WEIGHTS]

    def block(y: Any, w: Any) -> Any:
        for _ in range(4):
            y = (y @ w).tanh()
        return y

    def peak(call: Callable[..., Any]) -> int:
        y = genesis.tensor(np.tile(X, (64, 1)))
        genesis.memory.reset_peak()
        before = genesis.memory.stats().live_bytes
        for w in weights:
            y = call(block, y, w)
        loss = y.square().sum()
        loss.item()
        loss.backward()
        weights[0].grad.sum().item()
        return genesis.memory.stats().peak_live_bytes - before

    plain = peak(lambda block, y, w: block(y, w))
    assert peak(checkpoint) < 0.6 * plain
    assert peak(lambda *args: checkpoint(*args, policy=func.in_few_bits(func.save_products))) < (
        0.8 * plain
    )


def test_it_composes() -> None:
    w = genesis.tensor(WEIGHTS[0], requires_grad=True)

    def plain(x: Any) -> Any:
        return (x @ w).tanh().sum()

    def kept(x: Any) -> Any:
        return checkpoint(lambda x: (x @ w).tanh(), x, use_reentrant=False).sum()

    for transform in (
        lambda f: func.grad(lambda z: func.grad(f)(z).square().sum()),
        lambda f: func.grad(f),
        lambda f: genesis.jit(func.grad(f)),
    ):
        x = genesis.tensor(X[0])
        found, expected = (transform(f)(x).detach().numpy() for f in (kept, plain))
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_a_sequence_in_segments() -> None:
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    x = genesis.ones(2, 8)
    found = checkpoint_sequential(layers, 2, x)
    np.testing.assert_allclose(found.detach().numpy(), layers(x).detach().numpy(), 1e-5)
    found.sum().backward()
    assert all(p.grad is not None for p in layers.parameters())


def test_cond_known_and_unknown() -> None:
    def f(x: Any) -> Any:
        return func.cond(x.sum() > 0, genesis.sin, genesis.neg, (x,))

    rows = genesis.tensor([[-1.0, -2.0], [1.0, 2.0]])
    expected = [[1.0, 2.0], np.sin([1.0, 2.0])]
    for call in (f, genesis.jit(f)):
        np.testing.assert_allclose([call(x).numpy() for x in rows], expected, 1e-6)
    np.testing.assert_allclose(func.vmap(f)(rows).numpy(), expected, 1e-6)
    slopes = func.vmap(func.grad(lambda x: f(x).sum()))(rows).numpy()
    np.testing.assert_allclose(slopes, [[-1, -1], np.cos([1.0, 2.0])], 1e-6)
    with pytest.raises(ValueError, match="on one way"):
        func.vmap(lambda x: func.cond(x > 0, lambda x: x, lambda x: x.long(), (x,)))(rows[0])
    with pytest.raises(ValueError, match="shape \\(2, 2\\)"):
        func.cond(rows > 0, genesis.sin, genesis.neg, (rows,))


def test_while_loop_known_and_unknown() -> None:
    def doubled(x: Any, most: int | None = 20) -> Any:
        return func.while_loop(
            lambda x, n: x < 100, lambda x, n: (x * 2, n + 1), (x, genesis.tensor(0)), most
        )

    starts = genesis.tensor([1.0, 30.0, 200.0])
    expected = [[128.0, 7], [120.0, 2], [200.0, 0]]
    for call in (doubled, genesis.jit(doubled)):
        assert [[y.item() for y in call(x)] for x in starts] == expected
    assert doubled(starts[0], None)[0].item() == 128.0
    many = func.vmap(doubled)(starts)
    np.testing.assert_array_equal(np.transpose([y.numpy() for y in many]), expected)
    slopes = func.vmap(func.grad(lambda x: doubled(x)[0]))(starts)
    assert slopes.tolist() == [128.0, 4.0, 1.0]
    with pytest.raises(RuntimeError, match="max_steps="):
        func.vmap(lambda x: doubled(x, None))(starts)
