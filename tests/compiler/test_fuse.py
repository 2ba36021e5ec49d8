"""What fuses into one kernel, what is computed how often, and what an update touches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import (
    along,
    broadcast,
    full,
    gather,
    iota,
    leaf,
    matmul,
    permute,
    reduce,
    reshape,
    slice_,
    update,
    where,
)
from oracles import interpreted

from genesis.backends.cpu.backend import CPUBackend
from genesis.compiler.fuse.cost import MAX_CHAIN
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.lower import Lowered, lower
from genesis.compiler.options import Options
from genesis.compiler.pipeline import compile_program
from genesis.compiler.program.program import results
from genesis.compiler.report import flops
from genesis.ir import ops
from genesis.ir.dtype import DType, float32, int64, uint8
from genesis.ir.evaluate import evaluate
from genesis.ir.kernel import Loop, Role, Store, load_parts, walk
from genesis.ir.node import Node, elementwise, topological

NONE: frozenset[int] = frozenset()


def kernels(*roots: Node, donated: frozenset[int] = NONE, fused: bool = True) -> list[Lowered]:
    """The plain kernels of a graph."""
    fusion = fuse(results(simplify(roots)), donated, fused)
    return [lower(group, fusion.stored) for group in fusion.groups]


def check_values(*roots: Node, donated: frozenset[int] = NONE) -> None:
    """The fused kernels compute what the evaluator does."""
    rng = np.random.default_rng(0)
    leaves = {n.attr.slot: n for n in topological(roots) if n.op is ops.BUFFER}
    memory = []
    for slot in range(max(leaves) + 1):
        shape, dtype = leaves[slot].shape, leaves[slot].dtype
        values = rng.normal(size=shape) if dtype.is_float else rng.integers(0, 5, shape)
        memory.append(values.astype(dtype.numpy).reshape(-1))
    want = evaluate(roots, memory, [])
    got = interpreted(roots, memory, donated=donated)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, 2e-5, 2e-5)


def ew(op: ops.Op, *inputs: Node) -> Node:
    return elementwise(op, *inputs)


# ---- the usual suspects


def softmax(x: Node, axis: int = -1) -> Node:
    axis %= len(x.shape)
    powers = ew(ops.EXP, x - along(ops.AMAX, x, axis))
    return powers / along(ops.SUM, powers, axis)


def mean(x: Node, *axes: int) -> Node:
    count = int(np.prod([x.shape[a] for a in axes]))
    return ew(ops.MUL, along(ops.SUM, x, *axes), full(1 / count, x))


def normalised(x: Node, *axes: int) -> Node:
    centred = x - mean(x, *axes)
    variance = mean(ew(ops.MUL, centred, centred), *axes)
    return centred / ew(ops.SQRT, ew(ops.ADD, variance, full(1e-5, x)))


def layer_norm(x: Node, weight: Node, bias: Node, *axes: int) -> Node:
    scaled = ew(ops.MUL, normalised(x, *axes), broadcast(weight, x.shape))
    return ew(ops.ADD, scaled, broadcast(bias, x.shape))


def rms_norm(x: Node, weight: Node) -> Node:
    squares = mean(ew(ops.MUL, x, x), len(x.shape) - 1)
    root = ew(ops.SQRT, ew(ops.ADD, squares, full(1e-5, x)))
    return ew(ops.MUL, x / root, broadcast(weight, x.shape))


def gelu(x: Node) -> Node:
    inner = ew(ops.ERF, ew(ops.MUL, x, full(0.7071067811865476, x)))
    half = ew(ops.MUL, x, full(0.5, x))
    return ew(ops.MUL, half, ew(ops.ADD, inner, full(1.0, x)))


def linear(x: Node, weight: Node, bias: Node) -> Node:
    product = matmul(x, weight)
    return ew(ops.ADD, product, broadcast(bias, product.shape))


def cross_entropy(logits: Node, target: Node) -> Node:
    """``logsumexp(logits) - logits[target]`` for every row."""
    rows, classes = logits.shape
    top = reduce(ops.AMAX, logits, 1)
    powers = ew(ops.EXP, logits - along(ops.AMAX, logits, 1))
    log_sum = ew(ops.ADD, ew(ops.LOG, reduce(ops.SUM, powers, 1)), top)
    position = ew(ops.ADD, ew(ops.MUL, iota(rows), full(classes, target)), target)
    return log_sum - gather(reshape(logits, rows * classes), position, 0)


X = leaf(0, 12, 20)


def one_kernel() -> dict[str, Node]:
    residual = ew(ops.ADD, X, leaf(1, 12, 20))
    capped = ew(ops.MUL, ew(ops.TANH, ew(ops.MUL, X, full(0.02, X))), full(50.0, X))
    image = leaf(0, 3, 10, 5, 6)
    scores = ew(ops.MUL, matmul(X, leaf(1, 20, 12)), full(0.2, X))
    causal = where(
        ew(ops.LE, broadcast(iota(12), (12, 12)), permute(broadcast(iota(12), (12, 12)), 1, 0)),
        scores,
        full(-np.inf, X),
    )
    return {
        "softmax": softmax(X),
        "softmax over columns": softmax(X, 0),
        "soft-capped softmax": softmax(capped),
        "layer norm": layer_norm(X, leaf(1, 20), leaf(2, 20), 1),
        "norm over two axes": normalised(image, 2, 3),
        "norm over the first and a later axis": normalised(image, 0, 2, 3),
        "RMS norm of a sum": rms_norm(residual, leaf(2, 20)),
        "cross entropy of every row": cross_entropy(X, leaf(1, 12, dtype=int64)),
        "linear, bias, GELU": gelu(linear(X, leaf(1, 20, 9), leaf(2, 9))),
        "softmax of a matrix product's rows": reduce(ops.SUM, softmax(X), 1),
        "causal attention": matmul(softmax(causal), leaf(2, 12, 7)),
    }


@pytest.mark.parametrize("name", one_kernel())
def test_one_kernel(name: str) -> None:
    root = one_kernel()[name]
    assert len(kernels(root)) == 1
    check_values(root)


def test_a_network_is_a_kernel_a_layer() -> None:
    h = X
    for layer in range(3):
        h = gelu(linear(h, leaf(1 + 2 * layer, 20, 20), leaf(2 + 2 * layer, 20)))
    assert len(kernels(h)) == 3
    check_values(h)


def test_a_result_on_the_way_is_stored_where_it_is_computed() -> None:
    residual = ew(ops.ADD, X, leaf(1, 12, 20))
    roots = (rms_norm(residual, leaf(2, 20)), residual)
    assert len(kernels(*roots)) == 1
    check_values(*roots)


def test_a_result_of_another_shape_is_not_copied() -> None:
    product = matmul(X, leaf(1, 20, 9))
    logits = reshape(product, 3, 4, 9)
    roots = (logits, reduce(ops.AMAX, logits, 2))
    assert len(kernels(*roots)) == 2
    check_values(*roots)
    assert len(kernels(logits, product)) == 1  # which stores both
    check_values(logits, product)


def test_a_row_statistic_on_the_way_is_stored_too() -> None:
    powers = ew(ops.EXP, X - along(ops.AMAX, X, 1))
    total = reduce(ops.SUM, powers, 1)
    roots = (powers / along(ops.SUM, powers, 1), total)
    assert len(kernels(*roots)) == 1
    check_values(*roots)


def test_nothing_is_fused_when_switched_off() -> None:
    graph = ew(ops.EXP, ew(ops.SQRT, ew(ops.MUL, X, X)))
    assert len(kernels(graph, fused=False)) == 3


# ---- the cost model


def test_a_long_chain_is_cut_at_fixed_places() -> None:
    def chain(length: int) -> list[int]:
        x = X
        for k in range(length):
            x = ew(ops.SIN, x) if k % 2 else ew(ops.TANH, x)
        members = [k.members for k in kernels(x)]
        return [sum(n.op.is_elementwise for n in m) for m in members]

    assert chain(200) == [MAX_CHAIN] * (200 // MAX_CHAIN) + [200 % MAX_CHAIN]
    # The first pieces do not depend on what follows, so their machine code is found again.
    assert chain(130)[:2] == chain(200)[:2]


def test_layers_that_add_to_what_comes_in_are_no_chain() -> None:
    x = X
    for k in range(MAX_CHAIN + 10):
        weight, bias = leaf(2 * k + 1, X.shape[1], X.shape[1]), leaf(2 * k + 2, X.shape[1])
        x = ew(ops.ADD, x, linear(gelu(x), weight, bias))
    sizes = Counter(len(k.members) for k in kernels(x))
    assert len([n for n in sizes.values() if n < MAX_CHAIN]) <= 2  # all but the outermost are alike


def operations(lowered: list[Lowered]) -> int:
    return sum(flops(k.kernel, {}) for k in lowered)


def test_a_layer_repeats_no_arithmetic() -> None:
    graph = gelu(linear(X, leaf(1, 20, 9), leaf(2, 9)))
    assert operations(kernels(graph)) == operations(kernels(graph, fused=False))


def test_a_norm_repeats_only_cheap_arithmetic() -> None:
    # The centred values are needed for the variance and for the result: one subtraction each.
    # Means and roots are written in their row's loops; the schedule moves them out.
    graph = normalised(X, 1)
    extra = operations(kernels(graph)) - operations(kernels(graph, fused=False))
    root_and_mean = ops.SQRT.cost + ops.ADD.cost + ops.MUL.cost
    assert 0 < extra <= (2 + root_and_mean) * 12 * 20


def test_what_is_expensive_is_not_computed_once_per_column() -> None:
    """The rows' exponentials are 12 values; the table that multiplies by them has 12 * 300."""
    powers = x = ew(ops.MUL, leaf(0, 12, 1), leaf(1, 12, 1))
    for _ in range(4):
        powers = ew(ops.POW, ew(ops.ADD, powers, x), x)
    table = leaf(2, 12, 300)
    root = ew(ops.MUL, table, broadcast(powers, table.shape))
    assert operations(kernels(root)) == operations(kernels(root, fused=False))


