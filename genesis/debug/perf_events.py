"""What the processor counts while something runs: Linux's perf events.

They are counted for all threads of the process that there are when it begins; the pool that runs
kernels is among them. What a machine does not count, as virtual ones often do not, is None.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from types import TracebackType

#: Names of events, with the type and the number that Linux gives them.
EVENTS = {
    "cycles": (0, 0),
    "instructions": (0, 1),
    "cache references": (0, 2),
    "cache misses": (0, 3),
    "branches": (0, 4),
    "branch misses": (0, 5),
    "page faults": (1, 2),
    "context switches": (1, 3),
    "migrations": (1, 4),
}

_CALL = {"x86_64": 298, "aarch64": 241}.get(platform.machine())
_ATTRIBUTES = 128  # bytes of perf_event_attr
_ONLY_USER = 1 << 5 | 1 << 6  # neither the kernel nor a hypervisor
_TIMES = 1 | 2  # for how long it was wanted, and counted


class counters:  # noqa: N801 - used like a function
    """Count inside the ``with`` block.

    >>> import genesis
    >>> with counters() as found:
    ...     y = genesis.ones(1000).sum().item()
    >>> found.counts.keys() == EVENTS.keys()
    True
    """

    def __init__(self) -> None:
        #: What was counted; None: this machine, or its settings, do not allow it.
        self.counts: dict[str, int | None] = dict.fromkeys(EVENTS)
        self._open: dict[str, list[int]] = {}

    def __enter__(self) -> counters:
        threads = [int(t) for t in os.listdir("/proc/self/task")] if _CALL else []
        for name, (kind, number) in EVENTS.items():
            files = [f for t in threads if (f := _opened(kind, number, t)) is not None]
            self._open[name] = files
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name, files in self._open.items():
            found = [_read(f) for f in files]
            self.counts[name] = sum(found) if found else None
            for f in files:
                os.close(f)
        self._open.clear()

    @property
    def advice(self) -> list[str]:
        """What the counts say."""
        said = []
        counts = self.counts
        cycles, instructions = counts["cycles"], counts["instructions"]
        if cycles and instructions is not None and instructions / cycles < 1:
            said.append(
                f"{instructions / cycles:.2f} instructions a cycle: it waits, mostly for memory"
            )
        references, misses = counts["cache references"], counts["cache misses"]
        if references and misses is not None and misses / references > 0.2:
            said.append(f"{misses / references:.0%} of what caches are asked for is not in them")
        branches, wrong = counts["branches"], counts["branch misses"]
        if branches and wrong is not None and wrong / branches > 0.02:
            said.append(
                f"{wrong / branches:.0%} of branches are guessed wrongly: data decides them"
            )
        if (counts["migrations"] or 0) > 100:
            said.append("threads go from core to core: others want these cores, too")
        return said

    def __str__(self) -> str:
        known = [f"{name:18}{n:>16,}" for name, n in self.counts.items() if n is not None]
        missing = [name for name, n in self.counts.items() if n is None]
        lines = [*known, *self.advice]
        if missing:
            lines.append(f"not counted on this machine: {', '.join(missing)}")
        return "\n".join(lines)


def _opened(kind: int, number: int, thread: int) -> int | None:
    """A file that counts an event of a thread; None if there is no such thing."""
    about = bytearray(_ATTRIBUTES)
    struct.pack_into("<IIQ", about, 0, kind, _ATTRIBUTES, number)
    struct.pack_into("<Q", about, 32, _TIMES)
    struct.pack_into("<Q", about, 40, _ONLY_USER)
    given = (ctypes.c_char * _ATTRIBUTES).from_buffer(about)
    system = ctypes.CDLL(None, use_errno=True)
    close_on_exec = 8
    found = int(system.syscall(_CALL, ctypes.byref(given), thread, -1, -1, close_on_exec))
    return None if found < 0 else found


def _read(file: int) -> int:
    """What a file has counted; where events took turns, as much as it would have been."""
    value, wanted, counted = struct.unpack("<QQQ", os.read(file, 24))
    return int(value) if counted in (0, wanted) else round(value * wanted / counted)
