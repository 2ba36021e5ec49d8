"""The operations of StableHLO as functions of tensors.

Each takes the operation, for its attributes, and its operands. Types and shapes are those of the
program: nothing is promoted, and what is broadcast says so.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from genesis import arange, from_numpy, full
from genesis import functional as fn
from genesis.functional.strided import unfold
from genesis.ir import dtype as dtypes

_TYPES = {
    "f64": dtypes.float64, "f32": dtypes.float32, "f16": dtypes.float16, "bf16": dtypes.bfloat16,
    "i1": dtypes.bool_, "i8": dtypes.int8, "i16": dtypes.int16, "i32": dtypes.int32,
    "i64": dtypes.int64, "ui8": dtypes.uint8, "ui16": dtypes.uint16, "ui32": dtypes.uint32,
    "ui64": dtypes.uint64, "complex<f32>": dtypes.complex64, "complex<f64>": dtypes.complex128,
}  # fmt: skip

OPERATIONS: dict[str, Callable[..., Any]] = {}


def dtype_of(kind: Any) -> Any:
    """The element type of a tensor type of MLIR."""
    name = str(ir.RankedTensorType(kind).element_type)
    if name not in _TYPES:
        raise NotImplementedError(f"from_jax: tensors of {name}")
    return _TYPES[name]


def _shape(op: Any, k: int = 0) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(op.results[k].type).shape)


def _ints(op: Any, name: str) -> list[int]:
    return [int(n) for n in op.attributes[name]] if name in op.attributes else []


def constant(op: Any) -> Any:
    """A constant."""
    dtype, shape = dtype_of(op.results[0].type), _shape(op)
    if dtype.is_complex:
        return _complex_constant(str(op), dtype, shape)
    value = op.attributes["value"]
    if dtype is dtypes.bfloat16:
        words = ir.DenseElementsAttr(value)
        floats = [float(str(words.get_splat_value()).split(" ")[0])] if words.is_splat else None
        if floats is None:
            raise NotImplementedError("from_jax: constants of bfloat16 of more than one number")
        return full(shape, floats[0], dtype=dtype)
    return from_numpy(np.array(value).astype(dtype.numpy).reshape(shape)).clone()


def _complex_constant(text: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A constant of pairs, which the library only writes as text: ``dense<[(0.0, 1.0), ..]>``."""
    pairs = re.findall(r"\(([^(),]+),([^(),]+)\)", text)
    numbers = np.array([complex(float(a), float(b)) for a, b in pairs], dtype.numpy)
    if numbers.size not in (1, prod(shape)):
        raise NotImplementedError(f"from_jax: a constant that is written as {text[:60]}")
    return from_numpy(np.array(np.broadcast_to(numbers, (prod(shape),)).reshape(shape))).clone()


