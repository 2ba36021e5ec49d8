"""Device memory: what is in use, what is kept for reuse, and giving it back.

>>> from genesis import memory, ndarray as nd
>>> before = memory.stats().live_bytes
>>> x = nd.ones((256, 256)).realize()
>>> memory.stats().live_bytes - before
262144
"""

from genesis.backends import get
from genesis.backends.base import MemoryStats


def stats(device: str = "cpu") -> MemoryStats:
    """The state of a device's allocator."""
    return get(device).memory_stats()


def trim(device: str = "cpu") -> None:
    """Give memory that is kept for reuse back to the system."""
    get(device).trim()


__all__ = ["MemoryStats", "stats", "trim"]
