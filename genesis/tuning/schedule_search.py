"""Searching: the best schedule of one kernel, in limited time.

Scheduling a kernel under some decisions tells which questions are asked and what the options are:
that is the space, and it need not be known beforehand. Decisions of the best schedules so far are
changed at random; the cost model picks among the results those worth compiling; and what was
compiled is timed in turns with the schedule that is in use. A slow one is dropped after its first
run. At the end the best ones meet the schedule in use again, and take its place only if they win
clearly: what tuning changes is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log
from random import Random
from time import monotonic

from genesis.compiler.build import prove
from genesis.compiler.options import Options
from genesis.compiler.schedule import schedule
from genesis.compiler.schedule.decisions import Choice, Decisions, deciding
from genesis.compiler.verify.kernel import UnprovenKernel
from genesis.content_store import digest
from genesis.ir.kernel import Kernel
from genesis.tuning.cost_model import CostModel, Features, features
from genesis.tuning.jobs import TuningJob
from genesis.tuning.measure import Candidate, KernelBench, wins

#: Schedules that are thought of, and of those the ones compiled and timed together.
THOUGHT_OF = 16
TRIED = 6
#: The best ones: others are made from them, and they take part in the final.
ELITE = 4
#: Turns without anything better before the search gives up.
PATIENCE = 8
#: Timings of candidates, and what lets one go on to the next: a time relative to the best so far.
LIMITS = (1.6, 1.25, 1.1, 1.1, 1.05, 1.05)
#: Rounds of the final, and what a winner must take of the time it took before.
ROUNDS = 15
MARGIN = 0.97

Samples = list[tuple[Features, float]]
Tick = Callable[["ScheduleSearch"], None]


@dataclass(eq=False)
class Thought:
    """A schedule that is not compiled yet."""

    decisions: Decisions
    kernel: Kernel
    features: Features


@dataclass
class SearchOutcome:
    """What a search found: the best decisions, times before and after, schedules it tried."""

    decisions: Decisions
    before: float
    after: float
    tried: int = 0
    samples: Samples = field(default_factory=list)


class ScheduleSearch:
    """The search for the best schedule of a job, which starts from `known` decisions."""

    def __init__(self, job: TuningJob, bench: KernelBench, known: Decisions) -> None:
        self.job, self.bench = job, bench
        self._random = Random(job.key)
        self._past, self._samples = Samples(), Samples()
        self._seen: set[object] = set()
        self._asked: dict[str, list[Choice]] = {}  # all options seen so far
        self._untried: list[tuple[str, Choice]] = []
        self._waiting: list[Thought] = []  # for their turn to be tried
        default = self._thought(known)
        assert default is not None
        self._base = default.features
        (self.default,) = self._candidates([default])  #: the schedule in use
        self._elite = [self.default]
        self.tried = 1  #: schedules that were timed
        bench.calibrate(self.default)

    def run(self, past: Samples, seconds: float, tick: Tick = lambda search: None) -> SearchOutcome:
        """Search for so long; `past` is what was measured before, `tick` called now and then."""
        start, self._past = monotonic(), past
        patience = PATIENCE
        while patience and monotonic() - start < 0.75 * seconds:
            best = self.gain
            thoughts = self._thoughts()
            if not thoughts:
                break
            candidates = self._candidates(thoughts)
            self._race(list(candidates))
            self._elite = sorted([*self._elite, *candidates], key=lambda c: c.best)[:ELITE]
            self._samples += [
                (self._relative(thought), log(self._ratio(candidate)))
                for candidate, thought in candidates.items()
            ]
            self.tried += len(candidates)
            tick(self)
            patience = PATIENCE if self.gain > 1.005 * best else patience - 1
        return self._final(start + seconds, tick)

    @property
    def gain(self) -> float:
        """How many times as fast as the schedule in use the best one seems to be."""
        return 1 / min(map(self._ratio, self._elite))

    def _ratio(self, candidate: Candidate) -> float:
        """The time of a candidate relative to the schedule in use."""
        return candidate.best / self.default.best

    # ---- thinking
    def _thoughts(self) -> list[Thought]:
        """Schedules worth trying, none of which was tried."""
        model = CostModel([*self._past, *self._samples])
        for _ in range(4 * THOUGHT_OF if self._asked else 0):
            if len(self._waiting) >= (THOUGHT_OF if model.knows else TRIED):
                break
            thought = self._thought(self._changed())
            if thought is not None:
                self._waiting.append(thought)
        expected = model.predict([self._relative(t) for t in self._waiting])
        ranked = [self._waiting[k] for k in expected.argsort(kind="stable")]
        # One of them is for the model to learn from, rather than to its liking.
        chosen = [*ranked[: TRIED - 1], *ranked[TRIED - 1 :][-1:]]
        self._waiting = [t for t in ranked if t not in chosen]
        return chosen

    def _changed(self) -> Decisions:
        """The decisions of one of the best schedules, some changed: every option has its turn."""
        decisions = dict(self._random.choice(self._elite).decisions)
        if self._untried:
            question, choice = self._untried.pop(0)
            return decisions | {question: choice}
        for _ in range(self._random.choice((1, 1, 2, 3))):
            question = self._random.choice(list(self._asked))
            decisions[question] = self._random.choice(self._asked[question])
        return decisions

    def _thought(self, decisions: Decisions) -> Thought | None:
        """The schedule under these decisions; None if it was thought of before."""
        key = tuple(sorted(decisions.items()))
        if key in self._seen:
            return None
        self._seen.add(key)
        with deciding(decisions) as asked:
            kernel = schedule(self.job.kernel, self.job.backend.chip)
        for question, options in asked.items():
            known = self._asked.setdefault(question, [])
            new = [x for x in options if x not in known]
            known += new
            self._untried += [(question, x) for x in new if x != options[0]]
        # Answers that were not asked for, or that the rule would give anyway, are no decisions.
        told = {q: x for q, x in decisions.items() if x in asked.get(q, ())[1:]}
        text = digest(str(kernel))
        if text in self._seen:
            return None
        self._seen.add(text)
        return Thought(told, kernel, features(kernel, asked, told))

    def _relative(self, thought: Thought) -> Features:
        """What distinguishes a schedule from the one in use."""
        return {name: x - self._base.get(name, 0.0) for name, x in thought.features.items()}

    # ---- trying
    def _candidates(self, thoughts: list[Thought]) -> dict[Candidate, Thought]:
        """Schedules that are proven, compiled and loaded, and share memory as the kernel must."""
        proven: list[Thought] = []
        for thought in thoughts:
            try:
                _, _, shared = prove(thought.kernel, self.job.shared, Options(strict=True))
            except UnprovenKernel:
                continue
            if shared == self.job.shared:
                proven.append(thought)
        binaries = self.job.backend.compile(t.kernel for t in proven)
        return {
            self.bench.candidate(t.decisions, t.kernel, binary): t
            for t, binary in zip(proven, binaries, strict=True)
        }

    def _race(self, candidates: list[Candidate]) -> None:
        """Time candidates and the schedule in use in turns; who is too slow leaves."""
        before = float("inf")
        for limit in LIMITS:
            before = min(before, self.bench.seconds(self.default))
            for candidate in candidates:
                self.bench.seconds(candidate)
            best = min([before / self.gain, *(c.best for c in candidates)])
            candidates = [c for c in candidates if c.best <= limit * best]
            if not candidates:
                return

    def _final(self, deadline: float, tick: Tick) -> SearchOutcome:
        """The best candidates against the schedule in use: who wins clearly takes its place."""
        finalists = [c for c in self._elite if self._ratio(c) < 1]
        pairs: dict[Candidate, list[tuple[float, float]]] = {c: [] for c in finalists}
        for number in range(ROUNDS):
            before = self.bench.seconds(self.default)
            for candidate in finalists:
                pairs[candidate].append((before, self.bench.seconds(candidate)))
            tick(self)
            if monotonic() > deadline and number >= ROUNDS // 3:
                break
        before = self.default.best
        winners = [c for c in finalists if wins(pairs[c], MARGIN) and c.best <= MARGIN * before]
        best = min(winners, key=lambda c: c.best, default=self.default)
        return SearchOutcome(best.decisions, before, best.best, self.tried, self._samples)
