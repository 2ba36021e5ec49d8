"""Joining, repeating and rearranging: new tensors made of the elements of others.

Three rules carry the gradients: `cat` cuts its gradient into pieces, a flip flips it back, and
repeating is expanding and reshaping. Everything else is composed of those.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import combinations as chosen
from itertools import combinations_with_replacement as chosen_again
from operator import index as as_int
from typing import Any

from genesis import ndarray as nd
from genesis.functional.error_messages import (
    broadcast_shapes,
    called,
    normal_dim,
    normal_dims,
    require_same_dtype,
)
from genesis.functional.function import Function, is_tensor, plain, with_gradient
from genesis.functional.indexing import index_select
from genesis.functional.movement import (
    clone,
    expand,
    flatten,
    narrow,
    ravel,
    reshape,
    transpose,
    unsqueeze,
)
from genesis.functional.registry import method
from genesis.functional.zero_gradient import unrelated
from genesis.ndarray.ops.movement import shifted

# ---- joining


class Cat(Function):
    """Arrays joined along a dimension they have."""

    @staticmethod
    def forward(ctx: Any, axis: int, *arrays: Any) -> Any:
        ctx.axis, ctx.sizes = axis, [x.shape[axis] for x in arrays]
        return nd.concat(arrays, axis)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        pieces: list[Any] = []
        start: Any = 0
        for size, wanted in zip(ctx.sizes, ctx.needs_input_grad[1:], strict=True):
            pieces.append(narrow(grad, ctx.axis, start, size) if wanted else None)
            start = start + size
        return None, *pieces


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors joined along a dimension they have."""
    listed = list(tensors)
    if not listed:
        raise ValueError(f"{called('cat')}: expected a non-empty list of tensors")
    # An empty vector joins with anything, as it always has in PyTorch.
    kept = [x for x in listed if tuple(x.shape) != (0,)] or listed[:1]
    if any(len(x.shape) == 0 for x in kept):
        raise RuntimeError(
            f"{called('cat')}: tensors without dimensions cannot be joined; use stack"
        )
    return Cat.apply(normal_dim("cat", dim, len(kept[0].shape)), *kept)


concat = concatenate = cat


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors of one shape joined along a new dimension."""
    listed = list(tensors)
    if not listed:
        raise ValueError(f"{called('stack')}: expected a non-empty list of tensors")
    if any(x.shape != listed[0].shape for x in listed):
        shapes = ", ".join(str(tuple(x.shape)) for x in listed)
        raise ValueError(f"stack: expected tensors of one shape, got {shapes}")
    axis = normal_dim("stack", dim, len(listed[0].shape) + 1)
    return Cat.apply(axis, *(unsqueeze(x, axis) for x in listed))


def hstack(tensors: Sequence[Any]) -> Any:
    """Tensors side by side: along the second dimension, vectors along their only one."""
    listed = [atleast_1d(x) for x in tensors]
    return cat(listed, 0 if listed and len(listed[0].shape) == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Any:
    """Tensors on top of each other, vectors as rows."""
    return cat([atleast_2d(x) for x in tensors], 0)


row_stack = vstack


def dstack(tensors: Sequence[Any]) -> Any:
    """Tensors behind each other, along the third dimension."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Any]) -> Any:
    """Tensors side by side, vectors as columns."""
    return cat([x if len(x.shape) > 1 else reshape(x, (-1, 1)) for x in tensors], 1)


def block_diag(*tensors: Any) -> Any:
    """Matrices along the diagonal of a larger one, zeros elsewhere."""
    blocks = [atleast_2d(x) for x in tensors]
    if any(len(x.shape) != 2 for x in blocks):
        raise ValueError("block_diag: expected tensors of at most 2 dimensions")
    width = builtins.sum(as_int(x.shape[1]) for x in blocks)
    rows, left = [], 0
    for x in blocks:
        right = width - left - x.shape[1]
        edges = [nd.zeros((x.shape[0], n), x.dtype, x.device) for n in (left, right)]
        rows.append(Cat.apply(1, edges[0], x, edges[1]))
        left += x.shape[1]
    return Cat.apply(0, *rows)


# ---- repeating


