"""Emitting expressions: every node once per scope and point.

`Expressions.value` gives a node's value at a point of the tile axes: a scalar, or a vector where
the node mentions the lane axis. Values are remembered by node and the coordinates of the axes it
mentions, until their scope ends or something they read changes. Index arithmetic stays scalar: a
vector of indices is its first lane plus a constant, and a bound check compares lane numbers with
one scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from genesis.backends.cpu.codegen import scalar
from genesis.backends.cpu.codegen.emit import LLVMFunction, LLVMValue, gather_lanes, mangle
from genesis.backends.cpu.codegen.lanes import (
    Address,
    Analysis,
    Lane,
    Place,
    Point,
    as_piece,
    first_of,
    moved,
    pieces,
)
from genesis.backends.cpu.codegen.math.building_blocks import quotient
from genesis.backends.cpu.codegen.prefetch import PrefetchDistance, prefetch
from genesis.backends.cpu.codegen.transpose import transpose
from genesis.backends.cpu.codegen.vector_reductions import State
from genesis.ir import ops
from genesis.ir.dtype import bool_, index
from genesis.ir.kernel import AxisKind, Buffer, Local, Merge, Param
from genesis.ir.node import TRUE, Node, is_const, topological
from genesis.ir.size import Symbol

#: What is in a slot of a kernel's arguments.
Argument = Buffer | Param | Symbol
Handler = Callable[[Node, Point, int], LLVMValue]
#: Nodes in order, each with its place, and either how it is emitted or which steps it combines.
Plan = list[tuple[Node, Place, Handler | None, list[int]]]

#: Loads whose (scalar) mask is false read these zeros instead of memory.
ZEROS = "@zeros"
ZEROS_BYTES = 1024
#: Lanes this many elements apart lie in vectors that are read as a whole.
NEAR = 2
#: Points of a tile from which on what is done at each makes a kernel long.
MANY = 8


class Summand(LLVMValue):
    """A value that an instruction adds to another one; alone, it is added to zero."""

    __slots__ = ("added_to",)

    def __init__(self, zero: LLVMValue, added_to: Callable[[LLVMValue], LLVMValue]) -> None:
        alone = added_to(zero)
        super().__init__(alone.out, alone.text, alone.element, alone.width)
        self.added_to = added_to


class Expressions:
    """The expressions of one function being written."""

    def __init__(
        self,
        out: LLVMFunction,
        analysis: Analysis,
        slots: Mapping[Argument, int],
        vector_bytes: int = 16,
    ) -> None:
        self.out = out
        self.vector_bytes = vector_bytes
        self.analysis = analysis
        self.slots = slots
        self.pointers: dict[Buffer, LLVMValue] = {}  # the first elements of those met so far
        self.access: dict[Buffer, str] = {}  # what every load and store of it says
        self.prefetches: dict[Node, list[PrefetchDistance]] = {}  # what loads prefetch besides
        self._memo: dict[tuple[Any, ...], LLVMValue] = {}
        self._scopes: list[list[tuple[Any, ...]]] = [[]]
        self._plans: dict[tuple[Node, int], Plan] = {}
        self._merges: dict[Merge, list[Node]] = {}
        self._bound: set[Node] = set()
        self._lanes: dict[Local, Lane] = {}  # the lane axis a local was bound with
        self._arguments: dict[Node, LLVMValue] = {}  # the scalars met so far
        #: Operations on vectors for which the chip has an instruction.
        self.natively: dict[ops.Op, Callable[[LLVMValue, LLVMValue], LLVMValue]] = {}

    # ---- what is known where
    @contextmanager
    def scope(self) -> Iterator[None]:
        """Code that may not run before what follows: values emitted inside are forgotten."""
        self._scopes.append([])
        yield
        for key in self._scopes.pop():
            self._memo.pop(key, None)

    def forget(self, changed: object) -> None:
        """Forget every value that was computed from a local or buffer that now changes."""
        if isinstance(changed, Buffer) and changed not in self.analysis.mutable:
            return
        volatile = self.analysis.volatile
        stale = [k for k in self._memo if isinstance(k[0], Node) and changed in volatile(k[0])]
        for key in stale:
            del self._memo[key]

    def bind(self, n: Node, value: LLVMValue, point: Point | None = None) -> None:
        """Give an axis that is not a tile its value, or a node its value at a point.

        What the node is computed from is not looked at then: it may be known elsewhere only.
        """
        self._bound.add(n)
        self._remember(self.key(n, point or []), value)

    def bind_local(
        self, local: Local, lane: Lane, values: Sequence[tuple[Point, LLVMValue]]
    ) -> None:
        """Give a local its values, one for every point of its tiles."""
        n = local.node
        if local in self._lanes:
            self.forget(local)
        self._lanes[local] = lane
        for point, value in values:
            self._remember(self.key(n, point), value)

    def key(self, n: Node, point: Point) -> tuple[Any, ...]:
        """What the value of a node at a point is remembered by."""
        return n, self.analysis.place(n)(point)

    def _remember(self, key: tuple[Any, ...], value: LLVMValue) -> LLVMValue:
        self._memo[key] = value
        self._scopes[-1].append(key)
        return value

    # ---- values
    def value(self, root: Node, point: Point, lane: int = -1) -> LLVMValue:
        """The value of an expression; a vector where `lane` is a piece and the root mentions it."""
        found = self._memo.get((root, self.analysis.place(root)(point)))
        if found is not None:
            return found
        if lane >= 0 and (isinstance(point[lane], int) or lane not in self.analysis.tiles(root)):
            lane = -1
        memo, emitted = self._memo, self._scopes[-1]
        results: list[LLVMValue] = []
        for n, place, handler, operands in self._plan(root, lane):
            key = (n, place(point))
            result = memo.get(key)
            if result is None:
                if handler is None:
                    result = self._elementwise(n, [results[k] for k in operands], lane)
                else:
                    result = handler(n, point, lane)
                memo[key] = result
                emitted.append(key)
            results.append(result)
        return results[-1]

    def vector(self, root: Node, point: Point, lane: int) -> LLVMValue:
        """The value of an expression, in all lanes if it does not mention the lane axis."""
        value = self.value(root, point, lane)
        at = point[lane] if lane >= 0 else 0
        return value if isinstance(at, int) or value.width else self.splat(value, at[1])

    def splat(self, value: LLVMValue, width: int) -> LLVMValue:
        """A scalar as a vector, emitted once."""
        if value.is_literal:
            return value.splat(width)
        key = (value.text, width)
        return self._memo.get(key) or self._remember(key, value.splat(width))

    def once(self, key: tuple[Any, ...], emit: Callable[[], LLVMValue]) -> LLVMValue:
        """What `emit` gives, emitted once in a scope."""
        return self._memo.get(key) or self._remember(key, emit())

    def merge(self, merge: Merge, left: State, right: State) -> State:
        """The result of a merge of two states of equal width."""
        order = self._merges.get(merge)
        if order is None:
            order = self._merges[merge] = topological(merge.result)
        values = {v.node: x for v, x in zip(merge.left + merge.right, left + right, strict=True)}
        width = left[0].width
        for n in order:
            if n in values:
                continue
            if n.op.is_elementwise:
                values[n] = scalar.apply(n, self._widened([values[i] for i in n.inputs]))
            else:
                values[n] = self.value(n, [])
        results = [values[r] for r in merge.result]
        return tuple(self.splat(v, width) if width and not v.width else v for v in results)

    def _widened(self, values: list[LLVMValue]) -> list[LLVMValue]:
        widths = [v.width for v in values]
        width = max(widths)
        if width == min(widths):
            return values
        return [self.splat(v, width) if v.width != width else v for v in values]

    # ---- plans: which nodes to emit, in which order and how
    def _plan(self, root: Node, lane: int) -> Plan:
        plan = self._plans.get((root, lane))
        if plan is None:
            handlers: dict[Node, Handler | None] = {}

            def needs(n: Node) -> tuple[Node, ...]:
                handlers[n] = self._unbound if n in self._bound else self._handler(n, lane)
                return () if handlers[n] else n.inputs

            order = topological([root], needs)
            steps = {n: k for k, n in enumerate(order)}
            plan = self._plans[root, lane] = [
                (n, self.analysis.place(n), handlers[n],
                 [] if handlers[n] else [steps[i] for i in n.inputs])
                for n in order
            ]  # fmt: skip
        return plan

    def _handler(self, n: Node, lane: int) -> Handler | None:
        """How a node is emitted; None where that takes the values of its inputs."""
        if n.op.is_elementwise:
            if lane >= 0 and lane in self.analysis.tiles(n):
                if n.dtype is index and self._slope(n, lane) is not None:
                    return self._indices
                if n.op.group == "compare" and n.inputs[0].dtype is index:
                    slopes = [self._slope(i, lane) for i in n.inputs]
                    if None not in slopes:
                        return self._bound_check
            return None
        if n.op is ops.LOAD:
            return self._load
        if n.op is ops.CONST:
            return self._constant
        if n.op is ops.AXIS and n.attr.kind is AxisKind.TILE:
            return self._tile_axis
        if n.op is ops.LOCAL:
            return self._local
        if n.op in (ops.PARAM, ops.SYMBOL):
            return self._scalar_argument
        return self._unbound

    def _slope(self, n: Node, lane: int) -> int | None:
        linear = self.analysis.linear(n)
        return None if linear is None else linear[1].get(lane, 0)

    def _constant(self, n: Node, point: Point, lane: int) -> LLVMValue:
        return scalar.constant(self.out, n.attr, n.dtype)

    def _unbound(self, n: Node, point: Point, lane: int) -> LLVMValue:
        raise ValueError(f"{n!r} is used outside the loop, block or kernel that defines it")

    def _tile_axis(self, n: Node, point: Point, lane: int) -> LLVMValue:
        at = point[self.analysis.tiles(n)[0]]
        if isinstance(at, int):
            return self.out.const(at, "i64")
        return self.out.iota("i64", at[1], start=at[0])

    def _elementwise(self, n: Node, values: list[LLVMValue], lane: int) -> LLVMValue:
        if n.op is ops.WHERE and not values[0].width:  # a scalar condition selects whole vectors
            values[1:] = self._widened(values[1:])
        elif n.op is ops.DIV and self._often_divided(n, *values):
            x, divisor = values
            inverse = self.once((divisor.text, "inverse"), lambda: 1.0 / divisor)
            return quotient(x, self.splat(divisor, x.width), self.splat(inverse, x.width))
        elif lane >= 0:
            values = self._widened(values)
        if n.op is ops.ADD and isinstance(values[1], Summand):  # a running sum stands on the left
            return values[1].added_to(values[0])
        if n.op in self.natively and values[0].width:
            return self.natively[n.op](*values)
        return scalar.apply(n, values)

    def _often_divided(self, n: Node, x: LLVMValue, divisor: LLVMValue) -> bool:
        """Whether vectors have one divisor, as many as loops run: its inverse pays off.

        Not behind a product, whose tile is written out point by point: that takes much longer than
        dividing, and so does LLVM for the branches at each.
        """
        if not x.is_float or not x.width or divisor.width:
            return False
        tile = prod(self.analysis.extents[a] for a in self.analysis.tiles(n))
        return tile < MANY * x.width

    def _indices(self, n: Node, point: Point, lane: int) -> LLVMValue:
        """A vector of indices: the first lane's, and constant distances from it."""
        start, width = as_piece(point[lane])
        slope = self._slope(n, lane)
        assert slope is not None
        first = self.value(n, moved(point, lane, start))
        if not slope:
            return self.splat(first, width)
        return self.splat(first, width) + self.out.iota("i64", width, slope)

    def _bound_check(self, n: Node, point: Point, lane: int) -> LLVMValue:
        """``a + s*lane < b + t*lane`` as ``(s - t)*lane < b - a``, whose right side is a scalar.

        The scalar is clamped to just outside the range of the left side, so it fits narrow lanes.
        """
        start, width = as_piece(point[lane])
        a, b = n.inputs
        slope = (self._slope(a, lane) or 0) - (self._slope(b, lane) or 0)
        here = moved(point, lane, start)
        distance = self.value(b, here) - self.value(a, here)
        if not slope:
            return self.splat(scalar.apply(n, [distance.like(0), distance]), width)
        low, high = sorted((0, slope * (width - 1)))
        bits = next(b for b in (8, 16, 32, 64) if b >= 512 // width or b == 64)
        if max(-low, high) + 1 >= 1 << (bits - 1):
            bits = 64
        clamped = distance.intrinsic("smax", low - 1).intrinsic("smin", high + 1)
        if bits < 64:
            clamped = clamped.convert("trunc", f"i{bits}")
        lanes = self.out.iota(f"i{bits}", width, slope)
        return scalar.apply(n, [lanes, self.splat(clamped, width)])

    def _local(self, n: Node, point: Point, lane: int) -> LLVMValue:
        """A local read along another lane axis than it was bound with."""
        bound = self._lanes.get(n.attr)
        if bound is None:
            return self._unbound(n, point, lane)
        if lane >= 0 and lane in self.analysis.tiles(n) and lane != bound.axis:
            start, width = as_piece(point[lane])
            return gather_lanes(
                [self.value(n, moved(point, lane, start + k)) for k in range(width)]
            )
        if bound.axis < 0 or not isinstance(at := point[bound.axis], int):
            return self._unbound(n, point, lane)
        for piece in bound.pieces:
            if not isinstance(piece, int) and piece[0] <= at < piece[0] + piece[1]:
                return self.value(n, moved(point, bound.axis, piece), bound.axis).lane(
                    at - piece[0]
                )
        return self._unbound(n, point, lane)

    # ---- arguments, read from their slots when first needed
    def _argument(self, given: Argument, element: str) -> LLVMValue:
        where = self.out.op_early(f"getelementptr i64, ptr %args, i64 {self.slots[given]}", "ptr")
        return self.out.op_early(f"load {element}, {where}, align 8", element)

    def _scalar_argument(self, n: Node, point: Point, lane: int) -> LLVMValue:
        value = self._arguments.get(n)
        if value is None:
            value = self._arguments[n] = self._argument(n.attr, scalar.memory(n.dtype))
        return value.differs(0) if n.dtype is bool_ else value

    def base(self, buffer: Buffer) -> LLVMValue:
        """The first element of a buffer."""
        pointer = self.pointers.get(buffer)
        if pointer is None:
            pointer = self.pointers[buffer] = self._argument(buffer, "ptr")
        return pointer

    # ---- memory
    def pointer(self, buffer: Buffer, address: Address, point: Point) -> LLVMValue:
        """The address of the element at a point (of the first lane)."""
        flat = address.flat
        here: Point = [first_of(at) for at in point] if self.analysis.tiles(flat) else point
        key = (flat, buffer, self.analysis.place(flat)(here))
        element = scalar.memory(buffer.dtype)
        base = self._memo.get(key)
        if base is None:
            base = self.base(buffer)
            if not is_const(flat, 0):
                base = self._offset(base, element, self.value(flat, here))
            self._remember(key, base)
        constant = address.offset(point)
        if not constant:
            return base
        return self.out.op(f"getelementptr {element}, {base}, i64 {constant}", "ptr")

    def _offset(self, base: LLVMValue, element: str, offset: LLVMValue) -> LLVMValue:
        return self.out.op(f"getelementptr {element}, {base}, {offset}", "ptr", offset.width)

    def pointer_vector(
        self, buffer: Buffer, address: Address, point: Point, lane: int
    ) -> LLVMValue:
        """The addresses of the elements of every lane."""
        offsets = self._offsets(address, point, lane)
        return self._offset(self.base(buffer), scalar.memory(buffer.dtype), offsets)

    def _offsets(self, address: Address, point: Point, lane: int) -> LLVMValue:
        """How far from the first of their buffer the elements of every lane are."""
        _, width = as_piece(point[lane])
        offsets = self.vector(address.flat, point, lane)
        slope = address.slopes.get(lane, 0)
        start = address.offset(point)
        if slope:
            offsets = offsets + self.out.iota("i64", width, slope, start)
        elif start:
            offsets = offsets + start
        return offsets

    def _load(self, n: Node, point: Point, lane: int) -> LLVMValue:
        buffer: Buffer = n.attr
        address = self.analysis.address_of(n)
        mask, other = n.inputs[-2:]
        if lane < 0 or lane not in self.analysis.tiles(n):
            value = self._plain_load(buffer, self.pointer(buffer, address, point), 0, mask, point)
            return self._other(value, mask, other, point, -1)
        stride = self.analysis.stride(address, lane)
        start, width = as_piece(point[lane])
        if stride not in (-1, 0, 1):
            if stride is None and self.analysis.by_data(address.flat, lane):
                return self._gather(n, address, point, lane)
            return self._strided_load(n, address, point, lane)
        if stride == 0 and lane not in self.analysis.tiles(mask):
            one = self._plain_load(buffer, self.pointer(buffer, address, point), 0, mask, point)
            return self.splat(self._other(one, mask, other, moved(point, lane, start), -1), width)
        if stride == 0:
            # Only the mask differs between lanes: one element, read if any lane wants it.
            lanes = self.value(mask, point, lane)
            pointer = _any(lanes).select(self.pointer(buffer, address, point), self._zeros())
            one = self._from_memory(self._read(buffer, pointer, 0), buffer)
            return lanes.select(self.splat(one, width), self.vector(other, point, lane))
        first = point if stride == 1 else moved(point, lane, (start + width - 1, width))
        pointer = self.pointer(buffer, address, first)
        for place, distance in self.prefetches.get(n, ()):
            prefetch(self.pointer(place.attr, self.analysis.address_of(place), first), distance)
        if mask is TRUE or lane not in self.analysis.tiles(mask):
            value = self._plain_load(buffer, pointer, width, mask, point)
            value = value.reverse() if stride < 0 else value
            return self._other(value, mask, other, point, lane)
        lanes, rest = self.value(mask, point, lane), self.vector(other, point, lane)
        if stride < 0:
            lanes, rest = lanes.reverse(), rest.reverse()
        value = self._masked_load(buffer, pointer, lanes, rest)
        return value.reverse() if stride < 0 else value

    def _read(self, buffer: Buffer, pointer: LLVMValue, width: int) -> LLVMValue:
        element = scalar.memory(buffer.dtype)
        text = f"load {_type(element, width)}, {pointer}{self.access[buffer]}"
        return self.out.op(text, element, width)

    def _plain_load(
        self, buffer: Buffer, pointer: LLVMValue, width: int, mask: Node, point: Point
    ) -> LLVMValue:
        """A load whose mask is one scalar: where it is false, zeros are read instead."""
        if mask is not TRUE:
            pointer = self.value(mask, point).select(pointer, self._zeros())
        return self._from_memory(self._read(buffer, pointer, width), buffer)

    def read_bytes(self, n: Node, point: Point, element: str, width: int) -> LLVMValue:
        """What lies in memory from a LOAD's element on, as so many elements of another type."""
        pointer = self.pointer(n.attr, self.analysis.address_of(n), point)
        if n.inputs[-2] is not TRUE:
            pointer = self.value(n.inputs[-2], point).select(pointer, self._zeros())
        text = f"load {_type(element, width)}, {pointer}{self.access[n.attr]}"
        return self.out.op(text, element, width)

    def _zeros(self) -> LLVMValue:
        self.out.module.constant(ZEROS[1:], f"[{ZEROS_BYTES} x i8] zeroinitializer, align 64")
        return LLVMValue(self.out, ZEROS, "ptr")

    def _other(
        self, value: LLVMValue, mask: Node, other: Node, point: Point, lane: int
    ) -> LLVMValue:
        if mask is TRUE or (is_const(other, 0) and str(other.attr) != "-0.0"):
            return value
        return self.value(mask, point).select(value, self.vector(other, point, lane))

    def _masked_load(
        self, buffer: Buffer, pointer: LLVMValue, lanes: LLVMValue, rest: LLVMValue
    ) -> LLVMValue:
        rest = self.to_memory(rest, buffer)
        name = f"llvm.masked.load.{mangle(rest.element, rest.width)}.p0"
        value = self.out.call(
            name,
            rest.element,
            rest.width,
            pointer,
            lanes,
            rest,
            extra=_metadata(self.access[buffer]),
        )
        return self._from_memory(value, buffer)

    def _gather(self, n: Node, address: Address, point: Point, lane: int) -> LLVMValue:
        """Lanes at addresses that data decides."""
        buffer: Buffer = n.attr
        mask, other = n.inputs[-2:]
        _, width = as_piece(point[lane])
        if mask is TRUE:  # loads of their own take less time than one of a vector of addresses
            offsets = self._offsets(address, point, lane)
            element, base = scalar.memory(buffer.dtype), self.base(buffer)
            places = (self._offset(base, element, offsets.lane(k)) for k in range(width))
            return gather_lanes([self._plain_load(buffer, p, 0, mask, point) for p in places])
        lanes = self.vector(mask, point, lane)
        rest = self.to_memory(self.vector(other, point, lane), buffer)
        pointers = self.pointer_vector(buffer, address, point, lane)
        name = f"llvm.masked.gather.{mangle(rest.element, width)}.v{width}p0"
        value = self.out.call(name, rest.element, width, pointers, lanes, rest)
        return self._from_memory(value, buffer)

    def _strided_load(self, n: Node, address: Address, point: Point, lane: int) -> LLVMValue:
        """Lanes at a distance: a transposed block where another tile axis is contiguous."""
        start, width = as_piece(point[lane])
        across = self._contiguous(n, address, point, lane)
        if across is None:
            stride = self.analysis.stride(address, lane)
            if self.out.module.avx512 and stride == NEAR and n.dtype.itemsize >= 4:
                return self._every_other(n, address, point, lane)
            return gather_lanes(
                [self.value(n, moved(point, lane, start + k)) for k in range(width)]
            )
        axis, (first, count) = across
        rows = [
            self.value(n, moved(moved(point, lane, start + k), axis, (first, count)), axis)
            for k in range(width)
        ]
        mine = point[axis]
        for k, column in enumerate(transpose(rows)):
            if first + k == mine:
                result = column
            else:
                self._remember(self.key(n, moved(point, axis, first + k)), column)
        return result

    def _every_other(self, n: Node, address: Address, point: Point, lane: int) -> LLVMValue:
        """Lanes two elements apart: vectors are read under a mask that leaves out the others."""
        buffer: Buffer = n.attr
        mask, other = n.inputs[-2:]
        _, width = as_piece(point[lane])
        lanes = self.vector(mask, point, lane)
        places = [k // NEAR if k % NEAR == 0 else width for k in range(NEAR * width)]
        wanted = lanes.shuffle(self.out.const(0, "i1", width), places)
        zeros = self.out.const(0, scalar.memory(n.dtype), NEAR * width)
        wide = self._masked_load(buffer, self.pointer(buffer, address, point), wanted, zeros)
        value = wide.shuffle(None, range(0, NEAR * width, NEAR))
        if mask is TRUE or (is_const(other, 0) and str(other.attr) != "-0.0"):
            return value
        return lanes.select(value, self.vector(other, point, lane))

    def turns(self, root: Node, point: Point, lane: int) -> bool:
        """Whether an expression reads blocks that are transposed, all their rows at once."""
        if lane < 0 or isinstance(point[lane], int):
            return False
        loads = [n for n in topological([root]) if n.op is ops.LOAD]
        return any(
            lane in self.analysis.tiles(n)
            and self.analysis.stride(address := self.analysis.address_of(n), lane) not in (-1, 0, 1)
            and not self.analysis.by_data(address.flat, lane)
            and self._contiguous(n, address, point, lane) is not None
            for n in loads
        )

    def _contiguous(
        self, n: Node, address: Address, point: Point, lane: int
    ) -> tuple[int, tuple[int, int]] | None:
        """Another tile axis with stride 1, and the piece of it that holds the point."""
        for axis, slope in address.slopes.items():
            at = point[axis]
            if axis == lane or slope != 1 or not isinstance(at, int):
                continue
            if self.analysis.stride(address, axis) != 1:
                continue
            full = self.vector_bytes // n.dtype.itemsize
            for piece in pieces(self.analysis.extents[axis], full):
                if not isinstance(piece, int) and piece[0] <= at < piece[0] + piece[1]:
                    return axis, piece
        return None

    def _from_memory(self, value: LLVMValue, buffer: Buffer) -> LLVMValue:
        return value.differs(0) if buffer.dtype is bool_ else value

    def to_memory(self, value: LLVMValue, buffer: Buffer) -> LLVMValue:
        """A value in the form a buffer stores."""
        return value.convert("zext", "i8") if buffer.dtype is bool_ else value


def _type(element: str, width: int) -> str:
    return f"<{width} x {element}>" if width else element


def _metadata(access: str) -> str:
    """The part of an access' attributes that a call may carry."""
    _, comma, rest = access.partition(", !")
    return f"{comma}{rest}"


def _any(lanes: LLVMValue) -> LLVMValue:
    bits = lanes.out.op(f"bitcast {lanes} to i{lanes.width}", f"i{lanes.width}")
    return bits.differs(0)
