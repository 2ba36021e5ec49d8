"""Convolutions, their transposes and gradients, folding and padding, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import genesis
from genesis import ndarray as nd
from genesis.ndarray import NDArray

CONV = (nd.conv1d, nd.conv2d, nd.conv3d)
TORCH_CONV = (functional.conv1d, functional.conv2d, functional.conv3d)
TRANSPOSE = (nd.conv_transpose1d, nd.conv_transpose2d, nd.conv_transpose3d)
TORCH_TRANSPOSE = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)

Case = dict[str, Any]


def random(seed: int, *shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def agree(got: NDArray, want: torch.Tensor) -> None:
    assert got.shape == tuple(want.shape)
    tolerance = 1e-10 if want.dtype == torch.float64 else 2e-5
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), tolerance, tolerance)


def kernels(function: Callable[..., Any], *args: NDArray) -> int:
    return len(genesis.explain(function, *args).kernels)


def ints(low: int, high: int, rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * rank)


@st.composite
def cases(draw: st.DrawFn, transposed: bool = False) -> Case:
    """Shapes and parameters of a small convolution, most of them odd."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    size, stride = draw(ints(1, 4 - (rank > 2), rank)), draw(ints(1, 3, rank))
    dilation = draw(ints(1, 2, rank))
    padding = draw(ints(0, 2, rank))
    reach = [d * (k - 1) + 1 for k, d in zip(size, dilation, strict=True)]
    least = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    if transposed:
        least = [
            max(1, -(-(2 * p + 1 - r) // s) + 1)
            for r, p, s in zip(reach, padding, stride, strict=True)
        ]
    spatial = tuple(n + draw(st.integers(0, 4)) for n in least)
    each, out = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch = draw(st.sampled_from((0, 1, 2, 3)))
    weight = (groups * each, out, *size) if transposed else (groups * out, each, *size)
    most = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
    return {
        "rank": rank, "groups": groups, "stride": stride, "dilation": dilation,
        "padding": padding, "x": (batch, groups * each, *spatial), "weight": weight,
        "out": groups * out, "extra": tuple(draw(st.integers(0, n)) for n in most),
        "dtype": draw(st.sampled_from((np.float32, np.float64))),
    }  # fmt: skip


@settings(max_examples=25)
@given(cases())
def test_convolution_and_its_gradients(c: Case) -> None:
    x, w = random(1, *c["x"], dtype=c["dtype"]), random(2, *c["weight"], dtype=c["dtype"])
    b = random(3, c["out"], dtype=c["dtype"])
    steps = (c["stride"], c["padding"], c["dilation"], c["groups"])
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    want = TORCH_CONV[c["rank"] - 1](tx, tw, torch.tensor(b), *steps)
    ax, aw = nd.array(x), nd.array(w)
    agree(CONV[c["rank"] - 1](ax, aw, nd.array(b), *steps), want)

    g = random(4, *want.shape, dtype=c["dtype"])
    want.backward(torch.tensor(g))
    assert tx.grad is not None
    assert tw.grad is not None
    agree(nd.convolution_input_gradient(nd.array(g), aw, x.shape, *steps), tx.grad)
    agree(nd.convolution_weight_gradient(nd.array(g), ax, w.shape, *steps), tw.grad)


@settings(max_examples=25)
@given(cases(transposed=True))
def test_convolution_transpose(c: Case) -> None:
    x, w = random(1, *c["x"], dtype=c["dtype"]), random(2, *c["weight"], dtype=c["dtype"])
    b = random(3, c["out"], dtype=c["dtype"])
    steps = (c["stride"], c["padding"], c["extra"], c["groups"], c["dilation"])
    want = TORCH_TRANSPOSE[c["rank"] - 1](torch.tensor(x), torch.tensor(w), torch.tensor(b), *steps)
    agree(TRANSPOSE[c["rank"] - 1](nd.array(x), nd.array(w), nd.array(b), *steps), want)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("size", [(4, 3), (1, 2)])
def test_named_padding(padding: str, size: tuple[int, int]) -> None:
    x, w = random(1, 3, 7, 8), random(2, 2, 3, *size)  # no batch
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    want = functional.conv2d(tx, tw, padding=padding, dilation=2)
    agree(nd.conv2d(nd.array(x), nd.array(w), padding=padding, dilation=2), want)
    want.sum().backward()
    g = nd.ones(want.shape, dtype=genesis.float64)
    given = {"padding": padding, "dilation": 2}
    assert tx.grad is not None
    assert tw.grad is not None
    agree(nd.convolution_input_gradient(g, nd.array(w), x.shape, **given), tx.grad)
    agree(nd.convolution_weight_gradient(g, nd.array(x), w.shape, **given), tw.grad)


def test_inputs_that_are_views() -> None:
    x, w = random(1, 6, 5, 3, 2), random(2, 3, 3, 3, 2)  # both channels last
    got = nd.conv2d(nd.array(x).T, nd.array(w).transpose(3, 2, 0, 1), padding=1)
    want = functional.conv2d(
        torch.tensor(x).permute(3, 2, 1, 0), torch.tensor(w).permute(3, 2, 0, 1), padding=1
    )
    agree(got, want)


@pytest.mark.parametrize("size", [(3, 3), (2, 1), (6, 5)])  # written out, and summed in a loop
def test_depthwise(size: tuple[int, int]) -> None:
    x, w, b = random(1, 2, 5, 13, 14), random(2, 5, 1, *size), random(3, 5)
    steps = ((2, 1), (1, 2), (1, 2), 5)
    want = functional.conv2d(torch.tensor(x), torch.tensor(w), torch.tensor(b), *steps)
    agree(nd.conv2d(nd.array(x), nd.array(w), nd.array(b), *steps), want)
    half = nd.conv2d(nd.array(x.astype(np.float16)), nd.array(w.astype(np.float16)), None, *steps)
    exact = nd.conv2d(nd.array(x.astype(np.float16)).astype(genesis.float64),
                      nd.array(w.astype(np.float16)), None, *steps)  # fmt: skip
    np.testing.assert_allclose(half.numpy(), exact.numpy(), 1e-3, 1e-3)  # rounded once, at the end


def test_half_precision_accumulates_in_float32() -> None:
    x = np.full((1, 512, 3), 1.001, np.float16)
    w = np.full((1, 512, 3), 0.01, np.float16)
    got = nd.conv1d(nd.array(x), nd.array(w)).numpy()
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, (x.astype(np.float64) * w).sum().reshape(1, 1, 1), 1e-3)


def test_convolutions_are_single_kernels() -> None:
    """Padding, windows, bias and activation are index arithmetic and an epilogue."""
    x, b = nd.ones((2, 16, 12, 12)), nd.ones(16)
    full, single, depthwise = (nd.ones((16, n, k, k)) for n, k in ((16, 3), (16, 1), (1, 3)))
    assert kernels(lambda x, w, b: nd.relu(nd.conv2d(x, w, b, 2, 1)), x, full, b) == 1
    assert kernels(lambda x, w, b: nd.relu(nd.conv2d(x, w, b)), x, single, b) == 1
    assert kernels(lambda x, w, b: nd.conv2d(x, w, b, 1, 1, 1, 16), x, depthwise, b) == 1
    for stride in (1, 2):
        assert (
            kernels(lambda x, w, b, s=stride: nd.conv_transpose2d(x, w, b, s, 1), x, full, b) == 1
        )


ANY_BATCH: dict[str, Callable[[NDArray], NDArray]] = {
    "convolution": lambda x: nd.conv2d(x, nd.ones((6, 1, 3, 3)), nd.ones(6), 2, 1, 1, 3),
    "transpose": lambda x: nd.conv_transpose2d(x, nd.ones((3, 4, 3, 3)), nd.ones(4), 2, 1),
    "weight gradient": lambda x: nd.convolution_weight_gradient(x, x, (3, 3, 3, 3), 1, 1),
    "pooling": lambda x: nd.max_pool2d(x, 3, 1, 1) + nd.avg_pool2d(x, 3, 1, 1, True, False),
    "fold": lambda x: nd.fold(nd.unfold(x, 3, 1, 1, 2), (8, 9), 3, 1, 1, 2),
    "reflection": lambda x: nd.pad(x, [(0, 0), (0, 0), (1, 1), (2, 0)], mode="reflect"),
    "interpolation": lambda x: nd.interpolate(x, scale_factor=2, mode="bilinear"),
    "sampling": lambda x: nd.grid_sample(x, nd.tanh(x[:, :2]).transpose(0, 2, 3, 1)),
}


@pytest.mark.parametrize("name", ANY_BATCH)
def test_one_program_for_every_batch_size(name: str) -> None:
    function = genesis.jit(ANY_BATCH[name])
    for n in (2, 3, 5, 8):
        x = nd.array(random(1, n, 3, 8, 9))
        np.testing.assert_allclose(function(x).numpy(), ANY_BATCH[name](x).numpy(), 1e-9, 1e-9)
    assert function.captures == 2


# ---- windows and back


@st.composite
def windowed(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from((1, 2, 3)))
    size, stride, dilation, padding = (
        draw(ints(low, high, rank)) for low, high in ((1, 3), (1, 4), (1, 3), (0, 2))
    )
    reach = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(size, dilation, padding, strict=True)]
    spatial = tuple(max(1, r) + draw(st.integers(0, 5)) for r in reach)
    return {"x": (2, 2, *spatial), "steps": (size, dilation, padding, stride), "spatial": spatial}


