"""Training steps on a GPU, side by side with PyTorch: ``python -m benchmarks.gpu_training``.

A step is the forward pass in bfloat16 (autocast), the backward pass and AdamW, on one batch. The
models are written once, against the `nn` of either library. Genesis runs the whole step through
`genesis.jit`; PyTorch runs eagerly, with the model compiled by Inductor (reduce-overhead), and with
the model compiled by Genesis (`torch.compile(backend="genesis")`), with its fused optimizer. Every
contender has a process of its own; a time is the median of the steps, and the losses of the first
steps are printed, which should fall alike. ``--together 9`` lets nine processes compile side by
side, and times them one after the other when all of them are ready.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

CONTENDERS = ("genesis", "compiled", "inductor", "eager")


# ---- the models, for either library


def resnet50(lib: Any) -> Any:
    """ResNet-50 for images of 224x224."""
    nn = lib.nn

    def normal(inputs: int, outputs: int, size: int, stride: int) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *normal(channels, width, 1, 1), nn.ReLU(), *normal(width, width, 3, stride),
                nn.ReLU(), *normal(width, 4 * width, 1, 1),
            )  # fmt: skip
            plain = stride == 1 and channels == 4 * width
            shortcut = [] if plain else normal(channels, 4 * width, 1, stride)
            self.shortcut = nn.Sequential(*shortcut)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.shortcut(x))

    layers = [*normal(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(blocks):
            layers.append(Bottleneck(channels, width, stride if k == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def block_class(lib: Any, width: int, heads: int, causal: bool, norms_first: bool) -> Any:
    """The layers of a transformer."""
    nn = lib.nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def mixed(self, x: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = self.qkv(x).reshape(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
            attend = nn.functional.scaled_dot_product_attention
            y = attend(q, k, v, is_causal=causal)
            return self.out(y.transpose(1, 2).reshape(b, t, width))

        def wide(self, x: Any) -> Any:
            return self.down(nn.functional.gelu(self.up(x)))

        def forward(self, x: Any) -> Any:
            if norms_first:
                x = x + self.mixed(self.norm1(x))
                return x + self.wide(self.norm2(x))
            x = self.norm1(x + self.mixed(x))
            return self.norm2(x + self.wide(x))

    return Block


def transformer(lib: Any, vocabulary: int, length: int, causal: bool) -> Any:
    """GPT-2 124M (`causal`, norms first), or BERT-base (norms last) with the head on all tokens."""
    nn, width = lib.nn, 768
    Block = block_class(lib, width, 12, causal, norms_first=causal)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(12)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions.weight
            return self.head(self.norm(self.blocks(x))).reshape(-1, vocabulary)

    return Model()


def vision(lib: Any) -> Any:
    """ViT-S/16 for images of 224x224, all patches averaged."""
    nn, width = lib.nn, 384
    Block = block_class(lib, width, 6, False, norms_first=True)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 16, 16)
            self.positions = nn.Embedding(196, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(12)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, images: Any) -> Any:
            x = self.patches(images).flatten(2).transpose(1, 2) + self.positions.weight
            return self.head(self.norm(self.blocks(x)).mean(1))

    return Model()


def unet(lib: Any) -> Any:
    """A U-Net of four levels with group norms, as diffusion models have."""
    nn = lib.nn

    def twice(inputs: int, outputs: int) -> Any:
        layers = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, 1, 1), nn.GroupNorm(8, outputs), nn.SiLU()]
        return nn.Sequential(*layers)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = (64, 128, 256, 512)
            self.downs = nn.ModuleList([twice(a, b) for a, b in zip((3, *widths), widths)])  # noqa: B905
            self.halve = nn.MaxPool2d(2)
            self.rises = nn.ModuleList(
                [nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1])]
            )
            self.ups = nn.ModuleList([twice(2 * w, w) for w in reversed(widths[:-1])])
            self.last = nn.Conv2d(64, 1, 1)

        def forward(self, x: Any) -> Any:
            kept: list[Any] = []
            for k, down in enumerate(self.downs):
                x = down(self.halve(x) if k else x)
                kept.append(x)
            kept.pop()
            for rise, up in zip(self.rises, self.ups):  # noqa: B905
                x = up(lib.cat([rise(x), kept.pop()], 1))
            # Squares of pixels are classes, so that the loss is that of the others.
            return nn.functional.avg_pool2d(self.last(x), 4).flatten(1)

    return Model()


def llama(lib: Any) -> Any:
    """A decoder of the shape of Llama 3.2 1B: shared key heads, rotary positions, gated layers."""
    nn, width, heads, shared, hidden, vocabulary, length = lib.nn, 2048, 32, 8, 8192, 128256, 1024
    size = width // heads

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = nn.Linear(width, width, bias=False)
            self.kv = nn.Linear(width, 2 * shared * size, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate = nn.Linear(width, hidden, bias=False)
            self.up = nn.Linear(width, hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            def turned(x: Any) -> Any:
                a, b = x[..., : size // 2], x[..., size // 2 :]
                return x * cos + lib.cat([-b, a], -1) * sin

            b, t, _ = x.shape
            y = self.norm1(x)
            q = self.q(y).reshape(b, t, heads, size).transpose(1, 2)
            k, v = self.kv(y).reshape(b, t, 2, shared, size).permute(2, 0, 3, 1, 4)
            attend = nn.functional.scaled_dot_product_attention
            y = attend(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
            y = self.norm2(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList([Block() for _ in range(16)])
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.tokens.weight
            powers = 500000.0 ** (-lib.arange(0, size, 2) / size)
            angles = lib.arange(length)[:, None] * powers
            angles = lib.cat([angles, angles], -1)
            self.register_buffer("cos", angles.cos().to(lib.bfloat16))
            self.register_buffer("sin", angles.sin().to(lib.bfloat16))

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x)).reshape(-1, vocabulary)

    return Model()


#: Models with the shapes of a batch: of the inputs, and whether they are numbers below so many.
CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], int]] = {
    "ResNet-50, 128 images": (resnet50, (128, 3, 224, 224), 0),
    "ViT-S/16, 128 images": (vision, (128, 3, 224, 224), 0),
    "BERT-base, 64x128": (lambda lib: transformer(lib, 30522, 128, False), (64, 128), 30522),
    "GPT-2 124M, 16x1024": (lambda lib: transformer(lib, 50257, 1024, True), (16, 1024), 50257),
    "U-Net, 32x128x128": (unet, (32, 3, 128, 128), 0),
    "Llama 1B, 4x1024": (llama, (4, 1024), 128256),
}


# ---- one contender


def step_of(contender: str, case: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A training step, and what waits for it."""
    make, shape, numbers = CASES[case]
    lib: Any = __import__("genesis" if contender == "genesis" else "torch")
    lib.manual_seed(0)
    if contender == "genesis":
        lib.ndarray.set_default_device("cuda")
    else:
        lib.set_default_device("cuda")
    model = make(lib)
    for p in model.parameters():  # small enough for deep models, and much the same everywhere
        if p.ndim > 1:
            lib.nn.init.normal_(p, 0.0, 0.02)
    inputs = lib.randint(0, numbers, shape) if numbers else lib.randn(*shape)
    targets = inputs.reshape(-1) if numbers else lib.randint(0, 1000, shape[:1])
    options = {} if contender == "genesis" else {"fused": True}
    optimizer = lib.optim.AdamW(model.parameters(), 1e-4, **options)

    def loss_of(inputs: Any, targets: Any) -> Any:
        with lib.amp.autocast("cuda", dtype=lib.bfloat16):
            return lib.nn.functional.cross_entropy(model(inputs), targets)

    if contender == "inductor":
        loss_of = lib.compile(loss_of, mode="reduce-overhead")
    elif contender == "compiled":
        __import__("genesis.torch")
        loss_of = lib.compile(loss_of, backend="genesis")

    def step(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if contender == "genesis":
        step = lib.jit(step)
    return lambda: step(inputs, targets), lib.cuda.synchronize


def peak_of(contender: str) -> float:
    """The most GiB that tensors have taken at once."""
    if contender == "genesis":
        memory = importlib.import_module("genesis").memory
        return float(memory.stats("cuda").peak_live_bytes) / 2**30
    return float(importlib.import_module("torch").cuda.max_memory_allocated()) / 2**30


def measure(contender: str, case: str, steps: int, waits: bool) -> None:
    """Print how long a step takes; one that `waits` does so when a line comes in."""
    start = time.perf_counter()
    step, wait = step_of(contender, case)
    losses = [float(step()) for _ in range(4)]
    first = time.perf_counter() - start
    if waits:
        print("ready", flush=True)
        sys.stdin.readline()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        for _ in range(4):
            step()
        wait()
        times.append((time.perf_counter() - start) / 4)
    shown = ", ".join(f"{loss:.3f}" for loss in losses)
    row = f"{1e3 * median(times):.2f} | {first:.0f} | {peak_of(contender):.1f} | {shown}"
    print(f"| {case} | {contender} | {row} |", flush=True)


def run_together(commands: list[list[str]]) -> None:
    """Let processes compile side by side; when all are ready, they time one after the other."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes: list[Any] = [subprocess.Popen([*x, "--waits"], **pipes) for x in commands]
    ready = [process.stdout.readline() for process in processes]
    for process, said in zip(processes, ready, strict=True):
        rest, _ = process.communicate("\n" if said else None)
        print(rest.strip() or f"failed: {' '.join(process.args[3:])}", flush=True)


def main() -> None:
    """Run the contenders one after the other, or some side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--contender", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    parser.add_argument("--steps", type=int, default=5, help="times four, that are timed (5)")
    parser.add_argument("--together", type=int, default=1, help="processes that compile at once")
    parser.add_argument("--waits", action="store_true", help=argparse.SUPPRESS)  # of a process
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options.contender[0], options.case[0], options.steps, options.waits)
    print("| model | contender | ms a step | s until the fifth | peak GiB | losses |")
    print("|---|---|---|---|---|---|", flush=True)
    itself = [sys.executable, "-m", "benchmarks.gpu_training", "--measure"]
    commands = [
        [*itself, "--case", case, "--contender", contender, "--steps", str(options.steps)]
        for case in options.case
        for contender in options.contender
    ]
    for start in range(0, len(commands), options.together):
        if options.together > 1:
            run_together(commands[start : start + options.together])
        else:
            subprocess.run(commands[start], check=False)


if __name__ == "__main__":
    main()
