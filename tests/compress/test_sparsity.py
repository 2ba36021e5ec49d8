"""Fewer weights: scores, patterns, schedules, sparse products, channels out of shapes, tokens."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import pruning
from genesis.compress.channels import dependencies, remove_channels_
from genesis.compress.pruning import (
    Movement,
    Pruner,
    cubic,
    masked,
    merge_tokens,
    sparsegpt,
    wanda,
)  # fmt: skip
from genesis.compress.statistics import Statistics, gather


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- patterns


def test_patterns_keep_the_best() -> None:
    scores = np.random.default_rng(0).random((8, 16))
    free = masked(scores, "free", 0.25)
    assert free.sum() == 32 and scores[free].min() > scores[~free].max()
    pairs = masked(scores, "2:4").reshape(8, 4, 4)
    assert (pairs.sum(2) == 2).all()
    for s, m in zip(scores.reshape(-1, 4), pairs.reshape(-1, 4), strict=True):
        assert s[m].min() > s[~m].max()
    blocks = masked(scores, "4x4", 0.5).reshape(2, 4, 4, 4)
    assert (blocks.any((1, 3)) == blocks.all((1, 3))).all() and (
        blocks.any((1, 3)).sum(1) == 2
    ).all()
    rows = masked(scores, "rows", 0.5)
    assert (rows.any(1) == rows.all(1)).all() and rows.any(1).sum() == 4
    assert masked(np.zeros((2, 4)), "2:4").sum() == 4  # equal ones, too


@pytest.mark.parametrize(
    ("pattern", "density", "message"),
    [("3:5", 0.5, "16 columns have no pattern 3:5"), ("5x4", 0.5, "has no blocks of 5x4"),
     ("half", 0.5, "patterns are free"), ("free", 0.0, "more than 0"), ("0:4", 0.5, "no pattern")],
)  # fmt: skip
def test_patterns_that_do_not_fit_are_told(pattern: str, density: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        masked(np.ones((8, 16)), pattern, density)
    with pytest.raises(ValueError, match="NaN"):
        masked(np.full((8, 16), np.nan), "free")


def test_scores_are_what_is_lost() -> None:
    w, g = numbers(4, 6), numbers(4, 6, seed=1)
    seen = Statistics(6)
    seen.add(numbers(50, 6, seed=2) * np.arange(1, 7))
    np.testing.assert_allclose(wanda(w, seen), np.abs(w) * np.sqrt(seen.energy), rtol=1e-5)
    np.testing.assert_array_equal(pruning.snip(w, g), np.abs(w * g))
    np.testing.assert_allclose(pruning.fisher_score(w, g**2), 0.5 * w**2 * g**2, rtol=1e-5)
    moved = Movement()
    moved.add(w, g)
    moved.add(w, -3 * g)
    np.testing.assert_allclose(moved.total, 2 * w * g, rtol=1e-4)


def test_weights_that_stay_make_good_what_goes() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2000, 64)) @ rng.standard_normal((64, 64))).astype(np.float32)
    seen = Statistics(64)
    seen.add(x)
    w = numbers(16, 64)

    def off(v: Any) -> float:
        return float((((v - w) @ x.T) ** 2).sum())

    plain = w * masked(np.abs(w), "2:4")
    aware = w * masked(wanda(w, seen), "2:4")
    found = sparsegpt(w, seen, "2:4")
    assert ((found.reshape(16, -1, 4) != 0).sum(2) <= 2).all()
    assert off(found) < 0.7 * min(off(aware), off(plain))
    free = sparsegpt(w, seen, "free", 0.5)
    assert abs((free != 0).mean() - 0.5) < 0.01 and off(free) < off(found)


# ---- schedules and training


def test_most_goes_early() -> None:
    path = [cubic(p, 0.1) for p in np.linspace(0, 1, 11)]
    assert path[0] == 1 and path[-1] == pytest.approx(0.1)
    assert path == sorted(path, reverse=True)
    assert path[5] == pytest.approx(1 - 0.9 * (1 - 0.5**3))  # and not 0.9 * 0.5**3
    assert cubic(2.0, 0.1) == pytest.approx(0.1)


def model_of(seed: int = 0) -> Any:
    genesis.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


@pytest.mark.slow
def test_what_was_pruned_stays_zero_while_training() -> None:
    model = model_of()
    pruner = Pruner(model)
    optimizer = genesis.optim.Adam(model.parameters(), lr=0.05)
    x, y = genesis.tensor(numbers(32, 16)), genesis.tensor(numbers(32, 4, seed=1))
    before = None
    for step in range(6):
        pruner.prune(cubic(step / 5, 0.25))
        zeros = model[0].weight.detach().numpy() == 0
        assert before is None or (zeros | ~before).all()  # what is gone stays gone
        before = zeros
        for _ in range(3):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            pruner.step()
    assert pruner.density == pytest.approx(0.25, abs=0.01)
    np.testing.assert_array_equal(model[0].weight.detach().numpy()[before], 0)


def test_regrowing_does_not_bring_back_what_just_went() -> None:
    model = model_of()
    pruner = Pruner(model, ["0"])
    pruner.prune(0.5)
    old = pruner.masks["0"].numpy().copy() > 0
    gradients = {"0": np.where(old, 1e6, numbers(32, 16, seed=3))}  # largest where weights are
    sizes = np.abs(model[0].weight.detach().numpy())
    pruner.regrow(0.2, gradients)
    new = pruner.masks["0"].numpy() > 0
    left, came = old & ~new, new & ~old
    assert left.sum() == came.sum() == int(0.2 * old.sum())
    assert sizes[left].max() <= sizes[old & new].min()
    assert np.abs(gradients["0"])[came].min() >= np.abs(gradients["0"])[~old & ~new].max()
    assert new.sum() == old.sum()


def test_tickets_are_rewound_and_layers_named() -> None:
    model = model_of()
    first = model[0].weight.detach().numpy().copy()
    pruner = Pruner(model, ["0"], pattern="2:4")
    with genesis.no_grad():
        model[0].weight.copy_(model[0].weight * 2 + 1)
    pruner.prune(0.5)
    mask = pruner.masks["0"].numpy()
    pruner.rewind()
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), first * mask)
    assert (mask.reshape(-1, 4).sum(1) == 2).all()
    with pytest.raises(ValueError, match="'x' is no layer"):
        Pruner(model, ["x"])


# ---- channels


class Residual(nn.Module):
    """Two branches that are added, a depthwise convolution, and two heads that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner, self.outer = nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 8, 3, padding=1)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.a, self.b = nn.Linear(8 * 4, 6), nn.Linear(8 * 4, 10)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = genesis.relu(self.norm(self.first(x)))
        x = self.depth(x + self.outer(genesis.relu(self.inner(x))))
        x = nn.functional.max_pool2d(genesis.relu(x), 2).flatten(1)
        return self.last(genesis.cat([genesis.relu(self.a(x)), self.b(x)], 1))


