"""The scheduler: which tokens of which requests are computed in the next step, on which pages.

`submit` takes a request or refuses it, `plan` gives a step for the engine to execute, `done` takes
what the engine sampled. Time is an argument; nothing here reads a clock or touches an array.

*Order.* Keys (who pays) get equal shares of the tokens computed, or shares by weight: the key that
has had least is served next. Among a key's requests the one that is due first comes first; requests
are due when they come unless they say otherwise, and a level of priority is worth `patience`
seconds. That makes a *rank* which never changes; pages are taken from the running request that
ranks last, so the first one always advances, and in time every request is the first.

*Memory.* A request is refused if the pool could not hold it alone, and starts when the pool holds
its prompt beside what running requests are about to take. If sequences outgrow the pool, a request
is preempted: its full pages stay cached and move down the tiers as their room is wanted, so later
it computes again what cannot be loaded.

*Pace.* Texts that are being continued wait for the prompts in their step. Prompts are spread: a
step takes little longer than steps took lately, so that tokens come evenly, and prompts that came
together have their first tokens, and later their ends, one after the other. While requests wait, a
step has as many tokens of prompts as it will need when all of them are continued: as answers of
all that many texts end, prompts of as many others are computed, and the queue gets no longer. Where
they would be late, they get a greater share, and never more than the pace allows that is aimed at.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice

from genesis.llm.pages import NOWHERE, PagePool, Write
from genesis.llm.prefix_cache import Chain, PrefixCache
from genesis.llm.request import (
    Busy,
    Continuation,
    Ended,
    EngineStep,
    Job,
    Limits,
    Refused,
    Request,
    SequenceOutput,
    SequenceState,
    TokenSpan,
)
from genesis.llm.step_time import Balance, Between, StepSize, StepTime

_STEADY = 1.25  # what a step may take, over what steps took lately
_SHARES = 1 / 3, 3 / 4  # of a step, at least and at most, that prompts may have even so
_AIM = 0.7  # of the time until a prompt is due: what is learned is not exact
_PIECE = 32  # tokens of a prompt that are worth a piece of their own


class Scheduler:
    """Requests in, steps out."""

    def __init__(self, limits: Limits, pool: PagePool, cache: PrefixCache, model: bytes) -> None:
        if limits.step_tokens <= limits.sequences:
            raise ValueError("a step must hold more tokens than sequences, or no prompt advances")
        self.limits = limits
        self.pool = pool
        self.cache = cache
        self.model = model
        self._jobs: dict[str, Job] = {}
        self._running: list[Job] = []  # by rank
        self._waiting: dict[str, list[Job]] = {}  # by key, then rank
        self._lacking = 0  # tokens of those
        self._alive = Counter[str]()  # jobs of each key
        self._served: dict[str, float] = {}  # tokens of each key, by weight
        self._deadlines: dict[str, float] = {}
        self._in_the_way: Job | None = None
        self._ended: list[Ended] = []
        self._step: EngineStep | None = None
        self._serial = 0
        #: What knows how long steps take, so that one holds no more of prompts than texts that are
        #: being continued have time for.
        self.times: StepTime | None = None
        self._left = 0  # tokens that the step being planned can still hold
        self._between, self._balance, self._now = Between(), Balance(), 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    # ---- requests

    def submit(self, request: Request, now: float) -> None:
        """Queue a request, or raise `Refused`."""
        request = self._accept(request)
        keys = self._chain(request, request.salt)
        try:
            keys.extend(request.prompt)
        except struct.error as error:
            raise Refused(f"a token is not a number of 64 bits: {error}") from None
        self._serial += 1
        first = SequenceState(list(request.prompt), keys, self.pool.new_tables())
        due = now if request.due is None else request.due
        job = Job(request, (due - request.priority * self.limits.patience, self._serial), first)
        self._jobs[request.id] = job
        if request.deadline is not None:
            self._deadlines[request.id] = request.deadline
        # A key that was away has not saved up shares.
        self._served[request.key] = max(self._served.get(request.key, 0.0), self._least(0.0))
        self._alive[request.key] += 1
        self._wait(job)

    def _chain(self, request: Request, salt: bytes) -> Chain:
        return Chain(self.pool.page_size, self.model, request.adapter, salt)

    def backlog(self) -> tuple[int, int, int, int]:
        """Requests that wait, tokens that prompts lack; sequences that run, tokens these have.

        Whoever submits asks for it, in a thread of its own, so it takes no longer in a long queue.
        """
        jobs = list(self._running)
        running = [s for job in jobs for s in job.sequences]
        lacking = sum(len(s.tokens) - s.computed for job in jobs for s in job.sequences[:1])
        waiting = max(0, len(self._jobs) - len(jobs))
        return waiting, self._lacking + lacking, len(running), sum(s.computed for s in running)

    def cancel(self, id: str) -> bool:
        """End a request, or False if it is over. A step that is being executed is finished."""
        job = self._jobs.get(id)
        if job is not None and self._step is not None and job.running:
            job.cancelled = True
        elif job is not None:
            self._end(job, "cancelled")
        return job is not None

    def _accept(self, request: Request) -> Request:
        """The request, perhaps without its oldest turns; `Refused` if it can never be served."""
        limits, count, most = self.limits, request.sequences, request.max_tokens
        if request.id in self._jobs:
            raise Refused(f"there is a request {request.id!r} already")
        if len(self._jobs) - len(self._running) >= limits.queue:
            raise Busy(f"{limits.queue} requests are waiting, which is the most")
        if not request.prompt or min(most, count, request.drafts + 1) < 1:
            raise Refused("a prompt, a new token and a sequence are the least, and 0 drafts")
        if count > limits.sequences:
            raise Refused(f"{count} sequences wanted, {limits.sequences} at most")
        request = request.fitted(limits.context)
        prompt, chunk = len(request.prompt), limits.step_tokens
        need = self.pool.need(prompt, prompt + most - 1, count, chunk, request.drafts)
        pages = [group.pages for group in self.pool.groups]
        if any(n > p for n, p in zip(need, pages, strict=True)):
            raise Refused(
                f"{prompt} tokens and {most} new ones in {count} sequences can need {need} "
                f"pages of {self.pool.page_size} tokens; there are {pages}"
            )
        return request

    def _wait(self, job: Job) -> None:
        """Queue a job, and call up what is on disk of its prefix in the meantime."""
        insort(self._waiting.setdefault(job.request.key, []), job)
        first = job.sequences[0]
        self._lacking += len(first.tokens)
        first.chain.extend(first.tokens)
        if self.cache.tiers is not None:
            job.coming = self.cache.tiers.prefetch(self.cache.missing(first.chain.keys))

    def _leave_queue(self, job: Job) -> None:
        self._waiting[job.request.key].remove(job)
        self._lacking -= len(job.sequences[0].tokens)

    def _end(self, job: Job, reason: str) -> None:
        """Forget a job; its sequences that go on end for the same reason."""
        for sequence in job.sequences:
            job.outputs.append(SequenceOutput(sequence.tokens[job.prompt :], reason))
            self._release(sequence)
        key = job.request.key
        if job.running:
            self._running.remove(job)
        else:
            self._leave_queue(job)
        job.running = False
        del self._jobs[job.request.id]
        self._deadlines.pop(job.request.id, None)
        self._alive[key] -= 1
        if not self._alive[key]:
            del self._alive[key]
            self._waiting.pop(key, None)
            least = self._least(float("inf"))
            self._served = {k: s for k, s in self._served.items() if k in self._alive or s > least}
        self._ended.append(Ended(job.request, reason, job.outputs))

    def recovered(self) -> tuple[Scheduler, list[Ended]]:
        """The step that was planned failed: what goes on with the others, and who ended with it.

        Nothing of such a step is kept: its jobs end, and pages that were to be loaded are unknown
        again. If it failed in here, all jobs end; if pages are lost, another scheduler begins anew.
        """
        step, self._step = self._step, None
        ids = [w.request.id for w in step.work] if step is not None else list(self._jobs)
        self.cache.forget(step.loads if step is not None else [])
        try:
            for job in [job for id, job in self._jobs.items() if id in set(ids)]:
                self._end(job, "error")
            ended, self._ended = [*(step.ended if step is not None else []), *self._ended], []
            self.check()
            return self, ended
        except Exception:
            pool = PagePool(self.pool.page_size, self.pool.groups)
            cache = PrefixCache(pool, type(self.cache.policies[0]), self.cache.tiers)
            anew = Scheduler(self.limits, pool, cache, self.model)
            anew.times = self.times
            return anew, []

    def _expire(self, now: float) -> None:
        for id in [id for id, deadline in self._deadlines.items() if deadline <= now]:
            self._end(self._jobs[id], "deadline")

    def _release(self, sequence: SequenceState) -> None:
        self.cache.use(sequence.chain.keys[: sequence.registered])
        self.pool.free(sequence.tables)
        sequence.computed = sequence.registered = 0

    # ---- steps

    def plan(self, now: float) -> EngineStep:
        """The next step; the engine executes it and calls `done`."""
        if self._step is not None:
            raise RuntimeError("the step before is not done")
        self._step = step = EngineStep()
        self._now = now
        self._expire(now)
        if self._in_the_way is not None and self._in_the_way.running:
            self._preempt(self._in_the_way, step)
        self._in_the_way = None
        self._left = self._room([job for job in self._running if job.ready])
        self._advance(step)
        self._admit(step)
        self._speculate(step)
        step.stores, self.cache.stores = self.cache.stores, []
        step.ended, self._ended = self._ended, []
        return step

    def _room(self, ready: list[Job]) -> int:
        """How many tokens of prompts the step may hold beside jobs that are continued."""
        decoding = sum(len(job.sequences) for job in ready)
        most = self.limits.step_tokens - decoding
        paces = [job.request.pace for job in ready if job.request.pace is not None]
        if self.times is None or not paces:
            return most
        read = sum(s.computed + 1 for job in ready for s in job.sequences)
        size = StepSize(1, 0, 0, decoding, read, 0)
        share, start = self._wanted_share(self.times)
        fitting = partial(self.times.budget, size, start=start, least=min(most, _PIECE), most=most)
        steady = max(self.times.seconds(size) / (1 - share), _STEADY * self._between.mean)
        tokens = fitting(pace=steady)
        if len(self._jobs) > len(self._running):
            tokens = max(tokens, int(self._balance.ratio * self._wanted_rows()))
        return min(tokens, fitting(pace=min(paces)))

    def _wanted_rows(self) -> int:
        """Texts that would be continued if nobody had to wait for a prompt."""
        most = self.limits.sequences
        jobs = islice(chain(self._running, *self._waiting.values()), most)  # each has one at least
        return min(most, sum(job.request.sequences for job in jobs))

    def _wanted_share(self, times: StepTime) -> tuple[float, int]:
        """The share of the time by which all prompts come when due; where the next one goes on."""
        least, most = _SHARES
        work, share, start = 0.0, least, None
        prompts = (job for job in self._running if not job.ready)
        for job in chain(prompts, *self._waiting.values()):
            first = job.sequences[0]
            own = times.seconds((0, 1, len(first.tokens) - first.computed, 0, 0, 0))
            work += own
            start = first.computed if start is None else start
            if job.request.due is not None:
                left = _AIM * (job.request.due + own - self._now)
                share = max(share, work / max(left, work))
            if share >= most:
                break
        return min(share, most), start or 0

    def _advance(self, step: EngineStep) -> None:
        """Plan all that is running, in order of rank, on pages of those that rank last."""
        for job in list(self._running):
            while job.running:
                writes = job.writes(self._left)
                cost = self.pool.cost(writes)
                if not any(cost) or self.pool.fits(cost):
                    self._schedule(job, writes, step)
                    break
                self._preempt(self._running[-1], step)

    def _schedule(self, job: Job, writes: list[Write], step: EngineStep) -> None:
        decode = job.ready
        for index, (tables, start, end) in enumerate(writes):
            if start == end:
                continue
            tokens = job.sequences[index].tokens
            step.copies += self.pool.extend(tables, start, end)
            sample = decode or (len(writes) == 1 and end == len(tokens))
            work = TokenSpan(job.request, index, start, tokens[start:end], tables, sample)
            (step.decodes if decode else step.prefills).append(work)
            self._left -= 0 if decode else end - start

    def _preempt(self, job: Job, step: EngineStep) -> None:
        """Take all pages of a job; it waits in its old place."""
        step.preempted.append(job.request.id)
        self._stop(job)

    def _stop(self, job: Job) -> None:
        self._running.remove(job)
        job.running = False
        for sequence in job.sequences:
            self._release(sequence)
        self._wait(job)

    def _switch(self, job: Job) -> None:
        """Have all of a job computed anew, as its sequences have outgrown what they began as."""
        assert job.request.switch is not None
        job.switch = None
        for sequence in job.sequences:
            self.cache.use(sequence.chain.keys[: sequence.registered])
            sequence.registered, sequence.chain = 0, self._chain(job.request, job.request.switch[1])
        self._stop(job)

    def _speculate(self, step: EngineStep) -> None:
        """Drafts for those who want them, on what is left when all others have theirs."""
        for i, work in enumerate(step.decodes):
            if work.request.drafts and self._left:
                job = self._jobs[work.request.id]
                length = len(job.sequences[work.sequence].tokens)
                drafts = min(work.request.drafts, job.limit - length - 1, self._left)
                if job.switch is not None:
                    drafts = min(drafts, job.switch - length)
                write = Write(work.tables, work.start + 1, work.start + 1 + drafts)
                if self.pool.fits(self.pool.cost([write])):
                    self.pool.extend(*write)
                    step.decodes[i] = work._replace(drafts=drafts)
                    self._left -= drafts

    # ---- admission

    def _admit(self, step: EngineStep) -> None:
        """Start waiting jobs. Nobody overtakes one that does not fit yet, or it might never.

        For a higher priority, a running job of the same key makes way if it ranks behind. Between
        keys, shares decide and not priorities: otherwise everybody would claim the highest.
        """
        while self._left > 0 and (job := self._next()) is not None:
            if not self._start(job, step):
                same = [j for j in self._running if j.request.key == job.request.key and job < j]
                lower = [j for j in same if j.request.priority < job.request.priority]
                self._in_the_way = lower[-1] if lower else None
                break

    def _next(self) -> Job | None:
        """The first job of the key that was served least, of those whose pages have come."""
        tiers = self.cache.tiers
        heads = (
            next((job for job in jobs if tiers is None or not tiers.coming(job.coming)), None)
            for jobs in self._waiting.values()
        )
        found = [job for job in heads if job is not None]
        return min(found, key=lambda j: (self._served[j.request.key], j.rank), default=None)

    def _start(self, job: Job, step: EngineStep) -> bool:
        """Find a job's prefix, and begin with the rest if there is room."""
        running = sum(job.request.sequences for job in self._running)
        if running + job.request.sequences > self.limits.sequences:
            return False
        first = job.sequences[0]
        length = len(first.tokens) if job.forked else job.prompt
        keys = first.chain.keys[: (length - 1) // self.pool.page_size]  # one token to compute
        match = self.cache.match(keys)
        first.tables = self.cache.hold(match)
        reserved = [self._reserve(j) for j in (*self._running, job)]
        if not self.pool.fits(map(sum, zip(*reserved, strict=True))):
            self.pool.free(first.tables)
            return False
        step.loads += self.cache.load(match, first.tables, keys)
        self.cache.use(keys)
        first.registered = match.pages
        first.computed = match.pages * self.pool.page_size
        if job.charged is None:
            job.charged = length - first.computed
            self._charge(job, job.charged)
        self._leave_queue(job)
        insort(self._running, job)
        job.running = True
        self._left -= job.ready
        self._schedule(job, job.writes(self._left), step)
        return True

    def _reserve(self, job: Job) -> list[int]:
        """How many pages a job is about to take: a next one, or what its prompt lacks."""
        if job.running and job.ready:
            return [len(job.sequences)] * len(self.pool.groups)
        length = min(max(len(s.tokens) for s in job.sequences) + 1, job.limit - 1)
        need = self.pool.need(job.prompt, length, len(job.sequences), self.limits.step_tokens)
        for group, most in enumerate(need):
            held = {page for s in job.sequences for page in s.tables[group]} - {NOWHERE}
            need[group] = max(0, most - len(held))
        return need

    def _charge(self, job: Job, tokens: int) -> None:
        key = job.request.key
        self._served[key] += tokens / self.limits.shares.get(key, 1.0)

    def _least(self, default: float) -> float:
        """What the key that was served least has had, of those that want something."""
        return min((self._served[key] for key in self._alive), default=default)

    # ---- results

    def done(
        self, step: EngineStep, results: Mapping[str, Sequence[Continuation]], now: float
    ) -> list[Ended]:
        """The step was executed; `results` continue the requests whose work says `sample`."""
        if step is not self._step:
            raise RuntimeError("this is not the step that was planned last")
        self._step = None
        if step.decodes and self.times is not None:
            continued = {work.request.id for work in step.decodes}
            tokens = sum(len(c.tokens) for id in continued for c in results.get(id, ()))
            self._between.note(len(step.decodes), tokens, now - self._now)
        sampled = {}
        for work in step.work:
            job = self._jobs[work.request.id]
            job.sequences[work.sequence].computed = work.start + len(work.tokens)
            sampled[job] = work.sample
        for job, continues in sampled.items():
            if continues and not job.cancelled:
                self._continue(job, results[job.request.id])
            else:
                self._settle(job)
        for job in [job for job in self._running if job.cancelled]:
            self._end(job, "cancelled")
        self._expire(now)
        ended, self._ended = self._ended, []
        return ended

    def _settle(self, job: Job) -> None:
        """A chunk of a prompt is computed; after the last one, all sequences have it."""
        for sequence in job.sequences:
            self._share(sequence)
        first, *others = job.sequences
        if not job.forked and first.computed == job.prompt:
            for other in others:
                other.tables = self.pool.fork(first.tables)
                other.computed, other.registered = first.computed, first.registered

    def _share(self, sequence: SequenceState) -> None:
        """Register pages that have become full, free those that have left their window."""
        full = sequence.computed // self.pool.page_size
        if full > sequence.registered:
            if len(sequence.chain.keys) < full:
                sequence.chain.extend(sequence.tokens[: sequence.computed])
            keys = sequence.chain.keys[:full]
            self.cache.register(sequence.tables, keys, sequence.registered)
            sequence.registered = full
        self.pool.slide(sequence.tables, sequence.computed)

    def _continue(self, job: Job, continuations: Sequence[Continuation]) -> None:
        """The children of a job's sequences take their place."""
        parents, job.sequences = job.sequences, []
        children: dict[int, int] = {}
        for child in continuations:
            children[child.parent] = children.get(child.parent, 0) + 1
        left = dict(children)
        for parent, tokens, reason in continuations:
            if not tokens and reason is None:
                raise ValueError("a sequence goes on without a new token")
            left[parent] -= 1  # the last child is the parent itself
            sequence = parents[parent].fork(self.pool) if left[parent] else parents[parent]
            sequence.tokens += tokens
            if children[parent] == 1:  # siblings would share a page of drafts, and differ there
                sequence.computed += max(0, len(tokens) - 1)
            self.pool.truncate(sequence.tables, sequence.computed)
            self._charge(job, len(tokens))
            self._share(sequence)
            if reason is None and len(sequence.tokens) < job.limit:
                job.sequences.append(sequence)
                continue
            job.outputs.append(SequenceOutput(sequence.tokens[job.prompt :], reason or "length"))
            self._release(sequence)
        for i, sequence in enumerate(parents):
            if i not in children:
                self._release(sequence)
        if not job.sequences:
            if self.times is not None:
                self._balance.note(job.charged or 0, sum(len(out.tokens) for out in job.outputs))
            self._end(job, "finished")
        elif job.outgrown:
            self._switch(job)

    def check(self) -> None:
        """All pages are accounted for, and so is what waits."""
        waiting = [job for jobs in self._waiting.values() for job in jobs]
        assert self._lacking == sum(len(job.sequences[0].tokens) for job in waiting)
        assert len(waiting) + len(self._running) == len(self._jobs)
        self.pool.check(s.tables for job in self._jobs.values() for s in job.sequences)
        self.cache.check()
