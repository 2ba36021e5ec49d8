"""One trace of all processes: what each did, one below the other, by one clock."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from genesis.distributed import process_groups
from genesis.distributed.mesh import current
from genesis.profiling.chrome_trace import trace
from genesis.profiling.profiler import Profile

_count = 0


def save_trace(profile: Profile, path: str | Path) -> None:
    """Write what all processes have seen in their profiles as one trace. All call it.

    Clocks of machines differ, so times are counted from a moment at which all have met.

    >>> import tempfile, genesis
    >>> import genesis.distributed as gd
    >>> mesh = gd.mesh()
    >>> with genesis.profiling.profile() as profile:
    ...     x = genesis.ones(3).sum().item()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gd.save_trace(profile, f"{folder}/trace.json")
    """
    global _count
    on = current()
    on.barrier()
    shift = (profile.start - perf_counter_ns()) / 1e3
    mine = json.loads(trace(profile))
    for event in mine["traceEvents"]:
        event["pid"] = on.rank
        if event["name"] == "process_name":
            event["args"]["name"] = f"process {on.rank} {dict(on.coordinates)}"
        if "ts" in event:
            event["ts"] += shift
    documents = [mine]
    if on.size > 1:
        _count += 1
        name = f"trace/{_count}"
        process_groups.notes().set(f"{name}/{on.rank}", zlib.compress(json.dumps(mine).encode()))
        if on.rank:
            return
        notes = [process_groups.note(f"{name}/{k}") for k in range(on.size)]
        documents = [json.loads(zlib.decompress(note)) for note in notes]
    events: list[dict[str, Any]] = [e for d in documents for e in d["traceEvents"]]
    first = min((e["ts"] for e in events if "ts" in e), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] -= first
    Path(path).write_text(json.dumps({**mine, "traceEvents": events}))


__all__ = ["save_trace"]
