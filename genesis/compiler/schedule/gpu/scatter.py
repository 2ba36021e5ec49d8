"""The recipe for scatters: a block owns some columns, or some of the updates, as on any chip."""

from __future__ import annotations

from genesis.backends.base import GPU
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.tiles import TILE, power, tile
from genesis.compiler.schedule.heuristics import extent, points
from genesis.compiler.schedule.scatter import (
    Updates,
    chunk_count,
    chunked,
    column_axis,
    separated,
)
from genesis.compiler.schedule.vectorise import vectorise
from genesis.ir.kernel import Kernel

#: The columns that a block owns.
COLUMNS = 128


def scatter(kernel: Kernel, parts: Updates, chip: GPU) -> Kernel:
    """Schedule a scatter."""
    (phase,) = kernel.phases
    columns = column_axis(phase.grid, parts.store)
    width = 1 if columns is None else min(COLUMNS, power(extent(columns)))
    count = chunk_count(parts, points(phase.grid) // width)
    kernel = chunked(kernel, parts, count) if count > 1 else separated(kernel, parts)
    scattering = 0 if count > 1 else len(kernel.phases) - 1
    if columns is not None:
        kernel = tile(kernel, columns, width, scattering)
    elif count > 1:
        kernel = vectorise(kernel, lambda loop: min(TILE, power(extent(loop.axis))), scattering)
    for number in range(len(kernel.phases)):
        if number != scattering:
            kernel = pointwise(kernel, chip, number)
    return kernel


__all__ = ["scatter"]
