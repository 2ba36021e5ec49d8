"""Time PyTorch models side by side: eager, Inductor and ``torch.compile(backend="genesis")``.

``python -m benchmarks.torch_compile`` gives each contender a process of its own; they take turns,
and a figure is the median over the rounds. The first call is timed in a fresh process with empty
caches, the warm start in a second process that finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.torch_models import MODELS
from benchmarks.worker import THREADS, Worker, seconds_per_call

RESULTS = Path(__file__).parent / "results" / "torch_compile.md"
CONTENDERS = ("eager", "inductor", "genesis")
MODULE = "benchmarks.torch_compile"


def serve(contender: str, model: str) -> None:
    """The worker's end: answer requests for the first call and for the time of some calls."""
    import torch

    import genesis.torch  # noqa: F401

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    compiled = (lambda m: m) if contender == "eager" else torch.compile(backend=contender)
    run = MODELS[model](compiled)
    started = time.perf_counter()
    result = run()
    first = time.perf_counter() - started
    for line in sys.stdin:
        match json.loads(line):
            case ["version"]:
                answer: object = torch.__version__
            case ["first"]:
                answer = [first, result]
            case ["time", int(calls)]:
                answer = seconds_per_call(run, calls)
        print(json.dumps(answer), flush=True)


def first_calls(model: str, contender: str, folder: str) -> list[float]:
    """Seconds of the first call in a process with empty caches, and in the next one."""
    environment = {
        **os.environ,
        "GENESIS_CACHE": f"{folder}/genesis",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{contender}",
    }
    command = [sys.executable, "-m", MODULE, "--serve", contender, model]
    seconds = []
    for _ in range(2):
        done = subprocess.run(
            command,
            env=environment,
            input='["first"]\n',
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(json.loads(done.stdout)[0])
    return seconds


def compare(model: str, rounds: int, folder: str) -> str:
    """A line of the table."""
    starts = {c: first_calls(model, c, folder) for c in ("inductor", "genesis")}
    workers = {c: Worker(c, model, "--serve", module=MODULE) for c in CONTENDERS}
    results = [worker.ask("first")[1] for worker in workers.values()]
    if max(results) - min(results) > 1e-2 * max(map(abs, results)):
        raise SystemExit(f"{model}: results differ: {results}")
    times: dict[str, list[float]] = {c: [] for c in CONTENDERS}
    for number in range(rounds + 1):
        for contender, worker in workers.items():
            time.sleep(0.05)  # the others' threads fall asleep
            seconds = worker.ask("time", 3)
            if number:
                times[contender].append(seconds)
    for worker in workers.values():
        worker.close()
    eager, inductor, genesis = (median(times[c]) * 1e3 for c in CONTENDERS)
    (cold_i, warm_i), (cold_g, warm_g) = starts["inductor"], starts["genesis"]
    return (
        f"| {model} | {eager:.1f} | {inductor:.1f} | {genesis:.1f} | {eager / genesis:.2f} | "
        f"{inductor / genesis:.2f} | {cold_i:.1f} | {cold_g:.1f} | {warm_i:.1f} | {warm_g:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.models)
        return
    lines = [
        "| model | eager ms | Inductor ms | Genesis ms | to eager | to Inductor "
        "| first s, Inductor | first s | warm s, Inductor | warm s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            lines.append(compare(model, options.rounds, folder))
            print(lines[-1], flush=True)
    if options.models == list(MODELS):
        load = os.getloadavg()[0]
        RESULTS.write_text(
            "# PyTorch models: eager, Inductor, Genesis\n\n"
            f"`python -m benchmarks.torch_compile`, {date.today()}, {THREADS} threads, float32. A "
            "ratio above 1 means that Genesis is faster. The first call is of a process with empty "
            f"caches, the warm one of the next. Load average at the end: {load:.1f}.\n\n"
            + "\n".join(lines)
            + "\n"
        )


if __name__ == "__main__":
    main()
