"""The prefix cache: pages that were computed once are found by what they depend on.

The key of a page is a SHA-256 over its tokens and the key of the page before it; the first page
follows a key of the model, the adapter and a salt. So equal keys mean equal contents, and requests
with different salts or adapters never share a page. A page is shareable once it is full and
computed; when no sequence holds it any more it stays until its room is wanted, and then moves to
the tier below, if there is one.

>>> from genesis.llm.pages import PageGroup
>>> pool = PagePool(page_size=2, groups=[PageGroup(pages=8)])
>>> cache = PrefixCache(pool)
>>> chain, tables = Chain(2, b"model"), pool.new_tables()
>>> chain.extend([7, 8, 9, 10, 11])
>>> _ = pool.extend(tables, 0, 5)
>>> cache.register(tables, chain.keys, 0)
>>> pool.free(tables)
>>> cache.match(chain.keys).pages
2
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from genesis.llm.eviction import Learned, Policy
from genesis.llm.page_offload import Load, StorePage, Tiers
from genesis.llm.pages import NOWHERE, Keeper, PagePool, Tables


class Chain:
    """The keys of a sequence's full pages.

    `model` names all that contents depend on beside the tokens: weights, dtype, layout of a page.
    Where a position stands for something else than a token (a piece of an image), a number that
    identifies it takes the token's place.
    """

    def __init__(
        self, page_size: int, model: bytes, adapter: bytes = b"", salt: bytes = b""
    ) -> None:
        root = hashlib.sha256(b"genesis pages")
        for part in (page_size.to_bytes(8, "little"), model, adapter, salt):
            root.update(len(part).to_bytes(8, "little") + part)
        self.page_size = page_size
        self.keys: list[bytes] = []
        self._root = root.digest()

    def extend(self, tokens: Sequence[int]) -> None:
        """Keys for all full pages of `tokens`, the sequence from its first token on."""
        size = self.page_size
        last = self.keys[-1] if self.keys else self._root
        for end in range((len(self.keys) + 1) * size, len(tokens) + 1, size):
            page = struct.pack(f"<{size}q", *tokens[end - size : end])
            last = hashlib.sha256(last + page).digest()
            self.keys.append(last)

    def fork(self) -> Chain:
        """The same keys, to go on differently."""
        twin = object.__new__(Chain)
        twin.page_size, twin.keys, twin._root = self.page_size, list(self.keys), self._root
        return twin


class Match(NamedTuple):
    """Where the first `pages` pages of a sequence are: for each group a page, bytes, or neither."""

    pages: int
    sources: list[list[int | bytes | None]]

    def loads(self) -> list[int]:
        """How many pages of each group come from the tier below."""
        return [sum(isinstance(s, bytes) for s in sources) for sources in self.sources]


class PrefixCache(Keeper):
    """Finds and keeps the pages of a pool by the keys of a chain.

    `stores` collects what was given up: to be read before anything is written.
    """

    def __init__(
        self,
        pool: PagePool,
        policy: Callable[[int], Policy] = Learned,
        tiers: Tiers | None = None,
    ) -> None:
        self.pool = pool
        self.tiers = tiers
        self.policies = [policy(group.pages) for group in pool.groups]
        self.stores: list[StorePage] = []
        self.evictions = 0  # pages that were given up
        self._pages: list[dict[bytes, int]] = [{} for _ in pool.groups]
        self._keys: list[dict[int, bytes]] = [{} for _ in pool.groups]
        pool.keeper = self

    # ---- finding

    def match(self, keys: Sequence[bytes]) -> Match:
        """The longest prefix all of whose pages that are still needed can be had."""
        sources = [self._sources(group, keys) for group in range(len(self.pool.groups))]
        runs = [list(accumulate((s is not None for s in found), _run)) for found in sources]
        pages = len(keys)
        while pages and not all(
            runs[group][pages - 1] >= pages - self._first_needed(group, pages)
            for group in range(len(sources))
        ):
            pages -= 1
        for group, found in enumerate(sources):
            first = self._first_needed(group, pages)
            sources[group] = [None] * first + found[first:pages]
        return Match(pages, sources)

    def _sources(self, group: int, keys: Sequence[bytes]) -> list[int | bytes | None]:
        """Where each page is; where all are needed, nothing after the first that is missing."""
        found: list[int | bytes | None] = []
        for key in keys:
            page = self._pages[group].get(key)
            found.append(self._below(group, key) if page is None else page)
            if found[-1] is None and self.pool.groups[group].window is None:
                return found + [None] * (len(keys) - len(found))
        return found

    def _below(self, group: int, key: bytes) -> bytes | None:
        return self.tiers.get(tier_key(group, key)) if self.tiers else None

    def _first_needed(self, group: int, pages: int) -> int:
        return self.pool.first_needed(group, pages * self.pool.page_size)

    def missing(self, keys: Sequence[bytes]) -> list[bytes]:
        """The keys, as tiers know them, of the pages that are not in the pool."""
        return [
            tier_key(group, key)
            for group, pages in enumerate(self._pages)
            for key in keys[self._first_needed(group, len(keys)) :]
            if key not in pages
        ]

    # ---- holding

    def hold(self, match: Match) -> Tables:
        """Tables with the pages of a match that are in the pool; `load` puts in the others."""
        tables = self.pool.new_tables()
        for group, sources in enumerate(match.sources):
            for source in sources:
                if isinstance(source, int):
                    self.pool.share(group, source)
                tables[group].append(source if isinstance(source, int) else NOWHERE)
        return tables

    def load(self, match: Match, tables: Tables, keys: Sequence[bytes]) -> list[Load]:
        """Take pages for what comes from the tier below: what to write where."""
        loads = []
        for group, sources in enumerate(match.sources):
            for index, source in enumerate(sources):
                if isinstance(source, bytes):
                    tables[group][index] = page = self.pool.take(group)
                    self._add(group, keys[index], page)
                    loads.append(Load(group, page, source))
        return loads

    def forget(self, loads: Sequence[Load]) -> None:
        """These loads never happened: nobody finds the pages they were for."""
        for group, page, _ in loads:
            if (key := self._keys[group].pop(page, None)) is not None:
                del self._pages[group][key]
                self.policies[group].withdraw(key)

    def use(self, keys: Sequence[bytes]) -> None:
        """A request uses the pages of this chain, whether they are here or not."""
        for group, policy in enumerate(self.policies):
            first = self._first_needed(group, len(keys))
            policy.use(keys[first:], first)

    def register(self, tables: Tables, keys: Sequence[bytes], first: int) -> None:
        """The pages of these keys, from page `first` on, are full and computed.

        Where another sequence has computed the same in the meantime, its page is used instead.
        """
        for group, table in enumerate(tables):
            for index in range(first, len(keys)):
                page = table[index]
                known = self._pages[group].get(keys[index], NOWHERE)
                if page in (NOWHERE, known):
                    continue
                if known == NOWHERE:
                    self._add(group, keys[index], page)
                else:
                    self.pool.share(group, known)
                    self.pool.release(group, page)
                    table[index] = known

    def _add(self, group: int, key: bytes, page: int) -> None:
        self._pages[group][key] = page
        self._keys[group][page] = key

    # ---- keeping: what the pool asks

    def keep(self, group: int, page: int) -> bool:
        """Pages that were registered are kept."""
        key = self._keys[group].get(page)
        if key is not None:
            self.policies[group].offer(key)
        return key is not None

    def wake(self, group: int, page: int) -> None:
        """A page that was kept is held again."""
        self.policies[group].withdraw(self._keys[group][page])

    def kept(self, group: int) -> int:
        """How many pages are kept that nobody holds."""
        return len(self.policies[group].offered)

    def give_up(self, group: int) -> int:
        """The page worth least; it is to be stored in the tier below before it is written."""
        self.evictions += 1
        key = self.policies[group].victim()
        page = self._pages[group].pop(key)
        del self._keys[group][page]
        if self.tiers and not self.tiers.has(tier_key(group, key)):
            self.stores.append(StorePage(group, page, tier_key(group, key)))
        return page

    def kept_pages(self) -> Iterator[StorePage]:
        """All pages that are known here and on no tier below, those worth least first."""
        for group, pages in enumerate(self._pages):
            for key in sorted(pages, key=self.policies[group].score):
                if self.tiers is not None and not self.tiers.has(tier_key(group, key)):
                    yield StorePage(group, pages[key], tier_key(group, key))

    def check(self) -> None:
        """Keys and pages belong together, and just those that nobody holds are on offer."""
        for group, pages in enumerate(self._pages):
            assert {page: key for key, page in pages.items()} == self._keys[group]
            references = self.pool.references[group]
            idle = {key for key, page in pages.items() if not references[page]}
            assert idle == self.policies[group].offered


def tier_key(group: int, key: bytes) -> bytes:
    """How tiers know the page of a group."""
    return group.to_bytes(2, "little") + key


def _run(length: int, present: bool) -> int:
    """How many pages in a row are present, up to this one."""
    return length + 1 if present else 0
