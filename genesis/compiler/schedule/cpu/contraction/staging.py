"""Staging: operands that a block copies for itself, into fast memory.

Where neighbouring rows of the left-hand operand lie together but what is summed apart, every step
of the sum is another place in memory, often in the same few sets of the caches: a transposed
matrix is read so, and the channels of an image. Every register tile would go there again. So a
block copies its rows first, ``[k][row]``, and uses the copy for several panels of columns.

The same is done with columns of the right-hand operand where a block has all rows: then nobody else
would use a panel, and a phase that packs them all would only move them through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import Operands, reach, repeats, size
from genesis.compiler.schedule.cpu.contraction.k_blocks import Cut
from genesis.compiler.schedule.cpu.contraction.packing import CACHE_LINE
from genesis.compiler.schedule.steps.queries import extent
from genesis.compiler.schedule.steps.substitute_axes import mask_loads
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, simplify, static
from genesis.ir.node import TRUE, Node, topological
from genesis.ir.rewrite import replaced

#: Steps of a sum that are this many bytes apart do not profit from each other's cache lines.
APART = 512
#: Points that are copied at once, at most.
TOGETHER = 64


def rows_strewn(found: Operands, grid: Sequence[kir.Axis], chip: Chip) -> bool:
    """Whether `left`, too large for the second cache, is read in order only where it is copied."""
    return _in_runs(found.left, found.row, found, grid, chip)


def columns_strewn(found: Operands, grid: Sequence[kir.Axis], chip: Chip) -> bool:
    """The same of `right`, of which every element is used in one block only."""
    return not found.others and _in_runs(found.right, found.column, found, grid, chip)


def _in_runs(
    factor: Node, axis: kir.Axis, found: Operands, grid: Sequence[kir.Axis], chip: Chip
) -> bool:
    loads = [n for n in topological([factor]) if n.op is ops.LOAD]
    return (
        size(factor) * factor.dtype.itemsize > chip.l2_bytes
        and reach(factor, axis) == 1
        and min(reach(factor, a) for a in found.sums) * factor.dtype.itemsize >= APART
        and all(kir.load_parts(n)[2] is TRUE for n in loads)
        and all(static(a.extent) is not None for a in found.sums)
        and not repeats(factor, grid, found.sums)
    )


def stage(
    name: str,
    factor: Node,
    axis: kir.Axis,
    first: Node,
    count: int,
    sums: Sequence[kir.Axis],
    chunks: Cut,
) -> tuple[kir.Body, Node]:
    """Statements that copy `count` points of `axis` from `first` on; what is read in their place.

    Of the outermost sum it is a chunk.
    """
    outer, *inner = sums
    line = CACHE_LINE // factor.dtype.itemsize
    held = -(-count // line) * line
    lengths = (extent(chunks.inner), *(a.extent for a in inner))
    copy = kir.Buffer(name, factor.dtype, (*lengths, held), kir.Role.STAGE)
    together = gcd(held, TOGETHER)
    groups = kir.Axis.loop(axis.name + "g", held // together)
    tile = kir.Axis.tile(axis.name + "u", together)
    lane = simplify(groups.node * together + tile.node)
    value = replaced(factor, {axis.node: first + lane, outer.node: chunks.node})
    value = mask_loads(value, below(first + lane, axis.extent), [tile])
    index = (chunks.inner.node, *(a.node for a in inner), lane)
    store = kir.Store(copy, index, simplify(value))
    place = (outer.node - chunks.begin, *(a.node for a in inner), axis.node - first)
    nest = kir.nest((chunks.inner, *inner, groups), (store,))
    return (kir.Stage(copy), *nest), copy.load(*map(simplify, place))
