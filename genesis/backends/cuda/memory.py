"""Memory of a GPU: a caching allocator, ordered by the device's queue.

Blocks come in size classes (four per power of two). A block that is freed is cached and may be
given out again at once, although the kernels that use it may not have run yet: whatever uses it
next is behind them in the same queue. What does not go through that queue (an array that is being
uploaded) looks at `freed_at`, the place in the queue up to which the block's last owner used it.

A finaliser may run anywhere, so it takes no lock and calls no driver: it appends the block to a
list that the next allocation sorts into the cache.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from genesis.backends.base import MemoryStats
from genesis.backends.cuda.driver import Device, OutOfDeviceMemory, call

#: Every block is aligned to this.
ALIGNMENT = 512

_PAGE = 2 << 20


class OutOfMemory(MemoryError):
    """The device has no memory for a request, even after cached blocks were given back."""


class Memory:
    """A piece of the device's memory; `owner` keeps foreign memory alive."""

    __slots__ = ("__weakref__", "freed_at", "nbytes", "owner", "pointer")

    def __init__(
        self, pointer: int, nbytes: int, owner: object | None = None, freed_at: int = 0
    ) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.owner = owner
        self.freed_at = freed_at

    def __repr__(self) -> str:
        return f"Memory({self.nbytes} bytes at {self.pointer:#x} of a GPU)"


class _Block(Memory):
    """Memory of a pool; `capacity` is the size of its class."""

    __slots__ = ("capacity", "pool")

    def __init__(self, pointer: int, nbytes: int, freed_at: int, capacity: int, pool: Pool) -> None:
        super().__init__(pointer, nbytes, None, freed_at)
        self.capacity = capacity
        self.pool = pool

    def __del__(self) -> None:
        pool = self.pool
        pool.freed.append((self.pointer, self.capacity, pool.device.serial))


class Pool:
    """The caching allocator of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.freed: deque[tuple[int, int, int]] = deque()
        self._cache: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._live_bytes = self._live_blocks = self._cached_bytes = 0
        self._peak = self._allocations = 0
        # Reentrant: the garbage collector may run a finaliser that allocates.
        self._lock = threading.RLock()

    def allocate_many(self, sizes: Sequence[int]) -> list[Memory]:
        """Blocks for several requests."""
        result: list[Memory] = []
        with self._lock:
            if self.freed:
                self._collect()
            for nbytes in sizes:
                capacity = size_class(nbytes)
                blocks = self._cache[capacity]
                if blocks:
                    pointer, freed_at = blocks.pop()
                    self._cached_bytes -= capacity
                else:
                    pointer, freed_at = self._obtain(nbytes, capacity), 0
                block = _Block(pointer, nbytes, freed_at, capacity, self)
                result.append(block)
                self._live_blocks += 1
                self._live_bytes += capacity
            self._allocations += len(result)
            self._peak = max(self._peak, self._live_bytes)
        return result

    def stats(self) -> MemoryStats:
        """What is allocated and cached now."""
        with self._lock:
            self._collect()
            return MemoryStats(
                self._live_bytes,
                self._live_blocks,
                self._cached_bytes,
                self._peak,
                self._allocations,
            )

    def reset_peak(self) -> None:
        """Count the peak from what is live now."""
        with self._lock:
            self._collect()
            self._peak = self._live_bytes

    def trim(self) -> None:
        """Give all cached blocks back to the device."""
        with self._lock:
            self._collect()
            released, self._cached_bytes = dict(self._cache), 0
            self._cache.clear()
            if not released:
                return
            self.device.synchronize()
            with self.device:
                for blocks in released.values():
                    for pointer, _ in blocks:
                        call("cuMemFree", pointer)

    def _collect(self) -> None:
        """Sort freed blocks into the cache. Needs the lock."""
        while self.freed:
            pointer, capacity, freed_at = self.freed.popleft()
            self._cache[capacity].append((pointer, freed_at))
            self._live_blocks -= 1
            self._live_bytes -= capacity
            self._cached_bytes += capacity

    def _obtain(self, nbytes: int, capacity: int) -> int:
        for attempt in range(2):
            try:
                with self.device:
                    return int(call("cuMemAlloc", capacity))
            except OutOfDeviceMemory:
                if attempt == 0:
                    cached = self._cached_bytes
                    gc.collect()
                    self.trim()
        raise OutOfMemory(self._complaint(nbytes, cached)) from None

    def _complaint(self, nbytes: int, cached: int) -> str:
        total = self.device.memory_bytes
        others = max(0, total - self.device.free_bytes() - self._live_bytes)
        lines = [
            f"out of memory on {self.device.name}: cannot allocate {show(nbytes)}. Of "
            f"{show(total)}, {show(self._live_bytes)} are live in {self._live_blocks} blocks and "
            f"{show(others)} are used by other libraries and processes; {show(cached)} were "
            "cached and have been given back."
        ]
        holders = Counter[str]()
        live = [x for x in gc.get_objects() if isinstance(x, _Block) and x.pool is self]
        for block in sorted(live, key=lambda b: -b.nbytes)[:64]:
            holders[_holder(block)] += block.nbytes
        held = [f"  {show(n)}: {who}" for who, n in holders.most_common(8)]
        return "\n".join([*lines, *(["The most is held by"] if held else []), *held])


@lru_cache(maxsize=4096)
def size_class(nbytes: int) -> int:
    """The size of the block that serves a request: at most a quarter more, in whole pages if large.

    >>> [size_class(n) for n in (0, 513, 5000, 17 << 20)]
    [512, 1024, 5120, 20971520]
    """
    if nbytes < 0:
        raise ValueError(f"cannot allocate {nbytes} bytes: sizes are not negative")
    if nbytes <= ALIGNMENT:
        return ALIGNMENT
    step = max(1 << max((nbytes - 1).bit_length() - 3, 0), ALIGNMENT)
    if nbytes > 8 * _PAGE:
        step = max(step, _PAGE)
    return (nbytes + step - 1) & -step


def show(nbytes: int) -> str:
    """A size for people.

    >>> show(1000), show(3 << 20)
    ('1000 bytes', '3.00 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes} bytes"
    power = min((nbytes.bit_length() - 1) // 10, 6)
    return f"{nbytes / (1 << 10 * power):.2f} {' KMGTPE'[power]}iB"


def _holder(block: Any) -> str:
    """Who holds a block: an array's value, which knows the line it comes from, or a program."""
    for found in gc.get_referrers(block):
        if type(found).__module__.startswith("genesis.ndarray"):
            return repr(found)
    return "memory of a program that runs"


__all__ = ["ALIGNMENT", "Memory", "OutOfMemory", "Pool", "show", "size_class"]
