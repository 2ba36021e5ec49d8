"""Half precisions compute in float32: a kernel of several operations rounds once, at the end.

PyTorch's kernels do so, and a kernel that rounded after every operation would differ from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.ir.dtype import DType, bfloat16, float16
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype

_HALVES = frozenset((bfloat16, float16))


def widened(*operands: Any) -> tuple[list[Any], DType]:
    """Operands in the type to compute in, and the type that they combine to.

    >>> from genesis import ndarray as nd
    >>> (x, number), dtype = widened(nd.ones(3, "bfloat16"), 2.5)
    >>> x.dtype, number, dtype
    (float32, 2.5, bfloat16)
    """
    dtype = common_dtype(operands)
    wide = dtype.accumulator
    if wide is dtype and all(not isinstance(x, NDArray) or x.dtype is wide for x in operands):
        return list(operands), dtype
    return [x.astype(wide) if isinstance(x, NDArray) else x for x in operands], dtype


def wide(x: NDArray) -> NDArray:
    """The array in the precision in which sums of it are taken."""
    return x.astype(x.dtype.accumulator) if x.dtype.is_float else x


def rounded_once(function: Callable[..., NDArray]) -> Callable[..., NDArray]:
    """A function whose operands of half precision are widened, and whose result is rounded."""

    def computed(*operands: Any) -> NDArray:
        if not any(isinstance(x, NDArray) and x.dtype in _HALVES for x in operands):
            return function(*operands)
        given, dtype = widened(*operands)
        return function(*given).astype(dtype)

    return computed


def exact_numbers(function: Callable[[Any, Any], NDArray]) -> Callable[[Any, Any], NDArray]:
    """A function of one operation, for which numbers are not rounded to a half precision first."""
    wide = rounded_once(function)

    def computed(x: Any, y: Any) -> NDArray:
        if isinstance(x, NDArray) and isinstance(y, NDArray) and x.dtype is y.dtype:
            return function(x, y)
        return wide(x, y)

    return computed
