"""Programs on a GPU: a list of launches, and graphs captured from it.

The words of a frame are copied to a place of their own, and the arguments of every launch point
there, so that a launch is one call of the driver with nothing to pack. A program that runs again is
captured: its launches become the nodes of a graph, which one call starts. A graph belongs to the
frame it was captured with. Programs meet the same few frames again and again, because the allocator
gives the same blocks in the same order; so a few graphs are kept, found by their frame. When yet
another frame comes, the oldest graph gets new arguments where they differ.

Steps that the host does are taken between launches, one after the other; some of them a library of
the vendor does on the device instead. Where a library only puts work into the queue, the queue is
captured, and such a program is a graph, too, from the second run with a frame on.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from genesis.backends import base
from genesis.backends.gpu.launch_metadata import Count, evaluated
from genesis.backends.gpu.runtime.driver import Driver, GPUDevice, uninterrupted
from genesis.backends.gpu.runtime.transfer import Transfers
from genesis.ir.dtype import DType

#: Graphs that are kept of one program, and launches that a graph may have.
GRAPHS = 4
LAUNCHES = 1 << 12
#: Threads for each multiprocessor of a launch that is light.
LIGHT = 256

_INVALID_CONTEXT = 201


class DeviceModule:
    """Machine code that is loaded; when nobody has it any more, it is put to what is `dead`.

    The driver may look at its image whenever it likes.
    """

    def __init__(self, handle: Any, image: bytes, dead: deque[tuple[Any, bytes]]) -> None:
        self._loaded, self._dead = (handle, image), dead

    def __del__(self) -> None:
        self._dead.append(self._loaded)


@dataclass(frozen=True)
class DeviceFunction:
    """A phase of a kernel, loaded."""

    module: DeviceModule
    handle: Any
    threads: int
    shared: int
    waits: bool  # for the kernel before it, and so may start while that still runs
    ahead: tuple[int, ...]  # arguments that it reads before it waits


@dataclass(frozen=True, eq=False)
class DeviceCode:
    """A loaded kernel: its phases with their grids, and how many arguments of each kind it has."""

    phases: tuple[DeviceFunction, ...]
    grids: tuple[Count, ...]
    buffers: int
    symbols: int
    hidden: int
    written: tuple[int, ...]  # arguments that are not only read


class DeviceArray(NamedTuple):
    """An array on the device, row-major."""

    pointer: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return prod(self.shape) * self.dtype.itemsize

    def matrices(self, rank: int = 2) -> Iterator[int]:
        """Where each matrix of a batch begins, or, of rank 1, each vector."""
        size = prod(self.shape[len(self.shape) - rank :]) * self.dtype.itemsize
        return (self.pointer + k * size for k in range(prod(self.shape[: len(self.shape) - rank])))


class VendorLibrary(Protocol):
    """A vendor's library: computes an operation of arrays on the device, or says that it cannot."""

    def __call__(
        self,
        name: str,
        options: tuple[Any, ...],
        operands: list[DeviceArray],
        results: list[DeviceArray],
        used: list[object] | None = None,
    ) -> bool:
        """Whether the results are there, for whatever comes next in the queue.

        `used` receives what must live as long as that work may be run again.
        """
        ...

    def is_queued(self, name: str) -> bool:
        """Whether an operation waits for nothing: all of it is work for the queue."""
        ...


class CollectiveLink(Protocol):
    """What carries collectives between devices, without the host."""

    def start(
        self, name: str, options: tuple[Any, ...], given: list[DeviceArray], made: list[DeviceArray]
    ) -> Callable[[], None] | None:
        """Begin a collective: what lets the queue wait for it, or None if the host must do it."""
        ...


#: Gives what carries collectives along an axis of a mesh, if it is not the host.
Links = Callable[[str, str], CollectiveLink | None]
#: Gives the code of a binary, for pointers that are all multiples of 16 or for any.
Loader = Callable[[base.Binary, bool], DeviceCode]


