"""Pages of the pool and the prefix cache under random operations, against what they must hold."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from genesis.llm.eviction import LRU, Cost, Heat, Learned
from genesis.llm.page_offload import Tiers
from genesis.llm.pages import NOWHERE, PageGroup, PagePool, Tables, Write
from genesis.llm.prefix_cache import Chain, PrefixCache
from tests.llm.fake_engine import History, Memory


class Sequence:
    """A sequence as a user of the pool keeps it, and what was computed for it."""

    def __init__(self, chain: Chain, history: History, tables: Tables) -> None:
        self.chain, self.history, self.tables = chain, history, tables
        self.length = self.registered = 0


class Machine:
    """Random operations on a pool; a memory keeps what was written, a history what should be."""

    def __init__(self, seed: int, page_size: int, groups: list[PageGroup], tiered: bool) -> None:
        self.rng = random.Random(seed)
        self.pool = PagePool(page_size, groups)
        self.tiers = Tiers(4000) if tiered else None
        policy = self.rng.choice([LRU, Heat, Cost, Learned])
        self.cache = PrefixCache(self.pool, policy, self.tiers)
        self.memory = Memory(self.pool)
        self.alive: list[Sequence] = []
        self.counts = Counter[str]()

    def run(self, operations: int) -> None:
        names = ["start"] * 2 + ["grow"] * 4 + ["fork", "draft", "finish", "preempt"]
        for i in range(operations):
            name = self.rng.choice(names)
            if name == "start" or self.alive:
                getattr(self, name)()
                self.counts[name] += 1
            if i % 20 == 0:
                self.check()
        while self.alive:
            self.finish()
        self.check()
        assert not any(map(any, self.pool.references))

    def check(self) -> None:
        self.pool.check(s.tables for s in self.alive)
        self.cache.check()
        for s in self.alive:
            self.memory.verify(s.tables, s.history.prints, s.length, s.length)

    def start(self) -> None:
        """A sequence with a prompt that others may have had, or that was cut off before."""
        salt = self.rng.choice([b"", b"s"])
        text = random.Random(self.rng.randrange(8))
        tokens = [text.randrange(9) for _ in range(self.rng.randint(1, 40))]
        self.resume(Chain(self.pool.page_size, b"", salt=salt), History(b"", salt, tokens))

    def resume(self, chain: Chain, history: History) -> None:
        chain.extend(history.tokens)
        keys = chain.keys[: (len(history.tokens) - 1) // self.pool.page_size]
        match = self.cache.match(keys)
        s = Sequence(chain, history, self.cache.hold(match))
        if not self.pool.fits(match.loads()):
            self.pool.free(s.tables)
            return
        loads = self.cache.load(match, s.tables, keys)
        self.spill()
        for load in loads:
            self.memory.write(*load)
        self.cache.use(keys)
        self.counts["hits"] += match.pages
        self.counts["loads"] += len(loads)
        s.length = match.pages * self.pool.page_size
        s.registered = match.pages
        assert s.length < len(history.tokens)
        self.alive.append(s)
        self.write(s, len(history.tokens))

    def spill(self) -> None:
        stores, self.cache.stores = self.cache.stores, []
        if self.tiers is not None:
            self.tiers.store(stores, self.memory.read)
            self.counts["stores"] += len(stores)

    def write(self, s: Sequence, end: int) -> bool:
        """Compute the positions up to `end`; the newest sequences go if there is no room."""
        cost = self.pool.cost([Write(s.tables, s.length, end)])
        if not self.pool.fits(cost):
            self.drop(self.alive[-1])
            return False
        before = self.pool.available()
        copies = self.pool.extend(s.tables, s.length, end)
        after = self.pool.available()
        assert [b - a for b, a in zip(before, after, strict=True)] == cost, "cost is exact"
        self.counts["copies"] += len(copies)
        self.spill()
        for copy in copies:
            self.memory.copy(*copy)
        self.memory.put(s.tables, s.history.prints[s.length : end], s.length)
        self.settle(s, end)
        return True

    def settle(self, s: Sequence, length: int) -> None:
        s.length = length
        s.chain.extend(s.history.tokens[:length])
        full = length // self.pool.page_size
        if full > s.registered:
            self.cache.register(s.tables, s.chain.keys[:full], s.registered)
            s.registered = full
        self.pool.slide(s.tables, length)

    def grow(self) -> None:
        s = self.rng.choice(self.alive)
        s.history.extend([self.rng.randrange(9) for _ in range(self.rng.randint(1, 5))])
        self.write(s, len(s.history.tokens))

    def fork(self) -> None:
        s = self.rng.choice(self.alive)
        twin = Sequence(s.chain.fork(), s.history.fork(), self.pool.fork(s.tables))
        twin.length, twin.registered = s.length, s.registered
        self.alive.append(twin)

    def draft(self) -> None:
        """Tokens that are written, and then most of them not accepted."""
        s = self.rng.choice(self.alive)
        if s.length < len(s.history.tokens):
            return
        count = self.rng.randint(1, 6)
        write = Write(s.tables, s.length, s.length + count)
        if not self.pool.fits(self.pool.cost([write])):
            return
        copies = self.pool.extend(*write)
        self.spill()
        for copy in copies:
            self.memory.copy(*copy)
        s.history.extend([self.rng.randrange(9) for _ in range(self.rng.randint(0, count))])
        right = s.history.prints[s.length :]
        self.memory.put(s.tables, [*right, *[-7] * (count - len(right))], s.length)
        self.pool.truncate(s.tables, len(s.history.tokens))
        self.settle(s, len(s.history.tokens))

    def finish(self) -> None:
        self.drop(self.rng.choice(self.alive))

    def drop(self, s: Sequence) -> None:
        self.alive.remove(s)
        self.cache.use(s.chain.keys[: s.registered])
        self.pool.free(s.tables)

    def preempt(self) -> None:
        """All pages go, and what is still cached or stored is found again."""
        s = self.rng.choice(self.alive)
        self.drop(s)
        if self.rng.random() < 0.7:
            self.resume(s.chain, s.history)


def run_machines(seeds: range, operations: int) -> Counter[str]:
    counts = Counter[str]()
    for seed in seeds:
        rng = random.Random(seed)
        size = rng.choice([1, 2, 4, 5, 16])
        windows = rng.choice([[None], [6], [None, 6], [None, 1, 13], [3, 20]])
        groups = [PageGroup(max(8, 400 // size // rng.randint(1, 4)), window) for window in windows]
        machine = Machine(seed, size, groups, tiered=seed % 2 == 0)
        machine.run(operations)
        counts += machine.counts
    return counts


def test_random_operations() -> None:
    counts = run_machines(range(20), 150)
    assert all(counts[name] for name in ("hits", "loads", "stores", "copies", "preempt", "draft"))


@pytest.mark.slow
def test_many_random_operations() -> None:
    counts = run_machines(range(100, 200), 1030)
    print(counts)
    assert counts.total() - sum(counts[n] for n in ("hits", "loads", "stores", "copies")) > 100_000


def test_window_pages_are_freed() -> None:
    pool = PagePool(4, [PageGroup(50), PageGroup(4, window=6)])
    tables = pool.new_tables()
    for position in range(100):
        pool.extend(tables, position, position + 1)
        pool.slide(tables, position + 1)
        # Position `position + 1` attends to the five before it.
        needed = set(range(max(0, position + 1 - 5) // 4, position // 4 + 1))
        assert {i for i, page in enumerate(tables[1]) if page != NOWHERE} == needed
    assert len(set(tables[0])) == 25
    pool.check([tables])


def test_a_pool_of_no_pages_is_refused() -> None:
    for groups in ([], [PageGroup(0)], [PageGroup(4, window=0)]):
        with pytest.raises(ValueError, match="no pool"):
            PagePool(4, groups)
    with pytest.raises(ValueError, match="no pool"):
        PagePool(0, [PageGroup(4)])
