"""Results that were made for a tensor without depending on it: what is drawn, what is constant."""

from __future__ import annotations

from typing import Any

from genesis.functional.function import plain, with_gradient
from genesis.ndarray import zeros_like


def _nothing(grad: Any, x: Any) -> tuple[Any, Any]:
    return plain(zeros_like, x), grad


@with_gradient(_nothing)
def unrelated(x: Any, result: Any) -> Any:
    """The result, on the tape all the same: the gradient of `x` is zero rather than missing."""
    return result


__all__ = ["unrelated"]
