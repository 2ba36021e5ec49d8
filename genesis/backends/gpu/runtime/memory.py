"""Memory of a GPU: a caching allocator, ordered by the device's queue.

Requests are cut from regions of memory (`genesis.backends.gpu.runtime.virtual_memory`): small ones
from one of their own, so that they do not lie between large ones. Sizes are rounded up by 2 % at
most. A block that is freed may be given out again at once, although the kernels that use it may not
have run yet: whatever uses it next is behind them in the same queue. What does not go through that
queue (an array that is being uploaded) looks at `freed_at`, the number of the event in that queue
which was the last when the block's last owner was done with it.

Memory that another library had may still be used in a queue of that library's when it comes back:
before it is given out again all that runs on the device is waited for.

A finaliser may run anywhere, so it takes no lock and calls no driver: it appends the block to a
list that the next allocation returns to its region.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from genesis.backends.base import MemoryStats, OutOfMemory
from genesis.backends.gpu.runtime.driver import GPUDevice, uninterrupted
from genesis.backends.gpu.runtime.virtual_memory import Mapped, Region, Segments

#: Every block is aligned to this.
ALIGNMENT = 512

#: Requests up to this are small.
SMALL = 1 << 20


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
    """Memory of a pool; `capacity` is what it was rounded up to."""

    __slots__ = ("capacity", "pool")

    def __init__(
        self, nbytes: int, capacity: int, pool: MemoryPool, pointer: int, freed_at: int
    ) -> None:
        self.pointer, self.nbytes, self.owner, self.freed_at = pointer, nbytes, None, freed_at
        self.capacity = capacity
        self.pool = pool

    def __del__(self) -> None:
        pool = self.pool
        shared = self.owner is not None
        pool.freed.append((self.pointer, self.capacity, pool.device.marks, shared))


class MemoryPool:
    """The caching allocator of one device."""

    def __init__(self, device: GPUDevice) -> None:
        self.device = device
        self.freed: deque[tuple[int, int, int, bool]] = deque()
        mapping = device.driver.mapping(device)
        self._small, self._large = (
            Segments(device, generous) if mapping is None else Mapped(device, mapping)
            for generous in (False, True)
        )
        self._live_bytes = self._live_blocks = 0
        self._peak = self._allocations = 0
        # Reentrant: the garbage collector may run a finaliser that allocates.
        self._lock = threading.RLock()

    def allocate_many(self, sizes: Sequence[int]) -> list[Memory]:
        """Blocks for several requests."""
        result: list[Memory] = []
        with self._lock:
            try:
                freed = self.freed
                for nbytes in sizes:
                    capacity = rounded(nbytes)
                    if freed:
                        # A program that runs again asks for what it has just given back.
                        last = pointer, size, freed_at, shared = freed.pop()
                        if size == capacity and not shared:
                            result.append(_Block(nbytes, capacity, self, pointer, freed_at))
                            continue
                        freed.append(last)
                        self._collect()
                    region = self._small if capacity <= SMALL else self._large
                    found = region.arena.take(capacity) or self._obtain(nbytes, capacity, region)
                    result.append(_Block(nbytes, capacity, self, *found))
                    self._live_blocks += 1
                    self._live_bytes += capacity
            except BaseException:
                for region in (self._small, self._large):
                    region.arena.repair()
                raise
            self._allocations += len(result)
            if self._live_bytes > self._peak:
                self._peak = self._live_bytes
        return result

    def stats(self) -> MemoryStats:
        """What is allocated and cached now."""
        with self._lock:
            self._collect()
            return MemoryStats(
                self._live_bytes,
                self._live_blocks,
                self._small.nbytes + self._large.nbytes - self._live_bytes,
                self._peak,
                self._allocations,
            )

    def reset_peak(self) -> None:
        """Count the peak from what is live now."""
        with self._lock:
            self._collect()
            self._peak = self._live_bytes

    def trim(self) -> None:
        """Give memory that nothing uses back to the device."""
        with self._lock:
            self._collect()
            self.device.synchronize()
            for region in (self._small, self._large):
                uninterrupted(region.trim)

    def _collect(self) -> None:
        """Return freed blocks to their arenas. Needs the lock."""
        returned: list[tuple[int, int, int]] = []
        while self.freed:
            pointer, capacity, freed_at, shared = self.freed.popleft()
            if shared:
                returned.append((pointer, capacity, freed_at))
            else:
                self._give(pointer, capacity, freed_at)
        if returned:
            with self.device:
                self.device.call("CtxSynchronize")
            for block in returned:
                self._give(*block)

    def _give(self, pointer: int, capacity: int, freed_at: int) -> None:
        region = self._small if capacity <= SMALL else self._large
        region.arena.give(pointer, capacity, freed_at)
        self._live_blocks -= 1
        self._live_bytes -= capacity

    def _obtain(self, nbytes: int, capacity: int, region: Region) -> tuple[int, int]:
        """A block for which there is no free piece."""
        if not uninterrupted(lambda: region.grow(capacity)):
            before = self._small.nbytes + self._large.nbytes
            gc.collect()
            self.trim()
            given_back = before - self._small.nbytes - self._large.nbytes
            fits = region.arena.has(capacity) or uninterrupted(lambda: region.grow(capacity))
            if not fits:
                raise OutOfMemory(self._complaint(nbytes, given_back))
        block = region.arena.take(capacity)
        assert block is not None
        return block

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
def rounded(nbytes: int) -> int:
    """The size of the block that serves a request: at most a 64th more, if it is not small.

    >>> [rounded(n) for n in (0, 513, 5000, 17_000_000)]
    [512, 1024, 5120, 17039360]
    """
    if nbytes < 0:
        raise ValueError(f"cannot allocate {nbytes} bytes: sizes are not negative")
    step = max(ALIGNMENT, 1 << max(nbytes - 1, 0).bit_length() >> 7)
    return max(ALIGNMENT, -(-nbytes // step) * step)


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
