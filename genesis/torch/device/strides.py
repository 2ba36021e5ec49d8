"""Strides as movement: what a tensor sees of its storage, in slices, permutations and reshapes.

A storage's contents are an array whose row-major order is the order in memory. A tensor sees them
through sizes, strides and an offset. Sorted by stride, its axes nest: rows of the largest stride
hold rows of the next, and each axis is a slice of those rows. So a chain of array views can read
the tensor, and write through it, whatever sequence of PyTorch's views has made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd
from operator import mul
from typing import TYPE_CHECKING

from genesis.ir import ops
from genesis.ir.ops import Op
from genesis.ndarray.core.layout import is_row_major
from genesis.ndarray.core.storage import Steps, ViewStep

if TYPE_CHECKING:
    import torch

Sizes = tuple[int, ...]


def memory_order(sizes: Sizes, strides: Sizes) -> tuple[int, ...] | None:
    """The axes from the outermost in memory to the innermost; None if elements are not packed.

    >>> memory_order((2, 3), (1, 2)), memory_order((2, 3), (4, 1))
    ((1, 0), None)
    """
    order = tuple(sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] != 1)))
    packed = is_row_major(tuple(sizes[d] for d in order), tuple(strides[d] for d in order))
    return order if packed else None


def span(sizes: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """The number of elements that a storage must have for a tensor.

    >>> span((2, 3), (4, 1), 5)
    12
    """
    if 0 in sizes:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def steps_to(base: Sizes, sizes: Sizes, strides: Sizes, offset: int) -> Steps | None:
    """How to see a tensor in row-major contents of shape `base`; None if its axes overlap.

    >>> [(step.op.name, step.attr) for step in steps_to((4, 6), (3, 2), (2, 12), 6)]
    [('slice', ((1, 2), (0, 2))), ('permute', (1, 0))]
    """
    path = _Path(base)
    moving = [d for d, n in enumerate(sizes) if n != 1 and strides[d]]
    nested = sorted(moving, key=lambda d: -strides[d])
    reaches = [span([sizes[d]], [strides[d]], 0) - 1 for d in nested]
    for k, d in enumerate(nested[:-1]):
        offset_in_row = path.split(offset, sizes[d], strides[d], sum(reaches[k + 1 :]) + 1)
        if offset_in_row is None:
            return None
        offset = offset_in_row
    if nested:
        path.take(offset, strides[nested[-1]], sizes[nested[-1]])
    else:
        path.take(offset, 1, 1)
        path.reshape(())
    path.permute([nested.index(d) for d in moving])
    path.reshape(tuple(n if d in moving else 1 for d, n in enumerate(sizes)))
    if path.shape != sizes:
        path.add(ops.EXPAND, None, sizes)
    return tuple(path.steps)


class _Path:
    """Steps from contents to a tensor; the last axis is the memory not yet divided into rows."""

    def __init__(self, base: Sizes) -> None:
        self.base = base
        self.steps: list[ViewStep] = []
        self.slices: list[tuple[int, int, int]] = []  # (start, step, size) of the axes before it
        *self.natural, self.row = accumulate(reversed(base), mul, initial=1)
        self.natural.reverse()  # the extents of rows, the longest first
        self.rows: list[int] = []  # the extents of the axes before it

    @property
    def shape(self) -> Sizes:
        return self.steps[-1].shape if self.steps else self.base  # type: ignore[return-value]

    def split(self, offset: int, count: int, stride: int, reach: int) -> int | None:
        """Divide the memory into rows, `count` of which are seen, `stride` apart, from `offset` on.

        `reach` elements of each are seen. The offset in each row; None if there are no such rows.
        """
        if reach > stride:
            return None
        # Rows that the contents have already are best; the longest that could be come last.
        for row in (*self.natural, gcd(stride, self.row)):
            start, inside = divmod(offset, row)
            if stride % row == 0 and self.row % row == 0 and inside + reach <= row:
                self.rows.append(self.row // row)
                self.slices.append((start, stride // row, count))
                self.row = row
                return inside
        # Rows do not begin at multiples of the stride: cut the memory so that they do.
        first = min(offset, self.row - count * stride)
        if first < 0 or offset - first + reach > stride:
            return None
        self.slices.append((first, 1, count * stride))
        self._slice()
        self.rows.append(count)
        self.slices.append((0, 1, count))
        self.row = stride
        return offset - first

    def take(self, start: int, step: int, count: int) -> None:
        """Let the last axis be so many elements of a row."""
        self.slices.append((start, step, count))
        self._slice()

    def _slice(self) -> None:
        self.reshape((*self.rows, self.row))
        after = tuple(count for _, _, count in self.slices)
        if after != self.shape:
            self.add(ops.SLICE, tuple((start, step) for start, step, _ in self.slices), after)
        self.rows = list(after[:-1])
        self.slices = [(0, 1, count) for count in self.rows]

    def permute(self, axes: Sequence[int]) -> None:
        """Put the axes into another order."""
        if list(axes) != list(range(len(axes))):
            self.add(ops.PERMUTE, tuple(axes), tuple(self.shape[a] for a in axes))

    def reshape(self, shape: Sizes) -> None:
        """See the elements in another shape."""
        if self.steps and self.steps[-1].op is ops.RESHAPE:
            self.steps.pop()
        if shape != self.shape:
            self.add(ops.RESHAPE, None, shape)

    def add(self, op: Op, attr: object, shape: Sizes) -> None:
        """One step more."""
        self.steps.append(ViewStep(op, attr, shape))


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor with other strides; those along axes of one element do not count."""
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if not tensor.numel() or all(n == 1 or had == wanted for n, had, wanted in pairs):
        return tensor
    return copied_with_strides(tensor, strides)


def copied_with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with other strides. Elements that are one in memory are written once."""
    copy = tensor.new_empty_strided(tensor.shape, tuple(strides))
    once = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
    copy[once].copy_(tensor[once])
    return copy
