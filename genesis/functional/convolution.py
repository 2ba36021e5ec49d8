"""Convolutions, transposed ones, and columns of windows.

A convolution, its gradient for the input and its gradient for the weight are three bilinear maps
made of one trilinear form. The gradients of each are the other two, so three short rules give
derivatives of any order. A transposed convolution is the second of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.functional.arithmetic import conj
from genesis.functional.error_messages import per_axis
from genesis.functional.function import Function, one_operation
from genesis.functional.linear_map import LinearMap
from genesis.functional.padding import pad
from genesis.functional.reduction import sum
from genesis.functional.registry import layer
from genesis.functional.spatial_ranks import Sizes, of_ranks


class Geometry(NamedTuple):
    """How windows lie on an input."""

    stride: Sizes
    padding: Sizes | str
    dilation: Sizes
    groups: int


class Convolution(Function):
    """The windows of x times the weight, plus a bias for every output channel."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, how: Geometry) -> Any:
        _keep(ctx, how, x, weight)
        return nd.convolution(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_x = InputGradient.apply(grad, conj(weight), ctx.shapes[0], ctx.how)
        if ctx.needs_input_grad[1]:
            to_weight = WeightGradient.apply(grad, conj(x), ctx.shapes[1], ctx.how)
        if ctx.needs_input_grad[2]:
            to_bias = _over_channels(ctx, grad)
        return to_x, to_weight, to_bias, None


class InputGradient(Function):
    """A convolution's gradient for its input, from that of its result and the weight."""

    @staticmethod
    def forward(ctx: Any, grad: Any, weight: Any, shape: Any, how: Geometry) -> Any:
        _keep(ctx, how, grad, weight)
        return nd.convolution_input_gradient(grad, weight, shape, *how)

    @staticmethod
    def backward(ctx: Any, x: Any) -> Any:
        grad, weight = ctx.saved_tensors
        to_grad = to_weight = None
        if ctx.needs_input_grad[0]:
            to_grad = Convolution.apply(x, conj(weight), None, ctx.how)
        if ctx.needs_input_grad[1]:
            to_weight = WeightGradient.apply(conj(grad), x, ctx.shapes[1], ctx.how)
        return to_grad, to_weight, None, None


class WeightGradient(Function):
    """A convolution's gradient for its weight, from that of its result and the input."""

    @staticmethod
    def forward(ctx: Any, grad: Any, x: Any, shape: Any, how: Geometry) -> Any:
        _keep(ctx, how, grad, x)
        return nd.convolution_weight_gradient(grad, x, shape, *how)

    @staticmethod
    def backward(ctx: Any, weight: Any) -> Any:
        grad, x = ctx.saved_tensors
        to_grad = to_x = None
        if ctx.needs_input_grad[0]:
            to_grad = Convolution.apply(conj(x), weight, None, ctx.how)
        if ctx.needs_input_grad[1]:
            to_x = InputGradient.apply(conj(grad), weight, ctx.shapes[1], ctx.how)
        return to_grad, to_x, None, None


class ConvolutionTranspose(Function):
    """The transpose of a convolution, plus a bias for every output channel."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, how: Geometry, output_padding: Sizes
    ) -> Any:
        _keep(ctx, how, x, weight)
        stride, padding, dilation, groups = how
        assert not isinstance(padding, str)
        return nd.convolution_transpose(
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[2]:
            to_bias = _over_channels(ctx, grad)
        if ctx.needs_input_grad[0]:
            to_x = Convolution.apply(grad, conj(weight), None, ctx.how)
        if ctx.needs_input_grad[1]:
            to_weight = WeightGradient.apply(conj(x), grad, ctx.shapes[1], ctx.how)
        return to_x, to_weight, to_bias, None, None


def _keep(ctx: Any, how: Geometry, first: Any, second: Any) -> None:
    """For the way back: of two factors those that the gradient of the other needs."""
    needs = ctx.needs_input_grad or (True, True)
    ctx.how, ctx.shapes = how, (first.shape, second.shape)
    ctx.save_for_backward(first if needs[1] else None, second if needs[0] else None)


def _over_channels(ctx: Any, grad: Any) -> Any:
    """The gradient of a bias: the sum over everything but channels."""
    n, spatial = len(grad.shape), len(ctx.shapes[1]) - 2
    batch = (0,) if n == spatial + 2 else ()
    return sum(grad, (*batch, *range(n - spatial, n)))


# ---- convolutions


@one_operation
def conv(
    rank: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """The sum over every window of ``(batch, channels, {sizes})`` times the weight.

    >>> import genesis
    >>> x, w = genesis.ones(1, 1, 3, 3), genesis.ones(1, 1, 2, 2)
    >>> conv2d(x, w, stride=2, padding=1).tolist()
    [[[[1.0, 2.0], [2.0, 4.0]]]]
    """
    _require_rank(f"conv{rank}d", rank, input, weight)
    return Convolution.apply(input, weight, bias, Geometry(stride, padding, dilation, groups))


conv1d, conv2d, conv3d = of_ranks(conv, 1, 2, 3)


def _require_rank(name: str, rank: int, input: Any, weight: Any) -> None:
    if len(weight.shape) != rank + 2 or len(input.shape) not in (rank + 1, rank + 2):
        raise ValueError(
            f"{name}: needs an input (batch, channels, {rank} spatial dimensions), or without the "
            f"batch, and a weight (out, channels/groups, {rank} spatial dimensions); got shapes "
            f"{tuple(input.shape)} and {tuple(weight.shape)}"
        )


def conv_transpose(
    rank: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Any:
    """The transpose of a convolution of ``(batch, out, {sizes})``.

    Its weight is ``(channels, out/groups, *window)``.
    """
    name = f"conv_transpose{rank}d"
    _require_rank(name, rank, input, weight)
    more = per_axis(name, "output_padding", output_padding, rank)
    step = per_axis(name, "stride", stride, rank)
    apart = per_axis(name, "dilation", dilation, rank)
    if any(e >= max(s, d) for e, s, d in zip(more, step, apart, strict=True)):
        raise ValueError(
            f"{name}: output_padding {more} must be smaller than stride {step} or dilation {apart}"
        )
    if any(e >= s > 0 for e, s in zip(more, step, strict=True)):
        # Whole strides of it are like zeros after the input, for which gradients need no rule.
        zeros = [(0, e // s) for e, s in zip(more, step, strict=True)]
        input = pad(input, [width for pair in reversed(zeros) for width in pair])
        more = tuple(e % s for e, s in zip(more, step, strict=True))
    how = Geometry(stride, padding, dilation, groups)
    return ConvolutionTranspose.apply(input, weight, bias, how, more)


conv_transpose1d, conv_transpose2d, conv_transpose3d = of_ranks(conv_transpose, 1, 2, 3)


# ---- columns


@layer("Unfold")
def unfold(
    input: Any, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Any:
    """The windows of images ``(n, channels, h, w)`` as columns ``(n, channels*window, count)``."""
    sizes, windows = _columns(kernel_size, dilation, padding, stride)
    length = tuple(input.shape[-2:])
    there = partial(nd.unfold, kernel_size=sizes, **windows)
    back = partial(nd.fold, output_size=length, kernel_size=sizes, **windows)
    return LinearMap.apply(input, there, back)


@layer("Fold")
def fold(
    input: Any,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Any:
    """Columns ``(n, channels*window, count)`` added up where `unfold` reads them."""
    sizes, windows = _columns(kernel_size, dilation, padding, stride)
    there = partial(nd.fold, output_size=output_size, kernel_size=sizes, **windows)
    return LinearMap.apply(input, there, partial(nd.unfold, kernel_size=sizes, **windows))


def _columns(
    kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> tuple[tuple[int, ...], dict[str, Any]]:
    sizes = per_axis("unfold", "kernel_size", kernel_size, 2)
    return sizes, {"dilation": dilation, "padding": padding, "stride": stride}


__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "fold",
]  # fmt: skip
