"""Train a residual network on small colour images, fast.

    python examples/torch/cifar.py [--on compile|device|eager] [--data DIR] [--channels-last]

A network of a few wide layers learns quickly where everything helps: one cycle of the learning rate
up and down, smoothed labels, images that are moved and mirrored before every step. The images are
drawn by a rule: one of ten figures in any colour, size, place and turn before a background of
changing colours, with noise. Or give the folder with CIFAR-10's binary files, and more epochs.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as it is known

import genesis.torch  # noqa: F401 - makes the device known

SIZE, CLASSES = 32, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--on",
        choices=("compile", "device", "eager"),
        default="compile",
        help="torch.compile, torch.device('genesis') or PyTorch itself (compile)",
    )
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's *_batch*.bin files")
    parser.add_argument("--epochs", type=int, default=6, help="times through all images (6)")
    parser.add_argument("--images", type=int, default=6000, help="images to draw (6000)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer (16)")
    parser.add_argument("--batch", type=int, default=100, help="images per step (100)")
    parser.add_argument("--rate", type=float, default=0.01, help="greatest learning rate (0.01)")
    parser.add_argument("--channels-last", action="store_true", help="colours beside each other")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--quick", action="store_true", help="few steps with a narrow network")
    options = parser.parse_args()
    if options.quick:
        options.epochs, options.images, options.width, options.batch = 1, 120, 4, 20
    torch.manual_seed(options.seed)
    device = "genesis" if options.on == "device" else "cpu"

    if options.data:
        images, labels = cifar(sorted(options.data.glob("data_batch_*.bin")))
        test_images, test_labels = cifar([options.data / "test_batch.bin"])
    else:
        images, labels = figures(options.images)
        test_images, test_labels = figures(options.images // 6)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    images, test_images = (x.to(device, memory_format=layout) for x in (images, test_images))
    labels, test_labels = labels.to(device), test_labels.to(device)

    model = network(options.width).to(device, memory_format=layout)
    steps = options.epochs * (len(images) // options.batch)
    optimizer = torch.optim.AdamW(model.parameters(), options.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, total_steps=steps, pct_start=0.25
    )

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, label_smoothing=0.1)

    forward = model
    if options.on == "compile":
        loss_of = torch.compile(loss_of, backend="genesis")
        forward = torch.compile(model, backend="genesis")

    start = time.perf_counter()
    for epoch in range(options.epochs):
        model.train()
        moved, order = augmented(images), torch.randperm(len(images)).to(device)
        for first in range(0, len(order) - options.batch + 1, options.batch):
            drawn = order[first : first + options.batch]
            optimizer.zero_grad()
            loss = loss_of(moved[drawn], labels[drawn])
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        right = evaluate(forward, test_images, test_labels, options.batch)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}  loss {loss.item():.3f}  right {right:.1%}  {seconds:5.1f} s")
    print(f"\n{right:.1%} of {len(test_images)} images that it has not seen are told right")


# ---- the network


class Residual(nn.Module):
    """A module and a way around it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        return x + self.layers(x)


def network(width: int) -> nn.Module:
    """Scores for the classes: three stages, the later two with a residual block."""

    def stage(channels: int, out: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, out, 3, padding=1, bias=False),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(out),
            nn.CELU(0.3),
        ]

    def block(channels: int) -> nn.Module:
        layers = [
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.CELU(0.3),
        ]
        return Residual(*layers)

    return nn.Sequential(
        *stage(3, width), *stage(width, 2 * width), block(2 * width),
        *stage(2 * width, 4 * width), block(4 * width),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES),
    )  # fmt: skip


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, batch: int) -> float:
    """The share of images that are told right; each counts with its mirror image."""
    right = 0.0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        right += ((model(x) + model(x.flip(3))).argmax(1) == y).sum().item()
    return right / len(images)


def augmented(images: Tensor, by: int = 2) -> Tensor:
    """All images, each moved by up to `by` dots, half of them mirrored."""
    count, device = len(images), images.device
    moves = torch.randint(0, 2 * by + 1, (2, count, 1)).to(device)
    place = torch.arange(SIZE, device=device)
    mirrored = torch.where(torch.rand(count, 1).to(device) < 0.5, place, SIZE - 1 - place)
    rows, columns = moves[0] + place, moves[1] + mirrored
    padded = F.pad(images, (by, by, by, by), mode="reflect")
    number = torch.arange(count, device=device)[:, None, None]
    chosen = padded.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None, :]]
    return chosen.permute(0, 3, 1, 2)


# ---- the images


def figures(count: int) -> tuple[Tensor, Tensor]:
    """Images of ten figures, and which figure each shows."""
    labels = torch.arange(count) % CLASSES
    line = torch.linspace(-1, 1, SIZE)
    # Where each dot is, seen from a figure that lies elsewhere, is turned and has another size.
    turn, size = 0.3 * torch.randn(count, 1, 1), 0.4 + 0.4 * torch.rand(count, 1, 1)
    place = 0.4 * (2 * torch.rand(2, count, 1, 1) - 1)
    y, x = (line[:, None] - place[0]) / size, (line - place[1]) / size
    u, v = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()
    far, box = u.hypot(v), torch.maximum(u.abs(), v.abs())
    diamond, bars = u.abs() + v.abs(), (4 * math.pi / 2 * u).sin() > 0
    shapes = [
        far < 1,  # a disc
        (far < 1) & (far > 0.6),  # a ring
        box < 0.9,  # a square
        (box < 0.9) & (box > 0.5),  # a frame
        diamond < 1.1,  # a diamond
        (torch.minimum(u.abs(), v.abs()) < 0.25) & (box < 1),  # a cross
        ((u.abs() - v.abs()).abs() < 0.3) & (box < 0.9),  # a cross of diagonals
        (v < 0.7) & (v > 2 * u.abs() - 1),  # a triangle
        bars & (box < 1),  # bars
        (bars ^ ((2 * math.pi * v).sin() > 0)) & (box < 1),  # a chequered board
    ]
    inside = torch.stack(shapes)[labels, torch.arange(count)][:, None]
    colours = torch.rand(2, count, 3, 1, 1)
    colours[1] = (colours[0] + 0.3 + 0.4 * colours[1]) % 1  # another in every channel
    slope = 0.3 * torch.randn(2, count, 3, 1, 1)
    ground = colours[0] + slope[0] * line[:, None] + slope[1] * line
    images = torch.where(inside, colours[1], ground) + 0.1 * torch.randn(count, 3, SIZE, SIZE)
    return (images - 0.5) / 0.3, labels


def cifar(paths: list[Path]) -> tuple[Tensor, Tensor]:
    """CIFAR-10's binary files: rows of a label and 3 times 32 by 32 bytes."""
    row, found = 1 + 3 * SIZE * SIZE, []
    for path in paths:
        data = path.read_bytes()
        if not data or len(data) % row:
            raise SystemExit(f"{path}: no file of rows of {row} bytes")
        found.append(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, row))
    if not found:
        raise SystemExit("there is no data_batch_*.bin")
    rows = torch.cat(found)
    if rows[:, 0].max() >= CLASSES:
        raise SystemExit(f"{paths[0]}: a label is not below {CLASSES}")
    images = rows[:, 1:].view(-1, 3, SIZE, SIZE).float() / 255
    return (images - 0.5) / 0.25, rows[:, 0].long()


if __name__ == "__main__":
    main()
