"""Short-time Fourier transforms: the spectra of windows that slide along a signal, and back."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.complexes import view_as_real
from genesis.functional.fft import fft, ifft, irfft, rfft
from genesis.functional.function import plain
from genesis.functional.movement import expand, narrow, reshape, squeeze, transpose, unsqueeze
from genesis.functional.padding import pad
from genesis.functional.registry import method
from genesis.functional.strided import overlapped, unfold
from genesis.functional.value_checks import demanded


@method
def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Any:
    """The spectra of windows of `n_fft` samples, `hop_length` apart: (.., frequency, window).

    With `return_complex` False, real and imaginary parts are a last dimension of two.
    """
    if len(input.shape) not in (1, 2):
        raise ValueError(f"stft: needs one signal or a batch, got shape {tuple(input.shape)}")
    hop, shape = _settings("stft", n_fft, hop_length, win_length, window, input)
    signal = input if len(input.shape) == 2 else unsqueeze(input, 0)
    if center:
        signal = _extended(signal, n_fft // 2, pad_mode)
    if signal.shape[-1] < n_fft:
        raise ValueError(f"stft: {signal.shape[-1]} samples are less than n_fft = {n_fft}")
    frames = unfold(signal, -1, n_fft, hop)
    frames = frames if shape is None else frames * shape
    half = not frames.dtype.is_complex if onesided is None else onesided
    if half and frames.dtype.is_complex:
        raise ValueError("stft: the spectrum of complex numbers has no second half to leave out")
    found = (rfft if half else fft)(frames, norm="ortho" if normalized else None)
    found = transpose(found, -1, -2)
    found = found if len(input.shape) == 2 else squeeze(found, 0)
    return view_as_real(found) if return_complex is False else found


@method
def istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """The signal whose `stft` is nearest: windows added up, over the sum of their squares."""
    if not input.dtype.is_complex or len(input.shape) not in (2, 3):
        raise ValueError(
            f"istft: needs complex spectra (.., frequency, window), got {input.dtype} of shape "
            f"{tuple(input.shape)}"
        )
    hop, shape = _settings("istft", n_fft, hop_length, win_length, window, input)
    half = int(input.shape[-2]) != n_fft if onesided is None else onesided
    if int(input.shape[-2]) != (n_fft // 2 + 1 if half else n_fft):
        raise ValueError(f"istft: {int(input.shape[-2])} frequencies do not fit n_fft = {n_fft}")
    spectra = transpose(input if len(input.shape) == 3 else unsqueeze(input, 0), -1, -2)
    scale = "ortho" if normalized else None
    if return_complex:
        if half:
            raise ValueError("istft: a complex signal has spectra of n_fft frequencies")
        frames = ifft(spectra, norm=scale)
    else:
        frames = irfft(narrow(spectra, -1, 0, n_fft // 2 + 1), n_fft, norm=scale)
    count = frames.shape[-2]
    whole = n_fft + hop * (count - 1)
    if shape is None:
        shape = nd.ones((n_fft,), frames.dtype.real, frames.device)
    signal = overlapped(frames * shape, 1, whole, hop, n_fft)
    squares = expand(shape * shape, (count, n_fft))
    start = n_fft // 2 if center else 0
    stop = whole - start if length is None else min(start + length, whole)
    # What is cut off may have no window at all.
    signal, squares = (
        narrow(x, -1, start, stop - start)
        for x in (signal, overlapped(squares, 0, whole, hop, n_fft))
    )
    complaint = "istft: the windows leave samples out; they must overlap"
    signal = signal / demanded(squares, lambda x: nd.abs(x) < 1e-11, complaint)
    if length is not None and length > stop - start:
        signal = pad(signal, (0, length - (stop - start)))
    return signal if len(input.shape) == 3 else squeeze(signal, 0)


def _settings(
    name: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Any, like: Any
) -> tuple[int, Any]:
    """How far apart windows are, and the window, filled up with zeros to `n_fft`; None for ones."""
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft or hop <= 0:
        raise ValueError(
            f"{name}: hop_length {hop} must be positive, and win_length {length} from 1 to {n_fft}"
        )
    if window is None:
        if length == n_fft:
            return hop, None
        window = plain(lambda x: nd.ones((length,), x.dtype.real, x.device), like)
    if tuple(window.shape) != (length,):
        raise ValueError(f"{name}: a window of shape {tuple(window.shape)}, not ({length},)")
    before = (n_fft - length) // 2
    return hop, window if length == n_fft else pad(window, (before, n_fft - length - before))


def _extended(signal: Any, margin: int, mode: str) -> Any:
    """A batch of signals with more samples at both ends."""
    batch, length = signal.shape
    padded = pad(reshape(signal, (batch, 1, length)), (margin, margin), mode)
    return reshape(padded, (batch, length + 2 * margin))


__all__ = ["istft", "stft"]
