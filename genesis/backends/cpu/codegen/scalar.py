"""Scalar operations on LLVM values: what `ADD` or `FLOORDIV` of one dtype means in instructions.

The same code serves scalars and vectors. In registers a bool is ``i1`` (``i8`` in memory), floats
of 16 and 8 bits are their bits as integers: they are widened to float32 for every operation and
rounded after it, so no rounding step is lost, and LLVM never needs a library call for them.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from functools import cache
from math import nan

from genesis.backends.cpu.codegen.emit import LLVMFunction, LLVMValue
from genesis.backends.cpu.codegen.math import exponentials, trigonometry
from genesis.ir import index, ops
from genesis.ir.dtype import (
    STORED,
    DType,
    Scalar,
    bfloat16,
    bool_,
    encode,
    float8_e4m3fn,
    float16,
    float32,
    float64,
)
from genesis.ir.node import Node, is_const
from genesis.ir.ops import Op

_ELEMENTS = {"bool": "i1", "float32": "float", "float64": "double"}
_HALVES = (float16, bfloat16, *STORED)  # and quarters
_EXPONENT_ALL_ONES = 0x7F800000


@cache
def register(dtype: DType) -> str:
    """The LLVM type of a value of `dtype` in a register."""
    return _ELEMENTS.get(dtype.name) or f"i{dtype.bits}"


@cache
def memory(dtype: DType) -> str:
    """The LLVM type of an element of `dtype` in memory."""
    return "i8" if dtype is bool_ else register(dtype)


def constant(out: LLVMFunction, value: Scalar, dtype: DType, width: int = 0) -> LLVMValue:
    """A constant of any dtype."""
    if dtype is float16:
        value = _half_bits(float(value))
    elif dtype is bfloat16:
        value = _bfloat_bits(float(value))
    elif dtype in STORED:
        value = encode(value, dtype)
    return out.const(value, register(dtype), width)


def apply(n: Node, arguments: Sequence[LLVMValue]) -> LLVMValue:
    """Emit one elementwise operation; the arguments' widths are equal."""
    if n.op is ops.WHERE:
        return arguments[0].select(arguments[1], arguments[2])
    dtype = n.inputs[0].dtype
    if n.op is ops.CAST:
        return cast(arguments[0], dtype, n.dtype)
    if n.op is ops.BITCAST:
        return _bitcast(arguments[0], dtype, n.dtype)
    if n.op not in _PLAIN and n.op not in _TABLE:
        raise NotImplementedError(f"the CPU backend has no {n.op} of {dtype}")
    half = dtype in _HALVES
    operands = [widen(a, dtype) for a in arguments] if half else arguments
    plain = _PLAIN.get(n.op)
    result = plain(*operands) if plain else _TABLE[n.op](n, float32 if half else dtype, *operands)
    return narrow(result, n.dtype) if half and n.dtype in _HALVES else result


# ---- conversions


def widen(value: LLVMValue, dtype: DType) -> LLVMValue:
    """A float of 16 or 8 bits as float32."""
    if dtype is float16:
        return value.convert("bitcast", "half").convert("fpext", "float")
    if dtype in STORED:
        return _widen_byte(value, dtype)
    return (value.convert("zext", "i32") << 16).convert("bitcast", "float")


def narrow(value: LLVMValue, dtype: DType) -> LLVMValue:
    """A float32 rounded to 16 or 8 bits, nearest with ties to even."""
    if dtype is float16:
        return value.convert("fptrunc", "half").convert("bitcast", "i16")
    if dtype in STORED:
        return _narrow_to_byte(value, dtype)
    # Integer code: the CPU's own bfloat16 conversion flushes denormals.
    bits = value.convert("bitcast", "i32")
    top = bits.binary("lshr", 16)
    rounded = (bits + (top & 1) + 0x7FFF).binary("lshr", 16)
    return value.is_nan().select(top | 0x40, rounded).convert("trunc", "i16")


def _widen_byte(value: LLVMValue, dtype: DType) -> LLVMValue:
    """Five bits of exponent are those of float16; four, moved there, count from 2**-8 of it."""
    bits = value.convert("zext", "i16")
    if dtype is not float8_e4m3fn:
        return widen(bits << 8, float16)
    size = bits & 0x7F
    number = widen((bits & 0x80) << 8 | size << 7, float16) * 256.0
    return size.equal(0x7F).select(nan, number)


