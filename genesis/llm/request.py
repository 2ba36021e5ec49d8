"""What the scheduler takes, gives and keeps: requests, steps, results; jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from genesis.llm.page_offload import Load, StorePage
from genesis.llm.pages import Copy, PagePool, Tables, Write
from genesis.llm.prefix_cache import Chain


class Refused(ValueError):
    """A request that cannot be served, and why."""


class Busy(Refused):
    """A request that could be served later."""


@dataclass(frozen=True)
class Limits:
    """What there is to share out beside pages."""

    context: int  # positions of a sequence
    step_tokens: int = 2048  # computed in one step
    sequences: int = 256  # decoded in one step
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
    deadline: float | None = None  # when it is over, done or not
    due: float | None = None  # when its turn is: when it comes, unless given
    pace: float | None = None  # seconds between tokens that are aimed at
    key: str = ""  # who pays
    adapter: bytes = b""
    salt: bytes = b""  # pages are shared only within a salt
    #: Beyond so many tokens all of a sequence is computed anew, its pages under another salt.
    switch: tuple[int, bytes] | None = None
    turns: Sequence[int] = ()  # where turns begin; all but the last may go if the context is full

    def fitted(self, context: int) -> Request:
        """The request without as many of its oldest turns as do not fit a context."""
        excess = len(self.prompt) + self.max_tokens - context
        if excess <= 0:
            return self
        first = self.turns[0] if self.turns else 0
        ends = [turn for turn in self.turns[1:] if first + excess <= turn < len(self.prompt)]
        if not ends or first < 0:
            raise Refused(
                f"{len(self.prompt)} tokens and {self.max_tokens} new ones do not fit the context "
                f"of {context}" + (", whichever old turns are dropped" if self.turns else "")
            )
        return replace(self, prompt=[*self.prompt[:first], *self.prompt[min(ends) :]], turns=())


class TokenSpan(NamedTuple):
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


class Continuation(NamedTuple):
    """A sequence after a step: `tokens` follow sequence `parent`; with a reason, it ends.

    This says it all: n samples of a prompt are n children of its only sequence, beams that are
    reordered have their parents, a sequence without child is dropped, and of drafts there are the
    accepted ones and the token that follows.
    """

    parent: int
    tokens: Sequence[int]
    reason: str | None = None


class SequenceOutput(NamedTuple):
    """The tokens of one sequence, and why it ended."""

    tokens: list[int]
    reason: str


class Ended(NamedTuple):
    """A request that is over: "finished", "cancelled", "deadline" or "error"."""

    request: Request
    reason: str
    outputs: list[SequenceOutput]


@dataclass
class EngineStep:
    """What to do, in this order: stores, copies, loads, then prefills and decodes together."""

    stores: list[StorePage] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    prefills: list[TokenSpan] = field(default_factory=list)
    decodes: list[TokenSpan] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    @property
    def work(self) -> list[TokenSpan]:
        """All that is computed."""
        return self.prefills + self.decodes

    @property
    def tokens(self) -> int:
        """How many tokens are computed, drafts included."""
        return sum(len(work.tokens) + work.drafts for work in self.work)


class SequenceState:
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

    def fork(self, pool: PagePool) -> SequenceState:
        """The same, on the same pages, to go on differently."""
        twin = SequenceState(list(self.tokens), self.chain.fork(), pool.fork(self.tables))
        twin.computed, twin.registered = self.computed, self.registered
        return twin


class Job:
    """A request on its way."""

    def __init__(self, request: Request, rank: tuple[float, int], first: SequenceState) -> None:
        self.request = request
        self.rank = rank
        self.sequences = [first]
        self.outputs: list[SequenceOutput] = []
        self.prompt = len(request.prompt)
        self.limit = self.prompt + request.max_tokens
        self.running = self.cancelled = False
        self.charged: int | None = None  # tokens of the prompt that had to be computed
        #: How long sequences may get before they are computed anew.
        self.switch: int | None = None
        if request.switch is not None and self.prompt <= request.switch[0]:
            self.switch = request.switch[0]
        self.coming: list[bytes] = []  # pages on their way from the disk

    def __lt__(self, other: Job) -> bool:
        return self.rank < other.rank

    @property
    def ready(self) -> bool:
        """Whether all sequences can be continued: beams are compared, so they wait for another."""
        first = self.sequences[0]
        if first.computed != len(first.tokens) - 1:
            return False
        return len(self.sequences) == 1 or all(sequence.ready for sequence in self.sequences)

    @property
    def forked(self) -> bool:
        """Whether every sequence has pages. After a preemption the prompt is computed once."""
        return len(self.sequences) == 1 or self.sequences[-1].computed > 0

    @property
    def outgrown(self) -> bool:
        """Whether sequences have become so long that they are to be computed anew."""
        return self.switch is not None and any(len(s.tokens) > self.switch for s in self.sequences)

    def writes(self, most: int) -> list[Write]:
        """What to compute next of each sequence: a token, or a chunk of the first that lacks more.

        Where several sequences follow, none is sampled before all have caught up.
        """
        if self.ready:
            return [Write(s.tables, s.computed, s.computed + 1) for s in self.sequences]
        writes = []
        for s in self.sequences:
            end = len(s.tokens) - (len(self.sequences) > 1) if self.forked else self.prompt
            end = min(end, s.computed + most)
            if s.computed < end:
                most = 0
            writes.append(Write(s.tables, s.computed, end))
        return writes
