"""Images and words in one space: contrastive training of two encoders.

    genesis train contrastive

One network turns a picture of a digit into a vector, another a caption such as "a slanted seven";
both are trained so that a pair that belongs together is nearer than every other pair of the batch,
in both directions (Radford et al., 2021). Nobody tells the networks what a class is. Afterwards a
picture is read by asking which of ten captions is nearest: classification without a classifier.
"""

from __future__ import annotations

import numpy as np

import genesis
from genesis import nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HOW = ("a {}", "the digit {}", "a picture of a {}", "{}", "somebody wrote {}", "this is a {}")
LETTERS = " abcdefghijklmnopqrstuvwxyz"
LENGTH, WIDTH, BATCH = 24, 48, 64


def caption(word: str, how: str) -> list[int]:
    """A caption as numbers of letters, filled up with blanks."""
    text = how.format(word).ljust(LENGTH)[:LENGTH]
    return [LETTERS.index(c) for c in text]


class Seer(nn.Module):
    """From pictures to vectors of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(), nn.Flatten(), nn.Linear(512, WIDTH),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 1, 8, 8)`` to ``(batch, width)``."""
        found: Tensor = F.normalize(self.layers(images), dim=-1)
        return found


class Reader(nn.Module):
    """From captions to vectors of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), WIDTH)
        self.near = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        """``(batch, length)`` to ``(batch, width)``."""
        x = F.relu(self.near(self.letter(text).transpose(1, 2)))
        found: Tensor = F.normalize(self.leave(x.amax(-1)), dim=-1)
        return found


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train; how many held-out pictures are nearest to the caption of their digit."""
    genesis.manual_seed(seed)
    rng = np.random.default_rng(seed)
    images, labels = digits("train")
    images = images.float()[:, None] / 16
    seer, reader = Seer(), Reader()
    scale = nn.Parameter(genesis.tensor(2.0))  # the logarithm of one over the temperature
    optimizer = optim.Adam([*seer.parameters(), *reader.parameters(), scale], lr=2e-3)
    table = genesis.tensor([[caption(word, how) for how in HOW] for word in WORDS])
    numbers = labels.numpy()

    @genesis.jit
    def step(chosen: Tensor, how: Tensor) -> Tensor:
        seen, read = seer(images[chosen]), reader(table[labels[chosen], how])
        scores = seen @ read.T * scale.exp().clamp(max=50.0)
        # Pictures of the same digit fit each other's captions: they share the right answer.
        same = (labels[chosen][:, None] == labels[chosen][None]).float()
        wanted = same / same.sum(1, keepdim=True)
        loss: Tensor = (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        chosen = rng.integers(0, len(numbers), BATCH)
        loss = step(genesis.tensor(chosen), genesis.tensor(rng.integers(0, len(HOW) - 1, BATCH)))
        if k % 100 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)
    others, answers = digits("test")
    with genesis.no_grad():
        seen = seer(others.float()[:, None] / 16)
        nearest = (seen @ reader(table[:, -1]).T).argmax(1)  # a wording that was never shown
    for k in range(3):
        print(f"picture of {answers[k].item()}: {HOW[-1].format(WORDS[nearest[k].item()])!r}")
    return {"right": (nearest == answers).float().mean().item(), "by chance": 0.1}