def _narrow_to_byte(value: LLVMValue, dtype: DType) -> LLVMValue:
    """What is too large is infinite, or the greatest number where there is no infinity."""
    digits, bias, most = (3, 7, 0x7E) if dtype is float8_e4m3fn else (2, 15, 0x7C)
    bits = value.convert("bitcast", "i32")
    size = bits & 0x7FFFFFFF
    last = 23 - digits
    odd = size.binary("lshr", last) & 1
    rounded = (size + odd + ((1 << last - 1) - 1)).binary("lshr", last) - (127 - bias << digits)
    # Below the least normal number, an addition rounds where the last bit is.
    unit = value.out.const(2.0 ** (24 - bias - digits), "float", value.width)
    tiny = (abs(value) + unit).convert("bitcast", "i32") - unit.convert("bitcast", "i32")
    small = size.compare("ult", 128 - bias << 23)
    result = small.select(tiny, rounded)
    result = result.compare("ugt", most).select(most, result)
    result = value.is_nan().select(0x7F, result)
    return (result | bits.binary("lshr", 24) & 0x80).convert("trunc", "i8")


def _round_to_odd(value: LLVMValue) -> LLVMValue:
    """A float64 as float32, inexact results made odd: rounding once more is then correct."""
    near = value.convert("fptrunc", "float")
    back = near.convert("fpext", "double")
    bits = near.convert("bitcast", "i32")
    past = abs(back).compare("ogt", abs(value))
    toward_zero = past.select(bits - 1, bits)
    inexact = back.compare("one", value)
    return inexact.select(toward_zero | 1, bits).convert("bitcast", "float")


def cast(value: LLVMValue, source: DType, target: DType) -> LLVMValue:
    """Convert as `ops.CAST` does."""
    if source is target:
        return value
    if source in _HALVES:
        return cast(widen(value, source), float32, target)
    if target is bool_:
        return value.differs(0)
    if target in _HALVES:
        if source is float64:
            return narrow(
                value.convert("fptrunc", "float") if target is bfloat16 else _round_to_odd(value),
                target,
            )
        return narrow(cast(value, source, float32), target)
    element = register(target)
    if source.is_float:
        if target.is_float:
            return value.convert("fpext" if target is float64 else "fptrunc", element)
        return _saturated(value, target)
    signed = source.kind == "int"
    if target.is_float:
        return value.convert("sitofp" if signed else "uitofp", element)
    if target.bits == source.bits and source is not bool_:
        return value
    if target.bits < source.bits:
        return value.convert("trunc", element)
    return value.convert("sext" if signed else "zext", element)


def _saturated(value: LLVMValue, target: DType) -> LLVMValue:
    """A float as an integer: truncated, what is too large as the greatest, not a number as 0.

    LLVM's own intrinsic takes vectors apart.
    """
    low, high = float(target.min), float(int(target.max) + 1)  # both are exact
    above, below = value.compare("oge", high), value.compare("olt", low)
    inside = value.compare("oge", low) & value.compare("olt", high)
    kind = "fptosi" if target.kind == "int" else "fptoui"
    whole = inside.select(value, value.like(0.0)).convert(kind, register(target))
    whole = above.select(whole.like(int(target.max)), whole)
    return below.select(whole.like(int(target.min)), whole)


def _bitcast(value: LLVMValue, source: DType, target: DType) -> LLVMValue:
    if source is bool_ or target is bool_:
        return cast(value, source, target)
    a, b = register(source), register(target)
    return value if a == b else value.convert("bitcast", b)


