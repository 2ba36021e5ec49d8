"""Demands on the numbers of a tensor, which are checked when they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional.function import with_gradient


@with_gradient(lambda grad: grad)
def demanded(x: Any, wrong: Callable[[Any], Any], complaint: str) -> Any:
    """`x`, none of whose elements is wrong; else there is a ValueError where it is needed.

    See `genesis.ndarray.demand`.
    """
    return nd.demand(x, wrong, complaint)


__all__ = ["demanded"]
