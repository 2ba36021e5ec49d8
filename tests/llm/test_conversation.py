"""Conversations that do not fit the context any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from genesis.llm import LLM, Refused
from genesis.llm.context_overflow import fitted

SYSTEM = {"role": "system", "content": "be brief"}
TALK = [
    {"role": "assistant" if k % 2 else "user", "content": f"the cat sat on the mat {k} times"}
    for k in range(9)
]


def words(messages: Sequence[Any]) -> int:
    return sum(len(m["content"].split()) for m in messages)


def never(messages: Sequence[Any], tokens: int) -> str:
    raise AssertionError("nothing is to be summarised")


def test_the_last_turns_that_fit_are_left() -> None:
    assert fitted([SYSTEM, *TALK], "drop", 2 + 9 * 8, words, never) == [SYSTEM, *TALK]
    assert fitted([SYSTEM, *TALK], "drop", 73, words, never) == [SYSTEM, *TALK[2:]]
    assert fitted([SYSTEM, *TALK], "drop", 10, words, never) == [SYSTEM, TALK[8]]
    assert fitted(TALK, "drop", 7, words, never) == TALK  # not even the last: the engine refuses
    with pytest.raises(ValueError, match="full: 'forget' is none of error, drop, summarise"):
        fitted(TALK, "forget", 7, words, never)


def test_a_summary_takes_the_place_of_the_oldest_turns() -> None:
    asked = []

    def summarise(messages: Sequence[Any], tokens: int) -> str:
        asked.append((list(messages), tokens))
        return "cats sat"

    found = fitted([SYSTEM, *TALK], "summarise", 60, words, summarise)
    assert asked == [([SYSTEM, *TALK[:4]], 15)]
    assert found == [
        SYSTEM,
        {**TALK[4], "content": f"Our conversation until now: cats sat\n\n{TALK[4]['content']}"},
        *TALK[5:],
    ]
    assert TALK[4]["content"] == "the cat sat on the mat 4 times"  # the caller's is as it was


def test_a_model_goes_on_with_a_conversation_that_is_too_long(llm: LLM) -> None:
    talk = [dict(m) for m in TALK * 20]
    assert len(llm.render(talk)) > llm.context
    how: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with pytest.raises(Refused, match="do not fit the context"):
        llm.chat(talk, **how)
    dropped = llm.chat(talk, full="drop", **how)
    assert len(dropped.answers[0].tokens) == 4
    assert llm.context - 200 < len(dropped.prompt) <= llm.context - 4
    shorter = llm.chat(talk, full="summarise", **how)
    assert "Our conversation until now" in llm.tokenizer.decode(shorter.prompt)
    assert len(shorter.prompt) < len(dropped.prompt)
    assert llm.chat(TALK[:1], full="drop", **how).prompt == llm.render(TALK[:1])
