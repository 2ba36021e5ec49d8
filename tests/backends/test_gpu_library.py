"""Hand-written kernels for GPUs against the definitions of what they compute."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.gpu.compile import compile, resources
from genesis.backends.gpu.library import NATIVE_CALLS, sort
from genesis.backends.gpu.library.segment_sums import Sums
from genesis.backends.gpu.library.sort import CHUNK, LONG, RUN, SHORT, TILE, Sort, sort_of
from genesis.ir.dtype import as_dtype
from genesis.ir.node import LibraryCall
from genesis.ir.numpy_library import reference
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.ops.library_calls import call
from tests.compiler.test_gpu_schedule import kernels_of
from tests.interpreted_cuda import passes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
REAL = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
]  # fmt: skip
#: Sorted by one block; keys of 64 bits by passes over a tile, and over two.
LENGTHS = [1, 100, (1 << RUN) + 3, TILE + 5]


def rows(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits, and many that are equal."""
    kind = as_dtype(dtype).numpy
    few = rng.integers(0, 7, shape).astype(kind)
    if dtype == "bool":
        return few
    size = int(np.prod(shape)) * few.itemsize
    bits = rng.integers(0, 256, size, np.uint8).view(kind).reshape(shape)
    mixed = np.where(rng.random(shape) < 0.5, few, bits)
    return np.where(rng.random(shape) < 0.1, -few, mixed).astype(kind)  # -0.0 among others


def same(found: nd.NDArray, wanted: np.ndarray) -> None:
    """Equal bits, whatever NaN there are."""
    assert found.numpy().tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", REAL)
def test_rows_are_sorted(rng: np.random.Generator, dtype: str) -> None:
    lengths = LENGTHS if dtype in ("float32", "int64", "bfloat16") else LENGTHS[:3]
    for n in lengths:
        x = rows(rng, dtype, (1 if n > 1000 else 2, n))
        for descending in (False, True):
            found = nd.sort(nd.array(x, device="cuda"), descending=descending)
            for part, wanted in zip(
                found, reference("sorting.sort")((descending,), x), strict=True
            ):
                same(part, wanted)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="for a GPU")
@pytest.mark.parametrize("n", [2049, 4097, 50257, (1 << 20) + 3])
def test_long_rows_are_sorted(rng: np.random.Generator, n: int) -> None:
    x = rows(rng, "float32", (1, n))
    found = nd.sort(nd.array(x, device="cuda"))
    for part, wanted in zip(found, reference("sorting.sort")((False,), x), strict=True):
        same(part, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [CHUNK + 5, *([] if INTERPRETED else [50257, 1 << 20])])
def test_the_first_of_long_rows_are_selected_by_chunks(rng: np.random.Generator, n: int) -> None:
    x = rows(rng, "float32", (1, n))
    best = nd.topk(nd.array(x, device="cuda"), 9)
    for part, wanted in zip(best, reference("sorting.topk")((9, True), x), strict=True):
        same(part, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "turns"), [("float16", 4), ("float32", 1)])
def test_long_rows_are_sorted_by_passes(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str, turns: int
) -> None:
    """As if rows that an interpreter can sort were long, and very long."""
    monkeypatch.setattr(sort, "LONG", RUN)
    monkeypatch.setattr(sort, "TILES", 0 if turns > 1 else 10)
    sort._binary.cache_clear()
    x = rows(rng, dtype, (1, 2 * TILE + 5))
    assert sort_of(_called("sorting.sort", dtype, x.size, x.size)).turns == turns
    found = nd.sort(nd.array(x, device="cuda"))
    for part, wanted in zip(found, reference("sorting.sort")((False,), x), strict=True):
        same(part, wanted)
    sort._binary.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 1 << SHORT, 33])
