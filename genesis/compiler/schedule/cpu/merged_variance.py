"""Variances merged of parts: squared deviations from a mean, in one pass over memory.

By its definition a variance takes two passes: one for the mean, one for the deviations from it. But
deviations from any centre ``c`` tell those from the mean ``m``: ``sum (x - m)² = sum (x - c)² +
2 (c - m) sum (x - c) + n (c - m)²``, and the second term is zero where ``c`` is the mean of those
``n`` elements. So the elements are cut into parts, each part is summed around its own mean, which
takes one pass, and the definition is then applied to the parts. As the centres are means of what is
around them, nothing cancels that does not cancel in two passes.

Down columns the mean and the squares of a part are carried from row to row. A part that lies in one
run is read twice, the second time from the caches.

GPUs do it otherwise, on the graph (`genesis.compiler.graph.gpu.shifted_variance`): differences from
the first value. Where that is far from all others no digit of the variance is left, and down the
columns of 8192 x 4096 it takes twice as long on a CPU. Parts, in turn, cannot be made on a graph:
how long they are depends on the rule and on the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.column_reductions import LEAST, long_rows
from genesis.compiler.schedule.steps.queries import extent, points
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.index import ceil_div, fixed, least, simplify, static
from genesis.ir.node import Node, const, elementwise, mentions
from genesis.ir.rewrite import replaced, substitute

#: Rows of a part of a column, at least; parts there are, at most.
ROWS = 64
PARTS = 64


def merged(kernel: kir.Kernel, across: kir.Axis | None, chip: Chip) -> kir.Kernel:
    """The kernel with squared deviations summed in one pass, where two would go through memory."""
    (phase,) = kernel.phases
    found = deviations(phase.body)
    if found is None:
        return kernel
    outer, *inner = found.axes
    if across is not None:
        loops = any(isinstance(s, kir.Loop) for s in phase.body[2:])
        fits = not inner and not loops and extent(outer) >= ROWS
        if not fits or not long_rows(phase, across, chip):
            return kernel
        return down_columns(kernel, found, max(ROWS, extent(outer) // PARTS))
    run = points(inner) * found.value.dtype.itemsize
    room = chip.l2_bytes // 2
    if not inner or static(outer.extent) is None or run < LEAST or run > room:
        return kernel
    return in_runs(kernel, found) if extent(outer) * run > room else kernel


@dataclass(frozen=True)
class Deviations:
    """A sum of values, and sums of their distances from a mean, or of the squares of those."""

    total: kir.Loop
    sums: kir.Loop
    value: Node  # with the axes of `total`
    mean: Node
    squared: tuple[bool, ...]

    @property
    def axes(self) -> list[kir.Axis]:
        """The axes that are summed over, outermost first."""
        return [s.axis for s in kir.walk((self.total,)) if isinstance(s, kir.Loop)]


def deviations(body: kir.Body) -> Deviations | None:
    """What a body begins with, if it is two passes for a mean and for deviations from it."""
    if len(body) < 2 or not all(isinstance(s, kir.Loop) for s in body[:2]):
        return None
    total, sums = body[:2]
    assert isinstance(total, kir.Loop) and isinstance(sums, kir.Loop)
    first, second = innermost(total), innermost(sums)
    if first is None or second is None or first.body or second.body:
        return None
    if len(total.carried) != 1 or total.merge is None:
        return None
    (carry,) = first.carried
    if kir.simple_fold(total.merge) is not ops.ADD or not carry.local.dtype.is_float:
        return None
    value = _added(carry)
    axes, others = (
        [s.axis for s in kir.walk((x,)) if isinstance(s, kir.Loop)] for x in (total, sums)
    )
    if value is None or [a.extent for a in axes] != [a.extent for a in others]:
        return None
    turned = {b.node: a.node for a, b in zip(axes, others, strict=True)}
    mean: Node | None = None
    squared = []
    for c in second.carried:
        added = _added(c)
        squares = added is not None and added.op is ops.MUL and added.inputs[0] is added.inputs[1]
        distance = added.inputs[0] if added is not None and squares else added
        if distance is None or distance.op is not ops.SUB:
            return None
        here, centre = distance.inputs
        here = replaced(here, turned)
        moves = mentions(centre)
        if here is not value or mean not in (None, centre) or not moves.isdisjoint(turned):
            return None
        if total.carried[0].local.node not in moves:
            return None
        mean = centre
        squared.append(squares)
    return None if mean is None else Deviations(total, sums, value, mean, tuple(squared))


def _added(carry: kir.Carry) -> Node | None:
    """What a step adds to what is carried."""
    adds = carry.step.op is ops.ADD and carry.step.inputs[0] is carry.local.node
    return carry.step.inputs[1] if adds else None


def down_columns(kernel: kir.Kernel, found: Deviations, rows: int) -> kir.Kernel:
    """Parts of so many rows each: a phase for the parts, and one for what is made of them."""
    (phase,) = kernel.phases
    (axis,) = found.axes
    part = kir.Axis.grid(axis.name + "b", ceil_div(axis.extent, rows))
    inner = replace(axis, extent=_length(axis, rows, part))
    value, first = (_at(found, part.node * rows + k) for k in (inner.node, kir.as_index(0)))
    dtype = value.dtype
    mean, squares, total = states = [
        kir.Local(name, dtype) for name in ("mean", "squares", "total")
    ]
    # Welford's step: one more row pulls the mean towards it. All is relative to the first row, so
    # that what is far from zero keeps its digits.
    apart = value - first - mean.node
    nearer = mean.node + apart * (const(1.0, dtype) / _number(inner.node + 1, dtype))
    steps = [nearer, squares.node + apart * (value - first - nearer), total.node + value]
    if not _uses(phase.body[2:], found.total.carried[0].local):
        states.pop()  # an infinite total has no such mean, but only who uses the total would see
    zero = const(0.0, dtype)
    carried = tuple(kir.Carry(v, zero, x) for v, x in zip(states, steps, strict=False))
    places = (part, *phase.grid)
    shape = tuple(a.extent for a in places)
    buffers = [kir.Buffer(f"part_{v.name}", dtype, shape, kir.Role.TEMPORARY) for v in states]
    at = tuple(a.node for a in places)
    stores = [kir.Store(b, at, v.node) for b, v in zip(buffers, states, strict=True)]

    again = replace(part, kind=kir.AxisKind.LOOP)
    count = _number(kir.as_index(_length(axis, rows, again)), dtype)
    shift, squared, *totals = (b.load(again.node, *at[1:]) for b in buffers)
    base = _at(found, again.node * rows)
    (whole,) = totals or [(base + shift) * count]
    made = _of_parts(found, again, count, base - found.mean + shift, squared, whole)
    # Rows of its own: the phases are tiled each in its way, and tiles are named after axes.
    own = {a: replace(a, name=f"c{a.name}") for a in phase.grid}
    rest = respecialise((*made, *phase.body[2:]), {a.node: b.node for a, b in own.items()})
    by_part = kir.Phase(places, (kir.Loop(inner, (), carried), *stores))
    return kernel.with_phases([by_part, kir.Phase(tuple(own.values()), rest)], buffers)


def _at(found: Deviations, row: Node) -> Node:
    """The value in a row."""
    (axis,) = found.axes
    return simplify(replaced(found.value, {axis.node: row}))


def _uses(body: kir.Body, local: kir.Local) -> bool:
    return any(local.node in mentions(e) for s in kir.walk(body) for e in kir.expressions(s))


def _length(axis: kir.Axis, part: int, number: kir.Axis) -> kir.Index:
    """How long a part is; the last may be shorter."""
    return least(part, fixed(simplify(kir.as_index(axis.extent) - number.node * part)))


def in_runs(kernel: kir.Kernel, found: Deviations) -> kir.Kernel:
    """Every run of a row is a part: it is read for its mean, and at once for its squares."""
    (phase,) = kernel.phases
    outer, *inner = found.axes
    dtype = found.value.dtype
    count: Node = kir.as_index(1)
    for a in inner:
        count = simplify(count * kir.as_index(a.extent))
    number, zero, merge = _number(count, dtype), const(0.0, dtype), found.total.merge
    total, mean, squares = (kir.Local(name, dtype) for name in ("total", "mean", "squares"))
    others = [replace(a, name=a.name + "d") for a in inner]
    value = replaced(found.value, dict(zip(_nodes(inner), _nodes(others), strict=True)))
    apart = value - mean.node
    stages = [
        kir.Buffer(f"part_{v.name}", dtype, (outer.extent,), kir.Role.STAGE)
        for v in (mean, squares)
    ]
    each: kir.Body = (
        _nest(inner, kir.Carry(total, zero, total.node + found.value), merge),
        kir.Let(mean, total.node / number),
        _nest(others, kir.Carry(squares, zero, squares.node + apart * apart), merge),
        *(
            kir.Store(b, (outer.node,), v.node)
            for b, v in zip(stages, (mean, squares), strict=True)
        ),
    )
    middle, squared = (b.load(outer.node) for b in stages)
    made = _of_parts(found, outer, number, middle - found.mean, squared, middle * number)
    body = (*map(kir.Stage, stages), kir.Loop(outer, each), *made, *phase.body[2:])
    return kernel.with_phases([kir.Phase(phase.grid, body)])


def _nest(axes: Sequence[kir.Axis], carry: kir.Carry, merge: kir.Merge | None) -> kir.Loop:
    """A reduction over several axes."""
    axis, *deeper = axes
    if not deeper:
        return kir.Loop(axis, (), (carry,), merge)
    local = replace(carry.local, name=carry.local.name + "_")
    step = replaced(carry.step, {carry.local.node: local.node})
    inside = _nest(deeper, kir.Carry(local, carry.local.node, step), merge)
    return kir.Loop(axis, (inside,), (replace(carry, step=local.node),), merge)


def _of_parts(
    found: Deviations, part: kir.Axis, count: Node, apart: Node, squares: Node, total: Node
) -> kir.Body:
    """The definition, with parts in the place of elements: `apart` is how far from the mean."""
    each = [squares + (apart * count) * apart if s else apart * count for s in found.squared]

    def loop(s: kir.Loop, name: str, added: Sequence[Node]) -> kir.Loop:
        axis = replace(part, name=part.name + name)
        here = substitute(added, {part.node: axis.node})
        steps = [c.local.node + x for c, x in zip(s.carried, here, strict=True)]
        carried = tuple(replace(c, step=x) for c, x in zip(s.carried, steps, strict=True))
        return kir.Loop(axis, (), carried, s.merge)

    return loop(found.total, "m", [total]), loop(found.sums, "d", each)


def _nodes(axes: Sequence[kir.Axis]) -> list[Node]:
    return [a.node for a in axes]


def _number(count: Node, dtype: DType) -> Node:
    return elementwise(ops.CAST, count, dtype=dtype)
