"""Sliding windows over spatial axes, and their adjoint: overlapping windows added up.

Spatial axes are the trailing ones, as in PyTorch: ``(batch, channels, *spatial)``. Looking through
windows is index arithmetic. So is the way back: position ``h`` of an axis is covered by the window
``h // stride`` and a few before it, and which element of each covers it follows from
``h % stride``. `fold` therefore is one sum over those few windows, and no scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import NamedTuple

from genesis.ir.dtype import index as index_dtype
from genesis.ir.size import Dim, as_size, product, same
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops import movement
from genesis.ndarray.ops.elementwise import broadcast_shapes
from genesis.ndarray.ops.movement import flip, moveaxis, narrow, pad, permute, reshape

PerAxis = int | Sequence[int]  # one number for all spatial axes, or one for each
Edges = Sequence[tuple[Dim, Dim]]  # what is added before and after each axis


class Window(NamedTuple):
    """How windows lie over spatial axes: numbers for each of them."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The padding, before and after each axis."""
        return [(p, p) for p in self.padding]


def unfold(
    x: NDArray,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> NDArray:
    """The windows of ``(n, channels, *spatial)`` as columns ``(n, channels*window, count)``.

    One number as `kernel_size` means two spatial axes.

    >>> from genesis import ndarray as nd
    >>> unfold(nd.arange(4).reshape(1, 1, 4), kernel_size=(2,)).tolist()
    [[[0, 1, 2], [1, 2, 3]]]
    """
    rank = 2 if isinstance(kernel_size, int) else len(kernel_size)
    x, single = batched("unfold", x, rank)
    window = parameters("unfold", rank, kernel_size, stride, dilation, padding)
    seen = slide(pad_spatial(x, window.edges), window)
    seen = permute(seen, (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)))
    count = product(seen.shape[2 + rank :])
    columns = reshape(seen, (x.shape[0], x.shape[1] * product(window.size), count))
    return reshape(columns, columns.shape[1:]) if single else columns


