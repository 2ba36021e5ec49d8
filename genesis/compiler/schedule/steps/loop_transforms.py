"""The scheduling steps on grids and reductions: functions from Kernel to Kernel.

Each changes how a kernel runs, never what it computes, and the result prints. `sink` and
`split_grid` move work from the grid into a block, `unroll_grid` writes it out, `digits` makes two
axes of one, `tile_grid` makes a grid axis a tile, `interchange` reorders a reduction's loops,
`split_reduction` cuts a long reduction into two phases. The other steps have files of their own:
`join` (merging axes) and `vectorise` (loops into tiles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from genesis.compiler.schedule.steps.substitute_axes import Respecialise, respecialise
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, floor_div, least, simplify, static
from genesis.ir.node import TRUE, Node, is_const, topological
from genesis.ir.rewrite import substitute
from genesis.ir.structure import structure


def sink(kernel: kir.Kernel, axis: kir.Axis, number: int = 0) -> kir.Kernel:
    """Run a GRID axis as a LOOP around the block's body."""
    phase = kernel.phases[number]
    loop = replace(axis, kind=kir.AxisKind.LOOP)
    body = respecialise(phase.body, {axis.node: loop.node})
    grid = tuple(a for a in phase.grid if a != axis)
    return kernel.with_phase(number, kir.Phase(grid, (kir.Loop(loop, body),)))


def split_grid(kernel: kir.Kernel, axis: kir.Axis, chunk: int, number: int = 0) -> kir.Kernel:
    """Give every block `chunk` consecutive points of a GRID axis; the last block may have fewer."""
    phase = kernel.phases[number]
    outer = kir.Axis.grid(axis.name + "b", ceil_div(axis.extent, chunk))
    left = kir.as_index(axis.extent) - outer.node * chunk
    n = static(axis.extent)
    count = chunk if n is not None and n % chunk == 0 else least(chunk, fixed(simplify(left)))
    inner = kir.Axis.loop(axis.name, count)
    body = respecialise(phase.body, {axis.node: outer.node * chunk + inner.node})
    grid = tuple(outer if a == axis else a for a in phase.grid)
    return kernel.with_phase(number, kir.Phase(grid, (kir.Loop(inner, body),)))


