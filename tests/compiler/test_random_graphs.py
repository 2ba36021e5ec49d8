"""Random graphs through the whole compiler, against the evaluator of tensor graphs.

Every graph is compiled and run; by turns, one optimisation is switched off, thresholds are shrunk
so that the schedules for large arrays run on small ones, or the kernels are interpreted instead of
compiled. Nothing may change but rounding, and every kernel must be proven. The fixed seeds
exercise nearly every pair of primitives; ``GENESIS_SEEDS=240:4000`` tries more of them, each in
every way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from oracles import compiled, interpreted
from random_graphs import PAIRS, Case, pairs_of, random_case

from genesis.backends.base import Chip
from genesis.backends.cpu.runtime import runtime
from genesis.compiler import build, compile_graph, using
from genesis.compiler.schedule import schedule
from genesis.ir import ops
from genesis.ir.node import topological

SEEDS = range(240)
#: Found something once: stores masked by data, constants that wrap, a kernel over nothing, an
#: array written onto itself.
REMEMBERED = (20775, 20805, 21022, 22836, 21492, 27314, 313)
MORE = range(*map(int, os.environ.get("GENESIS_SEEDS", "0:0").split(":")))
#: Two lanes of float64, eight registers: enough for every shape of loop, tile and tail.
SMALL = Chip("small", 16, 8, 1 << 10, 1 << 12)
THRESHOLDS = {
    "steps.queries.BLOCK": 8,
    "cpu.pointwise.BLOCKS": (8,),
    "cpu.pointwise.STREAMS": 2,
    "cpu.column_reductions.FILLS": 0,
    "cpu.column_reductions.LEAST": 2,
    "cpu.column_reductions.TOGETHER": 2,
    "cpu.row_cache.LEAST": 2,
    "cpu.prefix.CHUNK": 4,
    "cpu.reductions.CHUNK": 4,
    "cpu.reductions.ROWS": 4,
    "cpu.reductions.TOGETHER": 2,
    "cpu.reductions.SPLIT_LENGTH": 3,
    "cpu.contraction.contraction.PACK_ROWS": 2,
    "cpu.contraction.contraction.FEW_ROWS": 4,
    "cpu.contraction.contraction.TILES_PER_BLOCK": 2,
}
WITHOUT = ("simplify", "fuse", "schedule", "donate")
INTERPRETED = (
    {},
    {"scheduled": False},
    {"fused": False},
    {"simplified": False, "scheduled": False},
    {"chip": SMALL},
    {"order": "shuffle", "chip": SMALL},
)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    # A program on disk would be found again with other thresholds.
    monkeypatch.setenv("GENESIS_CACHE", "off")


@pytest.mark.parametrize("seed", SEEDS)
def test_graph(seed: int) -> None:
    case = random_case(seed)
    check_compiled(case)
    turn = seed % 6
    if turn < len(WITHOUT):
        check_compiled(case, WITHOUT[turn])
    elif turn == 4:
        with small_thresholds():
            check_compiled(case)
    else:
        check_interpreted(case, INTERPRETED[seed // 6 % len(INTERPRETED)])


@pytest.mark.parametrize("seed", [*REMEMBERED, *MORE])
def test_graph_in_every_way(seed: int) -> None:
    case = random_case(seed)
    for without in (None, *WITHOUT):
        check_compiled(case, without)
    with small_thresholds():
        check_compiled(case)
    check_interpreted(case, INTERPRETED[seed % len(INTERPRETED)])


def test_the_seeds_cover_the_primitives() -> None:
    exercised: set[tuple[str, str]] = set()
    used: set[ops.Op] = set()
    for seed in SEEDS:
        roots = random_case(seed).roots
        exercised |= pairs_of(roots)
        used |= {n.op for n in topological(roots)}
    # Scans, calls, tables and complex numbers have tests of their own; schedules make `pairs`.
    apart = ("boundary", "complex", "kernel")
    elsewhere = {op for op in ops.ALL.values() if op.group in apart}
    elsewhere |= {ops.PARAMETER, ops.PAIRS, ops.LOOKUP}
    assert used == set(ops.ALL.values()) - elsewhere
    missing = sorted(set(PAIRS) - exercised)
    print(f"{len(missing)} of {len(PAIRS)} pairs are not exercised:", *missing, sep="\n  ")
    assert len(missing) <= len(PAIRS) // 20


# ---- one graph


def check_compiled(case: Case, without: str | None = None) -> None:
    """Compile, run at every size on one thread and on two, compare."""
    options = {} if without is None else {without: False}
    with using(strict=True, **options):
        program = compile_graph(case.roots, case.donated)
    donated = frozenset() if without == "donate" else case.donated
    threads = runtime.get_num_threads()
    for run, sizes in enumerate(case.sizes):
        results = []
        for count in (1, 2):
            runtime.set_num_threads(count)
            results.append(
                compiled(
                    case.roots,
                    case.memory[run],
                    case.scalars,
                    sizes,
                    program=program,
                    donated=donated,
                )
            )
        runtime.set_num_threads(threads)
        one, two = results
        assert [x.tobytes() for x in one] == [x.tobytes() for x in two], "threads changed bits"
        compare(case, run, one, f"compiled without {without}")


def check_interpreted(case: Case, options: dict[str, object]) -> None:
    """Run the kernels on the interpreter at every size, compare."""
    for run, sizes in enumerate(case.sizes):
        memory = case.memory[run]
        results = interpreted(
            case.roots, memory, case.scalars, sizes, donated=case.donated, **options
        )
        compare(case, run, results, f"interpreted with {options}")


def compare(case: Case, run: int, results: list[np.ndarray], how: str) -> None:
    """Results against the evaluator's, within the error the generator computed."""
    for i, (got, want) in enumerate(zip(results, case.expected(run), strict=True)):
        where = f"seed {case.seed}, root {i}, sizes {case.sizes[run]}, {how}"
        assert (got.dtype, got.shape) == (want.dtype, want.shape), where
        if got.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want, where)
        else:
            got, want = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(got, want, 0, 4 * case.errors[i], err_msg=where)


@contextmanager
def small_thresholds() -> Iterator[None]:
    """Schedule as if small were large: several blocks, chunks, panels and vectors everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_built", {})
        patch.setattr(build, "schedule", lambda kernel, chip: schedule(kernel, SMALL))
        for name, value in THRESHOLDS.items():
            module, _, constant = name.rpartition(".")
            # The package's attributes of these names are functions.
            patch.setattr(sys.modules[f"genesis.compiler.schedule.{module}"], constant, value)
        yield