@method
def repeat(input: Any, *repeats: Any) -> Any:
    """The whole tensor repeated along every dimension; more numbers add leading dimensions."""
    counts = tuple(repeats[0]) if len(repeats) == 1 and not isinstance(repeats[0], int) else repeats
    missing = len(counts) - len(input.shape)
    if missing < 0:
        raise ValueError(f"repeat: {counts} is too short for the shape {tuple(input.shape)}")
    shape = (1,) * missing + tuple(input.shape)
    thin = tuple(s for size in shape for s in (1, size))
    wide = tuple(s for pair in zip(counts, shape, strict=True) for s in pair)
    whole = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return clone(reshape(expand(reshape(input, thin), wide), whole))


@method
def tile(input: Any, *dims: Any) -> Any:
    """`repeat`, where missing numbers are 1."""
    counts = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return repeat(input, (1,) * (len(input.shape) - len(counts)) + counts)


@method
def repeat_interleave(
    input: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    """Every element repeated next to itself: as often for each, or for each its own number.

    Numbers alone are taken for `repeats`, and what is repeated are their positions.
    `output_size` is how many there are then; where `repeats` is a tensor, giving it avoids waiting
    for its contents, and under jit it must be given.
    """
    if repeats is None:
        if len(input.shape) != 1:
            raise ValueError(f"repeat_interleave: repeats of shape {tuple(input.shape)}, no vector")
        places = plain(lambda x: nd.arange(x.shape[0], device=x.device), input)
        return repeat_interleave(places, input, 0, output_size=output_size)
    if dim is None:
        input, dim = ravel(input), 0
    axis = normal_dim("repeat_interleave", dim, len(input.shape))
    shape = input.shape
    if isinstance(repeats, int):
        if repeats < 0:
            raise ValueError(f"repeat_interleave: repeats {repeats} are negative")
        wide = (*shape[: axis + 1], repeats, *shape[axis + 1 :])
        long = (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :])
        return clone(reshape(expand(unsqueeze(input, axis + 1), wide), long))
    counts = repeats.array if is_tensor(repeats) else nd.asarray(repeats)
    if counts.ndim > 1 or (counts.ndim == 1 and counts.shape[0] not in (1, shape[axis])):
        raise ValueError(
            f"repeat_interleave: repeats of shape {tuple(counts.shape)} do not fit the "
            f"{shape[axis]} elements along dim {axis}"
        )
    counts = nd.demand(counts, lambda n: n < 0, "repeat_interleave: repeats are negative")
    ends = nd.cumsum(nd.expand(counts.reshape(-1), (shape[axis],)), 0)
    if output_size is None:
        output_size = int(ends[-1].item()) if shape[axis] else 0
    place = nd.searchsorted(ends, nd.arange(output_size, device=ends.device), right=True)
    return index_select(input, axis, place)


# ---- turning and shifting


def _flipped_back(grad: Any, axes: tuple[int, ...]) -> Any:
    return _flip(grad, axes)


@with_gradient(_flipped_back)
def _flip(x: Any, axes: tuple[int, ...]) -> Any:
    return nd.flip(x, axes)


@method
def flip(input: Any, dims: Any = (), *more: int) -> Any:
    """Reversed along dimensions, which are listed or given one by one."""
    listed = (dims, *more) if more else dims
    axes = normal_dims("flip", listed, len(input.shape) or 1)
    return _flip(input, axes if input.shape else ())


@method
def fliplr(input: Any) -> Any:
    """Left and right exchanged: reversed along the second dimension."""
    if len(input.shape) < 2:
        raise ValueError(f"fliplr: needs at least 2 dimensions, got shape {tuple(input.shape)}")
    return flip(input, 1)


@method
def flipud(input: Any) -> Any:
    """Up and down exchanged: reversed along the first dimension."""
    if len(input.shape) < 1:
        raise ValueError("flipud: needs at least 1 dimension")
    return flip(input, 0)


@method
def rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """Turned by `k` right angles, from the first to the second of two dimensions."""
    first, second = (normal_dim("rot90", d, len(input.shape)) for d in dims)
    if first == second:
        raise ValueError(f"rot90: dims {tuple(dims)} are the same dimension")
    if k % 4 == 0:
        return _flip(input, ())
    if k % 4 == 2:
        return flip(input, (first, second))
    turned = flip(input, second if k % 4 == 1 else first)
    return transpose(turned, first, second)


