"""Eviction policies: hit rates on traces, and suffixes before prefixes."""

from __future__ import annotations

import random

import pytest

from genesis.llm.eviction import LRU, Cost, Heat, Learned, Policy
from tests.llm.hit_rates import TRACES, chain, chats, loop, phases, rates, scans, system_prompts


def close_to_the_best(trace: object, requests: int) -> None:
    found = rates(trace, requests)  # type: ignore[arg-type]
    best = max(rate for name, rate in found.items() if name != "learned")
    assert found["learned"] >= 0.98 * best, found


@pytest.mark.parametrize("trace", [loop, chats, scans])
def test_learned_is_close_to_the_best(trace: object) -> None:
    close_to_the_best(trace, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("trace", TRACES)
def test_learned_is_close_to_the_best_for_long(trace: object) -> None:
    close_to_the_best(trace, 10_000)


@pytest.mark.slow
def test_learned_beats_them_all_where_traffic_changes() -> None:
    found = rates(phases, 20_000)
    assert found["learned"] > 1.02 * max(found[name] for name in ("lru", "heat", "cost")), found


@pytest.mark.parametrize("policy", [LRU, Heat, Cost, Learned])
def test_suffixes_go_before_prefixes(policy: type[Policy]) -> None:
    """What is left after each eviction is closed: with a page, all pages before it."""
    rng = random.Random(3)
    made, trace = policy(60), system_prompts(rng)
    before: dict[bytes, bytes] = {}
    for _ in range(300):
        keys = next(trace)
        before.update(zip(keys[1:], keys[:-1], strict=True))
        made.use(keys)
        for key in keys:
            if key not in made.offered:
                made.offer(key)
        while len(made.offered) > 60:
            made.victim()
            if policy is not Learned:  # when the leader changes, so does the order
                assert all(before.get(key, key) in made.offered for key in made.offered)


def test_ratings_do_not_grow_without_bound() -> None:
    for policy in (LRU(50), Heat(50), Cost(50)):
        for i in range(1000):
            policy.use(chain(i, 5))
            policy.offer(chain(i, 1)[0])
            policy.withdraw(chain(i, 1)[0])
        assert len(policy.scores) <= 2 * 50 + 5
        assert len(policy._heap) <= 70
