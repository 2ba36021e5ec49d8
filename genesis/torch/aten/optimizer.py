"""Fused optimizer steps and the loss scaling of mixed precision.

A step computes in the type of float32 or wider and gives new lists: parameters, gradients (divided
by the loss scale, if there is one) and the optimizer's state. Nothing changes if the gradients were
found to overflow.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.precision import wide
from genesis.torch.aten.registry import implements

Arrays = list[NDArray]


def _unscaled(grad: NDArray, scale: NDArray | None) -> NDArray:
    return grad if scale is None else wide(grad) / scale


def _kept(old: NDArray, new: NDArray, found_inf: NDArray | None) -> NDArray:
    """The new value in the type of the old one, which stays if gradients overflowed."""
    if new is old:
        return old
    new = new.astype(old.dtype)
    return new if found_inf is None else nd.where(found_inf.reshape(()) == 1, old, new)


def _scalar(x: Any) -> Any:
    return x.reshape(()) if isinstance(x, NDArray) else x


# ---- Adam


def _adam(
    parameters: Arrays,
    grads: Arrays,
    averages: Arrays,
    squares: Arrays,
    greatest: Arrays,
    steps: Arrays,
    *,
    decoupled: bool,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: NDArray | None = None,
    found_inf: NDArray | None = None,
) -> tuple[Arrays, ...]:
    rate, scale = _scalar(lr), _scalar(grad_scale)
    results: tuple[Arrays, ...] = ([], [], [], [], [])
    for k, (p, g, m, v, step) in enumerate(
        zip(parameters, grads, averages, squares, steps, strict=True)
    ):
        true = _unscaled(g, scale)
        weight, grad = wide(p), wide(-true if maximize else true)
        if weight_decay and decoupled:
            weight = weight - weight * (rate * weight_decay)
        elif weight_decay:
            grad = grad + weight * weight_decay
        mean = nd.lerp(wide(m), grad, 1 - beta1)
        square = wide(v) * beta2 + grad * grad * (1 - beta2)
        top = nd.maximum(wide(greatest[k]), square) if amsgrad else square
        count = step.reshape(()).astype(float64)
        first, second = (1 - nd.pow(beta, count) for beta in (beta1, beta2))
        size = nd.sqrt(top) / nd.sqrt(second) + eps
        weight = weight - mean / size * (rate / first)
        old_new = [(p, weight), (g, true), (m, mean), (v, square)]
        if amsgrad:
            old_new.append((greatest[k], top))
        for result, (old, new) in zip(results, old_new, strict=False):
            result.append(_kept(old, new, found_inf))
    return results


@implements("_fused_adam", "_fused_adam.tensor_lr")
def _fused_adam(*lists: Arrays, **options: Any) -> tuple[Arrays, ...]:
    return _adam(*lists, decoupled=False, **options)


@implements("_fused_adamw", "_fused_adamw.tensor_lr")
def _fused_adamw(*lists: Arrays, **options: Any) -> tuple[Arrays, ...]:
    return _adam(*lists, decoupled=True, **options)


# ---- the others


@implements("_fused_sgd", "_fused_sgd.tensor_lr")
def _fused_sgd(
    parameters: Arrays,
    grads: Arrays,
    buffers: Arrays,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: NDArray | None = None,
    found_inf: NDArray | None = None,
) -> tuple[Arrays, ...]:
    rate, scale = _scalar(lr), _scalar(grad_scale)
    results: tuple[Arrays, ...] = ([], [], [])
    for k, (p, g) in enumerate(zip(parameters, grads, strict=True)):
        true = _unscaled(g, scale)
        weight, grad = wide(p), wide(-true if maximize else true)
        if weight_decay:
            grad = grad + weight * weight_decay
        old_new = [(p, weight), (g, true)]
        if momentum:
            old = buffers[k]
            buffer = grad if is_first_step else wide(old) * momentum + grad * (1 - dampening)
            grad = grad + buffer * momentum if nesterov else buffer
            old_new.append((old, buffer))
        old_new[0] = (p, weight - grad * rate)
        for result, (before, after) in zip(results, old_new, strict=False):
            result.append(_kept(before, after, found_inf))
    return results


@implements("_fused_adagrad", "_fused_adagrad.tensor_lr")
def _fused_adagrad(
    parameters: Arrays,
    grads: Arrays,
    sums: Arrays,
    steps: Arrays,
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: NDArray | None = None,
    found_inf: NDArray | None = None,
) -> tuple[Arrays, ...]:
    rate, scale = _scalar(lr), _scalar(grad_scale)
    results: tuple[Arrays, ...] = ([], [], [])
    for p, g, s, step in zip(parameters, grads, sums, steps, strict=True):
        true = _unscaled(g, scale)
        weight, grad = wide(p), wide(-true if maximize else true)
        if weight_decay:
            grad = grad + weight * weight_decay
        total = wide(s) + grad * grad
        count = step.reshape(()).astype(float64)
        weight = weight - grad / (nd.sqrt(total) + eps) * (rate / ((count - 1) * lr_decay + 1))
        for result, (old, new) in zip(results, ((p, weight), (g, true), (s, total)), strict=True):
            result.append(_kept(old, new, found_inf))
    return *results, steps


# ---- loss scaling


@implements("_amp_foreach_non_finite_check_and_unscale")
def _unscale(grads: Arrays, found_inf: NDArray, inverse: NDArray) -> tuple[Arrays, NDArray]:
    factor, found = inverse.reshape(()), found_inf
    for g in grads:
        overflow = nd.logical_not(nd.all(nd.isfinite(g)))
        found = nd.where(overflow, 1.0, found)
    return [(wide(g) * factor).astype(g.dtype) for g in grads], found


@implements("_amp_update_scale")
def _update_scale(
    scale: NDArray,
    tracker: NDArray,
    found_inf: NDArray,
    growth: float,
    backoff: float,
    interval: int,
) -> tuple[NDArray, NDArray]:
    overflow, steps = found_inf != 0, tracker + 1
    due = steps == interval
    grown = scale * growth
    scale_after = nd.where(due & nd.isfinite(grown), grown, scale)
    return (
        nd.where(overflow, scale * backoff, scale_after),
        nd.where(overflow | due, 0, steps),
    )
