"""What torchvision's detection models call: boxes that do not overlap, regions of images."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import bool_, float32, int64
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import implements


@implements("torchvision::nms")
def _nms(dets: NDArray, scores: NDArray, iou_threshold: float) -> NDArray:
    """The boxes that no better one covers, the best first: decided in the order of their scores."""
    order = nd.argsort(scores, descending=True)
    count = order.shape[0]
    boxes = nd.index_select(dets, order, 0)
    low, high = boxes[:, :2], boxes[:, 2:]
    area = nd.prod(high - low, 1)
    shared = nd.prod(
        nd.maximum(
            nd.minimum(high[:, None], high[None]) - nd.maximum(low[:, None], low[None]),
            nd.zeros((), dets.dtype, dets.device),
        ),
        2,
    )
    covers = nd.greater(shared / (area[:, None] + area[None] - shared), iou_threshold)

    def decide(gone: NDArray, box: tuple[NDArray, NDArray]) -> tuple[NDArray, NDArray]:
        place, covered = box
        kept = nd.logical_not(nd.take(gone, place))
        return nd.logical_or(gone, nd.logical_and(covered, kept)), kept

    places = nd.arange(count, dtype=int64, device=dets.device)
    after = nd.greater(places[None], places[:, None])
    begin = nd.zeros(count, bool_, dets.device)
    _, kept = nd.scan(decide, begin, (places, nd.logical_and(covers, after)))
    return nd.masked_select(order, kept)


@implements("torchvision::roi_align")
def _roi_align(
    input: NDArray, rois: NDArray, spatial_scale: float, pooled_height: int, pooled_width: int,
    sampling_ratio: int, aligned: bool,
) -> NDArray:  # fmt: skip
    """Regions, read in a grid of points between pixels: the mean of the points of each bin."""
    images, channels, height, width = input.shape
    size = (images, height, width)
    bins = (pooled_height, pooled_width)
    pixels, weights = _points(rois, spatial_scale, bins, sampling_ratio, aligned, size)
    rows = input.permute(0, 2, 3, 1).reshape(images * height * width, channels)
    taken = nd.take(rows, pixels, 0).astype(float32) * weights[..., None]
    return nd.sum(taken, 3).permute(0, 3, 1, 2).astype(input.dtype)


@implements("torchvision::_roi_align_backward")
def _roi_align_backward(
    grad: NDArray, rois: NDArray, spatial_scale: float, pooled_height: int, pooled_width: int,
    batch_size: int, channels: int, height: int, width: int, sampling_ratio: int, aligned: bool,
) -> NDArray:  # fmt: skip
    size = (batch_size, height, width)
    bins = (pooled_height, pooled_width)
    pixels, weights = _points(rois, spatial_scale, bins, sampling_ratio, aligned, size)
    given = grad.permute(0, 2, 3, 1)[:, :, :, None].astype(float32) * weights[..., None]
    rows = nd.zeros((batch_size * height * width, channels), float32, grad.device)
    total = nd.index_add(rows, pixels.reshape(-1), given.reshape(-1, channels))
    return total.reshape(*size, channels).permute(0, 3, 1, 2).astype(grad.dtype)


def _points(
    rois: NDArray, scale: float, bins: tuple[int, int], ratio: int, aligned: bool, size: Any
) -> tuple[NDArray, NDArray]:
    """For every bin of every region the pixels around its points, and their weights in the mean."""
    _, height, width = size
    rois = rois.astype(float32)
    x1, y1, x2, y2 = (rois[:, k] * scale - (0.5 if aligned else 0.0) for k in range(1, 5))
    extents = [y2 - y1, x2 - x1]
    if not aligned:
        extents = [nd.maximum(e, nd.ones((), float32, rois.device)) for e in extents]
    rows, row_weights = _along(y1, extents[0], bins[0], ratio, height)
    columns, column_weights = _along(x1, extents[1], bins[1], ratio, width)
    first = (rois[:, 0].astype(int64) * height)[:, None, None, None, None]
    pixels = (first + rows[:, :, None, :, None]) * width + columns[:, None, :, None]
    weights = row_weights[:, :, None, :, None] * column_weights[:, None, :, None]
    shape = (*pixels.shape[:3], pixels.shape[3] * pixels.shape[4])
    return pixels.reshape(shape), weights.reshape(shape)


def _along(
    start: NDArray, extent: NDArray, bins: int, ratio: int, limit: int
) -> tuple[NDArray, NDArray]:
    """Pixels and weights along one axis: by region and bin, two for each point."""
    step = (extent / bins)[:, None, None]
    device = start.device
    if ratio > 0:
        most, wanted = ratio, nd.full((), float(ratio), float32, device=device)
    else:  # as many points as pixels, which regions decide; none where they end before they begin
        several = nd.ceil(extent / bins)
        most = max(int(nd.max(several).item()), 1) if start.shape[0] else 1
        wanted = several[:, None, None]
    count = nd.maximum(wanted, nd.ones((), float32, device))
    points = nd.arange(most, dtype=float32, device=device)
    at = (
        start[:, None, None]
        + nd.arange(bins, dtype=float32, device=device)[None, :, None] * step
        + (points + 0.5) * step / count
    )
    inside = nd.logical_and(nd.greater_equal(at, -1.0), nd.less_equal(at, float(limit)))
    inside = nd.logical_and(inside, nd.less(points, wanted))
    at = nd.clip(at, 0.0, float(limit - 1))
    low = nd.floor(at)
    part = at - low
    high = nd.minimum(low + 1, nd.full((), float(limit - 1), float32, device=device))
    share = inside.astype(float32) / count
    pixels = nd.concat([low, high], -1).astype(int64)
    return pixels, nd.concat([(1 - part) * share, part * share], -1)
