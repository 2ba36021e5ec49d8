"""Losses: how far an output is from what it should be.

Arguments, reductions and conventions are PyTorch's. `reduction` is "mean", "sum" or "none". Losses
are compositions, and so have derivatives of every order; rules of their own have those whose
composed gradient would do more work (the cross entropy of class numbers, whose gradient is softmax
minus one-hot) or fail at the ends of a range (`binary_cross_entropy`, `huber_loss`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from genesis import ndarray as nd
from genesis.functional.activation import log_softmax, logsigmoid, sigmoid
from genesis.functional.arithmetic import cast, where
from genesis.functional.comparison import clamp, clamp_min, gt, ne
from genesis.functional.elementary import abs, exp, log
from genesis.functional.elementwise_function import rule
from genesis.functional.function import (
    chosen_precision,
    one_operation,
    plain,
    with_gradient,
)
from genesis.functional.jit_when_realised import one_program
from genesis.functional.linear import linear
from genesis.functional.movement import permute, reshape, unsqueeze
from genesis.functional.reduction import logsumexp, mean, sum
from genesis.functional.registry import layer
from genesis.functional.special import xlogy
from genesis.functional.value_checks import demanded
from genesis.ir.dtype import int64

F = TypeVar("F", bound=Callable[..., Any])


def loss(name: str, inputs: int = 2, **settings: Any) -> Callable[[F], F]:
    """A layer of so many inputs, see `Layer`, whose precision is chosen, and as one program."""

    def entered(function: F) -> F:
        called = one_program(chosen_precision(one_operation(function)))
        return layer(name, inputs, **settings)(called)

    return entered


def reduced(name: str, losses: Any, reduction: str, weights: Any = None) -> Any:
    """Losses of single elements as `reduction` wants them; a mean is over `weights`, if given."""
    if reduction == "mean":
        return mean(losses) if weights is None else sum(losses) / sum(weights)
    if reduction == "sum":
        return sum(losses)
    if reduction == "none":
        return losses
    raise ValueError(f"{name}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def require_alike(name: str, input: Any, target: Any) -> None:
    """Refuse a target that has not the shape of the input."""
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"{name}: the input has shape {tuple(input.shape)}, the target {tuple(target.shape)}"
        )


# ---- distances


@loss("L1Loss", settings=("reduction",))
def l1_loss(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    """The absolute difference; with a `weight`, the mean is a weighted one."""
    losses = _weighted("l1_loss", abs(input - target), weight)
    return reduced("l1_loss", losses, reduction, weight)


@loss("MSELoss", settings=("reduction",))
def mse_loss(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    """The squared difference; with a `weight`, the mean is a weighted one."""
    difference = input - target
    losses = _weighted("mse_loss", difference * difference, weight)
    return reduced("mse_loss", losses, reduction, weight)


@loss("HuberLoss", settings=("reduction", "delta"))
def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    """Half the square of the difference below `delta`, linear above."""
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be positive, not {delta}")
    losses = _Huber.apply(input - target, float(delta))
    return reduced("huber_loss", _weighted("huber_loss", losses, weight), reduction)


@loss("SmoothL1Loss")
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Like `l1_loss`, but squared below `beta`."""
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, but is {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction)
    losses = _Huber.apply(input - target, float(beta)) / beta
    return reduced("smooth_l1_loss", losses, reduction)


def _weighted(name: str, losses: Any, weight: Any) -> Any:
    if weight is None:
        return losses
    require_alike(f"{name}, weight", losses, weight)
    return losses * weight


def _huber(x: Any, delta: float) -> Any:
    return clamp(x, -delta, delta)


def _huber_of(x: nd.NDArray, delta: float) -> nd.NDArray:
    size = nd.abs(x)
    return nd.where(size < delta, size * size * 0.5, (size - 0.5 * delta) * delta)


_Huber = rule(_huber_of, _huber)

# ---- classes


