"""Replays: running a recording, with no Python between its kernels.

A replay is made once for every set of sizes and knows all of the program's frame but the pointers.
To run it is to fill those in and make one native call. An input that the function overwrites gives
its memory to the new value, unless anybody else still holds it: then the program works on a copy.
What depends only on arrays from outside, such as weights repacked for a product, is kept as long as
those hold the values they held in the run before (`genesis.compiler.program.prepacked`).

A replay that writes runs under the lock of realisation, so that no other thread sees memory half
written; one that only reads holds on to what it reads and needs the lock no more once it started.
"""

from __future__ import annotations

from array import array as words
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, call, is_, is_not
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from genesis import events
from genesis.ir.dtype import DType
from genesis.ir.size import evaluate
from genesis.ndarray.core.index_checks import defer, require, settle, watch
from genesis.ndarray.core.interop import is_steady as _is_steady
from genesis.ndarray.core.layout import Shape, Strides, row_major
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.pending_graph import numbered_leaf
from genesis.ndarray.core.realisation import read_code
from genesis.ndarray.core.storage import Storage
from genesis.ndarray.core.value import Value
from genesis.ndarray.tracing.recording import Recording, ReplayRun

if TYPE_CHECKING:
    from genesis.backends.base import Memory, Word
    from genesis.compiler.program.prepacked import PreparedProgram
    from genesis.ir.placement import Placement


#: A run that is ready to start: the replay, the arguments (array arguments, and all of them as they
#: were given), a frame, the values that results are made of, what is prepared, and the values that
#: must stay alive until it has ended. A plain tuple: one is made per call.
Ready = tuple[
    "Replay",
    Sequence[NDArray],
    Any,
    "words[int]",
    list[Value],
    "PreparedProgram | None",
    list[Value],
]


_array, _storage, _actual = attrgetter("array"), attrgetter("storage"), attrgetter("actual")
_memory, _foreign, _pointer = attrgetter("memory"), attrgetter("attr"), attrgetter("pointer")


