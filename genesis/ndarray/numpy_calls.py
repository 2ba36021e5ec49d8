"""`Direct`: a recording run on NumPy arrays, which are all that a call looks at.

A call of `jit` wraps what it is given and what it gives. Where arguments are NumPy arrays of forms
that are known, results are new arrays, and nothing else is done, a call is a list of pointers. This
is for whoever runs one model again and again on small inputs, and holds all that it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genesis import events

if TYPE_CHECKING:
    from genesis.ndarray.core.value import Value
    from genesis.ndarray.tracing.replay import Replay

#: Bytes of a result from which on it gets memory that is used again when the result has gone.
LARGE = 1 << 16


class Direct:
    """A replay that only computes new arrays, called with NumPy arrays; made by `Jit.direct`."""

    def __init__(self, function: object, replay: Replay, outside: Sequence[Value]) -> None:
        self._function = function  # what is assumed of its surroundings ends with it
        self._recording, self._sizes = replay.recording, replay.sizes
        self._program = replay.recording.program
        self._outside = outside  # or the memory that the frame leads to would go
        self._frame = replay.frame(outside)
        replay.prepared(outside, self._frame)  # twice the same is what it takes to begin
        self._prepared = replay.prepared(outside, self._frame)
        self._made, self._results = replay.results()
        replay.recording.valid()  # takes note of the versions
        self._versions = list(replay.recording.versions)

    def __call__(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]] | None:
        """The results for arrays of the forms it was made for; None: call the function itself.

        They must lie in rows, at multiples of their elements' size.
        """
        recording, program = self._recording, self._program
        if events.watcher is not None or not recording.valid():
            return None
        if recording.versions != self._versions:  # something else lies outside than did
            return None
        frame = self._frame[:]
        for slot, k in enumerate(recording.arguments):
            frame[slot] = arrays[k].__array_interface__["data"][0]
        made = []
        for slot, dtype, shape, nbytes in self._made:
            if nbytes < LARGE:
                array = np.empty(shape, dtype.numpy)
            else:
                array = program.backend.download(program.backend.allocate(nbytes), dtype, shape)
            frame[slot] = array.__array_interface__["data"][0]
            made.append(array)
        program.launch(frame, self._sizes, recording.places, self._prepared)
        return [made[k] for k in self._results]
