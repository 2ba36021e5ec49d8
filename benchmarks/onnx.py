"""Models in ONNX files, side by side with onnxruntime.

    python -m benchmarks.onnx MODEL.onnx .. [--threads 1] [--size NAME=N]

Each has a process of its own and gets the same random inputs. They are asked in turns for a block
of calls, after a pause: threads of both wait for work by spinning, and would take the other's
core. One thread is measured by processor time, several by the clock; a tenth of all calls are
quicker than what is shown, as other work on the machine only ever adds to it. `ratio` is how many
times as long onnxruntime takes, `first` the processor time of Genesis' process from reading the
file to the first result, with an empty cache, and `differs` the greatest difference of results,
relative to the greatest number where that is above 1.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis.onnx import InferenceSession
from genesis.onnx.command import difference, feed

BLOCK = 0.5  # seconds of calls in a row, in which threads find their cores
PAUSE = 0.05  # seconds until threads that found no work are asleep


class Measured(NamedTuple):
    """Seconds of a call, of the first one, and the greatest difference of results."""

    mine: float
    theirs: float
    first: float
    differs: float


def measured(path, feed, threads, seconds):
    """Compare one model; `feed` gives the inputs for a session."""
    import onnxruntime

    given = feed(_theirs(onnxruntime, path, threads, plain=True))
    with _contender("onnxruntime", path, threads) as theirs:
        expected, _ = theirs("first", given)
        with _contender("genesis", path, threads) as mine:
            results, first = mine("first", given)
            worst = max(difference(a, b) for a, b in zip(results, expected, strict=True))
            times: tuple[list[float], list[float]] = ([], [])
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(times[0]) < 12:
                for found, ask in zip(times, (mine, theirs), strict=True):
                    found += ask("block", BLOCK)
    return Measured(*(sorted(found)[len(found) // 10] for found in times), first, worst)


@contextmanager
def _contender(name: str, path: str, threads: int) -> Iterator[Any]:
    """Ask a process that has the model: `("first", inputs)`, then `("block", seconds)`."""
    context = get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GENESIS_CACHE"] = cache
        process = context.Process(target=_contend, args=(there, name, path, threads), daemon=True)
        process.start()
        there.close()

        def ask(*question: Any) -> Any:
            time.sleep(PAUSE)
            here.send(question)
            answer = here.recv()
            if isinstance(answer, Exception):
                raise answer
            return answer

        try:
            yield ask
        finally:
            here.close()
            process.join()


def _contend(pipe: Any, name: str, path: str, threads: int) -> None:
    """Answer questions until there are no more."""
    genesis.set_num_threads(threads)
    session: Any = None
    given: Any = None
    while True:
        try:
            what, value = pipe.recv()
        except EOFError:
            return
        try:
            if what == "first":
                begun, given = time.process_time(), value
                session = _session(name, path, threads)
                results = session.run(None, given)
                pipe.send((results, time.process_time() - begun))
            else:
                pipe.send(_block(session, given, value, threads))
        except Exception as error:
            pipe.send(RuntimeError(f"{name}: {path}: {error}"))


def _session(name: str, path: str, threads: int) -> Any:
    if name == "genesis":
        return InferenceSession(path)
    import onnxruntime

    return _theirs(onnxruntime, path, threads)


def _theirs(onnxruntime: Any, path: str, threads: int, plain: bool = False) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if plain:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _block(session: Any, given: Any, seconds: float, threads: int) -> list[float]:
    """What calls took in a while; one before wakes threads up."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: list[float] = []
    session.run(None, given)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = clock()
        session.run(None, given)
        times.append(clock() - start)
    return times


def header():
    return f"{'model':<48} {'genesis':>9} {'onnxrt':>9} {'ratio':>6} {'first':>7} {'differs':>8}"


def row(name, found):
    return (
        f"{name[:48]:<48} {1e3 * found.mine:6.2f} ms {1e3 * found.theirs:6.2f} ms "
        f"{found.theirs / found.mine:6.2f} {found.first:5.1f} s {found.differs:8.1e}"
    )


def summary(ratios):
    mean = exp(np.mean([log(r) for r in ratios]))
    return f"{len(ratios)} models: geometric mean {mean:.2f}, least {min(ratios):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N")
    chosen = parser.parse_args()
    sizes = {name: int(n) for name, n in (text.split("=") for text in chosen.size)}
    ratios = []
    print(header())
    for path in chosen.models:
        found = measured(path, lambda s: feed(s, None, sizes), chosen.threads, chosen.seconds)
        ratios.append(found.theirs / found.mine)
        print(row(Path(path).name, found), flush=True)
    print(summary(ratios))


if __name__ == "__main__":
    main()
