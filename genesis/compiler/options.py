"""Which stages run: everything, unless a test or a curious reader switches something off.

>>> with using(fuse=False):
...     current().fuse
False
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Options:
    """The optional parts of compilation. Results must not depend on the first four.

    `strict` refuses kernels that are not proven instead of guarding them at run time.
    """

    simplify: bool = True
    fuse: bool = True
    schedule: bool = True
    donate: bool = True
    strict: bool = False


_current: ContextVar[Options] = ContextVar("genesis.compiler.options", default=Options())


def current() -> Options:
    """The options in force in this context."""
    return _current.get()


@contextmanager
def using(**changes: Any) -> Iterator[Options]:
    """Compile with other options inside a ``with`` block."""
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield _current.get()
    finally:
        _current.reset(token)
