"""Speculation: several tokens of an answer in one step.

A proposer guesses the next tokens, and the model looks at all of them at once. At every place the
token is chosen as it would be without a guess, with the same random word; the guess is kept as far
as it is what was chosen. So answers are the same, token for token, with whatever proposer and
however long its guesses, and only the number of steps differs. For a guess that is certain of its
token this keeps as many as rejection sampling would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from genesis.llm.executor import Executor
from genesis.llm.pages import Copy
from genesis.llm.request import TokenSpan

#: Tokens of a text that a guess looks up, at most.
LONGEST = 4


class ContinuedText(NamedTuple):
    """A text that is about to be continued by the last of its tokens, and how.

    `choose` gives the token that the request would choose by some scores, `ahead` tokens later.
    """

    work: TokenSpan
    span: int
    tokens: Sequence[int]
    most: int
    choose: Callable[[Any, int], int]


class Proposer(Protocol):
    """Guesses how texts go on."""

    def arrange(self, copies: Sequence[Copy], works: Sequence[TokenSpan]) -> None:
        """Pages are copied, and some are begun by works."""

    def prefill(self, work: TokenSpan, span: int) -> None:
        """The model computed a piece of a prompt."""

    def propose(self, texts: Sequence[ContinuedText]) -> list[list[int]]:
        """Up to `most` tokens for each text."""


class NGrams:
    """Guesses that what followed the last few tokens before follows them again; needs no model.

    >>> NGrams().guess([1, 2, 3, 9, 1, 2], 2)
    [3, 9]
    """

    def __init__(self, longest: int = LONGEST, shortest: int = 1) -> None:
        self.longest, self.shortest = longest, shortest

    def arrange(self, copies: Sequence[Copy], works: Sequence[TokenSpan]) -> None:
        """Nothing to do."""

    def prefill(self, work: TokenSpan, span: int) -> None:
        """Nothing to do."""

    def propose(self, texts: Sequence[ContinuedText]) -> list[list[int]]:
        """Up to `most` tokens for each text."""
        return [self.guess(text.tokens, text.most) for text in texts]

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """What followed the longest end of the text that stands in it once more, the last time."""
        tokens = list(tokens)
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = tokens[-size:]
            for at in range(len(tokens) - size - 1, -1, -1):
                if tokens[at : at + size] == end:
                    return tokens[at + size : at + size + most]
        return []


class Draft:
    """Guesses with a smaller model, or with the first layers of the model itself.

    It keeps keys and values on pages of its own, with the same numbers as the model's: so it needs
    no bookkeeping, and what the scheduler shares, copies and drops is so for both. After guesses
    that were all right, the last of them is missing there: the last two tokens are computed again.
    """

    def __init__(self, executor: Executor, shares_pages: bool = False) -> None:
        self.executor, self.shares_pages = executor, shares_pages

    def arrange(self, copies: Sequence[Copy], works: Sequence[TokenSpan]) -> None:
        """Do with pages of its own what is done with the model's."""
        if not self.shares_pages:
            self.executor.copy_pages(copies)
            self.executor.fresh(works)

    def prefill(self, work: TokenSpan, span: int) -> None:
        """Compute the piece of a prompt, too; the model's own layers already have."""
        if not self.shares_pages:
            self.executor.prefill(work, span, scores="none")

    def propose(self, texts: Sequence[ContinuedText]) -> list[list[int]]:
        """Up to `most` tokens for each text, all texts together."""
        guesses: list[list[int]] = [[] for _ in texts]
        for k in range(max((text.most for text in texts), default=0)):
            chosen = [i for i, text in enumerate(texts) if k < text.most]
            works = [self._next(texts[i], guesses[i]) for i in chosen]
            scores = self.executor.decode(works, [texts[i].span for i in chosen])
            for i, found in zip(chosen, scores, strict=True):
                guesses[i].append(texts[i].choose(found[-1], k))
        return guesses

    def _next(self, text: ContinuedText, guesses: list[int]) -> TokenSpan:
        tokens = [*text.tokens, *guesses]
        again = not guesses and not self.shares_pages  # there nothing is missing
        count = min(2, len(tokens)) if again else 1
        return text.work._replace(start=len(tokens) - count, tokens=tokens[-count:])


class RowCost:
    """What one more row adds to a step, as a part of the step without guesses: measured."""

    def __init__(self) -> None:
        self.value = 0.05
        self._alone: dict[int, float] = {}  # seconds of steps without guesses, by texts

    def note(self, texts: int, guessed: int, seconds: float) -> None:
        """A step looked at some texts, and at guesses of how they go on."""
        if not guessed:
            old = self._alone.get(texts, seconds)
            self._alone[texts] = old + 0.2 * (seconds - old)
        elif texts in self._alone:
            cost = max(0.0, (seconds / self._alone[texts] - 1) / guessed)
            self.value += 0.1 * (cost - self.value)


class Length:
    """How many tokens to guess: as many as pay, by what guesses came to and what rows cost.

    A guess of k tokens that each are right with probability a gives ``1 + a + .. + a**k`` tokens,
    and takes a step of ``1 + k`` rows. Once nothing pays, every 32nd step tries again.

    >>> length = Length(most=4)
    >>> for _ in range(50):
    ...     length.note(4, 0)
    >>> length.next(row=0.1)
    0
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._right = 0.7  # of guessed tokens that were looked at
        self._idle = 0

    def next(self, row: float) -> int:
        """How many tokens to guess now, if a row costs so much of a step."""
        a = self._right
        gains = [sum(a**i for i in range(k + 1)) / (1 + row * k) for k in range(self.most + 1)]
        best = max(range(self.most + 1), key=gains.__getitem__)
        if best and gains[best] > 1.02:
            return best
        self._idle += 1
        return 1 if self._idle % 32 == 0 else 0

    def note(self, guessed: int, right: int) -> None:
        """Of some guessed tokens, so many were right before one was not."""
        if looked := min(guessed, right + 1):
            self._right += 0.1 * (right / looked - self._right)


__all__ = ["Draft", "Length", "NGrams", "Proposer", "RowCost", "ContinuedText"]
