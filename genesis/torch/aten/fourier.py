"""Fourier transforms, as the three that all of `torch.fft` comes down to."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.ir.size import product
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import implements

#: PyTorch's normalisations (none, by the root of the length, by the length) in words for us.
_FORWARD = ("backward", "ortho", "forward")
_INVERSE = ("forward", "ortho", "backward")


@implements("_fft_c2c")
def _complex(x: NDArray, dim: Sequence[Any], normalization: int, forward: bool) -> NDArray:
    norm = (_FORWARD if forward else _INVERSE)[normalization]
    if product(x.shape) == 0:
        return x
    for axis in map(index, dim):
        x = (nd.fft.fft if forward else nd.fft.ifft)(x, None, axis, norm)
    return x


@implements("_fft_r2c")
def _from_real(x: NDArray, dim: Sequence[int], normalization: int, onesided: bool) -> NDArray:
    if not onesided:
        return _complex(x.astype(x.dtype.complex), dim, normalization, True)
    *others, last = dim
    if product(x.shape) == 0:
        shape = list(x.shape)
        shape[last] = shape[last] // 2 + 1
        return nd.zeros(shape, x.dtype.complex, x.device)
    half = nd.fft.rfft(x, None, last, _FORWARD[normalization])
    return _complex(half, others, normalization, True)


@implements("_fft_c2r")
def _to_real(x: NDArray, dim: Sequence[int], normalization: int, last_dim_size: Any) -> NDArray:
    *others, last = dim
    length = index(last_dim_size)
    if product(x.shape) == 0:
        shape = list(x.shape)
        shape[last] = length
        return nd.zeros(shape, x.dtype.real, x.device)
    x = _complex(x, others, normalization, False)
    return nd.fft.irfft(x, length, last, _INVERSE[normalization])
