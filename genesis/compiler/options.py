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

    `winograd` lets convolutions take fewer products and round a little differently.
    `strict` refuses kernels that are not proven instead of guarding them at run time.
    `memory_budget` is what a program may take on top of its inputs: bytes, or as a float the
    fraction of what it takes without a budget. `float32_matmul` says how exactly float32 is
    multiplied where a chip has a choice (see `genesis.precision`). Without `symbolic_sizes`
    every size has a program of its own: how sums are rounded does not depend on earlier sizes.
    """

    simplify: bool = True
    fuse: bool = True
    schedule: bool = True
    donate: bool = True
    winograd: bool = True
    strict: bool = False
    memory_budget: int | float | None = None
    float32_matmul: str = "highest"
    symbolic_sizes: bool = True


_current = Options()


def current() -> Options:
    """The options in force."""
    return _current


def change(**changes: Any) -> None:
    """Compile with other options from now on."""
    global _current
    _current = replace(_current, **changes)


def renew() -> None:
    """The same options as before, but other ones to who compares objects: compile again."""
    global _current
    _current = replace(_current)


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
