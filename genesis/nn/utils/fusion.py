"""A batch normalisation that no longer learns, made part of the layer before it.

What it does to a channel is then one factor and one shift, and so can be done to the weights.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from genesis.autograd import no_grad
from genesis.nn.module import Module, Parameter
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=Module)


def fuse_conv_bn_eval(conv: M, bn: Module, transpose: bool = False) -> M:
    """A copy of a convolution that does what the convolution and then `bn` do in `eval` mode."""
    return _fused("fuse_conv_bn_eval", conv, bn, transpose)


def fuse_linear_bn_eval(linear: M, bn: Module) -> M:
    """A copy of a linear layer that does what the layer and then `bn` do in `eval` mode."""
    return _fused("fuse_linear_bn_eval", linear, bn, False)


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a convolution followed by a normalisation with given statistics.

    `transpose` says that output channels are dimension 1 of the weight.
    """
    with no_grad():
        factor: Any = (bn_rv + bn_eps).rsqrt()
        if bn_w is not None:
            factor = factor * bn_w
        shift = -bn_rm if conv_b is None else conv_b - bn_rm
        bias = shift * factor if bn_b is None else shift * factor + bn_b
        channels = [1] * conv_w.ndim
        channels[1 if transpose else 0] = -1
        weight = (conv_w * factor.reshape(channels)).to(conv_w.dtype)
    return (
        Parameter(weight, conv_w.requires_grad),
        Parameter(
            bias.to(conv_w.dtype), conv_w.requires_grad if conv_b is None else conv_b.requires_grad
        ),
    )


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer followed by a normalisation with given statistics."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _fused(name: str, layer: M, bn: Any, transpose: bool) -> M:
    if layer.training or bn.training:
        raise ValueError(f"{name}: both layers must be in eval mode; call eval() on them")
    if bn.running_mean is None:
        raise ValueError(f"{name}: {type(bn).__name__} has no running statistics")
    fused: Any = copy.deepcopy(layer)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias,
        transpose,
    )  # fmt: skip
    return fused  # type: ignore[no-any-return]
