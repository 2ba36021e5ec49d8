"""Images per second of ResNet-50 for inference, and how near the results are to PyTorch's.

    python examples/torch/resnet50.py [--on compile|device|eager]

Both run the same weights on the same images, taking turns. In the compiled form a batch norm and an
activation are part of the convolution's kernel.
"""

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import genesis.torch  # noqa: F401 - makes the device known

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and number of blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--on",
        choices=("compile", "device", "eager"),
        default="compile",
        help="torch.compile, torch.device('genesis') or PyTorch itself (compile)",
    )
    parser.add_argument("--batch", type=int, default=4, help="images at a time (4)")
    parser.add_argument("--size", type=int, default=224, help="rows and columns of an image (224)")
    parser.add_argument("--rounds", type=int, default=5, help="batches to time (5)")
    parser.add_argument("--quick", action="store_true", help="one block a stage, small images")
    options = parser.parse_args()
    if options.quick:
        options.size, options.rounds = 64, 1
    torch.manual_seed(0)

    model = ResNet([(w, 1 if options.quick else blocks) for w, blocks in STAGES]).eval()
    images = torch.randn(options.batch, 3, options.size, options.size)
    contenders: dict[str, Callable[[], Tensor]] = {"PyTorch": lambda: model(images)}
    if options.on == "compile":
        compiled = torch.compile(model, backend="genesis")
        contenders["Genesis"] = lambda: compiled(images)
    elif options.on == "device":
        there, moved = copy.deepcopy(model).to("genesis"), images.to("genesis")
        contenders["Genesis"] = lambda: there(moved).cpu()

    results = {}
    with torch.no_grad():
        for name, run in contenders.items():
            start = time.perf_counter()
            results[name] = run()
            print(f"{name}: the first batch took {time.perf_counter() - start:.1f} s")
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(options.rounds):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - start)
    print()
    for name, seconds in best.items():
        print(f"{name}: {options.batch / seconds:6.1f} images/s")
    if "Genesis" in results:
        ours, theirs = results["Genesis"], results["PyTorch"]
        error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        same = (ours.argmax(1) == theirs.argmax(1)).float().mean().item()
        print(f"greatest difference {error:.1e} of the greatest score, same class for {same:.0%}")


class Block(nn.Module):
    """Three convolutions and a way around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.narrow, self.wide = convolution(channels, width, 1), convolution(width, out, 1)
        self.across = convolution(width, width, 3, stride)
        straight = channels == out and stride == 1
        self.around = nn.Identity() if straight else convolution(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, rows, columns)`` to four times `width` channels."""
        y = self.across(self.narrow(x).relu()).relu()
        return (self.wide(y) + self.around(x)).relu()


class ResNet(nn.Module):
    """Scores for a thousand classes."""

    def __init__(self, stages: list[tuple[int, int]]) -> None:
        super().__init__()
        self.first, self.pool = convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)
        self.blocks, channels = nn.Sequential(), 64
        for width, count in stages:
            for k in range(count):
                stride = 2 if k == 0 and width > 64 else 1
                self.blocks.append(Block(channels, width, stride))
                channels = 4 * width
        self.last = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Images, ``(batch, 3, rows, columns)``, to scores, ``(batch, 1000)``."""
        return self.last(self.blocks(self.pool(self.first(x).relu())).mean((2, 3)))


def convolution(channels: int, out: int, size: int, stride: int = 1) -> nn.Module:
    """A convolution with its batch norm."""
    layer = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out))


if __name__ == "__main__":
    main()