def _cross_entropy_gradient(grad: Any, x: Any, target: Any) -> Any:
    wide = cast(x, x.dtype.accumulator)
    # What the loss has taken from the scores, and not another sum of powers.
    weights = exp(wide - logsumexp(wide, -1, True))
    right = is_class(target, x.shape[-1])
    return unsqueeze(grad, -1) * where(right, weights - 1, weights)


@with_gradient(_cross_entropy_gradient)
def _cross_entropy(x: Any, target: Any) -> Any:
    """log(sum(exp(x))) - x[target] along the last axis."""
    wide = nd.astype(x, x.dtype.accumulator)
    right = of_class(wide, target, "cross_entropy")
    return nd.astype(nd.logsumexp(wide, -1) - right, x.dtype)


def of_class_gradient(grad: Any, target: Any, classes: Any) -> Any:
    """That of ``x[target]`` along the last axis."""
    return where(is_class(target, classes), unsqueeze(grad, -1), 0.0)


@with_gradient(of_class_gradient)
def _of_class(x: nd.NDArray, target: nd.NDArray, name: str, classes: Any) -> nd.NDArray:
    # A class does not count from the end: what is negative is put where there is none.
    inside = nd.where(target < 0, target - x.shape[-1], target)
    return nd.squeeze(nd.take_along_axis(x, nd.unsqueeze(inside, -1), -1, name), -1)


def of_class(x: Any, target: Any, name: str) -> Any:
    """``x[target]`` along the last axis, for the operation `name`."""
    return _of_class(x, target, name, x.shape[-1])


def is_class(target: Any, classes: Any) -> Any:
    """Which class is the right one: bools along a new last axis."""
    return plain(
        lambda t: nd.unsqueeze(t, -1) == nd.arange(classes, dtype=t.dtype, device=t.device), target
    )


@loss("CrossEntropyLoss", buffers=("weight",))
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """The cross entropy of unnormalised scores and classes, given by number or as probabilities.

    Classes are dimension 1 of the input, or 0 where it has only one.
    """
    name = "cross_entropy"
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"{name}: label_smoothing is in [0, 1], not {label_smoothing}")
    scores = _classes_last(name, input)
    _check_weight(name, weight, scores)
    if target.dtype.is_float:
        if target.ndim == input.ndim - 1:
            raise ValueError(
                f"{name}: the target of shape {tuple(target.shape)} is {target.dtype}; numbers of "
                "classes are integers (target.long()), probabilities have the input's shape"
            )
        require_alike(name, input, target)
        if ignore_index >= 0:
            raise ValueError(f"{name}: ignore_index is for numbers of classes, not probabilities")
        target = _classes_last(name, target)
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / scores.shape[-1]
        logs = log_softmax(scores, -1) * target
        return reduced(name, -sum(logs if weight is None else logs * weight, -1), reduction)
    target, valid = _numbers(name, scores, target, ignore_index)
    if weight is None and label_smoothing == 0.0:
        losses = where(valid, _cross_entropy(scores, target), 0.0)
        return reduced(name, losses, reduction, cast(valid, losses.dtype))
    logs = log_softmax(scores, -1)
    losses, weights = negative_logs(name, logs, target, valid, weight)
    if label_smoothing:
        every = -sum(logs if weight is None else logs * weight, -1) / scores.shape[-1]
        every = where(valid, every, 0.0)
        losses = (1 - label_smoothing) * losses + label_smoothing * every
    return reduced(name, losses, reduction, weights)


@one_program
@chosen_precision
def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Any:
    """`cross_entropy` of ``linear(input, linear_weight, linear_bias)``.

    What `options` ask for, PyTorch's wishes about parts and precision, is the compiler's choice.
    A weight of shape ``(classes, *choices, in)`` is for several choices between the classes.
    """
    form = tuple(linear_weight.shape[:-1])
    rows = reshape(linear_weight, (-1, linear_weight.shape[-1]))
    scores = linear(input, rows, None if linear_bias is None else reshape(linear_bias, (-1,)))
    scores = reshape(scores, (*input.shape[:-1], *form))
    return cross_entropy(scores, target, weight, ignore_index, reduction, label_smoothing)


