"""Rules about parts: what slices, pads, updates, concatenations and gathers do to each other.

Whoever reads a part of something put together needs only that part, and often it is one of the
pieces. A concatenation is a choice by position between padded pieces; where positions are known
(see `progression`) the choice is decided here instead of for every element.
"""

from __future__ import annotations

from dataclasses import dataclass

from genesis.compiler.graph.simplify.movement import everywhere, expanded, reshaped
from genesis.ir import ops
from genesis.ir.node import FALSE, TRUE, Node, elementwise, node
from genesis.ir.rewrite import Rules
from genesis.ir.size import Dim

RULES = Rules("parts")


# ---- pads


@RULES.on(ops.SLICE, ops.PAD)
def _slice_of_pad(n: Node) -> Node | None:
    """A slice of padding is less padding, for it may crop as well.

    With a step it must take every element that was placed, or all places.
    """
    places = []
    for (start, step), (low, spread) in zip(n.attr, n.inputs[0].attr, strict=True):
        if step == 1:
            places.append((low - start, spread))
        elif step == spread and isinstance(low - start, int) and (low - start) % step == 0:
            places.append(((low - start) // step, 1))
        else:
            return None
    return node(ops.PAD, n.inputs[0].inputs, tuple(places), n.dtype, n.shape)


@RULES.on(ops.PAD, ops.PAD)
def _pad_twice(n: Node) -> Node | None:
    """Two borders of one value are one, unless the inner padding cropped."""
    inner = n.inputs[0]
    axes = _placed(inner)
    if inner.inputs[1] is not n.inputs[1] or axes is None:
        return None
    if any(low < 0 or high >= count for low, high, count in axes):
        return None
    places = tuple((b + t * a, t * s) for (a, s), (b, t) in zip(inner.attr, n.attr, strict=True))
    return node(ops.PAD, inner.inputs, places, n.dtype, n.shape)


@RULES.on(ops.PAD)
def _crop(n: Node) -> Node | None:
    """Padding that only crops is a slice; such that crops everything away leaves the fill."""
    axes = _placed(n)
    if axes is None:
        return None
    if any(high < 0 or low >= count for low, high, count in axes):
        return everywhere(n.inputs[1], n.shape)
    if any(low > 0 or high < count - 1 for low, high, count in axes):
        return None
    if any(abs(step) != 1 for _, step in n.attr):
        return None
    steps = tuple((-step * low, step) for low, step in n.attr)
    return node(ops.SLICE, n.inputs[:1], steps, n.dtype, n.shape)


def _placed(pad: Node) -> list[tuple[int, int, int]] | None:
    """Where the first and the last element of each axis come to lie in its extent, if known."""
    axes = []
    for (low, step), extent, count in zip(pad.attr, pad.inputs[0].shape, pad.shape, strict=True):
        if not (isinstance(low, int) and isinstance(extent, int) and isinstance(count, int)):
            return None
        if not (extent and count):
            return None
        ends = (low, low + step * (extent - 1))
        axes.append((min(ends), max(ends), count))
    return axes


# ---- updates


@RULES.on(ops.UPDATE)
def _overwrite(n: Node) -> Node | None:
    """Writing every element in order leaves nothing of the old value."""
    whole = n.shape == n.inputs[1].shape and all(s == (0, 1) for s in n.attr)
    return n.inputs[1] if whole else None


@RULES.on(ops.UPDATE, ops.UPDATE)
def _update_twice(n: Node) -> Node | None:
    """What is written over at once was never seen."""
    first = n.inputs[0]
    if first.attr != n.attr or first.inputs[1].shape != n.inputs[1].shape:
        return None
    return n.with_inputs((first.inputs[0], n.inputs[1]))


@RULES.on(ops.UPDATE, None, ops.SLICE)
def _write_back(n: Node) -> Node | None:
    """A part written where it was read from changes nothing."""
    base, part = n.inputs
    return base if part.inputs[0] is base and part.attr == n.attr else None


@RULES.on(ops.SLICE, ops.UPDATE)
def _read_what_was_written(n: Node) -> Node | None:
    """The region just written holds the value written.

    A region beside it is left alone: whoever still reads the old value forbids to update in place.
    """
    update = n.inputs[0]
    value = update.inputs[1]
    return value if update.attr == n.attr and value.shape == n.shape else None


# ---- positions


@dataclass(frozen=True)
class Progression:
    """Integers that are ``start + step * i``, where i is the index along `axis`, below `count`."""

    start: int
    step: int = 0
    axis: int = 0
    count: int = 1

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest of them."""
        last = self.start + self.step * (self.count - 1)
        return min(self.start, last), max(self.start, last)


def progression(n: Node) -> Progression | None:
    """`n` as a progression, if it is plainly one.

    >>> from genesis.ir.dtype import int64
    >>> from genesis.ir.node import const, elementwise
    >>> places = node(ops.IOTA, (), None, int64, (5,))
    >>> progression(elementwise(ops.ADD, places, const(3, int64)))
    Progression(start=3, step=1, axis=0, count=5)
    """
    # Positions are made in few steps; anything long is data.
    found = _progression(n, 8)
    if found is None or not (n.dtype.min <= found.ends[0] and found.ends[1] <= n.dtype.max):
        return None
    return found


def _progression(n: Node, depth: int) -> Progression | None:
    if n.op is ops.CONST:
        return Progression(n.attr) if n.dtype.is_integer else None
    if n.op is ops.IOTA:
        (count,) = n.shape
        return Progression(0, 1, 0, count) if isinstance(count, int) and count else None
    if not depth or not all(isinstance(e, int) and e for e in n.shape):
        return None
    if n.op in (ops.ADD, ops.SUB, ops.MUL) and n.dtype.is_integer:
        a, b = (_progression(i, depth - 1) for i in n.inputs)
        return None if a is None or b is None else _combined(n.op, a, b)
    if n.op not in (ops.RESHAPE, ops.EXPAND, ops.PERMUTE, ops.SLICE):
        return None
    p = _progression(n.inputs[0], depth - 1)
    return p if p is None or not p.step else _moved(n, p)


def _combined(op: ops.Op, a: Progression, b: Progression) -> Progression | None:
    if op is ops.MUL:
        a, b = (b, a) if b.step else (a, b)
        return None if b.step else Progression(a.start * b.start, a.step * b.start, a.axis, a.count)
    if a.step and b.step:
        return None
    sign = 1 if op is ops.ADD else -1
    moving = a if a.step else b
    step = a.step + sign * b.step
    return Progression(a.start + sign * b.start, step, moving.axis, moving.count)


def _moved(n: Node, p: Progression) -> Progression | None:
    """The progression seen through a movement."""
    before = n.inputs[0].shape
    if n.op is ops.EXPAND:
        return p if before[p.axis] == n.shape[p.axis] else Progression(p.start)
    if n.op is ops.PERMUTE:
        return Progression(p.start, p.step, n.attr.index(p.axis), p.count)
    if n.op is ops.SLICE:
        first, stride = n.attr[p.axis]
        count = n.shape[p.axis]
        if not (isinstance(first, int) and isinstance(count, int)):
            return None
        return Progression(p.start + p.step * first, p.step * stride, p.axis, count)
    if [e for e in before if e != 1] != [e for e in n.shape if e != 1]:
        return None
    rank = sum(e != 1 for e in before[: p.axis])
    axes = [d for d, e in enumerate(n.shape) if e != 1]
    return (
        Progression(p.start, p.step, axes[rank], p.count) if p.count > 1 else Progression(p.start)
    )


def _decided(op: ops.Op, a: Node, b: Node) -> bool | None:
    """What a comparison of known positions is, if it is the same for all of them."""
    first = progression(a)
    second = progression(b) if first is not None else None
    if first is None or second is None:
        return None
    (low, high), (least, most) = first.ends, second.ends
    if op is ops.LT or op is ops.LE:
        slack = int(op is ops.LE)
        return True if high < least + slack else False if low >= most + slack else None
    if high < least or most < low:
        return op is ops.NE
    return op is ops.EQ if low == high == least == most else None


@RULES.on((ops.LT, ops.LE, ops.EQ, ops.NE))
def _known_comparison(n: Node) -> Node | None:
    """Positions all on one side of a limit: something was joined with nothing."""
    if not n.inputs[0].dtype.is_integer:
        return None
    answer = _decided(n.op, *n.inputs)
    return None if answer is None else everywhere(TRUE if answer else FALSE, n.shape)


@RULES.on(ops.SLICE, ops.WHERE)
def _slice_of_concatenation(n: Node) -> Node | None:
    """A slice of one piece of a concatenation is a slice of that piece."""
    condition, then, orelse = n.inputs[0].inputs
    asked = condition.inputs[0] if condition.op is ops.EXPAND else condition
    if asked.op.group != "compare" or not asked.inputs[0].dtype.is_integer:
        return None
    sides = [_part(expanded(i, condition.shape) if i.shape else i, n) for i in asked.inputs]
    answer = _decided(asked.op, *sides)
    if answer is None:
        return None
    return everywhere(_part(then if answer else orelse, n), n.shape)


def _part(x: Node, like: Node) -> Node:
    """The slice `like` of something else; a scalar stands for every shape."""
    return node(ops.SLICE, (x,), like.attr, x.dtype, like.shape) if x.shape else x


@RULES.on(ops.SLICE, ops.IOTA)
def _fewer_positions(n: Node) -> Node | None:
    """The first positions are positions again."""
    return node(ops.IOTA, (), None, n.dtype, n.shape) if n.attr == ((0, 1),) else None


@RULES.on(ops.GATHER, ops.CAST)
def _gather_of_cast(n: Node) -> Node | None:
    """What is picked is made wider, not all that could be, which may lie in memory as it is."""
    x = n.inputs[0].inputs[0]
    if x.dtype.itemsize >= n.dtype.itemsize:
        return None
    picked = node(ops.GATHER, (x, *n.inputs[1:]), n.attr, x.dtype, n.shape)
    return elementwise(ops.CAST, picked, dtype=n.dtype)


@RULES.on(ops.GATHER)
def _gather_in_order(n: Node) -> Node | None:
    """Positions in a row that exist make a slice: ``x[arange(a, b)]`` is ``x[a:b]``."""
    x, where = n.inputs[0], n.inputs[1]
    (axis, *more), extent = n.attr, x.shape[n.attr[0]]
    found = None if more or len(where.shape) > 1 else progression(where)
    if found is None or not isinstance(extent, int):
        return None
    if found.ends[0] < 0 or found.ends[1] >= extent:
        return None
    count: Dim = where.shape[0] if where.shape else 1
    if not found.step and count != 1:
        return None
    steps = tuple(
        (found.start, found.step or 1) if d == axis else (0, 1) for d in range(len(x.shape))
    )
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return reshaped(node(ops.SLICE, (x,), steps, n.dtype, shape), n.shape)
