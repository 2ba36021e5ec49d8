"""`profile`: watch programs run, and say where the time went.

While a profile is open, every program runs through the runner's second entry, which notes when each
launch starts and ends. Times are added up per program, so a profile of a long training stays small;
the moments themselves are kept for the trace, up to a limit. A profile keeps programs and places in
the user's code, but no array and no memory. What the kernels compute is worked out when it is
asked for, since a program that was found on disk has to be compiled again to say.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock, get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple

from genesis import events
from genesis.backends.base import Repeat, Timing, every
from genesis.compiler.program.program import Places, Program
from genesis.events import Span
from genesis.profiling.kernel_work import KernelWork, works
from genesis.profiling.machine import Machine, this_machine

#: Moments that are kept for the trace: spans, runs of programs and of their kernels.
MAX_MOMENTS = 1 << 19


@dataclass(frozen=True)
class KernelProfile:
    """A kernel over all its runs, or a step that the host did. What nobody knows is None."""

    name: str
    kind: str  #: kernel, library (code written by hand) or host
    operations: tuple[str, ...]  #: the user's operations computed here
    lines: tuple[str, ...]  #: where the user wrote them
    calls: int
    seconds: float
    flops: int | None  #: in all
    nbytes: int | None
    least: float | None  #: seconds that this machine's roof allows

    @property
    def flops_per_second(self) -> float | None:
        """How fast it computes."""
        return self.flops / self.seconds if self.flops and self.seconds else None

    @property
    def bytes_per_second(self) -> float | None:
        """How fast it moves what it has to move."""
        return self.nbytes / self.seconds if self.nbytes and self.seconds else None

    @property
    def efficiency(self) -> float | None:
        """The share of the machine's roof that it reaches: 1 is as fast as can be."""
        return self.least / self.seconds if self.least is not None and self.seconds else None


@dataclass
class Runs:
    """All runs of a program with the same sizes, from the same places."""

    program: Program
    sizes: Mapping[str, int]
    places: Places | None
    count: int = 0
    runs: list[int] = field(default_factory=list)  # of each record
    totals: list[int] = field(default_factory=list)

    def add(self, timings: Sequence[Timing]) -> None:
        """Add what every record took."""
        if not self.count:
            self.runs, self.totals = [0] * len(timings), [0] * len(timings)
        self.count += 1
        for k, (runs, total, _, _) in enumerate(timings):
            self.runs[k] += runs
            self.totals[k] += total

    @property
    def seconds(self) -> float:
        """The time that kernels and host steps of all of them took."""
        timed = zip(every(self.program.records), self.totals, strict=True)
        return sum(total for record, total in timed if not isinstance(record, Repeat)) / 1e9

    @cached_property
    def works(self) -> list[KernelWork]:
        """What every record computes."""
        return list(works(self.program, self.places, self.sizes))


class Moment(NamedTuple):
    """One run of a program."""

    runs: Runs
    start: int
    end: int
    thread: int
    timings: list[Timing]
    memory: int  #: bytes in use on its device while it ran