@loss("NLLLoss", buffers=("weight",))
def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """The negative of the log-probability of the class, given log-probabilities."""
    logs = _classes_last("nll_loss", input)
    _check_weight("nll_loss", weight, logs)
    target, valid = _numbers("nll_loss", logs, target, ignore_index)
    losses, weights = negative_logs("nll_loss", logs, target, valid, weight)
    return reduced("nll_loss", losses, reduction, weights)


def _classes_last(name: str, x: Any) -> Any:
    rank = len(x.shape)
    if rank == 0:
        raise ValueError(f"{name}: the input has no dimension for the classes")
    return x if rank <= 2 else permute(x, (0, *range(2, rank), 1))


def _check_weight(name: str, weight: Any, scores: Any) -> None:
    if weight is not None and tuple(weight.shape) != (scores.shape[-1],):
        raise ValueError(
            f"{name}: weight has shape {tuple(weight.shape)}; it is one number for each of "
            f"{scores.shape[-1]} classes"
        )


def _numbers(name: str, scores: Any, target: Any, ignore_index: int) -> tuple[Any, Any]:
    """Class numbers, 0 where they are ignored; and where they are not."""
    if not target.dtype.is_integer:
        raise TypeError(f"{name}: classes are integers (or probabilities), not {target.dtype}")
    if tuple(scores.shape[:-1]) != tuple(target.shape):
        raise ValueError(
            f"{name}: the target has shape {tuple(target.shape)}; for this input it should have "
            f"{tuple(scores.shape[:-1])}"
        )
    target = cast(target, int64)
    valid = ne(target, ignore_index)
    return where(valid, target, 0), valid


def negative_logs(name: str, logs: Any, target: Any, valid: Any, weight: Any) -> tuple[Any, Any]:
    """The weighted losses, and the weights: both 0 where the target is ignored."""
    losses = -of_class(logs, target, name)
    if weight is None:
        return where(valid, losses, 0.0), cast(valid, losses.dtype)
    weights = where(valid, plain(nd.take, weight, target, 0), 0.0)
    return where(valid, losses * weights, 0.0), weights


# ---- probabilities


def _bce_gradient(grad: Any, p: Any, target: Any, needs: Any) -> Any:
    to_p = to_target = None
    if needs[0]:
        to_p = grad * (p - target) / clamp_min(p * (1 - p), 1e-12)
    if needs[1]:
        to_target = grad * (clamp_min(log(1 - p), -100.0) - clamp_min(log(p), -100.0))
    return to_p, to_target


@with_gradient(_bce_gradient)
def negative_logs_of_both(p: Any, target: Any) -> Any:
    """-(t * log(p) + (1 - t) * log(1 - p)), with logarithms that stop at -100."""
    return -(target * _bounded_log(p) + (1 - target) * _bounded_log(-p, shift=True))


def _bounded_log(x: nd.NDArray, shift: bool = False) -> nd.NDArray:
    return nd.maximum((nd.log1p if shift else nd.log)(x), -100.0)


def _no_probability(x: nd.NDArray) -> nd.NDArray:
    return nd.logical_not((x >= 0) & (x <= 1))  # NaN is none, either


@loss("BCELoss", buffers=("weight",))
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """The cross entropy of probabilities; logarithms stop at -100."""
    name = "binary_cross_entropy"
    require_alike(name, input, target)
    complaint = f"{name}: elements of the %s are not between 0 and 1"
    input = demanded(input, _no_probability, complaint % "input")
    target = demanded(target, _no_probability, complaint % "target")
    losses = negative_logs_of_both(input, target)
    return reduced(name, losses if weight is None else losses * weight, reduction)


