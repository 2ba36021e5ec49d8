"""`genesis llm simulate`: recorded traffic on the engine's own scheduler, on another clock.

Scheduler, pages and eviction are those of the engine; only the model is missing. A step takes as
long as steps of its size took when the trace was recorded. While nothing comes and nothing ends,
several steps of decoding are taken at once, as accepted guesses are, so a day takes a minute.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from genesis.llm.loading import POLICIES
from genesis.llm.pages import PageGroup, PagePool
from genesis.llm.prefix_cache import PrefixCache
from genesis.llm.request import Continuation, EngineStep, Limits, Refused, Request
from genesis.llm.scheduler import Scheduler
from genesis.llm.step_time import StepSize, StepTime
from genesis.serve.limits import TIERS, Tier

_AT_ONCE = 15  # steps of decoding that are taken together, at most


@dataclass
class Arrival:
    """A request of a trace."""

    at: float
    request: Request
    answer: int  # tokens of each sequence
    tier: Tier
    before: float = 0.0  # seconds that the server had it before the engine
    #: How it went when it was recorded: tokens of the prompt that were cached; seconds to each
    #: piece, with its tokens.
    cached: int = 0
    times: Sequence[tuple[float, int]] = ()


@dataclass
class System:
    """What the trace was recorded on, and what is changed of it."""

    costs: Sequence[float]
    pages: Sequence[int]
    windows: Sequence[int | None]
    page_size: int
    context: int
    sequences: int
    step_tokens: int
    noise: Sequence[float] = ()  # what steps took over what is expected of them
    policy: str = "learned"
    replicas: str = "1"
    order: str = "due"
    #: Who send the next request when one is answered; 0: requests come when they came.
    clients: int = 0


@dataclass
class SimulationResult:
    """What came of a simulation."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # how many tokens had each gap
    ends: list[float] = field(default_factory=list)
    good: int = 0  # first tokens within the target of their class
    late: int = 0  # first tokens after their target
    refused: int = 0
    prompt: int = 0
    cached: int = 0
    written: int = 0
    preempted: int = 0
    seconds: float = 0.0
    replica_seconds: float = 0.0

    def began(self, wait: float, tier: Tier) -> None:
        """A request had its first token."""
        self.first.append(wait)
        self.late += wait > tier.first_token
        self.good += wait <= tier.first_token

    def went_on(self, gap: float, tokens: int) -> None:
        """So many tokens came so long after those before."""
        self.gaps.append(gap)
        self.counts.append(tokens)

    def row(self) -> dict[str, float]:
        """The figures of a table."""
        first, gaps = np.asarray(self.first or [0.0]), np.repeat(self.gaps, self.counts)
        p = {f"first p{q}": float(np.percentile(first, q)) for q in (50, 95, 99)}
        gaps = gaps if len(gaps) else np.zeros(1)
        p |= {f"between p{q}": float(np.percentile(gaps, q)) for q in (50, 95, 99)}
        seconds = max(self.seconds, 1e-9)
        return p | {
            "late %": 100 * self.late / max(1, len(self.first)),
            "goodput /s": self.good / seconds,
            "tokens/s": self.written / seconds,
            "hit %": 100 * self.cached / max(1, self.prompt),
            "preempted": self.preempted,
            "refused": self.refused,
            "replica h": self.replica_seconds / 3600,
        }


def recorded(arrivals: Sequence[Arrival]) -> SimulationResult:
    """What came of the requests of a trace when it was recorded."""
    result = SimulationResult()
    for arrival in arrivals:
        request, times = arrival.request, arrival.times
        result.prompt += len(request.prompt)
        result.cached += arrival.cached
        result.began(times[0][0], arrival.tier)
        for (before, _), (after, tokens) in pairwise(times):
            result.went_on((after - before) / max(1, tokens), tokens * request.sequences)
        result.written += arrival.answer * request.sequences
        result.ends.append(arrival.at + times[-1][0])
    result.seconds = max(result.ends) - min(a.at for a in arrivals)
    result.replica_seconds = result.seconds
    return result


class _Scheduler(Scheduler):
    """The engine's; steps of decoding are taken together where nothing else is computed."""

    def _speculate(self, step: EngineStep) -> None:
        if not step.prefills:
            self._left = len(step.decodes) * _AT_ONCE  # they take no room of a step
            super()._speculate(step)


