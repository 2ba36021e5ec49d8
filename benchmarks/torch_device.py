"""Models on ``torch.device("genesis")`` and compiled, against eager PyTorch on the CPU.

"compiled" is ``torch.compile(backend="genesis")`` of the model on the CPU, "inductor" what
PyTorch's default backend makes of it on the device.

``python -m benchmarks.torch_device [NAME ..]`` runs inference and training steps of each model. The
contenders take turns in one process, one thread each, and a figure is the median of the processor
time of a step: others on the machine disturb it least. torchvision's models are measured where it
is found; ``--packages`` names a folder it was unpacked to, because its wheels want a PyTorch for
CUDA::

    pip install --no-deps --target /tmp/tv torchvision
    python -m benchmarks.torch_device --packages /tmp/tv
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

import torch
from torch import nn

import genesis
import genesis.torch

RESULTS = Path(__file__).parent / "results" / "torch_device.md"
CONTENDERS = ("eager", "device", "compiled", "inductor")
KINDS = ("inference", "training")
WARM_UP = 4  # the second call of an operator records it, the third of a step runs as all others do
#: Models of torchvision, each once at its smallest.
VISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet",
    "mnasnet0_5", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small",
    "regnet_x_400mf", "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "squeezenet1_0", "squeezenet1_1", "swin_t",
    "swin_v2_t", "vgg11", "vgg11_bn", "vit_b_16", "wide_resnet50_2",
)  # fmt: skip


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """A block of a transformer, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A language model of four blocks."""

    def __init__(self, words: int = 1000, width: int = 256, length: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the next word."""
        scores = self.head(self.norm(self.blocks(self.words(x) + self.places)))
        return scores.transpose(1, 2)


def cnn_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))


def transformer_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 1000, (8, 128)), torch.randint(0, 1000, (8, 128))


def linears() -> nn.Module:
    """Nothing but overhead: 300 layers that compute next to nothing."""
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(300)))


def linears_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 16), torch.randint(0, 16, (2,))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 64, 64), torch.randint(0, 1000, (2,))


Batch = Callable[[], tuple[torch.Tensor, torch.Tensor]]
CASES: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "300 linear layers": (linears, linears_batch),
    "cnn": (cnn, cnn_batch),
    "transformer": (Transformer, transformer_batch),
}


def add_torchvision(packages: str | None) -> None:
    """Add torchvision's models to the cases, if it is there."""
    if packages:
        sys.path.append(packages)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):  # which it needs to be imported without its compiled part
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        from torchvision import models
    except ImportError:
        return
    for name in VISION:
        size = {"image_size": 64} if name.startswith("vit") else {}
        if name == "googlenet":
            size = {"aux_logits": False, "init_weights": False}
        make = models.get_model_builder(name)
        CASES[name] = (lambda make=make, size=size: make(weights=None, **size)), images


def step_of(
    model: nn.Module, kind: str, contender: str, batch: tuple[torch.Tensor, torch.Tensor]
) -> Callable[[], float]:
    """One step of a contender: inference gives a sum of the scores, training the loss."""
    place = "genesis" if contender in ("device", "inductor") else "cpu"
    model = copy.deepcopy(model).to(place).train(kind == "training")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    backends = {"compiled": "genesis", "inductor": "inductor"}
    run = torch.compile(model, backend=backends[contender]) if contender in backends else model
    x, y = batch

    def infer() -> float:
        with torch.no_grad():
            return run(x.to(place)).sum().item()

    def train() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x.to(place)), y.to(place))
        loss.backward()
        optimizer.step()
        return loss.item()

    return infer if kind == "inference" else train


def measure(name: str, kind: str, contenders: list[str], rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of a step, by contender."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, batch = CASES[name]
    model, data = make(), batch()
    for layer in model.modules():  # others draw other random numbers, and results are compared
        if isinstance(layer, nn.Dropout) or type(layer).__name__ == "StochasticDepth":
            layer.p = 0.0
    steps = {c: step_of(model, kind, c, data) for c in contenders}
    first = {c: step() for c, step in steps.items()}
    if max(first.values()) - min(first.values()) > 1e-3 * max(1.0, *map(abs, first.values())):
        print(f"{name}, {kind}: results differ: {first}", flush=True)
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    seconds: dict[str, list[float]] = {c: [] for c in contenders}
    gc.collect()
    for _ in range(rounds):
        for contender, step in steps.items():
            start = time.process_time()
            step()
            seconds[contender].append(time.process_time() - start)
    return {c: 1000 * median(taken) for c, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="all, unless some are named")
    parser.add_argument("--packages", help="a folder with torchvision")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kind", choices=KINDS, action="append", help="both, unless one is given")
    parser.add_argument("--contender", choices=CONTENDERS[1:], action="append")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    genesis.set_num_threads(1)
    add_torchvision(options.packages)
    contenders = ["eager", *(options.contender or CONTENDERS[1:])]
    lines = [
        "| model | | eager ms | " + " | ".join(f"{c} ms | ratio" for c in contenders[1:]) + " |",
        "|---|---|---:|" + "---:|---:|" * (len(contenders) - 1),
    ]
    print("\n".join(lines), flush=True)
    ratios: dict[tuple[str, str], list[float]] = {}
    for name in options.models or CASES:
        for kind in options.kind or KINDS:
            found = measure(name, kind, contenders, options.rounds)
            line = f"| {name} | {kind} | {found['eager']:.1f} |"
            for contender in contenders[1:]:
                ratio = found["eager"] / found[contender]
                ratios.setdefault((kind, contender), []).append(ratio)
                line += f" {found[contender]:.1f} | {ratio:.2f} |"
            lines.append(line)
            print(line, flush=True)
    summary = [
        f"{kind}, {contender}: geometric mean {math.exp(sum(map(math.log, r)) / len(r)):.2f}, "
        f"least {min(r):.2f}, over {len(r)} models"
        for (kind, contender), r in ratios.items()
    ]
    print("\n".join(summary))
    if options.write:
        command = "python -m benchmarks.torch_device " + " ".join(sys.argv[1:])
        load = " ".join(f"{n:.1f}" for n in os.getloadavg())
        RESULTS.write_text(
            "# Models on the PyTorch device, and compiled\n\n"
            f"`{command.strip()}`, {date.today()}, PyTorch {torch.__version__}, one thread, "
            f"medians of {options.rounds} steps'\nprocessor time; load at the end {load} on "
            f"{os.cpu_count()} cores. A ratio above 1 means that Genesis is faster\nthan eager.\n\n"
            + "\n".join(lines)
            + "\n\n"
            + "\n".join(f"- {s}" for s in summary)
            + "\n"
        )


if __name__ == "__main__":
    main()
