"""Fewer weights: which ones matter, which may go together, and when."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.autograd import no_grad
from genesis.compress.algorithms import upper_factor
from genesis.compress.statistics import Statistics

# ---- scores: what is lost with a weight


def magnitude(weight: Any) -> Any:
    """The size of a weight."""
    return np.abs(weight)


def wanda(weight: Any, seen: Statistics) -> Any:
    """The size of a weight times the root mean square of its input."""
    return np.abs(weight) * np.sqrt(seen.energy).astype(np.float32)


def snip(weight: Any, gradient: Any) -> Any:
    """How much the loss changes without a weight, to first order."""
    return np.abs(weight * gradient)


def fisher_score(weight: Any, squares: Any) -> Any:
    """The same to second order, by the mean squares of gradients."""
    return 0.5 * np.square(weight) * squares


class Movement:
    """How far training moves weights away from zero: the sum of ``-weight * gradient``."""

    def __init__(self) -> None:
        self.total: Any = 0.0

    def add(self, weight: Any, gradient: Any) -> None:
        """Take the gradient of a step into account."""
        self.total = self.total - np.asarray(weight) * np.asarray(gradient)


# ---- patterns: a mask of what stays


def masked(scores: Any, pattern: str, density: float = 0.5) -> Any:
    """Which of the weights with these scores (rows, k) stay, as booleans.

    Patterns are ``free``, ``2:4`` (of any two such numbers: of four neighbours the best two),
    ``16x16`` (blocks of rows and columns, as many in every row of blocks) and ``rows``.

    >>> masked(np.array([[3.0, 1, 2, 4]]), "2:4")
    array([[ True, False, False,  True]])
    """
    scores = np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("masked: scores are NaN or infinite")
    if not 0 < density <= 1:
        raise ValueError(f"masked: a density is more than 0 and at most 1, not {density}")
    if pattern == "free":
        return _best(scores.reshape(1, -1), round(density * scores.size)).reshape(scores.shape)
    if pattern == "rows":
        rows = _best(scores.sum(1)[None], max(1, round(density * len(scores))))[0]
        return np.broadcast_to(rows[:, None], scores.shape).copy()
    if found := re.fullmatch(r"(\d+):(\d+)", pattern):
        n, m = int(found[1]), int(found[2])
        if not 0 < n <= m or scores.shape[1] % m:
            raise ValueError(f"masked: {scores.shape[1]} columns have no pattern {pattern}")
        return _best(scores.reshape(-1, m), n).reshape(scores.shape)
    if found := re.fullmatch(r"(\d+)x(\d+)", pattern):
        down, across = int(found[1]), int(found[2])
        if not down or not across or scores.shape[0] % down or scores.shape[1] % across:
            raise ValueError(f"masked: a matrix of {scores.shape} has no blocks of {pattern}")
        blocks = scores.reshape(scores.shape[0] // down, down, -1, across).sum((1, 3))
        kept = _best(blocks, max(1, round(density * blocks.shape[1])))
        return np.repeat(np.repeat(kept, down, 0), across, 1)
    raise ValueError(f"masked: patterns are free, rows, 2:4 and 16x16, not {pattern!r}")


def _best(scores: Any, count: int) -> Any:
    """The best of each row; of equal ones the first."""
    order = np.argsort(-scores, 1, kind="stable")[:, :count]
    kept = np.zeros(scores.shape, bool)
    np.put_along_axis(kept, order, True, 1)
    return kept


def sparsegpt(
    weight: Any, seen: Statistics, pattern: str = "2:4", density: float = 0.5,
    damping: float = 0.01, block: int = 128,
) -> Any:  # fmt: skip
    """The weight with a pattern of zeros, where those that stay make good what goes.

    Column by column as in GPTQ: a weight that goes is an error that later columns compensate.
    """
    x = np.array(weight, np.float64)
    k = x.shape[1]
    upper = upper_factor(seen.second, k, damping)
    run = int(pattern.split(":")[1]) if ":" in pattern else block
    kept = np.ones(x.shape, bool)
    for j in range(k):
        if j % run == 0:
            ahead = slice(j, j + run)
            scores = np.square(x[:, ahead] / np.diag(upper)[ahead])
            kept[:, ahead] = masked(scores, pattern, density)
        off = np.where(kept[:, j], 0, x[:, j]) / upper[j, j]
        x[:, j + 1 :] -= np.outer(off, upper[j, j + 1 :])
        x[:, j] *= kept[:, j]
    return x.astype(np.float32)


# ---- schedules


def cubic(progress: float, final: float, start: float = 1.0) -> float:
    """The density at a share of the way: most goes early, ``1 - (1 - p)³`` of it.

    >>> [round(cubic(p, 0.2), 3) for p in (0, 0.5, 1)]
    [1.0, 0.3, 0.2]
    """
    left = (1 - min(max(progress, 0.0), 1.0)) ** 3
    return final + (start - final) * left


class Pruner:
    """Masks of a model's weights, by their layers' names: set, kept to while training, regrown.

    Call `step` after the optimizer's step: what was pruned stays zero.
    """

    def __init__(self, model: nn.Module, names: Any = None, pattern: str = "free") -> None:
        kinds = (nn.Linear, nn.Conv2d)
        found = {n: x for n, x in model.named_modules() if type(x) in kinds}
        names = list(found) if names is None else list(names)
        if missing := [n for n in names if n not in found]:
            raise ValueError(f"Pruner: {missing[0]!r} is no layer of {list(found)}")
        self.layers: dict[str, Any] = {n: found[n] for n in names}
        self.pattern = pattern
        #: Booleans of the weights that stay, as tensors.
        self.masks = {n: genesis.ones(*x.weight.shape) for n, x in self.layers.items()}
        self._first = {n: x.weight.detach().clone() for n, x in self.layers.items()}

    def _rows(self, name: str) -> Any:
        weight = self.layers[name].weight.detach().numpy()
        return weight.reshape(weight.shape[0], -1)

    @no_grad()
    def prune(
        self, density: float, score: Callable[[Any], Any] | Mapping[str, Any] = magnitude
    ) -> None:
        """Keep the best share of each layer's weights; what is gone stays gone."""
        for name in self.layers:
            rows = self._rows(name)
            scores = np.asarray(score[name] if isinstance(score, Mapping) else score(rows))
            scores = scores.reshape(rows.shape).astype(np.float64)
            gone = self.masks[name].numpy().reshape(rows.shape) == 0
            scores = np.where(gone, -1e300, scores)
            self._set(name, masked(scores, self.pattern, density) & ~gone)

    @no_grad()
    def regrow(self, share: float, gradients: Mapping[str, Any]) -> None:
        """Let a share of what stays go, the smallest, and grow as many where gradients are large.

        What goes in this call does not come back in it.
        """
        for name in self.layers:
            rows, kept = self._rows(name), self.masks[name].numpy() > 0
            kept = kept.reshape(rows.shape)
            count = min(int(share * kept.sum()), int((~kept).sum()))
            leaving = _best(np.where(kept, -np.abs(rows), -np.inf).reshape(1, -1), count)
            growth = np.abs(np.asarray(gradients[name])).reshape(rows.shape)
            coming = _best(np.where(kept, -np.inf, growth).reshape(1, -1), count)
            both = (kept & ~leaving.reshape(kept.shape)) | coming.reshape(kept.shape)
            self._set(name, both)

    @no_grad()
    def rewind(self) -> None:
        """Set what stays back to where it began (the lottery ticket)."""
        for name, layer in self.layers.items():
            layer.weight.copy_(self._first[name] * self.masks[name])

    def _set(self, name: str, kept: Any) -> None:
        mask = genesis.tensor(kept.astype(np.float32)).reshape(*self.masks[name].shape)
        self.masks[name].copy_(mask)
        self.step()

    @no_grad()
    def step(self) -> None:
        """Make what was pruned zero again."""
        for name, layer in self.layers.items():
            layer.weight.copy_(layer.weight * self.masks[name])

    @property
    def density(self) -> float:
        """The share of weights that stay."""
        kept = sum(float(m.sum().item()) for m in self.masks.values())
        return kept / sum(m.numel() for m in self.masks.values())


