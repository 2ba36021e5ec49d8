"""Which stages run: everything, unless a test or a curious reader switches something off.

>>> with using(fuse=False):
...     current().fuse
False
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Options:
    """The optional parts of compilation. Results must not depend on the first four.

    `strict` refuses kernels that are not proven instead of guarding them at run time.
    `memory_budget` is what a program may take on top of its inputs: bytes, or as a float the
    fraction of what it takes without a budget.
    """

    simplify: bool = True
    fuse: bool = True
    schedule: bool = True
    donate: bool = True
    strict: bool = False
    memory_budget: int | float | None = None


_current = Options()


def current() -> Options:
    """The options in force."""
    return _current


@contextmanager
def using(**changes: Any) -> Iterator[Options]:
    """Compile with other options inside a ``with`` block, in all threads."""
    global _current
    before = _current
    _current = replace(before, **changes)
    try:
        yield _current
    finally:
        _current = before
