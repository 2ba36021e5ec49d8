"""Elementwise operations: the primitives, and everything composed of them.

Operands are arrays, Python scalars and sizes. Types combine by PyTorch's rules: arrays with axes
count most, arrays of shape () and Python scalars only where they are of a higher kind (bool <
integer < float < complex). Errors name the operation, the shapes and the dtypes, at the call.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import (
    DType,
    Number,
    as_dtype,
    bool_,
    float64,
    floating,
    int64,
    promote,
    promote_scalar,
    uint8,
    uint64,
)
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, same
from genesis.ndarray.core import primitive
from genesis.ndarray.core.device import default_device
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise, kind_rank
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.scalar_overflow import fitting

Operand = NDArray | Number | Size
Unary = Callable[[Operand], NDArray]
Binary = Callable[[Operand, Operand], NDArray]
F = TypeVar("F", bound=Callable[..., Any])

# ---- operands


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape that arrays of the given shapes combine to; `name` is for the error."""
    rank = max(map(len, shapes))
    result: list[Any] = [1] * rank
    for shape in shapes:
        for d, extent in enumerate(shape, rank - len(shape)):
            if result[d] == 1:
                result[d] = extent
            elif extent != 1 and extent != result[d] and not same(extent, result[d]):
                if same(result[d], 1):
                    result[d] = extent
                    continue
                if same(extent, 1):
                    continue
                listed = " and ".join(map(str, shapes))
                raise ValueError(
                    f"{name}: shapes {listed} do not broadcast: sizes {result[d]} and {extent} "
                    f"differ at axis {d - rank}"
                )
    return tuple(result)


def ratio(a: Dim, b: Dim, like: NDArray) -> float | NDArray:
    """``a / b`` as Python divides; of symbolic sizes, as a scalar of the type of `like`."""
    if isinstance(a, int) and isinstance(b, int):
        return a / b
    above, below = (wrap(primitive.extent(s, float64, like.device)) for s in (a, b))
    return astype(above / below, like.dtype)


def common_dtype(operands: Sequence[Operand]) -> DType:
    """The dtype that operands combine to."""
    shaped: DType | None = None
    scalar: DType | None = None
    for x in operands:
        if isinstance(x, NDArray):
            if x.shape:
                shaped = x.dtype if shaped is None else promote(shaped, x.dtype)
            else:
                scalar = x.dtype if scalar is None else promote(scalar, x.dtype)
    result = shaped
    if scalar is not None and (result is None or kind_rank(scalar) > kind_rank(result)):
        # Of a kind above floats there is only complex, which takes its precision from them.
        result = result.complex if result is not None and result.is_float else scalar
    for x in operands:
        if not isinstance(x, NDArray):
            number = 0 if isinstance(x, Size) else x
            result = promote_scalar(bool_ if result is None else result, number)
    assert result is not None
    return result


def as_operand(name: str, x: Any) -> Operand:
    """`x` as an array, a Python scalar or a size; NumPy arrays become arrays."""
    if isinstance(x, NDArray | bool | int | float | complex | Size):
        return x
    if isinstance(x, np.generic):
        item: Number = x.item()
        return item
    if isinstance(x, np.ndarray):
        from genesis.ndarray.core.interop import from_numpy

        return from_numpy(x)
    raise TypeError(f"{name}: expected an array or a number, got {type(x).__name__}")


def values(name: str, operands: Sequence[Any], dtype: DType | None = None) -> list[Value]:
    """Operands as values of one dtype (the common one unless given) and one shape, or ()."""
    operands = [as_operand(name, x) for x in operands]
    dtype = common_dtype(operands) if dtype is None else dtype
    return _together(name, operands, [dtype] * len(operands))


