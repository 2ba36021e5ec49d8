"""All programs that a jitted function and the plain one must run alike, by name.

``python tests/jit_programs.py [PATTERN]`` runs those whose names the pattern is found in, and
prints what becomes of each that is not equal: WRONG, RAISED (another exception than the plain
function's), REFUSED (where it may not be), HANGS, or refused (where it may be).
"""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import jit_classes
import jit_containers
import jit_gradients
import jit_objects
import jit_places
import jit_reads
import jit_results
import jit_training
import jit_writes
from jit_corpus import PROGRAMS, Program, difference, plain

import genesis
from genesis.ndarray.core.value import CaptureError

PARTS = (
    jit_containers,
    jit_training,
    jit_gradients,
    jit_reads,
    jit_writes,
    jit_results,
    jit_objects,
    jit_places,
    jit_classes,
)


class Hangs(BaseException):
    """A program took too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise where a program computes for longer, or waits for much longer."""

    def stop(*_: object) -> None:
        raise Hangs

    before = [signal.signal(s, stop) for s in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])


def verdict(program: Program) -> tuple[str, str]:
    """What becomes of a program under jit, and more about it."""
    genesis.manual_seed(0)
    want = program.run(plain)
    genesis.manual_seed(0)
    try:
        with limited(20):
            got = program.run(genesis.jit)
    except CaptureError as error:
        return "refused" if program.may_refuse else "REFUSED", str(error)
    except Hangs:
        return "HANGS", ""
    except Exception as error:
        return "RAISED", f"{type(error).__name__}: {error}"
    found = difference(want, got)
    return ("equal", "") if found is None else ("WRONG", found)


def main(pattern: str = "") -> None:
    """Run the programs whose names match, and print what becomes of them."""
    counts: Counter[str] = Counter()
    for name, program in PROGRAMS.items():
        if re.search(pattern, name):
            kind, more = verdict(program)
            counts[kind] += 1
            if kind != "equal":
                print(f"{kind:8}| {name} | {more[:160]!r}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])

__all__ = ["PARTS", "PROGRAMS"]