def test_what_is_cheap_is_computed_again_rather_than_stored() -> None:
    twice = ew(ops.ADD, X, X)
    roots = (reduce(ops.SUM, twice, 0), reduce(ops.AMAX, twice, 1))
    assert all(k.arguments[0] is X for k in kernels(*roots))


def test_a_contraction_is_never_computed_twice() -> None:
    product = matmul(X, leaf(1, 20, 12))
    roots = (softmax(product), reduce(ops.SUM, product, 0), permute(product, 1, 0))
    contractions = [n for k in kernels(*roots) for n in k.members if n.op is ops.CONTRACT]
    assert contractions == [product]
    check_values(*roots)


# ---- updates


def touched(low: Lowered) -> int:
    """Elements of the updated buffer that a plain kernel visits."""
    count = 1
    for axis in low.kernel.phases[0].grid:
        assert isinstance(axis.extent, int)
        count *= axis.extent
    return count


def test_an_update_in_place_touches_its_region_only() -> None:
    cache = leaf(0, 100, 16)
    root = update(cache, ew(ops.MUL, leaf(1, 2, 16), full(2.0, cache)), (40, 1), (0, 1))
    (low,) = kernels(root, donated=frozenset([0]))
    (store,) = [s for s in walk(low.kernel.phases[0].body) if isinstance(s, Store)]
    assert store.buffer.role is Role.INOUT
    assert touched(low) == 2 * 16
    check_values(root, donated=frozenset([0]))
    # Somebody still has the old value: then everything is copied.
    *_, copying = kernels(root)
    assert touched(copying) == 100 * 16


