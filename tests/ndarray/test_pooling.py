"""Pooling against PyTorch: every combination of edges, and every schedule of some of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import interpreted
from torch.nn import functional

import genesis
from genesis import ndarray as nd
from genesis.backends.base import Chip
from genesis.compiler import using
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.lower import lower
from genesis.compiler.program.program import results
from genesis.ir import ops
from genesis.ir.node import Leaf, Node, node, topological
from genesis.ndarray import NDArray
from genesis.ndarray.core.ndarray import wrap
from tests.compiler.test_schedule import STEPS, check_step

MAX = (nd.max_pool1d, nd.max_pool2d, nd.max_pool3d)
AVERAGE = (nd.avg_pool1d, nd.avg_pool2d, nd.avg_pool3d)
TORCH_MAX = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
TORCH_AVERAGE = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def random(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def agree(got: Any, want: Any) -> None:
    if isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            agree(g, w)
        return
    assert got.shape == tuple(want.shape)
    tolerance = 1e-12 if want.dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(got.numpy(), want.numpy(), tolerance, tolerance)


def kernels(function: Callable[..., Any], *args: NDArray) -> int:
    return len(genesis.explain(function, *args).kernels)


@st.composite
def windowed(draw: st.DrawFn, dilated: bool) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """The number of spatial axes, a shape, and parameters PyTorch accepts."""
    rank = draw(st.sampled_from((1, 2, 3)))
    size, stride, dilation, spatial, padding = [], [], [], [], []
    for _ in range(rank):
        size.append(draw(st.integers(1, 3)))
        stride.append(draw(st.integers(1, 3)))
        dilation.append(draw(st.integers(1, 2)) if dilated else 1)
        padding.append(draw(st.integers(0, size[-1] // 2)))
        reach = dilation[-1] * (size[-1] - 1) + 1
        least = max(1, reach - 2 * padding[-1]) if dilated else reach  # for PyTorch's 3-d means
        spatial.append(least + draw(st.integers(0, 5)))
    lead = draw(st.sampled_from(((2, 3), (3,), (0, 2))))
    given = {"kernel_size": size, "stride": stride, "padding": padding}
    given["ceil_mode"] = draw(st.booleans())
    if dilated:
        given["dilation"] = dilation
    return rank, (*lead, *spatial), given


# ---- greatest elements


@settings(max_examples=25)
@given(windowed(dilated=True), st.booleans(), st.sampled_from((np.float32, np.float64)))
def test_max_pool(case: Any, ties: bool, dtype: Any) -> None:
    rank, shape, given = case
    x = random(*shape, dtype=dtype)
    if ties:  # and windows of nothing but -inf
        x = np.where(np.abs(x) < 1, np.round(x), -np.inf).astype(dtype)
    tx = torch.tensor(x)
    agree(MAX[rank - 1](nd.array(x), **given), TORCH_MAX[rank - 1](tx, **given))
    both = TORCH_MAX[rank - 1](tx, **given, return_indices=True)
    agree(MAX[rank - 1](nd.array(x), **given, return_indices=True), both)


def test_max_pool_of_nan() -> None:
    """NaN is greatest, wherever it stands; the first one is the one that is found."""
    x = np.zeros((1, 1, 4, 6))
    x[0, 0, 1, 1] = x[0, 0, 2, 3] = x[0, 0, 3, 2] = np.nan
    best, at = nd.max_pool2d(nd.array(x), 2, return_indices=True)
    np.testing.assert_array_equal(best.numpy(), functional.max_pool2d(torch.tensor(x), 2).numpy())
    assert at.tolist() == [[[[7, 2, 4], [12, 15, 16]]]]


def test_max_pool_of_integers() -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63, (2, 5, 5))
    x[0, :3] = -(2**63)
    want = functional.max_pool2d(torch.tensor(x), 3, 2, 1)
    np.testing.assert_array_equal(nd.max_pool2d(nd.array(x), 3, 2, 1).numpy(), want.numpy())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_unpool(rank: int) -> None:
    x = torch.tensor(random(2, 3, 7, 7, 5)[(slice(None),) * (2 + rank) + (0,) * (3 - rank)])
    for size, stride in ((2, None), (3, 2)):  # side by side, and overlapping
        best, at = TORCH_MAX[rank - 1](x, size, stride, return_indices=True)
        unpool = (nd.max_unpool1d, nd.max_unpool2d, nd.max_unpool3d)[rank - 1]
        torchs = getattr(functional, f"max_unpool{rank}d")
        got = partial(unpool, nd.array(best.numpy()), nd.array(at.numpy()), size, stride)
        agree(got(output_size=x.shape[2:]), torchs(best, at, size, stride, output_size=x.shape[2:]))
        if stride:
            agree(got(), torchs(best, at, size, stride))


# ---- means


@settings(max_examples=25)
@given(windowed(dilated=False), st.booleans(), st.sampled_from((np.float32, np.float64)))
def test_avg_pool(case: Any, count_include_pad: bool, dtype: Any) -> None:
    rank, shape, given = case
    x = random(*shape, dtype=dtype)
    given["count_include_pad"] = count_include_pad
    agree(
        AVERAGE[rank - 1](nd.array(x), **given), TORCH_AVERAGE[rank - 1](torch.tensor(x), **given)
    )


PADDINGS = (0, 1, (1, 0, 1))
EDGES = list(product(PADDINGS, (False, True), (False, True), (None, 5)))


def graph(x: NDArray) -> tuple[Node, list[np.ndarray], list[Any]]:
    """An array's pending graph for the compiler, its buffers and its scalars."""
    order = topological([x.value])
    nodes: dict[Any, Node] = {}
    buffers, scalars = [], []
    for v in order:
        if v.memory is not None:
            nodes[v] = node(ops.BUFFER, (), Leaf(len(buffers), v.strides), v.dtype, v.shape)
            buffers.append(v)
        elif v.op is ops.SCALAR:
            nodes[v] = node(ops.SCALAR, (), len(scalars), v.dtype)
            scalars.append(v.attr)
        else:
            nodes[v] = node(v.op, tuple(nodes[i] for i in v.inputs), v.attr, v.dtype, v.shape)
    return nodes[x.value], [wrap(v).numpy() for v in buffers], scalars


