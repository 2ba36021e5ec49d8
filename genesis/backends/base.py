"""What a chip must offer: the whole interface between the compiler and a backend.

A backend describes its chip, allocates memory, turns verified kernels into binaries and assembles
binaries into an executable that runs a whole program in one call. Nothing above this file knows
how a device computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy.typing as npt

from genesis.ir.dtype import DType
from genesis.ir.node import COLLECTIVE
from genesis.ir.numpy_library import started
from genesis.ir.size import Dim

if TYPE_CHECKING:
    from genesis.ir.kernel import Kernel
    from genesis.ir.node import LibraryCall


class OutOfMemory(MemoryError):
    """There is no memory for a request, even after cached blocks were given back."""


class Memory(Protocol):
    """A piece of device memory, freed with its last reference."""

    #: None if it is the backend's own; `SHARED` if that was given to another library, too; else
    #: what keeps the memory of another library alive.
    owner: object | None

    @property
    def pointer(self) -> int:
        """The address on the device."""
        ...

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        ...


#: The owner of our own memory that another library has, or had: it may write there unseen.
SHARED = "us and another library"


@dataclass(frozen=True)
class MemoryStats:
    """The state of a backend's allocator. Bytes count whole blocks, as rounded to size classes."""

    live_bytes: int  # in use
    live_blocks: int
    cached_bytes: int  # kept for reuse
    peak_live_bytes: int  # the most that was ever in use
    allocations: int  # requests served so far


@dataclass(frozen=True)
class Chip:
    """What schedules need to know about a chip. Sizes in bytes.

    `passes` names what the compiler does for it, as ``module:name`` of a
    `genesis.compiler.chip_passes.Passes`: it is above what is here, and loaded when it is needed.
    """

    passes: ClassVar[str] = "genesis.compiler.cpu:PASSES"
    #: Whether threads that add to one element at a time wait for each other.
    contends_in_scatters: ClassVar[bool] = False

    name: str
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int

    @property
    def has_bfloat16_dots(self) -> bool:
        """Whether one instruction adds two products of bfloat16 to every lane of a vector."""
        return False


@dataclass(frozen=True)
class GPU(Chip):
    """A chip of many multiprocessors, each of which runs blocks of hundreds of threads.

    `l1_bytes` is the fast memory a block can have, `vector_bytes` what a thread loads at once;
    `groups` of its threads can each multiply matrices, while others bring in what they need.
    """

    passes: ClassVar[str] = "genesis.compiler.gpu:PASSES"
    contends_in_scatters: ClassVar[bool] = True  # thousands of them, by atomic additions

    multiprocessors: int
    memory_bytes: int
    groups: int = 1


@dataclass(frozen=True)
class Binary:
    """A compiled kernel, as data: any process on such a chip can load it.

    `key` is a digest of what `image` was compiled from. `entry` says how to launch it: JSON that
    only its backend understands. The source is for people; a binary found on disk has none.
    """

    key: str
    image: bytes
    entry: Any
    source: str = ""


class BadBinary(ValueError):
    """A binary its backend cannot load."""


@dataclass(frozen=True)
class Launch:
    """One kernel of a program: which frame slots are its arguments, in the kernel's order.

    `phases` are the first and the end of those that run here; None: all of them.
    """

    binary: Binary
    slots: tuple[int, ...]
    phases: tuple[int, int] | None = None


class NativeCall(NamedTuple):
    """A backend's own code for an operation of the library.

    Its arguments are the operands, the results, `scratch` memory of so many bytes each, and
    `numbers`.
    """

    binary: Binary
    scratch: tuple[Dim, ...] = ()
    numbers: tuple[Dim, ...] = ()


class Operand(NamedTuple):
    """An array that a host step reads or writes, row-major: frame slots of pointer and extents."""

    pointer: int
    dtype: DType
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Host:
    """A step that the host does, by the definition of a library operation that nobody claimed."""

    name: str
    options: tuple[Any, ...]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]

    def run(
        self,
        read: Callable[[Operand], npt.NDArray[Any]],
        write: Callable[[Operand, npt.NDArray[Any]], None],
    ) -> None:
        """Compute the results; `read` gives what is in an array, `write` puts something there."""
        self.start(read, write)()

    def start(
        self,
        read: Callable[[Operand], npt.NDArray[Any]],
        write: Callable[[Operand, npt.NDArray[Any]], None],
    ) -> Callable[[], None]:
        """Begin; what waits for the end and writes the results, which nobody may touch before."""
        due = started(self.name, self.options, [read(operand) for operand in self.operands])

        def finish() -> None:
            for result, value in zip(self.results, due(), strict=True):
                write(result, value)

        return finish

    @property
    def is_collective(self) -> bool:
        """Whether processes exchange something: that goes on while others compute."""
        return self.name.startswith(COLLECTIVE)


