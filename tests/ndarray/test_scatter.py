"""Scatters: every mode against PyTorch, their kernels, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.runtime import runtime
from genesis.ir import ops


def same(got: nd.NDArray, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert got.dtype.name == str(want.dtype).removeprefix("torch.")
    assert got.shape == tuple(want.shape)
    if want.dtype in (torch.bfloat16, torch.float16):
        got, want = got.astype("float32"), want.float()
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=tolerance, atol=tolerance)


@st.composite
def scatters(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The shape of an array, of positions in it, and the axis they are along."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    axis = draw(st.integers(0, len(shape) - 1))
    index = [draw(st.integers(0, extent)) for extent in shape]
    index[axis] = draw(st.integers(0, 7))
    return shape, tuple(index), axis


@settings(max_examples=40)
@given(scatters(), st.sampled_from(["float32", "int64", "bfloat16"]), st.integers(0, 99))
def test_scatter_family(
    case: tuple[tuple[int, ...], tuple[int, ...], int], dtype: str, seed: int
) -> None:
    shape, at, axis = case
    numbers = np.random.default_rng(seed)
    kind = getattr(torch, dtype)
    t = torch.tensor(numbers.integers(-4, 5, shape)).to(kind)
    src = torch.tensor(numbers.integers(-3, 4, [n + 1 for n in at])).to(kind)
    index = torch.tensor(numbers.integers(0, shape[axis], at))
    x, new, where = (nd.array(v.float().numpy()).astype(dtype) for v in (t, src, index))
    where = nd.array(index.numpy())
    same(nd.gather(x, where, axis), t.gather(axis, index))
    same(nd.scatter_add(x, where, new, axis), t.scatter_add(axis, index, src))
    same(
        nd.scatter(x, where, 9, axis, reduce="multiply"),
        t.scatter(axis, index, 9, reduce="multiply"),
    )
    for reduce in ("sum", "prod", "amax", "amin", "mean"):
        for include in (True, False):
            want = t.scatter_reduce(axis, index, src, reduce, include_self=include)
            same(nd.scatter_reduce(x, where, new, axis, reduce, include), want, 1e-2)
    # PyTorch leaves open which of several updates stays: here it is the last one.
    expected = t.float().numpy().copy()
    for place in np.ndindex(*at):
        there = (*place[:axis], int(index[place]), *place[axis + 1 :])
        expected[there] = src[place].item()
    same(nd.scatter(x, where, new, axis), torch.tensor(expected).to(kind))


@pytest.mark.filterwarnings("ignore:index_reduce")
@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 7),
    st.integers(0, 99),
)
def test_index_family(extents: list[int], axis: int, count: int, seed: int) -> None:
    shape, axis = tuple(extents), axis % len(extents)
    numbers = np.random.default_rng(seed)
    t = torch.tensor(numbers.standard_normal(shape)).float()
    index = torch.tensor(numbers.integers(0, shape[axis], count))
    src = torch.tensor(numbers.standard_normal((*shape[:axis], count, *shape[axis + 1 :]))).float()
    x, where, new = (nd.array(v.numpy()) for v in (t, index, src))
    same(nd.index_select(x, where, axis), t.index_select(axis, index))
    same(nd.index_add(x, where, new, axis, alpha=0.5), t.index_add(axis, index, src, alpha=0.5))
    same(nd.index_fill(x, where, 7, axis), t.index_fill(axis, index, 7))
    for reduce in ("prod", "amax", "amin", "mean"):
        want = t.index_reduce(axis, index, src, reduce, include_self=False)
        same(nd.index_reduce(x, where, new, reduce, axis, include_self=False), want)
    once = torch.tensor(numbers.permutation(shape[axis])[:count])
    part = src.narrow(axis, 0, len(once))
    want = t.index_copy(axis, once, part)
    same(nd.index_copy(x, nd.array(once.numpy()), nd.array(part.numpy()), axis), want)


def test_flat_and_single_parts(rng: np.random.Generator) -> None:
    t = torch.tensor(rng.standard_normal((3, 4, 5))).float()
    x = nd.array(t.numpy())
    index = torch.tensor([[0, -1], [17, 17]])
    where, new = nd.array(index.numpy()), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    same(nd.take(x, where), t.take(index))
    same(nd.put(x, where, nd.array(new.numpy()), accumulate=True), t.put(index, new, True))
    expected = t.clone().reshape(-1)
    expected[0], expected[-1], expected[17] = 1.0, 2.0, 4.0
    same(nd.put(x, where, nd.array(new.numpy())), expected.reshape(3, 4, 5))
    same(nd.select(x, -1, 1), t.select(1, -1))
    same(nd.select_scatter(x, nd.zeros((3, 5)), 2, 1), t.select_scatter(torch.zeros(3, 5), 1, 2))
    part = torch.ones(3, 2, 5)
    want = t.slice_scatter(part, 1, 0, 4, 2)
    same(nd.slice_scatter(x, nd.array(part.numpy()), 1, 0, 4, 2), want)
    for offset in (-1, 0, 2):
        for first, second in ((0, 1), (2, 0)):
            part = torch.full_like(t.diagonal(offset, first, second), 9.0)
            got = nd.diagonal_scatter(x, nd.array(part.numpy()), offset, first, second)
            same(got, t.diagonal_scatter(part, offset, first, second))
    along = rng.integers(-4, 4, (1, 2, 5))
    want = np.take_along_axis(t.numpy(), along, 1)
    np.testing.assert_array_equal(nd.take_along_axis(x, nd.array(along), 1), want)


def test_segments_and_counts(rng: np.random.Generator) -> None:
    ids = rng.integers(0, 6, 50)
    ids[ids == 4] = 2  # an empty segment
    rows = rng.standard_normal((50, 3)).astype(np.float32)
    x, labels = nd.array(rows), nd.array(ids)
    groups = [rows[ids == k] for k in range(6)]
    wanted: dict[str, Any] = {
        "segment_sum": [g.sum(0) for g in groups],
        "segment_mean": [g.mean(0) if len(g) else np.zeros(3) for g in groups],
        "segment_max": [g.max(0) if len(g) else np.full(3, -np.inf) for g in groups],
        "segment_min": [g.min(0) if len(g) else np.full(3, np.inf) for g in groups],
    }
    for name, want in wanted.items():
        np.testing.assert_allclose(getattr(nd, name)(x, labels, 6), np.stack(want), 1e-5, 1e-5)
    t = torch.tensor(ids)
    same(nd.bincount(labels), torch.bincount(t))
    same(nd.bincount(labels, minlength=9), torch.bincount(t, minlength=9))
    weights = torch.tensor(rows[:, 0])
    same(nd.bincount(labels, nd.array(weights.numpy())), torch.bincount(t, weights))
    assert nd.bincount(nd.array(np.zeros(0, np.int64))).shape == (0,)
    same(nd.one_hot(labels), torch.nn.functional.one_hot(t))
    same(nd.one_hot(labels.reshape(5, 10), 8), torch.nn.functional.one_hot(t.reshape(5, 10), 8))
    with pytest.raises(ValueError, match="bincount: numbers must not be negative, got -1"):
        nd.bincount(nd.array([3, -1]))
    with pytest.raises(RuntimeError, match="one_hot: the size of the result depends on data"):
        genesis.jit(nd.one_hot)(labels)


def test_embedding_and_its_gradient(rng: np.random.Generator) -> None:
    table = torch.tensor(rng.standard_normal((11, 6)).astype(np.float32), requires_grad=True)
    tokens = torch.tensor(rng.integers(0, 11, (4, 9)))
    index = nd.array(tokens.numpy())
    for padding in (None, 3):
        table.grad = None
        found = torch.nn.functional.embedding(tokens, table, padding_idx=padding)
        same(nd.embedding(nd.array(table.detach().numpy()), index), found.detach())
        flow = torch.tensor(rng.standard_normal(found.shape).astype(np.float32))
        found.backward(flow)
        got = nd.embedding_gradient(nd.array(flow.numpy()), index, 11, padding_idx=padding)
        same(got, table.grad)


# ---- kernels


@pytest.mark.parametrize("mode", ["add", "mul", "max", "min"])
def test_chunks_combine_in_a_fixed_order(mode: str, rng: np.random.Generator) -> None:
    """Many updates of few elements are cut into chunks; every number of threads gives the same."""
    count, size = 60_000, 37
    index = rng.integers(0, size, count)
    updates = rng.uniform(0.999, 1.001, count).astype(np.float32)
    base = rng.standard_normal(size).astype(np.float32)
    base[3] = -0.0
    index[index == 3] = 4
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    call = genesis.jit(lambda x, i, u: nd.scatter_reduce(x, i, u, 0, names[mode]))
    arguments = [nd.array(v) for v in (base, index, updates)]
    before = runtime.get_num_threads()
    bits = set()
    try:
        for threads in (1, 2, 3):
            runtime.set_num_threads(threads)
            bits.add(call(*arguments).numpy().tobytes())
    finally:
        runtime.set_num_threads(before)
    assert len(bits) == 1
    want = base.astype(np.float64)
    function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[mode]
    function.at(want, index, updates.astype(np.float64))
    got = np.frombuffer(bits.pop(), np.float32)
    np.testing.assert_allclose(got, want, 1e-4)
    assert np.signbit(got[3])  # untouched, down to its sign


def test_half_precisions_accumulate_in_float32() -> None:
    for dtype in ("float16", "bfloat16"):
        got = nd.index_add(nd.zeros(2, dtype), nd.zeros(3000, "int64"), nd.ones(3000, dtype))
        assert got.tolist() == [nd.full((), 3000, dtype).item(), 0]


def test_scattered_rows_are_owned_by_columns(rng: np.random.Generator) -> None:
    """Wide rows: blocks own columns, and the base is written once, by the same kernel."""
    index = rng.integers(0, 50, 300)
    updates = rng.standard_normal((300, 130)).astype(np.float32)
    call = genesis.jit(lambda i, u: nd.embedding_gradient(u * 2, i, 50))
    given = nd.array(index, device="cpu"), nd.array(updates, device="cpu")  # GPUs sort the rows
    got = call(*given)
    want = np.zeros((50, 130))
    np.add.at(want, index, updates.astype(np.float64) * 2)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)
    program = call.recording(*given)[0].program
    kernels = [step.built.kernel for step in program.steps if "scatter" in step.built.kernel.name]
    (kernel,) = kernels
    assert [b.role.value for b in kernel.buffers] == ["in", "in", "out"]
    assert len(kernel.phases) == 2 and kernel.phases[1].grid


def test_a_block_fills_the_rows_that_it_updates(rng: np.random.Generator) -> None:
    base = rng.standard_normal((101, 203), np.float32)
    index = rng.integers(-203, 203, (101, 77))
    source = rng.standard_normal((101, 77), np.float32)
    arrays = [nd.array(a, device="cpu") for a in (base, index, source)]

    def added(base: nd.NDArray, index: nd.NDArray, source: nd.NDArray) -> nd.NDArray:
        return nd.scatter_add(base, index, source, 1)

    kernels = genesis.explain(added, *arrays).kernels
    (scatter,) = (k.scheduled for k in kernels if "scatter" in k.name)
    assert "barrier" not in scatter
    want = [torch.from_numpy(a) for a in (base, index % 203, source)]
    same(added(*arrays), want[0].scatter_add(1, *want[1:]))


@pytest.mark.parametrize("count", (8, 131))
def test_rows_are_gathered_side_by_side(count: int, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((57, 83), np.float32)
    tokens = rng.integers(-57, 57, count)
    got = genesis.jit(lambda w, t: w[t])(nd.array(weight), nd.array(tokens))
    np.testing.assert_array_equal(got.numpy(), weight[tokens])


def test_scatter_nodes_drop_what_is_outside() -> None:
    from genesis.ir.dtype import float32, int64
    from genesis.ir.evaluate import evaluate
    from genesis.ir.node import Leaf, node

    leaves = [
        node(ops.BUFFER, (), Leaf(k, strides), dtype, shape)
        for k, (strides, dtype, shape) in enumerate(
            [
                ((4, 1), float32, (3, 4)),
                ((1,), int64, (5,)),
                ((1,), int64, (5,)),
                ((1,), float32, (5,)),
            ]
        )
    ]
    x, rows, columns = (
        np.zeros(12, np.float32),
        np.array([0, 3, 2, -1, 0]),
        np.array([1, 0, 4, 0, 1]),
    )
    new = np.array([1, 2, 3, 4, 5], np.float32)
    for mode, want in (("set", 5.0), ("add", 6.0), ("max", 5.0), ("mul", 0.0)):
        n = node(ops.SCATTER, tuple(leaves), ((0, 1), mode), float32, (3, 4))
        (got,) = evaluate([n], [x, rows, columns, new], [])
        assert got[0, 1] == want and got.sum() == want
