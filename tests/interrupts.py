"""Interrupts without a clock: the n-th moment at which a signal could be handled.

CPython handles signals when a function begins and when one written in C has returned. A profiler is
called at the same moments, and raises what the handler of an interrupt raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import genesis
from genesis.backends.cpu.runtime import runtime

#: Where interrupts come, unless said otherwise: anywhere in Genesis.
GENESIS = genesis.__file__.removesuffix("__init__.py")


class Interrupt:
    """The interrupt that comes at a certain moment, counted from 1."""

    def __init__(self, moment: int, place: str) -> None:
        self.moment, self.place = moment, place
        self.passed = 0

    @property
    def happened(self) -> bool:
        """Whether there were as many moments."""
        return self.passed >= self.moment

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.startswith(self.place):
            return
        if code.co_name != "__del__":  # nobody gets to know of an interrupt there
            self.come()

    def come(self) -> None:
        """A moment has come."""
        self.passed += 1
        if self.passed == self.moment:
            sys.setprofile(None)
            raise KeyboardInterrupt


@contextmanager
def interrupted_at(moment: int, place: str = GENESIS) -> Iterator[Interrupt]:
    """Inside, this thread is interrupted once, in a file whose path starts with `place`."""
    interrupt = Interrupt(moment, place)
    native = runtime.get().native

    def call(*arguments: Any) -> Any:
        result = native(*arguments)
        interrupt.come()  # behind a function that profilers do not see
        return result

    runtime.get().native = call  # type: ignore[assignment]
    sys.setprofile(interrupt)
    try:
        yield interrupt
    finally:
        sys.setprofile(None)
        runtime.get().native = native


def moments(work: Callable[[], Any], place: str = GENESIS) -> int:
    """How many moments there are while something is done."""
    with interrupted_at(0, place) as interrupt:
        work()
    return interrupt.passed
