"""Dimensions joined and taken apart, and windows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.functional import flatten, unflatten
from genesis.nn import functional
from genesis.nn.module import Stateless

Sizes = int | Sequence[int]


class Flatten(Stateless):
    """The dimensions from `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Any) -> Any:
        """The input in another shape."""
        return flatten(input, self.start_dim, self.end_dim)


class Unflatten(Stateless):
    """One dimension as several."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Any) -> Any:
        """The input in another shape."""
        return unflatten(input, self.dim, self.unflattened_size)


class Unfold(Stateless):
    """The windows of images as columns; see `genesis.nn.functional.unfold`."""

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: Any) -> Any:
        """The columns."""
        return functional.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Stateless):
    """Columns added up where `Unfold` reads them."""

    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size, self.dilation = output_size, kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: Any) -> Any:
        """The images."""
        windows = self.kernel_size, self.dilation, self.padding, self.stride
        return functional.fold(input, self.output_size, *windows)


__all__ = ["Flatten", "Fold", "Unflatten", "Unfold"]
