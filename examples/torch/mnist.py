"""Train a small convolutional network to read handwritten digits.

    python examples/torch/mnist.py [--on compile|device|eager] [--data DIR]

The digits are the 1797 that come with Genesis, enlarged to 28 by 28 dots, or MNIST itself: give the
folder with its four IDX files, packed with gzip or not. This is PyTorch as it is always written.
Under ``--on compile`` one line is added, under ``--on device`` another device is named.
"""

import argparse
import gzip
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as it is known

import genesis
import genesis.torch

SIZE = 28


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--on",
        choices=("compile", "device", "eager"),
        default="compile",
        help="torch.compile, torch.device('genesis') or PyTorch itself (compile)",
    )
    parser.add_argument("--data", type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=8, help="times through all digits (8)")
    parser.add_argument("--batch", type=int, default=64, help="digits per step (64)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--quick", action="store_true", help="one epoch of few digits")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = "genesis" if options.on == "device" else "cpu"

    sets = mnist(options.data) if options.data else digits()
    images, labels, test_images, test_labels = (x.to(device) for x in sets)
    if options.quick:
        images, labels, options.epochs = images[:256], labels[:256], 1

    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    steps = options.epochs * (len(images) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, label_smoothing=0.05)

    forward = model
    if options.on == "compile":
        loss_of = torch.compile(loss_of, backend="genesis")
        forward = torch.compile(model, backend="genesis")

    start = time.perf_counter()
    for epoch in range(options.epochs):
        model.train()
        order = torch.randperm(len(images)).to(device)
        for first in range(0, len(order) - options.batch + 1, options.batch):
            drawn = order[first : first + options.batch]
            optimizer.zero_grad()
            loss = loss_of(images[drawn], labels[drawn])
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        right = evaluate(forward, test_images, test_labels)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}  loss {loss.item():.3f}  right {right:.1%}  {seconds:5.1f} s")
    print(f"\n{right:.2%} of {len(test_images)} digits that it has not seen are read right")


def network() -> nn.Module:
    """Two rounds of convolutions, then one layer that decides."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 360) -> float:
    """The share of images that are read right."""
    pairs = zip(images.split(batch), labels.split(batch), strict=True)
    return sum((model(x).argmax(1) == y).sum().item() for x, y in pairs) / len(images)


# ---- data


def digits() -> tuple[Tensor, ...]:
    """The digits that come with Genesis: images and labels to learn from, then those to try."""
    found = []
    for part in ("train", "test"):
        images, labels = genesis.datasets.digits(part)
        small = torch.tensor(images.numpy()).float() / 16
        found.append(F.interpolate(small.view(-1, 1, 8, 8), SIZE, mode="bilinear") - 0.3)
        found.append(torch.tensor(labels.numpy()).long())
    return tuple(found)


def mnist(folder: Path) -> tuple[Tensor, ...]:
    """MNIST's images and labels to learn from, then those to try."""
    found = []
    for part in ("train", "t10k"):
        images = idx(folder, f"{part}-images-idx3-ubyte", 3)
        labels = idx(folder, f"{part}-labels-idx1-ubyte", 1)
        if images.shape[1:] != (SIZE, SIZE) or len(images) != len(labels) or labels.max() > 9:
            raise SystemExit(f"{folder}: {part} is not MNIST: {tuple(images.shape)}")
        found += [images[:, None].float() / 255 - 0.13, labels.long()]
    return tuple(found)


def idx(folder: Path, name: str, axes: int) -> Tensor:
    """An IDX file of bytes: two zeros, the type 8, the number of axes, their sizes, the bytes."""
    path = folder / name
    if path.exists():
        data = path.read_bytes()
    else:
        with gzip.open(folder / f"{name}.gz") as file:
            data = file.read(1 << 28)  # MNIST has 47 MB; a bomb has more
    begin = 4 + 4 * axes
    shape = [int.from_bytes(data[k : k + 4], "big") for k in range(4, begin, 4)]
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) != begin + math.prod(shape):
        raise SystemExit(f"{path}: no IDX file of bytes with {axes} axes, or cut short")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=begin).view(shape)


if __name__ == "__main__":
    main()
