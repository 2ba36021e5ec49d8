"""Cases drawn at random, on a GPU: ``python -m benchmarks.gpu --sweep``.

First processes on all cores compile the cases, one each, and compare Genesis's results with
PyTorch's in float32; kernels lie on disk afterwards. Then one process times them, one after the
other: PyTorch eagerly, Inductor for a share of the cases, and Genesis through `genesis.jit`, in
turns. *Wall* is the time of a call as Python sees it when calls follow each other, *device* what
the GPU is busy with: the queue is held back until all calls are in it. A ratio is the faster of the
others over Genesis. What a case takes at least are its bytes (inputs read and results written once)
at the rate of a copy, or its operations at the rate of a large matrix product in its type; *floor*
is the share of Genesis's device time that it would need so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.sweep_cases import Case, Input, drawn, with_gradients

RESULTS = Path(__file__).parent / "results" / "gpu_sweep.md"
#: How far results may be from those in float32, as a share of their norm.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
#: The same for gradients through a ReLU of a sum: two roundings of the sum differ by 1e-6, so one
#: in a million is above 0 for one and not for the other, which by norm is 1e-3.
KINKED = 3e-3
#: Of the time there is, what compiling may take; seconds that timing tries to give a round.
COMPILING = 0.55
ROUND = 4e-3
WORST = 20


def tolerance(case: Case) -> float:
    """How far results of a case may be off, by norm."""
    return max(TOLERANCE[case.dtype], KINKED * (case.kink and case.gradients))


@dataclass
class Outcome:
    """What became of a case: times in seconds, of a call."""

    case: int
    error: float = 0.0
    fault: str = ""
    compiling: float = 0.0
    nbytes: int = 0
    wall: dict[str, float] = field(default_factory=dict)
    device: dict[str, float] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)

    def ratio(self, kind: str) -> float:
        """The faster of the others, over Genesis."""
        times: dict[str, float] = getattr(self, kind)
        return min(t for name, t in times.items() if name != "genesis") / times["genesis"]


def arrays(torch: Any, case: Case, device: str) -> list[Any]:
    """The inputs of a case: the same ones whenever they are made."""
    random = torch.Generator(device).manual_seed(1)

    def made(x: Input) -> Any:
        kind = getattr(torch, x.dtype)
        if x.below:
            return torch.randint(0, x.below, x.shape, dtype=kind, device=device, generator=random)
        found = torch.randn(x.shape, dtype=kind, device=device, generator=random)
        if x.definite:
            return found @ found.mT / x.shape[-1] + torch.eye(x.shape[-1], device=device)
        return found

    return [made(x) for x in case.inputs]


def call(lib: Any, case: Case, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The case as a function of arrays of one library."""
    forward = function or case.function

    def run(*xs: Any) -> Any:
        if case.gradients:
            return with_gradients(lib, forward, list(xs))
        with lib.no_grad():
            return forward(lib, *xs)

    return run


def flat(torch: Any, results: Any, count: int) -> list[Any]:
    """The results to compare."""
    found = results if isinstance(results, tuple) else (results,)
    return [torch.from_dlpack(x) for x in found[: count or None]]


def difference(torch: Any, case: Case, found: Any, theirs: list[Any]) -> tuple[float, int]:
    """How far results are from PyTorch's in float32, by norm, and their bytes."""
    wide = [x.float() if x.is_floating_point() else x for x in theirs]
    wanted = flat(torch, call(torch, case)(*wide), case.values)
    ours = flat(torch, found, case.values)
    worst = 0.0
    for got, want in zip(ours, wanted, strict=True):
        assert got.shape == want.shape, f"{tuple(got.shape)} for {tuple(want.shape)}"
        gap = float((got.float() - want.float()).norm()) / max(float(want.float().norm()), 1e-30)
        worst = max(worst, gap if gap == gap else float("inf"))
    return worst, sum(x.numel() * x.element_size() for x in ours)


# ---- compiling, in several processes


