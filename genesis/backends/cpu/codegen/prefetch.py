"""Prefetching: what is needed next comes from memory while something else is computed.

*Next rows.* A row program (a softmax, a norm) goes through its row in several loops. The first one
waits for memory; the others find the row in a cache, and memory has nothing to do. So the second
one prefetches the next row: at every place of this row, the same place of that. So does a loop that
gathers from a row as long as itself: in which order it needs the row is data, and the hardware
cannot foresee it.

*Epilogues.* A tile of a contraction is summed in registers, which takes a while, and memory has
little to do. Then the epilogue reads its operands, a residual, say: a few lines each of many rows,
which no hardware foresees, and all of them are waited for. So they are prefetched before the sum.

Prefetching reads nothing and cannot fail, whatever lies there, also behind the last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.codegen.lanes import Analysis, Point
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import LinearIndex, bounds, simplify
from genesis.ir.node import Node, topological

if TYPE_CHECKING:
    from genesis.backends.cpu.codegen.expression import Expressions

#: A row that is prefetched takes this part of the second cache, at most.
_SHARE = 4
#: What costs as much as so many multiply-adds leaves time to prefetch.
_COSTLY = 4
#: The bytes of a line of a cache.
_LINE = 64


# ---- next rows


class PrefetchDistance(NamedTuple):
    """What is prefetched: what lies so many bytes after the place of a load."""

    place: Node
    distance: int


def prefetch_rows(
    phase: kir.Phase, analysis: Analysis, chip: CPU
) -> dict[Node, list[PrefetchDistance]]:
    """The loads with which next rows are prefetched."""
    result: dict[Node, list[PrefetchDistance]] = {}
    for row, loops in _rows(phase):
        gone_through: list[object] = []  # by each loop so far
        for k, s in enumerate(loops):
            here: dict[object, None] = {}
            for n in _large_inputs(s, chip.l2_bytes):
                found = _gathered(n)
                place = n if found is None else found.place
                flat = LinearIndex.of(simplify(analysis.address_of(place).flat))
                step = flat.terms.get(row.node, 0) * n.attr.dtype.itemsize
                near = 0 < step <= chip.l2_bytes // _SHARE
                if found is not None and near and s.axis.node in flat.terms:
                    result.setdefault(found.indices, []).append(PrefetchDistance(place, step))
                span = flat.terms.pop(s.axis.node, 0) * s.axis.extent
                stretch = (n.attr, span, flat.constant, frozenset(flat.terms.items()))
                here[stretch] = None
                again = span and gone_through.count(stretch) == 1
                if again and near and _takes_time(loops[k:]):
                    result.setdefault(n, []).append(PrefetchDistance(n, step))
            gone_through += here
    return result


def prefetch(pointer: LLVMValue, distance: int) -> None:
    """Have what lies so many bytes after a pointer brought to the second cache."""
    out = pointer.out
    there = out.op(f"getelementptr i8, {pointer}, i64 {distance}", "ptr")
    to_read, second_cache, data = (out.const(k, "i32") for k in (0, 2, 1))
    out.call_void("llvm.prefetch.p0", there, to_read, second_cache, data)


def _rows(phase: kir.Phase) -> Iterator[tuple[kir.Axis, list[kir.Loop]]]:
    """Innermost loops that follow each other for every point of an axis, and the axis."""
    around = [(axis, phase.body) for axis in phase.grid[-1:]]
    around += [(s.axis, s.body) for s in kir.walk(phase.body) if isinstance(s, kir.Loop)]
    for axis, body in around:
        loops = [s for s in body if isinstance(s, kir.Loop) and isinstance(s.axis.extent, int)]
        yield axis, [s for s in loops if not any(isinstance(x, kir.Loop) for x in s.body)]


def _nodes(loops: Sequence[kir.Loop]) -> list[Node]:
    return topological(e for x in kir.walk(tuple(loops)) for e in kir.expressions(x))


def _large_inputs(s: kir.Loop, least: int) -> list[Node]:
    """Loads of inputs that are too large for a cache."""
    loads = [n for n in _nodes([s]) if n.op is ops.LOAD and n.attr.role is kir.Role.INPUT]
    return [n for n in loads if n.attr.known_bytes >= least]


class _Gathered(NamedTuple):
    """A load from a place that another load, of `indices`, decides.

    `place` is what it would load if the indices of a row were its places in order.
    """

    indices: Node
    place: Node


def _gathered(n: Node) -> _Gathered | None:
    """How a load gathers from a row, if there are about as many indices as elements of the row."""
    buffer, at, _, _ = kir.load_parts(n)
    loads = {d: [x for x in topological([i]) if x.op is ops.LOAD] for d, i in enumerate(at)}
    by_data = [d for d in loads if loads[d]]
    if by_data != [len(at) - 1] or len(loads[by_data[0]]) != 1:
        return None
    (indices,) = loads[by_data[0]]
    in_order, length = kir.load_parts(indices)[1][-1], buffer.shape[-1]
    if not isinstance(length, int) or not length // 2 <= bounds(in_order)[1] < length:
        return None
    return _Gathered(indices, buffer.load(*at[:-1], in_order))


def _takes_time(loops: Sequence[kir.Loop]) -> bool:
    """Whether more is done than adding up: for that alone, the hardware is faster by itself."""
    stores = any(isinstance(x, kir.Store) for x in kir.walk(tuple(loops)))
    return stores or any(n.op.cost >= _COSTLY for n in _nodes(loops) if n.op is not ops.LOAD)


# ---- what a schedule says


def prefetch_lines(s: kir.Prefetch, x: Expressions) -> None:
    """Prefetch every line that a tile touches."""
    place = s.buffer.load(*s.index)
    address = x.analysis.address_of(place)
    for point in _lines(place, x, True):
        prefetch(x.pointer(s.buffer, address, point), 0)


# ---- epilogues


def prefetch_epilogue(loop: kir.Loop, behind: kir.Body, x: Expressions, least: int) -> None:
    """Prefetch what tiles `behind` a sum read of inputs of at least so many bytes."""
    if not loop.carried or any(isinstance(s, kir.Store) for s in kir.walk(loop.body)):
        return
    following = [s for s in behind if isinstance(s, kir.Let | kir.Store)]
    for n in topological(e for s in following for e in kir.expressions(s)):
        if n.op is ops.LOAD and n.attr.role is kir.Role.INPUT and n.attr.known_bytes >= least:
            address = x.analysis.address_of(n)
            if not x.analysis.volatile(address.flat) and len(x.analysis.tiles(n)) > 1:
                for point in _lines(n, x):
                    prefetch(x.pointer(n.attr, address, point), 0)


def _lines(n: Node, x: Expressions, exact: bool = False) -> Iterator[Point]:
    """The points of a tile at which it reads a line: at every one, and at the end of each row."""
    analysis, address = x.analysis, x.analysis.address_of(n)
    step = _LINE // n.attr.dtype.itemsize
    places = [(0,)] * len(analysis.extents)
    for axis in analysis.tiles(n):
        last = analysis.extents[axis] - 1
        along = analysis.stride(address, axis) == 1
        ends = {last} if not (along and exact and (last + 1) % step == 0) else set()
        places[axis] = tuple(sorted({*range(0, last, step if along else 1), *ends}))
    return map(list, product(*places))
