"""An arena: large segments of memory, cut into blocks of any size and put together again.

A block that comes back waits for a request of the same size: programs that run again ask for what
they asked for before, and get the same addresses. Only when a request finds none are neighbours put
together, and the smallest piece that is large enough is cut. Every piece knows the place in the
device's queue up to which its last owners used it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict


class Arena:
    """Free memory in segments."""

    def __init__(self) -> None:
        self.nbytes = 0  # of all segments
        self._segments: dict[int, int] = {}
        self._waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        # Pieces: what is free and put together.
        self._by_size: list[tuple[int, int]] = []  # sizes with addresses, the smallest first
        self._by_start: dict[int, tuple[int, int]] = {}  # sizes with places
        self._by_end: dict[int, int] = {}  # addresses

    def add(self, address: int, nbytes: int) -> None:
        """A new segment."""
        self._segments[address] = nbytes
        self.nbytes += nbytes
        self._insert(address, nbytes, 0)

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """A block: its address and its place in the queue; None if no piece is large enough."""
        waiting = self._waiting.get(nbytes)
        if waiting:
            return waiting.pop()
        self._join()
        position = bisect_left(self._by_size, (nbytes, 0))
        if position == len(self._by_size):
            return None
        _, address = self._by_size[position]
        size, place = self._remove(address)
        if size > nbytes:
            self._insert(address + nbytes, size - nbytes, place)
        return address, place

    def give(self, address: int, nbytes: int, place: int) -> None:
        """Take a block back, which was used up to that place."""
        self._waiting[nbytes].append((address, place))

    def whole_segments(self) -> list[int]:
        """The addresses of segments that nothing uses; they are not used again."""
        self._join()
        found = [a for size, a in self._by_size if self._segments.get(a) == size]
        for address in found:
            self._remove(address)
            self.nbytes -= self._segments.pop(address)
        return found

    def _join(self) -> None:
        """Put blocks that came back together with the pieces next to them."""
        for nbytes, blocks in self._waiting.items():
            for address, place in blocks:
                start, end = address, address + nbytes
                if address in self._by_end and address not in self._segments:
                    start = self._by_end[address]
                    place = max(place, self._remove(start)[1])
                if end in self._by_start and end not in self._segments:
                    size, other = self._remove(end)
                    end, place = end + size, max(place, other)
                self._insert(start, end - start, place)
        self._waiting.clear()

    def _insert(self, address: int, nbytes: int, place: int) -> None:
        insort(self._by_size, (nbytes, address))
        self._by_start[address] = nbytes, place
        self._by_end[address + nbytes] = address

    def _remove(self, address: int) -> tuple[int, int]:
        nbytes, place = self._by_start.pop(address)
        del self._by_end[address + nbytes]
        del self._by_size[bisect_left(self._by_size, (nbytes, address))]
        return nbytes, place


__all__ = ["Arena"]
