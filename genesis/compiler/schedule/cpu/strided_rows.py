"""Rows that lie in runs with others between them: the channels of images, say.

A reduction of such rows is done by run, in the order of memory, and the runs' results are combined
in a second phase.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.column_reductions import LEAST, bytes_moved
from genesis.compiler.schedule.steps.queries import accesses, points, stride
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir.kernel import Axis, Kernel, Loop, Phase, walk


def interleaved(phase: Phase, chip: Chip) -> bool:
    """Whether there is one reduction, in runs long enough that there is little to combine."""
    loops = [s for s in phase.body if isinstance(s, Loop)]
    if len(loops) != 1 or loops[0].merge is None:
        return False
    (loop,) = loops
    deep = innermost(loop)
    if deep is None or deep is loop or deep.body:
        return False
    runs = [x for x in accesses((loop,)) if stride(*x, deep.axis) == 1]
    inside = points(s.axis for s in walk(loop.body) if isinstance(s, Loop))
    apart = all((stride(*x, loop.axis) or 0) > inside for x in runs)
    return bool(runs) and apart and inside >= LEAST and bytes_moved(phase) > chip.l2_bytes


def in_order(kernel: Kernel, number: int = 0) -> Kernel:
    """The blocks of a phase in the order in which memory has what they read."""
    phase = kernel.phases[number]

    def jump(axis: Axis) -> int:
        return sum(abs(stride(*x, axis) or 0) for x in accesses(phase.body))

    grid = sorted(phase.grid, key=jump, reverse=True)
    return kernel.with_phase(number, Phase(tuple(grid), phase.body))
