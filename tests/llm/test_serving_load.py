"""The scheduler under load: a clock that a cost model drives, and promises about time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from genesis.llm.pages import PageGroup
from genesis.llm.request import EngineStep, Limits, Request
from tests.llm.test_scheduler import Server

LIMITS = Limits(context=400, step_tokens=128, sequences=32, patience=20.0)
GROUPS = [PageGroup(120), PageGroup(110, window=40)]
PAGE = 8


def seconds(step: EngineStep) -> float:
    """What a step costs: reading the weights, and something for each token."""
    return 0.02 + 0.0003 * step.tokens


class Simulation(Server):
    """A server with a clock; requests come at their times."""

    def __init__(self, groups: list[PageGroup], limits: Limits, seed: int = 0) -> None:
        super().__init__(groups, limits, seed, PAGE)
        self.engine.stop = 0.005
        self.now = 0.0
        self.end_times: dict[str, float] = {}

    def run(self, arrivals: list[tuple[float, Request]], cancels: dict[str, float]) -> None:
        """Until all is over."""
        arrivals = sorted(arrivals, key=lambda a: a[0], reverse=True)
        while arrivals or len(self.scheduler):
            if not len(self.scheduler):
                self.now = max(self.now, arrivals[-1][0])
            while arrivals and arrivals[-1][0] <= self.now:
                self.scheduler.submit(arrivals.pop()[1], self.now)
            for id in [id for id, time in cancels.items() if time <= self.now]:
                self.scheduler.cancel(id)
                del cancels[id]
            before = set(self.ended)
            step = self.step(self.now)
            assert step.work or step.ended or not len(self.scheduler), "nothing moves"
            self.now += seconds(step)
            self.end_times |= dict.fromkeys(self.ended.keys() - before, self.now)
        self.scheduler.check()
        assert not any(map(any, self.pool.references))


def traffic(
    rng: random.Random, count: int, rate: float, keys: str = "abc"
) -> list[tuple[float, Request]]:
    """Requests by a Poisson process, as mixed as they come."""
    arrivals, now = [], 0.0
    for i in range(count):
        now += rng.expovariate(rate)
        shared = random.Random(rng.randrange(5))
        prompt = [shared.randrange(50) for _ in range(rng.choice([0, 30, 60]))]
        prompt += [rng.randrange(50) for _ in range(int(rng.lognormvariate(3.0, 0.8)) % 200 + 1)]
        request = Request(
            str(i),
            prompt,
            max_tokens=min(90, int(rng.lognormvariate(3.2, 0.7)) + 1),
            sequences=rng.choice([1] * 8 + [2, 3]),
            drafts=rng.choice([0, 0, 4]),
            priority=rng.choice([0, 0, 0, 1, 2]),
            key=rng.choice(keys),
        )
        arrivals.append((now, request))
    return arrivals


def capacity(count: int = 150) -> float:
    """Requests per second that are served when all are there from the start."""
    simulation = Simulation(GROUPS, LIMITS)
    simulation.run([(0.0, r) for _, r in traffic(random.Random(9), count, 1.0)], {})
    return count / simulation.now


def overload(count: int, seed: int) -> Simulation:
    """Three times as many requests as can be served; some are cancelled, some have deadlines."""
    rng = random.Random(seed)
    arrivals = [
        (time, replace(r, deadline=time + rng.uniform(0, 60)) if rng.random() < 0.2 else r)
        for time, r in traffic(rng, count, 3 * capacity())
    ]
    cancels = {r.id: time + rng.uniform(0, 30) for time, r in arrivals if rng.random() < 0.2}
    simulation = Simulation(GROUPS, LIMITS, seed)
    simulation.run(list(arrivals), cancels)
    assert len(simulation.ended) == count
    step = 0.02 + 0.0003 * LIMITS.step_tokens
    for id, ended in simulation.ended.items():
        deadline = ended.request.deadline
        assert deadline is None or simulation.end_times[id] <= deadline + 2 * step
        assert (ended.reason == "deadline") <= (deadline is not None)
        for output in ended.outputs:
            assert len(output.tokens) <= ended.request.max_tokens
            assert output.reason != "length" or len(output.tokens) == ended.request.max_tokens
    return simulation


def test_all_requests_end() -> None:
    simulation = overload(150, seed=0)
    for reason in ("finished", "cancelled", "deadline", "preempt"):
        assert simulation.counts[reason], reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_all_of_many_requests_end(seed: int) -> None:
    simulation = overload(1000, seed)
    print(simulation.now, simulation.counts)


def fairness(per_key: int) -> tuple[float, float]:
    """The largest difference in tokens served between keys that always want more, and a bound.

    Requests of the keys differ in length, and one key has a double share. A key is passed over
    while it has had more than others, so it is ahead by no more than what it can be given at once:
    what the pool holds, and a request.
    """
    limits = replace(LIMITS, shares={"c": 2.0})
    simulation, rng = Simulation([PageGroup(120)], limits), random.Random(4)
    sizes, i = {"a": (10, 60), "b": (150, 10), "c": (40, 30)}, 0
    for key, (prompt, new) in sizes.items():
        for _ in range(per_key * (3 if key == "c" else 2 if key == "a" else 1)):
            tokens = [rng.randrange(10**6) for _ in range(prompt)]
            simulation.scheduler.submit(Request(str(i := i + 1), tokens, new, key=key), 0.0)
    worst, waiting = 0.0, simulation.scheduler._waiting
    while all(waiting.get(key) for key in sizes):
        simulation.step(0.0)
        served = simulation.scheduler._served.values()
        worst = max(worst, max(served) - min(served))
    assert len(simulation.ended) > per_key
    return worst, 2 * (120 * PAGE + 160)


def test_shares_are_fair() -> None:
    worst, bound = fairness(40)
    assert worst <= bound


@pytest.mark.slow
def test_shares_are_fair_for_long() -> None:
    """The bound does not grow with time."""
    worst, bound = fairness(400)
    print(worst, bound)
    assert worst <= bound


def test_a_key_that_was_away_has_not_saved_up() -> None:
    simulation = Simulation([PageGroup(120)], LIMITS)
    for i in range(100):
        simulation.scheduler.submit(Request(f"a{i}", [i] * 20, 30, key="a"), 0.0)
    for _ in range(60):
        simulation.step(0.0)
    for i in range(100):
        simulation.scheduler.submit(Request(f"b{i}", [i, 7] * 10, 30, key="b"), 0.0)
    for _ in range(150):
        simulation.step(0.0)
    late = [id for id in list(simulation.ended)[-40:] if id.startswith("a")]
    assert 10 <= len(late) <= 30


def starve(rate: float, seconds_of_traffic: float) -> tuple[float, float]:
    """When a request of low priority ends among many of high priority, and by when it must.

    Requests that come `patience * 2` seconds after it rank behind it. What ranks before it comes
    at `rate` times the capacity until then; all of that may be served first.
    """
    rng = random.Random(3)
    per_second = rate * capacity()
    arrivals = traffic(rng, int(per_second * seconds_of_traffic), per_second, keys="a")
    arrivals = [(time, replace(r, priority=2)) for time, r in arrivals]
    low = Request("low", [1] * 100, 60, priority=0, key="a")
    simulation = Simulation(GROUPS, LIMITS)
    simulation.run([(5.0, low), *arrivals], {})
    assert simulation.now > seconds_of_traffic
    return simulation.end_times["low"], 1.5 * rate * (5.0 + 2 * LIMITS.patience) + 10.0


@pytest.mark.slow
def test_low_priorities_do_not_starve() -> None:
    ended, bound = starve(3.0, 150.0)
    print(ended, bound)
    assert ended <= bound


def test_a_request_ends_after_those_before_it() -> None:
    """In every step the first request advances by a token, or a chunk of its prompt."""
    rng = random.Random(8)
    arrivals = traffic(rng, 120, 1000.0, keys="a")
    simulation = Simulation(GROUPS, LIMITS)
    simulation.run(list(arrivals), {})
    longest = 0.02 + 0.0003 * LIMITS.step_tokens
    chunk = LIMITS.step_tokens - LIMITS.sequences  # at least that much is left beside decodes
    steps = 2  # to be noticed, and for others to make way
    for time, r in sorted(arrivals, key=lambda a: a[0] - a[1].priority * LIMITS.patience):
        steps += len(r.prompt) // chunk + 1 + r.max_tokens
        assert simulation.end_times[r.id] - time <= steps * longest