def prepare(options: argparse.Namespace) -> None:
    """Compile every so manieth case and compare its results; one line of JSON for each."""
    import torch

    import genesis
    from genesis import cuda

    exact(torch)
    number, of = map(int, options.part.split("/"))
    cases = list(enumerate(drawn(options.seed, options.cases)))[number::of]
    end = time.monotonic() + options.seconds
    for k, case in cases:
        if time.monotonic() > end:
            break
        outcome = Outcome(k)
        try:
            theirs = arrays(torch, case, "cuda")
            ours = [genesis.from_dlpack(x) for x in theirs]
            start = time.perf_counter()
            found = genesis.jit(call(genesis, case))(*ours)
            cuda.synchronize()
            outcome.compiling = time.perf_counter() - start
            outcome.error, written = difference(torch, case, found, theirs)
            outcome.nbytes = written + sum(x.numel() * x.element_size() for x in theirs)
            del found
            if compiled_by_inductor(k, options.inductor):
                inductor(torch, case)(*theirs)
        except Exception as error:
            outcome.fault = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps(asdict(outcome)), flush=True)
        theirs = ours = []  # memory is for others
        torch.cuda.empty_cache()
        cuda.empty_cache()


def exact(torch: Any) -> None:
    """Have PyTorch multiply float32 as float32, as Genesis does."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def compiled_by_inductor(number: int, share: float) -> bool:
    """Whether a case is timed with Inductor, too: an even sample."""
    return int((number + 1) * share) > int(number * share)


def inductor(torch: Any, case: Case) -> Callable[..., Any]:
    """The case, its forward pass compiled."""
    torch._dynamo.reset()
    return call(torch, case, torch.compile(case.function, dynamic=False))


def compiled(options: argparse.Namespace) -> dict[int, Outcome]:
    """What the processes that compile found."""
    workers = len(os.sched_getaffinity(0))
    flags = ["--sweep", "--seed", options.seed, "--cases", options.cases]
    flags += ["--inductor", options.inductor, "--seconds", COMPILING * options.seconds - 15]
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu", *map(str, flags), "--part"]
    folder = Path(tempfile.mkdtemp())
    processes = []
    for k in range(workers):
        with (folder / f"{k}").open("w") as file:
            part = [*command, f"{k}/{workers}"]
            processes.append(subprocess.Popen(part, stdout=file, env=environment))
    end = time.monotonic() + COMPILING * options.seconds
    for process in processes:
        try:
            process.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines(True)]
    shutil.rmtree(folder)
    whole = [json.loads(x) for x in lines if x.startswith("{") and x.endswith("}\n")]
    return {found["case"]: Outcome(**found) for found in whole}


# ---- timing


class Clock:
    """Times calls in the queue that they go to."""

    def __init__(self, torch: Any, stream: Any) -> None:
        self.torch, self.stream = torch, stream

    def wall(self, run: Callable[[], Any], calls: int) -> float:
        """Seconds of a call, as Python sees it."""
        self.stream.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        self.stream.synchronize()
        return (time.perf_counter() - start) / calls

    def device(self, run: Callable[[], Any], calls: int, wall: float) -> float:
        """Seconds of a call on the device, which begins when all of them wait for it."""
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            self.torch.cuda._sleep(int(2e9 * min(0.02, 1.2 * calls * wall)))
            first.record(self.stream)
        for _ in range(calls):
            run()
        last.record(self.stream)
        self.stream.synchronize()
        return first.elapsed_time(last) / calls / 1e3


def timed(torch: Any, case: Case, outcome: Outcome, with_inductor: bool, rounds: int) -> None:
    """Time a case, its contenders in turns."""
    import genesis
    from genesis import cuda

    theirs = arrays(torch, case, "cuda")
    ours = [genesis.from_dlpack(x) for x in theirs]
    recorded = genesis.jit(call(genesis, case))
    contenders: dict[str, tuple[Clock, Callable[[], Any]]] = {}
    here = Clock(torch, torch.cuda.current_stream())
    there = Clock(torch, torch.cuda.ExternalStream(cuda.current_stream().handle))
    eager = call(torch, case)
    contenders["eager"] = here, lambda: eager(*theirs)
    if with_inductor:
        fused = inductor(torch, case)
        contenders["inductor"] = here, lambda: fused(*theirs)
    contenders["genesis"] = there, lambda: recorded(*ours)
    calls = {}
    for name, (clock, run) in contenders.items():
        for _ in range(3):
            run()
        calls[name] = max(2, min(100, int(ROUND / clock.wall(run, 2))))
    for kind in ("wall", "device"):
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, (clock, run) in contenders.items():
                if kind == "wall":
                    times[name].append(clock.wall(run, calls[name]))
                else:
                    times[name].append(clock.device(run, calls[name], outcome.wall[name]))
        setattr(outcome, kind, {name: median(each) for name, each in times.items()})


def kernels(torch: Any, case: Case) -> list[str]:
    """The kernels of a case with the microseconds of each, those that take longest first."""
    import genesis

    ours = [genesis.from_dlpack(x) for x in arrays(torch, case, "cuda")]
    recorded = genesis.jit(call(genesis, case))
    for _ in range(2):
        recorded(*ours)
    with genesis.profile() as profile:
        recorded(*ours)
    return [
        f"{k.name}{' called' * (k.kind == 'host')} {1e6 * k.seconds:.0f}" for k in profile.kernels()
    ]


@dataclass(frozen=True)
class Roof:
    """Bytes and operations of a second that this GPU reaches."""

    copy: float
    flops: dict[str, float]

    def floor(self, case: Case, outcome: Outcome) -> tuple[float, str]:
        """Seconds that a case takes at least, and what they go to."""
        moving = outcome.nbytes / self.copy
        computing = case.flops / self.flops[case.dtype]
        return max((moving, "bytes"), (computing, "operations"))

    def reason(self, case: Case, outcome: Outcome) -> str:
        """Why a case takes as long as it does."""
        floor, bound = self.floor(case, outcome)
        device, wall = outcome.device["genesis"], outcome.wall["genesis"]
        of_floor = f"{100 * floor / device:.0f} % of what its {bound} allow"
        if any(" called " in name for name in outcome.kernels):
            return f"a library that is called, step by step; {of_floor}"
        if wall > 1.5 * device:
            return f"starting it: the device needs {1e6 * device:.0f} of {1e6 * wall:.0f} us"
        count = len(outcome.kernels)
        return f"{count} kernel{'s' * (count != 1)}, {of_floor}"


def roof(torch: Any) -> Roof:
    """Measured by a copy, and by PyTorch's products."""
    clock = Clock(torch, torch.cuda.current_stream())

    def shortest(run: Callable[[], Any]) -> float:
        run()
        return min(clock.device(run, 10, 1e-4) for _ in range(3))

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / shortest(lambda: target.copy_(source))
    flops = {}
    for dtype in TOLERANCE:
        n = 8192 if dtype != "float32" else 4096
        x = torch.randn(n, n, device="cuda", dtype=getattr(torch, dtype))
        flops[dtype] = 2 * n**3 / shortest(lambda x=x: x @ x)
    return Roof(copy, flops)


