"""Replays: running a recording, with no Python between its kernels.

A replay is made once for every set of sizes and knows all of the program's frame but the pointers.
To run it is to fill those in and make one native call. An input that the function overwrites gives
its memory to the new value, unless anybody else still holds it: then the program works on a copy.
What depends only on arrays from outside, such as weights repacked for a product, is kept as long as
those hold the values they held in the run before (`genesis.compiler.kept`).

A replay that writes runs under the lock of realisation, so that no other thread sees memory half
written; one that only reads holds on to what it reads and needs the lock no more once it started.
"""

from __future__ import annotations

from array import array as words
from collections.abc import Mapping, Sequence
from mmap import mmap
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from genesis import spans
from genesis.ir.dtype import DType
from genesis.ir.size import Size, evaluate, product
from genesis.ndarray.checks import defer, require, settle
from genesis.ndarray.layout import Shape, Strides, row_major
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.pytree import unflatten, wrapper
from genesis.ndarray.realisation import read_code
from genesis.ndarray.recording import ALIASED, Recording, Result
from genesis.ndarray.storage import Step, Storage
from genesis.ndarray.value import CaptureError, Value

if TYPE_CHECKING:
    from genesis.backends.base import Memory
    from genesis.compiler.kept import Prepared


#: A run that is ready to start: the replay, the arguments, a frame, the values that results are
#: made of, what is prepared, and what must stay alive until it has ended. A plain tuple: one is
#: made per call.
Run = tuple["Replay", Sequence[NDArray], "words[int]", list[Value], "Prepared | None", list[Value]]


