"""Blocks by roles: two groups of threads multiply what a third copies into fast memory.

Hopper's matrix units work beside the threads that started them, on operands in fast memory. Kernels
whose blocks come in pairs that visit the same tiles
(`genesis.compiler.schedule.gpu.attention_warp_specialised`) are written for that, in Gluon, the
part of Triton in which threads have roles. A program is a pair, and each block of it a group. The
third group copies the tiles of each visit, in turn, to one of several places, and waits for one to
be free. The loop of the other two is rotated: a visit starts the product that gives its scores,
then the product of the weights of the visit before with their values, and turns the scores into
weights. The first visit, which alone may need a mask, comes before the loop.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from genesis.backends.gpu.codegen.address import offset
from genesis.backends.gpu.codegen.contractions_to_dot import Dot, find_contractions
from genesis.backends.gpu.codegen.device_functions import DeviceFunctions
from genesis.backends.gpu.codegen.expression import PRODUCT, Frame, address, type_name
from genesis.backends.gpu.codegen.launch_bounds import FunctionWork
from genesis.backends.gpu.codegen.power_of_two_tiles import pad
from genesis.backends.gpu.codegen.render import TritonFunction
from genesis.backends.gpu.codegen.rendered_kernel import RenderedKernel
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import simplify
from genesis.ir.node import TRUE, Node, mentions
from genesis.ir.rewrite import replaced

#: Groups that multiply, warps of every group, and places for tiles of each kind.
GROUPS, WARPS, STAGES = 2, 4, 2
#: The rows that a group multiplies, and what it multiplies them with in a visit.
ROWS, KEYS = 64, 128
#: Registers of a thread that multiplies, and of one that copies.
MANY, FEW = 240, 24

IMPORTS = """\
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.extra import libdevice
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

nan_wins = tl.constexpr(triton.language.PropagateNan.ALL)
# Its name depends on Triton's version.
copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""


def by_roles(kernel: kir.Kernel, target: str) -> RenderedKernel | None:
    """A kernel of pairs as Gluon's source, for aligned memory; None if it is none."""
    plan = pad(find_contractions(kernel))
    if target != "sm_90" or len(plan.phases) != 1 or _pair(plan.phases[0]) is None:
        return None
    library = DeviceFunctions()
    roles = _Roles(plan, 0, f"{kernel.name}_0", library, "highest", True, True, False)
    functions = [f"{f}\n" for f in (*library.functions, roles.text)]
    text = "\n\n".join([f'"""Kernel {kernel.name}."""\n', IMPORTS, *functions])
    numbers = (WARPS,), (1,), (0,)  # what Triton is told are the warps of the first group
    return RenderedKernel(
        _in_gluon(text), (roles.name,), roles.arguments, *numbers, words=True, inside=1
    )


def _in_gluon(text: str) -> str:
    """What Gluon calls otherwise than Triton does."""
    text = text.replace("@triton.jit", "@gluon.jit").replace("tl.PropagateNan.ALL", "nan_wins")
    return re.sub(r"tl\.full\(\[\], ([^,]+), (tl\.\w+)\)", r"tl.cast(\1, \2)", text)


@dataclass(frozen=True)
class _Pair:
    """A phase by roles: the products of a visit, and what is around them."""

    part: kir.Axis  # of the grid: the blocks of a program
    own: kir.Let  # the operand of the first product that a group keeps
    before: kir.Body
    loop: kir.Loop
    first: Dot
    between: kir.Body  # what is made of the first product
    second: Dot
    sums: kir.Carry  # what the second product is added to
    rest: Node  # what else that becomes
    after: kir.Body

    @property
    def tiles(self) -> tuple[tuple[str, Dot], ...]:
        """What is copied in every visit."""
        return ("first", self.first), ("second", self.second)


