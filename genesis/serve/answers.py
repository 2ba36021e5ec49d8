"""From a call to its answers: prompts and grammars are made aside, the engine is asked."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from genesis.llm import LLM, SamplingParams
from genesis.llm.engine import Event, TokenLogprobs
from genesis.llm.engine_thread import Mailbox, Submitted
from genesis.llm.prefix_cache import Chain
from genesis.serve.errors import ApiError
from genesis.serve.limits import TIERS, Caps, Meter, Tier
from genesis.serve.metrics import Metrics
from genesis.serve.model_pool import ServedModel
from genesis.serve.request_body import RequestBody, depth
from genesis.serve.tool_calls import Delta, Parser, Schemas, answer_grammar, format_of, grammar

#: Reasons for which a request fails.
_ERRORS: dict[str | None, tuple[int, str]] = {
    "deadline": (408, "the deadline has passed"),
    "cancelled": (503, "the request was cancelled"),
}


@dataclass
class AnswerPiece:
    """What is new of an answer; with a reason it is the last of it."""

    index: int
    deltas: list[Delta]
    logprobs: list[TokenLogprobs]
    reason: str | None

    def add(self, delta: Delta) -> None:
        """More of it; a delta that goes on with the last one becomes part of that."""
        last = self.deltas[-1] if self.deltas else None
        if last is not None and delta.kind != "call" and last[::2] == delta[::2]:
            self.deltas[-1] = last._replace(text=last.text + delta.text)
        else:
            self.deltas.append(delta)


@dataclass
class Asked:
    """A request on its way through the server, and what there is to say about it."""

    meter: Meter
    caps: Caps
    metrics: Metrics
    tiers: Mapping[str, Tier]
    records: bool  # for the simulator
    shared: bool  # prefixes of other keys are found, too
    id: str
    path: str
    record: dict[str, Any] = field(default_factory=dict)
    parts: list[Asked] = field(default_factory=list)  # requests of which it consists
    started: float = field(default_factory=time.monotonic)


@dataclass
class Wanted:
    """What an endpoint wants of a model."""

    model: ServedModel
    adapter: str | None
    tokens: list[int]
    params: SamplingParams
    constraint: Any = None
    schemas: Schemas | None = None  # of tools that may be called
    plain: bool = True  # the text is content, whatever it looks like
    thinking: bool = False  # the prompt ends within reasoning


class Answers:
    """The answers to a request, as they come."""

    def __init__(self, asked: Asked, wanted: Wanted, tier: str) -> None:
        self.asked, self.wanted, self._tier = asked, wanted, tier
        self.submitted: Submitted | None = None
        self.reasoning = self.completion = 0  # tokens
        self.reasons: dict[int, str] = {}
        self._parsers: dict[int, Parser] = {}
        self._mailbox = Mailbox(asked.caps.waiting)
        self._last = 0.0

    async def submit(self, request: dict[str, Any]) -> None:
        """Hand the request to the engine, or raise what is wrong with it."""
        wanted, llm = self.wanted, self.wanted.model.llm
        assert llm is not None
        self.asked.meter.charge(len(wanted.tokens), wait=True)
        if wanted.adapter is not None:
            request["adapter"] = wanted.adapter
        later = llm.loop.submit(
            wanted.tokens, wanted.params, wanted.constraint, request, self._mailbox.put
        )
        self.submitted = await self._mailbox.submit(later)

    async def __aiter__(self) -> AsyncIterator[AnswerPiece]:
        assert self.submitted is not None
        try:
            async for events in self._mailbox:
                self._timed(events)
                pieces: dict[int, AnswerPiece] = {}  # what came together is sent together
                for event in events:
                    if event.reason not in _ERRORS:
                        piece = pieces.setdefault(
                            event.index, AnswerPiece(event.index, [], [], None)
                        )
                        self._add(piece, event)
                for piece in pieces.values():
                    if piece.deltas or piece.logprobs or piece.reason:
                        yield piece
                if (reason := events[-1].reason) in _ERRORS:
                    raise ApiError(*_ERRORS[reason], code=reason)
        finally:
            self.cancel()
            self._finished()

    def _add(self, piece: AnswerPiece, event: Event) -> None:
        parser = self._parser(event.index)
        if parser is None:
            deltas = [Delta("content", event.text)] if event.text else []
        else:
            self.reasoning += len(event.tokens) * parser.thinking
            deltas = parser.push(event.text)
            deltas += parser.finish() if event.reason is not None else []
        for delta in deltas:
            piece.add(delta)
        piece.logprobs += event.logprobs
        if event.reason is not None:
            called = parser is not None and parser.calls
            piece.reason = self.reasons[event.index] = "tool_calls" if called else event.reason

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        if self.submitted is not None:
            self.submitted.cancel()

    def prompt_logprobs(self) -> list[TokenLogprobs]:
        """What the model thought of the prompt, but for its first token."""
        return [] if self.submitted is None else list(self.submitted.job.prompt_logprobs)

    def _parser(self, index: int) -> Parser | None:
        wanted = self.wanted
        if wanted.plain:
            return None
        if index not in self._parsers:
            made = Parser(wanted.model.format, wanted.schemas, wanted.thinking)
            self._parsers[index] = made
        return self._parsers[index]

    def call_id(self, index: int, call: int) -> str:
        """A name of a call: others in the conversation have other names."""
        salt = repr((self.wanted.tokens, index, call)).encode()
        return "call_" + hashlib.sha256(salt).hexdigest()[:24]

    def usage(self) -> dict[str, Any]:
        """How many tokens it took."""
        prompt, submitted = len(self.wanted.tokens), self.submitted
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion,
            "total_tokens": prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": submitted.cached_tokens if submitted else 0},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }

    def _timed(self, events: list[Event]) -> None:
        now, metrics, name = time.monotonic(), self.asked.metrics, self.wanted.model.name
        written = Counter[int]()  # tokens, by answer
        for event in events:
            written[event.index] += len(event.tokens)
        steps, record = max(written.values()), self.asked.record
        if not self._last:
            record["first_token"] = round(now - self.asked.started, 6)
            metrics.first_token.labels(name, self._tier).observe(now - self.asked.started)
        elif steps:
            metrics.between.labels(name, self._tier).observe((now - self._last) / steps)
        if "trace" in record:
            record["trace"]["times"].append((round(now - self.asked.started, 5), steps))
        self._last = now
        self.completion += written.total()

    def _finished(self) -> None:
        model, usage = self.wanted.model, self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.asked.meter.charge(self.completion)
        self.asked.metrics.tokens(model.name, usage["prompt_tokens"], self.completion, cached)
        each = self.completion / self.wanted.params.n
        model.written += 0.05 * (each - model.written)
        self.asked.record |= {
            "prompt_tokens": usage["prompt_tokens"], "completion_tokens": self.completion,
            "cached_tokens": cached, "reasons": sorted(self.reasons.values()),
        }  # fmt: skip


async def ask(asked: Asked, body: RequestBody, wanted: Wanted) -> Answers:
    """Submit what is wanted, by what a call says of its turn."""
    model, meter = wanted.model, asked.meter
    tier_name = body.text("service_tier", None, ["auto", *asked.tiers]) or "auto"
    tier_name = meter.key.tier if tier_name == "auto" else tier_name
    tier = asked.tiers.get(tier_name, TIERS["default"])
    deadline = body.number("deadline_ms", None, 0, 1e9)
    salt = repr((None if asked.shared else meter.key.name, body.text("cache_salt", "")))
    wait = model.predicted_wait(len(wanted.tokens))
    if wait > asked.caps.queue_seconds + 2 * tier.first_token:
        text = f"about {wait:.0f} s of work are queued, {tier.first_token:g} s are aimed at"
        raise ApiError(429, text, code="queue_full", retry_after=wait - tier.first_token)
    assert model.llm is not None
    now = model.llm.engine.clock()
    request = {
        "priority": body.integer("priority", tier.priority, -8, 8),
        "deadline": None if deadline is None else deadline / 1000,
        "due": now + max(0.0, tier.first_token - model.times.costs[2] * len(wanted.tokens)),
        "pace": tier.between,
        "key": meter.key.name,
        "salt": salt.encode(),
    }
    if asked.records:
        asked.record["trace"] = await aside(_trace, model.llm, wanted, request)
    asked.record |= {"model": model.name, "tier": tier_name, "predicted": round(wait, 4)}
    answers = Answers(asked, wanted, tier_name)
    if asked.records:
        asked.record["trace"]["before"] = round(time.monotonic() - asked.started, 6)
    await answers.submit(request)
    return answers


def _trace(llm: LLM, wanted: Wanted, request: dict[str, Any]) -> dict[str, Any]:
    """What the simulator has to know of a request: lengths, and pages by hashes; no text."""
    chain = Chain(llm.engine.scheduler.pool.page_size, b"trace", salt=request["salt"])
    chain.extend(wanted.tokens)
    return {
        "time": time.time(), "max_tokens": wanted.params.max_tokens, "n": wanted.params.n,
        "priority": request["priority"], "page_size": chain.page_size,
        "pages": [key.hex()[:12] for key in chain.keys], "times": [],
    }  # fmt: skip


# ---- what is made aside, in threads


def prompt_of(llm: LLM, text: str, chat: bool = False) -> list[int]:
    """The tokens of a text that can fit."""
    check_length(llm, text, "messages" if chat else "prompt")
    return llm.encode(text, chat=chat)


def check_length(llm: LLM, text: str, param: str = "prompt") -> None:
    """A text that cannot fit is not even read."""
    longest = llm.tokenizer.longest_token
    if len(text) > llm.context * longest:
        least = -(-len(text) // longest)
        message = f"at least {least} tokens do not fit the context of {llm.context}"
        raise ApiError(400, message, param=param, code="context_length_exceeded")


def room(llm: LLM, tokens: list[int], wanted: int | None) -> int:
    """How many tokens an answer may have."""
    left = llm.context - len(tokens)
    if left < (wanted or 1):
        raise ApiError(
            400, f"{len(tokens)} tokens and {wanted or 1} new ones do not fit the context of "
            f"{llm.context}", code="context_length_exceeded",
        )  # fmt: skip
    return wanted or left


def checked_schema(schema: Any, caps: Caps, param: str) -> dict[str, Any]:
    """A schema that is not too large to look at."""
    if not isinstance(schema, dict):
        raise ApiError(400, f"{param} is no object", param=param)
    if depth(schema) > caps.schema_depth or len(repr(schema)) > caps.schema_bytes:
        text = (
            f"{param} is nested deeper than {caps.schema_depth} or over {caps.schema_bytes} bytes"
        )
        raise ApiError(400, text, param=param)
    return schema


async def constraint_of(
    llm: LLM, model: ServedModel, format: dict[str, Any] | None, calls: Schemas | None, many: bool,
    thinking: bool,
) -> Any:  # fmt: skip
    """What an answer must follow: a schema, or calls of tools."""
    if calls is None and format is None:
        return None

    def made() -> Any:
        if calls is not None:
            lark = grammar(model.format, calls, llm.tokenizer, many, thinking)
            return llm.constraint({"lark": lark})
        if thinking:
            return llm.constraint({"lark": answer_grammar(format, model.format, llm.tokenizer)})
        return llm.constraint({"json": format})

    return await aside(made, lane=_GRAMMARS)


def check_bias(llm: LLM, params: SamplingParams) -> None:
    """Tokens with a bias exist."""
    size = llm.engine.executor.decoder.config.vocabulary
    if bad := [token for token in params.logit_bias if token >= size]:
        text = f"logit_bias: there is no token {bad[0]} in a vocabulary of {size}"
        raise ApiError(400, text, param="logit_bias")


#: Grammars have threads of their own: one that explodes keeps no plain request waiting.
_GRAMMARS = ThreadPoolExecutor(2, "genesis.grammar")


async def aside(function: Any, *args: Any, lane: Executor | None = None) -> Any:
    """Call something that takes a while in a thread, of those in a lane if one is given."""
    return await asyncio.get_running_loop().run_in_executor(lane, function, *args)


__all__ = [
    "Answers", "Asked", "AnswerPiece", "Wanted", "aside", "ask", "check_bias", "check_length",
    "checked_schema", "constraint_of", "format_of", "prompt_of", "room",
]  # fmt: skip
