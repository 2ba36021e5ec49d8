"""Train a small convolutional network to read handwritten digits.

    genesis train digits
    genesis predict digits.safetensors

One training step draws a batch, goes forward and backward and updates the weights. Under
`genesis.jit` all of that is one program of a few dozen kernels: it is compiled when first called,
and afterwards a step is one native call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.serialization import require_place
from genesis.tensor.tensor import Tensor

Image = npt.NDArray[np.uint8]

STEPS = 600
BATCH = 128
RATE = 0.01  # of learning, at its highest
SMOOTHING = 0.05  # of the labels
INK = 16  # the darkest value of a dot


def network() -> nn.Sequential:
    """From images (batch, 1, 8, 8) to a score for each of ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 10),
    )


def prepared(images: Tensor) -> Tensor:
    """Images as the network takes them: one channel, from -1 for paper to 1 for ink."""
    scaled: Tensor = (images.float() / (INK / 2) - 1).unsqueeze(1)
    return scaled


def shifted(images: Tensor) -> Tensor:
    """Prepared images as they are, and moved by a dot in each of the eight directions."""
    framed = F.pad(images, (1, 1, 1, 1), value=-1.0)
    places = [(down, right) for down in range(3) for right in range(3)]
    moved: Tensor = genesis.cat([framed[:, :, y : y + 8, x : x + 8] for y, x in places])
    return moved


def train(steps: int = STEPS, seed: int = 0, output: str = "digits.safetensors") -> float:
    """Train, report, and save the weights; gives the accuracy on the digits held out."""
    require_place(output)
    genesis.manual_seed(seed)
    images, labels = genesis.datasets.digits("train")
    inputs, targets = shifted(prepared(images)), labels.repeat(9)
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)

    @genesis.jit
    def step() -> Tensor:
        drawn = genesis.randint(0, len(targets), (BATCH,))
        scores = model(inputs[drawn])
        loss: Tensor = F.cross_entropy(scores, targets[drawn], label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(targets):,} images; compiling a training step", flush=True)
    report = genesis.explain(step)
    start = time.perf_counter()
    with tqdm(total=steps, unit="step") as bar:
        for number in range(1, steps + 1):
            loss = step()
            schedule.step()
            if number % 20 == 0 or number == steps:
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
                bar.update(number - bar.n)
    seconds = time.perf_counter() - start

    test = genesis.datasets.digits("test")
    found = predicted(model, test.images)
    truth: list[int] = test.labels.tolist()
    right = [a == b for a, b in zip(found, truth, strict=True)]
    accuracy = sum(right) / len(right)
    genesis.save(model.state_dict(), output)

    wrong = [k for k, fits in enumerate(right) if not fits]
    print(f"\nheld-out digits{', and those that were misread' if wrong else ''}:\n")
    chosen = [*range(6), *wrong[:6]]
    show(test.images.numpy()[chosen], [found[k] for k in chosen], [truth[k] for k in chosen])
    rows = {
        "accuracy on held-out digits": f"{accuracy:.2%}",
        "misread": f"{len(wrong)} of {len(right)}",
        "training steps per second": f"{steps / seconds:,.0f}",
        "kernels per step": f"{len(report.kernels)}",
        "all kernels proven safe": "yes" if report.proven else "NO",
        "peak memory of tensors": f"{genesis.memory.stats().peak_live_bytes / 2**20:,.1f} MiB",
    }
    for name, value in rows.items():
        print(f"{name:30}{value:>12}")
    print(
        f"\nThe weights are in {output}. To read digits with them:\n\n    genesis predict {output}"
    )
    return accuracy


def load(path: str) -> nn.Module:
    """The trained network of a file."""
    model = network()
    try:
        model.load_state_dict(genesis.load(path))
    except RuntimeError as error:
        raise ValueError(f"{path} holds the weights of another network; {error}") from None
    return model


def predicted(model: nn.Module, images: Tensor) -> list[int]:
    """What digit each image shows."""
    model.eval()
    with genesis.no_grad():
        found: list[int] = model(prepared(images)).argmax(1).tolist()
    return found


def read_image(path: str) -> Image:
    """An image from a text of 8 lines of 8 numbers from 0 (paper) to 16 (ink); "-" reads stdin."""
    text = sys.stdin.read() if path == "-" else Path(path).read_text()
    try:
        image = np.array([line.split() for line in text.splitlines() if line.strip()], np.uint8)
    except (ValueError, OverflowError):
        image = np.zeros(0, np.uint8)
    if image.shape != (8, 8) or image.max() > INK:
        raise ValueError(f"{path}: expected 8 lines of 8 whole numbers from 0 to {INK}")
    return image


def show(images: Image, found: Sequence[int], labels: Sequence[int] | None = None) -> None:
    """Draw images side by side, with what they were read as and, if known, what they are."""
    shades = " ░▒▓█" if (sys.stdout.encoding or "").lower().startswith("utf") else " .+*#"
    for first in range(0, len(images), 6):
        row = range(first, min(first + 6, len(images)))
        captions = []
        for k in row:
            truth = found[k] if labels is None else labels[k]
            captions.append(f"{found[k]}" + f", is {truth}" * (truth != found[k]))
        print("  ".join(caption.center(16) for caption in captions).rstrip())
        for line in range(8):
            dots = [[shades[(int(v) * 4 + 15) // INK] * 2 for v in images[k][line]] for k in row]
            print("  ".join("".join(d) for d in dots).rstrip())
        print()


__all__ = ["load", "network", "predicted", "prepared", "read_image", "shifted", "show", "train"]