@method
def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Shifted along dimensions, or as one row; what leaves at one end enters at the other."""
    if dims is None or dims == ():
        return reshape(roll(ravel(input), shifts, 0), input.shape)
    pairs = ([shifts], [dims]) if isinstance(dims, int) else (shifts, dims)
    by, along = ([p] if isinstance(p, int) else list(p) for p in pairs)
    if len(by) != len(along):
        raise ValueError(f"roll: {len(by)} shifts for {len(along)} dimensions")
    for shift, dim in zip(by, along, strict=True):
        axis = normal_dim("roll", dim, len(input.shape))
        size = input.shape[axis]
        cut = shifted(-shift, size)
        pieces = narrow(input, axis, cut, size - cut), narrow(input, axis, 0, cut)
        input = Cat.apply(axis, *pieces)
    return input


# ---- shapes of several


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Tensors expanded to the shape they broadcast to."""
    shape = broadcast_shapes("broadcast_tensors", *(tuple(x.shape) for x in tensors))
    return tuple(expand(x, shape) for x in tensors)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """Each vector along a dimension of its own, repeated over the others."""
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing is 'ij' or 'xy', not {indexing!r}")
    vectors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    if any(len(v.shape) > 1 for v in vectors):
        shapes = ", ".join(str(tuple(v.shape)) for v in vectors)
        raise ValueError(f"meshgrid: expected vectors, got {shapes}")
    require_same_dtype("meshgrid", *vectors)
    flat = [ravel(v) for v in vectors]
    shape = tuple(v.shape[0] for v in flat)
    thin = [tuple(n if k == d else 1 for k in range(len(flat))) for d, n in enumerate(shape)]
    grids = [expand(reshape(v, s), shape) for v, s in zip(flat, thin, strict=True)]
    if indexing == "xy" and len(grids) > 1:
        grids = [transpose(g, 0, 1) for g in grids]
    return tuple(grids)


def cartesian_prod(*tensors: Any) -> Any:
    """All ways to take one element of every vector, a row for each."""
    if len(tensors) == 1:
        return flatten(tensors[0])
    return stack([ravel(g) for g in meshgrid(*tensors)], -1)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """All ways to take `r` elements of a vector, a row for each."""
    if len(input.shape) != 1:
        raise ValueError(f"combinations: expected a vector, got shape {tuple(input.shape)}")
    pick = chosen_again if with_replacement else chosen
    rows = list(pick(range(as_int(input.shape[0])), r))
    if not rows or r == 0:
        shape = (0,) if r == 0 else (0, r)
        return unrelated(input, plain(lambda x: nd.zeros(shape, x.dtype, x.device), input))
    places = nd.array([place for row in rows for place in row], device=input.device)
    return reshape(index_select(input, 0, places), (len(rows), r))


def _each(function: Any, tensors: tuple[Any, ...]) -> Any:
    """A function of one tensor on each of several."""
    if len(tensors) == 1 and not isinstance(tensors[0], tuple | list):
        return function(tensors[0])
    listed = tensors[0] if len(tensors) == 1 else tensors
    return tuple(function(x) for x in listed)


def atleast_1d(*tensors: Any) -> Any:
    """With a dimension where there is none."""
    return _each(lambda x: x if x.shape else reshape(x, (1,)), tensors)


def atleast_2d(*tensors: Any) -> Any:
    """With leading dimensions of extent 1 up to two."""
    return _each(lambda x: x if len(x.shape) > 1 else reshape(x, (1, *(x.shape or (1,)))), tensors)


def atleast_3d(*tensors: Any) -> Any:
    """With dimensions of extent 1 up to three: a vector becomes (1, n, 1), a matrix (n, m, 1)."""

    def deep(x: Any) -> Any:
        rank = len(x.shape)
        return x if rank > 2 else unsqueeze(x if rank == 2 else atleast_2d(x), -1)

    return _each(deep, tensors)


__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_tensors", "cartesian_prod",
    "cat", "column_stack", "combinations", "concat", "concatenate", "dstack", "flip", "fliplr",
    "flipud", "hstack", "meshgrid", "repeat", "repeat_interleave", "roll", "rot90", "row_stack",
    "stack", "tile", "vstack",
]  # fmt: skip
