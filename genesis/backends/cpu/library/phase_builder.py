"""Writing the phases of a library kernel: functions of LLVM IR with loops and arrays.

A library kernel has the same form as a generated one, so the runtime runs it like any other: for
every phase a function that does a range of a grid, and one that counts the grid. Here are the few
words that hand-written phases need: arrays in memory, loops over integers, alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from genesis.backends.base import Binary
from genesis.backends.cpu.binary import binaries, source
from genesis.backends.cpu.codegen.emit import LLVMFunction, LLVMModule, LLVMValue, Operand, typed

_ARGUMENTS = ("ptr noalias %args", "i64 %begin", "i64 %end", "ptr noalias align 64 %scratch")
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8}


class TypedMemory:
    """Elements of one type in memory, from an address on."""

    def __init__(self, pointer: LLVMValue, element: str) -> None:
        self.pointer = pointer
        self.element = element

    def at(self, i: Operand) -> TypedMemory:
        """The array that begins with element i."""
        out = self.pointer.out
        index = i if isinstance(i, LLVMValue) else out.const(i, "i64")
        text = f"getelementptr inbounds {self.element}, {self.pointer}, {index}"
        return TypedMemory(out.op(text, "ptr"), self.element)

    def __getitem__(self, i: Operand) -> LLVMValue:
        address = self.at(i).pointer
        text = f"load {self.element}, {address}, align {_BYTES[self.element]}"
        return address.out.op(text, self.element)

    def vector(self, i: Operand, width: int) -> LLVMValue:
        """Elements i, i + 1, .. as a vector."""
        address = self.at(i).pointer
        align = _BYTES[self.element]
        text = f"load {typed(self.element, width)}, {address}, align {align}"
        return address.out.op(text, self.element, width)

    def __setitem__(self, i: Operand, value: Operand) -> None:
        address = self.at(i).pointer
        stored = value if isinstance(value, LLVMValue) else address.out.const(value, self.element)
        address.out.do(f"store {stored}, {address}, align {_BYTES[self.element]}")


class Code:
    """One phase being written: its arguments, its scratch memory, and control flow."""

    def __init__(self, module: LLVMModule, name: str) -> None:
        self.out = LLVMFunction(module, "void", name, _ARGUMENTS)
        self._args = TypedMemory(LLVMValue(self.out, "%args", "ptr"), "i64")
        self._scratch = TypedMemory(LLVMValue(self.out, "%scratch", "ptr"), "i8")
        self.begin = LLVMValue(self.out, "%begin", "i64")
        self.end = LLVMValue(self.out, "%end", "i64")

    def number(self, slot: int) -> LLVMValue:
        """An integer argument."""
        return self._args[slot]

    def array(self, slot: int, element: str) -> TypedMemory:
        """An array argument."""
        return TypedMemory(self._args[slot].convert("inttoptr", "ptr"), element)

    def scratch(self, offset: int, element: str) -> TypedMemory:
        """The block's own memory, from a byte on."""
        return TypedMemory(self._scratch.at(offset).pointer, element)

    def const(self, value: float) -> LLVMValue:
        """An integer."""
        return self.out.const(value, "i64")

    @contextmanager
    def loop(self, begin: Operand, end: Operand, *carried: LLVMValue) -> Iterator[LoopBuilder]:
        """A loop over begin, begin + 1, .. end - 1 that hands values on; see `LoopBuilder`."""
        out = self.out
        first = begin if isinstance(begin, LLVMValue) else self.const(begin)
        head, body, after = out.label(), out.label(), out.label()
        before = out.block
        out.jump(head)
        out.place(head)
        counter = out.phi("i64")
        phis = [out.phi(value.element, value.width) for value in carried]
        out.branch(counter.value < end, body, after)
        out.place(body)
        loop = LoopBuilder(counter.value, [phi.value for phi in phis], after)
        yield loop
        counter.set((first, before), (counter.value + 1, out.block))
        for phi, start, following in zip(phis, carried, loop.following, strict=True):
            phi.set((start, before), (following, out.block))
        out.jump(head)
        out.place(after)

    @contextmanager
    def repeat(self, *carried: LLVMValue) -> Iterator[LoopBuilder]:
        """A loop that hands values on and ends where it is left; see `LoopBuilder.leave`."""
        out = self.out
        head, after = out.label(), out.label()
        before = out.block
        out.jump(head)
        out.place(head)
        phis = [out.phi(value.element, value.width) for value in carried]
        loop = LoopBuilder(None, [phi.value for phi in phis], after)
        yield loop
        for phi, start, following in zip(phis, carried, loop.following, strict=True):
            phi.set((start, before), (following, out.block))
        out.jump(head)
        out.place(after)

    def choose(
        self, condition: LLVMValue, then: Callable[[], None], orelse: Callable[[], None]
    ) -> None:
        """Do one of two things."""
        out = self.out
        first, second, after = out.label(), out.label(), out.label()
        out.branch(condition, first, second)
        for label, act in ((first, then), (second, orelse)):
            out.place(label)
            act()
            out.jump(after)
        out.place(after)


class LoopBuilder:
    """A loop under way: its `index`, the values it `carried` here, to be handed on with `next`."""

    def __init__(self, index: LLVMValue | None, carried: list[LLVMValue], after: str) -> None:
        self._index = index
        self._after = after
        self.carried = carried
        self.following: Sequence[LLVMValue] = ()

    @property
    def index(self) -> LLVMValue:
        """What a counting loop has come to."""
        assert self._index is not None
        return self._index

    def leave(self, condition: LLVMValue) -> None:
        """Go on after the loop if a condition holds; carried values are what they are here."""
        out = condition.out
        stay = out.label()
        out.branch(condition, self._after, stay)
        out.place(stay)

    def next(self, *values: LLVMValue) -> None:
        """The carried values of the next repetition, and after the last one."""
        self.following = values


class PhaseBuilder:
    """A library kernel being written: phases that run one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module = LLVMModule()
        self._phases: list[tuple[str, str]] = []

    @contextmanager
    def phase(self, *factors: int) -> Iterator[Code]:
        """A phase; its grid is the product of the integer arguments in these slots."""
        name = f"{self.name}_{len(self._phases)}"
        self._phases.append((name, f"{name}_grid"))
        code = Code(self._module, name)
        yield code
        code.out.ret()
        grid = LLVMFunction(self._module, "i64", f"{name}_grid", ["ptr noalias %args"])
        args = TypedMemory(LLVMValue(grid, "%args", "ptr"), "i64")
        points = grid.const(1, "i64")
        for slot in factors:
            points = points * args[slot]
        grid.ret(points)

    def binary(self, scratch_bytes: int) -> Binary:
        """The machine code; `scratch_bytes` is what each block needs of its own."""
        return binaries([source(str(self._module), self._phases, scratch_bytes)])[0]