class Replay:
    """A recording whose symbolic sizes have values."""

    __slots__ = (
        "_checks", "_frame", "_kept", "_nbytes", "_outputs", "_pure", "_results", "_reused",
        "_seen", "_simple", "_spent", "_wrap", "recording", "sizes", "writes",
    )  # fmt: skip

    def __init__(self, recording: Recording, sizes: Mapping[str, int]) -> None:
        from genesis.compiler.kept import Kept  # importing Genesis loads no compiler

        program = recording.program
        self.recording = recording
        self.sizes = sizes
        self.writes = bool(recording.written)
        self._frame = program.frame(recording.scalars, sizes)
        for slot in range(recording.inputs, program.buffers):
            memory = recording.constants[slot - recording.inputs].memory
            assert memory is not None
            self._frame[slot] = memory.pointer
        described: list[tuple[int, DType, Shape, Strides]] = []
        for slot, output in enumerate(program.outputs, program.first_output):
            shape = tuple(evaluate(d, sizes) for d in output.shape)
            described.append((slot, output.dtype, shape, row_major(shape)))
        self._outputs = [described[k] for k in recording.order]
        nbytes = [evaluate(product(shape), {}) * d.itemsize for _, d, shape, _ in self._outputs]
        reused = [r for k in recording.order if (r := program.outputs[k].reuses) is not None]
        own = len(nbytes) - len(reused)
        self._nbytes = nbytes[:own]
        self._reused = list(zip(reused, nbytes[own:], strict=True))
        # Storages that are written without being read: what they hold is as good as gone.
        self._spent = [
            place
            for place, _, _ in recording.written
            if isinstance(place, ref) and place not in recording.outside
        ]
        written = [place for place, _, _ in recording.written]
        outside = enumerate(recording.outside, len(recording.arguments))
        steady = {slot for slot, place in outside if place not in written}
        for slot in range(recording.inputs, program.buffers):
            if _is_steady(recording.constants[slot - recording.inputs]):
                steady.add(slot)
        keeps = Kept(program, sizes, steady)
        may = recording.budget is None and recording.device == "cpu"
        self._kept = keeps if keeps.slots and may else None
        self._seen: list[ref[Value]] = []  # what they held in the run before
        self._results = [_sized(r, sizes) for r in recording.results]
        # One index may be used in many places.
        checks: dict[int, list[tuple[str, int, int, str]]] = {}
        for number, name, extent, axis, where in recording.checks:
            checks.setdefault(number, []).append((name, evaluate(extent, sizes), axis, where))
        self._checks = list(checks.items())
        # One new array, wrapped or not, or a tuple of new arrays, is what most functions return.
        structure = recording.structure
        self._wrap = wrapper(structure)
        flat = structure in (None, (tuple, None, (None,) * len(self._results)))
        every = [Result("fresh", k) for k in range(len(recording.fresh))]
        self._simple = (flat or self._wrap is not None) and self._results == every
        rare = (
            recording.neighbours, recording.outside, recording.passed, self._reused, self._spent,
            self._checks, self._kept, self.writes,
        )  # fmt: skip
        own = max(recording.fresh, default=0) < len(self._outputs)
        #: Whether a run does nothing but compute new arrays from its arguments.
        self._pure = self._simple and own and not any(rare)

    def start(self, arrays: Sequence[NDArray], starts: Sequence[int] | None = None) -> Run:
        """A run on these arguments; `starts` as in `Call`. Needs the lock."""
        recording = self.recording
        if self._pure and starts is None:
            return self._started(arrays)
        if recording.neighbours:
            storages = {x.storage for x in arrays}
            if not storages.isdisjoint([neighbour() for neighbour in recording.neighbours]):
                raise CaptureError(ALIASED)
        held = [arrays[k].storage.actual for k in recording.arguments]
        if recording.outside:
            held += [source().actual for source in recording.outside]  # type: ignore[union-attr]
        pointers = [v.memory.pointer for v in held]  # type: ignore[union-attr]
        if starts is not None:
            for slot, k in enumerate(recording.arguments):
                pointers[slot] += starts[k]
        frame = self._frame[:]
        frame[: len(pointers)] = words("Q", pointers)
        memories = self._memories()
        for slot, nbytes in self._reused:
            if _holders(held, slot) != _ALONE or _is_lent(held[slot], pointers[slot]):
                memories.append(self._copied(held[slot], pointers[slot], nbytes))
                frame[slot] = memories[-1].pointer
            else:
                memories.append(held[slot].memory)  # type: ignore[arg-type]
        device = recording.device
        values: list[Value] = []
        for memory, (slot, dtype, shape, strides) in zip(memories, self._outputs):  # noqa: B905
            frame[slot] = memory.pointer
            values.append(Value.realised(memory, dtype, shape, strides, device))
        for place in recording.passed:
            if isinstance(place, ref):
                values.append(place().actual)  # type: ignore[union-attr]
            else:
                array = arrays[place]
                values.append(array.storage.actual if recording.whole[place] else array.value)
        prepared = None if self._kept is None else self._prepared(held, frame)
        return (self, arrays, frame, values + recording.constants, prepared, held)

    def _started(self, arrays: Sequence[NDArray]) -> Run:
        """What `start` gives, with nothing to look at but pointers: the path of short programs."""
        recording = self.recording
        frame, device = self._frame[:], recording.device
        held: list[Value] = []
        values: list[Value] = []
        for slot, k in enumerate(recording.arguments):
            value = arrays[k].storage.actual
            held.append(value)
            frame[slot] = value.memory.pointer  # type: ignore[union-attr]
        memories = recording.program.backend.allocate_many(self._nbytes)
        for memory, (slot, dtype, shape, strides) in zip(memories, self._outputs):  # noqa: B905
            frame[slot] = memory.pointer
            values.append(Value.realised(memory, dtype, shape, strides, device))
        return (self, arrays, frame, values, None, held)

    def _prepared(self, held: Sequence[Value], frame: words[int]) -> Prepared | None:
        """What is left to run where arrays from outside hold what they held in the run before."""
        assert self._kept is not None
        inputs = self.recording.inputs
        steady = [held[slot] for slot in self._kept.slots if slot < inputs]
        seen = [value() for value in self._seen]
        same = len(seen) == len(steady) and all(a is b for a, b in zip(seen, steady, strict=True))
        if not same:
            # What somebody else may write to is not taken for the same next time, either.
            self._seen = [ref(v) for v in steady] if all(map(_is_steady, steady)) else []
        return self._kept.prepared(frame, same and spans.watcher is None)

    def _memories(self) -> list[Memory]:
        """Memory for outputs of their own: first what spent storages have, where nobody sees it."""
        allocate = self.recording.program.backend.allocate_many
        if not self._spent:
            return allocate(self._nbytes)
        free: dict[int, list[Memory]] = {}
        for place in self._spent:
            kept = [place().actual]  # type: ignore[union-attr]
            pointer = 0 if kept[0].memory is None else kept[0].memory.pointer
            if pointer and _holders(kept, 0) == _ALONE and not _is_lent(kept[0], pointer):
                memory = kept[0].memory
                assert memory is not None
                free.setdefault(memory.nbytes, []).append(memory)
        found = [free[n].pop() if free.get(n) else None for n in self._nbytes]
        pairs = zip(found, self._nbytes, strict=True)
        others = iter(allocate([n for memory, n in pairs if memory is None]))
        return [next(others) if memory is None else memory for memory in found]

    def _copied(self, value: Value, pointer: int, nbytes: int) -> Memory:
        """A copy of an input that the program overwrites but somebody else still needs.

        An array returned earlier, or memory seen by another library, keeps what it has.
        """
        assert value.memory is not None
        backend = self.recording.program.backend
        copy = backend.allocate(nbytes)
        backend.copy(copy, value.memory, nbytes, pointer - value.memory.pointer)
        return copy

    def finish(self, run: Run) -> Any:
        """Run the program, write what it writes, and put the results together.

        An interrupt shows when the native call is over: then everything has been computed, and
        is written before the interrupt goes on.
        """
        recording = self.recording
        program = recording.program
        _, arrays, frame, values, prepared, _ = run
        if self._pure:
            program.launch(frame, self.sizes, recording.places)
            return self._simply(values)
        executable = program.executable if prepared is None else prepared.executable
        runs = executable.runs
        if self._checks:  # those of earlier calls
            settle(wait=False)
        try:
            program.launch(frame, self.sizes, recording.places, prepared)
            if self.writes:
                self._write(arrays, values)
        except BaseException:
            if self.writes and executable.runs > runs:
                self._write(arrays, values)
            raise
        for number, checks in self._checks:
            memory = values[number].memory
            assert memory is not None
            later = program.backend.word_later(memory)
            if later is not None:
                defer(later, checks)
                continue
            code = read_code(values[number])
            for name, extent, axis, where in checks:
                require(name, code, extent, axis, where)
        if self._simple:
            return self._simply(values)
        fresh = [Storage(values[k]) for k in recording.fresh]
        results: list[Any] = []
        for kind, which, steps in self._results:
            if kind == "fresh":
                results.append(NDArray(fresh[which], steps))
            elif kind == "same":
                results.append(arrays[which])
            elif kind == "argument":
                array = arrays[which]
                base = () if recording.whole[which] else array.steps
                results.append(NDArray(array.storage, base + steps))
            elif kind == "outside":
                results.append(NDArray(which(), steps))
            else:
                results.append(which)
        structure = recording.structure
        return results[0] if structure is None else unflatten(structure, results)

    def _simply(self, values: Sequence[Value]) -> Any:
        """New arrays, or what wraps the only one."""
        recording = self.recording
        results = [NDArray(Storage(values[k])) for k in recording.fresh]
        if self._wrap is not None:
            wrap, rest = self._wrap
            return wrap(results[0], rest)
        return results[0] if recording.structure is None else tuple(results)

    def _write(self, arrays: Sequence[NDArray], values: Sequence[Value]) -> None:
        recording = self.recording
        for target, k, known in recording.written:
            storage = arrays[target].storage if isinstance(target, int) else target()
            assert storage is not None
            storage.replace(values[k])
            if known is not None:
                recording.versions[known] = storage.version


