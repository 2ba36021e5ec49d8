"""Comparisons, logic, bits, and choices by a condition."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import bool_
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.arithmetic import converted
from genesis.torch.aten.registry import Kernel, kernel

_COMPARISONS: dict[str, Kernel] = {
    "eq": nd.equal,
    "ge": nd.greater_equal,
    "gt": nd.greater,
    "le": nd.less_equal,
    "lt": nd.less,
    "ne": nd.not_equal,
}

_BITS: dict[str, Kernel] = {
    "and": nd.bitwise_and,
    "or": nd.bitwise_or,
    "xor": nd.bitwise_xor,
    "left_shift": nd.left_shift,
    "right_shift": nd.right_shift,
}

_OTHERS: dict[str, Kernel] = {
    "allclose": nd.allclose,
    "bitwise_not": nd.bitwise_not,
    "equal": nd.array_equal,
    "isfinite": nd.isfinite,
    "isinf": nd.isinf,
    "isnan": nd.isnan,
    "isneginf": nd.isneginf,
    "isposinf": nd.isposinf,
    "logical_and": nd.logical_and,
    "logical_not": nd.logical_not,
    "logical_or": nd.logical_or,
    "logical_xor": nd.logical_xor,
    "signbit": nd.signbit,
    "heaviside": nd.heaviside,
}

for _name, _function in _COMPARISONS.items():
    kernel(f"{_name}.Tensor", f"{_name}.Scalar")(_function)

for _name, _function in _BITS.items():
    first = "Tensor_Scalar" if "shift" in _name else "Scalar"
    kernel(*(f"bitwise_{_name}.{o}" for o in ("Tensor", first, "Scalar_Tensor")))(_function)
    operator = {"left_shift": "lshift", "right_shift": "rshift"}.get(_name, _name)
    kernel(f"__{operator}__.Tensor", f"__{operator}__.Scalar")(_function)

for _name, _function in _OTHERS.items():
    kernel(_name)(_function)


@kernel("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: NDArray, then: Any, orelse: Any) -> NDArray:
    return nd.where(condition.astype(bool_), then, orelse)


@kernel("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: NDArray, mask: NDArray, value: Any) -> NDArray:
    new = converted(value, x.dtype) if isinstance(value, NDArray) else value
    return nd.masked_fill(x, mask.astype(bool_), new)


@kernel("nan_to_num")
def _nan_to_num(
    x: NDArray, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> NDArray:
    return nd.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)
