"""Whole models, tiny: values and gradients against PyTorch's autograd on the same weights.

Every model is compiled as one program with `strict`, so each of its kernels is proven, and results
are compared in float32 with a float64 reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import genesis
from benchmarks.models import Tree, bert, leaves, llama, mapped, random_weights, resnet
from genesis import compiler
from genesis import ndarray as nd


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with compiler.using(strict=True):
        yield


def computed(function: Callable[..., Any], *inputs: Tree) -> Tree:
    """`function` of the inputs as one compiled program."""
    return genesis.jit(function)(*(mapped(nd.array, x) for x in inputs))


def reference(weights: Tree) -> Tree:
    """The weights as float64 tensors that collect gradients."""
    return mapped(lambda w: torch.tensor(w, dtype=torch.float64, requires_grad=True), weights)


def assert_close(ours: Any, theirs: torch.Tensor, name: str) -> None:
    got, wanted = np.asarray(ours), theirs.detach().numpy()
    assert got.shape == wanted.shape, name
    # The absolute part is for gradients that are zero by symmetry: a key's bias shifts all scores.
    error, scale = np.abs(got - wanted).max(), np.abs(wanted).max()
    assert error < 2e-5 * scale + 1e-7, f"{name} is off by {error:.1e}, its greatest is {scale:.1e}"


def assert_gradients(ours: Tree, weights: Tree) -> None:
    got = dict(leaves(ours))
    wanted = dict(leaves(weights))
    assert got.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert_close(got[name], weight.grad, name)


# ---- ResNet


def torch_convolution(x: torch.Tensor, w: Tree, stride: int = 1, padding: int = 0) -> torch.Tensor:
    y = F.conv2d(x, w["weight"], stride=stride, padding=padding)
    mean, variance = w["mean"].detach(), w["variance"].detach()
    return F.batch_norm(y, mean, variance, w["gamma"], w["beta"], eps=resnet.EPSILON)


def torch_resnet(w: Tree, images: torch.Tensor) -> torch.Tensor:
    x = F.relu(torch_convolution(images, w["stem"], 2, 3))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, blocks in enumerate(w["stages"]):
        for block, b in enumerate(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = F.relu(torch_convolution(x, b["conv1"]))
            y = F.relu(torch_convolution(y, b["conv2"], stride, 1))
            y = torch_convolution(y, b["conv3"])
            x = F.relu(y + (torch_convolution(x, b["shortcut"], stride) if block == 0 else x))
    return F.linear(x.mean((2, 3)), w["classifier"]["weight"], w["classifier"]["bias"])


@pytest.mark.parametrize("size", [32, 41])
def test_resnet(rng: np.random.Generator, size: int) -> None:
    config = resnet.Config(blocks=(2, 1, 1), width=8, classes=10)
    weights = random_weights(resnet.parameters(config), rng)
    images = rng.standard_normal((2, 3, size, size), np.float32)
    ours = computed(resnet.forward, weights, images)
    theirs = torch_resnet(reference(weights), torch.from_numpy(images).double())
    assert_close(ours, theirs, "scores")


def test_resnet50_has_the_published_number_of_weights() -> None:
    shapes = dict(leaves(resnet.parameters(resnet.RESNET50)))
    trained = [s for name, s in shapes.items() if not name.endswith(("mean", "variance"))]
    assert sum(int(np.prod(s)) for s in trained) == 25_557_032


# ---- BERT


def torch_bert(w: Tree, tokens: torch.Tensor, labels: torch.Tensor, heads: int) -> torch.Tensor:
    def norm(x: torch.Tensor, n: Tree) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], n["gamma"], n["beta"], bert.EPSILON)

    def linear(x: torch.Tensor, layer: Tree) -> torch.Tensor:
        return F.linear(x, layer["weight"], layer["bias"])

    x = norm(w["words"][tokens] + w["positions"][: tokens.shape[1]], w["norm"])
    for layer in w["layers"]:
        q, k, v = (
            linear(x, layer[name]).unflatten(-1, (heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = norm(x + linear(mixed, layer["output"]), layer["attention_norm"])
        wide = F.gelu(linear(x, layer["up"]))
        x = norm(x + linear(wide, layer["down"]), layer["feed_forward_norm"])
    logits = F.linear(x, w["words"], w["decoder_bias"])
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


@pytest.mark.parametrize("layers", [1, 2])
def test_bert(rng: np.random.Generator, layers: int) -> None:
    config = bert.Config(layers, 24, 2, 40, vocabulary=50, positions=16)
    weights = random_weights(bert.parameters(config), rng)
    tokens = rng.integers(0, config.vocabulary, (2, 7))
    labels = np.where(rng.random((2, 7)) < 0.6, rng.integers(0, config.vocabulary, (2, 7)), -1)
    loss, gradients = computed(
        lambda w, t, y: bert.loss_and_gradients(w, t, y, config.heads), weights, tokens, labels
    )
    theirs = reference(weights)
    expected = torch_bert(theirs, torch.tensor(tokens), torch.tensor(labels), config.heads)
    expected.backward()
    assert_close(loss, expected, "loss")
    assert_gradients(gradients, theirs)


# ---- Llama


def torch_rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (batch, tokens, heads, size) by complex multiplication."""
    half = x.shape[-1] // 2
    frequency = llama.THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], -1)


def torch_llama(w: Tree, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    def norm(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], gamma, llama.EPSILON)

    x = w["words"][tokens]
    for layer in w["layers"]:
        y = norm(x, layer["attention_norm"])
        q = torch_rotate(torch.einsum("bti,kgdi->btkgd", y, layer["query"]).flatten(2, 3))
        k = torch_rotate(torch.einsum("bti,kdi->btkd", y, layer["key"]))
        v = torch.einsum("bti,kdi->btkd", y, layer["value"])
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mixed = mixed.transpose(1, 2).flatten(2)
        x = x + F.linear(mixed, layer["output"].flatten(1))
        y = norm(x, layer["feed_forward_norm"])
        wide = F.silu(F.linear(y, layer["gate"])) * F.linear(y, layer["up"])
        x = x + F.linear(wide, layer["down"])
    logits = F.linear(norm(x, w["norm"]), w["decoder"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("layers", [1, 2])
def test_llama(rng: np.random.Generator, layers: int) -> None:
    config = llama.Config(layers, 24, heads=4, key_heads=2, intermediate=40, vocabulary=50)
    weights = random_weights(llama.parameters(config), rng)
    tokens, targets = rng.integers(0, config.vocabulary, (2, 2, 7))
    loss, gradients = computed(llama.loss_and_gradients, weights, tokens, targets)
    theirs = reference(weights)
    expected = torch_llama(theirs, torch.tensor(tokens), torch.tensor(targets))
    expected.backward()
    assert_close(loss, expected, "loss")
    assert_gradients(gradients, theirs)
