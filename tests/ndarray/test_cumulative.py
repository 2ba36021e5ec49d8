"""Running results: cumulative sums, extremes and general merges, against PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import interpreted

import genesis
from genesis import ndarray as nd
from genesis.backends.base import Chip
from genesis.backends.cpu.runtime import runtime
from genesis.compiler.schedule.cpu.prefix import CHUNK
from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.kernel import Kernel, Scan, walk
from genesis.ir.node import Leaf, Node, Prefix, const, elementwise, node
from genesis.ir.size import Size

# Rows that end inside a vector, inside a tile, at the end of one; no row, no elements.
SHAPES = [
    (0,),
    (1,),
    (5,),
    (64,),
    (203,),
    (3, 70),
    (70, 3),
    (33, 40),
    (2, 7, 19),
    (3, 0),
    (4, 1, 6),
]
INTEGERS = ["bool", "uint8", "int16", "int32", "int64"]


def some(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Values with ties; integers reach the ends of their type."""
    kind = np.dtype(dtype).kind
    if kind == "f":
        return (rng.integers(-20, 21, shape) / 8).astype(dtype)
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    return rng.choice([info.min, info.max, 0, 1, 3], shape).astype(dtype)


def axes(shape: tuple[int, ...]) -> list[int]:
    return [*range(len(shape)), -1]


# ---- folds


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_products(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    for dtype in ("float32", "float64", *INTEGERS):
        x = some(shape, dtype, rng)
        a, t = nd.array(x), torch.from_numpy(x)
        for axis in axes(shape):
            got, want = nd.cumsum(a, axis).numpy(), t.cumsum(axis).numpy()
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)  # multiples of 1/8: every sum is exact
        got, want = nd.cumprod(a, -1).numpy(), t.cumprod(-1).numpy()
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, 1e-5 if dtype == "float32" else 1e-12)


