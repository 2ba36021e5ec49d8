"""Reductions and running states: rows by the block, or several rows a block.

A row of up to a few thousand elements is one tile, so that a softmax or a norm reads it once; a
longer one is a loop of tiles. Where neighbours in memory belong to different rows (a column sum) a
tile has some of both. Where rows are too few to keep the chip busy, they are cut into chunks that a
second phase combines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from genesis.backends.base import GPU
from genesis.compiler.schedule.contraction_operands import summation
from genesis.compiler.schedule.gpu.online_powers import online_powers
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.rows_in_pieces import (
    as_one,
    by_columns,
    columns_as_one,
    flattened,
    pieces,
)
from genesis.compiler.schedule.gpu.tile_axes import TILE, free_axes, joined, tile, unfuse
from genesis.compiler.schedule.gpu.windows import rows_together, write_out
from genesis.compiler.schedule.steps.join_axes import join_axes, join_loops
from genesis.compiler.schedule.steps.loop_transforms import split_reduction
from genesis.compiler.schedule.steps.queries import best_row_axis, elements, extent, points, power
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import (
    innermost,
    parts_of_prefix,
    split_prefix,
    vectorise,
)
from genesis.ir import ops
from genesis.ir.index import static
from genesis.ir.kernel import (
    Axis,
    Kernel,
    Loop,
    Phase,
    Statement,
    Store,
    expressions,
    folds_apart,
    walk,
)
from genesis.ir.node import Node, mentions, topological
from genesis.ir.pattern import Prefix

#: The longest row that is one tile, and the tiles of longer ones.
ROW = 1 << 14
PIECE = 1 << 12
#: Pieces are multiples of it, so that all of them begin with a whole vector if the first does.
ALIGNED = 16
#: Shorter loops are not worth a tile of their own, and neither are shorter rows.
SHORT = 32
SHORT_ROW = 8
#: The rows and columns of a tile of running sums of columns: a thread has all rows of some columns.
#: What is read twice to be cut into chunks should leave most multiprocessors without work if not.
SCANNED = 8, 512
FEW = 3
#: The columns of a tile that goes across rows, and its elements if they are bytes; where each
#: thread has columns of its own to sum up, how long these may be, and how many multiprocessors want
#: at least.
COLUMNS = 64
BYTES = 8 * TILE
TALL = 128
MANY = 4 * TILE
#: What one loop should go through at least, of sums over several short axes.
PLANE = 128
#: Elements of a chunk of a row that is cut, at least, and the chunks of it at most.
CHUNK = 1 << 12
CHUNKS = 256
#: Blocks for each multiprocessor below which rows are cut.
BUSY = 2


def rows(kernel: Kernel, chip: GPU) -> Kernel:
    """Schedule a kernel with loops inside its rows."""
    for axis in kernel.phases[0].grid:
        kernel = unfuse(kernel, axis)
    long = _long_in_pieces(kernel, chip)
    if long is not None:
        return _tiled(_across(*long, 0), 1, chip)
    column: Axis | None = None
    columns = columns_as_one(kernel, COLUMNS)
    if columns is not None:
        kernel, column = columns
    else:
        kernel = rows_together(_summed_by_planes(as_one(kernel)), BUSY * chip.multiprocessors)
    (phase,) = kernel.phases
    if _is_long(phase):  # what a loop has read is in no register any more when the next begins
        phase = Phase(phase.grid, online_powers(phase.body))
        kernel = join_loops(kernel.with_phase(0, phase))
    across = column or best_row_axis(phase)
    chunk = _chunk(phase, chip, across)
    if chunk is not None:
        parts = split_reduction(join_loops(kernel), chunk, outermost=across is not None)
        kernel = _stores_apart(parts)
    if column is not None:
        kernel = _across(kernel, column, 0)
    for number in range(column is not None, len(kernel.phases)):
        kernel = _tiled(kernel, number, chip)
    return kernel


def _long_in_pieces(kernel: Kernel, chip: GPU) -> tuple[Kernel, Axis] | None:
    """Long rows that lie in memory in pieces, by columns."""
    kernel = flattened(join_loops(kernel))
    (phase,) = kernel.phases
    loops = [s for s in phase.body if isinstance(s, Loop)]
    found = pieces(phase, loops[0]) if len(loops) == 1 else None
    if found is None or points((found.piece, *found.others)) <= ROW:
        return None
    group, piece, (outer, *_) = found
    if static(group.extent) is None or static(outer.extent) is None:
        return None
    column = Axis.grid("", extent(group) * extent(piece))
    grid = (*(a for a in phase.grid if a != group), column)
    chunk = _chunk(Phase(grid, (replace(loops[0], axis=outer),)), chip, column)
    return by_columns(kernel, loops[0], found, chunk or extent(outer))


def _summed_by_planes(kernel: Kernel) -> Kernel:
    """A sum of products over short axes, rows of pixels say, with one loop through some of them."""
    found = summation(kernel)
    if found is None or found[0][0] not in kernel.phases[0].body:
        return kernel
    loops, _ = found
    axes = [s.axis for s in loops]
    if extent(axes[-1]) >= PLANE or not all(isinstance(a.extent, int) for a in axes):
        return kernel
    first = len(axes) - 1
    while first and points(axes[first:]) < PLANE:
        first -= 1
    nest = joined(loops[first], axes[first:])
    for outer in reversed(loops[:first]):
        nest = replace(outer, body=(nest,))
    (phase,) = kernel.phases
    body = tuple(nest if s is loops[0] else s for s in phase.body)
    return kernel.with_phase(0, Phase(phase.grid, body))


def join_alike(kernel: Kernel) -> Kernel:
    """Join axes; loops over the same axes become one first, if they would not be alike any more.

    Of a sum of products and a sum, only the second may run through memory as if axes were one,
    where the factors lie differently. As one loop they can be cut into chunks together.
    """
    found = join_axes(kernel)
    if _are_alike(kernel) and not _are_alike(found):
        return join_axes(join_loops(kernel))
    return found


def _are_alike(kernel: Kernel) -> bool:
    """Whether all loops of a kernel's only phase are nests over the same extents."""
    (phase,) = kernel.phases
    nests = [
        [x.axis.extent for x in walk((s,)) if isinstance(x, Loop)]
        for s in phase.body
        if isinstance(s, Loop)
    ]
    return all(nest == nests[0] for nest in nests)


