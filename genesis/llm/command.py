"""`genesis chat` and `genesis llm generate`: a model in the terminal, token by token."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from genesis.llm.llm import LLM
from genesis.llm.request import Refused
from genesis.llm.sampling import SamplingParams

Message = Mapping[str, str]


def generate(llm: LLM, prompt: str, params: SamplingParams) -> None:
    """Print how a text goes on."""
    for text in _pieces(llm, llm.encode(prompt), params):
        print(text, end="", flush=True)
    print()


def chat(llm: LLM, params: SamplingParams, system: str | None = None) -> None:
    """Answer the lines of standard input until it ends; Ctrl-C ends an answer.

    A model without chat template was not made for conversations: it goes on with each line.
    """
    conversation = Conversation(llm, system) if llm.tokenizer.chat_templates else None
    for line in _lines():
        try:
            if conversation is not None:
                conversation.answer(line, params)
            else:
                generate(llm, line, params)
        except KeyboardInterrupt:
            print()
        except Refused as error:
            print(f"genesis: {error}", file=sys.stderr)


class Conversation:
    """What was said so far, of which the oldest is dropped when the context is full."""

    def __init__(self, llm: LLM, system: str | None = None) -> None:
        self.llm = llm
        self.system: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages: list[Message] = []
        self._rendered([{"role": "user", "content": "Hello"}])  # a bad template is an error now

    def answer(self, text: str, params: SamplingParams) -> None:
        """Print the answer to a message, and keep both, even if the answer is cut short."""
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            for piece in _pieces(self.llm, self._prompt(params.max_tokens), params):
                said.append(piece)
                print(piece, end="", flush=True)
            print()
        finally:
            self.messages.append({"role": "assistant", "content": "".join(said)})

    def _prompt(self, most: int) -> list[int]:
        """The conversation as tokens, with room for an answer or for a quarter of the context."""
        context = self.llm.context
        while True:
            tokens = self._rendered(self.messages)
            if len(self.messages) == 1 or context - len(tokens) >= min(most, context // 4):
                return tokens
            del self.messages[:2]  # a question and its answer

    def _rendered(self, messages: Sequence[Message]) -> list[int]:
        return self.llm.render([*self.system, *messages])


def _pieces(llm: LLM, tokens: Sequence[int], params: SamplingParams) -> Iterator[str]:
    """The answer to a prompt, as it is found and as far as the context goes."""
    room = max(1, llm.context - len(tokens))
    params = replace(params, max_tokens=min(params.max_tokens, room))
    with closing(llm.stream(tokens, params)) as events:  # type: ignore[type-var]
        for event in events:
            yield event.text


def _lines() -> Iterator[str]:
    """Lines that are not empty; a terminal is asked for them."""
    if not sys.stdin.isatty():
        yield from filter(str.strip, map(str.rstrip, sys.stdin))
        return
    import readline  # noqa: F401 - so that lines can be edited

    print("Ctrl-C stops an answer, Ctrl-D ends", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            return print()
        except KeyboardInterrupt:
            print()
            continue
        if line.strip():
            yield line


__all__ = ["Conversation", "chat", "generate"]
