"""A small GPT, letter by letter, on the Python documentation that comes with Python.

    genesis train gpt

Training is the usual recipe: AdamW with weight decay for matrices only, a learning rate that warms
up and follows a cosine down, gradients clipped to a norm. `genesis.jit` records the step, and also
the model in the sampling loop, whose growing context is a symbolic size: one program for each.
"""

from __future__ import annotations

import math
from pydoc_data import topics

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812 - as it is known
from genesis.tensor.tensor import Tensor

CONTEXT = 64
BATCH = 32
WIDTH, HEADS, LAYERS = 64, 4, 3
SAMPLED = 300  # letters


def train(steps: int = 600, seed: int = 0) -> dict[str, float]:
    """Train, write some letters, and give the bits per letter of a text that was held out."""
    genesis.manual_seed(seed)
    text = "".join(c for c in "".join(topics.topics.values()) if c.isascii())
    letters = sorted(set(text))
    number = {c: k for k, c in enumerate(letters)}
    whole = genesis.tensor([number[c] for c in text])
    data, held_out = whole[:-20_000], whole[-20_000:]

    model = GPT(len(letters), WIDTH, HEADS, LAYERS)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    warm_up = max(1, steps // 20)

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / max(1, steps - warm_up)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))

    schedule = optim.lr_scheduler.LambdaLR(optimizer, rate)

    def wrong(chosen: Tensor) -> Tensor:
        logits = model(chosen[:, :-1])
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())
        return loss

    @genesis.jit
    def step() -> Tensor:
        first = genesis.randint(0, len(data) - CONTEXT, (BATCH, 1))
        loss = wrong(data[first + genesis.arange(CONTEXT + 1)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    print(f"{len(text):,} letters, {sum(p.numel() for p in model.parameters()):,} parameters")
    for k in range(steps):
        loss = step()
        schedule.step()
        if k % 100 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)

    model.eval()
    rows = held_out[: len(held_out) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    with genesis.no_grad():
        bits = wrong(rows).item() / math.log(2)
    print("\n" + "".join(letters[k] for k in sample(model, number["\n"], SAMPLED)))
    return {"bits per letter": bits, "without what is before it": single(data, held_out)}


def single(data: Tensor, held_out: Tensor) -> float:
    """The bits per letter of a text where each letter is guessed by how frequent it is."""
    counts = genesis.bincount(data, minlength=int(data.max().item()) + 1).float() + 1
    chances = (counts / counts.sum()).log()
    return -float(chances[held_out].mean().item()) / math.log(2)


class Block(nn.Module):
    """Attention to the letters before, then a small network for each letter."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same."""
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    """Scores for the next letter, at every place of a text. Embedding and output share weights."""

    def __init__(self, letters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        nn.init.normal_(self.place.weight, std=0.02)
        nn.init.normal_(self.letter.weight, std=0.02)
        self.head.weight = self.letter.weight

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of letters, ``(batch, length)``, to scores, ``(batch, length, letters)``."""
        x = self.letter(x) + self.place(genesis.arange(x.shape[1]))
        scores: Tensor = self.head(self.norm(self.blocks(x)))
        return scores


@genesis.no_grad()
def sample(
    model: nn.Module, first: int, count: int, temperature: float = 0.8, top_k: int = 20
) -> list[int]:
    """Letters drawn one after another, each from the `top_k` likeliest."""

    @genesis.jit
    def following(x: Tensor) -> Tensor:
        logits = model(x)[:, -1] / temperature
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
        drawn: Tensor = genesis.multinomial(F.softmax(logits, -1), 1)
        return drawn

    drawn = [first]
    for _ in range(count):
        drawn.append(following(genesis.tensor([drawn[-CONTEXT:]])).item())
    return drawn[1:]