def sweep(options: argparse.Namespace) -> None:
    """Draw, compile, time and write the page."""
    start = time.monotonic()
    cases = drawn(options.seed, options.cases)
    found = compiled(options)
    print(f"{len(found)} of {len(cases)} cases compiled in {time.monotonic() - start:.0f} s")
    import torch

    from genesis import cuda

    exact(torch)
    limits = roof(torch)
    for k, outcome in sorted(found.items()):
        if time.monotonic() - start > options.seconds - 25:
            break
        if not outcome.fault:
            try:
                with_inductor = compiled_by_inductor(k, options.inductor)
                timed(torch, cases[k], outcome, with_inductor, options.rounds)
            except Exception as error:
                outcome.wall = {}
                outcome.fault = f"{type(error).__name__}: {str(error)[:200]}"
        print(line(cases[k], outcome), flush=True)
        torch.cuda.empty_cache()
        cuda.empty_cache()
    done = [outcome for outcome in found.values() if outcome.wall]
    slowest = sorted(done, key=lambda outcome: outcome.ratio("wall"))[:WORST]
    for outcome in slowest:
        if time.monotonic() - start < options.seconds:
            outcome.kernels = kernels(torch, cases[outcome.case])
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found.values()]))
    command = f"python -m benchmarks.gpu --sweep --seed {options.seed} --cases {options.cases}"
    command += f" --seconds {options.seconds:.0f} --inductor {options.inductor}"
    text = page(cases, list(found.values()), slowest, limits, command, cuda.get_device_name())
    options.output.write_text(text)
    print(text[: text.index("## All")])


