"""Time the CPU backend side by side with PyTorch: ``python -m benchmarks.cpu`` or ``make bench``.

Every case is run by both contenders in turns, each in a process of its own, never both at once; a
figure is the median over the rounds. The table goes to the terminal and, for a complete run, to
benchmarks/results/cpu.md. A ratio above 1 means that Genesis is faster.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.cases import CASES, Case
from benchmarks.worker import THREADS, Worker

RESULTS = Path(__file__).parent / "results" / "cpu.md"
#: Before a turn the other contenders' threads get this long to fall asleep.
PAUSE_SECONDS = 0.02
#: A turn is disturbed when other processes use more than this share of one processor.
DISTURBED = 0.2

METHOD = f"""\
float32, {THREADS} threads each. The contenders take turns, each in a process of its own, one at a
time, with a pause before each turn in which the other's threads fall asleep; a time is the median
over the rounds. Both did the same work: a sample of their results is compared. Genesis runs through
`genesis.jit`, where not stated otherwise, and takes the memory of every result from its allocator.
PyTorch runs eagerly, is given its outputs preallocated where the operation has `out=`, and has two
processes, one whose OpenMP threads spin while they wait (the default) and one whose threads sleep
(`OMP_WAIT_POLICY=PASSIVE`), of which the faster counts. A ratio above 1 means that Genesis is
faster; rates are Genesis's, counting each input and output once."""


@dataclass(frozen=True)
class Result:
    """What became of a case: seconds per call."""

    case: Case
    genesis: float
    torch: float

    @property
    def ratio(self) -> float:
        """How many times faster Genesis is."""
        return self.torch / self.genesis

    def cells(self) -> list[str]:
        """A row of the table."""
        rate = ""
        if self.case.flops:
            rate = f"{self.case.flops / self.genesis / 1e9:.0f} GFLOP/s"
        elif self.case.nbytes:
            rate = f"{self.case.nbytes / self.genesis / 1e9:.1f} GB/s"
        goal = ""
        if self.case.goal is not None:
            goal = f"{self.case.goal} {'met' if self.ratio >= self.case.goal else 'MISSED'}"
        times = [duration(self.genesis), duration(self.torch)]
        return [self.case.name, *times, f"{self.ratio:.2f}", goal, rate]


def main() -> None:
    compare(CASES, RESULTS, "CPU results", __doc__)


def compare(cases: Sequence[Case], path: Path, title: str, what_for: str) -> None:
    """Measure cases as the command line says; the page of a complete run goes to `path`."""
    parser = argparse.ArgumentParser(description=what_for.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a result")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases with TEXT in their name")
    options = parser.parse_args()
    rounds, seconds, patience = (3, 0.1, 0) if options.quick else (11, 0.2, 180)

    genesis, torch = Worker("genesis"), Worker("torch")
    workers = [genesis, torch, Worker("torch", OMP_WAIT_POLICY="PASSIVE")]
    what = (
        f"Genesis {genesis.version} and PyTorch {torch.version} on {processor()}, "
        f"{THREADS} threads, Python {platform.python_version()}"
    )
    print(what, end="\n\n")
    print(row(HEAD))
    referee = Referee(patience)
    results: list[Result] = []
    load = os.getloadavg()[0]
    for case in cases:
        if options.only in case.name:
            results.append(measure(case, workers, referee, rounds, seconds))
            print(row(results[-1].cells()), flush=True)
    for worker in workers:
        worker.close()
    print(f"\n{referee}")
    if not options.quick and not options.only:
        path.parent.mkdir(exist_ok=True)
        run = f"{rounds} rounds, {circumstances()}, load {load:.1f} at the start, {referee}"
        path.write_text(page(title, results, what, run))
        print(f"written to {path}")


def measure(
    case: Case, workers: list[Worker], referee: Referee, rounds: int, seconds: float
) -> Result:
    """All contenders in turns; a turn takes about `seconds`."""
    calls: list[int] = []
    samples: list[list[float]] = []
    for worker in workers:
        time.sleep(PAUSE_SECONDS)
        each, sample = worker.ask("prepare", case.name)
        calls.append(max(1, round(seconds / each)))
        samples.append(sample)
    if not np.allclose(samples[0], samples[1], rtol=1e-3, atol=1e-2):
        raise AssertionError(f"{case.name}: the contenders' results differ")
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(rounds):
        # The order is reversed every round, so that nobody always follows the same one.
        order = range(len(workers)) if turn % 2 else reversed(range(len(workers)))
        for k in order:
            times[k].append(referee.turn(workers[k], calls[k]))
    genesis, *torch = map(median, times)
    return Result(case, genesis, min(torch))


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

HEAD = ["case", "Genesis", "PyTorch", "ratio", "goal", "rate"]
WIDTHS = [44, 9, 9, 6, 10, 12]


def row(cells: list[str]) -> str:
    first, *rest = (c.rjust(w) for c, w in zip(cells, WIDTHS, strict=True))
    return "  ".join([first.strip().ljust(WIDTHS[0]), *rest])


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


def page(title: str, results: list[Result], what: str, run: str) -> str:
    """The results as a page."""
    table = [HEAD, ["---", *["---:"] * 3, "---", "---:"], *(r.cells() for r in results)]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return f"""\
# {title}

{what}. {date.today()}, `make bench`, {run}.

{METHOD}

{lines}
"""


if __name__ == "__main__":
    main()
