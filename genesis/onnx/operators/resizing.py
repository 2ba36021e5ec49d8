"""Operators that read images between their pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import Host, operator
from genesis.onnx.values import as_tensor, ints


def _coordinates(mode: str, n: int, out: int, scale: float, begin: float, end: float) -> Any:
    """Where in an axis of n pixels each of `out` pixels is read."""
    x = np.arange(out, dtype=np.float64)
    whole = scale * n
    match mode:
        case "align_corners":
            return x * 0 if whole == 1 else x * (n - 1) / (whole - 1)
        case "asymmetric":
            return x / scale
        case "tf_crop_and_resize":
            middle = (end - begin) * (n - 1) / 2 + x * 0
            inside = middle if out == 1 else x * (end - begin) * (n - 1) / (out - 1)
            return inside + begin * (n - 1)
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "pytorch_half_pixel":
            return x * 0 - 0.5 if out == 1 else (x + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return n / 2 * (1 - out / whole) + (x + 0.5) / scale - 0.5
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
    raise ValueError(f"there is no coordinate_transformation_mode {mode!r}")


_NEAREST: dict[str, Any] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic(x: Any, a: float) -> Any:
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    return np.where(x <= 1, near, np.where(x < 2, a * (x**3 - 5 * x**2 + 8 * x - 4), 0))


def _taps(
    mode: str, x: Any, scale: float, antialias: bool, a: float, nearest: str
) -> tuple[Any, Any]:
    """The pixels that are read, (taps, out), and their weights."""
    if mode == "nearest":
        return _NEAREST[nearest](x)[None], np.ones((1, len(x)))
    base = np.ceil(x) - 1
    factor = min(scale, 1.0) if antialias else 1.0
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / factor) + 1
    steps = np.arange(first, 2 - first if mode == "linear" and antialias else 1 - first + 1)
    if mode == "linear" and not antialias:
        steps = np.arange(0, 2)
    distance = (steps[:, None] - (x - base)[None]) * factor
    weights = np.clip(1 - np.abs(distance), 0, 1) if mode == "linear" else _cubic(distance, a)
    if antialias:
        weights = weights / weights.sum(0)
    return base[None] + steps[:, None], weights


def _resized(x: Any, axis: int, places: Any, weights: Any, exclude: bool, outside: Any) -> Any:
    """An axis read at other places: a sum over taps."""
    n = int(x.shape[axis])
    if exclude:
        weights = np.where((places >= 0) & (places < n), weights, 0)
        weights = weights / weights.sum(0)
    places = np.clip(places, 0, n - 1).astype(np.int64)
    shape = [1] * x.ndim
    shape[axis] = -1
    if len(places) == 1:
        y = _picked(x, axis, places[0])
    else:
        y = sum(
            fn.index_select(x, axis, as_tensor(p))
            * as_tensor(w.astype(x.dtype.numpy)).reshape(*shape)
            for p, w in zip(places, weights, strict=True)
            if w.any()
        )
    if outside is not None:
        mask, value = outside
        y = fn.where(as_tensor(mask).reshape(*shape), value, y)
    return y


def _picked(x: Any, axis: int, places: Any) -> Any:
    """Pixels of an axis; each repeated, if it is that."""
    n = int(x.shape[axis])
    times = len(places) // n if n and len(places) % n == 0 else 0
    if times > 1 and np.array_equal(places, np.arange(len(places)) // times):
        wide = fn.unsqueeze(x, axis + 1)
        shape = list(wide.shape)
        shape[axis + 1] = times
        final = list(x.shape)
        final[axis] = n * times
        return wide.expand(tuple(shape)).reshape(tuple(final))
    return fn.index_select(x, axis, as_tensor(places))


@operator("Resize", since=11)
def resize(
    x: Any, roi: Host = None, scales: Host = None, sizes: Host = None, *, mode: str = "nearest",
    antialias: int = 0, axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", nearest_mode: str = "round_prefer_floor",
) -> Any:  # fmt: skip
    """An image in another size."""
    chosen = [a % x.ndim for a in (axes if axes is not None else range(x.ndim))]
    extents = [int(x.shape[a]) for a in chosen]
    factors, wanted = _targets(extents, scales, sizes, keep_aspect_ratio_policy)
    cropping = coordinate_transformation_mode == "tf_crop_and_resize"
    corners = roi.reshape(2, -1) if cropping else np.array([[0.0], [1.0]]).repeat(len(chosen), 1)
    dtype = x.dtype
    y = x if dtype.is_float or mode == "nearest" else x.to(dtypes.float32)
    for k, axis in enumerate(chosen):
        n, out, scale = extents[k], wanted[k], factors[k]
        if n == out and scale == 1 and not cropping:
            continue
        at = _coordinates(coordinate_transformation_mode, n, out, scale, *map(float, corners[:, k]))
        places, weights = _taps(mode, at, scale, bool(antialias), cubic_coeff_a, nearest_mode)
        outside = ((at < 0) | (at > n - 1), extrapolation_value) if cropping else None
        y = _resized(y, axis, places, weights, bool(exclude_outside), outside)
    return y if y.dtype == dtype else fn.round(y).to(dtype)


def _targets(
    extents: list[int], scales: Any, sizes: Any, policy: str
) -> tuple[list[float], list[int]]:
    """The factor and the new size of each axis."""
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
        return factors, [math.floor(n * s) for n, s in zip(extents, factors, strict=True)]
    wanted = ints(sizes) or []
    factors = [w / n for w, n in zip(wanted, extents, strict=True)]
    if policy != "stretch":
        factor = min(factors) if policy == "not_larger" else max(factors)
        return [factor] * len(extents), [math.floor(factor * n + 0.5) for n in extents]
    return factors, wanted


@operator("Resize", since=10)
@operator("Upsample")
def upsample(
    x: Any, scales: Host = None, *, mode: str = "nearest", height_scale: float | None = None,
    width_scale: float | None = None,
) -> Any:  # fmt: skip
    """An image in another size, as older versions read it."""
    factors = scales
    if factors is None:
        factors = [1.0, 1.0, height_scale, width_scale]
    return resize(
        x, None, np.asarray(factors, np.float32), mode="linear" if mode == "bilinear" else mode,
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


@operator("AffineGrid")
def affine_grid(theta: Any, size: Host, *, align_corners: int = 0) -> Any:
    """The places at which an affine map reads an image."""
    return fn.affine_grid(theta, ints(size) or [], bool(align_corners))


@operator("GridSample")
def grid_sample(
    x: Any, grid: Any, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Any:
    """An image read at given places."""
    if x.ndim == 5 and mode in ("cubic", "bicubic"):
        raise NotImplementedError("cubic GridSample of volumes")
    names = {"linear": "bilinear", "cubic": "bicubic"}
    return fn.grid_sample(x, grid, names.get(mode, mode), padding_mode, bool(align_corners))
