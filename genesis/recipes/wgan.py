"""Two networks at odds: a Wasserstein GAN with gradient penalty, on a ring of eight clouds.

    genesis train wgan

A generator turns noise into points; a critic says how much dearer true points are than made ones,
and its slope between the two is held at one by a gradient of a gradient (Gulrajani et al., 2017).
Plain GANs are known to find a few of the clouds and stay there. All eight must be found here.
"""

from __future__ import annotations

import math

import genesis
from genesis import nn, optim
from genesis.tensor.tensor import Tensor

CLOUDS, SPREAD = 8, 0.1
BATCH, NOISE = 128, 4
TURNS = 5  # of the critic, for one of the generator
PENALTY = 0.3


def true_points(count: int) -> Tensor:
    """Points in one of the clouds each."""
    angle = genesis.randint(0, CLOUDS, (count,)).float() * (2 * math.pi / CLOUDS)
    centre = genesis.stack([angle.cos(), angle.sin()], 1) * 2
    points: Tensor = centre + SPREAD * genesis.randn(count, 2)
    return points


def network(inputs: int, outputs: int, width: int = 128) -> nn.Sequential:
    """A small network."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )  # fmt: skip


def penalty(critic: nn.Module, true: Tensor, made: Tensor) -> Tensor:
    """How far the critic's slope is from one, at places between true and made points."""
    share = genesis.rand(BATCH, 1)
    between = (share * true + (1 - share) * made).detach().requires_grad_()
    (slope,) = genesis.autograd.grad(critic(between).sum(), [between], create_graph=True)
    assert slope is not None
    off: Tensor = (slope.norm(dim=1) - 1).square().mean()
    return off


def train(steps: int = 1500, seed: int = 0) -> dict[str, float]:
    """Train; how many clouds get their share of points, and which part of all points is in one."""
    genesis.manual_seed(seed)
    generator, critic = network(NOISE, 2), network(2, 1)
    to_make = optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    to_judge = optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))

    @genesis.jit
    def judge() -> Tensor:
        true, made = true_points(BATCH), generator(genesis.randn(BATCH, NOISE)).detach()
        dearer = critic(true).mean() - critic(made).mean()
        loss = -dearer + PENALTY * penalty(critic, true, made)
        to_judge.zero_grad()
        loss.backward()
        to_judge.step()
        distance: Tensor = dearer
        return distance

    @genesis.jit
    def make() -> None:
        loss = -critic(generator(genesis.randn(BATCH, NOISE))).mean()
        to_make.zero_grad()
        loss.backward()
        to_make.step()

    for k in range(steps):
        for _ in range(TURNS):
            distance = judge()
        make()
        if k % 300 == 0 or k == steps - 1:
            print(f"step {k:5}  distance {distance.item():.3f}", flush=True)
    with genesis.no_grad():
        points = generator(genesis.randn(2000, NOISE))
    angle = genesis.arange(CLOUDS).float() * (2 * math.pi / CLOUDS)
    centres = genesis.stack([angle.cos(), angle.sin()], 1) * 2
    gaps, nearest = genesis.cdist(points, centres).min(1)
    inside = gaps < 4 * SPREAD
    shares = genesis.bincount(nearest[inside], minlength=CLOUDS).float() / len(points)
    show(points)
    return {
        "clouds": float((shares > 0.25 / CLOUDS).sum().item()),
        "inside": inside.float().mean().item(),
    }


def show(points: Tensor) -> None:
    """Where the points are, from above."""
    counts = [[0] * 60 for _ in range(24)]
    for x, y in points.tolist():
        column, row = int((x + 3) * 10), int((3 - y) * 4)
        if 0 <= row < 24 and 0 <= column < 60:
            counts[row][column] += 1
    for line in counts:
        print("".join(" .:*#@"[min(5, (n + 1) // 2)] for n in line))
