"""Scalar semantics against exact Python arithmetic, and the graph evaluator against plain loops."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from genesis.ir import dtype, ops
from genesis.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint64,
)
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Leaf, Node, const, elementwise, node
from genesis.ir.scalar_semantics import TABLE, apply, threefry
from genesis.ir.size import Size

INTEGERS = [d for d in dtype.ALL if d.is_integer]
FLOATS = [d for d in dtype.ALL if d.is_float]


def corners(d: DType) -> list[int]:
    return [x for x in (d.min, d.min + 1, -7, -2, -1, 0, 1, 2, 7, d.max - 1, d.max) if x >= d.min]


# ---- scalar operations


def test_every_scalar_operation_has_a_meaning() -> None:
    scalar = {op for op in ops.ALL.values() if op.is_elementwise}
    assert set(TABLE) | {ops.CAST, ops.BITCAST} == scalar


@pytest.mark.parametrize("d", INTEGERS, ids=repr)
def test_integers_wrap_and_divide_like_python(d: DType) -> None:
    pairs = list(itertools.product(corners(d), repeat=2))
    a, b = (np.array(side, d.numpy) for side in zip(*pairs, strict=True))
    exact = {
        ops.ADD: lambda x, y: x + y,
        ops.SUB: lambda x, y: x - y,
        ops.MUL: lambda x, y: x * y,
        ops.FLOORDIV: lambda x, y: x // y if y else 0,
        ops.MOD: lambda x, y: x % y if y else 0,
        ops.MAX: max,
        ops.MIN: min,
        ops.AND: lambda x, y: x & y,
        ops.OR: lambda x, y: x | y,
        ops.XOR: lambda x, y: x ^ y,
    }
    for op, function in exact.items():
        got = apply(op, d, a, b)
        assert got.dtype == d.numpy
        assert got.tolist() == [d.cast(function(x, y)) for x, y in pairs], op
    assert apply(ops.NEG, d, a).tolist() == [d.cast(-x) for x, _ in pairs]
    assert apply(ops.ABS, d, a).tolist() == [d.cast(abs(x)) for x, _ in pairs]
    assert apply(ops.NOT, d, a).tolist() == [d.cast(~x) for x, _ in pairs]
    assert apply(ops.LT, bool_, a, b).tolist() == [x < y for x, y in pairs]


@pytest.mark.parametrize("d", INTEGERS, ids=repr)
def test_shifts_at_or_above_the_width(d: DType) -> None:
    pairs = list(itertools.product(corners(d), [0, 1, d.bits - 1, d.bits, d.bits + 1, 127]))
    a, n = (np.array(side, d.numpy) for side in zip(*pairs, strict=True))
    assert apply(ops.SHL, d, a, n).tolist() == [d.cast(x << k) for x, k in pairs]
    assert apply(ops.SHR, d, a, n).tolist() == [x >> k for x, k in pairs]


@pytest.mark.parametrize("target", INTEGERS, ids=repr)
@pytest.mark.parametrize("source", FLOATS, ids=repr)
def test_float_to_integer_truncates_and_saturates(source: DType, target: DType) -> None:
    values = [0.0, -0.0, 1.5, -1.5, 127.9, 1e4, -1e4, 1e9, -1e9, 2.0**31, 2.0**63, -(2.0**63)]
    values += [2.0**64, 1e30, -1e30, math.inf, -math.inf, math.nan]
    with np.errstate(over="ignore"):
        x = np.array(values).astype(source.numpy)
    want = []
    for value in x.astype(np.float64).tolist():
        if math.isnan(value):
            want.append(0)
        elif math.isinf(value):
            want.append(target.max if value > 0 else target.min)
        else:
            want.append(min(max(math.trunc(value), target.min), target.max))
    assert apply(ops.CAST, target, x).tolist() == want


def test_other_casts() -> None:
    assert apply(ops.CAST, int8, np.array([300, -129])).tolist() == [44, 127]
    assert apply(ops.CAST, uint8, np.array([-1], np.int8)).tolist() == [255]
    assert apply(ops.CAST, bool_, np.array([0.0, -0.0, math.nan, 0.5])).tolist() == [0, 0, 1, 1]
    assert apply(ops.CAST, float32, np.array([True, False])).tolist() == [1.0, 0.0]
    assert apply(ops.BITCAST, int32, np.float32([1.0])).tolist() == [0x3F800000]
    assert apply(ops.BITCAST, float32, np.array(0x3F800000, np.int32)).item() == 1.0


@pytest.mark.parametrize("d", FLOATS, ids=repr)
def test_nan_infinity_and_halves(d: DType) -> None:
    nan, inf = math.nan, math.inf
    a, b = np.array([1.0, nan, nan, inf], d.numpy), np.array([nan, 1.0, nan, -inf], d.numpy)
    for op in (ops.MAX, ops.MIN):
        got = apply(op, d, a, b).astype(np.float64)
        assert np.isnan(got[:3]).all()
    assert apply(ops.MAX, d, a, b)[3] == inf
    for op in (ops.LT, ops.LE, ops.EQ):
        assert not apply(op, bool_, a, b)[:3].any()
    assert apply(ops.NE, bool_, a, b).all()
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5], d.numpy)
    assert apply(ops.ROUND, d, halves).astype(float).tolist() == [0.0, 2.0, 2.0, -0.0, -2.0]
    assert np.signbit(apply(ops.ROUND, d, halves).astype(np.float64)[3])


TORCH = {
    ops.SQRT: torch.sqrt, ops.EXP: torch.exp, ops.EXP2: torch.exp2, ops.LOG: torch.log,
    ops.LOG2: torch.log2, ops.SIN: torch.sin, ops.COS: torch.cos, ops.TANH: torch.tanh,
    ops.ERF: torch.erf, ops.FLOOR: torch.floor, ops.CEIL: torch.ceil, ops.TRUNC: torch.trunc,
    ops.POW: torch.pow, ops.ATAN2: torch.atan2, ops.DIV: torch.div, ops.TAN: torch.tan,
}  # fmt: skip


@pytest.mark.parametrize("op", TORCH, ids=repr)
def test_float_functions_are_correctly_rounded(op: ops.Op) -> None:
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-30, 3e38, -2.5, 2.0, 0.5]
    a, b = (torch.tensor(side) for side in zip(*itertools.product(special, repeat=2), strict=True))
    inputs = (a, b) if op.group == "binary" else (a,)
    want = TORCH[op](*(x.double() for x in inputs)).float().numpy()
    got = apply(op, float32, *(x.numpy() for x in inputs))
    np.testing.assert_array_max_ulp(got, want, 0 if op is ops.DIV else 1)


@pytest.mark.parametrize("d", [float16, bfloat16], ids=repr)
def test_half_precision_rounds_once_from_float32(d: DType) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(100, np.float32).astype(d.numpy) for _ in range(2))
    for op, function in [(ops.MUL, np.multiply), (ops.ADD, np.add), (ops.DIV, np.divide)]:
        want = function(a.astype(np.float32), b.astype(np.float32)).astype(d.numpy)
        np.testing.assert_array_equal(apply(op, d, a, b), want)


def test_fma_rounds_once() -> None:
    a, b = np.float32([1 + 2**-12]), np.float32([1 - 2**-12])
    assert apply(ops.FMA, float32, a, b, np.float32([-1])).item() == -(2.0**-24)


def test_integer_powers() -> None:
    a, b = np.int32([3, -2, 1, -1, -1, 0, 5]), np.int32([4, 3, -5, -3, -2, -1, -1])
    assert apply(ops.POW, int32, a, b).tolist() == [81, -8, 1, -1, 1, 0, 0]


@pytest.mark.parametrize(
    ("key", "counter", "want"),
    [
        # Known answers published with the generator (Random123, threefry2x32, 20 rounds).
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(key: Any, counter: Any, want: Any) -> None:
    def word(pair: tuple[int, int]) -> np.ndarray:
        return np.array([pair[0] | pair[1] << 32], np.uint64)

    assert threefry(word(key), word(counter)) == word(want)
    assert apply(ops.RANDOM, uint64, word(key), word(counter)) == word(want)


# ---- graphs


def leaf(slot: int, array: np.ndarray) -> Node:
    strides = tuple(s // array.itemsize for s in array.strides)
    return node(ops.BUFFER, (), Leaf(slot, strides), dtype.as_dtype(array.dtype), array.shape)


def run(root: Node, *arrays: np.ndarray, **sizes: int) -> np.ndarray:
    (result,) = evaluate([root], [a.reshape(-1) for a in arrays], [], sizes)
    assert result.dtype == root.dtype.numpy
    return result


def array(*shape: int) -> np.ndarray:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def test_leaves() -> None:
    n = Size.symbol("n")
    memory = np.arange(20, dtype=np.int32)
    strided = node(ops.BUFFER, (), Leaf(0, (-1, 5), n), int32, (3, n))
    scalar = node(ops.SCALAR, (), 0, int8)
    iota = node(ops.IOTA, (), None, int32, (n + 1,))
    size = node(ops.SIZE, (), 2 * n, int64)
    got = evaluate([strided, scalar, iota, size, const(2.5, float32)], [memory], [257], {"n": 3})
    assert got[0].tolist() == [[3 - i + 5 * j for j in range(3)] for i in range(3)]
    assert [g.tolist() for g in got[1:]] == [1, [0, 1, 2, 3], 6, 2.5]
    with pytest.raises(IndexError, match="slot 0: positions -1"):
        evaluate([node(ops.BUFFER, (), Leaf(0, (-1,)), int32, (2,))], [memory], [])


def test_results_are_new_arrays() -> None:
    x = array(4)
    result = run(leaf(0, x), x)
    result[:] = 7
    assert x.tolist() == [0, 1, 2, 3]


def test_movement() -> None:
    x = array(2, 3, 4)
    a = leaf(0, x)
    reshaped = run(node(ops.RESHAPE, (a,), None, float32, (6, 4)), x)
    np.testing.assert_array_equal(reshaped, x.reshape(6, 4))
    permuted = run(node(ops.PERMUTE, (a,), (2, 0, 1), float32, (4, 2, 3)), x)
    for i, j, k in np.ndindex(2, 3, 4):
        assert permuted[k, i, j] == x[i, j, k]
    y = array(2, 1, 4)
    expanded = run(node(ops.EXPAND, (leaf(0, y),), None, float32, (2, 5, 4)), y)
    np.testing.assert_array_equal(expanded, np.repeat(y, 5, axis=1))
    sliced = run(node(ops.SLICE, (a,), ((1, 1), (2, -1), (0, 3)), float32, (1, 3, 2)), x)
    np.testing.assert_array_equal(sliced, x[1:, ::-1, ::3])
    with pytest.raises(IndexError, match="slice of axis 1"):
        run(node(ops.SLICE, (a,), ((0, 1), (2, -1), (0, 1)), float32, (1, 4, 1)), x)


@pytest.mark.parametrize(("low", "step", "total"), [(2, 1, 8), (0, 2, 7), (1, 3, 11), (-1, 1, 3)])
def test_pad(low: int, step: int, total: int) -> None:
    x = array(4)
    fill = const(-1.0, float32)
    got = run(node(ops.PAD, (leaf(0, x), fill), ((low, step),), float32, (total,)), x)
    want = [-1.0] * total
    for i, value in enumerate(x):
        if 0 <= low + step * i < total:
            want[low + step * i] = value
    assert got.tolist() == want


def test_window() -> None:
    x = array(2, 11, 3)
    got = run(node(ops.WINDOW, (leaf(0, x),), (1, 2, 3), float32, (2, 3, 3, 3)), x)
    for b, o, c, k in np.ndindex(got.shape):
        assert got[b, o, c, k] == x[b, o * 2 + k * 3, c]


def test_reductions() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    a = leaf(0, x)
    for op, function in [(ops.SUM, np.sum), (ops.PROD, np.prod), (ops.AMAX, np.max)]:
        got = run(node(op, (a,), (0, 2), float32, (4,)), x)
        np.testing.assert_allclose(got, function(x.astype(np.float64), axis=(0, 2)), rtol=1e-5)
    x[1, 2, 3] = math.nan
    assert np.isnan(run(node(ops.AMIN, (a,), (0, 1, 2), float32), x))
    empty = np.empty((2, 0), np.float32)
    for op, identity in [(ops.SUM, 0), (ops.PROD, 1), (ops.AMAX, -math.inf), (ops.AMIN, math.inf)]:
        assert (
            run(node(op, (leaf(0, empty),), (1,), float32, (2,)), empty).tolist() == [identity] * 2
        )


@pytest.mark.parametrize("d", [float16, bfloat16], ids=repr)
def test_half_precision_sums_accumulate_in_float32(d: DType) -> None:
    ones = np.ones(4096, d.numpy)
    a = leaf(0, ones)
    assert run(node(ops.SUM, (a,), (0,), d), ones) == 4096
    assert run(node(ops.CONTRACT, (a, a), ((0,), (0,), ()), d), ones) == 4096


def test_small_integers_wrap_in_sums() -> None:
    x = np.full(3, 100, np.int8)
    assert run(node(ops.SUM, (leaf(0, x),), (0,), int8), x) == 44
    cast = elementwise(ops.CAST, leaf(0, x), dtype=int32)
    assert run(node(ops.SUM, (cast,), (0,), int32), x) == 300


def test_contract() -> None:
    x, y = array(2, 3, 4), array(2, 4, 5)
    attr = ((60, 61, 62), (60, 62, 63), (63, 60, 61))
    got = run(node(ops.CONTRACT, (leaf(0, x), leaf(1, y)), attr, float32, (5, 2, 3)), x, y)
    np.testing.assert_array_equal(got, (x @ y).transpose(2, 0, 1))


def test_gather_clamps_and_scatter_drops() -> None:
    x, where = array(2, 4, 3), np.array([[0, 3], [-5, 9]])
    gathered = run(
        node(ops.GATHER, (leaf(0, x), leaf(1, where)), (1,), float32, (2, 2, 2, 3)), x, where
    )
    np.testing.assert_array_equal(gathered, x[:, np.clip(where, 0, 3)])
    where = np.array([[1, 1], [-1, 4]])
    updates = array(2, 2, 2, 3)
    inputs = (leaf(0, x), leaf(1, where), leaf(2, updates))
    scattered = run(node(ops.SCATTER, inputs, ((1,), "add"), float32, x.shape), x, where, updates)
    want = x.copy()
    want[:, 1] += updates[:, 0, 0] + updates[:, 0, 1]
    np.testing.assert_array_equal(scattered, want)


def test_update() -> None:
    x, value = array(4, 5), -array(2, 2) - 1
    attr = ((3, -2), (1, 3))
    got = run(node(ops.UPDATE, (leaf(0, x), leaf(1, value)), attr, float32, (4, 5)), x, value)
    want = x.copy()
    want[3::-2, 1::3] = value
    np.testing.assert_array_equal(got, want)


def test_rank_zero_and_empty_shapes() -> None:
    x = np.array(3.0, np.float32)
    a = leaf(0, x)
    for n in (
        node(ops.SLICE, (a,), (), float32),
        node(ops.PAD, (a, const(0.0, float32)), (), float32),
        node(ops.UPDATE, (a, a), (), float32),
        node(ops.SUM, (a,), (), float32),
    ):
        assert run(n, x) == 3.0
    nothing = np.empty((0, 3), np.float32)
    padded = node(
        ops.PAD, (leaf(0, nothing), const(2.0, float32)), ((1, 1), (0, 1)), float32, (2, 3)
    )
    assert run(padded, nothing).tolist() == [[2.0] * 3] * 2


def test_symbolic_sizes() -> None:
    n = Size.symbol("n", low=1)
    x = node(ops.BUFFER, (), Leaf(0, (n, 1)), float64, (2, n))
    tail = node(ops.SLICE, (x,), ((0, 1), (n - 1, -1)), float64, (2, n // 2))
    memory = np.arange(10.0)
    assert run(tail, memory, n=5).tolist() == [[4, 3], [9, 8]]


def test_a_wrong_shape_is_named() -> None:
    x = array(2, 3)
    with pytest.raises(ValueError, match=r"sum of \(2, 3\) gives \(2,\), the node says \(3,\)"):
        run(node(ops.SUM, (leaf(0, x),), (1,), float32, (3,)), x)


def chain(n: Node, length: int) -> Node:
    for _ in range(length):
        n = elementwise(ops.ADD, n, const(1.0, float32))
    return n


def test_depth_is_no_limit() -> None:
    x = np.zeros(2, np.float32)
    assert run(chain(leaf(0, x), 100_000), x).tolist() == [100_000] * 2


def test_values_are_freed_after_their_last_use() -> None:
    x = np.zeros(250_000, np.float32)  # 1 MB
    root = chain(leaf(0, x), 100)
    tracemalloc.start()
    run(root, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
