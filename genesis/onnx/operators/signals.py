"""Operators of signals: Fourier transforms, windows, filters for frequencies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from genesis import functional as fn
from genesis.onnx.dtypes import numpy_dtype
from genesis.onnx.registry import Host, operator
from genesis.onnx.values import as_tensor


def _complex(x: Any) -> Any:
    """A tensor whose last axis holds one or two parts, as complex numbers."""
    if x.shape[-1] == 2:
        return fn.complex(fn.select(x, -1, 0), fn.select(x, -1, 1))
    real = fn.select(x, -1, 0)
    return fn.complex(real, fn.mul(real, 0))


def _parts(x: Any) -> Any:
    return fn.stack([fn.real(x), fn.imag(x)], -1)


def _fit(x: Any, axis: int, length: int) -> Any:
    n = int(x.shape[axis])
    if length <= n:
        return fn.narrow(x, axis, 0, length)
    ends = [0, 0] * x.ndim
    ends[2 * (x.ndim - 1 - axis) + 1] = length - n
    return fn.pad(x, ends)


@operator("DFT")
def dft(
    x: Any, dft_length: Host = None, axis: Host = None, *, inverse: int = 0, onesided: int = 0,
    version: int = 20,
) -> Any:  # fmt: skip
    """The discrete Fourier transform of an axis."""
    default = 1 if version < 20 else -2
    where = (default if axis is None else int(np.asarray(axis).reshape(()))) % x.ndim
    n = int(x.shape[where]) if dft_length is None else int(dft_length.reshape(()))
    if onesided and inverse and dft_length is None:
        n = 2 * (n - 1)
    if onesided and inverse:
        return fn.unsqueeze(fn.fft.irfft(_complex(x), n, where), -1)
    z = _fit(x, where, n)
    if inverse:
        return _parts(fn.fft.ifft(_complex(z), n, where))
    if onesided and x.shape[-1] == 1:
        return _parts(fn.fft.rfft(fn.select(z, -1, 0), n, where))
    y = fn.fft.fft(_complex(z), n, where)
    return _parts(fn.narrow(y, where, 0, n // 2 + 1) if onesided else y)


@operator("STFT")
def stft(
    signal: Any, frame_step: Host, window: Any = None, frame_length: Host = None, *,
    onesided: int = 1,
) -> Any:  # fmt: skip
    """Fourier transforms of frames of a signal."""
    size = int(frame_length.reshape(())) if frame_length is not None else int(window.shape[0])
    parts = signal if signal.ndim == 3 else fn.unsqueeze(signal, -1)
    frames = fn.unfold(parts, 1, size, int(frame_step.reshape(())))  # batch, frames, parts, size
    frames = fn.transpose(frames, -1, -2)
    if window is not None:
        frames = frames * window.reshape(-1, 1)
    if parts.shape[-1] == 1 and onesided:
        return _parts(fn.fft.rfft(fn.select(frames, -1, 0), size, -1))
    y = fn.fft.fft(_complex(frames), size, -1)
    return _parts(fn.narrow(y, 2, 0, size // 2 + 1) if onesided else y)


def _window(weights: tuple[float, ...], size: Any, code: int, periodic: int) -> Any:
    n = int(size.reshape(()))
    if not 0 <= n <= 1 << 26:
        raise ValueError(f"a window of {n} elements")
    turn = 2 * math.pi * np.arange(n) / max(1, n if periodic else n - 1)
    value = sum(w * np.cos(k * turn) for k, w in enumerate(weights))
    return as_tensor(np.asarray(value).astype(numpy_dtype(code)))


@operator("HannWindow")
def hann(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Any:
    """A cosine from 0 to 0."""
    return _window((0.5, -0.5), size, output_datatype, periodic)


@operator("HammingWindow")
def hamming(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Any:
    """A raised cosine."""
    return _window((25 / 46, -21 / 46), size, output_datatype, periodic)


@operator("BlackmanWindow")
def blackman(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Any:
    """Two cosines."""
    return _window((0.42, -0.5, 0.08), size, output_datatype, periodic)


@operator("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Host, dft_length: Host, sample_rate: Host, lower: Host, upper: Host, *,
    output_datatype: int = 1,
) -> Any:  # fmt: skip
    """Triangles over frequencies that lie evenly on the scale of hearing."""
    bins, length = int(num_mel_bins.reshape(())), int(dft_length.reshape(()))
    if not 0 < bins * (length // 2 + 1) <= 1 << 26:
        raise ValueError(f"a mel matrix of {bins} bins for transforms of {length}")

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + hertz / 700)

    edges = np.arange(bins + 2) * ((mel(float(upper)) - mel(float(lower))) / (bins + 2))
    hertz = 700 * (10 ** ((edges + mel(float(lower))) / 2595) - 1)
    places = ((length + 1) * hertz // float(sample_rate)).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for k in range(bins):
        low, centre, high = places[k : k + 3]
        weights[low : centre + 1, k] = (np.arange(low, centre + 1) - low) / max(1, centre - low)
        if low == centre:
            weights[centre, k] = 1
        weights[centre:high, k] = (high - np.arange(centre, high)) / max(1, high - centre)
    return as_tensor(weights.astype(numpy_dtype(output_datatype)))
