"""Programs down columns: one phase for every pass over memory.

A batch norm of rows reads its columns several times, one of images its channels. A block that did
all of it for a few of them would jump from row to row in every pass, so the passes become phases:
each reduces, or writes, all columns in the way that suits it best. What a pass leaves for the next,
values for each column, is kept in temporary buffers, with all that can be computed from them before
the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.column_reductions import bytes_moved, long_rows
from genesis.compiler.schedule.cpu.merged_variance import deviations
from genesis.compiler.schedule.cpu.strided_rows import in_short_runs
from genesis.compiler.schedule.steps.hoist_invariants import Names, hoisted
from genesis.compiler.schedule.steps.join_axes import map_accesses
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, mentions
from genesis.ir.rewrite import replaced

#: Schedules a kernel of one phase.
Schedule = Callable[[kir.Kernel, Chip], kir.Kernel]


def has_passes(phase: kir.Phase, across: kir.Axis | None, chip: Chip) -> bool:
    """Whether a phase goes through long columns, or rows in short runs, more than once."""
    loops = [s for s in phase.body if isinstance(s, kir.Loop)]
    plain = all(_reduces(s) or _writes(s) for s in loops)
    plain = plain and all(isinstance(s, kir.Loop | kir.Store) for s in phase.body)
    count = len(loops) - _pair(phase)
    first = phase.body[0]
    if not plain or count <= 1 or not isinstance(first, kir.Loop) or not _reduces(first):
        return False
    if across is not None:
        return long_rows(phase, across, chip)
    return in_short_runs(first) and bytes_moved(phase) > chip.l1_bytes


def _pair(phase: kir.Phase) -> bool:
    """Whether two loops are one pass: a mean, and deviations from it, that are better merged."""
    found = deviations(phase.body)
    return found is not None and not in_short_runs(found.total)


def _reduces(s: kir.Statement) -> bool:
    deep = innermost(s) if isinstance(s, kir.Loop) and s.merge is not None else None
    return deep is not None and not deep.body


def _writes(s: kir.Statement) -> bool:
    if not isinstance(s, kir.Loop):
        return False
    deep = _nest(s)[-1]
    return not deep.carried and all(isinstance(x, kir.Store) for x in deep.body)


def _nest(s: kir.Loop) -> list[kir.Loop]:
    """A loop and those that are all there is inside of it, as far as nothing is carried."""
    inner = s.body[0] if len(s.body) == 1 and not s.carried else None
    return [s, *(_nest(inner) if isinstance(inner, kir.Loop) else ())]


@dataclass
class _Pass:
    """A pass to be: its loops, and what is done for each column after them."""

    loops: list[kir.Loop]
    rest: list[kir.Statement] = field(default_factory=list)


def in_passes(kernel: kir.Kernel, chip: Chip, reduce: Schedule, write: Schedule) -> kir.Kernel:
    """The kernel with every pass scheduled on its own, by one of two schedules."""
    (phase,) = kernel.phases
    passes, temporaries = _passes(phase)
    buffers = (*kernel.buffers, *temporaries)
    phases: list[kir.Phase] = []
    for number, each in enumerate(passes):
        # Axes of its own: the phases are tiled each in its way, and tiles are named after axes.
        grid = [replace(a, name=f"{a.name}p{number}") for a in phase.grid]
        turned = {a.node: b.node for a, b in zip(phase.grid, grid, strict=True)}
        body: kir.Body = (*each.loops, *each.rest)
        schedule = reduce
        (first, *_) = each.loops
        if _writes(first):
            nest = _nest(first)
            names = [f"{s.axis.name}p{number}" for s in nest]
            axes = [
                replace(s.axis, name=name, kind=kir.AxisKind.GRID)
                for s, name in zip(nest, names, strict=True)
            ]
            turned |= {s.axis.node: a.node for s, a in zip(nest, axes, strict=True)}
            grid, body, schedule = [axes[0], *grid, *axes[1:]], nest[-1].body, write
        alone = kir.Phase(tuple(grid), respecialise(body, turned))
        done = schedule(replace(kernel, buffers=buffers, phases=(alone,)), chip)
        made = {b: replace(b, name=f"{b.name}p{number}") for b in done.buffers[len(buffers) :]}
        phases += (kir.Phase(p.grid, _moved(p.body, made)) for p in done.phases)
        buffers = (*buffers, *made.values())
    return replace(kernel, buffers=buffers, phases=tuple(phases))


def _passes(phase: kir.Phase) -> tuple[list[_Pass], list[kir.Buffer]]:
    """The passes of a phase, and the buffers that take values from one to the next."""
    at = tuple(a.node for a in phase.grid)
    shape = tuple(a.extent for a in phase.grid)
    kept: dict[Node, Node] = {}  # a name, and what is read in its place
    temporaries: list[kir.Buffer] = []
    passes: list[_Pass] = []
    names = Names()

    def keep(name: Node, value: Node) -> None:
        if value.op is ops.LOAD:
            kept[name] = value
            return
        buffer = kir.Buffer(f"column{len(temporaries)}", value.dtype, shape, kir.Role.TEMPORARY)
        temporaries.append(buffer)
        passes[-1].rest.append(kir.Store(buffer, at, value))
        kept[name] = buffer.load(*at)

    def reading(s: kir.Statement) -> kir.Statement:
        (result,) = kir.map_expressions((s,), lambda n: replaced(n, kept))
        return result

    pair = _pair(phase)
    body = sorted(phase.body, key=_writes)
    for number, s in enumerate(body):
        if isinstance(s, kir.Store):
            passes[-1].rest.append(reading(s))
            continue
        assert isinstance(s, kir.Loop)
        if pair and number == 1:
            passes[-1].loops.append(s)
            continue
        if passes:
            lets, s = hoisted(s, names)
            for let in lets:
                keep(let.local.node, replaced(let.value, kept))
            later = {n for x in (s, *body[number + 1 :]) for n in _mentioned(x)}
            for c in (c for loop in passes[-1].loops for c in loop.carried):
                if c.local.node in later:
                    keep(c.local.node, c.local.node)
        loop = reading(s)
        assert isinstance(loop, kir.Loop)
        passes.append(_Pass([loop]))
    return passes, temporaries


def _mentioned(s: kir.Statement) -> set[Node]:
    return {n for x in kir.walk((s,)) for e in kir.expressions(x) for n in mentions(e)}


def _moved(body: kir.Body, buffers: Mapping[kir.Buffer, kir.Buffer]) -> kir.Body:
    """A body that uses other buffers."""
    return map_accesses(body, lambda buffer, at: (buffers.get(buffer, buffer), at))
