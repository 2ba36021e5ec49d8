"""Spans: what Genesis is doing, from when to when, for whoever watches.

Most of the time nobody does, and then a span is one look at a variable. A watcher is told about
every span that has ended, and runs the programs itself, in whatever way lets it see their kernels.
Times are those of `time.perf_counter_ns`.

>>> class Printer:
...     def saw(self, span):
...         print(span.kind, span.name)
>>> with watched_by(Printer()), span("fuse", "a graph"):
...     pass
fuse a graph
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol


class Span(NamedTuple):
    """Something that has ended: a stage of the compiler, a copy, a realisation."""

    kind: str
    name: str
    start: int
    end: int
    thread: int
    number: float | None = None  # that was read, where one was


class Watcher(Protocol):
    """Who wants to know."""

    def saw(self, span: Span) -> None:
        """A span has ended, on the thread that it names and that calls this."""
        ...

    def run(self, program: Any, frame: array[int], sizes: Mapping[str, int], places: Any) -> None:
        """Run a program's executable on a complete frame.

        `places` gives for nodes of its graph where the user wrote them, if anybody knows.
        """
        ...


#: Who watches now. Programs and spans of all threads are shown to it.
watcher: Watcher | None = None

_NOTHING: AbstractContextManager[None] = nullcontext()


def span(kind: str, name: str | int = "") -> AbstractContextManager[None]:
    """What is done inside the ``with`` block: its kind, and a name or a number of bytes."""
    return _NOTHING if watcher is None else _seen(kind, name)


def read(number: float, where: str) -> None:
    """Tell who watches that somebody asked for a number, in a line of the user's."""
    if watcher is not None:
        now = perf_counter_ns()
        watcher.saw(Span("item", where, now, now, get_ident(), number))


@contextmanager
def _seen(kind: str, name: str | int) -> Iterator[None]:
    start = perf_counter_ns()
    try:
        yield
    finally:
        if watcher is not None:
            text = f"{name} bytes" if isinstance(name, int) else name
            watcher.saw(Span(kind, text, start, perf_counter_ns(), get_ident()))


@contextmanager
def watched_by(new: Watcher) -> Iterator[None]:
    """Let `new` watch inside the ``with`` block, unless somebody does already."""
    global watcher
    if watcher is not None:
        yield
        return
    watcher = new
    try:
        yield
    finally:
        if watcher is new:
            watcher = None
