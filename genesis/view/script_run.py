"""Run a script, and write down what Genesis did for it: numbers and texts, no array, no memory.

Everything is compiled here rather than found on disk, since only so there are stages and code to
show. What is written down is bounded: of very many programs and moments those are kept that took
longest, and it says how many others there were.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from genesis.compiler.report import report
from genesis.profiling.command import run
from genesis.profiling.machine import Machine, this_machine
from genesis.profiling.profiler import Profile, Runs
from genesis.profiling.roofline import svg
from genesis.view.stage_graphs import Graphs
from genesis.view.tensorboard import Curve, read_runs

#: Programs, moments of the timeline and points of a curve that are kept.
PROGRAMS, MOMENTS, POINTS = 200, 20_000, 2_000


@dataclass
class ScriptRun:
    """What was seen, as plain data: `genesis/view/page.html` and `text.py` read the same."""

    script: str
    status: int
    seconds: float
    programs: list[dict[str, Any]]
    more_programs: int
    codes: list[str]  #: code of kernels, which name it by its number: many share it
    threads: int
    timeline: list[list[Any]]  #: kind, name, thread, start and duration in seconds
    more_moments: int
    memory: Curve  #: seconds, and bytes in use
    curves: dict[str, Curve]  #: numbers that lines of the script asked for, by seconds
    runs: dict[str, Curve]  #: of other runs, by step
    roofline: str  #: a picture as SVG; empty if nothing ran on the CPU


def record(script: str, arguments: Sequence[str] = (), runs: str | None = None) -> ScriptRun:
    """Run a script as Python would, to its end, and write down what was seen.

    `runs` is a folder with TensorBoard's event files of others to show beside it.
    """
    others = {} if runs is None else read_runs(runs)
    with _compiling_all():
        found, status = run(script, arguments)
    return written(found, script, status, others)


@contextmanager
def _compiling_all() -> Iterator[None]:
    """Find no program on disk: one that was kept there cannot say how it came about."""
    before = os.environ.get("GENESIS_CACHE")
    os.environ["GENESIS_CACHE"] = "off"
    try:
        yield
    finally:
        os.environ.pop("GENESIS_CACHE")
        if before is not None:
            os.environ["GENESIS_CACHE"] = before


def written(
    profile: Profile, script: str, status: int, runs: dict[str, Curve] | None = None
) -> ScriptRun:
    """A profile as a recording."""
    codes: dict[str, int] = {}
    programs = profile.programs()
    on_cpu = any(p.program.backend.name == "cpu" for p in programs)
    machine = this_machine() if on_cpu else None
    shown = [_program(p, codes, machine) for p in programs[:PROGRAMS]]
    timeline, missed, threads = _timeline(profile)
    return ScriptRun(
        script,
        status,
        profile.seconds,
        shown,
        len(programs) - len(shown),
        list(codes),
        threads,
        timeline,
        missed,
        _thinned([((m.start - profile.start) / 1e9, m.memory) for m in profile.moments], max),
        {name: _thinned(curve) for name, curve in _curves(profile).items()},
        {name: _thinned(curve) for name, curve in (runs or {}).items()},
        "" if machine is None else svg(profile.kernels(machine), machine),
    )


def _program(runs: Runs, codes: dict[str, int], machine: Machine | None) -> dict[str, Any]:
    """A program: its stages, kernels and calls."""
    program, places = runs.program, runs.places
    described: dict[str, Any] = {
        "title": "program" if places is None else places.title,
        "device": program.backend.name,
        "sizes": dict(runs.sizes),
        "calls": runs.count,
        "seconds": runs.seconds,
        "peak_bytes": program.peak_bytes(runs.sizes),
    }
    try:
        found = report(program, (lambda n: None) if places is None else places.where, runs.sizes)
    except LookupError:  # compiled before the script began, and kept without its graph
        return {**described, "proven": not program.unproven, "stages": [], "kernels": []}
    graphs = Graphs(program, places)
    kernels = []
    # What runs ahead of loops is a record without work of its own.
    everything = zip(runs.works, runs.runs, runs.totals, strict=True)
    timed = (t for t in everything if t[0].kind == "kernel" and t[0].flops is not None)
    for kernel, step in zip(found.kernels, program.steps, strict=True):
        work, calls, total = next(timed)
        about = asdict(kernel)
        about["code"] = codes.setdefault(about["code"], len(codes))
        about["nodes"] = graphs.known(step.lowered.members)
        about["calls"], about["seconds"] = calls, total / 1e9
        about["roof"] = None
        if machine is not None and total and (work.flops or work.nbytes):
            least = machine.seconds(work.flops or 0, work.nbytes or 0, work.dtype)
            about["roof"] = calls * least / (total / 1e9)
        kernels.append(about)
    return {
        **described,
        "proven": found.proven,
        "accesses": found.accesses,
        "temporary_bytes": found.temporary_bytes,
        "nodes": graphs.nodes,
        "stages": [asdict(stage) for stage in graphs.stages],
        "kernels": kernels,
        "library": [asdict(call) for call in found.calls],
    }


def _timeline(profile: Profile) -> tuple[list[list[Any]], int, int]:
    """What took longest of all moments, in order; how many others and threads there are."""
    threads: dict[int, int] = {}
    start = profile.start

    def moments() -> Iterator[tuple[int, int, str, str, int]]:
        for s in profile.spans:
            if s.number is None:
                yield s.end - s.start, s.start, s.kind, s.name or s.kind, s.thread
        for m in profile.moments:
            title = "program" if m.runs.places is None else m.runs.places.title
            yield m.end - m.start, m.start, "program", title, m.thread
            for work, timing in zip(m.runs.works, m.timings, strict=True):
                if timing.runs:
                    took = timing.end - timing.start
                    yield took, timing.start, work.kind, work.name, m.thread

    all_moments = list(moments())
    kept = sorted(heapq.nlargest(MOMENTS, all_moments), key=lambda m: (m[1], -m[0]))
    shown = [
        [kind, name, threads.setdefault(thread, len(threads)), (at - start) / 1e9, took / 1e9]
        for took, at, kind, name, thread in kept
    ]
    return shown, len(all_moments) - len(kept) + profile.missed, len(threads)


def _curves(profile: Profile) -> dict[str, Curve]:
    """The numbers that lines of the script asked for, where one did so more than once."""
    curves: dict[str, Curve] = {}
    for span in profile.spans:
        if span.number is not None:
            at = (span.start - profile.start) / 1e9
            curves.setdefault(span.name, []).append((at, float(span.number)))
    return {name: curve for name, curve in curves.items() if len(curve) > 1}


def _thinned(curve: Sequence[tuple[float, float]], of: Any = None) -> Curve:
    """At most `POINTS` points: every so many, or the greatest (`of`) of so many."""
    apart = math.ceil(len(curve) / POINTS) or 1
    groups = [curve[k : k + apart] for k in range(0, len(curve), apart)]
    if of is None:
        return [group[-1] for group in groups]
    return [of(group, key=lambda point: point[1]) for group in groups]
