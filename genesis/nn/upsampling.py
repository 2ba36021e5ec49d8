"""Layers that change resolution, and that trade pixels for channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.nn import functional
from genesis.nn.module import Stateless

Sizes = int | Sequence[int]


class Upsample(Stateless):
    """``(batch, channels, *spatial)`` resampled to a size, or by a factor; see `interpolate`."""

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Any) -> Any:
        """The input on another grid."""
        return functional.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners,
            self.recompute_scale_factor,
        )  # fmt: skip


class UpsamplingNearest2d(Upsample):
    """Images resampled by copying the nearest element."""

    def __init__(
        self, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Images resampled between elements; the corners stay where they are."""

    def __init__(
        self, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Stateless):
    """Channels laid out as squares of pixels: ``(.., c*r*r, h, w) -> (.., c, h*r, w*r)``."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Any) -> Any:
        """The larger images."""
        return functional.pixel_shuffle(input, self.upscale_factor)


class PixelUnshuffle(Stateless):
    """Squares of pixels as channels: ``(.., c, h*r, w*r) -> (.., c*r*r, h, w)``."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Any) -> Any:
        """The smaller images."""
        return functional.pixel_unshuffle(input, self.downscale_factor)


class ChannelShuffle(Stateless):
    """The channels of every group dealt out in turn."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Any) -> Any:
        """The channels in another order."""
        return functional.channel_shuffle(input, self.groups)


__all__ = [
    "ChannelShuffle", "PixelShuffle", "PixelUnshuffle", "Upsample", "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
]  # fmt: skip
