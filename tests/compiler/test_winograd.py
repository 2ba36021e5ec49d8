"""Convolutions in fewer products: the same numbers, chosen where it pays, no other digits lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.runtime.runtime import get_num_threads, set_num_threads
from genesis.compiler import using
from genesis.compiler.graph.cpu.winograd import INPUTS, RESULTS, TAPS, _Convolution, winograd
from genesis.ir.evaluate import evaluate
from genesis.ndarray import NDArray
from genesis.nn import functional
from tests.ndarray.test_pooling import graph

DIRECTIONS = ("forward", "input", "weight")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def direction(which: str, arrays: Sequence[NDArray], padding: int) -> NDArray:
    """A convolution of x and w, or one of its gradients for the gradient g of its result."""
    x, w, g = arrays
    if which == "forward":
        return nd.conv2d(x, w, padding=padding)
    if which == "input":
        return nd.convolution_input_gradient(g, w, x.shape, padding=padding)
    return nd.convolution_weight_gradient(g, x, w.shape, padding=padding)


def operands(batch: int, channels: int, out: int, h: int, w: int, padding: int) -> list[np.ndarray]:
    """An input, weights, and a gradient of the result."""
    result = (batch, out, h + 2 * padding - 2, w + 2 * padding - 2)
    shapes = ((batch, channels, h, w), (out, channels, 3, 3), result)
    return [normal(*shape, seed=k) for k, shape in enumerate(shapes)]


def test_planes_multiply_as_windows_do() -> None:
    """Summed over planes, the three matrices are 1 where an input is a result's, by its tap."""

    def paired(halves: Any) -> np.ndarray:
        x = np.array(halves)
        return np.array([x[0], x[1] + x[2], x[1] - x[2], x[3] + x[4], x[3] - x[4], x[5]])

    form = np.einsum("pa,pk,pi->aki", *map(paired, (INPUTS, TAPS, RESULTS)))
    a, k, i = np.indices(form.shape)
    np.testing.assert_allclose(form, a == i + k, atol=1e-15)


@settings(max_examples=60)
@given(st.data())
def test_any_size_and_padding(data: st.DataObject) -> None:
    """Tiles may be partial, and images smaller than one; done on the graph, for every direction."""
    padding = data.draw(st.integers(0, 2))
    least = max(1, 3 - 2 * padding)
    h, w = (data.draw(st.integers(least, n)) for n in (15, 7))
    batch, channels, out = (data.draw(st.integers(1, n)) for n in (5, 7, 6))
    which = data.draw(st.sampled_from(DIRECTIONS))
    arrays = [nd.array(x) for x in operands(batch, channels, out, h, w, padding)]
    nd.realize(*arrays)
    root, buffers, scalars = graph(direction(which, arrays, padding))
    flat = [b.reshape(-1) for b in buffers]
    with patch.object(_Convolution, "pays", lambda self: True):
        origins: dict[Any, Any] = {}
        (fewer,) = winograd([root], origins)
    assert fewer is not root and fewer.shape == root.shape and root in origins.values()
    (found,), (expected,) = (evaluate([r], flat, scalars) for r in (fewer, root))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max() + 1e-6)


#: batch, channels, results, rows, columns, padding
SIZES = ((2, 64, 64, 56, 56, 1), (3, 66, 70, 31, 33, 2), (16, 256, 256, 14, 14, 1))


