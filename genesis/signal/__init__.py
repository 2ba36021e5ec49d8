"""Signal processing: window functions; transforms are in `genesis.fft`, `stft` in `genesis`."""

from genesis.signal import windows

__all__ = ["windows"]