CHIPS = (
    Chip("narrow", 16, 8, 1 << 10, 1 << 12),
    Chip("middle", 32, 16, 1 << 15, 1 << 18),
    Chip("wide", 64, 32, 32 << 10, 1 << 20),
)


def edge_id(edge: Any) -> str:
    padding, ceil, inside, divisor = edge
    return f"{padding}{'-ceil' * ceil}{'-inside' * (not inside)}{'-divisor' * bool(divisor)}"


@pytest.mark.parametrize("edge", EDGES, ids=edge_id)
def test_avg_pool3d_with_every_edge_and_switch(edge: Any) -> None:
    padding, *rest = edge
    x = random(2, 4, 5, 39, dtype=np.float32)  # rows of a vector and a rest
    want = functional.avg_pool3d(torch.tensor(x), 3, 2, padding, *rest)
    switches: list[dict[str, bool]] = [{}, {"schedule": False}, {"fuse": False, "simplify": False}]
    for switch in switches:
        with using(**switch):
            agree(nd.avg_pool3d(nd.array(x), 3, 2, padding, *rest), want)


@pytest.mark.parametrize("edge", EDGES[2::5], ids=edge_id)
def test_avg_pool3d_on_every_chip(edge: Any) -> None:
    padding, *rest = edge
    x = random(1, 2, 3, 21, dtype=np.float32)
    want = functional.avg_pool3d(torch.tensor(x), (2, 2, 3), 2, padding, *rest)
    pooled = nd.avg_pool3d(nd.array(x).realize(), (2, 2, 3), 2, padding, *rest)
    root, buffers, scalars = graph(pooled)
    for chip in CHIPS:
        (got,) = interpreted([root], buffers, scalars, chip=chip, order="shuffle")
        np.testing.assert_allclose(got.reshape(want.shape), want.numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
def test_avg_pool3d_after_every_step(step: Any) -> None:
    """Each scheduling step, wherever it applies, is proven and changes nothing."""
    x = nd.array(random(1, 2, 2, 8, dtype=np.float32)).realize()
    edges = {"padding": 1, "ceil_mode": True, "count_include_pad": False}
    root, _, _ = graph(nd.avg_pool3d(x, 2, (3, 2, 2), **edges))
    fusion = fuse(results(simplify([root])))
    (group,) = fusion.groups
    kernel = lower(group, fusion.stored).kernel
    for after in step(kernel):
        check_step(kernel, after)


def test_poolings_are_single_kernels() -> None:
    x = nd.ones((2, 3, 12, 12))
    assert kernels(lambda x: nd.max_pool2d(x, 3, 2, 1), x) == 1
    assert kernels(lambda x: nd.max_pool2d(x, 3, 2, 1, return_indices=True), x) == 1
    assert kernels(lambda x: nd.avg_pool2d(x, 3, 2, 1, True, False), x) == 1
    assert kernels(lambda x: nd.adaptive_avg_pool2d(x, 4), x) == 1
    assert kernels(lambda x: nd.lp_pool2d(x, 2, 3), x) == 1


@pytest.mark.parametrize("norm", [1, 2, 3, float("inf"), -float("inf")])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_lp_pool(norm: float, rank: int) -> None:
    x = np.abs(random(2, 7, 6, 5)[(slice(None),) * (1 + rank) + (0,) * (3 - rank)])
    got = (nd.lp_pool1d, nd.lp_pool2d, nd.lp_pool3d)[rank - 1](nd.array(x), norm, 3, 2, True)
    tx = torch.tensor(x)
    agree(got, getattr(functional, f"lp_pool{rank}d")(tx, norm, 3, 2, True))


def test_local_response_norm() -> None:
    x = random(2, 5, 4, 3)
    for size in (1, 2, 5):
        want = functional.local_response_norm(torch.tensor(x), size, 0.1, 0.5, 2.0)
        agree(nd.local_response_norm(nd.array(x), size, 0.1, 0.5, 2.0), want)


# ---- unequal windows


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 8)), min_size=1, max_size=3))
def test_adaptive_pool(axes: list[tuple[int, int]]) -> None:
    rank = len(axes)
    x = random(2, 2, *(n for n, _ in axes))
    out = tuple(o for _, o in axes)
    average = getattr(functional, f"adaptive_avg_pool{rank}d")(torch.tensor(x), out)
    best = getattr(functional, f"adaptive_max_pool{rank}d")(torch.tensor(x), out, True)
    agree(getattr(nd, f"adaptive_avg_pool{rank}d")(nd.array(x), out), average)
    agree(getattr(nd, f"adaptive_max_pool{rank}d")(nd.array(x), out, return_indices=True), best)
    agree(getattr(nd, f"adaptive_max_pool{rank}d")(nd.array(x), out), best[0])


