"""Demands on the numbers of a tensor, which are checked when they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional.function import Function


class Demanded(Function):
    """An array none of whose elements is wrong; else there is a ValueError where it is needed."""

    @staticmethod
    def forward(ctx: Any, x: Any, wrong: Callable[[Any], Any], complaint: str) -> Any:
        return nd.demand(x, wrong, complaint)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None, None


def demanded(x: Any, wrong: Callable[[Any], Any], complaint: str) -> Any:
    """`x`, after a look at ``wrong(x)``: see `genesis.ndarray.demand`."""
    return Demanded.apply(x, wrong, complaint)


__all__ = ["demanded"]
