"""Dropout layers: elements or whole channels left out at random while training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from genesis.nn import functional
from genesis.nn.module import Stateless


class _Dropout(Stateless):
    function: ClassVar[Callable[..., Any]]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p is a probability, not {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Any) -> Any:
        """The input, in training with parts left out."""
        return type(self).function(input, self.p, self.training, self.inplace)


class Dropout(_Dropout):
    """Every element left out with probability `p`, the others scaled by ``1 / (1 - p)``."""

    function = staticmethod(functional.dropout)


class Dropout1d(_Dropout):
    """Whole channels of ``(batch, channels, length)`` left out."""

    function = staticmethod(functional.dropout1d)


class Dropout2d(_Dropout):
    """Whole channels of ``(batch, channels, h, w)`` left out."""

    function = staticmethod(functional.dropout2d)


class Dropout3d(_Dropout):
    """Whole channels of ``(batch, channels, d, h, w)`` left out."""

    function = staticmethod(functional.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout for SELU: mean 0 and variance 1 stay what they are."""

    function = staticmethod(functional.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels."""

    function = staticmethod(functional.feature_alpha_dropout)


__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout",
]  # fmt: skip
