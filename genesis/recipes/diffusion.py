"""Digits out of noise: a diffusion model of 8 by 8 dots (Ho et al., 2020; Song et al., 2021).

    genesis train diffusion

A network learns to say what noise was added to an image, for any amount of it. Starting from
nothing but noise, and taking away what it says in 25 steps, makes images that nobody has written.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

DOTS = 64
TIMES = 100  # amounts of noise
BATCH = 128
SHADES = " .:-=+*#%@"


def kept() -> Tensor:
    """How much of an image each amount of noise leaves: a cosine (Nichol and Dhariwal, 2021)."""
    at = genesis.linspace(0, 1, TIMES + 1)[1:]
    left: Tensor = ((at * 0.98 + 0.008) / 1.008 * math.pi / 2).cos().square()
    return left


class Denoiser(nn.Module):
    """From a noisy image and the amount of noise to the noise."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(DOTS, width), nn.Linear(width, DOTS)
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(),
                          nn.Linear(width, width))
            for _ in range(3)
        ])  # fmt: skip

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The noise in images (batch, 64) at times (batch,)."""
        angles = time.float()[:, None] * (10000 ** (-genesis.arange(16) / 16))
        when = self.time(genesis.cat([angles.sin(), angles.cos()], 1))
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x + when)
        noise: Tensor = self.leave(x)
        return noise


@genesis.no_grad()
def sample(model: nn.Module, count: int, steps: int = 25) -> Tensor:
    """Images out of noise, by steps that add none (DDIM)."""
    left = kept()
    times = np.linspace(TIMES - 1, 0, steps).round().astype(int).tolist()
    x = genesis.randn(count, DOTS)

    @genesis.jit
    def cleaned(x: Tensor, time: Tensor, now: Tensor, then: Tensor) -> Tensor:
        noise = model(x, time)
        image = ((x - (1 - now).sqrt() * noise) / now.sqrt()).clamp(-1, 1)
        rest: Tensor = then.sqrt() * image + (1 - then).sqrt() * noise
        return rest

    for k, time in enumerate(times):
        then = left[times[k + 1]] if k + 1 < len(times) else genesis.ones(())
        x = cleaned(x, genesis.full((count,), time), left[time], then)
    return x


def distance(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Frechet's distance between two sets of images, taken for normal distributions."""
    (ma, ca), (mb, cb) = ((x.mean(0), np.cov(x.T.astype(np.float64))) for x in (a, b))
    values, vectors = np.linalg.eigh(ca)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    mixed = np.linalg.eigvalsh(root @ cb @ root).clip(0)
    return float(((ma - mb) ** 2).sum() + np.trace(ca + cb) - 2 * np.sqrt(mixed).sum())


def train(steps: int = 1500, seed: int = 0) -> dict[str, float]:
    """Train, draw, and compare: the distance of new images to held-out ones, and of noise."""
    genesis.manual_seed(seed)
    images = genesis.datasets.digits("train").images.flatten(1).float() / 8 - 1
    model = Denoiser()
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    left = kept()

    @genesis.jit
    def step() -> Tensor:
        x = images[genesis.randint(0, len(images), (BATCH,))]
        time = genesis.randint(0, TIMES, (BATCH,))
        noise, now = genesis.randn(BATCH, DOTS), left[time][:, None]
        loss: Tensor = F.mse_loss(model(now.sqrt() * x + (1 - now).sqrt() * noise, time), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for number in range(1, steps + 1):
        loss = step()
        schedule.step()
        if number % 500 == 0 or number == steps:
            print(f"step {number:5}  loss {loss.item():.3f}", flush=True)
    model.eval()
    drawn = sample(model, 512).numpy()
    held_out = (genesis.datasets.digits("test").images.flatten(1).float() / 8 - 1).numpy()
    noise = np.random.default_rng(seed).standard_normal(drawn.shape).clip(-1, 1)
    show(drawn[:8])
    return {
        "distance": distance(drawn, held_out),
        "distance of noise": distance(noise.astype(np.float32), held_out),
        "distance of other digits": distance(images.numpy()[:512], held_out),
    }


def show(images: npt.NDArray[np.float32]) -> None:
    """Images side by side, in letters."""
    print()
    for row in images.reshape(-1, 8, 8).transpose(1, 0, 2):
        levels = ((row.clip(-1, 1) + 1) / 2 * (len(SHADES) - 0.01)).astype(int)
        print("  ".join("".join(SHADES[v] * 2 for v in part) for part in levels).rstrip())
