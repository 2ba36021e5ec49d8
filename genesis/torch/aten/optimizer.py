"""Fused optimizer steps and the loss scaling of mixed precision.

A step computes in the type of float32 or wider and gives new lists: parameters, gradients (divided
by the loss scale, if there is one) and the optimizer's state. Nothing changes if the gradients were
found to overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.half_precision import wide
from genesis.torch.aten.registry import implements

Arrays = list[NDArray]

#: The new parameter and the new state of one, from the old ones, its gradient and the rate.
Update = Callable[..., tuple[NDArray, ...]]


def _kept(old: NDArray, new: NDArray, found_inf: NDArray | None) -> NDArray:
    """The new value in the type of the old one, which stays if gradients overflowed."""
    if new is old:
        return old
    new = new.astype(old.dtype)
    return new if found_inf is None else nd.where(found_inf.reshape(()) == 1, old, new)


def _scalar(x: Any) -> Any:
    return x.reshape(()) if isinstance(x, NDArray) else x


def _fused(name: str, states: int, unchanged: int = 0) -> Callable[[Update], Update]:
    """Register the step of an optimizer with lists of so many `states`, and then of step counts.

    Counts have been raised before; an operator gives so many of its lists back `unchanged`.
    """

    def registered(update: Update) -> Update:
        @implements(name, f"{name}.tensor_lr")
        def step(
            parameters: Arrays,
            grads: Arrays,
            *lists: Arrays,
            lr: Any,
            maximize: bool,
            grad_scale: NDArray | None = None,
            found_inf: NDArray | None = None,
            **options: Any,
        ) -> tuple[Arrays, ...]:
            rate, scale = _scalar(lr), _scalar(grad_scale)
            results: tuple[Arrays, ...] = tuple([] for _ in range(2 + states))
            for k, (p, g) in enumerate(zip(parameters, grads, strict=True)):
                true = g if scale is None else wide(g) / scale
                grad = wide(-true if maximize else true)
                state = [x[k] if x else None for x in lists]
                new, *others = update(wide(p), grad, *state, rate=rate, **options)
                old: list[Any] = [p, g, *state]
                for result, x, y in zip(results, old, (new, true, *others), strict=False):
                    result.append(_kept(x, y, found_inf))
            return *results, *lists[len(lists) - unchanged :]

        return update

    return registered


def _decayed(weight: NDArray, grad: NDArray, weight_decay: float) -> NDArray:
    """The gradient of the loss with a penalty for large weights."""
    return grad + weight * weight_decay if weight_decay else grad


def _count(step: NDArray) -> NDArray:
    return step.reshape(()).astype(float64)


@_fused("_fused_adam", 3)
def _adam(
    weight: NDArray,
    grad: NDArray,
    m: Any,
    v: Any,
    greatest: Any,
    step: Any,
    *,
    rate: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
) -> tuple[NDArray, ...]:
    grad = _decayed(weight, grad, weight_decay)
    mean = nd.lerp(wide(m), grad, 1 - beta1)
    square = wide(v) * beta2 + grad * grad * (1 - beta2)
    top = nd.maximum(wide(greatest), square) if amsgrad else square
    first, second = (1 - nd.pow(beta, _count(step)) for beta in (beta1, beta2))
    size = nd.sqrt(top) / nd.sqrt(second) + eps
    weight = weight - mean / size * (rate / first)
    return (weight, mean, square, top) if amsgrad else (weight, mean, square)


@_fused("_fused_adamw", 3)
def _adamw(
    weight: NDArray, *given: Any, rate: Any, weight_decay: float, **options: Any
) -> tuple[NDArray, ...]:
    if weight_decay:
        weight = weight - weight * (rate * weight_decay)
    return _adam(weight, *given, rate=rate, weight_decay=0.0, **options)


@_fused("_fused_sgd", 1)
def _sgd(
    weight: NDArray,
    grad: NDArray,
    old: Any,
    *,
    rate: Any,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    is_first_step: bool,
) -> tuple[NDArray, ...]:
    grad = _decayed(weight, grad, weight_decay)
    if not momentum:
        return (weight - grad * rate,)
    buffer = grad if is_first_step else wide(old) * momentum + grad * (1 - dampening)
    grad = grad + buffer * momentum if nesterov else buffer
    return weight - grad * rate, buffer


@_fused("_fused_adagrad", 1, unchanged=1)
def _adagrad(
    weight: NDArray,
    grad: NDArray,
    old: Any,
    step: Any,
    *,
    rate: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
) -> tuple[NDArray, ...]:
    grad = _decayed(weight, grad, weight_decay)
    total = wide(old) + grad * grad
    part = grad / (nd.sqrt(total) + eps)
    return weight - part * (rate / ((_count(step) - 1) * lr_decay + 1)), total


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
    scale: NDArray, tracker: NDArray, found_inf: NDArray, *how: Any
) -> tuple[NDArray, NDArray]:
    growth, backoff, interval = how
    overflow, steps = found_inf != 0, tracker + 1
    due = steps == interval
    grown = scale * growth
    scale_after = nd.where(due & nd.isfinite(grown), grown, scale)
    return (
        nd.where(overflow, scale * backoff, scale_after),
        nd.where(overflow | due, 0, steps),
    )
