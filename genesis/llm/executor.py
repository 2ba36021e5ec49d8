"""Runs what the scheduler planned: the decoder's programs, over the pages of its layers.

Whatever traffic there is, there are a handful of programs: one for the rows of many texts, one for
a piece of a prompt, and a few that copy, clear, read and write pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np

import genesis
from genesis.llm.config import DecoderConfig
from genesis.llm.decoder import Decoder, StepRows
from genesis.llm.kv_cache import FORMATS, Cache
from genesis.llm.pages import NOWHERE, Copy, Tables
from genesis.llm.request import TokenSpan

Array = np.ndarray[Any, Any]
_NOTHING = np.empty((0, 0), np.float32)
#: Pages of a table, at least: a table of one page would have a program of its own.
LEAST_PAGES = 2


class MemoryNeeds(NamedTuple):
    """The bytes that a model takes: its weights, its pages, and the most that a step needs."""

    weights: int
    pages: int
    step: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


class Executor:
    """A decoder with its pages. The last page of every group is nobody's, and stays zero."""

    def __init__(
        self,
        decoder: Decoder,
        pages: Sequence[int],
        page_size: int,
        format: str = "float32",
        adapters: bool = False,
    ) -> None:
        config = decoder.config
        self.adapters = adapters  # whether rows say which they use
        self.decoder, self.page_size, self.pages = decoder, page_size, list(pages)
        windows = config.windows
        self.caches = []
        for layer in config.layers:
            group = windows.index(layer.reach)
            count = self.pages[group] + 1
            heads, features = config.key_heads, config.head_size
            self.caches.append(Cache(group, count, heads, page_size, features, format))
        #: Whether programs for other numbers of rows sum up in another order, as those of GPUs do.
        self.sums_by_program = self.caches[0].arrays[0].device != "cpu"
        self._jit()
        arrays = [self._arrays(group) for group in range(len(self.pages))]
        self._copies, self._clears, self._writes = (
            [genesis.jit(partial(how, own)) for own in arrays] for how in (_copy, _clear, _write)
        )

    def _jit(self) -> None:
        self._decode = genesis.jit(self._rows)
        self._prefill = genesis.jit(self._piece)
        self._every = genesis.jit(self._text)
        self._head = genesis.jit(self._scores)

    def first(self, layers: int) -> Executor:
        """The first layers alone, on the same pages: a draft of what the whole would say."""
        found = copy(self)
        found.caches = self.caches[:layers]
        found._jit()
        return found

    @staticmethod
    def page_bytes(config: DecoderConfig, group: int, page_size: int, format: str) -> int:
        """The bytes of a page of a group."""
        layers = sum(layer.reach == config.windows[group] for layer in config.layers)
        token = FORMATS[format].token_bytes(config.head_size)
        return 2 * layers * config.key_heads * page_size * token

    # ---- programs

    def _rows(self, tokens: Any, *rows: Any) -> Any:
        with genesis.no_grad():
            return self.decoder.scores(self._hidden(tokens, *rows))

    def _text(self, tokens: Any, first: Any, *rest: Any) -> Any:
        return self._rows(tokens, _positions(tokens, first), *rest)

    def _piece(self, tokens: Any, first: Any, *rest: Any) -> Any:
        with genesis.no_grad():
            return self._hidden(tokens, _positions(tokens, first), *rest)[-1:]

    def _scores(self, rows: Any) -> Any:
        with genesis.no_grad():
            return self.decoder.scores(rows)

    def _hidden(self, tokens: Any, positions: Any, spans: Any, places: Any, *rest: Any) -> Any:
        groups = len(self.pages)
        adapters = rest[-1] if self.adapters else None
        rows = StepRows(
            positions, spans, places, rest[:groups], rest[groups : 2 * groups], adapters
        )
        return self.decoder(tokens, rows, self.caches)

    # ---- steps

    def decode(
        self, works: Sequence[TokenSpan], spans: Sequence[int], slots: Sequence[int] = ()
    ) -> list[Array]:
        """The scores after all tokens of works, in one program.

        `spans` are the lengths of prompts, `slots` those of adapters.
        """
        counts = [len(work.tokens) for work in works]
        if sum(counts) == 1 and self.sums_by_program:
            # A single row has a program of its own. Beside itself it has that of all others.
            return self.decode([*works] * 2, [*spans] * 2, [*slots] * 2)[:1]
        at = np.concatenate(
            [np.arange(w.start, w.start + n) for w, n in zip(works, counts, strict=True)]
        )
        owner = np.repeat(np.arange(len(works)), counts)
        width = max(LEAST_PAGES, *(len(table) for work in works for table in work.tables))
        tables = [
            np.asarray([self._padded(w.tables[g], g, width) for w in works])
            for g in range(len(self.pages))
        ]
        arguments = self._arguments(
            np.concatenate([np.asarray(work.tokens) for work in works]), at, at,
            np.asarray(spans)[owner], [table[owner, at // self.page_size] for table in tables],
            [table[owner] for table in tables], np.asarray(slots)[owner] if self.adapters else None,
        )  # fmt: skip
        scores = np.asarray(self._decode(*arguments))
        ends = list(accumulate(counts))
        return [scores[end - n : end] for n, end in zip(counts, ends, strict=True)]

    def prefill(
        self, work: TokenSpan, span: int, slot: int = 0,
        scores: Literal["none", "last", "every"] = "last",
    ) -> Array:  # fmt: skip
        """Compute some tokens of one text; the scores after the last of them, each or none.

        Most pieces of a prompt are not its last, and the head is the largest of all matrices.
        """
        at = np.arange(work.start, work.start + len(work.tokens))
        width = -(-int(at[-1] + 1) // self.page_size)
        tables = [np.asarray(self._padded(t, g, width)) for g, t in enumerate(work.tables)]
        arguments = self._arguments(
            np.asarray(work.tokens), at[:1], at, span, [t[at // self.page_size] for t in tables],
            tables, np.full(len(at), slot) if self.adapters else None,
        )  # fmt: skip
        if scores == "every":
            return np.asarray(self._every(*arguments))
        row = self._prefill(*arguments)
        return _NOTHING if scores == "none" else np.asarray(self._head(row))

    def _arguments(
        self, tokens: Array, positions: Array, at: Array, spans: Any, pages: list[Array],
        tables: list[Array], slots: Array | None,
    ) -> list[Any]:  # fmt: skip
        """What the programs take, in the order of `_hidden`; of one text the first position."""
        own = [tokens, positions, np.maximum(at + 1, spans), at % self.page_size, *pages, *tables]
        return list(map(_tensor, own if slots is None else [*own, slots]))

    def _padded(self, table: Sequence[int], group: int, width: int) -> list[int]:
        nobody = self.pages[group]
        known = [nobody if page == NOWHERE else page for page in table[:width]]
        return known + [nobody] * (width - len(known))

    def prepare(self) -> None:
        """Compile the programs for whatever comes, before it comes."""
        for program, texts in ((self._decode, True), (self._prefill, False)):
            program.expect(*map(_tensor, self._example(2, 3, texts)))
            program.recording(*map(_tensor, self._example(3, 4, texts)))
        self._head.recording(genesis.zeros(1, self.decoder.config.width))

    def memory(self, rows: int, chunk: int, length: int) -> MemoryNeeds:
        """What it takes to run so many rows of many texts, or of one, of up to `length` tokens."""
        width = -(-length // self.page_size)
        steps = []
        for program, count, texts in ((self._decode, rows, True), (self._prefill, chunk, False)):
            given = list(map(_tensor, self._example(count, width, texts)))
            recording, sizes = program.recording(*given)
            steps.append(recording.program.peak_bytes(sizes) + sum(x.nbytes for x in given))
        pages = sum(x.nbytes for cache in self.caches for x in cache.arrays)
        return MemoryNeeds(sum(x.nbytes for x in self.decoder.buffers()), pages, max(steps))

    def _example(self, rows: int, width: int, texts: bool) -> list[Array]:
        groups, zeros = len(self.pages), np.zeros(rows)
        table = np.zeros((rows, width)) if texts else np.zeros(width)
        positions = zeros if texts else zeros[:1]
        return (
            [zeros, positions] + [zeros] * (2 + groups) + [table] * groups + [zeros] * self.adapters
        )

    # ---- pages

    def fresh(self, works: Sequence[TokenSpan]) -> None:
        """Clear pages that works begin to write: nothing that somebody left there is used."""
        for group in range(len(self.pages)):
            pages = [p for work in works for p in self._begun(work.tables, group, work)]
            if pages:
                self._clears[group](_tensor(np.asarray(pages)))

    def _begun(self, tables: Tables, group: int, work: TokenSpan) -> list[int]:
        first = -(-work.start // self.page_size)
        last = (work.start + len(work.tokens) + work.drafts - 1) // self.page_size
        return [p for p in tables[group][first : last + 1] if p != NOWHERE]

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """Copy pages."""
        for group in range(len(self.pages)):
            own = [copy for copy in copies if copy.group == group]
            if own:
                sources, targets = ([c.source for c in own], [c.target for c in own])
                self._copies[group](_tensor(np.asarray(sources)), _tensor(np.asarray(targets)))

    def read(self, group: int, page: int) -> bytes:
        """The contents of a page."""
        return b"".join(x[page].numpy().tobytes() for x in self._arrays(group))

    def write(self, group: int, page: int, data: bytes) -> None:
        """Put contents into a page."""
        contents, at = [], 0
        for x in self._arrays(group):
            end = at + x[0].nbytes
            part = np.frombuffer(data[at:end], x.dtype.numpy).reshape(x.shape[1:])
            contents.append(genesis.tensor(part))
            at = end
        self._writes[group](_tensor(np.asarray([page])), *contents)

    def _arrays(self, group: int) -> list[Any]:
        """What the pages of a group are made up of."""
        return [x for cache in self.caches if cache.group == group for x in cache.arrays]


def _positions(tokens: Any, first: Any) -> Any:
    """Those of one text, one after the other: so it is known which keys all of its rows see."""
    return first + genesis.arange(tokens.shape[0])


def _tensor(x: Array) -> Any:
    return genesis.tensor(np.ascontiguousarray(x, np.int64))


def _copy(arrays: Sequence[Any], sources: Any, targets: Any) -> None:
    for x in arrays:
        x[targets] = x[sources]


def _clear(arrays: Sequence[Any], pages: Any) -> None:
    for x in arrays:
        x[pages] = 0


def _write(arrays: Sequence[Any], pages: Any, *contents: Any) -> None:
    for x, new in zip(arrays, contents, strict=True):
        x[pages] = new[None]


__all__ = ["Executor", "MemoryNeeds"]
