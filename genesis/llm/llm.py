"""`LLM`: a model from its files, ready to generate, chat and embed.

A thread runs the engine while there is something to do. Every call puts its requests beside those
of others and waits for its own events, so an `LLM` can be used from many threads, and from asyncio.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genesis.llm.chat_template import ChatTemplate
from genesis.llm.config import BadModel
from genesis.llm.context_overflow import ASK, fitted
from genesis.llm.engine import Engine, Event, TokenLogprobs
from genesis.llm.engine_thread import EngineThread, Mailbox, RequestFailed, Submitted
from genesis.llm.executor import MemoryNeeds
from genesis.llm.loading import Loaded, Settings, load
from genesis.llm.sampling import SamplingParams
from genesis.llm.structured import Grammars
from genesis.weights.checkpoint_reader import read_json

Prompt = str | Sequence[int]


@dataclass
class Answer:
    """One answer to a prompt. `reason`: "stop", "length", "cancelled" or "deadline"."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass
class Completion:
    """The answers to a prompt."""

    prompt: list[int]
    answers: list[Answer]
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.answers[0].text


class LLM:
    """A language model.

    `path` is a folder of Hugging Face files or a GGUF file; `how` are the fields of `Settings`:
    the format of the weights, the memory of the cache, the longest text. A model with an encoder
    embeds, one with a decoder generates.
    """

    def __init__(self, path: str | Path, **how: Any) -> None:
        self.path = Path(path)
        self._model: Loaded = load(self.path, Settings(**how))
        self.tokenizer = self._model.tokenizer
        self.template = ChatTemplate(
            self.tokenizer.chat_templates or None, self.tokenizer.special_tokens
        )
        self._grammars: Grammars | None = None
        #: What `generation_config.json` says of sampling, for requests that say nothing.
        self.defaults = sampling_defaults(self.path)
        self._loop: EngineThread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"LLM({str(self.path)!r})"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; what is running is cancelled, and what is cached goes to the disk."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        if self._loop is not None:
            self._loop.close()
        if self._model.engine is not None:
            self._model.engine.close()
        self.template.close()

    def abandon(self, error: BaseException) -> None:
        """Fail what is running, and leave a thread to itself that shows no sign of life."""
        self._closed = True
        if self._loop is not None:
            self._loop.abandon(error)
        self.template.close()

    @property
    def generates(self) -> bool:
        """Whether the model writes texts; if not, it embeds them."""
        return self._model.engine is not None

    @property
    def engine(self) -> Engine:
        """The engine that generates."""
        if self._model.engine is None:
            raise TypeError(f"{self.path}: this model embeds texts, it does not generate any")
        return self._model.engine

    @property
    def context(self) -> int:
        """The longest text, prompt and answer together."""
        return self.engine.scheduler.limits.context

    @property
    def memory(self) -> MemoryNeeds:
        """The bytes of weights and pages, and the most that any step needs beside them."""
        engine, limits = self.engine, self.engine.scheduler.limits
        rows = min(limits.step_tokens, limits.sequences * (1 + engine.drafts))
        return engine.executor.memory(rows, limits.step_tokens, limits.context)

    # ---- prompts

    def encode(self, prompt: Prompt, *, chat: bool = False) -> list[int]:
        """A prompt as tokens."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=not chat)
        return [int(token) for token in prompt]

    def constraint(self, response_format: Mapping[str, Any] | None) -> Any:
        """What an answer must follow: one of json, regex, lark or choice, with its content."""
        if response_format is None:
            return None
        if self._grammars is None:
            vocabulary = self.engine.executor.decoder.config.vocabulary
            self._grammars = Grammars(self.tokenizer, vocabulary)
        ((kind, content),) = response_format.items()
        makers = ("json", "regex", "lark", "choice")
        if kind not in makers:
            raise ValueError(f"response_format: {kind!r} is none of {', '.join(makers)}")
        return getattr(self._grammars, kind)(content)

    # ---- generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        response_format: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Any:
        """The completion of a prompt, or a list of those of many.

        A prompt is a text or a list of tokens. `how` are fields of `SamplingParams`, and
        `priority`, `deadline` (seconds from now), `key`, `salt`, `adapter` (a folder) of the
        request.
        """
        one = isinstance(prompts, str) or (
            len(prompts) > 0 and all(isinstance(t, int | np.integer) for t in prompts)
        )
        many: Sequence[Any] = [prompts] if one else prompts
        params, request = self._split(params, how)
        submitted: list[Submitted] = []
        try:
            for prompt in many:
                own = self.constraint(response_format)
                later = self.loop.submit(self.encode(prompt), params, own, request)
                submitted.append(later.result())
            found = [_completion(s) for s in submitted]
        finally:
            for s in submitted:
                s.cancel()
        return found[0] if one else found

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Iterator[Event]:
        """Pieces of the answers to a prompt, as they are found."""
        params, request = self._split(params, how)
        tokens, constraint = self.encode(prompt), self.constraint(response_format)
        submitted = self.loop.submit(tokens, params, constraint, request).result()
        try:
            yield from submitted
        finally:
            submitted.cancel()

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **template: Any
    ) -> list[int]:
        """A conversation as the tokens of a prompt."""
        text = self.template.render(messages, tools=tools, **template)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Any = None,
        full: str = "error",
        **how: Any,
    ) -> Completion:
        """The answer to a conversation: dictionaries with `role` and `content`.

        `full` says what becomes of one that does not fit the context: an "error", or its oldest
        turns "drop" out, or a summary by the model takes their place ("summarise").
        """
        said = {k: v for k, v in how.items() if k not in (*_REQUEST, "response_format")}
        most = (params or self._split(None, said)[0]).max_tokens
        messages = fitted(
            messages, full, self.context - most, lambda m: len(self.render(m, tools)), self._summary
        )
        completion: Completion = self.generate(self.render(messages, tools), params, **how)
        return completion

    def _summary(self, messages: Sequence[Mapping[str, Any]], tokens: int) -> str:
        asked = [*messages, {"role": "user", "content": ASK}]
        return self.chat(asked, full="drop", max_tokens=tokens, temperature=0).text

    async def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> AsyncIterator[Event]:
        """`stream` for asyncio."""
        params, request = self._split(params, how)
        tokens = await asyncio.to_thread(self.encode, prompt)
        constraint = await asyncio.to_thread(self.constraint, response_format)
        mailbox = Mailbox()
        later = self.loop.submit(tokens, params, constraint, request, mailbox.put)
        submitted = await mailbox.submit(later)
        try:
            async for events in mailbox:
                for event in events:
                    yield event
        finally:
            submitted.cancel()

    async def agenerate(self, prompt: Prompt, *args: Any, **how: Any) -> Completion:
        """`generate` of one prompt, for asyncio."""
        completion = Completion(self.encode(prompt), [])
        async for event in self.astream(completion.prompt, *args, **how):
            _add(completion, event)
        return completion

    def embed(self, texts: str | Sequence[str]) -> np.ndarray[Any, Any]:
        """A vector for each text."""
        if self._model.encoder is None:
            raise TypeError(f"{self.path}: this model generates texts, it does not embed them")
        many = [texts] if isinstance(texts, str) else texts
        vectors = self._model.encoder.embed([self.tokenizer.encode(text) for text in many])
        return vectors[0] if isinstance(texts, str) else vectors

    @property
    def loop(self) -> EngineThread:
        """The thread that runs the engine, started when it is first needed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this LLM is closed")
            if self._loop is None:
                self._loop = EngineThread(self.engine)
            return self._loop

    def _split(
        self, params: SamplingParams | None, how: dict[str, Any]
    ) -> tuple[SamplingParams, dict[str, Any]]:
        """What a request says of sampling, and the rest."""
        request = {name: how.pop(name) for name in _REQUEST if name in how}
        if params is not None and how:
            raise TypeError(f"give params or {', '.join(how)}, not both")
        return params or SamplingParams(**{**self.defaults, **how}), request


