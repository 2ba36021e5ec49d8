"""Kernel IR to LLVM IR text.

Each phase becomes two functions: ``name_p(args, begin, end, scratch)`` runs a range of the
flattened grid, ``name_p_grid(args)`` counts its points. GRID and LOOP axes become loops, TILE axes
are unrolled or become vector lanes: they exist nowhere after this module. Nothing is added that the
kernel does not say: each access, mask and bound below is one of the kernel's. What
`prefetch` adds are hints, which access nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from genesis.backends.cpu.chip import CPU
from genesis.backends.cpu.codegen.dot_instructions import DotInstructions
from genesis.backends.cpu.codegen.emit import LLVMFunction, LLVMModule, LLVMValue
from genesis.backends.cpu.codegen.expression import Argument, Expressions
from genesis.backends.cpu.codegen.lanes import (
    Analysis,
    Coordinate,
    Lane,
    Point,
    choose_lanes,
    items,
)
from genesis.backends.cpu.codegen.nontemporal import Streams
from genesis.backends.cpu.codegen.prefetch import (
    prefetch_epilogue,
    prefetch_lines,
    prefetch_rows,
)
from genesis.backends.cpu.codegen.stores import Stores, lane_of
from genesis.backends.cpu.codegen.vector_reductions import (
    State,
    last_lane,
    pairwise,
    reduce_commutative,
    reduce_ordered,
    scan_lanes,
)
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import bool_
from genesis.ir.node import Node, topological

_STAGE_ALIGNMENT = 64
_ARGUMENTS = ("ptr noalias %args", "i64 %begin", "i64 %end", "ptr noalias align 64 %scratch")


@dataclass(frozen=True)
class Rendered:
    """A kernel's LLVM IR: (function, grid function) per phase, and scratch bytes for a block."""

    text: str
    symbols: tuple[tuple[str, str], ...]
    scratch_bytes: int


def render(kernel: kir.Kernel, chip: CPU) -> Rendered:
    """The LLVM IR of a kernel for a CPU."""
    attributes = f'nounwind "prefer-vector-width"="{chip.vector_bits}"'
    module = LLVMModule(attributes, avx512=chip.has_avx512)
    access = _access(module, kernel)
    symbols: list[tuple[str, str]] = []
    scratch = 0
    for number, phase in enumerate(kernel.phases):
        name = f"{kernel.name}_{number}"
        symbols.append((name, f"{name}_grid"))
        _grid_function(module, f"{name}_grid", kernel, phase)
        block = _Block(module, name, kernel, phase, chip, access)
        block.render()
        scratch = max(scratch, block.scratch_bytes)
    return Rendered(str(module), tuple(symbols), scratch)


def _access(module: LLVMModule, kernel: kir.Kernel) -> dict[kir.Buffer, str]:
    """What loads and stores of each buffer say: alignment, and which others it cannot overlap.

    Buffers never overlap, except that an output may take over an input's memory.
    """
    buffers = list(kernel.buffers)
    for phase in kernel.phases:
        buffers += [s.buffer for s in kir.walk(phase.body) if isinstance(s, kir.Stage)]
    buffers = list(dict.fromkeys(buffers))
    domain = module.node('distinct !{!"kernel"}')
    scopes = {b: module.node(f'distinct !{{!"{b.name}", {domain}}}') for b in buffers}
    result = {}
    for b in buffers:
        apart = [
            scopes[c]
            for c in buffers
            if c is not b and {b.role, c.role} != {kir.Role.INPUT, kir.Role.OUTPUT}
        ]
        text = f", align {b.dtype.itemsize}, !alias.scope {module.node(f'!{{{scopes[b]}}}')}"
        if apart:
            text += f", !noalias {module.node('!{' + ', '.join(apart) + '}')}"
        result[b] = text
    return result


def _slots(kernel: kir.Kernel) -> dict[Argument, int]:
    """The slot of every argument."""
    arguments: list[Argument] = [*kernel.buffers, *kernel.params, *kernel.symbols]
    return {x: k for k, x in enumerate(arguments)}


