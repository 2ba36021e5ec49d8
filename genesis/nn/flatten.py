"""Dimensions joined and taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.functional import flatten, unflatten
from genesis.nn.module import Stateless


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


__all__ = ["Flatten", "Unflatten"]
