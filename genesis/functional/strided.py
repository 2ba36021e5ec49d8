"""Windows and strides: results in which one element may appear several times."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

from genesis import ndarray as nd
from genesis.functional.error_messages import normal_dim
from genesis.functional.function import is_tensor, plain, with_gradient
from genesis.functional.movement import (
    expand,
    is_contiguous,
    moved,
    movedim,
    narrow,
    offset_of,
    permute,
    ravel,
    reshape,
    squeeze,
    unflatten,
    unsqueeze,
    view_through,
)
from genesis.functional.registry import method
from genesis.functional.scattering import scatter
from genesis.ir import ops
from genesis.ir.size import product
from genesis.ndarray import NDArray
from genesis.ndarray.core.storage import Steps, ViewStep
from genesis.ndarray.core.value import CaptureError, thread


def _windows(x: Any, axis: int, size: int, step: int) -> Any:
    """Sliding windows along a dimension, their elements along a new last one."""
    return moved(nd.windows, x, axis, size, step)


def _cut_again(grad: Any, axis: int, length: int, step: int, size: int) -> Any:
    return _windows(grad, axis, size, step)


@with_gradient(_cut_again)
def overlapped(x: Any, axis: int, length: int, step: int, size: int) -> Any:
    """Windows of a size added up where they came from: the transpose of cutting them."""
    return nd.overlap_add(x, axis, length, step)


@method
def unfold(input: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of `size`, `step` apart along a dimension; their elements are the last dimension.

    A view, which can be written where windows do not overlap.
    """
    if not input.shape:
        return squeeze(unfold(unsqueeze(input, 0), dimension, size, step), 0)
    axis = normal_dim("unfold", dimension, len(input.shape))
    if size == 0 and step > 0:  # nothing begins at every step
        starts = narrow(input, axis, 0, 0)
        count = input.shape[axis] // step + 1
        wide = (*input.shape[:axis], count, *input.shape[axis + 1 :], 0)
        return reshape(starts, wide)
    if not (0 < size <= input.shape[axis]) or step <= 0:
        raise RuntimeError(
            f"unfold: windows of size {size} with step {step} do not fit dim {axis} of size "
            f"{input.shape[axis]}"
        )
    count = (input.shape[axis] - size) // step + 1
    step = size if count == 1 else step
    if step < size or not isinstance(count, int) or count * step > input.shape[axis]:
        return _windows(input, axis, size, step)
    cut = unflatten(narrow(input, axis, 0, count * step), axis, (count, step))
    return movedim(narrow(cut, axis + 1, 0, size), axis + 1, -1)


@method(in_place="view")
def as_strided(
    input: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Element ``offset + i*stride[0] + j*stride[1] + ..`` of the storage at (i, j, ..).

    A view; it can be written where slices, reshapes and permutations can express it.
    """
    base: Any
    if is_tensor(input):
        base = input if input.base is None else input.base
        array, first = input.array, offset_of(base.array)
    else:
        array, base, first = input, NDArray(input.storage), 0
    reaches = is_tensor(input) and base is input and array.steps and thread.recorder is not None
    if reaches and not (
        product(array.shape) == product(array.storage.actual.shape) and is_contiguous(input)
    ):
        raise CaptureError(
            "as_strided: the tensor is a view that is an argument of the function, and what else "
            "its storage holds is not; pass the whole tensor, and take the view inside"
        )
    if any(step.dtype is not None for step in array.steps):
        raise RuntimeError(
            f"as_strided: the storage of a {array.dtype} view holds {base.dtype}; use .clone()"
        )
    sizes, strides = [as_int(s) for s in size], [as_int(s) for s in stride]
    offset = offset_of(array) - first if storage_offset is None else as_int(storage_offset)
    flat = ravel(base)
    if len(sizes) != len(strides) or min([offset, *sizes, *strides]) < 0:
        raise ValueError(f"as_strided: size {sizes}, stride {strides} and offset {offset}")
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if 0 not in sizes and last >= flat.shape[0]:
        raise RuntimeError(
            f"as_strided: size {tuple(sizes)}, stride {tuple(strides)} and offset {offset} reach "
            f"element {last} of a storage of {flat.shape[0]}"
        )
    if 0 in sizes:
        return reshape(narrow(flat, 0, 0, 0), sizes)
    moving = [d for d in range(len(sizes)) if strides[d] and sizes[d] > 1]
    order = sorted(moving, key=lambda d: -strides[d])
    ways = flat.shape[0], [sizes[d] for d in order], [strides[d] for d in order], offset
    steps = _nested(*ways) or _windowed(*ways)
    found = permute(view_through(flat, steps), [order.index(d) for d in sorted(order)])
    thin = [sizes[d] if d in moving else 1 for d in range(len(sizes))]
    return expand(reshape(found, thin), sizes)


@method
def as_strided_scatter(
    input: Any,
    src: Any,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Any:
    """A copy of `input` with `src` where `as_strided` would read, of a tensor of its own."""
    count = product(input.shape)
    numbers = nd.arange(count, device=input.device)
    places = ravel(plain(as_strided, numbers, size, stride, storage_offset or 0))
    flat = scatter(ravel(input), 0, places, ravel(expand(src, tuple(size))))
    return reshape(flat, input.shape)


def _nested(length: int, sizes: list[int], strides: list[int], offset: int) -> Steps | None:
    """Steps that read with decreasing strides: rows, then what is inside each of them."""
    shape: tuple[int, ...] = (length,)
    steps: list[ViewStep] = []
    for k, (n, s) in enumerate(zip(sizes, strides, strict=True)):
        inner = sum((m - 1) * t for m, t in zip(sizes[k + 1 :], strides[k + 1 :], strict=True))
        # n rows of s elements, all within what there is; each begins where it may.
        start = max(0, min(offset, shape[-1] - n * s))
        within = offset - start
        if inner + within >= s or start + n * s > shape[-1]:
            last = k == len(sizes) - 1
            if not last or offset + (n - 1) * s >= shape[-1]:
                return None
            steps.append(_cut(shape, offset, n, s))
            return tuple(steps)
        steps.append(_cut(shape, start, n * s, 1))
        shape = (*shape[:-1], n, s)
        steps.append(ViewStep(ops.RESHAPE, None, shape))
        offset = within
    steps.append(_cut(shape, offset, 1, 1))
    steps.append(ViewStep(ops.RESHAPE, None, shape[:-1]))
    return tuple(steps)


def _windowed(length: int, sizes: list[int], strides: list[int], offset: int) -> Steps:
    """Steps that read windows of windows: rows may reach into each other."""
    rest = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    steps = [_cut((length,), offset, rest, 1)]
    shape: tuple[int, ...] = (rest,)
    for k, (n, s) in enumerate(zip(sizes[:-1], strides[:-1], strict=True)):
        rest -= (n - 1) * s
        shape = (*shape[:-1], n, rest)
        steps.append(ViewStep(ops.WINDOW, (k, s, 1), shape))
    steps.append(_cut(shape, 0, sizes[-1], strides[-1]))
    return tuple(steps)


def _cut(shape: tuple[int, ...], start: int, length: int, step: int) -> ViewStep:
    places = ((0, 1),) * (len(shape) - 1) + ((start, step),)
    return ViewStep(ops.SLICE, places, (*shape[:-1], length))


__all__ = ["as_strided", "as_strided_scatter"]
