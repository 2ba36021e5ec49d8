"""An engine without a model: into each slot of a page it writes what keys would depend on.

Keys and values of a position depend on all tokens up to it, the adapter and, for isolation, the
salt. The engine keeps a fingerprint of these in each slot, knows the tokens of every sequence from
what it sampled itself, and before computing compares all that a position attends to.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from genesis.llm.page_offload import Tiers
from genesis.llm.pages import NOWHERE, PagePool
from genesis.llm.request import Continuation, EngineStep, Request, TokenSpan

MASK = (1 << 62) - 1


class History:
    """Tokens of a sequence, and a fingerprint of all up to each."""

    def __init__(self, adapter: bytes, salt: bytes, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self.prints: list[int] = []
        self._root = hash((adapter, salt)) & MASK
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            last = self.prints[-1] if self.prints else self._root
            self.tokens.append(token)
            self.prints.append(hash((last, token)) & MASK)

    def fork(self) -> History:
        twin = History(b"", b"")
        twin.tokens, twin.prints = list(self.tokens), list(self.prints)
        twin._root = self._root
        return twin


class Memory:
    """The contents of all pages."""

    def __init__(self, pool: PagePool) -> None:
        self.size = pool.page_size
        self.windows = [group.window for group in pool.groups]
        self.slots = [[[-1] * self.size for _ in range(g.pages)] for g in pool.groups]

    def read(self, group: int, page: int) -> bytes:
        return struct.pack(f"<{self.size}q", *self.slots[group][page])

    def write(self, group: int, page: int, data: bytes) -> None:
        self.slots[group][page] = list(struct.unpack(f"<{self.size}q", data))

    def copy(self, group: int, source: int, target: int) -> None:
        self.slots[group][target] = list(self.slots[group][source])

    def put(self, tables: list[list[int]], prints: Sequence[int], start: int) -> None:
        """Write the positions from `start` on, for all groups."""
        for group, table in enumerate(tables):
            for position, value in enumerate(prints, start):
                self.slots[group][table[position // self.size]][position % self.size] = value

    def verify(self, tables: list[list[int]], prints: Sequence[int], start: int, end: int) -> None:
        """What positions from `start` on attend to, up to `end`, is what was computed for it."""
        for group, table in enumerate(tables):
            window = self.windows[group]
            first = 0 if window is None else max(0, start - window + 1)
            for index in range(first // self.size, -(-end // self.size)):
                assert table[index] != NOWHERE, "a page is needed that was freed"
                low, high = max(first, index * self.size), min(end, (index + 1) * self.size)
                found = self.slots[group][table[index]]
                offset = index * self.size
                assert found[low - offset : high - offset] == list(prints[low:high]), "contents"


class FakeEngine:
    """Executes steps and samples at random; of `beams` requests, sequences change places."""

    def __init__(self, pool: PagePool, tiers: Tiers | None, rng: random.Random) -> None:
        self.memory = Memory(pool)
        self.tiers = tiers
        self.rng = rng
        self.stop = 0.02
        self.histories: dict[str, list[History]] = {}
        self.beams: set[str] = set()
        self.computed = 0

    def execute(self, step: EngineStep) -> dict[str, list[Continuation]]:
        if step.stores:
            assert self.tiers is not None
            self.tiers.store(step.stores, self.memory.read)
        for copy in step.copies:
            self.memory.copy(*copy)
        for load in step.loads:
            self.memory.write(*load)
        plans = [(work, *self._inputs(work)) for work in step.work]
        for work, history, _ in plans:
            self.memory.verify(work.tables, history.prints, work.start, work.start)
        for work, history, drafts in plans:
            ahead = history.fork()
            ahead.extend(drafts)
            prints = ahead.prints[work.start : work.start + len(work.tokens) + len(drafts)]
            self.memory.put(work.tables, prints, work.start)
            self.computed += len(prints)
        samples: dict[str, list[tuple[TokenSpan, list[int]]]] = {}
        for work, history, drafts in plans:
            end = work.start + len(work.tokens)
            self.memory.verify(work.tables, history.prints, work.start, end)
            if work.sample:
                samples.setdefault(work.request.id, []).append((work, drafts))
        return {id: self._sample(id, parts) for id, parts in samples.items()}

    def _inputs(self, work: TokenSpan) -> tuple[History, list[int]]:
        request = work.request
        if request.id not in self.histories:
            first = History(request.adapter, request.salt, request.prompt)
            self.histories[request.id] = [first]
        history = self.histories[request.id][work.sequence]
        assert work.tokens and work.start + len(work.tokens) <= len(history.tokens)
        assert work.tokens == history.tokens[work.start : work.start + len(work.tokens)]
        if work.sample:
            assert work.start + len(work.tokens) == len(history.tokens)
        return history, [self.rng.randrange(50) for _ in range(work.drafts)]

    def _sample(self, id: str, parts: list[tuple[TokenSpan, list[int]]]) -> list[Continuation]:
        request, old = parts[0][0].request, self.histories[id]
        assert [work.sequence for work, _ in parts] == list(range(len(old)))
        result = []
        for parent in self._parents(request, len(old)):
            drafts = parts[parent][1]
            accepted = drafts[: self.rng.randint(0, len(drafts))]
            ends = "stop" if self.rng.random() < self.stop else None
            result.append(Continuation(parent, [*accepted, self.rng.randrange(50)], ends))
        self.histories[id] = self._follow(request, old, result)
        return result

    def _parents(self, request: Request, count: int) -> Sequence[int]:
        if len(self.histories[request.id][0].tokens) == len(request.prompt):
            return [0] * request.sequences
        if request.id in self.beams:
            return [
                self.rng.randrange(count) for _ in range(self.rng.randint(1, request.sequences))
            ]
        return range(count)

    def _follow(
        self, request: Request, old: list[History], result: list[Continuation]
    ) -> list[History]:
        live = []
        for parent, tokens, reason in result:
            history = old[parent].fork()
            history.extend(tokens)
            if reason is None and len(history.tokens) < len(request.prompt) + request.max_tokens:
                live.append(history)
        return live
