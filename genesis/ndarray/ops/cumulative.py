"""Running results along an axis, and what is made of them: sums, extremes, integrals.

All of them are one primitive, PREFIX: element i of the result combines the elements up to i by a
merge that is associative, so that a long row can be done in pieces. A merge combines *states* of
several numbers: the greatest element and its position, or a sum and what it is scaled by.
`associative_scan` takes any merge; the others know theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from genesis.ir import ops
from genesis.ir.dtype import DType, bool_, int64, uint8, uint64
from genesis.ir.node import Node, const, node
from genesis.ir.node import elementwise as combined
from genesis.ir.ops import Op
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, constant, elementwise
from genesis.ndarray.core.value import Value, apart
from genesis.ndarray.ops import complexes
from genesis.ndarray.ops.creation import asarray
from genesis.ndarray.ops.elementwise import (
    atan2,
    cos,
    divide,
    exp,
    log,
    logical_xor,
    multiply,
    sin,
    subtract,
    where,
)
from genesis.ndarray.ops.function_variants import variant
from genesis.ndarray.ops.movement import concat, narrow, normal_axis
from genesis.ndarray.ops.reduction import sum as total
from genesis.ndarray.pytree import flatten, unflatten

# ---- running folds


def _additive(x: NDArray, axis: int, *, op: Op = ops.ADD, name: str = "cumsum") -> NDArray:
    """The sums of the elements up to each one along an axis; of bool and integers in int64.

    >>> from genesis import ndarray as nd
    >>> nd.cumsum(nd.array([1, 2, 3, 4]), 0).tolist()
    [1, 3, 6, 10]
    """
    value = x.value
    if x.dtype.kind in ("bool", "int", "uint") and x.dtype is not uint64:
        value = cast(value, int64)
    a = normal_axis(name, axis, x.ndim or 1)
    if not x.shape:
        return wrap(value)
    if x.dtype.is_complex:
        both = complexes.parts(value)
        return wrap(complexes.joined(*primitive.prefix(both, *_complex_fold(op, x.dtype.real), a)))
    # Half precisions are carried in float32, like all their sums.
    wide = cast(value, value.dtype.accumulator)
    (result,) = primitive.prefix([wide], *_fold(op, wide.dtype), a)
    return wrap(cast(result, value.dtype))


cumsum = variant(_additive, "cumsum")
cumprod = variant(_additive, "cumprod", "The products, as `cumsum` has the sums.", op=ops.MUL)


class RunningExtremes(NamedTuple):
    """Running extremes and the positions where they are."""

    values: NDArray
    indices: NDArray


def _extremes(x: NDArray, axis: int, *, op: Op = ops.MAX, name: str = "cummax") -> RunningExtremes:
    if x.dtype.is_complex:
        raise TypeError(f"{name}: {x.dtype} numbers have no order; take the real part or abs")
    value = cast(x.value, uint8) if x.dtype is bool_ else x.value
    a = normal_axis(name, axis, x.ndim or 1)
    if not x.shape:
        return RunningExtremes(wrap(x.value), wrap(constant(0, int64, x.device)))
    at = primitive.along(primitive.iota(x.shape[a], x.device), a, x.shape)
    merge, identity = _extreme(op, value.dtype)
    best, where = primitive.prefix([value, at], merge, identity, a)
    return RunningExtremes(wrap(cast(best, x.dtype)), wrap(where))


_RUNNING = """The {0} element up to each one along an axis, and the last position that holds it.

