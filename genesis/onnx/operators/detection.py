"""Operators for detection: boxes and regions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.onnx.registry import Host, operator


@operator("NonMaxSuppression")
def non_max_suppression(
    boxes: Host, scores: Host, most: Host = None, iou_threshold: Host = None,
    score_threshold: Host = None, *, center_point_box: int = 0,
) -> Any:  # fmt: skip
    """The best boxes of each class that do not overlap a better one too much."""
    limit = 0 if most is None else int(most.reshape(()))
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(()))
    least = -math.inf if score_threshold is None else float(score_threshold.reshape(()))
    found = [
        (b, c, k)
        for b in range(scores.shape[0])
        for c in range(scores.shape[1])
        for k in _best(_corners(boxes[b], center_point_box), scores[b, c], limit, overlap, least)
    ]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: Any, centred: int) -> Any:
    if centred:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 1)
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.concatenate([low, high], 1)


def _best(boxes: Any, scores: Any, limit: int, overlap: float, least: float) -> list[int]:
    order = [k for k in np.argsort(-scores, kind="stable") if scores[k] > least]
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], 1)
    left, kept = np.array(order, np.int64), list[int]()
    while len(left) and len(kept) < limit:
        k, left = int(left[0]), left[1:]
        kept.append(k)
        low = np.maximum(boxes[k, :2], boxes[left, :2])
        high = np.minimum(boxes[k, 2:], boxes[left, 2:])
        shared = np.prod(np.maximum(high - low, 0), 1)
        union = areas[k] + areas[left] - shared
        left = left[shared <= overlap * np.maximum(union, 1e-30)]
    return kept


@operator("RoiAlign")
def roi_align(
    x: Any, rois: Host, batch: Host, *, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel", version: int = 16,
) -> Any:  # fmt: skip
    """Regions of an image, read in a grid of points."""
    half = version >= 16 and coordinate_transformation_mode == "half_pixel"
    height, width = (int(n) for n in x.shape[2:])
    results = []
    for box, image in zip(rois * spatial_scale, batch, strict=True):
        x1, y1, x2, y2 = (float(v) - (0.5 if half else 0.0) for v in box)
        w, h = x2 - x1, y2 - y1
        if not half:
            w, h = max(w, 1.0), max(h, 1.0)
        ys, my = _points(y1, h, output_height, sampling_ratio, height)
        xs, mx = _points(x1, w, output_width, sampling_ratio, width)
        rows = _between(x[int(image)], 1, ys, height)
        taken = _between(rows, 2, xs, width)
        channels = int(x.shape[1])
        grid = taken.reshape(channels, output_height, my, output_width, mx)
        results.append(fn.mean(grid, (2, 4)) if mode == "avg" else _greatest(x[int(image)], ys, xs,
                       (channels, output_height, my, output_width, mx)))  # fmt: skip
    return fn.stack(results, 0)


def _points(start: float, extent: float, bins: int, ratio: int, limit: int) -> tuple[Any, int]:
    count = ratio if ratio > 0 else max(1, math.ceil(extent / bins))
    size = extent / bins
    k = np.arange(bins * count)
    return start + (k // count) * size + (k % count + 0.5) * size / count, count


def _taps(at: Any, limit: int) -> tuple[Any, Any, Any, Any]:
    inside = (at >= -1) & (at <= limit)
    at = np.maximum(at, 0)
    low = np.minimum(np.floor(at).astype(np.int64), limit - 1)
    high = np.minimum(low + 1, limit - 1)
    part = np.where(low >= limit - 1, 0, at - low)
    return low, high, (1 - part) * inside, part * inside


def _between(x: Any, axis: int, at: Any, limit: int) -> Any:
    from genesis.onnx.values import as_tensor

    low, high, before, after = _taps(at, limit)
    shape = [1] * x.ndim
    shape[axis] = -1
    a, b = (as_tensor(w.astype(x.dtype.numpy)).reshape(*shape) for w in (before, after))
    return (
        fn.index_select(x, axis, as_tensor(low)) * a + fn.index_select(x, axis, as_tensor(high)) * b
    )


def _greatest(x: Any, ys: Any, xs: Any, grid: tuple[int, ...]) -> Any:
    """The greatest weighted corner of all points in a bin."""
    from genesis.onnx.values import as_tensor

    best = None
    y0, y1, wy0, wy1 = _taps(ys, int(x.shape[1]))
    x0, x1, wx0, wx1 = _taps(xs, int(x.shape[2]))
    for rows, wy in ((y0, wy0), (y1, wy1)):
        for columns, wx in ((x0, wx0), (x1, wx1)):
            part = fn.index_select(fn.index_select(x, 1, as_tensor(rows)), 2, as_tensor(columns))
            part = part * as_tensor((wy[:, None] * wx[None]).astype(x.dtype.numpy))
            best = part if best is None else fn.maximum(best, part)
    assert best is not None
    return fn.amax(best.reshape(*grid), (2, 4))


@operator("MaxRoiPool")
def max_roi_pool(x: Any, rois: Host, *, pooled_shape: Any, spatial_scale: float = 1.0) -> Any:
    """The greatest pixels of regions, cut into bins."""
    height, width = (int(n) for n in x.shape[2:])
    rows = []
    for image, *box in rois:
        x1, y1, x2, y2 = (round(float(v) * spatial_scale) for v in box)
        ys = _bins(y1, max(y2 - y1 + 1, 1), pooled_shape[0], height)
        xs = _bins(x1, max(x2 - x1 + 1, 1), pooled_shape[1], width)
        cells = [
            fn.amax(x[int(image), :, a:b, c:d], (1, 2))
            if b > a and d > c else fn.mul(x[0, :, 0, 0], 0)
            for a, b in ys for c, d in xs
        ]  # fmt: skip
        rows.append(fn.stack(cells, -1).reshape(int(x.shape[1]), *pooled_shape))
    return fn.stack(rows, 0)


def _bins(start: int, extent: int, bins: int, limit: int) -> list[tuple[int, int]]:
    size = extent / bins
    return [
        (min(max(math.floor(k * size) + start, 0), limit),
         min(max(math.ceil((k + 1) * size) + start, 0), limit))
        for k in range(bins)
    ]  # fmt: skip
