"""The engine: requests in, tokens out.

`Engine.step` asks the scheduler for a step, has the executor compute it, and chooses tokens. It is
plain and synchronous; `genesis.llm.llm` puts a thread around it. What goes wrong with one request
(a processor that raises, scores that are not numbers) ends that request and no other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from genesis.llm.answer_stream import AnswerStream, TextStream, TokenConstraint
from genesis.llm.beams import Beams
from genesis.llm.executor import Executor
from genesis.llm.lora import Adapters, identity
from genesis.llm.request import Continuation, Ended, EngineStep, Request, TokenSpan
from genesis.llm.rope import depends_on_span, same_span, switch
from genesis.llm.sampling import (
    ChoiceWords,
    SamplingParams,
    adjusted,
    choose,
    log_probabilities,
)
from genesis.llm.scheduler import Scheduler
from genesis.llm.speculation import ContinuedText, Length, Proposer, RowCost

Array = np.ndarray[Any, Any]


@dataclass
class TokenLogprobs:
    """What the model thought of a token, and of the likeliest ones."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass
class Event:
    """A piece of an answer. With a reason, it is the last of its answer."""

    id: str
    index: int
    tokens: list[int]
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None


@dataclass
class EngineJob:
    """A request on its way, as the engine sees it."""

    request: Request
    params: SamplingParams
    seed: int
    streams: list[AnswerStream]
    long: int
    slot: int = 0  # of its adapter
    cached: int | None = None  # tokens of the prompt that needed not be computed
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    lengths: dict[int, Length] = field(default_factory=dict)  # of guesses, by answer
    beams: Beams | None = None


