"""Words that programs write where the host can read them, without a copy or an event.

They lie in pinned memory, which a kernel reaches as it does the device's own. A word is 0 unless
something is wrong, and only then is it written to: so any number of runs share it, none waits for
another, and their frames are the same.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable

from genesis.backends.gpu.runtime.driver import GPUDevice
from genesis.backends.gpu.runtime.memory import Memory

#: Bytes from one word to the next: kernels ask whether pointers are multiples of 16.
STRIDE = 64
#: Words that memory is taken for at once.
COUNT = 64


class Word(Memory):
    """A word, and one beside it that nobody writes to. `free` is where those of nobody are."""

    __slots__ = ("_free", "_place")

    def __init__(self, device: GPUDevice, free: deque[int]) -> None:
        if not free:
            with device:
                first = int(device.call("MemHostAlloc", STRIDE * COUNT, 0))
            free.extend(range(first, first + STRIDE * COUNT, STRIDE))
        super().__init__(free.popleft(), 16)
        (ctypes.c_uint64 * 2).from_address(self.pointer)[:] = [0, 0]
        self._place = ctypes.c_uint64.from_address(self.pointer)
        self._free = free

    def take(self) -> int:
        """What a run has written; 0 if none has, and from now on again."""
        found = self._place.value
        if found:
            self._place.value = 0
        return found

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # Who has it is watched until all runs have ended (`index_checks.watch`).
        if not ending():
            self._free.append(self.pointer)
