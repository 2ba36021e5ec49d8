"""Words by their company: skip-grams with negative samples, on Python's own documentation.

    genesis train word2vec

Each word learns a vector that is close to those of the words around it and far from words drawn at
random (Mikolov et al., 2013). There is no table of meanings; yet words that are used alike end up
next to each other: `int` beside `float`, `list` beside `tuple`. Such pairs, and how near they are
compared with pairs drawn at random, are the measure.
"""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data import topics

import numpy as np

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

WIDTH, WINDOW = 48, 4
BATCH, OTHERS = 1024, 8
RAREST = 12  # times a word must occur

#: Words that are used alike.
ALIKE = [
    ("int", "float"), ("list", "tuple"), ("true", "false"), ("bytes", "string"),
    ("left", "right"), ("import", "module"), ("function", "method"), ("raise", "exception"),
    ("key", "value"), ("class", "instance"), ("local", "global"), ("first", "second"),
]  # fmt: skip


def corpus() -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The words that occur often enough, most frequent first, and the text as their numbers."""
    text = re.findall(r"[a-z]+", "".join(topics.topics.values()).lower())
    counts = Counter(text)
    words = [word for word, n in counts.most_common() if n >= RAREST and len(word) > 1]
    number = {word: k for k, word in enumerate(words)}
    return words, np.array([number[w] for w in text if w in number])


def pairs(
    text: np.ndarray[tuple[int], np.dtype[np.int64]], size: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Words, words near them, and how likely each is to be drawn; frequent ones are thinned."""
    rng = np.random.default_rng(seed)
    share = np.bincount(text, minlength=size) / len(text)
    kept = text[rng.random(len(text)) < np.minimum(1, np.sqrt(1e-3 / share[text]))]
    near = [(kept[:-k], kept[k:]) for k in range(1, WINDOW + 1)]
    first = np.concatenate([np.concatenate(pair) for pair in near])
    second = np.concatenate([np.concatenate(pair[::-1]) for pair in near])
    return genesis.tensor(first), genesis.tensor(second), genesis.tensor(share**0.75).float()


def train(steps: int = 3000, seed: int = 0) -> dict[str, float]:
    """Train; where a word's companion stands among all words, by nearness, in the median."""
    genesis.manual_seed(seed)
    words, text = corpus()
    first, second, weights = pairs(text, len(words), seed)
    vectors, contexts = (nn.Embedding(len(words), WIDTH) for _ in range(2))
    nn.init.uniform_(vectors.weight, -0.5 / WIDTH, 0.5 / WIDTH)
    nn.init.zeros_(contexts.weight)
    optimizer = optim.Adam([*vectors.parameters(), *contexts.parameters()], lr=1e-2)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)

    @genesis.jit
    def step() -> Tensor:
        chosen = genesis.randint(0, len(first), (BATCH,))
        others = genesis.multinomial(weights, BATCH * OTHERS, replacement=True)
        centre = vectors(first[chosen])
        near = (centre * contexts(second[chosen])).sum(-1)
        far = (centre[:, None] * contexts(others.view(BATCH, OTHERS))).sum(-1)
        loss: Tensor = -F.logsigmoid(near).mean() - F.logsigmoid(-far).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    print(f"{len(text):,} words, {len(words):,} of them different")
    for k in range(steps):
        loss = step()
        schedule.step()
        if k % 500 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)

    known = F.normalize(vectors.weight.detach(), dim=1)
    number = {word: k for k, word in enumerate(words)}
    ranks = []
    for one, other in ALIKE:
        nearness = known @ known[number[one]]
        ranks.append((nearness > nearness[number[other]]).sum().item())
    for word in ("int", "list", "true", "raise", "key"):
        best = (known @ known[number[word]]).topk(6).indices.tolist()[1:]
        print(f"{word:8} {' '.join(words[k] for k in best)}")
    return {"median rank": float(np.median(ranks)), "by chance": len(words) / 2}
