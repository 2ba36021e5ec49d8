"""Time whole training steps side by side with PyTorch: ``python -m benchmarks.training``.

The models are written once, against `nn` of either library. Contenders are PyTorch eager, Genesis
as it is, and Genesis with the whole step (forward, backward, optimizer) under `genesis.jit`. Each
has a process of its own; they take turns, and a figure is the median over the rounds. Peak memory
is what a step takes on top of parameters, optimizer state and inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peak_memory import torch_peak
from benchmarks.worker import THREADS, Worker, seconds_per_call, version

RESULTS = Path(__file__).parent / "results" / "training.md"
CONTENDERS = ("torch", "genesis", "jit")


def mlp(nn: Any) -> Any:
    """784-512-512-10."""
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def cnn(nn: Any) -> Any:
    """Two blocks of convolutions for 8x8 digits, as the main job trains."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def transformer(nn: Any) -> Any:
    """Four encoder layers of width 256 over 128 tokens of a vocabulary of 1000."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 1000)
    )


def inputs(model: str) -> tuple[Any, Any]:
    """A batch: what goes in, and the classes that should come out."""
    rng = np.random.default_rng(0)
    if model == "mlp":
        return rng.standard_normal((128, 784)).astype(np.float32), rng.integers(0, 10, 128)
    if model == "cnn":
        return rng.standard_normal((64, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 64)
    tokens = rng.integers(0, 1000, (8, 129))
    return tokens[:, :-1], tokens[:, 1:]


MODELS: dict[str, Callable[[Any], Any]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def prepared(contender: str, model: str) -> tuple[Callable[[], float], Callable[[], int]]:
    """A training step that gives its loss, and what measures the peak memory of one."""
    x, y = inputs(model)
    library: Any
    if contender == "torch":
        import torch as library

        library.set_num_threads(THREADS)
    else:
        import genesis as library
    library.manual_seed(0)
    net = MODELS[model](library.nn)
    optimizer = library.optim.Adam(net.parameters(), 1e-3)
    x, y = library.tensor(x), library.tensor(y)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        scores = net(x)
        if model == "transformer":
            scores = scores.transpose(1, 2)
        loss = library.nn.functional.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss

    if contender == "jit":
        step = library.jit(step)

    def run() -> float:
        return float(step(x, y).item())

    return run, (lambda: torch_peak(run)) if contender == "torch" else (lambda: _peak(run))


def _peak(run: Callable[[], float]) -> int:
    import genesis

    before = genesis.memory.stats().live_bytes
    genesis.memory.reset_peak()
    run()
    return genesis.memory.stats().peak_live_bytes - before


def serve(contender: str, model: str) -> None:
    """The worker's end: answer requests as in `benchmarks.worker`, and for "peak"."""
    run, peak = prepared(contender, model)
    for _ in range(3):
        run()
    for line in sys.stdin:
        match json.loads(line):
            case ["version"]:
                answer: Any = version("torch" if contender == "torch" else "genesis")
            case ["time", int(calls)]:
                answer = seconds_per_call(run, calls)
            case ["peak"]:
                answer = peak()
        print(json.dumps(answer), flush=True)


def compare(model: str, rounds: int) -> str:
    """A line of the table."""
    module = "benchmarks.training"
    workers = {c: Worker(c, model, "--serve", module=module) for c in CONTENDERS}
    first = workers["torch"].ask("time", 1)
    count = max(1, round(0.1 / first))
    times: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    for _ in range(rounds):
        for contender, worker in workers.items():
            time.sleep(0.02)  # the others' threads fall asleep
            times[contender].append(worker.ask("time", count))
    peaks = {contender: worker.ask("peak") for contender, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    torch, plain, jit = (median(times[contender]) * 1e3 for contender in CONTENDERS)
    return (
        f"| {model} | {torch:.2f} | {plain:.2f} | {torch / plain:.2f} | {jit:.2f} | "
        f"{torch / jit:.2f} | {peaks['torch'] / 1e6:.1f} | {peaks['jit'] / 1e6:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.models)
        return
    lines = [
        "| model | PyTorch ms | Genesis ms | ratio | jit ms | ratio | PyTorch MB | jit MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for model in options.models:
        lines.append(compare(model, options.rounds))
        print(lines[-1], flush=True)
    if options.models == list(MODELS):
        load = os.getloadavg()[0]
        RESULTS.write_text(
            "# Training steps against PyTorch eager\n\n"
            f"`python -m benchmarks.training`, {date.today()}, {THREADS} threads, float32, Adam; a "
            "step is forward, backward and update. A ratio above 1 means that Genesis is faster. "
            f"Load average at the end: {load:.1f}.\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
