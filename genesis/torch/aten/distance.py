"""Distances between points, which are rows, in the p-norm."""

from __future__ import annotations

import math

from genesis import ndarray as nd
from genesis.functional.norms_and_distances import vector_norm_gradient
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.registry import implements


@implements("_cdist_forward")
def _cdist(x1: NDArray, x2: NDArray, p: float = 2.0, compute_mode: int | None = None) -> NDArray:
    return nd.cdist(x1, x2, p)


implements("_euclidean_dist")(_cdist)


@implements("_cdist_backward")
def _cdist_backward(grad: NDArray, x1: NDArray, x2: NDArray, p: float, cdist: NDArray) -> NDArray:
    return nd.zeros_like(x1) if 0 in grad.shape else _to_first(grad, x1, x2, p, cdist)


def _to_first(grad: NDArray, x1: NDArray, x2: NDArray, p: float, distances: NDArray) -> NDArray:
    """The gradient of the first points, from that of the distances."""
    difference = nd.unsqueeze(x1, -2) - nd.unsqueeze(x2, -3)
    if p == math.inf:  # equal differences do not share
        greatest = nd.equal(nd.abs(difference), nd.unsqueeze(distances, -1))
        each = nd.where(greatest, nd.sign(difference), 0.0) * nd.unsqueeze(grad, -1)
    else:
        each = vector_norm_gradient(grad, difference, p, (difference.ndim - 1,), distances)
    return nd.sum(nd.zeros_like(difference) if each is None else each, -2)


@implements("_pdist_forward")
def _pdist(self: NDArray, p: float = 2.0) -> NDArray:
    first, second = nd.triu_indices(int(self.shape[0]), offset=1)
    pairs = nd.take(self, first, 0) - nd.take(self, second, 0)
    return nd.linalg.vector_norm(pairs, p, -1)


@implements("_pdist_backward")
def _pdist_backward(grad: NDArray, self: NDArray, p: float, pdist: NDArray) -> NDArray:
    n = int(self.shape[0])
    if n < 2:
        return nd.zeros_like(self)
    at = nd.arange(n, device=self.device)
    low = nd.minimum(nd.unsqueeze(at, 1), at)
    high = nd.maximum(nd.unsqueeze(at, 1), at)
    # Where a pair stands among all, which are listed by the first of them.
    place = low * n - low * (low + 1) // 2 + high - low - 1
    diagonal = nd.equal(low, high)
    place = nd.where(diagonal, 0, place)
    square, distances = (nd.where(diagonal, 0.0, nd.take(x, place, 0)) for x in (grad, pdist))
    return _to_first(square, self, self, p, distances)