class Replica:
    """One server without a model."""

    def __init__(self, system: System, result: SimulationResult, now: float) -> None:
        self.now, self.load = now, 0.0
        self.up = now  # since when it answers
        self._result = result
        self._times = StepTime(system.costs)
        self._times.steps = 1000  # they are known
        groups = [PageGroup(n, w) for n, w in zip(system.pages, system.windows, strict=True)]
        pool = PagePool(system.page_size, groups)
        cache = PrefixCache(pool, POLICIES[system.policy])
        limits = Limits(system.context, system.step_tokens, system.sequences, 1 << 30)
        self.scheduler = _Scheduler(limits, pool, cache, b"simulation")
        self.scheduler.times = self._times
        self._jobs: dict[str, list[Any]] = {}  # arrival, tokens left, time of the last
        mean = sum(system.noise) / max(1, len(system.noise))  # which costs have in them by now
        self._noise, self._random = [x / mean for x in system.noise], random.Random(0)

    def submit(self, arrival: Arrival) -> None:
        """A request comes; one that could never be served is counted."""
        self.now = max(self.now, arrival.at) if not len(self.scheduler) else self.now
        try:
            self.scheduler.submit(arrival.request, arrival.at)
        except Refused:
            self._result.refused += 1
            return
        self._jobs[arrival.request.id] = [arrival, arrival.answer, None]
        self.load += len(arrival.request.prompt) + 8 * arrival.answer

    def step(self, until: float) -> None:
        """A step, or many while nothing comes before a time."""
        step = self.scheduler.plan(self.now)
        took, many = self._duration(step, until)
        self.now += took
        self._result.preempted += len(step.preempted)
        results: dict[str, list[Continuation]] = {}
        for work in step.work:
            job = self._jobs[work.request.id]
            if job[2] is None and job[1] == job[0].answer and work.sequence == 0:
                self._began(job, work.start)
            if work.sample:
                results.setdefault(work.request.id, []).append(self._continued(job, work, many))
        for id, followed in results.items():
            if len(followed) < self._jobs[id][0].request.sequences and self._first(id):
                followed *= self._jobs[id][0].request.sequences
            self._noted(id, len(followed), many)
        for over in (*step.ended, *self.scheduler.done(step, results, self.now)):
            arrival = self._jobs.pop(over.request.id)[0]
            self.load -= len(arrival.request.prompt) + 8 * arrival.answer
            self._result.ends.append(self.now)

    def _duration(self, step: EngineStep, until: float) -> tuple[float, int]:
        """The seconds of a step, and how many steps of decoding it stands for."""
        size = StepSize.of(step)._replace(rows=len(step.decodes))
        read = float(sum(work.start + 1 for work in step.decodes))
        one = self._times.seconds(size._replace(read=read))
        if step.prefills or not step.decodes:
            return one * self._luck(1), 1
        left = min(self._jobs[work.request.id][1] for work in step.decodes)
        most = min(left, min(1 + work.drafts for work in step.decodes))
        if until < math.inf and one > 0:
            most = min(most, max(1, int((until - self.now) / one)))
        more = self._times.costs[4] * len(step.decodes)
        return self._luck(most) * (most * one + more * most * (most - 1) / 2), most

    def _luck(self, steps: int) -> float:
        """What steps take over what is expected of them, as it was when they were recorded."""
        if not self._noise:
            return 1.0
        return sum(self._random.choices(self._noise, k=steps)) / steps

    def _began(self, job: list[Any], cached: int) -> None:
        job[2] = -1.0
        self._result.prompt += len(job[0].request.prompt)
        self._result.cached += cached

    def _first(self, id: str) -> bool:
        return bool(self._jobs[id][2] == -1.0)

    def _continued(self, job: list[Any], work: Any, many: int) -> Continuation:
        ended = job[1] <= many
        return Continuation(work.sequence, [-1] * many, "stop" if ended else None)

    def _noted(self, id: str, sequences: int, many: int) -> None:
        job, result = self._jobs[id], self._result
        arrival, _, last = job
        if last == -1.0:
            result.began(self.now - arrival.at + arrival.before, arrival.tier)
        else:
            result.went_on((self.now - last) / many, many * sequences)
        job[1] -= many
        job[2] = self.now
        result.written += many * sequences


