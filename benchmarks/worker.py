"""One contender in a process of its own, told what to do over a pipe.

Two OpenMP runtimes, or two thread pools, in one process disturb each other: the idle threads of one
spin while the other is timed. So each contender has its own process, and the parent lets only one
of them run at a time. A request is one line of JSON, and so is its answer:

    ["prepare", case]   make inputs, compile, warm up; seconds per call and a sample of the result
    ["time", calls]     call that often; seconds per call and processor seconds in all
    ["forget"]          free everything
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.cases import Case, Work

THREADS = 2
WARM_UP_SECONDS = 0.3
SAMPLE = 64


class Worker:
    """The parent's end: start the process, ask, read answers.

    The process is `module`, run with the contender's name and further arguments.
    """

    def __init__(
        self,
        contender: str,
        *arguments: str,
        module: str = "benchmarks.worker",
        **environment: str,
    ) -> None:
        self.contender = contender
        self.environment = environment
        self.sleeps = "OMP_WAIT_POLICY" in environment
        threads = {"GENESIS_NUM_THREADS": str(THREADS), "OMP_NUM_THREADS": str(THREADS)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, contender, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, **environment},
        )
        self.version = self.ask("version")

    def ask(self, *request: Any) -> Any:
        """The answer to a request. Returns when the worker is idle again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the {self.contender} worker died on {request}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(contender: str) -> None:
    """The worker's end: answer requests until the pipe is closed."""
    work: Work = lambda: None  # noqa: E731
    gc.disable()  # collections would fall into some measurements and not into others
    for line in sys.stdin:
        match json.loads(line):
            case ["version"]:
                answer: Any = version(contender)
            case ["prepare", name]:
                chosen = find(name)
                work = chosen.makers[contender](chosen.inputs())
                answer = [warm_up(work), sample(work())]
            case ["forget"]:
                work = lambda: None  # noqa: E731
                gc.collect()
                answer = None
            case ["time", int(calls)]:
                before = processor_seconds()
                answer = [seconds_per_call(work, calls), processor_seconds() - before]
        print(json.dumps(answer), flush=True)


def find(name: str) -> Case:
    """The case of a name."""
    from benchmarks.cases import ATTENTION, MATRICES, SMALL
    from benchmarks.convolution_cases import CONTRACTIONS
    from benchmarks.memory_cases import MEMORY
    from benchmarks.model_cases import MODELS
    from benchmarks.operator_cases import OPERATORS

    cases = (*MATRICES, *MEMORY, *ATTENTION, *MODELS, *SMALL, *OPERATORS, *CONTRACTIONS)
    (chosen,) = (c for c in cases if c.name == name)
    return chosen


def version(contender: str) -> str:
    """The contender's version; PyTorch is told its threads."""
    from importlib import metadata

    if contender in ("torch", "inductor"):
        import torch

        torch.set_num_threads(THREADS)
        return str(torch.__version__)
    if contender == "tinygrad":
        return metadata.version(contender)
    return str(__import__(contender).__version__)


def warm_up(work: Work) -> float:
    """Call until caches, pools and clocks have settled; the seconds the last call took."""
    last = seconds_per_call(work, 1)
    end = perf_counter() + WARM_UP_SECONDS
    while perf_counter() < end:
        last = seconds_per_call(work, 1)
    return last


def seconds_per_call(work: Work, calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        work()
    return (perf_counter() - start) / calls


def processor_seconds() -> float:
    """What this process, its threads and its children have used."""
    return sum(os.times()[:4])


def sample(result: Any) -> list[float]:
    """Some elements, by which the parent sees that both contenders did the same work."""
    if isinstance(result, tuple | list):
        result = result[0]
    if not hasattr(result, "shape"):
        return []
    if hasattr(result, "detach"):
        result = result.detach()
    if hasattr(result, "numpy"):
        result = result.numpy()
    flat = np.asarray(result).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.real
    return [float(x) for x in flat[:: max(1, flat.size // SAMPLE)]]


if __name__ == "__main__":
    serve(sys.argv[1])
