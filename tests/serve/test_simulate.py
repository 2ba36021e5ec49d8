"""The simulator: the engine's scheduler on another clock, and what is learned of steps."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genesis.cli import main
from genesis.llm.request import Request
from genesis.llm.step_time import StepSize, StepTime
from genesis.serve.app import ServerOptions
from genesis.serve.limits import TIERS
from genesis.serve.load_generator import Target, measure
from genesis.serve.model_pool import predicted_wait
from genesis.serve.simulate import Arrival, Replica, SimulationResult, System, read, recorded, run
from tests.serve.running import Running, tiny

SYSTEM: dict[str, Any] = {
    "costs": [0.02, 0.01, 3e-4, 1e-3, 1e-7, 1e-8], "pages": [600], "windows": [None],
    "page_size": 64, "context": 4096, "sequences": 16, "step_tokens": 256,
}  # fmt: skip


def traffic(count: int, rate: float, seed: int = 0, flex: float = 0.0) -> list[Arrival]:
    rng, now, found = random.Random(seed), 0.0, list[Arrival]()
    for number in range(count):
        now += rng.expovariate(rate)
        prompt = [rng.randrange(20)] * 128 + [-1 - number] * rng.randint(20, 300)
        answer = rng.randint(4, 60)
        tier = TIERS["flex" if rng.random() < flex else "priority"]
        due = now + tier.first_token
        request = Request(
            str(number), prompt, answer + 20, 1, 15, tier.priority, due=due, pace=tier.between
        )
        found.append(Arrival(now, request, answer, tier))
    return found


def test_it_is_deterministic_and_counts_everything() -> None:
    first, second = (run(traffic(150, 2.0), System(**SYSTEM)).row() for _ in range(2))
    assert first == second
    result = run(traffic(150, 2.0), System(**SYSTEM))
    assert len(result.first) == len(result.ends) == 150 and result.refused == 0
    assert result.written == sum(a.answer for a in traffic(150, 2.0))
    assert 0 < result.cached < result.prompt


def test_steps_at_once_change_nothing() -> None:
    many = run(traffic(60, 1.0), System(**SYSTEM))
    arrivals = traffic(60, 1.0)
    for a in arrivals:
        object.__setattr__(a.request, "drafts", 0)
    single = run(arrivals, System(**SYSTEM))
    assert many.written == single.written
    for name, value in single.row().items():
        assert many.row()[name] == pytest.approx(value, rel=0.03, abs=2e-3), name


@pytest.mark.slow
def test_a_day_takes_a_minute() -> None:
    """Of one processor, whatever else runs."""
    arrivals = traffic(100_000, 2.0)
    begin = time.process_time()
    assert len(run(arrivals, System(**SYSTEM)).ends) == 100_000
    assert time.process_time() - begin <= 60


def test_more_pages_and_replicas_help() -> None:
    base = run(traffic(120, 4.0), System(**SYSTEM)).row()
    small = run(traffic(120, 4.0), System(**{**SYSTEM, "pages": [120]})).row()
    two = run(traffic(120, 4.0), System(**SYSTEM, replicas="2")).row()
    assert small["hit %"] < base["hit %"]
    assert two["first p95"] < base["first p95"]


def test_interactive_requests_keep_their_target_beside_a_flood() -> None:
    arrivals = traffic(120, 1.0) + [
        Arrival(a.at / 4, Request(f"b{k}", a.request.prompt, a.request.max_tokens, 1, 15, -1,
                                  due=a.at / 4 + 60, pace=10.0), a.answer, TIERS["flex"])
        for k, a in enumerate(traffic(200, 4.0, seed=1, flex=1.0))
    ]  # fmt: skip
    result = run(arrivals, System(**SYSTEM))
    assert len(result.ends) == 320  # nobody waits for ever
    assert result.late <= 0.05 * 120


def closed_loop(
    clients: int, count: int, prompt: int, answer: int, pace: float | None,
    calm: int = 0, speed: float = 1.0,
) -> SimulationResult:  # fmt: skip
    """Clients who send a request when the one before is answered, after `calm` of one client."""
    costs = [cost / speed for cost in (0.008, 0.004, 9e-4, 2.1e-3, 4e-7, 1e-8)]
    system = {**SYSTEM, "costs": costs, "sequences": 32}
    result = SimulationResult()
    replica, tier, sent = Replica(System(**system), result, 0.0), TIERS["default"], 0
    while len(result.ends) < count:
        together = clients if len(result.ends) >= calm else 1
        while sent < min(count, together + len(result.ends)):
            due = replica.now + tier.first_token
            own = [-1 - sent] * prompt
            request = Request(str(sent), own, answer, due=due, pace=pace)
            replica.submit(Arrival(replica.now, request, answer, tier))
            sent += 1
        replica.step(float("inf"))
    result.seconds = replica.now
    return result


@pytest.mark.parametrize(
    ("clients", "prompt", "answer"), [(32, 256, 64), (8, 256, 64), (32, 64, 128), (16, 600, 30)]
)
def test_tokens_come_evenly(clients: int, prompt: int, answer: int) -> None:
    even = closed_loop(clients, 8 * clients, prompt, answer, TIERS["default"].between).row()
    burst = closed_loop(clients, 8 * clients, prompt, answer, None).row()
    assert even["between p99"] <= 2 * even["between p50"]
    assert even["tokens/s"] >= 0.92 * burst["tokens/s"]


def test_clients_wait_for_their_answers() -> None:
    """Whatever the times in the trace are, and of a machine of any speed."""
    for speed in (1.0, 1.2):
        waiting = closed_loop(8, 64, 256, 64, TIERS["default"].between, speed=speed).row()
        costs = [cost / speed for cost in (0.008, 0.004, 9e-4, 2.1e-3, 4e-7, 1e-8)]
        due, tier = TIERS["default"].first_token, TIERS["default"]
        times = [0.0] * 8 + [float(k) for k in range(56)]
        requests = [
            Request(str(k), [-1 - k] * 256, 64, due=at + due, pace=tier.between)
            for k, at in enumerate(times)
        ]
        system = System(**{**SYSTEM, "costs": costs, "sequences": 32}, clients=8)
        arrivals = [Arrival(at, r, 64, tier) for at, r in zip(times, requests, strict=True)]
        found = run(arrivals, system).row()
        for name in ("first p50", "first p95", "between p50", "between p95", "tokens/s"):
            assert found[name] == pytest.approx(waiting[name], rel=0.02), name


@pytest.mark.parametrize(("prompt", "answer"), [(256, 64), (200, 32), (64, 128)])
def test_a_queue_is_worked_off(prompt: int, answer: int) -> None:
    """Where there is time enough until first tokens are due, nobody waits all of it."""
    pace = TIERS["default"].between
    result = closed_loop(32, 8 * 32, prompt, answer, pace, calm=4, speed=2)
    soon, between = np.asarray(result.first[4 + 3 * 32 :]), result.row()["between p50"]
    assert np.percentile(soon, 95) <= 10 * between


def test_an_autoscaler_costs_less_than_a_fleet() -> None:
    calm, rush = traffic(60, 0.3), traffic(200, 6.0, seed=2)
    for a in rush:
        a.at += calm[-1].at
        object.__setattr__(a.request, "id", "r" + a.request.id)
        object.__setattr__(a.request, "due", a.at + a.tier.first_token)
    fixed = run([*calm, *rush], System(**SYSTEM, replicas="4")).row()
    auto = run([*calm, *rush], System(**SYSTEM, replicas="auto")).row()
    one = run([*calm, *rush], System(**SYSTEM)).row()
    assert auto["replica h"] < 0.8 * fixed["replica h"]
    assert auto["first p95"] < one["first p95"]


def test_waits_are_predicted() -> None:
    waits: dict[str, float] = {}

    class Noted(Replica):
        def _noted(self, id: str, sequences: int, many: int) -> None:
            if self._first(id):
                waits[id] = self.now - self._jobs[id][0].at
            super()._noted(id, sequences, many)

    for rate in (8.0, 16.0):  # more than it can do
        waits.clear()
        replica = Noted(System(**SYSTEM), SimulationResult(), 0.0)
        arrivals, said = traffic(150, rate, flex=1.0)[::-1], dict[str, float]()
        while arrivals or len(replica.scheduler):
            if arrivals and (not len(replica.scheduler) or arrivals[-1].at <= replica.now):
                arrival = arrivals.pop()
                tokens = len(arrival.request.prompt)
                said[arrival.request.id] = predicted_wait(
                    replica.scheduler, replica._times, 32.0, tokens
                )
                replica.submit(arrival)
            else:
                replica.step(arrivals[-1].at if arrivals else float("inf"))
        long = [id for id, wait in waits.items() if wait > 1]
        right = [id for id in long if waits[id] / 2 <= said[id] <= 2 * waits[id]]
        assert len(right) >= 0.8 * len(long), (rate, len(right), len(long))


def test_step_times_are_learned() -> None:
    rng, times = np.random.default_rng(0), StepTime()
    costs = np.array([0.02, 0.005, 2e-4, 5e-4, 2e-7, 1e-9])
    for _ in range(400):
        rows, tokens = rng.integers(1, 32), rng.integers(0, 2) * rng.integers(1, 256)
        size = StepSize(
            1, tokens > 0, tokens, rows, rows * rng.integers(10, 900), tokens * tokens / 2
        )
        times.note(size, float(costs @ np.asarray(size)) * rng.uniform(0.9, 1.1))
    for size in (StepSize(1, 0, 0, 8, 4000, 0), StepSize(1, 1, 200, 8, 4000, 20000)):
        assert times.seconds(size) == pytest.approx(float(costs @ np.asarray(size)), rel=0.05)
    alone = StepSize(1, 0, 0, 8, 4000, 0)
    fits = times.budget(alone, 0.05, 0, 16, 512)
    assert times.seconds(alone._replace(prefills=1, tokens=fits)) <= 0.0501


def test_prompts_of_one_length_are_learned() -> None:
    """Steps that do not tell a piece from its tokens: the time is laid to tokens."""
    rng, times = np.random.default_rng(1), StepTime()
    for k in range(300):
        rows, tokens = int(rng.integers(1, 32)), 256 * (k % 8 == 0)
        size = StepSize(1, tokens > 0, tokens, rows, rows * 300, tokens * tokens / 2)
        times.note(size, (0.01 + 2e-3 * rows + 1e-3 * tokens) * rng.lognormal(0, 0.3))
    assert 0.7e-3 < times.costs[2] < 1.3e-3
    assert 100 < times.budget(StepSize(1, 0, 0, 8, 2400, 0), 0.226, 0, 32, 512) < 320


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"system": SYSTEM}]
    for k, a in enumerate(traffic(40, 2.0)):
        page = f"{a.request.prompt[0]:012x}"
        rows.append(
            {"time": 100 + a.at, "max_tokens": a.request.max_tokens, "n": 1, "priority": 0,
             "page_size": 64, "pages": [page, page], "prompt_tokens": len(a.request.prompt),
             "completion_tokens": a.answer, "tier": "default", "key": str(k % 2),
             "times": [[0.5, 1], [1.5, a.answer - 1]], "cached_tokens": 64}
        )  # fmt: skip
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    page = tmp_path / "table.html"
    assert main(["llm", "simulate", str(file), "--policy", "lru,heat", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert (
        "recorded" in out
        and "policy=lru" in out
        and "policy=heat" in out
        and "first p95" in page.read_text()
    )
    assert len(read(file)[0]) == 40
    file.write_text("{}")
    assert main(["llm", "simulate", str(file)]) == 1
    assert "line 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "pages"), [(0, 1 << 24), (192, 1 << 24), (192, 1 << 19)])
def test_a_recorded_trace_is_simulated(
    shared: int, pages: int, folder: Path, tmp_path: Path
) -> None:
    """What does not depend on how fast it went: every request, its tokens, and what was cached."""
    trace = tmp_path / "trace.jsonl"
    running = Running([tiny(folder, cache_bytes=pages)], ServerOptions(record=trace))
    how = {"seed": 0, "trace": None, "rate": None, "clients": 4, "requests": 60, "shared": shared,
           "input": 256, "output": 12}  # fmt: skip
    try:
        found = measure(Target(running.url, None, None), how)
    finally:
        running.close()
    arrivals, system = read(trace)
    assert found["answered"] == len(arrivals) == 60
    assert all(sum(tokens for _, tokens in a.times) == a.answer == 12 for a in arrivals)
    was, simulated = recorded(arrivals), run(arrivals, System(**system))
    assert was.written == simulated.written == 60 * 12
    assert simulated.row()["hit %"] == pytest.approx(was.row()["hit %"], abs=3)
    assert (was.row()["hit %"] > 50) == (shared > 0)
