"""Hand-written kernels through the LLVM renderer, against NumPy, on wide and on narrow vectors."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from genesis.backends.cpu.chip import CPU, host
from genesis.backends.cpu.codegen.outline import MANY
from genesis.backends.cpu.codegen.render import render
from genesis.backends.cpu.compile import CompileError, assembly, compile_object, load
from genesis.ir import dtype as d
from genesis.ir import ops
from genesis.ir import scalar_semantics as oracle
from genesis.ir.dtype import DType, float32, float64, int32, int64
from genesis.ir.kernel import Index, Kernel, Role
from genesis.ir.kernel_builder import Builder, cast, exp, maximum, where
from genesis.ir.node import Node, both, elementwise

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_GRID = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
NARROW = replace(host(), vector_bytes=16, features=frozenset())
CHIPS = pytest.mark.parametrize("chip", [host(), NARROW], ids=["host", "narrow"])


class Compiled:
    """A kernel's loaded functions; calling it runs every phase on one thread, in uneven pieces."""

    def __init__(self, kernel: Kernel, chip: CPU | None = None) -> None:
        self.rendered = render(kernel, chip or host())
        names = [name for pair in self.rendered.symbols for name in pair]
        addresses = load(compile_object(self.rendered.text), names)
        self.phases = [
            (_FUNCTION(addresses[f]), _GRID(addresses[g])) for f, g in self.rendered.symbols
        ]

    def __call__(
        self, *arrays: np.ndarray, params: Sequence[Any] = (), symbols: Sequence[int] = ()
    ) -> None:
        slots = [a.ctypes.data.to_bytes(8, "little") for a in arrays]
        slots += [np.asarray(p).tobytes().ljust(8, b"\xff") for p in params]
        slots += [int(s).to_bytes(8, "little", signed=True) for s in symbols]
        args = ctypes.create_string_buffer(b"".join(slots), 8 * len(slots) + 1)
        scratch = np.empty(self.rendered.scratch_bytes + 64, np.uint8)
        scratch = scratch[-scratch.ctypes.data % 64 :]
        for function, grid in self.phases:
            count = grid(ctypes.addressof(args))
            third = count // 3
            for begin, end in ((0, third), (third, third), (third, count)):
                function(ctypes.addressof(args), begin, end, scratch.ctypes.data)


def bounded(k: Builder, n: Node, tile: int = 64) -> tuple[Node, Node]:
    """A block of `tile` elements of a vector of n: the index and its bound check."""
    b, v = k.grid("b", (n + (tile - 1)) // tile), k.tile("v", tile)
    i = b * tile + v
    return i, i < n


def values(dtype: DType, n: int, seed: int = 0) -> np.ndarray:
    """Random values of a type, its extremes among them."""
    rng = np.random.default_rng(seed)
    if dtype is d.bool_:
        return rng.integers(0, 2, n).astype(np.bool_)
    if dtype.is_float:
        x = (rng.normal(0, 3, n)).astype(dtype.numpy)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 300.7]
    else:
        info = np.iinfo(dtype.numpy)
        x = rng.integers(info.min, info.max, n, dtype.numpy, endpoint=True)
        x[::2] = rng.integers(0 if info.min == 0 else -9, 9, len(x[::2]))
        special = [0, 1, 2, 3, 7, info.min, info.max, info.max - 1]
    x[: len(special)] = np.array(special, dtype.numpy)
    rng.shuffle(x)
    return x


def elementwise_kernel(op: ops.Op, result: DType, *dtypes: DType) -> Kernel:
    k = Builder(f"scalar_{op.name}")
    n = k.symbol("n")
    inputs = [k.input(f"x{j}", t, n) for j, t in enumerate(dtypes)]
    y = k.output("y", result, n)
    i, inside = bounded(k, n, 37)
    k.store(
        y, (i,), elementwise(op, *(x.load(i, mask=inside) for x in inputs), dtype=result), inside
    )
    return k.kernel()


def same(got: np.ndarray, want: np.ndarray) -> None:
    if want.dtype.kind == "f" or want.dtype == ml_dtypes.bfloat16:
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    else:
        np.testing.assert_array_equal(got, want)


# ---- scalar operations