def _pair(phase: kir.Phase) -> _Pair | None:
    loops = [s for s in phase.body if isinstance(s, kir.Loop)]
    if len(loops) != 1 or not phase.grid or phase.grid[-1].extent != GROUPS:
        return None
    (loop,) = loops
    at = phase.body.index(loop)
    before, after = phase.body[:at], phase.body[at + 1 :]
    dots = [s for s in loop.body if isinstance(s, Dot)]
    if len(dots) != 2 or loop.body[0] is not dots[0]:
        return None
    first, second = products = [_loading_right(d) for d in dots]
    if first.row.extent != ROWS or first.column.extent != KEYS:
        return None  # two heads that share keys, say, are no pair
    whole = (d.right.op is ops.LOAD and kir.load_parts(d.right)[2] is TRUE for d in products)
    own = [s for s in before if isinstance(s, kir.Let) and s.local.node is first.left]
    added = second.local.node
    sums = [c for c in loop.carried if c.step.op is ops.ADD and added in c.step.inputs]
    if not (own and sums and all(whole)) or any(d.accumulate for d in dots):
        return None
    between = tuple(s for s in loop.body if s not in dots)
    others = tuple(s for s in before if s is not own[0])
    (rest,) = (i for i in sums[0].step.inputs if i is not added)
    # What becomes of the sums when a visit is over cannot depend on what that carries on.
    gone = {loop.axis.node, *(c.local.node for c in loop.carried if c is not sums[0])}
    if not gone.isdisjoint(mentions(rest)):
        return None
    part = phase.grid[-1]
    return _Pair(part, own[0], others, loop, first, between, second, sums[0], rest, after)


def _loading_right(dot: Dot) -> Dot:
    """A product whose right operand is the one that is loaded."""
    if dot.left.op is not ops.LOAD:
        return dot
    return replace(dot, left=dot.right, right=dot.left, row=dot.column, column=dot.row)


