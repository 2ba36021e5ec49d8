"""How an array lies in memory: strides and an offset, both counted in elements.

`through` says what a movement operation does to a layout, or that no strides can express it. Both
questions about views rest on it: whether a reshape may alias, and whether a realisation needs a
kernel at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import eq
from typing import Any

from genesis.ir import ops
from genesis.ir.ops import Op
from genesis.ir.size import Dim

Strides = tuple[Dim, ...]
Shape = tuple[Dim, ...]

#: Whether two sizes are the same number. Where they have symbols, ``eq`` tells whether they are
#: known to be, and `genesis.ir.size.same` asks whoever decides, who takes note of it.
Same = Callable[[Dim, Dim], bool]


def row_major(shape: Sequence[Dim]) -> Strides:
    """The strides of densely packed elements, the last axis fastest.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[Dim] = []
    stride: Dim = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride = stride * extent
    return tuple(reversed(strides))


def is_row_major(shape: Shape, strides: Strides, same: Same = eq) -> bool:
    """Whether elements are densely packed in order; strides of extents below 2 do not matter."""
    if 0 in shape:
        return True
    expected: Dim = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if not same(stride, expected) and not same(extent, 1):
            return False
        expected = expected * extent
    return True


def lowest(shape: Shape, strides: Strides, offset: Dim) -> int:
    """The position of the element that lies first in memory; 0, which is before it, if unknown.

    >>> lowest((2, 3), (3, 1), 4), lowest((3,), (-1,), 2), lowest((0,), (1,), 5)
    (4, 0, 0)
    """
    if not isinstance(offset, int):
        return 0
    for extent, stride in zip(shape, strides, strict=True):
        if not isinstance(extent, int) or not isinstance(stride, int) or extent == 0:
            return 0
        if stride < 0:
            offset += stride * (extent - 1)
    return offset


def through(
    op: Op,
    attr: Any,
    before: Shape,
    strides: Strides,
    offset: Dim,
    after: Shape,
    same: Same = eq,
) -> tuple[Strides, Dim] | None:
    """The layout of ``op(x)`` in the memory of x, or None when no strides describe it."""
    if op is ops.PERMUTE:
        return tuple(strides[axis] for axis in attr), offset
    if op is ops.EXPAND:
        repeated = zip(before, after, strides, strict=True)
        return tuple(0 if old != new else s for old, new, s in repeated), offset
    if op is ops.SLICE:
        for (start, _), stride in zip(attr, strides, strict=True):
            offset = offset + start * stride
        return tuple(stride * step for (_, step), stride in zip(attr, strides, strict=True)), offset
    if op is ops.RESHAPE:
        reshaped = _reshape(before, strides, after, same)
        return None if reshaped is None else (reshaped, offset)
    return None


def _reshape(before: Shape, strides: Strides, after: Shape, same: Same) -> Strides | None:
    """Strides under which `after` reads the same elements in order.

    Old axes that lie densely in each other form one run; every run must split exactly into
    consecutive new axes.
    """
    if is_row_major(before, strides, same):
        return row_major(after)
    runs: list[tuple[Dim, Dim]] = []  # (elements, stride of the innermost)
    for extent, stride in zip(before, strides, strict=True):
        if same(extent, 1):
            continue
        if runs and same(runs[-1][1], extent * stride):
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    result: list[Dim] = []
    axis = len(after)
    for elements, inner in reversed(runs):
        covered: Dim = 1
        while not same(covered, elements):
            if axis == 0:
                return None
            axis -= 1
            result.append(inner * covered)
            covered = covered * after[axis]
            if isinstance(covered, int) and isinstance(elements, int) and covered > elements:
                return None
    if not all(same(extent, 1) for extent in after[:axis]):
        return None
    result += [1] * axis
    return tuple(reversed(result))
