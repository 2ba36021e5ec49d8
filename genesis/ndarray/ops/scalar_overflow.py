"""Python numbers that take the place of elements, which must be able to hold them.

What is computed with numbers wraps as integers do; what is filled in, written or a bound does not.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from genesis.ir.dtype import DType


def fitting(name: str, value: Any, dtype: DType) -> Any:
    """`value` itself, if it is no number or one that fits; an OverflowError if it does not.

    Unsigned integers take negative numbers, modulo. Infinity and NaN are floating-point numbers
    like others, bool is whether a number is not 0.

    >>> from genesis.ir.dtype import int8, uint8
    >>> fitting("fill", -1, uint8)
    -1
    >>> fitting("fill", 200, int8)
    Traceback (most recent call last):
    ...
    OverflowError: fill: 200 does not fit into int8
    """
    if type(value) not in (int, float) or -128 <= value <= 127:
        return value
    if dtype.is_integer:
        least = dtype.min if dtype.kind == "int" else -dtype.max
        fits = math.isfinite(value) and least <= int(value) <= dtype.max
    else:
        fits = not dtype.is_float or not math.isfinite(value) or abs(value) <= _most(dtype)
    if not fits:
        raise OverflowError(f"{name}: {value} does not fit into {dtype}")
    return value


def nearest(value: Any, dtype: DType) -> Any:
    """`value` itself, or infinity where a floating-point type has no number that is so large."""
    if type(value) is float and dtype.is_float and not -_most(dtype) <= value <= _most(dtype):
        return math.copysign(math.inf, value) if value == value else value
    return value


def _most(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


__all__ = ["fitting", "nearest"]
