"""The stateless API against PyTorch: what layers do not cover, refusals, and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_torch import Comparison
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd
from genesis import nn
from genesis.nn import functional as fn


def same(name: str, *args: Any, **kwargs: Any) -> Any:
    """The function of that name, with further arguments, of whichever library is given."""
    return lambda library, *xs: getattr(library.nn.functional, name)(*xs, *args, **kwargs)


# ---- padding


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@settings(max_examples=6)
@given(data=st.data())
def test_pad(mode: str, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    lengths = data.draw(st.lists(st.integers(2, 4), min_size=rank, max_size=rank))
    most = 4 if mode in ("constant", "replicate") else min(lengths) - 1
    least = -1 if mode == "constant" else 0
    widths = data.draw(st.lists(st.integers(least, most), min_size=2 * rank, max_size=2 * rank))
    value = data.draw(st.sampled_from([0.0, 2.5])) if mode == "constant" else None
    x = np.random.default_rng(len(widths)).standard_normal((2, 1, *lengths))
    c = Comparison()
    c.function(f"pad {mode} {widths}", same("pad", widths, mode, value), x)
    c.check()


def test_pad_refuses() -> None:
    x = genesis.ones(2, 3)
    with pytest.raises(ValueError, match="two numbers for each"):
        fn.pad(x, (1, 2, 3))
    with pytest.raises(ValueError, match="takes no value"):
        fn.pad(x, (1, 1), "reflect", 2.0)
    with pytest.raises(ValueError, match="cannot add"):
        fn.pad(x, (3, 0), "reflect")
    with pytest.raises(ValueError, match="no mode 'mirror'"):
        fn.pad(x, (1, 0), "mirror")


# ---- convolutions


def test_complex_convolution(rng: np.random.Generator) -> None:
    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    c = Comparison()
    x, w = drawn(1, 2, 5), drawn(2, 2, 2)
    c.function("conv1d", same("conv1d", None, 2, 1), x, w, order=1, squared=False)
    y, v = drawn(1, 2, 4), drawn(2, 3, 2)
    transposed = same("conv_transpose1d", None, 2, 1)
    c.function("conv_transpose1d", transposed, y, v, order=1, squared=False)
    c.check()


def test_third_derivative_of_a_convolution(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((1, 1, 4)), rng.standard_normal((1, 1, 2))
    found = []
    for library in (genesis, torch):
        a, b = (library.tensor(v, requires_grad=True) for v in (x, w))
        y = (library.nn.functional.conv1d(a, b) ** 3).sum()
        for _ in range(2):
            da, db = library.autograd.grad(y, (a, b), create_graph=True)
            y = (da**2).sum() + (db**3).sum()
        found.append([g.detach().numpy() for g in library.autograd.grad(y, (a, b))])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_convolution_in_half_precision(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 3, 9, 8)), rng.standard_normal((4, 3, 3, 3)) / 5
    for dtype in (genesis.bfloat16, genesis.float16):
        a, b = genesis.tensor(x, dtype=dtype), genesis.tensor(w, dtype=dtype)
        exact = fn.conv2d(a.double(), b.double(), padding=1).numpy()
        step = 2.0**-8 if dtype is genesis.bfloat16 else 2.0**-11
        np.testing.assert_allclose(
            fn.conv2d(a, b, padding=1).double().numpy(), exact, rtol=1.01 * step, atol=1e-5
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fn.conv2d(genesis.ones(1, 2, 4, 4), genesis.ones(3, 3, 2, 2)), "channels"),
        (lambda: fn.conv1d(genesis.ones(1, 2, 4, 4), genesis.ones(3, 2, 2)), "conv1d: needs"),
        (lambda: fn.conv1d(genesis.ones(1, 2, 4), genesis.ones(3, 2, 9)), "do not fit"),
        (lambda: fn.linear(genesis.ones(2, 3), genesis.ones(4, 5)), "linear: an input of shape"),
        (lambda: fn.max_pool1d(genesis.ones(1, 2, 3), 2, padding=2), "at most half"),
        (lambda: fn.layer_norm(genesis.ones(2, 3), (4,)), "normalized_shape"),
        (lambda: fn.batch_norm(genesis.ones(2, 3), None, None), "running statistics"),
        (lambda: fn.batch_norm(genesis.ones(1, 3), None, None, training=True), "no variance"),
        (lambda: fn.group_norm(genesis.ones(2, 3, 2), 2), "do not divide 3"),
        (lambda: fn.dropout1d(genesis.ones(3)), "dropout1d: needs"),
        (lambda: fn.embedding_bag(genesis.tensor([[1]]), genesis.ones(2, 2), mode="min"), "mode"),
        (lambda: fn.affine_grid(genesis.ones(1, 2, 2), (1, 1, 2, 2)), "affine_grid"),
        (lambda: fn.grid_sample(genesis.ones(1, 1, 2, 2), genesis.ones(1, 2, 2, 3)), "grid"),
        (lambda: fn.interpolate(genesis.ones(1, 1, 2), mode="bilinear", size=3), "needs 4 dim"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "2 groups must divide 3"),
        (lambda: nn.Conv1d(2, 2, 3, padding="same", stride=2), "needs stride 1"),
        (lambda: nn.BatchNorm2d(3)(genesis.ones(2, 3)), "needs 4 dimensions"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


# ---- images


def test_interpolation(rng: np.random.Generator) -> None:
    c = Comparison()
    for mode, shape, size, factor, align, antialias in (
        ("nearest", (1, 2, 5), None, 0.6, None, False),
        ("nearest-exact", (1, 2, 5, 4), None, 1.7, None, False),
        ("nearest", (1, 1, 2, 3, 2), (3, 2, 5), None, None, False),
        ("linear", (1, 2, 5), None, 0.4, True, False),
        ("bilinear", (1, 2, 5, 4), (3, 9), None, False, False),
        ("bilinear", (1, 2, 9, 8), (3, 2), None, False, True),
        ("bicubic", (1, 1, 9, 8), (3, 12), None, False, True),
        ("bicubic", (1, 1, 4, 3), (7, 5), None, True, False),
        ("area", (1, 2, 5, 6), (3, 4), None, None, False),
        ("area", (1, 2, 5), None, 2.0, None, False),
    ):
        call = same("interpolate", size, factor, mode, align, antialias=antialias)
        c.function(f"{mode} {shape} {size} {factor}", call, rng.standard_normal(shape))
    c.check(rtol=1e-8, atol=1e-8)


def test_interpolation_takes_the_scale_from_the_size_if_asked(rng: np.random.Generator) -> None:
    c = Comparison()
    call = same("interpolate", None, 1.9, "linear", None, True)
    c.function("recomputed", call, rng.standard_normal((1, 1, 4)))
    c.check()


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, rng: np.random.Generator) -> None:
    c = Comparison()
    x, grid = rng.standard_normal((2, 3, 5, 4)), 1.3 * rng.standard_normal((2, 3, 6, 2))
    for padding in ("zeros", "border", "reflection"):
        for align in (True, False):
            call = same("grid_sample", mode, padding, align)
            c.function(f"{mode} {padding} {align}", call, x, grid, order=1, squared=False)
    c.check(rtol=1e-8, atol=1e-9)


def test_grid_sample_in_space(rng: np.random.Generator) -> None:
    c = Comparison()
    x, grid = rng.standard_normal((2, 2, 3, 5, 4)), rng.standard_normal((2, 3, 2, 2, 3))
    for padding in ("zeros", "reflection"):
        call = same("grid_sample", "bilinear", padding, False)
        c.function(padding, call, x, grid, order=1, squared=False)
    c.function("affine", same("affine_grid", (2, 1, 3, 4), True), rng.standard_normal((2, 2, 3)))
    space = same("affine_grid", (2, 1, 2, 3, 4), False)
    c.function("affine in space", space, rng.standard_normal((2, 3, 4)))
    c.check()


def test_upsampling_by_its_old_names(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 3, 4))
    c = Comparison()
    c.function("upsample_nearest", same("upsample_nearest", scale_factor=2), x)
    c.function("upsample_bilinear", same("upsample_bilinear", (5, 5)), x)
    c.function("upsample", same("upsample", (5, 5), None, "bicubic", False), x)
    c.check()


# ---- norms, tables, choices


def test_batch_norm_moves_given_statistics(rng: np.random.Generator) -> None:
    x, mean, var = rng.standard_normal((4, 3, 2)), rng.standard_normal(3), rng.random(3)
    found = []
    for library in (genesis, torch):
        a, b, c = (library.tensor(v) for v in (x, mean, var))
        y = library.nn.functional.batch_norm(a, b, c, training=True, momentum=0.3)
        library.nn.functional.instance_norm(a, b, c, momentum=0.2)
        found.append([v.numpy() for v in (y, b, c)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_normalize_and_friends(rng: np.random.Generator) -> None:
    c = Comparison()
    x, y = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    c.function("normalize", same("normalize", 3.0, 0), x)
    c.function("cosine_similarity", same("cosine_similarity", 1), x, y)
    c.function("pairwise_distance", same("pairwise_distance", 1.5), x, y, order=1)
    c.function("pdist", same("pdist", 3.0), x, order=1)
    c.check(rtol=1e-8)
    np.testing.assert_array_equal(
        fn.one_hot(genesis.tensor([[0, 2], [1, 1]]), 4).numpy(),
        torch.nn.functional.one_hot(torch.tensor([[0, 2], [1, 1]]), 4).numpy(),
    )


def test_gumbel_softmax() -> None:
    logits = genesis.tensor(np.log([[0.1, 0.6, 0.3]] * 4000), requires_grad=True)
    hard = fn.gumbel_softmax(logits, tau=0.5, hard=True)
    chosen = hard.detach().numpy()
    assert set(np.unique(chosen.round(6))) == {0.0, 1.0}
    np.testing.assert_allclose(chosen.mean(0), [0.1, 0.6, 0.3], atol=0.04)
    (hard * genesis.tensor([1.0, 2.0, 3.0], dtype=genesis.float64)).sum().backward()
    assert np.abs(logits.grad.numpy()).max() > 0
    soft = fn.gumbel_softmax(logits, tau=2.0).detach().numpy()
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)


def test_bags_may_be_empty() -> None:
    table = genesis.tensor([[1.0], [2.0], [4.0]])
    index = genesis.tensor([2, 1, 0, 2])
    begin = genesis.tensor([0, 0, 3])
    for mode, wanted in (("sum", [0.0, 7.0, 4.0]), ("mean", [0, 7 / 3, 4]), ("max", [0, 4, 4])):
        found = fn.embedding_bag(index, table, begin, mode=mode).numpy()
        np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="the first of the offsets is not 0"):
        fn.embedding_bag(index, table, genesis.tensor([1, 1, 3])).numpy()


def test_activations_named_in_place() -> None:
    for name, *args in (("relu_",), ("elu_", 0.5), ("hardtanh_", -0.5, 0.5), ("threshold_", 0, 9)):
        mine, theirs = genesis.tensor([-1.0, 0.3, 2.0]), torch.tensor([-1.0, 0.3, 2.0])
        assert getattr(fn, name)(mine, *args) is mine
        getattr(torch.nn.functional, name)(theirs, *args)
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6)


# ---- programs


def test_a_layer_norm_and_its_gradient_are_few_kernels() -> None:
    layer = nn.LayerNorm(64)

    def step(x: Any, grad: Any) -> Any:
        layer.zero_grad()
        y = layer(x)
        y.backward(grad)
        return y, x.grad

    report = genesis.explain(step, genesis.randn(16, 64, requires_grad=True), genesis.randn(16, 64))
    assert len(report.kernels) <= 5 and report.proven


def test_gradients_of_means_and_resampling_need_no_scatter() -> None:
    def step(x: Any) -> Any:
        y = fn.interpolate(x, scale_factor=2, mode="bilinear")
        (fn.pad(fn.avg_pool2d(y, 3, 2, 1), (1, 1), "circular") ** 2).sum().backward()
        return x.grad

    report = genesis.explain(step, genesis.randn(1, 2, 8, 8, requires_grad=True))
    assert report.proven and "scatter" not in str(report)


def test_a_recorded_resampling_is_recorded_once() -> None:
    """Its tables are computed while recording, and are part of the recording."""

    @genesis.jit
    def step(x: Any) -> Any:
        return genesis.autograd.grad((fn.interpolate(x, 7, mode="linear") ** 2).sum(), x)[0]

    for k in range(3):
        x = genesis.full((1, 1, 4), float(k), requires_grad=True)
        np.testing.assert_allclose(step(x).numpy().sum(), 14.0 * k, rtol=1e-6)
    assert step.captures == 1


def test_functions_of_arrays_give_arrays(rng: np.random.Generator) -> None:
    x = nd.array(rng.standard_normal((1, 2, 6, 6)))
    for y in (
        fn.max_pool2d(x, 2),
        fn.dropout(x, 0.5),
        fn.layer_norm(x, (6,)),
        fn.pad(x, (1, 1)),
    ):
        assert isinstance(y, nd.NDArray)
