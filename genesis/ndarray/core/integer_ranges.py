"""Ranges: which integers a value can hold, as far as the way it is made tells.

Interval arithmetic over the pending graph. Counts, clamps, remainders and positions of maxima are
in range by construction, and so need no check when they are used as an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from genesis.ir import ops
from genesis.ir.dtype import bool_
from genesis.ir.node import LibraryCall
from genesis.ir.size import bounds
from genesis.ndarray.core.value import Value

Range = tuple[int, int]  # the least and the greatest integer

#: Values that are looked at before giving up.
DEEP = 64


def range_of(value: Value, known: Mapping[Value, Range] = MappingProxyType({})) -> Range | None:
    """The least and the greatest integer a value can hold, where its making tells.

    Those of some that it is made of may be `known`.
    """
    memo: dict[Value, Range | None] = {**known}
    budget = [DEEP]
    return _range_of(value, memo, budget)


def _range_of(v: Value, memo: dict[Value, Range | None], budget: list[int]) -> Range | None:
    if v not in memo:
        budget[0] -= 1
        memo[v] = None
        if v.memory is None and budget[0] > 0:
            # The last first: a bound is known however deep lies what it bounds.
            inputs = [_range_of(i, memo, budget) for i in reversed(_followed(v))][::-1]
            memo[v] = _fits(v, _rule(v, inputs))
    return memo[v]


def _followed(v: Value) -> tuple[Value, ...]:
    """The inputs that say something about a value's range."""
    if v.op in (ops.GATHER, *_SAME) or (v.op.is_movement and v.op is not ops.PAD):
        return v.inputs[:1]
    if v.op is ops.WHERE:
        return v.inputs[1:]
    if v.op in (ops.ADD, ops.SUB, ops.MUL, ops.MIN, ops.MAX, ops.MOD, ops.FLOORDIV, ops.PAD):
        return v.inputs
    return ()


_SAME = (ops.CAST, ops.AMAX, ops.AMIN)


def _rule(v: Value, inputs: Sequence[Range | None]) -> Range | None:
    if v.dtype is bool_:
        return 0, 1
    if v.op in (ops.CONST, ops.SCALAR) and v.dtype.is_integer:
        return int(v.attr), int(v.attr)
    if v.op is ops.SIZE:
        return bounds(v.attr)
    if v.op is ops.IOTA:
        return 0, max(0, bounds(v.shape[0])[1] - 1)
    if v.op is ops.ITEM and v.inputs[0].op is ops.CALL:
        return _call(v.inputs[0].attr, v.attr)
    if v.op in (ops.MIN, ops.MAX, ops.MOD):
        return _clamp(v, inputs)
    if not inputs or v.inputs[0].dtype.is_float:
        return None
    spans = [s for s in inputs if s is not None]
    if len(spans) < len(inputs):
        return None
    if len(spans) == 1:
        return spans[0]
    (a, b), (c, d) = spans
    if v.op is ops.ADD:
        return a + c, b + d
    if v.op is ops.SUB:
        return a - d, b - c
    if v.op is ops.MUL:
        corners = [x * y for x in (a, b) for y in (c, d)]
        return min(corners), max(corners)
    if v.op is ops.FLOORDIV:
        corners = [x // y for x in (a, b) for y in (c, d)] if c > 0 else []
        return (min(corners), max(corners)) if corners else None
    return min(a, c), max(b, d)  # one or the other


def _call(call: LibraryCall, item: int) -> Range | None:
    """The second result of sorting operations are positions in the last axis of what they sort."""
    if not call.name.startswith("sorting.") or item != 1:
        return None
    return 0, max(0, bounds(call.operands[0][1][-1])[1] - 1)


def _clamp(v: Value, inputs: Sequence[Range | None]) -> Range | None:
    """A side that one operand alone decides."""
    if not v.dtype.is_integer:
        return None
    kind = int(v.dtype.min), int(v.dtype.max)
    (a, b), (c, d) = (kind if s is None else s for s in inputs)
    if v.op is ops.MIN:
        return min(a, c), min(b, d)
    if v.op is ops.MAX:
        return max(a, c), max(b, d)
    return (0, d - 1) if c > 0 else None


def _fits(v: Value, found: Range | None) -> Range | None:
    """A range is only known where the type does not wrap around."""
    if found is None or (
        v.dtype.is_integer and v.dtype.min <= found[0] and found[1] <= v.dtype.max
    ):
        return found
    return found if v.dtype is bool_ else None
