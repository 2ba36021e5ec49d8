"""Padding layers: more elements around the spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from genesis.nn import functional
from genesis.nn.module import Family, Stateless


class _Padding(Family, Stateless):
    """As much on every side, or (before, after) for the last dimension, the one before, .."""

    rank: ClassVar[int]
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        count = 2 * self.rank
        self.padding = (padding,) * count if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != count:
            raise ValueError(
                f"{type(self).__name__}: needs one number or {count}, got {self.padding}"
            )

    def forward(self, input: Any) -> Any:
        """The input with more elements around it."""
        if self.mode != "constant" and len(input.shape) not in (self.rank + 1, self.rank + 2):
            raise ValueError(
                f"{type(self).__name__}: needs (batch, channels, {self.rank} spatial dimensions), "
                f"or without the batch; got shape {tuple(input.shape)}"
            )
        return functional.pad(input, self.padding, self.mode)


class _ConstantPad(_Padding):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Any) -> Any:
        """The input with a number around it."""
        return functional.pad(input, self.padding, self.mode, self.value)


class ConstantPad1d(_ConstantPad, rank=1):
    """A number around the last dimension."""


class ConstantPad2d(_ConstantPad, rank=2):
    """A number around the last two dimensions."""


class ConstantPad3d(_ConstantPad, rank=3):
    """A number around the last three dimensions."""


class ZeroPad1d(_Padding, rank=1):
    """Zeros around the last dimension."""


class ZeroPad2d(_Padding, rank=2):
    """Zeros around the last two dimensions."""


class ZeroPad3d(_Padding, rank=3):
    """Zeros around the last three dimensions."""


class ReflectionPad1d(_Padding, rank=1, mode="reflect"):
    """The mirror image around the last dimension."""


class ReflectionPad2d(_Padding, rank=2, mode="reflect"):
    """The mirror image around the last two dimensions."""


class ReflectionPad3d(_Padding, rank=3, mode="reflect"):
    """The mirror image around the last three dimensions."""


class ReplicationPad1d(_Padding, rank=1, mode="replicate"):
    """The edge elements repeated around the last dimension."""


class ReplicationPad2d(_Padding, rank=2, mode="replicate"):
    """The edge elements repeated around the last two dimensions."""


class ReplicationPad3d(_Padding, rank=3, mode="replicate"):
    """The edge elements repeated around the last three dimensions."""


class CircularPad1d(_Padding, rank=1, mode="circular"):
    """The other end again around the last dimension."""


class CircularPad2d(_Padding, rank=2, mode="circular"):
    """The other end again around the last two dimensions."""


class CircularPad3d(_Padding, rank=3, mode="circular"):
    """The other end again around the last three dimensions."""


__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d",
    "ConstantPad3d", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
    "ReplicationPad2d", "ReplicationPad3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip
