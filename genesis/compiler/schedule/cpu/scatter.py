"""Scatters: a block owns some columns of all rows and goes through every index, or owns chunks.

What of each there is, `schedule/scatter_parts.py` says.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.pointwise import gather, pointwise
from genesis.compiler.schedule.scatter_parts import (
    COLUMNS,
    Updates,
    chunk_count,
    chunked,
    column_axis,
    separated,
)
from genesis.compiler.schedule.steps.loop_transforms import tile_grid
from genesis.compiler.schedule.steps.queries import extent, lanes, points, stride
from genesis.compiler.schedule.steps.vectorise import vectorise
from genesis.ir import kernel as kir

#: Owners of a run of elements each that are enough to share the work, and the least run.
OWNERS = 64
RUN = 64


def scatter(kernel: kir.Kernel, parts: Updates, chip: Chip) -> kir.Kernel:
    """Schedule a scatter."""
    (phase,) = kernel.phases
    columns = column_axis(phase.grid, parts.store)
    width = 1 if columns is None else _width(columns, lanes(phase.body, chip, columns))
    count = chunk_count(parts, points(phase.grid) // width)
    if count == 1 and points(phase.grid) >= OWNERS and _filled_in_order(parts):
        kernel = vectorise(kernel, lambda loop: lanes((loop,), chip) * 4)
        return gather(kernel, list(phase.grid), points(parts.loops) + points(parts.filled))
    kernel = chunked(kernel, parts, count) if count > 1 else separated(kernel, parts)
    scattering = 0 if count > 1 else len(kernel.phases) - 1
    if columns is not None and width > 1:
        kernel = tile_grid(kernel, columns, width, scattering)
    elif count > 1:
        kernel = vectorise(kernel, lambda loop: lanes((loop,), chip), scattering)
    for number, part in enumerate(kernel.phases):
        if number != scattering:
            (done,) = pointwise(kernel.with_phases([part]), chip).phases
            kernel = kernel.with_phase(number, done)
    return kernel


def _filled_in_order(parts: Updates) -> bool:
    """Whether the elements that a block owns lie next to each other: it writes them itself, then.

    They are in the first cache when they are updated.
    """
    if parts.fill is None or not parts.filled:
        return False
    last = parts.filled[-1]
    return extent(last) >= RUN and stride(parts.fill.buffer, parts.fill.index, last) == 1


def _width(columns: kir.Axis, vector: int) -> int:
    """The columns a block owns: whole vectors, and few enough that there is something to share."""
    width = vector
    while width > 1 and extent(columns) < width:
        width //= 2
    while width < COLUMNS * vector and extent(columns) >= 2 * COLUMNS * width:
        width *= 2
    return width
