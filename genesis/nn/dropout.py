"""Dropout layers: elements or whole channels left out at random while training."""

from __future__ import annotations

from typing import Any

from genesis.nn import functional
from genesis.nn.module import Stateless


class _Dropout(Stateless):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p is a probability, not {p}")
        self.p, self.inplace = p, inplace


class Dropout(_Dropout):
    """Every element left out with probability `p`, the others scaled by ``1 / (1 - p)``."""

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return functional.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Whole channels of ``(batch, channels, length)`` left out."""

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return functional.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Whole channels of ``(batch, channels, h, w)`` left out."""

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return functional.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Whole channels of ``(batch, channels, d, h, w)`` left out."""

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return functional.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout for SELU: mean 0 and variance 1 stay what they are."""

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return functional.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels."""

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return functional.feature_alpha_dropout(input, self.p, self.training, self.inplace)


__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout",
]  # fmt: skip
