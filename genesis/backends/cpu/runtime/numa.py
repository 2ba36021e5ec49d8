"""Memory nodes: machines whose processors each have memory of their own.

Blocks of a grid go to whichever thread is free, so no thread has a part of an array that is its
own. What all nodes' processors can do at once is to read and write all nodes' memory: the pages of
large arrays are laid over the nodes in turn. The system would put all of them where the thread runs
that first writes there, which for data that was loaded is one node. Machines with one node, as most
are, are left as they are.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_SYSTEM = Path("/sys/devices/system/node")
_MBIND = {"x86_64": 237, "aarch64": 235}  # the number of the system call
_INTERLEAVE = 3
_libc = ctypes.CDLL(None)


@cache
def nodes(system: Path = _SYSTEM) -> tuple[int, ...]:
    """The numbers of the nodes that have memory and a processor this process may run on."""
    try:
        with_memory = _listed((system / "has_memory").read_text())
        processors = {n: _listed((system / f"node{n}/cpulist").read_text()) for n in with_memory}
    except (OSError, ValueError):  # containers may hide it
        return ()
    mine = os.sched_getaffinity(0)
    return tuple(sorted(n for n, theirs in processors.items() if theirs & mine))


def interleave(pointer: int, nbytes: int, over: Sequence[int]) -> bool:
    """Lay pages that nobody has touched over several nodes in turn; whether the system did.

    It may not be allowed to: then pages are where they would have been.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        return False
    words = [0] * (max(over) // 64 + 1)
    for n in over:
        words[n // 64] |= 1 << n % 64
    mask = (ctypes.c_uint64 * len(words))(*words)
    bits = 64 * len(words) + 1  # the system counts one too many
    place, length = ctypes.c_void_p(pointer), ctypes.c_size_t(nbytes)
    arguments = (place, length, ctypes.c_long(_INTERLEAVE), mask, ctypes.c_ulong(bits))
    done: int = _libc.syscall(ctypes.c_long(number), *arguments, ctypes.c_ulong(0))
    return done == 0


def _listed(text: str) -> set[int]:
    """The numbers in a list of the system's, such as "0-3,8"."""
    found: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