def _half_bits(value: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def _bfloat_bits(value: float) -> int:
    try:
        bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    if bits & 0x7FFFFFFF > _EXPONENT_ALL_ONES:  # NaN must not round up to infinity
        return 0x7FC0
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


# ---- operations


def pairs(a: LLVMValue, b: LLVMValue) -> LLVMValue:
    """The products of the halves of two words, which are bfloat16, added."""
    low = [(x << 16).convert("bitcast", "float") for x in (a, b)]
    high = [(x & -0x10000).convert("bitcast", "float") for x in (a, b)]
    return low[0] * low[1] + high[0] * high[1]


Emit = Callable[..., LLVMValue]
#: Functions of the operands alone.
_PLAIN: dict[Op, Emit] = {
    ops.DIV: operator.truediv,
    ops.NEG: operator.neg,
    ops.NOT: operator.invert,
    ops.AND: operator.and_,
    ops.OR: operator.or_,
    ops.XOR: operator.xor,
    ops.SQRT: lambda a: a.intrinsic("sqrt"),
    ops.FMOD: exponentials.fmod,
    ops.ATAN2: trigonometry.atan2,
    ops.PAIRS: pairs,
    ops.EXP: exponentials.exp,
    ops.EXP2: exponentials.exp2,
    ops.LOG: exponentials.log,
    ops.LOG2: exponentials.log2,
    ops.SIN: trigonometry.sin,
    ops.COS: trigonometry.cos,
    ops.TAN: trigonometry.tan,
    ops.TANH: exponentials.tanh,
    ops.ERF: exponentials.erf,
}


class UnroundedProduct(LLVMValue):
    """A product of floats, which a sum takes unrounded, as its factors.

    Which products are fused with a sum follows from the expression alone. Left to LLVM, it would
    depend on who else uses a product, and so on how a kernel is scheduled.
    """

    __slots__ = ("factors",)

    def __init__(self, value: LLVMValue, *factors: LLVMValue) -> None:
        super().__init__(value.out, value.text, value.element, value.width)
        self.factors = factors

    def splat(self, width: int) -> UnroundedProduct:
        """A product that is the same in every lane."""
        return UnroundedProduct(super().splat(width), *self.factors)

    def plus(self, summand: LLVMValue) -> LLVMValue:
        """``self + summand`` in one rounding."""
        width = summand.width
        a, b = (f.splat(width) if width and not f.width else f for f in self.factors)
        return a.fma(b, summand)

    def __neg__(self) -> UnroundedProduct:
        a, b = self.factors
        return UnroundedProduct(super().__neg__(), -a, b)


def _add(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
    if isinstance(a, UnroundedProduct):
        return a.plus(b)
    if isinstance(b, UnroundedProduct):
        return b.plus(a)
    return a | b if dtype is bool_ else a + b


def _subtract(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
    if dtype is bool_:
        return a ^ b
    fused = isinstance(a, UnroundedProduct) or isinstance(b, UnroundedProduct)
    return _add(n, dtype, a, -b) if fused and a.text != b.text else a - b  # x - x is 0


def _multiply(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
    if dtype is bool_:
        return a & b
    return UnroundedProduct(a * b, a, b) if dtype.is_float else a * b


def _abs(n: Node, dtype: DType, a: LLVMValue) -> LLVMValue:
    if dtype.is_float:
        return abs(a)
    return (a < 0).select(-a, a) if dtype.kind == "int" else a


def _rounding(name: str) -> Emit:
    def emit(n: Node, dtype: DType, a: LLVMValue) -> LLVMValue:
        return a.intrinsic(name) if dtype.is_float else a

    return emit


def _quotient(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """Floor division and remainder of integers; by zero both are 0."""
    divisor = n.inputs[1].attr if is_const(n.inputs[1]) else None
    if divisor is None:
        zero = b.equal(0)
        if dtype.kind == "uint":
            safe = zero.select(1, b)
            return zero.select(0, a.binary("udiv", safe)), a.binary("urem", safe)
        # The least integer divided by -1 overflows, which LLVM leaves undefined.
        minus = b.equal(-1)
        quotient, remainder = _floor(a, (zero | minus).select(1, b))
        return zero.select(0, minus.select(-a, quotient)), remainder
    if divisor == 0:
        return a.like(0), a.like(0)
    if divisor == -1 and dtype.kind == "int":
        return -a, a.like(0)
    if divisor > 0 and divisor & (divisor - 1) == 0:
        shift = divisor.bit_length() - 1
        return a.binary("lshr" if dtype.kind == "uint" else "ashr", shift), a & (divisor - 1)
    if dtype.kind == "uint" or (divisor > 0 and index.bounds(n.inputs[0])[0] >= 0):
        return a.binary("udiv", b), a.binary("urem", b)
    return _floor(a, b)


def _floor(a: LLVMValue, b: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    quotient, remainder = a.binary("sdiv", b), a.binary("srem", b)
    # Where the signs of remainder and divisor differ, one more step down.
    below = remainder.differs(0) & ((remainder ^ b) < 0)
    return below.select(quotient - 1, quotient), below.select(remainder + b, remainder)


def _divided(which: int) -> Emit:
    """FLOORDIV (0) and MOD (1), as `divmod` gives them."""

    def emit(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
        known, divisor = a.known(), b.known()
        if known is not None and divisor:
            return a.like(divmod(known, divisor)[which])
        return _quotient(n, dtype, a, b)[which]

    return emit


def _pow(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
    """Of integers: square and multiply over the bits of the exponent."""
    if dtype.is_float:
        return exponentials.pow(a, b)
    result, square = a.like(1), a
    for k in range(dtype.bits):
        set_ = (b & (1 << k)).differs(0)
        result = set_.select(result * square, result)
        square = square * square
    if dtype.kind == "uint":
        return result
    # 1 / a**-b truncated is 0 unless a is 1 or -1.
    sign = (b & 1).differs(0).select(a, 1)
    inverse = a.equal(1).select(1, a.equal(-1).select(sign, 0))
    return (b < 0).select(inverse, result)


def _extreme(which: str) -> Emit:
    """MAX and MIN. The order of +0 and -0 is left open: NaN then costs two instructions."""

    def emit(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
        if dtype.is_float:
            return a.intrinsic(f"{which}imum", b, flags="nsz ")
        if dtype is bool_:
            return a | b if which == "max" else a & b
        return a.intrinsic(f"{'s' if dtype.kind == 'int' else 'u'}{which}", b)

    return emit


def _shl(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
    inside = b.compare("ult", dtype.bits)
    return inside.select(a << inside.select(b, 0), 0)


def _shr(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
    if dtype.kind == "int":
        return a >> b.intrinsic("umin", dtype.bits - 1)
    inside = b.compare("ult", dtype.bits)
    return inside.select(a.binary("lshr", inside.select(b, 0)), 0)


def _comparison(name: str) -> Emit:
    def emit(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue) -> LLVMValue:
        if dtype.is_float:
            return a.compare("une" if name == "ne" else f"o{name}", b)
        if name in ("eq", "ne"):
            return a.compare(name, b)
        return a.compare(f"{'s' if dtype.kind == 'int' else 'u'}{name}", b)

    return emit


def _fma(n: Node, dtype: DType, a: LLVMValue, b: LLVMValue, c: LLVMValue) -> LLVMValue:
    return a.fma(b, c) if dtype.is_float else a * b + c


#: What finds bytes in a table of 16 that every 16 bytes of a vector have beside them.
_LOOK_UP = {16: "ssse3.pshuf.b.128", 32: "avx2.pshuf.b", 64: "avx512.pshuf.b.512"}


def _lookup(n: Node, dtype: DType, code: LLVMValue, low: LLVMValue, high: LLVMValue) -> LLVMValue:
    """One of 16 bytes, by one instruction where vectors have it and the bytes are known."""
    out, width = code.out, code.width
    if out.module.avx512 and width in _LOOK_UP and all(is_const(i) for i in n.inputs[1:]):
        bytes_ = [i.attr >> 8 * k & 0xFF for i in n.inputs[1:] for k in range(8)]
        text = ", ".join(f"i8 {bytes_[k % 16]}" for k in range(width))
        table = LLVMValue(out, f"<{text}>", "i8", width)
        return out.call(f"llvm.x86.{_LOOK_UP[width]}", "i8", width, table, code & 15)
    word = (code & 8).differs(0).select(high, low)
    return word.binary("lshr", (code & 7).convert("zext", "i64") << 3).convert("trunc", "i8")


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # Threefry's key schedule constant


def _random(n: Node, dtype: DType, key: LLVMValue, counter: LLVMValue) -> LLVMValue:
    """Threefry-2x32, 20 rounds."""

    def halves(x: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
        return x.convert("trunc", "i32"), x.binary("lshr", 32).convert("trunc", "i32")

    k0, k1 = halves(key)
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = halves(counter)
    x0, x1 = x0 + k0, x1 + k1
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = x1.intrinsic("fshl", x1, turn) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + (block + 1)
    return x0.convert("zext", "i64") | (x1.convert("zext", "i64") << 32)


#: Functions of a node, the dtype that is computed in, and the operands.
_TABLE: dict[Op, Emit] = {
    ops.ADD: _add,
    ops.SUB: _subtract,
    ops.MUL: _multiply,
    ops.ABS: _abs,
    ops.FLOOR: _rounding("floor"),
    ops.CEIL: _rounding("ceil"),
    ops.ROUND: _rounding("roundeven"),
    ops.TRUNC: _rounding("trunc"),
    ops.FLOORDIV: _divided(0),
    ops.MOD: _divided(1),
    ops.POW: _pow,
    ops.MAX: _extreme("max"),
    ops.MIN: _extreme("min"),
    ops.SHL: _shl,
    ops.SHR: _shr,
    ops.RANDOM: _random,
    ops.LT: _comparison("lt"),
    ops.LE: _comparison("le"),
    ops.EQ: _comparison("eq"),
    ops.NE: _comparison("ne"),
    ops.FMA: _fma,
    ops.LOOKUP: _lookup,
}