def test_short_rows_are_sorted_several_at_once(rng: np.random.Generator, n: int) -> None:
    x = rows(
        rng, "float16", (70, n)
    )  # more than a block of the shortest has, and not twice as many
    found = nd.sort(nd.array(x, device="cuda"), descending=True)
    for part, wanted in zip(found, reference("sorting.sort")((True,), x), strict=True):
        same(part, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
@pytest.mark.parametrize("largest", [False, True])
def test_only_the_first_are_kept(rng: np.random.Generator, dtype: str, largest: bool) -> None:
    n = LENGTHS[2]
    x = rows(rng, dtype, (2, n))
    for k in (1, 5, n - 1):
        found = nd.topk(nd.array(x, device="cuda"), k, largest=largest)
        for part, wanted in zip(found, reference("sorting.topk")((k, largest), x), strict=True):
            same(part, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("n", LENGTHS[:3])
def test_elements_are_selected_by_rank(rng: np.random.Generator, n: int) -> None:
    x = rng.integers(-5, 5, (2, n)).astype(np.int32)
    for k in {1, (n + 1) // 2, n}:
        found = nd.kthvalue(nd.array(x, device="cuda"), k)
        values, places = reference("sorting.select")((), x, np.full((2, 1), k - 1))
        same(found.values, values[:, 0])
        same(found.indices, places[:, 0])
    assert nd.median(nd.array(x[0], device="cuda")).item() == np.sort(x[0])[(n - 1) // 2]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("rows", "count"), [(40, 7), (6, 700), (3, 1)])
def test_rows_are_summed_by_where_they_go(
    rng: np.random.Generator, dtype: str, rows: int, count: int
) -> None:
    """Many to one row, to none, and to rows that there are not."""
    kind = as_dtype(dtype).numpy
    positions = np.where(rng.random(count) < 0.6, 1, rng.integers(-2, rows + 2, count))
    updates = rng.integers(-1, 2, (count, 37)).astype(kind)
    order = np.argsort(positions, kind="stable")
    operands = [positions[order].astype(np.int32), order, updates]
    values = [nd.array(x, device="cuda").value for x in operands]
    result = (as_dtype(dtype), (rows, 37))
    (found,) = call("indexing.summed_rows", (rows, dtype), values, [result])
    same(wrap(found), reference("indexing.summed_rows")((rows, dtype), *operands)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("wide", [33, 200])
@pytest.mark.parametrize(("rows", "sentences"), [(19, 4), (900, 50)])
def test_gradients_of_embeddings_are_sums_of_sorted_rows(
    rng: np.random.Generator, wide: int, rows: int, sentences: int
) -> None:
    """Or, of a few, sums of all."""
    table = rng.standard_normal((rows, wide))
    where = rng.integers(-rows, rows, (sentences, 9))
    grad = rng.integers(-4, 5, (sentences, 9, wide)).astype(np.float32)
    w = genesis.tensor(table.astype(np.float32), device="cuda", requires_grad=True)
    w[genesis.tensor(where, device="cuda")].backward(genesis.tensor(grad, device="cuda"))
    wanted = np.zeros_like(table, np.float32)
    np.add.at(wanted, where, grad)
    assert w.grad is not None
    same(w.grad.array, wanted)
    base = rng.integers(-4, 5, (rows, wide)).astype(np.float32)
    given = [genesis.tensor(x, device="cuda") for x in (base, where.reshape(-1) % rows, grad)]
    added = given[0].index_add(0, given[1], given[2].reshape(-1, wide)).array
    same(added, base + wanted)


def test_a_gradient_is_written_once_in_its_own_type() -> None:
    def gradient(i: Any, w: Any, grad: Any) -> Any:
        w = w.detach().requires_grad_()
        genesis.functional.embedding(i, w).backward(grad)
        return w.grad

    inputs = ("int64", 300), ("bfloat16", 5000, 64), ("bfloat16", 300, 64)
    found = kernels_of(gradient, *inputs)
    assert not [b for k in found for b in k.buffers if b.shape == (5000, 64)]
    # A few rows of a table that is there already are added to it where they are.
    few = kernels_of(lambda x, i, y: x.index_add(0, i, y),
                     ("float32", 5000, 64), ("int64", 3), ("float32", 3, 64))  # fmt: skip
    assert any("scatter" in k.name for k in few)
    # Few rows look at all of a few updates: that and the check of the index are all there is.
    for dtype in ("float32", "bfloat16"):
        given = (dtype, 64, 576), ("int64", 128), (dtype, 128, 576)
        assert len(kernels_of(lambda x, i, y: x.index_add(0, i, y), *given)) == 2


def test_rows_have_no_length_that_is_left_out() -> None:
    """One kernel for short rows; for others a pass for each byte, of three if tiles are several."""
    lengths = [1, 1 << RUN, 129, TILE, TILE + 1, 1 << LONG, (1 << LONG) + 1, (1 << 31) - 1]
    for dtype, kernels in [
        ("float32", [1, 1, 1, 1, 1, 1, 12, 12]),
        ("bfloat16", [1, 1, 1, 1, 1, 1, 6, 6]),
        ("int64", [1, 1, 8, 8, 24, 24, 24, 24]),
    ]:
        for n, count in zip(lengths, kernels, strict=True):
            assert len(list(sort_of(_called("sorting.sort", dtype, n, n)).phases())) == count


def test_few_of_many_are_selected_before_they_are_sorted() -> None:
    for n, k, rounds in [
        (1024, 8, 1), (8 * CHUNK, 8, 2), (1 << 31, 1, 3), (1000, 999, None),
        (1 << 20, 1 << 15, None),
    ]:  # fmt: skip
        made = sort_of(_called("sorting.topk", "float32", n, k))
        assert (made.rounds if made.few else None) == rounds
        # Whatever a round leaves has a place in memory.
        left = n
        for k_of, size in enumerate(made.scratch(3, n, k)[::2] if made.few else ()):
            left = left // made.chunk * k + min(left % made.chunk, k)
            assert size >= 3 * left * 4, k_of


def _called(name: str, dtype: str, n: int, k: int) -> LibraryCall:
    kind = as_dtype(dtype)
    return LibraryCall(
        name, (False,), ((kind, (3, n)),), ((kind, (3, k)), (as_dtype("int64"), (3, k)))
    )


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.skipif(INTERPRETED, reason="about machine code")
def test_nothing_is_spilled(target: str) -> None:
    pytest.importorskip("triton")
    sorts = [
        Sort(as_dtype("float32"), True, False, 6, 6), Sort(as_dtype("float32"), True, False, 20, 3),
        Sort(as_dtype("bfloat16"), True, True, 20, 20),
    ]  # fmt: skip
    sums = [Sums(as_dtype("bfloat16"), as_dtype("bfloat16"), often) for often in (False, True)]
    for wanted in (made.request(target) for made in (*sorts, *sums)):
        for function in compile(wanted.source, wanted.signature(), target).functions:
            assert resources(function).spilled == 0


def test_what_is_claimed_is_listed() -> None:
    from genesis.backends.gpu import library

    assert all(f"``{name}``" in (library.__doc__ or "") for name in NATIVE_CALLS)


@pytest.mark.skipif(INTERPRETED, reason="runs the others so")
@pytest.mark.timeout(1800)  # a whole file: on a loaded machine that takes long
def test_by_the_interpreter() -> None:
    passes(__file__)
