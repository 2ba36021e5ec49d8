"""Expressions as Triton source: every scalar operation of `genesis.ir.ops`, in one place.

A block expression is written for an ordered tuple of tile axes, the *frame*: an axis or a local
that mentions only some of them is indexed into it (``i[:, None]``), and Triton's broadcasting does
the rest. Loads, shared subexpressions and long expressions are named in lines of their own, so the
text reads load, compute, store, and its length is linear in the expression's.

Index arithmetic is 64-bit in the kernel IR; here it stays in 32 bits wherever the bounds of the
sizes prove that nothing overflows, which halves the registers that addresses need.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from math import copysign, inf, isinf, isnan

from genesis.backends.gpu.codegen import device_functions
from genesis.backends.gpu.codegen.address import offset
from genesis.ir import ops
from genesis.ir.dtype import (
    STORED,
    DType,
    bool_,
    encode,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    index,
    int32,
    uint32,
)
from genesis.ir.index import Interval, bounds
from genesis.ir.kernel import Axis, AxisKind, Local, as_index, load_parts
from genesis.ir.node import TRUE, Node, is_const, topological
from genesis.ir.ops import Op

Frame = tuple[Axis, ...]
Emit = Callable[[str], None]

# How tightly Python binds: an operand that binds less tightly than its place is parenthesised.
_COMPARE, _OR, _XOR, _AND, _SHIFT, _SUM, PRODUCT, _UNARY, _ATOM = range(9)
_LONG = 60  # characters after which a subexpression gets a line of its own


@dataclass(frozen=True)
class Text:
    """A rendered expression.

    `narrow` says that an index value is held in 32 bits; `tiles` are the axes the block has.
    """

    code: str
    level: int = _ATOM
    narrow: bool = False
    tiles: frozenset[Axis] = frozenset()

    def at(self, level: int) -> str:
        """The code, parenthesised if it binds less tightly than `level`."""
        return self.code if self.level >= level else f"({self.code})"


def padded(axis: Axis) -> int:
    """The extent of a tile axis in Triton: the next power of two."""
    assert isinstance(axis.extent, int)
    return 1 << max(0, axis.extent - 1).bit_length()


def type_name(dtype: DType) -> str:
    """The type's name in Triton's language; floats of 8 bits are bytes, but to matrix units."""
    if dtype in STORED:
        return "tl.uint8"
    return "tl.int1" if dtype is bool_ else f"tl.{dtype.name}"


@dataclass
class FunctionScope:
    """The names of one function, and what is known about the values they hold."""

    library: device_functions.DeviceFunctions
    order: tuple[Axis, ...] = ()  # of all tile axes: the dimensions of every local
    names: dict[Hashable, str] = field(default_factory=dict)
    narrow: set[Hashable] = field(default_factory=set)
    taken: set[str] = field(default_factory=lambda: set(device_functions.RESERVED))
    intervals: dict[Node, Interval] = field(default_factory=dict)
    # What has been named, innermost block of the text last: expressions of axes and arguments
    # only, which mean the same wherever they are visible.
    known: list[dict[tuple[Frame, Node], Text]] = field(default_factory=lambda: [{}])
    floats8: bool = False  # whether floats of 8 bits are loaded as such: a matrix unit takes them

    def fresh(self, hint: str) -> str:
        """A name like `hint` that nothing in the function has."""
        hint = re.sub(r"\W", "_", hint)
        if iskeyword(hint) or not hint.isidentifier():
            hint = f"_{hint}"
        name, count = hint, 0
        while name in self.taken:
            count += 1
            name = f"{hint}_{count}"
        self.taken.add(name)
        return name

    def name(self, thing: Axis | Local) -> str:
        """The variable that holds an axis or a local."""
        if thing not in self.names:
            self.names[thing] = self.fresh(thing.name)
        return self.names[thing]

    def frame(self, tiles: frozenset[Axis]) -> Frame:
        """Tile axes in the order in which blocks have them."""
        return tuple(axis for axis in self.order if axis in tiles)


def evaluate(scope: FunctionScope, frame: Frame, roots: Sequence[Node], emit: Emit) -> list[Text]:
    """Texts of expressions for a frame. What needs a name is emitted before."""
    writer = _Writer(scope, frame, emit)
    known = {n: t for names in scope.known for (f, n), t in names.items() if f == frame}
    nodes = topological(roots, lambda n: () if n in known else _inputs(n))
    writer.rounded = _rounded(nodes, roots)
    uses = Counter(i for n in nodes if n not in known for i in _inputs(n))
    lasting: set[Node] = set()
    for n in nodes:
        if n in known:
            writer.done[n] = known[n]
            lasting.add(n)
            continue
        text = writer.write(n)
        if n.op not in (ops.LOAD, ops.LOCAL) and lasting.issuperset(n.inputs):
            lasting.add(n)
        reused = uses[n] > 1 or (n in roots and uses[n])
        named = reused or (uses[n] and (n.op is ops.LOAD or len(text.code) > _LONG))
        if named and n.op not in _LEAVES:
            name = scope.fresh(_hint(n))
            emit(f"{name} = {text.code}")
            text = Text(name, narrow=text.narrow, tiles=text.tiles)
            if n in lasting:
                scope.known[-1][frame, n] = text
        writer.done[n] = text
    return [writer.done[n] for n in roots]


def _rounded(nodes: Sequence[Node], roots: Sequence[Node]) -> set[Node]:
    """Numbers of which only 16 bits are left in the end: they are rounded, or multiplied before."""
    found: set[Node] = set()
    exact = set(roots)
    for n in reversed(nodes):
        half = n.op is ops.CAST and n.dtype.is_float and n.dtype.bits == 16
        passes = half or (n not in exact and n.op in (ops.MUL, ops.NEG))
        if passes:
            found.update(n.inputs)
        else:
            exact.update(n.inputs)
    return found - exact


def _hint(n: Node) -> str:
    if n.op is ops.LOAD:
        return str(n.attr.name)
    return "at" if n.dtype is index else "mask" if n.dtype is bool_ else "t"


def typed(n: Node, text: Text) -> str:
    """The code of `n` with the type it has in the kernel IR: literals alone have none."""
    if n.op is ops.CONST:
        return f"tl.full([], {text.code}, {type_name(n.dtype)})"
    return f"tl.cast({text.code}, tl.int64)" if text.narrow else text.code


def block(n: Node, text: Text, frame: Frame) -> str:
    """The code of `n` as a block with every axis of the frame, of exactly its type."""
    shape = f"[{', '.join(str(padded(a)) for a in frame)}]"
    if n.op is ops.CONST:
        zero = is_const(n, 0) and text.code != "-0.0" and frame
        value = "" if zero else f"{text.code}, "
        return f"tl.{'zeros' if zero else 'full'}({shape}, {value}{type_name(n.dtype)})"
    code = typed(n, text)
    return code if text.tiles.issuperset(frame) else f"tl.broadcast_to({code}, {shape})"


def address(pointer: str, place: Text) -> str:
    """The code of a pointer, or of a block of them."""
    return pointer if place.code == "0" else f"{pointer} + {place.at(_SUM)}"


def _inputs(n: Node) -> tuple[Node, ...]:
    if n.op is not ops.LOAD:
        return n.inputs
    buffer, indices, mask, other = load_parts(n)
    where = offset(buffer, indices)
    return (where,) if mask is TRUE else (where, mask, other)


class _Writer:
    """Writes one node at a time, given the texts of its inputs in `done`."""

    def __init__(self, scope: FunctionScope, frame: Frame, emit: Emit) -> None:
        self.scope, self.frame, self.emit = scope, frame, emit
        self.done: dict[Node, Text] = {}
        self.rounded: set[Node] = set()

    def write(self, n: Node) -> Text:
        """The text of `n`."""
        leaf = _LEAVES.get(n.op)
        if leaf is not None:
            return leaf(self, n)
        inputs = [self.done[i] for i in _inputs(n)]
        tiles = frozenset[Axis]().union(*(i.tiles for i in inputs))
        if n.op is ops.LOAD:
            return self._load(n, inputs, tiles)
        if n.inputs and all(i.op is ops.CONST for i in n.inputs):
            # Two literals would be folded by Python's rules, not by those of their type.
            inputs[0] = Text(typed(n.inputs[0], inputs[0]))
        inputs, narrow = self._widths(n, inputs)
        text = self._scalar(n, inputs)
        return Text(text.code, text.level, narrow, tiles)

    def _widths(self, n: Node, inputs: list[Text]) -> tuple[list[Text], bool]:
        """Operands of an index operation, widened to 64 bits where its result needs them."""
        variables = [
            t for i, t in zip(n.inputs, inputs, strict=True)
            if i.dtype is index and i.op is not ops.CONST
        ]  # fmt: skip
        if n.dtype is not index or n.op in (ops.CAST, ops.BITCAST):
            return inputs, False
        if not variables:  # a choice between literals has the type that those have
            return inputs, n.op is ops.WHERE and _fits(bounds(n, self.scope.intervals), int32)
        if not all(t.narrow for t in variables):
            return inputs, False
        if _fits(bounds(n, self.scope.intervals), int32):
            return inputs, True
        first = next(k for k, t in enumerate(inputs) if t.narrow)
        wide = Text(f"tl.cast({inputs[first].code}, tl.int64)")
        return [*inputs[:first], wide, *inputs[first + 1 :]], False

    # ---- leaves
    def _axis(self, n: Node) -> Text:
        axis: Axis = n.attr
        narrow = axis in self.scope.narrow
        if axis.kind is not AxisKind.TILE:
            return Text(self.scope.name(axis), narrow=narrow)
        return Text(
            self._place(self.scope.name(axis), (axis,)), narrow=True, tiles=frozenset([axis])
        )

    def _local(self, n: Node) -> Text:
        local: Local = n.attr
        tiles = frozenset(local.tiles)
        code = self._place(self.scope.name(local), self.scope.frame(tiles))
        return Text(code, narrow=local in self.scope.narrow, tiles=tiles)

    def _place(self, code: str, axes: Frame) -> str:
        """A block with the dimensions `axes` as a block of this frame's rank."""
        wanted = [a for a in self.frame if a in axes]
        if list(axes) != wanted:
            code = f"tl.permute({code}, {[axes.index(a) for a in wanted]})"
        if len(axes) in (0, len(self.frame)):
            return code
        return f"{code}[{', '.join(':' if a in axes else 'None' for a in self.frame)}]"

    def _const(self, n: Node) -> Text:
        if n.dtype in STORED:
            return Text(str(encode(n.attr, n.dtype)))
        if not n.dtype.is_float:
            return Text(str(n.attr), _UNARY if n.attr < 0 else _ATOM)
        if isnan(n.attr):
            return Text('float("nan")')
        if isinf(n.attr):
            return Text('float("inf")' if n.attr == inf else 'float("-inf")')
        if n.attr == 0 and copysign(1, n.attr) < 0:  # Triton's own literals lose the sign
            kind = n.dtype if n.dtype is float64 else float32
            return Text(f"(tl.full([], 0.0, {type_name(kind)}) * -1.0)")
        return Text(repr(n.attr), _UNARY if repr(n.attr)[0] == "-" else _ATOM)

    def _symbol(self, n: Node) -> Text:
        return Text(self.scope.names[n.attr], narrow=n.attr in self.scope.narrow)

    def _param(self, n: Node) -> Text:
        name = self.scope.names[n.attr]
        if not _is_half(n.dtype):
            return Text(name)
        # Half-precision scalars travel as their bits, as they are in a program's frame.
        return Text(f"tl.cast(tl.cast({name}, tl.int16), {type_name(n.dtype)}, bitcast=True)")

    def _size(self, n: Node) -> Text:
        (text,) = evaluate(self.scope, self.frame, [as_index(n.attr)], self.emit)
        return text

    # ---- memory
    def _load(self, n: Node, inputs: list[Text], tiles: frozenset[Axis]) -> Text:
        pointer = self.scope.names[n.attr]
        float8 = self.scope.floats8 and n.dtype in STORED
        if float8:
            pointer = f"tl.cast({pointer}, tl.pointer_type({_FLOAT8[n.dtype]}))"
        where = address(pointer, inputs[0])
        if len(inputs) == 1:
            return Text(f"tl.load({where})", tiles=tiles)
        if tiles and not inputs[0].tiles:  # a block of masks wants a block of pointers
            where += f" + tl.zeros({[1] * len(self.frame)}, tl.int32)"
        # Triton converts what fills a load to the type of the memory.
        fill = inputs[2].code if n.dtype.bits < 64 else _operand(n.inputs[-1], inputs[2])
        if float8:
            fill = repr(float(n.inputs[-1].attr))
        return Text(f"tl.load({where}, mask={inputs[1].code}, other={fill})", tiles=tiles)

    # ---- scalar operations
    def _scalar(self, n: Node, inputs: list[Text]) -> Text:
        op, dtype = n.op, n.dtype
        if op in (ops.CAST, ops.BITCAST):
            return self._cast(n, inputs[0])
        if op is ops.WHERE:
            then, orelse = (_operand(i, t) for i, t in zip(n.inputs[1:], inputs[1:], strict=True))
            return Text(f"tl.where({inputs[0].code}, {then}, {orelse})")
        if n.inputs[0].dtype is bool_:
            return _logic(n, inputs)
        half = _is_half(n.inputs[0].dtype)
        if half:  # every operation on half precisions is computed in float32 and rounded
            inputs = [
                t if i.op is ops.CONST else Text(f"tl.cast({t.code}, tl.float32)")
                for i, t in zip(n.inputs, inputs, strict=True)
            ]
        text = self._arithmetic(n, float32 if half else n.inputs[0].dtype, inputs)
        if half and _is_half(dtype):
            return Text(f"tl.cast({text.code}, {type_name(dtype)})")
        return text

    def _arithmetic(self, n: Node, dtype: DType, inputs: list[Text]) -> Text:
        """The operation itself, computed in `dtype`."""
        op = n.op
        below = _one_plus_erf(n)
        if below is not None:
            return self._call("one_plus_erf", [self.done[below].code])
        if op in _INFIX:
            symbol, level = _INFIX[op]
            return _infix(symbol, level, inputs)
        operands = [
            f"tl.full([], {t.code}, {type_name(dtype)})" if i.op is ops.CONST else t.code
            for i, t in zip(n.inputs, inputs, strict=True)
        ]
        if op in (ops.MAX, ops.MIN):
            nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_float else ""
            name = "maximum" if op is ops.MAX else "minimum"
            return Text(f"tl.{name}({inputs[0].code}, {inputs[1].code}{nan})")
        if op is ops.NEG and dtype.is_float:  # not 0 - x, which is 0 for 0
            return _infix("*", PRODUCT, [inputs[0], Text("-1.0", _UNARY)])
        if op is ops.NEG:
            return Text(f"-{inputs[0].at(_UNARY)}", _UNARY)
        if op is ops.NOT:
            return Text(f"~{inputs[0].at(_UNARY)}", _UNARY)
        if op is ops.ABS:
            return Text(f"tl.abs({operands[0]})")
        if op in (ops.FLOORDIV, ops.MOD):
            return self._divide(n, inputs, operands)
        if op in (ops.SHL, ops.SHR):
            return self._shift(n, inputs, operands)
        if op is ops.RANDOM:
            return self._call("threefry", operands)
        if op is ops.FMA:
            if dtype.is_float:
                return Text(f"tl.fma({', '.join(operands)})")
            return _infix("+", _SUM, [_infix("*", PRODUCT, inputs[:2]), inputs[2]])
        if op is ops.LOOKUP and dtype is uint32:  # the codes of four neighbours
            table = [int(i.attr) >> shift & 0xFFFFFFFF for i in n.inputs[1:] for shift in (0, 32)]
            return self._call("look_up_four", [inputs[0].code, *map(str, table)])
        if op is ops.LOOKUP:
            words = [
                f"tl.full([], {t.code}, tl.uint64)" if i.op is ops.CONST else t.code
                for i, t in zip(n.inputs[1:], inputs[1:], strict=True)
            ]
            return self._call("look_up", [inputs[0].code, *words])
        if op is ops.POW and dtype.is_integer:
            return self._call("int_power", [*operands, str(dtype.bits)])
        if not dtype.is_float:
            raise NotImplementedError(f"{op} of {dtype} has no Triton form; cast to a float first")
        # Two units in the last place of 24 bits do not show in 16; and rounding correctly would
        # take so many registers that large tiles have none left.
        if op is ops.DIV and (dtype is float64 or n in self.rounded):
            return _infix("/", PRODUCT, inputs)
        if op is ops.SQRT and dtype is float64:
            return Text(f"tl.sqrt({operands[0]})")
        if op in (ops.CEIL, ops.FLOOR):
            return self._call("round_up" if op is ops.CEIL else "round_down", operands)
        if op in _TRITON:
            return Text(f"tl.{_TRITON[op]}({', '.join(operands)})")
        if op is ops.FMOD and dtype is float32:
            return self._call("float_mod", operands)
        if op in _LIBDEVICE:
            self.scope.library.libdevice = True
            text = Text(f"libdevice.{_LIBDEVICE[op]}({', '.join(operands)})")
            return self._call("keep_tiny", [operands[0], text.code]) if op in _ODD else text
        raise NotImplementedError(f"the operation {op} has no Triton form")

    def _call(self, helper: str, operands: Sequence[str]) -> Text:
        self.scope.library.use(helper)
        return Text(f"{helper}({', '.join(operands)})")

    def _divide(self, n: Node, inputs: list[Text], operands: list[str]) -> Text:
        """Triton's division truncates and does not define division by zero."""
        a, b = (bounds(i, self.scope.intervals) for i in n.inputs)
        if a[0] >= 0 and b[0] > 0:
            return _infix("//" if n.op is ops.FLOORDIV else "%", PRODUCT, inputs)
        wide = [f"tl.cast({o}, {type_name(n.dtype)})" for o in operands]
        return self._call("floor_divide" if n.op is ops.FLOORDIV else "floor_mod", wide)

    def _shift(self, n: Node, inputs: list[Text], operands: list[str]) -> Text:
        left = n.op is ops.SHL
        low, high = bounds(n.inputs[1], self.scope.intervals)
        if 0 <= low and high < n.dtype.bits:
            return _infix("<<" if left else ">>", _SHIFT, inputs)
        return self._call("shift_left" if left else "shift_right", [*operands, str(n.dtype.bits)])

    def _cast(self, n: Node, text: Text) -> Text:
        source, target = n.inputs[0].dtype, n.dtype
        name = type_name(target)
        code = typed(n.inputs[0], text) if n.inputs[0].op is ops.CONST else text.code
        if n.op is ops.BITCAST:
            if bool_ in (source, target):
                raise NotImplementedError(f"bitcast of {source} to {target} has no Triton form")
            return Text(f"tl.cast({code}, {name}, bitcast=True)")
        if source is target:
            return text
        if source in STORED:
            source, code = float32, self._call(f"from_{source.name}", [code]).code
            if target is float32:
                return Text(code)
        # Half precisions convert through float32: Triton has no direct way to most types.
        if _is_half(source) and target is not float32:
            source, code = float32, f"tl.cast({code}, tl.float32)"
        if target is bool_:
            return _infix("!=", _COMPARE, [Text(code), Text("0")])
        if source.is_float and target.is_integer:
            low, high = str(target.min), str(target.max)
            return self._call("saturate", [code, low, high, name])
        if target in STORED:
            numbers = "3, 7, 16384.0, 0x7E" if target is float8_e4m3fn else "2, 15, 128.0, 0x7C"
            return self._call("to_float8", [f"tl.cast({code}, tl.float32)", numbers])
        if (
            _is_half(target)
            and source is not float32
            and not (target is float16 and source.is_float)
        ):
            code = f"tl.cast({code}, tl.float32)"
        return Text(f"tl.cast({code}, {name})")


