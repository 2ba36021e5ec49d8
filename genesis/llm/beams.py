"""Beam search: the likeliest answers, not the likeliest next tokens.

A request has `width` sequences that share the pages of what they have in common. In every step the
likeliest continuations of all of them are kept, whichever sequence they continue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from genesis.llm.sampling import log_probabilities

Array = np.ndarray[Any, Any]


class Beam(NamedTuple):
    """The beginning of an answer, and the logarithm of its probability."""

    tokens: list[int]
    score: float


@dataclass
class Beams:
    """The running beams of a request, and its finished answers.

    Answers are compared by their score over their length to the power of `length_penalty`.
    """

    width: int
    length_penalty: float = 1.0
    running: list[Beam] = field(default_factory=lambda: [Beam([], 0.0)])
    finished: list[Beam] = field(default_factory=list)

    def advance(self, rows: Sequence[Array], end: Collection[int]) -> list[tuple[int, int]]:
        """Continue all beams by the scores after each; the sequences continued, and by what."""
        found: list[tuple[float, int, int]] = []
        for parent, (beam, row) in enumerate(zip(self.running, rows, strict=True)):
            values = log_probabilities(row) + beam.score
            best = np.argpartition(-values, min(2 * self.width, len(values) - 1))[: 2 * self.width]
            found += [(float(values[token]), parent, int(token)) for token in best]
        found.sort(key=lambda x: (-x[0], x[1], x[2]))
        old, self.running, chosen = self.running, [], []
        for rank, (score, parent, token) in enumerate(found):
            beam = Beam([*old[parent].tokens, token], score)
            if token in end:
                if rank < self.width:
                    self.finished.append(beam)
                continue
            self.running.append(beam)
            chosen.append((parent, token))
            if len(chosen) == self.width:
                break
        self.finished.sort(key=self.value, reverse=True)
        del self.finished[self.width :]
        return chosen

    def value(self, beam: Beam) -> float:
        """How good an answer is."""
        length = float(max(len(beam.tokens), 1))
        return float(beam.score / length**self.length_penalty)

    def over(self, longest: int) -> bool:
        """Whether no running beam can become one of the best answers."""
        if not self.running or len(self.running[0].tokens) >= longest:
            return True
        if len(self.finished) < self.width:
            return False
        return self.value(self.finished[-1]) >= self.value(self.running[0])

    def answers(self, count: int) -> list[Beam]:
        """The best answers, running ones included if fewer are finished."""
        rest = sorted(self.running, key=self.value, reverse=True)
        more = rest[: max(0, self.width - len(self.finished))]
        return sorted([*self.finished, *more], key=self.value, reverse=True)[:count]


__all__ = ["Beam", "Beams"]
