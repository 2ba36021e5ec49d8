"""The Triton renderer: text, machine code for several chips, and numbers under the interpreter.

Nothing here needs a GPU. Triton's interpreter is switched on by an environment variable that must
be set before Triton is imported, so all numeric cases run in one other process.
"""

import math
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

from examples.kernels import ALL
from genesis.backends.gpu.codegen.render import render
from genesis.backends.gpu.compile import compile, parse_target, resources
from genesis.ir import ops, scalar_semantics
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
    uint32,
    uint64,
)
from genesis.ir.kernel import Kernel, Role
from genesis.ir.kernel_builder import Builder, exp, maximum
from genesis.ir.node import Node, elementwise, node


def cast(n: Node, dtype: DType) -> Node:
    return elementwise(ops.CAST, n, dtype=dtype)


#: Examples for chips whose fast memory a kernel manages itself.
STAGED = ("attention", "causal_attention", "packed_gemm")
UNSTAGED = [name for name in ALL if name not in STAGED]


# ---- kernels


def softmax(width: int = 1024) -> Kernel:
    """Row softmax in three passes over tiles, the last one masked."""
    k = Builder("softmax")
    M, N = k.symbol("M"), k.symbol("N", high=1 << 20)
    x, y = k.input("x", float32, M, N), k.output("y", float32, M, N)
    r, v = k.grid("r", M), k.tile("v", width)
    lowest = k.const(-math.inf, float32)
    tiles = (N + (width - 1)) // width
    with k.loop("c0", tiles, peak=lowest, tiles=[v]) as (c, peak):
        at = c * width + v
        k.step(peak=maximum(peak, x.load(r, at, mask=at < N, other=lowest)))
    (m,) = k.reduce(v, ops.MAX, m=peak)
    with k.loop("c1", tiles, sums=k.const(0.0, float32), tiles=[v]) as (c, sums):
        at = c * width + v
        k.step(sums=sums + exp(x.load(r, at, mask=at < N, other=lowest) - m))
    (total,) = k.reduce(v, ops.ADD, total=sums)
    with k.loop("c2", tiles) as (c,):
        at = c * width + v
        e = exp(x.load(r, at, mask=at < N, other=lowest) - m)
        k.store(y, (r, at), e / total, mask=at < N)
    return k.kernel()


