"""Products of bytes in quadruples, of bfloat16 in pairs, and of a few rows with a large matrix.

The interpreter runs the scheduled kernels against NumPy's integers; machine code is made for the
host, for the host without its instructions for quadruples and pairs, and for narrow vectors.
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
from genesis.backends.base import Chip
from genesis.backends.cpu.chip import CPU, host
from genesis.backends.cpu.codegen.render import render
from genesis.backends.cpu.compile import compile_object, load
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.lower.lower import lower
from genesis.compiler.schedule import schedule
from genesis.compiler.verify.kernel import verify
from genesis.ir import ops
from genesis.ir.dtype import DType, bfloat16, float32, int8, int32, uint8
from genesis.ir.kernel import Kernel, Reduce, Role, walk
from genesis.ir.node import Node, elementwise, node

PLAIN = replace(host(), features=host().features - {"avx512_vnni", "avx_vnni", "avx512_bf16"})
NARROW = replace(host(), vector_bytes=16, features=frozenset())
PAIRED = replace(host(), features=host().features | {"avx512_bf16", "avx512vl"})
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


def scheduled(root: Node, chip: Chip = CHIP) -> Kernel:
    fusion = fuse([root])
    (group,) = fusion.groups
    return schedule(lower(group, fusion.stored).kernel, chip)


def run(kernel: Kernel, chip: CPU, inputs: list[np.ndarray], result: np.ndarray) -> str:
    """Run a kernel's machine code for a chip; gives its LLVM IR."""
    rendered = render(kernel, chip)
    addresses = load(
        compile_object(rendered.text), [n for names in rendered.symbols for n in names]
    )
    temporaries = [b for b in kernel.buffers if b.role is Role.TEMPORARY]
    scratch = [np.empty(b.shape, b.dtype.numpy) for b in temporaries]
    pointers = np.array([x.ctypes.data for x in (*inputs, result, *scratch)], np.uint64)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    for names in rendered.symbols:
        function, grid = (addresses[name] for name in names)
        count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(grid)(pointers.ctypes.data)
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


@pytest.mark.parametrize("pixels", [5, 49])
def test_the_mean_of_a_product_of_bytes_is_not_computed_with_it(pixels: int) -> None:
    """Each pixel would read all weights again, one by one."""
    rng = np.random.default_rng(pixels)
    x = nd.array(rng.integers(-128, 128, (2, pixels, 64)), dtype=int8)
    w = nd.array(rng.integers(-128, 128, (64, 96)), dtype=int8)

    def mean(x: Any, w: Any) -> Any:
        return nd.mean((x.astype(int32) @ w.astype(int32)).astype(float32) * 0.01, 1)

    report = genesis.explain(mean, x, w)
    product = next(k for k in report.kernels if "contract" in k.name)
    assert len(report.kernels) == 2 and "mean" not in product.name and "sum" not in product.name
    exact = (x.numpy().astype(int) @ w.numpy().astype(int)).mean(1) * 0.01
    np.testing.assert_allclose(genesis.jit(mean)(x, w).numpy(), exact, 1e-4, 1e-2)


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


# ---- pairs of bfloat16


def pairs(
    shape: tuple[int, int, int], forms: str, wide: bool = False
) -> tuple[Node, list[np.ndarray], np.ndarray]:
    """A product of bfloat16, its inputs, and what float64 gives.

    Each of `forms` tells of a factor whether it lies in rows, as written, or in columns. With
    `wide` the first one is float32, rounded where it is used.
    """
    m, k, n = shape
    rng = np.random.default_rng(m)
    labels = {"lr": (0, 2), "lc": (2, 0), "rr": (2, 1), "rc": (1, 2)}
    inputs, factors, told, exact = [], [], [], []
    for slot, (side, form) in enumerate(zip("lr", forms, strict=True)):
        across = side + form
        sizes = tuple((m, n, k)[label] for label in labels[across])
        kind = float32 if wide and side == "l" else bfloat16
        x = rng.standard_normal(sizes).astype(kind.numpy)
        inputs.append(x)
        loaded = leaf(slot, *sizes, dtype=kind)
        factors.append(
            loaded if kind is bfloat16 else elementwise(ops.CAST, loaded, dtype=bfloat16)
        )
        told.append(labels[across])
        rounded = x.astype(bfloat16.numpy).astype(np.float64)
        exact.append(rounded if labels[across] in ((0, 2), (2, 1)) else rounded.T)
    factors = [elementwise(ops.CAST, f, dtype=float32) for f in factors]
    root = node(ops.CONTRACT, tuple(factors), (*told, (0, 1)), float32, (m, n))
    return root, inputs, exact[0] @ exact[1]


FORMS = ["rr", "rc", "cr", "cc"]


@pytest.mark.parametrize("wide", [False, True], ids=["bfloat16", "rounded"])
@pytest.mark.parametrize("forms", FORMS)
def test_pairs_of_bfloat16(forms: str, wide: bool) -> None:
    for shape in ((26, 12, 40), (30, 6, 16), (25, 5, 40)):
        root, inputs, exact = pairs(shape, forms, wide)
        kernels: list[Kernel] = []
        (result,) = interpreted([root], inputs, chip=PAIRED, kernels=kernels)
        bound = 1e-6 * max(1.0, np.abs(exact).max())
        np.testing.assert_allclose(result, exact, rtol=0, atol=bound)
        assert verify(kernels[0]).proven
        assert ("pairs(" in str(kernels[0])) == (shape[1] % 2 == 0)
        assert "pairs(" not in str(scheduled(root))  # where there is no such instruction


@pytest.mark.parametrize("chip", [host(), PLAIN, NARROW], ids=["host", "plain", "narrow"])
@pytest.mark.parametrize("forms", FORMS)
def test_pairs_of_bfloat16_on_every_chip(chip: CPU, forms: str) -> None:
    root, inputs, exact = pairs((53, 154, 130), forms)
    result = np.empty(exact.shape, np.float32)
    text = run(scheduled(root, PAIRED), chip, inputs, result)
    np.testing.assert_allclose(result, exact, rtol=0, atol=1e-6 * np.abs(exact).max())
    assert ("dpbf16ps" in text) == chip.has_bfloat16_dots


def test_a_matrix_of_bfloat16_times_itself_and_with_infinities() -> None:
    x = np.random.default_rng(3).standard_normal((40, 34)).astype(ml_dtypes.bfloat16)
    x[3, 5], x[7, 8] = np.inf, np.nan
    wide = x.astype(np.float64)
    a = nd.array(x).astype("float32")
    with np.errstate(invalid="ignore"):
        near = wide @ wide.T
    np.testing.assert_allclose((a @ a.T).numpy(), near, rtol=1e-5, atol=1e-4)
    # From an odd element on, and with a second use of the same memory.
    near = wide[1:, 1:-1] @ wide.T[1:-1] + wide[1:, :1]
    result = (a[1:, 1:-1] @ a.T[1:-1] + a[1:, :1]).numpy()
    np.testing.assert_allclose(result, near, rtol=1e-5, atol=1e-4)


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