class _Roles(TritonFunction):
    """Writes the function of every role, and that of the program."""

    def _function(self) -> None:
        pair = _pair(self.phase)
        assert pair is not None
        self.p = pair
        self.work = FunctionWork()
        self.phase = replace(self.phase, grid=self.phase.grid[:-1])
        self._copying()
        self._multiplying()
        self._program()

    # ---- the group that copies
    def _copying(self) -> None:
        p = self.p
        with self._definition("_copying", *_RING):
            self._grid()
            for _, tile in p.tiles:
                self._places(*_lines(tile))
            visit = self._visit(p.loop.axis)
            self._emit(f"for {visit} in range({self._visits()}):")
            with self._indented():
                self._slot("slot", "turn", visit)
                for kind, tile in p.tiles:
                    pointers = self._pointers(tile)
                    self._emit(f"mbarrier.wait({kind}_free.index(slot), turn ^ 1)")
                    self._emit(f"copy({kind}.index(slot), {pointers})")
                    self._emit(f"async_copy.mbarrier_arrive({kind}_full.index(slot), False)")
            self._emit("async_copy.commit_group()")
            self._emit("async_copy.wait_group(0)")

    def _pointers(self, tile: Dot) -> str:
        """Where a tile is: it begins at one number, and places in it are the same in all visits."""
        buffer, index, _, _ = kir.load_parts(tile.right)
        where, lines = offset(buffer, index), _lines(tile)
        start = simplify(replaced(where, {a.node: kir.as_index(0) for a in lines}))
        (first,) = self._evaluate((), [start])
        (place,) = self._evaluate(lines, [simplify(where - start)])
        return address(address(self.scope.names[buffer], first), place)

    # ---- those that multiply
    def _multiplying(self) -> None:
        p = self.p
        scores, sums = self.scope.name(p.first.local), self.scope.name(p.sums.local)
        step = kir.Axis.loop("step", p.loop.axis.extent)
        with self._definition("_multiplying", "own", *_RING, self.scope.name(p.part)):
            width = p.second.column.extent
            layout = f"tl.NVMMADistributedLayout([3, 0], [{WARPS}, 1], [16, {width}, 16])"
            self._emit(f"tiles: tl.constexpr = {layout}")
            self._grid()
            for axis in dict.fromkeys((p.first.row, p.first.column, p.second.column)):
                side = 1 if axis is p.first.row else 0
                code = f"tl.arange(0, {axis.extent}, tl.SliceLayout({side}, tiles))"
                self._emit(f"{self.scope.name(axis)} = {code}")
            self._body(p.before)
            for carry in p.loop.carried:
                (text,) = self._evaluate((), [carry.init])
                self._emit(f"{self.scope.name(carry.local)} = {self._full(carry.local, text.code)}")
            self._emit(f"nothing = {self._full(p.first.local, '0.0')}")
            keys = "own, first.index({}).permute((1, 0)), nothing, use_acc=False, is_async=True"
            values = f"left, second.index(past), {sums}, is_async=True"
            self._emit("mbarrier.wait(first_full.index(0), 0)")
            self._emit(f"{scores} = warpgroup_mma({keys.format(0)})")
            self._emit(f"{scores} = warpgroup_mma_wait(0, deps=({scores},))")
            self._emit("mbarrier.arrive(first_free.index(0), count=1)")
            self._weights(kir.as_index(0))
            self._emit("left = weights")
            self._emit(f"for {self._visit(step)} in range({self._visits()} - 1):")
            with self._indented():
                self._slot("slot", "turn", f"({self._visit(step)} + 1)")
                self._slot("past", "turn_past", self._visit(step))
                self._emit("mbarrier.wait(first_full.index(slot), turn)")
                self._emit(f"{scores} = warpgroup_mma({keys.format('slot')})")
                self._emit("mbarrier.wait(second_full.index(past), turn_past)")
                self._emit(f"{sums} = warpgroup_mma({values})")
                both = f"{scores}, {sums}"
                self._emit(f"{both} = warpgroup_mma_wait(1, deps=({both}))")
                self._emit("mbarrier.arrive(first_free.index(slot), count=1)")
                self._weights(simplify(step.node + 1))
                self._emit(f"{sums} = warpgroup_mma_wait(0, deps=({sums},))")
                self._emit("mbarrier.arrive(second_free.index(past), count=1)")
                (rest,) = self._blocks(self._frame(p.sums.local), [p.rest])
                self._emit(f"{sums} = {rest}")
                self._emit("left = weights")
            self._slot("past", "turn_past", f"({self._visits()} - 1)")
            self._emit("mbarrier.wait(second_full.index(past), turn_past)")
            self._emit(f"{sums} = warpgroup_mma({values})")
            self._emit(f"{sums} = warpgroup_mma_wait(0, deps=({sums},))")
            self._body(p.after)

    def _weights(self, visit: Node) -> None:
        """What a visit makes of its scores: weights, and all that is carried but the sums."""
        p = self.p

        def here(n: Node) -> Node:
            return simplify(replaced(n, {p.loop.axis.node: visit}))

        self._body(kir.map_expressions(p.between, here))
        (weights,) = self._blocks((p.second.row, p.second.inner), [here(p.second.left)])
        self._emit(f"weights = tl.convert_layout({weights}, tl.DotOperandLayout(0, tiles, 2))")
        carried = [c for c in p.loop.carried if c is not p.sums]
        steps = self._carried([here(c.step) for c in carried], carried)
        names = (self.scope.name(c.local) for c in carried)
        self._emit(f"{', '.join(names)} = {', '.join(steps)}")

    # ---- the program
    def _program(self) -> None:
        p = self.p
        with self._definition(""):
            self._grid()
            lines = p.first.row, p.first.inner
            dtype = type_name(p.own.local.dtype)
            places = [("own", GROUPS, lines), *((k, STAGES, _lines(t)) for k, t in p.tiles)]
            for kind, count, axes in places:
                shape = f"[{count}, {axes[0].extent}, {axes[1].extent}]"
                layout = "tl.NVMMASharedLayout(128, 16, 2)"
                self._emit(f"{kind} = tl.allocate_shared_memory({dtype}, {shape}, {layout})")
            for barrier in _BARRIERS:
                kind = f"tl.int64, [{STAGES}, 1], mbarrier.MBarrierLayout()"
                self._emit(f"{barrier} = tl.allocate_shared_memory({kind})")
                count = 32 * WARPS if barrier.endswith("full") else GROUPS
                for slot in range(STAGES):
                    self._emit(f"mbarrier.init({barrier}.index({slot}), count={count})")
            self._places(*lines)
            names = [a.name for a in self.arguments]
            roles = []
            for number in range(GROUPS):
                value = replaced(p.own.value, {p.part.node: kir.as_index(number)})
                (code,) = self._blocks(lines, [simplify(value)])
                self._emit(f"own.index({number}).store({code})")
                arguments = *names, f"own.index({number})", *_RING, str(number)
                roles.append(f"({self.name}_multiplying, ({', '.join(arguments)}))")
            self._emit("fence_async_shared()")
            roles.append(f"({self.name}_copying, ({', '.join([*names, *_RING])}))")
            warps, registers = [WARPS] * GROUPS, [MANY] * (GROUPS - 1) + [FEW]
            self._emit(f"tl.warp_specialize([{', '.join(roles)}], {warps}, {registers})")

    # ---- pieces of text
    def _definition(self, role: str, *more: str) -> AbstractContextManager[None]:
        """A function that has all arguments of the kernel, and some more."""
        names = [*(a.name for a in self.arguments), *more]
        self._emit("@gluon.jit")
        self._emit(f"def {self.name}{role}({', '.join(names)}):")
        return self._indented()

    def _slot(self, slot: str, turn: str, visit: str) -> None:
        """Where the tiles of a visit are, and which use of that place this is, by turns 0 and 1."""
        self._emit(f"{slot} = {visit} % {STAGES}")
        self._emit(f"{turn} = {visit} // {STAGES} & 1")

    def _places(self, rows: kir.Axis, features: kir.Axis) -> None:
        """The places of a tile as threads copy it: 16 bytes each, along its lines."""
        assert isinstance(features.extent, int)
        lanes = features.extent // 8
        layout = f"tl.BlockedLayout([1, 8], [{32 // lanes}, {lanes}], [{WARPS}, 1], [1, 0])"
        for axis, side in ((rows, 1), (features, 0)):
            code = f"tl.arange(0, {axis.extent}, tl.SliceLayout({side}, {layout}))"
            self._emit(f"{self.scope.name(axis)} = {code}")

    def _visit(self, axis: kir.Axis) -> str:
        self.scope.narrow.add(axis)
        return self.scope.name(axis)

    def _visits(self) -> str:
        (extent,) = self._evaluate((), [kir.as_index(self.p.loop.axis.extent)])
        return extent.at(PRODUCT + 1)

    def _frame(self, local: kir.Local) -> Frame:
        return self.scope.frame(frozenset(local.tiles))

    def _full(self, local: kir.Local, value: str) -> str:
        """A block of one value, as products have theirs."""
        frame = self._frame(local)
        layout = "tiles" if len(frame) == 2 else "tl.SliceLayout(1, tiles)"
        shape = [axis.extent for axis in frame]
        return f"tl.full({shape}, {value}, {type_name(local.dtype)}, {layout})"


def _lines(tile: Dot) -> tuple[kir.Axis, kir.Axis]:
    """The axes of a tile that is loaded; in memory, places on the last are neighbours."""
    _, index, _, _ = kir.load_parts(tile.right)
    inner, column = tile.inner, tile.column
    return (column, inner) if inner in kir.tile_axes(index[-1]) else (inner, column)


_BARRIERS = "first_full", "second_full", "first_free", "second_free"
_RING = "first", "second", *_BARRIERS
