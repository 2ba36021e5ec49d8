"""Training loops without jit, beside PyTorch's: ``python -m benchmarks.plain``.

Every loop is written once, for both libraries. They take turns in one process, a few steps each,
and the median of many turns counts. Time is that of the processor, of all threads of the process,
so that what else the machine does matters little; ``--threads`` sets how many both use.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import genesis
from benchmarks.cpu import processor

PAGE = Path(__file__).parent / "results" / "plain.md"

Step = Callable[[], float]


def _trained(lib: Any, model: Any, loss: Callable[[], Any]) -> Step:
    """Steps of Adam."""
    optimizer = lib.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        found = loss()
        found.backward()
        optimizer.step()
        return float(found.item())

    return step


def _classes(lib: Any, count: int, most: int) -> Any:
    return lib.arange(count) % most


def mlp(lib: Any, size: int) -> Step:
    """Three linear layers, cross entropy"""
    nn = lib.nn
    model = nn.Sequential(
        nn.Linear(64, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10)
    )
    x, y = lib.randn(32, 64), _classes(lib, 32, 10)
    return _trained(lib, model, lambda: nn.functional.cross_entropy(model(x), y))


def cnn(lib: Any, size: int) -> Step:
    """Two convolutions with batch norm and pooling"""
    nn = lib.nn
    model = nn.Sequential(
        nn.Conv2d(1, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(size, 2 * size, 3, padding=1), nn.BatchNorm2d(2 * size), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(98 * size, 10),
    )  # fmt: skip
    x, y = lib.randn(16, 1, 28, 28), _classes(lib, 16, 10)
    return _trained(lib, model, lambda: nn.functional.cross_entropy(model(x), y))


def lstm(lib: Any, size: int) -> Step:
    """A cell called for each of 20 steps"""
    cell, head = lib.nn.LSTMCell(32, size), lib.nn.Linear(size, 10)
    x, y = lib.randn(20, 16, 32), _classes(lib, 16, 10)

    def loss() -> Any:
        state = None
        for t in range(20):
            state = cell(x[t], state)
        return lib.nn.functional.cross_entropy(head(state[0]), y)  # type: ignore[index]

    return _trained(lib, lib.nn.ModuleList([cell, head]), loss)


def sequence_to_sequence(lib: Any, size: int) -> Step:
    """A GRU that reads, a GRU cell that writes 12 steps with attention"""
    nn = lib.nn
    table, encoder, cell = nn.Embedding(50, size), nn.GRU(size, size), nn.GRUCell(size, size)
    head = nn.Linear(2 * size, 50)
    source = lib.arange(15 * 8).reshape(15, 8) % 50
    target = lib.arange(12 * 8).reshape(12, 8) % 50

    def loss() -> Any:
        seen, last = encoder(table(source))
        keys, state, total = seen.permute(1, 2, 0), last[0], 0.0
        for t in range(12):
            state = cell(table(target[t]), state)
            weights = lib.softmax(lib.matmul(state.unsqueeze(1), keys), -1)
            found = lib.matmul(weights, seen.transpose(0, 1)).squeeze(1)
            scores = head(lib.cat([state, found], 1))
            total = total + nn.functional.cross_entropy(scores, target[t])
        return total

    return _trained(lib, nn.ModuleList([table, encoder, cell, head]), loss)


def transformer(lib: Any, size: int) -> Step:
    """Two encoder layers with dropout"""
    nn = lib.nn
    layers = [nn.TransformerEncoderLayer(size, 4, 2 * size, 0.1, batch_first=True) for _ in "12"]
    model = nn.Sequential(*layers, nn.Linear(size, 10))
    x, y = lib.randn(8, 16, size), _classes(lib, 8, 10)
    return _trained(lib, model, lambda: nn.functional.cross_entropy(model(x).mean(1), y))


def gan(lib: Any, size: int) -> Step:
    """A generator and a discriminator in turns"""
    nn = lib.nn
    loss = nn.BCEWithLogitsLoss()
    g = nn.Sequential(nn.Linear(16, size), nn.ReLU(), nn.Linear(size, 32))
    d = nn.Sequential(nn.Linear(32, size), nn.LeakyReLU(0.2), nn.Linear(size, 1))
    of_g, of_d = (lib.optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.999)) for m in (g, d))
    real, one, zero = lib.randn(32, 32), lib.ones(32, 1), lib.zeros(32, 1)

    def step() -> float:
        fake = g(lib.randn(32, 16))
        of_d.zero_grad()
        wrong = loss(d(real), one) + loss(d(fake.detach()), zero)
        wrong.backward()
        of_d.step()
        of_g.zero_grad()
        caught = loss(d(fake), one)
        caught.backward()
        of_g.step()
        return float(wrong.item() + caught.item())

    return step


def maml(lib: Any, size: int) -> Step:
    """One step of gradients, differentiated, for each of 4 tasks"""
    functional = lib.nn.functional
    shapes = (size, 1), (size,), (size, size), (size,), (1, size), (1,)
    weights = [(lib.randn(*s) * 0.3).requires_grad_() for s in shapes]
    optimizer = lib.optim.Adam(weights, lr=1e-3)
    tasks = [(lib.randn(10, 1), lib.randn(10, 1)) for _ in range(4)]

    def loss(w: Any, x: Any, y: Any) -> Any:
        x = lib.relu(functional.linear(x, w[0], w[1]))
        x = lib.relu(functional.linear(x, w[2], w[3]))
        return ((functional.linear(x, w[4], w[5]) - y) ** 2).mean()

    def step() -> float:
        optimizer.zero_grad()
        total: Any = 0.0
        for x, y in tasks:
            inner = lib.autograd.grad(loss(weights, x, y), weights, create_graph=True)
            adapted = [w - 0.1 * g for w, g in zip(weights, inner, strict=True)]
            total = total + loss(adapted, x, y)
        total.backward()
        optimizer.step()
        return float(total.item())

    return step


def dqn(lib: Any, size: int) -> Step:
    """Act four times, learn once"""
    nn = lib.nn
    policy, target = (
        nn.Sequential(nn.Linear(4, size), nn.ReLU(), nn.Linear(size, 2)) for _ in range(2)
    )
    target.load_state_dict(policy.state_dict())
    optimizer = lib.optim.Adam(policy.parameters(), lr=1e-3)
    seen, after, reward = lib.randn(32, 4), lib.randn(32, 4), lib.randn(32)
    action = _classes(lib, 32, 2)

    def step() -> float:
        chosen = 0
        for k in range(4):
            with lib.no_grad():
                chosen += int(policy(seen[k]).argmax().item())
        value = policy(seen).gather(1, action.unsqueeze(1)).squeeze(1)
        with lib.no_grad():
            best = target(after).max(1)[0]
        loss = nn.functional.smooth_l1_loss(value, reward + 0.99 * best)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item()) + chosen

    return step


LOOPS: dict[str, tuple[Callable[[Any, int], Step], tuple[int, int]]] = {
    "MLP": (mlp, (128, 512)),
    "CNN": (cnn, (8, 24)),
    "LSTM": (lstm, (64, 256)),
    "sequence to sequence": (sequence_to_sequence, (32, 128)),
    "transformer": (transformer, (64, 192)),
    "GAN": (gan, (64, 512)),
    "MAML": (maml, (40, 160)),
    "DQN": (dqn, (64, 256)),
}


def compared(loop: Callable[[Any, int], Step], size: int, turns: int) -> tuple[float, float]:
    """Milliseconds of a step, here and with PyTorch."""
    import torch

    steps = []
    for lib in (genesis, torch):
        lib.manual_seed(0)  # type: ignore[no-untyped-call]
        steps.append(loop(lib, size))
    times: tuple[list[float], list[float]] = ([], [])
    for step in steps:
        for _ in range(6):
            step()
    for _ in range(turns):
        for step, found in zip(steps, times, strict=True):
            start = time.process_time()
            for _ in range(4):
                step()
            found.append((time.process_time() - start) / 4 * 1e3)
    return median(times[0]), median(times[1])


def main() -> None:
    """Print a table, and write the page if asked to."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", default="", help="part of a loop's name")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    chosen = parser.parse_args()
    genesis.set_num_threads(chosen.threads)
    torch.set_num_threads(chosen.threads)
    lines, ratios = [], []
    for name, (loop, sizes) in LOOPS.items():
        for kind, size in zip(("small", "medium"), sizes, strict=True):
            if chosen.only not in name:
                continue
            ours, theirs = compared(loop, size, chosen.turns)
            ratios.append(theirs / ours)
            lines.append(f"| {name} | {kind} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")
            print(lines[-1], flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.2f}, least {min(ratios):.2f}")
    if chosen.write:
        PAGE.write_text(_page(lines, mean, min(ratios), chosen.threads))


def _page(lines: list[str], mean: float, least: float, threads: int) -> str:
    docs = "\n".join(f"- {name}: {loop.__doc__}." for name, (loop, _) in LOOPS.items())
    table = "\n".join(lines)
    return f"""# Plain training loops

`python -m benchmarks.plain --threads {threads} --write` on {processor()}: milliseconds of processor
time of one step, without jit, beside PyTorch's eager mode; the median of turns in one process.
Geometric mean {mean:.2f}, least {least:.2f}.

{docs}

| loop | size | Genesis | PyTorch | PyTorch / Genesis |
|---|---|---|---|---|
{table}
"""


if __name__ == "__main__":
    main()