INTEGERS = [t for t in d.ALL if t.is_integer]
FLOATS = [t for t in d.ALL if t.is_float]
_ARITHMETIC = [ops.ADD, ops.SUB, ops.MUL, ops.MAX, ops.MIN]
_COMPARE = [ops.LT, ops.LE, ops.EQ, ops.NE]
CASES = [
    *((op, t, (t, t)) for t in INTEGERS + FLOATS for op in _ARITHMETIC),
    *((op, d.bool_, (t, t)) for t in d.ALL for op in _COMPARE),
    *((op, t, (t, t)) for t in INTEGERS for op in (ops.FLOORDIV, ops.MOD, ops.SHL, ops.SHR)),
    *((op, t, (t, t)) for t in [*INTEGERS, d.bool_] for op in (ops.AND, ops.OR, ops.XOR)),
    *((op, d.bool_, (d.bool_, d.bool_)) for op in (ops.MAX, ops.MIN, ops.ADD, ops.MUL)),
    *((op, t, (t,)) for t in INTEGERS + FLOATS for op in (ops.NEG, ops.ABS)),
    *((ops.NOT, t, (t,)) for t in [*INTEGERS, d.bool_]),
    *(
        (op, t, (t,))
        for t in FLOATS
        for op in (ops.SQRT, ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC)
    ),
    *((ops.DIV, t, (t, t)) for t in FLOATS),
    *((ops.POW, t, (t, t)) for t in (int32, d.uint8)),
    *((ops.WHERE, t, (d.bool_, t, t)) for t in d.ALL),
    *((ops.FMA, t, (t, t, t)) for t in (float32, int32)),
    (ops.RANDOM, d.uint64, (d.uint64, d.uint64)),
    (ops.LOOKUP, d.uint8, (d.uint8, d.uint64, d.uint64)),
    *(
        (ops.BITCAST, a, (b,))
        for a, b in ((int32, float32), (float64, int64), (d.int16, d.float16))
    ),
]


@pytest.mark.parametrize(
    ("op", "result", "inputs"), CASES, ids=[f"{c[0]}-{c[2][-1]}" for c in CASES]
)
def test_scalar_operations(op: ops.Op, result: DType, inputs: tuple[DType, ...]) -> None:
    run = Compiled(elementwise_kernel(op, result, *inputs))
    arrays = [values(t, 500, seed) for seed, t in enumerate(inputs)]
    got = np.zeros(500, result.numpy)
    run(*arrays, got, symbols=[500])
    same(got, oracle.apply(op, result, *arrays))


@pytest.mark.parametrize("source", d.ALL, ids=str)
def test_casts(source: DType) -> None:
    k = Builder("cast")
    n = k.symbol("n")
    x = k.input("x", source, n)
    outputs = [k.output(f"y_{t.name}", t, n) for t in d.ALL]
    i, inside = bounded(k, n, 32)
    for y in outputs:
        value = elementwise(ops.CAST, x.load(i, mask=inside), dtype=y.dtype)
        k.store(y, (i,), value, inside)
    x_ = values(source, 300)
    if source.is_float:
        wide = np.random.default_rng(1).normal(0, 1, 150) * 10.0 ** np.arange(150) ** 0.6
        with np.errstate(over="ignore"):
            x_[150:] = wide.astype(source.numpy)
    results = [np.zeros(300, t.numpy) for t in d.ALL]
    Compiled(k.kernel())(x_, *results, symbols=[300])
    for got, t in zip(results, d.ALL, strict=True):
        with np.errstate(all="ignore"):
            same(got, oracle.cast(x_, t))


def test_division_by_constants() -> None:
    divisors = [1, 2, 3, 7, 64, -1, -3, 0]
    k = Builder("constants")
    x = k.input("x", int64, 100)
    q, r = (k.output(name, int64, len(divisors), 100) for name in ("q", "r"))
    v = k.tile("v", 100)
    for row, c in enumerate(divisors):
        k.store(q, (row, v), elementwise(ops.FLOORDIV, x[v], k.const(c, int64)))
        k.store(r, (row, v), elementwise(ops.MOD, x[v], k.const(c, int64)))
    x_ = values(int64, 100)
    got = [np.zeros((len(divisors), 100), np.int64) for _ in range(2)]
    Compiled(k.kernel())(x_, *got)
    for row, c in enumerate(divisors):
        same(got[0][row], oracle.apply(ops.FLOORDIV, int64, x_, np.int64(c)))
        same(got[1][row], oracle.apply(ops.MOD, int64, x_, np.int64(c)))


# ---- tiles, masks, layouts


@CHIPS
def test_masked_tail_touches_nothing_beyond(chip: CPU) -> None:
    k = Builder("tail")
    n = k.symbol("n")
    x, y = k.input("x", float32, n), k.output("y", float32, n)
    i, inside = bounded(k, n)
    k.store(y, (i,), x.load(i, mask=inside) * 2.0 + 1.0, inside)
    run = Compiled(k.kernel(), chip)
    for size in (0, 1, 15, 16, 63, 64, 65, 1000):
        x_ = np.random.default_rng(size).random(size, np.float32)
        y_ = np.full(size + 70, 7, np.float32)
        run(x_, y_, symbols=[size])
        np.testing.assert_array_equal(y_[:size], x_ * 2 + 1)
        assert (y_[size:] == 7).all()


