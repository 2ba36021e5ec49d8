"""Products of narrow numbers, several added to a 32-bit sum, in one instruction where there is one.

A `Reduce` over a tile axis of four whose values are products of bytes is emitted for whole vectors:
the quadruples of all lanes are one vector of bytes, loaded at once, and a factor that is equal in
all lanes is one quadruple, repeated. x86 multiplies unsigned by signed bytes; everywhere else the
bytes of a 32-bit lane are taken apart by shifts. Pairs of bfloat16 are words already, and an
operation on them (`ops.PAIRS`).
"""

from __future__ import annotations

from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.codegen import lanes, scalar
from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.codegen.expression import Expressions, Summand
from genesis.ir import ops
from genesis.ir.dtype import int8, uint8
from genesis.ir.kernel import Reduce
from genesis.ir.node import Node, topological

_SIGN = 0x80


class DotInstructions:
    """The quadruples of one function being written."""

    def __init__(self, x: Expressions, analysis: lanes.Analysis, chip: CPU) -> None:
        self.x, self.analysis = x, analysis
        self.native = chip.has_byte_dots
        if chip.has_bfloat16_dots:
            x.natively[ops.PAIRS] = self._pairs

    def factors(self, s: Reduce, lane: lanes.Lane) -> tuple[Node, Node] | None:
        """The factors of a quadruple, the unsigned one first, if it can be emitted for vectors."""
        found = lanes.byte_factors(s)
        if found is None or lane.axis < 0 or any(isinstance(p, int) for p in lane.pieces):
            return None
        quad = self.analysis.number(s.axis)
        if not all(self._lies_in_quads(n, quad, lane.axis) for n in found):
            return None
        a, b = sorted(found, key=lambda n: n.dtype is int8)
        return None if b.dtype is uint8 else (a, b)

    def _lies_in_quads(self, factor: Node, quad: int, lane: int) -> bool:
        """Whether bytes are read as quadruples, and combined by operations on bytes."""
        for n in topological([factor], lambda n: () if n.op is ops.LOAD else n.inputs):
            tiles = self.analysis.tiles(n)
            if n.op is ops.LOAD and n.attr in self.analysis.mutable:
                return False
            if quad not in tiles and lane not in tiles:
                continue
            if n.op is ops.LOAD:
                slopes = self.analysis.address_of(n).slopes
                plain = not {quad, lane} & {
                    *self.analysis.tiles(n.inputs[-2]),
                    *self.analysis.tiles(self.analysis.address_of(n).flat),
                }
                if not plain or slopes.get(quad) != 1 or slopes.get(lane, 0) not in (0, lanes.QUAD):
                    return False
            elif not n.op.is_elementwise or n.dtype.itemsize != 1:
                return False
        return True

    def emit(self, s: Reduce, factors: tuple[Node, Node], lane: lanes.Lane) -> None:
        """Emit a quadruple for every point, and give its local the values."""
        quad = self.analysis.number(s.axis)
        axes = {a for n in factors for a in self.analysis.tiles(n)} - {quad}
        values = []
        for point in self.analysis.points(axes, lane):
            a, b = (self._bytes(n, point, quad, lane.axis) for n in factors)
            values.append((point, self._dot(a, b, factors[0].dtype is int8)))
        self.x.bind_local(s.locals[0], lane, values)

    def _bytes(self, n: Node, point: lanes.Point, quad: int, lane: int) -> LLVMValue:
        """The quadruples of all lanes of a factor, as one vector of bytes."""
        start, width = lanes.as_piece(point[lane])
        tiles = self.analysis.tiles(n)
        if quad not in tiles and lane not in tiles:
            return self.x.splat(self.x.value(n, point), lanes.QUAD * width)
        place = tuple(point[a] for a in tiles if a != quad)
        return self.x.once(
            ("quadruples", n, place), lambda: self._read(n, point, quad, lane, start, width)
        )

    def _read(
        self, n: Node, point: lanes.Point, quad: int, lane: int, start: int, width: int
    ) -> LLVMValue:
        if n.op is not ops.LOAD:
            return scalar.apply(n, [self._bytes(i, point, quad, lane) for i in n.inputs])
        first = lanes.moved(lanes.moved(point, quad, 0), lane, start)
        if self.analysis.address_of(n).slopes.get(lane, 0):
            return self.x.read_bytes(n, first, "i8", lanes.QUAD * width)
        one = self.x.read_bytes(n, first, "i32", 0).splat(width)
        return _as_bytes(one)

    def _dot(self, a: LLVMValue, b: LLVMValue, signed: bool) -> LLVMValue:
        out, width = a.out, a.width // lanes.QUAD
        zero = out.const(0, "i32", width)
        if not self.native or width not in (4, 8, 16):
            return _taken_apart(a, b, signed)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * width}"

        def add(total: LLVMValue, unsigned: LLVMValue, factor: LLVMValue) -> LLVMValue:
            return out.call(name, "i32", width, total, unsigned, factor)

        if not signed:
            return Summand(zero, lambda total: add(total, a, b))
        # a = (a + 128) - 128, and 128 times the other factor is the same for all columns.
        offset = out.const(-_SIGN, "i8", a.width)
        extra = self.x.once(("offset", b.text), lambda: add(zero, offset, b))
        shifted = self.x.once(("shifted", a.text), lambda: a ^ offset)
        return Summand(zero, lambda total: add(total - extra, shifted, b))

    def _pairs(self, a: LLVMValue, b: LLVMValue) -> LLVMValue:
        """Two products of bfloat16 for every lane, which an instruction adds to a sum."""
        out, width = a.out, a.width
        if width not in (4, 8, 16):
            return scalar.pairs(a, b)
        twice = 2 * width
        words = [out.op(f"bitcast {v} to <{twice} x bfloat>", "bfloat", twice) for v in (a, b)]
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"
        zero = out.const(0, "float", width)
        return Summand(zero, lambda total: out.call(name, "float", width, total, *words))


def _as_bytes(words: LLVMValue) -> LLVMValue:
    width = lanes.QUAD * words.width
    return words.out.op(f"bitcast {words} to <{width} x i8>", "i8", width)


def _taken_apart(a: LLVMValue, b: LLVMValue, signed: bool) -> LLVMValue:
    """The sum of four products without an instruction for it."""
    width = a.width // lanes.QUAD
    words = [v.out.op(f"bitcast {v} to <{width} x i32>", "i32", width) for v in (a, b)]

    def byte(word: LLVMValue, k: int, signed: bool) -> LLVMValue:
        raised = word << (24 - 8 * k)
        return raised >> 24 if signed else raised.binary("lshr", 24)

    total = words[0].like(0)
    for k in range(lanes.QUAD):
        total = total + byte(words[0], k, signed) * byte(words[1], k, True)
    return total
