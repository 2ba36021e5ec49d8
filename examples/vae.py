"""Train a variational autoencoder on handwritten digits, and draw new ones.

    python examples/vae.py

An encoder gives a distribution over a few hidden numbers for every image; a decoder turns a draw
from it back into an image. What is minimised is the error of the image plus the distance of the
distribution from a standard normal, so that draws from the latter decode into digits, too.
"""

import argparse

import genesis
from genesis import Tensor, nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812 - as it is known

SIDE = 8
SHADES = " .:-=+*#%@"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=60, help="times through the data (60)")
    parser.add_argument("--batch", type=int, default=64, help="images per step (64)")
    parser.add_argument("--hidden", type=int, default=8, help="hidden numbers per image (8)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    options = parser.parse_args()
    genesis.manual_seed(options.seed)

    images = digits("train").images.flatten(1) / 16
    model = VAE(options.hidden)
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @genesis.jit
    def step(x: Tensor) -> Tensor:
        restored, mean, log_variance = model(x)
        error = F.binary_cross_entropy_with_logits(restored, x, reduction="sum")
        distance = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        loss = (error + distance) / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for epoch in range(1, options.epochs + 1):
        shuffled = images[genesis.randperm(len(images))]
        losses = [step(batch) for batch in shuffled.split(options.batch)]
        if epoch % 10 == 0 or epoch == options.epochs:
            print(f"epoch {epoch:3}  loss {genesis.stack(losses).mean().item():.3f}")

    with genesis.no_grad():
        drawn = model.decoder(genesis.randn(8, options.hidden)).sigmoid()
    print()
    show(drawn.view(8, SIDE, SIDE))


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


if __name__ == "__main__":
    main()