@CHIPS
@pytest.mark.parametrize("dtype", d.ALL, ids=str)
def test_copy_of_every_type(dtype: DType, chip: CPU) -> None:
    k = Builder("copy")
    x, y = k.input("x", dtype, 61), k.output("y", dtype, 61)
    v = k.tile("v", 61)
    k.store(y, (v,), x[v])
    x_ = values(dtype, 61)
    y_ = np.zeros(61, dtype.numpy)
    Compiled(k.kernel(), chip)(x_, y_)
    same(y_, x_)


def softmax_kernel(rows: Index, columns: int, tile: int) -> Kernel:
    k = Builder("softmax")
    x, y = k.input("x", float32, rows, columns), k.output("y", float32, rows, columns)
    r, v = k.grid("r", rows), k.tile("v", tile)
    minus = k.const(-np.inf, float32)
    blocks = -(-columns // tile)

    def at(c: Node) -> tuple[Node, Node]:
        return c * tile + v, c * tile + v < columns

    with k.loop("c", blocks, m=minus, tiles=[v]) as (c, m):
        i, inside = at(c)
        k.step(m=maximum(m, x.load(r, i, mask=inside, other=minus)))
    (top,) = k.reduce(v, ops.MAX, top=m)
    with k.loop("c2", blocks, s=k.const(0.0, float32), tiles=[v]) as (c, s):
        i, inside = at(c)
        e = k.let("e", exp(x.load(r, i, mask=inside, other=minus) - top))
        k.store(y, (r, i), e, inside)
        k.step(s=s + e)
    (total,) = k.reduce(v, ops.ADD, total=s)
    scale = k.let("scale", k.const(1.0, float32) / total)
    with k.loop("c3", blocks) as (c,):
        i, inside = at(c)
        k.store(y, (r, i), y.load(r, i, mask=inside) * scale, inside)
    return k.kernel()


@CHIPS
@pytest.mark.parametrize(("columns", "tile"), [(100, 64), (64, 64), (37, 16), (5, 8), (96, 24)])
def test_softmax(columns: int, tile: int, chip: CPU) -> None:
    x = np.random.default_rng(0).normal(0, 4, (7, columns)).astype(np.float32)
    y = np.zeros_like(x)
    Compiled(softmax_kernel(7, columns, tile), chip)(x, y)
    e = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)


