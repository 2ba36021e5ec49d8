"""A profile as trace events: JSON that Perfetto and Chrome's tracing page show.

Every thread is a row; whatever a thread did while it did something else lies below that. Kernels
lie below the run of their program, on the thread that called it. A loop shows its first repetition,
with the number and the time of all of them beside it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genesis.profiling.profiler import Moment, Profile

Event = dict[str, Any]


def trace(profile: Profile) -> str:
    """The JSON text."""
    names = {t.ident: t.name for t in threading.enumerate()}
    process = os.getpid()
    events: list[Event] = [_named("process_name", process, 0, "Genesis")]
    spans = [
        _event(s.kind, s.name and f"{s.kind} {s.name}", s.start, s.end, s.thread)
        for s in profile.spans
    ]
    runs = [event for moment in profile.moments for event in _run(moment)]
    for number, thread in enumerate(dict.fromkeys(e["tid"] for e in (*spans, *runs))):
        name = names.get(thread, f"thread {number}")
        events.append(_named("thread_name", process, thread, name))
    for event in sorted((*spans, *runs), key=lambda e: (e["ts"], -e["dur"])):
        event["pid"] = process
        event["ts"] = (event["ts"] - profile.start) / 1e3  # nanoseconds to microseconds
        event["dur"] /= 1e3
        events.append(event)
    more = {"moments beyond the limit": profile.missed} if profile.missed else {}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": more})


def _run(moment: Moment) -> Iterator[Event]:
    """The run of a program, and of every record in it."""
    runs, places = moment.runs, moment.runs.places
    title = "program" if places is None else places.title
    yield _event("program", title, moment.start, moment.end, moment.thread, sizes=dict(runs.sizes))
    for work, timing in zip(runs.works, moment.timings, strict=True):
        if not timing.runs:
            continue
        details: Event = {}
        if work.kind != "loop":
            details |= {"operations": ", ".join(work.operations), "from": list(work.lines)}
            details |= {"flops": work.flops, "bytes": work.nbytes}
        if timing.runs > 1:
            details |= {"runs": timing.runs, "ms in all": timing.total / 1e6}
        yield _event(work.kind, work.name, timing.start, timing.end, moment.thread, **details)


def _event(kind: str, name: str, start: int, end: int, thread: int, **details: Any) -> Event:
    event = {"ph": "X", "cat": kind, "name": name or kind, "ts": start, "dur": end - start}
    return {**event, "tid": thread, "args": details}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
