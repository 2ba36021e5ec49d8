"""Long sums of a contraction, in chunks: a piece of a panel stays in cache while rows pass by.

A register tile that sums over all of k at once reads a whole panel for every few rows, and a long
panel does not stay in the second cache. So a block of rows takes one chunk of k after the other.
In between, what its tiles have summed so far is kept in fast memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.heuristics import extent, points
from genesis.compiler.schedule.operands import Operands
from genesis.compiler.schedule.respecialise import ceil_div, fixed, least, respecialise, static
from genesis.ir.index import simplify
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Body,
    Buffer,
    Loop,
    Role,
    Stage,
    Store,
    as_index,
    map_expressions,
)
from genesis.ir.node import Node
from genesis.ir.rewrite import substitute

#: A chunk of a panel takes this part of the second cache.
SHARE = 4

#: Gives the body of one tile, made by a function of the bodies for whole and for partial tiles.
Each = Callable[[Callable[[Body], Body]], Body]


def chunk_of(found: Operands, body: Body, width: int, chip: Chip) -> int | None:
    """How many points of the outermost sum to take at once; None: all of them."""
    loops = [s for s in body if isinstance(s, Loop)]
    outer, *inner = found.sums
    if len(loops) != 1 or len(loops[0].carried) != 1 or static(outer.extent) is None:
        return None
    each = points(inner) * width * found.right.dtype.itemsize
    room = chip.l2_bytes // SHARE
    return max(1, room // each) if extent(outer) * each > 2 * room else None


def in_chunks(
    each: Each, axis: Axis, chunk: int, tiles: Axis, at: tuple[Node, ...], shape: tuple[int, ...]
) -> Body:
    """A block of `tiles` that sums over `axis` in chunks; `at` is where a tile's sums are kept."""
    chunks = Axis(axis.name + "c", AxisKind.LOOP, ceil_div(axis.extent, chunk))
    left = simplify(as_index(axis.extent) - chunks.node * chunk)
    part = replace(axis, extent=least(chunk, fixed(left)))
    held: list[Buffer] = []

    def taken(body: Body) -> tuple[Loop, Buffer]:
        (loop,) = (s for s in body if isinstance(s, Loop))
        if not held:
            held.append(Buffer("sums", loop.carried[0].local.dtype, shape, Role.STAGE))
        return loop, held[0]

    def start(body: Body) -> Body:
        loop, sums = taken(body)
        return (Store(sums, at, loop.carried[0].init),)

    def add(body: Body) -> Body:
        loop, sums = taken(body)
        carry = replace(loop.carried[0], init=sums.load(*at))
        some = replace(loop, axis=part, carried=(carry,))
        here = chunks.node * chunk + part.node
        return (*respecialise((some,), {axis.node: here}), Store(sums, at, carry.local.node))

    def finish(body: Body) -> Body:
        loop, sums = taken(body)
        total = {loop.carried[0].local.node: sums.load(*at)}
        rest = tuple(s for s in body if s is not loop)
        return map_expressions(rest, lambda n: substitute([n], total)[0])

    first, middle, last = (Loop(tiles, each(step)) for step in (start, add, finish))
    return (Stage(held[0]), first, Loop(chunks, (middle,)), last)
