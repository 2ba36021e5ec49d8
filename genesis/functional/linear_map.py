"""`LinearMap`: array functions that are linear, whose gradient is the transposed function.

Padding, average pooling, interpolation, rearranging pixels: each is a matrix that nobody writes
down, and the array level has it together with its transpose. One rule serves them all, to any
order: the gradient is the transpose, whose gradient is the function again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.functional.function import Function


class LinearMap(Function):
    """``function(x, *data)``, linear in x, with its transpose; data such as positions is fixed."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, function: Callable[..., Any], transpose: Callable[..., Any], *data: Any
    ) -> Any:
        ctx.pair = function, transpose
        ctx.save_for_backward(*data)
        return function(x, *data)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        function, transpose = ctx.pair
        data = ctx.saved_tensors
        back = LinearMap.apply(grad, transpose, function, *data)
        return (back, None, None, *[None] * len(data))


__all__ = ["LinearMap"]
