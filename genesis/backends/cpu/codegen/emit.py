"""Writing LLVM IR as text: modules, functions, and values with operators.

A `LLVMValue` is an operand (a register or a literal) with its LLVM type; arithmetic on values
appends instructions to the function being written, so code generators read like the formulas they
emit. A value of width 0 is a scalar, of width w a vector ``<w x element>``. Python numbers are
literals of the other operand's type; everything else must have equal types.

>>> module = LLVMModule()
>>> f = LLVMFunction(module, "i64", "twice_plus", ["i64 %a", "i64 %b"])
>>> a, b = LLVMValue(f, "%a", "i64"), LLVMValue(f, "%b", "i64")
>>> f.ret(a * 2 + b)
>>> print(module)
define i64 @"twice_plus"(i64 %a, i64 %b) nounwind {
entry:
  %v1 = mul i64 %a, 2
  %v2 = add i64 %v1, %b
  ret i64 %v2
}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Union

Operand = Union["LLVMValue", int, float]
_FLOATS = frozenset({"half", "float", "double"})
_MANGLED = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


@cache
def typed(element: str, width: int) -> str:
    """The LLVM type of a scalar (width 0) or vector."""
    return f"<{width} x {element}>" if width else element


@cache
def mangle(element: str, width: int) -> str:
    """A type's name inside an intrinsic's name."""
    name = _MANGLED.get(element, element)
    return f"v{width}{name}" if width else name


@lru_cache(maxsize=1 << 12)
def _literal(element: str, width: int, value: str) -> str:
    return f"splat ({element} {value})" if width else value


def _number(element: str, value: float) -> str:
    if element in _FLOATS:
        number = float(value)
        if element == "float":
            number = _single(number)
        # Hexadecimal is exact, and the only way to write infinities and NaN.
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if element == "i1":
        return "true" if value else "false"
    return str(int(value))


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class LLVMModule:
    """Functions, constants and metadata, printed as one LLVM IR module."""

    def __init__(self, attributes: str = "nounwind", avx512: bool = False) -> None:
        self.attributes = attributes
        self.avx512 = avx512  # whether its instructions may be named
        self.functions: list[LLVMFunction] = []
        self.globals: dict[str, str] = {}
        self.metadata: list[str] = []
        self.declarations: dict[str, str] = {}
        self.libraries: set[str] = set()

    def __str__(self) -> str:
        parts = [f"{name} = {text}" for name, text in self.globals.items()]
        parts += map(str, self.functions)
        parts += self.declarations.values()
        parts += [f"!{k} = {text}" for k, text in enumerate(self.metadata)]
        return "\n".join(parts)

    def constant(self, name: str, text: str) -> str:
        """A named constant; gives its address as an operand."""
        self.globals[f"@{name}"] = f"internal constant {text}"
        return f"@{name}"

    def node(self, text: str) -> str:
        """A metadata node; gives its reference."""
        self.metadata.append(text)
        return f"!{len(self.metadata) - 1}"


class LLVMFunction:
    """One function being written: lines of text, fresh names, the current block."""

    def __init__(
        self,
        module: LLVMModule,
        result: str,
        name: str,
        arguments: Sequence[str],
        linkage: str = "",
    ) -> None:
        self.module = module
        self.head = f'define {linkage}{result} @"{name}"({", ".join(arguments)})'
        self.early: list[str] = []
        self.lines: list[str] = []
        self.block = "entry"
        self._count = 0
        module.functions.append(self)

    def __str__(self) -> str:
        body = "\n".join([*self.early, *self.lines])
        return f"{self.head} {self.module.attributes} {{\nentry:\n{body}\n}}"

    # ---- instructions
    def op(self, text: str, element: str, width: int = 0) -> LLVMValue:
        """Append an instruction with a result."""
        self._count += 1
        register = f"%v{self._count}"
        self.lines.append(f"  {register} = {text}")
        return LLVMValue(self, register, element, width)

    def op_early(self, text: str, element: str) -> LLVMValue:
        """Put an instruction before all those that are not early."""
        self._count += 1
        register = f"%v{self._count}"
        self.early.append(f"  {register} = {text}")
        return LLVMValue(self, register, element)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def ret(self, value: LLVMValue | None = None) -> None:
        """Return."""
        self.do("ret void" if value is None else f"ret {value}")

    def const(self, value: float, element: str, width: int = 0) -> LLVMValue:
        """A literal, repeated in every lane of a vector."""
        return LLVMValue(self, _literal(element, width, _number(element, value)), element, width)

    def iota(self, element: str, width: int, scale: int = 1, start: int = 0) -> LLVMValue:
        """The vector ``start, start + scale, start + 2*scale, ..``"""
        lanes = ", ".join(f"{element} {start + scale * k}" for k in range(width))
        return LLVMValue(self, f"<{lanes}>", element, width)

    def call(
        self,
        name: str,
        element: str,
        width: int,
        *arguments: LLVMValue,
        flags: str = "",
        extra: str = "",
    ) -> LLVMValue:
        """Call a function that gives a value, declaring it."""
        result = typed(element, width)
        self._declare(name, result, arguments)
        operands = ", ".join(map(str, arguments))
        return self.op(f"call {flags}{result} @{name}({operands}){extra}", element, width)

    def call_void(self, name: str, *arguments: LLVMValue) -> None:
        """Call a function that gives nothing, declaring it."""
        self._declare(name, "void", arguments)
        self.do(f"call void @{name}({', '.join(map(str, arguments))})")

    def _declare(self, name: str, result: str, arguments: Sequence[LLVMValue]) -> None:
        declarations = self.module.declarations
        if name not in declarations and name not in self.module.libraries:
            types = ", ".join(a.type for a in arguments)
            declarations[name] = f"declare {result} @{name}({types})"

    # ---- blocks
    def label(self) -> str:
        """A fresh name for a block."""
        self._count += 1
        return f"b{self._count}"

    def place(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """Go to a block."""
        self.do(f"br label %{label}")

    def branch(self, condition: LLVMValue, then: str, orelse: str) -> None:
        """Go to one of two blocks."""
        self.do(f"br i1 {condition.text}, label %{then}, label %{orelse}")

    def phi(self, element: str, width: int = 0) -> Phi:
        """A value that depends on where the block was entered from; complete it with `Phi.set`."""
        value = self.op("", element, width)
        return Phi(value, len(self.lines) - 1)

    @contextmanager
    def guard(self, condition: LLVMValue) -> Iterator[None]:
        """Instructions that run only where a scalar condition holds."""
        inside, after = self.label(), self.label()
        self.branch(condition, inside, after)
        self.place(inside)
        yield
        self.jump(after)
        self.place(after)


class Phi:
    """A phi instruction whose incoming values are given later."""

    def __init__(self, value: LLVMValue, line: int) -> None:
        self.value = value
        self._line = line

    def set(self, *incoming: tuple[LLVMValue, str]) -> None:
        """The value for each predecessor block."""
        pairs = ", ".join(f"[ {value.text}, %{block} ]" for value, block in incoming)
        v = self.value
        v.out.lines[self._line] = f"  {v.text} = phi {v.type} {pairs}"


class LLVMValue:
    """An operand: its text, element type and width. Operators append instructions."""

    __slots__ = ("out", "text", "element", "width")

    def __init__(self, out: LLVMFunction, text: str, element: str, width: int = 0) -> None:
        self.out = out
        self.text = text
        self.element = element
        self.width = width

    def __str__(self) -> str:
        return f"{typed(self.element, self.width)} {self.text}"

    @property
    def type(self) -> str:
        """The LLVM type."""
        return typed(self.element, self.width)

    @property
    def is_float(self) -> bool:
        """Whether the element type is floating point."""
        return self.element in _FLOATS

    @property
    def is_literal(self) -> bool:
        """Whether the operand is known when compiling."""
        return self.text[0] != "%"

    def like(self, value: Operand) -> LLVMValue:
        """`value` as an operand of this type."""
        if isinstance(value, LLVMValue):
            return value
        return self.out.const(value, self.element, self.width)

    def binary(self, operation: str, other: Operand) -> LLVMValue:
        """An instruction on two operands of this type."""
        other = self.like(other)
        text = f"{operation} {typed(self.element, self.width)} {self.text}, {other.text}"
        return self.out.op(text, self.element, self.width)

    def compare(self, predicate: str, other: Operand) -> LLVMValue:
        """A comparison (icmp or fcmp with the predicate)."""
        other = self.like(other)
        kind = "fcmp" if self.is_float else "icmp"
        text = f"{kind} {predicate} {typed(self.element, self.width)} {self.text}, {other.text}"
        return self.out.op(text, "i1", self.width)

    def intrinsic(self, name: str, *others: Operand, flags: str = "") -> LLVMValue:
        """A call of ``llvm.<name>`` on this value and others of its type."""
        arguments = [self.like(o) for o in others]
        full = f"llvm.{name}.{mangle(self.element, self.width)}"
        return self.out.call(full, self.element, self.width, self, *arguments, flags=flags)

    def convert(self, instruction: str, element: str) -> LLVMValue:
        """A conversion of the element type."""
        to = typed(element, self.width)
        return self.out.op(f"{instruction} {self} to {to}", element, self.width)

    # ---- arithmetic
    def known(self) -> int | None:
        """The value, where it is a scalar index (i64) known when compiling."""
        return (
            None if self.width or self.element != "i64" or self.text[0] == "%" else int(self.text)
        )

    def _wrapped(self, value: int) -> int:
        """A folded integer as the register would hold it."""
        bits = int(self.element[1:])
        return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))

    def __add__(self, other: Operand) -> LLVMValue:
        other = self.like(other)
        a, b = self.known(), other.known()
        if a is not None and b is not None:
            return self.like(self._wrapped(a + b))
        if a == 0 or b == 0:
            return other if a == 0 else self
        return self.binary("fadd" if self.is_float else "add", other)

    def __radd__(self, other: Operand) -> LLVMValue:
        return self.like(other) + self

    def __sub__(self, other: Operand) -> LLVMValue:
        other = self.like(other)
        a, b = self.known(), other.known()
        if a is not None and b is not None:
            return self.like(self._wrapped(a - b))
        return self.binary("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: Operand) -> LLVMValue:
        return self.like(other) - self

    def __mul__(self, other: Operand) -> LLVMValue:
        other = self.like(other)
        a, b = self.known(), other.known()
        if a is not None and b is not None:
            return self.like(self._wrapped(a * b))
        if a == 1 or b == 1:
            return other if a == 1 else self
        return self.binary("fmul" if self.is_float else "mul", other)

    def __rmul__(self, other: Operand) -> LLVMValue:
        return self.like(other) * self

    def __truediv__(self, other: Operand) -> LLVMValue:
        return self.binary("fdiv", other)

    def __rtruediv__(self, other: Operand) -> LLVMValue:
        return self.like(other).binary("fdiv", self)

    def __neg__(self) -> LLVMValue:
        if self.is_float:
            return self.out.op(f"fneg {self}", self.element, self.width)
        return self.like(0) - self

    def __abs__(self) -> LLVMValue:
        return self.intrinsic("fabs")

    def __and__(self, other: Operand) -> LLVMValue:
        return self.binary("and", other)

    def __or__(self, other: Operand) -> LLVMValue:
        return self.binary("or", other)

    def __xor__(self, other: Operand) -> LLVMValue:
        return self.binary("xor", other)

    def __lshift__(self, other: Operand) -> LLVMValue:
        return self.binary("shl", other)

    def __rshift__(self, other: Operand) -> LLVMValue:
        """Arithmetic, copying the sign."""
        return self.binary("ashr", other)

    def __invert__(self) -> LLVMValue:
        return self ^ (1 if self.element == "i1" else -1)

    # Ordered comparisons of floats (false for NaN), signed ones of integers.
    def __lt__(self, other: Operand) -> LLVMValue:
        return self.compare("olt" if self.is_float else "slt", other)

    def __le__(self, other: Operand) -> LLVMValue:
        return self.compare("ole" if self.is_float else "sle", other)

    def __gt__(self, other: Operand) -> LLVMValue:
        return self.compare("ogt" if self.is_float else "sgt", other)

    def __ge__(self, other: Operand) -> LLVMValue:
        return self.compare("oge" if self.is_float else "sge", other)

    def equal(self, other: Operand) -> LLVMValue:
        """Whether the values are equal; false for NaN."""
        return self.compare("oeq" if self.is_float else "eq", other)

    def differs(self, other: Operand) -> LLVMValue:
        """Whether the values differ; true for NaN."""
        return self.compare("une" if self.is_float else "ne", other)

    def is_nan(self) -> LLVMValue:
        """Whether a float is NaN."""
        return self.compare("uno", self)

    def select(self, then: Operand, orelse: Operand) -> LLVMValue:
        """`then` where this condition holds, `orelse` elsewhere; one of them must be a value."""
        like = then if isinstance(then, LLVMValue) else orelse
        assert isinstance(like, LLVMValue)
        a, b = like.like(then), like.like(orelse)
        return self.out.op(f"select {self}, {a}, {b}", a.element, a.width)

    def fma(self, factor: Operand, summand: Operand) -> LLVMValue:
        """``self * factor + summand`` in one rounding."""
        return self.intrinsic("fma", factor, summand)

    # ---- lanes
    def splat(self, width: int) -> LLVMValue:
        """A scalar repeated in every lane of a vector."""
        if self.is_literal and self.element != "ptr":
            return LLVMValue(
                self.out, _literal(self.element, width, self.text), self.element, width
            )
        full = typed(self.element, width)
        one = self.out.op(f"insertelement {full} poison, {self}, i64 0", self.element, width)
        text = f"shufflevector {one}, {full} poison, <{width} x i32> zeroinitializer"
        return self.out.op(text, self.element, width)

    def shuffle(self, other: LLVMValue | None, lanes: Sequence[int]) -> LLVMValue:
        """Pick lanes of this vector and another one put after it; one lane gives a scalar."""
        if len(lanes) == 1 and lanes[0] < self.width:
            return self.lane(lanes[0])
        second = f"{self.type} poison" if other is None else str(other)
        mask = ", ".join(f"i32 {k}" for k in lanes)
        text = f"shufflevector {self}, {second}, <{len(lanes)} x i32> <{mask}>"
        return self.out.op(text, self.element, len(lanes))

    def lane(self, k: int) -> LLVMValue:
        """One lane, as a scalar."""
        return self.out.op(f"extractelement {self}, i64 {k}", self.element)

    def insert(self, k: int, value: LLVMValue) -> LLVMValue:
        """This vector with one lane replaced."""
        return self.out.op(f"insertelement {self}, {value}, i64 {k}", self.element, self.width)

    def reverse(self) -> LLVMValue:
        """The lanes in opposite order."""
        return self.shuffle(None, range(self.width - 1, -1, -1))


def gather_lanes(values: Sequence[LLVMValue]) -> LLVMValue:
    """Scalars as the lanes of a vector."""
    first = values[0]
    vector = LLVMValue(first.out, "poison", first.element, len(values))
    for k, value in enumerate(values):
        vector = vector.insert(k, value)
    return vector