class Cursor(NamedTuple):
    """A pointer that walks through memory, one element per repetition. Fields are frame slots.

    It starts at the address in `base` plus the bytes in `start` and moves on by those in `stride`.
    """

    slot: int
    base: int
    start: int
    stride: int


class Turn(NamedTuple):
    """Memory that a repetition writes and the following one reads. Fields are frame slots.

    `current` is the pointer in `first` at first. After a repetition it is the one in `next`, and
    `next` and `spare` are exchanged: so nothing is written that is still to be read.
    """

    current: int
    first: int
    next: int
    spare: int


@dataclass(frozen=True)
class Repeat:
    """Part of a program that runs as often as the frame slot `count` says."""

    count: int
    cursors: tuple[Cursor, ...]
    turns: tuple[Turn, ...]
    body: tuple[Launch | Host | Repeat, ...]

    def repetitions(self, frame: array[int]) -> Iterator[None]:
        """What a native runner does around repetitions, for those that somebody else runs."""
        for c in self.cursors:
            frame[c.slot] = (frame[c.base] + frame[c.start]) & _WORD
        for t in self.turns:
            frame[t.current] = frame[t.first]
        for _ in range(frame[self.count]):
            yield
            for c in self.cursors:
                frame[c.slot] = (frame[c.slot] + frame[c.stride]) & _WORD
            for t in self.turns:
                frame[t.current] = frame[t.next]
                frame[t.next], frame[t.spare] = frame[t.spare], frame[t.next]


_WORD = (1 << 64) - 1  # addresses wrap around: a stride may be negative

Record = Launch | Host | Repeat


def every(records: Iterable[Record]) -> Iterator[Record]:
    """Every record of a program once, in order: a loop before what it repeats."""
    for record in records:
        yield record
        if isinstance(record, Repeat):
            yield from every(record.body)


def steps(records: Iterable[Record]) -> Iterator[Launch | Host]:
    """Every launch and host step of a program once, in order."""
    return (record for record in every(records) if not isinstance(record, Repeat))


def launches(records: Iterable[Record]) -> Iterator[Launch]:
    """Every launch of a program once, in order."""
    return (step for step in steps(records) if isinstance(step, Launch))


def waits(records: Sequence[Record]) -> list[list[int]]:
    """For every record, and for the end, which collectives must have ended before it.

    A collective begins where its record is, and ends before the first that touches its results.
    """
    found: list[list[int]] = []
    flying: dict[int, set[int]] = {}
    for number, record in enumerate(records):
        used = set(touched(record))
        found.append([k for k, results in flying.items() if not results.isdisjoint(used)])
        for k in found[-1]:
            del flying[k]
        if isinstance(record, Host) and record.is_collective:
            flying[number] = {result.pointer for result in record.results}
    return [*found, list(flying)]


def touched(record: Record) -> Iterator[int]:
    """The frame slots that a record reads or writes."""
    if isinstance(record, Launch):
        yield from record.slots
    elif isinstance(record, Host):
        yield from (operand.pointer for operand in (*record.operands, *record.results))
    else:
        yield from (c.base for c in record.cursors)
        yield from (slot for t in record.turns for slot in (t.first, t.next, t.spare))
        yield from (slot for inner in record.body for slot in touched(inner))


class Timing(NamedTuple):
    """What a record took: how often it ran, for how long in all, start and end of its first run.

    In nanoseconds of `time.perf_counter_ns`.
    """

    runs: int
    total: int
    start: int
    end: int

    def then(self, later: Timing) -> Timing:
        """As often as this, and as long as both: one part of a kernel after the other."""
        return Timing(self.runs, self.total + later.total, self.start, later.end)

    def again(self, later: Timing) -> Timing:
        """As often and as long as both: a record that ran in two repetitions."""
        if not self.runs:
            return later
        return self._replace(runs=self.runs + later.runs, total=self.total + later.total)


