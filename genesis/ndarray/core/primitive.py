"""The primitives on values: one function for each kind of node, with its shape rule.

Everything a user can call is composed of these. Elementwise inputs have one shape, or (), which
stands for every shape; any other broadcasting is explicit (`broadcast`). Functions that would
change nothing return their argument. Arithmetic on complex values is composed of that on their
parts (`complexes`, imported where it is needed because it is written with what is here).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.ir import ops
from genesis.ir.dtype import STORED, DType, Number, bool_, index
from genesis.ir.node import Node, Prefix
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, product
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.value import Value

Steps = tuple[tuple[Dim, int], ...]  # (start, step) of every axis


# ---- leaves


def constant(value: Number, dtype: DType, device: str) -> Value:
    """A scalar that is part of the program."""
    if dtype.is_complex:
        from genesis.ndarray.ops import complexes

        return complexes.constant(value, dtype, device)
    return Value(ops.CONST, (), dtype.cast(value), dtype, (), device)


def scalar(value: Number, dtype: DType, device: str) -> Value:
    """A user's Python scalar: passed at run time, except those that simplify programs.

    These are 0, 1 and -1, infinities (masks) and NaN.
    """
    if dtype.is_complex:
        from genesis.ndarray.ops import complexes

        return complexes.number(value, dtype, device)
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


def parameter(dtype: DType, shape: Shape, device: str) -> Value:
    """A stand-in for an input, while the body of a loop or a definition is built."""
    return Value(ops.PARAMETER, (), None, dtype, shape, device)


# ---- elementwise


def elementwise(op: Op, *inputs: Value, dtype: DType | None = None) -> Value:
    """A scalar operation on inputs of one dtype; comparisons give bool."""
    shape: Shape = ()
    for i in inputs:
        if i.shape:
            shape = i.shape
            break
    if dtype is None:
        dtype = inputs[-1].dtype
        if dtype.is_complex:
            from genesis.ndarray.ops import complexes

            return complexes.apply(op, inputs)
        if dtype in STORED and op is not ops.WHERE:
            raise _only_stored(dtype, op.name)
        if op.group == "compare":
            dtype = bool_
    return Value(op, inputs, None, dtype, shape, inputs[0].device)


def _only_stored(dtype: DType, operation: str) -> TypeError:
    return TypeError(f"{operation} of {dtype}: floats of 8 bits are only stored; use .to(float32)")


def cast(x: Value, dtype: DType) -> Value:
    """`x` converted to `dtype`."""
    if x.dtype is dtype:
        return x
    if x.dtype.is_complex or dtype.is_complex:
        from genesis.ndarray.ops import complexes

        return complexes.cast(x, dtype)
    return Value(ops.CAST, (x,), None, dtype, x.shape, x.device)


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
    if x.dtype.is_complex:
        from genesis.ndarray.ops import complexes

        return complexes.reduce(op, x, axes)
    if x.dtype in STORED:
        raise _only_stored(x.dtype, op.name)
    shape = tuple(extent for d, extent in enumerate(x.shape) if d not in axes)
    return Value(op, (x,), axes, x.dtype, shape, x.device)


def contract(
    x: Value, y: Value, lhs: Sequence[Any], rhs: Sequence[Any], out: Sequence[Any]
) -> Value:
    """The sum of products over the labels that `out` does not name.

    Labels are renumbered by first appearance, so that equal contractions are equal nodes.
    """
    if x.dtype.is_complex:
        from genesis.ndarray.ops import complexes

        return complexes.contract(x, y, lhs, rhs, out)
    if x.dtype in STORED:
        raise _only_stored(x.dtype, "products")
    numbers = {label: k for k, label in enumerate(dict.fromkeys([*lhs, *rhs]))}
    extents = {**dict(zip(lhs, x.shape, strict=True)), **dict(zip(rhs, y.shape, strict=True))}
    attr = tuple(tuple(numbers[label] for label in labels) for labels in (lhs, rhs, out))
    shape = tuple(extents[label] for label in out)
    return Value(ops.CONTRACT, (x, y), attr, x.dtype, shape, x.device)


def indexed_shape(shape: Shape, indices: Sequence[Value], axes: Sequence[int]) -> Shape:
    """What indices of one shape pick from axes: their shape stands where the first axis was."""
    rest = [extent for d, extent in enumerate(shape) if d not in axes]
    return (*rest[: axes[0]], *indices[0].shape, *rest[axes[0] :])


def gather_at(x: Value, indices: Sequence[Value], axes: Sequence[int]) -> Value:
    """``x[.., i, .., j, ..]`` with indices of one shape on increasing axes; they are clamped."""
    shape = indexed_shape(x.shape, indices, axes)
    return Value(ops.GATHER, (x, *indices), tuple(axes), x.dtype, shape, x.device)


def gather(x: Value, where: Value, axis: int) -> Value:
    """``x[.., where, ..]`` along an axis; positions are clamped into the axis."""
    return gather_at(x, (where,), (axis,))


def scatter(
    x: Value, indices: Sequence[Value], updates: Value, axes: Sequence[int], mode: str
) -> Value:
    """`x` with updates combined into ``x[.., i, .., j, ..]``, by a mode of `ops.MODES`.

    Updates at positions that do not exist are dropped, the others follow in row-major order.
    """
    if x.dtype.is_complex and mode not in ("set", "add"):
        raise TypeError(f"scatter: {mode} is not defined for {x.dtype}, only set and add are")
    attr = (tuple(axes), mode)
    return Value(ops.SCATTER, (x, *indices, updates), attr, x.dtype, x.shape, x.device)


def update(x: Value, value: Value, steps: Steps) -> Value:
    """`x` with ``x[start + step*i] = value[i]``."""
    if x.shape == value.shape and all(step == (0, 1) for step in steps):
        return value
    return Value(ops.UPDATE, (x, value), steps, x.dtype, x.shape, x.device)


def prefix(
    xs: Sequence[Value],
    merge: tuple[Node, ...],
    identity: tuple[Node, ...],
    axis: int,
    reverse: bool = False,
) -> list[Value]:
    """The parts of the states that the elements up to each one of an axis merge to."""
    hows = [Prefix(merge, identity, axis, reverse, item) for item in range(len(xs))]
    inputs = tuple(xs)
    return [
        Value(ops.PREFIX, inputs, how, x.dtype, x.shape, x.device)
        for x, how in zip(xs, hows, strict=True)
    ]


def count(x: Value, axes: Sequence[int]) -> Dim:
    """How many elements a reduction over `axes` folds into one."""
    return product(x.shape[axis] for axis in axes)


_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def kind_rank(dtype: DType) -> int:
    """The order of kinds in promotion: bool, integers, floats, complex."""
    return _RANK[dtype.kind]
