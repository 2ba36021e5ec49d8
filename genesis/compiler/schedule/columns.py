"""Reductions across rows: the states of many columns at once, kept in fast memory.

Walking down a few columns jumps from row to row, and memory is slow at that. So a block goes
through long stretches of several rows at a time, and keeps the state of every column of a stretch
in a stage: loads are part of long runs, and the stage is read and written once for `TOGETHER` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.heuristics import accesses, elements, extent, operations, points
from genesis.compiler.schedule.respecialise import (
    Respecialise,
    fixed,
    floor_div,
    rebuild,
    static,
)
from genesis.compiler.schedule.steps import split_grid
from genesis.ir.index import simplify
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Body,
    Buffer,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    Role,
    Stage,
    Statement,
    Store,
    as_index,
)
from genesis.ir.node import TRUE, Node

#: Rows that are read side by side.
TOGETHER = 8
#: Fewer columns than this are read in order anyway.
LEAST = 256
#: Steps of more operations are limited by arithmetic, and `TOGETHER` of them are much code.
SHORT = 64
#: What fills the second cache less often than this is there for a second visit.
FILLS = 2
#: Rows that one block reads, at least, where rows are shared among blocks.
ROWS = 8 * TOGETHER


def stretch(phase: Phase, across: Axis, chip: Chip) -> int | None:
    """How many columns a block takes at once; None: there is no gain in a stage for them."""
    reductions = [s for s in phase.body if isinstance(s, Loop)]
    if len(reductions) != 1 or phase.body[0] is not reductions[0]:
        return None
    (loop,) = reductions
    if loop.body or extent(loop.axis) < TOGETHER or operations((loop,)) > SHORT:
        return None
    if extent(across) < LEAST or _bytes_moved(phase) <= FILLS * chip.l2_bytes:
        return None
    room = chip.l1_bytes // 2 // sum(c.local.dtype.itemsize for c in loop.carried)
    return min(extent(across), room)


def stretches(phase: Phase, across: Axis, columns: int) -> int:
    """How many blocks there are with so many columns each."""
    others = points(a for a in phase.grid if a != across)
    return others * -(-extent(across) // columns)


def accumulate(kernel: Kernel, across: Axis, columns: int, number: int = 0) -> Kernel:
    """Reduce for `columns` neighbours along a GRID axis at once, with their states in a stage."""
    kernel = split_grid(kernel, across, columns, number)
    phase = kernel.phases[number]
    (over,) = phase.body
    assert isinstance(over, Loop)
    loop, *rest = over.body
    assert isinstance(loop, Loop)
    column, axis = over.axis.node, loop.axis
    stages = [
        Buffer(f"state{k}", c.local.dtype, (columns,), Role.STAGE)
        for k, c in enumerate(loop.carried)
    ]

    def each(body: Body) -> Statement:
        return replace(over, body=body)

    def loaded(locals_: Sequence[Local]) -> Body:
        return tuple(Let(v, b.load(column)) for v, b in zip(locals_, stages, strict=True))

    def stored(values: Sequence[Node]) -> Body:
        return tuple(Store(b, (column,), v) for b, v in zip(stages, values, strict=True))

    def passed(rows: Axis, count: int, start: Node) -> Statement:
        """A loop that takes `count` rows at a time."""

        def states(k: int) -> list[Local]:
            return [replace(c.local, name=f"{c.local.name}{rows.name}{k}") for c in loop.carried]

        body = [*loaded(states(0))]
        for k in range(count):
            known = {c.local.node: v.node for c, v in zip(loop.carried, states(k), strict=True)}
            here = Respecialise({axis.node: start + rows.node * count + k, **known}, TRUE)
            body += map(Let, states(k + 1), [here.expr(c.step) for c in loop.carried])
        return Loop(rows, (each((*body, *stored([v.node for v in states(count)]))),))

    groups = Axis(axis.name + "g", AxisKind.LOOP, floor_div(axis.extent, TOGETHER))
    done = as_index(groups.extent) * TOGETHER
    left = Axis(axis.name + "l", AxisKind.LOOP, fixed(simplify(as_index(axis.extent) - done)))
    body: list[Statement] = [Stage(b) for b in stages]
    body.append(each(stored([c.init for c in loop.carried])))
    body.append(passed(groups, TOGETHER, as_index(0)))
    if static(left.extent) != 0:
        body.append(passed(left, 1, done))
    body.append(each((*loaded([c.local for c in loop.carried]), *rest)))
    return rebuild(kernel, number, Phase(phase.grid, tuple(body)))


def _bytes_moved(phase: Phase) -> int:
    buffers = {b for b, _ in accesses(phase.body)}
    return sum(elements(b) * b.dtype.itemsize for b in buffers)
