"""`genesis bench`: what this machine can do, and how near to it Genesis comes.

First the roof is measured, then a few kernels that models are made of. Each is compiled and run
until enough time has passed; its shortest run counts. Where PyTorch is installed it computes the
same, the two taking turns, so that whatever else the machine does meets both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np

from genesis import ndarray as nd
from genesis.functional import scaled_dot_product_attention
from genesis.ndarray.tracing.jit import jit
from genesis.profiling.machine import Machine, measure
from genesis.profiling.profiler import profile
from genesis.profiling.table import duration, rate

#: The time to spend on one case, in seconds, and the fewest runs of it.
PATIENCE, RUNS = 1.0, 5
#: Seconds in which the threads of the other contender stop waiting for work and fall asleep, and
#: the runs that follow.
PAUSE, TURN = 0.02, 8

_COLUMNS = "{:<32} {:>8} {:>9} {:>7} {:>8} {:>9} {:>7}"


@dataclass(frozen=True)
class BenchCase:
    """Something to compute, and the same in PyTorch: a function of the module gives it."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[[Any], Callable[..., Any]]


CASES = (
    BenchCase(
        "launch: x + 1, one element", ((1,),), lambda x: x + 1, lambda torch: lambda x: x + 1
    ),
    BenchCase("elementwise: gelu, 16M", ((1 << 24,),), nd.gelu, lambda torch: _of(torch, "gelu")),
    BenchCase(
        "softmax, 4096 x 1024",
        ((4096, 1024),),
        partial(nd.softmax, axis=-1),
        lambda torch: partial(torch.softmax, dim=-1),
    ),
    BenchCase(
        "matmul, 1024 x 1024 x 1024",
        ((1024, 1024), (1024, 1024)),
        nd.matmul,
        lambda torch: torch.matmul,
    ),
    BenchCase(
        "conv2d 3 x 3, 8 x 64 x 56 x 56",
        ((8, 64, 56, 56), (64, 64, 3, 3)),
        partial(nd.conv2d, padding=1),
        lambda torch: partial(torch.conv2d, padding=1),
    ),
    BenchCase(
        "attention, 8 heads, 1024 x 64",
        ((1, 8, 1024, 64),) * 3,
        scaled_dot_product_attention,
        lambda torch: _of(torch, "scaled_dot_product_attention"),
    ),
)


def bench() -> Iterator[str]:
    """The lines of the report, each as soon as it is known."""
    yield "measuring the roof .."
    machine = measure()
    yield f"\n{machine.name}, {machine.threads} thread{'s' * (machine.threads != 1)}"
    for dtype, peak in machine.peaks.items():
        yield f"  {'multiply-add in registers, ' + dtype:<46}{rate(peak):>8} GFLOP/s"
    for amount, bandwidth in machine.bandwidths:
        last = amount == machine.bandwidths[-1][0]
        where = "memory" if last else f"caches, up to {amount >> 10} KiB"
        yield f"  {'read or copy from ' + where:<46}{rate(bandwidth):>8} GB/s"
    torch = _torch(machine.threads)
    theirs = ("", "") if torch is None else ("PyTorch", "ratio")
    yield "\n" + _COLUMNS.format("", "time", "GFLOP/s", "GB/s", "of roof", *theirs).rstrip()
    for case in CASES:
        yield _row(case, machine, torch).rstrip()
    if torch is None:
        yield "\nPyTorch is not installed: nothing to compare with"
    else:
        version = torch.__version__.partition("+")[0]
        yield f"\nPyTorch {version} in eager mode, on as many threads; ratio: its time to ours"


def _row(case: BenchCase, machine: Machine, torch: Any) -> str:
    draw = np.random.default_rng(0).standard_normal
    inputs = [draw(shape, np.float32) for shape in case.shapes]
    arrays = [nd.array(x) for x in inputs]
    ours = partial(jit(case.ours), *arrays)
    ours()
    with profile() as profiled:
        ours()
    contenders: list[Callable[[], Any]] = [ours]
    if torch is not None:
        contenders.append(partial(case.theirs(torch), *map(torch.from_numpy, inputs)))
    times = shortest(contenders)
    kernels = profiled.kernels(machine)
    flops, nbytes = (sum(getattr(k, which) or 0 for k in kernels) for which in ("flops", "nbytes"))
    seconds = times[0]
    theirs = [f"{duration(t)}" for t in times[1:]] + [f"{t / seconds:.2f}" for t in times[1:]]
    small = nbytes < 1 << 12  # then it is a launch that is measured
    return _COLUMNS.format(
        case.name,
        duration(seconds),
        "" if small else rate(flops / seconds),
        "" if small else rate(nbytes / seconds),
        "" if small else f"{100 * sum(k.least or 0 for k in kernels) / seconds:.0f} %",
        *(theirs or ("", "")),
    )


def shortest(contenders: list[Callable[[], Any]]) -> list[float]:
    """The shortest time of each, in seconds; they take turns."""
    best = [float("inf")] * len(contenders)
    for run in contenders:
        run()
    started, runs = perf_counter(), 0
    while runs < RUNS or perf_counter() - started < PATIENCE * len(contenders):
        for k, run in enumerate(contenders):
            sleep(PAUSE)
            for _ in range(TURN):
                start = perf_counter()
                run()
                best[k] = min(best[k], perf_counter() - start)
        runs += 1
    return best


def _torch(threads: int) -> Any:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def _of(torch: Any, name: str) -> Any:
    return getattr(torch.nn.functional, name)
