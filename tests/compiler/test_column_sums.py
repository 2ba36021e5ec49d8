"""Sums of columns in the kernel that goes through the rows: when they join it, and what they give.

Thresholds are shrunk for the drawn graphs, so that a few rows are as many as it takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from graphs import along, broadcast, leaf, matmul, permute, reduce, reshape
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import compiled, interpreted

import genesis
from genesis.backends.base import Chip
from genesis.backends.cpu.runtime.runtime import get_num_threads, set_num_threads
from genesis.compiler import compile_graph, using
from genesis.compiler.cpu import PASSES
from genesis.compiler.fuse import cost
from genesis.compiler.fuse.fuse import Fusion, fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.program.program import results
from genesis.ir import ops
from genesis.ir.dtype import DType, float16, float32, int32
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Node, elementwise
from genesis.ir.size import Dim, Size

N = Size.symbol("n", 1, 5000)
X, G = leaf(0, 512, 40), leaf(1, 512, 40)
#: Two lanes of float64, so that short rows have tiles and tails.
SMALL = Chip("small", 16, 8, 1 << 10, 1 << 12)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    # A program on disk would be found again with other thresholds.
    monkeypatch.setenv("GENESIS_CACHE", "off")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cost, "TOTALLED_ROWS", 2)
    # The package's attribute of this name is a function.
    monkeypatch.setattr(sys.modules["genesis.compiler.schedule.cpu.column_sums"], "LEAST", 3)
    yield


def fused(*roots: Node) -> Fusion:
    return fuse(results(simplify(roots)), fusing=PASSES.fusing)


def ew(op: ops.Op, *inputs: Node) -> Node:
    return elementwise(op, *inputs)


def total(x: Node) -> Node:
    return reduce(ops.SUM, x, *range(len(x.shape) - 1))


def softmax(x: Node) -> Node:
    powers = ew(ops.EXP, x - along(ops.AMAX, x, len(x.shape) - 1))
    return powers / along(ops.SUM, powers, len(x.shape) - 1)


# ---- which sums join


def test_the_sums_of_what_is_read_or_made() -> None:
    soft = softmax(X)
    for roots in ([soft, total(X)], [soft, total(soft)], [X * G, total(X * G), total(G)]):
        (group,) = fused(*roots).groups
        assert len(group.column_sums) == len(group.columns) == len(roots) - 1


def test_through_reshapes() -> None:
    soft = softmax(leaf(0, 8, 64, 40))
    (group,) = fused(soft, total(reshape(soft, 512, 40))).groups
    assert len(group.column_sums) == 1
    (group,) = fused(softmax(X), total(reshape(X, 8, 64, 40))).groups
    assert len(group.column_sums) == 1


def test_what_was_stored_for_the_sums_alone_is_not() -> None:
    centred = X - along(ops.SUM, X, 1)
    wide = ew(ops.EXP, centred)
    fusion = fused(wide * wide, total(wide * G))
    (group,) = fusion.groups
    assert not group.also and fusion.stored == {group.root, *(n for n, _ in group.columns)}


def test_who_works_on_what_is_summed() -> None:
    soft = softmax(X)
    user = ew(ops.EXP, soft * G)
    fusion = fused(user, total(soft), total(user))
    (group,) = fusion.groups
    assert len(group.column_sums) == 2 and group.root is user and soft not in fusion.stored


@pytest.mark.parametrize(
    "roots",
    [
        [softmax(leaf(0, 64, 40)), total(leaf(0, 64, 40))],  # few rows
        [softmax(leaf(0, 300, 1 << 15)), total(leaf(0, 300, 1 << 15))],  # many columns
        [softmax(X), total(leaf(2, 512, 40))],  # nothing in common
        [softmax(X), reduce(ops.AMAX, X, 0)],  # no sum
        [softmax(X - broadcast(total(X), X.shape))],  # the rows need the sums
        [permute(leaf(0, 40, 512), 1, 0) * 2.0, total(permute(leaf(0, 40, 512), 1, 0))],
        [matmul(X, leaf(1, 40, 40)), total(X)],
    ],
    ids=["few", "wide", "apart", "max", "needed", "across", "product"],
)
def test_those_that_do_not(roots: list[Node]) -> None:
    assert all(not group.column_sums for group in fused(*roots).groups)


def test_those_who_need_the_sums_come_after() -> None:
    soft = softmax(leaf(0, 1 << 14, 4))
    centred = soft - broadcast(total(soft), soft.shape)
    first, second = fused(soft, centred, total(ew(ops.EXP, centred))).groups
    assert len(first.column_sums) == len(second.column_sums) == 1 and second.root is centred


def test_a_sum_of_what_comes_after_the_rows() -> None:
    """What is summed needs a kernel between that needs the rows: all three stay."""
    soft = softmax(X)
    product = matmul(soft, leaf(1, 40, 40))
    groups = fused(soft, product, total(ew(ops.EXP, product) * soft)).groups
    assert all(not group.column_sums for group in groups)


def test_gradients_of_norms_and_biases_are_one_kernel() -> None:
    f = genesis.nn.functional
    x, g = genesis.zeros(512, 48), genesis.zeros(512, 48)
    w, b = genesis.zeros(48), genesis.zeros(48)
    for needed in (x, w, b):
        needed.requires_grad_()
    makers: list[Callable[..., object]] = [
        lambda x, w, b: f.layer_norm(x, (48,), w, b),
        lambda x, w, b: f.rms_norm(x + b, (48,), w),
        lambda x, w, b: f.gelu(x * w + b),
        lambda x, w, b: genesis.softmax(x * w + b, -1),
    ]
    for maker in makers:

        def gradients(x: object, w: object, b: object, g: object, maker: object = maker) -> object:
            return genesis.autograd.grad(maker(x, w, b), [x, w, b], g)  # type: ignore[operator]

        assert len(genesis.explain(gradients, x, w, b, g).kernels) == 1


# ---- what they give


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Node], list[np.ndarray], dict[str, int]]:
    """A kernel that goes through rows, and sums of what it reads or makes."""
    dtype: DType = draw(st.sampled_from([float32, float32, float16, int32]))
    n = draw(st.integers(1, 40))
    shapes: list[tuple[Dim, ...]] = [(n,), (N,), (3, n), (2, N)]
    rows = shapes[draw(st.integers(0, 3))]
    columns = draw(st.sampled_from([(2,), (7,), (16,), (35,), (2, 9)]))
    shape = (*rows, *columns)
    x, g = leaf(0, *shape, dtype=dtype), leaf(1, *shape, dtype=dtype)
    w = leaf(2, *columns, dtype=dtype)
    inner = tuple(range(len(rows), len(shape)))
    weighted = g * broadcast(w, shape)
    peak = x - along(ops.AMAX, x, *inner)
    hosts = [weighted, x * x + g, peak, peak * along(ops.SUM, weighted, *inner)]
    host = hosts[draw(st.integers(0, 3))]
    flat = (*rows[:-1], rows[-1], int(np.prod(columns)))
    sums: list[Node] = []
    for k in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)):
        summed = [host, x, g * x, host * peak, reshape(host, *flat)][k]
        each = reduce(ops.SUM, summed, *range(len(rows)))
        sums.append(each * 2.0 + w if draw(st.booleans()) and each.shape == w.shape else each)
    user = host * x - g
    made = [[host], [user], [host, user], [user, reduce(ops.SUM, user, *range(len(rows)))]]
    sizes = {"n": draw(st.sampled_from([1, 2, 13, 30]))}
    count = [int(np.prod([sizes["n"] if e is N else e for e in s])) for s in (shape, columns)]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    memory = [rng.integers(-4, 5, c).astype(dtype.numpy) for c in (count[0], *count)]
    return [*made[draw(st.integers(0, 3))], *sums], memory, sizes


@settings(max_examples=24)
@given(programs())
@pytest.mark.usefixtures("few_rows")
def test_drawn_programs(program: tuple[list[Node], list[np.ndarray], dict[str, int]]) -> None:
    roots, memory, sizes = program
    wanted = evaluate(roots, memory, [], sizes)
    close = 1e-2 if roots[0].dtype is float16 else 1e-5

    def check(got: list[np.ndarray]) -> None:
        for a, b in zip(got, wanted, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            scale = float(np.abs(b.astype(np.float64)).max(initial=1.0))
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), 0, close * scale)

    for chip in (None, SMALL):
        check(interpreted(roots, memory, (), sizes, scheduled=chip is not None, chip=chip or SMALL))
    with using(strict=True):
        made = compile_graph(roots)
    check(compiled(roots, memory, (), sizes, program=made))


def test_sums_in_any_number_of_threads_and_as_exact_as_ever() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) for s in [(3000, 96), (96,), (96,), (3000, 96)]]
    x, w, b, g = map(genesis.tensor, arrays)
    for needed in (x, w, b):
        needed.requires_grad_()

    @genesis.jit
    def gradients(x: object, w: object, b: object, g: object) -> object:
        out = genesis.nn.functional.layer_norm(x, (96,), w, b)
        return genesis.autograd.grad(out, [x, w, b], g)

    threads, found = get_num_threads(), []
    try:
        for count in (1, 2, 5):
            set_num_threads(count)
            found.append([r.numpy() for r in gradients(x, w, b, g)])
    finally:
        set_num_threads(threads)
    assert len({b"".join(r.tobytes() for r in each) for each in found}) == 1
    exact, _, _, given_ = (a.astype(np.float64) for a in arrays)
    exact -= exact.mean(1, keepdims=True)
    exact /= np.sqrt((exact * exact).mean(1, keepdims=True) + 1e-5)
    for got, terms in zip(found[0][1:], (given_ * exact, given_), strict=True):
        error = np.abs(got - terms.sum(0)) / np.abs(terms).sum(0)
        assert error.max() < 4 * np.finfo(np.float32).eps


def test_a_sum_beside_what_is_written_in_place() -> None:
    """The gradient of an activation takes over the memory of what it is made from."""
    made = G * ew(ops.EXP, X)
    roots, donated = [made, total(made)], frozenset({1})
    with using(strict=True):
        program = compile_graph(roots, donated)
    assert len(program.launches) == 1 and program.outputs[0].reuses == 1
    memory = [np.random.default_rng(k).standard_normal(512 * 40, np.float32) for k in range(2)]
    wanted = evaluate(roots, memory, [])
    for a, b in zip(compiled(roots, memory, program=program, donated=donated), wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-4)
