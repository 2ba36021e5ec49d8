"""How long a step takes, learned from every step: what plans and predictions are made with.

Seconds are a sum of what a step has, each with a cost that is fitted by least squares, old steps
counting less and less. No cost is negative: one that would be is left out. Where steps do not tell
causes apart, as when all prompts have one length, time is laid to tokens and rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from genesis.llm.request import EngineStep

Array = np.ndarray[Any, Any]


class StepSize(NamedTuple):
    """What a step has to do."""

    decodes: float  # 1 if any text is continued
    prefills: float  # pieces of prompts
    tokens: float  # of these pieces
    rows: float  # of texts that are continued, guesses included
    read: float  # tokens whose keys are read for them
    pairs: float  # of a token and one before it, in the pieces

    @classmethod
    def of(cls, step: EngineStep) -> StepSize:
        """The size of a step."""
        rows = [(1 + work.drafts, work.start) for work in step.decodes]
        pieces = [(len(work.tokens), work.start) for work in step.prefills]
        return cls(
            float(bool(rows)), len(pieces), sum(n for n, _ in pieces), sum(n for n, _ in rows),
            sum(n * (start + n) for n, start in rows),
            sum(n * (start + n / 2) for n, start in pieces),
        )  # fmt: skip


_SCALE = np.array([1.0, 1.0, 256.0, 8.0, 4096.0, 65536.0])
_DOUBT = np.array([1e-4, 1e-3, 1e-9, 1e-9, 1e-3, 1e-3])  # that something is the cause
_KNOWN = 8  # steps after which costs are used


class StepTime:
    """Seconds of steps, by their size.

    >>> times = StepTime()
    >>> for n in range(1, 200):
    ...     times.note(StepSize(1, 0, 0, n % 7, 10 * n, 0), 0.02 + 0.001 * (n % 7))
    >>> round(times.seconds(StepSize(1, 0, 0, 5, 100, 0)), 3)
    0.025
    """

    def __init__(self, costs: Sequence[float] | None = None, memory: int = 2000) -> None:
        n = len(_SCALE)
        self.costs = [0.0] * n if costs is None else list(map(float, costs))
        self.steps = 0
        self.noise: deque[float] = deque(maxlen=2048)  # seconds over what was expected
        self._keep = 1 - 1 / memory
        self._left, self._right = np.eye(n) * 1e-9, np.zeros(n)

    def note(self, size: StepSize, seconds: float) -> None:
        """A step took so long. Errors count by their share, of short steps as much as of long."""
        guess = self.seconds(size) if self.steps > 32 else seconds
        if self.steps > 64:
            self.noise.append(seconds / max(guess, 1e-9))
            seconds = min(seconds, 8 * guess + 1e-3)  # the machine did something else
        x = np.asarray(size) / _SCALE / max(guess, 1e-6)
        self._left = self._left * self._keep + np.outer(x, x)
        self._right = self._right * self._keep + x * seconds / max(guess, 1e-6)
        self.steps += 1
        if self.steps < 32 or self.steps % 16 == 0:
            self.costs = (_costs(self._left, self._right) / _SCALE).tolist()

    def seconds(self, size: Iterable[float]) -> float:
        """How long a step of a size takes."""
        return float(sum(map(mul, self.costs, size)))

    def budget(self, size: StepSize, pace: float, start: int, least: int, most: int) -> int:
        """How many tokens of a prompt, from `start` on, a step may hold beside others.

        With them it takes no more than `pace`, unless these are the least.
        """
        token = self.costs[2] + self.costs[5] * start
        if self.steps < _KNOWN or token <= 0:
            return most
        left = pace - self.seconds(size._replace(prefills=1))
        return int(min(most, max(least, left / token)))


class Between:
    """Seconds between tokens, as they were lately: the mean of all texts that are continued."""

    def __init__(self, memory: int = 512) -> None:
        self._keep = 1 - 1 / memory
        self._seconds = self._tokens = 0.0

    @property
    def mean(self) -> float:
        """Seconds; 0 before anything was noted."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        """A step gave so many tokens to texts in `rows` rows, all of which waited for it."""
        self._seconds = self._seconds * self._keep + rows * seconds
        self._tokens = self._tokens * self._keep + tokens


class Balance:
    """Tokens of prompts computed for a token of an answer, of requests that ended lately.

    >>> balance = Balance()
    >>> balance.note(256, 64)
    >>> balance.ratio
    4.0
    """

    def __init__(self, memory: int = 64) -> None:
        self._keep = 1 - 1 / memory
        self._prompts = self._answers = 0.0

    @property
    def ratio(self) -> float:
        """Tokens; 0 before any request ended."""
        return self._prompts / self._answers if self._answers else 0.0

    def note(self, prompt: int, answer: int) -> None:
        """A request is over for which so many tokens were computed."""
        self._prompts = self._prompts * self._keep + prompt
        self._answers = self._answers * self._keep + answer


def _costs(left: Array, right: Array) -> Array:
    """The costs, none negative, that fit best or nearly so."""
    kept = list(range(len(right)))
    while kept:
        ridge = np.trace(left) * np.diag(_DOUBT[kept])
        found = np.linalg.solve(left[np.ix_(kept, kept)] + ridge, right[kept])
        if found.min() >= 0:
            costs = np.zeros(len(right))
            costs[kept] = found
            return costs
        del kept[int(found.argmin())]
    return np.zeros(len(right))


__all__ = ["Balance", "Between", "StepSize", "StepTime"]
