"""Time the CPU backend side by side with PyTorch: ``python -m benchmarks.cpu`` or ``make bench``.

Every case is run by all contenders in turns, each in a process of its own, never two at once; a
figure is the median over the rounds. Contenders are Genesis, PyTorch eager, PyTorch with Inductor
(`torch.compile`) and, where it is installed, tinygrad. The tables go to the terminal and, for a
complete run, to benchmarks/results/cpu.md. A ratio above 1 means that Genesis is faster.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np

from benchmarks.cases import ATTENTION, CONTENDERS, MATRICES, SMALL, Case
from benchmarks.memory_cases import COPY, MEMORY, SUM
from benchmarks.model_cases import MODELS
from benchmarks.worker import THREADS, Worker

RESULTS = Path(__file__).parent / "results" / "cpu.md"
CASES = [*MATRICES, *MEMORY, *ATTENTION, *MODELS, *SMALL]
NAMES = {"genesis": "Genesis", "torch": "eager", "inductor": "Inductor", "tinygrad": "tinygrad"}
#: Before a turn the other contenders' threads get this long to fall asleep.
PAUSE_SECONDS = 0.02
#: A turn is disturbed when other processes use more than this share of one processor.
DISTURBED = 0.2
#: PyTorch keeps the memory it has got, in huge pages, as Genesis does: it is not to be timed how
#: the system clears pages.
KEPT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "THP_MEM_ALLOC_ENABLE": "1",
}

METHOD = f"""\
float32, {THREADS} threads each. The contenders take turns, each in a process of its own, one at a
time, with a pause before each turn in which the other's threads fall asleep; a time is the median
over the rounds. All did the same work: a sample of their results is compared. Genesis runs through
`genesis.jit`, where not stated otherwise; PyTorch's own models run through
`torch.compile(backend="genesis")`. PyTorch runs eagerly and through `torch.compile` (Inductor). Its
memory is kept between calls in huge pages, as Genesis keeps its own, which PyTorch by itself does
not do. Where a case takes little time, eager PyTorch has two processes, one whose OpenMP threads
spin while they wait (the default) and one whose threads sleep (`OMP_WAIT_POLICY=PASSIVE`), of which
the faster counts. A ratio above 1 means that Genesis is faster; rates are Genesis's, counting each
input and output once. The share of copy is the time in which this machine moves as many bytes, by
the fastest copy and, if that takes longer for what is read, the fastest sum. Both are whoever's won
at the start of the run; they take turns in every round of such a case, since a shared machine moves
half as much again in some minutes as in others, and count with their medians over the same rounds.
The page names the range of those."""


@dataclass(frozen=True)
class Floor:
    """The bytes per second that the fastest copy and the fastest sum moved meanwhile."""

    copy: float
    read: float

    def seconds(self, case: Case) -> float:
        """The least time for the bytes of a case."""
        return max((case.reads + case.writes) / self.copy, case.reads / self.read)


@dataclass(frozen=True)
class Result:
    """What became of a case: seconds per call of every contender, and which process was fastest."""

    case: Case
    seconds: dict[str, float]
    fastest: Worker
    floor: Floor | None = None

    @property
    def genesis(self) -> float:
        """Seconds of Genesis."""
        return self.seconds["genesis"]

    def ratio(self, contender: str) -> float | None:
        """How many times faster Genesis is."""
        other = self.seconds.get(contender)
        return None if other is None else other / self.genesis

    @property
    def share(self) -> float | None:
        """The share of the speed of a copy."""
        return None if self.floor is None else self.floor.seconds(self.case) / self.genesis

    def cells(self, contenders: Sequence[str]) -> list[str]:
        """A row of the table."""
        rate = ""
        moved = self.case.reads + self.case.writes
        if self.case.flops:
            rate = f"{self.case.flops / self.genesis / 1e9:.0f} GFLOP/s"
        elif moved:
            rate = f"{moved / self.genesis / 1e9:.1f} GB/s"
        times = [duration(self.seconds[c]) if c in self.seconds else "" for c in contenders]
        ratios = [self.ratio(c) for c in contenders[1:]]
        compared = ["" if r is None else f"{r:.2f}" for r in ratios]
        share = "" if self.share is None else f"{self.share:.0%}"
        return [self.case.name, *times, *compared, share, self.goals(), rate]

    def goals(self) -> str:
        """What was aimed at, and whether it was reached."""
        wanted = [(self.case.goal, self.ratio("torch"), ""), (self.case.share, self.share, "%")]
        texts = []
        for goal, reached, unit in wanted:
            if goal is not None and reached is not None:
                shown = f"{goal:.0%}" if unit else f"{goal}"
                texts.append(f"{shown} {'met' if reached >= goal else 'MISSED'}")
        return ", ".join(texts)


def main() -> None:
    compare(CASES, RESULTS, "CPU results", __doc__)


def compare(
    cases: Sequence[Case], path: Path, title: str, what_for: str, groups: Sequence[str] = ()
) -> None:
    """Measure cases as the command line says; the page of a complete run goes to `path`.

    Cases that name no group are in the one of `groups` that their name begins with.
    """
    parser = argparse.ArgumentParser(description=what_for.split("\n")[0])

    def group_of(case: Case) -> str:
        return case.group or next((g for g in groups if case.name.startswith(g)), "")

    groups = groups or list(dict.fromkeys(map(group_of, cases)))
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a result")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose name matches")
    parser.add_argument("--group", choices=groups, help="one group of cases")
    parser.add_argument("--against", nargs="+", choices=CONTENDERS[1:], default=CONTENDERS[1:],
                        help="whom to compare with")  # fmt: skip
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each contender")
    options = parser.parse_args()
    rounds, seconds, patience = (3, 0.1, 0) if options.quick else (7, 0.15, 180)
    rounds = options.rounds or rounds
    chosen = [c for c in cases if re.search(options.only, c.name)]
    chosen = [c for c in chosen if options.group in (None, group_of(c))]

    wanted = {c for case in chosen for c in case.makers} & {"genesis", *options.against}
    contenders = [c for c in CONTENDERS if c in wanted and (c != "tinygrad" or _has_tinygrad())]
    field = Field(contenders, Referee(patience))
    what = f"{field} on {processor()}, {THREADS} threads, Python {platform.python_version()}"
    print(what, end="\n\n")
    load = os.getloadavg()[0]
    if any(c.reads for c in chosen):
        field.gauge_memory(rounds, seconds)
    tables: list[str] = []
    for group in groups:
        members = [c for c in chosen if group_of(c) == group]
        if not members:
            continue
        print(row(header(contenders), contenders), flush=True)
        results: list[Result] = []
        for case in members:
            results.append(field.measure(case, rounds, seconds))
            print(row(results[-1].cells(contenders), contenders), flush=True)
        print(f"{means(results, contenders)}\n")
        tables.append(table(group, results, contenders))
    field.close()
    print(field.course())
    if not options.quick and chosen == list(cases) and len(options.against) == len(CONTENDERS) - 1:
        path.parent.mkdir(exist_ok=True)
        run = f"{circumstances()}, load {load:.1f} at the start, {field.course()}"
        path.write_text(page(title, tables, what, run))
        print(f"written to {path}")


def _has_tinygrad() -> bool:
    """Whether tinygrad is installed and can compile, for which it needs clang."""
    code = "from tinygrad import Tensor; Tensor([1.0]).exp().tolist()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


class Field:
    """The contenders' processes."""

    def __init__(self, contenders: Sequence[str], referee: Referee) -> None:
        self.referee = referee
        self.workers: list[Worker] = []
        self.gauges: list[Gauge] = []
        self.floors: list[Floor] = []
        for name in contenders:
            self.workers.append(Worker(name, **({} if name == "genesis" else KEPT)))
            if name == "torch":
                self.workers.append(Worker(name, OMP_WAIT_POLICY="PASSIVE", **KEPT))

    def __str__(self) -> str:
        versions = {w.contender: w.version for w in self.workers if w.contender != "inductor"}
        names = {"genesis": "Genesis", "torch": "PyTorch", "tinygrad": "tinygrad"}
        return " and ".join(f"{names[c]} {version}" for c, version in versions.items())

    def gauge_memory(self, rounds: int, seconds: float) -> None:
        """Have whoever copies and sums fastest do that beside every case that memory limits."""
        results = [self.measure(case, rounds, seconds) for case in (COPY, SUM)]
        self.gauges = [Gauge(r.case, r.fastest, seconds) for r in results]

    def measure(self, case: Case, rounds: int, seconds: float) -> Result:
        """All contenders in turns; a turn takes about `seconds`."""
        workers = [w for w in self.workers if w.contender in case.makers]
        if case.group == "models":  # large, and not a matter of how threads wait
            workers = [w for w in workers if not w.sleeps]
        calls: list[int] = []
        samples: list[list[float]] = []
        for worker in workers:
            time.sleep(PAUSE_SECONDS)
            each, sample = worker.ask("prepare", case.name)
            calls.append(max(1, round(seconds / each)))
            samples.append(sample)
            if each > 1:
                rounds = 3
        for sample in samples[1:]:
            if not np.allclose(samples[0], sample, rtol=1e-3, atol=1e-2):
                raise AssertionError(f"{case.name}: the contenders' results differ")
        gauges = self.gauges if case.reads else []
        turns = [*zip(workers, calls, strict=True), *((g.worker, g.calls) for g in gauges)]
        times: list[list[float]] = [[] for _ in turns]
        for turn in range(rounds):
            # The order is reversed every round, so that nobody always follows the same one.
            order = range(len(turns)) if turn % 2 else reversed(range(len(turns)))
            for k in order:
                times[k].append(self.referee.turn(*turns[k]))
        for worker in workers:
            worker.ask("forget")
        found: dict[str, float] = {}
        medians = [median(own) for own in times[: len(workers)]]
        for worker, own in zip(workers, medians, strict=True):
            name = worker.contender
            found[name] = min(own, found.get(name, own))
        fastest = workers[medians.index(min(medians))]
        if not gauges:
            return Result(case, found, fastest)
        copy, read = (g.rate(own) for g, own in zip(gauges, times[len(workers) :], strict=True))
        self.floors.append(Floor(copy, read))
        return Result(case, found, fastest, self.floors[-1])

    def course(self) -> str:
        """How the run went."""
        if not self.floors:
            return f"{self.referee}"
        copies, sums = ([f.copy for f in self.floors], [f.read for f in self.floors])
        ranges = (f"{min(r) / 1e9:.0f} to {max(r) / 1e9:.0f} GB/s" for r in (copies, sums))
        return "{}; copies of {}, sums of {}".format(self.referee, *ranges)

    def close(self) -> None:
        """End the processes."""
        for worker in [*self.workers, *(g.worker for g in self.gauges)]:
            worker.close()


