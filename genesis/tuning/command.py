"""`genesis tune`: tune what a script runs, and look after what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from genesis.backends import get
from genesis.compiler import tuning_records
from genesis.compiler.schedule.decisions import Decisions
from genesis.content_store import generation, replace_file
from genesis.profiling.command import run_script
from genesis.tuning.jobs import jobs
from genesis.tuning.tuner import tune_jobs


def tune_script(script: str, arguments: Sequence[str], seconds: float) -> int:
    """Run a script, then look for better schedules of its kernels; the script's exit status."""
    status: list[int] = []
    found = jobs(lambda: status.append(run_script(script, arguments)))
    if status != [0]:
        return status[0]
    print(tune_jobs(found, seconds))
    return 0


def manage(
    show: bool = False, export: str | None = None, source: str | None = None, clear: bool = False
) -> Iterator[str]:
    """Show, write to a file, read from a file or forget what is kept; what there is to say."""
    known = tuning_records.database()
    here = tuning_records.target_of(get("cpu")), generation()
    if show:
        for record in known.records.values():
            times = f"{record.before * 1e3:.3g} ms -> {record.after * 1e3:.3g} ms"
            used = "" if record.place[1:] == here else "  (another chip or version)"
            yield f"{record.kernel[:8]}  {record.name:<32} {times}  {_told(record.decisions)}{used}"
        yield f"{len(known.records)} kernels in {known.path or 'memory: the cache is off'}"
    elif export is not None:
        replace_file(Path(export), tuning_records.written(known.records.values()))
        yield f"wrote {len(known.records)} kernels to {export}"
    elif source is not None:
        try:
            records = tuning_records.parsed(tuning_records.read_bounded(Path(source)))
        except tuning_records.BadRecords as error:
            raise ValueError(f"{source}: {error}") from None
        known.add(records)
        fitting = sum(record.place[1:] == here for record in records)
        yield f"added {len(records)} kernels, {fitting} of them for this chip and version"
    elif clear:
        yield f"forgot {known.clear()} kernels"


def _told(decisions: Decisions) -> str:
    return ", ".join(f"{question} {choice}" for question, choice in decisions.items())