def _sized(result: Result, sizes: Mapping[str, int]) -> Result:
    """A result with values in place of symbolic sizes."""
    kind, which, steps = result
    if kind == "size":
        return Result("plain", which.value(sizes))
    return Result(kind, which, tuple(_sized_step(step, sizes) for step in steps))


def _sized_step(step: Step, sizes: Mapping[str, int]) -> Step:
    def value(x: Any) -> Any:
        if isinstance(x, Size):
            return x.value(sizes)
        return tuple(map(value, x)) if isinstance(x, tuple) else x

    return Step(step.op, value(step.attr), value(step.shape))


def _is_steady(value: Value) -> bool:
    """Whether a value never changes: its memory is its own, or nobody can write to it."""
    owner = getattr(value.memory, "owner", None)
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    read_only = isinstance(owner, bytes | mmap) and memoryview(owner).readonly
    return not value.attr or read_only


def _is_lent(value: Value, pointer: int) -> bool:
    """Whether a value's memory is not its own: foreign, or only part of what lies there."""
    return bool(value.attr) or value.memory.pointer != pointer  # type: ignore[union-attr]


def _holders(held: Sequence[Any], slot: int) -> tuple[int, int]:
    """How many references there are to a held value and to its memory."""
    return getrefcount(held[slot]), getrefcount(held[slot].memory)


def _calibrate() -> tuple[int, int]:
    """What that is when only a storage and the run hold the value, and only it its memory."""

    class Holder:
        def __init__(self, memory: Any) -> None:
            self.memory = memory

    storage = Holder(Holder(Holder(None)))
    return _holders([storage.memory], 0)


_ALONE = _calibrate()
