"""What GPUs get of convolutions: channels last, whole vectors of channels, norms in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import functional
from genesis import ndarray as nd
from genesis.backends.gpu.codegen.render import render
from genesis.compiler.graph.gpu.channels_last import channels_last
from genesis.compiler.graph.gpu.shifted_variance import shifted
from genesis.compiler.graph.simplify import simplify
from genesis.ir import ops
from genesis.ir.evaluate import evaluate
from genesis.ir.kernel import Role
from genesis.ir.node import Node, topological
from genesis.ndarray import NDArray
from genesis.ndarray.ops.pooling import looked_up, put_at_positions
from genesis.ndarray.ops.sliding_windows import parameters
from tests.compiler.test_gpu_schedule import kernels_of
from tests.ndarray.test_pooling import graph

Step = Callable[[NDArray], NDArray]


def pooled(x: NDArray) -> NDArray:
    found = nd.max_pool2d(x, 3, 1, 1)
    assert isinstance(found, NDArray)
    return found


#: What may come between two convolutions.
STEPS: tuple[Step, ...] = (
    nd.relu,
    lambda a: a * 2 - nd.mean(a, (0, 2, 3), True),
    lambda a: a * nd.sum(a, (2, 3), True),
    pooled,
    lambda a: nd.flip(a, -1),
    lambda a: a[:, ::2],
    lambda a: nd.concat([a, a[:, :1]], 1),
    lambda a: nd.cumsum(a, 1),
    lambda a: nd.permute(a, (0, 1, 3, 2)),
    lambda a: nd.reshape(nd.reshape(a, (a.shape[0], a.shape[1], -1)), a.shape),
    lambda a: nd.reshape(nd.reshape(a, (-1, *a.shape[2:])) * 3, a.shape),
)


def normal(*shape: int, seed: int = 0) -> NDArray:
    return nd.array(np.random.default_rng(seed).standard_normal(shape, np.float32)).realize()


def passed(x: NDArray) -> Node:
    """The graph of an array after both passes, which computes what it did before."""
    root, buffers, scalars = graph(x)
    flat = [b.reshape(-1) for b in buffers]
    origins: dict[Node, Node] = {}
    (after,) = channels_last(shifted([root], origins), origins)
    assert after.shape == root.shape
    for new in (after, *simplify([after])):
        (found,), (expected,) = (evaluate([r], flat, scalars) for r in (new, root))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    return after


@settings(max_examples=60)
@given(st.data())
def test_any_network_computes_the_same(data: st.DataObject) -> None:
    batch, channels, out, groups = (data.draw(st.integers(1, n)) for n in (3, 4, 4, 2))
    size, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    h, w = (data.draw(st.integers(3, 7)) for _ in range(2))
    x = normal(batch, channels * groups, h, w)
    kernel = normal(out * groups, channels, size, size, seed=1)
    y = nd.conv2d(x, kernel, stride=stride, padding=size // 2, groups=groups)
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=4)):
        y = step(y)
    passed(nd.conv2d(y, normal(2, int(y.shape[1]), 2, 2, seed=2), padding=1))


@settings(max_examples=40)
@given(st.data())
def test_gradients_compute_the_same(data: st.DataObject) -> None:
    batch, channels, out = (data.draw(st.integers(1, 4)) for _ in range(3))
    size, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    h, w = (data.draw(st.integers(3, 9)) for _ in range(2))
    x, kernel = normal(batch, channels, h, w), normal(out, channels, size, size, seed=1)
    how: dict[str, Any] = {"stride": stride, "padding": size // 2}
    y = nd.conv2d(x, kernel, **how).realize()
    passed(nd.convolution_input_gradient(y, kernel, x.shape, **how))
    passed(nd.convolution_weight_gradient(y, x, kernel.shape, **how))


def test_three_colours_are_padded_to_a_vector() -> None:
    def convolution(x: Any, w: Any) -> Any:
        return functional.conv2d(x, w, stride=2, padding=3)

    def gradient(x: Any, g: Any) -> Any:
        how = {"stride": 2, "padding": 3}
        return nd.convolution_weight_gradient(g.array, x.array, (64, 3, 7, 7), **how)

    image = ("bfloat16", 8, 3, 64, 64)
    for function, other in (
        (convolution, ("bfloat16", 64, 3, 7, 7)),
        (gradient, ("bfloat16", 8, 64, 32, 32)),
    ):
        products = [k for k in kernels_of(function, image, other) if "contract" in k.name]
        assert (8, 64, 64, 4) in [b.shape for b in products[0].buffers if b.role is Role.INPUT]
    x, w = (normal(2, 3, 9, 9).astype(genesis.bfloat16) for _ in range(2))
    nd.realize(x, w)
    root, buffers, scalars = graph(nd.conv2d(x, w[:, :, :3, :3], padding=1))
    (after,) = channels_last([root], {})
    flat = [b.reshape(-1) for b in buffers]
    (found,), (expected,) = (evaluate([r], flat, scalars) for r in (after, root))
    np.testing.assert_array_equal(found, expected)
    assert any(n.op is ops.PAD and n.shape[-1] == 4 for n in topological([after]))


def test_nothing_is_rearranged_between_convolutions() -> None:
    """Activations of a network lie as the next convolution reads them; only weights are copied."""

    def network(x: Any, v: Any, w: Any) -> Any:
        y = functional.relu(functional.conv2d(x, v, padding=1))
        return functional.conv2d(functional.max_pool2d(y, 3, 2, 1), w).sum()

    shapes = ("bfloat16", 64, 128, 3, 3), ("bfloat16", 128, 64, 1, 1)
    found = kernels_of(network, ("bfloat16", 16, 128, 28, 28), *shapes)
    copies = [b for k in found[1:] for b in k.buffers if "packed" in b.name]
    assert all(len(b.shape) < 3 or b.shape[0] <= 128 for b in copies)
    assert any(b.shape[-1] == 64 and b.role is Role.OUTPUT for b in found[0].buffers)


def test_windows_are_one_loop() -> None:
    """Blocks of a 3x3 convolution come one after the other, each of one place in the windows."""

    def convolution(x: Any, w: Any) -> Any:
        return functional.conv2d(x, w, padding=1)

    shapes = ("bfloat16", 8, 128, 28, 28), ("bfloat16", 128, 128, 3, 3)
    *_, kernel = kernels_of(convolution, *shapes)
    product = render(kernel).text.rpartition("@triton.jit")[2]
    assert product.count("for ") == 1 and "in range(18)" in product
    assert "_inner[None, :] //" not in product and "_inner[:, None] //" not in product


def test_batch_norm_reads_its_input_once_for_its_statistics() -> None:
    def norm(x: Any, w: Any) -> Any:
        y = functional.conv2d(x, w)
        return functional.batch_norm(y, None, None, training=True)

    shapes = ("bfloat16", 32, 64, 28, 28), ("bfloat16", 64, 64, 1, 1)
    sums = [k for k in kernels_of(norm, *shapes) if k.name.startswith("sum")]
    assert len(sums) == 1
    x = normal(4, 3, 5, 5) + 1000
    root, buffers, scalars = graph(nd.mean((x - nd.mean(x, (0, 2, 3), True)) ** 2, (0, 2, 3)))
    (after,) = shifted([root], {})
    (found,) = evaluate([after], [b.reshape(-1) for b in buffers], scalars)
    wide = x.numpy().astype(np.float64)
    np.testing.assert_allclose(found, wide.var((0, 2, 3)), rtol=1e-5)


@settings(max_examples=40)
@given(st.data())
def test_gradients_of_pooling_by_what_looks_and_by_what_is_put(data: st.DataObject) -> None:
    size, stride, apart = (data.draw(st.integers(1, 3)) for _ in range(3))
    padding = data.draw(st.integers(0, size // 2))
    least = apart * (size - 1) + 1
    h, w = (data.draw(st.integers(least, least + 6)) for _ in range(2))
    ceil = data.draw(st.booleans())
    x = normal(2, 2, h, w)
    best, places = nd.max_pool2d(x, size, stride, padding, apart, ceil, True)
    gradient = normal(*map(int, best.shape), seed=1)
    expected = put_at_positions(gradient, places, (h, w)).numpy()
    window = parameters("pool", 2, size, stride, apart, padding)
    found = looked_up(gradient, places, (h, w), window)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)
