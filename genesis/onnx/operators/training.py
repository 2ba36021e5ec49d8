"""Operators for training: losses, and steps of optimizers."""

from __future__ import annotations

from typing import Any

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import operator


@operator("NegativeLogLikelihoodLoss")
def nll_loss(
    x: Any, target: Any, weight: Any = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Minus the element that the target names, weighted."""
    place = target.to(dtypes.int64)
    known = None if ignore_index is None else place != ignore_index
    safe = place if known is None else fn.where(known, place, fn.mul(place, 0))
    picked = -fn.select(fn.gather(x, 1, fn.unsqueeze(safe, 1)), 1, 0)
    factor = (
        None
        if weight is None
        else fn.index_select(weight, 0, safe.reshape(-1)).reshape(*safe.shape)
    )
    if known is not None:
        counted = known.to(x.dtype)
        factor = counted if factor is None else factor * counted
    loss = picked if factor is None else picked * factor
    if reduction == "none":
        return loss
    if reduction == "sum":
        return fn.sum(loss)
    return fn.mean(loss) if factor is None else fn.sum(loss) / fn.sum(factor)


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    x: Any, target: Any, weight: Any = None, *, ignore_index: int | None = None,
    reduction: str = "mean", outputs: int = 1,
) -> Any:  # fmt: skip
    """The cross entropy of a softmax, and the logarithms of the softmax."""
    logs = fn.log_softmax(x, 1)
    loss = nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    return (loss, logs)[:outputs]


_TRAINING = "ai.onnx.preview.training"


@operator("Adagrad", domain=_TRAINING)
def adagrad(
    rate: Any, count: Any, *tensors: Any, decay_factor: float = 0.0, epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> Any:  # fmt: skip
    """A step of Adagrad for each parameter."""
    n = len(tensors) // 3
    rate = rate / (1 + count * decay_factor)
    new, squares = [], []
    for x, g, h in zip(tensors[:n], tensors[n : 2 * n], tensors[2 * n :], strict=True):
        g = g + norm_coefficient * x
        h = h + g * g
        new.append(x - rate * g / (fn.sqrt(h) + epsilon))
        squares.append(h)
    return (*new, *squares)


@operator("Momentum", domain=_TRAINING)
def momentum(
    rate: Any, count: Any, *tensors: Any, alpha: float, beta: float, mode: str,
    norm_coefficient: float,
) -> Any:  # fmt: skip
    """A step with momentum for each parameter."""
    n = len(tensors) // 3
    new, speeds = [], []
    for x, g, v in zip(tensors[:n], tensors[n : 2 * n], tensors[2 * n :], strict=True):
        g = g + norm_coefficient * x
        v = alpha * v + fn.where(count > 0, fn.mul(g, beta), g)
        new.append(x - rate * (g + alpha * v if mode == "nesterov" else v))
        speeds.append(v)
    return (*new, *speeds)


@operator("Adam", domain=_TRAINING)
def adam(
    rate: Any, count: Any, *tensors: Any, alpha: float = 0.9, beta: float = 0.999,
    epsilon: float = 1e-6, norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> Any:  # fmt: skip
    """A step of Adam for each parameter."""
    n = len(tensors) // 4
    parts = [tensors[k * n : (k + 1) * n] for k in range(4)]
    steps = count.to(dtypes.float32)
    corrected = fn.sqrt(1 - fn.pow(beta + fn.mul(steps, 0), steps)) / (
        1 - fn.pow(alpha + fn.mul(steps, 0), steps)
    )
    rate = fn.where(count > 0, rate * corrected, rate)
    new, firsts, seconds = [], [], []
    for x, g, v, h in zip(*parts, strict=True):
        g = g + norm_coefficient * x
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        new.append((1 - norm_coefficient_post) * (x - rate * v / (fn.sqrt(h) + epsilon)))
        firsts.append(v)
        seconds.append(h)
    return (*new, *firsts, *seconds)
