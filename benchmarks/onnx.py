"""Models in ONNX files, side by side with onnxruntime.

    python -m benchmarks.onnx MODEL.onnx .. [--threads 1] [--size NAME=N]

Both take turns in one process on the same random inputs, and processor time counts, so other work
on the machine disturbs both alike. `ratio` is how many times as long onnxruntime takes, `first` the
processor time of this process until the first result, and `differs` the greatest difference of
results, relative to the greatest number where that is above 1.
"""

import argparse
import time
from math import exp, log
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

import genesis
from genesis.onnx import InferenceSession
from genesis.onnx.command import difference, feed


class Measured(NamedTuple):
    """Seconds of a call, of the first one, and the greatest difference of results."""

    mine: float
    theirs: float
    first: float
    differs: float


def measured(path, feed, threads, seconds):
    """Compare one model; `feed` gives the inputs for a session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    other = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    begun = time.process_time()
    session = InferenceSession(path)
    given = feed(session)
    results = session.run(None, given)
    first = time.process_time() - begun
    expected = other.run(None, given)
    worst = max(difference(a, b) for a, b in zip(results, expected, strict=True))
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = {"genesis": [], "onnxruntime": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["genesis"]) < 8:
        for name, contender in (("genesis", session), ("onnxruntime", other)):
            start = clock()
            contender.run(None, given)
            times[name].append(clock() - start)
    mine, theirs = (median(times[n][len(times[n]) // 4 :]) for n in ("genesis", "onnxruntime"))
    return Measured(mine, theirs, first, worst)


def header():
    return f"{'model':<48} {'genesis':>9} {'onnxrt':>9} {'ratio':>6} {'first':>7} {'differs':>8}"


def row(name, found):
    return (
        f"{name[:48]:<48} {1e3 * found.mine:6.2f} ms {1e3 * found.theirs:6.2f} ms "
        f"{found.theirs / found.mine:6.2f} {found.first:5.1f} s {found.differs:8.1e}"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N")
    chosen = parser.parse_args()
    genesis.set_num_threads(chosen.threads)
    sizes = {name: int(n) for name, n in (text.split("=") for text in chosen.size)}
    ratios = []
    print(header())
    for path in chosen.models:
        found = measured(path, lambda s: feed(s, None, sizes), chosen.threads, chosen.seconds)
        ratios.append(found.theirs / found.mine)
        print(row(Path(path).name, found), flush=True)
    mean = exp(np.mean([log(r) for r in ratios]))
    print(f"{len(ratios)} models: geometric mean {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