def _together(name: str, operands: Sequence[Operand], dtypes: Sequence[DType]) -> list[Value]:
    """Operands as values of the given dtypes and of one shape, or ()."""
    arrays = [x for x in operands if isinstance(x, NDArray)]
    device = arrays[0].device if arrays else default_device()
    shape = arrays[0].shape if arrays else ()
    for x in arrays:
        if x.device is not device:
            raise ValueError(
                f"{name}: inputs are on {device} and {x.device}; move one with .to(device)"
            )
        if x.shape != shape:
            shape = broadcast_shapes(name, *(y.shape for y in arrays))
    result = []
    for operand, dtype in zip(operands, dtypes, strict=True):
        if isinstance(operand, NDArray):
            value = cast(operand.value, dtype)
            result.append(primitive.broadcast(value, shape) if value.shape else value)
        elif isinstance(operand, Size):
            result.append(primitive.extent(operand, dtype, device))
        else:
            result.append(primitive.scalar(operand, dtype, device))
    return result


def _pair(name: str, a: Operand, b: Operand) -> Sequence[Value]:
    """`values` of two operands, with short ways for what most calls are."""
    if isinstance(a, NDArray):
        if isinstance(b, NDArray):
            if a.dtype is b.dtype and a.shape == b.shape:
                return a.value, b.value
            if a.dtype is b.dtype and a.shape and b.shape and a.device is b.device:
                shape = broadcast_shapes(name, a.shape, b.shape)
                return primitive.broadcast(a.value, shape), primitive.broadcast(b.value, shape)
        elif a.dtype.is_float and (type(b) is float or type(b) is int):
            return a.value, primitive.scalar(b, a.dtype, a.device)
    return values(name, (a, b))


def float_value(name: str, x: Operand) -> Value:
    """The operand as a floating-point value."""
    if isinstance(x, NDArray) and x.dtype.is_float:
        return x.value
    return float_values(name, (x,))[0]


def float_values(name: str, operands: Sequence[Any]) -> list[Value]:
    """Operands as values of one floating-point type and one shape, or ()."""
    operands = [as_operand(name, x) for x in operands]
    return _together(name, operands, [floating(common_dtype(operands))] * len(operands))


# ---- primitives


_ALL = "bool int uint float complex"


def _unary(
    op: Op, doc: str, floats: bool = False, kinds: str = _ALL, name: str | None = None
) -> Unary:
    public = name or op.name

    def function(x: Operand) -> NDArray:
        (value,) = [float_value(public, x)] if floats else values(public, (x,))
        require(public, value.dtype, kinds)
        return wrap(elementwise(op, value))

    return named(function, public, doc)


def _binary(op: Op, name: str, doc: str, kinds: str, on_bool: Op | None = None) -> Binary:
    def function(a: Operand, b: Operand) -> NDArray:
        x, y = _pair(name, a, b)
        if on_bool is not None and x.dtype is bool_:
            return wrap(elementwise(on_bool, x, y))
        require(name, x.dtype, kinds)
        return wrap(elementwise(op, x, y))

    return named(function, name, doc)


def _bits(op: Op, name: str, doc: str, kinds: str) -> Binary:
    def literal(x: Value) -> Value:
        return constant(x.attr, x.dtype, x.device) if x.op is ops.SCALAR else x

    def function(a: Operand, b: Operand) -> NDArray:
        # Masks and shift counts say which bits are meant: they are part of the program.
        x, y = map(literal, _pair(name, a, b))
        require(name, x.dtype, kinds)
        return wrap(elementwise(op, x, y))

    return named(function, name, doc)


def _compare(op: Op, name: str, doc: str, swap: bool = False) -> Binary:
    def function(a: Operand, b: Operand) -> NDArray:
        x, y = _pair(name, a, b)
        if x.dtype.is_complex and op not in (ops.EQ, ops.NE):
            raise TypeError(f"{name}: {x.dtype} numbers have no order; compare real parts or abs")
        return wrap(elementwise(op, y, x) if swap else elementwise(op, x, y))

    return named(function, name, doc)