def columns(x: np.ndarray, steps: Sequence[tuple[int, ...]]) -> np.ndarray:
    """`unfold`, written out."""
    size, dilation, padding, stride = steps
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], size, dilation, stride, strict=True)
    ]
    out = []
    for at in np.ndindex(*counts):
        cut = tuple(
            slice(i * s, i * s + d * (k - 1) + 1, d)
            for i, s, d, k in zip(at, stride, dilation, size, strict=True)
        )
        out.append(x[(slice(None), slice(None), *cut)].reshape(x.shape[0], -1))
    return np.stack(out, -1)


@settings(max_examples=20)
@given(windowed())
def test_unfold_and_fold(c: Case) -> None:
    x = random(1, *c["x"])
    want = columns(x, c["steps"])
    got = nd.unfold(nd.array(x), *c["steps"])
    np.testing.assert_array_equal(got.numpy(), want)
    # The adjoint: <unfold(x), y> = <x, fold(y)>.
    y = random(2, *want.shape)
    back = nd.fold(nd.array(y), c["spatial"], *c["steps"])
    assert back.shape == x.shape
    np.testing.assert_allclose((want * y).sum(), (x * back.numpy()).sum(), 1e-10)
    if len(c["spatial"]) == 2:
        agree(back, functional.fold(torch.tensor(y), c["spatial"], *c["steps"]))


