"""Heads and experts taken out of shapes: what is left gives what it gave when they said nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional, nn
from genesis.compress.heads import attentions, remove_experts_, remove_heads_


class Attention(nn.Module):
    """Heads, whose projections are one layer or three."""

    def __init__(self, width: int, heads: int, joined: str) -> None:
        super().__init__()
        self.heads, self.joined = heads, joined
        parts = 1 if joined else 3
        layers = [nn.Linear(width, 3 * width // parts) for _ in range(parts)]
        self.projections, self.out = nn.ModuleList(layers), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        n, length, _ = x.shape
        y = genesis.cat([layer(x) for layer in self.projections], 2)
        if self.joined == "heads first":
            q, k, v = y.reshape(n, length, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = y.reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3)
        return self.out(y.reshape(n, length, -1))


class Block(nn.Module):
    """Attention and a layer, each with a norm."""

    def __init__(self, joined: str, width: int = 48, heads: int = 6) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width, heads, joined), nn.LayerNorm(width)
        self.up = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        x = self.norm(x + self.attention(x))
        return x + genesis.relu(self.up(x))


def example(width: int = 48) -> Any:
    return genesis.tensor(np.random.default_rng(0).standard_normal((2, 7, width)).astype("f4"))


def given(model: Any, x: Any) -> Any:
    return model(x).detach().numpy().copy()


@pytest.mark.parametrize("joined", ["", "parts first", "heads first"])
def test_models_without_heads_give_what_they_gave_with_silent_ones(joined: str) -> None:
    genesis.manual_seed(0)
    model, x = nn.Sequential(Block(joined), Block(joined)).eval(), example()
    silent = copy.deepcopy(model)
    with genesis.no_grad():
        for block, heads in zip(silent, ((0, 3, 4), (1, 2, 5)), strict=True):
            for head in heads:
                block.attention.out.weight[:, 8 * head : 8 * head + 8] = 0.0
    chosen = {"0.attention": [0, 9, 9, 0, 0, 9], "1.attention": [9, 0, 0, 9, 9, 0]}
    assert [own.name for own in attentions(model, x)] == list(chosen)
    remove_heads_(model, x, 0.5, lambda own: chosen[own.name])
    assert model[0].attention.heads == 3
    assert tuple(model[1].attention.out.weight.shape) == (48, 24)
    rows = [tuple(p.weight.shape) for p in model[0].attention.projections]
    assert rows == ([(72, 48)] if joined else [(24, 48)] * 3)
    np.testing.assert_allclose(given(model, x), given(silent, x), atol=1e-5)
    loss = model(x).square().mean()  # and can be trained on
    loss.backward()
    assert model[0].attention.projections[0].weight.grad is not None


def test_heads_of_small_weights_go_first() -> None:
    genesis.manual_seed(0)
    model = Block("").eval()
    with genesis.no_grad():
        model.attention.out.weight[:, 8:16] = 0.0
        wanted = given(model, example())
    remove_heads_(model, example(), 5 / 6)
    np.testing.assert_allclose(given(model, example()), wanted, atol=1e-5)


class Fixed(Attention):
    """An attention that has the size of its heads from elsewhere."""

    def forward(self, x: Any) -> Any:
        q, k, v = (p(x).reshape(*x.shape[:2], 6, 8).permute(0, 2, 1, 3) for p in self.projections)
        y = functional.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3)
        return self.out(y.reshape(*x.shape[:2], -1))


def test_what_cannot_do_without_heads_stays_as_it_was() -> None:
    genesis.manual_seed(0)
    model, x = Fixed(48, 6, "").eval(), example()
    wanted, shapes = given(model, x), [tuple(p.shape) for p in model.parameters()]
    with pytest.raises(ValueError, match="remove_heads_: Fixed stays as it was: "):
        remove_heads_(model, x, 0.5)
    assert [tuple(p.shape) for p in model.parameters()] == shapes and model.heads == 6
    np.testing.assert_array_equal(given(model, x), wanted)
    with pytest.raises(ValueError, match="Sequential has no heads that can be taken out"):
        remove_heads_(nn.Sequential(nn.Linear(48, 48)), x, 0.5)
    with pytest.raises(ValueError, match="keeps a share of the heads, not 0"):
        remove_heads_(model, x, 0)


class Experts(nn.Module):
    """The mean of the best experts, weighted."""

    def __init__(self, width: int, count: int, best: int) -> None:
        super().__init__()
        self.router, self.best, self.num_experts = nn.Linear(width, count), best, count
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(count)])

    def forward(self, x: Any) -> Any:
        scores = self.router(x)
        values, places = genesis.topk(scores, self.best, -1)
        share = genesis.softmax(values, -1)
        every = genesis.stack([layer(x) for layer in self.experts], -2)
        at = places[..., None].expand(*places.shape, x.shape[-1])
        return (genesis.gather(every, -2, at) * share[..., None]).sum(-2)


def test_experts_that_nobody_chooses_go() -> None:
    genesis.manual_seed(0)
    model, x = nn.Sequential(Experts(16, 6, 2)).eval(), example(16)
    with genesis.no_grad():
        model[0].router.bias[1] = -1e3
        model[0].router.bias[4] = -1e3
        wanted = given(model, x)
    remove_experts_(model, [x], 4)
    assert len(model[0].experts) == model[0].num_experts == 4
    assert tuple(model[0].router.weight.shape) == (4, 16)
    np.testing.assert_allclose(given(model, x), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="remove_experts_: 0 stays as it was: "):
        remove_experts_(model, [x], 1)  # of which two are to be chosen
    assert len(model[0].experts) == 4
    with pytest.raises(ValueError, match="Linear has no list of experts"):
        remove_experts_(nn.Linear(4, 4), [x], 1)
