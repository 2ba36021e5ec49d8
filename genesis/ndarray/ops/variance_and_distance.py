"""Moments and distances: sums without NaN, means with variances, covariances, distances of points.

Variances are sums of squared distances from the mean, never differences of large sums.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.linalg import vector_norm
from genesis.ndarray.ops.complexes import conj
from genesis.ndarray.ops.contraction import matmul
from genesis.ndarray.ops.elementwise import broadcast_shapes, clip, isnan, sqrt, where
from genesis.ndarray.ops.movement import diagonal, moveaxis
from genesis.ndarray.ops.reduction import Axes, amax, amin, mean, std, var
from genesis.ndarray.ops.reduction import sum as total


class Extrema(NamedTuple):
    """The least and the greatest element."""

    min: NDArray
    max: NDArray


def aminmax(x: NDArray, axis: int | None = None, keepdims: bool = False) -> Extrema:
    """The least and the greatest element over an axis; NaN if there is one."""
    return Extrema(amin(x, axis, keepdims), amax(x, axis, keepdims))


def nansum(x: NDArray, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """The sum over axes of the elements that are not NaN."""
    return total(_numbers(x), axis, keepdims)


def nanmean(x: NDArray, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """The mean over axes of the elements that are not NaN; NaN if there are none."""
    if not x.dtype.is_float:
        return mean(x, axis, keepdims)
    wide = x.dtype.accumulator
    count = total(~isnan(x), axis, keepdims)
    result = total(_numbers(x).astype(wide), axis, keepdims) / count.astype(wide)
    return result.astype(x.dtype)


def _numbers(x: NDArray) -> NDArray:
    return where(isnan(x), 0.0, x) if x.dtype.is_float else x


def var_mean(
    x: NDArray, axis: Axes = None, correction: int = 1, keepdims: bool = False
) -> tuple[NDArray, NDArray]:
    """The variance over axes and the mean."""
    return var(x, axis, correction, keepdims), mean(x, axis, keepdims)


def std_mean(
    x: NDArray, axis: Axes = None, correction: int = 1, keepdims: bool = False
) -> tuple[NDArray, NDArray]:
    """The square root of the variance over axes and the mean."""
    return std(x, axis, correction, keepdims), mean(x, axis, keepdims)


# ---- covariances


def cov(
    x: NDArray,
    correction: int = 1,
    fweights: NDArray | None = None,
    aweights: NDArray | None = None,
) -> NDArray:
    """The covariances of variables, which are rows, over observations, which are columns.

    `fweights` say how often there is each observation, `aweights` how much it counts.

    >>> from genesis import ndarray as nd
    >>> nd.cov(nd.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if x.ndim > 2:
        raise ValueError(f"cov: needs a vector or a matrix, got shape {x.shape}")
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise TypeError(f"cov: needs floating point, not {x.dtype}; cast with .astype first")
    rows = x.reshape((1, -1)) if x.ndim < 2 else x
    weights = _weights(rows, fweights, aweights)
    real = x.dtype.real
    if weights is None:
        distances = rows - mean(rows, 1, keepdims=True)
        count = max(rows.shape[1].__index__() - correction, 0)
        result = matmul(distances, conj(distances.T)) / float(count)
    else:
        sums = total(weights)
        middle = total(rows * weights, 1, keepdims=True) / sums
        distances = rows - middle
        loss = 1.0 if aweights is None else total(weights * aweights.astype(real)) / sums
        spread = clip(sums - correction * loss, 0.0)
        result = matmul(distances * weights, conj(distances.T)) / spread
    return result.reshape(()) if x.ndim < 2 else result


def _weights(rows: NDArray, fweights: NDArray | None, aweights: NDArray | None) -> NDArray | None:
    product: NDArray | None = None
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            continue
        if weights.shape != rows.shape[1:]:
            raise ValueError(
                f"cov: {name} of shape {weights.shape} for observations of shape {rows.shape[1:]}"
            )
        if name == "fweights" and not weights.dtype.is_integer:
            raise TypeError(f"cov: fweights must be integers, not {weights.dtype}")
        factor = weights.astype(rows.dtype.real)
        product = factor if product is None else product * factor
    return product


def corrcoef(x: NDArray) -> NDArray:
    """The correlation coefficients of variables, which are rows."""
    covariance = cov(x)
    if not covariance.shape:
        return covariance / covariance
    deviation = sqrt(diagonal(covariance).real if x.dtype.is_complex else diagonal(covariance))
    scaled = covariance / deviation.unsqueeze(1) / deviation
    return scaled if x.dtype.is_complex else clip(scaled, -1.0, 1.0)


# ---- distances


def dist(x: NDArray, y: NDArray, p: float = 2) -> NDArray:
    """The p-norm of a difference, over all elements."""
    return vector_norm(x - y, p)


#: From so many points on, Euclidean distances come from a product of matrices.
_MANY = 26


def cdist(x: NDArray, y: NDArray, p: float = 2) -> NDArray:
    """The distances between all points of x and of y, which are rows, in the p-norm.

    Euclidean distances of many points come from |x|² + |y|² - 2xy, measured from the mean of x: so
    they are off by about the root of the precision times the extent of the points.
    """
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise ValueError(f"cdist: points of shapes {x.shape} and {y.shape} do not fit together")
    if p < 0:
        raise ValueError(f"cdist: p must not be negative, got {p}")
    batch = broadcast_shapes("cdist", x.shape[:-2], y.shape[:-2])
    if p == 2 and max(int(x.shape[-2]), int(y.shape[-2])) >= _MANY and 0 not in x.shape:
        middle = mean(x, -2, keepdims=True)
        x, y = x - middle, y - middle
        squares = total(x * x, -1).unsqueeze(-1) + total(y * y, -1).unsqueeze(-2)
        return sqrt(clip(squares - 2 * matmul(x, y.swapaxes(-1, -2)), 0.0))
    first = x.expand((*batch, *x.shape[-2:])).unsqueeze(-2)
    second = y.expand((*batch, *y.shape[-2:])).unsqueeze(-3)
    if p == math.inf and x.shape[-1] == 0:
        return total(abs(first - second), -1)
    return vector_norm(first - second, p, -1)


def renorm(x: NDArray, p: float, axis: int, maxnorm: float) -> NDArray:
    """Each part along an axis, scaled down so that its p-norm is at most `maxnorm`."""
    moved = moveaxis(x, axis, 0)
    sizes = vector_norm(moved, p, tuple(range(1, x.ndim)), keepdims=True)
    scale = where(sizes > maxnorm, maxnorm / (sizes + 1e-7), 1.0)
    return moveaxis(moved * scale.astype(x.dtype.real), 0, axis)


__all__ = [
    "aminmax", "cdist", "corrcoef", "cov", "dist", "nanmean", "nansum", "renorm", "std_mean",
    "var_mean",
]  # fmt: skip
