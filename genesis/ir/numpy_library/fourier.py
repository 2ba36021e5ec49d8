"""Discrete Fourier transforms along the last axis, by NumPy's pocketfft."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def fft(options: tuple[int, bool, str], x: Array) -> tuple[Array]:
    """Complex to complex; options (length, inverse, normalisation)."""
    n, inverse, norm = options
    transform = np.fft.ifft if inverse else np.fft.fft
    return (transform(x, n, -1, norm),)  # type: ignore[arg-type]


def rfft(options: tuple[int, str], x: Array) -> tuple[Array]:
    """Real to the first half of a symmetric spectrum; options (length, normalisation)."""
    n, norm = options
    return (np.fft.rfft(x, n, -1, norm),)  # type: ignore[arg-type]


def irfft(options: tuple[int, str], x: Array) -> tuple[Array]:
    """The first half of a symmetric spectrum to real; options (length, normalisation)."""
    n, norm = options
    return (np.fft.irfft(x, n, -1, norm),)  # type: ignore[arg-type]


__all__ = ["fft", "irfft", "rfft"]
