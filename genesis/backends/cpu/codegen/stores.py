"""Stores: vectors, scalars, masks, and blocks of registers turned before they are written.

A store along the lanes is one instruction. Where memory is contiguous along another tile axis, a
block of registers is transposed first, so that every instruction writes neighbours. Masks that the
renderer can evaluate cut the vector instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby

from genesis.backends.cpu.codegen import scalar
from genesis.backends.cpu.codegen.emit import LLVMValue, mangle
from genesis.backends.cpu.codegen.expression import Expressions
from genesis.backends.cpu.codegen.lanes import (
    Analysis,
    Coordinate,
    Lane,
    Point,
    as_piece,
    first_of,
    moved,
    pieces,
)
from genesis.backends.cpu.codegen.nontemporal import Streams
from genesis.backends.cpu.codegen.outline import Outlines
from genesis.backends.cpu.codegen.transpose import transpose
from genesis.ir import ops
from genesis.ir.dtype import bool_, index
from genesis.ir.index import simplify
from genesis.ir.kernel import AxisKind, Store, expressions
from genesis.ir.node import TRUE, Node, const, is_const, mentions, node
from genesis.ir.rewrite import replaced


class Stores:
    """Writes the store statements of one function."""

    def __init__(self, x: Expressions, analysis: Analysis, streams: Streams) -> None:
        self.x = x
        self.out = x.out
        self.analysis = analysis
        self.streams = streams
        self.formulas = Outlines(x, analysis)
        self._prefixes: dict[tuple[object, ...], int | None] = {}

    def store(self, s: Store, lane: Lane) -> None:
        """Emit a store statement."""
        tiles = self.analysis.tiles
        axes = {a for n in expressions(s) for a in tiles(n)}
        indexed = {a for n in s.index for a in tiles(n)}
        if axes != indexed:
            raise ValueError(
                f"{s.buffer.name}: a tile axis of the value is not in the index of the store"
            )
        uniform = s.mask is not TRUE and lane.axis not in tiles(s.mask)
        # A transposed block is stored as soon as it is there; rows that share a mask stay together.
        points = list(self.analysis.points(axes, lane, lanes_outermost=not uniform))
        # Reads of the buffer see it as it was before the statement.
        reads = any(s.buffer in self.analysis.volatile(n) for n in expressions(s))
        across = None if reads or s.atomic is not None else self._across(s, lane)
        if across is not None:
            self._store_transposed(s, lane, across, axes)
            self.x.forget(s.buffer)
            return
        # What is read turned is read for all points at once, so before the branches.
        at_once = reads or (uniform and self.x.turns(s.value, points[0], lane.axis))
        values = (
            [self.formulas.vector(s.value, p, lane_of(indexed, lane)) for p in points]
            if at_once
            else []
        )

        def mask_at(k: int) -> LLVMValue:
            return self.x.value(s.mask, points[k], lane.axis)

        if reads and s.mask is not TRUE:
            for k in range(len(points)):
                mask_at(k)

        def write(k: int, mask: LLVMValue | None) -> None:
            point = points[k]
            value = (
                values[k]
                if at_once
                else self.formulas.vector(s.value, point, lane_of(indexed, lane))
            )
            if s.atomic is not None:
                self._atomic(s, point, lane.axis, value, mask)
            else:
                self._write(s, point, lane.axis, value, mask)

        if not uniform:
            for k in range(len(points)):
                write(k, None if s.mask is TRUE else mask_at(k))
        else:
            # One branch for all points that share a condition.
            for _, group in groupby(range(len(points)), lambda k: mask_at(k).text):
                members = list(group)
                with self.x.scope(), self.out.guard(mask_at(members[0])):
                    for k in members:
                        write(k, None)
        self.x.forget(s.buffer)

    def interleave(self, first: Store, second: Store, lane: Lane) -> bool:
        """Write two stores as one, if each fills the gaps of the other; False: they do not.

        Vectors of every second element, such as the parts of complex numbers, become two vectors of
        neighbours.
        """
        x, analysis, buffer = self.x, self.analysis, first.buffer
        axes = {a for n in first.index for a in analysis.tiles(n)}
        address = analysis.address_of(first)
        reads = [n for s in (first, second) for n in expressions(s)]
        if (
            not _neighbours(first, second)
            or lane.axis not in axes
            or analysis.stride(address, lane.axis) != 2
            or any(a not in axes for n in reads for a in analysis.tiles(n))
            or any(buffer in analysis.volatile(n) for n in reads)
        ):
            return False
        for point in analysis.points(axes, lane):
            a, b = (x.vector(s.value, point, lane.axis) for s in (first, second))
            if not a.width:
                self._write(first, point, lane.axis, a, None)
                self._write(second, point, lane.axis, b, None)
                continue
            a, b = (x.to_memory(v, buffer) for v in (a, b))
            start, width = as_piece(point[lane.axis])
            order = [k // 2 + k % 2 * width for k in range(2 * width)]
            for half in range(2):
                here = moved(point, lane.axis, (start + half * width // 2, width))
                pointer = x.pointer(buffer, address, here)
                part = a.shuffle(b, order[half * width : (half + 1) * width])
                self.out.do(f"store {part}, {pointer}{x.access[buffer]}")
        x.forget(buffer)
        return True

    def _across(self, s: Store, lane: Lane) -> int | None:
        """Another tile axis along which a store is contiguous, when along the lanes it is not."""
        if lane.axis < 0 or lane.axis not in {a for n in s.index for a in self.analysis.tiles(n)}:
            return None
        address = self.analysis.address_of(s)
        stride = partial(self.analysis.stride, address)
        if stride(lane.axis) in (1, -1, None):
            return None
        others = (a for a, slope in address.slopes.items() if a != lane.axis and slope == 1)
        return next((a for a in others if stride(a) == 1), None)

    def _store_transposed(self, s: Store, lane: Lane, across: int, axes: set[int]) -> None:
        """Turn blocks of registers, so that each store writes neighbours."""
        x, analysis = self.x, self.analysis
        for origin in analysis.points(axes - {across}, lane):
            at = origin[lane.axis]
            for piece in pieces(analysis.extents[across], lane.longest):
                if isinstance(at, int) or isinstance(piece, int):
                    self._store_points(s, lane, across, origin, piece)
                    continue
                start, width = at
                first, count = piece
                rows = [moved(origin, across, first + k) for k in range(count)]
                columns = transpose([self.formulas.vector(s.value, p, lane.axis) for p in rows])
                for k in range(width):
                    here = moved(moved(origin, lane.axis, start + k), across, piece)
                    mask = None if s.mask is TRUE else x.vector(s.mask, here, across)
                    self._write(s, here, across, columns[k], mask)

    def _store_points(
        self, s: Store, lane: Lane, across: int, origin: Point, piece: Coordinate
    ) -> None:
        """What is left beside the blocks: one vector or scalar after the other."""
        for k in [piece] if isinstance(piece, int) else range(piece[0], sum(piece)):
            here = moved(origin, across, k)
            mask = None if s.mask is TRUE else self.x.value(s.mask, here, lane.axis)
            if mask is not None and not mask.width and not isinstance(here[lane.axis], int):
                mask = self.x.splat(mask, here[lane.axis][1])  # type: ignore[index]
            self._write(s, here, lane.axis, self.formulas.vector(s.value, here, lane.axis), mask)

    def _write(
        self, s: Store, point: Point, lane: int, value: LLVMValue, mask: LLVMValue | None
    ) -> None:
        """One store of a scalar or a vector; a mask here differs between lanes."""
        x, out, buffer = self.x, self.out, s.buffer
        address = self.analysis.address_of(s)
        value = x.to_memory(value, buffer)
        if not value.width:
            pointer = x.pointer(buffer, address, point)
            with nullcontext() if mask is None else out.guard(mask):
                out.do(f"store {value}, {pointer}{x.access[buffer]}")
            return
        stride = self.analysis.stride(address, lane)
        width = value.width
        if stride in (1, -1):
            first = point
            if stride < 0:
                value, mask = value.reverse(), None if mask is None else mask.reverse()
                first = list(point)
                start, _ = as_piece(point[lane])
                first[lane] = start + width - 1
            pointer = x.pointer(buffer, address, first)
            known = None if mask is None or stride < 0 else self._known_prefix(s.mask, point, lane)
            if known is not None:
                # A vector of just these lanes. (LLVM 22 turns a masked store of one known lane
                # that was truncated into a store of the wide lane, over its neighbour.)
                if known:
                    part = value.shuffle(None, range(known))
                    out.do(f"store {part}, {pointer}{x.access[buffer]}")
            elif mask is None:
                run = self.analysis.extents[lane]
                if not self.streams.store(buffer, address, first, value, run):
                    out.do(f"store {value}, {pointer}{x.access[buffer]}")
            else:
                name = f"llvm.masked.store.{mangle(value.element, width)}.p0"
                out.call_void(name, value, pointer, mask)
        elif mask is None and not (stride is None and self.analysis.by_data(address.flat, lane)):
            for k in range(width):
                pointer = self._lane_pointer(s, point, lane, k)
                out.do(f"store {value.lane(k)}, {pointer}{x.access[buffer]}")
        else:
            lanes = mask if mask is not None else out.const(1, "i1", width)
            name = f"llvm.masked.scatter.{mangle(value.element, width)}.v{width}p0"
            out.call_void(name, value, x.pointer_vector(buffer, address, point, lane), lanes)

    def _known_prefix(self, mask: Node, point: Point, lane: int) -> int | None:
        """The number of lanes a mask lets through, when it is known and they are the first ones."""
        key = (mask, lane, point[lane], self.analysis.place(mask)(point))
        if key not in self._prefixes:
            self._prefixes[key] = self._prefix(mask, point, lane)
        return self._prefixes[key]

    def _prefix(self, mask: Node, point: Point, lane: int) -> int | None:
        axes = mentions(mask)
        if any(n.op is not ops.AXIS or n.attr.kind is not AxisKind.TILE for n in axes):
            return None
        start, width = as_piece(point[lane])
        at = {n: const(first_of(point[self.analysis.number(n.attr)]), index) for n in axes}
        own = next((n for n in axes if self.analysis.number(n.attr) == lane), None)
        through: list[bool] = []
        for k in range(width):
            if own is not None:
                at[own] = const(start + k, index)
            lets = simplify(replaced(mask, dict(at)))
            if lets.op is not ops.CONST:  # it depends on data
                return None
            through.append(bool(lets.attr))
        known = sum(through)
        return known if all(through[:known]) else None

    def _lane_pointer(self, s: Store, point: Point, lane: int, k: int) -> LLVMValue:
        here = list(point)
        if lane >= 0 and not isinstance(at := point[lane], int):
            here[lane] = at[0] + k
        return self.x.pointer(s.buffer, self.analysis.address_of(s), here)

    def _atomic(
        self, s: Store, point: Point, lane: int, value: LLVMValue, mask: LLVMValue | None
    ) -> None:
        """Combine with memory lane by lane, in order."""
        for k in range(max(value.width, 1)):
            one = value.lane(k) if value.width else value
            allowed = mask.lane(k) if mask is not None and mask.width else mask
            with self.x.scope(), nullcontext() if allowed is None else self.out.guard(allowed):
                self._exchange(s, self._lane_pointer(s, point, lane, k), one)

    def _exchange(self, s: Store, pointer: LLVMValue, value: LLVMValue) -> None:
        """Retry until nobody else wrote between reading and writing."""
        out, dtype = self.out, s.buffer.dtype
        assert s.atomic is not None
        bits = f"i{dtype.bits}"
        first = out.op(f"load atomic {bits}, {pointer} monotonic, align {dtype.itemsize}", bits)
        before, again, after = out.block, out.label(), out.label()
        out.jump(again)
        out.place(again)
        seen = out.phi(bits)
        old = seen.value.differs(0) if dtype is bool_ else _as(seen.value, scalar.register(dtype))
        shape = node(s.atomic, (const(0, dtype), const(0, dtype)), None, dtype)
        new = scalar.apply(shape, [old, value])
        stored = new.convert("zext", "i8") if dtype is bool_ else _as(new, bits)
        text = (
            f"cmpxchg {pointer}, {seen.value}, {stored} monotonic monotonic, align {dtype.itemsize}"
        )
        pair = out.op(text, f"{{ {bits}, i1 }}")
        found = out.op(f"extractvalue {pair}, 0", bits)
        seen.set((first, before), (found, out.block))
        out.branch(out.op(f"extractvalue {pair}, 1", "i1"), after, again)
        out.place(after)


def _as(value: LLVMValue, element: str) -> LLVMValue:
    return value if value.element == element else value.convert("bitcast", element)


def _neighbours(first: Store, second: Store) -> bool:
    """Whether plain stores differ only in that the second writes the next element in memory."""
    plain = first.mask is TRUE is second.mask and first.atomic is None is second.atomic
    if not plain or first.buffer != second.buffer or not first.index:
        return False
    a, b = first.index[-1], second.index[-1]
    step = first.buffer.layout[-1]
    beside = a.op is ops.CONST is b.op and b.attr == a.attr + 1 and is_const(step, 1)
    return beside and first.index[:-1] == second.index[:-1]


def lane_of(axes: Sequence[int] | set[int], lane: Lane) -> int:
    """The lane axis where it is among `axes`, else none."""
    return lane.axis if lane.axis in axes else -1
