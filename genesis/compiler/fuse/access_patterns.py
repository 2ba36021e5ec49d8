"""Demands: the uses of values that fusion follows, and what the index of a use tells.

A demand is one element of a value that one kernel reads. Fusion asks the same few questions of its
index again and again: whether a kernel's loops come by every element just once, and what they sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genesis.compiler.fuse.conversions import of_bytes, to_halves
from genesis.compiler.fuse.cost import MANY_ROWS, SMALL, count, points
from genesis.compiler.fuse.groups import FusionGroup, axes_of
from genesis.compiler.lower.movement import Indices
from genesis.ir import ops
from genesis.ir.kernel import Axis, as_index
from genesis.ir.node import TRUE, Node, Shape, topological
from genesis.ir.size import Size

#: Columns that are too few for a chip of many threads, if each is so long.
FEW = 1 << 13
LONG = 1 << 10
#: Neighbours that a tile has more of, and what is a long row that is put together of less.
PIECE = 1 << 10
ROW = 1 << 14
#: Rows that a thread goes through itself.
SHORT = 128
#: Rows that are so few that the matrix they are multiplied by is all the work.
FEW_ROWS = 32
#: Times that a window reads every element, from which on those at the border are copied.
TAPS = 12


@dataclass(frozen=True)
class Demand:
    """One use of a value: the element at `at` where `mask` holds."""

    at: Indices
    mask: Node
    opaque: bool = False  # the index is data, and not told
    stored: bool = False  # the value must lie in memory before the kernel starts
    operand: bool = False  # of a contraction: elements are read many times


def of_columns(n: Node) -> bool:
    """Whether a reduction is of the columns of something large, as that lies in memory."""
    (x,) = n.inputs
    return _innermost(x) not in n.attr and count(x.shape) > SMALL


def in_pieces(n: Node) -> bool:
    """Whether what a reduction folds lies in short pieces, between those of other results.

    The pixels of a group of channels do where channels come last.
    """
    (x,) = n.inputs
    axes = [a for a, e in enumerate(x.shape) if e != 1]
    kept = [a for a in axes if a not in n.attr]
    behind = [a for a in axes if kept and a > kept[-1]]
    parted = bool(behind) and any(a < kept[-1] for a in n.attr if a in axes)
    short = count(tuple(x.shape[a] for a in behind)) < PIECE
    each = count(x.shape) // max(1, count(n.shape))
    return parted and short and (each > ROW or (kept[:1] == axes[:1] and each > SHORT))


def _innermost(x: Node) -> int:
    """The axis along which neighbours of a value are neighbours in memory."""
    while x.op.is_elementwise and (alike := [i for i in x.inputs if i.shape == x.shape]):
        x = alike[0]
    axes = [a for a, e in enumerate(x.shape) if e != 1]
    if x.op is ops.BUFFER:
        strides = x.attr.strides
        known = [a for a in axes if isinstance(strides[a], int) and strides[a] > 0]
        return min(known, key=lambda a: (strides[a], -a), default=0)
    return max(axes, default=0)


def in_few_columns(n: Node, group: FusionGroup) -> bool:
    """Whether a reduction of few long columns is needed by another reduction of a kernel.

    Both would be done by as many blocks as there are columns; apart, each is cut into chunks.
    """
    if (
        not of_columns(n)
        or count(n.shape) > FEW
        or count(n.inputs[0].shape) < LONG * count(n.shape)
    ):
        return False
    root = group.root
    folds = [root, *_elementwise(root, group)]
    return any(n in _elementwise(r, group) for r in folds if r.op in ops.REDUCTIONS and r is not n)


def is_few_rows(n: Node) -> bool:
    """Whether a value is few rows of elements that lie apart: windows over few pixels, say."""
    known = len(n.shape) == 2 and all(isinstance(e, int) for e in n.shape)
    apart = n.op is ops.RESHAPE and n.inputs[0].op in (ops.PERMUTE, ops.PAD, ops.WINDOW)
    return known and apart and n.shape[0] <= FEW_ROWS


def is_framed(n: Node, use: Demand) -> bool:
    """Whether a value with a border is read without masks: quadruples of bytes, and wide windows.

    Of these every element is read so often that asking each time costs more than a copy.
    """
    if n.op is not ops.PAD:
        return False
    of_bytes = n.dtype.itemsize == 1 and n.dtype.is_integer
    return of_bytes or points(axes_of(use.at)) >= TAPS * count(n.shape)


def _elementwise(n: Node, group: FusionGroup) -> list[Node]:
    """What a kernel makes a value of element by element, down to reductions, say."""

    def inputs(m: Node) -> tuple[Node, ...]:
        plain = m.op.is_elementwise or m.op.is_movement
        return m.inputs if plain and m not in group.reads else ()

    return topological(n.inputs, inputs)


def rows_of_prefix(n: Node, at: Indices) -> list[Axis]:
    """The axes along which a PREFIX is computed independently."""
    return axes_of(i for d, i in enumerate(at) if d != n.attr.axis)


def visits(group: FusionGroup, n: Node, use: Demand) -> bool:
    """Whether the kernel's own loops come by every element of `n` exactly once at a use."""
    plain = use.mask is TRUE and not (use.opaque or use.stored)
    own = frozenset(axes_of(use.at)) in (group.axes, group.rows)
    return plain and own and bijective(use.at, n.shape)


