"""Rows whose columns are totalled on the way: the gradients of norms, of biases.

Every block takes some rows, and keeps the totals of its columns in a stage. A row is gone through
as if there were no totals; the loop that comes by its elements last adds them while they are in the
caches. What the blocks have summed is added up in a phase for the columns. How many blocks there
are depends on the number of rows alone, so results do not depend on thread counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.reductions import ENOUGH_ROWS, vectorised
from genesis.compiler.schedule.cpu.row_cache import cache_row_values
from genesis.compiler.schedule.steps.join_axes import join_axes, join_loops
from genesis.compiler.schedule.steps.loop_transforms import sink, split_grid
from genesis.compiler.schedule.steps.queries import extent, lanes, vectors
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import vectorise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, const, mentions, topological
from genesis.ir.pattern import ColumnSums
from genesis.ir.rewrite import replaced

#: Rows of a block, at least: its totals are written to memory, and read again.
LEAST = 32
#: Work at an element, in multiply-adds, up to which four vectors or two are in flight together.
SHORT, LONG = 16, 48


def total(kernel: kir.Kernel, found: ColumnSums, chip: Chip) -> kir.Kernel:
    """Schedule a kernel that sums columns."""
    kernel = join_axes(kernel)
    (phase,) = kernel.phases
    staged = {s.buffer.name: s.buffer for s in phase.body if isinstance(s, kir.Stage)}
    stages = [staged[name] for name in found.sums]
    start, nest, *made = phase.body[len(stages) :]
    by_block = _by_block(kernel, nest, stages, chip)
    (block,) = by_block.grid
    partial = {b: _partial(b, block) for b in stages}
    column = kir.Axis.loop("p", stages[0].shape[0])
    leave = [kir.Store(partial[b], (block.node, column.node), b.load(column.node)) for b in stages]
    body = (*map(kir.Stage, stages), start, *by_block.body, kir.Loop(column, tuple(leave)))
    buffers = (*kernel.buffers, *partial.values())
    first = kir.Phase(by_block.grid, body)
    kernel = replace(kernel, buffers=buffers)
    phases = vectorise(kernel.with_phases([first]), lambda loop: _width(loop, chip)).phases
    for s in made:
        last = _of_columns(s, partial, replace(block, kind=kir.AxisKind.LOOP))
        alone = join_loops(kernel.with_phases([last]))
        phases += vectorised(alone, 0, alone.phases[0], chip).phases
    return kernel.with_phases(phases)


def _by_block(
    kernel: kir.Kernel, nest: kir.Statement, stages: Sequence[kir.Buffer], chip: Chip
) -> kir.Phase:
    """The rows, shared among blocks along their longest axis."""
    stores = [s for s in kir.walk((nest,)) if isinstance(s, kir.Store) and s.buffer in stages]
    columns = {a for s in stores for i in s.index for a in mentions(i)}
    axes, body = _unnested(nest, columns)
    kernel = cache_row_values(join_loops(kernel.with_phases([kir.Phase(tuple(axes), body)])), chip)
    longest = max(axes, key=extent)
    kernel = split_grid(kernel, longest, max(LEAST, extent(longest) // ENOUGH_ROWS))
    for axis in reversed([a for a in axes if a != longest]):
        kernel = sink(kernel, axis)
    return kernel.phases[0]


def _width(loop: kir.Loop, chip: Chip) -> int:
    """Points of a loop that are done at once: several vectors, unless each is much work."""
    width, work = lanes((loop,), chip, loop.axis), _work(loop)
    unroll = 4 if work <= SHORT or loop.carried else 2 if work <= LONG else 1
    while unroll > 1 and extent(loop.axis) < width * unroll:
        unroll //= 2
    return width * vectors(unroll, width, extent(loop.axis)) if extent(loop.axis) >= width else 1


def _work(loop: kir.Loop) -> int:
    """What is done at every point of a loop, in multiply-adds."""
    nodes = topological(e for s in kir.walk((loop,)) for e in kir.expressions(s))
    return sum(n.op.cost for n in nodes if loop.axis.node in mentions(n))


def _of_columns(
    nest: kir.Statement, partial: Mapping[kir.Buffer, kir.Buffer], blocks: kir.Axis
) -> kir.Phase:
    """What is made of the columns' totals, which are those of all blocks together."""
    axes, body = _unnested(nest)
    nodes = topological(e for s in body for e in kir.expressions(s))
    known: dict[Node, Node] = {}
    loops: list[kir.Loop] = []
    for n in (n for n in nodes if n.op is ops.LOAD and n.attr in partial):
        acc = kir.Local(f"total{len(loops)}", n.dtype)
        known[n] = acc.node
        added = partial[n.attr].load(blocks.node, *kir.load_parts(n)[1])
        carry = kir.Carry(acc, const(0, n.dtype), acc.node + added)
        loops.append(kir.Loop(blocks, (), (carry,), kir.fold(ops.ADD, n.dtype)))
    stores = kir.map_expressions(body, lambda n: replaced(n, known))
    return kir.Phase(tuple(axes), (*loops, *stores))


def _unnested(
    nest: kir.Statement, inside: Collection[Node] = ()
) -> tuple[list[kir.Axis], kir.Body]:
    """The loops of a nest as axes of a grid, except those `inside`, and what is in them."""
    body: kir.Body = (nest,)
    turned: dict[Node, kir.Axis] = {}
    while len(body) == 1 and isinstance(body[0], kir.Loop) and body[0].axis.node not in inside:
        axis = body[0].axis
        turned[axis.node] = replace(axis, kind=kir.AxisKind.GRID)
        body = body[0].body
    return [*turned.values()], respecialise(body, {a: b.node for a, b in turned.items()})


def _partial(sums: kir.Buffer, blocks: kir.Axis) -> kir.Buffer:
    """What all blocks have summed."""
    shape = (blocks.extent, *sums.shape)
    return replace(sums, name=f"partial_{sums.name}", shape=shape, role=kir.Role.TEMPORARY)
