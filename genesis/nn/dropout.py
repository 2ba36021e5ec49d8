"""Dropout layers: elements or whole channels left out at random while training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from genesis.nn import functional
from genesis.nn.module import Family, Stateless
from genesis.tensor.whole_calls import whole


class _Dropout(Family, Stateless):
    function: ClassVar[Callable[..., Any]]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p is a probability, not {p}")
        self.p, self.inplace = p, inplace

    @whole
    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return type(self).function(input, self.p, self.training, self.inplace)


class Dropout(_Dropout, function=functional.dropout):
    """Every element left out with probability `p`, the others scaled by ``1 / (1 - p)``."""


class Dropout1d(_Dropout, function=functional.dropout1d):
    """Whole channels of ``(batch, channels, length)`` left out."""


class Dropout2d(_Dropout, function=functional.dropout2d):
    """Whole channels of ``(batch, channels, h, w)`` left out."""


class Dropout3d(_Dropout, function=functional.dropout3d):
    """Whole channels of ``(batch, channels, d, h, w)`` left out."""


class AlphaDropout(_Dropout, function=functional.alpha_dropout):
    """Dropout for SELU: mean 0 and variance 1 stay what they are."""


class FeatureAlphaDropout(_Dropout, function=functional.feature_alpha_dropout):
    """AlphaDropout of whole channels."""


__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout",
]  # fmt: skip
