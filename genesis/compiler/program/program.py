"""Programs: a graph compiled into launches, and everything needed to run them in one call.

A program has a *frame*: one word per argument of any kernel (input memory, run-time scalars,
outputs, temporaries, sizes). A launch names its arguments by frame slot. Running means filling
the frame and making one call into the backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from genesis import events
from genesis.backends.base import Backend, Executable, Host, Launch, Memory, Record, launches
from genesis.compiler.program.memory_plan import MemoryPlan, Room, Temporary, place, require_apart
from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, encode
from genesis.ir.node import Node, Shape, node
from genesis.ir.size import Dim, Size, evaluate, product

if TYPE_CHECKING:
    from genesis.compiler.build import Built
    from genesis.compiler.lower.library_calls import LoweredCall
    from genesis.compiler.lower.lower import Lowered
    from genesis.compiler.program.prepacked import PreparedProgram


class Places(Protocol):
    """Where in the user's code a graph was written. It keeps no memory alive."""

    @property
    def title(self) -> str:
        """What the program computes, in a few words."""
        ...

    def where(self, n: Node) -> str | None:
        """``file:line`` of the call that made a node; None: nobody knows."""
        ...


_NOWHERE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Output:
    """A result of a program. `reuses` is the slot of the input whose memory it takes over.

    Until the launch `first` writes it, temporaries may lie in memory of its own.
    """

    dtype: DType
    shape: Shape
    reuses: int | None = None
    first: int = 0

    @property
    def nbytes(self) -> Dim:
        """The size in bytes."""
        return product(self.shape) * self.dtype.itemsize


class Early(NamedTuple):
    """Phases that a run need not repeat while what they read is the same (see `prepacked`).

    They are the first `phases`, of so many, of the launch that is a certain record. They read what
    is in the slots `reads`, compute with the scalars and sizes in the slots `numbers`, and write
    the temporaries in `writes`, which nothing else writes. What has the same `meaning` writes the
    same if what it reads and the `numbers` are the same; "" is like nothing else, and all there is
    where several things are read or written, or where what is read is no input.
    """

    record: int
    phases: int
    of: int
    reads: tuple[int, ...]
    numbers: tuple[int, ...]
    writes: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class ProgramStep:
    """One launch, with what it came from: for people and for tests.

    In a loop it runs `repeats` times; `loops` are the SCANs around it, the outermost first.
    """

    lowered: Lowered
    built: Built
    repeats: Dim = 1
    loops: tuple[Node, ...] = ()


class GraphStage(NamedTuple):
    """The graph after a stage of the compiler that rewrites graphs."""

    name: str
    roots: tuple[Node, ...]


