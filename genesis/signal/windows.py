"""Windows of M points: symmetric, or with ``sym=False`` periodic; options as of `genesis.zeros`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import as_dtype, float64
from genesis.ndarray import NDArray
from genesis.tensor import window_functions
from genesis.tensor.creation import get_default_dtype
from genesis.tensor.tensor import Tensor


def _points(
    name: str,
    M: int,
    formula: Callable[[NDArray], NDArray],
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
    layout: Any = None,
) -> Tensor:
    """A formula of the numbers of the points."""
    target = get_default_dtype() if dtype is None else as_dtype(dtype)
    if M < 0 or not target.is_float:
        raise ValueError(f"{name}: cannot make {M} points of {target}")
    if M <= 1:
        return Tensor(nd.ones(M, target, device), requires_grad)
    values = formula(nd.arange(M, dtype=float64, device=device))
    return Tensor(nd.astype(values, target), requires_grad)


def _last(M: int, sym: bool) -> int:
    """The number of the last point, or of the one after it where the window goes round."""
    return M - 1 if sym else M


def bartlett(M: int, *, sym: bool = True, layout: Any = None, **options: Any) -> Tensor:
    """A triangle."""
    return window_functions.bartlett_window(M, not sym, **options)


def blackman(M: int, *, sym: bool = True, layout: Any = None, **options: Any) -> Tensor:
    """A sum of two cosines."""
    return window_functions.blackman_window(M, not sym, **options)


def hamming(M: int, *, sym: bool = True, layout: Any = None, **options: Any) -> Tensor:
    """A raised cosine that does not end at zero."""
    return window_functions.hamming_window(M, not sym, **options)


def hann(M: int, *, sym: bool = True, layout: Any = None, **options: Any) -> Tensor:
    """A raised cosine.

    >>> hann(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    return window_functions.hann_window(M, not sym, **options)


def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, layout: Any = None, **options: Any
) -> Tensor:
    """``alpha - (1 - alpha) * cos``."""
    return window_functions.hamming_window(M, not sym, alpha, 1 - alpha, **options)


def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, layout: Any = None, **options: Any
) -> Tensor:
    """Bessel's function of a half circle."""
    return window_functions.kaiser_window(M, not sym, beta, **options)


def cosine(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Half a wave."""
    return _points(
        "cosine", M, lambda k: nd.sin((k + 0.5) * (math.pi / (_last(M, sym) + 1))), **options
    )


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **options: Any
) -> Tensor:
    """Decay to both sides of the center."""
    if tau <= 0 or (sym and center is not None):
        raise ValueError("exponential: tau is above 0, and a symmetric window has its own center")
    middle = _last(M, sym) / 2 if center is None else center
    return _points("exponential", M, lambda k: nd.exp(-nd.abs((k - middle) / tau)), **options)


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """A bell."""
    if std <= 0:
        raise ValueError(f"gaussian: std is above 0, not {std}")
    middle = _last(M, sym) / 2
    return _points("gaussian", M, lambda k: nd.exp(-0.5 * nd.square((k - middle) / std)), **options)


def general_cosine(M: int, *, a: Sequence[float], sym: bool = True, **options: Any) -> Tensor:
    """A sum of cosines with these weights."""
    if not isinstance(a, Sequence) or not a:
        raise TypeError("general_cosine: the weights are a list of numbers that is not empty")

    def formula(k: NDArray) -> NDArray:
        total = nd.zeros_like(k)
        for n, weight in enumerate(a):
            total = total + (-1) ** n * weight * nd.cos(k * (2 * math.pi * n / _last(M, sym)))
        return total

    return _points("general_cosine", M, formula, **options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """A sum of four cosines."""
    weights = [0.3635819, 0.4891775, 0.1365995, 0.0106411]
    return general_cosine(M, a=weights, sym=sym, **options)


__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine",
    "general_hamming", "hamming", "hann", "kaiser", "nuttall",
]  # fmt: skip