def _operation(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def entered(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            OPERATIONS[f"stablehlo.{name}"] = function
        return function

    return entered


# ---- elements

_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": fn.abs, "negate": fn.neg, "exponential": fn.exp, "exponential_minus_one": fn.expm1,
    "log": fn.log, "log_plus_one": fn.log1p, "logistic": fn.sigmoid, "tanh": fn.tanh,
    "sine": fn.sin, "cosine": fn.cos, "tan": fn.tan, "sqrt": fn.sqrt, "rsqrt": fn.rsqrt,
    "floor": fn.floor, "ceil": fn.ceil, "round_nearest_even": fn.round, "sign": fn.sign,
    "is_finite": fn.isfinite, "real": fn.real, "imag": fn.imag,
}  # fmt: skip
_CHLO: dict[str, Callable[[Any], Any]] = {
    "erf": fn.erf, "erfc": fn.erfc, "erf_inv": fn.erfinv, "lgamma": fn.lgamma,
    "digamma": fn.digamma, "square": fn.square, "acos": fn.acos, "asin": fn.asin,
    "atan": fn.atan, "sinh": fn.sinh, "cosh": fn.cosh, "asinh": fn.asinh, "acosh": fn.acosh,
    "atanh": fn.atanh, "tan": fn.tan, "is_inf": fn.isinf,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": fn.add, "subtract": fn.sub, "multiply": fn.mul, "maximum": fn.maximum,
    "minimum": fn.minimum, "power": fn.pow, "atan2": fn.atan2, "remainder": fn.fmod,
    "xor": fn.bitwise_xor, "and": fn.bitwise_and, "or": fn.bitwise_or, "complex": fn.complex,
}  # fmt: skip


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, *args: function(*args)


OPERATIONS |= {f"stablehlo.{name}": _plain(f) for name, f in (_UNARY | _BINARY).items()}
OPERATIONS |= {f"chlo.{name}": _plain(f) for name, f in _CHLO.items()}


@_operation("cbrt")
def _cbrt(op: Any, x: Any) -> Any:
    return fn.sign(x) * fn.pow(fn.abs(x), 1 / 3)


@_operation("round_nearest_afz")
def _round_away(op: Any, x: Any) -> Any:
    return fn.sign(x) * fn.floor(fn.abs(x) + 0.5)


@_operation("not")
def _not(op: Any, x: Any) -> Any:
    return fn.logical_not(x) if x.dtype is dtypes.bool_ else fn.bitwise_not(x)


@_operation("divide")
def _divide(op: Any, a: Any, b: Any) -> Any:
    if a.dtype.is_float or a.dtype.is_complex:
        return a / b
    return fn.div(a, b, rounding_mode="trunc")


@_operation("shift_left", "shift_right_arithmetic", "shift_right_logical")
def _shift(op: Any, a: Any, b: Any) -> Any:
    wide = a.dtype.itemsize * 8
    kind = op.name.removeprefix("stablehlo.shift_")
    far = fn.logical_or(b >= wide, b < 0)
    by = fn.where(far, fn.mul(b, 0), b)
    if kind == "left":
        return fn.where(far, fn.mul(a, 0), fn.bitwise_left_shift(a, by))
    if kind == "right_arithmetic":
        return fn.bitwise_right_shift(a, fn.where(far, fn.mul(b, 0) + (wide - 1), by))
    unsigned = dtypes.as_dtype(f"uint{wide}")
    bits = a if a.dtype is unsigned else a.view(unsigned)
    moved = fn.bitwise_right_shift(bits, by.to(unsigned))
    moved = fn.where(far, fn.mul(moved, 0), moved)
    return moved if a.dtype is unsigned else moved.view(a.dtype)


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
}  # fmt: skip


def _direction(op: Any) -> str:
    return str(op.attributes["comparison_direction"]).removesuffix(">").split(" ")[-1]


@_operation("compare")
def _compare(op: Any, a: Any, b: Any) -> Any:
    return _COMPARED[_direction(op)](a, b)


@_operation("select")
def _select(op: Any, condition: Any, a: Any, b: Any) -> Any:
    return fn.where(condition, a, b)


@_operation("clamp")
def _clamp(op: Any, low: Any, x: Any, high: Any) -> Any:
    return fn.minimum(fn.maximum(x, low), high)


@_operation("convert")
def _convert(op: Any, x: Any) -> Any:
    wanted = dtype_of(op.results[0].type)
    if x.dtype.is_float and wanted.is_integer:
        x = fn.trunc(x)
    return x.to(wanted)


@_operation("bitcast_convert")
def _bitcast(op: Any, x: Any) -> Any:
    wanted = dtype_of(op.results[0].type)
    if wanted.itemsize != x.dtype.itemsize:
        raise NotImplementedError("from_jax: bitcasts between types of different sizes")
    return x.view(wanted)


# ---- movement


@_operation("reshape")
def _reshape(op: Any, x: Any) -> Any:
    return x.reshape(*_shape(op))


@_operation("transpose")
def _transpose(op: Any, x: Any) -> Any:
    return fn.permute(x, _ints(op, "permutation"))


@_operation("broadcast_in_dim")
def _broadcast(op: Any, x: Any) -> Any:
    shape, where = _shape(op), _ints(op, "broadcast_dimensions")
    return _placed(x, where, len(shape)).expand(shape)


def _placed(x: Any, where: Sequence[int], rank: int) -> Any:
    """The axes of a tensor at places among `rank`, in whatever order; others have one element."""
    order = sorted(range(len(where)), key=where.__getitem__)
    sizes = dict(zip(where, x.shape, strict=True))
    return fn.permute(x, order).reshape(*(sizes.get(k, 1) for k in range(rank)))


@_operation("slice")
def _slice(op: Any, x: Any) -> Any:
    parts = (_ints(op, f"{name}") for name in ("start_indices", "limit_indices", "strides"))
    return x[tuple(slice(a, b, c) for a, b, c in zip(*parts, strict=True))]


@_operation("concatenate")
def _concatenate(op: Any, *xs: Any) -> Any:
    return fn.cat(xs, int(op.attributes["dimension"]))