def digits(kernel: kir.Kernel, number: int = 0) -> kir.Kernel:
    """Make two axes of a GRID axis of which accesses use the two digits: blocks, and places in one.

    What follows a sum over blocks of columns, say, goes through all columns in one axis.
    """
    phase = kernel.phases[number]
    used = topological([e for s in kir.walk(phase.body) for e in kir.expressions(s)])
    for axis in phase.grid:
        sizes = {
            n.inputs[1].attr
            for n in used
            if n.op in (ops.MOD, ops.FLOORDIV)
            and n.inputs[0] is axis.node
            and is_const(n.inputs[1])
        }
        n = static(axis.extent)
        if len(sizes) != 1 or n is None or n % (size := sizes.pop()):
            continue
        outer, inner = kir.Axis.grid(axis.name + "o", n // size), kir.Axis.grid(axis.name, size)
        body = respecialise(phase.body, {axis.node: outer.node * size + inner.node})
        grid = tuple(x for a in phase.grid for x in ((outer, inner) if a == axis else (a,)))
        return kernel.with_phase(number, kir.Phase(grid, body))
    return kernel


def tile_grid(kernel: kir.Kernel, axis: kir.Axis, width: int, number: int = 0) -> kir.Kernel:
    """Do `width` points of a GRID axis at once; the last, partial tile gets a masked body."""
    phase = kernel.phases[number]
    outer = kir.Axis.grid(axis.name + "b", ceil_div(axis.extent, width))
    tile = kir.Axis.tile(axis.name + "t", width)
    at = outer.node * width + tile.node
    body = respecialise(phase.body, {axis.node: at})
    n = static(axis.extent)
    if n is None or n % width:
        inside = below(at, axis.extent)
        partial = respecialise(phase.body, {axis.node: at}, inside)
        full = below(outer.node, floor_div(axis.extent, width))
        body = partial if full.op is ops.CONST else branch(full, body, partial)
    grid = tuple(outer if a == axis else a for a in phase.grid)
    return kernel.with_phase(number, kir.Phase(grid, body))


def branch(condition: Node, full: kir.Body, partial: kir.Body) -> kir.Body:
    """A whole tile or a part of one; what both begin with, most of the work often, comes before."""
    equal = [structure(a) == structure(b) for a, b in zip(full, partial, strict=True)]
    common = [*equal, False].index(False)
    return (*full[:common], kir.If(condition, full[common:], partial[common:]))


def unroll_grid(kernel: kir.Kernel, axis: kir.Axis, count: int) -> kir.Kernel:
    """Visit `count` points of a GRID axis at a time, one after the other in a block."""
    (phase,) = kernel.phases
    outer = kir.Axis.grid(axis.name + "u", ceil_div(axis.extent, count))
    first = kir.as_index(0) if outer.extent == 1 else outer.node * count
    body: list[kir.Statement] = []
    for k in range(count):
        at = simplify(first + k)
        each = respecialise(phase.body, {axis.node: at})
        exists = below(at, axis.extent)
        body += each if exists is TRUE else [kir.If(exists, each)]
    grid = tuple(outer if a == axis else a for a in phase.grid if a != axis or outer.extent != 1)
    return kernel.with_phase(0, kir.Phase(grid, tuple(body)))


def unroll_single(kernel: kir.Kernel) -> kir.Kernel:
    """Replace loops of one iteration by their bodies."""
    return kernel.with_phases(kir.Phase(p.grid, _unrolled(p.body)) for p in kernel.phases)


def _unrolled(body: kir.Body) -> kir.Body:
    result: list[kir.Statement] = []
    for s in body:
        if isinstance(s, kir.If):
            result.append(kir.If(s.condition, _unrolled(s.body), _unrolled(s.orelse)))
        elif not isinstance(s, kir.Loop):
            result.append(s)
        elif s.axis.extent != 1:
            result.append(replace(s, body=_unrolled(s.body)))
        else:
            start = {s.axis.node: kir.as_index(0)} | {c.local.node: c.init for c in s.carried}
            once = Respecialise(start, TRUE)
            result += _unrolled(once.body(s.body))
            # All steps happen at once: each is written with the values before.
            values = [once.expr(c.step) for c in s.carried]
            result += [kir.Let(c.local, v) for c, v in zip(s.carried, values, strict=True)]
    return tuple(result)


def interchange(nest: kir.Loop, order: Sequence[kir.Axis]) -> kir.Loop:
    """A reduction's loop nest with its axes in another order, outermost first.

    The nest must only pass its carried values down (`_innermost` finds its end).
    """
    assert innermost(nest) is not None
    inner = nest.body[0] if nest.body else None
    body = (interchange(inner, order[1:]),) if isinstance(inner, kir.Loop) else nest.body
    return replace(nest, axis=order[0], body=body)


def split_reduction(kernel: kir.Kernel, chunk: int, outermost: bool = False) -> kir.Kernel:
    """Reduce chunks of the outermost reduction loops in parallel, then combine the partial states.

    Several loops must be of one length, and need nothing of each other. The number of chunks
    follows from the extent alone, so results do not depend on thread counts. Partial states of one
    result lie next to each other, or with `outermost` those of one chunk do.
    """
    (phase,) = kernel.phases
    loops = [s for s in phase.body if isinstance(s, kir.Loop) and s.carried]
    first = loops[0].axis
    chunks = kir.Axis.grid(first.name + "b", ceil_div(first.extent, chunk))
    left = kir.as_index(first.extent) - chunks.node * chunk
    count = least(chunk, fixed(simplify(left)))
    # Axes of its own: the phases are tiled each in its way, and tiles are named after axes.
    again = replace(chunks, name=f"c{chunks.name}", kind=kir.AxisKind.LOOP)

    def place(each: kir.Axis) -> tuple[kir.Axis, ...]:
        return (each, *phase.grid) if outermost else (*phase.grid, each)

    shape = tuple(a.extent for a in place(chunks))
    partial: list[kir.Buffer] = []
    body: list[kir.Statement] = []
    combined: dict[kir.Statement, kir.Loop] = {}
    for loop in loops:
        merge = loop.merge
        assert merge is not None
        inner = replace(loop.axis, extent=count)
        at = {loop.axis.node: chunks.node * chunk + inner.node}
        body += respecialise((replace(loop, axis=inner),), at)
        own = [
            kir.Buffer(f"partial{len(partial) + i}", c.local.dtype, shape, kir.Role.TEMPORARY)
            for i, c in enumerate(loop.carried)
        ]
        body += [
            kir.Store(b, tuple(a.node for a in place(chunks)), c.local.node)
            for b, c in zip(own, loop.carried, strict=True)
        ]
        partial += own
        loads = [b.load(*(a.node for a in place(again))) for b in own]
        left_right = {v.node: c.local.node for v, c in zip(merge.left, loop.carried, strict=True)}
        left_right |= {v.node: x for v, x in zip(merge.right, loads, strict=True)}
        steps = substitute(merge.result, left_right)
        carried = tuple(
            kir.Carry(c.local, c.init, x) for c, x in zip(loop.carried, steps, strict=True)
        )
        combined[loop] = kir.Loop(again, (), carried, merge)
    rest = tuple(combined.get(s, s) for s in phase.body)
    renamed = {a: replace(a, name=f"c{a.name}") for a in phase.grid}
    rest = respecialise(rest, {a.node: b.node for a, b in renamed.items()})
    by_chunk = kir.Phase((*phase.grid, chunks), tuple(body))
    return kernel.with_phases([by_chunk, kir.Phase(tuple(renamed.values()), rest)], partial)
