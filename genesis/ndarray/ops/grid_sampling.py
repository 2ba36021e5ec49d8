"""Sampling an image where a grid of coordinates says: `grid_sample`, and grids of affine maps.

Coordinates run from -1 to 1 over the image, x before y before z, as in PyTorch. A sample is a
weighted sum of the elements around it; each of these is one gather by computed positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product as combinations
from operator import and_, mul
from operator import index as as_int
from typing import NamedTuple

from genesis.ir.dtype import int64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.contraction import einsum
from genesis.ndarray.ops.creation import ones
from genesis.ndarray.ops.elementwise import abs, clip, floor, fma, remainder, round, where
from genesis.ndarray.ops.interpolation import cubic_weights
from genesis.ndarray.ops.movement import expand, reshape, stack
from genesis.ndarray.ops.sliding_windows import counting, pick

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


def grid_sample(
    x: NDArray,
    grid: NDArray,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> NDArray:
    """``(batch, channels, *spatial)`` sampled at a grid ``(batch, *out, 2 or 3)`` of coordinates.

    -1 and 1 are the centres of the outermost elements with `align_corners`, else their outer
    edges. Beyond the image there are "zeros", its "border" elements, or its "reflection".

    >>> from genesis import ndarray as nd
    >>> image = nd.array([[[[0.0, 2.0]]]])
    >>> grid_sample(image, nd.zeros((1, 1, 1, 2))).tolist()
    [[[[1.0]]]]
    """
    rank = x.ndim - 2
    if mode not in _MODES or padding_mode not in _PADDING or (mode == "bicubic" and rank != 2):
        raise ValueError(
            f"grid_sample: mode {mode!r} with padding_mode {padding_mode!r} for {rank} spatial "
            f"axes; there are {', '.join(_MODES)} (bicubic for 2) and {', '.join(_PADDING)}"
        )
    fits = rank in (2, 3) and grid.ndim == x.ndim and grid.shape[-1] == rank
    if not fits or grid.shape[0] != x.shape[0] or any(n == 0 for n in x.shape[2:]):
        raise ValueError(
            f"grid_sample: input {x.shape} and grid {grid.shape}: need (batch, channels, *spatial) "
            f"with 2 or 3 spatial axes, not empty, and (batch, *out, 2 or 3)"
        )
    if not x.dtype.is_float or not grid.dtype.is_float:
        raise TypeError(f"grid_sample: needs floating point, not {x.dtype} and {grid.dtype}")
    wide = x.dtype.accumulator
    axes: list[list[Tap]] = []
    for a in range(rank):
        n = as_int(x.shape[2 + a])
        scale = (n - 1) / 2 if align_corners else n / 2
        # One rounding, whichever kernel computes it: see `interpolation`.
        at = fma(grid[..., rank - 1 - a].astype(wide), scale, (n - 1) / 2)
        axes.append(_taps(at, n, mode, padding_mode, align_corners))
    # Every sample is read from its own image, for every channel.
    images, channels = (counting(n, x) for n in x.shape[:2])
    after = (1,) * rank
    plane = [reshape(images, (x.shape[0], 1, *after)), reshape(channels, (x.shape[1], *after))]
    total: NDArray | None = None
    for taps in combinations(*axes):
        value = pick(x, [*plane, *(tap.position.unsqueeze(1) for tap in taps)]).astype(wide)
        if padding_mode == "zeros":
            value = where(reduce(and_, [tap.inside for tap in taps]).unsqueeze(1), value, 0)
        if mode != "nearest":
            value = value * reduce(mul, [tap.weight for tap in taps]).unsqueeze(1)
        total = value if total is None else total + value
    assert total is not None
    return total.astype(x.dtype)


class Tap(NamedTuple):
    """One element of an axis that a sample is made of: where, whether it exists, how much of it."""

    position: NDArray
    inside: NDArray
    weight: NDArray


def affine_grid(theta: NDArray, size: Sequence[int], align_corners: bool = False) -> NDArray:
    """The grid for `grid_sample` that affine maps ``(batch, 2, 3)`` or ``(batch, 3, 4)`` give.

    `size` is the shape (batch, channels, *spatial) of the samples wanted.
    """
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise ValueError(
            f"affine_grid: maps of shape {theta.shape} for samples of shape {tuple(size)}: "
            f"need (batch, rank, rank + 1) and a batch, channels and 2 or 3 spatial axes"
        )
    spatial = tuple(size[2:])
    base = []
    for a in reversed(range(rank)):
        n = spatial[a]
        steps = counting(n, theta).astype(theta.dtype)
        if align_corners:
            at = steps * (2 / (n - 1)) - 1 if n > 1 else steps * 0
        else:
            at = (steps * 2 + 1) / n - 1
        shape = tuple(n if d == a else 1 for d in range(rank))
        base.append(expand(reshape(at, shape), spatial))
    base.append(ones(spatial, dtype=theta.dtype, device=theta.device))
    return einsum("...k,nik->n...i", stack(base, -1), theta)


def _taps(at: NDArray, n: int, mode: str, padding_mode: str, align_corners: bool) -> list[Tap]:
    """The elements around a coordinate along an axis of n."""

    def tap(place: NDArray, weight: NDArray) -> Tap:
        inside = (place >= 0) & (place <= n - 1)
        return Tap(clip(place, 0, n - 1).astype(int64), inside, weight)

    if mode == "bicubic":
        first = floor(at)
        weights = cubic_weights(at - first)
        places = [_within(first + k, n, padding_mode, align_corners) for k in range(-1, 3)]
        return [tap(place, weight) for place, weight in zip(places, weights, strict=True)]
    at = _within(at, n, padding_mode, align_corners)
    if mode == "nearest":
        near = round(at)
        return [tap(near, near)]
    first = floor(at)
    part = at - first
    return [tap(first, 1 - part), tap(first + 1, part)]


def _within(at: NDArray, n: int, padding_mode: str, align_corners: bool) -> NDArray:
    """A coordinate along an axis of n elements, moved into the image as the mode says."""
    if padding_mode == "zeros":
        return at
    if padding_mode == "reflection":
        low, span = (0.0, n - 1.0) if align_corners else (-0.5, float(n))
        if span == 0:
            return at * 0
        # There and back again is one period.
        away = remainder(at - low, 2 * span)
        at = span - abs(span - away) + low
    return clip(at, 0, n - 1)


__all__ = ["affine_grid", "grid_sample"]