@dataclass(frozen=True)
class Derivation:
    """How a program came about: its launches, and the user's node for each simplified one.

    `stages` are the graph as it was given, and as it was after each stage that changed it.
    """

    steps: tuple[ProgramStep | LoweredCall, ...]
    origins: Mapping[Node, Node]
    stages: tuple[GraphStage, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled graph.

    `claims` counts what had to be proven of its kernels, `unproven` how much of that is checked
    at run time instead; `accesses` are the reads and writes of launches that were proven to meet
    the right values (`verify_program`). A program found on disk has no derivation; `derive`
    compiles it anew. `key` is what it is found under there.
    """

    outputs: tuple[Output, ...]
    temporaries: tuple[Temporary, ...]
    scalars: tuple[tuple[int, DType], ...]
    symbols: tuple[str, ...]
    buffers: int
    extents: tuple[Dim, ...]  # numbers that loops need
    pointers: int  # pointers that loops move
    records: tuple[Record, ...]
    early: tuple[Early, ...]
    claims: int
    unproven: int
    backend: Backend
    executable: Executable
    derive: Callable[[], Derivation]
    key: str = ""
    accesses: int | None = None

    @cached_property
    def derivation(self) -> Derivation:
        """How the program came about, for people and for tests."""
        return self.derive()

    @cached_property
    def steps(self) -> tuple[ProgramStep, ...]:
        """The generated kernels in the order of their launches, with what they came from."""
        return tuple(step for step in self.derivation.steps if isinstance(step, ProgramStep))

    @property
    def origins(self) -> Mapping[Node, Node]:
        """The user's node for each node that simplification changed."""
        return self.derivation.origins

    @cached_property
    def parts(self) -> tuple[tuple[str, Executable], ...]:
        """The records as programs of their own, with names: for running them one by one."""
        return tuple((self._name(x), self.backend.assemble((x,))) for x in self.records)

    def _name(self, record: Record) -> str:
        if isinstance(record, Launch):
            return self.backend.kernel_name(record.binary)
        return record.name if isinstance(record, Host) else "loop"

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch once, in order."""
        return tuple(launches(self.records))

    @property
    def runs(self) -> int:
        """How often the program has run to its end."""
        return self.executable.runs

    def run(
        self,
        inputs: Sequence[int],
        scalars: Sequence[Scalar],
        outputs: Sequence[Memory],
        sizes: Mapping[str, int],
        places: Places | None = None,
    ) -> None:
        """Compute the outputs from the inputs, which are addresses; `places` is as for `launch`."""
        pointers = [memory.pointer for memory in outputs]
        if self.symbols or self.extents or not inputs or events.watcher is not None:
            self.launch(self.frame(scalars, sizes, inputs, pointers), sizes, places)
            return
        words = [*inputs]  # the same frame, in one go: most realisations are short
        if self.scalars:
            words += [encode(scalars[slot], dtype) for slot, dtype in self.scalars]
        words += pointers
        if self.temporaries:
            rooms, offsets, total = self._placement
            block = self.backend.allocate(total)
            start = block.pointer
            bases = [start if room is None else pointers[room] for room in rooms]
            words += map(add, bases, offsets)
        self.executable.run(array("Q", words))

    def frame(
        self,
        scalars: Sequence[Scalar],
        sizes: Mapping[str, int],
        inputs: Iterable[int] = (),
        outputs: Iterable[int] = (),
    ) -> array[int]:
        """A frame with scalars and sizes filled in, and with pointers where they are given.

        Inputs come first, by slot; outputs from `first_output` on.
        """
        words = [*inputs] or [0] * self.buffers
        if self.scalars:
            words += [encode(scalars[slot], dtype) for slot, dtype in self.scalars]
        words += [*outputs] or [0] * len(self.outputs)
        if self.symbols:
            words += [sizes[name] for name in self.symbols]
        if self.extents:
            words += [evaluate(extent, sizes) & _WORD for extent in self.extents]
            words += [0] * self.pointers
        if self.temporaries:
            words += [0] * len(self.temporaries)
        return array("Q", words)

    def peak_bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """The memory one run takes on top of its inputs: outputs of its own, and temporaries."""
        known = sizes or {}
        own = [output for output in self.outputs if output.reuses is None]
        return sum(evaluate(o.nbytes, known) for o in own) + self.placement(known).total

    @property
    def first_output(self) -> int:
        """The frame slot of the first output."""
        return self.buffers + len(self.scalars)

    @property
    def sizes(self) -> range:
        """The frame slots of the symbolic sizes."""
        first = self.first_output + len(self.outputs)
        return range(first, first + len(self.symbols))

    @property
    def first_temporary(self) -> int:
        """The frame slot of the first temporary; they come last."""
        numbers = len(self.symbols) + (len(self.extents) + self.pointers if self.extents else 0)
        return self.first_output + len(self.outputs) + numbers

    def launch(
        self,
        frame: array[int],
        sizes: Mapping[str, int],
        places: Places | None = None,
        prepared: PreparedProgram | None = None,
        allocate: Callable[[int], Memory] | None = None,
    ) -> None:
        """Run on a complete frame. All memory is there before the first kernel starts.

        `places` says where the graph was written, to whoever watches. What is `prepared` is not
        done again. `allocate` gives the memory for temporaries, if it is not the backend's.
        """
        if self.temporaries:
            elsewhere = _NOWHERE if prepared is None else prepared.elsewhere
            rooms, offsets, total = self.placement(sizes, elsewhere)
            block = (allocate or self.backend.allocate)(total)
            start, results = block.pointer, self.first_output
            bases = [start if room is None else frame[results + room] for room in rooms]
            frame[len(frame) - len(offsets) :] = array("Q", map(add, bases, offsets))
        if prepared is not None:
            for slot, memory in prepared.memory:
                frame[slot] = memory.pointer
            prepared.executable.run(frame)
        elif events.watcher is None:
            self.executable.run(frame)
        else:
            events.watcher.run(self, frame, sizes, places)

    @cached_property
    def _placement(self) -> MemoryPlan:
        """Where the temporaries lie if no size is a symbol."""
        return self.placement({})

    def placement(
        self, sizes: Mapping[str, int], elsewhere: frozenset[int] = _NOWHERE
    ) -> MemoryPlan:
        """Where the temporaries lie; a room is the memory of the output of that number.

        Those in slots `elsewhere` need no place.
        """
        key = (elsewhere, *[sizes[name] for name in self.symbols])
        cache = cast("dict[tuple[object, ...], MemoryPlan]", _placements(self))
        if key not in cache:
            if len(cache) >= _PLACEMENTS:
                cache.clear()
            rooms = [Room(o.nbytes, o.first if o.reuses is None else 0) for o in self.outputs]
            needed = [
                replace(t, nbytes=0) if slot in elsewhere else t
                for slot, t in enumerate(self.temporaries, self.first_temporary)
            ]
            found = place(needed, rooms, sizes)
            require_apart(found, needed, rooms, sizes)
            cache[key] = found
        return cache[key]


_PLACEMENTS = 4096  # that are kept, of as many sizes
_WORD = (1 << 64) - 1


def _placements(program: Program) -> object:
    return program.__dict__.setdefault("_placements", {})


def results(roots: Sequence[Node]) -> tuple[Node, ...]:
    """The roots, each a value of its own: an input, a carry or another result is copied.

    A root that is another shape of a value is that value: both are the same memory.
    """
    distinct: dict[Node, None] = {}
    for n in roots:
        while n.op is ops.RESHAPE and n.inputs[0] not in distinct:
            n = n.inputs[0]
        scan = n.inputs[0] if n.op is ops.ITEM and n.inputs[0].op is ops.SCAN else None
        is_carry = scan is not None and n.attr < scan.attr.carries
        while n.op is ops.BUFFER or is_carry or n in distinct:
            is_carry = False
            n = node(ops.RESHAPE, (n,), None, n.dtype, n.shape)
        distinct[n] = None
    return tuple(distinct)


def as_size(n: Node) -> Dim:
    """An index expression over symbols as a size."""
    if n.op is ops.CONST:
        return int(n.attr)
    if n.op is ops.SYMBOL:
        return Size((((n.attr,), 1),))
    if n.op is ops.ADD:
        return as_size(n.inputs[0]) + as_size(n.inputs[1])
    if n.op is ops.MUL:
        return as_size(n.inputs[0]) * as_size(n.inputs[1])
    if n.op is ops.FLOORDIV:
        return as_size(n.inputs[0]) // int(n.inputs[1].attr)
    raise AssertionError(f"{n} is not a size")
