"""Comparisons, logic, bits, and choices by a condition."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import bool_
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.arithmetic import converted
from genesis.torch.aten.registry import implements, table

for _overload in ("Tensor", "Scalar"):
    table(nd, f"""
        eq.{_overload}=equal ge.{_overload}=greater_equal gt.{_overload}=greater
        le.{_overload}=less_equal lt.{_overload}=less ne.{_overload}=not_equal
        __and__.{_overload}=bitwise_and __or__.{_overload}=bitwise_or
        __xor__.{_overload}=bitwise_xor __lshift__.{_overload}=left_shift
        __rshift__.{_overload}=right_shift
    """)  # fmt: skip

for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
    table(nd, f"bitwise_and.{_overload} bitwise_or.{_overload} bitwise_xor.{_overload}")
for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    implements(f"bitwise_left_shift.{_overload}")(nd.left_shift)
    implements(f"bitwise_right_shift.{_overload}")(nd.right_shift)

table(nd, """
    allclose bitwise_not equal=array_equal heaviside isfinite isinf isnan isneginf isposinf
    logical_and logical_not logical_or logical_xor signbit
""")  # fmt: skip


@implements("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: NDArray, then: Any, orelse: Any) -> NDArray:
    return nd.where(condition.astype(bool_), then, orelse)


@implements("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: NDArray, mask: NDArray, value: Any) -> NDArray:
    new = converted(value, x.dtype) if isinstance(value, NDArray) else value
    return nd.masked_fill(x, mask.astype(bool_), new)


@implements("nan_to_num")
def _nan_to_num(
    x: NDArray, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> NDArray:
    return nd.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)