# ---- tokens


def merge_tokens(x: Any, count: int) -> tuple[Any, Callable[[Any], Any]]:
    """Make `count` tokens of a sequence (length, width) one with the most similar of the others.

    Gives the shorter sequence, of means, and what spreads such a sequence over all tokens again.
    Every second token may go, to one of those between (bipartite soft matching).
    """
    values = np.asarray(x.detach().numpy() if hasattr(x, "detach") else x)
    length = len(values)
    if not 0 <= count <= length // 2:
        raise ValueError(f"merge_tokens: of {length} tokens at most {length // 2} go, not {count}")
    unit = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    going, staying = np.arange(1, length, 2), np.arange(0, length, 2)
    alike = unit[going] @ unit[staying].T
    gone = np.sort(np.argsort(-alike.max(1), kind="stable")[:count])
    target = np.arange(length)
    target[going[gone]] = staying[alike[gone].argmax(1)]
    kept = np.unique(target)
    place = np.searchsorted(kept, target)
    sums = np.zeros((len(kept), length), np.float32)
    sums[place, np.arange(length)] = 1
    mean = genesis.tensor(sums / sums.sum(1, keepdims=True))
    spread = genesis.tensor(place)
    return mean @ genesis.tensor(values), lambda y: y[spread]


__all__ = [
    "Movement", "Pruner", "cubic", "fisher_score", "magnitude", "masked",
    "merge_tokens", "snip", "sparsegpt", "wanda",
]  # fmt: skip
