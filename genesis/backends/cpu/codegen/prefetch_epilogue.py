"""What is behind a sum: what an epilogue reads comes from memory while the sum is computed.

A tile of a contraction is summed in registers, which takes a while, and memory has little to do.
Then the epilogue reads its operands, a residual, say: a few lines each of many rows, which no
hardware foresees, and all of them are waited for. So they are asked for before the sum begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from genesis.backends.cpu.codegen.expression import Expressions
from genesis.backends.cpu.codegen.lanes import Point
from genesis.backends.cpu.codegen.prefetch import ask
from genesis.ir import ops
from genesis.ir.kernel import Body, Let, Loop, Role, Store, expressions, walk
from genesis.ir.node import Node, topological

_LINE = 64


def ask_behind(loop: Loop, behind: Body, x: Expressions, least: int) -> None:
    """Ask for what tiles `behind` a sum read of inputs of at least so many bytes."""
    if not loop.carried or any(isinstance(s, Store) for s in walk(loop.body)):
        return
    following = [s for s in behind if isinstance(s, Let | Store)]
    for n in topological(e for s in following for e in expressions(s)):
        if n.op is ops.LOAD and n.attr.role is Role.INPUT and n.attr.known_bytes >= least:
            address = x.analysis.address_of(n)
            if not x.analysis.volatile(address.flat) and len(x.analysis.tiles(n)) > 1:
                for point in _lines(n, x):
                    ask(x.pointer(n.attr, address, point), 0)


def _lines(n: Node, x: Expressions) -> Iterator[Point]:
    """The points of a tile at which it reads a line: at every one, and at the end of each row."""
    analysis, address = x.analysis, x.analysis.address_of(n)
    step = _LINE // n.attr.dtype.itemsize
    places = [(0,)] * len(analysis.extents)
    for axis in analysis.tiles(n):
        last = analysis.extents[axis] - 1
        along = analysis.stride(address, axis) == 1
        places[axis] = tuple(sorted({*range(0, last, step if along else 1), last}))
    return map(list, product(*places))


__all__ = ["ask_behind"]