@_operation("reverse")
def _reverse(op: Any, x: Any) -> Any:
    return fn.flip(x, _ints(op, "dimensions"))


@_operation("iota")
def _iota(op: Any) -> Any:
    shape, axis = _shape(op), int(op.attributes["iota_dimension"])
    line = arange(shape[axis]).to(dtype_of(op.results[0].type))
    return _placed(line, [axis], len(shape)).expand(shape)


@_operation("pad")
def _pad(op: Any, x: Any, value: Any) -> Any:
    low, high, inner = (
        _ints(op, f"{name}_padding") if name == "interior" else _ints(op, f"edge_padding_{name}")
        for name in ("low", "high", "interior")
    )
    return _padded(x, value, low, high, inner)


def _padded(x: Any, value: Any, low: Any, high: Any, inner: Any) -> Any:
    """A tensor with something before, after and between its elements; less where negative."""
    for axis, gap in enumerate(inner):
        if gap and x.shape[axis]:
            n = x.shape[axis]
            apart = fn.unsqueeze(x, axis + 1)
            gaps = value.expand(*apart.shape[: axis + 1], gap, *apart.shape[axis + 2 :])
            whole = fn.cat([apart, gaps], axis + 1)
            wide = whole.reshape(*x.shape[:axis], n * (gap + 1), *x.shape[axis + 1 :])
            x = fn.narrow(wide, axis, 0, n + (n - 1) * gap)
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        first = max(0, -before)
        x = fn.narrow(x, axis, first, max(0, x.shape[axis] - first - max(0, -after)))
        ends = [max(0, before), max(0, after)]
        parts = [value.expand(*x.shape[:axis], n, *x.shape[axis + 1 :]) for n in ends]
        if any(ends):
            x = fn.cat([p for p in (parts[0], x, parts[1]) if p.shape[axis]], axis)
    return x


@_operation("dynamic_slice")
def _dynamic_slice(op: Any, x: Any, *starts: Any) -> Any:
    for axis, (size, start) in enumerate(zip(_ints(op, "slice_sizes"), starts, strict=True)):
        if size != x.shape[axis]:
            first = fn.clamp(start.to(dtypes.int64), 0, x.shape[axis] - size)
            x = fn.index_select(x, axis, first + arange(size))
    return x


@_operation("dynamic_update_slice")
def _dynamic_update_slice(op: Any, x: Any, update: Any, *starts: Any) -> Any:
    partial = [k for k in range(x.ndim) if update.shape[k] != x.shape[k]]
    firsts = {
        k: fn.clamp(starts[k].to(dtypes.int64), 0, x.shape[k] - update.shape[k]) for k in partial
    }
    if not partial:
        return update
    if len(partial) == 1:
        (axis,) = partial
        return fn.index_copy(x, axis, firsts[axis] + arange(update.shape[axis]), update)
    inside: Any = None
    for axis in partial:
        places = arange(x.shape[axis]) - firsts[axis]
        there = fn.logical_and(places >= 0, places < update.shape[axis])
        there = _placed(there, [axis], x.ndim)
        inside = there if inside is None else fn.logical_and(inside, there)
        update = fn.index_select(update, axis, fn.clamp(places, 0, update.shape[axis] - 1))
    return fn.where(inside, update, x)


# ---- sums and products


@_operation("dot_general")
def _dot_general(op: Any, a: Any, b: Any) -> Any:
    how = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    letters = iter(string.ascii_letters)
    left, right = [""] * a.ndim, [""] * b.ndim
    batch, summed = "", ""
    for i, j in zip(how.lhs_batching_dimensions, how.rhs_batching_dimensions, strict=True):
        left[i] = right[j] = letter = next(letters)
        batch += letter
    for i, j in zip(how.lhs_contracting_dimensions, how.rhs_contracting_dimensions, strict=True):
        left[i] = right[j] = letter = next(letters)
        summed += letter
    left = [x or next(letters) for x in left]
    right = [x or next(letters) for x in right]
    rest = [x for x in (*left, *right) if x not in batch and x not in summed]
    wanted = dtype_of(op.results[0].type)
    equation = f"{''.join(left)},{''.join(right)}->{batch}{''.join(rest)}"
    if a.dtype is dtypes.bool_:
        a, b = a.to(dtypes.int32), b.to(dtypes.int32)
    return fn.einsum(equation, a.to(wanted), b.to(wanted)).to(wanted)


