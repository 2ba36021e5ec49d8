"""Sums, products and extremes up to each element along a dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.reduction import dimension, pair
from genesis.torch.aten.registry import Unsupported, implements


def _cumulative(name: str, function: Callable[[NDArray, int], NDArray]) -> None:
    @implements(name)
    def along(self: NDArray, dim: int, dtype: Any = None) -> NDArray:
        x = self if dtype is None else nd.astype(self, dtype)
        result = function(x, dimension(dim, x.ndim))
        return result if dtype is None else nd.astype(result, dtype)


_cumulative("cumsum", nd.cumsum)
_cumulative("cumprod", nd.cumprod)


def _extremes(name: str, function: Callable[[NDArray, int], tuple[NDArray, NDArray]]) -> None:
    @implements(name)
    def along(self: NDArray, dim: int) -> tuple[NDArray, NDArray]:
        return pair(function(self, dimension(dim, self.ndim)))


_extremes("cummax", nd.cummax)
_extremes("cummin", nd.cummin)


@implements("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(self: NDArray, dim: int) -> NDArray:
    if self.dtype.is_complex:
        raise Unsupported("logcumsumexp of complex numbers")
    return nd.logcumsumexp(self, dimension(dim, self.ndim))
