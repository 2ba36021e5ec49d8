"""Rows ahead: while a row is gone through again, the next one comes from memory.

A row program (a softmax, a norm) goes through its row in several loops. The first one waits for
memory; the others find the row in a cache, and memory has nothing to do. So the second one asks for
the next row: at every place of this row, for the same place of that. Asking reads nothing and
cannot fail, whatever lies there, also behind the last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.emit import Value
from genesis.backends.cpu.lanes import Analysis
from genesis.ir import ops
from genesis.ir.index import Linear, simplify
from genesis.ir.kernel import Axis, Loop, Phase, Role, Store, expressions, walk
from genesis.ir.node import Node, topological

#: A row that is asked for takes this part of the second cache, at most.
_SHARE = 4
#: What costs as much as so many multiply-adds leaves time to ask.
_COSTLY = 4


def rows_ahead(phase: Phase, analysis: Analysis, chip: CPU) -> dict[Node, int]:
    """The loads with which the next row is asked for, and how many bytes further on it lies."""
    result: dict[Node, int] = {}
    for row, loops in _rows(phase):
        gone_through: list[object] = []  # by each loop so far
        for k, s in enumerate(loops):
            here: dict[object, None] = {}
            for n in _large_inputs(s, chip.l2_bytes):
                flat = Linear.of(simplify(analysis.address_of(n).flat))
                step = flat.terms.get(row.node, 0) * n.attr.dtype.itemsize
                span = flat.terms.pop(s.axis.node, 0) * s.axis.extent
                stretch = (n.attr, span, flat.constant, frozenset(flat.terms.items()))
                here[stretch] = None
                again = span and gone_through.count(stretch) == 1
                if again and 0 < step <= chip.l2_bytes // _SHARE and _takes_time(loops[k:]):
                    result[n] = step
            gone_through += here
    return result


def ask(pointer: Value, distance: int) -> None:
    """Have what lies so many bytes after a pointer brought to the second cache."""
    out = pointer.out
    there = out.op(f"getelementptr i8, {pointer}, i64 {distance}", "ptr")
    to_read, second_cache, data = (out.const(k, "i32") for k in (0, 2, 1))
    out.call_void("llvm.prefetch.p0", there, to_read, second_cache, data)


def _rows(phase: Phase) -> Iterator[tuple[Axis, list[Loop]]]:
    """Innermost loops that follow each other for every point of an axis, and the axis."""
    around = [(axis, phase.body) for axis in phase.grid[-1:]]
    around += [(s.axis, s.body) for s in walk(phase.body) if isinstance(s, Loop)]
    for axis, body in around:
        loops = [s for s in body if isinstance(s, Loop) and isinstance(s.axis.extent, int)]
        yield axis, [s for s in loops if not any(isinstance(x, Loop) for x in s.body)]


def _nodes(loops: Sequence[Loop]) -> list[Node]:
    return topological(e for x in walk(tuple(loops)) for e in expressions(x))


def _large_inputs(s: Loop, least: int) -> list[Node]:
    """Loads of inputs that are too large for a cache."""
    loads = [n for n in _nodes([s]) if n.op is ops.LOAD and n.attr.role is Role.INPUT]
    return [n for n in loads if n.attr.known_bytes >= least]


def _takes_time(loops: Sequence[Loop]) -> bool:
    """Whether more is done than adding up: for that alone, the hardware is faster by itself."""
    stores = any(isinstance(x, Store) for x in walk(tuple(loops)))
    return stores or any(n.op.cost >= _COSTLY for n in _nodes(loops) if n.op is not ops.LOAD)


__all__ = ["ask", "rows_ahead"]
