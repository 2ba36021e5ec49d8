"""Non-temporal stores: large results are written past the caches.

A store that misses reads its cache line first. A result larger than the shared cache is gone from
there before anybody reads it, and pushes out what others need: a third of the traffic is for
nothing. A streaming store writes whole lines and reads none. It needs an aligned address, and it is
the wrong one for memory that was just read, so both are asked of the pointers at run time: a result
may be a view, or take over the memory of an input.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.codegen.expression import Expressions
from genesis.backends.cpu.codegen.lanes import Address, Point
from genesis.ir import ops
from genesis.ir.index import LinearIndex, simplify
from genesis.ir.kernel import Buffer, Kernel, Phase, Role, Store, expressions, walk
from genesis.ir.node import topological

_LINE = 64
_HALF = 32  # bytes; a line may be written in two halves
_RUN = 16
#: Bytes of a row, at least, that ends within a line. What others write to the rest of that line is
#: for the system to put together, at many times the price.
_ROW = 4096


class Streams:
    """The streaming stores of one function."""

    def __init__(self, x: Expressions, kernel: Kernel, phase: Phase, chip: CPU) -> None:
        self.x = x
        self.used = False
        shared = {s.buffer for s in walk(phase.body) if isinstance(s, Store) and self._shares(s)}
        rivals = _rivals(kernel, phase, chip.l3_bytes)
        self._rivals = {b: others for b, others in rivals.items() if b not in shared}
        self._allowed: dict[Buffer, LLVMValue] = {}
        self._divisors: dict[Address, int] = {}
        self._node = ""

    def store(
        self, buffer: Buffer, address: Address, point: Point, value: LLVMValue, run: int
    ) -> bool:
        """Write a vector of neighbours past the caches; False: not for this one.

        It is part of a tile with `run` neighbours. Those of a short one leave parts of lines.
        """
        x, out = self.x, self.x.out
        if buffer not in self._rivals or run < _RUN:
            return False
        size = buffer.dtype.itemsize
        aligned = self._aligned(address, point, value.width, run, size) * size
        if aligned < min(_HALF, value.width * size):
            return False
        self.used = True
        self._node = self._node or out.module.node("!{i32 1}")
        pointer = x.pointer(buffer, address, point)
        stream, cached, after = (out.label() for _ in range(3))
        out.branch(self._allows(buffer), stream, cached)
        metadata = x.access[buffer].partition(", !")[2]
        out.place(stream)
        out.do(f"store {value}, {pointer}, align {aligned}, !{metadata}, !nontemporal {self._node}")
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

    def _shares(self, s: Store) -> bool:
        """Whether rows that are written side by side begin within lines."""
        flat = LinearIndex.of(simplify(self.x.analysis.address_of(s).flat))
        return _within_a_line(flat.constant * s.buffer.dtype.itemsize)

    def _aligned(self, address: Address, point: Point, width: int, run: int, size: int) -> int:
        """The elements a vector lies on a multiple of, if its buffer begins at one of many.

        A part of the vector, if need be: then it is written in as many parts.
        """
        if address not in self._divisors:
            flat = LinearIndex.of(simplify(address.flat))
            steps = flat.terms.values()
            ragged = any(_within_a_line(step * size) and step % run for step in steps)
            self._divisors[address] = 1 if ragged else gcd(*steps, flat.constant)
        return gcd(self._divisors[address], address.offset(point), width)

    def _allows(self, buffer: Buffer) -> LLVMValue:
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


def _within_a_line(nbytes: int) -> bool:
    """Whether the end of so short a row is not that of a line."""
    return nbytes % _LINE != 0 and abs(nbytes) < _ROW


def _rivals(kernel: Kernel, phase: Phase, cache: int) -> dict[Buffer, list[Buffer]]:
    """Large results of a phase that it does not read, each with the inputs it might overwrite.

    What another phase reads must be larger, to be gone from the cache.
    """
    here, anywhere = (_read(phases) for phases in ((phase,), kernel.phases))
    results = [b for b in kernel.buffers if b.role is Role.OUTPUT and b not in here]
    large = [b for b in results if b.known_bytes >= (cache if b in anywhere else cache // 2)]
    inputs = [b for b in kernel.buffers if b.role is Role.INPUT]
    return {b: [a for a in inputs if a.known_bytes == b.known_bytes] for b in large}


def _read(phases: Iterable[Phase]) -> set[Buffer]:
    """The buffers that phases load from."""
    statements = [s for phase in phases for s in walk(phase.body)]
    nodes = topological(n for s in statements for n in expressions(s))
    return {n.attr for n in nodes if n.op is ops.LOAD}
