"""Products of bytes in quadruples, and of a few rows with a large matrix: exact, and one kernel.

The interpreter runs the scheduled kernels against NumPy's integers; machine code is made for the
host, for the host without its instruction for quadruples, and for narrow vectors.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from graphs import leaf, reduce, reshape
from oracles import CHIP, interpreted

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.chip import CPU, host
from genesis.backends.cpu.compile import compile_object, load
from genesis.backends.cpu.render import render
from genesis.compiler.fuse import fuse
from genesis.compiler.lower import lower
from genesis.compiler.schedule import schedule
from genesis.compiler.verify import verify
from genesis.ir import ops
from genesis.ir.dtype import DType, float32, int8, int32, uint8
from genesis.ir.kernel import Kernel, Reduce, walk
from genesis.ir.node import Node, elementwise, node

PLAIN = replace(host(), features=host().features - {"avx512_vnni", "avx_vnni"})
NARROW = replace(host(), vector_bytes=16, features=frozenset())
BLOCK, QUADS = 32, 8


def quadruples(
    rows: int, blocks: int, groups: int, kinds: tuple[DType, DType], scaled: bool = False
) -> tuple[Node, list[np.ndarray], np.ndarray]:
    """A product of bytes, its inputs with all extremes, and what NumPy gives.

    With `scaled` every group is multiplied by a number before the groups are added.
    """
    rng = np.random.default_rng(rows)
    shapes = ((rows, groups, QUADS, 4), (blocks, groups, QUADS, BLOCK, 4))
    inputs = []
    for shape, kind in zip(shapes, kinds, strict=True):
        limits = np.iinfo(kind.numpy)
        x = rng.integers(limits.min, limits.max, shape, kind.numpy, endpoint=True)
        x.reshape(-1)[:64], x.reshape(-1)[64:96] = limits.min, limits.max
        inputs.append(x)
    leaves = [leaf(k, *s, dtype=t) for k, (s, t) in enumerate(zip(shapes, kinds, strict=True))]
    wide = [elementwise(ops.CAST, x, dtype=int32) for x in leaves]
    # m g q j, b g q r j -> m b r (g)
    kept = (0, 4, 5, 1) if scaled else (0, 4, 5)
    shape: tuple[int, ...] = (rows, blocks, BLOCK, groups) if scaled else (rows, blocks, BLOCK)
    labels = ((0, 1, 2, 3), (4, 1, 2, 5, 3), kept)
    dot = node(ops.CONTRACT, tuple(wide), labels, int32, shape)
    exact = np.einsum("mgqj,bgqrj->mbrg", *(x.astype(np.int64) for x in inputs))
    if not scaled:
        return dot, inputs, exact.sum(-1)
    scale = rng.standard_normal(shape).astype(np.float32)
    summands = elementwise(ops.CAST, dot, dtype=float32) * leaf(2, *shape)
    return reduce(ops.SUM, summands, 3), [*inputs, scale], (exact * scale).sum(-1)


def scheduled(root: Node) -> Kernel:
    fusion = fuse([root])
    (group,) = fusion.groups
    return schedule(lower(group, fusion.stored).kernel, CHIP)


def run(kernel: Kernel, chip: CPU, inputs: list[np.ndarray], result: np.ndarray) -> str:
    """Run a kernel's machine code for a chip; gives its LLVM IR."""
    rendered = render(kernel, chip)
    (names,) = rendered.symbols
    addresses = load(compile_object(rendered.text), names)
    function, grid = (addresses[name] for name in names)
    pointers = np.array([x.ctypes.data for x in (*inputs, result)], np.uint64)
    count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(grid)(pointers.ctypes.data)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    kind(function)(pointers.ctypes.data, 0, count, None)
    return rendered.text


KINDS = [(int8, uint8), (uint8, int8), (int8, int8), (uint8, uint8)]


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_quadruples_are_exact_on_the_interpreter(rows: int, kinds: tuple[DType, DType]) -> None:
    root, inputs, exact = quadruples(rows, 2, 1, kinds)
    kernels: list[Kernel] = []
    (result,) = interpreted([root], inputs, kernels=kernels)
    np.testing.assert_array_equal(result, exact)
    (kernel,) = kernels
    assert any(isinstance(s, Reduce) and s.axis.extent == 4 for s in walk(kernel.phases[0].body))
    assert verify(kernel).proven


