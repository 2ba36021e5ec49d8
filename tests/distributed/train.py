"""Train a small model, on one process or many, and print its losses: what the tests start.

``python train.py MODEL STRATEGY STEPS``; the strategy names the axes of the mesh and their rules.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from threading import Timer

import numpy as np

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 32, 4, 64, 16, 8


class Attention(nn.Module):
    ring = False

    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            f(x).reshape(b, t, HEADS, -1).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        attention = gd.ring_attention if self.ring else F.scaled_dot_product_attention
        y = attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self, experts=False):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.experts = gd.Experts(WIDTH, 2 * WIDTH, 4, groups=4) if experts else None

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norms[0](x)))
        if self.experts is not None:
            return x + self.dropout(self.experts(self.norms[1](x)))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norms[1](x)))))


class GPT(nn.Module):
    def __init__(self, layers, experts=False):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(experts) for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(genesis.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x)).reshape(-1, VOCABULARY)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x):
        y = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(x + self.norms[1](self.convs[1](y)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList([Residual(8) for _ in range(2)])
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


class MLP(nn.Module):
    """What is quick to compile, and has a dropout, batch norms and both halves of a pair."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.BatchNorm1d(4 * WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, VOCABULARY)
        self.dropout = nn.Dropout(0.2)

    def forward(self, ids):
        return self.fc2(self.dropout(F.gelu(self.norm(self.fc1(self.tokens(ids[:, 0]))))))


RULES = {
    "dp": {"dp": {}},
    "zero1": {"dp": {"dp": gd.zero(1)}},
    "zero2": {"dp": {"dp": gd.zero(2)}},
    "zero3": {"dp": {"dp": gd.zero(3)}},
    "tp": {"tp": {"tp": gd.megatron}},
    "sp": {"sp": {}},
    "dpxsp": {"dp": {}, "sp": {}},
    "ring": {"sp": {}},
    "dpxring": {"dp": {}, "sp": {}},
    "ep": {"dp": {"dp": gd.experts}},
    "epxtp": {"dp": {"dp": gd.experts}, "tp": {"tp": gd.megatron}},
    "dpxtp": {"dp": {}, "tp": {"tp": gd.megatron}},
    "zero3xtp": {"dp": {"dp": gd.zero(3)}, "tp": {"tp": gd.megatron}},
}


def train(
    kind: str,
    strategy: str,
    steps: int,
    folder: str | None = None,
    dies: tuple[int, int] = (-1, -1),
) -> list[float]:
    """The losses, and the sum of squares of the weights at the end.

    With a folder, a checkpoint is written after every other step, and gone on from. Process
    ``dies[0]`` is killed in step ``dies[1]`` of its first life; if it is -2, in each of the first
    ``dies[1]`` lives one is while a checkpoint is written.
    """
    chosen = RULES[strategy]
    mesh = gd.mesh(**{axis: 2 if len(chosen) > 1 else -1 for axis in chosen})
    genesis.manual_seed(3 + gd.rank())  # place takes the first process's weights
    Attention.ring = "ring" in strategy
    made = {"gpt": lambda: GPT(2), "moe": lambda: GPT(2, True), "resnet": ResNet, "mlp": MLP}
    model = made[kind]()
    genesis.manual_seed(1)
    if kind == "resnet":
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    gd.place(model, optimizer, **{k: v for rules in chosen.values() for k, v in rules.items()})

    @genesis.jit
    def step(x, y):
        loss = F.cross_entropy(model(x), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        if kind != "resnet":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    random, losses = np.random.default_rng(0), []
    rows = mesh.rows(BATCH)
    start = 0 if folder is None else gd.restore(folder, model, optimizer)
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    draw, saving = np.random.default_rng([7, life]), None
    victim, last = draw.integers(gd.world_size()), start + 2 * draw.integers(1, 3) - 1
    for k in range(steps):
        if not life and (gd.rank(), k) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        ids = random.integers(0, VOCABULARY, (BATCH, LENGTH))
        x, y = (ids, np.roll(ids, -1, 1)) if kind in ("gpt", "moe") else (ids, ids[:, 1])
        if kind == "resnet":
            x = random.standard_normal((BATCH, 3, 8, 8)).astype(np.float32)
        if k < start:
            continue
        x, y = x[rows], y[rows]
        if "sp" in chosen:  # the sequence is divided, too
            mine = mesh.rows(LENGTH, "sp")
            x, y = (mesh.batch(t[:, mine], "sp", 1) for t in (x, y))
        losses.append(step(mesh.batch(x), mesh.batch(y)).item())
        if folder is not None and k % 2:
            saving = gd.save(folder, k + 1, model, optimizer)
            if dies[0] == -2 and life < dies[1] and (victim, last) == (gd.rank(), k):
                Timer(draw.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGKILL)).start()
    if saving is not None:
        saving.wait()
    assert step.captures <= 1
    state = gd.gather(model.state_dict())
    losses.append(sum(float(x.double().square().sum()) for x in state.values()))
    return losses


if __name__ == "__main__":
    kind, strategies, steps, *more = sys.argv[1:]
    folder = more[0] if more else None
    dies = (int(more[1]), int(more[2])) if len(more) > 1 else (-1, -1)
    found = [train(kind, s, int(steps), folder, dies) for s in strategies.split(",")]
    if gd.rank() == 0:
        print(json.dumps(found))
