"""Find drawn shapes in noise: a U-Net that says for every dot whether it belongs to one.

    genesis train unet

Images are drawn as they are needed, by a `DataLoader` that seeds every batch; `genesis.train.fit`
is the loop. What counts is the overlap with the true shapes (intersection over union) on images
that were not trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import genesis
from genesis import data, nn, optim
from genesis import train as training
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

SIDE = 32
BATCH = 16


class Shapes(data.Dataset[tuple[Any, Any]]):
    """A disc, a rectangle and a cross in noise, and where they are; each index another image."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        rng = np.random.default_rng(self.first + index)
        y, x = np.mgrid[:SIDE, :SIDE]
        mask = np.zeros((SIDE, SIDE), bool)
        cy, cx, r = *rng.integers(6, SIDE - 6, 2), rng.integers(3, 7)
        mask |= (y - cy) ** 2 + (x - cx) ** 2 <= r * r
        top, left = rng.integers(0, SIDE - 10, 2)
        mask |= (abs(y - top - 4) < rng.integers(2, 5)) & (abs(x - left - 4) < rng.integers(2, 5))
        cy, cx = rng.integers(5, SIDE - 5, 2)
        mask |= (abs(y - cy) + abs(x - cx) < 7) & ((abs(y - cy) < 2) | (abs(x - cx) < 2))
        image = mask * rng.uniform(0.6, 1.2) + rng.normal(0, 0.5, mask.shape)
        return image[None].astype(np.float32), mask[None].astype(np.float32)


def convolutions(before: int, after: int) -> nn.Sequential:
    """Two convolutions, each with its norm."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down to few dots with many channels, and up again with what was seen on the way down."""

    def __init__(self, width: int = 8, levels: int = 2) -> None:
        super().__init__()
        sizes = [width << k for k in range(levels + 1)]
        self.down = nn.ModuleList(
            [convolutions(a, b) for a, b in zip([1, *sizes], sizes, strict=False)]
        )
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in reversed(sizes[:-1])]
        )
        self.up = nn.ModuleList([convolutions(2 * n, n) for n in reversed(sizes[:-1])])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for every dot."""
        seen: list[Tensor] = []
        for k, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if k else x)
            seen.append(x)
        for grow, layer, before in zip(self.grow, self.up, reversed(seen[:-1]), strict=True):
            x = layer(genesis.cat([grow(x), before], 1))
        scores: Tensor = self.head(x)
        return scores


def overlap(scores: Tensor, masks: Tensor) -> Tensor:
    """Intersection over union of what was found and what is there."""
    found, there = scores > 0, masks > 0
    union = (found | there).float().sum()
    share: Tensor = (found & there).float().sum() / union.clamp(min=1)
    return share


def train(steps: int = 240, seed: int = 0) -> dict[str, float]:
    """Train, show a held-out image with what was found, and give the overlap."""
    genesis.manual_seed(seed)
    model = UNet()

    def loss(model: Any, batch: Any) -> dict[str, Tensor]:
        images, masks = batch
        scores = model(images)
        wrong = F.binary_cross_entropy_with_logits(scores, masks)
        return {"loss": wrong, "overlap": overlap(scores, masks)}

    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    loader = data.DataLoader(Shapes(steps * BATCH), BATCH)
    held_out = data.DataLoader(Shapes(64, first=10_000_000), 64)
    done = training.fit(
        model, loader, optimizer, loss, schedule=schedule, validation=held_out, progress=False
    )
    model.eval()
    image, mask = Shapes(1, first=10_000_000)[0]
    with genesis.no_grad():
        found = model(genesis.from_numpy(image)[None])[0, 0].numpy() > 0
    for noisy, row, there in zip(image[0], found, mask[0], strict=True):
        print("".join(" .:+#"[int(np.clip(v, 0, 0.99) * 5)] for v in noisy), end="   ")
        marks = {(True, True): "#", (True, False): "+", (False, True): "-", (False, False): " "}
        print("".join(marks[bool(a), bool(b)] for a, b in zip(row, there, strict=True)).rstrip())
    return {"overlap": done.metrics["val_overlap"]}
