"""Hit rates of eviction policies on generated traces: `python -m tests.llm.hit_rates`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

from genesis.llm.eviction import LRU, Cost, Heat, Learned, Policy

Chain = list[bytes]
PAGES = 400  # of the cache
POLICIES: dict[str, Callable[[int], Policy]] = {
    "lru": LRU,
    "heat": Heat,
    "cost": Cost,
    "learned": Learned,
}


def chain(name: object, length: int, after: Chain | None = None) -> Chain:
    """Keys of `length` pages of a text, after those of another."""
    return [*(after or []), *(f"{name}/{i}".encode() for i in range(length))]


def zipf(rng: random.Random, n: int, s: float = 1.1) -> int:
    """A number below n, small ones more often."""
    weights = _ZIPF.setdefault((n, s), [1 / (i + 1) ** s for i in range(n)])
    return rng.choices(range(n), weights)[0]


_ZIPF: dict[tuple[int, float], list[float]] = {}


def system_prompts(rng: random.Random) -> Iterator[Chain]:
    """Some system prompts, each request with a question of its own."""
    for i in range(10**9):
        which = zipf(rng, 60)
        yield chain(("question", i), rng.randint(1, 10), chain(which, 10 + which % 7 * 5))


def chats(rng: random.Random) -> Iterator[Chain]:
    """Conversations that grow turn by turn, forty at a time, and end."""
    texts: list[Chain] = [[] for _ in range(40)]
    for i in range(10**9):
        which = rng.randrange(len(texts))
        if rng.random() < 0.1:
            texts[which] = []
        texts[which] = chain(i, rng.randint(1, 4), texts[which] or chain("system", 8))
        yield texts[which]


def loop(rng: random.Random) -> Iterator[Chain]:
    """The same 60 documents of 10 pages in turn: half as much again as the cache holds."""
    while True:
        yield from (chain(i, 10) for i in range(60))


def scans(rng: random.Random) -> Iterator[Chain]:
    """A few hot prompts between long documents that nobody reads twice."""
    for i in range(10**9):
        yield chain(("scan", i), 30) if rng.random() < 0.5 else chain(zipf(rng, 40), 12)


def zipf_prompts(rng: random.Random) -> Iterator[Chain]:
    """Whole prompts again, by Zipf's law, more of them than fit."""
    while True:
        which = zipf(rng, 1000, 0.9)
        yield chain(which, 3 + which * 7919 % 11)


def drift(rng: random.Random) -> Iterator[Chain]:
    """What is popular changes slowly."""
    for i in range(10**9):
        yield chain(i // 40 + zipf(rng, 300, 0.8), 5)


def phases(rng: random.Random) -> Iterator[Chain]:
    """A loop for a while, then chats, then scans, and so on."""
    parts = [loop(rng), chats(rng), scans(rng)]
    for i in range(10**9):
        yield next(parts[i // 3000 % 3])


TRACES = [system_prompts, chats, loop, scans, zipf_prompts, drift, phases]


def hit_rate(policy: Policy, trace: Iterator[Chain], requests: int) -> float:
    """The share of pages that a cache with this policy has, over a trace."""
    held, hits, wanted = policy.offered, 0, 0
    for _ in range(requests):
        keys = next(trace)
        hits += next((i for i, key in enumerate(keys) if key not in held), len(keys))
        wanted += len(keys)
        policy.use(keys)
        for key in keys:
            if key not in held:
                policy.offer(key)
        while len(held) > PAGES:
            policy.victim()
    return hits / wanted


def rates(trace: Callable[[random.Random], Iterator[Chain]], requests: int) -> dict[str, float]:
    """The hit rate of each policy on one trace."""
    return {
        name: hit_rate(make(PAGES), trace(random.Random(7)), requests)
        for name, make in POLICIES.items()
    }


def main(requests: int) -> None:
    """Print the table."""
    print(f"{'trace':>15}", *(f"{name:>8}" for name in POLICIES), " learned/best")
    for trace in TRACES:
        found = rates(trace, requests)
        best = max(rate for name, rate in found.items() if name != "learned")
        row = " ".join(f"{rate:8.4f}" for rate in found.values())
        print(f"{trace.__name__:>15} {row} {found['learned'] / best:13.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
