"""Assemble: give every value of a program its place, and every kernel its arguments.

A program has a frame, one word per argument of any kernel. Values that are neither inputs nor
outputs are temporaries: each lives from the launch that writes it to the last one that reads it,
which for a value from outside a loop is the last launch of that loop. Inside a loop the runner
moves pointers: from element to element, and between the two places of a carry. What a kernel does
first with arguments that stay the same, such as packing a matrix, is done once before the loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.backends.base import Backend, Cursor, Host, Launch, Operand, Record, Repeat, Turn
from genesis.compiler.build import Built
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.lower import Lowered
from genesis.compiler.lower.scan import LoweredLoop, Steps, loops, unrolled
from genesis.compiler.program.kernel_order import buffer_bytes, results_of
from genesis.compiler.program.memory_plan import Temporary
from genesis.compiler.program.program import (
    Derivation,
    Early,
    GraphStage,
    Output,
    Program,
    ProgramStep,
)
from genesis.compiler.program.reuse_inputs import overwrites
from genesis.compiler.schedule.steps.queries import accesses, elements
from genesis.content_store import digest
from genesis.ir import ops
from genesis.ir.kernel import (
    Buffer,
    Kernel,
    Loop,
    Phase,
    Role,
    Store,
    as_index,
    expressions,
    tile_axes,
    walk,
)
from genesis.ir.node import Form, Node, mentions, topological
from genesis.ir.size import Dim, Size, product

Places = dict[Node, int]  # the frame slots of stored values

#: Bytes that are not worth counting.
SMALL = 1 << 16


def assemble(
    asked: Sequence[Node],
    roots: Sequence[Node],
    buffers: int,
    steps: Steps,
    built: Sequence[Built],
    in_place: Mapping[Node, int],
    reuses: Mapping[Node, int],
    backend: Backend,
    origins: Mapping[Node, Node],
    stages: Sequence[GraphStage],
) -> Program:
    """The program that runs `steps`, whose kernels were `built` in order, to compute `roots`.

    They are what the stages made of those that were `asked` for.

    `in_place` gives the input slot that an update writes into, `reuses` the one a root takes over.
    """
    order = topological(roots)
    scalars = sorted({(n.attr, n.dtype) for n in order if n.op is ops.SCALAR}, key=lambda s: s[0])
    calls = [step for step in unrolled(steps) if isinstance(step, LoweredCall)]
    numbers = [e for loop in loops(steps) for e in loop.extents]
    numbers += [e for call in calls for e in call.extents]
    extents = tuple(dict.fromkeys(numbers))
    symbols = {s.name for b in built for s in b.kernel.symbols}
    # Kernels may know more than the graph: that two sizes have a constant product, say. What lies
    # in memory has the sizes that the graph gives it, results those they were asked for with.
    numbers += [extent for node in (*order, *asked) for extent in node.shape]
    symbols |= {s.name for e in numbers if isinstance(e, Size) for s in e.symbols}

    assembly = _Assembly(buffers, built)
    assembly.name("scalar", [slot for slot, _ in scalars])
    outputs = assembly.name("output", range(len(roots)))
    assembly.name("symbol", sorted(symbols))
    assembly.name("extent", extents)
    pointers = sum(loop.pointers for loop in loops(steps))
    assembly.pointers = iter(assembly.name("pointer", range(pointers)))
    records = assembly.scope(steps, dict(zip(roots, outputs, strict=True)) | dict(in_place))
    derivation = Derivation(tuple(assembly.steps), origins, tuple(stages))
    places = {id(record): k for k, record in enumerate(records)}
    early = [
        e._replace(record=places[id(launch)])
        for launch, e in assembly.early
        if all(assembly.writers[slot] <= 1 for slot in e.writes)
    ]
    early.sort()
    return Program(
        outputs=tuple(Output(n.dtype, n.shape, reuses.get(n), assembly.written[n]) for n in roots),
        temporaries=tuple(assembly.temporaries),
        scalars=tuple(scalars),
        symbols=tuple(sorted(symbols)),
        buffers=buffers,
        extents=extents,
        pointers=pointers,
        records=tuple(records),
        early=tuple(early),
        claims=sum(len(made.verdict.claims) for made in built),
        unproven=sum(len(made.verdict.unknown) for made in built),
        backend=backend,
        executable=backend.assemble(records),
        derive=lambda: derivation,
    )


class _Assembly:
    """The frame, the temporaries and the launches of a program as they come about."""

    def __init__(self, buffers: int, built: Sequence[Built]) -> None:
        self.buffers = buffers
        self.frame: dict[object, int] = {("input", slot): slot for slot in range(buffers)}
        self.built = iter(built)
        self.temporaries: list[Temporary] = []
        self.numbers: dict[int, int] = {}  # which temporary a frame slot is of
        self.written: dict[Node, int] = {}  # the launch that first writes a value
        self.steps: list[ProgramStep | LoweredCall] = []
        self.pointers: Iterator[int] = iter(())
        self.leaves: dict[int, int] = {}  # where the leaves of bodies are
        self.depths: dict[int, int] = {}  # the number of loops around what such a leaf stands for
        self.around: list[_Around] = []  # the loops around the place we are at
        self.early: list[tuple[Launch, Early]] = []
        self.writers: Counter[int] = Counter()  # how many write what is in a slot

    def name(self, kind: str, keys: Sequence[object]) -> list[int]:
        """Frame slots for things of one kind."""
        for key in keys:
            self.frame[kind, key] = len(self.frame)
        return [self.frame[kind, key] for key in keys]

    def temporary(self, nbytes: Dim, first: int, last: int) -> int:
        """The frame slot of memory that is needed from one launch to another."""
        self.temporaries.append(Temporary(nbytes, first, last))
        slot = self.name("temporary", [len(self.temporaries)])[0]
        self.numbers[slot] = len(self.temporaries) - 1
        return slot

    def slot(self, n: Node, places: Places) -> int:
        """Where a value that is there already is."""
        if n.op is ops.BUFFER and n not in places:
            slot: int = n.attr.slot
            return self.leaves.get(slot, slot)
        return places[n]

    def scope(self, steps: Steps, places: Places) -> list[Record]:
        """The records of a graph, or of a loop's body, and places for what it computes."""
        position = len(self.steps)
        spans: list[tuple[int, int]] = []
        for step in steps:
            first = position
            position += sum(1 for _ in unrolled([step]))
            spans.append((first, position - 1))
        fixed = frozenset(places)
        records: list[Record] = []
        for step, span, last_use in zip(steps, spans, _last_uses(steps, spans), strict=True):
            for n in last_use:
                self.written.setdefault(n, span[0])
            if isinstance(step, Lowered):
                for n in last_use.keys() - fixed:  # anew, if the step has run before
                    places.pop(n, None)
                records.append(self.launch(step, places, last_use))
            elif isinstance(step, LoweredCall):
                records.append(self.call(step, places, last_use))
            else:
                records += self.repeat(step, span, places, last_use)
        return records

    def launch(self, low: Lowered, places: Places, last_use: Mapping[Node, int]) -> Launch:
        """A kernel with its arguments."""
        position = len(self.steps)
        made = next(self.built)
        for n in low.arguments:
            if n not in places and n.op is not ops.BUFFER:
                slot = self.inherited(low, made, n, places, last_use[n])
                if slot is None:
                    slot = self.temporary(n.size * n.dtype.itemsize, position, last_use[n])
                places[n] = slot
        arguments = [self.slot(n, places) for n in low.arguments]
        ahead, depth = self.ahead(low, made.kernel) if self.around else (0, 0)
        early = _touched(made.kernel.phases[:ahead])
        for b in made.kernel.buffers[len(low.arguments) :]:
            span = self.around[depth].span if b in early else (position, position)
            arguments.append(self.temporary(buffer_bytes(b), *span))
        arguments += [self.frame["scalar", slot] for slot in low.scalars]
        arguments += [self.frame["symbol", s.name] for s in made.kernel.symbols]
        repeats: Dim = 1
        for loop in self.around:
            repeats = repeats * loop.scan.attr.length
        self.steps.append(ProgramStep(low, made, repeats, tuple(loop.scan for loop in self.around)))
        launch = Launch(made.binary, tuple(arguments))
        count = len(made.kernel.phases)
        outputs = zip(made.kernel.buffers, arguments, strict=False)
        self.writers.update(slot for b, slot in outputs if b.role in (Role.OUTPUT, Role.INOUT))
        if ahead:
            before = replace(launch, phases=(0, ahead))
            self.around[depth].before.append(before)
            if not depth:
                self.note_early(made.kernel, before, ahead)
            return replace(launch, phases=(ahead, count))
        if not self.around:
            self.note_early(made.kernel, launch, count)
        return launch

    def note_early(self, kernel: Kernel, launch: Launch, of: int) -> None:
        """Take note of what a launch of so many phases begins with that writes temporaries only.

        Not where that is more than twice what is read, or wider and not only put together:
        weights that are stored in few bits are to take little memory.
        """
        slots = dict(zip(kernel.buffers, launch.slots, strict=False))
        read: set[Buffer] = set()
        written: set[Buffer] = set()
        for k, phase in enumerate(kernel.phases[:of], 1):
            touched = _touched([phase]).intersection(slots)  # the others are stages
            here = _written([phase]).intersection(slots)
            own = all(slots[b] in self.numbers and b.role is not Role.INOUT for b in here)
            if not own or not touched.isdisjoint(_written(kernel.phases[k:])):
                break
            read |= touched - here - written
            written |= here
            most = max(2 * _nbytes(read), SMALL)
            wider = _widest(written) > _widest(read) and 4 * _nbytes(written) > 5 * _nbytes(read)
            if read and not wider and _nbytes(written) <= most:
                reads, writes = (tuple(sorted({slots[b] for b in x})) for x in (read, written))
                shared = len(reads) == len(writes) == 1 and reads[0] < self.buffers
                meaning = _meaning(kernel, k, (*read, *written)) if shared else ""
                numbers = self.numbers_of(kernel, launch, k, read | written)
                self.early.append((launch, Early(0, k, of, reads, numbers, writes, meaning)))

    def numbers_of(
        self, kernel: Kernel, launch: Launch, phases: int, buffers: Collection[Buffer]
    ) -> tuple[int, ...]:
        """The slots of the scalars and sizes that the first phases compute with, by their names."""
        named = [*(p.name for p in kernel.params), *(s.name for s in kernel.symbols)]
        slots = launch.slots[len(kernel.buffers) :]
        used = _names(kernel.phases[:phases], buffers)
        found = {name: slot for name, slot in zip(named, slots, strict=True) if name in used}
        return tuple(found[name] for name in sorted(found))

    def inherited(
        self, low: Lowered, made: Built, n: Node, places: Places, last: int
    ) -> int | None:
        """The place of a temporary that ends here, if the kernel may write `n` over it."""
        position = len(self.steps)
        if self.around or last == position:
            return None
        for m in low.arguments:
            number = self.numbers.get(places.get(m, -1))
            ends = number is not None and self.temporaries[number].last == position
            if number is not None and ends and overwrites(low, made, m, n):
                self.temporaries[number] = replace(self.temporaries[number], last=last)
                return places[m]
        return None

    def call(
        self, step: LoweredCall, places: Places, last_use: Mapping[Node, int]
    ) -> Launch | Host:
        """A call with its arguments; results nobody asks for need memory all the same."""
        position = len(self.steps)
        operands = [self.slot(n, places) for n in step.arguments]
        results: list[int] = []
        # The results of a collective come all at once, when the first of them is read.
        late = step.call.is_collective
        ends = max(last_use.values(), default=position) if late else position
        for k, (dtype, shape) in enumerate(step.call.results):
            item = step.items.get(k)
            if item is None or item not in places:
                last = ends if item is None else last_use.get(item, position)
                slot = self.temporary(product(shape) * dtype.itemsize, position, last)
                if item is not None:
                    places[item] = slot
            results.append(slot if item is None else places[item])
        self.writers.update(results)
        self.steps.append(step)
        if step.native is None:

            def described(slots: list[int], forms: Sequence[Form]) -> tuple[Operand, ...]:
                return tuple(
                    Operand(slot, dtype, tuple(self.frame["extent", e] for e in shape))
                    for slot, (dtype, shape) in zip(slots, forms, strict=True)
                )

            call = step.call
            read, written = described(operands, call.operands), described(results, call.results)
            return Host(call.name, call.options, read, written)
        scratch = [self.temporary(nbytes, position, position) for nbytes in step.native.scratch]
        numbers = [self.frame["extent", n] for n in step.native.numbers]
        return Launch(step.native.binary, (*operands, *results, *scratch, *numbers))

    def ahead(self, low: Lowered, kernel: Kernel) -> tuple[int, int]:
        """How many phases of a kernel can run before a loop, and inside how many others that is.

        They read what stays the same in the loop, and write memory that nothing else writes.
        """
        here = deepest = len(self.around)
        depths = {
            b: self.depth(n) if b.role is Role.INPUT else here
            for b, n in zip(kernel.buffers, low.arguments, strict=False)
        }
        count = 0
        for k, phase in enumerate(kernel.phases[:-1], 1):
            touched = _touched([phase])
            depth = max((depths.get(b, 0) for b in touched), default=0)
            if depth == here or not touched.isdisjoint(_written(kernel.phases[k:])):
                break
            deepest = max(depth, deepest) if count else depth
            count = k
        return count, deepest

    def depth(self, n: Node) -> int:
        """The number of loops around the place where a value is made."""
        return self.depths.get(n.attr.slot, 0) if n.op is ops.BUFFER else len(self.around)

    def repeat(
        self, loop: LoweredLoop, span: tuple[int, int], places: Places, last_use: Mapping[Node, int]
    ) -> list[Record]:
        """A loop, and what is done before it.

        Its carries have two places, of which one is written while one is read.
        """
        body = loop.body
        recurrence, scan = body.recurrence, body.scan
        first, last = span
        inside: Places = {}
        turns: list[Turn] = []
        for k in range(recurrence.carries):
            n, root, item = scan.inputs[k], body.roots[k], body.items.get(k)
            until = last if item is None else last_use.get(item, last)
            nbytes = n.size * n.dtype.itemsize
            turn = Turn(
                next(self.pointers),
                self.slot(n, places),
                self.temporary(nbytes, first, until),
                self.temporary(nbytes, first, until),
            )
            turns.append(turn)
            self.leaves[body.parameters[k].attr.slot] = turn.current
            inside[root] = turn.next
            if item is not None:
                places[item] = turn.current
        cursors: list[Cursor] = []
        for n, leaf in zip(body.xs, body.parameters[recurrence.carries :], strict=False):
            cursors.append(self.cursor(loop, n, self.slot(n, places)))
            self.leaves[leaf.attr.slot] = cursors[-1].slot
        for item, root in zip(body.ys, body.roots[recurrence.carries :], strict=True):
            if item not in places:
                nbytes = item.size * item.dtype.itemsize
                places[item] = self.temporary(nbytes, first, last_use.get(item, last))
            cursors.append(self.cursor(loop, item, places[item]))
            inside[root] = cursors[-1].slot
            self.writers[places[item]] += 1
        moving = recurrence.carries + recurrence.xs
        for k, (n, leaf) in enumerate(zip(scan.inputs, body.parameters, strict=True)):
            if k < moving:
                self.depths[leaf.attr.slot] = len(self.around) + 1
            elif n.op.group != "leaf":
                self.leaves[leaf.attr.slot] = places[n]
                self.depths[leaf.attr.slot] = len(self.around)
        count = self.frame["extent", recurrence.length]
        self.around.append(_Around(scan, span, []))
        records = self.scope(loop.steps, inside)
        before = self.around.pop().before
        return [*before, Repeat(count, tuple(cursors), tuple(turns), tuple(records))]

    def cursor(self, loop: LoweredLoop, array: Node, base: int) -> Cursor:
        """A pointer to the elements of an array, one after the other."""
        start, stride = (self.frame["extent", extent] for extent in loop.body.walk(array))
        return Cursor(next(self.pointers), base, start, stride)


