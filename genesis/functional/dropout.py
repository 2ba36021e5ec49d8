"""Dropout: random elements, or whole channels, left out in training.

What is kept is drawn from the generator of the tensor's device. It is a function of the
generator's state, so the gradient computes it again rather than reading it from memory, and a
recorded program draws anew whenever it runs.
"""

from __future__ import annotations

import math
from typing import Any

from genesis.functional.arithmetic import where
from genesis.functional.function import plain, written
from genesis.ndarray.core.value import unwatched
from genesis.ndarray.random import bernoulli, default_generator

#: What `selu` goes to for large negative arguments.
_FLOOR = -1.7580993408473766


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Every element left out with probability `p`, the others scaled so that the mean stays."""
    return written(input, _dropped("dropout", input, p, training, input.shape), inplace)


def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Whole channels of ``(batch, channels, length)``, or without the batch, left out."""
    return _channels("dropout1d", input, p, training, inplace, 1)


def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Whole channels of ``(batch, channels, h, w)`` left out. Three dimensions have no width."""
    if len(input.shape) < 2:
        raise ValueError(f"dropout2d: needs (batch, channels, ..), got shape {tuple(input.shape)}")
    return written(input, _dropped("dropout2d", input, p, training, _planes(input)), inplace)


def dropout3d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Whole channels of ``(batch, channels, d, h, w)``, or without the batch, left out."""
    return _channels("dropout3d", input, p, training, inplace, 3)


def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    """Dropout for `selu`: mean 0 and variance 1 stay what they are."""
    return written(input, _alpha("alpha_dropout", input, p, training, input.shape), inplace)


def feature_alpha_dropout(
    input: Any, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    """`alpha_dropout` of whole channels."""
    result = _alpha("feature_alpha_dropout", input, p, training, _planes(input))
    return written(input, result, inplace)


def _channels(name: str, x: Any, p: float, training: bool, inplace: bool, rank: int) -> Any:
    if len(x.shape) not in (rank + 1, rank + 2):
        raise ValueError(
            f"{name}: needs (batch, channels, {rank} spatial dimensions), or without the batch; "
            f"got shape {tuple(x.shape)}"
        )
    shape = _planes(x) if len(x.shape) == rank + 2 else (x.shape[0], *(1,) * rank)
    return written(x, _dropped(name, x, p, training, shape), inplace)


def _planes(x: Any) -> tuple[Any, ...]:
    """One element for each channel of each example."""
    return (*x.shape[:2], *(1,) * (len(x.shape) - 2))


def _kept(name: str, x: Any, p: float, shape: tuple[Any, ...]) -> Any:
    """Which elements are kept."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: p is a probability, not {p}")

    def drawn(like: Any) -> Any:
        return bernoulli(1 - p, shape, default_generator(like.device))

    return plain(drawn, x)


def _dropped(name: str, x: Any, p: float, training: bool, shape: tuple[Any, ...]) -> Any:
    kept = unwatched(_kept, name, x, p, shape) if training else None
    if kept is None or p == 0:
        return x
    return where(kept, x / (1 - p) if p < 1 else x, 0)


def _alpha(name: str, x: Any, p: float, training: bool, shape: tuple[Any, ...]) -> Any:
    kept = unwatched(_kept, name, x, p, shape) if training else None
    if kept is None or p == 0:
        return x
    if p == 1:
        return where(kept, x, 0)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _FLOOR**2))
    return where(kept, x, _FLOOR) * scale - _FLOOR * p * scale


__all__ = [
    "alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout",
]  # fmt: skip