def test_complex_numbers(rng: np.random.Generator) -> None:
    x = np.exp(1j * rng.standard_normal((3, 80)))
    for axis in (0, 1):
        got = nd.cumsum(nd.array(x), axis).numpy(), nd.cumprod(nd.array(x), axis).numpy()
        np.testing.assert_allclose(got[0], np.cumsum(x, axis), 1e-12)
        np.testing.assert_allclose(got[1], np.cumprod(x, axis), 1e-12)
    with pytest.raises(TypeError, match="cummax: complex128 numbers have no order"):
        nd.cummax(nd.array(x), 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precisions_are_carried_in_float32(dtype: str) -> None:
    # In half precision 0.25 would be lost against 2048 and the sum would stop growing.
    x = np.full(20_000, 0.25, np.float32)
    got = nd.cumsum(nd.array(x).astype(dtype), 0)
    assert got.dtype is dtypes.as_dtype(dtype)
    exact = nd.array(np.cumsum(x)).astype(dtype)
    np.testing.assert_array_equal(got.astype("float32").numpy(), exact.astype("float32").numpy())


@pytest.mark.parametrize("shape", SHAPES)
def test_running_extremes_and_where_they_are(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    for dtype in ("float32", "float64", "bool", "uint8", "int64"):
        x = some(shape, dtype, rng)
        if dtype == "float32":
            wild = rng.choice([np.nan, np.inf, -np.inf, -0.0], shape).astype(dtype)
            x = np.where(rng.random(shape) < 0.05, wild, x)
        for axis in {0, -1}:
            for ours, theirs in ((nd.cummax, torch.cummax), (nd.cummin, torch.cummin)):
                got, want = ours(nd.array(x), axis), theirs(torch.from_numpy(x), axis)
                assert got.values.dtype.numpy == x.dtype and got.indices.dtype is dtypes.int64
                np.testing.assert_array_equal(got.values.numpy(), want.values.numpy())
                np.testing.assert_array_equal(got.indices.numpy(), want.indices.numpy())


@pytest.mark.parametrize("shape", [(0,), (1,), (203,), (7, 40), (40, 7)])
def test_logcumsumexp(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    plain = rng.standard_normal(shape).astype(np.float32) * 100
    wild = np.where(rng.random(shape) < 0.1, rng.choice([np.inf, -np.inf], shape), plain)
    for x in (plain, wild.astype(np.float32), np.full(shape, -np.inf, np.float32)):
        for axis in axes(shape):
            got = nd.logcumsumexp(nd.array(x), axis).numpy()
            want = torch.logcumsumexp(torch.from_numpy(x).double(), axis).numpy()
            np.testing.assert_allclose(got, want, 2e-6, 1e-6)


def test_logcumsumexp_neither_overflows_nor_loses_nan() -> None:
    x = np.array([-1000, 0, 1000, np.nan, 1], np.float64)
    got = nd.logcumsumexp(nd.array(x), 0).numpy()
    np.testing.assert_array_equal(got, [-1000, 0, 1000, np.nan, np.nan])


def test_infinities_and_nan_stay_where_they_begin() -> None:
    x = np.ones(100, np.float32)
    x[40], x[70] = np.inf, -np.inf
    for nan in (99, 20):
        x[nan] = np.nan
        want = torch.from_numpy(x).cumsum(0).numpy()
        np.testing.assert_array_equal(nd.cumsum(nd.array(x), 0).numpy(), want)


def test_scalars_are_their_own_prefix() -> None:
    assert nd.cumsum(nd.array(3.0), 0).item() == 3.0
    assert nd.cumprod(nd.array(True), -1).dtype is dtypes.int64
    assert [a.item() for a in nd.cummin(nd.array(3.0), 0)] == [3.0, 0]
    assert nd.logcumsumexp(nd.array(3.0), 0).item() == 3.0


@settings(max_examples=30)
@given(st.data())
def test_views(data: st.DataObject) -> None:
    """Transposed, strided, reversed, broadcast: whatever the layout."""
    x = np.arange(2 * 34 * 33, dtype=np.float32).reshape(2, 34, 33) % 17
    order = data.draw(st.permutations(range(3)))
    step = data.draw(st.sampled_from([1, 2, -1]))
    axis = data.draw(st.integers(0, 2))
    a = nd.array(x).permute(*order)
    x = x.transpose(order)
    if step < 0:
        a, x = nd.flip(a, 1), x[:, ::-1]
    else:
        a, x = a[:, ::step], x[:, ::step]
    np.testing.assert_array_equal(nd.cumsum(a, axis).numpy(), np.cumsum(x, axis))


# ---- long rows


@pytest.mark.parametrize(
    "shape, axis", [((9 * CHUNK + 77,), 0), ((CHUNK, 9), 0), ((2, 3 * CHUNK), 1)]
)
def test_long_rows_in_chunks(shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> None:
    x = rng.integers(-8, 9, shape).astype(np.float32)
    a = nd.array(x)
    np.testing.assert_array_equal(nd.cumsum(a, axis).numpy(), np.cumsum(x, axis))
    got, want = nd.cummax(a, axis), torch.cummax(torch.from_numpy(x), axis)
    np.testing.assert_array_equal(got.indices.numpy(), want.indices.numpy())
    noise = rng.standard_normal(shape).astype(np.float32)
    bits = []
    threads = runtime.get_num_threads()
    for count in (1, 2):
        runtime.set_num_threads(count)
        bits.append(nd.cumsum(nd.array(noise), axis).numpy())
    runtime.set_num_threads(threads)
    assert bits[0].tobytes() == bits[1].tobytes(), "threads changed bits"
    exact = np.cumsum(noise.astype(np.float64), axis)
    np.testing.assert_allclose(bits[0], exact, 0, 4e-6 * np.abs(exact).max())


def test_the_phases_of_a_long_row_may_have_vectors_of_different_widths() -> None:
    x = np.arange(5 * CHUNK, dtype=np.float32) % 3
    got = nd.cumsum(nd.array(x), 0).astype("float64").numpy()
    np.testing.assert_array_equal(got, np.cumsum(x))


def test_symbolic_sizes() -> None:
    f = genesis.jit(lambda x: (nd.cumsum(x, 0), nd.cummax(x, 0).indices))
    for n in (5, 1, 64, 1000, 5 * CHUNK + 3):
        x = (np.arange(n, dtype=np.float32) * 7) % 5
        sums, where = f(nd.array(x))
        np.testing.assert_array_equal(sums.numpy(), np.cumsum(x))
        want = torch.cummax(torch.from_numpy(x), 0).indices
        np.testing.assert_array_equal(where.numpy(), want.numpy())
    assert f.captures == 2


# ---- general merges


def linear(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


@pytest.mark.parametrize("shape, axis", [((1,), 0), ((150,), 0), ((3, 150), 1), ((150, 40), 0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrences(shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(shape), rng.standard_normal(shape)
    got = nd.associative_scan(linear, (nd.array(a), nd.array(b)), (1, 0), axis, reverse)[1]
    want, h = np.empty(shape), np.zeros(np.delete(shape, axis))
    for t in reversed(range(shape[axis])) if reverse else range(shape[axis]):
        at = (*(slice(None),) * axis, t)
        h = want[at] = a[at] * h + b[at]
    np.testing.assert_allclose(got.numpy(), want, 1e-12, 1e-14)


def test_merges_that_do_not_commute_keep_their_order() -> None:
    """The last number that is not zero: order is all there is to it."""
    n = 3 * CHUNK + 5
    x = np.where(np.arange(n) % 1000 == 999, np.arange(n), 0)
    last = nd.associative_scan(lambda a, b: nd.where(b != 0, b, a), nd.array(x), 0)
    np.testing.assert_array_equal(last.numpy(), np.maximum.accumulate(x))
    first = nd.associative_scan(lambda a, b: nd.where(a != 0, a, b), nd.array(x), 0)
    np.testing.assert_array_equal(first.numpy(), np.where(np.arange(n) < 999, 0, 999))


def test_states_may_be_nested() -> None:
    x = nd.arange(1.0, 5.0)
    got = nd.associative_scan(
        lambda a, b: {"sum": a["sum"] + b["sum"], "two": [nd.maximum(a["two"][0], b["two"][0])]},
        {"sum": x, "two": [nd.flip(x)]},
        {"sum": 0, "two": [float("-inf")]},
    )
    assert got["sum"].tolist() == [1, 3, 6, 10]
    assert got["two"][0].tolist() == [4, 4, 4, 4]


def test_merges_under_jit_and_eager() -> None:
    def f(x: nd.NDArray) -> nd.NDArray:
        return nd.associative_scan(lambda a, b: a + b * 1.0, x, 0)

    x = nd.arange(5.0)
    assert genesis.jit(f)(x).tolist() == [0, 1, 3, 6, 10]
    with nd.eager():
        assert f(x).tolist() == [0, 1, 3, 6, 10]


def test_errors() -> None:
    x = nd.arange(6.0).reshape(2, 3)
    with pytest.raises(IndexError, match="cumsum: axis 2 does not exist"):
        nd.cumsum(x, 2)
    with pytest.raises(TypeError, match="logcumsumexp: needs floating point, not int64"):
        nd.logcumsumexp(nd.arange(3), 0)
    with pytest.raises(ValueError, match="identity is not nested like xs"):
        nd.associative_scan(linear, (x, x), 0)
    with pytest.raises(ValueError, match="of xs have shapes"):
        nd.associative_scan(linear, (x, x[0]), (1, 0))
    with pytest.raises(ValueError, match="not nested like xs"):
        nd.associative_scan(lambda a, b: a[0], (x, x), (1, 0))
    with pytest.raises(ValueError, match="merge turns part 0 of the state, float32, into bool"):
        nd.associative_scan(lambda a, b: a < b, x, 0)
    with pytest.raises(ValueError, match="elementwise only"):
        nd.associative_scan(lambda a, b: a + x.sum(), x, 0)


# ---- differences and integrals


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_diff(dtype: str, rng: np.random.Generator) -> None:
    x = some((5, 9), dtype, rng)
    a, t = nd.array(x), torch.from_numpy(x)
    for n in (0, 1, 3, 8):
        np.testing.assert_array_equal(nd.diff(a, n).numpy(), t.diff(n).numpy())
    np.testing.assert_array_equal(nd.diff(a, axis=0).numpy(), t.diff(dim=0).numpy())
    assert nd.diff(a, 12).shape == tuple(t.diff(12).shape)
    got = nd.diff(a, prepend=a[:, :1], append=a[:, 2:4]).numpy()
    np.testing.assert_array_equal(got, t.diff(prepend=t[:, :1], append=t[:, 2:4]).numpy())


def test_integrals(rng: np.random.Generator) -> None:
    y = rng.standard_normal((4, 7))
    x1, x2 = np.cumsum(rng.random(7)), np.cumsum(rng.random((4, 7)), 1)
    a, t = nd.array(y), torch.from_numpy(y)
    pairs = (nd.trapezoid, torch.trapezoid), (nd.cumulative_trapezoid, torch.cumulative_trapezoid)
    for ours, theirs in pairs:
        for axis in (0, 1, -1):
            got, want = ours(a, dx=0.5, axis=axis), theirs(t, dx=0.5, dim=axis)
            np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-12, 1e-14)
        for x in (x1, x2):
            got, want = ours(a, nd.array(x)), theirs(t, torch.from_numpy(x))
            np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-12, 1e-14)
        got, want = ours(nd.arange(5)), theirs(torch.arange(5))
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    with pytest.raises(ValueError, match="3 positions for 7 values"):
        nd.trapezoid(a, nd.arange(3))


# ---- how it is compiled


def prefix(op: ops.Op, x: Node, axis: int = -1) -> Node:
    left, right = (node(ops.PARAMETER, (), k, x.dtype) for k in (0, 1))
    start = {ops.ADD: 0, ops.MAX: x.dtype.min}[op]
    how = Prefix((elementwise(op, left, right),), (const(start, x.dtype),), axis % len(x.shape))
    return node(ops.PREFIX, (x,), how, x.dtype, x.shape)


def kernels_of(*roots: Node) -> list[Kernel]:
    found: list[Kernel] = []
    rng = np.random.default_rng(0)
    buffers = [rng.random(4096).astype(np.float32) for _ in range(2)]
    interpreted(roots, buffers, chip=Chip("test", 64, 32, 32 << 10, 1 << 20), kernels=found)
    return found


X = node(ops.BUFFER, (), Leaf(0, (64, 1)), dtypes.float32, (20, 64))


def test_softmax_prefix_and_comparison_are_one_kernel() -> None:
    """What choosing among the most likely tokens needs."""
    x = np.random.default_rng(0).standard_normal((9, 100)).astype(np.float32)

    def chosen(a: nd.NDArray) -> nd.NDArray:
        return nd.cumsum(nd.softmax(a, 1), 1) <= 0.9

    assert len(genesis.explain(chosen, nd.array(x)).kernels) == 1
    wide = x.astype(np.float64)
    sums = np.cumsum(np.exp(wide) / np.exp(wide).sum(1, keepdims=True), 1)
    near = np.abs(sums - 0.9) < 1e-6
    np.testing.assert_array_equal(chosen(nd.array(x)).numpy() | near, (sums <= 0.9) | near)


def test_parts_of_one_state_share_a_kernel() -> None:
    x = nd.ones((4, 100))
    assert len(genesis.explain(lambda x: nd.cummax(x, 0), x).kernels) == 1
    assert len(genesis.explain(lambda x: nd.logcumsumexp(x, 1), x).kernels) == 1


def test_different_prefixes_have_kernels_of_their_own() -> None:
    assert len(kernels_of(prefix(ops.ADD, X), prefix(ops.MAX, X))) == 2
    assert len(kernels_of(elementwise(ops.ADD, prefix(ops.ADD, X, 0), prefix(ops.ADD, X, 1)))) == 2


def test_along_memory_tiles_are_scanned_and_across_it_rows_are_tiles() -> None:
    (along,) = kernels_of(prefix(ops.ADD, X, 1))
    (across,) = kernels_of(prefix(ops.ADD, X, 0))
    assert any(isinstance(s, Scan) for s in walk(along.phases[0].body))
    assert not any(isinstance(s, Scan) for s in walk(across.phases[0].body))


def test_long_runs_of_many_columns_keep_their_states_in_a_stage(rng: np.random.Generator) -> None:
    x = rng.standard_normal((523, 4131), np.float32)  # rows that end inside a group and a tile
    (kernel,) = genesis.explain(lambda x: nd.cumsum(x, 0), nd.array(x)).kernels
    assert "stage state0" in kernel.scheduled
    want = np.cumsum(x, 0, dtype=np.float64)
    np.testing.assert_allclose(nd.cumsum(nd.array(x), 0).numpy(), want, 1e-5, 1e-4)
    values, places = (a.numpy() for a in nd.cummax(nd.array(x), 0))
    expected = torch.cummax(torch.from_numpy(x), 0)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(places, expected.indices.numpy())


def test_a_single_element_is_no_work() -> None:
    one = node(ops.RESHAPE, (X,), None, X.dtype, (20 * 64, 1))
    (kernel,) = kernels_of(elementwise(ops.EXP, prefix(ops.ADD, one)))
    assert "prefix" not in kernel.name


def test_symbolic_long_rows_have_two_phases() -> None:
    n = Size.symbol("n", 1, 1 << 22)
    x = node(ops.BUFFER, (), Leaf(0, (1,)), dtypes.float32, (n,))
    kernels: list[Kernel] = []
    data = np.arange(100, dtype=np.float32)
    (got,) = interpreted([prefix(ops.ADD, x)], [data], (), {"n": 100}, kernels=kernels)
    assert [len(k.phases) for k in kernels] == [2]
    np.testing.assert_array_equal(got, np.cumsum(data))
