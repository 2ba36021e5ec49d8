"""Fourier transforms: one-dimensional ones by the library, the others axis by axis.

Names, normalisations and defaults are those of `numpy.fft` and `torch.fft`. float32 gives
complex64, float64 complex128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis.ir.dtype import DType, float32, float64, floating
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.ops.complexes import conj
from genesis.ndarray.ops.creation import arange
from genesis.ndarray.ops.function_variants import variant
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
        x = x.astype(float64 if floating(x.dtype) is float64 else float32)
    return moveaxis(x, axis, -1), length, norm or "backward"


def _fitted(x: NDArray, length: int) -> NDArray:
    """The last axis cut, or filled up with zeros, to a length."""
    extent = x.shape[-1].__index__()
    if extent >= length:
        return x[..., :length]
    return pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - extent)])


def _transform(
    x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None, *, name: str = "fft"
) -> NDArray:
    moved, length, scale = _prepared(name, x, n, axis, norm)
    kind = moved.dtype.complex
    moved = _fitted(moved, length).astype(kind)
    return _called("fft", (length, name == "ifft", scale), moved, (kind, length), axis)


def _called(
    name: str, options: tuple[Any, ...], x: NDArray, result: tuple[DType, int], axis: int
) -> NDArray:
    """A transform of the last axis by the library, which then is where it belongs."""
    kind, length = result
    form = kind, (*x.shape[:-1], length)
    return moveaxis(wrap(*call(f"fourier.{name}", options, [x.value], [form])), -1, axis)


fft = variant(_transform, "fft", "The discrete Fourier transform along an axis.")
ifft = variant(_transform, "ifft", "The inverse of `fft`.")


def rfft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The first half of the spectrum of real numbers; the other half mirrors it."""
    if x.dtype.is_complex:
        raise TypeError("fft.rfft: needs real numbers; use fft for complex ones")
    moved, length, scale = _prepared("rfft", x, n, axis, norm)
    moved = _fitted(moved, length)
    return _called("rfft", (length, scale), moved, (moved.dtype.complex, length // 2 + 1), axis)


def irfft(x: NDArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> NDArray:
    """The inverse of `rfft`; `n` is the length of the result, even unless given."""
    extent = x.shape[normal_axis("fft.irfft", axis, x.ndim)].__index__()
    moved, length, scale = _prepared("irfft", x, 2 * (extent - 1) if n is None else n, axis, norm)
    kind = moved.dtype.complex
    moved = _fitted(moved, length // 2 + 1).astype(kind)
    return _called("irfft", (length, scale), moved, (kind.real, length), axis)


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


def _along_axes(
    x: NDArray,
    s: Sequence[int] | None = None,
    axes: Axes = None,
    norm: str | None = None,
    *,
    name: str = "fftn",
) -> NDArray:
    for axis, n in _axes(name, x, s, axes):
        x = _transform(x, n, axis, norm, name=name[:-1])
    return x


fftn = variant(_along_axes, "fftn", "`fft` along several axes, by default all.")
ifftn = variant(_along_axes, "ifftn", "The inverse of `fftn`.")


def _some_axes(
    name: str, x: NDArray, s: Sequence[int] | None, axes: Axes
) -> list[tuple[int, int | None]]:
    listed = _axes(name, x, s, axes)
    if not listed:
        raise ValueError(f"fft.{name}: needs at least one axis, got shape {x.shape}, axes {axes}")
    return listed


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


def _two_axes(
    x: NDArray,
    s: Any = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    transform: Callable[..., NDArray] = fftn,
) -> NDArray:
    return transform(x, s, axes, norm)


fft2 = variant(_two_axes, "fft2", "`fft` along two axes.")
ifft2 = variant(_two_axes, "ifft2", "The inverse of `fft2`.", transform=ifftn)
rfft2 = variant(_two_axes, "rfft2", "`rfftn` along two axes.", transform=rfftn)
irfft2 = variant(_two_axes, "irfft2", "The inverse of `rfft2`.", transform=irfftn)


# ---- frequencies


def fftfreq(n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> NDArray:
    """The frequencies of the elements of a transform of n samples, `d` apart."""
    k = arange(n, dtype=dtype or float32, device=device)
    return (k - (k >= (n + 1) // 2).astype(k.dtype) * n) / (n * d)


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None, device: str | None = None) -> NDArray:
    """The frequencies of the elements of `rfft`."""
    return arange(n // 2 + 1, dtype=dtype or float32, device=device) / (n * d)


def _shift(x: NDArray, axes: Axes = None, *, direction: int = 1) -> NDArray:
    for axis in range(x.ndim) if axes is None else axes:
        x = roll(x, direction * (x.shape[axis].__index__() // 2), axis)
    return x


fftshift = variant(_shift, "fftshift", "With frequency zero in the middle.")
ifftshift = variant(_shift, "ifftshift", "The inverse of `fftshift`.", direction=-1)


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
