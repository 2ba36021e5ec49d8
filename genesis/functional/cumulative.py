"""Running sums, products and extremes along a dimension.

The gradient of a running product is a linear recurrence, ``h[i] = a[i] * h[i-1] + b[i]``, from the
last element to the first; so is that of `logcumsumexp`, and that of the recurrence itself. Nothing
is divided, so zeros are elements like all others.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, conj, where
from genesis.functional.elementary import exp
from genesis.functional.error_messages import normal_dim, normal_dims
from genesis.functional.function import plain, with_gradient
from genesis.functional.joining import cat
from genesis.functional.movement import clone, narrow, reshape
from genesis.functional.reduction import Extremes, prod, sum
from genesis.functional.registry import method
from genesis.functional.sorting import chosen
from genesis.ir.dtype import bool_


def _cumsum_gradient(grad: Any, dim: int, reverse: bool) -> Any:
    return _cumsum(grad, dim, not reverse)


@with_gradient(_cumsum_gradient)
def _cumsum(x: Any, dim: int, reverse: bool) -> Any:
    """Sums of the elements up to each one, or from each one on."""
    return nd.flip(nd.cumsum(nd.flip(x, dim), dim), dim) if reverse else nd.cumsum(x, dim)


@method(in_place=True)
def cumsum(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """The sums of the elements up to each one along a dimension."""
    x = input if dtype is None else cast(input, dtype)
    if not x.shape:
        return sum(x, dim, dtype=dtype)
    found = _cumsum(x, normal_dim("cumsum", dim, len(x.shape)), False)
    return found if dtype is None else cast(found, dtype)


def _recurrence_gradient(grad: Any, a: Any, dim: int, reverse: bool, result: Any) -> Any:
    # What an element does to the next ones, it does by their factors.
    factors = conj(_shifted(a, dim, not reverse, 0))
    flowing = _recurrence(factors, grad, dim, not reverse)
    return flowing * conj(_shifted(result, dim, reverse, 0)), flowing


@with_gradient(_recurrence_gradient)
def _recurrence(a: Any, b: Any, dim: int, reverse: bool) -> Any:
    """h[i] = a[i] * h[i-1] + b[i] along a dimension, or from the last to the first."""
    if a.dtype.is_complex:
        return _complex_recurrence(a, b, dim, reverse)
    return nd.associative_scan(
        lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b), (1, 0), dim, reverse
    )[1]


def _complex_recurrence(a: nd.NDArray, b: nd.NDArray, dim: int, reverse: bool) -> nd.NDArray:
    def merge(x: Any, y: Any) -> Any:
        (p, q, r, s), (t, u, v, w) = x, y
        return p * t - q * u, p * u + q * t, r * t - s * u + v, r * u + s * t + w

    parts = (a.real, a.imag, b.real, b.imag)
    _, _, re, im = nd.associative_scan(merge, parts, (1, 0, 0, 0), dim, reverse)
    return nd.complex(re, im)


def _shifted(x: Any, dim: int, backward: bool, fill: float) -> Any:
    """Every element's predecessor along a dimension, or its successor; `fill` where none is."""
    length = x.shape[dim]
    edge = plain(nd.full_like, narrow(x, dim, 0, 1), fill)
    if backward:
        return cat([narrow(x, dim, 1, length - 1), edge], dim)
    return cat([edge, narrow(x, dim, 0, length - 1)], dim)


def _cumprod_gradient(grad: Any, x: Any, dim: int, reverse: bool) -> Any:
    before = _cumprod(_shifted(x, dim, reverse, 1), dim, reverse)
    factors = conj(_shifted(x, dim, not reverse, 0))
    return conj(before) * _recurrence(factors, grad, dim, not reverse)


@with_gradient(_cumprod_gradient)
def _cumprod(x: Any, dim: int, reverse: bool) -> Any:
    """Products of the elements up to each one, or from each one on."""
    return nd.flip(nd.cumprod(nd.flip(x, dim), dim), dim) if reverse else nd.cumprod(x, dim)


