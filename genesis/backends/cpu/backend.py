"""The CPU backend: LLVM for code, a native thread pool for running it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from math import prod
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy.typing as npt

from genesis.backends import base
from genesis.backends.cpu import chip
from genesis.backends.cpu.compile import link, target
from genesis.backends.cpu.runtime import memory, runtime
from genesis.events import span
from genesis.ir.dtype import DType, as_dtype, uint8

if TYPE_CHECKING:
    from genesis.ir.kernel import Kernel
    from genesis.ir.node import LibraryCall


@dataclass(frozen=True, eq=False)
class _Code:
    """Where a kernel's phases are: (function, grid function) addresses, and its scratch memory.

    It is unloaded when no program has it any more.
    """

    phases: tuple[tuple[int, int], ...]
    scratch_bytes: int
    library: object


class _Native:
    """Packed records. Every run has a frame of its own, so runs may overlap in time."""

    def __init__(self, records: Sequence[base.Record], loaded: Mapping[str, _Code]) -> None:
        self._loaded = {x.binary.key: loaded[x.binary.key] for x in base.launches(records)}
        scratch = max((code.scratch_bytes for code in self._loaded.values()), default=0)
        self._records = records
        self._packed = runtime.pack_program(_calls(records, self._loaded), scratch)
        self._runtime = runtime.get()
        self._pointer = self._packed.pointer
        self.runs = 0

    def run(self, frame: array[int]) -> None:
        address, _ = frame.buffer_info()
        threads = runtime.get_num_threads()
        # Python handles signals between calls: counted and run are one step to whoever is told.
        self.runs += 1
        self._runtime.calls += 1
        if self._runtime.native(self._pointer, address, threads):
            self.runs -= 1
            self._runtime.fail(self._pointer)

    def timed(self, frame: array[int]) -> list[base.Timing]:
        address, _ = frame.buffer_info()
        words = array("q", bytes(8 * len(self._packed.words)))
        threads = runtime.get_num_threads()
        self.runs += 1
        self._runtime.calls += 1
        if self._runtime.timed(self._pointer, address, threads, words.buffer_info()[0]):
            self.runs -= 1
            self._runtime.fail(self._pointer)
        noted = words.tolist()
        return [
            base.Timing(*noted[phases[0] : phases[0] + 4])
            if len(phases) == 1
            else reduce(base.Timing.then, [base.Timing(*noted[at : at + 4]) for at in phases])
            for phases in self._offsets
        ]

    @cached_property
    def _offsets(self) -> list[list[int]]:
        """For every record the words that its phases, or it as a loop, are packed at."""
        packed = runtime.offsets(_calls(self._records, self._loaded))
        return [
            list(islice(packed, len(_phases(x, self._loaded)) if isinstance(x, base.Launch) else 1))
            for x in base.every(self._records)
        ]


class _Mixed:
    """Native parts, and what the host does between them.

    It counts a run when it has ended: an interrupted one has overwritten no input.
    """

    def __init__(self, records: Sequence[base.Record], loaded: Mapping[str, _Code]) -> None:
        self._parts: list[_Native | base.Host | tuple[base.Repeat, _Mixed]] = []
        self._waits: list[list[int]] = []  # for every part, the collectives it waits for
        self.runs = 0
        native: list[base.Record] = []
        for record, awaited in zip(records, base.waits(records), strict=False):
            if native and (awaited or _has_host([record])):
                self._parts.append(_Native(native, loaded))
                native = []
            if len(self._waits) == len(self._parts):
                self._waits.append([id(records[k]) for k in awaited])
            if not _has_host([record]):
                native.append(record)
            elif isinstance(record, base.Repeat):
                self._parts.append((record, _Mixed(record.body, loaded)))
            elif isinstance(record, base.Host):
                self._parts.append(record)
        if native:
            self._parts.append(_Native(native, loaded))

    def run(self, frame: array[int]) -> None:
        flying: dict[int, Callable[[], None]] = {}
        for part, awaited in zip(self._parts, self._waits, strict=True):
            for collective in awaited:
                flying.pop(collective)()
            if isinstance(part, base.Host):
                finish = _start(part, frame)
                if part.is_collective:
                    flying[id(part)] = finish
                else:
                    finish()
            elif isinstance(part, tuple):
                loop, body = part
                for _ in loop.repetitions(frame):
                    body.run(frame)
            else:
                part.run(frame)
        for finish in flying.values():
            finish()
        self.runs += 1

    def timed(self, frame: array[int]) -> list[base.Timing]:
        found: list[base.Timing] = []
        flying: dict[int, tuple[int, int, Callable[[], None]]] = {}

        def ended(collective: int) -> None:
            place, start, finish = flying.pop(collective)
            finish()
            end = perf_counter_ns()
            found[place] = base.Timing(1, end - start, start, end)

        for part, awaited in zip(self._parts, self._waits, strict=True):
            for collective in awaited:
                ended(collective)
            if isinstance(part, _Native):
                found += part.timed(frame)
                continue
            start, inside = perf_counter_ns(), list[base.Timing]()
            if isinstance(part, base.Host):
                finish = _start(part, frame)
                if part.is_collective:
                    flying[id(part)] = len(found), start, finish
                else:
                    finish()
            else:
                loop, body = part
                for _ in loop.repetitions(frame):
                    now = body.timed(frame)
                    inside = list(map(base.Timing.again, inside, now)) if inside else now
            end = perf_counter_ns()
            found += [base.Timing(1, end - start, start, end), *inside]
        for collective in list(flying):
            ended(collective)
        self.runs += 1
        return found


def _has_host(records: Sequence[base.Record]) -> bool:
    return any(isinstance(step, base.Host) for step in base.steps(records))


def _start(step: base.Host, frame: array[int]) -> Callable[[], None]:
    return step.start(lambda x: _view(frame, x), lambda x, value: _fill(_view(frame, x), value))


def _view(frame: array[int], operand: base.Operand) -> npt.NDArray[Any]:
    shape = [frame[slot] for slot in operand.extents]
    nbytes = prod(shape) * operand.dtype.itemsize
    block = memory.from_foreign(frame[operand.pointer], nbytes, frame)
    return memory.as_numpy(block, operand.dtype, shape)


def _fill(target: npt.NDArray[Any], value: npt.NDArray[Any]) -> None:
    target[...] = value


def _calls(records: Sequence[base.Record], loaded: Mapping[str, _Code]) -> list[runtime.Record]:
    """The records with addresses in place of binaries; every phase is a launch of its own."""
    calls: list[runtime.Record] = []
    for record in records:
        if isinstance(record, base.Launch):
            phases = _phases(record, loaded)
            calls += [
                runtime.NativeLaunch(function, grid, record.slots) for function, grid in phases
            ]
        elif isinstance(record, base.Repeat):
            how = record.count, record.cursors, record.turns
            calls.append(runtime.NativeRepeat(*how, _calls(record.body, loaded)))
    return calls


def _phases(launch: base.Launch, loaded: Mapping[str, _Code]) -> tuple[tuple[int, int], ...]:
    return loaded[launch.binary.key].phases[slice(*launch.phases or (None,))]


class CPUBackend(base.Backend):
    """The host's processors."""

    name = "cpu"
    has_host_memory = True

    def __init__(self) -> None:
        self._loaded: WeakValueDictionary[str, _Code] = WeakValueDictionary()

    @property
    def chip(self) -> chip.CPU:
        """What this CPU can do."""
        return chip.host()

    @property
    def target(self) -> str:
        """This CPU as LLVM and the operating system describe it, and LLVM's version."""
        cpu = self.chip
        caches = f"{cpu.l1_bytes} {cpu.l2_bytes} {cpu.l3_bytes}"  # schedules depend on them
        return f"{target()} {cpu.key} {caches}"

    def allocate(self, nbytes: int) -> memory.Memory:
        """Memory aligned to a cache line, from the caching allocator."""
        return memory.allocate(nbytes)

    def allocate_many(self, sizes: Sequence[int]) -> list[base.Memory]:
        """Memory for several requests, in one step."""
        found: list[Any] = memory.allocate_many(sizes)
        return found

    def memory_stats(self) -> base.MemoryStats:
        """The caching allocator's state."""
        return memory.stats()

    def reset_peak(self) -> None:
        """Count the peak from what is live now."""
        memory.reset_peak()

    def trim(self) -> None:
        """Give cached blocks back to the system."""
        memory.trim()

    def foreign(self, pointer: int, nbytes: int, owner: object) -> memory.Memory:
        """Memory of another library's object."""
        return memory.from_foreign(pointer, nbytes, owner)

    def upload(self, memory_: base.Memory, source: npt.NDArray[Any]) -> None:
        """Copy a NumPy array into memory."""
        dtype = as_dtype(source.dtype.newbyteorder("="))
        with span("copy", source.nbytes):
            self.download(memory_, dtype, source.shape)[...] = source

    def copy(self, target: base.Memory, source: base.Memory, nbytes: int, start: int = 0) -> None:
        """Copy memory."""
        contents = self.download(source, uint8, (nbytes,), offset=start)
        with span("copy", nbytes):
            self.download(target, uint8, (nbytes,))[...] = contents

    def download(
        self,
        memory_: base.Memory,
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """The memory itself, as a NumPy array."""
        assert isinstance(memory_, memory.Memory)
        return memory.as_numpy(memory_, dtype, shape, strides, offset)

    def synchronize(self) -> None:
        """Nothing to wait for: a program has ended when its call returns."""

    def native_call(self, call: LibraryCall) -> base.NativeCall | None:
        """Hand-written code, see `genesis.backends.cpu.library`."""
        from genesis.backends.cpu.library import native_call

        return native_call(call)

    def kernel_name(self, binary: base.Binary) -> str:
        """What the function of its first phase is called, less what makes that unique."""
        phases, _ = _parsed(binary.entry)
        return phases[0][0].partition(".")[0].removesuffix("_0")

    def expect_kernels(self) -> None:
        """Have a process for LLVM be there when the first kernels are."""
        from genesis.backends.compile_workers import expect
        from genesis.backends.cpu.compile import emit

        expect(emit)

    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> list[base.Binary]:
        """Render and compile kernels: LLVM is at work on one while the next are made.

        Products of float32 are always exact but for the last bit.
        """
        # Not needed for what is found on disk.
        from genesis.backends.cpu.binary import BinarySource, binaries, source
        from genesis.backends.cpu.codegen.render import render

        def rendered(kernel: Kernel) -> BinarySource:
            with span("render", kernel.name):
                r = render(kernel, self.chip)
            return source(r.text, r.symbols, r.scratch_bytes)

        return binaries(map(rendered, kernels))

    def assemble(self, records: Sequence[base.Record]) -> base.Executable:
        """One native call for the whole program. All code new to the process is linked at once."""
        binaries = {x.binary.key: x.binary for x in base.launches(records)}
        loaded = {key: code for key in binaries if (code := self._loaded.get(key)) is not None}
        if new := [binary for key, binary in binaries.items() if key not in loaded]:
            loaded |= self._load(new)
        kind = _Mixed if _has_host(records) else _Native
        return kind(records, loaded)

    def _load(self, binaries: Sequence[base.Binary]) -> dict[str, _Code]:
        entries = [_parsed(binary.entry) for binary in binaries]
        names = [name for phases, _ in entries for pair in phases for name in pair]
        try:
            library, address = link([binary.image for binary in binaries], names)
        except RuntimeError as error:
            raise base.BadBinary(f"cannot link the kernels of a program: {error}") from error
        found: dict[str, _Code] = {}
        for binary, (phases, scratch) in zip(binaries, entries, strict=True):
            places = tuple((address[f], address[g]) for f, g in phases)
            found[binary.key] = self._loaded[binary.key] = _Code(places, scratch, library)
        return found


def _parsed(entry: Any) -> tuple[list[tuple[str, str]], int]:
    """The names of a kernel's functions by phase, and its scratch memory; from disk, so checked."""
    match entry:
        case {"phases": [*pairs], "scratch": int(scratch)} if scratch >= 0:
            if all(isinstance(p, list) and list(map(type, p)) == [str, str] for p in pairs):
                return [(function, grid) for function, grid in pairs], scratch
    raise base.BadBinary(f"{entry!r} does not describe a kernel for the CPU")
