"""Prefixes: cumulative sums, and whatever else is carried and stored on the way.

Where there are many rows, each is walked from end to end: along memory a tile is scanned at a time,
across it a vector of rows is done at once, as for reductions. Few long rows are cut into chunks of
a size that only the shape decides. A first phase combines the elements of every whole chunk; in the
second each chunk combines the states of those before it, and starts from there.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.reductions import CHUNK, CHUNKS, ENOUGH_ROWS, vectorised
from genesis.compiler.schedule.steps.queries import best_row_axis, extent, lanes, points, power
from genesis.compiler.schedule.steps.vectorise import split_prefix
from genesis.ir import kernel as kir
from genesis.ir.pattern import Prefix


def prefix(kernel: kir.Kernel, found: Prefix, chip: Chip) -> kir.Kernel:
    """Schedule a kernel whose last loop carries a prefix."""
    (phase,) = kernel.phases
    (*others, loop) = phase.body
    assert isinstance(loop, kir.Loop)
    across = best_row_axis(phase)
    side_by_side = min(extent(across), lanes(phase.body, chip) * 4) if across else 1
    rows = points(phase.grid)
    length = extent(loop.axis)
    few = rows // side_by_side < ENOUGH_ROWS and rows * length >= 4 * CHUNK
    chunk = power(max(CHUNK // side_by_side, length // CHUNKS))
    if few and not others and length >= 2 * chunk:
        kernel = split_prefix(kernel, loop, chunk)
    for number, part in enumerate(kernel.phases):
        kernel = vectorised(kernel, number, part, chip)
    return kernel
