"""Helpers for training: bounds for gradients, and parameters as one vector.

Nothing here asks for a number, unless told to, so that it can be part of a recorded step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from genesis import functional
from genesis import ndarray as nd
from genesis.autograd import no_grad
from genesis.ndarray import NDArray, linalg
from genesis.nn.module import Module
from genesis.nn.utils import fusion, parametrizations, parametrize, prune, rnn
from genesis.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from genesis.nn.utils.parametrizations import spectral_norm, weight_norm
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=Module)
Tensors = Tensor | Iterable[Tensor]


def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """The norm of all elements of several tensors, as if they were one vector.

    With `error_if_nonfinite` the norm is computed at once, and NaN and infinity are refused.
    """
    order = float(norm_type)
    norms = [linalg.vector_norm(x.array, order) for x in _listed(tensors)]
    if not norms:
        return Tensor(nd.array(0.0))
    is_own = len(norms) == 1 and order != 0  # order 0 counts the tensors that are not zero
    total: NDArray = norms[0] if is_own else linalg.vector_norm(nd.stack(norms), order)
    if error_if_nonfinite and not nd.isfinite(total).item():
        raise RuntimeError(
            f"get_total_norm: the norm of order {order} is {total.item()}; to go on all the same, "
            "use error_if_nonfinite=False"
        )
    return Tensor(total)


def clip_grads_with_norm_(parameters: Tensors, max_norm: float, total_norm: Tensor) -> None:
    """Scale the gradients so that a norm they have together is at most `max_norm`."""
    with no_grad():
        factor = nd.minimum(max_norm / (total_norm.array + 1e-6), 1.0)
        for grad in _gradients(parameters):
            grad.array.assign(grad.array * factor)


def clip_grad_norm_(
    parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`; gives the norm they had.

    >>> from genesis import ndarray as nd
    >>> x = Tensor(nd.zeros(2), requires_grad=True)
    >>> x.grad = Tensor(nd.array([3.0, 4.0]))
    >>> clip_grad_norm_([x], 1.0).item()
    5.0
    >>> [round(g, 4) for g in x.grad.tolist()]
    [0.6, 0.8]
    """
    listed = _listed(parameters)
    total = get_total_norm(_gradients(listed), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(listed, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensors, clip_value: float) -> None:
    """Bound every element of the gradients: at most `clip_value` either way."""
    with no_grad():
        for grad in _gradients(parameters):
            grad.array.assign(nd.clip(grad.array, -clip_value, clip_value))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters in one vector; gradients flow through it."""
    found: Tensor = functional.cat([functional.reshape(p, (-1,)) for p in parameters])
    return found


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write a vector, cut into pieces, to parameters."""
    listed = list(parameters)
    count = sum(p.numel() for p in listed)
    if tuple(vec.shape) != (count,):
        raise ValueError(
            f"vector_to_parameters: the parameters have {count} elements, the vector's shape is "
            f"{tuple(vec.shape)}"
        )
    start = 0
    with no_grad():
        for p in listed:
            p.array.assign(vec.array[start : start + p.numel()].reshape(p.shape))
            start += p.numel()


def skip_init(module_cls: type[M], *args: Any, **kwargs: Any) -> M:
    """A layer whose first values are not to be relied on, because they are given afterwards.

    They are computed only if they are asked for, as those of every layer.
    """
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise RuntimeError(f"skip_init: {module_cls!r} is no class of modules")
    return module_cls(*args, **kwargs)


def _listed(tensors: Any) -> list[Tensor]:
    if not isinstance(tensors, Iterable):
        raise TypeError(f"parameters are a tensor or several, not {type(tensors).__name__}")
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _gradients(parameters: Tensors) -> list[Tensor]:
    return [grad for p in _listed(parameters) if (grad := p.grad) is not None]


__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "fuse_conv_bn_eval",
    "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights", "fusion",
    "get_total_norm", "parameters_to_vector", "parametrizations", "parametrize", "prune", "rnn",
    "skip_init", "spectral_norm", "vector_to_parameters", "weight_norm",
]  # fmt: skip