def test_a_value_that_reads_what_it_overwrites_is_computed_first() -> None:
    x = leaf(0, 10)
    shifted = slice_(x, (0, 1, 9))
    root = update(x, shifted, (1, 1))
    first, second = kernels(root, donated=frozenset([0]))
    assert second.kernel.buffers[-1].role is Role.INOUT
    assert x not in second.arguments and x in first.arguments
    check_values(root, donated=frozenset([0]))


def test_an_array_written_onto_itself_is_copied() -> None:
    x = leaf(0, 10)
    once = update(x, leaf(1, 3), (0, 1))
    root = update(once, once, (9, -1))
    assert kernels(root, donated=frozenset([0]))[-1].kernel.buffers[-1].role is Role.OUTPUT
    check_values(root, donated=frozenset([0]))


def test_nothing_is_stored_by_a_kernel_over_nothing() -> None:
    x = ew(ops.EXP, leaf(0, 1, 1))
    roots = (x, slice_(x, (0, 1, 1), (0, 1, 0)))
    assert len(kernels(*roots)) == 2
    check_values(*roots)


def test_a_chain_of_updates_writes_one_buffer() -> None:
    x = leaf(0, 10)
    once = update(x, leaf(1, 3), (0, 1))
    twice = update(once, leaf(2, 3), (5, 2))
    made = kernels(twice, donated=frozenset([0]))
    assert [k.kernel.buffers[-1].role for k in made] == [Role.INOUT] * 2
    check_values(twice, donated=frozenset([0]))


