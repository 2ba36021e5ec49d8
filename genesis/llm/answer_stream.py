"""One answer as it grows: its tokens, their text, and where a stop string ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class TextStream(Protocol):
    """Text from tokens, one after the other."""

    def push(self, token: int) -> str:
        """The text that a token completes."""

    def finish(self) -> str:
        """What is left."""


class TokenConstraint(Protocol):
    """What the next token may be, by a grammar."""

    def allow(self, scores: Array) -> Array:
        """Scores with -infinity for what may not follow."""

    def push(self, token: int) -> bool:
        """Take a token; True if nothing may follow."""

    def fork(self) -> TokenConstraint:
        """The same, to go on differently."""


class AnswerStream:
    """One answer of a request."""

    def __init__(
        self,
        index: int,
        text: TextStream | None,
        stop: Sequence[str],
        constraint: TokenConstraint | None,
    ) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.constraint = constraint
        self._text, self._stop = text, stop
        self._held = ""  # text that may be the beginning of a stop string
        self._longest = max(map(len, stop), default=0)

    def push(self, token: int) -> tuple[str, bool]:
        """The text that can be shown after a token, and whether a stop string ended it."""
        self.tokens.append(token)
        if self._text is None:
            return "", False
        self._held += self._text.push(token)
        return self._shown()

    def finish(self) -> str:
        """What was held back, when nothing follows."""
        if self._text is not None:
            self._held += self._text.finish()
        shown, stopped = self._shown()
        return shown if stopped else shown + self._held

    def _shown(self) -> tuple[str, bool]:
        places = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if places:
            shown, self._held = self._held[: min(places)], ""
            return shown, True
        keep = 0
        for size in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-size:]) for s in self._stop):
                keep = size
                break
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False


__all__ = ["AnswerStream", "TextStream", "TokenConstraint"]
