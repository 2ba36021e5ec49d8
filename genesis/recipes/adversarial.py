"""Networks that are lied to: adversarial examples, training against them, and a denoiser.

    genesis train adversarial

A network that reads digits is sure of itself, and still wrong once every dot is moved a little in
the worst direction: by one step along the sign of the gradient (FGSM; Goodfellow et al., 2015) or
by several, kept close to the image (PGD; Madry et al., 2018). A second network is trained on what
PGD makes of its images. A third undoes random noise, and is put before the first.
"""

from __future__ import annotations

from collections.abc import Callable

import genesis
from genesis import nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

BATCH = 64
REACH = 0.2  # how far a dot may be moved; it is between 0 and 1
NOISE = 0.5

Model = Callable[[Tensor], Tensor]


def reader() -> nn.Sequential:
    """From an image to scores for ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def denoiser() -> nn.Sequential:
    """From a noisy image to what it was."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 1, 3, padding=1),
    )  # fmt: skip


def pgd(model: Model, images: Tensor, labels: Tensor, steps: int, size: float) -> Tensor:
    """Images no further than `REACH` from the given ones, on which the model does badly."""
    moved = images.detach()
    for _ in range(steps):
        moved = moved.detach().requires_grad_()
        (slope,) = genesis.autograd.grad(F.cross_entropy(model(moved), labels), [moved])
        assert slope is not None
        moved = moved.detach() + size * slope.sign()
        moved = genesis.minimum(genesis.maximum(moved, images - REACH), images + REACH)
        moved = moved.clamp(0, 1)
    return moved.detach()


def fgsm(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """One step, as far as allowed."""
    return pgd(model, images, labels, 1, REACH)


def fit(model: nn.Module, steps: int, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Train a network on batches of digits."""
    images, labels = digits("train")
    images = images.float()[:, None] / 16
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @genesis.jit
    def step() -> Tensor:
        chosen = genesis.randint(0, len(images), (BATCH,))
        wrong = loss(images[chosen], labels[chosen])
        optimizer.zero_grad()
        wrong.backward()
        optimizer.step()
        return wrong

    for _ in range(steps):
        step()


def right(model: Model, images: Tensor, labels: Tensor) -> float:
    """The share of images that are read rightly."""
    with genesis.no_grad():
        share: float = (model(images).argmax(1) == labels).float().mean().item()
    return share


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train all three; what they read of held-out digits, as they are and attacked."""
    genesis.manual_seed(seed)
    plain, robust, cleaner = reader(), reader(), denoiser()

    def as_they_are(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = F.cross_entropy(plain(x), y)
        return loss

    def attacked(x: Tensor, y: Tensor) -> Tensor:
        worse = pgd(robust, x, y, 3, REACH / 2)
        loss: Tensor = F.cross_entropy(robust(worse), y)
        return loss

    def noisy(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = F.mse_loss(cleaner(x + NOISE * genesis.randn_like(x)), x)
        return loss

    fit(plain, steps, as_they_are)
    fit(robust, steps, attacked)
    fit(cleaner, steps, noisy)

    images, labels = digits("test")
    images = images.float()[:, None] / 16
    found = {}
    for name, model in (("plain", plain), ("robust", robust)):
        found[name] = right(model, images, labels)
        found[f"{name}, FGSM"] = right(model, fgsm(model, images, labels), labels)
        worst = pgd(model, images, labels, 10, REACH / 4)
        found[f"{name}, PGD"] = right(model, worst, labels)
    noise = images + NOISE * genesis.randn_like(images)
    found["plain, noise"] = right(plain, noise, labels)
    found["plain, noise taken away"] = right(lambda x: plain(cleaner(x)), noise, labels)
    for name, share in found.items():
        print(f"{name:24} {share:6.1%}")
    return found