def test_fold_is_one_kernel() -> None:
    assert kernels(lambda x: nd.fold(x, (8, 8), 3, 1, 1, 2), nd.ones((2, 36, 16))) == 1


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
def test_overlap_add_is_the_adjoint_of_windows(
    size: int, stride: int, dilation: int, more: int
) -> None:
    length = dilation * (size - 1) + 1 + 2 * stride + more
    x = random(1, 3, length, 2)
    seen = nd.windows(nd.array(x), 1, size, stride, dilation)
    y = random(2, *map(int, seen.shape))
    back = nd.overlap_add(nd.array(y), 1, length, stride, dilation).numpy()
    np.testing.assert_allclose((seen.numpy() * y).sum(), (x * back).sum(), 1e-10)


# ---- padding


@settings(max_examples=20)
@given(
    st.sampled_from((("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))),
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(-2, 4), st.integers(-2, 4)), min_size=1, max_size=3
    ),
)
def test_padding_modes(mode: tuple[str, str], axes: list[tuple[int, int, int]]) -> None:
    ours, numpys = mode
    shape = tuple(n for n, _, _ in axes)
    x = random(1, *shape)
    cropped, widths, inner = x, [], []
    for a, (n, low, high) in enumerate(axes):
        if n + min(low, 0) + min(high, 0) < 1:
            low = high = 0
        rest = n + min(low, 0) + min(high, 0)
        most = {"reflect": rest - 1, "circular": rest}.get(ours, 9)
        low, high = min(low, most), min(high, most)
        widths.append((low, high))
        inner.append((max(low, 0), max(high, 0)))
        cropped = np.take(cropped, range(max(-low, 0), n - max(-high, 0)), a)
    got = nd.pad(nd.array(x), widths, mode=ours)
    np.testing.assert_array_equal(got.numpy(), np.pad(cropped, inner, mode=numpys))  # type: ignore[call-overload]


def test_padding_is_one_kernel() -> None:
    widths = [(0, 0), (0, 0), (1, 2), (2, 1)]
    for mode in ("constant", "reflect", "replicate", "circular"):
        assert kernels(lambda x, m=mode: nd.pad(x, widths, mode=m) * 2, nd.ones((2, 3, 8, 9))) == 1


# ---- errors

x = nd.ones((2, 4, 6, 6))
w = nd.ones((8, 4, 3, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nd.conv2d(x, nd.ones((8, 3, 3, 3))), r"conv2d: .*\(8, 3, 3, 3\).*\(2, 4, 6, 6\)"),
        (lambda: nd.conv1d(x, nd.ones((8, 4, 3))), r"conv1d: needs 3 axes.*\(2, 4, 6, 6\)"),
        (lambda: nd.conv2d(x, nd.ones((8, 4, 3))), r"conv2d: the weight.*\(8, 4, 3\)"),
        (lambda: nd.conv2d(x, w, nd.ones(4)), r"conv2d: the bias needs shape \(8,\), not \(4,\)"),
        (lambda: nd.conv2d(x, w, groups=3), r"conv2d: 3 groups.*\(8, 4, 3, 3\)"),
        (lambda: nd.conv2d(x, nd.ones((8, 4, 9, 3))), r"conv2d: windows of \(9, 3\).*\(6, 6\)"),
        (lambda: nd.conv2d(x, w, stride=0), r"conv2d: .*stride \(0, 0\).*positive"),
        (lambda: nd.conv2d(x, w, stride=(1, 1, 1)), r"conv2d: stride \(1, 1, 1\) is for 3 axes"),
        (lambda: nd.conv2d(x, w, padding="full"), r"conv2d: padding .*'full'"),
        (lambda: nd.conv2d(x, w, stride=2, padding="same"), r"'same' needs stride 1"),
        (lambda: nd.conv_transpose2d(x, nd.ones((4, 8, 3, 3)), output_padding=1), "output_padding"),
        (lambda: nd.conv_transpose2d(x, nd.ones((4, 8, 1, 1)), padding=4), r"leave.*\(-2, -2\)"),
        (lambda: nd.convolution_input_gradient(x, w, (2, 4, 6, 6)), r"need 8 channels"),
        (lambda: nd.convolution_weight_gradient(x, x, (4, 4, 3, 3)), "convolution_weight_gradient"),
        (lambda: nd.fold(nd.ones((1, 9, 5)), (4, 4), 3), r"fold: columns.*\(1, 9, 5\)"),
        (lambda: nd.overlap_add(nd.ones((3, 4)), 0, 5), "overlap_add: .*reach over 6"),
        (lambda: nd.pad(nd.ones(3), [(3, 0)], mode="reflect"), "pad: .*at most 2"),
        (lambda: nd.pad(nd.ones(3), [(-2, -2)], mode="circular"), "pad: .*cut more off"),
        (lambda: nd.pad(nd.ones(3), [(1, 1)], mode="mirror"), "pad: no mode 'mirror'"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
