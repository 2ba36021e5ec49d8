"""Training steps on ``torch.device("genesis")`` against the same steps on PyTorch's CPU device.

``python -m benchmarks.torch_device [cnn] [transformer] [--steps N]`` trains on either from the same
state, each in a process of its own, taking turns, and prints the median time of a step after the
warm-up and the last loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import genesis.torch  # noqa: F401 - makes the device known


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """A block of a transformer, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A language model of four blocks."""

    def __init__(self, words: int = 1000, width: int = 256, length: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the next word."""
        scores = self.head(self.norm(self.blocks(self.words(x) + self.places)))
        return scores.transpose(1, 2)


def cnn_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))


def transformer_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 1000, (8, 128)), torch.randint(0, 1000, (8, 128))


WARM_UP = 3
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]]
CASES = {"cnn": (cnn, cnn_batch), "transformer": (Transformer, transformer_batch)}


def training(model: nn.Module, device: str) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """A function that does one step and gives the loss."""
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def measured(name: str, device: str, steps: int) -> dict[str, float]:
    """What a process of its own measures: milliseconds of a step and the first, the last loss."""
    make, batch = CASES[name]
    torch.manual_seed(0)
    step = training(make(), device)
    seconds = []
    loss = 0.0
    for _ in range(steps + WARM_UP):
        x, y = batch()
        start = time.perf_counter()
        loss = step(x, y)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[WARM_UP:])
    return {"step": 1000 * median, "first": 1000 * seconds[0], "loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", help="measure one device in this process")
    options = parser.parse_args()
    if options.device:
        print(json.dumps(measured(options.cases[0], options.device, options.steps)))
        return
    for name in options.cases:
        found: dict[str, list[dict[str, float]]] = {"cpu": [], "genesis": []}
        for _ in range(options.rounds):
            for device, results in found.items():
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.torch_device", name]
                command += ["--steps", str(options.steps), "--device", device]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
        times = {d: statistics.median(r["step"] for r in results) for d, results in found.items()}
        losses = {d: results[-1]["loss"] for d, results in found.items()}
        print(
            f"{name}: cpu {times['cpu']:.1f} ms, genesis {times['genesis']:.1f} ms a step, "
            f"{times['cpu'] / times['genesis']:.2f}x; first step {found['genesis'][0]['first']:.0f}"
            f" ms; losses {losses}",
            flush=True,
        )


if __name__ == "__main__":
    main()