def gemm(dtype: DType, multiple: int = 1) -> Kernel:
    """C = A @ B by square tiles of C."""
    k, tile = Builder("gemm"), 64
    M, N, K = k.symbol("M"), k.symbol("N"), k.symbol("K", multiple=multiple)
    A, B = k.input("A", dtype, M, K), k.input("B", dtype, K, N)
    C = k.output("C", float32, M, N)
    row = k.grid("rb", (M + (tile - 1)) // tile) * tile + k.tile("i", tile)
    cb, j = k.grid("cb", (N + (tile - 1)) // tile), k.tile("j", tile)
    column = cb * tile + j
    with k.loop("k", K, acc=k.const(0.0, float32), tiles=[row_tile(row), j]) as (d, acc):
        a = k.let("a", cast(A.load(row, d, mask=row < M), float32))
        b = B.load(d, column, mask=column < N)
        k.step(acc=acc + a * cast(b, float32))
    k.store(C, (row, column), acc, mask=(row < M) & (column < N))
    return k.kernel()


def row_tile(row: Node) -> Node:
    return row.inputs[1]


def elementwise_kernel(op: ops.Op, result: DType, *inputs: DType) -> Kernel:
    """y = op(x0, ..) over tiles of 16, the last one masked."""
    k = Builder(f"{op.name}_{inputs[0]}")
    N = k.symbol("N")
    buffers = [k.input(f"x{i}", d, N) for i, d in enumerate(inputs)]
    y = k.output("y", result, N)
    at = k.grid("b", (N + 15) // 16) * 16 + k.tile("v", 16)
    operands = [x.load(at, mask=at < N) for x in buffers]
    k.store(y, (at,), node(op, tuple(operands), None, result), mask=at < N)
    return k.kernel()


def folds(extent: int, dtype: DType) -> Kernel:
    """Every simple fold of rows whose length is any number, and a prefix sum."""
    k = Builder("folds")
    M = k.symbol("M")
    x = k.input("x", dtype, M, extent)
    r, v = k.grid("r", M), k.tile("v", extent)
    for op in (ops.ADD, ops.MUL, ops.MAX, ops.MIN):
        (total,) = k.reduce(v, op, **{f"r_{op.name}": x[r, v]})
        k.store(k.output(f"y_{op.name}", dtype, M), (r,), total)
    (prefix,) = k.scan(v, ops.ADD, prefix=x[r, v])
    k.store(k.output("y_prefix", dtype, M, extent), (r, v), prefix)
    return k.kernel()


def ordered_merge(extent: int) -> Kernel:
    """The composition of affine maps: associative, and the order matters."""
    k = Builder("compose")
    a, b = k.input("a", float32, extent), k.input("b", float32, extent)
    y, z = k.output("y", float32, 1), k.output("z", float32, 1)
    v = k.tile("v", extent)
    slope, shift = k.reduce(
        v, lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]), slope=a[v], shift=b[v]
    )
    k.store(y, (0,), slope)
    k.store(z, (0,), shift)
    return k.kernel()


def symmetric_merge(extent: int) -> Kernel:
    """Mean and count of a row, merged as pairs."""
    k = Builder("pairs")
    x, y = k.input("x", float32, extent), k.output("y", float32, 1)
    v = k.tile("v", extent)

    def merge(f: Any, g: Any) -> Any:
        n = f[1] + g[1]
        return (f[0] * f[1] + g[0] * g[1]) / n, n

    mean, _ = k.reduce(v, merge, mean=x[v], count=k.const(1.0, float32))
    k.store(y, (0,), mean)
    return k.kernel()


def strided(extent: int = 12) -> Kernel:
    """A transposed view with an offset, a scalar argument, a branch and a carried integer."""
    k = Builder("strided")
    x = k.buffer("x", float32, (extent, 7), Role.INPUT, strides=(1, extent), offset=3)
    y = k.output("y", float32, 7, extent)
    n = k.output("n", int64, 7)
    alpha = k.param("alpha", float32)
    c, v = k.grid("c", 7), k.tile("v", extent)
    with k.when(c % 2 < 1):
        k.store(y, (c, v), x[v, c] * alpha)
    with k.when((c % 2).equal(1)):
        k.store(y, (c, v), -x[v, c])
    with k.loop("t", c + 1, total=k.const(0, int64)) as (t, total):
        k.step(total=total + t * 2147483647)
    k.store(n, (c,), total)
    return k.kernel()


def read_back() -> Kernel:
    """What one statement writes another reads at other lanes."""
    k = Builder("read_back")
    x, y, z = k.input("x", float32, 64), k.output("y", float32, 64), k.output("z", float32, 64)
    v = k.tile("v", 64)
    k.store(y, (v,), x[v] * 2.0)
    k.store(z, (v,), y[63 - v] + 1.0)
    return k.kernel()


# ---- the text


SOFTMAX = '''"""Kernel softmax."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def nan_maximum(a, b):
    """The greater of two values; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax_0(x_ptr, y_ptr, M, N):
    r = tl.cast(tl.program_id(0), tl.int64)
    v = tl.arange(0, 1024)
    peak = tl.full([1024], float("-inf"), tl.float32)
    for c0 in range((N + 1023) // 1024):
        at = c0 * 1024 + v
        x = tl.load(x_ptr + r * N + at, mask=at < N, other=float("-inf"))
        peak = tl.maximum(peak, x, propagate_nan=tl.PropagateNan.ALL)
    m = tl.reduce(peak, 0, nan_maximum)
    sums = tl.zeros([1024], tl.float32)
    for c1 in range((N + 1023) // 1024):
        at_1 = c1 * 1024 + v
        x_1 = tl.load(x_ptr + r * N + at_1, mask=at_1 < N, other=float("-inf"))
        sums = sums + libdevice.exp(x_1 - m)
    total = tl.sum(sums, axis=0)
    for c2 in range((N + 1023) // 1024):
        at_2 = c2 * 1024 + v
        at_3 = r * N + at_2
        mask = at_2 < N
        x_2 = tl.load(x_ptr + at_3, mask=mask, other=float("-inf"))
        tl.store(y_ptr + at_3, tl.div_rn(libdevice.exp(x_2 - m), total), mask=mask)


def softmax_0_grid(M, N):
    return M
'''


def test_softmax_reads_like_this() -> None:
    source = render(softmax())
    assert source.text == SOFTMAX
    assert source.functions == ("softmax_0",)
    assert source.num_warps == (4,)
    assert [a.name for a in source.arguments] == ["x_ptr", "y_ptr", "M", "N"]
    assert source.signature(unaligned=["y_ptr"]) == {
        "x_ptr": "*fp32:16", "y_ptr": "*fp32", "M": "i64", "N": "i32",
    }  # fmt: skip


def test_a_contraction_becomes_a_dot_with_a_masked_tail() -> None:
    text = render(gemm(bfloat16)).text
    assert "acc = tl.dot(left, right, acc, out_dtype=tl.float32)" in text
    assert "for k in range((K + 63) // 64):" in text
    assert "mask=(i[:, None] + at < M) & (at_1 < K), other=0.0" in text
    assert "mask=(at_3 < N) & (at_2 < K), other=0.0" in text
    assert "< K" not in render(gemm(bfloat16, multiple=64)).text
    assert 'input_precision="bf16x6"' in render(gemm(float32)).text


def test_padding_lanes_are_masked() -> None:
    text = render(strided()).text
    assert "v = tl.arange(0, 16)" in text
    assert text.count("mask = v < 12") == text.count("mask=mask, other=0.0") == 1
    assert text.count("tl.load(") == text.count("other=0.0") == 2


def test_reading_back_waits_for_the_writers() -> None:
    assert render(read_back()).text.count("tl.debug_barrier()") == 2
    assert "debug_barrier" not in render(softmax()).text


def test_shared_subexpressions_are_written_once() -> None:
    k = Builder("deep")
    x, y = k.input("x", float32, 16), k.output("y", float32, 16)
    v = k.tile("v", 16)
    value = x[v]
    for _ in range(40):
        value = value * value + value
    k.store(y, (v,), value)
    assert len(render(k.kernel()).text) < 4000


def test_what_triton_cannot_say_is_named() -> None:
    for name in STAGED:
        with pytest.raises(NotImplementedError, match=r"stage \w+ has no Triton form"):
            render(ALL[name].build())
    with pytest.raises(NotImplementedError, match="sin of int32"):
        render(elementwise_kernel(ops.SIN, int32, int32))


# ---- machine code


@cache
def assembly(name: str, target: str) -> str:
    kernels = {
        "softmax": softmax,
        "gemm_f32": lambda: gemm(float32),
        "gemm_bf16": lambda: gemm(bfloat16),
    }
    source = render(kernels[name]())
    (function,) = compile(source, source.signature(), target).functions
    assert function.binary
    return function.assembly


@pytest.mark.parametrize(
    ("name", "target", "instruction"),
    [
        ("softmax", "sm_90", "max.NaN.f32"),
        ("gemm_f32", "sm_90", "wgmma.mma_async"),
        ("gemm_bf16", "sm_90", "wgmma.mma_async"),
        ("gemm_bf16", "sm_120", "mma.sync"),
        ("gemm_bf16", "gfx942", "v_mfma"),
        ("gemm_bf16", "gfx1201", "v_wmma"),
        ("softmax", "gfx942", "v_"),
    ],
)
def test_compiles_to_the_chips_instructions(name: str, target: str, instruction: str) -> None:
    assert instruction in assembly(name, target)


@pytest.mark.parametrize("name", UNSTAGED)
def test_examples_compile(name: str) -> None:
    source = render(ALL[name].build())
    compiled = compile(source, source.signature(), "sm_90")
    assert [f.name for f in compiled.functions] == list(source.functions)
    assert all(".target sm_90a" in f.assembly for f in compiled.functions)


def test_resources_are_reported() -> None:
    source = render(softmax())
    (function,) = compile(source, source.signature(), "sm_90").functions
    used = resources(function)
    assert 8 <= used.registers <= 128
    assert used.spilled == 0


def test_targets_are_checked() -> None:
    assert parse_target("sm_120") == ("cuda", 120, 32)
    with pytest.raises(ValueError, match="'h100' is not a target"):
        parse_target("h100")


# ---- numbers


@dataclass
class Case:
    """A kernel, its arguments by name, and what its outputs must be within a tolerance."""

    kernel: Kernel
    arguments: dict[str, Any]
    expected: dict[str, Any]
    rtol: float = 2e-5
    atol: float = 2e-5


def example_cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    cases = {}
    for name in UNSTAGED:
        example = ALL[name]
        for sizes in example.cases:
            arguments = example.arguments(rng, **sizes)
            title = " ".join([name, *(f"{k}={v}" for k, v in sizes.items())])
            kernel = example.build()
            cases[title] = Case(kernel, arguments, example.reference(arguments), 1e-4, 1e-4)
    return cases


def matrix_cases() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    cases = {}
    for name, kernel, dtype in (
        ("gemm f32", gemm(float32), np.float32),
        ("gemm bf16", gemm(bfloat16), ml_dtypes.bfloat16),
    ):
        for M, N, K in ((64, 64, 64), (65, 70, 33), (3, 5, 1)):
            a, b = (rng.standard_normal(s).astype(dtype) for s in ((M, K), (K, N)))
            c = np.full((M, N), np.nan, np.float32)
            arguments = {"A": a, "B": b, "C": c, "M": M, "N": N, "K": K}
            product = a.astype(np.float64) @ b.astype(np.float64)
            cases[f"{name} {M}x{N}x{K}"] = Case(kernel, arguments, {"C": product}, 1e-4, 1e-4)
    x = 30 * rng.standard_normal((3, 1500), np.float32)
    x[1, 7] = np.inf
    with np.errstate(invalid="ignore"):  # the row with infinity in it is NaN
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    cases["softmax"] = Case(
        softmax(), {"x": x, "y": np.empty_like(x), "M": 3, "N": 1500},
        {"y": e / e.sum(axis=1, keepdims=True)},
    )  # fmt: skip
    return cases


def fold_cases() -> dict[str, Case]:
    rng = np.random.default_rng(2)
    cases = {}
    for dtype in (float32, int32, uint8, int8):
        for extent in (16, 13, 1):
            x = rng.integers(0, 5, (4, extent)).astype(dtype.numpy)
            if dtype is float32:
                x += rng.random((4, extent), np.float32)
                x[1, 0] = np.nan
            expected = {
                "y_add": x.sum(1, dtype=x.dtype), "y_mul": x.prod(1, dtype=x.dtype),
                "y_max": x.max(1), "y_min": x.min(1), "y_prefix": x.cumsum(1, dtype=x.dtype),
            }  # fmt: skip
            arguments = {"x": x, **{k: np.empty_like(v) for k, v in expected.items()}, "M": 4}
            cases[f"folds {dtype} {extent}"] = Case(folds(extent, dtype), arguments, expected)
    for extent in (8, 11):
        a, b = rng.standard_normal((2, extent), np.float32)
        shift = np.float64(0)
        for s, t in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
            shift = s * shift + t
        arguments = {"a": a, "b": b, "y": np.empty(1, np.float32), "z": np.empty(1, np.float32)}
        expected = {"y": np.prod(a, keepdims=True), "z": np.array([shift])}
        cases[f"compose {extent}"] = Case(ordered_merge(extent), arguments, expected)
        arguments = {"x": a, "y": np.empty(1, np.float32)}
        expected = {"y": a.mean(keepdims=True)}
        cases[f"pairs {extent}"] = Case(symmetric_merge(extent), arguments, expected)
    return cases


def layout_cases() -> dict[str, Case]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(3 + 12 * 7).astype(np.float32)
    columns = x[3:].reshape(7, 12)
    signs = np.where(np.arange(7)[:, None] % 2 == 0, np.float32(0.5), np.float32(-1))
    totals = np.cumsum(np.arange(7, dtype=np.int64)) * 2147483647
    arguments = {
        "x": x,
        "y": np.empty((7, 12), np.float32),
        "n": np.empty(7, np.int64),
        "alpha": 0.5,
    }
    y = rng.standard_normal(64).astype(np.float32)
    back = {"x": y, "y": np.empty(64, np.float32), "z": np.empty(64, np.float32)}
    return {
        "strided": Case(strided(), arguments, {"y": columns * signs, "n": totals}),
        "read back": Case(read_back(), back, {"y": y * 2, "z": y[::-1] * 2 + 1}),
    }


def scalar_cases() -> dict[str, Case]:
    """Every scalar operation on awkward values, against the table of their meanings."""
    rng = np.random.default_rng(4)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        np.inf,
        -np.inf,
        np.nan,
        1e10,
        -1e10,
    ]
    floats = np.concatenate([special, rng.standard_normal(11) * 3])
    cases = {}

    def values(dtype: DType) -> np.ndarray[Any, Any]:
        if dtype is bool_:
            return np.arange(25) % 3 == 0
        if dtype.is_float:
            with np.errstate(over="ignore"):
                return floats.astype(dtype.numpy)
        edges = np.array([dtype.min, dtype.max, 0, 1, 2, 3, 7, 31, 64], object)
        more = rng.integers(0 if dtype.kind == "uint" else -100, 100, 16).astype(object)
        return np.concatenate([edges, more]).astype(dtype.numpy)

    def add(op: ops.Op, result: DType, *inputs: DType) -> None:
        arrays = [rng.permutation(values(d)) if i else values(d) for i, d in enumerate(inputs)]
        if op is ops.ABS or op in (ops.FLOORDIV, ops.MOD):  # MIN has no absolute value
            arrays = [np.where(a == np.array(inputs[0].min), 5, a).astype(a.dtype)
                      if inputs[0].kind == "int" else a for a in arrays]  # fmt: skip
        expected = scalar_semantics.apply(op, result, *arrays)
        arguments = {f"x{i}": a for i, a in enumerate(arrays)}
        arguments |= {"y": np.zeros(25, result.numpy), "N": 25}
        kernel = elementwise_kernel(op, result, *inputs)
        title = f"{op} {' '.join(map(str, inputs))} -> {result}"
        cases[title] = Case(
            kernel, arguments, {"y": expected}, 1e-6 if result.bits > 16 else 1e-2, 0
        )

    unary = (ops.NEG, ops.ABS, ops.SQRT, ops.EXP, ops.EXP2, ops.LOG, ops.LOG2, ops.SIN, ops.COS,
             ops.TAN, ops.TANH, ops.ERF, ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC)  # fmt: skip
    for op in unary:
        add(op, float32, float32)
        add(op, float64, float64)
        add(op, float16, float16)
    for op in (ops.ADD, ops.SUB, ops.MUL, ops.DIV, ops.FMOD, ops.POW, ops.ATAN2, ops.MAX, ops.MIN):
        add(op, float32, float32, float32)
        add(op, float64, float64, float64)
        add(op, float16, float16, float16)
    integers = (int8, uint8, int32, uint32, int64, uint64)
    for op in (ops.ADD, ops.SUB, ops.MUL, ops.MAX, ops.MIN, ops.FLOORDIV, ops.MOD, ops.AND, ops.OR,
               ops.XOR, ops.SHL, ops.SHR, ops.POW):  # fmt: skip
        for dtype in integers:
            add(op, dtype, dtype, dtype)
    for op in (ops.NEG, ops.NOT, ops.ABS):
        for dtype in (int8, uint8, int64):
            add(op, dtype, dtype)
    add(ops.NOT, bool_, bool_)
    for op in (ops.AND, ops.OR, ops.XOR):
        add(op, bool_, bool_, bool_)
    for op in (ops.LT, ops.LE, ops.EQ, ops.NE):
        for dtype in (float32, float16, int8, uint64, bool_):
            add(op, bool_, dtype, dtype)
    for dtype in (float32, float64, int32):
        add(ops.FMA, dtype, dtype, dtype, dtype)
    for dtype in (float32, bfloat16, int8, uint64, bool_):
        add(ops.WHERE, dtype, bool_, dtype, dtype)
    add(ops.RANDOM, uint64, uint64, uint64)
    add(ops.LOOKUP, uint8, uint8, uint64, uint64)
    kinds = (bool_, int8, uint8, int32, uint32, int64, uint64, float16, float32, float64)
    for source in kinds:
        for target in kinds:
            if source is not target:
                add(ops.CAST, target, source)
    for source, target in ((float32, int32), (int64, float64), (uint8, int8), (float16, float16)):
        add(ops.BITCAST, target, source)
    return cases