def _infix(symbol: str, level: int, inputs: Sequence[Text]) -> Text:
    # Comparisons chain in Python, so both operands must bind more tightly.
    left = inputs[0].at(level + 1 if level == _COMPARE else level)
    return Text(f"{left} {symbol} {inputs[1].at(level + 1)}", level)


def _logic(n: Node, inputs: list[Text]) -> Text:
    """Operations on bool, which Triton would take for one-bit integers."""
    a = inputs[0]
    inverted = Text(f"~{a.at(_UNARY)}", _UNARY)
    if n.op is ops.NOT:
        return inverted
    if n.op in (ops.AND, ops.MIN, ops.MUL):
        return _infix("&", _AND, inputs)
    if n.op in (ops.OR, ops.MAX, ops.ADD):
        return _infix("|", _OR, inputs)
    if n.op in (ops.XOR, ops.NE):
        return _infix("^", _XOR, inputs)
    if n.op is ops.EQ:
        return _infix("^", _XOR, [inverted, inputs[1]])
    if n.op is ops.LT:
        return _infix("&", _AND, [inverted, inputs[1]])
    if n.op is ops.LE:
        return _infix("|", _OR, [inverted, inputs[1]])
    raise NotImplementedError(f"{n.op} of bool has no Triton form; cast to an integer first")


