"""The meaning of every scalar operation, as a function of NumPy arrays.

Both oracles (`genesis.ir.evaluate` for tensor graphs, `genesis.ir.interpret` for kernels) compute
through this one table, so it is where the semantics are written down: integers wrap, division by
zero gives 0, MAX propagates NaN, casts saturate. Transcendentals are computed in float64 and
rounded once, half precisions in float32 and rounded once.

>>> from genesis.ir.dtype import int32
>>> apply(ops.FLOORDIV, int32, np.int32([7, -7, 7]), np.int32([2, 2, 0]))
array([ 3, -4,  0], dtype=int32)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genesis.ir import ops
from genesis.ir.dtype import E4M3_MAX, STORED, DType, bfloat16, float8_e4m3fn, float16
from genesis.ir.ops import Op

Array = NDArray[Any]

_HALVES = frozenset(d.numpy for d in (float16, bfloat16, *STORED))


def apply(op: Op, dtype: DType, *inputs: Array) -> Array:
    """`op` on arrays that broadcast, giving an array of `dtype`."""
    with np.errstate(all="ignore"):
        if op is ops.CAST:
            return cast(inputs[0], dtype)
        if op is ops.BITCAST:
            return np.array(inputs[0], order="C").view(dtype.numpy)
        function = TABLE.get(op)
        if function is None:
            raise ValueError(f"{op} is not a scalar operation")
        if op is not ops.WHERE:
            inputs = tuple(x.astype(np.float32) if x.dtype in _HALVES else x for x in inputs)
        return np.asarray(function(*inputs)).astype(dtype.numpy, copy=False)


def cast(x: Array, dtype: DType) -> Array:
    """`x` converted: floats truncate to integers and saturate, NaN is 0; integers wrap.

    Floats become infinite where they are too large, except in float8_e4m3fn, which saturates.
    """
    if dtype.kind == "bool":
        return np.asarray(x != 0)
    from_float = x.dtype in _HALVES or x.dtype.kind == "f"
    if dtype is float8_e4m3fn:
        return np.clip(x.astype(np.float64), -E4M3_MAX, E4M3_MAX).astype(dtype.numpy)
    if not (from_float and dtype.is_integer):
        return x.astype(dtype.numpy)
    whole = np.trunc(x.astype(np.float64))
    low, high = float(dtype.min), float(int(dtype.max) + 1)  # both are exact in float64
    inside = (whole >= low) & (whole < high)
    result = np.where(inside, whole, 0.0).astype(dtype.numpy)
    result[whole >= high] = dtype.max
    result[whole < low] = dtype.min
    return result


def threefry(key: Array, counter: Array) -> Array:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011) of uint64 keys and counters.

    The low half of a word comes first: key (k0, k1), counter (x0, x1), result x0 | x1 << 32.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    k0, k1 = (key & low).astype(np.uint32), (key >> half).astype(np.uint32)
    schedule = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0 = (counter & low).astype(np.uint32) + k0
    x1 = (counter >> half).astype(np.uint32) + k1
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))
            x1 = x1 ^ x0
        x0 = x0 + schedule[(block + 1) % 3]
        x1 = x1 + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return np.asarray(x0.astype(np.uint64) | (x1.astype(np.uint64) << half))


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _in_double(function: Callable[..., Any]) -> Callable[..., Array]:
    """`function` computed in float64, so that one rounding to the result's type is left."""
    return lambda *inputs: np.asarray(function(*(x.astype(np.float64) for x in inputs)))


def _fma(a: Array, b: Array, c: Array) -> Array:
    # The product is exact in the wider type; for float64 that holds as far as long double goes.
    wide: Any = np.longdouble if a.dtype == np.float64 else np.float64
    if a.dtype.kind != "f":
        return np.asarray(a * b + c)
    return np.asarray(a.astype(wide) * b.astype(wide) + c.astype(wide))


def _pairs(a: Array, b: Array) -> Array:
    if a.dtype != np.uint32:
        raise TypeError(f"pairs of bfloat16 are words of uint32, not {a.dtype}")
    # Products are exact in float32, and in float64 so is nearly every sum of two.
    halves = ((x & 0xFFFF0000, x << np.uint32(16)) for x in (a, b))
    (p, q), (r, s) = ([h.view(np.float32).astype(np.float64) for h in two] for two in halves)
    return np.asarray(p * r + q * s)


def _lookup(code: Array, low: Array, high: Array) -> Array:
    word = np.where(code & 8, high, low)
    return np.asarray(word >> ((code & 7) * 8).astype(np.uint64) & np.uint64(0xFF))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a.astype(np.float64), b.astype(np.float64)))
    # 1 / a**-b truncated: 0 unless a is 1 or -1.
    odd = np.where(b % 2 == 0, a.dtype.type(1), a)
    inverse = np.where(a == 1, a.dtype.type(1), np.where(a + 1 == 0, odd, a.dtype.type(0)))
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _shift_left(a: Array, count: Array) -> Array:
    small = _below_width(a, count)
    return np.where(small, a << np.where(small, count, 0), 0)


def _shift_right(a: Array, count: Array) -> Array:
    small = _below_width(a, count)
    sign = np.where(a < 0, -1, 0).astype(a.dtype)
    return np.where(small, a >> np.where(small, count, 0), sign)


def _below_width(a: Array, count: Array) -> Array:
    return np.asarray((count >= 0) & (count < a.dtype.itemsize * 8))


_erf = np.frompyfunc(math.erf, 1, 1)

#: What each operation does to arrays of one type; `apply` adds the conversions around it.
TABLE: dict[Op, Callable[..., Any]] = {
    ops.NEG: np.negative,
    ops.ABS: np.abs,
    ops.NOT: np.invert,
    ops.SQRT: np.sqrt,
    ops.EXP: _in_double(np.exp),
    ops.EXP2: _in_double(np.exp2),
    ops.LOG: _in_double(np.log),
    ops.LOG2: _in_double(np.log2),
    ops.SIN: _in_double(np.sin),
    ops.COS: _in_double(np.cos),
    ops.TAN: _in_double(np.tan),
    ops.TANH: _in_double(np.tanh),
    ops.ERF: _in_double(lambda x: np.asarray(_erf(x)).astype(np.float64)),
    ops.FLOOR: np.floor,
    ops.CEIL: np.ceil,
    ops.ROUND: np.rint,
    ops.TRUNC: np.trunc,
    ops.ADD: np.add,
    ops.SUB: np.subtract,
    ops.MUL: np.multiply,
    ops.DIV: np.true_divide,
    ops.FLOORDIV: np.floor_divide,
    ops.MOD: np.remainder,
    ops.FMOD: np.fmod,
    ops.POW: _power,
    ops.ATAN2: _in_double(np.arctan2),
    ops.MAX: np.maximum,
    ops.MIN: np.minimum,
    ops.AND: np.bitwise_and,
    ops.OR: np.bitwise_or,
    ops.XOR: np.bitwise_xor,
    ops.SHL: _shift_left,
    ops.SHR: _shift_right,
    ops.RANDOM: threefry,
    ops.PAIRS: _pairs,
    ops.LT: np.less,
    ops.LE: np.less_equal,
    ops.EQ: np.equal,
    ops.NE: np.not_equal,
    ops.WHERE: np.where,
    ops.FMA: _fma,
    ops.LOOKUP: _lookup,
}
