"""Indexing: ``x[...]``, read and written, and reading and writing along one dimension.

An index is taken apart into a view (integers, slices, None, Ellipsis) and arrays of positions that
pick from dimensions of that view; a mask is the positions where it holds. Where the dimensions of
arrays go is PyTorch's rule: next to each other they stay where they are, else they come first, and
integers take no part in it. An integer that is a tensor is data, so what it picks is a copy.

Picking and putting are each other's gradient: what was read several times gets the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any, NamedTuple

import numpy as np

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, mul, where
from genesis.functional.error_messages import broadcast_shapes, normal_dim
from genesis.functional.function import Function, is_tensor, plain, with_gradient
from genesis.functional.movement import (
    Overwrite,
    View,
    expand,
    flatten,
    ravel,
    reshape,
    steps_of,
    view_through,
)
from genesis.functional.registry import method
from genesis.ir.dtype import bool_, uint8
from genesis.ir.size import Size, product
from genesis.ndarray import NDArray
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.primitive import kind_rank
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops.gather_scatter import combined
from genesis.ndarray.ops.normalize_index import counted, positions

Axes = tuple[int, ...]

# ---- picking and putting


class Pick(Function):
    """``x[.., i, .., j, ..]``: positions that broadcast together, on the given dimensions."""

    @staticmethod
    def forward(ctx: Any, x: NDArray, axes: Axes, *indices: NDArray) -> Any:
        ctx.axes, ctx.shape = axes, x.shape
        ctx.save_for_backward(*indices)
        places, at = _located(x, axes, indices)
        found = primitive.gather_at(x.value, places, axes)
        return wrap(_moved(found, axes[0], at, len(places[0].shape)))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        indices = ctx.saved_tensors
        return Spread.apply(grad, ctx.shape, ctx.axes, *indices), None, *[None] * len(indices)


class Spread(Function):
    """The transpose of `Pick`: zeros, with values added where they were picked from."""

    @staticmethod
    def forward(ctx: Any, values: NDArray, shape: Any, axes: Axes, *indices: NDArray) -> Any:
        ctx.axes = axes
        ctx.save_for_backward(*indices)
        return _put(nd.zeros(shape, values.dtype, values.device), values, axes, indices, "add")

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        indices = ctx.saved_tensors
        return Pick.apply(grad, ctx.axes, *indices), None, None, *[None] * len(indices)


class Put(Function):
    """x with values written, or added, where `Pick` would read; of equal places the last stays."""

    @staticmethod
    def forward(
        ctx: Any, x: NDArray, values: NDArray, axes: Axes, accumulate: bool, *indices: NDArray
    ) -> Any:
        ctx.axes, ctx.accumulate, ctx.dtype = axes, accumulate, values.dtype
        ctx.save_for_backward(*indices)
        return _put(x, values, axes, indices, "add" if accumulate else "set")

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        indices = ctx.saved_tensors
        kept = read = None
        if ctx.needs_input_grad[0]:
            kept = grad
            if not ctx.accumulate:
                zero = nd.zeros((), grad.dtype, grad.device)
                kept = Put.apply(grad, zero, ctx.axes, False, *indices)
        if ctx.needs_input_grad[1]:
            read = Pick.apply(grad, ctx.axes, *indices)
        return kept, read, None, None, *[None] * len(indices)


def _put(x: NDArray, values: NDArray, axes: Axes, indices: Sequence[NDArray], mode: str) -> NDArray:
    places, at = _located(x, axes, indices)
    picked = places[0].shape
    rest = [extent for d, extent in enumerate(x.shape) if d not in axes]
    new = _fitted(values, (*rest[:at], *picked, *rest[at:]), x)
    new = _moved(new, at, axes[0], len(picked))
    return wrap(combined(x.value, places, new, axes, mode))


def _located(x: NDArray, axes: Axes, indices: Sequence[NDArray]) -> tuple[list[Value], int]:
    """Positions of one shape, and where among the other dimensions theirs go."""
    places = [
        positions("indexing", index, x.shape[axis], axis, x.device)
        for axis, index in zip(axes, indices, strict=True)
    ]
    shape = broadcast_shapes("indexing", *(p.shape for p in places))
    # What has no dimensions is an integer to PyTorch: it takes no part in the rule.
    single = [axis for axis, p in zip(axes, places, strict=True) if not p.shape]
    wide = [axis - sum(s < axis for s in single) for axis in axes if axis not in single]
    adjacent = wide and wide[-1] - wide[0] == len(wide) - 1
    return [primitive.broadcast(p, shape) for p in places], wide[0] if adjacent else 0


def _moved(x: Value, source: int, target: int, count: int) -> Value:
    """`count` neighbouring dimensions at another place among the others."""
    block = list(range(source, source + count))
    rest = [d for d in range(len(x.shape)) if d not in block]
    return primitive.permute(x, [*rest[:target], *block, *rest[target:]])


def _fitted(values: NDArray, shape: tuple[Any, ...], x: NDArray) -> Value:
    """Values in the type of `x`, broadcast to `shape`; leading ones may be missing or too many."""
    value = primitive.cast(values.value, x.dtype)
    missing = len(value.shape) - len(shape)
    if missing > 0 and all(s == 1 for s in value.shape[:missing]):
        value = primitive.reshape(value, value.shape[missing:])
    if broadcast_shapes("assignment", shape, value.shape) != shape:
        raise ValueError(
            f"assignment: values of shape {tuple(values.shape)} do not fit into the indexed shape "
            f"{tuple(shape)}"
        )
    return primitive.broadcast(value, shape)


# ---- x[...]


class Parsed(NamedTuple):
    """An index taken apart: a view of integers and slices, and arrays on dimensions of it."""

    view: Any
    arrays: tuple[tuple[int, NDArray], ...]  # each with the first dimension it is for
    key: tuple[Any, ...]  # of the view

    def located(self) -> tuple[Axes, list[NDArray]]:
        """The arrays as positions, one for each dimension they are for."""
        axes: list[int] = []
        indices: list[NDArray] = []
        for axis, array in self.arrays:
            held = nd.nonzero(array, as_tuple=True) if array.dtype is bool_ else (array,)
            axes += range(axis, axis + len(held))
            indices += held
        return tuple(axes), indices


def _is_tuple(key: Any) -> bool:
    """Whether a list is one index for each of several dimensions: it is if it holds lists."""
    return type(key) is list and any(
        x is None or x is Ellipsis or isinstance(x, list | tuple | slice) or is_tensor(x)
        for x in key
    )


def parse(input: Any, key: Any) -> Parsed:
    """Take an index apart, and apply its first half to `input`."""
    keys = list(key) if isinstance(key, tuple) or _is_tuple(key) else [key]
    keys = [_as_key(k) for k in keys]
    rank = len(input.shape)
    named = sum(_taken(k) for k in keys)
    if named > rank:
        raise IndexError(f"too many indices: {named} for a tensor of {rank} dimensions")
    dots = [d for d, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can have a single Ellipsis ('...')")
    at = dots[0] if dots else len(keys)
    keys[at : at + 1] = [slice(None)] * (rank - named)
    plain_key: list[Any] = []  # what the array level makes a view of
    arrays: list[tuple[int, NDArray]] = []
    axis = new = 0  # of the input, and of the view
    for k in keys:
        if isinstance(k, bool):
            # A mask without dimensions is one of a dimension of extent 1 that is new.
            plain_key.append(None)
            arrays.append((new, nd.zeros(int(k), "int64", input.device)))
            new += 1
        elif isinstance(k, NDArray) and k.dtype is bool_ and not k.ndim:
            plain_key.append(None)
            arrays.append((new, k.reshape(1)))
            new += 1
        elif isinstance(k, NDArray):
            taken = _taken(k)
            if k.dtype is bool_:
                _require_fit(k, input.shape[axis : axis + taken])
            arrays.append((new, k))
            plain_key += [slice(None)] * taken
            axis += taken
            new += taken
        else:
            plain_key.append(_checked(k))
            axis += k is not None
            new += not isinstance(k, int | Size)
    seen = tuple(plain_key)
    view = view_through(input, steps_of(NDArray.__getitem__, input, seen))
    return Parsed(view, tuple(arrays), seen)


def _as_key(k: Any) -> Any:
    """One index as a bool, an int, a slice, None, Ellipsis or an array."""
    if is_tensor(k):
        k = k.array
    if isinstance(k, slice):
        return slice(*(_bound(b) for b in (k.start, k.stop, k.step)))
    if isinstance(k, list | range | tuple):
        k = _stacked(list(k))
    if isinstance(k, np.ndarray):
        k = nd.asarray(k)
    if isinstance(k, NDArray):
        if k.dtype is uint8:  # a mask from before there was bool
            k = k.astype(bool_)
        if not (k.dtype.is_integer or k.dtype is bool_):
            raise IndexError(f"tensors used as indices must be integers or bool, not {k.dtype}")
        return k
    if k is None or k is Ellipsis or isinstance(k, bool | Size):
        return k
    if isinstance(k, np.bool_):
        return bool(k)
    try:
        return as_int(k)
    except TypeError:
        raise IndexError(
            f"indices are integers, slices, None, ..., bools or tensors, not {type(k).__name__}"
        ) from None


def _stacked(listed: list[Any]) -> Any:
    """A list as an array, with the numbers that tensors in it hold."""
    if any(is_tensor(x) for x in listed):
        listed = [as_int(x) if is_tensor(x) else x for x in listed]
    found = np.asarray(listed)
    return found.astype(np.int64) if found.size == 0 else found


def _bound(b: Any) -> Any:
    return as_int(b) if is_tensor(b) or isinstance(b, NDArray) else b


def _taken(k: Any) -> int:
    """How many dimensions an index takes."""
    if k is None or k is Ellipsis or isinstance(k, bool):
        return 0
    return k.ndim if isinstance(k, NDArray) and k.dtype is bool_ else 1


def _require_fit(mask: NDArray, shape: Any) -> None:
    if mask.shape != tuple(shape):
        raise IndexError(
            f"a mask of shape {tuple(mask.shape)} does not fit dimensions of {tuple(shape)}"
        )


def _checked(k: Any) -> Any:
    if isinstance(k, slice) and isinstance(k.step, int) and k.step <= 0:
        raise ValueError(f"a slice's step must be positive, not {k.step}; use flip to reverse")
    return k


def getitem(input: Any, key: Any) -> Any:
    """``input[key]``"""
    if _is_plain(key):
        return View.apply(input, steps_of(NDArray.__getitem__, input, key))
    parsed = parse(input, key)
    if not parsed.arrays:  # a view is a tensor of its own, even if it is of everything
        return View.apply(input, ()) if parsed.view is input else parsed.view
    axes, indices = parsed.located()
    return Pick.apply(parsed.view, axes, *indices)


def _is_plain(key: Any) -> bool:
    """Whether an index is one that most are, of integers and slices: those need no parsing."""
    for k in key if type(key) is tuple else (key,):
        kind = type(k)
        if kind is slice:
            step = k.step
            if step is not None and (type(step) is not int or step <= 0):
                return False
            if type(k.start) not in _EDGES or type(k.stop) not in _EDGES:
                return False
        elif kind is not int and k is not None and k is not Ellipsis:
            return False
    return True


_EDGES = (int, type(None))


@method(in_place=True)
def index_put(input: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """`input` with values written, or added, at ``input[indices]``."""
    key = tuple(slice(None) if k is None else k for k in indices)
    given = values if is_tensor(values) else nd.asarray(values, device=input.device)
    if given.dtype is not input.dtype and is_tensor(values):
        raise TypeError(f"index_put: {given.dtype} values for a tensor of {input.dtype}")
    return put_at(parse(input, key), given, accumulate)


def put_at(parsed: Parsed, values: Any, accumulate: bool = False) -> Any:
    """The view of an index with values written, or added, at the positions of its arrays."""
    view = parsed.view
    if len(parsed.arrays) == 1 and not accumulate:
        axis, mask = parsed.arrays[0]
        spread = _spread(view, axis, mask, values) if mask.dtype is bool_ else None
        if spread is not None:
            behind = [1] * (len(view.shape) - axis - mask.ndim)
            return where(mask.reshape(*mask.shape, *behind), cast(spread, view.dtype), view)
    axes, indices = parsed.located()
    return Put.apply(view, values, axes, accumulate, *indices)


def _spread(view: Any, axis: int, mask: NDArray, values: Any) -> Any:
    """Values for all that a mask may select, if they are the same ones for each: it is a choice."""
    shape = tuple(values.shape)
    behind = len(view.shape) - axis - mask.ndim
    before = len(shape) - behind - 1
    if before >= 0:
        if shape[before] != 1:
            return None
        shape = (*shape[:before], *[1] * mask.ndim, *shape[before + 1 :])
    if len(shape) > len(view.shape):
        return None
    # Also if nothing is selected values must fit.
    return expand(reshape(values, shape), view.shape)


# ---- along one dimension


def _vector(name: str, index: Any) -> Any:
    if len(index.shape) > 1:
        raise IndexError(f"{name}: positions are a vector, not of shape {tuple(index.shape)}")
    return reshape(index, (1,)) if len(index.shape) == 0 else index


@method
def index_select(input: Any, dim: int, index: Any) -> Any:
    """The parts at the positions of a vector along a dimension."""
    if not input.shape:
        return reshape(index_select(reshape(input, (1,)), dim, index), ())
    axis = normal_dim("index_select", dim, len(input.shape))
    places = _vector("index_select", index)
    places = plain(lambda i: counted("index_select", i, input.shape[axis], axis), places)
    return Pick.apply(input, (axis,), places)


@method
def take(input: Any, index: Any) -> Any:
    """The elements at positions in the flattened tensor."""
    return Pick.apply(ravel(input), (0,), index)


def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """The rows of a table at the positions in `input`; row `padding_idx` gets no gradient."""
    if padding_idx is None:
        places = plain(lambda i: counted("embedding", i, weight.shape[0], 0), input)
        return Pick.apply(weight, (0,), places)
    rows = weight.shape[0]
    skipped = padding_idx + rows if padding_idx < 0 else padding_idx
    if not 0 <= skipped < rows:
        raise ValueError(f"embedding: padding_idx {padding_idx} is not one of the {rows} rows")
    places = plain(lambda i: counted("embedding", i, rows, 0), input)
    return _embed(weight, places, skipped, weight.shape)


def _embed_gradient(grad: Any, index: Any, skipped: int, shape: Any) -> Any:
    from genesis.functional.masked_and_nonzero import masked_fill

    behind = [1] * (len(shape) - 1)
    padded = plain(lambda i: (i == skipped).reshape(*i.shape, *behind), index)
    return Spread.apply(masked_fill(grad, padded, 0), shape, (0,), index)


@with_gradient(_embed_gradient)
def _embed(weight: NDArray, index: NDArray, skipped: int, shape: Any) -> Any:
    """Rows of a table of a shape, one of which learns nothing."""
    return nd.embedding(weight, index)


def _require_kind(name: str, input: Any, values: Any) -> None:
    """Refuse values that would lose their fractions, or their imaginary parts, in the input."""
    if kind_rank(values.dtype) > kind_rank(input.dtype):
        raise TypeError(f"{name}: {values.dtype} values do not fit into {input.dtype}")


def _placed(name: str, input: Any, dim: int, index: Any, values: Any, accumulate: bool) -> Any:
    """Values put at the positions of a vector along a dimension."""
    _require_kind(name, input, values)
    places = _vector(name, index)
    if not input.shape:
        return reshape(_placed(name, reshape(input, (1,)), 0, places, values, accumulate), ())
    axis = normal_dim(name, dim, len(input.shape))
    places = plain(lambda i: counted(name, i, input.shape[axis], axis), places)
    shape = (*input.shape[:axis], places.shape[0], *input.shape[axis + 1 :])
    if values.shape and tuple(values.shape) != shape:
        raise ValueError(
            f"{name}: positions {tuple(places.shape)} along dim {axis} of {tuple(input.shape)} "
            f"need values of shape {shape}, not {tuple(values.shape)}"
        )
    return Put.apply(input, values, (axis,), accumulate, places)


@method(in_place=True)
def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    """`input` with ``alpha * source`` added at positions along a dimension."""
    scaled = source if alpha == 1 else mul(source, alpha)
    return _placed("index_add", input, dim, index, scaled, True)


@method(in_place=True)
def index_copy(input: Any, dim: int, index: Any, source: Any) -> Any:
    """`input` with parts replaced at positions along a dimension."""
    return _placed("index_copy", input, dim, index, source, False)


@method(in_place=True)
def index_fill(input: Any, dim: int, index: Any, value: Any) -> Any:
    """`input` with one number at positions along a dimension."""
    given = value if hasattr(value, "shape") else nd.full((), value, input.dtype, input.device)
    if given.shape:
        raise ValueError(f"index_fill: expected one number, got shape {tuple(given.shape)}")
    rank = len(input.shape)
    axis = normal_dim("index_fill", dim, max(rank, 1))
    extent = input.shape[axis] if rank else 1

    def chosen(places: NDArray) -> NDArray:
        found = nd.index_fill(nd.zeros(extent, bool_, input.device), places, True)
        return found.reshape(tuple(extent if d == axis else 1 for d in range(rank)))

    return where(plain(chosen, _vector("index_fill", index)), cast(given, input.dtype), input)


@method(in_place=True)
def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """`input` with values written, or added, at positions in the flattened tensor."""
    if product(index.shape) != product(source.shape):
        raise ValueError(
            f"put: {tuple(source.shape)} values for positions of shape {tuple(index.shape)}"
        )
    values = flatten(source)
    changed = Put.apply(ravel(input), values, (0,), accumulate, flatten(index))
    return reshape(changed, input.shape)


@method
def select_scatter(input: Any, src: Any, dim: int, index: int) -> Any:
    """A copy of `input` with the part at one position of a dimension replaced."""
    return _replaced("select_scatter", input, src, steps_of(nd.select, input, index, dim))


@method
def slice_scatter(
    input: Any,
    src: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """A copy of `input` with a slice of a dimension replaced."""
    axis = normal_dim("slice_scatter", dim, len(input.shape))
    key = (*[slice(None)] * axis, _checked(slice(start, end, step)))
    return _replaced("slice_scatter", input, src, steps_of(NDArray.__getitem__, input, key))


def _replaced(name: str, input: Any, src: Any, steps: Any) -> Any:
    shape = steps[-1].shape if steps else input.shape
    if tuple(src.shape) != tuple(shape):
        raise ValueError(f"{name}: a part of shape {shape} replaced by one of {tuple(src.shape)}")
    return Overwrite.apply(input, cast(expand(src, shape), input.dtype), steps)


def unravel_index(indices: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """Positions along each dimension of `shape` from positions in the flattened tensor."""
    found: tuple[Any, ...] = plain(nd.unravel_index, indices, tuple(shape))
    return found


def one_hot(input: Any, num_classes: int = -1) -> Any:
    """1 at the position each index names, 0 elsewhere, along a new last dimension."""
    if num_classes == -1 and 0 in input.shape:
        raise ValueError("one_hot: no elements to tell the number of classes by; give num_classes")
    return plain(nd.one_hot, input, None if num_classes == -1 else num_classes)


__all__ = [
    "index_add", "index_copy", "index_fill", "index_put", "index_select", "one_hot", "put",
    "select_scatter", "slice_scatter", "take", "unravel_index",
]  # fmt: skip