class _Step:
    """The launch of one phase."""

    __slots__ = (
        "_array", "_codes", "_grid", "_number", "_other", "_symbols", "arguments", "parameters",
        "written",
    )  # fmt: skip

    def __init__(
        self, launch: base.Launch, number: int, load: Loader, words: int, null: int
    ) -> None:
        code = load(launch.binary, True)
        self._codes, self._number = [code], number
        self._other: Callable[[], DeviceCode] = lambda: load(launch.binary, False)
        self._grid = code.grids[number]
        self._symbols = launch.slots[len(launch.slots) - code.symbols :]
        self.arguments = launch.slots[: code.buffers], launch.slots[code.buffers :]
        self.written = {launch.slots[k] for k in code.written}
        places = [*launch.slots, *[null] * code.hidden]
        self._array = (ctypes.c_void_p * (len(places) + 1))(*(words + 8 * p for p in places))
        self.parameters = ctypes.addressof(self._array)

    def function(self, words: array[int]) -> DeviceFunction:
        """What to launch: code that loads whole vectors, where all arguments are aligned."""
        for slot in self.arguments[0]:
            if words[slot] & 15:
                if len(self._codes) == 1:
                    self._codes.append(self._other())
                return self._codes[1].phases[self._number]
        return self._codes[0].phases[self._number]

    def blocks(self, words: array[int]) -> int:
        """How many blocks there are."""
        if isinstance(self._grid, int):
            return self._grid
        return evaluated(self._grid, [words[slot] for slot in self._symbols])


@dataclass
class _Node:
    """A node of a graph, and what it launches."""

    node: Any
    parameters: Any
    launches: tuple[object, ...]


@dataclass
class _Graph:
    graph: Any
    executable: Any
    nodes: list[_Node]
    driver: Driver
    used: list[object]  # by what it runs besides

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and not self.driver.child:
            self.driver.function("GraphExecDestroy")(self.executable)
            self.driver.function("GraphDestroy")(self.graph)


class _NotQueued(RuntimeError):
    """The host has a part in what was to be captured."""


_Steps = list["_Step | base.Host | tuple[base.Repeat, _Steps]"]

#: Collectives that are under way, by the ids of steps: what waits for them, and whether in a queue.
_Flying = dict[int, tuple[Callable[[], None], bool]]
#: The id of a step, and events before and behind it.
_Mark = tuple[int, Any, Any]