def line(case: Case, outcome: Outcome) -> str:
    """A case on one line."""
    if not outcome.wall:
        return f"{case} | {outcome.fault or 'not timed'}"
    wrong = f" WRONG {outcome.error:.1e}" * (outcome.error > tolerance(case))
    parts = [f"{case}{wrong}"]
    for times in (outcome.wall, outcome.device):
        cells = (times.get(name) for name in ("eager", "inductor", "genesis"))
        parts.append(" ".join("-" if t is None else f"{1e6 * t:.0f}" for t in cells))
    return " | ".join([*parts, f"{outcome.ratio('wall'):.2f}", f"{outcome.ratio('device'):.2f}"])


def summary(ratios: Sequence[float]) -> list[str]:
    """Geometric mean, tenth percentile, and the least."""
    ordered = sorted(ratios)
    mean = exp(sum(map(log, ordered)) / len(ordered))
    return [f"{x:.2f}" for x in (mean, ordered[len(ordered) // 10], ordered[0])]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, of which the first is the head, in Markdown."""
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))


def page(cases: Sequence[Case], found: list[Outcome], slowest: list[Outcome], limits: Roof,
         command: str, device: str) -> str:  # fmt: skip
    """All that was found, worst cases first."""
    done = [outcome for outcome in found if outcome.wall]
    wrong = [o for o in done if o.error > tolerance(cases[o.case])]
    broken = [o for o in found if o.fault]
    families = sorted({cases[o.case].family for o in done})
    groups = {"all": done} | {f: [o for o in done if cases[o.case].family == f] for f in families}
    head = ["family", "cases", "wall: mean", "tenth", "worst", "device: mean", "tenth", "worst"]
    rows = [head]
    for name, group in groups.items():
        each = [summary([o.ratio(kind) for o in group]) for kind in ("wall", "device")]
        rows.append([name, str(len(group)), *each[0], *each[1]])
    worst = [["case", "wall", "device", "why", "kernels, us each"]]
    for o in slowest:
        names = ", ".join(o.kernels[:6]) + (" .." if len(o.kernels) > 6 else "")
        ratios = [f"{o.ratio(kind):.2f}" for kind in ("wall", "device")]
        worst.append([str(cases[o.case]), *ratios, limits.reason(cases[o.case], o), names])
    faults = "".join(f"- {cases[o.case]}: {o.fault}\n" for o in broken)
    errors = "".join(f"- {cases[o.case]}: {o.error:.1e}\n" for o in wrong)
    rates = ", ".join(f"{rate / 1e12:.0f} TFLOP/s in {kind}" for kind, rate in limits.flops.items())
    doc = (__doc__ or "").split("``.", 1)[1].strip()
    every = [line(cases[o.case], o) for o in sorted(found, key=lambda o: o.case)]
    return (
        f"# Sweep on {device}\n\n`{command}` on {date.today()}, Python "
        f"{platform.python_version()}.\n{doc}\n\nA copy moves {limits.copy / 1e12:.2f} TB/s here, "
        f"PyTorch multiplies {rates}.\n\n{table(rows)}\n\n"
        f"## The slowest\n\n{table(worst)}\n\n"
        f"## Wrong: {len(wrong)}\n\n{errors}\n## Failed: {len(broken)}\n\n{faults}\n"
        "## All\n\nus of eager, Inductor and Genesis, wall and device; ratios of both.\n\n```\n"
        + "\n".join(every)
        + "\n```\n"
    )
