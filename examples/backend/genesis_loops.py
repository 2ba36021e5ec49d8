"""A backend in one file: memory is NumPy's, kernels are run by the interpreter of the kernel IR.

It is slow, and complete: arrays, tensors, gradients, `jit`, ``torch.device("genesis", ..)`` and
``torch.compile`` run on it. A real chip replaces three things: where memory is (`Memory`), what
code is made of a kernel (`Loops.compile`), and how code is run (`Program._launch`).

``pip install ./examples/backend`` makes it known: ``genesis.zeros(3, device="loops")``.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from ctypes import c_char
from typing import Any

import numpy as np

from genesis.backends.base import (
    Backend,
    BadBinary,
    Binary,
    Chip,
    Host,
    Launch,
    MemoryStats,
    Operand,
    Record,
    Repeat,
    Timing,
    every,
    launches,
)  # fmt: skip
from genesis.compiler.chip_passes import Passes, Rule
from genesis.compiler.program.program import as_size
from genesis.content_store import digest
from genesis.ir.dtype import DType, uint8
from genesis.ir.interpret import interpret
from genesis.ir.kernel import Buffer, Kernel, as_index
from genesis.ir.size import Dim, evaluate


class Memory:
    """Bytes of NumPy's, or of another library."""

    def __init__(self, pointer: int, nbytes: int, owner: object = None, words: Any = None) -> None:
        self.pointer, self.nbytes, self.owner = pointer, nbytes, owner
        self._words = words  # what the bytes belong to, if it is ours

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """An array of the bytes, which keeps this object, and so the bytes, alive."""
        data = (self.pointer, False)
        return {"data": data, "shape": (self.nbytes,), "typestr": "|u1", "version": 3}


def _at(pointer: int, dtype: DType, count: int) -> np.ndarray[Any, Any]:
    """The elements in memory, as they are."""
    if not count:
        return np.empty(0, dtype.numpy)
    return np.frombuffer((c_char * (count * dtype.itemsize)).from_address(pointer), dtype.numpy)


class Program:
    """Kernels in order, run one after the other."""

    def __init__(self, records: Sequence[Record], kernels: dict[str, Kernel]) -> None:
        self._records = records
        self._kernels = kernels
        self.runs = 0

    def run(self, frame: array[int]) -> None:
        """Run everything. `frame` has a 64-bit word for every pointer, number and size."""
        self.timed(frame)

    def timed(self, frame: array[int]) -> list[Timing]:
        """The same; how long each record took."""
        self.runs += 1
        took = {id(r): Timing(0, 0, 0, 0) for r in every(self._records)}
        self._run(self._records, frame, took)
        return [took[id(r)] for r in every(self._records)]

    def _run(self, records: Sequence[Record], frame: array[int], took: dict[int, Timing]) -> None:
        for record in records:
            start = time.perf_counter_ns()
            if isinstance(record, Launch):
                self._launch(record, frame)
            elif isinstance(record, Host):
                record.run(lambda x: _operand(x, frame), lambda x, y: _fill(x, y, frame))
            else:
                self._repeat(record, frame, took)
            end = time.perf_counter_ns()
            took[id(record)] = took[id(record)].again(Timing(1, end - start, start, end))

    def _launch(self, launch: Launch, frame: array[int]) -> None:
        kernel = self._kernels[launch.binary.key]
        words = iter(
            [frame[slot] for slot in launch.slots]
        )  # in the order of the kernel's arguments
        pointers = [next(words) for _ in kernel.buffers]
        numbers = {p.name: _number(next(words), p.dtype) for p in kernel.params}
        sizes = {s.name: next(words) for s in kernel.symbols}
        arrays = {
            buffer.name: _contents(pointer, buffer, sizes)
            for pointer, buffer in zip(pointers, kernel.buffers, strict=True)
        }
        chosen = kernel.phases if launch.phases is None else kernel.phases[slice(*launch.phases)]
        interpret(kernel.with_phases(chosen), {**arrays, **numbers, **sizes})

    def _repeat(self, loop: Repeat, frame: array[int], took: dict[int, Timing]) -> None:
        for turn in loop.turns:
            frame[turn.current] = frame[turn.first]
        for k in range(frame[loop.count]):
            for c in loop.cursors:
                frame[c.slot] = frame[c.base] + frame[c.start] + k * frame[c.stride]
            self._run(loop.body, frame, took)
            for turn in loop.turns:
                frame[turn.current] = frame[turn.next]
                frame[turn.next], frame[turn.spare] = frame[turn.spare], frame[turn.next]


