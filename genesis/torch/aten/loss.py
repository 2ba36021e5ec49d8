"""Losses and their gradients.

`reduction` is a number in PyTorch's operators: 0 leaves the losses of all elements, 1 takes their
mean, 2 their sum. Half precisions are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

from genesis import ndarray as nd
from genesis.ir.dtype import DType, int64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.reduction import wide
from genesis.torch.aten.registry import kernel

Maybe = NDArray | None

#: What `reduction` may be.
NONE, MEAN, SUM = 0, 1, 2


def reduced(losses: NDArray, reduction: int, dtype: DType) -> NDArray:
    """The losses of all elements as `reduction` wants them, in a dtype."""
    if reduction == MEAN:
        losses = nd.mean(losses)
    elif reduction == SUM:
        losses = nd.sum(losses)
    return nd.astype(losses, dtype)


def spread(grad: NDArray, losses: NDArray, reduction: int) -> NDArray:
    """The gradient of every loss, from that of the reduced ones."""
    return wide(grad) / losses.size if reduction == MEAN else wide(grad)


# ---- distances


Loss = Callable[[NDArray, float], NDArray]


def _distance(loss: Loss, self: NDArray, target: NDArray, reduction: int, about: float) -> NDArray:
    """A loss of differences that depends on a number."""
    dtype = common_dtype((self, target))
    return reduced(loss(wide(self) - wide(target), about), reduction, dtype)


def _distance_gradient(
    slope: Loss, grad: NDArray, self: NDArray, target: NDArray, reduction: int, about: float
) -> NDArray:
    difference = wide(self) - wide(target)
    result = slope(difference, about) * spread(grad, difference, reduction)
    return nd.astype(result, common_dtype((grad, self, target)))


def _huber(d: NDArray, delta: float) -> NDArray:
    size = nd.abs(d)
    return nd.where(size <= delta, 0.5 * d * d, delta * (size - 0.5 * delta))


def _huber_slope(d: NDArray, delta: float) -> NDArray:
    return nd.clip(d, -delta, delta)


def _smooth(d: NDArray, beta: float) -> NDArray:
    size = nd.abs(d)
    if beta == 0:
        return size
    return nd.where(size < beta, (0.5 / beta) * d * d, size - 0.5 * beta)


def _smooth_slope(d: NDArray, beta: float) -> NDArray:
    if beta == 0:
        return nd.sign(d)
    return nd.where(nd.abs(d) < beta, d / beta, nd.sign(d))


@kernel("mse_loss")
def _mse_loss(self: NDArray, target: NDArray, reduction: int = MEAN) -> NDArray:
    return _distance(lambda d, _: d * d, self, target, reduction, 0)


@kernel("mse_loss_backward")
def _mse_loss_backward(
    grad_output: NDArray, self: NDArray, target: NDArray, reduction: int
) -> NDArray:
    return _distance_gradient(lambda d, _: 2 * d, grad_output, self, target, reduction, 0)


@kernel("huber_loss")
def _huber_loss(
    self: NDArray, target: NDArray, reduction: int = MEAN, delta: float = 1.0
) -> NDArray:
    return _distance(_huber, self, target, reduction, delta)


@kernel("huber_loss_backward")
def _huber_loss_backward(
    grad_output: NDArray, self: NDArray, target: NDArray, reduction: int, delta: float
) -> NDArray:
    return _distance_gradient(_huber_slope, grad_output, self, target, reduction, delta)


@kernel("smooth_l1_loss")
def _smooth_l1_loss(
    self: NDArray, target: NDArray, reduction: int = MEAN, beta: float = 1.0
) -> NDArray:
    return _distance(_smooth, self, target, reduction, beta)


@kernel("smooth_l1_loss_backward")
def _smooth_l1_loss_backward(
    grad_output: NDArray, self: NDArray, target: NDArray, reduction: int, beta: float
) -> NDArray:
    return _distance_gradient(_smooth_slope, grad_output, self, target, reduction, beta)


# ---- classes


def _classes_last(x: NDArray) -> NDArray:
    return x if x.ndim <= 2 else nd.moveaxis(x, 1, -1)


def _weighted(
    target: NDArray, weight: Maybe, ignore_index: int, dtype: DType
) -> tuple[NDArray, NDArray, NDArray]:
    """Class numbers, 0 where they are ignored; their weights, 0 there; and where they are not."""
    valid = nd.not_equal(target, ignore_index)
    target = nd.where(valid, nd.astype(target, int64), 0)
    if weight is None:
        return target, nd.astype(valid, dtype), valid
    return target, nd.where(valid, nd.take(wide(weight), target, 0), 0.0), valid


@kernel("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(
    self: NDArray, target: NDArray, weight: Maybe, reduction: int, ignore_index: int
) -> tuple[NDArray, NDArray]:
    logs = wide(_classes_last(self))
    classes, weights, valid = _weighted(target, weight, ignore_index, logs.dtype)
    found = nd.squeeze(nd.take_along_axis(logs, nd.unsqueeze(classes, -1), -1, "nll_loss"), -1)
    losses, total = nd.where(valid, -found * weights, 0.0), nd.sum(weights)
    if reduction == NONE:
        if logs.ndim > 1:
            total = nd.zeros((), self.dtype, self.device)
    else:
        losses = nd.sum(losses) / total if reduction == MEAN else nd.sum(losses)
    return nd.astype(losses, self.dtype), nd.astype(total, self.dtype)


@kernel("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(
    grad_output: NDArray,
    self: NDArray,
    target: NDArray,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: NDArray,
) -> NDArray:
    grad = wide(grad_output)
    classes, weights, valid = _weighted(target, weight, ignore_index, grad.dtype)
    if reduction == MEAN:
        grad = grad / wide(total_weight)
    each = nd.unsqueeze(nd.where(valid, -grad * weights, 0.0), -1)
    # A comparison fuses with what follows; a scatter would not.
    number = self.shape[0] if self.ndim == 1 else self.shape[1]
    chosen = nd.equal(nd.unsqueeze(classes, -1), nd.arange(number, device=self.device))
    result = nd.astype(nd.where(chosen, each, 0.0), self.dtype)
    return result if self.ndim <= 2 else nd.moveaxis(result, -1, 1)


# ---- probabilities


def _bounded(logarithm: NDArray) -> NDArray:
    return nd.maximum(logarithm, -100.0)


@kernel("binary_cross_entropy")
def _binary_cross_entropy(
    self: NDArray, target: NDArray, weight: Maybe = None, reduction: int = MEAN
) -> NDArray:
    p, t = wide(self), wide(target)
    losses = (t - 1) * _bounded(nd.log1p(-p)) - t * _bounded(nd.log(p))
    if weight is not None:
        losses = losses * wide(weight)
    return reduced(losses, reduction, self.dtype)


@kernel("binary_cross_entropy_backward")
def _binary_cross_entropy_backward(
    grad_output: NDArray,
    self: NDArray,
    target: NDArray,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> NDArray:
    p, t = wide(self), wide(target)
    slope = (p - t) / nd.maximum((1 - p) * p, 1e-12)
    if weight is not None:
        slope = slope * wide(weight)
    return nd.astype(spread(grad_output, p, reduction) * slope, self.dtype)


@kernel("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(
    self: NDArray,
    target: NDArray,
    weight: Maybe = None,
    pos_weight: Maybe = None,
    reduction: int = MEAN,
) -> NDArray:
    x, t = wide(self), wide(target)
    log_sigmoid = nd.log_sigmoid(x)
    if pos_weight is not None:
        log_sigmoid = log_sigmoid * ((wide(pos_weight) - 1) * t + 1)
    losses = (1 - t) * x - log_sigmoid
    if weight is not None:
        losses = losses * wide(weight)
    return reduced(losses, reduction, common_dtype((self, target)))