@_operation("convolution")
def _convolution(op: Any, x: Any, w: Any) -> Any:
    how = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rank = len(how.input_spatial_dimensions)
    if int(op.attributes["batch_group_count"]) != 1 or rank not in (1, 2, 3):
        raise NotImplementedError("from_jax: convolutions with groups of batches, or of 4 axes")
    x = fn.permute(
        x, [how.input_batch_dimension, how.input_feature_dimension, *how.input_spatial_dimensions]
    )
    w = fn.permute(w, [
        how.kernel_output_feature_dimension, how.kernel_input_feature_dimension,
        *how.kernel_spatial_dimensions,
    ])  # fmt: skip
    if "window_reversal" in op.attributes:
        turned = [k + 2 for k, turn in enumerate(op.attributes["window_reversal"]) if turn]
        w = fn.flip(w, turned) if turned else w
    edges = _edges(op, rank)
    gaps = [n - 1 for n in _ints(op, "lhs_dilation") or [1] * rank]
    low, high = ([0, 0, *(e[k] for e in edges)] for k in (0, 1))
    x = _padded(x, full((), 0, dtype=x.dtype), low, high, [0, 0, *gaps])
    function = (fn.conv1d, fn.conv2d, fn.conv3d)[rank - 1]
    strides = _ints(op, "window_strides") or [1] * rank
    dilation = _ints(op, "rhs_dilation") or [1] * rank
    y = function(x, w, None, strides, 0, dilation, int(op.attributes["feature_group_count"]))
    order = [
        how.output_batch_dimension,
        how.output_feature_dimension,
        *how.output_spatial_dimensions,
    ]
    return fn.permute(y, [order.index(k) for k in range(len(order))])


def _edges(op: Any, rank: int) -> list[list[int]]:
    if "padding" not in op.attributes:
        return [[0, 0]] * rank
    return [list(map(int, e)) for e in np.array(op.attributes["padding"]).reshape(rank, 2)]


_REDUCED: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "stablehlo.add": (fn.sum, fn.add), "stablehlo.multiply": (fn.prod, fn.mul),
    "stablehlo.maximum": (fn.amax, fn.maximum), "stablehlo.minimum": (fn.amin, fn.minimum),
    "stablehlo.and": (fn.all, fn.bitwise_and), "stablehlo.or": (fn.any, fn.bitwise_or),
}  # fmt: skip


def _merge(region: Any) -> str:
    """The one operation of a region; "" if it does more."""
    *inner, last = (o.operation for o in region.blocks[0].operations)
    whole = len(inner) == 1 and len(last.operands) == 1 and last.operands[0] == inner[0].results[0]
    return inner[0].name if whole and inner[0].name in _REDUCED else ""


@_operation("reduce")
def _reduce(op: Any, *args: Any) -> Any:
    axes, kind = _ints(op, "dimensions"), _merge(op.regions[0])
    if len(args) == 4:
        return _extreme(op, args[0], axes)
    if len(args) != 2 or not kind:
        raise NotImplementedError("from_jax: reductions by functions of one's own")
    x, init = args
    reduce, merge = _REDUCED[kind]
    for axis in sorted(axes, reverse=True):
        x = _along(reduce, x, axis)
    return merge(x, init) if x.dtype is not dtypes.bool_ else _logical(kind)(x, init)


def _along(reduce: Callable[..., Any], x: Any, axis: int) -> Any:
    if reduce in (fn.sum, fn.prod):
        return reduce(x, axis, dtype=x.dtype)
    return reduce(x, axis)


def _logical(kind: str) -> Callable[[Any, Any], Any]:
    return fn.logical_and if kind == "stablehlo.and" else fn.logical_or


def _extreme(op: Any, x: Any, axes: list[int]) -> list[Any]:
    """The greatest or least element and where it is, as argmax and argmin are written."""
    compares = [
        o.operation for o in op.regions[0].blocks[0].operations
        if o.operation.name == "stablehlo.compare"
    ]  # fmt: skip
    way = _direction(compares[0]) if compares else ""
    if way not in ("GT", "LT", "GE", "LE") or len(axes) != 1:
        raise NotImplementedError("from_jax: reductions of several tensors by a function")
    place = (fn.argmax if way[0] == "G" else fn.argmin)(x, axes[0], True)
    value = fn.squeeze(fn.take_along_dim(x, place, axes[0]), axes[0])
    return [value, fn.squeeze(place, axes[0]).to(dtype_of(op.results[1].type))]


