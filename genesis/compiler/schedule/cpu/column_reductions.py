"""Reductions and running sums down columns: the states of many at once, in fast memory.

Walking down a few columns jumps from row to row, and memory is slow at that. So a block goes
through long stretches of rows, and keeps the state of every column of a stretch in a stage. Where
a stretch is a whole row and the next one follows it, memory is read in order, which nothing beats.
Else `TOGETHER` rows are read side by side: so many streams the hardware foresees, and the stage,
which may be larger then, is read and written once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.backends.base import Chip
from genesis.compiler.schedule.steps import queries
from genesis.compiler.schedule.steps.loop_transforms import split_grid
from genesis.compiler.schedule.steps.substitute_axes import Respecialise
from genesis.compiler.schedule.steps.vectorise import innermost, merged, nodes
from genesis.ir import kernel as kir
from genesis.ir.index import fixed, floor_div, simplify, static
from genesis.ir.node import TRUE, Node

#: Rows that are read side by side.
TOGETHER = 8
#: Fewer columns than this are read in order anyway.
LEAST = 256
#: Columns of a stretch, at most, of what the caches hold: its length matters little there, and
#: blocks are to be many.
SHORT_STRETCH = 4 * LEAST
#: Steps of more operations are limited by arithmetic, and `TOGETHER` of them are much code.
SHORT = 64
#: What fills the second cache less often than this is there for a second visit.
FILLS = 2
#: Rows that one block reads, at least, where rows are shared among blocks.
ROWS = 8 * TOGETHER
#: Blocks that write rows next to each other, at least: enough of them, of long runs.
WRITERS = 4
#: The states of whole rows take this part of the first cache, at most, those of others this part
#: of the second.
SHARES = 4, 16


class ColumnStretch(NamedTuple):
    """How many columns a block takes, and how many rows it reads side by side."""

    columns: int
    rows: int


def stretch(phase: kir.Phase, across: kir.Axis, chip: Chip) -> ColumnStretch | None:
    """What a block takes at once; None: there is no gain in a stage for it."""
    reductions = [s for s in phase.body if isinstance(s, kir.Loop)]
    if len(reductions) != 1 or phase.body[0] is not reductions[0]:
        return None
    (loop,) = reductions
    nested = any(isinstance(s, kir.Loop) for s in loop.body)
    few = queries.extent(across) < LEAST or queries.extent(loop.axis) < TOGETHER
    if nested or few or queries.operations((loop,)) > SHORT:
        return None
    state = sum(c.local.dtype.itemsize for c in loop.carried)
    first, second = chip.l1_bytes // SHARES[0], chip.l2_bytes // SHARES[1]
    columns = queries.extent(across)
    if loop.body:  # a running sum writes every row, and is not split
        return ColumnStretch(min(max(LEAST, columns // WRITERS), first // state), TOGETHER)
    if not long_rows(phase, across, chip):
        return ColumnStretch(min(columns, SHORT_STRETCH), TOGETHER)
    if columns * state <= first and _one_piece(loop, across):
        return ColumnStretch(columns, 1)
    return ColumnStretch(min(columns, max(first, second) // state), TOGETHER)


def long_rows(phase: kir.Phase, across: kir.Axis, chip: Chip) -> bool:
    """Whether there are many columns, and too much of them to be read twice from the caches."""
    return queries.extent(across) >= LEAST and bytes_moved(phase) > FILLS * chip.l2_bytes


def _one_piece(loop: kir.Loop, across: kir.Axis) -> bool:
    """Whether what is read of a row ends where the next row begins."""
    read = [x for x in queries.accesses((loop,)) if queries.stride(*x, loop.axis) != 0]
    return all(queries.stride(*x, loop.axis) == queries.extent(across) for x in read)


def stretches(phase: kir.Phase, across: kir.Axis, taken: ColumnStretch) -> int:
    """How many blocks there are that take so much each."""
    others = queries.points(a for a in phase.grid if a != across)
    return others * -(-queries.extent(across) // taken.columns)


def accumulate(
    kernel: kir.Kernel, across: kir.Axis, taken: ColumnStretch, number: int = 0
) -> kir.Kernel:
    """Reduce for neighbours along a GRID axis at once, with their states in a stage.

    In a nest of two loops the inner one runs along columns, too, which become one in the end.
    """
    columns, together = taken
    kernel = split_grid(kernel, across, columns, number)
    phase = kernel.phases[number]
    (over,) = phase.body
    assert isinstance(over, kir.Loop)
    nest, *rest = over.body
    assert isinstance(nest, kir.Loop)
    loop, axis = innermost(nest) or nest, nest.axis
    run = None if loop is nest else loop.axis
    column = (over.axis.node,) if run is None else (over.axis.node, run.node)
    shape = (columns,) if run is None else (columns, run.extent)
    stages = [
        kir.Buffer(f"state{k}", c.local.dtype, shape, kir.Role.STAGE)
        for k, c in enumerate(nest.carried)
    ]

    def each(body: kir.Body) -> kir.Statement:
        return replace(over, body=body if run is None else (kir.Loop(run, body),))

    def loaded(locals_: Sequence[kir.Local]) -> kir.Body:
        return tuple(kir.Let(v, b.load(*column)) for v, b in zip(locals_, stages, strict=True))

    def stored(values: Sequence[Node]) -> kir.Body:
        return tuple(kir.Store(b, column, v) for b, v in zip(stages, values, strict=True))

    def passed(rows: kir.Axis, count: int, start: Node) -> kir.Statement:
        """A loop that takes `count` rows at a time."""

        def states(k: int) -> list[kir.Local]:
            return [replace(c.local, name=f"{c.local.name}{rows.name}{k}") for c in loop.carried]

        body = [*loaded(states(0))]
        for k in range(count):
            known = {c.local.node: v.node for c, v in zip(loop.carried, states(k), strict=True)}
            here = Respecialise({axis.node: start + rows.node * count + k, **known}, TRUE)
            body += here.body(_renamed(loop.body, f"{rows.name}{k}", here.memo))
            body += map(kir.Let, states(k + 1), [here.expr(c.step) for c in loop.carried])
        return kir.Loop(rows, (each((*body, *stored([v.node for v in states(count)]))),))

    groups = kir.Axis.loop(axis.name + "g", floor_div(axis.extent, together))
    done = kir.as_index(groups.extent) * together
    left = kir.Axis.loop(axis.name + "l", fixed(simplify(kir.as_index(axis.extent) - done)))
    body: list[kir.Statement] = [kir.Stage(b) for b in stages]
    body.append(each(stored([c.init for c in nest.carried])))
    body.append(passed(groups, together, kir.as_index(0)))
    if static(left.extent) != 0:
        body.append(passed(left, 1, done))
    totals = [c.local for c in nest.carried]
    if run is not None:
        assert nest.merge is not None
        steps = merged(nest.merge, nodes(totals), [b.load(*column) for b in stages])
        carried = (replace(c, step=x) for c, x in zip(nest.carried, steps, strict=True))
        body.append(replace(over, body=(kir.Loop(run, (), tuple(carried), nest.merge), *rest)))
    elif rest:
        body.append(each((*loaded(totals), *rest)))
    return kernel.with_phase(number, kir.Phase(phase.grid, tuple(body)))


def _renamed(body: kir.Body, suffix: str, memo: dict[Node, Node]) -> kir.Body:
    """Statements whose locals have names of their own, which `memo` learns."""
    result = []
    for s in body:
        if isinstance(s, kir.Let):
            local = replace(s.local, name=s.local.name + suffix)
            memo[s.local.node] = local.node
            s = kir.Let(local, s.value)
        result.append(s)
    return tuple(result)


def bytes_moved(phase: kir.Phase) -> int:
    """The bytes of everything a phase touches."""
    buffers = {b for b, _ in queries.accesses(phase.body)}
    return sum(queries.elements(b) * b.dtype.itemsize for b in buffers)