def test_adaptive_pool_keeps_axes() -> None:
    x = random(3, 5, 4)  # no batch
    want = functional.adaptive_avg_pool2d(torch.tensor(x), (2, None))
    agree(nd.adaptive_avg_pool2d(nd.array(x), (2, None)), want)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_max_pool(rank: int) -> None:
    x = random(2, 3, 9, 8, 7)[(slice(None),) * (2 + rank) + (0,) * (3 - rank)]
    u = np.random.default_rng(0).random((2, 3, rank))
    size, out = (2, 3, 2)[:rank], (4, 1, 5)[:rank]
    given = {"output_size": out, "return_indices": True}
    pool = getattr(nd, f"fractional_max_pool{rank}d")
    got = pool(nd.array(x), size, **given, random_samples=nd.array(u))
    torchs = getattr(functional, f"fractional_max_pool{rank}d")
    agree(got, torchs(torch.tensor(x), size, **given, _random_samples=torch.tensor(u)))
    drawn = pool(nd.array(x[0]), size, output_ratio=0.5)  # no batch, samples of its own
    assert drawn.shape == (3, *(n // 2 for n in x.shape[2:]))
    assert np.isin(drawn.numpy(), x[0]).all()


x = nd.ones((2, 4, 6, 6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nd.max_pool2d(x, 3, padding=2), ValueError, "max_pool2d: padding .* at most half"),
        (lambda: nd.max_pool2d(x, 7), ValueError, r"max_pool2d: .*\(7, 7\).*\(2, 4, 6, 6\)"),
        (lambda: nd.max_pool1d(x, 2), ValueError, r"max_pool1d: needs 3 axes.*\(2, 4, 6, 6\)"),
        (lambda: nd.avg_pool2d(x, (2, 2, 2)), ValueError, r"avg_pool2d: kernel_size \(2, 2, 2\)"),
        (lambda: nd.avg_pool2d(x, 2, divisor_override=0), ValueError, "avg_pool2d: divisor"),
        (lambda: nd.avg_pool2d(x.astype(genesis.int32), 2), TypeError, "avg_pool2d: .*int32"),
        (lambda: nd.max_unpool2d(x, x, 2), ValueError, "max_unpool: .*float32"),
        (lambda: nd.adaptive_avg_pool2d(x, 0), ValueError, r"adaptive_avg_pool2d: .*\(2, 4, 6"),
        (lambda: nd.adaptive_max_pool2d(x, (1, 2, 3)), ValueError, "adaptive_max_pool2d: cannot"),
        (lambda: nd.fractional_max_pool2d(x, 3, 5), ValueError, r"\(5, 5\) windows of \(3, 3\)"),
        (lambda: nd.fractional_max_pool2d(x, 3), ValueError, "give output_size or output_ratio"),
        (lambda: nd.local_response_norm(nd.ones(3), 2), ValueError, r"local_response.*\(3,\)"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