@method(in_place=True)
def cumprod(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """The products of the elements up to each one along a dimension."""
    x = input if dtype is None else cast(input, dtype)
    if not x.shape:
        return prod(x, dim, dtype=dtype)
    axis = normal_dim("cumprod", dim, len(x.shape))
    found = cumsum(x, axis) if 0 in x.shape else _cumprod(x, axis, False)
    return found if dtype is None else cast(found, dtype)


def products_without(x: Any, dim: int) -> Any:
    """For every element along a dimension, the product of the others."""
    axis = normal_dim("prod", dim, len(x.shape))
    if 0 in x.shape:
        return x
    before = _cumprod(_shifted(x, axis, False, 1), axis, False)
    after = _cumprod(_shifted(x, axis, True, 1), axis, True)
    return before * after


def _logcumsumexp_gradient(grad: Any, x: Any, dim: int, result: Any) -> Any:
    after = _shifted(result, dim, True, math.inf)  # nothing flows in from beyond the end
    # Real results do not fall, so these factors are at most 1; equal infinities differ by nothing.
    same = plain(nd.equal, result, after)
    factors = exp(where(same, 0.0, result - after))
    flowing = _recurrence(conj(factors), grad, dim, True)
    same = plain(nd.equal, x, result)
    return flowing * conj(exp(where(same, 0.0, x - result)))


@with_gradient(_logcumsumexp_gradient)
def _logcumsumexp(x: Any, dim: int) -> Any:
    return nd.logcumsumexp(x, dim)


@method
def logcumsumexp(input: Any, dim: int) -> Any:
    """``log(cumsum(exp(input)))`` along a dimension, without overflow."""
    if not input.shape or 0 in input.shape:
        normal_dim("logcumsumexp", dim, max(len(input.shape), 1))
        return input
    # The gradient is made of differences of results: half precisions are not yet rounded there.
    wide = cast(input, input.dtype.accumulator)
    found = _logcumsumexp(wide, normal_dim("logcumsumexp", dim, len(input.shape)))
    return cast(found, input.dtype)


@method
def cummax(input: Any, dim: int) -> Extremes:
    """The greatest element up to each one along a dimension, and the last position it is at."""
    return chosen("cummax", input, dim, True, nd.cummax)


@method
def cummin(input: Any, dim: int) -> Extremes:
    """The least element up to each one along a dimension, and the last position it is at."""
    return chosen("cummin", input, dim, True, nd.cummin)


# ---- differences and integrals


@method
def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along a dimension, `n` times; for bool, whether they differ."""
    axis = normal_dim("diff", dim, len(input.shape))
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    if n == 0:
        return clone(input)
    around = [x for x in (prepend, input, append) if x is not None]
    x = cat(around, axis) if len(around) > 1 else input
    for _ in range(n):
        low, high = _neighbours(x, axis)
        x = plain(nd.logical_xor, high, low) if x.dtype is bool_ else high - low
    return x


def _neighbours(x: Any, axis: int) -> tuple[Any, Any]:
    """All but the last and all but the first along a dimension."""
    extent = x.shape[axis]
    if extent == 0:
        return x, x
    return narrow(x, axis, 0, extent - 1), narrow(x, axis, 1, extent - 1)


def gradient(input: Any, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> list[Any]:
    """Derivatives along dimensions by differences of second order; at the ends by `edge_order`.

    `spacing` is one distance, or one for each dimension, or positions for each.
    """
    rank = len(input.shape)
    dims = [*range(rank)] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    spacing = 1 if spacing is None else spacing
    given = spacing if isinstance(spacing, tuple | list) else [spacing] * len(dims)
    if len(given) != len(dims) or edge_order not in (1, 2):
        raise ValueError(
            f"gradient: {len(given)} spacings for {len(dims)} dimensions, edge_order {edge_order}"
        )
    axes = normal_dims("gradient", tuple(dims), rank)
    return [_slope(input, s, d, edge_order) for s, d in zip(given, axes, strict=True)]


def _slope(x: Any, spacing: Any, axis: int, order: int) -> Any:
    n = int(x.shape[axis])
    if n <= order:
        raise ValueError(f"gradient: {n} elements along dim {axis} are not enough")
    if hasattr(spacing, "shape") and spacing.shape:
        gaps = diff(cast(spacing, x.dtype.real))
        gaps = reshape(gaps, tuple(-1 if d == axis else 1 for d in range(len(x.shape))))
        widths = [narrow(gaps, axis, k, n - 2) for k in (0, 1)] if n > 2 else []
        ends = [narrow(gaps, axis, k, 1) for k in (0, 1, n - 3, n - 2) if 0 <= k < n - 1]
    else:
        widths = [spacing, spacing]
        ends = [spacing] * 4

    def at(k: int, count: int = 1) -> Any:
        return narrow(x, axis, k, count)

    parts = []
    if n > 2:
        a, b = widths
        parts = [_three(at(0, n - 2), at(1, n - 2), at(2, n - 2), a, b, "middle")]
    if order == 2:
        first = _three(at(0), at(1), at(2), ends[0], ends[1], "first")
        last = _three(at(n - 3), at(n - 2), at(n - 1), ends[-2], ends[-1], "last")
    else:
        first, last = (at(1) - at(0)) / ends[0], (at(n - 1) - at(n - 2)) / ends[-1]
    return cat([first, *parts, last], axis)


def _three(x: Any, y: Any, z: Any, a: Any, b: Any, where: str) -> Any:
    """The slope of the parabola through three values, a and b apart, at one of them."""
    left, right = (y - x) / a, (z - y) / b
    bend = (right - left) / (a + b)
    return {"first": left - bend * a, "middle": left + bend * a, "last": right + bend * b}[where]


def trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """The integral along a dimension by the trapezoidal rule: at positions `x`, or `dx` apart."""
    areas, axis = _trapezoids("trapezoid", y, x, dx, dim)
    return sum(areas, axis) / 2


def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """The integrals up to each element but the first, by the trapezoidal rule."""
    areas, axis = _trapezoids("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(areas, axis) / 2


trapz = trapezoid


def _trapezoids(name: str, y: Any, x: Any, dx: Any, dim: int) -> tuple[Any, int]:
    """Twice the area between every two neighbours, and the dimension they lie along."""
    if x is not None and dx is not None:
        raise ValueError(f"{name}: give positions x or their distance dx, not both")
    axis = normal_dim(name, dim, len(y.shape))
    low, high = _neighbours(y, axis)
    heights = low + high
    if x is None:
        return (heights if dx is None else heights * dx), axis
    if len(x.shape) == 1:
        if x.shape[0] != y.shape[axis]:
            raise ValueError(f"{name}: {x.shape[0]} positions for {y.shape[axis]} values")
        x = reshape(x, tuple(x.shape[0] if d == axis else 1 for d in range(len(y.shape))))
    if len(x.shape) > len(y.shape):
        raise ValueError(f"{name}: positions of shape {x.shape} for values of shape {y.shape}")
    low, high = _neighbours(x, len(x.shape) - len(y.shape) + axis)
    return heights * (high - low), axis


__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid", "diff", "gradient",
    "logcumsumexp", "trapezoid", "trapz",
]  # fmt: skip
