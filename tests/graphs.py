"""Short names for building tensor graphs in tests."""

from __future__ import annotations

from genesis.ir import ops
from genesis.ir.dtype import DType, bool_, float32, int64
from genesis.ir.node import Leaf, Node, Shape, const, elementwise, node
from genesis.ir.ops import Op
from genesis.ir.size import Dim


def leaf(slot: int, *shape: Dim, dtype: DType = float32) -> Node:
    """A row-major array in memory."""
    strides: list[Dim] = []
    total: Dim = 1
    for extent in reversed(shape):
        strides.append(total)
        total = total * extent
    return node(ops.BUFFER, (), Leaf(slot, tuple(reversed(strides))), dtype, shape)


def full(value: float, like: Node) -> Node:
    """A constant of another node's type."""
    return const(value, like.dtype)


def reshape(x: Node, *shape: Dim) -> Node:
    """The same elements in another shape."""
    return node(ops.RESHAPE, (x,), None, x.dtype, shape)


def expand(x: Node, *shape: Dim) -> Node:
    """Axes of extent 1, repeated."""
    return node(ops.EXPAND, (x,), None, x.dtype, shape)


def broadcast(x: Node, shape: Shape) -> Node:
    """`x` lined up with the last axes of `shape`, and repeated."""
    missing = len(shape) - len(x.shape)
    return expand(reshape(x, *(1,) * missing, *x.shape), *shape)


def permute(x: Node, *axes: int) -> Node:
    """Axes in another order."""
    return node(ops.PERMUTE, (x,), axes, x.dtype, tuple(x.shape[a] for a in axes))


def slice_(x: Node, *steps: tuple[int, int, int]) -> Node:
    """(start, step, count) for every axis."""
    attr = tuple((start, step) for start, step, _ in steps)
    return node(ops.SLICE, (x,), attr, x.dtype, tuple(count for _, _, count in steps))


def pad(x: Node, *places: tuple[int, int, int], fill: float = 0) -> Node:
    """(low, step, new extent) for every axis."""
    attr = tuple((low, step) for low, step, _ in places)
    shape = tuple(extent for _, _, extent in places)
    return node(ops.PAD, (x, full(fill, x)), attr, x.dtype, shape)


def reduce(op: Op, x: Node, *axes: int) -> Node:
    """Fold axes away."""
    shape = tuple(e for d, e in enumerate(x.shape) if d not in axes)
    return node(op, (x,), axes, x.dtype, shape)


def along(op: Op, x: Node, *axes: int) -> Node:
    """Fold axes and repeat the result along them."""
    kept = tuple(1 if d in axes else e for d, e in enumerate(x.shape))
    return expand(reshape(reduce(op, x, *axes), *kept), *x.shape)


def matmul(x: Node, y: Node) -> Node:
    """(.., m, k) with (k, n)."""
    rank = len(x.shape)
    labels = tuple(range(rank))
    attr = (labels, (rank - 1, rank), (*labels[:-1], rank))
    return node(ops.CONTRACT, (x, y), attr, x.dtype, (*x.shape[:-1], y.shape[1]))


def gather(x: Node, where: Node, axis: int) -> Node:
    """``x[.., where, ..]``"""
    shape = x.shape[:axis] + where.shape + x.shape[axis + 1 :]
    return node(ops.GATHER, (x, where), (axis,), x.dtype, shape)


def update(x: Node, value: Node, *steps: tuple[int, int]) -> Node:
    """``x[start + step*i] = value[i]``"""
    return node(ops.UPDATE, (x, value), steps, x.dtype, x.shape)


def iota(count: Dim) -> Node:
    """0, 1, .. count - 1"""
    return node(ops.IOTA, (), None, int64, (count,))


def where(condition: Node, then: Node, orelse: Node) -> Node:
    """A choice by element."""
    assert condition.dtype is bool_
    return elementwise(ops.WHERE, condition, then, orelse)
