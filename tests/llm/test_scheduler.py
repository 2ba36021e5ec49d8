"""The scheduler against an engine that knows what every page must hold, and against a clock."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from genesis.llm.eviction import LRU, Cost, Heat, Learned
from genesis.llm.page_offload import Log, Tiers
from genesis.llm.pages import PageGroup, PagePool
from genesis.llm.prefix_cache import PrefixCache
from genesis.llm.request import Ended, EngineStep, Limits, Refused, Request
from genesis.llm.scheduler import Scheduler
from tests.llm.fake_engine import FakeEngine

GROUPS = {
    "full": [PageGroup(40)],
    "window": [PageGroup(40, window=10)],
    "mixed": [PageGroup(40), PageGroup(26, window=9), PageGroup(30, window=1)],
}


class Server:
    """A scheduler, an engine and counts of what happened."""

    def __init__(
        self,
        groups: list[PageGroup],
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

    def step(self, now: float, cancel: list[str] | None = None) -> EngineStep:
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_long_random_traffic(seed: int, tmp_path: Path) -> None:
    """Ten thousand operations each, on pools, windows, limits and tiers drawn at random."""
    rng = random.Random(seed)
    for part in range(5):
        size = rng.choice([1, 2, 3, 4, 8, 16])
        windows = rng.sample([None, *(rng.randint(1, 30) for _ in range(3))], rng.randint(1, 3))
        groups = [PageGroup(max(3, rng.randint(40, 200) // size), window) for window in windows]
        most = rng.randint(3, 14)
        limits = Limits(64, most + rng.randint(1, 30), most, patience=rng.choice([0.0, 5.0, 99.0]))
        log = Log(tmp_path / str(part), 20_000) if rng.random() < 0.6 else None
        tiers = Tiers(rng.choice([300, 3000]), log, 8) if rng.random() < 0.6 else None
        policy = rng.choice([LRU, Heat, Cost, Learned])
        server = Server(groups, limits, seed, size, tiers, policy)
        random_traffic(server, 2000, seed)
        assert server.counts["submit"] == len(server.ended)
        if tiers is not None:
            tiers.close()


# ---- single promises


def server(pages: int = 40, **limits: object) -> Server:
    made = Server([PageGroup(pages)], replace(LIMITS, **limits))  # type: ignore[arg-type]
    made.engine.stop = 0.0
    return made


@pytest.mark.parametrize("seed", range(12))
def test_need_is_exact(seed: int) -> None:
    """A request ends in a pool of as many pages as it needs, and at some time holds them all."""
    rng = random.Random(seed)
    prompt, new, count = rng.randint(1, 40), rng.randint(1, 24), rng.randint(1, 4)
    drafts, window = rng.choice([0, 3]), rng.randint(1, 20)
    probe = PagePool(4, [PageGroup(1), PageGroup(1, window)])
    need = probe.need(prompt, prompt + new - 1, count, LIMITS.step_tokens, drafts)
    made = Server([PageGroup(need[0]), PageGroup(need[1], window)], LIMITS, seed)
    made.engine.stop, most = 0.0, 0
    made.scheduler.submit(Request("r", [1] * prompt, new, count, drafts), 0.0)
    while len(made.scheduler):
        step = made.scheduler.plan(0.0)
        assert not step.preempted
        most = max(most, sum(n > 0 for n in made.pool.references[0]))
        made.note(made.scheduler.done(step, made.engine.execute(step), 0.0))
    assert [len(o.tokens) for o in made.ended["r"].outputs] == [new] * count
    assert most == need[0] or drafts, "with drafts, sequences do not reach their end together"


def test_what_can_never_fit_is_refused() -> None:
    made = server(pages=10)
    with pytest.raises(
        Refused, match=r"30 tokens and 20 new ones.* need \[13\] pages of 4.*\[10\]"
    ):
        made.scheduler.submit(Request("r", [1] * 30, 20), 0.0)
    with pytest.raises(Refused, match=r"in 3 sequences can need \[15\]"):
        made.scheduler.submit(Request("r", [1] * 14, 12, sequences=3), 0.0)
    with pytest.raises(Refused, match="13 sequences wanted, 12 at most"):
        made.scheduler.submit(Request("r", [1], 1, sequences=13), 0.0)
    for empty in (Request("r", [], 1), Request("r", [1], 0), Request("r", [1], 1, 0)):
        with pytest.raises(Refused, match="the least"):
            made.scheduler.submit(empty, 0.0)
    with pytest.raises(Refused, match="64 bits"):
        made.scheduler.submit(Request("r", [1 << 70] * 4, 1), 0.0)
    assert not len(made.scheduler)


def test_names_and_the_queue_are_limited() -> None:
    made = server(queue=2)
    made.scheduler.submit(Request("a", [1], 1), 0.0)
    with pytest.raises(Refused, match="request 'a' already"):
        made.scheduler.submit(Request("a", [1], 1), 0.0)
    made.scheduler.submit(Request("b", [1], 1), 0.0)
    with pytest.raises(Refused, match="2 requests are waiting"):
        made.scheduler.submit(Request("c", [1], 1), 0.0)


def test_a_full_context_is_an_error_or_drops_turns() -> None:
    made = server(context=20)
    prompt = list(range(16))  # 2 of a system prompt, then turns of 5, 4 and 5 tokens
    with pytest.raises(Refused, match="16 tokens and 5 new ones do not fit the context of 20"):
        made.scheduler.submit(Request("r", prompt, 5), 0.0)
    cases = {5: [0, 1, *range(7, 16)], 9: [0, 1, *range(7, 16)], 10: [0, 1, *range(11, 16)]}
    for new, expected in cases.items():
        made.scheduler.submit(
            Request(str(new), prompt, new, turns=[2, 7, 11], salt=b"%d" % new), 0.0
        )
        step = made.step(0.0)
        assert [w.tokens for w in step.prefills] == [expected]
        made.drain(0.0)
    with pytest.raises(Refused, match="whichever old turns"):
        made.scheduler.submit(Request("r", prompt, 14, turns=[2, 7, 11]), 0.0)


def test_prompts_are_shared_and_leave_one_token() -> None:
    made = server()
    made.scheduler.submit(Request("a", [1] * 16, 1), 0.0)
    made.drain(0.0)
    for salt, start in ((b"", 12), (b"other", 0)):
        made.scheduler.submit(Request("b", [1] * 16, 1, salt=salt), 0.0)
        assert [w.start for w in made.step(1.0).work] == [start]
        made.ended.clear()


def test_samples_share_the_prompt() -> None:
    made = server()
    made.scheduler.submit(Request("r", [1] * 18, 4, sequences=3), 0.0)
    first = made.step(0.0)
    assert len(first.work) == 1
    second = made.step(0.0)
    assert len(second.decodes) == 3 and len(second.copies) == 2
    assert len({tuple(w.tables[0][:4]) for w in second.decodes}) == 1
    assert len({w.tables[0][4] for w in second.decodes}) == 3
    made.drain(0.0)


def test_prompts_are_computed_in_chunks_beside_decodes() -> None:
    made = server(step_tokens=16, sequences=4)
    made.scheduler.submit(Request("a", [1] * 4, 20), 0.0)
    made.step(0.0)
    made.scheduler.submit(Request("b", [2] * 40, 4), 0.0)
    chunks = []
    for _ in range(3):
        step = made.step(0.0)
        assert [w.request.id for w in step.decodes] == ["a"]
        chunks += [(w.start, len(w.tokens), w.sample) for w in step.prefills]
    assert chunks == [(0, 15, False), (15, 15, False), (30, 10, True)]


def test_a_higher_priority_makes_way() -> None:
    made = server(pages=12)
    made.scheduler.submit(Request("low", [1] * 20, 20), 0.0)
    made.step(0.0)
    made.scheduler.submit(Request("high", [2] * 30, 8, priority=1), 1.0)
    steps = [made.step(1.0) for _ in range(3)]
    assert [step.preempted for step in steps[:2]] == [[], ["low"]]
    assert [w.request.id for w in steps[1].work] == ["high"]
    made.drain(1.0)
    assert list(made.ended) == ["high", "low"]


def test_a_priority_of_another_key_does_not() -> None:
    made = server(pages=12)
    made.scheduler.submit(Request("low", [1] * 20, 20, key="a"), 0.0)
    made.step(0.0)
    made.scheduler.submit(Request("high", [2] * 30, 8, priority=9, key="b"), 1.0)
    made.drain(1.0)
    assert list(made.ended) == ["low", "high"] and not made.counts["preempt"]


def test_preempted_requests_find_their_pages_again() -> None:
    """Without a tier what was overwritten is computed again, with one it is loaded."""
    computed = []
    for tiers in (None, Tiers(1 << 20, item_bytes=8)):
        made = Server([PageGroup(12)], LIMITS, tiers=tiers)
        made.engine.stop = 0.0
        made.scheduler.submit(Request("low", [1] * 20, 20), 0.0)
        made.step(0.0)
        made.scheduler.submit(Request("high", [2] * 40, 8, priority=1), 1.0)
        made.drain(1.0)
        assert made.counts["preempt"] == 1
        computed.append(made.engine.computed)
    assert computed[1] <= computed[0] - 16


def test_steps_alternate() -> None:
    made = server()
    step = made.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="not done"):
        made.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="planned last"):
        made.scheduler.done(EngineStep(), {}, 0.0)
    made.scheduler.done(step, {}, 0.0)


def test_deadlines_and_cancellations_give_what_there_is() -> None:
    made = server()
    made.scheduler.submit(Request("late", [1] * 4, 50, deadline=3.0), 0.0)
    made.scheduler.submit(Request("gone", [2] * 4, 50), 0.0)
    for now in (0.0, 1.0, 2.0):
        made.step(now)
    made.step(2.5, cancel=["gone", "nobody"])
    made.step(3.0)
    for id, reason, count in (("late", "deadline", 4), ("gone", "cancelled", 3)):
        (output,) = made.ended[id].outputs
        assert (made.ended[id].reason, output.reason) == (reason, reason)
        assert len(output.tokens) == count
    made.drain(4.0)
