"""Layers that change the resolution of images one way."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.functional.spatial_ranks import Sizes
from genesis.nn.parameterless_layers import Upsample


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


__all__ = ["UpsamplingBilinear2d", "UpsamplingNearest2d"]
