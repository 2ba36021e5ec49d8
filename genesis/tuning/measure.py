"""Measuring: a kernel on its own, in several schedules, one against the other.

A bench holds memory for the arguments of one kernel. Every schedule of it runs on that memory, so
that two of them differ in nothing else, and is timed in turns with another: what disturbs the
machine disturbs both. Of several times the least counts, for nothing makes a kernel faster than it
is. A schedule must compute what the first one did.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from genesis.backends.base import Binary, Executable, Launch, Memory
from genesis.compiler.schedule.decisions import Decisions
from genesis.ir.dtype import DType
from genesis.ir.kernel import Buffer, Kernel, Role
from genesis.tuning.jobs import TuningJob

#: Seconds that one timing should take: much longer than a look at the clock.
TIMING = 5e-4
#: Runs of one timing at most.
MOST_RUNS = 100


class WrongResult(RuntimeError):
    """A schedule computes something else: an error of the compiler."""


@dataclass(eq=False)
class Candidate:
    """A schedule that can run: its decisions, and the seconds of its fastest run so far."""

    decisions: Decisions
    executable: Executable
    frame: array[int]
    held: list[Memory]
    best: float = float("inf")


class KernelBench:
    """Memory for the arguments of one kernel, and what times schedules of it."""

    def __init__(self, job: TuningJob) -> None:
        self.job, self.backend = job, job.backend
        self._rng = np.random.default_rng(0)
        self._memory = [self._argument(b) for b in job.kernel.buffers]
        self._expected: list[npt.NDArray[Any]] | None = None
        self._runs = 1

    def candidate(self, decisions: Decisions, kernel: Kernel, binary: Binary) -> Candidate:
        """A schedule, loaded; raises `WrongResult` unless it computes what the first one did."""
        own = len(self.job.kernel.buffers)
        temporaries = [self.backend.allocate(self.job.nbytes(b)) for b in kernel.buffers[own:]]
        held = [*self._memory, *temporaries]
        sizes = [self.job.sizes[s.name] for s in kernel.symbols]
        frame = array("Q", [*(m.pointer for m in held), *self.job.scalars, *sizes])
        launch = Launch(binary, tuple(range(len(frame))))
        made = Candidate(decisions, self.backend.assemble([launch]), frame, held)
        self._check(made)
        return made

    def calibrate(self, candidate: Candidate) -> None:
        """From now on, run everything as often in a timing as suits this one."""
        took = min(self.seconds(candidate) for _ in range(3))
        self._runs = max(1, min(MOST_RUNS, round(TIMING / max(took, 1e-9))))
        candidate.best = float("inf")
        self.seconds(candidate)

    def seconds(self, candidate: Candidate) -> float:
        """The time of one run, now."""
        start = perf_counter()
        for _ in range(self._runs):
            candidate.executable.run(candidate.frame)
        self.backend.synchronize()
        took = (perf_counter() - start) / self._runs
        candidate.best = min(candidate.best, took)
        return took

    def _argument(self, buffer: Buffer) -> Memory:
        nbytes = self.job.nbytes(buffer)
        memory = self.backend.allocate(nbytes)
        self.backend.upload(memory, self._content(buffer, nbytes))
        return memory

    def _content(self, buffer: Buffer, nbytes: int) -> npt.NDArray[Any]:
        """What is in an argument: what was there, zeros, or positive numbers near one."""
        known = self.job.contents.get(buffer.name)
        if known is not None:
            return known
        if not buffer.dtype.is_float:
            return np.zeros(nbytes, np.uint8)
        count = nbytes // buffer.dtype.itemsize
        numbers = self._rng.random(count, np.float32) + np.float32(0.5)
        return numbers.astype(buffer.dtype.numpy)

    def _check(self, candidate: Candidate) -> None:
        arguments = list(zip(self.job.kernel.buffers, self._memory, strict=True))
        for buffer, memory in arguments:
            if buffer.role is Role.INOUT:
                self._rng = np.random.default_rng(1)
                self.backend.upload(memory, self._content(buffer, memory.nbytes))
        candidate.executable.run(candidate.frame)
        results = [
            (b, self.backend.download(m, b.dtype, (self.job.nbytes(b) // b.dtype.itemsize,)).copy())
            for b, m in arguments
            if b.role is not Role.INPUT
        ]
        if self._expected is None:
            self._expected = [x for _, x in results]
        for (buffer, found), expected in zip(results, self._expected, strict=True):
            if not agree(found, expected, buffer.dtype):
                raise WrongResult(
                    f"kernel {self.job.kernel.name} gives another {buffer.name} when it is "
                    f"scheduled under {dict(candidate.decisions)}; please report this"
                )


def agree(found: npt.NDArray[Any], expected: npt.NDArray[Any], dtype: DType) -> bool:
    """Whether two results differ by no more than rounding, in sums of another order, explains."""
    if not dtype.is_float:  # where they were floats before, rounding may decide a few
        return float(np.mean(found != expected)) < 0.01
    wide = np.float64 if dtype.bits == 64 else np.float32
    a, b = found.astype(wide, copy=False), expected.astype(wide, copy=False)
    tolerance = np.sqrt(float(np.finfo(dtype.numpy).eps) if dtype.bits != 16 else 2.0**-8)
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max(initial=0.0)
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    return same and bool(np.all(np.abs(a[finite] - b[finite]) <= tolerance * scale))


def wins(pairs: Sequence[tuple[float, float]], margin: float) -> bool:
    """Whether the second of a pair of times is clearly the smaller: by a margin, nearly always."""
    if not pairs:
        return False
    better = sum(after < before for before, after in pairs)
    least = min(after for _, after in pairs) <= margin * min(before for before, _ in pairs)
    ratio = float(np.median([after / before for before, after in pairs]))
    return least and ratio <= margin and better >= 0.8 * len(pairs)
