"""AdamW with its state in 8 bits: near to AdamW, small, in files, and under jit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress.optimizer import AdamW8bit


def problem(seed: int = 0) -> tuple[nn.Module, Any, Any]:
    genesis.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 64)).astype("f4")
    y = np.tanh(x @ rng.standard_normal((64, 64)).astype("f4") / 8)
    return model, genesis.tensor(x), genesis.tensor(y)


def trained(kind: Any, steps: int, jit: bool) -> tuple[list[float], Any, Any]:
    model, x, y = problem()
    optimizer = kind(model.parameters(), lr=0.003)

    def step() -> Any:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = genesis.jit(step) if jit else step
    return [run().item() for _ in range(steps)], optimizer, model


@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_losses_fall_as_with_float_state(jit: bool) -> None:
    plain, _, _ = trained(genesis.optim.AdamW, 40, jit)
    found, optimizer, model = trained(AdamW8bit, 40, jit)
    assert found[0] == plain[0] and found[-1] < 0.5 * found[0]
    np.testing.assert_allclose(found, plain, rtol=0.05)
    weight = model[0].weight
    state = sum(x.nbytes for x in optimizer.state[weight].values() if x.ndim)
    assert state <= 0.52 * weight.nbytes  # instead of twice
    assert "exp_avg" in optimizer.state[model[0].bias]  # what is small stays as it is


@pytest.mark.slow
def test_state_goes_on_from_a_file(tmp_path: Path) -> None:
    _, optimizer, model = trained(AdamW8bit, 3, False)
    genesis.save(optimizer.state_dict(), tmp_path / "o.safetensors")
    _, other, twin = trained(AdamW8bit, 1, False)
    other.load_state_dict(genesis.load(tmp_path / "o.safetensors"))
    a, b = optimizer.state[model[0].weight], other.state[twin[0].weight]
    for name in ("mean", "mean_scale", "root", "root_scale"):
        np.testing.assert_array_equal(
            np.asarray(a[name].numpy()).astype("f4"), np.asarray(b[name].numpy()).astype("f4")
        )


def test_tiny_gradients_beside_large_ones_do_not_explode() -> None:
    p = genesis.zeros(4096, requires_grad=True)
    scale = np.ones(4096, np.float32)
    scale[1::2] = 1e-7
    by = genesis.tensor(scale)
    optimizer = AdamW8bit([p], lr=0.01, weight_decay=0)
    for _ in range(5):
        optimizer.zero_grad()
        (p * by).sum().backward()
        optimizer.step()
    assert np.abs(p.detach().numpy()).max() < 0.06  # five steps of at most the rate
