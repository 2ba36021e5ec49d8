"""Fourier transforms: one-dimensional ones by the library, the others axis by axis.

Names, normalisations and defaults are those of `numpy.fft` and `torch.fft`. float32 gives
complex64, float64 complex128.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.ir.dtype import float32, float64
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.complexes import conj
from genesis.ndarray.ops.creation import arange
from genesis.ndarray.ops.library_calls import call
from genesis.ndarray.ops.movement import moveaxis, normal_axis, pad, roll

Axes = Sequence[int] | None
_NORMS = ("backward", "ortho", "forward")


def _prepared(
    name: str, x: NDArray, n: int | None, axis: int, norm: str | None
) -> tuple[NDArray, int, str]:
    """The array with its axis last, the length of the transform, the normalisation."""
    axis = normal_axis(f"fft.{name}", axis, x.ndim)
    length = x.shape[axis].__index__() if n is None else n
    if length < 1:
        raise ValueError(f"fft.{name}: the length must be positive, not {length}")
    if norm is not None and norm not in _NORMS:
        raise ValueError(f"fft.{name}: norm is one of {_NORMS}, not {norm!r}")
    if x.dtype.real not in (float32, float64):
        x = x.astype(float32)
    return moveaxis(x, axis, -1), length, norm or "backward"


def _fitted(x: NDArray, length: int) -> NDArray:
    """The last axis cut, or filled up with zeros, to a length."""
    extent = x.shape[-1].__index__()
    if extent >= length:
        return x[..., :length]
    return pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - extent)])


def _transform(
    name: str, x: NDArray, n: int | None, axis: int, norm: str | None, inverse: bool
) -> NDArray:
    moved, length, scale = _prepared(name, x, n, axis, norm)
    kind = moved.dtype.complex
    moved = _fitted(moved, length).astype(kind)
    results = [(kind, (*moved.shape[:-1], length))]
    (found,) = call("fourier.fft", (length, inverse, scale), [moved.value], results)
    return moveaxis(wrap(found), -1, axis)


def fft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The discrete Fourier transform along an axis."""
    return _transform("fft", x, n, axis, norm, inverse=False)


def ifft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The inverse of `fft`."""
    return _transform("ifft", x, n, axis, norm, inverse=True)


def rfft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The first half of the spectrum of real numbers; the other half mirrors it."""
    if x.dtype.is_complex:
        raise TypeError("fft.rfft: needs real numbers; use fft for complex ones")
    moved, length, scale = _prepared("rfft", x, n, axis, norm)
    moved = _fitted(moved, length)
    results = [(moved.dtype.complex, (*moved.shape[:-1], length // 2 + 1))]
    (found,) = call("fourier.rfft", (length, scale), [moved.value], results)
    return moveaxis(wrap(found), -1, axis)


def irfft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The inverse of `rfft`; `n` is the length of the result, even unless given."""
    extent = x.shape[normal_axis("fft.irfft", axis, x.ndim)].__index__()
    moved, length, scale = _prepared("irfft", x, 2 * (extent - 1) if n is None else n, axis, norm)
    kind = moved.dtype.complex
    moved = _fitted(moved, length // 2 + 1).astype(kind)
    results = [(kind.real, (*moved.shape[:-1], length))]
    (found,) = call("fourier.irfft", (length, scale), [moved.value], results)
    return moveaxis(wrap(found), -1, axis)


def hfft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The spectrum, which is real, of a signal whose second half mirrors the first."""
    return irfft(conj(x), n, axis, _opposite("hfft", norm))


def ihfft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The inverse of `hfft`."""
    return conj(rfft(x, n, axis, _opposite("ihfft", norm)))


def _opposite(name: str, norm: str | None) -> str:
    found = {"backward": "forward", "forward": "backward", "ortho": "ortho"}.get(norm or "backward")
    if found is None:
        raise ValueError(f"fft.{name}: norm is one of {_NORMS}, not {norm!r}")
    return found


# ---- several axes


def _axes(
    name: str, x: NDArray, s: Sequence[int] | None, axes: Axes
) -> list[tuple[int, int | None]]:
    """The axes to transform, each with its length."""
    if axes is None:
        count = x.ndim if s is None else len(s)
        axes = range(x.ndim - count, x.ndim)
    listed = [normal_axis(f"fft.{name}", a, x.ndim) for a in axes]
    if len(set(listed)) != len(listed) or (s is not None and len(s) != len(listed)):
        raise ValueError(f"fft.{name}: sizes {s} and axes {tuple(axes)} do not fit together")
    sizes = [None] * len(listed) if s is None else [None if n == -1 else n for n in s]
    return list(zip(listed, sizes, strict=True))


def _some_axes(
    name: str, x: NDArray, s: Sequence[int] | None, axes: Axes
) -> list[tuple[int, int | None]]:
    listed = _axes(name, x, s, axes)
    if not listed:
        raise ValueError(f"fft.{name}: needs at least one axis, got shape {x.shape}, axes {axes}")
    return listed


def fftn(
    x: NDArray, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None
) -> NDArray:
    """`fft` along several axes, by default all."""
    for axis, n in _axes("fftn", x, s, axes):
        x = fft(x, n, axis, norm)
    return x


def ifftn(
    x: NDArray, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None
) -> NDArray:
    """The inverse of `fftn`."""
    for axis, n in _axes("ifftn", x, s, axes):
        x = ifft(x, n, axis, norm)
    return x


def rfftn(
    x: NDArray, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None
) -> NDArray:
    """`rfft` along the last of several axes, `fft` along the others."""
    *others, (last, n) = _some_axes("rfftn", x, s, axes)
    x = rfft(x, n, last, norm)
    for axis, size in others:
        x = fft(x, size, axis, norm)
    return x


def irfftn(
    x: NDArray, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None
) -> NDArray:
    """The inverse of `rfftn`."""
    *others, (last, n) = _some_axes("irfftn", x, s, axes)
    for axis, size in others:
        x = ifft(x, size, axis, norm)
    return irfft(x, n, last, norm)


def fft2(
    x: NDArray, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> NDArray:
    """`fft` along two axes."""
    return fftn(x, s, axes, norm)


def ifft2(
    x: NDArray, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> NDArray:
    """The inverse of `fft2`."""
    return ifftn(x, s, axes, norm)


def rfft2(
    x: NDArray, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> NDArray:
    """`rfftn` along two axes."""
    return rfftn(x, s, axes, norm)


def irfft2(
    x: NDArray, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> NDArray:
    """The inverse of `rfft2`."""
    return irfftn(x, s, axes, norm)


# ---- frequencies


def fftfreq(n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> NDArray:
    """The frequencies of the elements of a transform of n samples, `d` apart."""
    k = arange(n, dtype=dtype or float32, device=device)
    return (k - (k >= (n + 1) // 2).astype(k.dtype) * n) / (n * d)


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> NDArray:
    """The frequencies of the elements of `rfft`."""
    return arange(n // 2 + 1, dtype=dtype or float32, device=device) / (n * d)


def fftshift(x: NDArray, axes: Axes = None) -> NDArray:
    """With frequency zero in the middle."""
    for axis in range(x.ndim) if axes is None else axes:
        x = roll(x, x.shape[axis].__index__() // 2, axis)
    return x


def ifftshift(x: NDArray, axes: Axes = None) -> NDArray:
    """The inverse of `fftshift`."""
    for axis in range(x.ndim) if axes is None else axes:
        x = roll(x, -(x.shape[axis].__index__() // 2), axis)
    return x


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
