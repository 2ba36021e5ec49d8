"""Rows that lie in memory in pieces, between pieces of other rows.

A group norm of what lies with its channels last sums over all pixels and the channels of a group: a
few neighbours, then a jump over the other groups. Blocks that go through one such row each use a
part of every sector they read, or wait for it at every pixel. So a long row is summed by columns
first: a block reads whole runs of memory across the rows, whatever their pieces, with a sum for
every place in them, and what comes after sums what lies in the piece of a row. A row that fits a
tile is read once, as if its pieces lay one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.compiler.schedule.gpu.tile_axes import TILE, joined
from genesis.compiler.schedule.steps.join_axes import flat, join_loops
from genesis.compiler.schedule.steps.loop_transforms import (
    interchange,
    split_reduction,
    unroll_single,
)
from genesis.compiler.schedule.steps.queries import accesses, elements, extent, points, stride
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir.index import ceil_div, fixed, least, simplify, static
from genesis.ir.kernel import (
    Axis,
    Body,
    Buffer,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    as_index,
    expressions,
    load_parts,
    map_expressions,
    walk,
)
from genesis.ir import ops
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import replaced

#: Shorter innermost loops are joined with those around them.
SHORT = 128


class Pieces(NamedTuple):
    """A row for every point of `group`, in pieces along `piece`; its loops are `nest`."""

    nest: Loop
    group: Axis
    piece: Axis
    others: tuple[Axis, ...]


def pieces(kernel: Kernel) -> Pieces | None:
    """How the rows of a kernel with one nest of reductions lie, if in pieces."""
    (phase,) = kernel.phases
    loops = [s for s in phase.body if isinstance(s, Loop)]
    deep = innermost(loops[0]) if len(loops) == 1 and loops[0].carried else None
    if deep is None or deep.body or deep is loops[0] or loops[0].merge is None:
        return None
    axes = [s.axis for s in walk(tuple(loops)) if isinstance(s, Loop)]
    if any(static(a.extent) is None for a in axes):
        return None
    reads = [(b, at) for b, at in accesses(tuple(loops)) if _varies(at, axes)]
    for piece in axes:
        others = tuple(a for a in axes if a is not piece)
        for group in phase.grid:
            apart = sum(elements(b) for b, at in reads if _apart(b, at, group, piece))
            fits = extent(piece) < TILE and extent(group) > 1
            if fits and 2 * apart > sum(elements(b) for b, _ in reads):
                return Pieces(loops[0], group, piece, others)
    return None


def _varies(at: tuple[Node, ...], axes: list[Axis]) -> bool:
    """Whether a place depends on all loops, so that what is read there is all of a row."""
    found = {n for i in at for n in mentions(i)}
    return all(a.node in found for a in axes)


def _apart(buffer: Buffer, at: tuple[Node, ...], group: Axis, piece: Axis) -> bool:
    along = stride(buffer, at, piece)
    return along == 1 and stride(buffer, at, group) == extent(piece)


def by_columns(kernel: Kernel, found: Pieces, chunk: int) -> tuple[Kernel, Axis]:
    """Sum for every place in a run of pieces, and `chunk` of the next loop, then those of a row.

    The second is the axis of the first phase that goes through a run.
    """
    nest, group, piece, others = found
    (phase,) = kernel.phases
    loop, width = others[0], extent(piece)
    chunks = -(-extent(loop) // chunk)
    # What is summed up later: for every place in a piece, the chunks.
    parts = Axis.loop(piece.name + loop.name, width * chunks)
    number = parts.node % chunks
    inner = replace(loop, extent=least(chunk, fixed(simplify(loop.extent - number * chunk))))
    (deep,) = interchange(nest, [piece, *others]).body
    assert isinstance(deep, Loop)
    outer = replace(nest, axis=parts, body=(replace(deep, axis=inner),))
    at = {piece.node: parts.node // chunks, loop.node: number * chunk + inner.node}
    body = tuple(respecialise((outer,), at)[0] if s is nest else s for s in phase.body)
    kernel = kernel.with_phases([Phase(phase.grid, body)])
    kernel = unroll_single(split_reduction(kernel, 1))

    first = kernel.phases[0]
    part = first.grid[-1]
    size = fixed(simplify(as_index(group.extent) * width))
    column = Axis.grid(group.name + piece.name, size)
    block = Axis.grid(loop.name + "b", chunks)
    places = {
        group.node: column.node // width,
        part.node: column.node % width * chunks + block.node,
    }
    grid = [column if a == group else a for a in first.grid[:-1]]
    grid = [*grid, block] if chunks > 1 else grid
    if chunks == 1:
        places[part.node] = column.node % width
    body = _loaded_before(respecialise(first.body, places))
    return kernel.with_phase(0, Phase(tuple(grid), body)), column


def _loaded_before(body: Body) -> Body:
    """Loops with what they load again and again, one number for a column, loaded before them."""
    axes = {s.axis.node for s in walk(body) if isinstance(s, Loop)}
    loops = [s for s in body if isinstance(s, Loop)]
    loads = [
        n
        for n in topological(e for s in walk(tuple(loops)) for e in expressions(s))
        if n.op is ops.LOAD and axes.isdisjoint(mentions(n))
    ]
    names = {n: Local(f"same{k}", n.dtype).node for k, n in enumerate(loads)}
    known = tuple(Let(v.attr, n) for n, v in names.items())
    return (*known, *map_expressions(body, lambda n: replaced(n, names)))


def flattened(kernel: Kernel) -> Kernel:
    """The kernel with what its loops read as vectors, where data do not say where."""
    (phase,) = kernel.phases
    reads = list(accesses(tuple(s for s in phase.body if isinstance(s, Loop))))
    looked_up = {b for b, at in reads if any(n.op in (ops.LOAD, ops.PARAM) for n in topological(at))}
    several = {b for b, _ in reads if b.strides is None and len(b.shape) > 1}
    return flat(kernel, several - looked_up)


def joined_nests(kernel: Kernel) -> Kernel:
    """Nests whose innermost loop is short as one loop each."""
    (phase,) = kernel.phases
    body = tuple(_joined(s) if isinstance(s, Loop) else s for s in phase.body)
    return kernel.with_phases([Phase(phase.grid, body)])


def _joined(s: Loop) -> Loop:
    axes = [x.axis for x in walk((s,)) if isinstance(x, Loop)]
    deep = innermost(s)
    short = deep is not None and deep is not s and not deep.body and extent(axes[-1]) < SHORT
    if not short or any(static(a.extent) is None for a in axes[1:]):
        return s
    return joined(s, axes)
