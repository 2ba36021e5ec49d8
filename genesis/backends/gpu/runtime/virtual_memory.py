"""Regions: where a pool's memory comes from, and how it is kept from being lost between blocks.

A driver of today tells addresses from memory: `Mapped` reserves more addresses than anybody needs,
and maps memory to them in chunks of a few MiB. Where no free piece is large enough for a request,
chunks that nothing uses are moved behind one that almost is, so that memory that is free anywhere
is free for everything. Other drivers give both at once, in `Segments`, which stay where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from itertools import islice
from typing import Any

from genesis.backends.gpu.runtime.driver import GPUDevice, OutOfDeviceMemory
from genesis.backends.gpu.runtime.free_ranges import Arena

_PAGE = 2 << 20
_LEAST, _MOST = 32 << 20, 1 << 30  # of a segment for large requests
_PART = 32  # of a region, that a new segment is
_CHUNKS = 512  # that a region has at least, if they are not single pages
_LARGEST = 64 << 20  # chunk
_SPACE = 16  # addresses there are for every byte of the device


class Region(ABC):
    """Memory of a device that is given out in blocks. Whoever uses it holds its pool's lock."""

    def __init__(self, device: GPUDevice) -> None:
        self.device = device
        self.nbytes = 0  #: taken from the device
        self.arena: Arena

    @abstractmethod
    def grow(self, nbytes: int) -> bool:
        """Make a piece of so many bytes; False if the device does not have them."""

    @abstractmethod
    def trim(self) -> None:
        """Give back to the device what nothing uses. Nothing runs there."""


class Segments(Region):
    """Segments; generous ones are the larger, the more there are."""

    def __init__(self, device: GPUDevice, generous: bool) -> None:
        super().__init__(device)
        self._generous = generous
        self._sizes: dict[int, int] = {}
        self.arena = Arena(borders=self._sizes)

    def grow(self, nbytes: int) -> bool:
        """A new segment: a generous one, or one that is just enough."""
        least = pages(nbytes)
        generous = pages(min(max(_LEAST, self.nbytes // _PART), _MOST)) if self._generous else 0
        for size in dict.fromkeys((max(least, generous), least)):
            try:
                with self.device:
                    address = int(self.device.call("MemAlloc", size))
            except OutOfDeviceMemory:
                continue
            self._sizes[address] = size
            self.nbytes += size
            self.arena.give(address, size)
            return True
        return False

    def trim(self) -> None:
        """Free the segments that are one piece."""
        for size, address in self.arena.pieces():
            if self._sizes.get(address) == size:
                self.arena.cut(address, address, size)
                self.nbytes -= self._sizes.pop(address)
                with self.device:
                    self.device.call("MemFree", address)


class Mapped(Region):
    """Chunks of memory, mapped to a range of addresses."""

    def __init__(self, device: GPUDevice, mapping: tuple[Any, Any]) -> None:
        super().__init__(device)
        self._properties, self._access = mapping
        self._chunks: dict[int, tuple[int, Any]] = {}  # sizes and handles by address
        self._order: list[int] = []  # of their addresses
        self.arena = Arena()
        self._holes = Arena()  # addresses without memory
        size = pages(_SPACE * device.memory_bytes)
        with device:
            start = int(device.call("MemAddressReserve", size, _PAGE, 0, 0))
        self._holes.give(start, size)

    def grow(self, nbytes: int) -> bool:
        """Map memory behind a piece: first what nothing uses, then new memory."""
        start, here = self._room(nbytes)  # and the last chunk may be more than what is missing
        missing = pages(nbytes - here)
        spare = self._spare(missing, start)
        lacking = missing - sum(size for _, _, size in spare)
        unit = min(max(pages((self.nbytes + missing) // _CHUNKS), _PAGE), _LARGEST)
        call = self.device.call
        new: list[tuple[int, Any]] = []
        with self.device:
            try:
                while lacking > 0:
                    size = min(unit, lacking)
                    new.append((size, call("MemCreate", size, self._properties, 0)))
                    lacking -= size
            except OutOfDeviceMemory:
                for _, handle in new:
                    call("MemRelease", handle)
                return False
            if spare:  # other libraries may have used it, too
                call("CtxSynchronize")
            at = end = start + here
            for piece, address, size in spare:
                new.append((size, self._unmapped(piece, address)))
            for size, handle in new:
                call("MemMap", end, size, 0, handle, 0)
                insort(self._order, end)
                self._chunks[end] = size, handle
                end += size
            call("MemSetAccess", at, end - at, [self._access], 1)
        self.nbytes += sum(size for size, _ in new)
        self._holes.cut(at, at, end - at)
        self.arena.give(at, end - at)
        return True

    def trim(self) -> None:
        """Release the chunks that nothing uses."""
        with self.device:
            for piece, address, _ in self._spare(self.nbytes, 0):
                self.device.call("MemRelease", self._unmapped(piece, address))

    def _room(self, nbytes: int) -> tuple[int, int]:
        """Where to map: behind the largest piece that has room behind it, and that piece's size."""
        for size, address in reversed(self.arena.pieces()):
            if self._holes.size_at(address + size) >= pages(nbytes - size) + _LARGEST:
                return address, size
        _, hole = self._holes.pieces()[-1]
        return hole, 0

    def _spare(self, nbytes: int, but: int) -> list[tuple[int, int, int]]:
        """Chunks that nothing uses, `nbytes` together if there are: pieces, addresses and sizes.

        They are taken from the smallest pieces, and none from that which starts at `but`.
        """
        found: list[tuple[int, int, int]] = []
        for size, piece in self.arena.pieces():
            start = piece
            for address in islice(self._order, bisect_left(self._order, piece), None):
                chunk, _ = self._chunks[address]
                if piece == but or nbytes <= 0 or address + chunk > piece + size:
                    break
                found.append((start, address, chunk))
                start = address + chunk  # the piece that is left when this one is gone
                nbytes -= chunk
        return found

    def _unmapped(self, piece: int, address: int) -> Any:
        """The handle of a chunk that nothing uses, which lies nowhere from now on."""
        size, handle = self._chunks.pop(address)
        del self._order[bisect_left(self._order, address)]
        self.arena.cut(piece, address, size)
        self.device.call("MemUnmap", address, size)
        self._holes.give(address, size)
        self.nbytes -= size
        return handle


def pages(nbytes: int) -> int:
    """A size in whole pages."""
    return -(-nbytes // _PAGE) * _PAGE
