"""Device memory: what is in use, what is kept for reuse, and giving it back.

>>> from genesis import memory, ndarray as nd
>>> before = memory.stats().live_bytes
>>> x = nd.ones((256, 256)).realize()
>>> memory.stats().live_bytes - before
262144
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genesis.backends.base import MemoryStats


def stats(device: str = "cpu") -> MemoryStats:
    """The state of a device's allocator."""
    from genesis.backends import get  # importing Genesis loads no backend

    return get(device).memory_stats()


def reset_peak(device: str = "cpu") -> None:
    """Count the peak from what is in use now."""
    from genesis.backends import get

    get(device).reset_peak()


def trim(device: str = "cpu") -> None:
    """Give memory that is kept for reuse back to the system."""
    from genesis.backends import get

    get(device).trim()
