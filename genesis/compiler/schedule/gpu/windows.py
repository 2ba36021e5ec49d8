"""Windows of images: short reductions, and sums for each place of a window."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from math import prod

from genesis.compiler.schedule.contraction_operands import summation
from genesis.compiler.schedule.steps.join_axes import join_loops
from genesis.compiler.schedule.steps.queries import extent, points
from genesis.compiler.schedule.steps.substitute_axes import Respecialise, respecialise
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import static
from genesis.ir.node import TRUE, Node, mentions, topological
from genesis.ir.rewrite import replaced

#: The elements of the largest reduction that is written out, and the widest row of a window.
WRITTEN = 16
WIDEST = 8


def write_out(kernel: kir.Kernel, number: int = 0) -> kir.Kernel:
    """Short reductions, of windows say, without loops: all of their loads are under way at once."""
    phase = kernel.phases[number]
    body: list[kir.Statement] = []
    for s in phase.body:
        body += (_written_out(s) if isinstance(s, kir.Loop) else None) or [s]
    return kernel.with_phase(number, kir.Phase(phase.grid, tuple(body)))


def _written_out(nest: kir.Loop) -> list[kir.Statement] | None:
    """A nest that only reduces, step by step; None for any other, or a longer one."""
    deep = innermost(nest)
    axes = [s.axis for s in kir.walk((nest,)) if isinstance(s, kir.Loop)]
    sizes = [static(a.extent) for a in axes]
    known = [n for n in sizes if n]
    if deep is None or deep.body or len(known) < len(sizes) or not 1 < prod(known) <= WRITTEN:
        return None
    steps = topological([c.step for c in deep.carried], _values)
    if any(n.op.cost > 1 for n in steps):
        return None  # a quotient, say, which would be written out as often
    result: list[kir.Statement] = []
    values = [c.init for c in nest.carried]
    places = list(itertools.product(*map(range, known)))
    for number, place in enumerate(places, 1):
        at = {a.node: kir.as_index(i) for a, i in zip(axes, place, strict=True)}
        at |= {c.local.node: v for c, v in zip(deep.carried, values, strict=True)}
        step = Respecialise(at, TRUE)
        names = [
            c.local if number == len(places) else replace(c.local, name=f"{c.local.name}s{number}")
            for c in nest.carried
        ]
        result += map(kir.Let, names, [step.expr(c.step) for c in deep.carried])
        values = [v.node for v in names]
    return result


def _values(n: Node) -> tuple[Node, ...]:
    """What a value is made from, without where that is loaded."""
    return () if n.op is ops.LOAD else n.inputs


def rows_together(kernel: kir.Kernel, blocks: int) -> kir.Kernel:
    """Sums of products with the places of a row of a window by one block, which reads them once.

    They are the gradients of a depthwise convolution's weights: one for each place. There must be
    enough blocks left.
    """
    found = summation(kernel)
    (phase,) = kernel.phases
    if found is None or len(phase.body) != 2 or phase.body[0] is not found[0][0]:
        return kernel
    loops, carry = found
    nest, store = phase.body
    sums = {s.axis.node for s in loops}
    shifted = [
        at
        for n in topological([carry.step])
        if n.op is ops.LOAD
        for at in (mentions(i) for i in kir.load_parts(n)[1])
        if not sums.isdisjoint(at)
    ]
    axes = [
        a for a in phase.grid if any(a.node in at for at in shifted) and 1 < extent(a) <= WIDEST
    ]
    if not axes or points(phase.grid) < extent(axes[-1]) * blocks:
        return kernel
    assert isinstance(nest, kir.Loop) and isinstance(store, kir.Store)
    axis = axes[-1]
    nests, stores = list[kir.Statement](), list[kir.Statement]()
    for place in range(extent(axis)):
        names: dict[Node, Node] = {
            c.local.node: replace(c.local, name=f"{c.local.name}p{place}").node
            for s in loops
            for c in s.carried
        }
        body = respecialise((_renamed(nest, names), store), {axis.node: kir.as_index(place)})
        nests.append(body[0])
        stores += kir.map_expressions(body[1:], partial(_named, names=names))
    grid = tuple(a for a in phase.grid if a != axis)
    return join_loops(kernel.with_phase(0, kir.Phase(grid, (*nests, *stores))), len(nests))


def _named(n: Node, names: dict[Node, Node]) -> Node:
    return replaced(n, names)


def _renamed(nest: kir.Loop, names: dict[Node, Node]) -> kir.Loop:
    """A nest of loops that carries values of other names."""
    body = tuple(_renamed(s, names) for s in nest.body if isinstance(s, kir.Loop))
    carried = tuple(
        kir.Carry(names[c.local.node].attr, replaced(c.init, names), replaced(c.step, names))
        for c in nest.carried
    )
    return replace(nest, body=body, carried=carried)
