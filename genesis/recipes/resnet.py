"""A residual network on small colour images, with the tricks of the speed runs.

    genesis train resnet

Images have CIFAR's shape, 3 by 32 by 32, and are drawn: ten textures, turned, tinted and lit at
random, in noise. The network is a narrow ResNet-9; what makes it learn in few steps is known from
the runs for speed on CIFAR (Page, 2019; Jordan, 2024): one large learning rate that rises and
falls, Nesterov's momentum without decay for norms and biases, smoothed labels, scaled-down scores,
random shifts and mirroring, and reading every image twice, the second time mirrored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

SIDE, CLASSES = 32, 10
BATCH = 64
Array = npt.NDArray[np.float32]


def textures(count: int, seed: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Images, and which of ten textures each is."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
    images = np.zeros((count, 3, SIDE, SIDE), np.float32)
    for image, label in zip(images, labels, strict=True):
        turn, phase = rng.uniform(0, np.pi), rng.uniform(0, 2 * np.pi, 2)
        pitch = 2 * np.pi * rng.uniform(2.5, 3.5) * (1.7 if label % 2 else 1.0)
        u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
        a, b = np.sin(pitch * u + phase[0]), np.sin(pitch * v + phase[1])
        r = np.hypot(x - rng.uniform(-0.2, 0.2), y - rng.uniform(-0.2, 0.2))
        kind = (a, a * b, np.maximum(a, b), np.sin(2 * pitch * r), np.sign(a + b))[label // 2]
        tint = rng.uniform(0.3, 1.0, (3, 1, 1))
        image[:] = tint * kind + rng.normal(0, 0.6, (3, SIDE, SIDE)) + rng.normal(0, 0.2, (3, 1, 1))
    return images, labels


def block(before: int, after: int) -> nn.Sequential:
    """A convolution with its norm."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


class Residual(nn.Module):
    """What is added to its argument."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(block(channels, channels), block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """The argument and what the layers make of it."""
        found: Tensor = x + self.layers(x)
        return found


def resnet9(width: int = 12) -> nn.Sequential:
    """Scores for ten classes."""
    a, b, c = width, 2 * width, 4 * width
    return nn.Sequential(
        block(3, a), nn.MaxPool2d(2),
        block(a, b), nn.MaxPool2d(2), Residual(b),
        block(b, c), nn.MaxPool2d(2), Residual(c),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(c, CLASSES),
    )  # fmt: skip


def varied(images: Tensor) -> Tensor:
    """Images shifted by up to two dots, and half of them mirrored."""
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    dy, dx = (genesis.randint(0, 5, (len(images), 1)) for _ in range(2))
    rows, columns = dy + genesis.arange(SIDE), dx + genesis.arange(SIDE)
    columns = genesis.where(genesis.rand(len(images), 1) < 0.5, columns, columns.flip(1))
    number = genesis.arange(len(images))[:, None, None]
    cut = padded.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None]]
    found: Tensor = cut.permute(0, 3, 1, 2)
    return found


def train(steps: int = 200, seed: int = 0) -> dict[str, float]:
    """Train, and give the share of new images whose texture is recognised."""
    genesis.manual_seed(seed)
    images, labels = (genesis.tensor(x) for x in textures(2000, seed))
    model = resnet9()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = optim.SGD(groups, lr=0.2, momentum=0.85, nesterov=True)
    schedule = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.2, total_steps=steps, pct_start=0.25, anneal_strategy="linear",
        cycle_momentum=False,
    )  # fmt: skip

    @genesis.jit
    def step() -> Tensor:
        chosen = genesis.randint(0, len(images), (BATCH,))
        scores = model(varied(images[chosen])) / 4
        loss: Tensor = F.cross_entropy(scores, labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        loss = step()
        schedule.step()
        if k % 50 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)
    trial, answers = (genesis.tensor(x) for x in textures(500, seed + 1))
    model.eval()
    with genesis.no_grad():
        scores = model(trial) + model(trial.flip(-1))
    share = (scores.argmax(1) == answers).float().mean().item()
    print(f"{share:.1%} of 500 new images are recognised; by chance {1 / CLASSES:.0%}")
    return {"right": share}
