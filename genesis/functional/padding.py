"""Padding: more elements around a tensor, whose gradients go where the elements came from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from genesis import ndarray as nd
from genesis.functional.elementwise_function import as_number
from genesis.functional.function import with_gradient
from genesis.functional.linear_map import LinearMap
from genesis.functional.movement import narrow


def _cut(grad: Any, widths: Any) -> Any:
    there = partial(nd.pad_gradient, widths=widths)
    return LinearMap.apply(grad, there, partial(nd.pad, widths=widths))


@with_gradient(_cut)
def _pad(x: Any, widths: Any, value: Any) -> Any:
    """A number around x. As it is no part of the gradient, neither is it of the gradient's."""
    return nd.pad(x, widths, value)


def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """More elements around a tensor: (before, after) for the last dimension, the one before, ..

    `mode` "constant" adds `value`, "reflect" mirrors at the edge, "replicate" repeats it, and
    "circular" goes on from the other end. Negative numbers cut off.

    >>> import genesis
    >>> pad(genesis.tensor([1.0, 2.0, 3.0]), (2, 1), mode="reflect").tolist()
    [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]
    """
    rank = len(input.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise ValueError(
            f"pad: needs two numbers for each of at most {rank} dimensions of shape "
            f"{tuple(input.shape)}, got {tuple(pad)}"
        )
    if mode != "constant" and value:
        raise ValueError(f"pad: mode {mode!r} takes no value, got {value}")
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    widths = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    if mode == "constant":
        return _pad(input, widths, as_number(value or 0, input.dtype))
    if mode == "replicate":
        for axis, (low, high) in enumerate(widths):
            length = input.shape[axis]
            if (
                min(low, high) < 0
                and length + min(low, 0) + min(high, 0) < 1 <= length + low + high
            ):
                # All is cut off but the edge that is repeated.
                input = narrow(input, axis, length - 1 if low < 0 else 0, 1)
                widths[axis] = (0, length + low + high - 1)
    there = partial(nd.pad, widths=widths, mode=mode)
    return LinearMap.apply(input, there, partial(nd.pad_gradient, widths=widths, mode=mode))


__all__ = ["pad"]