class Profile:
    """What `profile` saw. Print `table()`; `save_trace` and `save_roofline` write files."""

    def __init__(self) -> None:
        self.start = self.end = 0  #: nanoseconds of `time.perf_counter_ns`
        self.spans: list[Span] = []
        self.moments: list[Moment] = []
        self.missed = 0  #: moments beyond those that are kept
        self._room = MAX_MOMENTS
        self._runs: dict[tuple[int, tuple[tuple[str, int], ...]], list[Runs]] = {}

    def __enter__(self) -> Profile:
        self.start = perf_counter_ns()
        _watching.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end = perf_counter_ns()
        _watching.remove(self)

    # ---- what was seen
    def programs(self) -> list[Runs]:
        """Every program that ran, with its sizes and places, that which took longest first."""
        found = [runs for group in list(self._runs.values()) for runs in group]
        return sorted(found, key=lambda runs: -runs.seconds)

    @property
    def seconds(self) -> float:
        """How long the profile was open, or has been so far."""
        return ((self.end or perf_counter_ns()) - self.start) / 1e9

    def seconds_of(self, *kinds: str) -> float:
        """How long spans of certain kinds took: compile, load, copy, realise, .."""
        return sum(s.end - s.start for s in self.spans if s.kind in kinds) / 1e9

    def kernels(self, machine: Machine | None = None) -> list[KernelProfile]:
        """Every kernel, that which took longest first.

        Runs count as the same kernel if it is the same code, from the same lines. `machine`: this
        one, if not given; only kernels on the CPU are compared with it.
        """
        found: dict[tuple[Any, ...], KernelProfile] = {}
        for runs in self.programs():
            roof = (machine or this_machine()) if runs.program.backend.name == "cpu" else None
            for work, count, total in zip(runs.works, runs.runs, runs.totals, strict=True):
                if work.kind != "loop" and count:
                    key = work.name, work.kind, work.operations, work.lines
                    seen = _kernel(work, count, total, roof)
                    found[key] = _sum(found[key], seen) if key in found else seen
        return sorted(found.values(), key=lambda k: -k.seconds)

    # ---- what becomes of it
    def table(self, limit: int = 30) -> str:
        """The kernels as a table of at most so many rows, and where the rest of the time went."""
        from genesis.profiling.table import table

        return table(self, limit)

    def save_trace(self, path: str | Path) -> None:
        """Write everything with its time as trace events, for ui.perfetto.dev or chrome://tracing."""
        from genesis.profiling.chrome_trace import trace

        Path(path).write_text(trace(self))

    def save_roofline(self, path: str | Path) -> None:
        """Draw the kernels under the machine's roof: as .html, or with matplotlib as .png."""
        from genesis.profiling.roofline import save

        save(self.kernels(), this_machine(), Path(path))

    # ---- watching
    def _saw(self, span: Span) -> None:
        if self._room > 0:
            self._room -= 1
            self.spans.append(span)
        else:
            self.missed += 1

    def _ran(self, new: Runs, start: int, end: int, timings: list[Timing], memory: int) -> None:
        same = self._runs.setdefault((id(new.program), tuple(new.sizes.items())), [])
        runs = next((r for r in same if r.places is new.places or r.places == new.places), None)
        if runs is None:
            runs = replace(new)
            same.append(runs)
        runs.add(timings)
        if self._room > 0:
            self._room -= 1 + len(timings)
            self.moments.append(Moment(runs, start, end, get_ident(), timings, memory))
        else:
            self.missed += 1


def profile() -> Profile:
    """Watch what runs inside the ``with`` block, in all threads.

    >>> import genesis
    >>> x = genesis.arange(200.0).reshape(10, 20).sin().numpy()
    >>> with genesis.profile() as p:
    ...     y = (genesis.tensor(x) @ genesis.tensor(x).T).numpy()
    >>> [(kernel.calls, kernel.flops) for kernel in p.kernels()]
    [(1, 4000)]
    """
    return Profile()


class _Watching:
    """The one watcher, for every open profile."""

    def __init__(self) -> None:
        self._open: list[Profile] = []
        self._lock = Lock()

    def add(self, profile: Profile) -> None:
        with self._lock:
            self._open = [*self._open, profile]
            events.watcher = self

    def remove(self, profile: Profile) -> None:
        with self._lock:
            self._open = [p for p in self._open if p is not profile]
            if not self._open:
                events.watcher = None

    def saw(self, span: Span) -> None:
        with self._lock:
            for p in self._open:
                p._saw(span)

    def run(
        self, program: Program, frame: array[int], sizes: Mapping[str, int], places: Places | None
    ) -> None:
        start = perf_counter_ns()
        timings = program.executable.timed(frame)
        end = perf_counter_ns()
        runs = Runs(program, dict(sizes), places)
        memory = program.backend.memory_stats().live_bytes
        with self._lock:
            for p in self._open:
                p._ran(runs, start, end, timings, memory)


_watching = _Watching()


def _kernel(work: KernelWork, count: int, total: int, roof: Machine | None) -> KernelProfile:
    flops = None if work.flops is None else count * work.flops
    nbytes = None if work.nbytes is None else count * work.nbytes
    least = None
    if roof is not None and (work.flops or work.nbytes):
        least = count * roof.seconds(work.flops or 0, work.nbytes or 0, work.dtype)
    known = work.name, work.kind, work.operations, work.lines
    return KernelProfile(*known, count, total / 1e9, flops, nbytes, least)


def _sum(a: KernelProfile, b: KernelProfile) -> KernelProfile:
    def added(x: Any, y: Any) -> Any:
        return None if x is None or y is None else x + y

    return KernelProfile(
        a.name,
        a.kind,
        a.operations,
        a.lines,
        a.calls + b.calls,
        a.seconds + b.seconds,
        added(a.flops, b.flops),
        added(a.nbytes, b.nbytes),
        added(a.least, b.least),
    )
