"""Scatters: a block owns some columns, or some of the updates, as on any chip.

Columns alone are few blocks. Where rows are scattered, a block owns some columns of a *share* of
the rows. It looks at a run of indices at once, and only if one of them is for its share goes
through them, in order, and does the updates that are.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import GPU
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.tile_axes import TILE, tile
from genesis.compiler.schedule.scatter_parts import (
    Updates,
    chunk_count,
    chunked,
    column_axis,
    separated,
)
from genesis.compiler.schedule.steps.queries import extent, points, power
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.compiler.schedule.steps.vectorise import vectorise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import bool_
from genesis.ir.index import below, ceil_div, fixed, least, simplify, static
from genesis.ir.node import both, mentions

#: The columns that a block owns.
COLUMNS = 128
#: Blocks that a multiprocessor gets, if there are rows enough to share, and the indices that a
#: block looks at together.
BLOCKS = 32
RUN = 32


def scatter(kernel: kir.Kernel, parts: Updates, chip: GPU) -> kir.Kernel:
    """Schedule a scatter."""
    (phase,) = kernel.phases
    columns = column_axis(phase.grid, parts.store)
    width = 1 if columns is None else min(COLUMNS, power(extent(columns)))
    count = chunk_count(parts, points(phase.grid) // width)
    kernel = chunked(kernel, parts, count) if count > 1 else separated(kernel, parts)
    scattering = 0 if count > 1 else len(kernel.phases) - 1
    if columns is not None:
        if count == 1 and parts.loops:
            owners = -(-points(phase.grid) // width)
            kernel = _shared(kernel, parts, columns, BLOCKS * chip.multiprocessors // owners)
        kernel = tile(kernel, columns, width, scattering)
    elif count > 1:
        kernel = vectorise(kernel, lambda loop: min(TILE, power(extent(loop.axis))), scattering)
    for number in range(len(kernel.phases)):
        if number != scattering:
            kernel = pointwise(kernel, chip, number)
    return kernel


def _shared(kernel: kir.Kernel, parts: Updates, columns: kir.Axis, most: int) -> kir.Kernel:
    """The last phase with the rows in at most so many shares, each with blocks of its own."""
    number = len(kernel.phases) - 1
    phase = kernel.phases[number]
    store = parts.store
    data = [d for d, i in enumerate(store.index) if i.op is not ops.AXIS]
    at = store.index[data[0]]
    rows = static(store.buffer.shape[data[0]])
    if len(data) != 1 or rows is None or columns.node in mentions(at) or most < 2 or rows < 2:
        return kernel
    size = -(-rows // min(rows, most))
    share = kir.Axis.grid("share", -(-rows // size))
    first = share.node * size
    mine = both(first <= at, at < first + size)
    *outer, last = parts.loops
    runs = kir.Axis.loop(f"{last.name}r", ceil_div(last.extent, RUN))
    lane = kir.Axis.tile(f"{last.name}t", RUN)
    place = runs.node * RUN + lane.node
    # Lanes past the end take an index of 0 for theirs, which makes a block look once more.
    inside = below(place, last.extent)
    (asked,) = respecialise((kir.Let(kir.Local("mine", bool_), mine),), {last.node: place}, inside)
    assert isinstance(asked, kir.Let)
    found = kir.Local("found", bool_)
    left = simplify(kir.as_index(last.extent) - runs.node * RUN)
    one = replace(last, extent=least(RUN, fixed(left)))
    done = respecialise((kir.If(mine, (store,)),), {last.node: runs.node * RUN + one.node})
    nest: kir.Body = (
        kir.Reduce((found,), (asked.value,), lane, kir.fold(ops.OR, bool_)),
        kir.If(found.node, (kir.Loop(one, done),)),
    )
    body = (*phase.body[:-1], *kir.nest((*outer, runs), nest))
    return kernel.with_phase(number, kir.Phase((share, *phase.grid), body))
