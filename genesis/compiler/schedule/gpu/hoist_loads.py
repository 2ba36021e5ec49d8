"""Hoisted loads: numbers that a block needs after its reductions are asked for before them.

Threads wait for each other where they reduce, and no compiler moves a load ahead of that. A block
that adds what lies in memory to its sum would wait once more for it, with nothing else to do.
"""

from __future__ import annotations

from genesis.compiler.schedule.steps.queries import points
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import replaced

#: Numbers of one load that do not get into the way of others.
FEW = 64


def hoist_loads(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with the few numbers that are used behind its reductions loaded first."""
    return kernel.with_phases(kir.Phase(p.grid, _early(p.body)) for p in kernel.phases)


def _early(body: kir.Body) -> kir.Body:
    waits = [k for k, s in enumerate(body) if isinstance(s, kir.Loop | kir.Reduce)]
    if not waits:
        return body
    before, behind = body[: waits[0] + 1], body[waits[0] + 1 :]
    written = {s.buffer for s in kir.walk(body) if isinstance(s, kir.Store)}
    loads = [
        n
        for n in topological(
            x for s in behind if not isinstance(s, kir.Loop) for x in kir.expressions(s)
        )
        if n.op is ops.LOAD and n.attr not in written and _known(n)
    ]
    names = {n: kir.Local(f"early{k}", n.dtype, _tiles(n)).node for k, n in enumerate(loads)}
    first = tuple(kir.Let(v.attr, n) for n, v in names.items())
    return (*first, *before, *kir.map_expressions(behind, lambda n: replaced(n, names)))


def _known(load: Node) -> bool:
    """Whether a load is of few numbers, from places that the block alone tells."""
    local = any(n.op is ops.LOCAL for n in mentions(load))
    return not local and points(_tiles(load)) <= FEW


def _tiles(n: Node) -> tuple[kir.Axis, ...]:
    return tuple(sorted(kir.tile_axes(n), key=lambda a: a.name))