def fold(
    x: NDArray,
    output_size: int | Sequence[Dim],
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> NDArray:
    """Columns ``(n, channels*window, count)`` added up where `unfold` would have read them.

    >>> from genesis import ndarray as nd
    >>> fold(nd.ones((1, 2, 3)), output_size=(4,), kernel_size=(2,)).tolist()
    [[[1.0, 2.0, 2.0, 1.0]]]
    """
    rank = next((len(p) for p in (output_size, kernel_size) if not isinstance(p, int)), 2)
    window = parameters("fold", rank, kernel_size, stride, dilation, padding)
    length: tuple[Dim, ...]
    if isinstance(output_size, int):
        length = (output_size,) * rank
    else:
        length = tuple(map(as_size, output_size))
    if len(length) != rank:
        raise ValueError(f"fold: output_size {length} is for {len(length)} axes, not {rank}")
    counts = window_counts("fold", length, window, window.edges)
    each = prod(window.size)
    fits = x.ndim in (2, 3) and same(x.shape[-1], product(counts))
    if not fits or not same(x.shape[-2] % each, 0):
        raise ValueError(
            f"fold: columns of shape {x.shape} do not fit output {length}, windows of "
            f"{window.size}: need (n, channels*{each}, {product(counts)})"
        )
    lead = (*x.shape[:-2], x.shape[-2] // each)
    seen = reshape(x, (*lead, *window.size, *counts))
    first = len(lead)
    order = (*range(first + rank, first + 2 * rank), *range(first, first + rank))
    seen = permute(seen, (*range(first), *order))
    return added(seen, length, window)


def overlap_add(x: NDArray, axis: int, length: Dim, stride: int = 1, dilation: int = 1) -> NDArray:
    """The adjoint of `windows`: the last axis of x added up along `axis`, of the given length.

    >>> from genesis import ndarray as nd
    >>> overlap_add(nd.ones((2, 3)), axis=0, length=5, stride=2).tolist()
    [1.0, 1.0, 2.0, 1.0, 1.0]
    """
    a = movement.normal_axis("overlap_add", axis, x.ndim - 1)
    size, count = x.shape[-1], x.shape[a]
    reach = (count - 1) * stride + (size - 1) * dilation + 1
    if stride < 1 or dilation < 1 or reach > length:
        raise ValueError(
            f"overlap_add: windows {x.shape} with stride {stride}, dilation {dilation} reach over "
            f"{reach} elements, not within length {length} of axis {a}"
        )
    return overlapping(x, a, x.ndim - 1, length, stride, dilation, 0).sum(-1)


# ---- what convolutions and pooling share


def per_axis(name: str, what: str, given: PerAxis, rank: int) -> tuple[int, ...]:
    """A parameter for each of the spatial axes."""
    listed = (given,) * rank if isinstance(given, int) else tuple(map(as_int, given))
    if len(listed) == 1:
        listed *= rank
    if len(listed) != rank:
        raise ValueError(f"{name}: {what} {listed} is for {len(listed)} axes, not {rank}")
    return listed


def parameters(
    name: str, rank: int, kernel_size: PerAxis, stride: PerAxis, dilation: PerAxis, padding: PerAxis
) -> Window:
    """The windows that parameters describe, checked."""
    size = per_axis(name, "kernel_size", kernel_size, rank)
    step = per_axis(name, "stride", stride, rank)
    apart = per_axis(name, "dilation", dilation, rank)
    edge = per_axis(name, "padding", padding, rank)
    if min((*size, *step, *apart), default=1) < 1 or min(edge, default=0) < 0:
        raise ValueError(
            f"{name}: kernel_size {size}, stride {step} and dilation {apart} must be positive, "
            f"padding {edge} must not be negative"
        )
    return Window(size, step, apart, edge)


def batched(name: str, x: NDArray, rank: int) -> tuple[NDArray, bool]:
    """`x` with a batch axis, and whether that is new."""
    if x.ndim == rank + 2:
        return x, False
    if x.ndim == rank + 1:
        return reshape(x, (1, *x.shape)), True
    raise ValueError(
        f"{name}: needs {rank + 2} axes (batch, channels, {rank} spatial), "
        f"or {rank + 1} without a batch, got shape {x.shape}"
    )


def window_counts(
    name: str, length: Sequence[Dim], window: Window, edges: Edges
) -> tuple[Dim, ...]:
    """How many windows fit each padded axis."""
    counts: list[Dim] = []
    for n, k, s, d, (low, high) in zip(length, *window[:3], edges, strict=True):
        room = n + (low + high - d * (k - 1) - 1)
        if room < 0:
            raise ValueError(
                f"{name}: windows of {window.size} with dilation {window.dilation} do not fit "
                f"spatial shape {tuple(length)} padded by {tuple(edges)}"
            )
        counts.append(room // s + 1)
    return tuple(counts)


def pad_spatial(x: NDArray, edges: Edges, value: float = 0) -> NDArray:
    """`x` with (before, after) added to its trailing axes."""
    if all(edge == (0, 0) for edge in edges):
        return x
    return pad(x, [*[(0, 0)] * (x.ndim - len(edges)), *edges], value)


def slide(x: NDArray, window: Window) -> NDArray:
    """Windows over the trailing axes: ``(.., *spatial) -> (.., *counts, *size)``."""
    first = x.ndim - len(window.size)
    for a, (k, s, d) in enumerate(zip(*window[:3], strict=True), first):
        x = movement.windows(x, a, k, s, d)
    return x


def added(x: NDArray, length: Sequence[Dim], window: Window) -> NDArray:
    """The adjoint of padding and `slide`: ``(.., *counts, *size) -> (.., *length)``."""
    rank = len(length)
    first = x.ndim - 2 * rank
    for k, (n, s, d, p) in enumerate(zip(length, *window[1:], strict=True)):
        # The window axis of this spatial axis is always the first of those left.
        x = overlapping(x, first + k, first + rank, n, s, d, p)
    return x.sum(tuple(range(-rank, 0)))


def overlapping(
    x: NDArray, axis: int, window: int, length: Dim, stride: int, dilation: int, padding: int
) -> NDArray:
    """The elements of windows that cover each position of an axis, as the last axis.

    Position h + padding = stride*j + r is covered by element stride*q + r of window j - q, for
    every q: a diagonal of the windows' windows.
    """
    if dilation > 1:
        steps = [dilation if d == window else 1 for d in range(x.ndim)]
        x = pad(x, [(0, 0)] * x.ndim, steps=steps)
    size, count = as_int(x.shape[window]), x.shape[axis]
    taps = -(-size // stride)
    first = padding // stride
    last = (padding + length - 1) // stride + 1  # of the windows that cover anything
    edges: list[tuple[Dim, Dim]] = [(0, 0)] * x.ndim
    edges[axis] = (taps - 1 - first, last - count)
    edges[window] = (0, taps * stride - size)
    x = moveaxis(pad(x, edges), window, -1)
    x = reshape(x, (*x.shape[:-1], taps, stride))
    x = flip(movement.windows(x, axis, taps), -1)  # (.., j, .., q, r, q)
    value = movement.diagonal_value(x.value, x.ndim - 3, x.ndim - 1)
    x = moveaxis(wrap(value), -2, axis + 1)  # (.., j, r, .., q)
    x = reshape(x, (*x.shape[:axis], (last - first) * stride, *x.shape[axis + 2 :]))
    return narrow(x, axis, padding - first * stride, length)


def number(x: Dim, like: NDArray) -> NDArray:
    """An integer that is part of the program, or a size, for index arithmetic."""
    return wrap(primitive.extent(x, index_dtype, like.device))


def counting(n: Dim, like: NDArray) -> NDArray:
    """0, 1, .. n - 1 for index arithmetic, where `like` lies."""
    return wrap(primitive.iota(n, like.device))


def pick(x: NDArray, positions: Sequence[NDArray]) -> NDArray:
    """``x[.., p, q]`` for positions p, q, .. along the trailing axes that broadcast together."""
    first = x.ndim - len(positions)
    shape = broadcast_shapes("pick", *(p.shape for p in positions))
    indices = [primitive.broadcast(p.value, shape) for p in positions]
    return wrap(primitive.gather_at(x.value, indices, range(first, x.ndim)))


def spread(x: NDArray, axis: int, rank: int) -> NDArray:
    """A vector laid along one of `rank` axes."""
    return reshape(x, tuple(-1 if d == axis else 1 for d in range(rank)))


__all__ = ["fold", "overlap_add", "unfold"]