class LoopsChip(Chip):
    """What the compiler looks at: some numbers, and what is to be done for this chip."""

    passes = "genesis_loops:PASSES"


#: No vectors and no caches: kernels run as lowering leaves them. Rules come first to last, so those
#: of another chip can follow one's own: ``rules=(mine, *genesis.compiler.cpu.PASSES.rules)``.
PASSES = Passes(
    rules=(Rule("as it is", lambda kernel, chip: True, lambda kernel, found, chip: kernel),),
)


class Loops(Backend):
    """A chip that does one thing at a time."""

    name = "loops"
    chip = LoopsChip("loops", 16, vector_registers=16, l1_bytes=32 << 10, l2_bytes=1 << 20)
    target = "loops 1"  # what code is made for, and by which version of what

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}

    # ---- code
    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> list[Binary]:
        """The "machine code" of a kernel is its text; the kernel itself is remembered."""
        made = []
        for kernel in kernels:
            text = str(kernel)
            self._kernels[digest(text)] = kernel
            made.append(Binary(digest(text), text.encode(), {"name": kernel.name}, text))
        return made

    def kernel_name(self, binary: Binary) -> str:
        """What the kernel was called."""
        return str(binary.entry["name"])

    def assemble(self, records: Sequence[Record]) -> Program:
        """A program of what this process has compiled; another's is compiled anew."""
        if any(launch.binary.key not in self._kernels for launch in launches(records)):
            raise BadBinary("compiled by another process")
        return Program(records, self._kernels)

    # ---- memory
    def allocate(self, nbytes: int) -> Memory:
        """New memory, aligned as vectors like it."""
        words = np.empty(nbytes // 8 + 9, np.int64)
        return Memory(words.ctypes.data + 63 & ~63, nbytes, words=words)

    def foreign(self, pointer: int, nbytes: int, owner: object) -> Memory:
        """Memory of another library's object."""
        return Memory(pointer, nbytes, owner)

    def upload(self, memory: Any, source: np.ndarray[Any, Any]) -> None:
        """Copy an array into memory."""
        raw = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        _at(memory.pointer, uint8, raw.size)[:] = raw

    def download(
        self,
        memory: Any,
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> np.ndarray[Any, Any]:
        """The memory itself, as an array."""
        if 0 in shape:
            return np.empty(shape, dtype.numpy)
        size, raw = dtype.itemsize, np.asarray(memory)
        apart = None if strides is None else [s * size for s in strides]
        return np.ndarray(tuple(shape), dtype.numpy, raw, offset * size, apart)

    def copy(self, target: Any, source: Any, nbytes: int, start: int = 0) -> None:
        """Copy bytes."""
        _at(target.pointer, uint8, nbytes)[:] = _at(source.pointer + start, uint8, nbytes)

    def synchronize(self) -> None:
        """Nothing is left running when a call returns."""

    def memory_stats(self) -> MemoryStats:
        """Nothing is counted: Python frees memory with its last reference."""
        return MemoryStats(0, 0, 0, 0, 0)

    def reset_peak(self) -> None:
        """Nothing is counted."""

    def trim(self) -> None:
        """Nothing is kept."""


# ---- what words in a frame stand for


def _number(word: int, dtype: DType) -> Any:
    raw = (word & (1 << 64) - 1).to_bytes(8, "little")[: dtype.itemsize]
    return np.frombuffer(raw, dtype.numpy)[0]


def _contents(pointer: int, buffer: Buffer, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    """The array that a buffer of a kernel is: of its shape, or if that has strides, the memory."""

    def number(x: Any) -> int:
        size: Dim = as_size(as_index(x))
        return evaluate(size, sizes)

    shape = [number(x) for x in buffer.shape]
    if buffer.strides is None:
        return _at(pointer, buffer.dtype, int(np.prod(shape))).reshape(shape)
    steps = [(n - 1) * number(s) for n, s in zip(shape, buffer.strides, strict=True)]
    reach = sum(step for step in steps if step > 0)  # others lead back
    return _at(
        pointer, buffer.dtype, max(0, reach + number(buffer.offset) + 1) if all(shape) else 0
    )


def _operand(x: Operand, frame: array[int]) -> np.ndarray[Any, Any]:
    shape = [frame[e] for e in x.extents]
    return _at(frame[x.pointer], x.dtype, int(np.prod(shape))).reshape(shape)


def _fill(x: Operand, value: np.ndarray[Any, Any], frame: array[int]) -> None:
    _operand(x, frame)[...] = value
