"""Checked indices: a position that does not exist is an IndexError that names the user's line.

Kernels never touch memory out of range: gathers clamp their indices and scatters drop theirs. So a
check decides only whether to complain, and is made wherever it is cheapest: at the call if the
index is known there (`genesis.ndarray.positions`), else by the realisation that needs the index,
before anything is overwritten. A recorded function computes what there is to check as further
results.

What is computed is the worst index: the greatest of the zigzag codes, which count 0, -1, 1, -2, ..
as 0, 1, 2, 3, .. . That one number says how far from the axis an index lies, and on which side.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.ir import ops
from genesis.ir.dtype import int64, uint64
from genesis.ndarray import primitive
from genesis.ndarray.primitive import cast, constant, elementwise
from genesis.ndarray.value import Checked, Value


def checks_in(order: Sequence[Value]) -> list[Checked]:
    """The checks that computing these values has to make first."""
    return [v for v in order if type(v) is Checked and v.memory is None and not v.passed]


def codes(checks: Sequence[Checked]) -> list[Value]:
    """What to compute for checks: the code of each one's worst index."""
    return [code(check.inputs[0]) for check in checks]


def code(index: Value) -> Value:
    """The greatest zigzag code of an index, of shape ()."""
    index = cast(index, int64)
    one = constant(1, int64, index.device)
    sign = elementwise(ops.SHR, index, constant(63, int64, index.device))
    code = elementwise(ops.XOR, elementwise(ops.SHL, index, one), sign)
    code = elementwise(ops.BITCAST, code, dtype=uint64)
    return primitive.reduce(ops.AMAX, code, tuple(range(len(index.shape))))


def require(name: str, code: int, extent: int, axis: int, where: str = "") -> None:
    """Raise the error of a check whose worst index has this code, if there is no such position."""
    if code >> 1 >= extent:
        index = -1 - (code >> 1) if code & 1 else code >> 1
        place = f" ({where})" if where else ""
        raise IndexError(
            f"{name}: index {index} is out of range for axis {axis} of size {extent}{place}"
        )


__all__ = ["checks_in", "code", "codes", "require"]