@pytest.mark.parametrize("chip", [host(), PLAIN, NARROW], ids=["host", "plain", "narrow"])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_quadruples_are_exact_on_every_chip(chip: CPU, kinds: tuple[DType, DType]) -> None:
    for rows in (1, 5, 14):
        root, inputs, exact = quadruples(rows, 3, 5, kinds)
        result = np.empty(exact.shape, np.int32)
        text = run(scheduled(root), chip, inputs, result)
        np.testing.assert_array_equal(result, exact)
        assert ("vpdpbusd" in text) == (chip.has_byte_dots and kinds != (uint8, uint8))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_sum_of_scaled_groups_is_one_kernel(rows: int) -> None:
    root, inputs, near = quadruples(rows, 2, 3, (int8, uint8), scaled=True)
    kernel = scheduled(root)
    assert verify(kernel).proven
    (result,) = interpreted([root], inputs)
    np.testing.assert_allclose(result, near, rtol=1e-5, atol=1)
    for chip in (host(), PLAIN):
        native = np.empty_like(result)
        run(kernel, chip, inputs, native)
        np.testing.assert_allclose(native, near, rtol=1e-5, atol=1)


def test_a_block_of_columns_may_be_counted_by_one_axis() -> None:
    root, inputs, exact = quadruples(2, 3, 2, (int8, uint8))
    flat = reshape(root, 2, 3 * BLOCK) + leaf(2, 2, 3 * BLOCK, dtype=int32)
    kernels: list[Kernel] = []
    more = np.arange(2 * 3 * BLOCK, dtype=np.int32).reshape(2, -1)
    (result,) = interpreted([flat], [*inputs, more], kernels=kernels)
    np.testing.assert_array_equal(result, exact.reshape(2, -1) + more)
    assert len(kernels) == 1 and "reduce" in str(kernels[0])


@pytest.mark.parametrize("columns_first", [False, True])
@pytest.mark.parametrize("shape", [(9, 64, 32), (2, 13, 80, 96), (10, 63, 64), (33, 36, 40)])
def test_matrices_of_bytes(shape: tuple[int, ...], columns_first: bool) -> None:
    *batch, m, k, n = shape
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 127, (*batch, m, k), np.int8, endpoint=True)
    w = rng.integers(-128, 127, (*batch, n, k), np.int8, endpoint=True)
    x[..., :3, :], w[..., :3, :] = -128, -128
    given = w if columns_first else np.ascontiguousarray(w.swapaxes(-1, -2))

    def product(x: nd.NDArray, w: nd.NDArray) -> nd.NDArray:
        right = w.astype("int32")
        return x.astype("int32") @ (right.mT if columns_first else right)

    arrays = nd.array(x), nd.array(given)
    (kernel,) = genesis.explain(product, *arrays).kernels
    assert ("quads" in str(kernel)) == (k % 4 == 0 and n % 32 == 0)
    exact = x.astype(np.int64) @ w.astype(np.int64).swapaxes(-1, -2)
    np.testing.assert_array_equal(product(*arrays).numpy(), exact)


def test_masks_and_shift_counts_are_part_of_the_program() -> None:
    x = nd.array(np.arange(64, dtype=np.uint8))
    report = genesis.explain(lambda x: ((x >> 4) & 15, (x >> 4) & 15), x)
    (kernel,) = report.kernels
    assert "p0" not in str(kernel)
    np.testing.assert_array_equal(((x >> 4) & 15).numpy(), np.arange(64) >> 4 & 15)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("rows", [2, 5, 8])
def test_few_rows_with_a_large_matrix(rows: int, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    columns, width = 259, 263  # tiles of columns and vectors along k end in the middle
    x = rng.standard_normal((rows, width)).astype(np.float32)
    w = rng.standard_normal((columns, width)).astype(dtype)

    def product(x: nd.NDArray, w: nd.NDArray) -> nd.NDArray:
        return x @ w.astype("float32").T

    arrays = nd.array(x), nd.array(w)
    (kernel,) = genesis.explain(product, *arrays).kernels
    assert "barrier" not in str(kernel)  # nothing is packed
    near = x.astype(np.float64) @ w.astype(np.float64).T
    bound = 1e-6 * (np.abs(x) @ np.abs(w.astype(np.float32)).T)
    assert (np.abs(product(*arrays).numpy() - near) <= bound).all()
