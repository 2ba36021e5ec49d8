"""Convolutions to few pixels: the same numbers, and weights that are read once, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genesis import ndarray as nd
from genesis.compiler.graph.cpu.few_pixels import few_pixels
from genesis.ir import ops
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Node, topological
from tests.ndarray.test_pooling import graph


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def rows(root: Node) -> list[Node]:
    """The matrix products of a graph that are of rows and weights as they lie."""
    after = few_pixels([root], {})
    return [
        n for n in topological(after) if n.op is ops.CONTRACT and n.attr == ((0, 1), (2, 1), (0, 2))
    ]


@settings(max_examples=40)
@given(st.data())
def test_the_graph_means_the_same(data: Any) -> None:
    draw = data.draw
    rank = draw(st.integers(1, 3))
    size = [draw(st.integers(1, 3)) for _ in range(rank)]
    window = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride, apart = (draw(st.integers(1, 2)) for _ in range(2))
    padding = draw(st.integers(1, 3))
    batch, channels, out = (draw(st.integers(1, 3)) for _ in range(3))
    groups = draw(st.sampled_from([1, 1, 2]))
    x = normal(batch, channels * groups, *size)
    w = normal(out * groups, channels, *window, seed=1)
    if any(n + 2 * padding < apart * (k - 1) + 1 for n, k in zip(size, window, strict=True)):
        return
    how = stride, padding, apart, groups
    root, buffers, scalars = graph(nd.convolution(nd.array(x), nd.array(w), None, *how))
    flat = [b.reshape(-1) for b in buffers]
    plain, after = (evaluate([r], flat, scalars)[0] for r in (root, *few_pixels([root], {})))
    np.testing.assert_allclose(after, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "weight", "how", "is_few"),
    [
        ((2, 32, 2, 2), (48, 32, 3, 3), (1, 1), True),
        ((2, 32, 4, 4), (48, 32, 3, 3), (2, 1), True),
        ((1, 64, 3, 3), (48, 64, 1, 1), (1, 0), True),
        ((4, 16, 5), (20, 16, 3), (2, 0), True),
        ((1, 8, 2, 2, 2), (12, 8, 2, 2, 2), (1, 1), False),  # 27 pixels
        ((8, 32, 4, 4), (48, 32, 3, 3), (1, 1), False),
    ],
)
def test_few_pixels_are_rows(shape: Any, weight: Any, how: Any, is_few: bool) -> None:
    x, w = normal(*shape), normal(*weight, seed=1)
    made = nd.convolution(nd.array(x), nd.array(w), None, *how)
    assert bool(rows(graph(made)[0])) is is_few
    f = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
    want = f(torch.from_numpy(x), torch.from_numpy(w), None, *how)
    np.testing.assert_allclose(made.numpy(), want.numpy(), rtol=1e-3, atol=1e-3)


def test_products_of_matrices_stay_what_they_are() -> None:
    a, b = nd.array(normal(4, 32)), nd.array(normal(48, 32, seed=1))
    for made in (nd.matmul(a, b.T), nd.einsum("ij,kj->ki", a, b)):
        root = graph(made)[0]
        assert few_pixels([root], {}) == [root]


@settings(max_examples=40)
@given(st.data())
def test_gradients_mean_the_same(data: Any) -> None:
    draw = data.draw
    rank = draw(st.integers(1, 2))
    size = [draw(st.integers(1, 4)) for _ in range(rank)]
    window = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride, apart = (draw(st.integers(1, 3)) for _ in range(2))
    padding = draw(st.integers(0, 2))
    batch, channels, out = (draw(st.integers(1, 3)) for _ in range(3))
    groups = draw(st.sampled_from([1, 1, 2]))
    if any(n + 2 * padding < apart * (k - 1) + 1 for n, k in zip(size, window, strict=True)):
        return
    x = torch.from_numpy(normal(batch, channels * groups, *size)).requires_grad_()
    w = torch.from_numpy(normal(out * groups, channels, *window, seed=1)).requires_grad_()
    how = stride, padding, apart, groups
    y = getattr(torch.nn.functional, f"conv{rank}d")(x, w, None, *how)
    g = normal(*y.shape, seed=2)
    to_x, to_w = torch.autograd.grad(y, (x, w), torch.from_numpy(g))
    given = nd.array(g), nd.array(x.detach().numpy()), nd.array(w.detach().numpy())
    input_gradient = nd.convolution_input_gradient(given[0], given[2], tuple(x.shape), *how)
    weight_gradient = nd.convolution_weight_gradient(*given[:2], tuple(w.shape), *how)
    for made, wanted in ((input_gradient, to_x), (weight_gradient, to_w)):
        root, buffers, scalars = graph(made)
        (after,) = evaluate(few_pixels([root], {}), [b.reshape(-1) for b in buffers], scalars)
        np.testing.assert_allclose(after, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "weight", "how", "is_few"),
    [
        ((2, 32, 2, 2), (48, 32, 3, 3), (1, 1), True),
        ((2, 32, 1, 1), (48, 32, 3, 3), (1, 1), True),
        ((2, 32, 4, 4), (48, 32, 3, 3), (2, 1), True),
        ((2, 32, 4, 4), (48, 32, 3, 3), (1, 1), False),  # 32 pixels: for many weights
        ((2, 256, 4, 4), (256, 256, 3, 3), (1, 1), True),
        ((2, 256, 8, 8), (256, 256, 3, 3), (1, 1), False),
    ],
)
def test_gradients_of_weights_are_products_of_rows(
    shape: Any, weight: Any, how: Any, is_few: bool
) -> None:
    x, w = (torch.from_numpy(normal(*s, seed=k)) for k, s in enumerate((shape, weight)))
    w.requires_grad_()
    y = torch.nn.functional.conv2d(x, w, None, *how)
    g = normal(*y.shape, seed=2)
    (expected,) = torch.autograd.grad(y, w, torch.from_numpy(g))
    made = nd.convolution_weight_gradient(nd.array(g), nd.array(x.numpy()), weight, *how)
    after = topological(few_pixels([graph(made)[0]], {}))
    products = [n for n in after if n.op is ops.CONTRACT and n.attr == ((0, 1), (0, 2), (1, 2))]
    assert bool(products) is is_few
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "weight", "how", "is_few"),
    [
        ((1, 32, 2, 2), (32, 12, 4, 4), (2, 1), True),
        ((2, 32, 2, 2), (32, 12, 3, 3), (1, 1), True),
        ((1, 32, 3, 3), (32, 12, 2, 2), (2, 0), True),  # nothing meets
        ((1, 32, 2, 3), (32, 12, 3, 3), (3, 1, 0, 1, 2), True),  # taps apart
        ((4, 8, 4), (8, 5, 5), (2, 2), True),
        ((1, 8, 2, 2, 2), (8, 3, 3, 3, 3), (2, 1, 1), True),
        ((1, 32, 5, 5), (32, 12, 4, 4), (2, 1), False),  # 25 pixels
        ((1, 32, 2, 2), (32, 6, 3, 3), (1, 1, 0, 2), False),  # two groups
        ((1, 4, 2), (4, 2, 99), (1, 0), False),  # a sum too long to write out
    ],
)
def test_transposed_convolutions_of_few_pixels_are_products_of_rows(
    shape: Any, weight: Any, how: Any, is_few: bool
) -> None:
    x, w = normal(*shape), normal(*weight, seed=1)
    f = getattr(torch.nn.functional, f"conv_transpose{x.ndim - 2}d")
    want = f(torch.from_numpy(x), torch.from_numpy(w), None, *how)
    made = nd.convolution_transpose(nd.array(x), nd.array(w), None, *how)
    after = topological(few_pixels([graph(made)[0]], {}))
    products = [n for n in after if n.op is ops.CONTRACT and n.attr == ((0, 1), (1, 2), (0, 2))]
    assert bool(products) is is_few
    for n in products:  # by the weights as they lie: every element of theirs, in order
        assert n.inputs[1].op is ops.RESHAPE and n.inputs[1].inputs[0].op is ops.BUFFER
        assert n.inputs[1].shape == (shape[1], w.size // shape[1])
    np.testing.assert_allclose(made.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


def test_sums_of_halves_are_rounded_once() -> None:
    x, w = nd.array(normal(1, 8, 2, 2)), nd.array(normal(8, 4, 3, 3, seed=1))
    made = nd.convolution_transpose(x.astype("float16"), w.astype("float16"), None, 1, 1)
    root = graph(made)[0]
    assert few_pixels([root], {}) == [root]
