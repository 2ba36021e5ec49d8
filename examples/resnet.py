"""Train a small residual network to read handwritten digits.

    python examples/resnet.py

Images are shifted and noisy in training, the learning rate goes up and down once, and the weights
that are tested are the average of those seen on the way. The last batch of an epoch is smaller than
the others: `genesis.jit` then makes the size symbolic, and one program serves both.
"""

import argparse
import time

import genesis
from genesis import Tensor, nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812 - as it is known

#: Paper, in images that are scaled to be around 0.
PAPER = -0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=15, help="times through the data (15)")
    parser.add_argument("--batch", type=int, default=64, help="images per step (64)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first block (16)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    options = parser.parse_args()
    genesis.manual_seed(options.seed)

    train, test = load("train"), load("test")
    model = network(options.width)
    average = optim.AveragedModel(model, use_buffers=True)
    optimizer = optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    steps = options.epochs * -(-len(train[0]) // options.batch)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)

    @genesis.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(augmented(x)), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    @genesis.jit
    def correct(x: Tensor, y: Tensor) -> Tensor:
        with genesis.no_grad():
            return (average(x).argmax(dim=1) == y).sum()

    start = time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        model.train()
        order = genesis.randperm(len(train[0]))
        for chosen in order.split(options.batch):
            loss = step(train[0][chosen], train[1][chosen])
            schedule.step()
        average.update_parameters(model)
        average.eval()
        found = sum(
            correct(x, y).item()
            for x, y in zip(test[0].split(options.batch), test[1].split(options.batch), strict=True)
        )
        print(
            f"epoch {epoch:2}  loss {loss.item():.3f}  test accuracy {found / len(test[0]):.1%}"
            f"  {time.perf_counter() - start:5.1f} s"
        )


def load(split: str) -> tuple[Tensor, Tensor]:
    """Images (number, 1, 8, 8) around 0, and which digit each is."""
    images, labels = digits(split)
    return images.unsqueeze(1) / 6.0 + PAPER, labels


def augmented(x: Tensor) -> Tensor:
    """Images shifted by up to one place in each direction, with a little noise."""
    places = genesis.arange(8) + genesis.randint(0, 3, (len(x), 2, 1))
    padded = F.pad(x, (1, 1, 1, 1), value=PAPER)
    rows = places[:, 0].view(-1, 1, 8, 1).expand(-1, 1, 8, 10)
    columns = places[:, 1].view(-1, 1, 1, 8).expand(-1, 1, 8, 8)
    shifted = padded.gather(2, rows).gather(3, columns)
    return shifted + 0.1 * genesis.randn_like(shifted)


class Block(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and before == after
            else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images to images, smaller by the stride."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def network(width: int) -> nn.Sequential:
    """A convolution, blocks that halve the image and double the channels, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


if __name__ == "__main__":
    main()
