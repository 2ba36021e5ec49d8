"""Order: in which order the steps of a program run, so that less memory is in use at once.

Planning sees a program as tasks: what each reads, what it writes, the memory it needs for itself.
What is written must be there when it is read, and memory of an input that is overwritten must not
be read afterwards; any order that keeps to this computes the same. The order that fusion gives
runs the results towards the end: all gradients wait there for the updates of the weights. Here a
task that frees at least as much as it takes runs as soon as it can, and, looking from the end,
one that takes more than it frees as late as it can. The best of these orders is taken, the given
one unless another is better.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

from genesis.compiler.build import Built
from genesis.compiler.fuse.cost import TYPICAL
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.lower import Lowered
from genesis.compiler.lower.scan import LoweredLoop, Steps, kernels
from genesis.compiler.program.program import as_size
from genesis.compiler.report import flops, traffic
from genesis.ir import ops
from genesis.ir.kernel import Buffer, Role
from genesis.ir.node import Node
from genesis.ir.size import Dim, Size, evaluate, product

#: A value of the program, or memory of an input that is overwritten (its slot).
Value = Hashable


@dataclass(frozen=True)
class Task:
    """A step as planning sees it. `scratch` are bytes it needs while it runs, `cost` its work."""

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    scratch: int = 0
    cost: int = 0
    once: bool = False  # it cannot run a second time


@dataclass(frozen=True)
class TaskList:
    """All tasks, in an order in which they can run.

    `nbytes` are the sizes of values in memory of the program's own; results stay to the end.
    """

    tasks: tuple[Task, ...]
    nbytes: Mapping[Value, int]
    results: frozenset[Value] = frozenset()

    @cached_property
    def before(self) -> list[set[int]]:
        """For every task those that must have run before it."""
        writer: dict[Value, int] = {}
        readers: dict[Value, set[int]] = {}
        found: list[set[int]] = []
        for k, task in enumerate(self.tasks):
            needs = {writer[v] for v in (*task.reads, *task.writes) if v in writer}
            for v in task.writes:
                needs |= readers.pop(v, set())
                writer[v] = k
            for v in task.reads:
                readers.setdefault(v, set()).add(k)
            found.append(needs - {k})
        return found

    @cached_property
    def temporary(self) -> dict[Value, int]:
        """The sizes of what does not stay. The memory of results is there from the start."""
        return {v: size for v, size in self.nbytes.items() if v not in self.results}

    @cached_property
    def readers(self) -> dict[Value, set[int]]:
        """For every value the tasks that read it."""
        found: dict[Value, set[int]] = {}
        for k, task in enumerate(self.tasks):
            for v in task.reads:
                found.setdefault(v, set()).add(k)
        return found

    def lifetimes(self, sequence: Sequence[int]) -> Iterator[tuple[Value, int, int]]:
        """When values live if tasks run in this sequence, in which some may run again.

        A value that is computed again does not live from its last use to then.
        """
        end = len(sequence) - 1
        latest: dict[Value, int] = {}
        for position in range(end, -1, -1):
            task = self.tasks[sequence[position]]
            for v in task.writes:
                if v not in self.results:
                    yield v, position, latest.pop(v, position)
            for v in task.reads:
                latest.setdefault(v, position)
        started: set[Value] = set()
        for position, k in enumerate(sequence):
            for v in self.tasks[k].writes:
                if v in self.results and v not in started:
                    started.add(v)
                    yield v, position, end

    def live(self, sequence: Sequence[int]) -> list[int]:
        """The bytes in use while each task of a sequence runs."""
        change = [0] * (len(sequence) + 1)
        for v, first, last in self.lifetimes(sequence):
            size = self.nbytes.get(v, 0)
            change[first] += size
            change[last + 1] -= size
        alive = 0
        found = []
        for k, delta in zip(sequence, change, strict=False):
            alive += delta
            found.append(alive + self.tasks[k].scratch)
        return found

    def peak(self, sequence: Sequence[int]) -> int:
        """The most bytes in use at a time.

        The memory of results is there from the start, whoever lies in it. What is written over a
        value that ends there counts beside it.
        """
        results = sum(self.nbytes.get(v, 0) for v in self.results)
        return max(results, max(self.live(sequence), default=0))

    def cost(self, sequence: Sequence[int]) -> int:
        """The work of a sequence."""
        return sum(self.tasks[k].cost for k in sequence)


def ordered(work: TaskList) -> list[int]:
    """The order of tasks, of those tried, with the lowest peak.

    >>> tasks = Task((), ("a",)), Task((), ("b",)), Task(("a",), ("y",)), Task(("b",), ("z",))
    >>> ordered(TaskList(tasks, {"a": 9, "b": 9, "y": 1, "z": 1}, frozenset("yz")))
    [0, 2, 1, 3]
    """
    given = list(range(len(work.tasks)))
    late = _late(work, given)
    return min((given, _early(work, given), late, _early(work, late)), key=work.peak)


def _early(work: TaskList, order: Sequence[int]) -> list[int]:
    """An order in which what frees at least as much as it takes runs as soon as it can."""
    tasks, size = work.tasks, work.temporary
    waiting = {v: set(readers) for v, readers in work.readers.items()}

    def price(k: int) -> tuple[int, int]:
        freed = (v for v in set(tasks[k].reads) if len(waiting[v]) == 1)
        taken = sum(size.get(v, 0) for v in tasks[k].writes)
        return taken - sum(size.get(v, 0) for v in freed), taken

    def run(k: int) -> Iterator[int]:
        for v in set(tasks[k].reads):
            waiting[v].discard(k)
            if len(waiting[v]) == 1:
                yield from waiting[v]

    return _listed(work.before, order, price, run)


def _late(work: TaskList, order: Sequence[int]) -> list[int]:
    """An order in which what takes at least as much as it frees runs as late as it can.

    Looking from the end, a value comes about with its last use and is gone where it is written.
    """
    tasks, size = work.tasks, work.temporary
    there: set[Value] = set()
    after: list[set[int]] = [set() for _ in tasks]
    for k, needs in enumerate(work.before):
        for needed in needs:
            after[needed].add(k)

    def price(k: int) -> tuple[int, int]:
        taken = sum(size.get(v, 0) for v in set(tasks[k].reads) if v not in there)
        return taken - sum(size.get(v, 0) for v in tasks[k].writes), taken

    def run(k: int) -> Iterator[int]:
        for v in set(tasks[k].reads) - there:
            there.add(v)
            yield from work.readers[v]

    return _listed(after, order[::-1], price, run)[::-1]


def _listed(
    before: Sequence[set[int]],
    order: Sequence[int],
    price: Callable[[int], tuple[int, int]],
    run: Callable[[int], Iterable[int]],
) -> list[int]:
    """Tasks in the given order as far as `before` allows, but at once those that cost no memory.

    The `price` of a task is what it takes less what it frees, then what it takes. `run` takes note
    that a task runs and names those whose price may be lower now.
    """
    rank = {k: place for place, k in enumerate(order)}
    after: list[list[int]] = [[] for _ in order]
    for k, needs in enumerate(before):
        for needed in needs:
            after[needed].append(k)
    missing = [len(needs) for needs in before]
    ready: list[tuple[int, int]] = []
    free: list[tuple[tuple[int, int], int, int]] = []
    done: dict[int, None] = {}

    def consider(k: int) -> None:
        if not missing[k] and k not in done and (asked := price(k)) <= (0, asked[1]):
            heappush(free, (asked, rank[k], k))

    def release(k: int) -> None:
        heappush(ready, (rank[k], k))
        consider(k)

    for k in order:
        if not missing[k]:
            release(k)
    while ready:
        k = heappop(free)[-1] if free else heappop(ready)[-1]
        if k in done:
            continue
        done[k] = None
        for near in run(k):
            consider(near)
        for later in after[k]:
            missing[later] -= 1
            if not missing[later]:
                release(later)
    return list(done)


# ---- steps as tasks


def results_of(step: Lowered | LoweredCall | LoweredLoop) -> tuple[Node, ...]:
    """The values that a step writes."""
    if isinstance(step, Lowered):
        buffers = zip(step.kernel.buffers, step.arguments, strict=True)
        return tuple(n for b, n in buffers if b.role is not Role.INPUT)
    items = step.items if isinstance(step, LoweredCall) else step.body.items
    return tuple(items.values())


def work_of(
    steps: Steps,
    built: Sequence[Built],
    roots: Sequence[Node],
    overwritten: Mapping[Node, int],
    costs: bool = False,
) -> TaskList:
    """Steps whose kernels were `built`, in order, as tasks.

    `overwritten` gives the input slots that values are written to. Symbolic sizes count as typical.
    """
    made = iter(built)
    nbytes: dict[Value, int] = {}
    tasks: list[Task] = []

    def place(n: Node) -> Value:
        return n.attr.slot if n.op is ops.BUFFER else overwritten.get(n, n)

    for step in steps:
        written = results_of(step)
        for n in written:
            if n not in overwritten:
                nbytes[n] = _typical(n.size * n.dtype.itemsize)
        reads = tuple(place(n) for n in step.arguments if n not in written)
        writes = tuple(map(place, written))
        once, cost = any(n in overwritten for n in written), 0
        if isinstance(step, Lowered):
            own = next(made).kernel.buffers[len(step.arguments) :]
            scratch = sum(_typical(buffer_bytes(b)) for b in own)
            if costs:  # moving a float counts like an operation
                cost = flops(step.kernel, {}) + traffic(step.kernel, {}) // 4
        else:
            once = True
            scratch = _unplanned(step, made)
            if isinstance(step, LoweredLoop):
                for k in range(step.body.recurrence.carries):
                    item = step.body.items.get(k)
                    if item is not None:
                        nbytes[item] *= 2  # a carry has two places
        tasks.append(Task(reads, writes, scratch, cost, once))
    return TaskList(tuple(tasks), nbytes, frozenset(n for n in roots if n not in overwritten))


def _unplanned(step: LoweredCall | LoweredLoop, made: Iterator[Built]) -> int:
    """What a call or a loop needs besides its results; its kernels are taken from those `made`."""
    if isinstance(step, LoweredCall):
        others = [r for k, r in enumerate(step.call.results) if k not in step.items]
        results = sum(_typical(product(shape) * dtype.itemsize) for dtype, shape in others)
        return results + sum(_typical(b) for b in (step.native.scratch if step.native else ()))
    body = step.body
    inner = work_of(step.steps, [next(made) for _ in kernels(step.steps)], (), {})
    sizes = {v: size for v, size in inner.nbytes.items() if v not in body.roots}
    peak = replace(inner, nbytes=sizes).peak(range(len(inner.tasks)))
    carries = [
        n for k, n in enumerate(body.roots[: body.recurrence.carries]) if k not in body.items
    ]
    return peak + sum(2 * _typical(n.size * n.dtype.itemsize) for n in carries)


def buffer_bytes(buffer: Buffer) -> Dim:
    """The size of a buffer in bytes."""
    total: Dim = buffer.dtype.itemsize
    for extent in buffer.shape:
        total = total * (extent if isinstance(extent, int) else as_size(extent))
    return total


def _typical(size: Dim) -> int:
    if isinstance(size, Size):
        return evaluate(size, {s.name: max(s.low, min(s.high, TYPICAL)) for s in size.symbols})
    return size
