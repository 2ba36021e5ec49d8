"""Channels exchanged with positions, and among themselves: movement only."""

from __future__ import annotations

from operator import index as as_int

from genesis.ir.size import same
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.movement import permute, reshape


def pixel_shuffle(x: NDArray, upscale_factor: int) -> NDArray:
    """Channels laid out as squares of pixels: ``(.., c*r*r, h, w) -> (.., c, h*r, w*r)``."""
    r = upscale_factor
    if x.ndim < 3 or r < 1 or as_int(x.shape[-3]) % (r * r):
        raise ValueError(
            f"pixel_shuffle: factor {r} needs a multiple of {r * r} channels in the third last "
            f"axis, got shape {x.shape}"
        )
    *lead, channels, h, w = x.shape
    c = as_int(channels) // (r * r)
    n = len(lead)
    x = reshape(x, (*lead, c, r, r, h, w))
    x = permute(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return reshape(x, (*lead, c, h * r, w * r))


def pixel_unshuffle(x: NDArray, downscale_factor: int) -> NDArray:
    """Squares of pixels as channels: ``(.., c, h*r, w*r) -> (.., c*r*r, h, w)``."""
    r = downscale_factor
    if x.ndim < 3 or r < 1 or not all(same(s % r, 0) for s in x.shape[-2:]):
        raise ValueError(
            f"pixel_unshuffle: factor {r} must divide the last two axes of shape {x.shape}"
        )
    *lead, c, height, width = x.shape
    h, w = height // r, width // r
    n = len(lead)
    x = reshape(x, (*lead, c, h, r, w, r))
    x = permute(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return reshape(x, (*lead, c * r * r, h, w))


def channel_shuffle(x: NDArray, groups: int) -> NDArray:
    """The channels (axis 1) of every group dealt out in turn."""
    if x.ndim < 3 or groups < 1 or as_int(x.shape[1]) % groups:
        raise ValueError(
            f"channel_shuffle: {groups} groups do not divide the channels of shape {x.shape}"
        )
    batch, channels, *spatial = x.shape
    x = reshape(x, (batch, groups, as_int(channels) // groups, *spatial))
    x = permute(x, (0, 2, 1, *range(3, x.ndim)))
    return reshape(x, (batch, channels, *spatial))


__all__ = ["channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]
