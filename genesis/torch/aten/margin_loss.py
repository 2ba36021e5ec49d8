"""Losses that want a margin: what is right must exceed what is wrong by so much."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import int64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.loss import MEAN, Maybe, reduced, spread
from genesis.torch.aten.reduction import wide
from genesis.torch.aten.registry import kernel


@kernel("soft_margin_loss")
def _soft_margin_loss(self: NDArray, target: NDArray, reduction: int = MEAN) -> NDArray:
    losses = -nd.log_sigmoid(wide(target) * wide(self))
    return reduced(losses, reduction, common_dtype((self, target)))


@kernel("soft_margin_loss_backward")
def _soft_margin_loss_backward(
    grad_output: NDArray, self: NDArray, target: NDArray, reduction: int
) -> NDArray:
    x, t = wide(self), wide(target)
    result = -t * nd.sigmoid(-t * x) * spread(grad_output, x, reduction)
    return nd.astype(result, common_dtype((self, target)))


# ---- one right class


def _lacks(
    x: NDArray, target: NDArray, margin: float, weight: Maybe
) -> tuple[NDArray, NDArray, NDArray]:
    """What each wrong class comes too close by, which class is right, and the classes' weights."""
    classes = nd.astype(target, int64)
    right = nd.take_along_axis(x, nd.unsqueeze(classes, -1), -1, "multi_margin_loss")
    is_right = nd.equal(nd.unsqueeze(classes, -1), nd.arange(x.shape[-1], device=x.device))
    lacks = nd.where(is_right, 0.0, nd.maximum(margin - right + x, 0.0))
    if weight is None:
        return lacks, is_right, nd.ones((), x.dtype, x.device) / x.shape[-1]
    weights = nd.take(wide(weight), nd.unsqueeze(classes, -1), 0)
    return lacks, is_right, weights / x.shape[-1]


@kernel("multi_margin_loss")
def _multi_margin_loss(
    self: NDArray,
    target: NDArray,
    p: Any = 1,
    margin: Any = 1,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> NDArray:
    rows, classes = _rows(wide(self)), _rows(target, 1)
    lacks, _, weights = _lacks(rows, classes, margin, weight)
    losses = nd.sum((lacks if p == 1 else lacks * lacks) * weights, -1)
    return reduced(nd.reshape(losses, self.shape[:-1]), reduction, self.dtype)


def _rows(x: NDArray, rank: int = 2) -> NDArray:
    """A batch of one from a single example."""
    return nd.reshape(x, (1,) * (rank - x.ndim) + tuple(x.shape))


@kernel("multi_margin_loss_backward")
def _multi_margin_loss_backward(
    grad_output: NDArray,
    self: NDArray,
    target: NDArray,
    p: Any,
    margin: Any,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> NDArray:
    rows, classes = _rows(wide(self)), _rows(target, 1)
    lacks, is_right, weights = _lacks(rows, classes, margin, weight)
    slopes = (nd.astype(lacks > 0, lacks.dtype) if p == 1 else 2 * lacks) * weights
    slopes = nd.where(is_right, -nd.sum(slopes, -1, keepdims=True), slopes)
    grad = nd.reshape(spread(grad_output, classes, reduction), (-1, 1))
    return nd.astype(nd.reshape(slopes * grad, self.shape), self.dtype)


# ---- several right classes


def _pairs(x: NDArray, target: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """What lacks, by listed class and wrong class; which class is listed where; which are right."""
    classes = nd.astype(target, int64)
    listed = nd.equal(nd.cumsum(classes < 0, -1), 0)
    names = nd.equal(nd.unsqueeze(classes, -1), nd.arange(x.shape[-1], device=x.device))
    names = nd.logical_and(names, nd.unsqueeze(listed, -1))
    right = nd.any(names, -2)
    scores = nd.take_along_axis(x, nd.where(listed, classes, 0), -1, "multilabel_margin_loss")
    lacks = nd.maximum(1 - nd.unsqueeze(scores, -1) + nd.unsqueeze(x, -2), 0.0)
    counts = nd.logical_and(nd.unsqueeze(listed, -1), nd.logical_not(nd.unsqueeze(right, -2)))
    return nd.where(counts, lacks, 0.0), names, right


@kernel("multilabel_margin_loss_forward")
def _multilabel_margin_loss(
    self: NDArray, target: NDArray, reduction: int
) -> tuple[NDArray, NDArray]:
    rows = _rows(wide(self))
    lacks, _, right = _pairs(rows, _rows(target))
    losses = nd.sum(lacks, (-2, -1)) / rows.shape[-1]
    losses = nd.reshape(losses, self.shape[:-1] if self.ndim == 2 else ())
    is_target = nd.astype(nd.reshape(right, self.shape), self.dtype)
    return reduced(losses, reduction, self.dtype), is_target


@kernel("multilabel_margin_loss_backward")
def _multilabel_margin_loss_backward(
    grad_output: NDArray, self: NDArray, target: NDArray, reduction: int, is_target: NDArray
) -> NDArray:
    rows = _rows(wide(self))
    lacks, names, _ = _pairs(rows, _rows(target))
    slopes = nd.astype(lacks > 0, lacks.dtype) / rows.shape[-1]
    to_listed = nd.sum(slopes, -1, keepdims=True)
    result = nd.sum(slopes - nd.where(names, to_listed, 0.0), -2)
    grad = nd.reshape(spread(grad_output, rows[:, 0], reduction), (-1, 1))
    return nd.astype(nd.reshape(result * grad, self.shape), self.dtype)
