"""Jobs: the kernels that a function runs, with what is needed to run each of them on its own.

While the function runs somebody watches the programs, and of every program the kernels are noted:
how often each runs, its scalars and sizes, and the contents of inputs that are no floats, because
those may be indices. Other contents do not matter to how long a kernel takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from genesis import events
from genesis.backends.base import Backend
from genesis.compiler.build import Pairs
from genesis.compiler.program.program import Program, ProgramStep, as_size
from genesis.compiler.tuning_records import kernel_key
from genesis.ir import ops
from genesis.ir.dtype import uint8
from genesis.ir.kernel import Buffer, Kernel, Role, as_index
from genesis.ir.node import Node
from genesis.ir.size import evaluate
from genesis.ndarray import NDArray
from genesis.ndarray.core.interop import realize
from genesis.ndarray.pytree import flatten

Bytes = npt.NDArray[np.uint8]


@dataclass(eq=False)
class TuningJob:
    """A plain kernel as somebody runs it, `runs` times in all.

    `shared` are (input, output) pairs that share memory there, `scalars` its parameters as words,
    `contents` what is in those of its buffers that are no floats.
    """

    key: str
    kernel: Kernel
    shared: Pairs
    sizes: Mapping[str, int]
    scalars: list[int]
    contents: dict[str, Bytes]
    backend: Backend
    runs: int = 0

    def nbytes(self, buffer: Buffer) -> int:
        """The bytes from the first element of a buffer to its last."""
        shape = [self._number(e) for e in buffer.shape]
        steps = [self._number(s) for s in buffer.layout]
        last = sum(max(0, (e - 1) * s) for e, s in zip(shape, steps, strict=True))
        return (self._number(buffer.offset) + last + 1) * buffer.dtype.itemsize

    def _number(self, extent: int | Node) -> int:
        return evaluate(as_size(as_index(extent)), self.sizes)


def jobs(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[TuningJob]:
    """Call a function once; the kernels that it ran."""
    if events.watcher is not None:
        raise RuntimeError("genesis.tune: a profile is being taken; end it first")
    watcher = _Watcher()
    with events.watched_by(watcher):
        leaves, _ = flatten(function(*args, **kwargs))
        realize(*(x for x in leaves if isinstance(x, NDArray)))
    return list(watcher.found.values())


class _Watcher:
    def __init__(self) -> None:
        self.found: dict[object, TuningJob] = {}

    def saw(self, span: events.Span) -> None:
        """Spans do not matter."""

    def run(
        self, program: Program, frame: array[int], sizes: Mapping[str, int], places: Any
    ) -> None:
        """Take note of a program's kernels, and run it."""
        for step in program.steps if program.backend.name == "cpu" else ():
            known = all(s.name in sizes for s in step.lowered.kernel.symbols)
            if known and step.built.verdict.proven:
                self._note(program, step, frame, sizes)
        program.executable.run(frame)

    def _note(
        self, program: Program, step: ProgramStep, frame: array[int], sizes: Mapping[str, int]
    ) -> None:
        low, backend = step.lowered, program.backend
        key = kernel_key(low.kernel)
        known = tuple(sizes[s.name] for s in low.kernel.symbols)
        place = key, step.built.shared, known
        job = self.found.get(place)
        if job is None:
            words = {slot: k for k, (slot, _) in enumerate(program.scalars, program.buffers)}
            scalars = [frame[words[slot]] for slot in low.scalars]
            job = TuningJob(key, low.kernel, step.built.shared, sizes, scalars, {}, backend)
            for buffer, n in zip(low.kernel.buffers, low.arguments, strict=True):
                given = n.op is ops.BUFFER and n.attr.slot < program.buffers
                if given and buffer.role is not Role.OUTPUT and not buffer.dtype.is_float:
                    memory = backend.foreign(frame[n.attr.slot], job.nbytes(buffer), frame)
                    content = backend.download(memory, uint8, (memory.nbytes,))
                    job.contents[buffer.name] = content.copy()
            self.found[place] = job
        job.runs += evaluate(step.repeats, sizes)
