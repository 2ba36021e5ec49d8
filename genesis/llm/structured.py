"""Structured output: answers that follow a JSON schema, a regular expression or a grammar.

The library `llguidance` knows which tokens may follow; what may not follow has no chance of being
chosen. A schema that it does not understand is an error of the request that brought it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis.llm.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]


class BadGrammar(ValueError):
    """A schema, expression or grammar that cannot be followed."""


class Grammars:
    """Makes constraints for a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        try:
            import llguidance
        except ImportError:
            raise ImportError(
                "structured output needs the library llguidance: pip install genesis[llm]"
            ) from None
        self._library = llguidance
        self._vocabulary = vocabulary
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer.to_json(),
            n_vocab=max(vocabulary, tokenizer.vocab_size),
            eos_token=sorted(tokenizer.eos_ids) or None,
        )

    def json(self, schema: Any = None) -> Grammar:
        """Answers that are JSON, by a schema if one is given (a dictionary or its text)."""
        schema = {"type": "object"} if schema is None else schema
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            return self._made(self._library.LLMatcher.grammar_from_json_schema(text))
        except (TypeError, ValueError, RecursionError) as e:
            raise BadGrammar(f"JSON schema: {_short(e)}") from None

    def regex(self, expression: str) -> Grammar:
        """Answers that match a regular expression."""
        try:
            return self._made(self._library.LLMatcher.grammar_from_regex(expression))
        except ValueError as e:
            raise BadGrammar(f"regular expression {expression!r:.80}: {_short(e)}") from None

    def lark(self, grammar: str) -> Grammar:
        """Answers that a grammar in Lark's notation derives."""
        try:
            return self._made(self._library.LLMatcher.grammar_from_lark(grammar))
        except ValueError as e:
            raise BadGrammar(f"grammar: {_short(e)}") from None

    def choice(self, answers: Sequence[str]) -> Grammar:
        """One of some answers."""
        if not answers or not all(isinstance(a, str) for a in answers):
            raise BadGrammar("choice: takes at least one text")
        return self.lark("start: " + " | ".join(json.dumps(a) for a in answers))

    def _made(self, grammar: str) -> Grammar:
        matcher = self._library.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return Grammar(matcher, self._vocabulary)


class Grammar:
    """What may follow in one answer."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allow(self, scores: Array) -> Array:
        """Scores with -infinity for what may not follow."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._sound()
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        if not allowed.any():
            raise BadGrammar("nothing may follow, and the answer is not complete")
        return np.where(allowed, scores[: len(allowed)], np.float32(-np.inf))

    def push(self, token: int) -> bool:
        """Take a token; True if the answer is complete and nothing may follow."""
        self._matcher.consume_token(token)
        self._sound()
        return bool(self._matcher.is_stopped())

    def fork(self) -> Grammar:
        """The same, to go on differently."""
        return Grammar(self._matcher.deep_copy(), self._vocabulary)

    def _sound(self) -> None:
        if self._matcher.is_error():
            raise BadGrammar(_short(self._matcher.get_error()))


def _short(error: object) -> str:
    return str(error).strip().split("\n")[0][:300]


__all__ = ["BadGrammar", "Grammar", "Grammars"]