class Gauge:
    """A process like another one that keeps a case ready, to tell how fast memory is right now."""

    def __init__(self, case: Case, like: Worker, seconds: float) -> None:
        self.worker = Worker(like.contender, **like.environment)
        each, _ = self.worker.ask("prepare", case.name)
        self.calls = max(1, round(seconds / each))
        self._bytes = case.reads + case.writes

    def rate(self, times: Sequence[float]) -> float:
        """The bytes per second that several turns saw."""
        return self._bytes / median(times)


class Referee:
    """Grants turns, and repeats disturbed ones, for `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self.turns = 0
        self.disturbed = 0
        self.patience = patience

    def turn(self, worker: Worker, calls: int) -> float:
        """Seconds per call of a worker, measured while nobody else does much."""
        while True:
            time.sleep(PAUSE_SECONDS)
            start, busy = time.perf_counter(), busy_seconds()
            seconds, own = worker.ask("time", calls)
            wall = time.perf_counter() - start
            others = (busy_seconds() - busy - own) / wall
            if others <= DISTURBED or self.patience <= 0:
                self.turns += 1
                self.disturbed += others > DISTURBED
                return float(seconds)
            time.sleep(0.5)
            self.patience -= wall + 0.5

    def __str__(self) -> str:
        return f"{self.disturbed} of {self.turns} turns disturbed by other processes"


def busy_seconds() -> float:
    """What all processes have used of all processors since the machine started."""
    first = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _idle, _wait, *rest = map(int, first.split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


# ---- output

NAME_WIDTH = 52


def header(contenders: Sequence[str]) -> list[str]:
    """The names of the columns."""
    names = [NAMES[c] for c in contenders]
    return ["case", *names, *(f"to {n}" for n in names[1:]), "copy", "goal", "rate"]


def row(cells: list[str], contenders: Sequence[str]) -> str:
    """A line for the terminal."""
    widths = [9] * len(contenders) + [11] * (len(contenders) - 1) + [5, 22, 11]
    first, *rest = cells
    return "  ".join([first.ljust(NAME_WIDTH), *map(str.rjust, rest, widths)])


def means(results: Sequence[Result], contenders: Sequence[str]) -> str:
    """The geometric means of a group's ratios."""
    texts = []
    for contender in contenders[1:]:
        ratios = [r for x in results if (r := x.ratio(contender)) is not None]
        if ratios:
            texts.append(f"{geometric_mean(ratios):.2f} to {NAMES[contender]}")
    return f"Geometric mean of {len(results)}: {', '.join(texts)}."


def table(group: str, results: Sequence[Result], contenders: Sequence[str]) -> str:
    """A section of the page."""
    names = [c for c in contenders if any(c in r.seconds for r in results)]
    columns = [header(names), ["---", *["---:"] * (2 * len(names)), "---", "---:"]]
    lines = [f"| {' | '.join(cells)} |" for cells in [*columns, *(r.cells(names) for r in results)]]
    title = [f"## {group.capitalize()}\n"] if group else []
    return "\n".join([*title, *lines, "", means(results, names)])


def duration(seconds: float) -> str:
    """A time with three digits and a unit."""
    unit, scale = ("s", 1) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.3g} {unit}"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def circumstances() -> str:
    """What else decides the figures: the code that was measured, and its priority."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=RESULTS.parent, capture_output=True, text=True)
    revision = done.stdout.strip() or "an unknown revision"
    return f"revision {revision}, niceness {os.nice(0)}"


def page(title: str, tables: list[str], what: str, run: str) -> str:
    """The results as a page."""
    body = "\n\n".join(tables)
    return f"""\
# {title}

{what}. {date.today()}, `make bench`, {run}.

{METHOD}

{body}
"""


if __name__ == "__main__":
    main()