@_operation("reduce_window")
def _reduce_window(op: Any, x: Any, init: Any) -> Any:
    rank, kind = x.ndim, _merge(op.regions[0])
    if not kind:
        raise NotImplementedError("from_jax: windows reduced by functions of one's own")
    sizes = _ints(op, "window_dimensions")
    strides = _ints(op, "window_strides") or [1] * rank
    dilation = _ints(op, "window_dilations") or [1] * rank
    gaps = [n - 1 for n in _ints(op, "base_dilations") or [1] * rank]
    edges = _edges(op, rank)
    y = _padded(x, init, [e[0] for e in edges], [e[1] for e in edges], gaps)
    reduce, _ = _REDUCED[kind]
    for axis in range(rank):
        if sizes[axis] != 1 or strides[axis] != 1:
            each = _windows(y, axis, sizes[axis], strides[axis], dilation[axis])
            y = _along(reduce, each, -1)
    return y


def _windows(x: Any, axis: int, size: int, stride: int, dilation: int) -> Any:
    """Windows along an axis, the last of the result."""
    if dilation == 1:
        return unfold(x, axis, size, stride)
    count = (x.shape[axis] - (size - 1) * dilation - 1) // stride + 1
    where = arange(count).reshape(-1, 1) * stride + arange(size) * dilation
    taken = fn.index_select(x, axis, where.reshape(-1))
    wide = taken.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return fn.movedim(wide, axis + 1, -1)


# ---- indices