class Autoscaler:
    """How many replicas there are to be: by work that came lately, its trend, and the queue."""

    COLD, WARM, EVERY, COOL = 30.0, 2.0, 10.0, 120.0  # seconds

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity  # requests a second of a replica
        self._seen: deque[float] = deque()
        self._lowered = -math.inf

    def note(self, at: float) -> None:
        """A request came."""
        self._seen.append(at)

    def wanted(self, now: float, replicas: int, waiting: int) -> int:
        """The number of replicas from now on."""
        while self._seen and self._seen[0] < now - 60:
            self._seen.popleft()
        late = sum(at > now - 30 for at in self._seen)
        rate = late / 30
        trend = max(0.0, (2 * late - len(self._seen)) / 30) * self.COLD / 30
        target = math.ceil(
            (rate + trend) / (0.7 * self._capacity) + waiting / (60 * self._capacity)
        )
        target = max(1, target)
        if target >= replicas:
            self._lowered = now
            return target
        if now - self._lowered < self.COOL:
            return replicas
        self._lowered = now
        return replicas - 1


def run(arrivals: Iterable[Arrival], system: System) -> SimulationResult:
    """All requests of a trace, from the first to the end of the last."""
    waiting = deque(sorted(arrivals, key=lambda a: a.at))
    result = SimulationResult()
    if not waiting:
        return result
    begin = now = waiting[0].at
    count = len(waiting)
    auto = system.replicas == "auto"
    scaler = Autoscaler(_capacity(waiting, system)) if auto else None
    replicas = [Replica(system, result, begin) for _ in range(1 if auto else int(system.replicas))]
    born, warm, check = [begin] * len(replicas), 1, begin
    while waiting or any(len(r.scheduler) for r in replicas):
        working = [r for r in replicas if len(r.scheduler)]
        behind = min(working, key=lambda r: r.now, default=None)
        coming = waiting[0].at if waiting else math.inf
        if system.clients and count - len(waiting) >= system.clients:  # all have begun
            busy = sum(len(r.scheduler) for r in working) >= system.clients
            coming = now if waiting and not busy else math.inf
        if waiting and (behind is None or coming <= behind.now):
            arrival = _sent(waiting.popleft(), coming)
            up = [r for r in replicas if r.up <= arrival.at]
            min(up, key=lambda r: (r.load, r.now)).submit(arrival)
            if scaler is not None:
                scaler.note(arrival.at)
                while arrival.at >= check + scaler.EVERY:
                    check += scaler.EVERY
                    queue = sum(r.scheduler.backlog()[0] for r in replicas)
                    target = scaler.wanted(check, len(replicas), queue)
                    while len(replicas) < target:
                        delay = scaler.WARM if warm else scaler.COLD
                        warm = max(0, warm - 1)
                        replicas.append(Replica(system, result, check + delay))
                        born.append(check)
                    idle = [k for k, r in enumerate(replicas) if not len(r.scheduler)]
                    for k in reversed(idle):
                        if len(replicas) > target:
                            result.replica_seconds += check - born.pop(k)
                            del replicas[k]
                            warm = 1
            continue
        assert behind is not None
        behind.step(coming)
        now = behind.now
    end = max(r.now for r in replicas)
    result.replica_seconds += sum(end - b for b in born)
    result.seconds = end - begin
    return result


def _sent(arrival: Arrival, at: float) -> Arrival:
    """A request that is sent at another time, and due as long after it."""
    request = arrival.request
    if at != arrival.at and request.due is not None:
        request = replace(request, due=request.due + at - arrival.at)
    return replace(arrival, at=at, request=request)


def _capacity(arrivals: Sequence[Arrival], system: System) -> float:
    """Requests a second that a replica serves when all are there: by a sample, simulated."""
    sample = [Arrival(0.0, a.request, a.answer, a.tier) for a in list(arrivals)[:200]]
    found = run(sample, System(**{**vars(system), "replicas": "1", "clients": 0}))
    return len(sample) / max(found.seconds, 1e-9)


# ---- traces


