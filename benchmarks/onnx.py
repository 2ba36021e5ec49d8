"""Models in ONNX files, side by side with onnxruntime.

    python -m benchmarks.onnx MODEL.onnx .. [--threads 1] [--size NAME=N]

Both take turns in one process on the same random inputs, and processor time counts, so other work
on the machine disturbs both alike. `ratio` is how many times as long onnxruntime takes.
"""

import argparse
import time
from math import exp, log
from pathlib import Path
from statistics import median

import numpy as np

import genesis
from genesis.onnx import InferenceSession
from genesis.onnx.command import difference, feed


def measured(path, sizes, threads, seconds):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    other = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    begun = time.process_time()
    session = InferenceSession(path)
    given = feed(session, None, sizes)
    results = session.run(None, given)
    first = time.process_time() - begun
    expected = other.run(None, given)
    worst = max(difference(a, b) for a, b in zip(results, expected, strict=True))
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = {"genesis": [], "onnxruntime": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["genesis"]) < 5:
        for name, contender in (("genesis", session), ("onnxruntime", other)):
            start = clock()
            contender.run(None, given)
            times[name].append(clock() - start)
    mine, theirs = (median(times[n][len(times[n]) // 4 :]) for n in ("genesis", "onnxruntime"))
    return mine, theirs, first, worst


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
    print(f"{'model':<48} {'genesis':>9} {'onnxrt':>9} {'ratio':>6} {'first':>7} {'differs':>8}")
    for path in chosen.models:
        mine, theirs, first, worst = measured(path, sizes, chosen.threads, chosen.seconds)
        ratios.append(theirs / mine)
        print(
            f"{Path(path).name[:48]:<48} {1e3 * mine:6.2f} ms {1e3 * theirs:6.2f} ms "
            f"{theirs / mine:6.2f} {first:5.1f} s {worst:8.1e}",
            flush=True,
        )
    mean = exp(np.mean([log(r) for r in ratios]))
    print(f"{len(ratios)} models: geometric mean {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