@cache
def all_cases() -> dict[str, Case]:
    return example_cases() | matrix_cases() | fold_cases() | layout_cases() | scalar_cases()


# Runs rendered modules under Triton's interpreter. It asks of an array only what this class has;
# functions of libdevice, which exist on GPUs only, are computed by NumPy.
INTERPRETER = """
import pickle, sys
import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder
from dataclasses import replace
from genesis.backends.gpu.compile import load

class Array:
    def __init__(self, data, dtype):
        self.data, self.dtype = data, dtype
    def data_ptr(self):
        return self.data.ctypes.data
    def untyped_storage(self):
        return self
    def storage_offset(self):
        return 0
    size = stride = storage_offset
    def cpu(self):
        return self
    def new_empty(self, *shape, device):
        return Array(self.data, self.dtype)
    def set_(self, *storage):
        pass
    copy_ = set_

def elementwise(function):
    def apply(*inputs):
        inputs = [x.handle.data for x in inputs]
        with np.errstate(all="ignore"):
            data = np.asarray(function(*(x.astype(np.float64) for x in inputs)))
        kind = tl.float64 if inputs[0].dtype == np.float64 else tl.float32
        data = data.astype(inputs[0].dtype)
        return tl.tensor(TensorHandle(data, kind), tl.block_type(kind, list(data.shape)))
    return apply

for name, function in dict(
    exp=np.exp, exp2=np.exp2, log=np.log, log2=np.log2, sin=np.sin, cos=np.cos, tanh=np.tanh,
    pow=np.power, atan2=np.arctan2, rint=np.rint, trunc=np.trunc, tan=np.tan,
    fmod=np.fmod,
).items():
    setattr(libdevice, name, elementwise(function))

# Two repairs: the interpreter splats the result of a scalar comparison as an integer, and
# multiplies bfloat16 matrices by their bits.
def create_splat(self, kind, x):
    return TensorHandle(np.full(kind.shape, x.data, x.data.dtype), x.dtype.scalar)

def create_dot(self, a, b, acc, *options):
    a, b = ((x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else x.data
            for x in (a, b))
    return TensorHandle(np.matmul(a, b, dtype=acc.data.dtype) + acc.data, acc.dtype.scalar)

InterpreterBuilder.create_splat, InterpreterBuilder.create_dot = create_splat, create_dot
interpreter_builder.options = replace(
    interpreter_builder.options, allowed_dot_input_precisions=("ieee", "bf16x3", "bf16x6")
)

with open(sys.argv[1], "rb") as file:
    cases = pickle.load(file)
results = {}
for title, (source, arguments, sizes) in cases.items():
    module = load(source)
    values = [Array(a, kind) if kind else a for a, kind in arguments]
    try:
        with np.errstate(all="ignore"):
            for name in source.functions:
                programs = getattr(module, name + "_grid")(**sizes)
                if programs:
                    getattr(module, name)[(programs,)](*values)
        results[title] = [a for a, kind in arguments]
    except Exception as error:
        results[title] = repr(error)
with open(sys.argv[1], "wb") as file:
    pickle.dump(results, file)
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case's arguments after the interpreter ran it, or the error."""
    work = {}
    for title, case in all_cases().items():
        kernel, given = case.kernel, case.arguments
        arguments: list[tuple[Any, str | None]] = []
        for b in kernel.buffers:
            if b.name in given:
                data = np.array(given[b.name], order="C")
            else:  # temporaries: more than enough, and full of what must not be read
                data = np.full(4096, 77).astype(b.dtype.numpy)
            bits = data.view(np.uint16) if b.dtype is bfloat16 else data
            arguments.append((bits, b.dtype.name))
        arguments += [(given[p.name], None) for p in kernel.params]
        sizes = {s.name: given[s.name] for s in kernel.symbols}
        arguments += [(n, None) for n in sizes.values()]
        work[title] = (render(kernel), arguments, sizes)
    path = tmp_path_factory.mktemp("triton") / "cases.pickle"
    path.write_bytes(pickle.dumps(work))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETER, str(path)], check=True, env=environment)
    return pickle.loads(path.read_bytes())


