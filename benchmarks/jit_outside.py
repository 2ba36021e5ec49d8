"""What it costs to leave loss and optimizer outside of `jit`: ``python -m benchmarks.jit_outside``.

Contenders are a whole training step under `genesis.jit`, ``genesis.jit(model)`` with the loss, its
gradient and the optimizer's step outside, and no `jit` at all. They take turns in one process, and
figures are medians over the rounds; those of processor time count both threads. A
step's loss is asked for, as a loop that prints it does.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

os.environ.setdefault("GENESIS_NUM_THREADS", "2")

import numpy as np

import genesis
from genesis import nn, optim

Step = Callable[[], float]
CONTENDERS = ("whole", "model", "eager")


class LSTM(nn.Module):
    """A layer of LSTM, and classes from its last state."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        """The scores of the classes."""
        return self.head(self.lstm(x)[0][:, -1])


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(width: int, pixels: int) -> nn.Module:
    """Two blocks of convolutions."""

    def block(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

    return nn.Sequential(
        *block(1, width), *block(width, width), nn.MaxPool2d(2),
        *block(width, 2 * width), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * (pixels // 4) ** 2, 10),
    )  # fmt: skip


def transformer(width: int, layers: int, vocabulary: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(vocabulary, width),
        nn.TransformerEncoder(layer, layers),
        nn.Linear(width, vocabulary),
    )


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def integers(high: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, high, shape)


#: What makes a model, and a batch: what goes in and the classes that should come out.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, Any]]]] = {
    "mlp small": (lambda: mlp(64, 128, 10), lambda: (floats(64, 64), integers(10, 64))),
    "mlp": (lambda: mlp(784, 512, 512, 10), lambda: (floats(128, 784), integers(10, 128))),
    "cnn small": (lambda: cnn(8, 8), lambda: (floats(32, 1, 8, 8), integers(10, 32))),
    "cnn": (lambda: cnn(32, 8), lambda: (floats(64, 1, 8, 8), integers(10, 64))),
    "lstm small": (lambda: LSTM(16, 32), lambda: (floats(16, 16, 16), integers(10, 16))),
    "lstm": (lambda: LSTM(64, 128), lambda: (floats(32, 32, 64), integers(10, 32))),
    "transformer small": (
        lambda: transformer(64, 1, 100), lambda: (integers(100, 4, 32), integers(100, 4, 32)),
    ),
    "transformer": (
        lambda: transformer(128, 2, 1000), lambda: (integers(1000, 8, 64), integers(1000, 8, 64)),
    ),
}  # fmt: skip


def prepared(contender: str, name: str, optimizer: str) -> Step:
    """A training step that gives its loss."""
    genesis.manual_seed(0)
    make, batch = CASES[name]
    net = make()
    update = getattr(optim, optimizer)(net.parameters(), 1e-3)
    x, y = map(genesis.tensor, batch())
    forward = genesis.jit(net) if contender == "model" else net

    def step(x: Any, y: Any) -> Any:
        update.zero_grad()
        scores = forward(x)
        if scores.ndim == 3:
            scores = scores.transpose(1, 2)
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        update.step()
        return loss

    chosen: Any = genesis.jit(step) if contender == "whole" else step
    return lambda: float(chosen(x, y).item())


def compare(name: str, optimizer: str, rounds: int) -> str:
    """A line of the table."""
    steps = {c: prepared(c, name, optimizer) for c in CONTENDERS}
    losses = {c: [step() for _ in range(5)] for c, step in steps.items()}
    np.testing.assert_allclose(losses["model"], losses["eager"], 1e-5)
    wall: dict[str, list[float]] = {c: [] for c in CONTENDERS}
    cpu: dict[str, list[float]] = {c: [] for c in CONTENDERS}
    began = time.perf_counter()
    steps["whole"]()
    calls = max(1, round(0.02 / (time.perf_counter() - began)))
    for _ in range(rounds):
        for c, step in steps.items():
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                step()
            wall[c].append((time.perf_counter() - begin) / calls * 1e3)
            cpu[c].append((time.process_time() - begin_cpu) / calls * 1e3)
    whole, model, eager = (median(wall[c]) for c in CONTENDERS)
    processor = [median(cpu[c]) for c in CONTENDERS]
    return (
        f"| {name} | {optimizer} | {whole:.3f} | {model:.3f} | {eager:.3f} | {whole / model:.2f} | "
        f"{model - whole:.3f} | {processor[0]:.3f} | {processor[1]:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--optimizer", default="Adam")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    columns = "whole ms | model ms | eager ms | ratio | more ms | whole cpu ms | model cpu ms"
    print(f"| case | optimizer | {columns} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.cases:
        print(compare(name, options.optimizer, options.rounds), flush=True)


if __name__ == "__main__":
    main()