class _Around(NamedTuple):
    """A loop being assembled: its first and last launch, and what is done before it."""

    scan: Node
    span: tuple[int, int]
    before: list[Launch]


def _last_uses(steps: Steps, spans: Sequence[tuple[int, int]]) -> list[dict[Node, int]]:
    """For every step what it writes, each with the last launch that reads it before it is anew."""
    found: list[dict[Node, int]] = []
    latest: dict[Node, int] = {}
    for step, (_, last) in zip(reversed(steps), reversed(spans), strict=True):
        written = results_of(step)
        found.append({n: latest.pop(n, last) for n in written})
        for n in step.arguments:
            if n not in written:
                latest.setdefault(n, last)
    return found[::-1]


def _meaning(kernel: Kernel, phases: int, buffers: Collection[Buffer]) -> str:
    """A digest of what the first phases do, whatever things are called; "" if it is long."""
    own = tuple(b for b in kernel.buffers if b in buffers)
    first = replace(
        kernel, name="", buffers=own, params=(), symbols=(), phases=kernel.phases[:phases]
    )
    text = f"{first}{[(b.strides, b.offset) for b in own]}"
    if "\N{HORIZONTAL ELLIPSIS}" in text:  # something was left out
        return ""
    axes = [a for p in first.phases for a in p.grid]
    axes += [s.axis for p in first.phases for s in walk(p.body) if isinstance(s, Loop)]
    axes += [a for p in first.phases for s in walk(p.body) for a in tile_axes(*expressions(s))]
    named = {*(b.name for b in own), *(a.name for a in axes)}
    numbers: dict[str, str] = {}

    def number(word: re.Match[str]) -> str:
        name = word[0]
        return numbers.setdefault(name, f"#{len(numbers)}") if name in named else name

    return digest(re.sub(r"\w+", number, text))


def _names(phases: Iterable[Phase], buffers: Iterable[Buffer]) -> set[str]:
    """The scalars and the symbolic sizes that phases mention."""
    said = [as_index(x) for b in buffers for x in (*b.shape, *b.layout, b.offset)]
    for phase in phases:
        inside = [n for s in walk(phase.body) for n in expressions(s)]
        axes = {*phase.grid, *tile_axes(*inside)}
        said += [*inside, *(as_index(a.extent) for a in axes)]
    leaves = {leaf for n in said for leaf in mentions(n)}
    return {leaf.attr.name for leaf in leaves if leaf.op in (ops.PARAM, ops.SYMBOL)}


def _touched(phases: Sequence[Phase]) -> set[Buffer]:
    return {b for phase in phases for b, _ in accesses(phase.body)}


def _written(phases: Sequence[Phase]) -> set[Buffer]:
    return {s.buffer for phase in phases for s in walk(phase.body) if isinstance(s, Store)}


def _nbytes(buffers: Iterable[Buffer]) -> int:
    return sum(elements(b) * b.dtype.itemsize for b in buffers)


def _widest(buffers: Iterable[Buffer]) -> int:
    return max((b.dtype.itemsize for b in buffers), default=0)