def _places(
    how: Any, indices: Any, shape: Sequence[int], operand: Sequence[int], windows: Sequence[int],
    own: Sequence[int], vector: int, mapped: Sequence[int], batching: Sequence[tuple[int, int]],
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """For every axis of an operand where elements of a window lie, and where windows begin.

    `shape` is that of all windows, of whose axes `windows` go over the operand's axes `own`.
    """
    rank = len(shape)
    outer = [k for k in range(rank) if k not in windows]
    if vector == indices.ndim:
        indices = fn.unsqueeze(indices, -1)
    around = [k for k in range(indices.ndim) if k != vector]
    starts: list[Any] = [None] * len(operand)
    for k, axis in enumerate(mapped):
        line = fn.select(indices, vector, k).to(dtypes.int64)
        starts[axis] = _placed(line, outer, rank)
    for axis, of in batching:
        at = outer[around.index(of)]
        starts[axis] = _placed(arange(operand[axis]), [at], rank)
    inside: list[Any] = [None] * len(operand)
    for at, axis in zip(windows, own, strict=True):
        inside[axis] = _placed(arange(shape[at]), [at], rank)
    return inside, starts


def _sum(inside: Any, start: Any, rank: int) -> Any:
    """Where elements lie along an axis, given their places in a window and where it begins."""
    if inside is None and start is None:
        return full((1,) * rank, 0, dtype=dtypes.int64)
    return (
        inside + start
        if inside is not None and start is not None
        else (start if inside is None else inside)
    )


@_operation("gather")
def _gather(op: Any, x: Any, indices: Any) -> Any:
    how = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes, shape = _ints(op, "slice_sizes"), _shape(op)
    apart = {*how.collapsed_slice_dims, *how.operand_batching_dims}
    own = [k for k in range(x.ndim) if k not in apart]
    batching = list(zip(how.operand_batching_dims, how.start_indices_batching_dims, strict=True))
    inside, starts = _places(
        how, indices, shape, x.shape, how.offset_dims, own, how.index_vector_dim,
        how.start_index_map, batching,
    )  # fmt: skip
    where = []
    for axis, (a, b) in enumerate(zip(inside, starts, strict=True)):
        if b is not None and axis not in dict(batching):
            b = fn.clamp(b, 0, x.shape[axis] - sizes[axis])
        parts = [p for p in (a, b) if p is not None]
        where.append(
            sum(parts[1:], parts[0]) if parts else full((1,) * len(shape), 0, dtype=dtypes.int64)
        )
    return x[tuple(i.expand(shape) for i in where)] if x.ndim else x.expand(shape)


@_operation("scatter")
def _scatter(op: Any, x: Any, indices: Any, updates: Any, *more: Any) -> Any:
    if more:
        raise NotImplementedError("from_jax: scatters of several tensors")
    how = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    apart = {*how.inserted_window_dims, *how.input_batching_dims}
    own = [k for k in range(x.ndim) if k not in apart]
    batching = list(zip(how.input_batching_dims, how.scatter_indices_batching_dims, strict=True))
    inside, starts = _places(
        how, indices, updates.shape, x.shape, how.update_window_dims, own, how.index_vector_dim,
        how.scattered_dims_to_operand_dims, batching,
    )  # fmt: skip
    place: Any = full((1,) * updates.ndim, 0, dtype=dtypes.int64)
    fits: Any = None
    for axis, (a, b) in enumerate(zip(inside, starts, strict=True)):
        if b is not None:
            width = updates.shape[how.update_window_dims[own.index(axis)]] if a is not None else 1
            there = fn.logical_and(b >= 0, b <= x.shape[axis] - width)
            fits = there if fits is None else fn.logical_and(fits, there)
        place = place * x.shape[axis] + _sum(a, b, updates.ndim)
    total = prod(x.shape)
    if fits is not None:  # what lies outside goes to a place of its own, which is dropped
        place = fn.where(fits, place, total)
    row = fn.cat([x.reshape(-1), fn.mul(x.reshape(-1)[:1], 0)], 0)
    flat = place.expand(updates.shape).reshape(-1)
    return _written(op, row, flat, updates.reshape(-1))[:total].reshape(*x.shape)


def _written(op: Any, row: Any, place: Any, new: Any) -> Any:
    kind = _merge(op.regions[0])
    names = {"stablehlo.multiply": "prod", "stablehlo.maximum": "amax", "stablehlo.minimum": "amin"}
    if kind == "stablehlo.add":
        return fn.scatter_add(row, 0, place, new)
    if kind in names:
        return fn.scatter_reduce(row, 0, place, new, names[kind])
    block = op.regions[0].blocks[0]
    *_, last = (o.operation for o in block.operations)
    if last.operands[0] != block.arguments[1]:
        raise NotImplementedError("from_jax: scatters by functions of one's own")
    return fn.scatter(row, 0, place, new)


@_operation("sort")
def _sort(op: Any, *xs: Any) -> Any:
    axis, block = int(op.attributes["dimension"]), op.regions[0].blocks[0]
    compares = [o.operation for o in block.operations if o.operation.name == "stablehlo.compare"]
    ways = {_direction(compare) for compare in compares} - {"EQ", "NE"}
    keys = {k // 2 for k, a in enumerate(block.arguments) if list(a.uses)}
    if keys != {*range(len(keys))} or ways not in ({"LT"}, {"GT"}):
        raise NotImplementedError("from_jax: sorting by a function of one's own")
    for key in sorted(keys, reverse=True):  # what is equal stays in the order of the later keys
        order = fn.argsort(xs[key], axis, ways == {"GT"}, stable=True)
        xs = tuple(fn.take_along_dim(x, order, axis) for x in xs)
    return list(xs)


def _top_k(op: Any, x: Any) -> Any:
    values, places = fn.topk(x, int(op.attributes["k"]), -1)
    return [values, places.to(dtype_of(op.results[1].type))]


OPERATIONS["chlo.top_k"] = _top_k


#: Calls that only say where something lies.
REMARKS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")


@_operation("custom_call")
def _custom_call(op: Any, *args: Any) -> Any:
    return args[0]  # of those that are known, none computes anything


@_operation("fft")
def _fft(op: Any, x: Any) -> Any:
    """A Fourier transform of the last axes."""
    kind = str(op.attributes["fft_type"]).split("<")[-1].rstrip(" >").rsplit(" ", 1)[-1]
    lengths = _ints(op, "fft_length")
    axes = tuple(range(-len(lengths), 0))
    function = {
        "FFT": fn.fft.fftn, "IFFT": fn.fft.ifftn, "RFFT": fn.fft.rfftn, "IRFFT": fn.fft.irfftn
    }[kind]  # fmt: skip
    return function(x, lengths, axes)


@_operation("popcnt")
def _popcnt(op: Any, x: Any) -> Any:
    unsigned = dtypes.as_dtype(f"uint{8 * x.dtype.itemsize}")
    bits = x if x.dtype is unsigned else x.view(unsigned)
    shifts = arange(8 * x.dtype.itemsize).to(unsigned)
    each = fn.bitwise_and(fn.bitwise_right_shift(fn.unsqueeze(bits, -1), shifts), 1)
    return fn.sum(each.to(dtypes.int64), -1).to(x.dtype)
