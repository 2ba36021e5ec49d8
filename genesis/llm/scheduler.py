"""The scheduler: which tokens of which requests are computed in the next step, on which pages.

`submit` takes a request or refuses it, `plan` gives a step for the engine to execute, `done` takes
what the engine sampled. Time is an argument; nothing here reads a clock or touches an array.

*Order.* Keys (who pays) get equal shares of the tokens computed, or shares by weight: the key that
has had least is served next. Among a key's requests a level of priority is worth `patience`
seconds of waiting. That makes a *rank* which never changes; pages are taken from the running
request that ranks last, so the first one always advances, and in time every request is the first.

*Memory.* A request is refused if the pool could not hold it alone, and starts when the pool holds
its prompt beside what running requests are about to take. If sequences outgrow the pool, a request
is preempted: its full pages stay cached and move down the tiers as their room is wanted, so later
it computes again what cannot be loaded.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import NamedTuple

from genesis.llm.pages import NOWHERE, Copy, PagePool, Tables, Write
from genesis.llm.prefix import Chain, PrefixCache
from genesis.llm.tiers import Load, Store


class Refused(ValueError):
    """A request that cannot be served, and why."""


@dataclass(frozen=True)
class Limits:
    """What there is to share out beside pages."""

    context: int  # positions of a sequence
    step_tokens: int = 2048  # computed in one step
    sequences: int = 256  # that are decoded in one step
    queue: int = 10_000  # requests that wait
    patience: float = 30.0  # seconds of waiting that a level of priority is worth
    shares: Mapping[str, float] = field(default_factory=dict)  # weights of keys, 1 where not named


@dataclass(frozen=True)
class Request:
    """What somebody wants to be generated."""

    id: str
    prompt: Sequence[int]
    max_tokens: int
    sequences: int = 1  # samples of the same prompt, or beams
    drafts: int = 0  # tokens to speculate on in a step, at most
    priority: int = 0
    deadline: float | None = None
    key: str = ""  # who pays
    adapter: bytes = b""
    salt: bytes = b""  # pages are shared only within a salt
    turns: Sequence[
        int
    ] = ()  # where turns begin that may be dropped for a full context, but the last


class Continuation(NamedTuple):
    """A sequence after a step: `tokens` follow sequence `parent`; with a reason, it ends.

    This says it all: n samples of a prompt are n children of its only sequence, beams that are
    reordered have their parents, a sequence without child is dropped, and of drafts there are the
    accepted ones and the token that follows.
    """

    parent: int
    tokens: Sequence[int]
    reason: str | None = None


class Work(NamedTuple):
    """Tokens of a sequence to compute from position `start` on, with its block tables.

    With `sample`, the engine continues the sequence; it may put as many `drafts` behind the tokens.
    """

    request: Request
    sequence: int
    start: int
    tokens: list[int]
    tables: Tables
    sample: bool
    drafts: int = 0


class Output(NamedTuple):
    """The tokens of one sequence, and why it ended."""

    tokens: list[int]
    reason: str


class Ended(NamedTuple):
    """A request that is over: "finished", "cancelled" or "deadline"."""

    request: Request
    reason: str
    outputs: list[Output]


@dataclass
class Step:
    """What to do, in this order: stores, copies, loads, then prefills and decodes together."""

    stores: list[Store] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    prefills: list[Work] = field(default_factory=list)
    decodes: list[Work] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    @property
    def work(self) -> list[Work]:
        """All that is computed."""
        return self.prefills + self.decodes

    @property
    def tokens(self) -> int:
        """How many tokens are computed, drafts included."""
        return sum(len(work.tokens) + work.drafts for work in self.work)


class _Sequence:
    """Tokens, the first `computed` of which have keys and values in the pages of `tables`."""

    def __init__(self, tokens: list[int], chain: Chain, tables: Tables) -> None:
        self.tokens = tokens
        self.chain = chain
        self.tables = tables
        self.computed = 0
        self.registered = 0  # pages that the prefix cache knows

    @property
    def ready(self) -> bool:
        """Whether only the last token is left to compute."""
        return self.computed == len(self.tokens) - 1


class _Job:
    """A request on its way."""

    def __init__(self, request: Request, rank: tuple[float, int], first: _Sequence) -> None:
        self.request = request
        self.rank = rank
        self.sequences = [first]
        self.outputs: list[Output] = []
        self.prompt = len(request.prompt)
        self.limit = self.prompt + request.max_tokens
        self.running = self.charged = self.cancelled = False
        self.coming: list[bytes] = []  # pages on their way from the disk

    def __lt__(self, other: _Job) -> bool:
        return self.rank < other.rank

    @property
    def ready(self) -> bool:
        """Whether all sequences can be continued; beams are compared, so they wait for each other."""
        return all(sequence.ready for sequence in self.sequences)

    @property
    def forked(self) -> bool:
        """Whether every sequence has pages. After a preemption the prompt is computed once."""
        return len(self.sequences) == 1 or self.sequences[-1].computed > 0


class Scheduler:
    """Requests in, steps out."""

    def __init__(self, limits: Limits, pool: PagePool, cache: PrefixCache, model: bytes) -> None:
        if limits.step_tokens <= limits.sequences:
            raise ValueError("a step must hold more tokens than sequences, or no prompt advances")
        self.limits = limits
        self.pool = pool
        self.cache = cache
        self.model = model
        self._jobs: dict[str, _Job] = {}
        self._running: list[_Job] = []  # by rank
        self._waiting: dict[str, list[_Job]] = {}  # by key, then rank
        self._alive = Counter[str]()  # jobs of each key
        self._served: dict[str, float] = {}  # tokens of each key, by weight
        self._deadlines: list[tuple[float, str]] = []
        self._in_the_way: _Job | None = None
        self._ended: list[Ended] = []
        self._step: Step | None = None
        self._serial = 0
        self._left = 0  # tokens that the step being planned can still hold

    def __len__(self) -> int:
        return len(self._jobs)

    # ---- requests

    def submit(self, request: Request, now: float) -> None:
        """Queue a request, or raise `Refused`."""
        request = self._fit(request)
        self._serial += 1
        chain = Chain(self.pool.page_size, self.model, request.adapter, request.salt)
        first = _Sequence(list(request.prompt), chain, self.pool.new_tables())
        job = _Job(request, (now - request.priority * self.limits.patience, self._serial), first)
        self._jobs[request.id] = job
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.id))
        # A key that was away has not saved up shares.
        least = min((self._served[key] for key in self._alive), default=0.0)
        self._served[request.key] = max(self._served.get(request.key, 0.0), least)
        self._alive[request.key] += 1
        self._wait(job)

    def cancel(self, id: str) -> bool:
        """End a request; False if it is over already. A step that is being executed is finished."""
        job = self._jobs.get(id)
        if job is not None and self._step is not None and job.running:
            job.cancelled = True
        elif job is not None:
            self._end(job, "cancelled")
        return job is not None

    def _fit(self, request: Request) -> Request:
        """The request, perhaps without its oldest turns; `Refused` if it can never be served."""
        if request.id in self._jobs:
            raise Refused(f"there is a request {request.id!r} already")
        if len(self._jobs) - len(self._running) >= self.limits.queue:
            raise Refused(f"{self.limits.queue} requests are waiting, which is the most")
        if not request.prompt or min(request.max_tokens, request.sequences, request.drafts + 1) < 1:
            raise Refused(
                "a request has a prompt, max_tokens and sequences from 1 on, drafts from 0"
            )
        if request.sequences > self.limits.sequences:
            raise Refused(f"{request.sequences} sequences wanted, {self.limits.sequences} at most")
        request = self._drop_turns(request)
        prompt, most = len(request.prompt), request.max_tokens
        need = self.pool.need(
            *(prompt, prompt + most - 1, request.sequences, self.limits.step_tokens, request.drafts)
        )
        pages = [group.pages for group in self.pool.groups]
        if any(n > p for n, p in zip(need, pages, strict=True)):
            raise Refused(
                f"{prompt} tokens and {most} new ones in {request.sequences} sequences can need "
                f"{need} pages of {self.pool.page_size} tokens; there are {pages}"
            )
        return request

    def _drop_turns(self, request: Request) -> Request:
        prompt, turns = request.prompt, request.turns
        excess = len(prompt) + request.max_tokens - self.limits.context
        if excess <= 0:
            return request
        ends = [turn for turn in turns[1:] if excess <= turn - turns[0] and turn < len(prompt)]
        if not ends or turns[0] < 0:
            raise Refused(
                f"{len(prompt)} tokens and {request.max_tokens} new ones do not fit the context of "
                f"{self.limits.context}" + (", with the oldest turns dropped" if turns else "")
            )
        return replace(request, prompt=[*prompt[: turns[0]], *prompt[min(ends) :]], turns=())

    def _wait(self, job: _Job) -> None:
        """Queue a job, and call up what is on disk of its prefix in the meantime."""
        insort(self._waiting.setdefault(job.request.key, []), job)
        first = job.sequences[0]
        first.chain.extend(first.tokens)
        if self.cache.tiers is not None:
            job.coming = self.cache.tiers.prefetch(self.cache.missing(first.chain.keys))

    def _end(self, job: _Job, reason: str) -> None:
        """Forget a job; its sequences that go on end for the same reason."""
        for sequence in job.sequences:
            job.outputs.append(Output(sequence.tokens[job.prompt :], reason))
            self._release(sequence)
        key = job.request.key
        (self._running if job.running else self._waiting[key]).remove(job)
        job.running = False
        del self._jobs[job.request.id]
        self._alive[key] -= 1
        if not self._alive[key]:
            del self._alive[key]
            self._waiting.pop(key, None)
            least = min((self._served[k] for k in self._alive), default=float("inf"))
            self._served = {k: s for k, s in self._served.items() if k in self._alive or s > least}
        self._ended.append(Ended(job.request, reason, job.outputs))

    def _release(self, sequence: _Sequence) -> None:
        self.cache.use(sequence.chain.keys[: sequence.registered])
        self.pool.free(sequence.tables)
        sequence.computed = sequence.registered = 0

    # ---- steps

    def plan(self, now: float) -> Step:
        """The next step; the engine executes it and calls `done`."""
        if self._step is not None:
            raise RuntimeError("the step before is not done")
        step = Step()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, id = heappop(self._deadlines)
            if id in self._jobs and self._jobs[id].request.deadline == deadline:
                self._end(self._jobs[id], "deadline")
        if self._in_the_way is not None and self._in_the_way.running:
            self._preempt(self._in_the_way, step)
        self._in_the_way = None
        decoding = sum(len(job.sequences) for job in self._running if job.ready)
        self._left = self.limits.step_tokens - decoding
        self._advance(step)
        self._admit(step)
        self._speculate(step)
        step.stores = self.cache.take_stores()
        step.ended, self._ended = self._ended, []
        self._step = step
        return step

    def _advance(self, step: Step) -> None:
        """Plan all that is running, in order of rank, on pages of those that rank last."""
        for job in list(self._running):
            while job.running:
                writes = self._wanted(job)
                if self.pool.fits(self.pool.cost([write for _, write in writes])):
                    self._schedule(job, writes, step)
                    break
                self._preempt(self._running[-1], step)

    def _wanted(self, job: _Job) -> list[tuple[int, Write]]:
        """The next tokens of all sequences, or a chunk of the first that lacks more."""
        if job.ready:
            return [
                (i, Write(s.tables, s.computed, s.computed + 1))
                for i, s in enumerate(job.sequences)
            ]
        for i, s in enumerate(job.sequences):
            several = len(job.sequences) > 1
            end = len(s.tokens) - several if job.forked else job.prompt
            end = min(end, s.computed + self._left)
            if s.computed < end:
                return [(i, Write(s.tables, s.computed, end))]
        return []

    def _schedule(self, job: _Job, writes: list[tuple[int, Write]], step: Step) -> None:
        decode = job.ready
        for index, (tables, start, end) in writes:
            tokens = job.sequences[index].tokens
            step.copies += self.pool.extend(tables, start, end)
            sample = decode or (len(job.sequences) == 1 and end == len(tokens))
            work = Work(job.request, index, start, tokens[start:end], tables, sample)
            (step.decodes if decode else step.prefills).append(work)
            self._left -= 0 if decode else end - start

    def _preempt(self, job: _Job, step: Step) -> None:
        """Take all pages of a job; it waits in its old place."""
        self._running.remove(job)
        job.running = False
        for sequence in job.sequences:
            self._release(sequence)
        step.preempted.append(job.request.id)
        self._wait(job)

    def _speculate(self, step: Step) -> None:
        """Drafts for those who want them, on what is left when all others have theirs."""
        for i, work in enumerate(step.decodes):
            job = self._jobs[work.request.id]
            more = job.limit - len(job.sequences[work.sequence].tokens) - 1
            drafts = min(work.request.drafts, more, self._left)
            write = Write(work.tables, work.start + 1, work.start + 1 + drafts)
            if drafts > 0 and self.pool.fits(self.pool.cost([write])):
                step.copies += self.pool.extend(*write)
                step.decodes[i] = work._replace(drafts=drafts)
                self._left -= drafts

    # ---- admission

    def _admit(self, step: Step) -> None:
        """Start waiting jobs. Nobody overtakes one that does not fit yet, or it might never."""
        while self._left > 0 and (job := self._next()) is not None:
            if not self._start(job, step):
                lower = (j for j in reversed(self._running) if _yields(j, job))
                self._in_the_way = next(lower, None)
                break

    def _next(self) -> _Job | None:
        """The first job of the key that was served least, of those whose pages have come."""
        heads = (next((j for j in jobs if self._here(j)), None) for jobs in self._waiting.values())
        found = [job for job in heads if job is not None]
        return min(found, key=lambda j: (self._served[j.request.key], j.rank), default=None)

    def _here(self, job: _Job) -> bool:
        return self.cache.tiers is None or not self.cache.tiers.coming(job.coming)

    def _start(self, job: _Job, step: Step) -> bool:
        """Find a job's prefix, and begin with the rest if there is room."""
        if self._sequences() + job.request.sequences > self.limits.sequences:
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
        if not job.charged:
            self._charge(job, length - first.computed)
            job.charged = True
        self._waiting[job.request.key].remove(job)
        insort(self._running, job)
        job.running = True
        decode, writes = job.ready, self._wanted(job)
        self._left -= decode
        self._schedule(job, writes, step)
        return True

    def _sequences(self) -> int:
        return sum(job.request.sequences for job in self._running)

    def _reserve(self, job: _Job) -> list[int]:
        """How many pages a job is about to take: a next one, or what its prompt lacks."""
        if job.running and job.ready:
            return [len(job.sequences)] * len(self.pool.groups)
        length = min(max(len(s.tokens) for s in job.sequences) + 1, job.limit - 1)
        need = self.pool.need(job.prompt, length, len(job.sequences), self.limits.step_tokens)
        for group, most in enumerate(need):
            held = {page for s in job.sequences for page in s.tables[group]} - {NOWHERE}
            need[group] = max(0, most - len(held))
        return need

    def _charge(self, job: _Job, tokens: int) -> None:
        key = job.request.key
        self._served[key] += tokens / self.limits.shares.get(key, 1.0)

    # ---- results

    def done(
        self, step: Step, results: Mapping[str, Sequence[Continuation]], now: float
    ) -> list[Ended]:
        """The step was executed; `results` continue the requests whose work says `sample`."""
        if step is not self._step:
            raise RuntimeError("this is not the step that was planned last")
        self._step = None
        drafts = {}
        for work in step.work:
            job = self._jobs[work.request.id]
            job.sequences[work.sequence].computed = work.start + len(work.tokens)
            drafts[job] = work.drafts if work.sample else None
        for job, most in drafts.items():
            if job.cancelled:
                self._end(job, "cancelled")
            elif most is None:
                self._settle(job)
            else:
                self._continue(job, results[job.request.id])
        for job in [job for job in self._running if job.cancelled]:
            self._end(job, "cancelled")
        ended, self._ended = self._ended, []
        return ended

    def _settle(self, job: _Job) -> None:
        """Share what is full, free what left its window; after a prompt, all sequences follow."""
        for sequence in job.sequences:
            self._share(sequence)
        first = job.sequences[0]
        if not job.forked and first.computed == job.prompt:
            for other in job.sequences[1:]:
                other.tables = self.pool.fork(first.tables)
                other.computed, other.registered = first.computed, first.registered

    def _share(self, sequence: _Sequence) -> None:
        full = sequence.computed // self.pool.page_size
        if full > sequence.registered:
            if len(sequence.chain.keys) < full:
                sequence.chain.extend(sequence.tokens[: sequence.computed])
            keys = sequence.chain.keys[:full]
            self.cache.register(sequence.tables, keys, sequence.registered)
            sequence.registered = full
        self.pool.slide(sequence.tables, sequence.computed)

    def _continue(self, job: _Job, continuations: Sequence[Continuation]) -> None:
        """The children of a job's sequences take their place."""
        parents, job.sequences = job.sequences, []
        children = Counter(child.parent for child in continuations)
        left = Counter(children)
        for parent, tokens, reason in continuations:
            left[parent] -= 1  # the last child is the parent itself
            sequence = self._fork(parents[parent]) if left[parent] else parents[parent]
            sequence.tokens += tokens
            if children[parent] == 1:  # others would share a page of drafts that they do not share
                sequence.computed += max(0, len(tokens) - 1)
            self.pool.truncate(sequence.tables, sequence.computed)
            self._charge(job, len(tokens))
            self._share(sequence)
            if reason is None and len(sequence.tokens) < job.limit:
                job.sequences.append(sequence)
                continue
            job.outputs.append(Output(sequence.tokens[job.prompt :], reason or "length"))
            self._release(sequence)
        for i, sequence in enumerate(parents):
            if i not in children:
                self._release(sequence)
        if not job.sequences:
            self._end(job, "finished")

    def _fork(self, sequence: _Sequence) -> _Sequence:
        tables = self.pool.fork(sequence.tables)
        twin = _Sequence(list(sequence.tokens), sequence.chain.fork(), tables)
        twin.computed, twin.registered = sequence.computed, sequence.registered
        return twin

    def check(self) -> None:
        """All pages are accounted for."""
        self.pool.check(s.tables for job in self._jobs.values() for s in job.sequences)
        self.cache.check()


def _yields(running: _Job, waiting: _Job) -> bool:
    """Whether a running job makes way: for a higher priority of the same key, if that ranks first.

    Between keys, shares decide and not priorities: otherwise everybody would have the highest.
    """
    mine, other = running.request, waiting.request
    same = mine.key == other.key and mine.priority < other.priority
    return same and waiting.rank < running.rank
