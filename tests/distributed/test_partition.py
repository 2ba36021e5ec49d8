"""Graphs divided over ranks, evaluated rank by rank in threads, against the whole graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import random_values
from graphs import broadcast, expand, full, iota, leaf, matmul, permute, reduce, reshape
from random_graphs import Case, _Generator
from ranks import Rank, block, evaluated, joined, on_all

import genesis
import genesis.distributed as gd
from genesis.backends import get
from genesis.backends.base import Host, waits
from genesis.compiler import compile_graph
from genesis.compiler.partition import FREE, buckets, collectives, partition
from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.evaluate import evaluate
from genesis.ir.node import LibraryCall, Node, const, elementwise, node, topological
from genesis.ir.ops import Op
from genesis.ir.placement import MeshShape, Placement, Split
from tests.distributed.pretended import pretended

MESHES = [
    MeshShape(axes)
    for axes in (
        (("a", 2),), (("a", 3),), (("a", 4),), (("a", 2), ("b", 2)), (("a", 2), ("b", 3)),
        (("a", 2), ("b", 2), ("c", 2)),
    )
]  # fmt: skip


def case_of(seed: int) -> Case:
    """A random graph of extents that many meshes divide, most of it in float64."""
    generator = _Generator(seed)
    generator.symbol, generator.sizes = None, ({},)
    if seed % 5:
        generator.usual = dtypes.float64
    return generator.case()


def plain(roots: tuple[Node, ...]) -> dict[int, Node]:
    """The slots that one row-major leaf reads: those can be divided."""
    found: dict[int, list[Node]] = {}
    for n in topological(roots):
        if n.op is ops.BUFFER:
            found.setdefault(n.attr.slot, []).append(n)
    return {slot: ns[0] for slot, ns in found.items() if len(ns) == 1 and _is_dense(ns[0])}


def _is_dense(n: Node) -> bool:
    strides, total = [], 1
    for extent in reversed(n.shape):
        strides.append(total)
        total *= extent
    return n.attr.strides == tuple(reversed(strides)) and n.attr.offset == 0


def drawn(draw: random.Random, mesh: MeshShape, shape: tuple[int, ...], p: float) -> Placement:
    """A random placement that divides a shape."""
    shape = tuple(shape)
    splits: list[Split | None] = []
    for _, size in mesh.axes:
        dims = [d for d, extent in enumerate(shape) if extent and extent % size == 0]
        if not dims or draw.random() > p:
            splits.append(None)
            continue
        dim = draw.choice(dims)
        splits.append(Split(dim, draw.random() < 0.3))
        shape = (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])
    return Placement(mesh, tuple(splits))


def constrained(roots: tuple[Node, ...], mesh: MeshShape, draw: random.Random) -> tuple[Node, ...]:
    """The same graph, with wishes for where some of its values lie."""
    made: dict[Node, Node] = {}
    for n in topological(roots):
        x = made[n] = n.with_inputs(tuple(made[i] for i in n.inputs))
        if n.op.group != "boundary" and n.shape and draw.random() < 0.3:
            splits = drawn(draw, mesh, n.shape, 0.6).splits
            named = [(axis, split) for (axis, _), split in zip(mesh.axes, splits, strict=True)]
            wishes = tuple((axis, s and s.dim) for axis, s in named if s or draw.random() < 0.3)
            form = (n.dtype, n.shape)
            what = LibraryCall(
                "sharding_constraint.constrain", (mesh.axes, 0, wishes), (form,), (form,)
            )
            made[n] = node(ops.ITEM, (node(ops.CALL, (x,), what, n.dtype),), 0, *form)
    return tuple(made[n] for n in roots)


def check(seed: int, wishes: bool = False) -> set[Op]:
    """Divide and evaluate the graph of a seed; the operations that met divided inputs."""
    case = case_of(seed)
    draw = random.Random(seed)
    mesh = MESHES[seed % len(MESHES)]
    roots = constrained(case.roots, mesh, draw) if wishes else case.roots
    shapes = {slot: n.shape for slot, n in plain(case.roots).items()}
    leaves = {slot: drawn(draw, mesh, shape, 0.8) for slot, shape in shapes.items()}
    if not leaves:
        return set()
    wanted = [draw.choice((FREE, None, drawn(draw, mesh, root.shape, 0.7))) for root in case.roots]
    found = partition(roots, leaves, wanted)
    for want, placement in zip(wanted, found.placements, strict=True):
        if isinstance(want, Placement):
            assert placement == want or not any(want.splits)
    got = evaluated(found, mesh, case.memory[0], shapes, leaves, case.scalars)
    for x, y, error in zip(got, case.expected(0), case.errors, strict=True):
        assert x.dtype == y.dtype
        if y.dtype.kind in "iub":
            np.testing.assert_array_equal(x, y, err_msg=f"seed {seed}")
        else:
            finite = np.abs(y[np.isfinite(y)].astype(float))
            atol = max(error, 1e-12 * max(1.0, float(np.max(finite, initial=0))))
            np.testing.assert_allclose(
                x.astype(float), y.astype(float), rtol=0, atol=atol, err_msg=f"seed {seed}"
            )
    return {n.op for n in topological(found.roots)}


@pytest.fixture(autouse=True)
def divisible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_values, "EXTENTS", (1, 2, 4, 6, 6, 8, 12, 12, 24))


def test_random_graphs() -> None:
    met = set[Op]().union(*(check(seed) for seed in range(60)))
    assert {ops.CONTRACT, ops.GATHER, ops.SCATTER, ops.UPDATE, ops.PREFIX, ops.WINDOW} <= met
    assert ops.CALL in met  # collectives


def test_random_graphs_with_constraints() -> None:
    met = set[Op]().union(*(check(seed, wishes=True) for seed in range(5000, 5060)))
    assert {ops.CONTRACT, ops.GATHER, ops.CALL} <= met


def test_a_constraint_decides_what_is_exchanged() -> None:
    """A sum that is wished for in blocks is scattered; what is whole can be divided."""
    mesh = MESHES[0]
    x, w = leaf(0, 8, 12), leaf(1, 12, 6)
    form = (x.dtype, (8, 6))

    def wished(y: Node, dim: int | None) -> Node:
        what = LibraryCall(
            "sharding_constraint.constrain", (mesh.axes, 0, (("a", dim),)), (form,), (form,)
        )
        return node(ops.ITEM, (node(ops.CALL, (y,), what, y.dtype),), 0, *form)

    columns, rows = Placement(mesh, (Split(1),)), Placement(mesh, (Split(0),))
    for leaves, dim, names in (
        ({0: columns, 1: rows}, None, ["all_reduce"]),
        ({0: columns, 1: rows}, 0, ["reduce_scatter"]),
        ({0: rows}, 1, ["all_to_all"]),
        ({}, 0, []),
    ):
        found = partition((wished(matmul(x, w), dim),), leaves, [FREE])
        assert [n.attr.name for n, _ in collectives(found.roots)] == [
            f"collectives.{n}" for n in names
        ]
        assert found.placements == (
            (rows, Placement(mesh, (Split(1),)))[dim] if dim is not None else None,
        )


def along(kind: Op, x: Node, index: Node, axis: int, updates: Node | None = None) -> Node:
    """GATHER or SCATTER along an axis: the index of every other one counts."""
    where = [
        index if d == axis else expand(reshape(iota(n), *_only(len(x.shape), d, n)), *index.shape)
        for d, n in enumerate(index.shape)
    ]
    axes = tuple(range(len(x.shape)))
    if updates is None:
        return node(ops.GATHER, (x, *where), axes, x.dtype, index.shape)
    return node(ops.SCATTER, (x, *where, updates), (axes, "add"), x.dtype, x.shape)


def _only(rank: int, dim: int, extent: int) -> tuple[int, ...]:
    return tuple(extent if d == dim else 1 for d in range(rank))


@pytest.mark.parametrize("mesh", MESHES[:1] + MESHES[3:4], ids=lambda m: m.name)
@pytest.mark.parametrize("axis", (0, 1))
def test_an_index_along_an_axis(mesh: MeshShape, axis: int) -> None:
    """Rows meet the rows of their index: labels of a classifier that is divided in any way."""
    draw = np.random.default_rng(0)
    x, labels = leaf(0, 8, 12, dtype=dtypes.float64), leaf(1, 8, 12, dtype=dtypes.int64)
    new, zeros = leaf(2, 8, 12, dtype=dtypes.float64), broadcast(full(0.0, x), (8, 12))
    roots = (along(ops.GATHER, x, labels, axis), along(ops.SCATTER, zeros, labels, axis, new))
    memory = [draw.random(96), draw.integers(-2, 14, 96), draw.random(96)]
    shapes = dict.fromkeys(range(3), (8, 12))
    whole = evaluate(roots, memory, [])
    for first in product((None, Split(0), Split(1), Split(0, True)), repeat=3):
        splits = [(f, *(Split(1) for _ in mesh.axes[1:])) for f in first]
        leaves = {k: Placement(mesh, s) for k, s in enumerate(splits)}
        found = partition(roots, leaves, [FREE, FREE])
        for got, want in zip(evaluated(found, mesh, memory, shapes, leaves), whole, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_labels_of_a_divided_batch_move_nothing() -> None:
    mesh = MESHES[0]
    x, labels = leaf(0, 8, 12, dtype=dtypes.float64), leaf(1, 8, 12, dtype=dtypes.int64)
    rows = Placement(mesh, (Split(0),))
    found = partition((along(ops.GATHER, x, labels, 1),), {0: rows, 1: rows}, [FREE])
    assert found.placements == (rows,) and not list(collectives(found.roots))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_random_graphs(part: int) -> None:
    seeds = range(60 + 250 * part, 60 + 250 * (part + 1))
    met = set[Op]().union(*(check(seed, wishes) for seed in seeds for wishes in (False, True)))
    generated = {op for op in ops.ALL.values() if op.group not in ("kernel", "complex")}
    # What these do not have is in `test_what_random_graphs_do_not_have` and the test behind it.
    assert generated - met <= {ops.PARAMETER, ops.SCAN, ops.PAIRS, ops.LOOKUP}


def test_a_block_is_not_taken_for_the_whole() -> None:
    """A program that ran on a whole array is not run on memory that holds only a block of one."""
    from genesis import ndarray as nd
    from genesis.ir.dtype import float32
    from genesis.ndarray.core.ndarray import wrap
    from genesis.ndarray.core.pending_graph import PendingGraph
    from genesis.ndarray.core.value import Value

    whole = nd.sqrt(nd.arange(12, dtype=float32).reshape(4, 3)).realize()
    memory = get("cpu").allocate(24)
    placement = Placement(MeshShape((("dp", 2),)), (Split(0),))
    block = wrap(Value.realised(memory, float32, (4, 3), (3, 1), "cpu", placement=placement))
    signatures = [PendingGraph({(x * 2 + 1).value: None}).signature() for x in (whole, block)]
    assert signatures[0] is not None and signatures[1] is None
    with pytest.raises(ValueError, match="lies in blocks on several processes"):
        (block * 2 + 1).numpy()


class Late(Rank):
    """A rank whose collectives happen when somebody waits for them."""

    def start(self, name: str, options: tuple[Any, ...], xs: Any) -> Any:
        sent = [x.copy() for x in xs]
        return lambda: super(Late, self).start(name, options, sent)()


def test_one_program_serves_all_ranks() -> None:
    """Compiled once, with collectives that end as late as they may, for a network and gradients.

    Weights are stored in blocks along one axis and divided for computing along the other.
    """
    mesh = MESHES[3]
    x, w, v = (leaf(k, *s, dtype=dtypes.float64) for k, s in enumerate(((8, 6), (6, 4), (4, 2))))
    hidden = elementwise(ops.TANH, matmul(x, w))
    out = matmul(hidden, v)
    error = elementwise(ops.MUL, out, out)
    dv = matmul(permute(hidden, 1, 0), error)
    dh = matmul(error, permute(v, 1, 0))
    dw = matmul(permute(x, 1, 0), elementwise(ops.MUL, dh, hidden))
    loss = reduce(ops.SUM, error, 0, 1)
    norm = elementwise(
        ops.ADD, *(reduce(ops.SUM, elementwise(ops.MUL, g, g), 0, 1) for g in (dv, dw))
    )
    scale = elementwise(ops.DIV, full(1.0, x), norm)
    new = [
        elementwise(ops.SUB, p, elementwise(ops.MUL, g, broadcast(scale, g.shape)))
        for p, g in ((w, dw), (v, dv))
    ]
    roots = (loss, *new)
    leaves = {
        0: Placement(mesh, (Split(0), None)),
        1: Placement(mesh, (Split(0, True), Split(1))),
        2: Placement(mesh, (Split(1, True), Split(0))),
    }
    found = partition(roots, leaves, [None, leaves[1], leaves[2]])
    shapes = {0: (8, 6), 1: (6, 4), 2: (4, 2)}
    draw = np.random.default_rng(0)
    memory = [draw.random(shape) - 0.5 for shape in shapes.values()]
    backend = get("cpu")
    program = compile_graph(found.roots, frozenset(), backend)
    assert program.accesses and not program.unproven

    def work(at: dict[str, int]) -> list[Any]:
        inputs = []
        for slot, whole in enumerate(memory):
            mine = np.ascontiguousarray(block(whole, leaves[slot], at))
            inputs.append(backend.allocate(mine.nbytes))
            backend.upload(inputs[-1], mine)
        outputs = [backend.allocate(o.nbytes) for o in program.outputs]
        addresses = [m.pointer for m in inputs]
        program.run(addresses, (), outputs, {f"rank_{name}": k for name, k in at.items()})
        pairs = zip(outputs, program.outputs, strict=True)
        return [backend.download(m, o.dtype, o.shape).copy() for m, o in pairs]

    results = on_all(mesh, work, Late)
    for k, want in enumerate(evaluate(roots, [m.reshape(-1) for m in memory], [])):
        got = joined([r[k] for r in results], found.placements[k])
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_collectives_begin_early_and_end_late() -> None:
    """A gradient that nobody needs yet is under way while others are computed."""
    mesh = MESHES[0]
    x, w = leaf(0, 64, 32), [leaf(k + 1, 32, 32) for k in range(4)]
    hidden = [x]
    for weight in w:
        hidden.append(elementwise(ops.TANH, matmul(hidden[-1], weight)))
    gradient, new = hidden[-1], []
    for weight, given in zip(reversed(w), reversed(hidden[:-1]), strict=True):
        change = matmul(permute(given, 1, 0), gradient)
        new.append(elementwise(ops.SUB, weight, elementwise(ops.TANH, change)))
        gradient = elementwise(ops.TANH, matmul(gradient, permute(weight, 1, 0)))
    rows = {0: Placement(mesh, (Split(0),))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "BUCKET", 4096)
        found = partition(tuple(new), rows, [None] * 4)
    records = compile_graph(found.roots, frozenset(), get("cpu")).records
    waited = waits(records)
    starts = [k for k, r in enumerate(records) if isinstance(r, Host) and r.is_collective]
    ends = {k: at for at, found_ in enumerate(waited) for k in found_}
    assert len(starts) == 4 and set(ends) == set(starts)
    # When the first ends, all have begun: only the last one has nothing left to overlap with.
    assert min(ends.values()) > max(starts)


def _scanned(x: genesis.Tensor) -> genesis.Tensor:
    found: genesis.Tensor = genesis.scan(lambda c, row: (c + row, c * row), x[0], x)[1]
    return found


REST: dict[str, Callable[[genesis.Tensor], genesis.Tensor]] = {
    "complex": lambda x: (genesis.complex(x, x * x) * 2).imag + genesis.complex(x, x).real,
    "parts": lambda x: genesis.view_as_real(genesis.complex(x, -x) * genesis.complex(x, x)),
    "joined": lambda x: genesis.view_as_complex(x.reshape(-1, 3, 2)).abs(),
    "scan": _scanned,
    "transform": lambda x: genesis.fft.rfft(x, dim=0).abs(),
    "sort": lambda x: genesis.sort(x, dim=0).values,
}


@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize("stored", (False, True))
def test_what_random_graphs_do_not_have(name: str, stored: bool) -> None:
    """The other groups of operations, on the first of two processes that have the same rows."""
    genesis.manual_seed(0)
    block = genesis.randn(4, 6, dtype=genesis.float64)
    whole = genesis.cat([block, block])
    with pretended(dp=2) as mesh:
        rows = Placement(mesh.form, (Split(0, stored),))
        x = genesis.Tensor(mesh.joined(block.array, (8, 6), rows))
        got = gd.gather(genesis.jit(REST[name])(x))
    np.testing.assert_allclose(got.numpy(), REST[name](whole).numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", (0, 1))
def test_codes_of_tables_and_pairs(dim: int) -> None:
    """What products of quantised weights are made of, element by element."""
    mesh, draw = MESHES[1], np.random.default_rng(0)
    codes, pairs = leaf(0, 6, 12, dtype=dtypes.uint8), leaf(1, 6, 12, dtype=dtypes.uint32)
    table = [const(0x0123456789ABCDEF * k, dtypes.uint64) for k in (1, 2)]
    roots = (elementwise(ops.LOOKUP, codes, *table), elementwise(ops.PAIRS, pairs, pairs))
    memory = [draw.integers(0, 16, 72).astype("u1"), draw.integers(0, 1 << 14, 72).astype("u4")]
    leaves = dict.fromkeys((0, 1), Placement(mesh, (Split(dim),)))
    found = partition(roots, leaves, [FREE, None])
    shapes = dict.fromkeys((0, 1), (6, 12))
    results = evaluated(found, mesh, memory, shapes, leaves)
    for got, want in zip(results, evaluate(roots, memory, []), strict=True):
        np.testing.assert_array_equal(got, want)
