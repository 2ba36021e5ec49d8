"""Long sums of a contraction, in chunks: a piece of a panel stays in cache while rows pass by.

A register tile that sums over all of k at once reads a whole panel for every few rows, and a long
panel does not stay in the second cache. So a block of rows takes one chunk of k after the other.
In between, what its tiles have summed so far is kept in fast memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import Operands
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.queries import extent, points
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir.index import ceil_div, fixed, least, simplify
from genesis.ir.node import Node
from genesis.ir.rewrite import replaced

#: A chunk of a panel takes this part of the second cache; others that may suit.
SHARE = 4
SHARES = (2, 8, 16, 32)

#: Gives the body of one tile, made by a function of the bodies for whole and for partial tiles.
Each = Callable[[Callable[[kir.Body], kir.Body]], kir.Body]


def chunk_of(found: Operands, body: kir.Body, width: int, chip: Chip) -> int | None:
    """How many points of the outermost sum to take at once; None: all of them.

    At a point there are `width` elements that should stay in cache.
    """
    loops = [s for s in body if isinstance(s, kir.Loop)]
    outer, *inner = found.sums
    if len(loops) != 1 or len(loops[0].carried) != 1:
        return None
    each = points(inner) * width * found.right.dtype.itemsize
    length = extent(outer)
    best = max(1, chip.l2_bytes // SHARE // each)
    if length * each <= 2 * (chip.l2_bytes // SHARE):
        best = length
    others = [max(1, chip.l2_bytes // share // each) for share in SHARES]
    chunk = decide("chunk", [best, length, *(k for k in others if k < length)])
    return chunk if chunk < length else None


class Cut(NamedTuple):
    """An axis in chunks: what counts them, what counts inside of one, and where one begins."""

    outer: kir.Axis
    inner: kir.Axis
    begin: Node

    @property
    def node(self) -> Node:
        """The axis that was cut."""
        return simplify(self.begin + self.inner.node)


def cut(
    axis: kir.Axis, chunk: int | None, name: str, kind: kir.AxisKind = kir.AxisKind.LOOP
) -> Cut:
    """Cut `axis` into chunks, the last of which may be shorter, or into one that has it all.

    What counts them is called `name`.
    """
    if chunk is None:
        return Cut(kir.Axis(name, kind, 1), axis, kir.as_index(0))
    outer = kir.Axis(name, kind, ceil_div(axis.extent, chunk))
    begin = simplify(outer.node * chunk)
    length: kir.Index = chunk
    if not isinstance(axis.extent, int) or axis.extent % chunk:
        length = least(chunk, fixed(simplify(kir.as_index(axis.extent) - begin)))
    return Cut(outer, replace(axis, kind=kir.AxisKind.LOOP, extent=length), begin)


def in_chunks(
    each: Each,
    axis: kir.Axis,
    chunks: Cut,
    before: kir.Body,
    tiles: Sequence[kir.Axis],
    at: tuple[Node, ...],
    shape: tuple[int, ...],
) -> kir.Body:
    """A block of `tiles` that sums over `axis` in chunks.

    Each of them begins with the statements `before`; `at` is where a tile's sums are kept.
    """
    held: list[kir.Buffer] = []

    def taken(body: kir.Body) -> tuple[kir.Loop, kir.Buffer]:
        (loop,) = (s for s in body if isinstance(s, kir.Loop))
        if not held:
            held.append(kir.Buffer("sums", loop.carried[0].local.dtype, shape, kir.Role.STAGE))
        return loop, held[0]

    def start(body: kir.Body) -> kir.Body:
        loop, sums = taken(body)
        return (kir.Store(sums, at, loop.carried[0].init),)

    def add(body: kir.Body) -> kir.Body:
        loop, sums = taken(body)
        carry = replace(loop.carried[0], init=sums.load(*at))
        some = replace(loop, axis=chunks.inner, carried=(carry,))
        here = {axis.node: chunks.node}
        return (*respecialise((some,), here), kir.Store(sums, at, carry.local.node))

    def finish(body: kir.Body) -> kir.Body:
        loop, sums = taken(body)
        total = {loop.carried[0].local.node: sums.load(*at)}
        rest = tuple(s for s in body if s is not loop)
        return kir.map_expressions(rest, lambda n: replaced(n, total))

    first, middle, last = (kir.nest(tiles, each(step)) for step in (start, add, finish))
    return (kir.Stage(held[0]), *first, kir.Loop(chunks.outer, (*before, *middle)), *last)
