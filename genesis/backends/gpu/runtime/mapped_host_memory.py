"""Words that programs write where the host can read them, without a copy or an event.

They lie in pinned memory, which a kernel reaches as it does the device's own. Before a run its word
is set to a number that programs hardly ever write, so what else stands there has been written by
the run. The runs of a program take turns with a few words: their addresses come again, and so the
graphs of programs do. Who comes to a word again waits until the run that had it has ended.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep

from genesis.backends.gpu.runtime.driver import GPUDevice
from genesis.backends.gpu.runtime.memory import Memory

#: Bytes from one word to the next: kernels ask whether pointers are multiples of 16.
STRIDE = 64
#: Words that memory is taken for at once.
COUNT = 64
#: What stands in a word that no run has written yet.
UNWRITTEN = (1 << 64) - 3
#: Seconds that a word is looked at before everything is waited for: of so long runs, four in a row
#: lose nothing by that.
LONG = 1e-3


class Word(Memory):
    """The word of one run: memory for its program, and what the host asks for the result."""

    __slots__ = ("_device", "_found", "_place")

    def __init__(self, pointer: int, device: GPUDevice) -> None:
        super().__init__(pointer, 8)
        self._place = ctypes.c_uint64.from_address(pointer)
        self._place.value = UNWRITTEN
        self._device = device
        self._found: int | None = None

    def __call__(self, wait: bool) -> int | None:
        """What the run has written; None if it has not yet, and nobody is to wait."""
        if self._found is None:
            value = self._place.value
            if value == UNWRITTEN:
                if not wait:
                    return None
                value = self._awaited()
            self._found = value
        return self._found

    def _awaited(self) -> int:
        end = monotonic() + LONG
        while (value := self._place.value) == UNWRITTEN:
            if monotonic() > end:  # it failed, or this is what it writes
                self._device.synchronize()
                return self._place.value
            sleep(0)
        return value


class Words:
    """What the runs of a program take turns with."""

    def __init__(self, count: int, device: GPUDevice, free: deque[int]) -> None:
        self._device, self._free = device, free
        with device:
            while len(free) < count:
                first = int(device.call("MemHostAlloc", STRIDE * COUNT, 0))
                free.extend(range(first, first + STRIDE * COUNT, STRIDE))
        self._places = deque(free.popleft() for _ in range(count))
        self._last: deque[Word | None] = deque([None] * count)

    def next(self) -> Word:
        """The word of the next run."""
        before = self._last[0]
        if before is not None:
            before(wait=True)
        word = self._last[0] = Word(self._places[0], self._device)
        self._places.rotate(-1)
        self._last.rotate(-1)
        return word

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            # What a run may still write to is nobody's any more.
            pairs = zip(self._places, self._last, strict=True)
            self._free.extend(
                p for p, word in pairs if word is None or word(wait=False) is not None
            )
