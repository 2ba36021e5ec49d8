"""Training steps on ``torch.device("genesis")`` against the same steps on PyTorch's CPU device.

``python -m benchmarks.torch_device [cnn|transformer] [--steps N]`` trains both from the same state,
taking turns, and prints the median time of a step after the warm-up and the losses of the last.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import genesis.torch  # noqa: F401


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for name in options.cases:
        make, batch = CASES[name]
        torch.manual_seed(0)
        model = make()
        steps = {d: training(copy.deepcopy(model), d) for d in ("cpu", "genesis")}
        seconds: dict[str, list[float]] = {d: [] for d in steps}
        losses = dict.fromkeys(steps, 0.0)
        for k in range(options.steps + 3):
            x, y = batch()
            for device, step in steps.items():
                start = time.perf_counter()
                losses[device] = step(x, y)
                if k >= 3:
                    seconds[device].append(time.perf_counter() - start)
                else:
                    print(f"  {device} step {k}: {time.perf_counter() - start:.2f} s", flush=True)
        times = {d: statistics.median(s) * 1000 for d, s in seconds.items()}
        print(
            f"{name}: cpu {times['cpu']:.1f} ms, genesis {times['genesis']:.1f} ms a step, "
            f"{times['cpu'] / times['genesis']:.2f}x; losses {losses}"
        )


if __name__ == "__main__":
    main()