def _grid_function(module: LLVMModule, name: str, kernel: kir.Kernel, phase: kir.Phase) -> None:
    out = LLVMFunction(module, "i64", name, ["ptr noalias %args"])
    x = Expressions(out, Analysis(frozenset()), _slots(kernel))
    total = out.const(1, "i64")
    for axis in phase.grid:
        total = total * x.value(kir.as_index(axis.extent), [])
    out.ret(total)


class _Block:
    """Renders the body of a phase."""

    def __init__(
        self,
        module: LLVMModule,
        name: str,
        kernel: kir.Kernel,
        phase: kir.Phase,
        chip: CPU,
        access: dict[kir.Buffer, str],
    ) -> None:
        self.kernel, self.phase = kernel, phase
        self.analysis = Analysis(_mutable(phase))
        self.lanes = choose_lanes(phase, self.analysis, chip.vector_bits)
        self.out = LLVMFunction(module, "void", name, _ARGUMENTS)
        self.x = Expressions(self.out, self.analysis, _slots(kernel), chip.vector_bytes)
        self.x.access = access
        self.x.prefetches = prefetch_rows(phase, self.analysis, chip)
        self.streams = Streams(self.x, kernel, phase, chip)
        self.stores = Stores(self.x, self.analysis, self.streams)
        self.dots = DotInstructions(self.x, self.analysis, chip)
        self.scratch_bytes = 0
        self._large = chip.l2_bytes
        self._stage_top = 0
        self._origin: Point = [0] * len(self.analysis.extents)

    def render(self) -> None:
        """Emit the function: a loop over the grid points begin..end-1."""
        out, x = self.out, self.x
        begin, end = LLVMValue(out, "%begin", "i64"), LLVMValue(out, "%end", "i64")
        extents = [self._scalar(kir.as_index(a.extent)) for a in self.phase.grid]
        starts = _unflatten(begin, extents)
        before, head, body, done = out.block, out.label(), out.label(), out.label()
        out.jump(head)
        out.place(head)
        counter = out.phi("i64")
        # One axis is the counter itself; more are counted up with carry, as division is slow.
        positions = [out.phi("i64") for _ in starts] if len(starts) > 1 else []
        out.branch(counter.value < end, body, done)
        out.place(body)
        with x.scope():
            values = [p.value for p in positions] or [counter.value]
            for axis, value in zip(self.phase.grid, values, strict=False):
                x.bind(axis.node, value)
            self._body(self.phase.body)
            nexts = _advance([p.value for p in positions], extents)
            following = counter.value.binary("add nuw nsw", 1)
        counter.set((begin, before), (following, out.block))
        for phi, start, new in zip(positions, starts, nexts, strict=False):
            phi.set((start, before), (new, out.block))
        out.jump(head)
        out.place(done)
        self.streams.finish()
        out.ret()

    # ---- statements
    def _body(self, body: kir.Body) -> None:
        top = self._stage_top
        written: kir.Statement | None = None
        for k, (s, after) in enumerate(zip(body, (*body[1:], None), strict=False)):
            if s is written:  # together with the one before
                continue
            if isinstance(s, kir.Let):
                lane = self.lanes[s]
                axes = self._axes(s.local)
                points = list(self.analysis.points(axes, lane))
                values = [(p, self.x.vector(s.value, p, lane_of(axes, lane))) for p in points]
                self.x.bind_local(s.local, lane, values)
            elif isinstance(s, kir.Store):
                lane = self.lanes[s]
                if (
                    isinstance(after, kir.Store)
                    and self.lanes[after] == lane
                    and self.stores.interleave(s, after, lane)
                ):
                    written = after
                else:
                    self.stores.store(s, lane)
            elif isinstance(s, kir.Loop):
                prefetch_epilogue(s, body[k + 1 :], self.x, self._large)
                self._loop(s)
            elif isinstance(s, kir.Reduce):
                self._reduce(s)
            elif isinstance(s, kir.Scan):
                self._scan(s)
            elif isinstance(s, kir.If):
                self._if(s)
            elif isinstance(s, kir.Stage):
                self._stage(s)
            elif isinstance(s, kir.Prefetch):
                prefetch_lines(s, self.x)
        self._stage_top = top

    def _scalar(self, n: Node) -> LLVMValue:
        return self.x.value(n, self._origin)

    def _axes(self, local: kir.Local) -> list[int]:
        return [self.analysis.number(a) for a in local.tiles]

    def _stage(self, s: kir.Stage) -> None:
        count = 1
        for extent, stride in zip(s.buffer.shape, s.buffer.layout, strict=True):
            count += (int(kir.as_index(extent).attr) - 1) * int(stride.attr)
        where = self._stage_top
        size = -(-count * s.buffer.dtype.itemsize // _STAGE_ALIGNMENT) * _STAGE_ALIGNMENT
        self._stage_top += size
        self.scratch_bytes = max(self.scratch_bytes, self._stage_top)
        text = f"getelementptr i8, ptr %scratch, i64 {where}"
        self.x.pointers[s.buffer] = self.out.op(text, "ptr")

    def _if(self, s: kir.If) -> None:
        then, orelse, after = (self.out.label() for _ in range(3))
        self.out.branch(self._scalar(s.condition), then, orelse)
        for label, body in ((then, s.body), (orelse, s.orelse)):
            self.out.place(label)
            with self.x.scope():
                self._body(body)
            self.out.jump(after)
        self.out.place(after)
        self._forget_written(s.body + s.orelse)

    def _forget_written(self, body: kir.Body) -> None:
        for buffer in self.analysis.mutable & _written(body):
            self.x.forget(buffer)

    def _loop(self, s: kir.Loop) -> None:
        out, x = self.out, self.x
        extent = self._scalar(kir.as_index(s.axis.extent))
        carries = []
        for c in s.carried:
            lane = self.lanes[c]
            axes = self._axes(c.local)
            points = list(self.analysis.points(axes, lane))
            inits = [x.vector(c.init, p, lane_of(axes, lane)) for p in points]
            carries.append((c, lane, lane_of(axes, lane), points, inits))
        self._hoist_masks(s)
        before, head, body, after = out.block, out.label(), out.label(), out.label()
        out.jump(head)
        out.place(head)
        counter = out.phi("i64")
        phis = [[out.phi(v.element, v.width) for v in inits] for *_, inits in carries]
        for (c, lane, _, points, _), states in zip(carries, phis, strict=True):
            x.bind_local(
                c.local, lane, [(p, phi.value) for p, phi in zip(points, states, strict=True)]
            )
        self._forget_written(s.body)
        out.branch(counter.value < extent, body, after)
        out.place(body)
        with x.scope():
            x.bind(s.axis.node, counter.value)
            self._body(s.body)
            steps = [
                [x.vector(c.step, p, axis) for p in points] for c, _, axis, points, _ in carries
            ]
            following = counter.value.binary("add nuw nsw", 1)
        counter.set((out.const(0, "i64"), before), (following, out.block))
        for (*_, inits), states, news in zip(carries, phis, steps, strict=True):
            for phi, init, new in zip(states, inits, news, strict=True):
                phi.set((init, before), (new, out.block))
        out.jump(head)
        out.place(after)
        self._forget_written(s.body)

    def _hoist_masks(self, s: kir.Loop) -> None:
        """Evaluate before a loop the conditions that do not change in it (of padding, say)."""
        changing = {a.node for a in _axes_inside(s)}
        for item, _ in items((s,)):
            nodes = self.analysis.nodes(item)
            if all(n.dtype is not bool_ or n.op is ops.CONST for n in nodes):
                continue
            lane = self.lanes[item]
            steady: set[Node] = set()
            for n in nodes:
                moves = n in changing or n.op in (ops.LOAD, ops.LOCAL)
                if not moves and all(i in steady for i in n.inputs):
                    steady.add(n)
                    if n.dtype is bool_ and n.op is not ops.CONST:
                        for point in self.analysis.points(self.analysis.tiles(n), lane):
                            self.x.value(n, point, lane.axis)

    def _along(
        self, s: kir.Reduce | kir.Scan, lane: Lane
    ) -> tuple[int, Sequence[Coordinate], list[Point]]:
        """The axis, its coordinates, and the points of the other tile axes."""
        axis = self.analysis.number(s.axis)
        others = {a for v in s.values for a in self.analysis.tiles(v)} - {axis}
        coordinates = lane.pieces if axis == lane.axis else range(self.analysis.extents[axis])
        return axis, coordinates, list(self.analysis.points(others, lane))

    def _states(
        self, s: kir.Reduce | kir.Scan, point: Point, axis: int, at: Coordinate, lane: Lane
    ) -> State:
        here = list(point)
        here[axis] = at
        return tuple(self.x.vector(v, here, lane.axis) for v in s.values)

    def _reduce(self, s: kir.Reduce) -> None:
        lane = self.lanes[s]
        factors = self.dots.factors(s, lane)
        if factors is not None:
            self.dots.emit(s, factors, lane)
            return
        axis, coordinates, points = self._along(s, lane)
        plain = kir.simple_fold(s.merge) in ops.COMMUTATIVE

        combine = partial(self.x.merge, s.merge)

        results: list[tuple[Point, State]] = []
        for point in points:
            parts = [self._states(s, point, axis, at, lane) for at in coordinates]
            if axis != lane.axis:
                results.append((point, pairwise(parts, combine)))
            else:
                fold = reduce_commutative if plain else reduce_ordered
                results.append((point, fold(parts, combine)))
        for k, local in enumerate(s.locals):
            self.x.bind_local(local, lane, [(p, state[k]) for p, state in results])

    def _scan(self, s: kir.Scan) -> None:
        lane = self.lanes[s]
        axis, coordinates, points = self._along(s, lane)

        combine = partial(self.x.merge, s.merge)
        # From vector to vector a cheap fold is carried as a scalar, which others need not wait for.
        cheap = kir.simple_fold(s.merge) is not None

        results: list[tuple[Point, State]] = []
        for point in points:
            last: State | None = None
            for at in coordinates:
                state = self._states(s, point, axis, at, lane)
                width = 0 if isinstance(at, int) else at[1]
                if axis == lane.axis and width:
                    state = scan_lanes(state, combine)
                own = state
                if last is not None:
                    before = last
                    if axis == lane.axis and width:
                        before = tuple(self.x.splat(v, width) for v in last)
                    state = combine(before, own)
                if axis != lane.axis:
                    last = state
                elif cheap and last is not None:
                    last = combine(last, last_lane(own))
                else:
                    last = last_lane(state)
                here = list(point)
                here[axis] = at
                results.append((here, state))
        for k, local in enumerate(s.locals):
            self.x.bind_local(local, lane, [(p, state[k]) for p, state in results])


def _axes_inside(s: kir.Loop) -> list[kir.Axis]:
    """The axis of a loop and of the loops in it."""
    return [s.axis, *(x.axis for x in kir.walk(s.body) if isinstance(x, kir.Loop))]


def _written(body: kir.Body) -> frozenset[kir.Buffer]:
    return frozenset(s.buffer for s in kir.walk(body) if isinstance(s, kir.Store))


def _mutable(phase: kir.Phase) -> frozenset[kir.Buffer]:
    """The buffers a phase both reads and writes: what was read from them may become stale."""
    statements = list(kir.walk(phase.body))
    nodes = topological(n for s in statements for n in kir.expressions(s))
    return _written(phase.body) & {n.attr for n in nodes if n.op is ops.LOAD}


def _unflatten(position: LLVMValue, extents: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The coordinates of a flattened position, last axis fastest."""
    result: list[LLVMValue] = []
    for extent in reversed(extents[1:]):
        count = extent.known()
        if count == 1:
            result.append(extent.like(0))
            continue
        divisor = extent.intrinsic("umax", 1) if count is None else extent.like(max(1, count))
        result.append(position.binary("urem", divisor))
        position = position.binary("udiv", divisor)
    return [position, *reversed(result)]


def _advance(position: Sequence[LLVMValue], extents: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The coordinates after this one: the last axis steps and carries into those before it."""
    if not position:
        return []
    result: list[LLVMValue] = []
    carry = position[-1].out.const(1, "i64")
    for k in range(len(position) - 1, 0, -1):
        new = position[k] + carry
        wrapped = new.equal(extents[k])
        result.append(wrapped.select(0, new))
        carry = wrapped.convert("zext", "i64")
    return [position[0] + carry, *reversed(result)]