@pytest.mark.parametrize("which", DIRECTIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_errors_are_those_of_adding_in_another_order(size: tuple[int, ...], which: str) -> None:
    torch = pytest.importorskip("torch")
    x, w, g = operands(*size)
    padding = size[-1]
    exact = [torch.from_numpy(a).double().requires_grad_() for a in (x, w)]
    result = torch.nn.functional.conv2d(*exact, padding=padding)
    result.backward(torch.from_numpy(g).double())
    expected = {"forward": result, "input": exact[0].grad, "weight": exact[1].grad}[which]
    arrays = [nd.array(a) for a in (x, w, g)]
    errors = []
    for fewer in (True, False):
        with using(winograd=fewer):
            report = genesis.explain(lambda *a: direction(which, a, padding), *arrays)
            assert (len(report.kernels) > 1) is fewer and report.proven
            found = direction(which, arrays, padding).numpy()
        errors.append(np.abs(found - expected.detach().numpy()))
    ours, plain = errors
    assert np.sqrt((ours**2).mean()) < 1.6 * np.sqrt((plain**2).mean())
    assert ours.max() < 3 * plain.max()


def rewritten(x: NDArray) -> bool:
    root, _, _ = graph(x)
    return winograd([root], {})[0] is not root


def zeros(*shape: int, dtype: str = "float32") -> NDArray:
    return nd.array(np.zeros(shape, dtype)).realize()


@pytest.mark.parametrize(
    ("batch", "channels", "size", "chosen"),
    [
        *((batch, 64, 56, True) for batch in (1, 8, 16)),
        *((batch, 128, 28, True) for batch in (1, 8, 16)),
        *((batch, 256, 14, batch > 1) for batch in (1, 8, 16)),
        *((batch, 512, 7, batch > 4) for batch in (1, 4, 8, 16)),
        (1, 4, 32, False),
        (64, 8, 8, False),
    ],
)
def test_it_is_chosen_where_it_pays(batch: int, channels: int, size: int, chosen: bool) -> None:
    x, w = zeros(batch, channels, size, size), zeros(channels, channels, 3, 3)
    for which in DIRECTIONS:
        assert rewritten(direction(which, (x, w, x), 1)) is chosen


@pytest.mark.parametrize(
    "build",
    [
        lambda x, w: nd.conv2d(x, w, stride=2),
        lambda x, w: nd.conv2d(x, w, stride=(2, 1)),
        lambda x, w: nd.conv2d(x, w, dilation=2),
        lambda x, w: nd.conv2d(x, zeros(64, 64, 5, 3)),
        lambda x, w: nd.conv2d(x, zeros(64, 1, 3, 3), groups=64),
        lambda x, w: nd.conv1d(x.reshape(2, 64, 3136), zeros(64, 64, 3)),
        lambda x, w: nd.conv2d(x.astype(genesis.float64), w.astype(genesis.float64)),
        lambda x, w: nd.conv2d(x.astype(genesis.float16), w.astype(genesis.float16)),
        lambda x, w: nd.conv2d(x.astype(genesis.int32), w.astype(genesis.int32)),
        lambda x, w: x.reshape(128, 3136) @ zeros(3136, 64),
    ],
)
def test_other_contractions_stay_as_they_are(build: Callable[..., NDArray]) -> None:
    x, w = zeros(2, 64, 56, 56), zeros(64, 64, 3, 3)
    assert rewritten(nd.conv2d(x, w))
    assert not rewritten(build(x, w))


def test_transforms_are_fused_and_nothing_is_computed_in_vain() -> None:
    """Four kernels: two transforms, the contraction, and the results with all that follows."""

    def block(x: Any, w: Any, scale: Any, rest: Any) -> NDArray:
        return nd.relu(nd.conv2d(x, w, padding=1) * scale + rest)

    x, scale = nd.array(normal(1, 64, 30, 30)), nd.array(normal(64, 1, 1))
    w, rest = nd.array(normal(64, 64, 3, 3)), nd.array(normal(1, 64, 30, 30, seed=1))
    report = genesis.explain(block, x, w, scale, rest)
    assert len(report.kernels) == 4 and report.proven
    assert report.kernels[-1].operations[:1] == ("max",)
    for k in report.kernels:
        assert "where(" not in str(k)
    found = genesis.jit(block)(x, w, scale, rest)
    with using(winograd=False):
        expected = block(x, w, scale, rest)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-3)


def test_volumes_are_images_along_another_axis() -> None:
    x, w = nd.array(normal(1, 32, 9, 12, 11)), nd.array(normal(32, 32, 3, 3, 3))
    assert rewritten(nd.conv3d(x, w))
    found = nd.conv3d(x, w).numpy()
    with using(winograd=False):
        np.testing.assert_allclose(found, nd.conv3d(x, w).numpy(), rtol=1e-4, atol=1e-3)


def test_gradients_of_gradients() -> None:
    x, w = normal(1, 48, 30, 30), normal(48, 48, 3, 3)

    def twice() -> list[np.ndarray]:
        given = [genesis.tensor(a, requires_grad=True) for a in (x, w)]
        result = functional.conv2d(*given, padding=1)
        first = genesis.autograd.grad((result * result).sum(), given, create_graph=True)
        total = sum(((g * g).sum() for g in first), genesis.tensor(0.0))
        return [g.numpy() for g in genesis.autograd.grad(total, given)]

    found = twice()
    with using(winograd=False):
        for ours, plain in zip(found, twice(), strict=True):
            assert np.abs(ours - plain).max() < 1e-5 * np.abs(plain).max()


def test_the_same_bits_whatever_the_number_of_threads() -> None:
    arrays = [nd.array(a) for a in operands(2, 64, 64, 30, 30, 1)]
    threads = get_num_threads()
    found = []
    try:
        for count in (1, 5):
            set_num_threads(count)
            found.append([direction(which, arrays, 1).numpy() for which in DIRECTIONS])
    finally:
        set_num_threads(threads)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_infinity_stays_in_its_tile() -> None:
    """Four rows of results are made together: they share what is not a number."""
    x, w = normal(1, 64, 30, 30), normal(64, 64, 3, 3)
    with_infinity = x.copy()
    with_infinity[0, 5, 9, 12] = np.inf
    found, plain = (
        nd.conv2d(nd.array(a), nd.array(w), padding=1).numpy().copy() for a in (with_infinity, x)
    )
    assert not np.isfinite(found[:, :, 8:11, 11:14]).any()
    found[:, :, 8:12, 11:14] = plain[:, :, 8:12, 11:14]
    np.testing.assert_array_equal(found, plain)


def test_inside_a_loop() -> None:
    w = nd.array(normal(48, 48, 3, 3) / 20)
    x = nd.array(normal(1, 48, 30, 30))

    def last() -> np.ndarray:
        carry, _ = nd.scan(lambda c, _: (nd.conv2d(c, w, padding=1), None), x, None, length=3)
        return carry.numpy()

    found = last()
    with using(winograd=False):
        np.testing.assert_allclose(found, last(), rtol=0, atol=1e-5)
