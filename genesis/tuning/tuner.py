"""The tuner: which kernels of a function to spend time on, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tqdm import tqdm

from genesis.compiler.report import flops, traffic
from genesis.compiler.tuning_records import Tuned, database, decisions_for, target_of
from genesis.content_store import generation
from genesis.ndarray.core.realisation import forget_programs
from genesis.profiling.machine import Machine, this_machine
from genesis.tuning.history import add_samples, load_samples
from genesis.tuning.jobs import TuningJob, jobs
from genesis.tuning.measure import KernelBench
from genesis.tuning.schedule_search import ScheduleSearch

#: Parts of the time too small to be worth anything.
LEAST_SHARE = 0.005
#: A kernel that is this near to what the machine can do is left alone.
ROOFLINE = 0.93


@dataclass(frozen=True)
class Tuning:
    """What `tune` found: the kernels that have a better schedule now, and how many it looked at.

    `before` and `after` are the seconds that all kernels of the function take.
    """

    kernels: tuple[Tuned, ...]
    looked_at: int
    tried: int  # schedules
    before: float
    after: float

    def __str__(self) -> str:
        lines = [f"  {k.name:<40} {_times(k.before, k.after)}" for k in self.kernels]
        head = (
            f"{len(self.kernels)} of {self.looked_at} kernels are faster after {self.tried} "
            f"schedules were tried: {_times(self.before, self.after)}"
        )
        return "\n".join([head, *lines])


def tune(
    function: Callable[..., Any],
    *args: Any,
    seconds: float = 60.0,
    progress: bool = True,
    **kwargs: Any,
) -> Tuning:
    """Look for better schedules of the kernels that ``function(*args, **kwargs)`` runs.

    The function is called once. The kernels that take most of its time are then measured on their
    own, for `seconds` in all, in other schedules than the compiler chose by rule; what is clearly
    faster is kept on disk and used from now on, by this process and by later ones, wherever the
    same kernel occurs. An interrupt ends it early; what was found before is kept.

    >>> import genesis
    >>> a, b = genesis.randn(64, 64), genesis.randn(64, 64)
    >>> found = genesis.tune(lambda: a @ b, seconds=0.5, progress=False)
    >>> found.after <= found.before
    True
    """
    if not seconds > 0:
        raise ValueError(f"genesis.tune: seconds is {seconds!r}; it takes a number above 0")
    return tune_jobs(jobs(function, *args, **kwargs), seconds, progress)


def tune_jobs(found: Iterable[TuningJob], seconds: float, progress: bool = True) -> Tuning:
    """Look for better schedules of kernels for so many seconds."""
    machine = this_machine()  # which is measured once, and takes its own time
    start = monotonic()
    tuned: list[Tuned] = []
    tried = 0
    with tqdm(
        total=seconds, desc="tuning", disable=None if progress else True, bar_format=_BAR
    ) as bar:

        def tick(running: ScheduleSearch) -> None:
            bar.set_description_str(f"{running.job.kernel.name[:24]} {running.gain:.2f}x", False)
            bar.update(min(monotonic() - start, seconds) - bar.n)

        each = {job: _search(job).default.best for job in found}
        total = before = sum(job.runs * took for job, took in each.items())
        shares = {
            job: job.runs * took / total
            for job, took in each.items()
            if job.runs * took > LEAST_SHARE * total and not _at_roofline(job, took, machine)
        }
        # A kernel that runs with several sizes is tuned for those that take most of the time.
        ranked = {job.key: job for job in sorted(shares, key=shares.__getitem__)}
        left = sum(shares[job] for job in ranked.values())
        try:
            for job in reversed(ranked.values()):
                target = target_of(job.backend)
                budget = max(0.0, seconds - (monotonic() - start)) * shares[job] / left
                left -= shares[job]
                outcome = _search(job).run(load_samples(target), budget, tick)
                tried += outcome.tried
                add_samples(target, outcome.samples)
                if outcome.after < outcome.before:
                    times = outcome.before, outcome.after
                    place = job.key, target, generation()
                    tuned.append(Tuned(*place, job.kernel.name, outcome.decisions, *times))
                    database().add(tuned[-1:])
                    total -= each[job] * job.runs * (1 - outcome.after / outcome.before)
        except KeyboardInterrupt:
            pass
        finally:
            if tuned:
                forget_programs()
    return Tuning(tuple(tuned), len(ranked), tried, before, total)


_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s"


def _search(job: TuningJob) -> ScheduleSearch:
    return ScheduleSearch(job, KernelBench(job), decisions_for(job.kernel, job.backend))


def _at_roofline(job: TuningJob, took: float, machine: Machine) -> bool:
    work = flops(job.kernel, job.sizes), traffic(job.kernel, job.sizes)
    return machine.seconds(*work) >= ROOFLINE * took


def _times(before: float, after: float) -> str:
    gain = before / after if after else 1.0
    return f"{before * 1e3:.3g} ms to {after * 1e3:.3g} ms, {gain:.2f} times as fast"