def prefix(kernel: Kernel, found: Prefix, chip: GPU) -> Kernel:
    """Schedule a kernel whose last loop carries a prefix."""
    (phase,) = kernel.phases
    (*others, loop) = phase.body
    assert isinstance(loop, Loop)
    length = extent(loop.axis)
    across = best_row_axis(phase)
    columns = min(SCANNED[1], power(extent(across))) if across is not None else 1
    blocks = -(-points(phase.grid) // columns)
    most = max(1, min(CHUNKS, 2 * BUSY * chip.multiprocessors // max(1, blocks)))
    chunk = power(max(CHUNK // columns, SHORT, -(-length // most)))
    few = chip.multiprocessors // FEW if across is not None else BUSY * chip.multiprocessors
    if not others and blocks < few and length >= 2 * chunk:
        kernel = split_prefix(kernel, loop, chunk, outermost=across is not None)
    for number in range(len(kernel.phases)):
        kernel = _tiled(kernel, number, chip)
    return kernel


def _is_long(phase: Phase) -> bool:
    """Whether rows are longer than a tile."""
    nests = [s for s in phase.body if isinstance(s, Loop)]
    return any(points(x.axis for x in walk((s,)) if isinstance(x, Loop)) > ROW for s in nests)


def _stores_apart(kernel: Kernel) -> Kernel:
    """What the last phase stores for every element of its few rows, by many blocks.

    Each of them combines the partial states for itself. What is stored once for a row is stored in
    a phase of its own.
    """
    *before, phase = kernel.phases
    loops = [s for s in phase.body if isinstance(s, Loop) and not s.carried]
    if not loops:
        return kernel
    others = tuple(s for s in phase.body if s not in loops)
    axis = Axis.grid(loops[0].axis.name + "s", loops[0].axis.extent)
    rows = [replace(a, name=a.name + "s") for a in phase.grid]
    turned = {a.node: b.node for a, b in zip(phase.grid, rows, strict=True)}
    body = tuple(s for s in others if not isinstance(s, Store))
    for loop in loops:
        body += respecialise(loop.body, {loop.axis.node: axis.node})
    last = Phase((*rows, axis), respecialise(body, turned))
    if any(isinstance(s, Store) for s in others):
        before.append(Phase(phase.grid, others))
    return kernel.with_phases([*before, last])


def _chunk(phase: Phase, chip: GPU, across: Axis | None) -> int | None:
    """How much of the reductions of few rows a block should do; None: all of it.

    A tile goes `across` rows that lie closer together than what is in them.
    """
    loops = [s for s in phase.body if isinstance(s, Loop) and s.carried]
    stores = [s for s in phase.body if isinstance(s, Loop) and not s.carried]
    if not loops or not _apart(loops):
        return None
    if stores and not (_is_long(phase) and _only_store(phase.body, stores)):
        return None
    loop = loops[0]
    columns = min(COLUMNS, power(extent(across))) if across is not None else 1
    blocks = -(-points(phase.grid) // columns)
    wanted = min(CHUNKS, 2 * BUSY * chip.multiprocessors // max(1, blocks))
    inside = points(s.axis for s in walk(loop.body) if isinstance(s, Loop))
    least = max(1, CHUNK // max(1, inside * columns))
    length = extent(loop.axis)
    chunk = max(least, -(-length // max(1, wanted)))
    if wanted < 2 or length < 2 * chunk:
        return None
    return power(chunk)


def _only_store(body: Sequence[Statement], loops: Sequence[Loop]) -> bool:
    """Whether loops over the same extent, the last of a body, only store what others have found."""
    nested = [x for s in loops for x in walk(s.body) if isinstance(x, Loop) and x.carried]
    alike = all(s.axis.extent == loops[0].axis.extent for s in loops)
    return alike and not nested and tuple(body[-len(loops) :]) == tuple(loops)


def _apart(loops: Sequence[Loop]) -> bool:
    """Whether loops only reduce, all equally much, and none what another one has found."""
    totals = {c.local.node for s in loops for c in s.carried}
    return all(
        s.carried
        and s.merge is not None
        and s.axis.extent == loops[0].axis.extent
        and totals.isdisjoint(_needed(s))
        for s in loops
    )


def _needed(loop: Loop) -> set[Node]:
    """What a loop reads of its surroundings, and the axes and values of its own."""
    own = {c.local.node for c in loop.carried}
    return {n for s in walk((loop,)) for e in expressions(s) for n in mentions(e)} - own


def _tiled(kernel: Kernel, number: int, chip: GPU) -> Kernel:
    """One phase in tiles: along its loops, across its rows, or both."""
    phase = kernel.phases[number]
    deep = [s for s in walk(phase.body) if isinstance(s, Loop) and _is_innermost(s)]
    longest = max((extent(s.axis) for s in deep), default=1)
    across = best_row_axis(phase)
    loops = [s for s in walk(phase.body) if isinstance(s, Loop)]
    scans = any(parts_of_prefix(s, kernel.pattern) for s in loops)
    many = points(phase.grid) >= MANY * chip.multiprocessors
    least = SHORT if across is not None else SHORT_ROW
    if longest < least or (across is not None and longest <= TALL and many and not scans):
        return pointwise(write_out(kernel, number), chip, number)
    if across is not None:
        return _across(kernel, across, number)
    # What is read once need not be one tile if padding to a power of two would cost an eighth.
    padded = len(deep) == 1 and longest > PIECE and 8 * longest <= 7 * power(longest)
    limit = PIECE if longest > ROW or padded else ROW
    kernel = vectorise(kernel, lambda s: _width(kernel, s, limit), number, shared=True)
    several = TILE // power(min(longest, limit))
    free = free_axes(phase)
    if several > 1 and free:
        last: Axis = free[-1]
        # Few rows are shared among all multiprocessors.
        share = power(points(phase.grid) // (BUSY * chip.multiprocessors) + 1)
        count = min(several, share, power(extent(last)))
        if count > 1:
            kernel = tile(kernel, last, count, number)
    return kernel


def _across(kernel: Kernel, across: Axis, number: int) -> Kernel:
    """One phase in tiles across its rows and along its loops."""
    phase = kernel.phases[number]
    loops = [s for s in walk(phase.body) if isinstance(s, Loop)]
    scans = any(parts_of_prefix(s, kernel.pattern) for s in loops)
    columns = min(SCANNED[1] if scans else COLUMNS, power(extent(across)))
    room = SCANNED[0] * SCANNED[1] if scans else BYTES if _reads_bytes(phase) else 2 * TILE
    room //= columns
    kernel = vectorise(kernel, lambda s: _width(kernel, s, room), number)
    return tile(kernel, across, columns, number)


def _reads_bytes(phase: Phase) -> bool:
    """Whether what loops read most of are single bytes, of which a thread wants many."""
    loops = tuple(s for s in phase.body if isinstance(s, Loop))
    nodes = topological(e for s in walk(loops) for e in expressions(s))
    largest = max((n.attr for n in nodes if n.op is ops.LOAD), key=elements, default=None)
    return largest is not None and largest.dtype.itemsize == 1


def _is_innermost(s: Loop) -> bool:
    return not any(isinstance(x, Loop) for x in walk(s.body))


def _width(kernel: Kernel, s: Loop, limit: int) -> int:
    """The tile of a loop: all of it, or a piece that divides it and wastes few lanes."""
    deep = s if parts_of_prefix(s, kernel.pattern) else innermost(s) or s
    n = deep.axis.extent
    if not isinstance(n, int):
        return min(limit, power(extent(deep.axis)))
    if n <= limit:
        return max(1, n)
    if deep.merge is not None and len(deep.carried) > 1 and folds_apart(deep.merge) is None:
        return limit  # lanes past the end of a tile would count in no plain sum
    least = -(-n // limit)
    sizes = [n // pieces for pieces in range(least, 3 * least) if n % pieces == 0]
    sizes = [size for size in sizes if 4 * size >= 3 * power(size) and size % ALIGNED == 0]
    whole = [size for size in sizes if size == power(size)]
    return (whole or sizes or [limit])[0]