@loss("BCEWithLogitsLoss", buffers=("weight", "pos_weight"))
def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """The cross entropy of ``sigmoid(input)``, right for large scores, too."""
    require_alike("binary_cross_entropy_with_logits", input, target)
    positive = logsigmoid(input)
    if pos_weight is not None:
        positive = positive * (1 + (pos_weight - 1) * target)
    losses = (1 - target) * input - positive
    losses = losses if weight is None else losses * weight
    return reduced("binary_cross_entropy_with_logits", losses, reduction)


@loss("KLDivLoss")
def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """The divergence of a distribution, the target, from one whose logarithms are the input.

    `reduction` may also be "batchmean", the sum divided by the first extent, as mathematics has it.
    """
    if log_target:
        losses = exp(target) * (target - input)
    else:
        losses = xlogy(target, target) - target * input
    if reduction == "batchmean":
        return sum(losses) / input.shape[0] if input.shape else losses
    return reduced("kl_div", losses, reduction)


@loss("PoissonNLLLoss")
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """The negative log-likelihood of counts, with Stirling's term for those above 1 if `full`."""
    losses = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        many = gt(target, 1)
        count = where(many, target, 2.0)
        stirling = count * log(count) - count + 0.5 * log(2 * math.pi * count)
        losses = losses + where(many, stirling, 0.0)
    return reduced("poisson_nll_loss", losses, reduction)


@loss("GaussianNLLLoss", 3)
def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """The negative log-likelihood of a normal distribution with mean and variance.

    Variances count as at least `eps`, without a gradient for that.
    """
    if isinstance(var, int | float):
        if var < 0:
            raise ValueError(f"gaussian_nll_loss: the variance {var} is negative")
        var = plain(nd.full_like, input, float(var))
    if tuple(var.shape) == tuple(input.shape[:-1]) != tuple(input.shape):
        var = unsqueeze(var, -1)
    fits = len(var.shape) == len(input.shape) and all(
        n in (1, m) for n, m in zip(var.shape, input.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"gaussian_nll_loss: variances of shape {tuple(var.shape)} do not broadcast to an "
            f"input of shape {tuple(input.shape)}"
        )
    var = demanded(var, lambda v: v < 0, "gaussian_nll_loss: variances are negative")
    safe = var + plain(lambda v: nd.maximum(v, eps) - v, var)
    difference = input - target
    losses = 0.5 * (log(safe) + difference * difference / safe)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return reduced("gaussian_nll_loss", losses, reduction)


# ---- segmentation and imbalance


@loss("FocalLoss")
def focal_loss(
    input: Any,
    target: Any,
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    reduction: str = "mean",
) -> Any:
    """Binary cross entropy of scores that counts what is already right for little.

    A loss is multiplied by (1 - p) ** gamma, where p is the probability given to the truth, and
    `alpha` weighs the positive class, 1 - alpha the negative one (Lin et al. 2017).
    """
    require_alike("focal_loss", input, target)
    if gamma < 0:
        raise ValueError(f"focal_loss: gamma must not be negative, but is {gamma}")
    losses = binary_cross_entropy_with_logits(input, target, reduction="none")
    p = sigmoid(input)
    missed = p + target - 2 * p * target  # 1 - p for the positive class, p for the other
    losses = losses * missed**gamma
    if alpha is not None:
        losses = losses * (alpha * target + (1 - alpha) * (1 - target))
    return reduced("focal_loss", losses, reduction)


@loss("DiceLoss")
def dice_loss(input: Any, target: Any, smooth: float = 1.0, reduction: str = "mean") -> Any:
    """1 - 2 |A ∩ B| / (|A| + |B|) of probabilities and a mask, for each element of the batch."""
    require_alike("dice_loss", input, target)
    a, b = (reshape(x, (x.shape[0], -1)) for x in (input, target))
    losses = 1 - (2 * sum(a * b, -1) + smooth) / (sum(a, -1) + sum(b, -1) + smooth)
    return reduced("dice_loss", losses, reduction)


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "dice_loss",
    "focal_loss", "gaussian_nll_loss", "huber_loss", "kl_div", "l1_loss", "linear_cross_entropy",
    "mse_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
]  # fmt: skip
