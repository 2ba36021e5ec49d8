"""What the tuner gains: ``python -m benchmarks.tuning``.

The convolutions of `benchmarks.convolution_cases` are tuned for ten minutes in all, from nothing.
Then they are measured anew in two processes, one of which has what was found and one of which has
not, in turns. The page of a complete run is benchmarks/results/tuning.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import tempfile
from pathlib import Path
from statistics import geometric_mean, median

from benchmarks.cases import Case
from benchmarks.convolution_cases import CONTRACTIONS
from benchmarks.cpu import Referee, circumstances, duration, processor
from benchmarks.worker import THREADS, Worker

RESULTS = Path(__file__).parent / "results" / "tuning.md"
CASES = [case for case in CONTRACTIONS if not case.name.startswith("matmul")]
#: Turns of each process, and how long one takes.
ROUNDS = 7
TURN_SECONDS = 0.1


def main() -> None:
    """Tune, measure, and print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose name matches")
    parser.add_argument("--seconds", type=float, default=600.0, help="for tuning, in all")
    options = parser.parse_args()
    chosen = [case for case in CASES if re.search(options.only, case.name)]
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as tuned:
        tried = tune(chosen, options.seconds, tuned)
        workers = [Worker("genesis", GENESIS_CACHE=cache) for cache in (plain, tuned)]
        lines = [f"{'case':<52} {'by rule':>9} {'tuned':>9}"]
        ratios: list[float] = []
        referee = Referee(60)
        for case in chosen:
            before, after = measure(case, workers, referee)
            ratios.append(before / after)
            lines.append(f"{case.name:<52} {duration(before):>9} {duration(after):>9} "
                         f"{ratios[-1]:>6.2f}")  # fmt: skip
            print(lines[-1], flush=True)
        for worker in workers:
            worker.close()
    lines.append(f"Geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}, "
                 f"least {min(ratios):.2f}; {tried} schedules tried, {referee}.")  # fmt: skip
    print(lines[-1])
    if chosen == CASES:
        what = f"{processor()}, {THREADS} threads, Python {platform.python_version()}"
        about = f"{what}. {circumstances()}, {options.seconds:.0f} seconds of tuning in all."
        table = "\n".join(lines)
        RESULTS.write_text(f"# Tuning\n\nGenesis on {about}\n\n```text\n{table}\n```\n")


def tune(cases: list[Case], seconds: float, cache: str) -> int:
    """Tune every case for the same time; how many schedules were tried."""
    os.environ |= {"GENESIS_CACHE": cache, "GENESIS_NUM_THREADS": str(THREADS)}
    import genesis

    tried = 0
    for case in cases:
        found = genesis.tune(case.genesis(case.inputs()), seconds=seconds / len(cases))
        tried += found.tried
    return tried


def measure(case: Case, workers: list[Worker], referee: Referee) -> tuple[float, float]:
    """Seconds per call of both workers, each the median of its turns."""
    calls = [max(1, round(TURN_SECONDS / w.ask("prepare", case.name)[0])) for w in workers]
    times: list[list[float]] = [[], []]
    for turn in range(ROUNDS):
        for k in (0, 1) if turn % 2 else (1, 0):
            times[k].append(referee.turn(workers[k], calls[k]))
    for worker in workers:
        worker.ask("forget")
    before, after = map(median, times)
    return before, after


if __name__ == "__main__":
    main()
