"""Training by 8-bit floats: products, gradients, scales that follow, layers that go back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress.float8 import HISTORY, Float8Linear, float8_, raise_precision_

ml_dtypes = pytest.importorskip("ml_dtypes")


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: Any, most: float, dtype: Any) -> Any:
    scale = np.float32(most) / np.abs(x).max()
    return np.clip(x * scale, -most, most).astype(dtype).astype(np.float64) / scale


def test_products_and_gradients_are_those_of_rounded_factors() -> None:
    genesis.manual_seed(0)
    layer = Float8Linear(nn.Linear(32, 16))
    x, g = numbers(5, 32), numbers(5, 16, seed=1)
    given = genesis.tensor(x, requires_grad=True)
    y = layer(given)
    (y * genesis.tensor(g)).sum().backward()
    w = layer.weight.detach().numpy()
    x8, w8 = (rounded(a, 448, ml_dtypes.float8_e4m3fn) for a in (x, w))
    g8 = rounded(g, 57344, ml_dtypes.float8_e5m2)
    np.testing.assert_allclose(
        y.detach().numpy(), x8 @ w8.T + layer.bias.detach().numpy(), atol=1e-5
    )
    np.testing.assert_allclose(given.grad.numpy(), g8 @ w8, atol=1e-4)
    np.testing.assert_allclose(layer.weight.grad.numpy(), g8.T @ x8, atol=1e-3)
    np.testing.assert_allclose(layer.bias.grad.numpy(), g.sum(0), atol=1e-5)


def test_scales_follow_the_last_steps() -> None:
    layer = Float8Linear(nn.Linear(16, 16))
    for step in range(HISTORY + 3):
        layer(genesis.full((2, 16), float(step + 1)))
    wanted = np.arange(HISTORY + 3, 3, -1)
    np.testing.assert_array_equal(layer.x_peaks.numpy(), wanted)
    layer.eval()
    layer(genesis.full((2, 16), 1000.0))
    np.testing.assert_array_equal(layer.x_peaks.numpy(), wanted)  # what is tried is not learned


def curve(low: bool, steps: int = 40) -> list[float]:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16))
    if low:
        float8_(model)
    x, y = genesis.tensor(numbers(128, 32)), genesis.tensor(np.tanh(numbers(128, 16, seed=1)))
    optimizer = genesis.optim.Adam(model.parameters(), lr=0.01)

    @genesis.jit
    def step() -> Any:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return [step().item() for _ in range(steps)]


@pytest.mark.slow
def test_a_curve_is_near_that_of_floats() -> None:
    plain, low = curve(False), curve(True)
    assert low[-1] < 0.6 * low[0]
    np.testing.assert_allclose(low, plain, rtol=0.12)


def test_layers_that_saturate_again_and_again_go_back_to_floats() -> None:
    genesis.manual_seed(0)
    model = float8_(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), skip=["1"], patience=3)
    assert type(model[1]) is nn.Linear
    weight = model[0].weight
    size = 1.0
    for _ in range(4):  # inputs outgrow the scale every time
        assert raise_precision_(model) == []
        model[0](genesis.full((2, 16), size))
        size *= 10
    assert model[0].saturated.item() == 3 and raise_precision_(model) == ["0"]
    assert type(model[0]) is nn.Linear and model[0].weight is weight
    with pytest.raises(ValueError, match="has no layers that can train so"):
        float8_(nn.Sequential(nn.Linear(3, 3)))
