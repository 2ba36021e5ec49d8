"""The CPU backend: LLVM for code, a native thread pool for running it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from genesis.backends.base import Backend, Binary, Executable, Launch, Memory
from genesis.backends.cpu import chip, memory, runtime
from genesis.backends.cpu.compile import compile_object, load
from genesis.backends.cpu.render import render
from genesis.ir.dtype import DType
from genesis.ir.kernel import Kernel


@dataclass(frozen=True)
class _Code:
    """Where a kernel's phases are: (function, grid function) addresses, and its scratch memory."""

    phases: tuple[tuple[int, int], ...]
    scratch_bytes: int


class _Program:
    """Packed launches. Every run has a frame of its own, so runs may overlap in time."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        calls = [
            runtime.Launch(function, grid, launch.slots)
            for launch in launches
            for function, grid in launch.binary.handle.phases
        ]
        scratch = max((x.binary.handle.scratch_bytes for x in launches), default=0)
        self._packed = runtime.pack_program(calls, scratch)
        self._runtime = runtime.get()

    def run(self, frame: array[int]) -> None:
        address, _ = frame.buffer_info()
        self._runtime.run(self._packed.pointer, address, runtime.get_num_threads())


class CPUBackend(Backend):
    """The host's processors."""

    name = "cpu"

    @property
    def chip(self) -> chip.CPU:
        """What this CPU can do."""
        return chip.host()

    def allocate(self, nbytes: int) -> memory.Memory:
        """Memory aligned to a cache line, from the caching allocator."""
        return memory.allocate(nbytes)

    def allocate_many(self, sizes: Sequence[int]) -> list[Memory]:
        """Memory for several requests, in one step."""
        return list(memory.allocate_many(sizes))

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
        """Render, compile and load kernels."""
        binaries = []
        for kernel in kernels:
            rendered = render(kernel, self.chip)
            names = [name for pair in rendered.symbols for name in pair]
            address = load(compile_object(rendered.text), names)
            phases = tuple((address[f], address[g]) for f, g in rendered.symbols)
            binaries.append(Binary(kernel, rendered.text, _Code(phases, rendered.scratch_bytes)))
        return binaries

    def assemble(self, launches: Sequence[Launch]) -> Executable:
        """One native call for the whole program."""
        return _Program(launches)
