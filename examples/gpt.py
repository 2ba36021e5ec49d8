"""Train a small GPT, letter by letter, on the Python documentation that comes with Python.

    python examples/gpt.py

Training is the usual recipe: AdamW with weight decay for matrices only, a learning rate that warms
up and follows a cosine down, gradients clipped to a norm. `genesis.jit` records the step, and also
the model in the sampling loop, whose growing context is a symbolic size: one program for each.
"""

import argparse
import math
import time
from pydoc_data import topics

import genesis
from genesis import Tensor, nn, optim
from genesis.nn import functional as F  # noqa: N812 - as it is known

CONTEXT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="training steps (600)")
    parser.add_argument("--batch", type=int, default=32, help="texts per step (32)")
    parser.add_argument("--width", type=int, default=64, help="of the model (64)")
    parser.add_argument("--layers", type=int, default=3, help="blocks of the model (3)")
    parser.add_argument("--letters", type=int, default=400, help="letters to sample (400)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    options = parser.parse_args()
    genesis.manual_seed(options.seed)

    text = "".join(c for c in "".join(topics.topics.values()) if c.isascii())
    letters = sorted(set(text))
    number = {c: k for k, c in enumerate(letters)}
    data = genesis.tensor([number[c] for c in text])

    model = GPT(len(letters), options.width, heads=4, layers=options.layers)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    warm_up = max(1, options.steps // 20)

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / max(1, options.steps - warm_up)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))

    schedule = optim.lr_scheduler.LambdaLR(optimizer, rate)

    @genesis.jit
    def step() -> Tensor:
        first = genesis.randint(0, len(data) - CONTEXT, (options.batch, 1))
        chosen = data[first + genesis.arange(CONTEXT + 1)]
        logits = model(chosen[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    print(f"{len(text):,} letters, {sum(p.numel() for p in model.parameters()):,} parameters")
    start = time.perf_counter()
    for k in range(options.steps):
        loss = step()
        schedule.step()
        if k % 100 == 0 or k == options.steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}  {time.perf_counter() - start:5.1f} s")

    model.eval()
    print("\n" + "".join(letters[k] for k in sample(model, number["\n"], options.letters)))


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
        return x + self.mlp(self.norm2(x))


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
        return self.head(self.norm(self.blocks(x)))


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
        return genesis.multinomial(F.softmax(logits, -1), 1)

    drawn = [first]
    for _ in range(count):
        drawn.append(following(genesis.tensor([drawn[-CONTEXT:]])).item())
    return drawn[1:]


if __name__ == "__main__":
    main()
