"""Decisions: where a rule could go several ways, it asks.

A rule ranks its options and asks a *question*; the answer is the first option, unless somebody
knows better. Somebody is a tuner that measured: it schedules a kernel under a few decisions, and
the questions that were asked, with their options, tell it what else there is to try. So the rules
know nothing of tuning, and the tuner nothing of rules.

Options are plain data (numbers, texts, tuples of them). A decision names the option itself rather
than its rank, and one that is no longer offered is passed over: decisions outlive the heuristics
that ranked the options.

>>> with deciding({"tile": (6, 32)}) as asked:
...     decide("tile", [(14, 32), (6, 32)]), decide("order", ["rows", "columns"])
((6, 32), 'rows')
>>> asked
{'tile': ((14, 32), (6, 32)), 'order': ('rows', 'columns')}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

#: What can be chosen: plain data.
Choice = bool | int | str | tuple["Choice", ...]
#: Answers by question.
Decisions = Mapping[str, Choice]

T = TypeVar("T", bound=Choice)

_current: ContextVar[tuple[Decisions, dict[str, tuple[Choice, ...]]] | None] = ContextVar(
    "decisions", default=None
)


def decide(question: str, options: Sequence[T]) -> T:
    """One of the options: the first, the best by rule, unless it was decided otherwise.

    An option may occur twice. A question that is asked again while a kernel is scheduled gets the
    same answer, if it can.
    """
    current = _current.get()
    if current is None:
        return options[0]
    decisions, asked = current
    asked.setdefault(question, tuple(dict.fromkeys(options)))
    wanted = decisions.get(question)
    return next((x for x in options if x == wanted and type(x) is type(wanted)), options[0])


@contextmanager
def deciding(decisions: Decisions) -> Iterator[dict[str, tuple[Choice, ...]]]:
    """Schedule under `decisions` inside a ``with`` block; it gives the questions that are asked."""
    asked: dict[str, tuple[Choice, ...]] = {}
    before = _current.set((decisions, asked))
    try:
        yield asked
    finally:
        _current.reset(before)
