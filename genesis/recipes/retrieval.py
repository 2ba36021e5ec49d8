"""Find the page that answers: BM25, and a small network that reads the best ones again.

    genesis train retrieval

The texts are the topics of Python's documentation, cut into paragraphs; a question is a sentence of
one, of which half the words were lost, the rest are shuffled, and many are mistyped. BM25 counts
rare words that question and text share (Robertson and Walker, 1994). A network learns vectors for
groups of three letters, which survive most slips of the hand, and orders the best of BM25 again by
both. The measure is the mean of one over the place of the right text (reciprocal rank).
"""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data import topics

import numpy as np
import numpy.typing as npt

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

WIDTH, LENGTH, BEST = 64, 64, 30
GROUPS = 1024  # numbers that groups of letters fall on
BATCH = 64

Array = npt.NDArray[np.float32]


def paragraphs() -> list[list[str]]:
    """The words of paragraphs that are long enough to be asked about."""
    found = []
    for text in topics.topics.values():
        for part in text.split("\n\n"):
            words = re.findall(r"[a-z_]{2,}", part.lower())
            if len(words) >= 25:
                found.append(words)
    return found


def mistyped(word: str, rng: np.random.Generator) -> str:
    """A word with two of its letters exchanged."""
    k = int(rng.integers(0, len(word) - 1))
    return word[:k] + word[k + 1] + word[k] + word[k + 2 :]


def question(words: list[str], rng: np.random.Generator) -> list[str]:
    """Some words of a place in a text, in any order, most of the long ones mistyped."""
    first = int(rng.integers(0, len(words) - 9))
    kept = [w for w in words[first : first + 10] if rng.random() < 0.5] or words[:1]
    kept = [mistyped(w, rng) if len(w) > 4 and rng.random() < 0.7 else w for w in kept]
    return [kept[k] for k in rng.permutation(len(kept))]


def groups(many: list[list[str]]) -> Tensor:
    """How often groups of three letters occur in texts, tempered; a row for each."""
    rows = np.zeros((len(many), GROUPS), np.float32)
    for row, words in zip(rows, many, strict=True):
        for word in words[:LENGTH]:
            marked = f"<{word}>"
            for k in range(len(marked) - 2):
                a, b, c = (ord(x) for x in marked[k : k + 3])
                row[(a * 961 + b * 31 + c) % GROUPS] += 1
    return genesis.tensor(np.log1p(rows))


class BM25:
    """How well texts fit questions, by the words they share (k = 1.2, b = 0.75)."""

    def __init__(self, texts: list[list[str]]) -> None:
        self.number = {w: k for k, w in enumerate(sorted({w for text in texts for w in text}))}
        counts = np.zeros((len(texts), len(self.number)), np.float32)
        for row, text in zip(counts, texts, strict=True):
            for word, n in Counter(text).items():
                row[self.number[word]] = n
        sizes = counts.sum(1, keepdims=True)
        there = (counts > 0).sum(0)
        rarity = np.log(1 + (len(texts) - there + 0.5) / (there + 0.5))
        bound = 1.2 * (0.25 + 0.75 * sizes / sizes.mean())
        self.weights: Array = (rarity * counts * 2.2 / (counts + bound)).astype(np.float32)

    def __call__(self, words: list[str]) -> Array:
        """The score of every text."""
        known = [self.number[w] for w in words if w in self.number]
        scores: Array = self.weights[:, known].sum(1)
        return scores


class Encoder(nn.Module):
    """A text as the weighted sum of the vectors of its groups of letters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(genesis.zeros(GROUPS))
        self.vectors = nn.Linear(GROUPS, WIDTH, bias=False)

    def forward(self, counts: Tensor) -> Tensor:
        """``(batch, groups)`` to ``(batch, width)``."""
        found: Tensor = F.normalize(self.vectors(counts * self.weight.exp()), dim=-1)
        return found


def rank(scores: Array, answer: int) -> float:
    """One over the place of the right text."""
    return 1.0 / (1 + float((scores > scores[answer]).sum()))


def train(steps: int = 400, seed: int = 0) -> dict[str, float]:
    """Train; the mean reciprocal rank by BM25 alone, and after its best were read again."""
    genesis.manual_seed(seed)
    rng = np.random.default_rng(seed)
    texts = paragraphs()
    search = BM25(texts)

    model = Encoder()
    optimizer = optim.Adam(model.parameters(), lr=5e-3)

    @genesis.jit
    def step(asked: Tensor, right: Tensor) -> Tensor:
        scores = model(asked) @ model(right).T * 20.0
        loss: Tensor = F.cross_entropy(scores, genesis.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        chosen = [texts[i][:LENGTH] for i in rng.choice(len(texts), BATCH, replace=False)]
        loss = step(groups([question(t, rng) for t in chosen]), groups(chosen))
        if k % 100 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.3f}", flush=True)

    with genesis.no_grad():
        vectors = model(groups(texts)).numpy()
    alone, again = [], []
    trial = np.random.default_rng(seed + 1)
    for answer in range(len(texts)):
        asked = question(texts[answer][:LENGTH], trial)
        scores = search(asked)
        alone.append(rank(scores, answer))
        best = np.argsort(-scores, kind="stable")[:BEST]
        with genesis.no_grad():
            near = vectors[best] @ model(groups([asked]))[0].numpy()
        both = scores.copy()
        both[best] = 1000 + scores[best] + 20 * near
        again.append(rank(both, answer))
    found = {"BM25": float(np.mean(alone)), "read again": float(np.mean(again))}
    print(f"{len(texts)} texts; {found}")
    return found
