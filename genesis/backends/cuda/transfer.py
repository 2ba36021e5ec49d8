"""Copies between the host and a GPU, through a few pinned buffers.

The device reads and writes only pinned memory on its own. So an array goes through *chunks* of
pinned memory: while one is on its way the next is filled. Uploads have a queue beside that of the
programs. An upload starts when whatever used its memory before has run, not when everything before
it has; and programs that are started later wait for it.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from genesis.backends.cuda.driver import Device, Driver
from genesis.backends.cuda.memory import Memory
from genesis.spans import span

#: Bytes of one pinned buffer, and how many there are.
CHUNK = 4 << 20
CHUNKS = 4

#: Words that are on their way to the host at the same time, at most.
WORDS = 256

_MARKS = 16
_NOT_READY = 600


@dataclass(frozen=True)
class _Chunk:
    pointer: int
    contents: npt.NDArray[np.uint8]
    event: Any  # the end of the last copy from or to it


@dataclass(frozen=True)
class _Word:
    """A word in pinned memory, and the event behind the copy of it."""

    pointer: int
    event: Any
    driver: Driver

    def __call__(self, wait: bool) -> int | None:
        if wait:
            self.driver.call("EventSynchronize", self.event)
        else:
            (error,) = self.driver.function("EventQuery")(self.event)
            if int(error) == _NOT_READY:
                return None
            if int(error):
                self.driver.fail("EventQuery", error)
        return ctypes.c_uint64.from_address(self.pointer).value


class Transfers:
    """The pinned buffers of a device, and copies through them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._call = device.call
        self._lock = threading.Lock()
        self._chunks: list[_Chunk] = []
        self._turn = 0
        self._words: deque[_Word] = deque()
        # Events in the queue of programs, each with what was in it when it was recorded.
        self._marks: deque[tuple[int, Any]] = deque()

    def upload(self, memory: Memory, source: npt.NDArray[Any]) -> None:
        """Fill memory that nothing uses yet, beside the programs that run."""
        if not source.nbytes:
            return
        device = self.device
        with span("copy", source.nbytes), self._lock, device:
            self._await(memory.freed_at)
            self._send(memory.pointer, source, device.uploads)
            with device.event_on(device.uploads) as event:
                self._call("StreamWaitEvent", device.stream, event, 0)

    def write(self, pointer: int, source: npt.NDArray[Any]) -> None:
        """Overwrite memory in turn with the programs."""
        if source.nbytes:
            with self._lock, self.device:
                self._send(pointer, source, self.device.stream)
                self.device.serial += 1

    def download(self, pointer: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """What lies in memory when all that was started has run."""
        result = np.empty(nbytes, np.uint8)
        if not nbytes:
            return result
        stream = self.device.stream
        waiting: deque[tuple[_Chunk, int]] = deque()

        def fetch() -> None:
            chunk, at = waiting.popleft()
            self._call("EventSynchronize", chunk.event)
            part = result[at : at + CHUNK]
            part[...] = chunk.contents[: len(part)]

        with span("copy", nbytes), self._lock, self.device:
            for at in range(0, nbytes, CHUNK):
                if len(waiting) == CHUNKS:
                    fetch()
                chunk = self._next()
                size = min(CHUNK, nbytes - at)
                self._call("MemcpyDtoHAsync", chunk.pointer, pointer + at, size, stream)
                self._call("EventRecord", chunk.event, stream)
                waiting.append((chunk, at))
            while waiting:
                fetch()
        return result

    def word(self, pointer: int) -> _Word:
        """The word in memory when all that was started has run, for later."""
        with self._lock, self.device:
            if not self._words:
                first = int(self._call("MemHostAlloc", 8 * WORDS, 0))
                places = range(first, first + 8 * WORDS, 8)
                driver = self.device.driver
                self._words.extend(_Word(p, self.device.event(), driver) for p in places)
            self._words.rotate(-1)
            word = self._words[-1]
            self._call("MemcpyDtoHAsync", word.pointer, pointer, 8, self.device.stream)
            self._call("EventRecord", word.event, self.device.stream)
        return word

    def _send(self, pointer: int, source: npt.NDArray[Any], stream: Any) -> None:
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        for at in range(0, flat.nbytes, CHUNK):
            part = flat[at : at + CHUNK]
            chunk = self._next()
            chunk.contents[: len(part)] = part
            self._call("MemcpyHtoDAsync", pointer + at, chunk.pointer, len(part), stream)
            self._call("EventRecord", chunk.event, stream)

    def _next(self) -> _Chunk:
        """The chunk whose turn it is, when the device is done with it."""
        if len(self._chunks) < CHUNKS:
            pointer = int(self._call("MemHostAlloc", CHUNK, 0))
            contents = np.ctypeslib.as_array((ctypes.c_uint8 * CHUNK).from_address(pointer))
            self._chunks.append(_Chunk(pointer, contents, self.device.event()))
            return self._chunks[-1]
        self._turn = (self._turn + 1) % CHUNKS
        chunk = self._chunks[self._turn]
        self._call("EventSynchronize", chunk.event)
        return chunk

    def _await(self, place: int) -> None:
        """Let uploads wait until the programs have come to a place in their queue."""
        marks = self._marks
        if not marks or marks[-1][0] < self.device.serial:
            event = marks.popleft()[1] if len(marks) == _MARKS else self.device.event()
            self._call("EventRecord", event, self.device.stream)
            marks.append((self.device.serial, event))
        if place:
            event = next(event for serial, event in marks if serial >= place)
            self._call("StreamWaitEvent", self.device.uploads, event, 0)


__all__ = ["CHUNK", "CHUNKS", "Transfers"]
