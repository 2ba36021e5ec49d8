"""An arena: free ranges of addresses, cut into blocks of any size and put together again.

A block that comes back waits for a request of the same size: programs that run again ask for what
they asked for before, and get the same addresses. Only when a request finds none are neighbours put
together, and the smallest piece that is large enough is cut. Every piece knows the place in the
device's queue up to which its last owners used it.

An interrupt may come anywhere: what is free is in one place at a time, or in none and lost. It is
never in two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection


class Arena:
    """Free ranges; those that meet at one of `borders` stay apart."""

    def __init__(self, borders: Collection[int] = ()) -> None:
        self._borders = borders
        self._waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        # Pieces: what is free and put together.
        self._by_size: list[tuple[int, int]] = []  # sizes with addresses, the smallest first
        self._by_start: dict[int, tuple[int, int]] = {}  # sizes with places
        self._by_end: dict[int, int] = {}  # addresses

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
        return address, self.cut(address, address, nbytes)

    def has(self, nbytes: int) -> bool:
        """Whether a piece is large enough."""
        return bool(pieces := self.pieces()) and pieces[-1][0] >= nbytes

    def give(self, address: int, nbytes: int, place: int = 0) -> None:
        """A block that is free now, and was used up to that place."""
        self._waiting[nbytes].append((address, place))

    def pieces(self) -> list[tuple[int, int]]:
        """The sizes and addresses of what is free, the smallest first."""
        self._join()
        return self._by_size[:]

    def size_at(self, address: int) -> int:
        """The size of the piece that starts there, 0 if none does."""
        self._join()
        return self._by_start.get(address, (0, 0))[0]

    def cut(self, start: int, address: int, nbytes: int) -> int:
        """Take a range out of the piece that starts at `start`; its place in the queue."""
        size, place = self._remove(start)
        if start < address:
            self._insert(start, address - start, place)
        if address + nbytes < start + size:
            self._insert(address + nbytes, start + size - address - nbytes, place)
        return place

    def repair(self) -> None:
        """Make everything agree again after an interrupt."""
        pieces, self._by_start = self._by_start, {}
        self._by_size, self._by_end = [], {}
        for address, (size, place) in pieces.items():
            self._insert(address, size, place)

    def _join(self) -> None:
        """Put blocks that came back together with the pieces next to them."""
        while self._waiting:
            nbytes, blocks = self._waiting.popitem()
            for address, place in blocks:
                start, end = address, address + nbytes
                if address in self._by_end and address not in self._borders:
                    start = self._by_end[address]
                    place = max(place, self._remove(start)[1])
                if end in self._by_start and end not in self._borders:
                    size, other = self._remove(end)
                    end, place = end + size, max(place, other)
                self._insert(start, end - start, place)

    def _insert(self, address: int, nbytes: int, place: int) -> None:
        self._by_start[address] = nbytes, place  # the one that counts
        self._by_end[address + nbytes] = address
        insort(self._by_size, (nbytes, address))

    def _remove(self, address: int) -> tuple[int, int]:
        nbytes, place = self._by_start.pop(address)
        del self._by_end[address + nbytes]
        del self._by_size[bisect_left(self._by_size, (nbytes, address))]
        return nbytes, place
