"""Streaming stores: large results are written past the caches.

A store that misses reads its cache line first. A result larger than the shared cache is gone from
there before anybody reads it, and pushes out what others need: a third of the traffic is for
nothing. A streaming store writes whole lines and reads none. It needs an aligned address, and it is
the wrong one for memory that was just read, so both are asked of the pointers at run time: a result
may be a view, or take over the memory of an input.
"""

from __future__ import annotations

from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.emit import Value
from genesis.backends.cpu.expression import Expressions
from genesis.backends.cpu.lanes import Address, Point
from genesis.ir import ops
from genesis.ir.index import Linear, simplify
from genesis.ir.kernel import Buffer, Kernel, Role, expressions, walk
from genesis.ir.node import topological

_LINE = 64
_RUN = 16


class Streams:
    """The streaming stores of one function."""

    def __init__(self, x: Expressions, kernel: Kernel, chip: CPU) -> None:
        self.x = x
        self.used = False
        self._rivals = _rivals(kernel, chip.l3_bytes // 2)
        self._allowed: dict[Buffer, Value] = {}
        self._divisors: dict[tuple[Address, int], bool] = {}
        self._node = ""

    def store(self, buffer: Buffer, address: Address, point: Point, value: Value, run: int) -> bool:
        """Write a vector of neighbours past the caches; False: not for this one.

        It is part of a tile with `run` neighbours. Those of a short one leave parts of lines.
        """
        x, out = self.x, self.x.out
        if buffer not in self._rivals or run < _RUN:
            return False
        if not self._aligned(address, point, value.width):
            return False
        self.used = True
        self._node = self._node or out.module.node("!{i32 1}")
        pointer = x.pointer(buffer, address, point)
        stream, cached, after = (out.label() for _ in range(3))
        out.branch(self._allows(buffer), stream, cached)
        nbytes = value.width * buffer.dtype.itemsize
        metadata = x.access[buffer].partition(", !")[2]
        out.place(stream)
        out.do(f"store {value}, {pointer}, align {nbytes}, !{metadata}, !nontemporal {self._node}")
        out.jump(after)
        out.place(cached)
        out.do(f"store {value}, {pointer}{x.access[buffer]}")
        out.jump(after)
        out.place(after)
        return True

    def finish(self) -> None:
        """Streaming stores may come late: whoever is told that the block is done must see them."""
        if self.used:
            self.x.out.do("fence seq_cst")

    def _aligned(self, address: Address, point: Point, width: int) -> bool:
        """Whether a vector lies on a multiple of its size, if its buffer begins at one."""
        key = (address, width)
        if key not in self._divisors:
            flat = Linear.of(simplify(address.flat))
            self._divisors[key] = not any(c % width for c in (*flat.terms.values(), flat.constant))
        return self._divisors[key] and address.offset(point) % width == 0

    def _allows(self, buffer: Buffer) -> Value:
        """Whether the buffer begins at a cache line and is no input's memory."""
        if buffer not in self._allowed:
            early, pointer = self.x.out.op_early, self.x.base(buffer)
            bits = early(f"ptrtoint {pointer} to i64", "i64")
            rest = early(f"and {bits}, {_LINE - 1}", "i64")
            allowed = early(f"icmp eq {rest}, 0", "i1")
            for rival in self._rivals[buffer]:
                other = early(f"icmp ne {pointer}, {self.x.base(rival).text}", "i1")
                allowed = early(f"and {allowed}, {other.text}", "i1")
            self._allowed[buffer] = allowed
        return self._allowed[buffer]


def _rivals(kernel: Kernel, least: int) -> dict[Buffer, list[Buffer]]:
    """Large results that are never read, each with the inputs whose memory it might take over."""
    statements = [s for phase in kernel.phases for s in walk(phase.body)]
    nodes = topological(n for s in statements for n in expressions(s))
    read = {n.attr for n in nodes if n.op is ops.LOAD}
    large = [b for b in kernel.buffers if b.role is Role.OUTPUT and b not in read]
    inputs = [b for b in kernel.buffers if b.role is Role.INPUT]
    return {b: [a for a in inputs if _size(a) == _size(b)] for b in large if _size(b) >= least}


def _size(buffer: Buffer) -> int:
    """Bytes of a buffer; 0 where they are known only at launch."""
    size = buffer.dtype.itemsize
    for extent in buffer.shape:
        size *= extent if isinstance(extent, int) else 0
    return size


__all__ = ["Streams"]
