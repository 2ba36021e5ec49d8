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

from genesis.backends.gpu.runtime.driver import NOT_READY, Driver, GPUDevice
from genesis.backends.gpu.runtime.memory import Memory
from genesis.events import span

#: Bytes of one pinned buffer, and how many there are.
CHUNK = 4 << 20
CHUNKS = 4

#: Words that pinned memory is taken for at once.
WORDS = 256

_MARKS = 16


@dataclass
class _Chunk:
    pointer: int
    contents: npt.NDArray[np.uint8]
    event: Any  # the end of the last copy from or to it
    stream: Any = None  # where a copy may be that the event does not know of


@dataclass(frozen=True)
class _Word:
    """A word in pinned memory, and the event behind the copy of it."""

    pointer: int
    event: Any


class _Later:
    """A word that nobody else has until this dies."""

    def __init__(self, word: _Word, free: deque[_Word], driver: Driver) -> None:
        self._word, self._free, self._driver = word, free, driver

    def __call__(self, wait: bool) -> int | None:
        event = self._word.event
        if wait:
            self._driver.call("EventSynchronize", event)
        else:
            (error,) = self._driver.function("EventQuery")(event)
            if int(error) == NOT_READY:
                return None
            if int(error):
                self._driver.fail("EventQuery", error)
        return ctypes.c_uint64.from_address(self._word.pointer).value

    def __del__(self) -> None:
        self._free.append(self._word)  # who has it next is behind this one in the same queue


class Transfers:
    """The pinned buffers of a device, and copies through them.

    An interrupt may come between any two calls of the driver, so what the device may use is noted
    before it is told, and forgotten when somebody else knows.
    """

    def __init__(self, device: GPUDevice) -> None:
        self.device = device
        self._call = device.call
        self._lock = threading.Lock()
        self._chunks: list[_Chunk] = []
        self._turn = 0
        self._words: deque[_Word] = deque()  # those that nobody has
        # Events in the queue of programs, each with its number.
        self._marks: deque[tuple[int, Any]] = deque()
        self._filling: Memory | None = None  # what programs do not know yet to be on its way

    def upload(self, memory: Memory, source: npt.NDArray[Any]) -> None:
        """Fill memory that nothing uses yet, beside the programs that run."""
        if not source.nbytes:
            return
        device = self.device
        with span("copy", source.nbytes), self._lock, device:
            if self._filling is not None:  # by an upload that was interrupted
                self._call("StreamSynchronize", device.uploads)
            self._await(memory.freed_at)
            self._filling = memory
            event = self._send(memory.pointer, source, device.uploads)
            self._call("StreamWaitEvent", device.stream, event, 0)
            self._filling = None

    def write(self, pointer: int, source: npt.NDArray[Any]) -> None:
        """Overwrite memory in turn with the programs."""
        if source.nbytes:
            with self._lock, self.device:
                self._send(pointer, source, self.device.stream)

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
                self._move("MemcpyDtoHAsync", chunk.pointer, pointer + at, size, stream, chunk)
                waiting.append((chunk, at))
            while waiting:
                fetch()
        self.device.require_success()
        return result

    def word(self, pointer: int) -> _Later:
        """The word in memory when all that was started has run, for later."""
        with self._lock, self.device:
            if not self._words:
                first = int(self._call("MemHostAlloc", 8 * WORDS, 0))
                places = range(first, first + 8 * WORDS, 8)
                self._words.extend(_Word(p, self.device.event()) for p in places)
            word = self._words.popleft()
            later = _Later(word, self._words, self.device.driver)
            self._call("MemcpyDtoHAsync", word.pointer, pointer, 8, self.device.stream)
            self._call("EventRecord", word.event, self.device.stream)
        return later

    def _send(self, pointer: int, source: npt.NDArray[Any], stream: Any) -> Any:
        """Copy an array to memory; the event behind all of it."""
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        for at in range(0, flat.nbytes, CHUNK):
            part = flat[at : at + CHUNK]
            chunk = self._next()
            chunk.contents[: len(part)] = part
            self._move("MemcpyHtoDAsync", pointer + at, chunk.pointer, len(part), stream, chunk)
        return chunk.event

    def _move(
        self, name: str, target: int, source: int, nbytes: int, stream: Any, chunk: _Chunk
    ) -> None:
        chunk.stream = stream
        self._call(name, target, source, nbytes, stream)
        self._call("EventRecord", chunk.event, stream)
        chunk.stream = None

    def _next(self) -> _Chunk:
        """The chunk that was given longest ago, when the device is done with it."""
        if self._turn == len(self._chunks):
            pointer = int(self._call("MemHostAlloc", CHUNK, 0))
            contents = np.ctypeslib.as_array((ctypes.c_uint8 * CHUNK).from_address(pointer))
            self._chunks.append(_Chunk(pointer, contents, self.device.event()))
        chunk = self._chunks[self._turn]
        self._turn = (self._turn + 1) % CHUNKS
        if chunk.stream is None:
            self._call("EventSynchronize", chunk.event)
        else:
            self._call("StreamSynchronize", chunk.stream)
        return chunk

    def _await(self, freed_at: int) -> None:
        """Let uploads wait for the programs that used memory before it was freed."""
        if freed_at:
            later = [event for number, event in self._marks if number > freed_at]
            event = later[0] if later else self._mark()
            self._call("StreamWaitEvent", self.device.uploads, event, 0)

    def _mark(self) -> Any:
        """A new event in the queue of programs."""
        marks, device = self._marks, self.device
        event = marks.popleft()[1] if len(marks) == _MARKS else device.event()
        # Counted first: what was freed at a lower number had been put into the queue before.
        device.marks += 1
        number = device.marks
        self._call("EventRecord", event, device.stream)
        marks.append((number, event))
        return event