class Later(Protocol):
    """A number that a device is still to compute."""

    def __call__(self, wait: bool) -> int | None:
        """The number; None if it is not known yet and not to be waited for."""
        ...


class Word(Memory, Protocol):
    """Memory for two words of 64 bits, of which the host sees the first as soon as it is written.

    Both are 0 until a program writes to them.
    """

    def take(self) -> int:
        """What the first holds; from now on that is 0 again."""
        ...


class Executable(Protocol):
    """A loaded program.

    `runs` counts how often it has run to its end. An interrupted caller needs to know whether
    memory has been overwritten: nothing may come between the count and the run.
    """

    runs: int

    def run(self, frame: array[int]) -> None:
        """Run every launch in order; `frame` holds 64-bit words: pointers, scalars' bits, sizes.

        The slots that cursors and turns name change on the way.
        """
        ...

    def timed(self, frame: array[int]) -> list[Timing]:
        """Run, and say what every record took: a loop before what it repeats."""
        ...


class Backend(ABC):
    """A device that runs kernels."""

    name: str
    #: Whether the host reads and writes its memory by address, as soon as a program has returned.
    has_host_memory: ClassVar[bool] = False

    @property
    @abstractmethod
    def chip(self) -> Chip:
        """What the chip can do."""

    @property
    @abstractmethod
    def target(self) -> str:
        """What code is made for and by: the chip, and the code generator with its version.

        Code is exchanged between processes, through the disk, where this is equal.
        """

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory, aligned for the widest vector."""

    def allocate_many(self, sizes: Sequence[int]) -> list[Memory]:
        """Memory for several requests."""
        return [self.allocate(nbytes) for nbytes in sizes]

    @abstractmethod
    def memory_stats(self) -> MemoryStats:
        """What is allocated and cached now."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Count the peak of memory in use from now on."""

    @abstractmethod
    def trim(self) -> None:
        """Give cached memory back to the system."""

    @abstractmethod
    def foreign(self, pointer: int, nbytes: int, owner: object) -> Memory:
        """Memory that belongs to another library's object, which is kept alive."""

    @abstractmethod
    def upload(self, memory: Memory, source: npt.NDArray[Any]) -> None:
        """Fill memory with the elements of a NumPy array in any layout, row-major."""

    @abstractmethod
    def download(
        self,
        memory: Memory,
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """The memory's contents as a NumPy array; strides and offset count elements.

        It is the memory itself where the host can address it, which it keeps alive; else a copy.
        """

    #: Whether programs can write to memory that the host sees, see `word`.
    has_words = False

    def word(self) -> Word:
        """Memory that the host sees without asking for it, if this backend has words."""
        raise NotImplementedError(f"programs of {self.name} write to no memory of the host")

    def word_later(self, memory: Memory) -> Later | None:
        """The 64-bit word that is in memory once all that was started has run; None: it is now.

        Programs that are started afterwards may overwrite it.
        """
        return None

    @abstractmethod
    def copy(self, target: Memory, source: Memory, nbytes: int, start: int = 0) -> None:
        """Copy `nbytes` of `source`, from byte `start` on, to the beginning of `target`."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything that was started has ended."""

    @property
    def stream(self) -> int | None:
        """The queue that work runs on, as DLPack names it; None: nothing is left running."""
        return None

    def lent(self, stream: int) -> AbstractContextManager[None]:
        """Let this thread's programs run in a queue of another library inside the ``with`` block.

        All memory that they use is then that library's, too.
        """
        return nullcontext()

    def is_recorded(self) -> bool:
        """Whether what this thread starts is not run, but recorded by who lent it a queue."""
        return False

    def native_call(self, call: LibraryCall) -> NativeCall | None:
        """Code of this backend's own for an operation of the library.

        Otherwise it runs on the host between two native parts of the program.
        """
        return None

    @abstractmethod
    def kernel_name(self, binary: Binary) -> str:
        """The name of the kernel that was compiled, for people."""

    def expect_kernels(self) -> None:
        """Take note that many kernels are to be compiled soon."""
        return None

    @abstractmethod
    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> list[Binary]:
        """Machine code for verified kernels, which may be verified as they are asked for.

        `precision` is that of products of float32, where the chip has a choice.
        """

    @abstractmethod
    def assemble(self, records: Sequence[Record]) -> Executable:
        """A program that runs the records, in one call unless the host has a part in it.

        Raises `BadBinary` where it cannot.
        """
