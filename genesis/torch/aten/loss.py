"""Losses and their gradients: those of `genesis.functional`, computed in float32 and rounded once.

`reduction` is a number in PyTorch's operators: 0 leaves the losses of all elements, 1 takes their
mean, 2 their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.loss import (
    negative_logs,
    negative_logs_of_both,
    of_class_gradient,
    reduced,
)
from genesis.functional.margin_loss import labels
from genesis.ir.dtype import int64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.backward import gradients
from genesis.torch.aten.half_precision import wide, widened
from genesis.torch.aten.registry import implements

Maybe = NDArray | None

#: The names of reductions.
_NONE, _MEAN = 0, 1
_REDUCTIONS = ("none", "mean", "sum")


def _loss(name: str, loss: Callable[..., Any], at: int = 0, own_backward: bool = False) -> None:
    """Register a loss ``(self, target, ..)`` and its backward; `reduction` is option `at`."""

    def arguments(target: NDArray, options: Sequence[Any]) -> list[Any]:
        given = [wide(x) if isinstance(x, NDArray) else x for x in (target, *options)]
        if len(options) > at:
            given[1 + at] = _REDUCTIONS[options[at]]
        return given

    @implements(name)
    def forward(self: NDArray, target: NDArray, *options: Any) -> NDArray:
        losses: NDArray = loss(wide(self), *arguments(target, options))
        return losses.astype(common_dtype((self, target)))

    if own_backward:
        return

    @implements(f"{name}_backward")
    def backward(grad: NDArray, self: NDArray, target: NDArray, *options: Any) -> NDArray:
        found: NDArray = gradients(loss, grad, [self], *arguments(target, options))[0]
        return found.astype(common_dtype((grad, self, target)))


def _binary_cross_entropy(p: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """Without a look at whether these are probabilities."""
    losses = negative_logs_of_both(p, target)
    weighted = losses if weight is None else losses * weight
    return reduced("binary_cross_entropy", weighted, reduction)


_loss("mse_loss", functional.mse_loss, own_backward=True)
_loss("huber_loss", functional.huber_loss)
_loss("smooth_l1_loss", functional.smooth_l1_loss)
_loss("soft_margin_loss", functional.soft_margin_loss)
_loss("multi_margin_loss", functional.multi_margin_loss, 3)
_loss("binary_cross_entropy", _binary_cross_entropy, 1)


@implements("mse_loss_backward")
def _mse_loss_backward(grad: NDArray, self: NDArray, target: NDArray, reduction: int) -> NDArray:
    """Once in many a training step, and too little work to send a tape through."""
    (g, x, t), dtype = widened(grad, self, target)
    difference = x - t
    each = g / difference.size if reduction == _MEAN else g
    return nd.multiply(difference, each * 2).astype(dtype)


@implements("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(
    self: NDArray,
    target: NDArray,
    weight: Maybe = None,
    pos_weight: Maybe = None,
    reduction: int = _MEAN,
) -> NDArray:
    x, t, w, positive = (p if p is None else wide(p) for p in (self, target, weight, pos_weight))
    losses: NDArray = functional.binary_cross_entropy_with_logits(
        x, t, w, _REDUCTIONS[reduction], positive
    )
    return losses.astype(common_dtype((self, target)))


# ---- several right classes


@implements("multilabel_margin_loss_forward")
def _multilabel_margin_loss(
    self: NDArray, target: NDArray, reduction: int
) -> tuple[NDArray, NDArray]:
    loss = functional.multilabel_margin_loss(wide(self), target, _REDUCTIONS[reduction])
    named = labels(nd.reshape(target, self.shape or (1,)), self.shape[-1] if self.shape else 1)[1]
    return loss.astype(self.dtype), nd.reshape(named, self.shape).astype(self.dtype)


@implements("multilabel_margin_loss_backward")
def _multilabel_margin_loss_backward(
    grad: NDArray, self: NDArray, target: NDArray, reduction: int, is_target: NDArray
) -> NDArray:
    how = target, _REDUCTIONS[reduction]
    found: NDArray = gradients(functional.multilabel_margin_loss, grad, [self], *how)[0]
    return found


# ---- classes


def _classes_last(x: NDArray) -> NDArray:
    return x if x.ndim <= 2 else nd.moveaxis(x, 1, -1)


def _valid(target: NDArray, ignore_index: int) -> tuple[NDArray, NDArray]:
    """Class numbers, 0 where they are ignored; and where they are not."""
    valid = nd.not_equal(target, ignore_index)
    return nd.where(valid, target.astype(int64), 0), valid


@implements("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(
    self: NDArray, target: NDArray, weight: Maybe, reduction: int, ignore_index: int
) -> tuple[NDArray, NDArray]:
    logs, weight = wide(_classes_last(self)), None if weight is None else wide(weight)
    classes, valid = _valid(target, ignore_index)
    losses, weights = negative_logs("nll_loss", logs, classes, valid, weight)
    total = nd.sum(weights)
    if reduction != _NONE:
        losses = nd.sum(losses) / total if reduction == _MEAN else nd.sum(losses)
    elif logs.ndim > 1:
        total = nd.zeros((), self.dtype, self.device)
    return losses.astype(self.dtype), total.astype(self.dtype)


@implements("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(
    grad: NDArray, self: NDArray, target: NDArray, weight: Maybe, reduction: int, *how: Any
) -> NDArray:
    ignore_index, total_weight = how
    grad = wide(grad)
    if reduction == _MEAN:
        grad = grad / wide(total_weight)
    if weight is not None:
        grad = grad * nd.take(wide(weight), _valid(target, ignore_index)[0], 0)
    classes, valid = _valid(target, ignore_index)
    number = self.shape[0] if self.ndim == 1 else self.shape[1]
    each = nd.where(valid, -grad, 0.0)
    found: NDArray = of_class_gradient(each, classes, number).astype(self.dtype)
    return found if self.ndim <= 2 else nd.moveaxis(found, -1, 1)
