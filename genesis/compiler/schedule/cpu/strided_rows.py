"""Rows that lie in runs with others between them: the channels of images, say.

A reduction of such rows is done in the order of memory. Long runs are reduced one by one, and the
runs' results are combined in a second phase. Short ones of neighbouring rows are read as one
stretch, as wide columns are, and every row has a state for each place of a run.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.column_reductions import (
    LEAST,
    SHORT,
    ColumnStretch,
    bytes_moved,
)
from genesis.compiler.schedule.steps.queries import accesses, extent, operations, points, stride
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir.kernel import Axis, Kernel, Loop, Phase, walk

#: Runs that are shorter are read together with those of neighbouring rows.
SHORT_RUN = 128
#: Runs of a row that are read side by side.
TOGETHER = 4
#: Elements of neighbouring rows that are read in one piece.
STRETCH = 512


def run_length(nest: Loop) -> int:
    """The elements of each run of a row that a nest of loops reduces; 0 if it lies in one piece."""
    deep = innermost(nest)
    if deep is None or deep is nest or deep.body:
        return 0
    runs = [x for x in accesses((nest,)) if stride(*x, deep.axis) == 1]
    inside = points(s.axis for s in walk(nest.body) if isinstance(s, Loop))
    apart = all((stride(*x, nest.axis) or 0) > inside for x in runs)
    return inside if runs and apart else 0


def in_short_runs(nest: Loop) -> bool:
    """Whether a nest reduces rows in several runs, each too short to be read alone."""
    return 0 < run_length(nest) < SHORT_RUN and extent(nest.axis) >= TOGETHER


def short_runs(phase: Phase) -> tuple[Axis, ColumnStretch] | None:
    """The axis from row to row and what a block takes of it, if there is one reduction of such."""
    loops = [s for s in phase.body if isinstance(s, Loop)]
    if len(loops) != 1 or phase.body[0] is not loops[0] or loops[0].merge is None:
        return None
    (nest,) = loops
    run, deep = run_length(nest), innermost(nest)
    if not in_short_runs(nest) or operations((nest,)) > SHORT:
        return None
    assert deep is not None
    runs = [x for x in accesses((nest,)) if stride(*x, deep.axis) == 1]
    side_by_side = [a for a in phase.grid if all(stride(*x, a) == run for x in runs)]
    if nest.body != (deep,) or len(side_by_side) != 1:
        return None
    (across,) = side_by_side
    return across, ColumnStretch(min(extent(across), STRETCH // run), TOGETHER)


def interleaved(phase: Phase, chip: Chip) -> bool:
    """Whether there is one reduction, in runs long enough that there is little to combine."""
    loops = [s for s in phase.body if isinstance(s, Loop)]
    if len(loops) != 1 or loops[0].merge is None:
        return False
    return run_length(loops[0]) >= LEAST and bytes_moved(phase) > chip.l2_bytes


def in_order(kernel: Kernel, number: int = 0) -> Kernel:
    """The blocks of a phase in the order in which memory has what they read."""
    phase = kernel.phases[number]

    def jump(axis: Axis) -> int:
        return sum(abs(stride(*x, axis) or 0) for x in accesses(phase.body))

    grid = sorted(phase.grid, key=jump, reverse=True)
    return kernel.with_phase(number, Phase(tuple(grid), phase.body))