def in_sum(n: Node, group: FusionGroup, at: Indices) -> bool:
    """Whether a contraction of bytes is one summand of a kernel's sum, as of a group of weights.

    Its result is as large as there are summands; stored, it would be most of what is moved. A row
    may also be of elements that are not summed, as beside a sum of activations alone. Every
    summand has its own part of both factors: the mean of what all weights make of each pixel is
    no such sum.
    """
    axes = frozenset(axes_of(at))
    left, right, out = n.attr
    own = frozenset(axes_of([i for x, i in zip(out, at, strict=True) if x in left and x in right]))
    summed = group.rows == group.axes < axes and axes - group.axes <= own
    return summed and all(map(of_bytes, n.inputs))


def rounded_once(n: Node, uses: Sequence[tuple[FusionGroup, Demand]]) -> bool:
    """Whether several contractions round an operand, each for many rows: weights, for instance."""
    rows = [points(g.axes - frozenset(axes_of(d.at))) for g, d in uses if d.operand]
    return to_halves(n) and sum(count >= MANY_ROWS for count in rows) > 1


def bijective(at: Indices, shape: Shape) -> bool:
    """Whether `at` visits each element of `shape` exactly once over the axes it mentions."""
    seen: set[Axis] = set()
    divided: dict[tuple[Axis, int], dict[ops.Op, int | Size]] = {}
    for i, extent in zip(at, shape, strict=True):
        if extent == 1:
            if axes_of([i]):  # in a kernel over nothing: an empty slice of one element
                return False
            continue
        if i.op in (ops.FLOORDIV, ops.MOD) and i.inputs[0].op is ops.AXIS:
            axis, divisor = i.inputs[0].attr, i.inputs[1].attr
            if (
                not isinstance(divisor, int)
                or not divisor
                or i.op in divided.get((axis, divisor), ())
            ):
                return False
            divided.setdefault((axis, divisor), {})[i.op] = extent
            continue
        if i.op is not ops.AXIS or i.attr in seen:
            return False
        full = as_index(extent) if isinstance(extent, Size) else extent
        if i.attr.extent != full and i.attr.extent is not full:
            return False
        seen.add(i.attr)
    for (axis, divisor), parts in divided.items():  # both digits of an axis are the axis
        whole = parts == {ops.MOD: divisor, ops.FLOORDIV: _quotient(axis, divisor)}
        if not whole or axis in seen:
            return False
        seen.add(axis)
    return True


def _quotient(axis: Axis, divisor: int) -> int | None:
    """How often a divisor fits into an axis, where it does without a rest."""
    extent = axis.extent
    return extent // divisor if isinstance(extent, int) and extent % divisor == 0 else None
