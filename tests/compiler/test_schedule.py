"""The scheduling steps: each changes how a kernel runs, never what it computes.

A plain kernel and the same kernel after a step run on the interpreter, which also watches bounds,
races and completeness; the result must be valid and proven. One example of each step is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from textwrap import dedent

import numpy as np
import pytest
from graphs import (
    along,
    broadcast,
    expand,
    leaf,
    matmul,
    permute,
    reduce,
    reshape,
    slice_,
    where,
)

from genesis import ndarray as nd
from genesis.backends.base import Chip
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.lower.lower import lower
from genesis.compiler.program.program import as_size, results
from genesis.compiler.schedule import schedule
from genesis.compiler.schedule.contraction_operands import operands
from genesis.compiler.schedule.cpu.contraction.contraction import contract
from genesis.compiler.schedule.steps.delinearize_axes import delinearize_axes
from genesis.compiler.schedule.steps.join_axes import flatten, merge_axes
from genesis.compiler.schedule.steps.loop_transforms import (
    interchange,
    sink,
    split_grid,
    split_reduction,
    tile_grid,
    unroll_grid,
    unroll_single,
)
from genesis.compiler.schedule.steps.vectorise import innermost, vectorise
from genesis.compiler.verify.kernel import verify
from genesis.ir import ops
from genesis.ir.check import check
from genesis.ir.dtype import bool_, int32
from genesis.ir.interpret import interpret
from genesis.ir.kernel import Index, Kernel, Loop, Phase, Role, as_index, walk
from genesis.ir.node import Node, elementwise, node
from genesis.ir.size import Size, evaluate
from genesis.ndarray.tracing.explain import explain
from genesis.ndarray.tracing.jit import jit

N = Size.symbol("n", 1, 64)
SIZES = {"n": 11}
X = leaf(0, 5, 37)
PLANES = leaf(0, 2, 3, 7, 5)


def ew(op: ops.Op, *inputs: Node) -> Node:
    return elementwise(op, *inputs)


def softmax(x: Node) -> Node:
    powers = ew(ops.EXP, x - along(ops.AMAX, x, 1))
    return powers / along(ops.SUM, powers, 1)


def scatter() -> Node:
    inputs = (leaf(0, 9, 13), leaf(1, 6, dtype=int32), leaf(2, 9, 6))
    return node(ops.SCATTER, inputs, ((1,), "add"), inputs[0].dtype, (9, 13))


def two_sums() -> Node:
    """A contraction over two labels with a broadcast bias."""
    attr = ((0, 1, 2), (1, 2, 3), (0, 3))
    product = node(ops.CONTRACT, (leaf(0, 7, 3, 5), leaf(1, 3, 5, 9)), attr, X.dtype, (7, 9))
    return ew(ops.ADD, product, broadcast(leaf(2, 9), (7, 9)))


def joined_heads() -> Node:
    """A batch of products, one beside the other, and something computed of that."""
    attr = ((0, 1, 2), (0, 2, 3), (1, 0, 3))
    product = node(ops.CONTRACT, (leaf(0, 3, 7, 5), leaf(1, 3, 5, 9)), attr, X.dtype, (7, 3, 9))
    return ew(ops.EXP, reshape(product, 7, 27))


GRAPHS: dict[str, tuple[Node, ...]] = {
    "elementwise": (ew(ops.EXP, ew(ops.ADD, X, broadcast(leaf(1, 37), (5, 37)))),),
    "transpose": (permute(leaf(0, 12, 19), 1, 0),),
    "reshape": (ew(ops.EXP, reshape(permute(leaf(0, 4, 6, 5), 1, 0, 2), 12, 10)),),
    "reversed": (slice_(X, (4, -1, 5), (36, -2, 18)),),
    "any size": (ew(ops.MUL, leaf(0, N, 13), expand(leaf(1, N, 1), N, 13)),),
    "masked": (where(ew(ops.LT, X, leaf(1, 5, 37)), X, leaf(1, 5, 37)),),
    "rows": (softmax(X),),
    "rows of any length": (softmax(leaf(0, 4, N)),),
    "channels": (PLANES - along(ops.SUM, ew(ops.EXP, PLANES), 0, 2, 3),),
    "row sums and maxima": (reduce(ops.SUM, X, 1), reduce(ops.AMAX, X, 1)),
    "column sums": (reduce(ops.SUM, leaf(0, 23, 19), 0),),
    "total": (reduce(ops.SUM, leaf(0, 7, 11), 0, 1),),
    "total of any size": (reduce(ops.SUM, leaf(0, N, 3), 0, 1),),
    "product": (matmul(leaf(0, 7, 10), leaf(1, 10, 9)),),
    "product over two axes": (two_sums(),),
    "product behind digits": (joined_heads(),),
    "scatter": (scatter(),),
}


@cache
def plain(name: str) -> Kernel:
    fusion = fuse(results(GRAPHS[name]))
    (group,) = fusion.groups
    return lower(group, fusion.stored).kernel


def extent(e: Index) -> int:
    return evaluate(as_size(as_index(e)), SIZES)


def run(kernel: Kernel, order: str = "forward") -> list[np.ndarray]:
    """What a kernel writes, on the interpreter, from reproducible inputs."""
    rng = np.random.default_rng(0)
    arguments: dict[str, object] = {s.name: SIZES[s.name] for s in kernel.symbols}
    arguments |= {p.name: 3 for p in kernel.params}
    for b in kernel.buffers:
        shape = tuple(map(extent, b.shape))
        if b.role is Role.INPUT:
            count = int(np.prod(shape))
            values = rng.normal(size=count) if b.dtype.is_float else rng.integers(-2, 15, count)
            arguments[b.name] = values.astype(b.dtype.numpy).reshape(shape)
        elif b.role is not Role.TEMPORARY:
            arguments[b.name] = np.zeros(shape, b.dtype.numpy)
    interpret(kernel, arguments, order)
    outputs = [b.name for b in kernel.buffers if b.role is Role.OUTPUT]
    return [np.asarray(arguments[name]).reshape(-1) for name in outputs]


def check_step(before: Kernel, after: Kernel) -> None:
    check(after)
    verdict = verify(after)
    assert verdict.proven, f"{verdict}\n{after}"
    want, got = run(before), run(after)
    shuffled = run(after, "shuffle")
    for a, b, c in zip(want, got, shuffled, strict=True):
        np.testing.assert_allclose(b, a, 1e-5, 1e-6, err_msg=str(after))
        assert b.tobytes() == c.tobytes(), "the order of blocks changes bits"


# ---- every step on every kernel it applies to

Step = Callable[[Kernel], Iterator[Kernel]]


def sunk(k: Kernel) -> Iterator[Kernel]:
    yield from (sink(k, axis) for axis in k.phases[0].grid)


def split(k: Kernel) -> Iterator[Kernel]:
    yield from (split_grid(k, axis, 4) for axis in k.phases[0].grid)
    for axis in k.phases[0].grid:
        once = split_grid(k, axis, 8)
        yield from (sink(once, a) for a in once.phases[0].grid)


def tiled(k: Kernel) -> Iterator[Kernel]:
    yield from (tile_grid(k, axis, 4) for axis in k.phases[0].grid)


def vectorised(k: Kernel) -> Iterator[Kernel]:
    for width in (1, 4, 16):
        yield vectorise(k, lambda loop, w=width: w)
        yield from (vectorise(sink(k, axis), lambda loop, w=width: w) for axis in k.phases[0].grid)


def joined(k: Kernel) -> Iterator[Kernel]:
    yield flatten(k)
    yield merge_axes(k)
    yield merge_axes(flatten(k))


def by_digits(k: Kernel) -> Iterator[Kernel]:
    yield delinearize_axes(k)


def in_two_phases(k: Kernel) -> Iterator[Kernel]:
    loops = [s for s in k.phases[0].body if isinstance(s, Loop)]
    if len(loops) == 1 and loops[0].carried:
        for chunk in (1, 4, 100):
            yield split_reduction(k, chunk)
            yield vectorise(split_reduction(k, chunk), lambda loop: 4)


def interchanged(k: Kernel) -> Iterator[Kernel]:
    (phase,) = k.phases
    for s in phase.body:
        if isinstance(s, Loop) and s.body and innermost(s) is not None:
            axes = [x.axis for x in walk((s,)) if isinstance(x, Loop)]
            changed = interchange(s, axes[::-1])
            body = tuple(changed if x is s else x for x in phase.body)
            yield k.with_phases([Phase(phase.grid, body)])


def without_single_loops(k: Kernel) -> Iterator[Kernel]:
    yield from (unroll_single(split_grid(k, axis, 1)) for axis in k.phases[0].grid)
    yield unroll_single(vectorise(k, lambda loop: 16))


def contracted(k: Kernel) -> Iterator[Kernel]:
    found = operands(k)
    if found is not None:
        for chip in CHIPS:
            yield contract(k, found, chip)


def scheduled(k: Kernel) -> Iterator[Kernel]:
    yield from (schedule(k, chip) for chip in CHIPS)


CHIPS = (Chip("small", 16, 8, 1 << 10, 1 << 12), Chip("large", 64, 32, 32 << 10, 1 << 20))
STEPS: tuple[Step, ...] = (
    sunk, split, tiled, vectorised, joined, by_digits, in_two_phases, interchanged,
    without_single_loops, contracted, scheduled,
)  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
def test_step(step: Step, name: str) -> None:
    kernel = plain(name)
    for after in step(kernel):
        check_step(kernel, after)


def test_every_step_applies_somewhere() -> None:
    for step in STEPS:
        kernels = [plain(name) for name in GRAPHS]
        assert any(str(after) != str(k) for k in kernels for after in step(k)), step.__name__


# ---- what they look like


def shown(kernel: Kernel) -> str:
    return "\n".join(str(kernel).splitlines()[1:])


def expected(text: str) -> str:
    return "\n".join("  " + line for line in dedent(text).strip().splitlines())


def test_plain() -> None:
    assert shown(plain("column sums")) == expected("""
        grid i0 < 19
          acc0 = 0.0
          loop k0_0 < 23:
            acc0 = (acc0 + a0[k0_0, i0])
          y0[i0] = acc0
    """)


def test_sink() -> None:
    kernel = plain("transpose")
    assert shown(sink(kernel, kernel.phases[0].grid[0])) == expected("""
        grid i1 < 12
          loop i0 < 19:
            y0[i0, i1] = a0[i1, i0]
    """)


def test_split_grid() -> None:
    kernel = plain("transpose")
    assert shown(split_grid(kernel, kernel.phases[0].grid[0], 8)) == expected("""
        grid i0b < 3, i1 < 12
          loop i0 < min(8, ((i0b * -8) + 19)):
            y0[(i0 + (i0b * 8)), i1] = a0[i1, (i0 + (i0b * 8))]
    """)


def test_tile_grid() -> None:
    kernel = plain("column sums")
    assert shown(tile_grid(kernel, kernel.phases[0].grid[0], 16)) == expected("""
        grid i0b < 2
          tile i0t < 16
          if (i0b < 1):
            acc0[i0t] = 0.0
            loop k0_0 < 23:
              acc0 = (acc0 + a0[k0_0, ((i0b * 16) + i0t)])
            y0[((i0b * 16) + i0t)] = acc0
          else:
            acc0[i0t] = 0.0
            loop k0_0 < 23:
              acc0 = (acc0 + (a0[k0_0, ((i0b * 16) + i0t)] if (((i0b * 16) + i0t) < 19) else 0.0))
            y0[((i0b * 16) + i0t)] = acc0 if (((i0b * 16) + i0t) < 19)
    """)


def test_vectorise() -> None:
    assert shown(vectorise(plain("total of any size"), lambda loop: 16)) == expected("""
        tile k0_1t1 < 16
        acc0_[k0_1t1] = 0.0
        loop k0_0 < n:
          acc0__tail[k0_1t1] = where((k0_1t1 < 3), (acc0_ + (a0[k0_0, k0_1t1] if (k0_1t1 < 3) else 0.0)), acc0_)
          acc0_ = acc0__tail
        acc0 = reduce acc0_ over k0_1t1 with (left + right)
        y0[] = acc0
    """)  # noqa: E501


def test_merge_axes() -> None:
    assert shown(merge_axes(plain("masked"))) == expected("""
        grid i0i1 < 185
          y0[i0i1] = where((a0[i0i1] < a1[i0i1]), a0[i0i1], a1[i0i1])
    """)


def test_merge_axes_of_several_loops_over_one_buffer() -> None:
    assert shown(merge_axes(plain("channels"))) == expected("""
        grid i1 < 3
          acc0 = 0.0
          loop k0_0 < 2:
            acc0_ = acc0
            loop k0_1k0_2 < 35:
              acc0_ = (acc0_ + exp(a0[k0_0, i1, k0_1k0_2]))
            acc0 = acc0_
          loop i0 < 2:
            loop i2i3 < 35:
              y0[i0, i1, i2i3] = (a0[i0, i1, i2i3] - acc0)
    """)


def test_windows_are_reduced_across_rows() -> None:
    """A window is too short for a vector, however well its elements lie for one."""
    pooled = jit(lambda x: nd.max_pool1d(x, 3, 2, 1, return_indices=True))
    (kernel,) = explain(pooled, nd.zeros((3, 5, 131))).kernels
    assert "tile i2t" in kernel.scheduled


def test_flatten() -> None:
    half = ew(ops.EXP, reshape(X, 37, 5))
    fusion = fuse((half,))
    kernel = lower(fusion.groups[0], fusion.stored).kernel
    assert "//" in str(kernel)
    assert shown(flatten(kernel)) == expected("""
        grid i0 < 37, i1 < 5
          y0[i0, i1] = exp(a0[((i0 * 5) + i1)])
    """)


def test_split_reduction() -> None:
    assert shown(split_reduction(plain("column sums"), 8)) == expected("""
        grid i0 < 19, k0_0b < 3
          acc0 = 0.0
          loop k0_0 < min(8, ((k0_0b * -8) + 23)):
            acc0 = (acc0 + a0[(k0_0 + (k0_0b * 8)), i0])
          partial0[i0, k0_0b] = acc0
        barrier
        grid ci0 < 19
          acc0 = 0.0
          loop ck0_0b < 3:
            acc0 = (acc0 + partial0[ci0, ck0_0b])
          y0[ci0] = acc0
    """)


def test_phases_of_a_split_reduction_are_tiled_each_in_its_way() -> None:
    """What follows the sum reads more buffers, so its rows are tiled more narrowly."""
    x = np.random.default_rng(0).standard_normal((64, 1024, 100)).astype(np.float32)
    total = nd.array(x).sum((0, 1))
    others = [nd.array(np.arange(100, dtype=np.float32) + k) for k in range(6)]
    results = [total * y for y in others]
    nd.realize(*results)
    for k, found in enumerate(results):
        want = x.sum((0, 1), dtype=np.float64) * (np.arange(100) + k)
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-2)


def test_unroll_single() -> None:
    kernel = plain("transpose")
    once = split_grid(kernel, kernel.phases[0].grid[0], 1)
    assert shown(unroll_single(once)) == expected("""
        grid i0b < 19, i1 < 12
          y0[i0b, i1] = a0[i1, i0b]
    """)


def test_unroll_grid() -> None:
    kernel = plain("transpose")
    after = unroll_grid(kernel, kernel.phases[0].grid[0], 2)
    assert shown(after) == expected("""
        grid i0u < 10, i1 < 12
          y0[(i0u * 2), i1] = a0[i1, (i0u * 2)]
          if (((i0u * 2) + 1) < 19):
            y0[((i0u * 2) + 1), i1] = a0[i1, ((i0u * 2) + 1)]
    """)
    for before, now in zip(run(kernel), run(after), strict=True):
        np.testing.assert_array_equal(before, now)


def test_interchange() -> None:
    (after,) = interchanged(plain("total"))
    assert shown(after) == expected("""
        acc0 = 0.0
        loop k0_1 < 11:
          acc0_ = acc0
          loop k0_0 < 7:
            acc0_ = (acc0_ + a0[k0_0, k0_1])
          acc0 = acc0_
        y0[] = acc0
    """)


def test_contract_packs_the_right_operand() -> None:
    kernel = plain("product")
    found = operands(kernel)
    assert found is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genesis.compiler.schedule.cpu.contraction.contraction.PACK_ROWS", 2)
        patch.setattr("genesis.compiler.schedule.cpu.contraction.contraction.FEW_ROWS", 1)
        after = contract(kernel, found, CHIPS[0])
    check_step(kernel, after)
    packing, computing = after.phases
    assert [b.name for b in after.buffers if b.role is Role.TEMPORARY] == ["packed"]
    written = [s.buffer.name for s in walk(packing.body) if hasattr(s, "buffer")]
    assert written == ["packed"]
    assert "a1" not in str(computing.body)


def test_a_long_strided_sum_is_split_and_its_chunks_stay_apart() -> None:
    """Chunks lie next to each other where partial sums are stored, but each has its own length."""
    every_other = slice_(leaf(0, 1 << 20), (0, 2, 1 << 19))
    fusion = fuse((reduce(ops.SUM, every_other, 0),))
    after = schedule(lower(fusion.groups[0], fusion.stored).kernel, CHIPS[1])
    assert len(after.phases) == 2
    check(after)
    assert verify(after).proven


def test_the_scatter_loop_stays_a_loop() -> None:
    """Its iterations may write one element: done at once, additions would get lost."""
    after = vectorise(plain("scatter"), lambda loop: 4)
    loops = [s.axis.name for s in walk(after.phases[0].body) if isinstance(s, Loop)]
    assert "e0" in loops


def test_much_work_at_every_element_is_shared_by_threads_sooner() -> None:
    def gated(x: nd.NDArray) -> nd.NDArray:
        return nd.sigmoid(x) * nd.tanh(x + 1.0) + nd.sigmoid(x + 2.0) * nd.sigmoid(x + 3.0)

    x = nd.ones((32, 256)).realize()
    (light,) = explain(lambda x: nd.maximum(x, 0.0) + 1.0, x).kernels
    (heavy,) = explain(gated, x).kernels
    assert "grid" not in str(light.scheduled) and "grid" in str(heavy.scheduled)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (N, 0), (0, N)])
def test_a_choice_along_nothing(shape: tuple[int | Size, ...]) -> None:
    """What repeats itself after no points is not written out so many times."""
    for along_rows in (False, True):
        mask = leaf(0, *(shape[:1] if along_rows else shape[1:]), dtype=bool_)
        rows = reshape(mask, shape[0], 1) if along_rows else mask
        chosen = where(broadcast(rows, shape), leaf(1, *shape), leaf(2, *shape))
        fusion = fuse((chosen,))
        check(schedule(lower(fusion.groups[0], fusion.stored).kernel, CHIPS[1]))
