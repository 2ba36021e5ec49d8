"""Which cached page goes when room is wanted: policies behind one interface.

A request uses a *chain* of pages, the pages of its prefix from the first on; each is known by its
key. A page is worth something only while all pages before it are there, so every policy rates a
page at least as high as those that follow it: suffixes go before prefixes.

Time is the number of chains used so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import floor, log2

Score = tuple[float, float, float]
_LOWEST: Score = (float("-inf"), 0.0, 0.0)


class Policy(ABC):
    """Rates pages; of those on offer, the one rated lowest goes first.

    Ratings outlive the page, for as many pages as two caches hold: one that comes back is not a
    stranger.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clock = 0
        self.offered: set[bytes] = set()
        self.scores: OrderedDict[bytes, Score] = OrderedDict()
        self._heap: list[tuple[Score, bytes]] = []

    def use(self, chain: Sequence[bytes], first: int = 0) -> None:
        """A request uses these pages, the first of which is page `first` of its prefix."""
        self.clock += 1
        self.rate(chain, first)
        for key in reversed(chain):
            self.scores.move_to_end(key)
        while len(self.scores) > 2 * self.capacity + len(chain):
            key, score = self.scores.popitem(last=False)  # unused for longest
            if key in self.offered:
                self.scores[key] = score

    @abstractmethod
    def rate(self, chain: Sequence[bytes], first: int) -> None:
        """New scores for the pages of a chain that is used now; scores never fall."""

    def offer(self, key: bytes) -> None:
        """The page of this key may go."""
        self.offered.add(key)
        heappush(self._heap, (self.score(key), key))
        if len(self._heap) > 4 * len(self.offered) + 64:
            self.rank()

    def withdraw(self, key: bytes) -> None:
        """The page of this key must stay, or is gone."""
        self.offered.discard(key)

    def score(self, key: bytes) -> Score:
        """How much the page is worth keeping."""
        return self.scores.get(key, _LOWEST)

    def rank(self) -> None:
        """Order what is on offer anew."""
        self._heap = [(self.score(key), key) for key in self.offered]
        heapify(self._heap)

    def victim(self) -> bytes:
        """The page that goes; it is no longer on offer."""
        while True:
            score, key = heappop(self._heap)
            if key not in self.offered:
                continue
            if score == self.score(key):
                self.offered.remove(key)
                return key
            heappush(self._heap, (self.score(key), key))  # used since: scores only rise


class LRU(Policy):
    """What was not used for longest goes first."""

    def rate(self, chain: Sequence[bytes], first: int) -> None:
        """The time of the last use."""
        for depth, key in enumerate(chain, first):
            self.scores[key] = (self.clock, -depth, 0)


class Heat(Policy):
    """What was used least goes first; a use counts half as much with every `period` of time.

    Counts are compared by their powers of two, and the deeper of two like pages goes. So of a loop
    larger than the cache a part stays and is found again, instead of each page being lost just
    before it is wanted.
    """

    def __init__(self, capacity: int, period: int = 0) -> None:
        super().__init__(capacity)
        self.period = period or max(256, capacity)

    def rate(self, chain: Sequence[bytes], first: int) -> None:
        """log2 of the sum of 2**(time of use), which orders pages as the decayed counts do."""
        now = float(self.clock // self.period)
        warmest = now
        for i in range(len(chain) - 1, -1, -1):
            known = self.scores.get(chain[i])
            if known is not None:
                heat = max(known[2], now) + log2(1 + 2 ** -min(60.0, abs(now - known[2])))
                warmest = max(warmest, heat)  # what went before is needed at least as often
            self.scores[chain[i]] = (floor(warmest), -(first + i), warmest)


class Cost(Policy):
    """What is cheapest to compute again goes first; longer prefixes cost more (GreedyDual).

    The cost of what goes raises the score of all that comes later, so nothing stays forever. A
    prefix costs as much as the longest chain that needs it.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._floor = 0.0

    def rate(self, chain: Sequence[bytes], first: int) -> None:
        """What went last, plus the cost of computing the chain."""
        worth = self._floor + first + len(chain)
        for depth, key in enumerate(chain, first):
            self.scores[key] = (max(self.score(key)[0], worth), -depth, self.clock)

    def victim(self) -> bytes:
        """The page that goes; it is no longer on offer."""
        key = super().victim()
        self._floor = max(self._floor, self.score(key)[0])
        return key


class Learned(Policy):
    """Follows whichever policy would have had the most hits lately.

    Each expert runs a cache of ghosts, keys without pages, of the real one's size; its hits,
    discounted by age, are its weight. The leader's scores rate the real pages. To lead, a follower
    must be better by a margin, so that equals do not take turns.
    """

    MARGIN = 1.01

    def __init__(self, capacity: int, horizon: int = 2000) -> None:
        super().__init__(capacity)
        self.experts: list[Policy] = [LRU(capacity), Heat(capacity), Cost(capacity)]
        self.weights = [0.0] * len(self.experts)
        self.leader = 0
        self._decay = 1 - 1 / horizon

    def use(self, chain: Sequence[bytes], first: int = 0) -> None:
        """A request uses these pages; the experts learn whether they would have had them."""
        for i, expert in enumerate(self.experts):
            hits = _use_ghosts(expert, chain, first)
            self.weights[i] = self.weights[i] * self._decay + hits
        best = max(range(len(self.experts)), key=self.weights.__getitem__)
        if self.weights[best] > self.MARGIN * self.weights[self.leader] + 1:
            self.leader = best
            self.rank()

    def rate(self, chain: Sequence[bytes], first: int) -> None:
        """Nothing to do: the experts have rated the chain."""

    def score(self, key: bytes) -> Score:
        """What the leader thinks."""
        return self.experts[self.leader].score(key)


def _use_ghosts(expert: Policy, chain: Sequence[bytes], first: int) -> int:
    """How many pages of the chain a cache with this policy would have had; then it has all."""
    ghosts = expert.offered
    hits = next((i for i, key in enumerate(chain) if key not in ghosts), len(chain))
    expert.use(chain, first)
    for key in chain:
        if key not in ghosts:
            expert.offer(key)
    while len(ghosts) > expert.capacity:
        expert.victim()
    return hits
