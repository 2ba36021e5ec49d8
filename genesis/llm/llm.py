"""`LLM`: a model from its files, ready to generate, chat and embed.

A thread runs the engine while there is something to do. Every call puts its requests beside those
of others and waits for its own events, so an `LLM` can be used from many threads, and from asyncio.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genesis.llm.chat_template import ChatTemplate
from genesis.llm.engine import Engine, Event, TokenLogprobs
from genesis.llm.executor import Memory
from genesis.llm.loading import Loaded, Settings, load
from genesis.llm.sampling import SamplingParams
from genesis.llm.structured import Grammars

Prompt = str | Sequence[int]


class RequestFailed(RuntimeError):
    """A request ended with an error of its own."""


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
        self._loop: _Loop | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"LLM({str(self.path)!r})"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; what is running is cancelled."""
        self._closed = True
        if self._loop is not None:
            self._loop.close()
        if self._model.engine is not None:
            self._model.engine.close()
        self.template.close()

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
    def memory(self) -> Memory:
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
        params, request = _split(params, how)
        submitted = []
        try:
            for prompt in many:
                tokens = self.encode(prompt)
                own = self.constraint(response_format)
                submitted.append(self._submit(tokens, params, own, request))
            found = [s.completion() for s in submitted]
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
        params, request = _split(params, how)
        submitted = self._submit(
            self.encode(prompt), params, self.constraint(response_format), request
        )
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
        self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **how: Any
    ) -> Completion:
        """The answer to a conversation: dictionaries with `role` and `content`."""
        completion: Completion = self.generate(self.render(messages, tools), **how)
        return completion

    async def astream(self, prompt: Prompt, **how: Any) -> AsyncIterator[Event]:
        """`stream` for asyncio."""
        params, request = _split(None, how)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

        def deliver(event: Event | BaseException | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        submitted = self._submit(self.encode(prompt), params, None, request, deliver)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            submitted.cancel()

    async def agenerate(self, prompt: Prompt, **how: Any) -> Completion:
        """`generate` for asyncio."""
        completion = Completion(self.encode(prompt), [])
        async for event in self.astream(completion.prompt, **how):
            _add(completion, event)
        return completion

    def embed(self, texts: str | Sequence[str]) -> np.ndarray[Any, Any]:
        """A vector for each text."""
        if self._model.encoder is None:
            raise TypeError(f"{self.path}: this model generates texts, it does not embed them")
        many = [texts] if isinstance(texts, str) else texts
        vectors = self._model.encoder.embed([self.tokenizer.encode(text) for text in many])
        return vectors[0] if isinstance(texts, str) else vectors

    def _submit(
        self,
        tokens: list[int],
        params: SamplingParams,
        constraint: Any,
        request: dict[str, Any],
        deliver: Any = None,
    ) -> _Submitted:
        if self._closed:
            raise RuntimeError("this LLM is closed")
        if self._loop is None:
            self._loop = _Loop(self.engine)
        return self._loop.submit(tokens, params, constraint, request, deliver)


_REQUEST = ("priority", "deadline", "key", "salt", "drafts", "turns", "adapter")


def _split(
    params: SamplingParams | None, how: dict[str, Any]
) -> tuple[SamplingParams, dict[str, Any]]:
    request = {name: how.pop(name) for name in _REQUEST if name in how}
    if params is not None and how:
        raise TypeError(f"give params or {', '.join(how)}, not both")
    return params or SamplingParams(**how), request


def _add(completion: Completion, event: Event) -> None:
    while len(completion.answers) <= event.index:
        completion.answers.append(Answer())
    answer = completion.answers[event.index]
    answer.text += event.text
    answer.tokens += event.tokens
    answer.logprobs += event.logprobs
    answer.reason = event.reason or answer.reason


class _Loop:
    """The thread that runs an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._waiting: dict[str, _Submitted] = {}
        self._closed = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="genesis.llm", daemon=True)
        self._thread.start()

    def submit(
        self, tokens: list[int], params: SamplingParams, constraint: Any, request: Any, deliver: Any
    ) -> _Submitted:
        with self.lock:
            if self._failed is not None:
                raise RuntimeError("the engine failed before") from self._failed
            if request.get("deadline") is not None:
                request = {**request, "deadline": self.engine.clock() + request["deadline"]}
            id = self.engine.submit(tokens, params, constraint=constraint, **request)
            found = self._waiting[id] = _Submitted(self, id, tokens, params.n, deliver)
            self._work.notify()
            return found

    def cancel(self, id: str) -> None:
        with self.lock:
            if id in self._waiting:
                self.engine.cancel(id)
                self._work.notify()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self.lock:
                while not self._closed and not len(self.engine):
                    self._work.wait()
                if self._closed:
                    return self._end(RuntimeError("the LLM was closed"))
                try:
                    events = self.engine.step()
                except BaseException as e:
                    self._failed = e
                    return self._end(e)
                for event in events:
                    self._deliver(event)

    def _deliver(self, event: Event) -> None:
        submitted = self._waiting.get(event.id)
        if submitted is not None and submitted.take(event):
            del self._waiting[event.id]

    def _end(self, error: BaseException) -> None:
        for submitted in self._waiting.values():
            submitted.fail(error)
        self._waiting.clear()


class _Submitted:
    """A request that was submitted, and its events."""

    def __init__(self, loop: _Loop, id: str, tokens: list[int], count: int, deliver: Any) -> None:
        self.loop, self.id, self.tokens = loop, id, tokens
        self._open = count
        self._job = loop.engine.job(id)
        self._events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self._deliver = deliver or self._events.put

    def take(self, event: Event) -> bool:
        """Pass an event on; True if it is the last."""
        if event.error is not None:
            self._deliver(RequestFailed(event.error))
            return True
        self._deliver(event)
        if event.reason in ("cancelled", "deadline"):
            self._open = 0
        elif event.reason is not None:
            self._open -= 1
        if self._open <= 0:
            self._deliver(None)
        return self._open <= 0

    def fail(self, error: BaseException) -> None:
        self._deliver(RequestFailed(str(error)))

    def cancel(self) -> None:
        self.loop.cancel(self.id)

    def __iter__(self) -> Iterator[Event]:
        while (event := self._events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def completion(self) -> Completion:
        found = Completion(self.tokens, [])
        for event in self:
            _add(found, event)
        found.prompt_logprobs = self._job.prompt_logprobs
        found.cached_tokens = self._job.cached or 0
        return found


__all__ = ["LLM", "Answer", "Completion", "RequestFailed"]
