"""Reductions: along rows, across rows, and row programs (softmax, norms).

A reduction whose loop runs through memory is vectorised along the loop, with several partial sums
per row. One whose *rows* lie next to each other (a column sum) does a vector of rows at once.
Where rows are few and long, the reduction is split into chunks that are combined in a second
phase. A program that goes down long columns several times is a sequence of passes, each with a
schedule of its own.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.column_reductions import (
    ROWS,
    TOGETHER,
    ColumnStretch,
    accumulate,
    stretch,
    stretches,
)
from genesis.compiler.schedule.cpu.merged_variance import merged
from genesis.compiler.schedule.cpu.multi_pass_columns import has_passes, in_passes
from genesis.compiler.schedule.cpu.pointwise import gather, pointwise
from genesis.compiler.schedule.cpu.row_cache import cache_row_values
from genesis.compiler.schedule.cpu.strided_rows import in_order, interleaved, short_runs
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.join_axes import join_loops
from genesis.compiler.schedule.steps.loop_transforms import digits, split_reduction, tile_grid
from genesis.compiler.schedule.steps.queries import (
    affinity,
    best_row_axis,
    extent,
    lanes,
    operations,
    points,
    vectors,
)
from genesis.compiler.schedule.steps.vectorise import vectorise
from genesis.ir.kernel import Axis, Kernel, Loop, Phase, walk

#: Rows that keep all cores of a large machine busy; fewer rows make splitting worth while.
ENOUGH_ROWS = 64
#: Elements of one chunk of a split reduction, at least, and chunks at most: memory is read
#: fastest in long runs.
CHUNK = 1 << 15
CHUNKS = 128
#: Shorter reductions are not split: there would be little in a chunk to vectorise.
SPLIT_LENGTH = 64
#: What a block does with several rows of a column is short up to here, in multiply-adds.
SHORT_STEPS = 64


def rows(kernel: Kernel, chip: Chip) -> Kernel:
    """Schedule a kernel with loops inside its rows."""
    kernel = join_loops(kernel)
    across = best_row_axis(kernel.phases[0])
    if across is None and best_row_axis((apart := digits(kernel)).phases[0]) is not None:
        kernel, across = apart, best_row_axis(apart.phases[0])
    if has_passes(kernel.phases[0], across, chip):
        return in_passes(kernel, chip, rows, pointwise)
    kernel = merged(kernel, across, chip)
    if len(kernel.phases) == 1:
        kernel = _shared(kernel, across, chip)
    for number, part in enumerate(kernel.phases):
        kernel = vectorised(kernel, number, part, chip)
    return kernel


def _shared(kernel: Kernel, across: Axis | None, chip: Chip) -> Kernel:
    """The kernel with a reduction split into chunks, if blocks are few or runs of memory short."""
    (phase,) = kernel.phases
    together = _together(phase, across, chip)
    if across is None and together is None and interleaved(phase, chip):
        return in_order(split_reduction(kernel, 1, outermost=True))
    if not _splits(phase, across, together):
        return kernel
    outer = next(s for s in phase.body if isinstance(s, Loop) and s.carried)
    inside = points(s.axis for s in walk(outer.body) if isinstance(s, Loop))
    per_step = inside * (min(extent(across), lanes(phase.body, chip) * 4) if across else 1)
    size = decide("chunk", [CHUNK, CHUNK >> 2, CHUNK << 2])
    chunk = max(1, size // per_step, extent(outer.axis) // CHUNKS)
    if together is not None:
        share = extent(outer.axis) * stretches(phase, *together) // ENOUGH_ROWS
        chunk = max(ROWS, share // TOGETHER * TOGETHER)
    if extent(outer.axis) <= chunk:
        return kernel
    return split_reduction(kernel, chunk, outermost=across is not None)


def _together(phase: Phase, across: Axis | None, chip: Chip) -> tuple[Axis, ColumnStretch] | None:
    """The axis whose neighbours a block reduces together, with their states in a stage, if so."""
    if across is None:
        return short_runs(phase)
    taken = stretch(phase, across, chip)
    return None if taken is None else (across, taken)


def _splits(phase: Phase, across: Axis | None, together: tuple[Axis, ColumnStretch] | None) -> bool:
    """One reduction, too few rows to share among cores, and enough work to share."""
    reductions = [s for s in phase.body if isinstance(s, Loop) and s.carried]
    loops = [s for s in phase.body if isinstance(s, Loop)]
    if len(reductions) != 1 or len(loops) != 1 or reductions[0].merge is None:
        return False
    work = points(s.axis for s in walk(tuple(reductions)) if isinstance(s, Loop))
    count = points(phase.grid)
    blocks = count // 64 if across else count
    if together is not None:
        blocks = stretches(phase, *together)
    long = extent(reductions[0].axis) >= SPLIT_LENGTH
    return blocks < ENOUGH_ROWS and work * count >= 4 * CHUNK and long


def vectorised(kernel: Kernel, number: int, phase: Phase, chip: Chip) -> Kernel:
    """One phase in vectors, along its loops or across its rows, with enough rows in a block."""
    width = lanes(phase.body, chip)
    work = points(s.axis for s in walk(phase.body) if isinstance(s, Loop))
    across = best_row_axis(phase)
    together = _together(phase, across, chip)
    if across is not None and together is not None:
        kernel = accumulate(kernel, *together, number)
        tile = width * (4 if operations(phase.body) * together[1].rows <= SHORT_STEPS else 1)
        return vectorise(kernel, lambda loop: tile, number)
    if across is not None:
        unroll = 4 if extent(across) >= 4 * width else 2 if extent(across) >= 2 * width else 1
        tile = width * vectors(unroll, width, extent(across))
        kernel = tile_grid(kernel, across, tile, number)
        others = [a for a in phase.grid if a != across]
        return gather(kernel, others, work * tile, number)

    def choose(loop: Loop) -> int:
        width, size = lanes((loop,), chip, loop.axis), extent(loop.axis)
        if size < width or affinity_of(loop) < 0:
            return 1
        unroll = 4 if operations((loop,)) <= 60 else 2
        while unroll > 1 and size < width * unroll:
            unroll //= 2
        return width * vectors(unroll, width, size)

    if together is not None:
        return vectorise(accumulate(kernel, *together, number), choose, number)
    kernel = vectorise(cache_row_values(kernel, chip, number), choose, number)
    return gather(kernel, list(phase.grid), work, number)


def affinity_of(loop: Loop) -> int:
    """How well a loop's own axis suits vectors."""
    return affinity((loop,), loop.axis)
