"""Train one small network on several processes, divided in three ways, with the losses of one.

    genesis launch -n 2 examples/distributed.py

It learns to guess the next letter of Python's own sources. The training step is that of one
process. What differs between the ways is one call of `place`; the compiler divides the step, and
what it lets processes exchange is shown. Without a launcher the script runs on one process.
"""

import argparse
import string
from pathlib import Path

import numpy as np

import genesis
import genesis.distributed as gd
from genesis import nn, optim

LETTERS = string.printable
CONTEXT, WIDTH, HIDDEN, BATCH = 8, 32, 256, 128


class Guesser(nn.Module):
    """Eight letters in, scores of the next one out."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.fc1 = nn.Linear(CONTEXT * WIDTH, HIDDEN)
        self.dropout = nn.Dropout(0.1)
        self.fc2 = nn.Linear(HIDDEN, len(LETTERS))

    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        """Scores for every letter."""
        hidden = nn.functional.gelu(self.fc1(self.letters(x).flatten(1)))
        return self.fc2(self.dropout(hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="training steps (100)")
    options = parser.parse_args()
    ways = {
        "data parallel": ({"dp": -1}, {}),
        "ZeRO-3": ({"dp": -1}, {"dp": gd.zero(3)}),
        "tensor parallel": ({"tp": -1}, {"tp": gd.megatron}),
    }
    for title, (axes, rules) in ways.items():
        train(title, gd.mesh(**axes), rules, options.steps)


def train(title: str, mesh: gd.Mesh, rules: dict[str, gd.Rule], steps: int) -> None:
    genesis.manual_seed(0)
    model = Guesser()
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    gd.place(model, optimizer, mesh, **rules)

    @genesis.jit
    def step(x: genesis.Tensor, y: genesis.Tensor) -> genesis.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    text = np.array([LETTERS.find(c) % len(LETTERS) for c in Path(string.__file__).read_text()])
    windows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)
    random = np.random.default_rng(0)
    for k in range(steps):
        # Every process draws the whole batch, and gives the rows that are its own.
        rows = windows[random.integers(0, len(windows), BATCH)][mesh.rows(BATCH)]
        x, y = mesh.batch(rows[:, :-1].copy()), mesh.batch(rows[:, -1].copy())
        if k == 0:
            exchanges = genesis.explain(step, x, y).calls
        loss = step(x, y)
        if mesh.rank == 0 and k in (0, steps // 2, steps - 1):
            print(f"{title:16} step {k:4}: loss {loss.item():.5f}", flush=True)
    if mesh.rank == 0:
        count, total = len(exchanges), sum(call.nbytes for call in exchanges)
        print(f"{title:16} {count} exchanges in a step, {total / 1e3:.0f} kB\n", flush=True)


if __name__ == "__main__":
    main()
