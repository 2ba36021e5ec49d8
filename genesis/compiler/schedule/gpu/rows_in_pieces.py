"""Rows that lie in memory in pieces, between pieces of other rows.

A group norm of what lies with its channels last sums over all pixels and the channels of a group: a
few neighbours, then a jump over the other groups. Blocks that go through one such row each use a
part of every sector they read, or wait for it at every pixel. So a long row is summed by columns
first: a block reads whole runs of memory across the rows, whatever their pieces, with a sum for
every place in them, and what comes after sums what lies in the piece of a row. A row that fits a
tile is read once, as if its pieces lay one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from genesis.compiler.schedule.gpu.tile_axes import TILE, fuse, joined
from genesis.compiler.schedule.steps.join_axes import flat
from genesis.compiler.schedule.steps.loop_transforms import (
    interchange,
    split_reduction,
    unroll_single,
)
from genesis.compiler.schedule.steps.queries import accesses, elements, extent, points, stride
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import ops
from genesis.ir.index import fixed, least, simplify, static
from genesis.ir.kernel import (
    Axis,
    Body,
    Buffer,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    Role,
    Statement,
    as_index,
    expressions,
    map_expressions,
    walk,
)
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import replaced

#: What is worth a loop of tiles: less (the window of a pooling) each thread goes through itself.
LEAST = 128


class Pieces(NamedTuple):
    """Rows of a nest of reductions: one for every point of `group`, in pieces along `piece`."""

    group: Axis
    piece: Axis
    others: tuple[Axis, ...]

    def fits(self, buffer: Buffer, at: tuple[Node, ...]) -> bool:
        """Whether pieces of other rows lie between those of one."""
        size = extent(self.piece)
        beside = stride(buffer, at, self.piece) == 1 and stride(buffer, at, self.group) == size
        jumps = [stride(buffer, at, a) for a in self.others]
        return beside and all(not j or j >= size * extent(self.group) for j in jumps)


def pieces(phase: Phase, nest: Loop) -> Pieces | None:
    """How rows lie, if in pieces: most of what a nest of reductions reads does."""
    axes = [s.axis for s in walk((nest,)) if isinstance(s, Loop)]
    if len(axes) == 1 or not _reduces(nest):
        return None
    reads = [(b, at) for b, at in accesses((nest,)) if _varies(at, axes)]
    for piece in axes:
        others = tuple(a for a in axes if a is not piece)
        known = all(static(a.extent) is not None for a in (piece, *others[1:]))
        for group in phase.grid if known and extent(piece) < TILE else ():
            found = Pieces(group, piece, others)
            apart = sum(elements(b) for b, at in reads if found.fits(b, at))
            if extent(group) > 1 and 2 * apart > sum(elements(b) for b, _ in reads):
                return found
    return None


def _reduces(nest: Loop) -> bool:
    """Whether a nest only combines what it reads, in any order."""
    deep = innermost(nest) if nest.carried and nest.merge is not None else None
    return deep is not None and not deep.body


def _varies(at: tuple[Node, ...], axes: list[Axis]) -> bool:
    """Whether a place depends on all loops, so that what is read there is all of a row."""
    found = {n for i in at for n in mentions(i)}
    return all(a.node in found for a in axes)


def columns_as_one(kernel: Kernel, enough: int) -> tuple[Kernel, Axis] | None:
    """One axis through columns that two count through, as groups and channels of them.

    It goes on through memory where the second, with fewer points than `enough`, ends.
    """
    (phase,) = kernel.phases
    loops = [s for s in phase.body if isinstance(s, Loop)]
    inner = {s.axis: None for s in walk(tuple(loops)) if isinstance(s, Loop)}
    if not all(map(_reduces, loops)):
        return None
    reads = [(b, at) for b, at in accesses(tuple(loops)) if _some_vary(at, inner)]
    if len(_inputs(reads)) < len({b for b, _ in reads}):
        return None
    for group, piece in pairwise(phase.grid):
        found = Pieces(group, piece, tuple(inner))
        apart = sum(elements(b) for b, at in reads if found.fits(b, at))
        small = static(piece.extent) is not None and extent(piece) < enough
        if small and extent(group) > 1 and 2 * apart > sum(elements(b) for b, _ in reads):
            return fuse(flattened(kernel), [group, piece])
    return None


def _some_vary(at: tuple[Node, ...], axes: Iterable[Axis]) -> bool:
    return any(a.node in mentions(i) for i in at for a in axes)


def by_columns(kernel: Kernel, nest: Loop, found: Pieces, chunk: int) -> tuple[Kernel, Axis]:
    """Sum for every place in a run of pieces, and `chunk` of the next loop, then those of a row.

    The second is the axis of the first phase that goes through a run.
    """
    group, piece, others = found
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
    looked_up = {
        b for b, at in reads if any(n.op in (ops.LOAD, ops.PARAM) for n in topological(at))
    }
    several = {b for b in _inputs(reads) if b.strides is None and len(b.shape) > 1}
    return flat(kernel, several - looked_up)


def _inputs(reads: Iterable[tuple[Buffer, tuple[Node, ...]]]) -> set[Buffer]:
    """What no other phase has left."""
    return {b for b, _ in reads if b.role is Role.INPUT}


def as_one(kernel: Kernel) -> Kernel:
    """The kernel with one loop through every row, if all of its loops go through rows in pieces."""
    (phase,) = kernel.phases
    nests = {s: pieces(phase, s) for s in phase.body if isinstance(s, Loop)}
    ones: dict[Statement, Loop] = {}
    for nest, found in nests.items():
        if found is None or points((*found.others, found.piece)) < LEAST:
            return kernel
        ones[nest] = joined(nest, (*found.others, found.piece))
    return kernel.with_phases([Phase(phase.grid, tuple(ones.get(s, s) for s in phase.body))])