def read(
    path: Path, speed: float = 1.0, order: str = "due"
) -> tuple[list[Arrival], dict[str, Any]]:
    """The requests of a trace, and the system that it was recorded on."""
    arrivals, system = [], {}
    for number, line in enumerate(path.read_text().splitlines()):
        try:
            row = json.loads(line)
            if "system" in row:
                system = row["system"]
            else:
                arrivals.append(_arrival(row, number, order))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number + 1} is no part of a trace: {error}") from None
    if not system or not arrivals:
        raise ValueError(f"{path}: there are no requests, or it does not say on which system")
    first = min(a.at for a in arrivals)
    for a in arrivals:
        a.at = (a.at - first) / speed
    return arrivals, system


def _arrival(row: dict[str, Any], number: int, order: str) -> Arrival:
    size, length = row["page_size"], row["prompt_tokens"]
    prompt = [int(page, 16) for page in row["pages"] for _ in range(size)]
    prompt += [-1 - number] * (length - len(prompt))
    n = row.get("n", 1)
    answer = max(1, round(row["completion_tokens"] / n))
    tier = TIERS.get(row.get("tier") or "default", TIERS["default"])
    due = row["time"] + tier.first_token if order == "due" else None
    request = Request(
        str(number), prompt, max(answer, row["max_tokens"]), n, _AT_ONCE,
        row.get("priority", 0) if order == "due" else 0, due=due, pace=tier.between,
        key=row.get("key", ""),
    )  # fmt: skip
    return Arrival(
        row["time"], request, answer, tier, row.get("before", 0.0), row.get("cached_tokens", 0),
        row.get("times", ()),
    )  # fmt: skip


def simulate(
    trace: str, policy: str, pages: str | None, sequences: str | None, replicas: str, order: str,
    speed: str, html: str | None, clients: int = 0,
) -> int:  # fmt: skip
    """Print a table of what came of every combination of options."""
    names = ("policy", "pages", "sequences", "replicas", "order", "speed")
    lists = [str(x or "").split(",") for x in (policy, pages, sequences, replicas, order, speed)]
    rows = []
    known, _ = read(Path(trace))
    if all(arrival.times for arrival in known):
        rows.append({"": "recorded", **recorded(known).row(), "simulated in s": 0.0})
    for chosen in itertools.product(*lists):
        how = dict(zip(names, chosen, strict=True))
        arrivals, machine = read(Path(trace), float(how.pop("speed")), how["order"])
        numbers = {n: int(how[n]) for n in ("sequences",) if how[n]}
        if how["pages"]:
            numbers["pages"] = [int(how["pages"])] * len(machine["pages"])  # type: ignore[assignment]
        if how["policy"] not in POLICIES or how["order"] not in ("due", "arrival"):
            raise ValueError(f"there is no policy {how['policy']}, or no order {how['order']}")
        how = {n: how[n] for n in ("policy", "replicas", "order")}
        system = System(**{**machine, **how, **numbers, "clients": clients})
        begin = time.perf_counter()
        found = run(arrivals, system).row()
        changed = [f"{n}={v}" for n, v, x in zip(names, chosen, lists, strict=True) if len(x) > 1]
        rows.append({"": " ".join(changed) or Path(trace).name, **found})
        rows[-1]["simulated in s"] = time.perf_counter() - begin
    print(_table(rows))
    if html is not None:
        Path(html).write_text(_page(rows))
    return 0


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Figures below each other, one column a simulation."""
    wide = max(14, *(len(row[""]) for row in rows)) + 2
    lines = []
    for name in rows[0]:
        cells = [row[name] if isinstance(row[name], str) else f"{row[name]:.4g}" for row in rows]
        lines.append(f"{name:16}" + "".join(f"{cell:>{wide}}" for cell in cells))
    return "\n".join(lines)


def _page(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for name in rows[0]:
        cells = [row[name] if isinstance(row[name], str) else f"{row[name]:.4g}" for row in rows]
        tags = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th>{html.escape(name)}</th>{tags}</tr>")
    body = "".join(lines)
    style = "<style>td,th{padding:2px 12px;text-align:right;font-family:monospace}</style>"
    return (
        f"<!doctype html><meta charset=utf-8><title>simulation</title>{style}<table>{body}</table>"
    )


__all__ = [
    "Arrival",
    "Autoscaler",
    "Replica",
    "SimulationResult",
    "System",
    "read",
    "run",
    "simulate",
]
