"""Graphs divided over ranks, evaluated rank by rank in threads, against the whole graph."""

from __future__ import annotations

import random

import numpy as np
import pytest
import random_values
from random_graphs import Case, _Generator
from ranks import evaluated

from genesis.compiler.partition import FREE, partition
from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.node import Node, topological
from genesis.ir.ops import Op
from genesis.ir.placement import MeshShape, Placement, Split

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


def check(seed: int) -> set[Op]:
    """Divide and evaluate the graph of a seed; the operations that met divided inputs."""
    case = case_of(seed)
    draw = random.Random(seed)
    mesh = MESHES[seed % len(MESHES)]
    shapes = {slot: n.shape for slot, n in plain(case.roots).items()}
    leaves = {slot: drawn(draw, mesh, shape, 0.8) for slot, shape in shapes.items()}
    if not leaves:
        return set()
    wanted = [draw.choice((FREE, None, drawn(draw, mesh, root.shape, 0.7))) for root in case.roots]
    found = partition(case.roots, leaves, wanted)
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
    assert ops.CALL in met  # exchanges


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_random_graphs(part: int) -> None:
    met = set[Op]().union(*(check(seed) for seed in range(60 + 250 * part, 60 + 250 * (part + 1))))
    generated = {op for op in ops.ALL.values() if op.group not in ("kernel", "complex")}
    rare = {ops.PARAMETER, ops.SCAN, ops.PAIRS, ops.SIZE, ops.SCALAR, ops.FMA}
    assert len(generated - met - rare) < 25