def _one_plus_erf(n: Node) -> Node | None:
    """The x of 1 + erf(x) in float32, as in GELU: that takes less work than erf itself."""
    if n.op is not ops.ADD or n.dtype is not float32:
        return None
    for a, b in (n.inputs, n.inputs[::-1]):
        if a.op is ops.ERF and is_const(b, 1):
            return a.inputs[0]
    return None


def _operand(n: Node, text: Text) -> str:
    """`n` as the argument of a function, where Triton takes literals for 32-bit values."""
    if n.op is not ops.CONST or n.dtype in (bool_, int32, float32):
        return text.code
    return text.code if n.dtype is index and _fits((n.attr, n.attr), int32) else typed(n, text)


def _fits(interval: Interval, dtype: DType) -> bool:
    return dtype.min <= interval[0] and interval[1] <= dtype.max


def _is_half(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits == 16


#: Floats of 8 bits as matrix units know them.
_FLOAT8 = {float8_e4m3fn: "tl.float8e4nv", float8_e5m2: "tl.float8e5"}

_LEAVES: dict[Op, Callable[[_Writer, Node], Text]] = {
    ops.AXIS: _Writer._axis, ops.LOCAL: _Writer._local, ops.CONST: _Writer._const,
    ops.SYMBOL: _Writer._symbol, ops.PARAM: _Writer._param, ops.SIZE: _Writer._size,
}  # fmt: skip
_INFIX = {
    ops.ADD: ("+", _SUM), ops.SUB: ("-", _SUM), ops.MUL: ("*", PRODUCT),
    ops.AND: ("&", _AND), ops.OR: ("|", _OR), ops.XOR: ("^", _XOR),
    ops.LT: ("<", _COMPARE), ops.LE: ("<=", _COMPARE),
    ops.EQ: ("==", _COMPARE), ops.NE: ("!=", _COMPARE),
}  # fmt: skip
# Triton's own exp, log, sin and cos are approximations; these are rounded correctly or exact.
_TRITON = {
    ops.DIV: "div_rn", ops.SQRT: "sqrt_rn", ops.ERF: "erf",
}  # fmt: skip
_ODD = (ops.SIN, ops.TAN, ops.TANH)  # f(x) is x near 0
_LIBDEVICE = {
    ops.EXP: "exp", ops.EXP2: "exp2", ops.LOG: "log", ops.LOG2: "log2", ops.SIN: "sin",
    ops.COS: "cos", ops.TANH: "tanh", ops.POW: "pow", ops.ATAN2: "atan2", ops.ROUND: "rint",
    ops.TRUNC: "trunc", ops.TAN: "tan", ops.FMOD: "fmod",
}  # fmt: skip