_REQUEST = ("priority", "deadline", "due", "pace", "key", "salt", "drafts", "turns", "adapter")
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


def sampling_defaults(path: Path) -> dict[str, Any]:
    """What the files of a model say of sampling: nothing, unless they say that it samples."""
    file = path / "generation_config.json"
    said = read_json(file) if path.is_dir() else {}
    if not said.get("do_sample"):
        return {}
    found = {name: said[name] for name in _DEFAULTS if said.get(name) is not None}
    try:
        SamplingParams(**found)
    except (TypeError, ValueError) as error:
        raise BadModel(f"{file}: {error}") from None
    return found


def _add(completion: Completion, event: Event) -> None:
    while len(completion.answers) <= event.index:
        completion.answers.append(Answer())
    answer = completion.answers[event.index]
    answer.text += event.text
    answer.tokens += event.tokens
    answer.logprobs += event.logprobs
    answer.reason = event.reason or answer.reason


def _completion(submitted: Submitted) -> Completion:
    found = Completion(submitted.tokens, [])
    for event in submitted:
        _add(found, event)
    found.prompt_logprobs = submitted.job.prompt_logprobs
    found.cached_tokens = submitted.cached_tokens
    return found


__all__ = ["LLM", "Answer", "Completion", "RequestFailed"]