class Engine:
    """Many requests at once, on one executor."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        *,
        end: Sequence[int] = (),
        text: Callable[..., TextStream] | None = None,
        proposer: Proposer | None = None,
        drafts: int = 0,
        adapters: Adapters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor, self.scheduler, self.clock = executor, scheduler, clock
        self.proposer, self.drafts, self.adapters = proposer, drafts, adapters
        self._row_cost = RowCost()
        self.end = frozenset(end)
        self._text = text
        self._jobs: dict[str, EngineJob] = {}
        self._numbers = count()
        ropes = [layer.rope for layer in executor.decoder.config.layers]
        self._stretched = next((r for r in ropes if depends_on_span(r)), None)
        self._switch = switch(self._stretched)
        self.steps = 0
        self.guessed = self.accepted = 0  # tokens, by speculation
        #: Is told of every step: what was planned, when it began, and when planning, computing and
        #: choosing ended. It begins with the end of the one before: answers are passed on there.
        self.watch: Callable[[EngineStep, Sequence[float]], None] | None = None
        self._end_of_last: float | None = None  # if there was more to do

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        constraint: TokenConstraint | None = None,
        salt: bytes = b"",
        adapter: str | None = None,
        **how: Any,
    ) -> str:
        """Queue a request, or raise `scheduler.Refused`; its id. `how` goes to `Request`."""
        id = f"request-{next(self._numbers)}" if id is None else id
        self._check(prompt)
        if params.beams and constraint is not None:
            raise ValueError("beams: answers of a beam search follow no grammar")
        seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed
        drafts = 0 if params.beams else self.drafts
        name = b"" if adapter is None else identity(adapter).encode()
        how = {"drafts": drafts, "adapter": name, "sequences": params.beams or params.n, **how}
        request = Request(id, list(prompt), params.max_tokens, **how)
        request = self._salted(request.fitted(self.scheduler.limits.context), salt, params)
        slot = self._held(adapter)
        try:
            self.scheduler.submit(request, self.clock())
        except BaseException:
            self._release(slot)
            raise
        streams = [self._stream(0, params, constraint)]
        self._jobs[id] = job = EngineJob(request, params, seed, streams, len(request.prompt), slot)
        if params.beams:
            job.beams = Beams(params.beams, params.length_penalty)
        return id

    def _held(self, adapter: str | None) -> int:
        if adapter is None:
            return 0
        if self.adapters is None:
            raise ValueError(f"adapter {adapter}: the model was loaded without room for adapters")
        return self.adapters.hold(adapter)

    def _release(self, slot: int) -> None:
        if slot and self.adapters is not None:
            self.adapters.release(slot)

    def job(self, id: str) -> EngineJob:
        """A request that is on its way."""
        return self._jobs[id]

    def close(self) -> None:
        """Let go of what lies outside of memory: what is cached goes to the log on disk."""
        tiers = self.scheduler.cache.tiers
        if tiers is not None:
            if tiers.log is not None:
                tiers.store(self.scheduler.cache.kept_pages(), self.executor.read)
            tiers.close()

    def cancel(self, id: str) -> bool:
        """End a request; False if it is over."""
        return self.scheduler.cancel(id)

    def _check(self, prompt: Sequence[int]) -> None:
        size = self.executor.decoder.config.vocabulary
        wrong = next((t for t in prompt if not 0 <= t < size), None)
        if wrong is not None:
            raise ValueError(f"prompt: there is no token {wrong} in a vocabulary of {size}")

    def _salted(self, request: Request, salt: bytes, params: SamplingParams) -> Request:
        """A request with what keeps its pages from others that would compute them otherwise."""
        if params.prompt_logprobs is not None:  # every token of the prompt has to be computed
            salt += b" alone " + os.urandom(16)
        if self._stretched is None:
            return replace(request, salt=salt)
        rope, length, switch = self._stretched, len(request.prompt), None
        if self._switch is not None:
            switch = self._switch, salt + b" span %d" % same_span(rope, self._switch + 1)
        return replace(request, salt=salt + b" span %d" % same_span(rope, length), switch=switch)

    def _stream(self, index: int, params: SamplingParams, constraint: Any) -> AnswerStream:
        skip = params.skip_special_tokens
        text = None if self._text is None else self._text(skip_special_tokens=skip)
        return AnswerStream(index, text, params.stop, constraint)

    # ---- steps

    def step(self) -> list[Event]:
        """Compute one step; what it added to answers."""
        now = self.clock()
        step = self.scheduler.plan(now)
        tiers = self.scheduler.cache.tiers
        if tiers is not None:
            tiers.store(step.stores, self.executor.read)
        self.executor.copy_pages(step.copies)
        for load in step.loads:
            self.executor.write(load.group, load.page, load.data)
        self.executor.fresh(step.work)
        if self.proposer is not None:
            self.proposer.arrange(step.copies, step.work)
        planned = self.clock()
        events: list[Event] = []
        results: dict[str, list[Continuation]] = {}
        open_: dict[str, list[AnswerStream]] = {}
        rows: dict[str, list[Array]] = {}
        for work, scores, guess in self._computed(step.prefills, step.decodes):
            id = work.request.id
            if work.sample and self._jobs[id].beams is not None:
                rows.setdefault(id, []).append(scores[-1])
            elif work.sample:
                for stream, event in self._continued(self._jobs[id], work, scores, guess):
                    self._lengthen(self._jobs[id], work, len(event.tokens))
                    events.append(event)
                    follows = Continuation(work.sequence, event.tokens, event.reason)
                    results.setdefault(id, []).append(follows)
                    streams = open_.setdefault(id, [])
                    if event.reason is None:
                        streams.append(stream)
        for id, streams in open_.items():
            self._jobs[id].streams = streams  # in the scheduler's order of sequences
        for id, found in rows.items():
            results[id] = self._beams(self._jobs[id], found, events)
        for work in step.work:
            if work.request.id in rows:
                self._lengthen(self._jobs[work.request.id], work, 1)
        computed = self.clock()
        ended = self.scheduler.done(step, results, computed)
        for over in (*step.ended, *ended):
            events += self._ended(over)
        self.steps += 1
        if self.watch is not None:
            begin, end = self._end_of_last or now, self.clock()
            self.watch(step, (begin, planned, computed, end))
            self._end_of_last = end if self._jobs else None
        return events

    def _lengthen(self, job: EngineJob, work: TokenSpan, added: int) -> None:
        """A text that outgrows what its model was trained with has other frequencies from now."""
        if self._switch is not None and work.start + len(work.tokens) + added > self._switch:
            job.long = max(job.long, self._switch + 1)

    def fail(self, error: Exception) -> list[Event]:
        """A step raised: the last events of the requests that were in it. Others go on."""
        text = f"{type(error).__name__}: {error}"
        scheduler, ended = self.scheduler.recovered()
        if scheduler is not self.scheduler:
            ended = [Ended(job.request, "error", []) for job in self._jobs.values()]
        self.scheduler = scheduler
        return [event for over in ended for event in self._ended(over, text)]

    def _computed(self, prefills: Sequence[TokenSpan], decodes: Sequence[TokenSpan]) -> Any:
        """Works with the scores after their last token and after each guess that follows it."""
        for work in prefills:
            job = self._jobs[work.request.id]
            job.cached = work.start if job.cached is None else job.cached
            every = job.params.prompt_logprobs is not None
            scores = self.executor.prefill(
                work, job.long, job.slot, "every" if every else "last" if work.sample else "none"
            )
            if self.proposer is not None:
                self.proposer.prefill(work, job.long)
            if every:
                self._note_prompt(job, work, scores)
            yield work, scores[-1:], []
        if decodes:
            start = self.clock()
            guesses = self._guesses(decodes)
            pairs = zip(decodes, guesses, strict=True)
            works = [w._replace(tokens=[*w.tokens, *guess]) for w, guess in pairs]
            spans = [self._jobs[work.request.id].long for work in decodes]
            slots = [self._jobs[work.request.id].slot for work in decodes]
            rows = self.executor.decode(works, spans, slots)
            self._row_cost.note(len(works), sum(map(len, guesses)), self.clock() - start)
            yield from zip(decodes, rows, guesses, strict=True)

    def _guesses(self, works: Sequence[TokenSpan]) -> list[list[int]]:
        if self.proposer is None or not any(work.drafts for work in works):
            return [[] for _ in works]
        texts = []
        for work in works:
            job = self._jobs[work.request.id]
            stream = job.streams[work.sequence]
            length = job.lengths.setdefault(stream.index, Length(job.request.drafts))

            tokens = [*job.request.prompt, *stream.tokens]
            most = min(work.drafts, length.next(self._row_cost.value))
            texts.append(ContinuedText(work, job.long, tokens, most, partial(_guess, job, stream)))
        return self.proposer.propose(texts)

    def _note_prompt(self, job: EngineJob, work: TokenSpan, scores: Array) -> None:
        following = job.request.prompt[work.start + 1 : work.start + 1 + len(work.tokens)]
        number = job.params.prompt_logprobs or 0
        done = len(job.prompt_logprobs)
        for row, token in list(zip(scores, following, strict=False))[max(0, done - work.start) :]:
            job.prompt_logprobs.append(_logprobs(row, token, number))

    # ---- choices

    def _continued(
        self, job: EngineJob, work: TokenSpan, scores: Array, guess: Sequence[int]
    ) -> list[tuple[AnswerStream, Event]]:
        """The next tokens of an answer, or the first of all answers to a prompt."""
        streams = [job.streams[work.sequence]]
        if not streams[0].tokens and job.params.n > 1:  # the prompt's only sequence has n children
            constraint = streams[0].constraint
            streams = [
                self._stream(k, job.params, constraint.fork() if constraint else None)
                for k in range(job.params.n)
            ]
        found = []
        for stream in streams:
            event = Event(job.request.id, stream.index, [])
            for k, row in enumerate(scores):
                self._add(job, stream, row, event)
                if event.reason is not None or guess[k : k + 1] != event.tokens[-1:]:
                    break
            self.guessed += len(guess)
            self.accepted += len(event.tokens) - 1 if guess else 0
            if stream.index in job.lengths:
                job.lengths[stream.index].note(len(guess), len(event.tokens) - 1)
            found.append((stream, event))
        return found

    def _beams(self, job: EngineJob, rows: list[Array], events: list[Event]) -> list[Continuation]:
        """Continue all beams of a request; at the end, its answers."""
        beams, params = job.beams, job.params
        assert beams is not None
        before = job.request.prompt
        parents = [beam.tokens for beam in beams.running]
        try:
            adjusted_rows = [
                adjusted(row, params, before, tokens)
                for row, tokens in zip(rows, parents, strict=True)
            ]
            end = () if params.ignore_eos else {*self.end, *params.stop_token_ids}
            chosen = beams.advance(adjusted_rows, end)
        except Exception as e:  # of this request alone
            events.append(Event(job.request.id, 0, [], reason="error", error=str(e)))
            return [Continuation(k, [], "error") for k in range(len(rows))]
        if not beams.over(params.max_tokens):
            return [Continuation(parent, [token]) for parent, token in chosen]
        for index, beam in enumerate(beams.answers(params.n)):
            stream = self._stream(index, params, None)
            text = "".join(stream.push(token)[0] for token in beam.tokens) + stream.finish()
            stopped = beam in beams.finished
            reason = "stop" if stopped else "length"
            events.append(Event(job.request.id, index, beam.tokens, text, reason=reason))
        return [Continuation(k, [], "stop") for k in range(len(rows))]

    def _add(self, job: EngineJob, stream: AnswerStream, scores: Array, event: Event) -> None:
        """Add the next token of an answer to what is new of it."""
        params = job.params
        try:
            token = self._token(job, stream, scores)
            last = stream.constraint is not None and stream.constraint.push(token)
        except Exception as e:  # of this request alone: its processors, its grammar, its scores
            event.text += stream.finish()
            event.reason, event.error = "error", str(e) or type(e).__name__
            return
        event.tokens.append(token)
        if params.logprobs is not None:
            event.logprobs.append(_logprobs(scores, token, params.logprobs))
        if token in params.stop_token_ids or (token in self.end and not params.ignore_eos):
            stream.tokens.append(token)
            event.text += stream.finish()
            event.reason = "stop"
            return
        shown, stopped = stream.push(token)
        event.text += shown
        if stopped:
            event.reason = "stop"
        elif last or len(stream.tokens) >= params.max_tokens:
            event.text += stream.finish()
            event.reason = "stop" if last else "length"

    def _token(self, job: EngineJob, stream: AnswerStream, scores: Array) -> int:
        """The token that an answer goes on with, by some scores."""
        params = job.params
        number = len(stream.tokens)
        scores = adjusted(scores, params, job.request.prompt, stream.tokens)
        if stream.constraint is not None:
            scores = stream.constraint.allow(scores)
        if number < params.min_tokens:
            scores = scores.copy()
            scores[[*self.end, *params.stop_token_ids]] = -np.inf
        return choose(scores, params, ChoiceWords(job.seed, number, stream.index))

    def _ended(self, over: Ended, error: str | None = None) -> list[Event]:
        """The last events of a request that ended from outside, or failed with others."""
        job = self._jobs.pop(over.request.id)
        self._release(job.slot)
        if over.reason == "finished":
            return []
        error = error if over.reason == "error" else None
        return [
            Event(over.request.id, s.index, [], s.finish(), reason=over.reason, error=error)
            for s in job.streams
        ]


def _guess(job: EngineJob, stream: AnswerStream, scores: Array, ahead: int) -> int:
    """The token that a request would choose by a draft's scores, with the same random word.

    What the request does with scores is left out: a guess may be wrong, but must not fail.
    """
    if not np.isfinite(scores.max()):
        return 0
    words = ChoiceWords(job.seed, len(stream.tokens) + ahead, stream.index)
    return choose(scores, job.params, words)


def _logprobs(scores: Array, token: int, number: int) -> TokenLogprobs:
    values = log_probabilities(scores)
    best = np.argsort(-values, kind="stable")[:number]
    return TokenLogprobs(token, float(values[token]), {int(t): float(values[t]) for t in best})


__all__ = ["Engine", "EngineJob", "Event", "TokenLogprobs"]
