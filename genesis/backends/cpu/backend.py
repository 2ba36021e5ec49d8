"""The CPU backend: LLVM for code, a native thread pool for running it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from genesis.backends.base import (
    Backend,
    BadBinary,
    Binary,
    Executable,
    Launch,
    Memory,
    MemoryStats,
    Record,
    launches,
)
from genesis.backends.cpu import chip, memory, runtime
from genesis.backends.cpu.compile import compile_object, link, object_key, target
from genesis.ir.dtype import DType
from genesis.store import digest

if TYPE_CHECKING:
    from genesis.ir.kernel import Kernel


@dataclass(frozen=True)
class _Code:
    """Where a kernel's phases are: (function, grid function) addresses, and its scratch memory."""

    phases: tuple[tuple[int, int], ...]
    scratch_bytes: int


class _Program:
    """Packed records. Every run has a frame of its own, so runs may overlap in time."""

    def __init__(self, records: Sequence[Record], loaded: Mapping[str, _Code]) -> None:
        scratch = max((loaded[x.binary.key].scratch_bytes for x in launches(records)), default=0)
        self._packed = runtime.pack_program(_calls(records, loaded), scratch)
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


def _calls(records: Sequence[Record], loaded: Mapping[str, _Code]) -> list[runtime.Record]:
    """The records with addresses in place of binaries; every phase is a launch of its own."""
    calls: list[runtime.Record] = []
    for record in records:
        if isinstance(record, Launch):
            phases = loaded[record.binary.key].phases[slice(*record.phases or (None,))]
            calls += [runtime.Launch(function, grid, record.slots) for function, grid in phases]
        else:
            cursors = [(c.slot, c.base, c.start, c.stride) for c in record.cursors]
            turns = [(t.current, t.first, t.next, t.spare) for t in record.turns]
            body = _calls(record.body, loaded)
            calls.append(runtime.Repeat(record.count, cursors, turns, body))
    return calls


class CPUBackend(Backend):
    """The host's processors."""

    name = "cpu"

    def __init__(self) -> None:
        self._loaded: dict[str, _Code] = {}

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

    def allocate_many(self, sizes: Sequence[int]) -> list[Memory]:
        """Memory for several requests, in one step."""
        return list(memory.allocate_many(sizes))

    def memory_stats(self) -> MemoryStats:
        """The caching allocator's state."""
        return memory.stats()

    def trim(self) -> None:
        """Give cached blocks back to the system."""
        memory.trim()

    def foreign(self, pointer: int, nbytes: int, owner: object) -> memory.Memory:
        """Memory of another library's object."""
        return memory.from_foreign(pointer, nbytes, owner)

    def view(
        self,
        memory_: Memory,
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """The memory itself, as a NumPy array."""
        assert isinstance(memory_, memory.Memory)
        return memory.as_numpy(memory_, dtype, shape, strides, offset)

    def compile(self, kernels: Sequence[Kernel]) -> list[Binary]:
        """Render and compile kernels."""
        from genesis.backends.cpu.render import render  # not needed for what is found on disk

        binaries = []
        for kernel in kernels:
            rendered = render(kernel, self.chip)
            text, phases = rendered.text, []
            # Names no other kernel has, so that objects can be linked together.
            unique = digest(text)[:16]
            for function, grid in rendered.symbols:
                phases.append([f"{function}.{unique}", f"{grid}.{unique}"])
                for name in (function, grid):
                    text = text.replace(f'@"{name}"', f'@"{name}.{unique}"')
            entry = {"phases": phases, "scratch": rendered.scratch_bytes}
            binaries.append(Binary(object_key(text), compile_object(text), entry, text))
        return binaries

    def assemble(self, records: Sequence[Record]) -> Executable:
        """One native call for the whole program. All code new to the process is linked at once."""
        binaries = {x.binary.key: x.binary for x in launches(records)}
        new = [binary for key, binary in binaries.items() if key not in self._loaded]
        if new:
            self._load(new)
        return _Program(records, self._loaded)

    def _load(self, binaries: Sequence[Binary]) -> None:
        entries = [_parsed(binary.entry) for binary in binaries]
        names = [name for phases, _ in entries for pair in phases for name in pair]
        try:
            address = link([binary.image for binary in binaries], names)
        except RuntimeError as error:
            raise BadBinary(f"cannot link the kernels of a program: {error}") from error
        for binary, (phases, scratch) in zip(binaries, entries, strict=True):
            code = _Code(tuple((address[f], address[g]) for f, g in phases), scratch)
            self._loaded[binary.key] = code


def _parsed(entry: Any) -> tuple[list[tuple[str, str]], int]:
    """The names of a kernel's functions by phase, and its scratch memory; from disk, so checked."""
    match entry:
        case {"phases": [*pairs], "scratch": int(scratch)} if scratch >= 0:
            if all(isinstance(p, list) and list(map(type, p)) == [str, str] for p in pairs):
                return [(function, grid) for function, grid in pairs], scratch
    raise BadBinary(f"{entry!r} does not describe a kernel for the CPU")
