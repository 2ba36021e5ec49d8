"""Adapters: merged equals unmerged, gradients through packed weights; factors of planted ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import quantize, quantize_
from genesis.compress.adapters import (
    LoRA,
    adapt_,
    cp,
    cp_sum,
    factored,
    low_rank,
    merge_,
    ranks,
    tucker,
    tucker_sum,
)  # fmt: skip
from genesis.compress.statistics import Statistics


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def learned(layer: LoRA, seed: int = 1) -> LoRA:
    """An adapter as after some training."""
    with genesis.no_grad():
        layer.up.copy_(genesis.tensor(numbers(*layer.up.shape, seed=seed)))
        if layer.magnitude is not None:
            layer.magnitude.copy_(layer.magnitude * 1.3 + 0.1)
    return layer


@pytest.mark.parametrize(
    "options", [{}, {"rooted": True, "alpha": 16.0}, {"magnitude": True}, {"principal": True}]
)
def test_merged_equals_unmerged(options: Any) -> None:
    genesis.manual_seed(0)
    plain = nn.Linear(24, 16)
    x = genesis.tensor(numbers(5, 24))
    before = plain(x).detach().numpy()
    layer = LoRA(plain, 4, **options)
    np.testing.assert_allclose(layer(x).detach().numpy(), before, atol=1e-5)  # it begins as it was
    if not options.get("principal"):
        learned(layer)
        assert np.abs(layer(x).detach().numpy() - before).max() > 0.1
    merged, lost = layer.merged()
    np.testing.assert_allclose(merged(x).detach().numpy(), layer(x).detach().numpy(), atol=1e-5)
    assert lost == 0 and type(merged) is nn.Linear
    packed, lost = layer.merged("int8")
    wanted = layer.merged()[0].weight.detach().numpy()
    off = packed.weight.dequantize().numpy() - wanted
    assert lost == pytest.approx((off**2).sum() / (wanted**2).sum(), rel=1e-5) and 0 < lost < 1e-3


def test_the_scale_of_rooted_adapters() -> None:
    assert LoRA(nn.Linear(8, 8), 4, 8.0).scale == 2
    assert LoRA(nn.Linear(8, 8), 4, 8.0, rooted=True).scale == 4
    with pytest.raises(ValueError, match=r"a rank of 9 is not for a weight of \(8, 8\)"):
        LoRA(nn.Linear(8, 8), 9)


@pytest.mark.parametrize("format", ["nf4", pytest.param("Q4_K", marks=pytest.mark.slow)])
@pytest.mark.parametrize("magnitude", [False, True])
def test_gradients_through_packed_weights_are_those_through_floats(
    format: str, magnitude: bool
) -> None:
    genesis.manual_seed(0)
    model = quantize_(nn.Sequential(nn.Linear(24, 16)), format)
    floats = nn.Linear(24, 16)
    with genesis.no_grad():
        floats.weight.copy_(model[0].weight.dequantize())
        floats.bias.copy_(model[0].bias)
    found = []
    for base in (model[0], floats):
        genesis.manual_seed(1)
        layer = learned(LoRA(base, 3, magnitude=magnitude))
        x = genesis.tensor(numbers(6, 24), requires_grad=True)
        (layer(x) ** 2).sum().backward()
        found.append([x.grad.numpy(), *(p.grad.numpy() for p in layer.parameters()
                                        if p.requires_grad)])  # fmt: skip
    assert len(found[0]) == (4 if magnitude else 3)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_models_are_adapted_by_patterns_and_merged() -> None:
    genesis.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    )
    adapt_(model, ["2.*"], rank={"2.0": 2, "2.1": 1})
    assert type(model[0]) is nn.Linear and model[2][1].rank == 1
    assert all("down" in n or "up" in n for n, p in model.named_parameters() if p.requires_grad)
    for layer in (model[2][0], model[2][1]):
        learned(layer)
    x = genesis.tensor(numbers(3, 8))
    before = model(x).detach().numpy()
    assert merge_(model) == {"2.0": 0.0, "2.1": 0.0}
    np.testing.assert_allclose(model(x).detach().numpy(), before, atol=1e-5)
    with pytest.raises(ValueError, match="has no adapters"):
        merge_(model)
    with pytest.raises(ValueError, match="no linear layer fits"):
        adapt_(model, ["x"])


def test_the_nearest_product_of_a_rank() -> None:
    w = numbers(20, 30)
    u, s, v = np.linalg.svd(w)
    found = low_rank(w, 5)
    np.testing.assert_allclose(found.up @ found.down, (u[:, :5] * s[:5]) @ v[:5], atol=1e-5)
    assert found.error == pytest.approx((s[5:] ** 2).sum() / (s**2).sum(), rel=1e-5)
    x = numbers(400, 30, seed=1) * np.exp(numbers(30, seed=2))
    seen = Statistics(30)
    seen.add(x)
    aware = low_rank(w, 5, seen)

    def off(f: Any) -> float:
        return float((((f.up @ f.down - w) @ x.T) ** 2).sum())

    assert off(aware) < 0.8 * off(found)
    assert aware.error == pytest.approx(off(aware) / ((w @ x.T) ** 2).sum(), rel=1e-2)
    layer = nn.Linear(30, 20)
    whole = factored(layer, 20)
    given = genesis.tensor(x[:4])
    np.testing.assert_allclose(
        whole(given).detach().numpy(), layer(given).detach().numpy(), atol=1e-3
    )


def test_ranks_go_where_they_matter() -> None:
    flat = {"easy": numbers(20, 2) @ numbers(2, 20, seed=1), "hard": 10 * numbers(20, 20, seed=2)}
    found = ranks(flat, 600)
    assert found["hard"] is None and 2 <= (found["easy"] or 20) <= 5
    with pytest.raises(ValueError, match="no choice has bytes of 10"):
        ranks(flat, 10)


def test_planted_ranks_are_recovered() -> None:
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((n, 3)) for n in (8, 9, 7)]
    x = cp_sum(factors)
    assert np.abs(cp_sum(cp(x, 3)) - x).max() <= 1e-4 * np.abs(x).max()
    assert np.abs(cp_sum(cp(x, 2)) - x).max() > 1e-2
    core = rng.standard_normal((2, 3, 4, 2))
    bases = [rng.standard_normal((n, r)) for n, r in zip((6, 7, 8, 5), core.shape, strict=True)]
    y = tucker_sum(core, bases)
    small, found = tucker(y, core.shape)
    assert small.shape == core.shape
    assert np.abs(tucker_sum(small, found) - y).max() <= 1e-4 * np.abs(y).max()


@pytest.mark.slow
def test_a_packed_weight_keeps_what_a_merge_may_lose() -> None:
    layer = learned(LoRA(nn.Linear(64, 32), 4))
    losses = [layer.merged(f)[1] for f in ("int8", "int4", "int2")]
    assert losses == sorted(losses) and losses[2] > 0.01
    assert quantize(layer.merged()[0].weight, "int4").shape == (32, 64)
