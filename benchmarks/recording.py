"""What watching adds to recording: ``python -m benchmarks.recording``.

A function is recorded again and again, its program known: once as `genesis.jit` does, once with
nobody watching what its Python code reads and writes, and so without most guards. The two take
turns; figures are the least processor time of all rounds, on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("GENESIS_NUM_THREADS", "1")

import genesis
from benchmarks.jit_outside import cnn, floats, integers, mlp, training_step, transformer
from genesis import nn, optim
from genesis.ndarray.tracing import bytecode_tracer


class Unrolled(nn.Module):
    """A cell of LSTM, called by a Python loop."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = nn.LSTMCell(width, hidden)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        """The scores of the classes after the last step."""
        h = c = genesis.zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


#: What makes a model, and a batch: what goes in and the classes that should come out.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, Any]]]] = {
    "mlp": (lambda: mlp(64, 128, 128, 10), lambda: (floats(64, 64), integers(10, 64))),
    "cnn": (lambda: cnn(8, 8), lambda: (floats(32, 1, 8, 8), integers(10, 32))),
    "lstm": (lambda: Unrolled(16, 32), lambda: (floats(16, 50, 16), integers(10, 16))),
    "transformer": (
        lambda: transformer(64, 1, 100), lambda: (integers(100, 4, 32), integers(100, 4, 32)),
    ),
}  # fmt: skip
KINDS = ("inference", "forward", "step")


def prepared(name: str, kind: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of a model, and arguments."""
    make, batch = MODELS[name]
    net = make()
    update = optim.Adam(net.parameters(), 1e-3)
    x, y = map(genesis.tensor, batch())

    def inference(x: Any) -> Any:
        with genesis.no_grad():
            return net(x)

    if kind == "step":
        return training_step(net, update), (x, y)
    return (net if kind == "forward" else inference), (x,)


@contextmanager
def unwatched() -> Iterator[None]:
    """Record without watching in the ``with`` block."""

    @contextmanager
    def nobody(*_: Any) -> Iterator[None]:
        yield

    before, bytecode_tracer.watched = bytecode_tracer.watched, nobody
    try:
        yield
    finally:
        bytecode_tracer.watched = before


def recorded(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Milliseconds of processor time that a recording takes."""
    jitted = genesis.jit(function)
    began = time.process_time()
    jitted.recording(*args)
    return (time.process_time() - began) * 1e3


def compare(name: str, kind: str, rounds: int) -> tuple[float, float]:
    """Milliseconds that a recording takes, and that it takes unwatched."""
    function, args = prepared(name, kind)
    genesis.jit(function)(*args)
    watched_times, unwatched_times = [], []
    for _ in range(rounds):
        watched_times.append(recorded(function, args))
        with unwatched():
            unwatched_times.append(recorded(function, args))
    return min(watched_times), min(unwatched_times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print("| model | function | recorded ms | unwatched ms | ratio |")
    print("|---|---|---|---|---|")
    for name in options.models:
        for kind in KINDS:
            with_watch, without = compare(name, kind, options.rounds)
            print(
                f"| {name} | {kind} | {with_watch:.2f} | {without:.2f} | "
                f"{with_watch / without:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
