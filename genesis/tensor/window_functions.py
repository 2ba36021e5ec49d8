"""Window functions of signal processing, as tensors.

Each is a formula of the position in the window. A periodic window, which spectra want, is the
symmetric one of one more point without its last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import as_dtype, float64
from genesis.ndarray import NDArray
from genesis.tensor.creation import get_default_dtype
from genesis.tensor.tensor import Tensor


def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A raised cosine that ends at zero; options as those of `genesis.zeros`."""
    return hamming_window(window_length, periodic, 0.5, 0.5, **options)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    **options: Any,
) -> Tensor:
    """``alpha - beta * cos``; options as those of `genesis.zeros`."""

    def formula(turn: NDArray) -> NDArray:
        return alpha - beta * nd.cos(turn * (2 * math.pi))

    return _window("hamming_window", window_length, periodic, formula, **options)


def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A sum of two cosines; options as those of `genesis.zeros`."""

    def formula(turn: NDArray) -> NDArray:
        return 0.42 - 0.5 * nd.cos(turn * (2 * math.pi)) + 0.08 * nd.cos(turn * (4 * math.pi))

    return _window("blackman_window", window_length, periodic, formula, **options)


def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A triangle; options as those of `genesis.zeros`."""

    def formula(turn: NDArray) -> NDArray:
        return 1 - nd.abs(2 * turn - 1)

    return _window("bartlett_window", window_length, periodic, formula, **options)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any
) -> Tensor:
    """Bessel's function of a half circle; options as those of `genesis.zeros`."""

    def formula(turn: NDArray) -> NDArray:
        height = nd.sqrt(nd.maximum(1 - nd.square(2 * turn - 1), 0))
        return nd.i0(beta * height) / nd.i0(nd.full((), beta, float64, turn.device))

    return _window("kaiser_window", window_length, periodic, formula, **options)


def _window(
    name: str,
    length: int,
    periodic: bool,
    formula: Callable[[NDArray], NDArray],
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A formula of the part of the window that lies before each point."""
    target = get_default_dtype() if dtype is None else as_dtype(dtype)
    if length < 0 or not target.is_float:
        raise ValueError(f"{name}: cannot make {length} points of {target}")
    if length <= 1:
        return Tensor(nd.ones(length, target, device), requires_grad)
    turn = nd.arange(length, dtype=float64, device=device) / (length if periodic else length - 1)
    return Tensor(nd.astype(formula(turn), target), requires_grad)


__all__ = [
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window",
]  # fmt: skip
