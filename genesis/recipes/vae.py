"""A variational autoencoder of handwritten digits (Kingma and Welling, 2014), and new ones.

    genesis train vae

An encoder gives a distribution over a few hidden numbers for every image; a decoder turns a draw
from it back into an image. What is minimised is the error of the image plus the distance of the
distribution from a standard normal, so that draws from the latter decode into digits, too.
"""

from __future__ import annotations

from typing import Any

import genesis
from genesis import data, nn, optim
from genesis import train as training
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812 - as it is known
from genesis.tensor.tensor import Tensor

SIDE = 8
HIDDEN = 8  # numbers that an image is told by
BATCH = 64
SHADES = " .:-=+*#%@"


def train(steps: int = 1000, seed: int = 0) -> dict[str, float]:
    """Train, draw, and give the bound on the information in a held-out image, in nats."""
    genesis.manual_seed(seed)
    model = VAE(HIDDEN)
    images, held_out = (digits(part).images.flatten(1) / 16 for part in ("train", "test"))
    loader = data.DataLoader(data.TensorDataset(images), BATCH, shuffle=True, drop_last=True)
    done = training.fit(
        model,
        loader,
        optim.Adam(model.parameters(), lr=2e-3),
        bound,
        epochs=max(1, round(steps / len(loader))),
        validation=data.DataLoader(data.TensorDataset(held_out), len(held_out)),
        progress=False,
    )
    with genesis.no_grad():
        drawn = model.decoder(genesis.randn(8, HIDDEN)).sigmoid()
        flat = held_out.mean(0, keepdim=True).expand_as(held_out)  # each dot by its mean alone
        without = F.binary_cross_entropy(flat, held_out, reduction="sum") / len(held_out)
    show(drawn.view(8, SIDE, SIDE))
    return {"bound": done.metrics["val_loss"], "without a model": without.item()}


def bound(model: Any, batch: Any) -> Tensor:
    """The error of the restored images, and the distance of the distributions, for each image."""
    (x,) = batch
    restored, mean, log_variance = model(x)
    error = F.binary_cross_entropy_with_logits(restored, x, reduction="sum")
    distance = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    loss: Tensor = (error + distance) / len(x)
    return loss


class VAE(nn.Module):
    """Image to distribution, and a draw from it to an image."""

    def __init__(self, hidden: int, width: int = 128) -> None:
        super().__init__()
        size = SIDE * SIDE
        self.encoder = nn.Sequential(
            nn.Linear(size, width), nn.SiLU(), nn.Linear(width, 2 * hidden)
        )
        self.decoder = nn.Sequential(nn.Linear(hidden, width), nn.SiLU(), nn.Linear(width, size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of a restored image, and the distribution it was drawn from."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        draw = mean + (0.5 * log_variance).exp() * genesis.randn_like(mean)
        return self.decoder(draw), mean, log_variance


def show(images: Tensor) -> None:
    """Images side by side, in letters."""
    for row in images.permute(1, 0, 2).tolist():
        cells = ["".join(SHADES[int(v * (len(SHADES) - 0.01))] * 2 for v in part) for part in row]
        print("  ".join(cells))