class Replay:
    """A recording whose symbolic sizes have values."""

    __slots__ = (
        "_blank", "_checks", "_frame", "_gradients", "_kept", "_makers", "_nbytes", "_outputs",
        "_pure", "_reused", "_several", "_spent", "_watched", "recording", "sizes", "writes",
    )  # fmt: skip

    def __init__(self, recording: Recording, sizes: Mapping[str, int]) -> None:
        from genesis.compiler.program.prepacked import (
            KeptValues,  # importing Genesis loads no compiler
        )

        program = recording.program
        self.recording = recording
        self.sizes = sizes
        self.writes = bool(recording.written)
        self._frame = program.frame(recording.scalars, sizes)
        for slot in range(recording.inputs, program.buffers):
            memory = recording.constants[slot - recording.inputs].memory
            assert memory is not None
            self._frame[slot] = memory.pointer
        described: list[tuple[int, DType, Shape, Strides, Placement | None, int]] = []
        for k, output in enumerate(program.outputs):
            shape: Shape = tuple(evaluate(d, sizes) for d in output.shape)
            placement = None
            if recording.forms is not None:
                shape, placement = recording.forms[k]
            slot, strides = program.first_output + k, row_major(shape)
            plain = placement is None and 0 not in shape
            form = numbered_leaf(output.dtype, shape, strides) if plain else 0
            described.append((slot, output.dtype, shape, strides, placement, form))
        self._outputs = [described[k] for k in recording.order]
        nbytes = [evaluate(program.outputs[k].nbytes, sizes) for k in recording.order]
        reused = [r for k in recording.order if (r := program.outputs[k].reuses) is not None]
        own = len(nbytes) - len(reused)
        #: Where the host sees that an index does not exist, by the numbers of outputs: the last.
        words: dict[int, Word] = {}
        for number, slot in enumerate(reused, own):
            if slot >= recording.inputs:
                word = words[number] = program.backend.word()
                self._frame[slot] = self._frame[self._outputs[number][0]] = word.pointer
        self._blank: list[Any] = [None] * len(words)  # nobody asks for their values
        end = len(nbytes) - len(words)
        del self._outputs[end:], reused[end - own :]
        self._nbytes = nbytes[:own]
        self._reused = (reused, nbytes[own:end]) if reused else None
        self._gradients = [recording.fresh[slot.which] for slot in recording.slots]
        # Storages that are written without being read: what they hold is as good as gone.
        self._spent = [
            place
            for place, _, _ in recording.written
            if not isinstance(place, int)
            and place not in recording.outside
            and place not in recording.passed  # somebody gets what it held
        ]
        written = [place for place, _, _ in recording.written]
        outside = enumerate(recording.outside, len(recording.arguments))
        steady = {slot for slot, place in outside if place not in written}
        for slot in range(recording.inputs, program.buffers):
            if _is_steady(recording.constants[slot - recording.inputs]):
                steady.add(slot)
        may = recording.budget is None and program.backend.has_host_memory
        if recording.kept is None and may:
            recording.kept = KeptValues(program, sizes, steady)
        kept = recording.kept
        if kept is not None and not kept.suits_all_sizes:
            kept = KeptValues(program, sizes, steady)
        self._kept = kept if kept is not None and kept.slots else None
        # One index may be used in many places.
        checks: dict[int, list[tuple[str, int, int, str]]] = {}
        for number, name, extent, axis, where in recording.checks:
            checks.setdefault(number, []).append((name, evaluate(extent, sizes), axis, where))
        self._watched = [(word, checks.pop(number)) for number, word in words.items()]
        self._checks = list(checks.items())
        rare = (
            recording.neighbours, recording.outside, recording.passed, self._reused, self._spent,
            recording.apart_from, recording.distinct, self._checks, self._kept, self.writes,
        )  # fmt: skip
        if recording.simple is not None:
            self._several, makers = recording.simple
            self._makers = [(recording.fresh[which], wrap, rest) for which, wrap, rest in makers]
        own = max(recording.fresh, default=0) < len(self._outputs)
        #: Whether a run does nothing but compute new arrays from its arguments.
        self._pure = recording.simple is not None and own and not any(rare)

    @property
    def is_direct(self) -> bool:
        """Whether a run only computes new arrays, be it from arrays from outside, too."""
        recording = self.recording
        others = (
            recording.neighbours, recording.passed, self._reused, self._spent, recording.apart_from,
            recording.distinct, self.writes, recording.forms,
            not recording.program.backend.has_host_memory,
        )  # fmt: skip
        own = max(recording.fresh, default=0) < len(self._outputs)
        return recording.simple is not None and own and not any(others)

    def bounds(self) -> list[tuple[int, int]]:
        """Outputs that are codes of indices, each with the least extent they must fit."""
        return [(k, min(extent for _, extent, _, _ in found)) for k, found in self._checks]

    def outside(self) -> list[Value] | None:
        """What arrays from outside hold; None if that may change without anybody noticing."""
        held = [source().actual for source in self.recording.outside]  # type: ignore[union-attr]
        return held if all(v.memory is not None and _is_steady(v) for v in held) else None

    def frame(self, outside: Sequence[Value]) -> words[int]:
        """A frame in which only arguments and results are missing."""
        frame, first = self._frame[:], len(self.recording.arguments)
        for slot, value in enumerate(outside, first):
            frame[slot] = value.memory.pointer  # type: ignore[union-attr]
        return frame

    def prepared(self, outside: Sequence[Value], frame: words[int]) -> PreparedProgram | None:
        """What is left to run where arrays from outside hold what they held in the run before."""
        if self._kept is None:
            return None
        blank: list[Any] = [None] * len(self.recording.arguments)
        return self._prepared([*blank, *outside], frame)

    def results(self) -> tuple[list[tuple[int, DType, tuple[int, ...], int]], list[int]]:
        """The program's outputs: slot, type, shape, bytes; and which of them the results are."""
        made = [
            (slot, dtype, tuple(evaluate(n, self.sizes) for n in shape), nbytes)
            for (slot, dtype, shape, *_), nbytes in zip(self._outputs, self._nbytes, strict=True)
        ]
        return made, [number for number, _, _ in self._makers]

    def start(
        self, arrays: Sequence[NDArray], tree: Any, starts: Sequence[int] | None = None
    ) -> Ready:
        """A run on these arguments, `arrays` of `tree`; `starts` as in `Call`. Needs the lock."""
        recording = self.recording
        if self._pure and starts is None:
            return self._started(arrays, tree)
        if recording.neighbours and arrays:
            storages = {x.storage for x in arrays}
            if not storages.isdisjoint(map(call, recording.neighbours)):
                recording.require_apart(tree)
        if recording.distinct or (recording.apart_from and not recording.flat):
            recording.require_apart(tree)
        held = [arrays[k].storage.actual for k in recording.arguments]
        if recording.outside:
            held += map(_actual, map(call, recording.outside))
        pointers = list(map(_pointer, map(_memory, held)))
        if starts is not None:
            for slot, k in enumerate(recording.arguments):
                pointers[slot] += starts[k]
        frame = self._frame[:]
        frame[: len(pointers)] = words("Q", pointers)
        slots = recording.slots
        memories = self._with_slots(tree) if slots else self._room(self._nbytes)
        if self._reused:
            memories += self._taken_over(held, pointers, frame)
        device = recording.device
        values: list[Value] = []
        realised = Value.realised
        for memory, output in zip(memories, self._outputs):  # noqa: B905
            slot, dtype, shape, strides, placement, form = output
            frame[slot] = memory.pointer
            where = device, 0, False, placement, form
            values.append(realised(memory, dtype, shape, strides, *where))
        values += self._blank
        for place in recording.passed:
            if not isinstance(place, int):
                values.append(place().actual)  # type: ignore[union-attr]
            else:
                array = arrays[place]
                values.append(array.storage.actual if recording.whole[place] else array.value)
        prepared = None if self._kept is None else self._prepared(held, frame)
        return (self, arrays, tree, frame, values + recording.constants, prepared, held)

    def _started(self, arrays: Sequence[NDArray], tree: Any) -> Ready:
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
        for memory, output in zip(memories, self._outputs):  # noqa: B905
            slot, dtype, shape, strides, placement, form = output
            frame[slot] = memory.pointer
            where = device, 0, False, placement, form
            values.append(Value.realised(memory, dtype, shape, strides, *where))
        return (self, arrays, tree, frame, values, None, held)

    def _taken_over(
        self, held: list[Value], pointers: list[int], frame: words[int]
    ) -> Sequence[Memory]:
        """The memory of inputs that the program overwrites: their own, or that of copies."""
        assert self._reused is not None
        slots, sizes = self._reused
        if _all_holders([held[k] for k in slots]) == _ALL_ALONE:
            kept = [held[k] for k in slots]
            found: list[Any] = list(map(_memory, kept))
            if not any(map(_foreign, kept)) and list(map(_pointer, found)) == [
                pointers[k] for k in slots
            ]:
                return found
            del kept, found
        memories: list[Any] = []
        for slot, nbytes in zip(slots, sizes, strict=True):
            if _holders(held, slot) != _ALONE or _is_lent(held[slot], pointers[slot]):
                memories.append(self._copied(held[slot], pointers[slot], nbytes))
                frame[slot] = memories[-1].pointer
            else:
                memories.append(held[slot].memory)
        return memories

    def _prepared(self, held: Sequence[Value], frame: words[int]) -> PreparedProgram | None:
        """What is left to run where arrays from outside hold what they held in the run before."""
        assert self._kept is not None
        inputs = self.recording.inputs
        steady = [held[slot] for slot in self._kept.slots if slot < inputs]
        seen = [value() for value in self._kept.seen]
        same = len(seen) == len(steady) and all(a is b for a, b in zip(seen, steady, strict=True))
        if not same:
            # What somebody else may write to is not taken for the same next time, either.
            self._kept.seen = [ref(v) for v in steady] if all(map(_is_steady, steady)) else []
        return self._kept.prepared(frame, same and events.watcher is None, held)

    def _room(self, sizes: Sequence[int]) -> list[Memory]:
        """Memory of these sizes: first what spent storages have, where nobody sees it."""
        allocate = self.recording.program.backend.allocate_many
        if not self._spent:
            return allocate(sizes)
        free: dict[int, list[Memory]] = {}
        for place in self._spent:
            kept = [place().actual]  # type: ignore[union-attr]
            pointer = 0 if kept[0].memory is None else kept[0].memory.pointer
            if pointer and _holders(kept, 0) == _ALONE and not _is_lent(kept[0], pointer):
                memory = kept[0].memory
                assert memory is not None
                free.setdefault(memory.nbytes, []).append(memory)
        found = [free[n].pop() if free.get(n) else None for n in sizes]
        pairs = zip(found, sizes, strict=True)
        others = iter(allocate([n for memory, n in pairs if memory is None]))
        return [next(others) if memory is None else memory for memory in found]

    def _with_slots(self, tree: Any) -> list[Memory]:
        """Memory for outputs of their own: gradients lie where those of the run before do.

        Unless somebody else has got hold of one: then it stays, and the run makes another.
        """
        memories: list[Any] = [None] * len(self._nbytes)
        together = self._all_again(tree)
        for number, memory in zip(self._gradients, together or (), strict=False):
            memories[number] = memory
        slots = () if together else self.recording.slots
        for slot, number in zip(slots, self._gradients, strict=False):
            slot.again = None
            kept = [slot.last()]
            if kept[0] is None or number >= len(memories):
                continue
            owner = slot.owner(tree)
            if owner._gradient is kept[0] and _sole(kept) == _SOLE:
                storage = kept[0].array.storage
                value = [storage.actual]
                fits = (
                    value[0].memory is not None and value[0].memory.nbytes == self._nbytes[number]
                )
                if fits and _holders(value, 0) == _ALONE and not value[0].attr:
                    slot.again = storage
                    memories[number] = value[0].memory
        missing = [n for n, memory in enumerate(memories) if memory is None]
        found = self._room([self._nbytes[n] for n in missing])
        for n, memory in zip(missing, found, strict=True):
            memories[n] = memory
        return memories

    def _all_again(self, tree: Any) -> list[Memory] | None:
        """The memory of all gradients, if it is that of the run before and nobody else has it."""
        slots = self.recording.slots
        if max(self._gradients) >= len(self._nbytes):
            return None
        tensors = [slot.last() for slot in slots]
        same = all(map(is_, tensors, [slot.owner(tree)._gradient for slot in slots]))
        if not same or not all(map(is_not, tensors, repeat(None))):
            return None
        counts, storages, values, memories = _levels(tensors)
        if counts != _ALL_SOLE or any(map(_foreign, values)):
            return None
        if [m and m.nbytes for m in memories] != [self._nbytes[n] for n in self._gradients]:
            return None
        for slot, storage in zip(slots, storages, strict=True):
            slot.again = storage
        return memories

    def _fill_slots(self, tree: Any, values: Sequence[Value]) -> None:
        """Give parameters their gradients."""
        for slot, number in zip(self.recording.slots, self._gradients, strict=True):
            value = values[number]
            if slot.again is not None:
                slot.again.replace(value)
                slot.again = None
                continue
            tensor = slot.wrap(NDArray(Storage(value)), 0)
            slot.owner(tree)._gradient = tensor
            slot.last = ref(tensor)

    def _copied(self, value: Value, pointer: int, nbytes: int) -> Memory:
        """A copy of an input that the program overwrites but somebody else still needs.

        An array returned earlier, or memory seen by another library, keeps what it has.
        """
        assert value.memory is not None
        backend = self.recording.program.backend
        copy = backend.allocate(nbytes)
        backend.copy(copy, value.memory, nbytes, pointer - value.memory.pointer)
        return copy

    def finish(self, ready: Ready) -> Any:
        """Run the program, write what it writes, and put the results together.

        An interrupt shows when the native call is over: then everything has been computed, and
        is written before the interrupt goes on.
        """
        recording = self.recording
        program = recording.program
        _, arrays, tree, frame, values, prepared, held = ready
        if self._watched:
            self.look()
        if self._pure:
            program.launch(frame, self.sizes, recording.places)
            if self._watched:
                watch(self.look, program.backend)
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
        if self._watched:
            watch(self.look, program.backend)
        if recording.simple is not None:
            self._check(values)
            return self._simply(values)
        if recording.slots:
            self._fill_slots(tree, values)
        storages: list[Any] = [None] * len(recording.fresh)
        for k in recording.shown:
            storages[k] = Storage(values[recording.fresh[k]])
        run = ReplayRun(tree, arrays, storages, self.sizes, None)
        if recording.tape is not None:
            saved = [values[k] for k in recording.saved]
            unread = [values[k] for k in recording.unread]
            pointers = list(frame[: len(held)])
            run = run._replace(creator=recording.tape.attach(run, held, pointers, unread, saved))
        made = recording.template.make(run)
        if recording.tape is not None:
            recording.tape.complete(run.creator, made)
        actions = [
            (function, None if owner is None else owner(tree), args)
            for function, owner, args in recording.actions
        ]
        for function, owner, args in actions:
            given = [made[k] for k in args]
            function(*given) if owner is None else function(owner, *given)
        self._check(values)  # last: without `jit`, too, an index is looked at when all is done
        return made[recording.result]

    def look(self) -> None:
        """Raise if an index of a run that has come so far was out of range."""
        for word, checks in self._watched:
            if code := word.take():
                for name, extent, axis, where in checks:
                    require(name, code, extent, axis, where)

    def _check(self, values: Sequence[Value]) -> None:
        """Raise if an index was out of range, at once or as soon as that is known."""
        for number, checks in self._checks:
            memory = values[number].memory
            assert memory is not None
            later = self.recording.program.backend.word_later(memory)
            if later is not None:
                defer(later, checks)
                continue
            code = read_code(values[number])
            for name, extent, axis, where in checks:
                require(name, code, extent, axis, where)

    def _simply(self, values: Sequence[Value]) -> Any:
        """New arrays, or what wraps them."""
        results: list[Any] = []
        for number, wrap, rest in self._makers:
            array = NDArray(Storage(values[number]))
            results.append(array if wrap is None else wrap(array, rest))
        return tuple(results) if self._several else results[0]

    def _write(self, arrays: Sequence[NDArray], values: Sequence[Value]) -> None:
        recording = self.recording
        for target, k, known in recording.written:
            storage = arrays[target].storage if isinstance(target, int) else target()
            assert storage is not None
            storage.replace(values[k])
            if known is not None:
                recording.versions[known] = storage.version


