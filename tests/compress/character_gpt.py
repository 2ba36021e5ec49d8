"""A GPT of characters on Python's help texts: what the quality of compressed weights is seen on.

``python -m tests.compress.character_gpt FILE [steps] [width]`` trains it and keeps its weights;
the slow tests train one where there is none.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.nn import functional

CONTEXT, BATCH = 64, 24
#: Steps after which the perplexity is 4.9, and where tests find a model that one of them trained.
STEPS = 450
KEPT = Path(tempfile.gettempdir()) / f"genesis-character-gpt-{STEPS}.safetensors"


def characters() -> tuple[Any, Any, int]:
    """The places of characters to train and to test with, and how many characters there are."""
    from pydoc_data import topics

    text = "".join(topics.topics[key] for key in sorted(topics.topics))
    octets = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    known, places = np.unique(octets, return_inverse=True)
    pages = places[: len(places) // 2048 * 2048].reshape(-1, 2048)
    order = np.random.default_rng(1).permutation(len(pages))  # pages of the same kind in both
    few = len(pages) // 10
    return pages[order[few:]].reshape(-1), pages[order[:few]].reshape(-1), len(known)


class Block(nn.Module):
    """Attention and two layers, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        parts = self.qkv(self.n1(x)).reshape(rows, length, 3, 4, width // 4)
        q, k, v = (parts[:, :, i].permute(0, 2, 1, 3) for i in range(3))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.permute(0, 2, 1, 3).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    """Characters to the scores of the next ones."""

    def __init__(self, characters: int, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: Any) -> Any:
        h = self.tok(x) + self.pos(genesis.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def batches(text: Any, count: int, rows: int = BATCH, seed: int = 0) -> list[Any]:
    """Pieces of a text, one character longer than the context."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, len(text) - CONTEXT - 1, (count, rows, 1))
    return [genesis.tensor(text[b + np.arange(CONTEXT + 1)]) for b in begin]


def loss_of(model: Any, x: Any) -> Any:
    """The mean cross entropy of the next characters."""
    return functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def perplexity(model: Any, text: Any, count: int = 12) -> float:
    """Of the first pieces of a text."""
    rows = 32
    total = count * rows
    at = (np.arange(total) * CONTEXT)[:, None] + np.arange(CONTEXT + 1)
    pieces = text[at[at[:, -1] < len(text)]]
    run = genesis.jit(lambda x: loss_of(model, x))
    with genesis.no_grad():
        whole = len(pieces) // rows
        losses = [
            run(genesis.tensor(pieces[i * rows : i * rows + rows])).item() for i in range(whole)
        ]
    return math.exp(sum(losses) / len(losses))


def train(
    model: Any,
    text: Any,
    steps: int,
    rate: float = 2e-3,
    loss: Callable[[Any, Any], Any] = loss_of,
    report: bool = False,
) -> None:
    """Some steps of AdamW, whose rate follows a cosine down."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = genesis.optim.AdamW(parameters, lr=rate, weight_decay=0.1, betas=(0.9, 0.95))
    schedule = genesis.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1, (s + 1) / 50) * (0.5 * (1 + math.cos(math.pi * s / steps)) + 0.02),
    )

    @genesis.jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model, x)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return value

    for number, x in enumerate(batches(text, steps)):
        value = step(x)
        schedule.step()
        if report and number % 100 == 0:
            print(number, round(value.item(), 3), flush=True)


def trained(path: Path, steps: int = STEPS, width: int = 256) -> tuple[GPT, Any, Any]:
    """The model of a file, which is trained if there is none, with both texts."""
    learned, held, count = characters()
    genesis.manual_seed(0)
    model = GPT(count, width)
    if path.exists():
        model.load_state_dict(genesis.load(path))
    else:
        train(model, learned, steps, report=True)
        genesis.save(model.state_dict(), path)
    return model, learned, held


if __name__ == "__main__":
    sizes = [int(x) for x in sys.argv[2:]]
    model, _, held = trained(Path(sys.argv[1]), *sizes)
    print("perplexity", perplexity(model, held))
