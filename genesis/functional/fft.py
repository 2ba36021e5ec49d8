"""Fourier transforms, whose adjoints are Fourier transforms.

Three transforms along one dimension have rules: complex to complex, real to half a spectrum, and
back. Cutting and filling up to a length is movement, other dimensions follow one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, conj, where
from genesis.functional.complexes import real
from genesis.functional.error_messages import normal_dim
from genesis.functional.function import with_gradient, wrapped
from genesis.functional.joining import cat, roll
from genesis.functional.movement import narrow
from genesis.ir.dtype import float32, float64, floating
from genesis.ndarray import fft as arrays

#: The scale of a transform's adjoint: 1, 1/n or its root are the other way round there.
_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _adjoint(grad: Any, dim: int, norm: str, inverse: bool) -> Any:
    return _transform(grad, dim, _OPPOSITE[norm], not inverse)


@with_gradient(_adjoint)
def _transform(x: Any, dim: int, norm: str, inverse: bool) -> Any:
    """The complex transform along a dimension, or its inverse."""
    return (arrays.ifft if inverse else arrays.fft)(x, None, dim, norm)


def _of_half(grad: Any, dim: int, norm: str, length: int) -> Any:
    return real(_transform(_fitted(grad, length, dim), dim, _OPPOSITE[norm], True))


@with_gradient(_of_half)
def _half_transform(x: Any, dim: int, norm: str, length: int) -> Any:
    """The first half of the spectrum of so many real numbers."""
    return arrays.rfft(x, None, dim, norm)


def _of_both_halves(grad: Any, n: int, dim: int, norm: str) -> Any:
    half = _half_transform(grad, dim, _OPPOSITE[norm], n)
    # All but the ends stand for their mirror images, too.
    at = nd.arange(half.shape[dim], device=half.device)
    alone = nd.logical_or(nd.equal(at, 0), nd.equal(at * 2, n))
    sizes = [-1 if d == dim else 1 for d in range(len(half.shape))]
    return where(alone.reshape(*sizes), half, half * 2)


@with_gradient(_of_both_halves)
def _inverse_half_transform(x: Any, n: int, dim: int, norm: str) -> Any:
    """So many real numbers from the first half of their spectrum."""
    return arrays.irfft(x, n, dim, norm)


def _fitted(x: Any, length: int, dim: int) -> Any:
    """A dimension cut, or filled up with zeros, to a length."""
    extent = int(x.shape[dim])
    if extent >= length:
        return x if extent == length else narrow(x, dim, 0, length)
    shape = [length - extent if d == dim else s for d, s in enumerate(x.shape)]
    return cat([x, nd.zeros(shape, x.dtype, x.device)], dim)


def _prepared(name: str, x: Any, n: int | None, dim: int, norm: str | None) -> Any:
    """The input in a type that is transformed, its dimension, the length and the scale."""
    axis = normal_dim(f"fft.{name}", dim, len(x.shape))
    length = int(x.shape[axis]) if n is None else n
    if length < 1:
        raise ValueError(f"fft.{name}: the length must be positive, not {length}")
    scale = norm or "backward"
    if scale not in _OPPOSITE:
        raise ValueError(f"fft.{name}: norm is one of {tuple(_OPPOSITE)}, not {norm!r}")
    if x.dtype.real not in (float32, float64):
        x = cast(x, float64 if floating(x.dtype) is float64 else float32)
    return x, axis, length, scale


def fft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """The discrete Fourier transform along a dimension."""
    x, axis, length, scale = _prepared("fft", input, n, dim, norm)
    return _transform(_fitted(x, length, axis), axis, scale, False)


def ifft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """The inverse of `fft`."""
    x, axis, length, scale = _prepared("ifft", input, n, dim, norm)
    return _transform(_fitted(x, length, axis), axis, scale, True)


def rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """The first half of the spectrum of real numbers; the other half mirrors it."""
    if input.dtype.is_complex:
        raise TypeError("fft.rfft: needs real numbers; use fft for complex ones")
    x, axis, length, scale = _prepared("rfft", input, n, dim, norm)
    return _half_transform(_fitted(x, length, axis), axis, scale, length)


def irfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """The inverse of `rfft`; `n` is the length of the result, even unless given."""
    extent = int(input.shape[normal_dim("fft.irfft", dim, len(input.shape))])
    wanted = 2 * (extent - 1) if n is None else n
    x, axis, length, scale = _prepared("irfft", input, wanted, dim, norm)
    return _inverse_half_transform(_fitted(x, length // 2 + 1, axis), length, axis, scale)


def hfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """The spectrum, which is real, of a signal whose second half mirrors the first."""
    return irfft(conj(input), n, dim, _OPPOSITE[norm or "backward"])


def ihfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """The inverse of `hfft`."""
    return conj(rfft(input, n, dim, _OPPOSITE[norm or "backward"]))


# ---- several dimensions


def _dims(name: str, x: Any, s: Any, dim: Any) -> list[tuple[int, int | None]]:
    """The dimensions to transform, each with its length."""
    rank = len(x.shape)
    if dim is None:
        dim = range(rank - (rank if s is None else len(s)), rank)
    listed = [normal_dim(f"fft.{name}", d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    if len(set(listed)) != len(listed) or (s is not None and len(s) != len(listed)):
        raise ValueError(f"fft.{name}: sizes {s} and dimensions {tuple(dim)} do not fit together")
    sizes = [None] * len(listed) if s is None else [None if n == -1 else n for n in s]
    return list(zip(listed, sizes, strict=True))


def fftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """`fft` along several dimensions, by default all."""
    for axis, n in _dims("fftn", input, s, dim):
        input = fft(input, n, axis, norm)
    return input


def ifftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """The inverse of `fftn`."""
    for axis, n in _dims("ifftn", input, s, dim):
        input = ifft(input, n, axis, norm)
    return input


def rfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """`rfft` along the last of several dimensions, `fft` along the others."""
    *others, (last, n) = _dims("rfftn", input, s, dim)
    input = rfft(input, n, last, norm)
    for axis, size in others:
        input = fft(input, size, axis, norm)
    return input


def irfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """The inverse of `rfftn`."""
    *others, (last, n) = _dims("irfftn", input, s, dim)
    for axis, size in others:
        input = ifft(input, size, axis, norm)
    return irfft(input, n, last, norm)


def hfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """`hfft` along the last of several dimensions, `fft` along the others."""
    return irfftn(conj(input), s, dim, _OPPOSITE[norm or "backward"])


def ihfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """The inverse of `hfftn`."""
    return conj(rfftn(input, s, dim, _OPPOSITE[norm or "backward"]))


def fft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
    """`fft` along two dimensions."""
    return fftn(input, s, dim, norm)


def ifft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `fft2`."""
    return ifftn(input, s, dim, norm)


def rfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
    """`rfftn` along two dimensions."""
    return rfftn(input, s, dim, norm)


def irfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `rfft2`."""
    return irfftn(input, s, dim, norm)


def hfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
    """`hfftn` along two dimensions."""
    return hfftn(input, s, dim, norm)


def ihfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `hfft2`."""
    return ihfftn(input, s, dim, norm)


# ---- frequencies


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: str | None = None) -> Any:
    """The frequencies of the elements of `fft` of n samples, `d` apart."""
    return wrapped(arrays.fftfreq(n, d, dtype, device))


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: str | None = None) -> Any:
    """The frequencies of the elements of `rfft`."""
    return wrapped(arrays.rfftfreq(n, d, dtype, device))


def _shifts(x: Any, dim: Any) -> tuple[list[int], list[int]]:
    dims = range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    return [int(x.shape[d]) // 2 for d in dims], list(dims)


def fftshift(input: Any, dim: int | Sequence[int] | None = None) -> Any:
    """With frequency zero in the middle."""
    halves, dims = _shifts(input, dim)
    return roll(input, halves, dims)


def ifftshift(input: Any, dim: int | Sequence[int] | None = None) -> Any:
    """The inverse of `fftshift`."""
    halves, dims = _shifts(input, dim)
    return roll(input, [-h for h in halves], dims)


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2",
    "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]  # fmt: skip