def _is_lent(value: Value, pointer: int) -> bool:
    """Whether a value's memory is not its own: foreign, or only part of what lies there."""
    return bool(value.attr) or value.memory.pointer != pointer  # type: ignore[union-attr]


def _levels(tensors: list[Any]) -> tuple[list[set[int]], list[Any], list[Any], list[Any]]:
    """How many references there are to tensors, arrays, storages, values and memories.

    And the last three.
    """
    arrays = list(map(_array, tensors))
    storages = list(map(_storage, arrays))
    values = list(map(_actual, storages))
    memories = list(map(_memory, values))
    levels = (tensors, arrays, storages, values, memories)
    return [set(map(getrefcount, level)) for level in levels], storages, values, memories


def _all_holders(kept: list[Any]) -> tuple[set[int], set[int]]:
    """How many references there are to values that are held and to their memories."""
    return set(map(getrefcount, kept)), set(map(getrefcount, map(_memory, kept)))


def _holders(held: Sequence[Any], slot: int) -> tuple[int, int]:
    """How many references there are to a held value and to its memory."""
    return getrefcount(held[slot]), getrefcount(held[slot].memory)


def _sole(kept: Sequence[Any]) -> tuple[int, int, int]:
    """How many references there are to a tensor, to its array and to the storage."""
    return (
        getrefcount(kept[0]), getrefcount(kept[0].array), getrefcount(kept[0].array.storage)
    )  # fmt: skip


class _Holder:
    """An object with attributes, to see how references are counted."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _calibrate() -> tuple[Any, ...]:
    """What the counts are when nobody else has anything.

    When only a storage and the run hold a value, and only it its memory: for one, and for many.
    When only a parameter has a gradient: for many, and for one.
    """
    storage: Any = _Holder(actual=_Holder(memory=_Holder()))
    held = [storage.actual]
    one, many = _holders(held, 0), _all_holders([held[k] for k in (0,)])
    array = _Holder(storage=_Holder(actual=_Holder(memory=_Holder())))
    parameter: Any = _Holder(gradient=_Holder(array=array))
    del array
    gradients = _levels([parameter.gradient for _ in (0,)])[0]
    return one, many, gradients, _sole([parameter.gradient])


_ALONE, _ALL_ALONE, _ALL_SOLE, _SOLE = _calibrate()