def test_dependencies_are_found_through_residuals_norms_and_flatten() -> None:
    genesis.manual_seed(0)
    model = Residual()
    groups = dependencies(model, genesis.tensor(numbers(2, 3, 4, 4)))
    found = {tuple(sorted(g.outputs)): g for g in groups}
    assert set(found) == {("first", "outer"), ("inner",), ("a",), ("b",)}  # not what comes out
    both = found["first", "outer"]
    assert set(both.norms) == {"norm", "depth"}
    assert set(both.inputs) == {"inner", "a", "b"}
    assert both.inputs["a"][1] == [4, 5, 6, 7]  # four places of a channel after the flatten
    assert found["a",].inputs == {"last": [[k] for k in range(6)]}
    assert found["b",].inputs == {"last": [[k] for k in range(6, 16)]}


@pytest.mark.slow
def test_channels_that_are_zero_are_removed_without_a_change() -> None:
    genesis.manual_seed(0)
    model = Residual().eval()
    with genesis.no_grad():
        for layer, dead in ((model.first, [1, 5]), (model.outer, [1, 5]), (model.inner, [0, 3, 7])):
            for j in dead:
                layer.weight[j] = 0
                layer.bias[j] = 0
        for j in (1, 5):
            model.norm.weight[j] = model.norm.bias[j] = 0
            model.depth.bias[j] = 0
    x = genesis.tensor(numbers(2, 3, 4, 4))
    with genesis.no_grad():
        for layer in (model.a, model.b):
            for j in range(-(-layer.weight.shape[0] // 4)):
                layer.weight[j] = layer.bias[j] = 0
    wanted = model(x).detach().numpy()
    count = sum(p.numel() for p in model.parameters())
    remove_channels_(model, x, 0.75)
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, atol=1e-5)
    assert model.first.weight.shape == (6, 3, 3, 3) and model.inner.weight.shape == (9, 6, 3, 3)
    assert model.a.weight.shape[1] == 6 * 4 and model.last.weight.shape[0] == 5
    assert model.depth.groups == 6 and model.norm.running_mean.shape == (6,)
    assert sum(p.numel() for p in model.parameters()) < 0.7 * count


def test_channels_that_are_counted_as_those_of_heads_stay() -> None:
    from tests.compress.test_heads import Block, example

    genesis.manual_seed(0)
    model = Block("").eval()
    shapes = [tuple(p.shape) for p in model.parameters()]
    with pytest.raises(ValueError, match="no channels of the model can be taken out"):
        remove_channels_(model, example(), 0.5)
    assert [tuple(p.shape) for p in model.parameters()] == shapes


def test_models_without_channels_inside_are_refused() -> None:
    with pytest.raises(ValueError, match="no channels of the model can be taken out"):
        remove_channels_(nn.Sequential(nn.Linear(4, 4)), genesis.ones(1, 4), 0.5)
    with pytest.raises(ValueError, match="keeps a share of the channels, not 0"):
        remove_channels_(model_of(), genesis.ones(1, 16), 0)


@pytest.mark.slow
def test_digits_with_half_of_the_channels() -> None:
    from genesis.recipes.digits import network
    from tests.compress.test_training_bits import fit

    genesis.manual_seed(0)
    model = network()
    assert fit(model, 600, rate=0.01) >= 356
    before = sum(p.numel() for p in model.parameters())
    remove_channels_(model, genesis.tensor(numbers(2, 1, 8, 8)), 0.5)
    assert [model[k].weight.shape[0] for k in (0, 3, 7)] == [8, 8, 16]
    after = sum(p.numel() for p in model.parameters())
    assert 1 - after / before > 0.6
    found = fit(model, 200)
    assert found >= 352, found


# ---- tokens


def test_merged_tokens_are_means_of_alike_ones() -> None:
    x = numbers(10, 8)
    x[3] = x[6] * 1.01  # nearly the same, one of them at an odd place
    short, spread = merge_tokens(genesis.tensor(x), 1)
    assert short.shape == (9, 8)
    back = spread(short).numpy()
    assert back.shape == x.shape
    np.testing.assert_allclose(back[3], (x[3] + x[6]) / 2, atol=1e-6)
    np.testing.assert_array_equal(back[3], back[6])
    others = [k for k in range(10) if k not in (3, 6)]
    np.testing.assert_allclose(back[others], x[others], atol=1e-6)
    whole, same = merge_tokens(x, 0)
    np.testing.assert_array_equal(same(whole).numpy(), x)
    assert merge_tokens(x, 5)[0].shape == (5, 8)
    with pytest.raises(ValueError, match="of 10 tokens at most 5 go, not 6"):
        merge_tokens(x, 6)


# ---- quality


@pytest.mark.slow
def test_perplexity_with_two_of_four_weights() -> None:
    from tests.compress import character_gpt as c

    model, learned, held = c.trained(c.KEPT)
    base = c.perplexity(model, held)
    names = [n for n, x in model.named_modules() if type(x) is nn.Linear]
    data = [x[:, :-1] for x in c.batches(learned, 16, seed=9)]
    found = {}
    for kind in ("magnitude", "sparsegpt"):
        other = copy.deepcopy(model)
        for name in names:  # each sees what the pruned ones before it give
            layer = other.get_submodule(name)
            w = layer.weight.detach().numpy()
            if kind == "magnitude":
                made = w * masked(np.abs(w), "2:4")
            else:
                made = sparsegpt(w, gather(other, data, [name])[name], "2:4")
            with genesis.no_grad():
                layer.weight.copy_(genesis.tensor(made))
        found[kind] = 100 * (c.perplexity(other, held) / base - 1)
    assert found["sparsegpt"] <= min(4, 0.4 * found["magnitude"]), found
    pruner = Pruner(other, names)
    for name in names:
        zeros = other.get_submodule(name).weight.detach().numpy() != 0
        pruner.masks[name].copy_(genesis.tensor(zeros.astype(np.float32)))
    parameters = list(other.parameters())
    optimizer = genesis.optim.AdamW(parameters, lr=3e-4, weight_decay=0.0)

    @genesis.jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        c.loss_of(other, x).backward()
        optimizer.step()
        pruner.step()

    for x in c.batches(learned, 300, seed=5):
        step(x)
    recovered = 100 * (c.perplexity(other, held) / base - 1)
    zeros = other.get_submodule(names[0]).weight.detach().numpy().reshape(-1, 4) == 0
    assert (zeros.sum(1) >= 2).all()
    assert recovered <= 1, (found, recovered)
