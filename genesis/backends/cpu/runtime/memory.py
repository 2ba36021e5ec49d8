"""Memory of the CPU backend: a caching allocator of 64-byte aligned blocks.

Blocks come in size classes (four per power of two), so that a freed block soon fits another
request; a block that is freed is cached, not returned, because the system's zeroed pages cost more
than most kernels. A finaliser may run anywhere, even inside this module, so it takes no lock: it
appends the block to `_freed`, and the next allocation sorts that list into the cache.

>>> block = allocate(1000)
>>> block.nbytes, block.pointer % 64
(1000, 0)
>>> as_numpy(block, "float32", (10, 25)).shape
(10, 25)
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from genesis.backends.base import MemoryStats, OutOfMemory
from genesis.backends.cpu.runtime.numa import interleave, nodes
from genesis.ir.dtype import DType, as_dtype

#: Every block is aligned to this: the width of a cache line and of the widest vector.
ALIGNMENT = 64

_MAPPED = 1 << 18  # from here on blocks are mapped from the system, and unmapped when released
_HUGE = 4 << 20  # from here on they are made of huge pages
_HUGE_PAGE = 2 << 20
_LIMIT = 1 << 60  # more than any address space; keeps sizes inside a size_t


class Memory:
    """A block of memory, given back when the last reference goes.

    `owner` is whatever object keeps foreign memory alive; blocks of this allocator have None, or
    `genesis.backends.base.SHARED`.
    """

    __slots__ = ("__weakref__", "nbytes", "owner", "pointer")

    pointer: int
    nbytes: int
    owner: object | None

    def __init__(self, pointer: int, nbytes: int, owner: object | None) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.owner = owner

    def __repr__(self) -> str:
        foreign = "" if self.owner is None else f", owned by a {type(self.owner).__name__}"
        return f"Memory({self.nbytes} bytes at {self.pointer:#x}{foreign})"

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "version": 3,
        }


def allocate(nbytes: int) -> Memory:
    """A block of at least `nbytes` bytes, contents undefined."""
    (memory,) = allocate_many((nbytes,))
    return memory


def allocate_many(sizes: Sequence[int]) -> list[Memory]:
    """Blocks for several requests, all or none of them, under one lock."""
    result: list[Memory] = []
    counters, live = _counters, 0
    with _lock:
        if _freed:
            _collect()
        try:
            for nbytes in sizes:
                capacity = size_class(nbytes)
                blocks = _cache[capacity]
                pointer = blocks.pop() if blocks else _obtain(nbytes, capacity)
                block = _Block.__new__(_Block)  # many are made: field by field is quicker
                block.pointer = pointer
                block.nbytes = nbytes
                block.owner = None
                block.capacity = capacity
                live += capacity
                result.append(block)
        finally:  # blocks obtained before a failure are freed like any others
            counters.allocations += len(result)
            counters.live_blocks += len(result)
            live = counters.live_bytes = counters.live_bytes + live
            if live > counters.peak_live_bytes:
                counters.peak_live_bytes = live
    return result


def from_foreign(pointer: int, nbytes: int, owner: object) -> Memory:
    """Memory that another object owns; `owner` is kept alive as long as the result."""
    return Memory(pointer, nbytes, owner)


def as_numpy(
    memory: Memory,
    dtype: DType | str,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    offset: int = 0,
) -> np.ndarray[Any, Any]:
    """A NumPy array on `memory`, without a copy; it keeps the memory alive.

    `strides` and `offset` count elements; without strides the array is row-major.
    """
    dtype = as_dtype(dtype)
    size = dtype.itemsize
    if 0 in shape:  # wherever an array without elements begins, it may be behind the memory
        strides, offset = None, 0
    try:
        return np.ndarray(
            tuple(shape),
            dtype.numpy,
            buffer=np.asarray(memory),
            offset=offset * size,
            strides=None if strides is None else tuple(s * size for s in strides),
        )
    except (ValueError, TypeError):
        layout = "row-major" if strides is None else f"strides {tuple(strides)}"
        raise ValueError(
            f"as_numpy: {dtype} of shape {tuple(shape)}, {layout}, at element {offset} "
            f"reaches outside {memory.nbytes} bytes"
        ) from None


def stats() -> MemoryStats:
    """What is allocated and cached now."""
    with _lock:
        _collect()
        c = _counters
        cached = c.obtained_bytes - c.live_bytes
        return MemoryStats(c.live_bytes, c.live_blocks, cached, c.peak_live_bytes, c.allocations)


def reset_peak() -> None:
    """Count the peak from what is live now."""
    with _lock:
        _collect()
        _counters.peak_live_bytes = _counters.live_bytes


def trim() -> None:
    """Give all cached blocks back to the system."""
    with _lock:
        _collect()
        _release_cache()


@lru_cache(maxsize=4096)
def size_class(nbytes: int) -> int:
    """The size of the block that serves a request.

    At most a quarter more, rounded up to a multiple of 64 bytes, or of 2 MiB above 16 MiB.

    >>> [size_class(n) for n in (0, 65, 1000, 1025, 5 << 20)]
    [64, 128, 1024, 1280, 5242880]
    """
    if nbytes <= ALIGNMENT:
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes: sizes are not negative")
        return ALIGNMENT
    step = 1 << max((nbytes - 1).bit_length() - 3, 6)
    if nbytes > 8 * _HUGE_PAGE:  # of fewer, the rest of a huge page would be much
        step = max(step, _HUGE_PAGE)
    return (nbytes + step - 1) & -step


# ---- the cache


@dataclass
class _Counters:
    live_bytes: int = 0
    live_blocks: int = 0
    obtained_bytes: int = 0  # from the system: live or cached
    peak_live_bytes: int = 0
    allocations: int = 0


_counters = _Counters()
# Size class -> pointers, the most recently used last.
_cache: defaultdict[int, list[int]] = defaultdict(list)
_freed: deque[tuple[int, int]] = deque()  # (pointer, size class) of blocks whose Memory died
_cache_limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4

# Reentrant: the garbage collector may run a finaliser that allocates while the lock is held.
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class _Block(Memory):
    """Memory of this allocator; `capacity` is the size of its class."""

    __slots__ = ("capacity",)

    capacity: int

    # A default argument outlives the module's globals at interpreter exit.
    def __del__(self, free: Any = _freed.append) -> None:
        free((self.pointer, self.capacity))


def _collect() -> None:
    """Sort freed blocks into the cache. Needs the lock."""
    count = total = 0
    while _freed:
        pointer, capacity = _freed.popleft()
        _cache[capacity].append(pointer)
        count += 1
        total += capacity
    _counters.live_blocks -= count
    _counters.live_bytes -= total
    if _counters.obtained_bytes - _counters.live_bytes > _cache_limit:
        _release_cache()


def _release_cache() -> None:
    """Return every cached block to the system. Needs the lock.

    Sizes that are in use come back with the next few requests, those out of use do not.
    """
    released = _cache.copy()
    _cache.clear()
    _counters.obtained_bytes -= sum(n * len(blocks) for n, blocks in released.items())
    for capacity, blocks in released.items():
        for pointer in blocks:
            _system_free(pointer, capacity)


def _obtain(nbytes: int, capacity: int) -> int:
    pointer = _system_allocate(capacity)
    if not pointer:
        before = _counters.obtained_bytes
        _release_cache()
        cached = before - _counters.obtained_bytes
        pointer = _system_allocate(capacity)
        if not pointer:
            raise OutOfMemory(
                f"out of memory: cannot allocate {_show(nbytes)}; {_show(_counters.live_bytes)} "
                f"are live in {_counters.live_blocks} blocks, {_show(cached)} were cached and "
                f"have been given back"
            )
    _counters.obtained_bytes += capacity
    return pointer


def _show(nbytes: int) -> str:
    """A size for people.

    >>> _show(1000), _show(3 << 20)
    ('1000 bytes', '3145728 bytes (3.00 MiB)')
    """
    if nbytes < 1024:
        return f"{nbytes} bytes"
    power = min(int(math.log2(nbytes)) // 10, 6)
    return f"{nbytes} bytes ({nbytes / (1 << 10 * power):.2f} {' KMGTPE'[power]}iB)"


# ---- the system

_libc = ctypes.CDLL(None)
_libc.posix_memalign.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.mmap.restype = ctypes.c_ssize_t
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_PROT_READ_WRITE = 3
_MAP_PRIVATE_ANONYMOUS = 0x22
_MAP_FAILED = -1
_MADV_HUGEPAGE = 14


def _system_allocate(capacity: int) -> int:
    """The address of a new block, or 0."""
    if capacity >= _LIMIT:
        return 0
    if capacity < _MAPPED:
        pointer = ctypes.c_void_p()
        _libc.posix_memalign(ctypes.byref(pointer), ALIGNMENT, capacity)
        return pointer.value or 0
    # A mapping is aligned to a page only: map more and cut off both ends.
    spare = _HUGE_PAGE if capacity >= _HUGE else 0
    mapped: int = _libc.mmap(
        None, capacity + spare, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0
    )
    if mapped == _MAP_FAILED:
        return 0
    if not spare:
        return mapped
    start = (mapped + spare - 1) & -spare
    if start > mapped:
        _libc.munmap(mapped, start - mapped)
    if rest := mapped + spare - start:
        _libc.munmap(start + capacity, rest)
    _libc.madvise(start, capacity, _MADV_HUGEPAGE)
    if len(over := nodes()) > 1:
        interleave(start, capacity, over)
    return start


def _system_free(pointer: int, capacity: int) -> None:
    if capacity < _MAPPED:
        _libc.free(pointer)
    else:
        _libc.munmap(pointer, capacity)
