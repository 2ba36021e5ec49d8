"""The CPU runtime: run a compiled program in one native call.

The work is done by `runtime.ll`, a thread pool and a loop over launches in LLVM IR. This module
loads it once per process and says how a program and its arguments are laid out in memory: both are
arrays of 8-byte words. A `PackedProgram` is fixed when it is compiled; a *frame* holds what changes
from run to run (pointers, scalars, sizes), and every launch names the frame slots of its arguments.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from genesis.backends.base import OutOfMemory
from genesis.backends.cpu.compile import compile_object, load
from genesis.backends.cpu.runtime.memory import stats

#: The most threads one launch can use.
MAX_THREADS = 1024


@dataclass(frozen=True)
class NativeLaunch:
    """One kernel phase: addresses of its function and its grid function, slots of its arguments."""

    function: int
    grid: int
    slots: tuple[int, ...]


Quad = tuple[int, int, int, int]


@dataclass(frozen=True)
class NativeRepeat:
    """Records that run several times; cursors and turns are as in `genesis.backends.base`."""

    count: int
    cursors: Sequence[Quad]
    turns: Sequence[Quad]
    body: Sequence[NativeLaunch | NativeRepeat]


Record = NativeLaunch | NativeRepeat


class PackedProgram:
    """A packed list of records; `pointer` is what the native runner takes."""

    __slots__ = ("pointer", "words")

    def __init__(self, words: Iterable[int]) -> None:
        self.words = array("q", words)
        self.pointer: int = self.words.buffer_info()[0]


def pack_program(records: Sequence[Record], scratch_bytes: int) -> PackedProgram:
    """Records as the native runner reads them. `scratch_bytes` is the most any kernel needs."""
    return PackedProgram([len(records), scratch_bytes, *_packed(records)])


def offsets(records: Sequence[Record], first: int = 2) -> Iterator[int]:
    """The word at which each record of a program is packed; a loop before what it repeats."""
    for record in records:
        yield first
        if isinstance(record, NativeRepeat):
            body = first + 6 + 4 * (len(record.cursors) + len(record.turns))
            yield from offsets(record.body, body)
        first += len(_packed([record]))


def _packed(records: Sequence[Record]) -> list[int]:
    words: list[int] = []
    for record in records:
        if isinstance(record, NativeLaunch):
            assert record.slots, "a kernel without arguments, hence without results"
            words += (record.function, record.grid, len(record.slots), *record.slots)
        else:
            body = _packed(record.body)
            words += (0, record.count, len(record.cursors), len(record.turns))
            words += (len(record.body), len(body))
            words += [slot for quad in (*record.cursors, *record.turns) for slot in quad]
            words += body
    return words


class Runtime:
    """The loaded native runtime. Use `get()`: there is one per process.

    `calls` counts native calls; a compiled program costs one per run. `native` is the call itself:
    program, frame, threads; it returns 0, or 1 where there is no memory for scratch. `timed` also
    takes memory of as many words as the program has, all 0, in which the four at the offset of a
    record become those of a `genesis.backends.base.Timing`.
    """

    def __init__(self) -> None:
        names = ("genesis_run", "genesis_time", "genesis_after_fork")
        symbols = load(compile_object(source()), names)
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.native = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(symbols["genesis_run"])
        timed = ctypes.CFUNCTYPE(ctypes.c_int, *arguments, ctypes.c_void_p)
        self.timed = timed(symbols["genesis_time"])
        self.calls = 0
        os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(symbols["genesis_after_fork"]))

    def run(self, program: int, frame: int, threads: int) -> None:
        """Run the program at an address on the frame at an address, without the GIL.

        The caller keeps both, and the memory the frame points to, alive until it returns.
        """
        self.calls += 1
        if self.native(program, frame, threads):
            self.fail(program)

    def fail(self, program: int) -> None:
        """Raise what a non-zero result of `native` means."""
        scratch = ctypes.c_int64.from_address(program + 8).value
        raise OutOfMemory(
            f"out of memory: cannot allocate {scratch} bytes of scratch memory to run a "
            f"program; nothing was run ({stats().live_bytes} bytes are live in arrays)"
        )


def get() -> Runtime:
    """The runtime of this process, loaded on the first call."""
    global _runtime
    if _runtime is None:
        with _loading:
            if _runtime is None:
                _runtime = Runtime()
    return _runtime


def get_num_threads() -> int:
    """Threads a program runs on: the processors this process may use, unless set otherwise."""
    global _num_threads
    if _num_threads is None:
        _num_threads = _default_num_threads()
    return _num_threads


def set_num_threads(count: int) -> None:
    """Run programs on `count` threads from now on. Results do not depend on it."""
    global _num_threads
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"set_num_threads({count}): give a number from 1 to {MAX_THREADS}")
    _num_threads = count


def source() -> str:
    """The runtime's LLVM IR for this machine."""
    machine = platform.machine()
    if machine not in _CHIPS:
        raise RuntimeError(
            f"the CPU backend runs on Linux on {' and '.join(_CHIPS)}, not on {machine}"
        )
    common = resources.files("genesis.backends.cpu.runtime").joinpath("runtime.ll").read_text()
    return common + _CHIPS[machine]


_runtime: Runtime | None = None
_num_threads: int | None = None

_loading = threading.Lock()  # held across a fork, so that the child never finds it taken
os.register_at_fork(
    before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
)


def _default_num_threads() -> int:
    text = os.environ.get("GENESIS_NUM_THREADS")
    if text is None:
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise ValueError(f"GENESIS_NUM_THREADS={text!r}: give a number from 1 to {MAX_THREADS}")
    return int(text)


# What differs between chips: the number of the futex system call, and the instruction that tells
# the core it is spinning (on AArch64 `yield` does nothing, a barrier does wait a little).
_CHIPS = {
    "x86_64": """
@SYS_futex = internal constant i64 202
declare void @llvm.x86.sse2.pause()
define internal void @relax() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
""",
    "aarch64": """
@SYS_futex = internal constant i64 98
declare void @llvm.aarch64.isb(i32)
define internal void @relax() alwaysinline nounwind {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}
""",
}
