"""`/v1/completions`: of prompts, each a text or tokens, which are computed side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import reduce
from typing import Any

from genesis.llm import LLM
from genesis.llm.engine import TokenLogprobs
from genesis.serve.answers import (
    AnswerPiece,
    Answers,
    Asked,
    Wanted,
    aside,
    ask,
    check_bias,
    check_length,
    constraint_of,
    prompt_of,
    room,
)
from genesis.serve.chat import (
    ChatMessage,
    Json,
    generating,
    head_of,
    schema_of,
    token_row,
    wants_usage,
)
from genesis.serve.errors import ApiError
from genesis.serve.model_pool import Models, ServedModel
from genesis.serve.request_body import RequestBody, params_of, sampling

Prompt = str | list[int]


def _prompts(body: RequestBody, most: int) -> list[Prompt]:
    """One prompt or several."""
    given = body.raw("prompt")
    many = isinstance(given, list) and given and isinstance(given[0], str | list)
    found = given if many else [given]
    if len(found) > most or not all(_is_prompt(prompt) for prompt in found):
        meaning = f"a text, a list of tokens, or at most {most} of these"
        raise body.wrong("prompt", meaning)
    return list(found)


def _is_prompt(prompt: Any) -> bool:
    tokens = isinstance(prompt, list) and all(type(t) is int and t >= 0 for t in prompt)
    return bool(prompt) and (isinstance(prompt, str) or tokens)


async def completions(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/completions`."""
    body.refuse(best_of=1)
    prompts = _prompts(body, asked.caps.n)
    echo, stream, usage = body.flag("echo"), body.flag("stream"), wants_usage(body)
    most = body.integer("max_completion_tokens", body.integer("max_tokens", 16, 0), 0)
    async with models.use(body.text("model")) as (model, adapter), AsyncExitStack() as stack:
        asked.parts = [replace(asked, record={}) for _ in prompts]
        answers: list[Answers] = []
        for part, prompt in zip(asked.parts, prompts, strict=True):
            wanted = await _wanted(part, body, model, adapter, prompt, most or 1, echo)
            answers.append(await ask(part, body, wanted))
            stack.callback(answers[-1].cancel)  # should a later one be refused
        n = answers[0].wanted.params.n
        choices = [_Choice(generating(model), a, echo, not most) for a in answers for _ in range(n)]
        head = head_of("text_completion", asked, body.text("model") or model.name)
        async with aclosing(_side_by_side(answers)) as pieces:  # type: ignore[type-var]
            async for number, piece in pieces:
                index = number * n + piece.index
                choices[index].message.add(piece)
                if stream:
                    yield {**head, "choices": [choices[index].row(index)]}
        if not stream:
            rows = [choice.row(index) for index, choice in enumerate(choices)]
            yield {**head, "choices": rows, "usage": _usage(answers)}
        elif usage:
            yield {**head, "choices": [], "usage": _usage(answers)}


async def _wanted(
    asked: Asked, body: RequestBody, model: ServedModel, adapter: str | None, prompt: Prompt,
    most: int, echo: bool,
) -> Wanted:  # fmt: skip
    """A prompt as what is wanted of a model."""
    llm = generating(model)
    logprobs = body.integer("logprobs", None, 0, asked.caps.logprobs)
    schema = schema_of(body.table("response_format"), asked)
    suffix = body.text("suffix")
    if suffix:
        if echo or not isinstance(prompt, str):
            raise body.wrong("suffix", "to be had with echo, or with a prompt of tokens")
        tokens = await aside(_filled_in, llm, prompt, suffix)
    else:
        tokens = await aside(prompt_of, llm, prompt) if isinstance(prompt, str) else prompt
    fields = sampling(body, llm.defaults, room(llm, tokens, most), asked.caps.n)
    fields |= {"logprobs": logprobs, "prompt_logprobs": logprobs if echo else None}
    params = params_of(fields)
    check_bias(llm, params)
    constraint = await constraint_of(llm, model, schema, None, False, False)
    return Wanted(model, adapter, tokens, params, constraint)


def _filled_in(llm: LLM, prompt: str, suffix: str) -> list[int]:
    check_length(llm, prompt + suffix)
    try:
        return llm.tokenizer.fill_in(prompt, suffix)
    except ValueError as error:
        raise ApiError(400, f"suffix: {error}", param="suffix") from None


async def _side_by_side(answers: Sequence[Answers]) -> AsyncIterator[tuple[int, AnswerPiece]]:
    """The pieces of several requests as they come, each with its request's number."""
    arrived: asyncio.Queue[tuple[int, AnswerPiece] | Exception | None] = asyncio.Queue(8)

    async def read(number: int) -> None:
        try:
            async with aclosing(answers[number].__aiter__()) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    await arrived.put((number, piece))
            await arrived.put(None)
        except Exception as error:
            await arrived.put(error)

    tasks = [asyncio.create_task(read(number)) for number in range(len(answers))]
    running = len(tasks)
    try:
        while running:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                yield item
            running -= item is None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Choice:
    """An answer as it grows: `message` is what was not told yet."""

    def __init__(self, llm: LLM, answers: Answers, echo: bool, silent: bool) -> None:
        self.message = ChatMessage()
        self._llm, self._answers = llm, answers
        self._echo, self._silent = echo, silent  # whether the prompt, or only that, is told
        self._told = 0  # characters

    def row(self, index: int) -> Json:
        """What is new."""
        message, self.message = self.message, ChatMessage()
        text, noted = message.content, message.logprobs
        first: list[int] = []  # the first token of a prompt, of which nothing was thought
        if self._silent:
            text, noted = "", []
        if self._echo:
            self._echo, tokens = False, self._answers.wanted.tokens
            text = self._llm.tokenizer.decode(tokens) + text
            if self._answers.wanted.params.prompt_logprobs is not None:
                noted, first = self._answers.prompt_logprobs() + noted, tokens[:1]
        found = self._logprobs(first, noted) if first or noted else None
        return {"index": index, "text": text, "logprobs": found, "finish_reason": message.reason}

    def _logprobs(self, first: list[int], noted: Sequence[TokenLogprobs]) -> Json:
        def text(token: int) -> str:
            return str(token_row(self._llm, token, 0.0)["token"])

        texts = [text(token) for token in (*first, *(n.token for n in noted))]
        offsets = [self._told + sum(map(len, texts[:k])) for k in range(len(texts))]
        self._told += sum(map(len, texts))
        nothing = [None] * len(first)
        return {
            "tokens": texts, "text_offset": offsets,
            "token_logprobs": [*nothing, *(max(n.logprob, -9999.0) for n in noted)],
            "top_logprobs": [*nothing, *({text(t): v for t, v in n.top.items()} for n in noted)],
        }  # fmt: skip


def _usage(answers: Sequence[Answers]) -> Json:
    """The tokens of all requests together."""
    first, *others = (one.usage() for one in answers)
    return reduce(_sum, others, first)


def _sum(a: Json, b: Json) -> Json:
    return {k: _sum(a[k], b[k]) if isinstance(a[k], dict) else a[k] + b[k] for k in a}


__all__ = ["completions"]