def require(name: str, dtype: DType, kinds: str) -> None:
    """Refuse a type that the operation is not defined for."""
    if dtype.kind not in kinds.split():
        raise TypeError(f"{name}: not defined for {dtype}; cast with .astype first")


def named(function: F, name: str, doc: str) -> F:
    """A function made by another one, under the name and with the text a user sees."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


_SIGNED = "int uint float complex"
_ORDERED = "int uint float"
_BITS = "bool int uint"

neg = _unary(ops.NEG, "-x", kinds=_SIGNED)
abs = _unary(ops.ABS, "The absolute value.", kinds=_SIGNED)
bitwise_not = _unary(
    ops.NOT, "Every bit inverted; logical not for bool.", kinds=_BITS, name="bitwise_not"
)
sqrt = _unary(ops.SQRT, "The square root.", floats=True)
exp = _unary(ops.EXP, "e to the power of x.", floats=True)
exp2 = _unary(ops.EXP2, "2 to the power of x.", floats=True)
log = _unary(ops.LOG, "The natural logarithm.", floats=True)
log2 = _unary(ops.LOG2, "The logarithm to base 2.", floats=True)
sin = _unary(ops.SIN, "The sine.", floats=True)
cos = _unary(ops.COS, "The cosine.", floats=True)
tan = _unary(ops.TAN, "The tangent.", floats=True)
tanh = _unary(ops.TANH, "The hyperbolic tangent.", floats=True)
erf = _unary(ops.ERF, "The error function.", floats=True)


def _rounding(op: Op, doc: str) -> Unary:
    def function(x: Operand) -> NDArray:
        (value,) = values(op.name, (x,))
        exact = value.dtype is bool_ or value.dtype.is_integer
        return wrap(value if exact else elementwise(op, value))

    return named(function, op.name, doc)


floor = _rounding(ops.FLOOR, "The greatest integer not above x.")
ceil = _rounding(ops.CEIL, "The least integer not below x.")
_round = _rounding(ops.ROUND, "The nearest integer, halves to even.")
trunc = _rounding(ops.TRUNC, "x without its fraction.")

add = _binary(ops.ADD, "add", "a + b", _SIGNED, on_bool=ops.OR)
subtract = _binary(ops.SUB, "subtract", "a - b", _SIGNED)
multiply = _binary(ops.MUL, "multiply", "a * b", _SIGNED, on_bool=ops.AND)
maximum = _binary(ops.MAX, "maximum", "The greater one; NaN wins.", _SIGNED, on_bool=ops.OR)
minimum = _binary(ops.MIN, "minimum", "The lesser one; NaN wins.", _SIGNED, on_bool=ops.AND)
bitwise_and = _bits(ops.AND, "bitwise_and", "a & b", _BITS)
bitwise_or = _bits(ops.OR, "bitwise_or", "a | b", _BITS)
bitwise_xor = _bits(ops.XOR, "bitwise_xor", "a ^ b", _BITS)
left_shift = _bits(ops.SHL, "left_shift", "a << b; 0 from the width on.", "int uint")
right_shift = _bits(ops.SHR, "right_shift", "a >> b", "int uint")

less = _compare(ops.LT, "less", "a < b")
less_equal = _compare(ops.LE, "less_equal", "a <= b")
greater = _compare(ops.LT, "greater", "a > b", swap=True)
greater_equal = _compare(ops.LE, "greater_equal", "a >= b", swap=True)
equal = _compare(ops.EQ, "equal", "a == b")
not_equal = _compare(ops.NE, "not_equal", "a != b")


def divide(a: Operand, b: Operand, rounding_mode: str | None = None) -> NDArray:
    """a / b, integers in the default float; rounded if the mode is "trunc" or "floor"."""
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode == "trunc":
        x, y = values("divide", (a, b))
        require("divide", x.dtype, _ORDERED)
        return wrap(_truncated_quotient(x, y))
    if rounding_mode is not None:
        raise ValueError(f"divide: rounding_mode is 'trunc', 'floor' or None: {rounding_mode!r}")
    return wrap(elementwise(ops.DIV, *float_values("divide", (a, b))))


def round(x: Operand, decimals: int = 0) -> NDArray:
    """The nearest number with so many decimal places, halves to even."""
    if decimals == 0:
        return _round(x)
    (value,) = values("round", (x,))
    require("round", value.dtype, "float")
    scale = 10.0 ** builtins.abs(decimals)
    if decimals < 0:
        return multiply(_round(divide(wrap(value), scale)), scale)
    return divide(_round(multiply(wrap(value), scale)), scale)


def atan2(y: Operand, x: Operand) -> NDArray:
    """The angle of the point (x, y), from -pi to pi."""
    return wrap(elementwise(ops.ATAN2, *float_values("atan2", (y, x))))


def where(condition: Operand, then: Operand, orelse: Operand) -> NDArray:
    """`then` where the condition holds, `orelse` elsewhere.

    >>> from genesis import ndarray as nd
    >>> where(nd.arange(4) < 2, 1.5, nd.zeros(4)).tolist()
    [1.5, 1.5, 0.0, 0.0]
    """
    operands = [as_operand("where", x) for x in (condition, then, orelse)]
    if isinstance(operands[0], NDArray) and operands[0].dtype is not bool_:
        raise TypeError(f"where: the condition must be bool, not {operands[0].dtype}")
    dtype = common_dtype(operands[1:])
    if dtype.is_integer:
        operands = [operands[0], *(fitting("where", x, dtype) for x in operands[1:])]
    return wrap(primitive.where(*_together("where", operands, (bool_, dtype, dtype))))


def fma(a: Operand, b: Operand, c: Operand) -> NDArray:
    """a * b + c with one rounding."""
    x, y, z = values("fma", (a, b, c))
    require("fma", x.dtype, "float")
    return wrap(elementwise(ops.FMA, x, y, z))


def lookup(codes: Operand, table: Sequence[int]) -> NDArray:
    """The bytes of a table of 16, which is part of the program, at codes of type uint8.

    Of a code, the low four bits count.
    """
    if len(table) != 16 or not all(0 <= x <= 255 for x in table):
        raise ValueError(f"lookup: a table has 16 numbers from 0 to 255, not {table!r}")
    (x,) = values("lookup", (codes,))
    if x.dtype is not uint8:
        raise TypeError(f"lookup: codes are of type uint8, not {x.dtype}")
    low, high = (
        primitive.constant(int.from_bytes(bytes(half), "little"), uint64, x.device)
        for half in (table[:8], table[8:])
    )
    return wrap(elementwise(ops.LOOKUP, x, low, high, dtype=uint8))


def astype(x: Operand, dtype: Any) -> NDArray:
    """`x` converted to `dtype`: floats truncate to integers and saturate, integers wrap."""
    value = x.value if isinstance(x, NDArray) else values("astype", (x,))[0]
    return wrap(cast(value, as_dtype(dtype)))


# ---- division with remainder, powers


def floor_divide(a: Operand, b: Operand) -> NDArray:
    """a / b rounded down; integer division by zero gives 0."""
    x, y = values("floor_divide", (a, b))
    require("floor_divide", x.dtype, _ORDERED)
    return wrap(_floor_quotient(x, y) if x.dtype.is_float else elementwise(ops.FLOORDIV, x, y))


def remainder(a: Operand, b: Operand) -> NDArray:
    """What is left of a after `floor_divide`; it has the sign of b."""
    x, y = values("remainder", (a, b))
    require("remainder", x.dtype, _ORDERED)
    if not x.dtype.is_float:
        return wrap(elementwise(ops.MOD, x, y))
    rest = elementwise(ops.FMOD, x, y)
    return wrap(primitive.where(_opposite(rest, y), elementwise(ops.ADD, rest, y), rest))


def fmod(a: Operand, b: Operand) -> NDArray:
    """What is left of a after dividing and rounding toward 0; it has the sign of a."""
    x, y = values("fmod", (a, b))
    require("fmod", x.dtype, _ORDERED)
    if x.dtype.is_float:
        return wrap(elementwise(ops.FMOD, x, y))
    rest = elementwise(ops.MOD, x, y)
    return wrap(primitive.where(_opposite(rest, x), elementwise(ops.SUB, rest, y), rest))


def _floor_quotient(x: Value, y: Value) -> Value:
    """x / y of floats rounded down; (x - rest) / y is an integer but for its rounding."""
    zero, one = constant(0, x.dtype, x.device), constant(1, x.dtype, x.device)
    rest, ratio = elementwise(ops.FMOD, x, y), elementwise(ops.DIV, x, y)
    whole = elementwise(ops.DIV, elementwise(ops.SUB, x, rest), y)
    whole = elementwise(ops.ROUND, whole)
    whole = primitive.where(_opposite(rest, y), elementwise(ops.SUB, whole, one), whole)
    # Where the quotient is 0 the ratio has the sign of it.
    whole = primitive.where(elementwise(ops.EQ, whole, zero), _signed_zero(ratio), whole)
    return primitive.where(elementwise(ops.EQ, y, zero), ratio, whole)


def _truncated_quotient(x: Value, y: Value) -> Value:
    if x.dtype.is_float:
        return elementwise(ops.TRUNC, elementwise(ops.DIV, x, y))
    one = constant(1, x.dtype, x.device)
    quotient, rest = elementwise(ops.FLOORDIV, x, y), elementwise(ops.MOD, x, y)
    up = elementwise(ops.ADD, quotient, one)
    return primitive.where(_opposite(rest, x), up, quotient)


def _opposite(rest: Value, y: Value) -> Value:
    """Whether a remainder is not 0 and has another sign than y."""
    zero = constant(0, y.dtype, y.device)
    signs = elementwise(ops.NE, elementwise(ops.LT, rest, zero), elementwise(ops.LT, y, zero))
    return elementwise(ops.AND, signs, elementwise(ops.NE, rest, zero))


def _signed_zero(x: Value) -> Value:
    """0 with the sign of x."""
    zero = constant(0, x.dtype, x.device)
    minus = constant(-0.0, x.dtype, x.device)
    inverse = elementwise(ops.DIV, constant(1, x.dtype, x.device), x)  # tells -0 from 0
    return primitive.where(elementwise(ops.LT, inverse, zero), minus, zero)


def pow(a: Operand, b: Operand) -> NDArray:
    """a to the power of b; small integer exponents are multiplications."""
    a, b = as_operand("pow", a), as_operand("pow", b)
    if isinstance(a, NDArray) and isinstance(b, bool | int | float):
        dtype = common_dtype((a, b))
        whole = float(b).is_integer()
        if dtype.is_integer and b < 0:
            raise ValueError(f"pow: an integer ({dtype}) to the negative power {b}; cast to float")
        if b == 0.5:
            return wrap(elementwise(ops.SQRT, cast(a.value, dtype)))
        if b == -0.5:
            return astype(rsqrt(astype(a, dtype.accumulator)), dtype)
        if whole and (dtype.is_integer or -4 <= b <= 8):
            power = _multiplied(cast(a.value, dtype), int(b) if b >= 0 else -int(b))
            if b >= 0:
                return wrap(power)
            return wrap(elementwise(ops.DIV, constant(1, dtype, power.device), power))
    x, y = values("pow", (a, b))
    require("pow", x.dtype, _SIGNED)
    return wrap(elementwise(ops.POW, x, y))


def _multiplied(x: Value, exponent: int) -> Value:
    """x to a power, by repeated squaring."""
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else elementwise(ops.MUL, result, x)
        exponent >>= 1
        if exponent:
            x = elementwise(ops.MUL, x, x)
    if result is None:
        return primitive.broadcast(constant(1, x.dtype, x.device), x.shape)
    return result


# ---- compositions


def square(x: Operand) -> NDArray:
    """x * x, of bool in int64."""
    if isinstance(x, NDArray) and x.dtype is bool_:
        x = astype(x, int64)
    return multiply(x, x)


def reciprocal(x: Operand) -> NDArray:
    """1 / x"""
    return divide(1, x)


def rsqrt(x: Operand) -> NDArray:
    """1 / sqrt(x)"""
    return divide(1, sqrt(x))


def sign(x: Operand) -> NDArray:
    """-1, 0 or 1, of the dtype of x; 0 for NaN."""
    (value,) = values("sign", (x,))
    zero = constant(0, value.dtype, value.device)
    above, below = elementwise(ops.LT, zero, value), elementwise(ops.LT, value, zero)
    return wrap(elementwise(ops.SUB, cast(above, value.dtype), cast(below, value.dtype)))


def clip(x: Operand, low: Operand | None = None, high: Operand | None = None) -> NDArray:
    """x moved into the range from low to high; None leaves that side open."""
    if isinstance(x, NDArray):
        given = (y for y in (low, high) if y is not None)
        dtype = common_dtype([as_operand("clip", y) for y in (x, *given)])
        low, high = (fitting("clip", y, dtype) for y in (low, high))
    if low is not None and high is not None:
        return minimum(maximum(x, low), high)
    if low is not None:
        return maximum(x, low)
    if high is not None:
        return minimum(x, high)
    raise ValueError("clip: give low, high or both")


def isnan(x: Operand) -> NDArray:
    """Whether x is NaN."""
    return not_equal(x, x)


def _size_test(x: Operand, *, op: Op = ops.EQ, name: str = "isinf") -> NDArray:
    value = float_value(name, x)
    if value.dtype.is_complex:
        test, both = (isinf, ops.OR) if op is ops.EQ else (isfinite, ops.AND)
        return complexes.every_part(test, both, value)
    infinity = constant(math.inf, value.dtype, value.device)
    return wrap(elementwise(op, elementwise(ops.ABS, value), infinity))


isinf = variant(_size_test, "isinf", "Whether x is plus or minus infinity.")
isfinite = variant(_size_test, "isfinite", "Whether x is neither NaN nor infinite.", op=ops.LT)


def logical_not(x: Operand) -> NDArray:
    """Whether x is zero."""
    return wrap(elementwise(ops.NOT, *values("logical_not", (x,), bool_)))


def _logical(a: Operand, b: Operand, *, op: Op = ops.AND, name: str = "logical_and") -> NDArray:
    return wrap(elementwise(op, *values(name, (a, b), bool_)))


_TRUE = "Whether {} non-zero."
logical_and = variant(_logical, "logical_and", _TRUE.format("both are"))
logical_or = variant(_logical, "logical_or", _TRUE.format("one of them is"), op=ops.OR)
logical_xor = variant(_logical, "logical_xor", _TRUE.format("exactly one of them is"), op=ops.XOR)


# It is written with the functions above.
from genesis.ndarray.ops import complexes  # noqa: E402

__all__ = [
    "abs", "add", "astype", "atan2", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "ceil", "clip", "cos", "divide", "equal", "erf", "exp", "exp2", "floor",
    "floor_divide", "fma", "fmod", "greater", "greater_equal", "isfinite", "isinf", "isnan",
    "left_shift", "less", "less_equal", "log", "log2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lookup", "maximum", "minimum", "multiply", "neg", "not_equal", "pow", "ratio",
    "reciprocal", "remainder", "right_shift", "round", "rsqrt", "sign", "sin", "sqrt", "square",
    "subtract", "tan", "tanh", "trunc", "where",
]  # fmt: skip
