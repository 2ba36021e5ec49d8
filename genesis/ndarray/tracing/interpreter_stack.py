"""What an instruction of a running Python function is about to work on.

Whoever is told that an instruction comes next (`genesis.ndarray.tracing.bytecode_tracer`) sees the
frame but not the operands: those lie on the interpreter's stack, behind the local variables. How
many there are at which instruction follows from the code. Where a frame keeps them differs between
versions of CPython, so the first use looks for known objects and refuses to go on if they are not
there.
"""

from __future__ import annotations

import sys
from ctypes import POINTER, c_size_t, c_void_p, cast, py_object
from dis import HAVE_ARGUMENT as _HAVE_ARGUMENT
from dis import Bytecode, Instruction, hasjabs, hasjrel, opmap, stack_effect
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

#: What stands for an operand that is not there.
NOTHING = type("Nothing", (), {"__repr__": lambda self: "NOTHING"})()

_FRAME = 24  # in a frame object, where the pointer to the interpreter's frame is
_TAGGED = sys.version_info >= (3, 14)  # whether the lowest bits of references say something else
_LOCALS = 80 if _TAGGED else 72  # in the interpreter's frame, where local variables begin
_FUNCTION = 0 if sys.version_info < (3, 12) else 16  # and where the function is
_TAGS = 3
_GENERATORS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_ENDS = frozenset(
    opmap[name]
    for name in (
        "RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD", "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT",
    )
    if name in opmap
)  # fmt: skip


def depths(code: CodeType) -> dict[int, int]:
    """How many operands there are before each instruction, by its offset."""
    bytecode = Bytecode(code)
    instructions = list(bytecode)
    following = {a.offset: b for a, b in pairwise(instructions)}
    by_offset = {i.offset: i for i in instructions}
    jumps = {*hasjrel, *hasjabs}
    found: dict[int, int] = {}
    # A generator begins with what is sent to it; in newer versions an instruction puts that there.
    begins = bool(code.co_flags & _GENERATORS) and not stack_effect(opmap["RETURN_GENERATOR"])
    stack = [(instructions[0].offset, int(begins))]
    while stack:
        offset, depth = stack.pop()
        if offset in found:
            continue
        found[offset] = depth
        stack += [
            (entry.target, entry.depth + 1 + entry.lasti)
            for entry in bytecode.exception_entries  # type: ignore[attr-defined]
            if entry.start <= offset < entry.end
        ]
        i = by_offset[offset]
        if i.opcode in jumps:
            stack.append((i.argval, depth + _effect(i, jump=True)))
        if i.opcode not in _ENDS and offset in following:
            stack.append((following[offset].offset, depth + _effect(i, jump=False)))
    return found


def _effect(i: Instruction, jump: bool) -> int:
    """How many operands more there are after an instruction."""
    if sys.version_info < (3, 12) and i.opname in ("PRECALL", "CALL"):
        # Two instructions for one call, of which the second takes the arguments.
        return 0 if i.opname == "PRECALL" else -1 - (i.arg or 0)
    return stack_effect(i.opcode, i.arg if i.opcode >= _HAVE_ARGUMENT else None, jump=jump)


def places(code: CodeType) -> int:
    """How many local variables and cells lie before the operands."""
    name_of: Any = code._varname_from_oparg  # type: ignore[attr-defined]
    count = len(code.co_varnames)
    try:
        while True:
            name_of(count)
            count += 1
    except IndexError:
        return count


class Stack:
    """Looks at what frames have on the interpreter's stack, for one thread."""

    __slots__ = ("_address", "_objects", "_words")

    def __init__(self) -> None:
        # Pointers whose address is set anew for every look: making some takes longer than looking.
        self._address = c_size_t()
        self._words = POINTER(c_size_t).from_buffer(self._address)
        self._objects = POINTER(py_object).from_buffer(self._address)

    def operands(self, frame: FrameType, end: int, count: int) -> list[Any]:
        """The `count` values before place `end` of a frame, the last one on top."""
        address, words = self._address, self._words
        address.value = id(frame) + _FRAME
        address.value = words[0] + _LOCALS + 8 * (end - count)
        if _TAGGED:
            return [_object(words[k] & ~_TAGS) for k in range(count)]
        if not words[0]:  # as below what is called
            address.value += 8
            return [NOTHING, *self._all(count - 1)]
        return self._all(count)

    def _all(self, count: int) -> list[Any]:
        try:
            return self._objects[:count]
        except ValueError:  # one of them is NULL
            return [_object(self._words[k]) for k in range(count)]

    def value(self, frame: FrameType, index: int) -> Any:
        """A local variable, cell or operand by its place."""
        address, words = self._address, self._words
        address.value = id(frame) + _FRAME
        address.value = words[0] + _LOCALS + 8 * index
        if _TAGGED:
            return _object(words[0] & ~_TAGS)
        try:
            return self._objects[0]
        except ValueError:  # NULL
            return NOTHING

    def function_of(self, frame: FrameType) -> Any:
        """The function that a frame runs."""
        address, words = self._address, self._words
        address.value = id(frame) + _FRAME
        address.value = words[0] + _FUNCTION
        return _object(words[0] & ~_TAGS) if _TAGGED else self._objects[0]


def _object(pointer: int) -> Any:
    return cast(c_void_p(pointer), py_object).value if pointer else NOTHING