def gemm_kernel(m: int, n: int, depth: int, mr: int, nr: int, kc: int, mc: int) -> Kernel:
    """C = A B with packed panels: B once in memory, A per block in a stage; edges are masked."""
    k = Builder("gemm")
    a, b = k.input("A", float32, m, depth), k.input("B", float32, depth, n)
    c = k.output("C", float32, m, n)
    panels, columns = -(-depth // kc), -(-n // nr)
    packed = k.temporary("P", float32, panels, columns, kc, nr)
    p, q, v = k.grid("p", panels), k.grid("q", columns), k.tile("v", nr)
    with k.loop("kb", kc) as (kb,):
        row, column = p * kc + kb, q * nr + v
        value = b.load(row, column, mask=both(row < depth, column < n))
        k.store(packed, (p, q, kb, v), value)
    k.barrier()
    block = k.grid("block", -(-m // mc))
    i, j, t = k.tile("i", mr), k.tile("j", nr), k.tile("t", 16)
    stage = k.stage("S", float32, mc // mr, kc, mr)
    with k.loop("pc", panels) as (pc,):
        with k.loop("pi", mc // mr) as (pi,), k.loop("kp", kc // 16) as (kp,):
            row, column = block * mc + pi * mr + i, pc * kc + kp * 16 + t
            value = a.load(row, column, mask=both(row < m, column < depth))
            k.store(stage, (pi, kp * 16 + t, i), value)
        with k.loop("jp", columns) as (jp,), k.loop("ip", mc // mr) as (ip,):
            with k.loop("kk", kc, acc=k.const(0.0, float32), tiles=[i, j]) as (kk, acc):
                k.step(acc=acc + stage[ip, kk, i] * packed[pc, jp, kk, j])
            row, column = block * mc + ip * mr + i, jp * nr + j
            inside = both(row < m, column < n)
            old = c.load(row, column, mask=both(inside, k.const(0, int64) < pc))
            k.store(c, (row, column), acc + old, inside)
    return k.kernel()


@CHIPS
@pytest.mark.parametrize("shape", [(48, 128, 64), (53, 100, 70)])
def test_packed_gemm(shape: tuple[int, int, int], chip: CPU) -> None:
    m, n, depth = shape
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, (m, depth)), rng.normal(0, 1, (depth, n))
    run = Compiled(gemm_kernel(m, n, depth, 6, 64, 32, 24), chip)
    c = np.full((m, n), np.nan, np.float32)
    space = np.zeros(3 * 2 * 32 * 64, np.float32)
    run(a.astype(np.float32), b.astype(np.float32), c, space)
    np.testing.assert_allclose(c, a @ b, atol=2e-5)


@pytest.mark.skipif(host().vector_bytes < 64, reason="needs 32 registers of 512 bits")
def test_gemm_inner_loop_does_not_spill() -> None:
    text = assembly(render(gemm_kernel(192, 256, 512, 6, 64, 512, 96), host()).text)
    assert text.count("vfmadd") == 24
    assert not [line for line in text.splitlines() if "zmm" in line and "(%rsp)" in line]


@CHIPS
def test_strided_reversed_and_offset_buffers(chip: CPU) -> None:
    k = Builder("strided")
    n = k.symbol("n")
    x = k.buffer("x", float32, (n, 40), Role.INPUT, strides=(n * 0 + 100, -2), offset=90)
    y = k.buffer("y", float32, (n, 40), Role.OUTPUT, strides=(40, -1), offset=39)
    r, v = k.grid("r", n), k.tile("v", 40)
    k.store(y, (r, v), x[r, v] + 1.0)
    z = k.buffer("z", float32, (n, 40), Role.OUTPUT, strides=(40, 1))
    k.store(z, (r, v), y[r, 39 - v])
    base = np.arange(500, dtype=np.float32)
    y_, z_ = np.zeros((5, 40), np.float32), np.zeros((5, 40), np.float32)
    Compiled(k.kernel(), chip)(base, y_, z_, symbols=[5])
    want = np.lib.stride_tricks.as_strided(base[90:], (5, 40), (400, -8)) + 1
    np.testing.assert_array_equal(y_[:, ::-1], want)
    np.testing.assert_array_equal(z_, want[:, ::-1])


@CHIPS
@pytest.mark.parametrize("dtype", [float32, float64, int32])
@pytest.mark.parametrize("other", [0, 7])
def test_every_other_element(dtype: DType, other: int, chip: CPU) -> None:
    k = Builder("every_other")
    x, n = k.input("x", dtype, 64, 41), k.symbol("n")
    y, z = k.output("y", dtype, 64, 24), k.output("z", dtype, 64, 20)
    r, v, w = k.grid("r", 64), k.tile("v", 24), k.tile("w", 20)
    here = both(k.const(0, int64) < v, v < n)
    k.store(y, (r, v), x.load(r, v * 2 - 1, mask=here, other=k.const(other, dtype)))
    k.store(z, (r, w), x[r, w * 2 + 1])
    run = Compiled(k.kernel(), chip)
    assert ("llvm.masked.load" in run.rendered.text) == chip.has_avx512
    x_ = np.arange(64 * 41).reshape(64, 41).astype(dtype.numpy)
    y_, z_ = np.empty((64, 24), dtype.numpy), np.empty((64, 20), dtype.numpy)
    run(x_, y_, z_, symbols=[19])
    np.testing.assert_array_equal(y_[:, 1:19], x_[:, 1:37:2])
    assert (y_[:, 0] == other).all() and (y_[:, 19:] == other).all()
    np.testing.assert_array_equal(z_, x_[:, 1::2])


def test_what_is_read_behind_a_sum_is_asked_for_before_it() -> None:
    k = Builder("residual")
    a, b = k.input("a", float32, 64, 16), k.input("b", float32, 16, 40)
    far, near = k.input("far", float32, 64, 40), k.input("near", float32, 1, 40)
    y = k.output("y", float32, 64, 40)
    i, j = k.grid("block", 16) * 4 + k.tile("i", 4), k.tile("j", 40)
    with k.loop("k", 16, acc=k.const(0.0, float32), tiles=[k.tile("i", 4), j]) as (at, acc):
        k.step(acc=acc + a[i, at] * b[at, j])
    k.store(y, (i, j), acc + far[i, j] * near[0, j])
    text = render(k.kernel(), replace(host(), l2_bytes=far.known_bytes)).text
    asked = text.count("call void @llvm.prefetch")
    assert asked == 4 * 4, "of four rows three lines each, and the one in which they end"
    assert text.index("call void @llvm.prefetch") < text.index("fmul")
    assert "@llvm.prefetch" not in render(k.kernel(), host()).text, "it is in a cache"


@CHIPS
@pytest.mark.parametrize("tile", [(16, 16), (8, 32), (6, 16), (5, 3), (32, 4)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_transpose(tile: tuple[int, int], symbolic: bool, chip: CPU) -> None:
    k = Builder("transpose")
    m = k.symbol("m") if symbolic else k.const(50, int64)
    n = k.symbol("n") if symbolic else k.const(70, int64)
    x, y = k.input("x", float32, m, n), k.output("y", float32, n, m)
    bi, bj = (
        k.grid("bi", (m + (tile[0] - 1)) // tile[0]),
        k.grid("bj", (n + (tile[1] - 1)) // tile[1]),
    )
    i, j = bi * tile[0] + k.tile("i", tile[0]), bj * tile[1] + k.tile("j", tile[1])
    inside = both(i < m, j < n)
    k.store(y, (j, i), x.load(i, j, mask=inside), inside)
    x_ = np.random.default_rng(0).random((50, 70), np.float32)
    y_ = np.zeros((70, 50), np.float32)
    Compiled(k.kernel(), chip)(x_, y_, symbols=[50, 70] if symbolic else [])
    np.testing.assert_array_equal(y_, x_.T)


@CHIPS
def test_the_edge_of_a_transpose_is_read_once(chip: CPU) -> None:
    """Rows of the result beyond the edge are left out by branches, behind all that is read."""
    k = Builder("edge")
    x, y = k.input("x", float32, 64, 25), k.output("y", float32, 25, 64)
    bi, bj = k.grid("bi", 2), k.grid("bj", 4)
    i, j = bi * 16 + k.tile("i", 16), bj * 16 + k.tile("j", 16)
    k.store(y, (i, j), x.load(j, i, mask=i < 25), i < 25)
    compiled = Compiled(k.kernel(), chip)
    x_ = np.random.default_rng(0).random((64, 25), np.float32)
    y_ = np.zeros((25, 64), np.float32)
    compiled(x_, y_)
    np.testing.assert_array_equal(y_, x_.T)
    loads = re.findall(r"call .* @llvm.masked.load", compiled.rendered.text)
    assert len(loads) == 16 * 16 // (chip.vector_bytes // 4)


@CHIPS
@pytest.mark.parametrize("rows", [2, 12])
def test_a_long_formula_is_written_once(rows: int, chip: CPU) -> None:
    """What it is computed of is handed over, though that may itself be computed of arguments."""
    k = Builder("formula")
    x, b = k.input("x", float32, 24, 70), k.input("b", float32, 70)
    y, s, t = k.output("y", float32, 24, 70), k.param("s", float32), k.param("t", float32)
    i, j = k.grid("bi", 24 // rows) * rows + k.tile("i", rows), k.grid("bj", 5) * 16
    j = j + k.tile("j", 16)
    z = x.load(i, j, mask=j < 70) * s + b.load(j, mask=j < 70) * t
    k.store(y, (i, j), z / (exp(-z) + k.const(1.0, float32)) + exp(t) / t, j < 70)
    compiled = Compiled(k.kernel(), chip)
    rng = np.random.default_rng(0)
    x_, b_ = rng.normal(0, 3, (24, 70)).astype(np.float32), rng.random(70, np.float32)
    y_ = np.zeros_like(x_)
    compiled(x_, b_, y_, params=[np.float32(1.5), np.float32(2.5)])
    z_ = x_.astype(np.float64) * 1.5 + b_ * 2.5
    np.testing.assert_allclose(y_, z_ / (1 + np.exp(-z_)) + np.exp(2.5) / 2.5, rtol=2e-6)
    points = rows * 16 // (chip.vector_bytes // 4)
    assert compiled.rendered.text.count("define internal") == (points >= MANY)


@CHIPS
def test_uniform_masks_read_and_write_nothing(chip: CPU) -> None:
    """Padding of rows: the mask is the same for all lanes; rows outside have wild addresses."""
    k = Builder("pad")
    x, y = k.input("x", float32, 4, 32), k.output("y", float32, 8, 32)
    z = k.output("z", float32, 8)
    r, v = k.grid("r", 8), k.tile("v", 32)
    inside = both(k.const(2, int64) <= r, r < 6)
    far = (r - 2) * (1 << 20)  # in bounds only for the first inside row
    first = r.equal(2)
    k.store(y, (r, v), x.load(r - 2, v, mask=inside, other=k.const(-1.5, float32)))
    k.store(z, (r,), x.load(far, 3, mask=first), mask=r < 5)
    x_ = np.random.default_rng(0).random((4, 32), np.float32)
    y_, z_ = np.zeros((8, 32), np.float32), np.full(8, 9, np.float32)
    Compiled(k.kernel(), chip)(x_, y_, z_)
    want = np.full((8, 32), -1.5, np.float32)
    want[2:6] = x_
    np.testing.assert_array_equal(y_, want)
    np.testing.assert_array_equal(z_, [0, 0, x_[0, 3], 0, 0, 9, 9, 9])


@CHIPS
def test_lane_mask_on_a_broadcast_load(chip: CPU) -> None:
    k = Builder("broadcast")
    n = k.symbol("n")
    x, y = k.input("x", float32, 3), k.output("y", float32, 3, n)
    r, b, v = k.grid("r", 3), k.grid("b", (n + 31) // 32), k.tile("v", 32)
    i = b * 32 + v
    k.store(y, (r, i), x.load(r, mask=i.equal(5), other=k.const(2.0, float32)), i < n)
    x_ = np.array([3, 4, 5], np.float32)
    y_ = np.zeros((3, 40), np.float32)
    Compiled(k.kernel(), chip)(x_, y_, symbols=[40])
    want = np.full((3, 40), 2.0)
    want[:, 5] = x_
    np.testing.assert_array_equal(y_, want)


@CHIPS
def test_gather_and_scatter_by_data(chip: CPU) -> None:
    k = Builder("embedding")
    n = k.symbol("n")
    table, index = k.input("table", float32, 10, 4), k.input("index", int32, n)
    y, z = k.output("y", float32, n), k.buffer("z", float32, (20,), Role.INOUT)
    i, inside = bounded(k, n, 24)
    at = elementwise(ops.CAST, index.load(i, mask=inside), dtype=int64)
    value = table.load(at, 3, mask=inside)
    k.store(y, (i,), value, inside)
    k.store(z, (at * 2,), value, inside)
    table_ = np.random.default_rng(0).random((10, 4), np.float32)
    index_ = np.random.default_rng(1).integers(0, 10, 41).astype(np.int32)
    y_, z_ = np.zeros(41, np.float32), np.zeros(20, np.float32)
    Compiled(k.kernel(), chip)(table_, index_, y_, z_, symbols=[41])
    np.testing.assert_array_equal(y_, table_[index_, 3])
    want = np.zeros(20, np.float32)
    want[index_ * 2] = table_[index_, 3]
    np.testing.assert_array_equal(z_, want)


@CHIPS
def test_atomic_histogram(chip: CPU) -> None:
    k = Builder("histogram")
    n = k.symbol("n")
    x = k.input("x", int32, n)
    counts = [k.buffer(f"h_{t.name}", t, (8,), Role.INOUT) for t in (float32, int64, d.float16)]
    i, inside = bounded(k, n, 20)
    at = elementwise(ops.CAST, x.load(i, mask=inside), dtype=int64)
    for h in counts:
        k.store(h, (at,), k.const(1, h.dtype), inside, atomic=ops.ADD)
    x_ = np.random.default_rng(1).integers(0, 8, 333).astype(np.int32)
    got = [np.zeros(8, h.dtype.numpy) for h in counts]
    Compiled(k.kernel(), chip)(x_, *got, symbols=[333])
    for h in got:
        np.testing.assert_array_equal(h, np.bincount(x_, minlength=8))


# ---- reductions and scans


@CHIPS
@pytest.mark.parametrize("extent", [1, 2, 7, 16, 37, 64, 100])
def test_reduce_and_scan(extent: int, chip: CPU) -> None:
    k = Builder("folds")
    x = k.input("x", int64, 3, extent)
    total, top = k.output("total", int64, 3), k.output("top", int64, 3)
    running = k.output("running", int64, 3, extent)
    r, v = k.grid("r", 3), k.tile("v", extent)
    (s,) = k.reduce(v, ops.ADD, s=x[r, v])
    (t,) = k.reduce(v, ops.MAX, t=x[r, v])
    (p,) = k.scan(v, ops.ADD, p=x[r, v])
    k.store(total, (r,), s)
    k.store(top, (r,), t)
    k.store(running, (r, v), p)
    x_ = np.random.default_rng(0).integers(-99, 99, (3, extent))
    got = [np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros((3, extent), np.int64)]
    Compiled(k.kernel(), chip)(x_, *got)
    np.testing.assert_array_equal(got[0], x_.sum(1))
    np.testing.assert_array_equal(got[1], x_.max(1))
    np.testing.assert_array_equal(got[2], x_.cumsum(1))


def affine(left: Sequence[Node], right: Sequence[Node]) -> list[Node]:
    """Composition of x -> a*x + b, first left then right: associative, not commutative."""
    return [left[0] * right[0], left[1] * right[0] + right[1]]


@CHIPS
@pytest.mark.parametrize("extent", [3, 16, 37, 100])
@pytest.mark.parametrize("across", [False, True])
def test_merges_keep_their_order(extent: int, across: bool, chip: CPU) -> None:
    """A merge that does not commute, along the lanes and along an unrolled axis."""
    k = Builder("order")
    shape = (extent, 20) if across else (20, extent)
    a, b = k.input("a", int64, *shape), k.input("b", int64, *shape)
    y, z = k.output("y", int64, 20), k.output("z", int64, *shape)
    v = k.tile("v", extent)
    r = k.tile("r", 20) if across else k.grid("r", 20)
    at = (v, r) if across else (r, v)
    _, last = k.reduce(v, affine, p=a[at], q=b[at])
    _, running = k.scan(v, affine, p2=a[at], q2=b[at])
    k.store(y, (r,), last)
    k.store(z, at, running)
    rng = np.random.default_rng(0)
    a_, b_ = rng.integers(-3, 4, shape), rng.integers(-9, 9, shape)
    y_, z_ = np.zeros(20, np.int64), np.zeros(shape, np.int64)
    Compiled(k.kernel(), chip)(a_, b_, y_, z_)
    if across:
        a_, b_, z_ = a_.T, b_.T, z_.T
    x = np.zeros(20, np.int64)
    for c in range(extent):
        x = a_[:, c] * x + b_[:, c]
        np.testing.assert_array_equal(z_[:, c], x)
    np.testing.assert_array_equal(y_, x)


@CHIPS
def test_argmax_takes_the_first(chip: CPU) -> None:
    k = Builder("argmax")
    n = k.symbol("n")
    x, y = k.input("x", float32, 9, n), k.output("y", int64, 9)
    r, v = k.grid("r", 9), k.tile("v", 32)
    low, big = k.const(-np.inf, float32), k.const(1 << 40, int64)

    with k.loop("c", (n + 31) // 32, m=low, at=big, tiles=[v]) as (c, m, at):
        i = c * 32 + v
        value = k.let("value", x.load(r, i, mask=i < n, other=low))
        k.step(m=where(m < value, value, m), at=where(m < value, i, at))

    def first(left: Sequence[Node], right: Sequence[Node]) -> list[Node]:
        tie = elementwise(ops.AND, left[0].equal(right[0]), right[1] < left[1])
        take = (left[0] < right[0]) | tie
        return [where(take, right[0], left[0]), where(take, right[1], left[1])]

    _, best = k.reduce(v, first, best_m=m, best_at=at)
    k.store(y, (r,), best)
    x_ = np.random.default_rng(0).integers(0, 20, (9, 101)).astype(np.float32)
    y_ = np.zeros(9, np.int64)
    Compiled(k.kernel(), chip)(x_, y_, symbols=[101])
    np.testing.assert_array_equal(y_, x_.argmax(1))


@CHIPS
def test_online_softmax_statistics(chip: CPU) -> None:
    """A merge of (maximum, scaled sum): transcendental functions inside a reduction."""
    k = Builder("online")
    x, y = k.input("x", float32, 5, 50), k.output("y", float32, 5)
    r, v = k.grid("r", 5), k.tile("v", 50)

    def merge(left: Sequence[Node], right: Sequence[Node]) -> list[Node]:
        top = maximum(left[0], right[0])
        return [top, left[1] * exp(left[0] - top) + right[1] * exp(right[0] - top)]

    top, total = k.reduce(v, merge, top=x[r, v], total=x[r, v] * 0.0 + 1.0)
    k.store(y, (r,), elementwise(ops.LOG, total) + top)
    x_ = np.random.default_rng(0).normal(0, 20, (5, 50)).astype(np.float32)
    y_ = np.zeros(5, np.float32)
    Compiled(k.kernel(), chip)(x_, y_)
    want = np.log(np.exp(x_.astype(np.float64)).sum(1))
    np.testing.assert_allclose(y_, want, rtol=1e-6)


# ---- statements and scopes


@CHIPS
def test_stores_are_seen_by_later_loads(chip: CPU) -> None:
    """The same expression before and after a store, in a loop and behind a branch."""
    k = Builder("scopes")
    x = k.buffer("x", float32, (32,), Role.INOUT)
    y = k.output("y", float32, 4, 32)
    v = k.tile("v", 32)
    k.store(y, (0, v), x[v])
    k.store(x, (v,), x[31 - v])  # the right side is read as a whole first
    k.store(y, (1, v), x[v])
    with k.loop("t", 3):
        k.store(x, (v,), x[v] * 2.0)
    k.store(y, (2, v), x[v])
    with k.when(k.const(0, int64) < 1):
        k.store(x, (v,), x[v] + 1.0)
    k.store(y, (3, v), x[v])
    x_ = np.random.default_rng(0).random(32, np.float32)
    y_ = np.zeros((4, 32), np.float32)
    run = Compiled(k.kernel(), chip)
    before = x_.copy()
    run(x_, y_)
    back = before[::-1]
    np.testing.assert_array_equal(y_, [before, back, back * 8, back * 8 + 1])


def test_carried_values_step_together_and_loops_may_be_empty() -> None:
    k = Builder("fibonacci")
    n = k.symbol("n")
    y = k.output("y", int64, 2)
    with k.loop("i", n, a=k.const(0, int64), b=k.const(1, int64)) as (_, a, b):
        k.step(a=b, b=a + b)
    k.store(y, (0,), a)
    k.store(y, (1,), b)
    run = Compiled(k.kernel())
    y_ = np.zeros(2, np.int64)
    for count, want in ((0, (0, 1)), (1, (1, 1)), (10, (55, 89))):
        run(y_, symbols=[count])
        assert tuple(y_) == want


def test_grid_of_three_axes_and_parameters() -> None:
    k = Builder("grid")
    a, b = k.symbol("a"), k.symbol("b")
    scale, flag = k.param("scale", d.float16), k.param("flag", d.bool_)
    y = k.output("y", float32, a, b, 3)
    i, j, m = k.grid("i", a), k.grid("j", b), k.grid("m", 3)
    at = elementwise(ops.CAST, i * 100 + j * 10 + m, dtype=float32)
    factor = elementwise(ops.CAST, scale, dtype=float32)
    k.store(y, (i, j, m), where(flag, at * factor, at))
    run = Compiled(k.kernel())
    want = np.add.outer(np.add.outer(np.arange(4) * 100, np.arange(5) * 10), np.arange(3))
    for on, factor_ in ((True, 0.5), (False, 1.0)):
        y_ = np.zeros((4, 5, 3), np.float32)
        run(y_, params=[np.float16(0.5), np.bool_(on)], symbols=[4, 5])
        np.testing.assert_array_equal(y_, want * factor_)
    run(np.zeros(1, np.float32), params=[np.float16(0.5), np.bool_(True)], symbols=[0, 5])


def test_stages_are_reused_by_phases_and_reported() -> None:
    k = Builder("stages")
    x, y = k.input("x", float32, 40), k.output("y", float32, 40)
    v = k.tile("v", 40)
    stage = k.stage("s", float32, 40, strides=(2,))
    k.store(stage, (v,), x[v] * 3.0)
    k.store(y, (v,), stage[39 - v])
    run = Compiled(k.kernel())
    assert run.rendered.scratch_bytes == 320  # 79 elements, in whole cache lines
    x_ = np.random.default_rng(0).random(40, np.float32)
    y_ = np.zeros(40, np.float32)
    run(x_, y_)
    np.testing.assert_array_equal(y_, (x_ * np.float32(3))[::-1])


def test_conditions_choose_one_body() -> None:
    k = Builder("choice")
    y = k.output("y", float32, 8, 16)
    r, v = k.grid("r", 8), k.tile("v", 16)
    k.store(y, (r, v), k.const(1.0, float32))
    with k.when((r % 2).equal(0)):
        k.store(y, (r, v), elementwise(ops.CAST, r * 16 + v, dtype=float32))
    y_ = np.zeros((8, 16), np.float32)
    Compiled(k.kernel())(y_)
    want = np.where(np.arange(8)[:, None] % 2 == 0, np.arange(128).reshape(8, 16), 1)
    np.testing.assert_array_equal(y_, want)


def test_reshaped_index_with_division() -> None:
    """Neighbouring lanes that are not at a constant distance in memory."""
    k = Builder("reshape")
    x, y = k.input("x", float32, 12, 10), k.output("y", float32, 120)
    v = k.tile("v", 120)
    k.store(y, (v,), x[v % 12, v // 12])
    x_ = np.random.default_rng(0).random((12, 10), np.float32)
    y_ = np.zeros(120, np.float32)
    Compiled(k.kernel())(x_, y_)
    np.testing.assert_array_equal(y_, x_.T.ravel())


# ---- errors and imports


def test_errors_name_the_line() -> None:
    with pytest.raises(CompileError, match="rejected line 2: ret i33 0"):
        compile_object("define i32 @f() {\nret i33 0\n}")


def test_a_value_outside_its_loop_is_an_error() -> None:
    k = Builder("escape")
    y = k.output("y", int64, 1)
    with k.loop("i", 4) as (i,):
        pass
    k.store(y, (0,), i)
    with pytest.raises(ValueError, match="i is used outside"):
        render(k.kernel(), host())


def test_rendering_does_not_need_llvm() -> None:
    code = (
        "import sys, genesis.backends.cpu.codegen.render, genesis.backends.cpu.compile;"
        "sys.exit('llvmlite' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_one_lane_of_a_narrow_type_does_not_write_its_neighbour() -> None:
    # 17 columns leave one lane of the second vector; LLVM 22 would store it as a wide lane.
    k = Builder("narrow")
    x, y = k.input("x", d.float32, 3, 17), k.output("y", d.bfloat16, 3, 17)
    r, v = k.tile("r", 3), k.tile("v", 32)
    k.store(y, (r, v), cast(x.load(r, v, mask=v < 17), d.bfloat16), mask=v < 17)
    given = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float32)
    result = np.zeros((3, 17), d.bfloat16.numpy)
    Compiled(k.kernel())(given, result)
    np.testing.assert_array_equal(result, given.astype(d.bfloat16.numpy))
