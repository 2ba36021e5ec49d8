"""Conversations that have outgrown the context: without their oldest turns, or with a summary.

A turn begins with a message of the user. What the system says stays, and so does the last turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
#: What to do with a conversation that does not fit.
WAYS = ("error", "drop", "summarise")
#: The part of the room that a summary may take.
SHARE = 4
ASK = "Summarise our conversation so far in a few sentences: what was asked, decided and found."


def fitted(
    messages: Sequence[Message],
    way: str,
    room: int,
    length: Callable[[Sequence[Message]], int],
    summarise: Callable[[Sequence[Message], int], str],
) -> Sequence[Message]:
    """The messages, or as many of the last turns as fit a `room` of tokens by their `length`.

    `summarise` gives a text of some tokens about messages, which the first turn that is left then
    begins with. Where not even the last turn fits, nothing is changed.

    >>> talk = [{"role": r, "content": c} for r, c in (("user", "a"), ("bot", "b"), ("user", "c"))]
    >>> fitted(talk, "drop", 2, len, lambda old, tokens: "")
    [{'role': 'user', 'content': 'c'}]
    """
    if way not in WAYS:
        raise ValueError(f"full: {way!r} is none of {', '.join(WAYS)}")
    if way == "error" or length(messages) <= room:
        return messages
    before = next((k for k, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    system = list(messages[:before])
    tokens = room // SHARE if way == "summarise" else 0
    for k in range(before + 1, len(messages)):
        first, *rest = messages[k:]
        if first.get("role") != "user" or length([*system, first, *rest]) + tokens > room:
            continue
        summary = summarise(messages[:k], tokens) if tokens else ""
        while summary:
            told = f"Our conversation until now: {summary}\n\n{first.get('content', '')}"
            found = [*system, {**first, "content": told}, *rest]
            if length(found) <= room:
                return found
            summary = summary[: len(summary) // 2]  # its text may be other tokens than it was
        return [*system, first, *rest]
    return messages


__all__ = ["ASK", "WAYS", "fitted"]
