"""What to show whom: a recommender of two towers, against what is popular.

    genesis train recommender

One network turns a person into a vector, another a film; their product says how well they match.
Every batch is its own set of wrong answers: a person's film must score higher than those of the
others in the batch, corrected for how often popular films are among them (Yi et al., 2019). People
here are drawn with hidden tastes; the measure is how often the film that was held out is among the
ten that are shown.
"""

from __future__ import annotations

import numpy as np

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

PEOPLE, FILMS, TASTES = 600, 300, 6
SEEN, SHOWN = 12, 10
BATCH, WIDTH = 256, 32


def history(seed: int) -> tuple[Tensor, Tensor]:
    """Films that people saw, `SEEN` each and in no order, and one more each that is held out."""
    rng = np.random.default_rng(seed)
    tastes = rng.normal(size=(PEOPLE, TASTES))
    kinds = rng.normal(size=(FILMS, TASTES))
    fame = rng.normal(size=FILMS)
    likes = 3.0 * tastes @ kinds.T / np.sqrt(TASTES) + fame + rng.gumbel(size=(PEOPLE, FILMS))
    best = np.argsort(-likes, 1)[:, : SEEN + 1]
    best = rng.permuted(best, axis=1)
    return genesis.tensor(best[:, :SEEN].copy()), genesis.tensor(best[:, SEEN].copy())


class Tower(nn.Module):
    """From a number to a vector of length one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, number: Tensor) -> Tensor:
        """The vectors of some numbers."""
        x = self.table(number)
        found: Tensor = F.normalize(x + self.layers(x), dim=-1)
        return found


def hits(scores: Tensor, seen: Tensor, held_out: Tensor) -> float:
    """How often the film held out is among the best that were not seen."""
    rows = genesis.arange(len(seen))[:, None].expand_as(seen)
    scores = scores.index_put((rows, seen), genesis.tensor(-1e9))
    best = scores.topk(SHOWN, 1).indices
    share: float = (best == held_out[:, None]).any(1).float().mean().item()
    return share


def train(steps: int = 600, seed: int = 0) -> dict[str, float]:
    """Train; hits among ten of the towers, of what is popular, and of chance."""
    genesis.manual_seed(seed)
    seen, held_out = history(seed)
    people, films = Tower(PEOPLE), Tower(FILMS)
    parameters = [*people.parameters(), *films.parameters()]
    optimizer = optim.AdamW(parameters, lr=5e-3, weight_decay=0.05)
    counts = genesis.bincount(seen.flatten(), minlength=FILMS).float()
    log_share = ((counts + 1) / (counts + 1).sum()).log()

    @genesis.jit
    def step() -> Tensor:
        who = genesis.randint(0, PEOPLE, (BATCH,))
        which = seen[who, genesis.randint(0, SEEN, (BATCH,))]
        scores = people(who) @ films(which).T * 8.0 - log_share[which]
        same = which[:, None] == which[None]  # another's film may be the same one
        scores = scores.masked_fill(same & ~genesis.eye(BATCH).bool(), -1e9)
        loss: Tensor = F.cross_entropy(scores, genesis.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        loss = step()
        if k % 100 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)
    with genesis.no_grad():
        scores = people(genesis.arange(PEOPLE)) @ films(genesis.arange(FILMS)).T * 8.0
    found = {
        "two towers": hits(scores, seen, held_out),
        "what is popular": hits(counts.expand(PEOPLE, FILMS), seen, held_out),
        "by chance": SHOWN / (FILMS - SEEN),
    }
    for name, share in found.items():
        print(f"{name:16} {share:6.1%} of films held out are among the {SHOWN} shown")
    return found
