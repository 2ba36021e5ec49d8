"""Convolutions: plain, transposed, grouped, dilated, over any number of dimensions.

Both directions and both gradients are one trilinear form: what is forward for a convolution is the
gradient of the input for a transposed one, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.ndarray.ops.sliding_windows import per_axis
from genesis.torch.aten.registry import implements

Sizes = Sequence[Any]


def _per_axis(sizes: Sizes, rank: int) -> tuple[int, ...]:
    return per_axis("convolution", "stride, padding or dilation", sizes, rank)


@implements("convolution", "convolution_overrideable")
def _convolution(
    input: NDArray,
    weight: NDArray,
    bias: NDArray | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: Any,
) -> NDArray:
    rank, groups = weight.ndim - 2, index(groups)
    step, edge, apart = (_per_axis(x, rank) for x in (stride, padding, dilation))
    if not transposed:
        return nd.convolution(input, weight, bias, step, edge, apart, groups)
    extra = _per_axis(output_padding, rank)
    input = _with_room(input, extra, step)
    rest = tuple(e % s for e, s in zip(extra, step, strict=True))
    return nd.convolution_transpose(input, weight, bias, step, edge, rest, groups, apart)


def _with_room(x: NDArray, extra: tuple[int, ...], step: tuple[int, ...]) -> NDArray:
    """The input with zeros after it, to which whole strides of output padding come down."""
    spare = [(0, e // s) for e, s in zip(extra, step, strict=True)]
    if not any(after for _, after in spare):
        return x
    return nd.pad(x, [(0, 0)] * (x.ndim - len(spare)) + spare)


@implements("_convolution", "_convolution.deprecated")
def _convolution_with_flags(*args: Any) -> NDArray:
    return _convolution(*args[:9])


@implements("convolution_backward")
def _convolution_backward(
    grad_output: NDArray,
    input: NDArray,
    weight: NDArray,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: Any,
    output_mask: Sequence[bool],
) -> tuple[NDArray | None, NDArray | None, NDArray | None]:
    rank = weight.ndim - 2
    step, edge, apart = (_per_axis(x, rank) for x in (stride, padding, dilation))
    how = (step, edge, apart, index(groups))
    to_input = to_weight = to_bias = None
    if output_mask[0]:
        turned = nd.conj(weight)
        if transposed:
            to_input = nd.convolution(grad_output, turned, None, *how)
            to_input = to_input[tuple(slice(n) for n in input.shape)]
        else:
            to_input = nd.convolution_input_gradient(grad_output, turned, input.shape, *how)
    if output_mask[1]:
        seen = nd.conj(input)
        if transposed:
            seen = _with_room(seen, _per_axis(output_padding, rank), step)
            to_weight = nd.convolution_weight_gradient(seen, grad_output, weight.shape, *how)
        else:
            to_weight = nd.convolution_weight_gradient(grad_output, seen, weight.shape, *how)
    if output_mask[2]:
        to_bias = nd.sum(grad_output, (0, *range(2, grad_output.ndim)))
    return to_input, to_weight, to_bias


@implements("convolution_backward_overrideable")
def _convolution_backward_overrideable(
    grad_output: NDArray, input: NDArray, weight: NDArray, *how: Any
) -> tuple[NDArray | None, NDArray | None, NDArray | None]:
    return _convolution_backward(grad_output, input, weight, None, *how)
