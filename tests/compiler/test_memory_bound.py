"""Kernels that memory limits, on a chip whose caches are so small that every rule applies.

Streaming stores, columns reduced in stages, costly values kept, loops joined and taken apart: the
results are compared with NumPy in float64, with all remainders, and the kernels looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu import chip
from genesis.backends.cpu.backend import CPUBackend
from genesis.backends.cpu.codegen import render
from genesis.ir import ops
from genesis.ir.kernel import Kernel, Loop, Role, Stage, expressions, walk
from genesis.ir.node import topological

RNG = np.random.default_rng(0)
CHIP = replace(chip.host(), l1_bytes=4 << 10, l2_bytes=8 << 10, l3_bytes=16 << 10)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Kernel, str]]]:
    """The kernels that are compiled, each with its code."""
    found: list[tuple[Kernel, str]] = []
    plain = render.render

    def noted(kernel: Kernel, cpu: chip.CPU) -> render.Rendered:
        rendered = plain(kernel, cpu)
        found.append((kernel, rendered.text))
        return rendered

    monkeypatch.setattr(CPUBackend, "chip", CHIP)
    monkeypatch.setattr(render, "render", noted)
    monkeypatch.setattr("genesis.content_store.remember", lambda kind, key, make: make())
    yield found


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, np.float32)


def run(function: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> Any:
    """A function of arrays under `jit`, given as NumPy arrays."""
    result = genesis.jit(function)(*map(nd.array, arrays))
    return tuple(r.numpy() for r in result) if isinstance(result, tuple) else result.numpy()


def close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


# ---- streaming stores


@pytest.mark.parametrize("size", [2048, 2049, 4096 + 17, 65_536])
def test_large_results_are_streamed(size: int, made: list[tuple[Kernel, str]]) -> None:
    x = normal(size)
    np.testing.assert_array_equal(run(lambda x: -x, x), -x)
    assert "!nontemporal" in made[-1][1]
    assert "fence seq_cst" in made[-1][1]


def test_small_results_are_not(made: list[tuple[Kernel, str]]) -> None:
    run(lambda x: -x, normal(1024))
    assert "!nontemporal" not in made[-1][1]


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float64", "int64"])
def test_streams_of_every_width(dtype: str, made: list[tuple[Kernel, str]]) -> None:
    x = RNG.integers(0, 2, 65_536)
    found = run(lambda x: x.astype(dtype).astype("int64"), x)
    np.testing.assert_array_equal(found, x)
    converted = genesis.jit(lambda x: x.astype(dtype))(nd.array(x))
    np.testing.assert_array_equal(converted.astype("int64").numpy(), x)
    assert all("!nontemporal" in text for _, text in made[:2])


@pytest.mark.parametrize("shape", [(64, 64), (65, 64), (48, 96), (33, 127), (128, 31)])
def test_transposes_are_streamed_or_right(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    np.testing.assert_array_equal(run(lambda x: x.T.copy() * 1.0 + 0.0, x), x.T)


def test_rows_that_share_a_line_are_not_streamed(made: list[tuple[Kernel, str]]) -> None:
    x = normal(300, 56)
    found = run(lambda x: nd.stack([x, x * 2.0, x + 1.0, -x], axis=1), x)
    np.testing.assert_array_equal(found, np.stack([x, x * 2, x + 1, -x], axis=1))
    assert "!nontemporal" not in made[-1][1]


def test_memory_that_is_taken_over_is_not_streamed() -> None:
    """An update in place reads and writes the same lines; unaligned views of one do, too."""
    x = nd.array(normal(8192)).copy()
    before = x.numpy().copy()
    for _ in range(3):
        x.assign(x * 2.0)
        x[3:8003] = x[3:8003] + 1.0
    wanted = before.copy()
    for _ in range(3):
        wanted *= 2
        wanted[3:8003] += 1
    np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-6)


# ---- columns

ROWS = (8, 9, 15, 16, 17, 63, 64, 65, 129, 700)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [256, 257, 300, 515])
def test_columns(rows: int, columns: int, made: list[tuple[Kernel, str]]) -> None:
    x = normal(rows, columns)

    def several(x: nd.NDArray) -> tuple[nd.NDArray, ...]:
        return x.sum(axis=0), (x * x).sum(axis=0), nd.amax(x, 0)

    total, squares, peak = run(several, x)
    wide = x.astype(np.float64)
    close(total, wide.sum(0))
    close(squares, (wide**2).sum(0))
    np.testing.assert_array_equal(peak, x.max(0))
    stages = [s for s in walk(made[0][0].phases[0].body) if isinstance(s, Stage)]
    assert len(stages) == 3 or x.nbytes <= 2 * CHIP.l2_bytes  # in one pass over the rows


@pytest.mark.parametrize("shape", [(3, 40, 256), (5, 17, 300), (40, 3, 257)])
@pytest.mark.parametrize("axis", [0, 1])
def test_columns_of_cubes(shape: tuple[int, ...], axis: int) -> None:
    x = normal(*shape)
    close(run(lambda x: x.sum(axis=axis), x), x.astype(np.float64).sum(axis))
    close(run(lambda x: nd.var(x, axis), x), x.astype(np.float64).var(axis, ddof=1))
    np.testing.assert_array_equal(run(lambda x: nd.argmax(x, axis), x), x.argmax(axis))


def test_columns_of_special_values() -> None:
    x = normal(100, 260)
    x[7, 3], x[50, 9], x[60, 11], x[61, 11] = np.nan, np.inf, np.inf, -np.inf
    np.testing.assert_array_equal(run(lambda x: nd.amax(x, 0), x), x.max(0))
    total = run(lambda x: x.sum(axis=0), x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(total), np.isnan(x.sum(0)))


def test_columns_do_not_depend_on_threads() -> None:
    x = normal(1000, 300)
    before = genesis.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        genesis.set_num_threads(threads)
        found.append(run(lambda x: (x * 1.5).sum(axis=0), x))
    genesis.set_num_threads(before)
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


# ---- rows


@pytest.mark.parametrize("length", [64, 65, 127, 200, 509])
def test_exponentials_are_computed_once(length: int, made: list[tuple[Kernel, str]]) -> None:
    x = normal(20, length)
    found = run(lambda x: nd.softmax(x, axis=-1), x)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    close(found, e / e.sum(1, keepdims=True))
    (kernel, _) = made[0]
    nodes = topological(e for s in walk(kernel.phases[0].body) for e in expressions(s))
    assert sum(n.op is ops.EXP for n in nodes) == 1 + (length % 64 != 0)  # and a tail


@pytest.mark.parametrize("shape", [(8, 512), (40, 500), (9, 257)])
@pytest.mark.parametrize("norm", [nd.softmax, lambda x: x - x.mean(1, keepdims=True)])
def test_the_next_row_is_asked_for(
    norm: Callable[..., Any], shape: tuple[int, int], made: list[tuple[Kernel, str]]
) -> None:
    """In the second loop over a row; also behind the last row, where nothing may be read."""
    x = normal(*shape)
    found = run(norm, x)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    softmax = e / e.sum(1, keepdims=True)
    close(found, softmax if norm is nd.softmax else wide - wide.mean(1, keepdims=True))
    (text,) = (text for _, text in made)
    distance = shape[1] * x.itemsize
    assert text.count("call void @llvm.prefetch") == text.count(f", i64 {distance}\n") > 0


def test_no_row_is_asked_for_in_vain(made: list[tuple[Kernel, str]]) -> None:
    x = normal(40, 1024)
    run(lambda x: x.sum(1), x)  # read once: the hardware foresees the next row
    run(lambda x: nd.var(x, 1), normal(40, 512))  # added up only
    run(lambda x: nd.softmax(x), normal(2, 512))  # in a cache already
    run(lambda x: nd.softmax(x), x)  # too long for one
    assert len(made) == 4
    assert not any("prefetch" in text for _, text in made)


@pytest.mark.parametrize("length", [100, 256])
def test_gradients_of_a_norm_are_two_kernels(length: int, made: list[tuple[Kernel, str]]) -> None:
    x, g = normal(90, length), normal(90, length)
    w, b = normal(length), normal(length)

    def gradients(*tensors: genesis.Tensor) -> Any:
        x, w, b, g = tensors
        y = genesis.layer_norm(x, (length,), w, b)
        return genesis.autograd.grad(y, [x, w, b], g)

    tensors = [genesis.tensor(a) for a in (x, w, b, g)]
    for t in tensors[:3]:
        t.requires_grad_()
    found = [t.numpy() for t in genesis.jit(gradients)(*tensors)]
    assert len(made) == 2  # along rows with their statistics, and along columns

    wide, dy = x.astype(np.float64), g.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    hat, dw = centred * scale, dy * w
    means = dw.mean(1, keepdims=True), (dw * hat).mean(1, keepdims=True)
    close(found[0], (dw - means[0] - hat * means[1]) * scale)
    close(found[1], (dy * hat).sum(0))
    close(found[2], dy.sum(0))


# ---- reductions of rows on the way


def loads_of(kernel: Kernel, dtype: str) -> int:
    """How many arrays of a type a kernel reads."""
    nodes = topological(e for s in walk(kernel.phases[0].body) for e in expressions(s))
    return len({n.attr for n in nodes if n.op is ops.LOAD and n.attr.dtype.name == dtype})


@pytest.mark.parametrize("shape", [(256, 300), (129, 512)])
def test_indices_are_checked_where_they_are_used(
    shape: tuple[int, int], made: list[tuple[Kernel, str]]
) -> None:
    """A row of them is in a cache when its worst one is looked for; the next row is asked for."""
    x, y = normal(*shape), normal(*shape)
    index = RNG.integers(-shape[1], shape[1], shape)
    found = run(lambda x, i: nd.gather(x, i, 1), x, index)
    assert (found == np.take_along_axis(x, index, 1)).all()
    assert sum(loads_of(kernel, "int64") for kernel, _ in made) == 1
    assert f"i64 {shape[1] * x.itemsize}\n" in made[0][1]

    made.clear()
    wanted = y.astype(np.float64)
    np.add.at(wanted, (np.arange(shape[0])[:, None], index), x)
    close(run(lambda x, i, y: nd.scatter_add(y, i, x, 1), x, index, y), wanted)
    assert sum(loads_of(kernel, "int64") for kernel, _ in made) == 1


def test_indices_that_do_not_exist_are_found_where_they_are_used() -> None:
    x, index = normal(300, 256), RNG.integers(0, 256, (300, 256))
    gather = genesis.jit(lambda x, i: nd.gather(x, i, 1))
    scatter = genesis.jit(lambda x, i: nd.scatter_add(x, i, x, 1))
    for bad in (256, -257, 1 << 40):
        wrong = index.copy()
        wrong[-1, -1] = bad
        for function in (gather, scatter):
            function(nd.array(x), nd.array(index))
            with pytest.raises(IndexError, match=f"index {bad} is out of range for axis 1"):
                function(nd.array(x), nd.array(wrong))


def test_rows_are_reduced_on_the_way(made: list[tuple[Kernel, str]]) -> None:
    x = normal(128, 300)
    doubled, total, peak = run(lambda x: (x * 2, x.sum(1), x.max(1)), x)
    assert len(made) == 1
    assert (doubled == x * 2).all() and (peak == x.max(1)).all()
    close(total, x.astype(np.float64).sum(1))


def test_other_reductions_have_kernels_of_their_own(made: list[tuple[Kernel, str]]) -> None:
    """Few rows, short rows, another order, another array."""
    run(lambda x: (x * 2, x.sum(1)), normal(8, 8192))
    run(lambda x: (x * 2, x.max(1)), normal(1024, 64))
    run(lambda x: (x.T + 1, x.max(1)), normal(256, 256))
    run(lambda x, y: (x * 2, y.max(1)), normal(256, 256), normal(256, 256))
    results = [[b for b in kernel.buffers if b.role is Role.OUTPUT] for kernel, _ in made]
    assert len(made) >= 7 and all(len(own) == 1 for own in results)


# ---- many arrays


def test_an_optimizer_has_a_loop_for_every_weight(made: list[tuple[Kernel, str]]) -> None:
    arrays = [normal(7, 130) for _ in range(30)]

    def step(*xs: nd.NDArray) -> tuple[nd.NDArray, ...]:
        return tuple(x * 0.5 + y for x, y in zip(xs[:15], xs[15:], strict=True))

    for found, x, y in zip(run(step, *arrays), arrays[:15], arrays[15:], strict=True):
        np.testing.assert_array_equal(found, x * np.float32(0.5) + y)
    ((kernel, _),) = made
    loops = [s for s in walk(kernel.phases[0].body) if isinstance(s, Loop)]
    assert len(loops) == 15


def test_set_num_threads_names_its_limits() -> None:
    with pytest.raises(ValueError, match="set_num_threads"):
        genesis.set_num_threads(0)
