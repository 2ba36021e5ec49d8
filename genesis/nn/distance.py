"""Layers that compare vectors."""

from __future__ import annotations

from typing import Any

from genesis.nn import functional
from genesis.nn.module import Stateless


class CosineSimilarity(Stateless):
    """The cosine of the angle between vectors along a dimension."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Any, x2: Any) -> Any:
        """The similarities."""
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Stateless):
    """The p-norm of the difference of vectors along the last dimension."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.p, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Any, x2: Any) -> Any:
        """The distances."""
        return functional.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)


__all__ = ["CosineSimilarity", "PairwiseDistance"]