NaN counts as {0}.
"""
cummax = variant(_extremes, "cummax", _RUNNING.format("greatest"))
cummin = variant(_extremes, "cummin", _RUNNING.format("least"), op=ops.MIN)


def logcumsumexp(x: NDArray, axis: int) -> NDArray:
    """log(cumsum(exp(x))) along an axis, without overflow."""
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise TypeError(f"logcumsumexp: needs floating point, not {x.dtype}; use .astype first")
    a = normal_axis("logcumsumexp", axis, x.ndim or 1)
    if not x.shape:
        return wrap(x.value)
    if x.dtype.is_complex:
        nothing = (-math.inf, 0.0)
        parts = associative_scan(_complex_logaddexp, (x.real, x.imag), nothing, a)
        return complexes.complex(*parts)
    value = cast(x.value, x.dtype.accumulator)
    one = primitive.broadcast(constant(1, value.dtype, x.device), x.shape)
    greatest, scaled = primitive.prefix([value, one], *_scaled_sum(value.dtype), a)
    result = elementwise(ops.ADD, elementwise(ops.LOG, scaled), greatest)
    return wrap(cast(result, x.dtype))


# ---- merges

Merge = tuple[tuple[Node, ...], tuple[Node, ...]]  # the merged state, and the identity


def _states(*dtypes: DType) -> list[Node]:
    """The state on the left, then that on the right."""
    return [node(ops.PARAMETER, (), k, d) for k, d in enumerate((*dtypes, *dtypes))]


@cache
def _fold(op: Op, dtype: DType) -> Merge:
    """One number; adding -0.0 changes nothing, not even the sign of a zero."""
    nothing = 1 if op is ops.MUL else -0.0 if dtype.is_float else 0
    return (combined(op, *_states(dtype)),), (const(nothing, dtype),)


@cache
def _complex_fold(op: Op, dtype: DType) -> Merge:
    """(real, imaginary)"""
    a, b, c, d = _states(dtype, dtype)
    if op is ops.ADD:
        return (a + c, b + d), (const(-0.0, dtype), const(-0.0, dtype))
    return (a * c - b * d, a * d + b * c), (const(1, dtype), const(0, dtype))


@cache
def _extreme(op: Op, dtype: DType) -> Merge:
    """(value, position): of equal values the later one, of NaNs the last."""
    value, at, new_value, new_at = _states(dtype, int64)
    is_max = op is ops.MAX
    later = value <= new_value if is_max else new_value <= value
    if dtype.is_float:
        later = combined(ops.OR, later, combined(ops.NE, new_value, new_value))
    merge = (combined(ops.WHERE, later, new_value, value), combined(ops.WHERE, later, new_at, at))
    worst = dtype.min if is_max else dtype.max
    return merge, (const(worst, dtype), const(0, int64))


@cache
def _scaled_sum(dtype: DType) -> Merge:
    """(greatest, sum of exp(x - greatest)): the smaller side is scaled down."""
    high, sum_, new_high, new_sum = _states(dtype, dtype)
    distance = combined(ops.NEG, combined(ops.ABS, high - new_high))
    # Equal infinities have no distance.
    distance = combined(ops.WHERE, high.equal(new_high), const(0, dtype), distance)
    scale = combined(ops.EXP, distance)
    left, right = sum_ + new_sum * scale, sum_ * scale + new_sum
    merge = (combined(ops.MAX, high, new_high), combined(ops.WHERE, new_high <= high, left, right))
    return merge, (const(dtype.min, dtype), const(0, dtype))


def _complex_logaddexp(
    x: tuple[NDArray, NDArray], y: tuple[NDArray, NDArray]
) -> tuple[NDArray, NDArray]:
    """log(exp(x) + exp(y)) of (real, imaginary): the smaller one turns and stretches the greater.

    So the imaginary part goes on from that of the greater one, not from within -pi to pi.
    """
    swapped = x[0] < y[0]
    real, imag = (where(swapped, b, a) for a, b in zip(x, y, strict=True))
    low, turned = (where(swapped, a, b) for a, b in zip(x, y, strict=True))
    # Nothing added to nothing, or to infinity, changes nothing.
    size = where(low == -math.inf, 0.0, exp(low - real))
    along, across = 1 + size * cos(turned - imag), size * sin(turned - imag)
    grown = 0.5 * log(along * along + across * across)
    return real + grown, imag + atan2(across, along)


def associative_scan(
    merge: Callable[[Any, Any], Any], xs: Any, identity: Any, axis: int = 0, reverse: bool = False
) -> Any:
    """Combine each element along an axis with all before it, or with all after it if `reverse`.

    `xs` is an array, or arrays of one shape in nested tuples, lists and dictionaries: one *state*
    per element. ``merge(left, right)`` combines two states elementwise, written with arrays of
    shape (). It must be associative, and `identity`, a state of numbers, must change nothing when
    merged from the left.

    A linear recurrence ``h = a*h + b`` merges ``(a, b)`` pairs:

    >>> from genesis import ndarray as nd
    >>> a, b = nd.array([0.5, 0.5, 2.0]), nd.array([1.0, 1.0, 1.0])
    >>> merge = lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1])
    >>> nd.associative_scan(merge, (a, b), identity=(1, 0))[1].tolist()
    [1.0, 1.5, 4.0]
    """
    leaves, structure = flatten(xs)
    arrays = [x if isinstance(x, NDArray) else asarray(x) for x in leaves]
    starts, like = flatten(identity)
    if like != structure:
        raise ValueError("associative_scan: identity is not nested like xs")
    if not arrays or not arrays[0].shape:
        raise ValueError("associative_scan: xs needs arrays with an axis to go along")
    if any(x.shape != arrays[0].shape for x in arrays):
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"associative_scan: the arrays of xs have shapes {shapes}, not one shape")
    a = normal_axis("associative_scan", axis, arrays[0].ndim)
    dtypes = [x.dtype for x in arrays]
    with apart():
        places = [primitive.parameter(d, (), arrays[0].device) for d in (*dtypes, *dtypes)]
        states = list(map(wrap, places))
        count = len(arrays)
        result = merge(unflatten(structure, states[:count]), unflatten(structure, states[count:]))
        results, made = flatten(result)
        if made != structure or not all(isinstance(x, NDArray) for x in results):
            raise ValueError("associative_scan: merge gives a state that is not nested like xs")
        merged = _nodes([x.value for x in results], places)
    for k, (n, dtype) in enumerate(zip(merged, dtypes, strict=True)):
        if n.dtype is not dtype or n.shape:
            raise ValueError(
                f"associative_scan: merge turns part {k} of the state, {dtype}, into {n.dtype} "
                f"{n.shape}; cast it back, and combine arrays of shape () only"
            )
    constants = tuple(const(s, d) for s, d in zip(starts, dtypes, strict=True))
    parts = primitive.prefix([x.value for x in arrays], merged, constants, a, reverse)
    return unflatten(structure, [wrap(p) for p in parts])


def _nodes(roots: Sequence[Value], parameters: Sequence[Value]) -> tuple[Node, ...]:
    """What a merge made of its parameters."""
    places = {v: node(ops.PARAMETER, (), k, v.dtype) for k, v in enumerate(parameters)}
    done: dict[Value, Node] = dict(places)
    stack = list(roots)
    while stack:
        v = stack[-1]
        waiting = [i for i in v.inputs if i not in done]
        if v in done or waiting:
            stack.pop() if v in done else stack.extend(waiting)
            continue
        if v.op in (ops.CONST, ops.SCALAR):
            done[v] = const(v.attr, v.dtype)
        elif v.op.is_elementwise:
            inputs = tuple(done[i] for i in v.inputs)
            done[v] = node(v.op, inputs, v.attr, v.dtype)
        else:
            raise ValueError(
                f"associative_scan: merge uses {v.op.name} of {v.dtype} {v.shape}; it may combine "
                "its arguments and numbers elementwise only"
            )
    return tuple(done[v] for v in roots)


# ---- differences and integrals


def diff(
    x: NDArray,
    n: int = 1,
    axis: int = -1,
    prepend: NDArray | None = None,
    append: NDArray | None = None,
) -> NDArray:
    """Differences of neighbours along an axis, `n` times; for bool, whether they differ."""
    a = normal_axis("diff", axis, x.ndim)
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    around = [y for y in (prepend, x, append) if y is not None]
    x = concat(around, a) if len(around) > 1 else x
    for _ in range(n):
        low, high = _neighbours(x, a)
        x = logical_xor(high, low) if x.dtype is bool_ else subtract(high, low)
    return x


def trapezoid(y: NDArray, x: NDArray | None = None, dx: float = 1.0, axis: int = -1) -> NDArray:
    """The integral along an axis by the trapezoidal rule: at positions `x`, or `dx` apart."""
    areas, a = _trapezoids("trapezoid", y, x, dx, axis)
    return divide(total(areas, a), 2)


def cumulative_trapezoid(
    y: NDArray, x: NDArray | None = None, dx: float = 1.0, axis: int = -1
) -> NDArray:
    """The integrals up to each element but the first, by the trapezoidal rule."""
    areas, a = _trapezoids("cumulative_trapezoid", y, x, dx, axis)
    return divide(cumsum(areas, a), 2)


def _trapezoids(
    name: str, y: NDArray, x: NDArray | None, dx: float, axis: int
) -> tuple[NDArray, int]:
    """Twice the area between every two neighbours, and the axis of the result they lie along."""
    a = normal_axis(name, axis, y.ndim)
    low, high = _neighbours(y, a)
    heights = low + high
    if x is None:
        return (heights if dx == 1 else multiply(heights, dx)), a
    if x.ndim == 1 and x.shape[0] != y.shape[a]:
        raise ValueError(f"{name}: {x.shape[0]} positions for {y.shape[a]} values along axis {a}")
    if x.ndim == 1:
        x = x.reshape(*(x.shape[0] if d == a else 1 for d in range(y.ndim)))
    if x.ndim > y.ndim:
        raise ValueError(f"{name}: positions of shape {x.shape} for values of shape {y.shape}")
    low, high = _neighbours(x, x.ndim - y.ndim + a)
    return multiply(heights, subtract(high, low)), a


def _neighbours(x: NDArray, axis: int) -> tuple[NDArray, NDArray]:
    """All but the last and all but the first along an axis."""
    extent = x.shape[axis]
    if extent == 0:
        return x, x
    return narrow(x, axis, 0, extent - 1), narrow(x, axis, 1, extent - 1)


__all__ = [
    "associative_scan", "cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid", "diff",
    "logcumsumexp", "trapezoid",
]  # fmt: skip
