"""Operands of contractions in a layout that a tile can be read from.

A tile of an operand is read fast where either its rows or what is summed over lie next to each
other in memory. The pixels of a convolution's image do not, once several axes of them are counted
through by one, and neither do the windows of its weights. Such an operand is copied first, with the
axis of summation (the channels) last. The copy reads and writes it once; the contraction reads it
many times. Matrix instructions on bytes take them in that order only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from genesis.compiler.schedule.heuristics import elements, points
from genesis.compiler.schedule.operands import Operands
from genesis.ir import ops
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Buffer,
    Kernel,
    Phase,
    Role,
    Store,
    load_parts,
    map_expressions,
)
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import substitute

#: How often an element must be read for a copy to pay.
READS = 32


def relayout(
    kernel: Kernel, found: Operands, tiles: Sequence[Sequence[Axis]]
) -> tuple[Kernel, list[Phase]]:
    """The kernel with operands read from copies where that pays, and the phases that copy them.

    `tiles` are the axes that become the rows and the columns of a tile.
    """
    (phase,) = kernel.phases
    reads = points((*phase.grid, *found.sums))
    buffers = list(kernel.buffers)
    copies: list[Phase] = []
    moved: dict[Node, Node] = {}
    for factor in (found.left, found.right):
        loads = [n for n in topological([factor]) if n.op is ops.LOAD]
        place = _place(loads[0], found.sums[-1]) if len(loads) == 1 else None
        if place is None or loads[0] in moved:
            continue
        if loads[0].dtype.itemsize > 1 and _contiguous(loads[0], tiles):
            continue
        buffer, at, mask, other = load_parts(loads[0])
        if reads < READS * elements(buffer):
            continue
        order = [d for d in range(len(at)) if d != place] + [place]
        shape = tuple(buffer.shape[d] for d in order)
        copy = Buffer(f"{buffer.name}_packed", buffer.dtype, shape, Role.TEMPORARY)
        moved[loads[0]] = copy.load(*(at[d] for d in order), mask=mask, other=other)
        buffers.append(copy)
        copies.append(_copied(buffer, copy, order))
    if not moved:
        return kernel, []
    body = map_expressions(phase.body, lambda n: substitute([n], moved)[0])
    return replace(kernel, buffers=tuple(buffers), phases=(Phase(phase.grid, body),)), copies


def _place(load: Node, axis: Axis) -> int | None:
    """The dimension that an axis alone counts through, unless it is the last."""
    _, at, _, _ = load_parts(load)
    places = [d for d, i in enumerate(at) if axis.node in mentions(i)]
    if len(places) != 1 or at[places[0]] is not axis.node or places[0] == len(at) - 1:
        return None
    return places[0]


def _contiguous(load: Node, tiles: Sequence[Sequence[Axis]]) -> bool:
    """Whether rows or columns that one axis counts through lie next to each other."""
    _, at, _, _ = load_parts(load)
    return any(len(axes) == 1 and at[-1] is axes[0].node for axes in tiles)


def _copied(source: Buffer, copy: Buffer, order: Sequence[int]) -> Phase:
    grid = tuple(Axis(f"{copy.name}{d}", AxisKind.GRID, n) for d, n in enumerate(copy.shape))
    at = [grid[order.index(d)].node for d in range(len(order))]
    return Phase(grid, (Store(copy, tuple(a.node for a in grid), source.load(*at)),))


__all__ = ["relayout"]
