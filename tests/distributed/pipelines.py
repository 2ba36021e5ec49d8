"""Pipelines: ``genesis launch -n N pipelines.py SCHEDULE STAGES [AXIS=N ..]`` prints losses.

With axes there is no dropout, and the losses are those of a plain loop: the schedule ``plain``.
``folder=PATH`` goes on from a checkpoint there; ``until=N`` stops after some steps and writes one.
``exact=N`` has so many microbatches on all processes, with dropout, and sums that have no order.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import genesis
import genesis.distributed as gd
from genesis import Tensor, nn, optim
from genesis.nn.functional import cross_entropy

STEPS, ROWS, LENGTH, WIDTH, WORDS = 4, 24, 6, 16, 24


class Attend(nn.Module):
    """A layer of a GPT, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))


class Head(nn.Module):
    """Scores by the words' own vectors."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.embedding.weight.t()


def layers() -> list[nn.Module]:
    genesis.manual_seed(0)
    words = nn.Embedding(WORDS, WIDTH)
    return [words, *(Attend() for _ in range(6)), Head(words)]


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, 1), target.flatten())


def batches(rows: slice) -> list[tuple[Tensor, Tensor]]:
    tokens = genesis.randint(WORDS, (STEPS, ROWS, LENGTH + 1), generator=genesis.Generator(1))
    return [(t[rows, :-1], t[rows, 1:]) for t in tokens]


def plain() -> list[float]:
    model, found = nn.Sequential(*layers()).eval(), []
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in batches(slice(None)):
        optimizer.zero_grad()
        total = loss(model(x), y)
        total.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        found += [total.item(), norm.item()]
        optimizer.step()
    return found


def piped(
    schedule: str, stages: str, folder: str = "", until: int = STEPS, exact: int = 0, **axes: int
) -> list[float]:
    mesh = gd.mesh(**(axes or {"pp": gd.world_size()}))
    pipeline = gd.Pipeline(
        layers(), loss, mesh, microbatches=exact // mesh.shape.get("dp", 1) or 4,
        schedule=schedule, stages=int(stages) or None, exact=bool(exact),
    )  # fmt: skip
    pipeline.train(not axes or bool(exact))
    optimizer, found = optim.AdamW(pipeline.parameters(), lr=1e-2), []
    start = gd.restore(folder, pipeline, optimizer) if folder else 0
    for x, y in batches(mesh.rows(ROWS))[start:until]:
        found += [pipeline(x, y).item(), pipeline.clip_grad_norm_(1.0).item()]
        optimizer.step()
    if folder and until < STEPS:
        gd.save(folder, until, pipeline, optimizer)
    return found


if __name__ == "__main__":
    pairs = [arg.split("=") for arg in sys.argv[3:]]
    how: dict[str, Any] = {name: int(n) if n.isdigit() else n for name, n in pairs}
    found = plain() if sys.argv[1] == "plain" else piped(*sys.argv[1:3], **how)
    if gd.rank() == 0:
        print(json.dumps(found))
