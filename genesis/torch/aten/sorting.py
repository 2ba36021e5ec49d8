"""Order: sorting, ranks, order statistics, distinct elements, searching."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.ir.dtype import int64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.reduction import dimension, dimensions, pair, require_elements
from genesis.torch.aten.registry import implements, table

Pair = tuple[NDArray, NDArray]


@implements("sort", "sort.stable")
def _sort(
    self: NDArray, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> Pair:
    return pair(nd.sort(self, dimension(dim, self.ndim), descending))


@implements("argsort", "argsort.stable")
def _argsort(
    self: NDArray, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> NDArray:
    return _sort(self, dim, descending)[1]


@implements("msort")
def _msort(self: NDArray) -> NDArray:
    return _sort(self, 0)[0]


@implements("topk")
def _topk(self: NDArray, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    d = dimension(dim, self.ndim)
    if not 0 <= k <= (self.shape[d] if self.shape else 1):
        raise RuntimeError("selected index k out of range")
    return pair(nd.topk(self, k, d, largest, sorted))


# ---- order statistics


@implements("kthvalue")
def _kthvalue(self: NDArray, k: Any, dim: int = -1, keepdim: bool = False) -> Pair:
    d = dimension(dim, self.ndim)
    require_elements("kthvalue", self, dimensions(self, dim))
    if not 0 < k <= (self.shape[d] if self.shape else 1):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {d}")
    return pair(nd.kthvalue(self, k, d, keepdim))


def _medians(name: str, function: Callable[..., Any]) -> None:
    @implements(name)
    def of_all(self: NDArray) -> NDArray:
        if 0 in self.shape:
            lowest = math.nan if self.dtype.is_float else self.dtype.min
            return nd.full((), lowest, self.dtype, self.device)
        result: NDArray = function(self)
        return result

    @implements(f"{name}.dim")
    def along(self: NDArray, dim: int, keepdim: bool = False) -> Pair:
        require_elements(name, self, dimensions(self, dim))
        return pair(function(self, dimension(dim, self.ndim), keepdim))


_medians("median", nd.median)
_medians("nanmedian", nd.nanmedian)


@implements("mode")
def _mode(self: NDArray, dim: int = -1, keepdim: bool = False) -> Pair:
    require_elements("mode", self, dimensions(self, dim))
    return pair(nd.mode(self, dimension(dim, self.ndim), keepdim))


# ---- distinct elements


def _nothing(x: NDArray) -> NDArray:
    return nd.zeros((0,), int64, x.device)


def _results(x: NDArray, found: Any, inverse: bool, counts: bool) -> tuple[NDArray, ...]:
    """Distinct elements, where each element is among them, and how often there is each."""
    parts = list(found) if isinstance(found, tuple) else [found]
    positions = parts[1] if inverse else _nothing(x)
    return parts[0], positions, parts[-1] if counts else _nothing(x)


@implements("_unique2")
def _unique2(
    self: NDArray, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[NDArray, ...]:
    found = nd.unique(self, sorted, return_inverse, return_counts)
    return _results(self, found, return_inverse, return_counts)


@implements("_unique")
def _unique(self: NDArray, sorted: bool = True, return_inverse: bool = False) -> Any:
    return _unique2(self, sorted, return_inverse)[:2]


@implements("unique_dim")
def _unique_dim(
    self: NDArray, dim: int, sorted: bool = True, *_: Any, **__: Any
) -> tuple[NDArray, ...]:
    found = nd.unique(self, sorted, True, True, dimension(dim, self.ndim))
    return _results(self, found, True, True)


@implements("unique_consecutive")
def _unique_consecutive(
    self: NDArray, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> tuple[NDArray, ...]:
    if dim is not None and self.ndim > 1:
        return _unique_dim_consecutive(self, dim)
    found = nd.unique_consecutive(self, return_inverse, return_counts)
    return _results(self, found, return_inverse, return_counts)


@implements("unique_dim_consecutive")
def _unique_dim_consecutive(self: NDArray, dim: int, *_: Any, **__: Any) -> tuple[NDArray, ...]:
    found = nd.unique_consecutive(self, True, True, dimension(dim, self.ndim))
    return _results(self, found, True, True)


# ---- searching


@implements("nonzero")
def _nonzero(self: NDArray) -> NDArray:
    found: NDArray = nd.nonzero(self)
    return found


@implements("nonzero_static")
def _nonzero_static(self: NDArray, *, size: Any, fill_value: int = -1) -> NDArray:
    found: NDArray = nd.nonzero(self, size=size)
    there = nd.arange(size, device=self.device) < nd.count_nonzero(self)
    return nd.where(nd.unsqueeze(there, 1), found, fill_value)


table(functional, "bucketize.Scalar bucketize.Tensor searchsorted.Scalar searchsorted.Tensor")


@implements("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def _isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> NDArray:
    dtype = common_dtype((elements, test_elements))
    device = (elements if isinstance(elements, NDArray) else test_elements).device
    x, tested = (nd.asarray(v, device=device).astype(dtype) for v in (elements, test_elements))
    return nd.isin(x, tested, invert)
