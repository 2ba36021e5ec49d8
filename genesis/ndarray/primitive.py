"""The primitives on values: one function for each kind of node, with its shape rule.

Everything a user can call is composed of these. Elementwise inputs have one shape, or (), which
stands for every shape; any other broadcasting is explicit (`broadcast`). Functions that would
change nothing return their argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, bool_, index
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, product
from genesis.ndarray.layout import Shape
from genesis.ndarray.value import Value

Steps = tuple[tuple[Dim, int], ...]  # (start, step) of every axis


# ---- leaves


def constant(value: Scalar, dtype: DType, device: str) -> Value:
    """A scalar that is part of the program."""
    return Value(ops.CONST, (), dtype.cast(value), dtype, (), device)


def scalar(value: Scalar, dtype: DType, device: str) -> Value:
    """A user's Python scalar: passed at run time, except those that simplify programs.

    These are 0, 1 and -1, infinities (masks) and NaN.
    """
    if value == 0 or value == 1 or value == -1 or value - value != 0:
        return constant(value, dtype, device)
    return Value(ops.SCALAR, (), dtype.cast(value), dtype, (), device)


def extent(size: Dim, dtype: DType, device: str) -> Value:
    """The size of an axis, as a scalar of the program."""
    if isinstance(size, Size):
        return cast(Value(ops.SIZE, (), size, index, (), device), dtype)
    return constant(size, dtype, device)


def iota(count: Dim, device: str) -> Value:
    """0, 1, .. count - 1 as int64."""
    return Value(ops.IOTA, (), None, index, (count,), device)


# ---- elementwise


def elementwise(op: Op, *inputs: Value, dtype: DType | None = None) -> Value:
    """A scalar operation on inputs of one dtype; comparisons give bool."""
    shape: Shape = ()
    for i in inputs:
        if i.shape:
            shape = i.shape
            break
    if dtype is None:
        dtype = bool_ if op.group == "compare" else inputs[-1].dtype
    return Value(op, inputs, None, dtype, shape, inputs[0].device)


def cast(x: Value, dtype: DType) -> Value:
    """`x` converted to `dtype`."""
    return x if x.dtype is dtype else Value(ops.CAST, (x,), None, dtype, x.shape, x.device)


def where(condition: Value, then: Value, orelse: Value) -> Value:
    """`then` where the condition holds, `orelse` elsewhere."""
    return elementwise(ops.WHERE, condition, then, orelse)


# ---- movement


def reshape(x: Value, shape: Shape) -> Value:
    """The same elements in row-major order, in another shape."""
    return x if x.shape == shape else Value(ops.RESHAPE, (x,), None, x.dtype, shape, x.device)


def permute(x: Value, axes: Sequence[int]) -> Value:
    """Output axis d is input axis axes[d]."""
    axes = tuple(axes)
    if axes == tuple(range(len(axes))):
        return x
    return Value(ops.PERMUTE, (x,), axes, x.dtype, tuple(x.shape[a] for a in axes), x.device)


def expand(x: Value, shape: Shape) -> Value:
    """Repeat axes of extent 1; same rank."""
    return x if x.shape == shape else Value(ops.EXPAND, (x,), None, x.dtype, shape, x.device)


def broadcast(x: Value, shape: Shape) -> Value:
    """`x` in a shape it broadcasts to."""
    missing = len(shape) - len(x.shape)
    if missing:
        x = reshape(x, (1,) * missing + x.shape)
    return expand(x, shape)


def slice_(x: Value, steps: Steps, shape: Shape) -> Value:
    """Reads ``start + step*i`` along every axis."""
    if x.shape == shape and all(step == (0, 1) for step in steps):
        return x
    return Value(ops.SLICE, (x,), steps, x.dtype, shape, x.device)


def pad(x: Value, steps: Steps, shape: Shape, fill: Value) -> Value:
    """Places element i at ``low + step*i``, `fill` elsewhere; what falls outside is cut off."""
    if x.shape == shape and all(step == (0, 1) for step in steps):
        return x
    return Value(ops.PAD, (x, fill), steps, x.dtype, shape, x.device)


def along(x: Value, axis: int, shape: Shape) -> Value:
    """A vector laid along one axis of `shape` and repeated over the others."""
    spread = tuple(x.shape[0] if d == axis else 1 for d in range(len(shape)))
    return expand(reshape(x, spread), shape)


# ---- reductions, contraction, indexing


def reduce(op: Op, x: Value, axes: tuple[int, ...]) -> Value:
    """Fold the given axes away."""
    if not axes:
        return x
    shape = tuple(extent for d, extent in enumerate(x.shape) if d not in axes)
    return Value(op, (x,), axes, x.dtype, shape, x.device)


def contract(
    x: Value, y: Value, lhs: Sequence[Any], rhs: Sequence[Any], out: Sequence[Any]
) -> Value:
    """The sum of products over the labels that `out` does not name.

    Labels are renumbered by first appearance, so that equal contractions are equal nodes.
    """
    numbers = {label: k for k, label in enumerate(dict.fromkeys([*lhs, *rhs]))}
    extents = {**dict(zip(lhs, x.shape, strict=True)), **dict(zip(rhs, y.shape, strict=True))}
    attr = tuple(tuple(numbers[label] for label in labels) for labels in (lhs, rhs, out))
    shape = tuple(extents[label] for label in out)
    return Value(ops.CONTRACT, (x, y), attr, x.dtype, shape, x.device)


def gather(x: Value, where: Value, axis: int) -> Value:
    """``x[.., where, ..]`` along an axis; positions are clamped into the axis."""
    shape = x.shape[:axis] + where.shape + x.shape[axis + 1 :]
    return Value(ops.GATHER, (x, where), axis, x.dtype, shape, x.device)


def scatter_add(x: Value, where: Value, updates: Value, axis: int) -> Value:
    """`x` with updates added at the positions `where` of an axis."""
    return Value(ops.SCATTER_ADD, (x, where, updates), axis, x.dtype, x.shape, x.device)


def update(x: Value, value: Value, steps: Steps) -> Value:
    """`x` with ``x[start + step*i] = value[i]``."""
    if x.shape == value.shape and all(step == (0, 1) for step in steps):
        return value
    return Value(ops.UPDATE, (x, value), steps, x.dtype, x.shape, x.device)


def count(x: Value, axes: Sequence[int]) -> Dim:
    """How many elements a reduction over `axes` folds into one."""
    return product(x.shape[axis] for axis in axes)


_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2}


def kind_rank(dtype: DType) -> int:
    """The order of kinds in promotion: bool, integers, floats."""
    return _RANK[dtype.kind]
