"""The same digits on other paper: domain adaptation without a single label for the other.

    genesis train adaptation

A network learns to read digits with ink on clean paper, for which there are labels. It is to read
them pale on stained paper, lit from one side, where there are none. Two remedies, one on top of
the other: batch norms take the statistics of the paper they are used on (Li et al., 2016), and the
network teaches itself on those images of the other paper that it is already sure of (Lee, 2013).
"""

from __future__ import annotations

import genesis
from genesis import nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

BATCH = 64
STAIN = 0.2
SURE = 0.9


def reader() -> nn.Sequential:
    """From an image to scores for ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def other_paper(images: Tensor) -> Tensor:
    """Pale on grey, shaded from one side to the other, and stained."""
    count = len(images)
    tilt = genesis.randn(count, 1, 1, 1) * genesis.linspace(-0.5, 0.5, 8)
    stains = F.interpolate(genesis.randn(count, 1, 4, 4), scale_factor=2, mode="nearest")
    found: Tensor = 0.5 + images * 0.6 + tilt + STAIN * stains
    return found


def right(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that are read rightly."""
    with genesis.no_grad():
        share: float = (model(images).argmax(1) == labels).float().mean().item()
    return share


def fit(model: nn.Module, steps: int, images: Tensor, labels: Tensor) -> None:
    """Train on images with labels."""
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @genesis.jit
    def step() -> Tensor:
        chosen = genesis.randint(0, len(images), (BATCH,))
        loss: Tensor = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        step()


def teach_itself(
    model: nn.Module, steps: int, images: Tensor, labels: Tensor, others: Tensor
) -> None:
    """Go on with both kinds of paper: labels where they are, the model's own where it is sure."""
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @genesis.jit
    def step() -> Tensor:
        chosen, drawn = (genesis.randint(0, len(x), (BATCH,)) for x in (images, others))
        loss: Tensor = F.cross_entropy(model(images[chosen]), labels[chosen])
        shown = others[drawn]
        chances, guesses = F.softmax(model(shown).detach(), -1).max(-1)
        shaken = shown + 0.1 * genesis.randn_like(shown)
        each = F.cross_entropy(model(shaken), guesses, reduction="none")
        loss = loss + ((chances > SURE) * each).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        step()


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train on one paper, then adapt; what is read of held-out digits on the other."""
    genesis.manual_seed(seed)
    (images, labels), (others, answers) = digits("train"), digits("test")
    images, others = (x.float()[:, None] / 16 for x in (images, others))
    half = len(images) // 2
    target, trial = other_paper(images[half:]), other_paper(others)
    model = reader()
    fit(model, steps, images[:half], labels[:half])
    model.eval()
    found = {
        "own paper": right(model, others, answers),
        "other paper": right(model, trial, answers),
    }
    model.train()  # norms take the statistics of what they are given
    found["with its statistics"] = right(model, trial, answers)
    teach_itself(model, 2 * steps, images[:half], labels[:half], target)
    found["and teaching itself"] = right(model, trial, answers)
    for name, share in found.items():
        print(f"{name:20} {share:6.1%}")
    return found
