"""Pages of the KV cache: which sequence holds which, which are free, which must be copied.

A page keeps the keys and values of `page_size` consecutive positions, for one *group* of layers:
those that attend to everything, or those that attend to the last `window` positions. Each group
has pages of its own, so that a model that mixes both kinds frees what left the window of the one
and keeps it for the other. A sequence has a block table per group: the page of each `page_size`
positions, or `NOWHERE` for those that the group no longer needs.

Nothing here touches an array: the pool says which pages to copy, free and write.

>>> pool = PagePool(page_size=4, groups=[PageGroup(pages=8)])
>>> tables = pool.new_tables()
>>> pool.extend(tables, 0, 6), len(tables[0])
([], 2)
>>> twin = pool.fork(tables)
>>> [copy] = pool.extend(twin, 6, 7)  # the second page is shared and would be written
>>> copy == Copy(0, tables[0][1], twin[0][1])
True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NOWHERE = -1

Tables = list[list[int]]


class PageGroup(NamedTuple):
    """Layers that keep the same positions: all, or the last `window`; and their pages."""

    pages: int
    window: int | None = None


class Copy(NamedTuple):
    """The contents of page `source` are wanted in page `target` before it is written."""

    group: int
    source: int
    target: int


class Write(NamedTuple):
    """The positions from `start` to `end` of a sequence are about to be written."""

    tables: Tables
    start: int
    end: int


class Keeper:
    """Who keeps pages that no sequence holds until they are wanted; this one keeps none."""

    def keep(self, group: int, page: int) -> bool:
        """Nobody holds this page any more: is it kept?"""
        return False

    def wake(self, group: int, page: int) -> None:
        """A page that was kept is held by a sequence again."""

    def kept(self, group: int) -> int:
        """How many pages are kept, each of which `give_up` could give."""
        return 0

    def give_up(self, group: int) -> int:
        """One of the pages that were kept, to be written anew."""
        raise IndexError("no page is free")


class PagePool:
    """The pages of all groups: counts of references, block tables, copies on write."""

    def __init__(self, page_size: int, groups: Sequence[PageGroup]) -> None:
        if page_size < 1 or not groups or any(g.pages < 1 or g.window == 0 for g in groups):
            raise ValueError(f"no pool of pages of {page_size} tokens for {list(groups)}")
        self.page_size = page_size
        self.groups = tuple(groups)
        self.keeper = Keeper()
        self.references = [[0] * group.pages for group in groups]
        self._free = [list(range(group.pages - 1, -1, -1)) for group in groups]

    # ---- single pages

    def take(self, group: int) -> int:
        """A page to write, held once: a free one, else one that the keeper gives up."""
        free = self._free[group]
        page = free.pop() if free else self.keeper.give_up(group)
        self.references[group][page] = 1
        return page

    def share(self, group: int, page: int) -> None:
        """One more sequence holds the page."""
        if not self.references[group][page]:
            self.keeper.wake(group, page)
        self.references[group][page] += 1

    def release(self, group: int, page: int) -> None:
        """One sequence fewer holds the page."""
        self.references[group][page] -= 1
        if not self.references[group][page] and not self.keeper.keep(group, page):
            self._free[group].append(page)

    def available(self) -> list[int]:
        """How many pages of each group can be taken now."""
        return [len(free) + self.keeper.kept(g) for g, free in enumerate(self._free)]

    def fits(self, pages: Iterable[int]) -> bool:
        """Whether that many pages of each group can be taken now."""
        return all(n <= a for n, a in zip(pages, self.available(), strict=True))

    # ---- sequences

    def new_tables(self) -> Tables:
        """Block tables of a sequence that has nothing yet."""
        return [[] for _ in self.groups]

    def cost(self, writes: Sequence[Write]) -> list[int]:
        """How many pages of each group `extend` will take for all these writes.

        Of the holders of a shared page, all that write get a copy, unless nobody else is left.
        """
        new, writers = [0] * len(self.groups), dict[tuple[int, int], int]()
        for tables, start, end in writes:
            first, last = start // self.page_size, self.pages_for(end)
            for group, table in enumerate(tables):
                new[group] += max(0, last - len(table))
                for page in table[first:last] if start < end else ():
                    if self.references[group][page] > 1:
                        writers[group, page] = writers.get((group, page), 0) + 1
        for (group, page), count in writers.items():
            new[group] += count - (count == self.references[group][page])
        return new

    def extend(self, tables: Tables, start: int, end: int) -> list[Copy]:
        """Make the positions from `start` to `end` writable; what to copy before writing."""
        copies = []
        for group, table in enumerate(tables):
            for index in range(start // self.page_size, self.pages_for(end)):
                if index == len(table):
                    table.append(self.take(group))
                elif self.references[group][page := table[index]] > 1:
                    table[index] = self.take(group)
                    self.release(group, page)
                    copies.append(Copy(group, page, table[index]))
        return copies

    def fork(self, tables: Tables) -> Tables:
        """Tables of a second sequence with the same past; nothing is copied until one writes."""
        for group, table in enumerate(tables):
            for page in table:
                if page != NOWHERE:
                    self.share(group, page)
        return [list(table) for table in tables]

    def truncate(self, tables: Tables, length: int) -> None:
        """Release the pages of positions from `length` on: drafts that were not accepted."""
        keep = self.pages_for(length)
        for group, table in enumerate(tables):
            self._release_all(group, table[keep:])
            del table[keep:]

    def slide(self, tables: Tables, length: int) -> None:
        """Release the pages that no position from `length` on attends to."""
        for group, table in enumerate(tables):
            index = min(self.first_needed(group, length), len(table)) - 1
            while index >= 0 and table[index] != NOWHERE:
                self.release(group, table[index])
                table[index] = NOWHERE
                index -= 1

    def free(self, tables: Tables) -> None:
        """Release all pages of a sequence."""
        for group, table in enumerate(tables):
            self._release_all(group, table)
            table.clear()

    def _release_all(self, group: int, pages: Iterable[int]) -> None:
        for page in pages:
            if page != NOWHERE:
                self.release(group, page)

    # ---- how much

    def pages_for(self, length: int) -> int:
        """How many pages `length` positions from the first on fill."""
        return -(-length // self.page_size)

    def first_needed(self, group: int, length: int) -> int:
        """The first page of a sequence that its position `length` attends to."""
        window = self.groups[group].window
        return 0 if window is None else max(0, length - window + 1) // self.page_size

    def need(
        self, prompt: int, length: int, sequences: int = 1, chunk: int = 1, drafts: int = 0
    ) -> list[int]:
        """How many pages of each group a request can ever hold at once.

        Its `sequences` share the full pages of the prompt and grow to `length` positions; one of
        them computes `chunk` positions in a step, or each of them one and its `drafts`.
        """
        if length <= prompt:
            sequences = 1  # they end before they differ
        shared = prompt // self.page_size
        everything = shared + sequences * (self.pages_for(length) - shared)
        needs = []
        for group in self.groups:
            if group.window is None:
                needs.append(everything)
                continue
            past = group.window - 1
            filling = self._span(past + min(chunk, length)) + (sequences - 1) * self._span(past)
            decoding = sequences * self._span(past + 1 + drafts)
            needs.append(min(everything, max(filling, decoding)))
        return needs

    def _span(self, positions: int) -> int:
        """How many pages consecutive positions touch at most, wherever they begin."""
        return (positions + self.page_size - 2) // self.page_size + 1 if positions else 0

    def check(self, sequences: Iterable[Tables]) -> None:
        """Every page is held as often as tables name it, or kept, or free: one of these."""
        held = [Counter[int]() for _ in self.groups]
        for tables in sequences:
            for group, table in enumerate(tables):
                held[group].update(page for page in table if page != NOWHERE)
        for group, references in enumerate(self.references):
            assert all(held[group][page] == n for page, n in enumerate(references)), "references"
            free = self._free[group]
            assert len(set(free)) == len(free) and not any(references[page] for page in free)
            kept = self.keeper.kept(group)
            assert len(held[group]) + len(free) + kept == len(references), "a page is lost"
