"""`Direct`: a recording run on NumPy arrays, which are all that a call looks at.

A call of `jit` wraps what it is given and what it gives. Where arguments are NumPy arrays of forms
that are known, results are new arrays, and nothing else is done, a call is a list of pointers. This
is for whoever runs one model again and again on small inputs, and holds all that it is made of.
"""

from __future__ import annotations

from array import array as words
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genesis import events

if TYPE_CHECKING:
    from genesis.backends.base import Memory
    from genesis.ndarray.core.value import Value
    from genesis.ndarray.tracing.replay import Replay

#: Bytes of a result from which on it gets memory that is used again when the result has gone.
LARGE = 1 << 16
#: Bytes of temporaries up to which they are kept for the next call.
KEPT = 1 << 20


class Direct:
    """A replay that only computes new arrays, called with NumPy arrays; made by `Jit.direct`."""

    def __init__(self, function: object, replay: Replay, outside: Sequence[Value]) -> None:
        self._function = function  # what is assumed of its surroundings ends with it
        self._recording, self._sizes = replay.recording, replay.sizes
        self._program = program = replay.recording.program
        self._outside = outside  # or the memory that the frame leads to would go
        self._frame = replay.frame(outside)
        replay.prepared(outside, self._frame)  # twice the same is what it takes to begin
        self._prepared = prepared = replay.prepared(outside, self._frame)
        self._executable = program.executable if prepared is None else prepared.executable
        made, self._results = replay.results()
        self._made = [(slot, d, d.numpy, shape, nbytes) for slot, d, shape, nbytes in made]
        self._bounds = replay.bounds()
        replay.recording.valid()  # takes note of the versions
        self._versions = list(replay.recording.versions)
        elsewhere = frozenset[int]() if prepared is None else prepared.elsewhere
        self._places = program.placement(self._sizes, elsewhere)
        # Frames that nobody runs on now, each with memory for its temporaries.
        self._spare: list[tuple[words[int], Memory]] = []

    def __call__(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]] | None:
        """The results for arrays of the forms it was made for; None: call the function itself.

        They must lie in rows, at multiples of their elements' size.
        """
        recording, backend = self._recording, self._program.backend
        if events.watcher is not None or not recording.valid():
            return None
        if recording.versions != self._versions:  # something else lies outside than did
            return None
        spare = self._spare
        frame, memory = spare.pop() if spare else self._furnished()
        for slot, k in enumerate(recording.arguments):
            frame[slot] = arrays[k].__array_interface__["data"][0]
        made = []
        for slot, dtype, kind, shape, nbytes in self._made:
            if nbytes < LARGE:
                array = np.empty(shape, kind)
            else:
                array = backend.download(backend.allocate(nbytes), dtype, shape)
            frame[slot] = array.__array_interface__["data"][0]
            made.append(array)
        for slot, result, offset in self._lent:
            frame[slot] = frame[result] + offset
        self._executable.run(frame)
        if self._places.total <= KEPT:
            spare.append((frame, memory))
        for k, extent in self._bounds:
            if int(made[k]) >> 1 >= extent:  # the function itself says what is wrong
                return None
        return [made[k] for k in self._results]

    @cached_property
    def _lent(self) -> list[tuple[int, int, int]]:
        """The temporaries in the memory of a result: their slots, the result's, and where there."""
        rooms, offsets, _ = self._places
        first, results = len(self._frame) - len(offsets), self._program.first_output
        prepared = () if self._prepared is None else self._prepared.elsewhere
        return [
            (first + k, results + room, offsets[k])
            for k, room in enumerate(rooms)
            if room is not None and first + k not in prepared
        ]

    def _furnished(self) -> tuple[words[int], Memory]:
        """A frame in which only arguments and results are missing, and the memory it leads to."""
        _, offsets, total = self._places
        memory, frame = self._program.backend.allocate(total), self._frame[:]
        frame[len(frame) - len(offsets) :] = words("Q", [memory.pointer + n for n in offsets])
        for slot, own in () if self._prepared is None else self._prepared.memory:
            frame[slot] = own.pointer
        return frame, memory
