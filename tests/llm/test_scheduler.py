"""The scheduler against an engine that knows what every page must hold, and against a clock."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from genesis.llm.eviction import LRU, Cost, Heat, Learned
from genesis.llm.pages import Group, PagePool
from genesis.llm.prefix import PrefixCache
from genesis.llm.scheduler import Ended, Limits, Refused, Request, Scheduler, Step
from genesis.llm.tiers import Log, Tiers
from tests.llm.fake_engine import FakeEngine

GROUPS = {
    "full": [Group(40)],
    "window": [Group(40, window=10)],
    "mixed": [Group(40), Group(26, window=9), Group(30, window=1)],
}


class Server:
    """A scheduler, an engine and counts of what happened."""

    def __init__(
        self,
        groups: list[Group],
        limits: Limits,
        seed: int = 0,
        page_size: int = 4,
        tiers: Tiers | None = None,
        policy: type = Learned,
    ) -> None:
        self.pool = PagePool(page_size, groups)
        self.tiers = tiers
        self.cache = PrefixCache(self.pool, policy, tiers)
        self.scheduler = Scheduler(limits, self.pool, self.cache, b"model")
        self.engine = FakeEngine(self.pool, tiers, random.Random(seed))
        self.ended: dict[str, Ended] = {}
        self.counts = Counter[str]()

    def step(self, now: float, cancel: list[str] | None = None) -> Step:
        step = self.scheduler.plan(now)
        assert step.tokens <= self.scheduler.limits.step_tokens
        assert len(step.decodes) <= self.scheduler.limits.sequences
        results = self.engine.execute(step)
        for id in cancel or []:
            self.counts["cancel"] += self.scheduler.cancel(id)
        self.note(step.ended)
        self.note(self.scheduler.done(step, results, now))
        self.counts["preempt"] += len(step.preempted)
        self.counts["copy"] += len(step.copies)
        self.counts["store"] += len(step.stores)
        self.counts["load"] += len(step.loads)
        self.counts["drafts"] += sum(work.drafts for work in step.work)
        return step

    def note(self, ended: list[Ended]) -> None:
        for end in ended:
            assert end.request.id not in self.ended
            self.ended[end.request.id] = end
            self.counts[end.reason] += 1
            self.engine.histories.pop(end.request.id, None)

    def drain(self, now: float, most: int = 100_000) -> float:
        for _ in range(most):
            if not len(self.scheduler):
                break
            now += 1.0
            self.step(now)
        self.step(now)  # what was cancelled last
        assert not len(self.scheduler), "requests are stuck"
        self.scheduler.check()
        assert not any(map(any, self.pool.references))
        return now


def random_request(rng: random.Random, id: str, now: float) -> Request:
    """Prompts that begin alike, for a few salts and adapters."""
    start = random.Random(rng.randrange(6))
    prompt = [start.randrange(50) for _ in range(rng.randint(0, 30))]
    prompt += [rng.randrange(50) for _ in range(rng.randint(1, 12))]
    return Request(
        id,
        prompt,
        max_tokens=rng.randint(1, 25),
        sequences=rng.choice([1, 1, 1, 2, 3]),
        drafts=rng.choice([0, 0, 3]),
        priority=rng.randint(0, 2),
        deadline=now + rng.randint(1, 10) if rng.random() < 0.1 else None,
        key=rng.choice("abc"),
        adapter=rng.choice([b"", b"", b"lora"]),
        salt=rng.choice([b"", b"", b"salt"]),
        turns=[2, 5, 9] if len(prompt) > 12 else (),
    )


def random_traffic(server: Server, operations: int, seed: int) -> None:
    """Requests, cancellations before and during steps, and steps; checked as it goes."""
    rng, now, alive = random.Random(seed), 0.0, list[str]()
    for operation in range(operations):
        now += 0.1
        chosen = rng.random()
        if chosen < 0.25 and len(server.scheduler) < 40:
            request = random_request(rng, str(operation), now)
            if request.sequences > 1 and rng.random() < 0.5:
                server.engine.beams.add(request.id)
            try:
                server.scheduler.submit(request, now)
                alive.append(request.id)
                server.counts["submit"] += 1
            except Refused:
                server.counts["refused"] += 1
        elif chosen < 0.28 and alive:
            server.counts["cancel"] += server.scheduler.cancel(rng.choice(alive[-20:]))
        else:
            doomed = [rng.choice(alive[-20:])] if alive and rng.random() < 0.02 else []
            server.step(now, doomed)
        if operation % 50 == 0:
            server.scheduler.check()
    server.drain(now)


LIMITS = Limits(context=64, step_tokens=24, sequences=12, patience=5.0)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("tiered", [False, True])
def test_random_traffic(groups: str, tiered: bool, tmp_path: Path) -> None:
    tiers = Tiers(1500, Log(tmp_path, 20_000), item_bytes=8) if tiered else None
    server = Server(GROUPS[groups], LIMITS, tiers=tiers)
    random_traffic(server, 1000, seed=1)
    assert server.counts["submit"] == len(server.ended)
    for event in ("finished", "deadline", "cancelled", "preempt", "copy", "drafts"):
        assert server.counts[event], event
    if tiers is not None:
        assert server.counts["store"] and server.counts["load"]
        tiers.close()