class DeviceProgram:
    """An executable."""

    def __init__(
        self,
        records: Sequence[base.Record],
        load: Loader,
        device: GPUDevice,
        transfers: Transfers,
        library: VendorLibrary | None = None,
        links: Links = lambda mesh, axis: None,
    ) -> None:
        self.runs = 0
        self._library, self._links = library, links
        self._device = device
        self._call = device.call
        self._multiprocessors = device.attribute("MULTIPROCESSOR_COUNT")
        self._transfers = transfers
        self._lock = Lock()
        self._graphs: dict[bytes, _Graph] = {}
        count = 1 + max(_slots(records), default=-1)
        self._words = array("Q", bytes(8 * (count + 1)))  # the last is what hidden arguments are
        self._address = self._words.buffer_info()[0]
        self._load = load
        self._launch = device.driver.function("GraphLaunch")
        by_host = [step for step in base.steps(records) if isinstance(step, base.Host)]
        self._mixed = bool(by_host)
        self._queued = library is not None and all(
            not step.is_collective and library.is_queued(step.name) for step in by_host
        )
        self._used: list[object] = []  # by graphs of others
        #: Frames of the last runs, for those that come again are captured.
        self._frames: deque[bytes] = deque(maxlen=GRAPHS)
        #: Every record, a loop before what it repeats, and the ids of the steps it consists of.
        self._parts: list[tuple[base.Record, list[int]]] = []
        self._written: set[int] = set()  # slots of what launches write
        self._steps = self._prepared(records)
        #: For what is done first of a record, the collectives that it waits for.
        first = {id(record): own[0] for record, own in self._parts if own}
        self._waits = {
            first[id(record)]: [id(records[k]) for k in awaited]
            for record, awaited in zip(records, base.waits(records), strict=False)
            if awaited and id(record) in first
        }

    def run(self, frame: array[int]) -> None:
        """Start every launch; nothing is waited for unless the host has a part in it."""
        key = frame.tobytes()
        with self._lock:
            if self._device.is_recorded():  # as part of another graph, which replays its launches
                with self._device:
                    self._take(frame)
                    self._whole(used=self._used)
                return
            graph = self._graphs.get(key)
            # A graph knows the context it runs in; only some drivers want it to be current.
            if graph is None or not self._launched(graph):
                with self._device:
                    self._run(frame, key)

    def timed(self, frame: array[int]) -> list[base.Timing]:
        """Run, with an event before and behind every launch, and wait for the last."""
        stream = self._device.stream
        marks: list[_Mark] = []
        moments: dict[int, list[tuple[int, int]]] = {}
        with self._lock, self._device:
            self._take(frame)
            zero = self._mark()
            self._call("EventSynchronize", zero)
            began = perf_counter_ns()
            self._whole(marks)
            self._call("StreamSynchronize", stream)
            for step, *events in marks:
                after = [round(1e6 * self._call("EventElapsedTime", zero, e)) for e in events]
                moments.setdefault(step, []).append((began + after[0], began + after[1]))
            for event in (zero, *(e for mark in marks for e in mark[1:])):
                self._call("EventDestroy", event)
        return [_timing(r, [moments.get(k, []) for k in own]) for r, own in self._parts]

    def _mark(self) -> Any:
        event = self._device.event(timing=True)
        self._call("EventRecord", event, self._device.stream)
        return event

    def _take(self, frame: array[int]) -> None:
        nbytes = 8 * min(len(frame), len(self._words) - 1)
        ctypes.memmove(self._address, frame.buffer_info()[0], nbytes)

    def _run(self, frame: array[int], key: bytes) -> None:
        self._take(frame)
        long = not self.runs or self._count(self._steps) > LAUNCHES
        if long or (self._mixed and not (self._queued and key in self._frames)):
            if self._queued:
                self._frames.append(key)
            self._whole()
            return
        graph = self._graphs.get(key) or (self._recorded() if self._mixed else self._captured())
        if graph is None:
            self._whole()
            return
        self._graphs[key] = graph
        if not self._launched(graph):
            self._device.driver.fail("GraphLaunch", _INVALID_CONTEXT)

    def _whole(self, marks: list[_Mark] | None = None, used: list[object] | None = None) -> None:
        """One step after the other, all or none of them.

        A program without the host may overwrite what it reads: half of it must not run. So it is
        started by another thread, which no interrupt stops.
        """
        if self._mixed:
            self._interpret(marks, used)
            self.runs += 1
            return

        stream = self._device.stream  # of this thread

        def work() -> None:
            self.runs += 1
            try:
                with self._device, self._device.lent(stream):
                    self._interpret(marks)
            except BaseException:
                self.runs -= 1
                raise

        uninterrupted(work)

    def _launched(self, graph: _Graph) -> bool:
        # Counted first: Python handles signals between calls.
        self.runs += 1
        (error,) = self._launch(graph.executable, self._device.stream)
        if not error:
            return True
        self.runs -= 1
        if int(error) != _INVALID_CONTEXT:
            self._device.driver.fail("GraphLaunch", error)
        return False

    # ---- launches, one after the other
    def _prepared(self, records: Sequence[base.Record]) -> _Steps:
        found: _Steps = []
        null = len(self._words) - 1
        for record in records:
            own: list[int] = []
            self._parts.append((record, own))
            inside = len(self._parts)
            if isinstance(record, base.Launch):
                code = self._load(record.binary, True)
                for number in range(*record.phases or (0, len(code.phases))):
                    step = _Step(record, number, self._load, self._address, null)
                    self._written |= step.written
                    found.append(step)
                    own.append(id(step))
            elif isinstance(record, base.Repeat):
                found.append((record, self._prepared(record.body)))
                own += [k for _, parts in self._parts[inside:] for k in parts]
            else:
                found.append(record)
                own.append(id(record))
        return found

    def _sequence(self, steps: _Steps) -> Iterator[_Step | base.Host]:
        """What there is to do, in order; the words are as each needs them when it is given."""
        for step in steps:
            if not isinstance(step, tuple):
                yield step
                continue
            loop, body = step
            for _ in loop.repetitions(self._words):
                yield from self._sequence(body)

    def _interpret(
        self, marks: list[_Mark] | None = None, used: list[object] | None = None
    ) -> None:
        """One step after the other; `marks` receives each with the events before and behind it.

        `used`: it is captured, and this receives what must live as long as the graph.
        """
        flying: _Flying = {}
        try:
            self._interpreted(marks, flying, used)
            for finish, _ in flying.values():
                finish()
        except BaseException:
            for finish, is_queued in flying.values():
                if is_queued:  # its memory is not used again before it has ended
                    finish()
            raise

    def _interpreted(
        self, marks: list[_Mark] | None, flying: _Flying, used: list[object] | None
    ) -> None:
        launch = self._device.driver.function("LaunchKernel")
        stream, words = self._device.stream, self._words
        for step in self._sequence(self._steps):
            for collective in self._waits.get(id(step), ()):
                if collective in flying:  # in a loop, the first time
                    flying.pop(collective)[0]()
            before = None if marks is None else self._mark()
            if isinstance(step, base.Host):
                if step.is_collective:
                    flying[id(step)] = self._collective(step)
                elif not self._by_library(step, used):
                    if used is not None:
                        raise _NotQueued(f"{step.name} is computed by the host: no graph has it")
                    step.run(self._read, self._write)
            elif blocks := step.blocks(words):
                f = step.function(words)
                (error,) = launch(
                    f.handle, blocks, 1, 1, f.threads, 1, 1, f.shared, stream, step.parameters, 0
                )
                if int(error):
                    self._device.driver.fail("LaunchKernel", error)
            if marks is not None:
                marks.append((id(step), before, self._mark()))

    def _collective(self, step: base.Host) -> tuple[Callable[[], None], bool]:
        """Begin a collective; what its results are waited for by, and whether a queue does that."""
        link = self._links(step.options[0], step.options[1])
        if link is not None:
            given, made = ([self._array(x) for x in xs] for xs in (step.operands, step.results))
            found = link.start(step.name, step.options, given, made)
            if found is not None:
                return found, True
        return step.start(self._read, self._write), False

    def _by_library(self, step: base.Host, used: list[object] | None = None) -> bool:
        """Whether a library of the vendor has done what the host would do."""
        if self._library is None:
            return False
        given, made = ([self._array(x) for x in xs] for xs in (step.operands, step.results))
        return self._library(step.name, step.options, given, made, used)

    def _array(self, operand: base.Operand) -> DeviceArray:
        shape = tuple(self._words[slot] for slot in operand.extents)
        return DeviceArray(self._words[operand.pointer], operand.dtype, shape)

    def _read(self, operand: base.Operand) -> npt.NDArray[Any]:
        shape = [self._words[slot] for slot in operand.extents]
        nbytes = prod(shape) * operand.dtype.itemsize
        contents = self._transfers.download(self._words[operand.pointer], nbytes)
        return np.ndarray(tuple(shape), operand.dtype.numpy, contents)

    def _write(self, operand: base.Operand, value: npt.NDArray[Any]) -> None:
        shape = [self._words[slot] for slot in operand.extents]
        contents = np.empty(shape, operand.dtype.numpy)
        contents[...] = value
        self._transfers.write(self._words[operand.pointer], contents)

    # ---- graphs
    def _count(self, steps: _Steps) -> int:
        return sum(
            self._words[step[0].count] * self._count(step[1]) if isinstance(step, tuple) else 1
            for step in steps
        )

    def _captured(self) -> _Graph:
        """A graph of the launches: an old one with new arguments, or a new one."""
        if len(self._graphs) == GRAPHS:
            graph = self._graphs.pop(next(iter(self._graphs)))
            before = self._words[:]
            if self._updated(graph):
                return graph
            self._words[:] = before
        nodes: list[_Node] = []
        graph_handle = self._call("GraphCreate", 0)
        for step in self._sequence(self._steps):
            assert isinstance(step, _Step)
            launches = self._launches(step)
            if launches is None:
                continue
            parameters = self._device.driver.node()
            parameters.kernelParams = step.parameters
            parameters.blockDimY = parameters.blockDimZ = 1
            parameters.gridDimY = parameters.gridDimZ = 1
            self._set(parameters, step)
            before_it = [n.node for n in nodes[-1:]]
            early = bool(nodes) and self._early(nodes[-1].parameters, step)
            node = self._device.driver.follow(graph_handle, before_it, parameters, early)
            nodes.append(_Node(node, parameters, launches))
        return self._instantiated(graph_handle, nodes, [])

    def _recorded(self) -> _Graph | None:
        """A graph of all that a run puts into the queue; None if the host has a part in it."""
        if len(self._graphs) == GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        used: list[object] = []
        driver, stream = self._device.driver, self._device.stream
        try:
            graph = driver.captured(stream, lambda: self._interpret(used=used))
        except _NotQueued:
            return None
        return None if graph is None else self._instantiated(graph, [], used)

    def _instantiated(self, graph: Any, nodes: list[_Node], used: list[object]) -> _Graph:
        executable = self._call("GraphInstantiate", graph, 0)
        return _Graph(graph, executable, nodes, self._device.driver, used)

    def _early(self, before: Any, step: _Step) -> bool:
        """Whether a launch may start while the one before it runs.

        It must wait before it reads what others write. Blocks that come to where many others run
        lie on the few multiprocessors that end first, so what runs must be light.
        """
        f = step.function(self._words)
        light = before.gridDimX * before.blockDimX <= LIGHT * self._multiprocessors
        steady = self._written.isdisjoint(step.arguments[0][k] for k in f.ahead)
        return f.waits and light and steady

    def _updated(self, graph: _Graph) -> bool:
        """Give a graph the arguments of this run; False if it does not have these launches."""
        nodes = iter(graph.nodes)
        for step in self._sequence(self._steps):
            assert isinstance(step, _Step)
            launches = self._launches(step)
            if launches is None:
                continue
            node = next(nodes, None)
            if node is None:
                return False
            if node.launches != launches:
                if node.launches[0] is not step:
                    return False
                self._set(node.parameters, step)
                where = graph.executable, node.node
                self._call("GraphExecKernelNodeSetParams", *where, node.parameters)
                node.launches = launches
        return next(nodes, None) is None

    def _launches(self, step: _Step) -> tuple[object, ...] | None:
        """All that decides what a launch does; None where there are no blocks."""
        blocks = step.blocks(self._words)
        pointers, others = step.arguments
        values = [self._words[slot] for slot in (*pointers, *others)]
        return (step, blocks, *values) if blocks else None

    def _set(self, parameters: Any, step: _Step) -> None:
        f = step.function(self._words)
        parameters.func = f.handle
        parameters.gridDimX = step.blocks(self._words)
        parameters.blockDimX = f.threads
        parameters.sharedMemBytes = f.shared


def _timing(record: base.Record, parts: list[list[tuple[int, int]]]) -> base.Timing:
    """What a record took, from the moments of its phases, or of all that is in a loop."""
    every = [moment for part in parts for moment in part]
    if not every:
        return base.Timing(0, 0, 0, 0)
    start = min(every)[0]
    if isinstance(record, base.Repeat):
        end = max(end for _, end in every)
        return base.Timing(1, end - start, start, end)
    total = sum(end - start for start, end in every)
    return base.Timing(len(parts[0]), total, start, parts[-1][0][1])


def _slots(records: Sequence[base.Record]) -> Iterator[int]:
    """Every slot that records name."""
    for record in records:
        if isinstance(record, base.Launch):
            yield from record.slots
        elif isinstance(record, base.Host):
            for operand in (*record.operands, *record.results):
                yield from (operand.pointer, *operand.extents)
        else:
            yield record.count
            for moved in (*record.cursors, *record.turns):
                yield from moved
            yield from _slots(record.body)