@pytest.mark.parametrize("title", all_cases())
def test_numbers(title: str, interpreted: dict[str, Any]) -> None:
    case, got = all_cases()[title], interpreted[title]
    assert not isinstance(got, str), got
    names = [b.name for b in case.kernel.buffers]
    for name, expected in case.expected.items():
        result = got[names.index(name)]
        dtype = next(b.dtype for b in case.kernel.buffers if b.name == name)
        result = result.view(dtype.numpy).reshape(expected.shape)
        if dtype.is_float:
            np.testing.assert_allclose(
                result.astype(np.float64), expected.astype(np.float64), case.rtol, case.atol
            )
        else:
            np.testing.assert_array_equal(result, expected)


ADDS_IN_A_WORD = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 p)
{
.reg .b64 %rd<2>;
.reg .b32 %r<4>;
ld.param.u64 %rd1, [p];
ld.global.u32 %r1, [%rd1];
mov.b32 %r2, 196613;
add.s16x2 %r3, %r1, %r2;
st.global.u32 [%rd1], %r3;
ret;
}
"""


def test_16_bit_numbers_in_a_word_are_not_added_by_one_instruction() -> None:
    """NVIDIA's assembler up to 12.9 forgets a constant operand where it has unrolled a loop."""
    from triton.backends.compiler import GPUTarget

    from genesis.backends.gpu.compile import _assembled, in_halves

    chip = GPUTarget("cuda", 90, 32)
    assert "VIADD.16x2" in disassembled(_assembled(ADDS_IN_A_WORD, chip, {}))
    assert "VIADD.16x2" not in disassembled(_assembled(in_halves(ADDS_IN_A_WORD), chip, {}))


def test_narrow_indices_are_not_added_by_one_instruction() -> None:
    """The weights of this convolution are found by indices that need a few bits only.

    Some versions of LLVM compute two of them at a time.
    """
    from genesis.nn.functional import conv_transpose1d
    from tests.compiler.test_gpu_schedule import kernels_of

    inputs = ("float64", 2, 4, 4), ("float64", 4, 1, 3)
    (kernel,) = kernels_of(lambda x, w: conv_transpose1d(x, w, None, 2, 1, 0, 2, 3), *inputs)
    source = render(kernel, target="sm_90")
    signature = source.signature([a.name for a in source.arguments])
    (function,) = compile(source, signature, "sm_90").functions
    assert "add.s16x2" not in function.assembly
    assert "VIADD.16x2" not in disassembled(function.binary)


def disassembled(code: bytes) -> str:
    """Machine code for NVIDIA's chips as text."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([tool, file.name], capture_output=True, text=True, check=True)
        return done.stdout
