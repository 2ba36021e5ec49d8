"""What it costs to leave loss and optimizer outside of `jit`: ``python -m benchmarks.jit_outside``.

Contenders are a whole training step under `genesis.jit`, ``genesis.jit(model)`` with the loss, its
gradient and the optimizer's step outside, and no `jit` at all. They take turns in one process, on
one thread, and figures are medians of processor time over the rounds. A turn takes a tenth of a
second, so that the first steps after another contender, which find the caches cold, count for
little. A step's loss is asked for, as a loop that prints it does.

Outside, a step is several programs and not one, and Python goes from one to the next. What that
costs is measured with the same layers at sizes that leave nothing to compute: by how much the
second contender is slower there. `ratio` is that of the first two as they are, `without calls` what
it is when these calls are taken off.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("GENESIS_NUM_THREADS", "1")

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


class Case(NamedTuple):
    """What makes a model, and a batch: what goes in and the classes that should come out."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, Any]]


CASES = {
    "mlp small": Case(lambda: mlp(64, 128, 10), lambda: (floats(64, 64), integers(10, 64))),
    "mlp": Case(lambda: mlp(784, 512, 512, 10), lambda: (floats(128, 784), integers(10, 128))),
    "cnn small": Case(lambda: cnn(8, 8), lambda: (floats(32, 1, 8, 8), integers(10, 32))),
    "cnn": Case(lambda: cnn(32, 8), lambda: (floats(64, 1, 8, 8), integers(10, 64))),
    "lstm small": Case(lambda: LSTM(16, 32), lambda: (floats(16, 16, 16), integers(10, 16))),
    "lstm": Case(lambda: LSTM(64, 128), lambda: (floats(32, 32, 64), integers(10, 32))),
    "transformer small": Case(
        lambda: transformer(64, 1, 100), lambda: (integers(100, 4, 32), integers(100, 4, 32)),
    ),
    "transformer": Case(
        lambda: transformer(128, 2, 1000), lambda: (integers(1000, 8, 64), integers(1000, 8, 64)),
    ),
}  # fmt: skip
#: The same layers with next to nothing to compute.
EMPTY = {
    "mlp small": Case(lambda: mlp(1, 1, 10), lambda: (floats(1, 1), integers(10, 1))),
    "mlp": Case(lambda: mlp(1, 1, 1, 10), lambda: (floats(1, 1), integers(10, 1))),
    "cnn small": Case(lambda: cnn(1, 4), lambda: (floats(2, 1, 4, 4), integers(10, 2))),
    "cnn": Case(lambda: cnn(1, 4), lambda: (floats(2, 1, 4, 4), integers(10, 2))),
    "lstm small": Case(lambda: LSTM(1, 1), lambda: (floats(1, 1, 1), integers(10, 1))),
    "lstm": Case(lambda: LSTM(1, 1), lambda: (floats(1, 1, 1), integers(10, 1))),
    "transformer small": Case(
        lambda: transformer(4, 1, 2), lambda: (integers(2, 1, 2), integers(2, 1, 2))
    ),
    "transformer": Case(
        lambda: transformer(4, 2, 2), lambda: (integers(2, 1, 2), integers(2, 1, 2))
    ),
}


def training_step(forward: Callable[[Any], Any], update: optim.Optimizer) -> Callable[..., Any]:
    """A step of training a model that gives scores of classes, of one thing or of many in a row."""

    def step(x: Any, y: Any) -> Any:
        update.zero_grad()
        scores = forward(x)
        if scores.ndim == 3:
            scores = scores.transpose(1, 2)
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        update.step()
        return loss

    return step


def prepared(contender: str, case: Case, optimizer: str) -> Step:
    """A training step that gives its loss."""
    genesis.manual_seed(0)
    net = case.model()
    update = getattr(optim, optimizer)(net.parameters(), 1e-3)
    x, y = map(genesis.tensor, case.batch())
    step = training_step(genesis.jit(net) if contender == "model" else net, update)
    chosen: Any = genesis.jit(step) if contender == "whole" else step
    return lambda: float(chosen(x, y).item())


def timed(case: Case, optimizer: str, rounds: int) -> list[float]:
    """Milliseconds of processor time that a step of each contender takes."""
    steps = {c: prepared(c, case, optimizer) for c in CONTENDERS}
    losses = {c: [step() for _ in range(5)] for c, step in steps.items()}
    np.testing.assert_allclose(losses["model"], losses["eager"], 1e-5)
    times: dict[str, list[float]] = {c: [] for c in CONTENDERS}
    began = time.perf_counter()
    steps["whole"]()
    calls = max(1, round(0.1 / (time.perf_counter() - began)))
    for _ in range(rounds):
        for c, step in steps.items():
            begin = time.process_time()
            for _ in range(calls):
                step()
            times[c].append((time.process_time() - begin) / calls * 1e3)
    return [median(times[c]) for c in CONTENDERS]


def compare(name: str, optimizer: str, rounds: int) -> str:
    """A line of the table."""
    empty, empty_model, _ = timed(EMPTY[name], optimizer, rounds)
    whole, model, eager = timed(CASES[name], optimizer, rounds)
    calls = empty_model - empty
    return (
        f"| {name} | {optimizer} | {whole:.3f} | {model:.3f} | {eager:.3f} | {calls:.3f} | "
        f"{whole / model:.2f} | {whole / (model - calls):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--optimizer", default="Adam")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    columns = "whole ms | model ms | eager ms | calls ms | ratio | without calls"
    print(f"| case | optimizer | {columns} |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.cases:
        print(compare(name, options.optimizer, options.rounds), flush=True)


if __name__ == "__main__":
    main()