def test_an_old_value_that_is_needed_is_not_overwritten() -> None:
    x = leaf(0, 10)
    changed = update(x, leaf(1, 3), (2, 1))
    roots = (changed, ew(ops.MUL, x, x))
    assert all(k.kernel.buffers[-1].role is Role.OUTPUT for k in kernels(*roots))
    check_values(*roots, donated=frozenset([0]))


# ---- movement


def test_movement_never_copies() -> None:
    x = reshape(permute(slice_(X, (10, -2, 5), (1, 1, 16)), 1, 0), 4, 20)
    (low,) = kernels(ew(ops.EXP, x))
    assert low.arguments[0] is X
    loads = {n for s in walk(low.kernel.phases[0].body) if isinstance(s, Store) for n in
             topological([s.value]) if n.op is ops.LOAD}  # fmt: skip
    assert [load_parts(n)[0].name for n in loads] == ["a0"]
    check_values(ew(ops.EXP, x))


def test_independent_loops_share_a_kernel_only_over_one_space() -> None:
    roots = (reduce(ops.SUM, X, 1), reduce(ops.SUM, X, 0))
    made = kernels(*roots)
    assert len(made) == 2
    for low in made:
        assert sum(isinstance(s, Loop) for s in walk(low.kernel.phases[0].body)) == 1


@pytest.mark.parametrize(("steps", "rows", "count"), [(5, 4000, 1), (25, 4000, 2), (25, 4, 1)])
def test_long_kernels_that_share_nothing_stay_apart(steps: int, rows: int, count: int) -> None:
    a, b = leaf(0, rows, 30), leaf(1, rows, 30)
    for _ in range(steps):
        a, b = a * a + 1.0, b * b + 1.0
    assert len(kernels(a, b)) == count


def test_what_is_updated_takes_its_own_memory() -> None:
    """Whatever else a kernel stores: programs meet the same pointers again and again."""
    a, b, first, second, weight = (leaf(k, 40, 30) for k in range(5))
    gradient = elementwise(ops.MUL, a, b)
    moment = first + (gradient - first) * 0.1
    spread = second + gradient * gradient
    new = weight - moment / spread
    roots = results(simplify([gradient, new, spread, moment]))
    donated = frozenset((2, 3, 4))
    program = compile_program(roots, donated, CPUBackend(), Options())
    assert [output.reuses for output in program.outputs] == [None, 4, 3, 2]


@pytest.mark.parametrize(("more", "stored"), [((), uint8), ((ops.EXP, ops.EXP), float32)])
def test_what_is_little_more_than_bytes_lies_in_memory_as_bytes(
    more: tuple[ops.Op, ...], stored: DType
) -> None:
    x = leaf(0, 64, 512)
    costly = x
    for _ in range(6):
        costly = ew(ops.TANH, costly)
    number = elementwise(ops.CAST, elementwise(ops.CAST, costly, dtype=uint8), dtype=float32)
    number = ew(ops.MUL, number - full(3.0, x), full(0.1, x))
    for op in more:  # by then it is more than loading it
        number = ew(op, number)
    roots = (reduce(ops.SUM, number, 0), reduce(ops.SUM, number, 1))
    found = {n.dtype for n in fuse(results(simplify(roots))).stored if n.shape == x.shape}
    assert found == {stored}
    check_values(*roots)
