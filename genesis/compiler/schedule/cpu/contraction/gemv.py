"""GEMV: products of a few rows with a large matrix, as in decoding several texts at once.

What takes time is reading the matrix, so it is read once, and in order: where its rows run along k,
a vector is a piece of such a row. A tile of several of them shares what is loaded of the few rows
on the other side, and keeps as many streams of memory busy.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import Operands, size
from genesis.compiler.schedule.cpu.contraction.contraction import with_partial
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.queries import extent, stride
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import vectorise
from genesis.ir import ops
from genesis.ir.index import ceil_div, static
from genesis.ir.kernel import Axis, Kernel, Phase, load_parts
from genesis.ir.node import topological

#: More rows than this are for the rule that packs.
ROWS = 8
#: Sums of a tile, at most: each is a vector.
SUMS = 24
#: Columns of a tile, as streams of memory.
COLUMNS = (4, 3, 2, 1)
#: Vectors there must be along k, and elements of the matrix, for its reading to count.
VECTORS = 16
LARGE = 1 << 16


def is_gemv(found: Operands, chip: Chip) -> bool:
    """Whether few rows are multiplied with a large matrix whose rows run along k."""
    few = min(found.row, found.column, key=extent)
    k, *more = found.sums
    lanes = chip.vector_bytes // found.dtype.itemsize
    long = extent(k) >= VECTORS * lanes and max(map(size, (found.left, found.right))) >= LARGE
    alone = not more and not found.others
    is_few = static(few.extent) is not None and extent(few) <= ROWS
    return alone and is_few and _run_along(found) and long


def _run_along(found: Operands) -> bool:
    """Whether neighbours along k lie together in both factors."""
    loads = [n for n in topological([found.left, found.right]) if n.op is ops.LOAD]
    return all(stride(*load_parts(n)[:2], found.sums[0]) in (0, 1) for n in loads)


def is_narrow(found: Operands, chip: Chip) -> bool:
    """Whether constant weights have too few columns for a vector of them; this decides alone.

    It says nothing of rows, so that they have the same bits however many there are.
    """
    lanes = chip.vector_bytes // found.dtype.itemsize
    return (
        extent(found.column) <= lanes // 2 and extent(found.sums[0]) >= lanes and _run_along(found)
    )


def narrow(kernel: Kernel, found: Operands, chip: Chip) -> Kernel:
    """Schedule a product with constant weights that have few columns."""
    lanes = chip.vector_bytes // found.dtype.itemsize
    return _tiled(vectorise(kernel, lambda _: lanes), found.column, found.row)


def gemv(kernel: Kernel, found: Operands, chip: Chip) -> Kernel:
    """Schedule a product of few rows with a matrix whose rows run along k."""
    few, many = sorted((found.row, found.column), key=extent)
    lanes = chip.vector_bytes // found.dtype.itemsize
    return _tiled(vectorise(kernel, lambda _: lanes), few, many)


def _tiled(kernel: Kernel, row: Axis, column: Axis) -> Kernel:
    """All rows and some columns in a tile."""
    (phase,) = kernel.phases
    fitting = [c for c in COLUMNS if c * extent(row) <= SUMS]
    even = [c for c in fitting if extent(column) % c == 0]
    width = decide("columns", [even[0], *fitting])
    blocks = Axis.grid(column.name + "b", ceil_div(column.extent, width))
    inner = Axis.tile(column.name + "t", width)
    rows = Axis.tile(row.name + "t", extent(row))
    at = {row.node: rows.node, column.node: blocks.node * width + inner.node}
    body = respecialise(phase.body, at)
    body = with_partial(body, column, width, blocks.node, at[column.node])
    grid = tuple(blocks if a == column else a for a in phase.grid if a != row)
    return kernel.with_phases([Phase(grid, body)])
