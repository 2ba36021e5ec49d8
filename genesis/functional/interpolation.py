"""Images on other grids: resampled, sampled where a grid says, and pixels traded for channels.

Resampling is linear: its gradient is its transpose. A sample at a computed place is a weighted sum
of the elements around it; it is composed of reads and weights, so that gradients flow to the image
and to the places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import product as combinations
from operator import and_, mul
from operator import index as as_int
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, where
from genesis.functional.contraction import matmul
from genesis.functional.function import plain
from genesis.functional.joining import stack
from genesis.functional.linear_map import LinearMap
from genesis.functional.movement import expand, reshape, select, transpose, unsqueeze
from genesis.functional.reduction import sum
from genesis.functional.registry import layer
from genesis.functional.spatial_ranks import Sizes
from genesis.ir.dtype import int64
from genesis.ndarray import NDArray
from genesis.ndarray.ops.grid_sampling import Tap
from genesis.ndarray.ops.interpolation import cubic_weights

#: What a layer takes of them: it does not filter.
_UPSAMPLED = "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"


@layer("Upsample", settings=_UPSAMPLED)
def interpolate(
    input: Any,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """``(batch, channels, *spatial)`` resampled to a spatial `size`, or by a `scale_factor`.

    Modes are "nearest", "nearest-exact", "area", and for one, two and three spatial dimensions
    "linear", "bilinear" or "bicubic", "trilinear".
    """
    how = {
        "size": size, "scale_factor": scale_factor, "mode": mode, "align_corners": align_corners,
        "recompute_scale_factor": recompute_scale_factor, "antialias": antialias,
    }  # fmt: skip
    back = partial(nd.interpolate_gradient, shape=input.shape, **how)  # type: ignore[arg-type]
    return LinearMap.apply(input, partial(nd.interpolate, **how), back)  # type: ignore[arg-type]


# ---- pixels and channels


@layer("PixelShuffle")
def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """Channels laid out as squares of pixels: ``(.., c*r*r, h, w) -> (.., c, h*r, w*r)``."""
    there = partial(nd.pixel_shuffle, upscale_factor=upscale_factor)
    back = partial(nd.pixel_unshuffle, downscale_factor=upscale_factor)
    return LinearMap.apply(input, there, back)


@layer("PixelUnshuffle")
def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """Squares of pixels as channels: ``(.., c, h*r, w*r) -> (.., c*r*r, h, w)``."""
    there = partial(nd.pixel_unshuffle, downscale_factor=downscale_factor)
    back = partial(nd.pixel_shuffle, upscale_factor=downscale_factor)
    return LinearMap.apply(input, there, back)


@layer("ChannelShuffle")
def channel_shuffle(input: Any, groups: int) -> Any:
    """The channels (dimension 1) of every group dealt out in turn."""
    there = partial(nd.channel_shuffle, groups=groups)
    each = as_int(input.shape[1]) // max(groups, 1) if len(input.shape) > 1 else 1
    return LinearMap.apply(input, there, partial(nd.channel_shuffle, groups=each))


# ---- samples at computed places


def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Any:
    """The grid for `grid_sample` that affine maps ``(batch, 2, 3)`` or ``(batch, 3, 4)`` give.

    `size` is the shape (batch, channels, *spatial) of the samples wanted.
    """
    rank = len(size) - 2

    def base(maps: NDArray) -> NDArray:
        # The identity map's grid is where every sample would lie.
        shape = (1, 1, *size[2:])
        same = nd.eye(rank, rank + 1, dtype=maps.dtype, device=maps.device)
        places = nd.affine_grid(same.reshape(1, rank, rank + 1), shape, align_corners)
        points = places.reshape(-1, rank)
        return nd.concat([points, nd.ones((points.shape[0], 1), maps.dtype, maps.device)], 1)

    if rank not in (2, 3) or tuple(theta.shape) != (size[0], rank, rank + 1):
        raise ValueError(
            f"affine_grid: maps of shape {tuple(theta.shape)} for samples of shape {tuple(size)}: "
            f"need ({size[0]}, {rank}, {rank + 1}) and 2 or 3 spatial dimensions"
        )
    grid = matmul(plain(base, theta), transpose(theta, 1, 2))
    return reshape(grid, (size[0], *size[2:], rank))


def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """``(batch, channels, *spatial)`` sampled at a grid ``(batch, *out, 2 or 3)`` of coordinates.

    Coordinates run from -1 to 1, x before y before z: from the centres of the outermost elements
    with `align_corners`, else from their outer edges. Beyond the image there are "zeros", its
    "border" elements, or its "reflection".
    """
    rank = len(input.shape) - 2
    # The array function says what does not fit; what is not used is never computed.
    plain(nd.grid_sample, input, grid, mode, padding_mode, bool(align_corners))
    wide = input.dtype.accumulator
    axes: list[list[Tap]] = []
    for a in range(rank):
        n = as_int(input.shape[2 + a])
        scale = (n - 1) / 2 if align_corners else n / 2
        at = cast(select(grid, -1, rank - 1 - a), wide) * scale + (n - 1) / 2
        axes.append(_taps(at, n, mode, padding_mode, bool(align_corners)))
    corners = list(combinations(*axes))
    places = plain(
        lambda *positions: _flat(positions, input.shape[2:]),
        *(tap.position for corner in corners for tap in corner),
    )
    batch, channels = input.shape[:2]
    image = cast(reshape(input, (batch, channels, -1)), wide)
    every = expand(reshape(places, (batch, 1, -1)), (batch, channels, -1))
    # Positions are within the image: nobody needs to check them.
    put = partial(nd.put_at_positions, lengths=image.shape[2:])
    found = LinearMap.apply(image, partial(nd.at_positions, rank=1), put, every)
    values = reshape(found, (batch, channels, len(corners), *grid.shape[1:-1]))
    weights = []
    for corner in corners:
        weight = reduce(mul, [tap.weight for tap in corner])
        if padding_mode == "zeros":
            weight = where(reduce(and_, [tap.inside for tap in corner]), weight, 0.0)
        weights.append(weight)
    return cast(sum(values * unsqueeze(stack(weights, 1), 1), 2), input.dtype)


def _flat(positions: Sequence[NDArray], lengths: Sequence[int]) -> NDArray:
    """Positions along each axis, for every corner, as positions in the flattened image."""
    rank = len(lengths)
    flat = []
    for k in range(0, len(positions), rank):
        place = positions[k]
        for n, p in zip(lengths[1:], positions[k + 1 : k + rank], strict=True):
            place = place * as_int(n) + p
        flat.append(place)
    return nd.stack(flat, 1)


def _taps(at: Any, n: int, mode: str, padding_mode: str, align_corners: bool) -> list[Tap]:
    """The elements around a coordinate along an axis of n."""

    def tap(place: Any, weight: Any) -> Tap:
        inside = (place >= 0) & (place <= n - 1)
        position = plain(lambda p: nd.clip(p, 0, n - 1).astype(int64), place)
        return Tap(position, inside, weight)

    if mode == "bicubic":
        first = plain(nd.floor, at)
        weights = cubic_weights(at - first)
        places = [_within(first + k, n, padding_mode, align_corners) for k in range(-1, 3)]
        return [tap(place, weight) for place, weight in zip(places, weights, strict=True)]
    at = _within(at, n, padding_mode, align_corners)
    if mode == "nearest":
        near = plain(nd.round, at)
        return [tap(near, near * 0 + 1)]
    first = plain(nd.floor, at)
    part = at - first
    return [tap(first, 1 - part), tap(first + 1, part)]


def _within(at: Any, n: int, padding_mode: str, align_corners: bool) -> Any:
    """A coordinate along an axis of n elements, moved into the image as the mode says.

    It moves with the grid where it is inside, against it in a reflection, and not at a border.
    """
    if padding_mode == "zeros":
        return at
    if padding_mode == "reflection":
        low, span = (0.0, n - 1.0) if align_corners else (-0.5, float(n))
        if span == 0:
            return at * 0
        turns = plain(lambda x: nd.floor((x - low) / span), at)
        odd = plain(lambda t: nd.remainder(t, 2) != 0, turns)
        away = at - (turns * span + low)
        at = where(odd, span - away, away) + low
    outside = (at <= 0) | (at >= n - 1)
    return where(outside, plain(lambda x: nd.clip(x, 0, n - 1), at), at)


__all__ = [
    "affine_grid", "channel_shuffle", "grid_sample", "interpolate", "pixel_shuffle",
    "pixel_unshuffle",
]  # fmt: skip
