"""Prove a program: whatever a launch reads is there when it runs.

Kernels are proven one by one (`verify`): what they do with the memory they are given. This is about
what lies between them. The list of launches is run on memory that holds names of values instead of
numbers: a launch must find the very value that it was lowered to read (its version, where updates
write one over the other), and leaves the names of what it writes. So an order of launches that
lets a value be overwritten too early, a temporary that ends before its last use, an input that is
overwritten without leave, a result that is not there at the end: all are found, whatever pass made
the mistake.

Places in the frame count as memory of their own. That two temporaries which share bytes never live
at the same time, and end before a result is written that they lie in, is the other half
(`plan.require_apart`), checked for every set of sizes. A loop is run three times: the places of its
carries repeat after that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from genesis.backends.base import Cursor, Host, Launch, Record, Repeat, every
from genesis.compiler.build import Built
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.lower import Lowered
from genesis.compiler.lower.scan import LoweredLoop, Steps, unrolled
from genesis.compiler.program.kernel_order import buffer_bytes
from genesis.compiler.program.memory_plan import WrongProgram
from genesis.compiler.program.program import Program, ProgramStep
from genesis.compiler.schedule.steps.queries import accesses
from genesis.ir import ops
from genesis.ir.kernel import Buffer, Phase, Role, Store, walk
from genesis.ir.node import Node, topological
from genesis.ir.size import Dim, bounds, product

#: What lies in memory: the name of a value in a turn of the loops around it.
Version = Hashable
#: The turns of the loops around a place.
Turns = tuple[int, ...]


def verify_program(
    program: Program, steps: Steps, roots: Sequence[Node], donated: frozenset[int]
) -> int:
    """How many reads and writes of `program` were proven; raises `WrongProgram` if one is wrong.

    It was made of `steps` to compute `roots`, and may write to the inputs in `donated` slots.
    """
    proof = _Proof(program, steps, roots, donated)
    proof.scope(steps, program.records, 0, ())
    proof.ends(roots)
    proof.keeps()
    return proof.count


class _Walk(NamedTuple):
    """What a cursor walks through: an array, and what that must hold meanwhile."""

    base: int
    version: Version


class _Proof:
    """Memory that holds names of values, and the launches that have run on it so far."""

    def __init__(
        self, program: Program, steps: Steps, roots: Sequence[Node], donated: frozenset[int]
    ) -> None:
        self.program = program
        self.made = program.derivation.steps
        self.donated = donated
        self.count = 0
        self.position = self.writer = 0
        self.name = ""
        self.holds: dict[int, Version] = {slot: ("input", slot) for slot in range(program.buffers)}
        self.leaves: dict[int, Version] = {}  # what the leaves of a loop's body are in this turn
        self.steady = _steady(steps, 0)
        self.points: dict[int, tuple[int, ...]] = {}  # where pointers that loops move point to
        self.walks: dict[int, _Walk] = {}
        self.writers: dict[int, set[int]] = {}  # the launches that write what is in a slot
        first = program.first_output
        self.outputs = {first + k: output for k, output in enumerate(program.outputs)}
        for slot, output in self.outputs.items():
            if output.reuses is not None:
                self.points[slot] = (output.reuses,)
        ends = first + len(self.outputs)
        self.scalars = {slot: program.buffers + k for k, (slot, _) in enumerate(program.scalars)}
        self.symbols = {name: ends + k for k, name in enumerate(program.symbols)}
        extents = ends + len(program.symbols)
        self.extents = {e: extents + k for k, e in enumerate(program.extents)}
        temporaries = extents + len(program.extents) + program.pointers
        self.temporaries = dict(enumerate(program.temporaries, temporaries))
        self.sizes: dict[int, list[Dim]] = {}
        for n in topological(roots):
            if n.op is ops.BUFFER:
                self.sizes.setdefault(n.attr.slot, []).append(n.size * n.dtype.itemsize)
        # What a kernel in a loop begins before it is a record besides.
        begun = [r for r in every(program.records) if _begins(r)]
        self.ahead = {r.slots: r.phases[1] for r in begun if isinstance(r, Launch) and r.phases}
        whole = [r for r in every(program.records) if not (isinstance(r, Repeat) or _begins(r))]
        self.numbers = {r.slots: k for k, r in enumerate(whole) if isinstance(r, Launch)}

    # ---- what is in memory
    def wrong(self, what: str) -> NoReturn:
        where = f"launch {self.position} ({self.name})" if self.name else "the end"
        raise WrongProgram(f"the compiler made a wrong program: at {where}, {what}")

    def version(self, n: Node, turns: Turns) -> Version:
        """What a value is called where it is read."""
        if n.op is ops.BUFFER:
            slot = n.attr.slot
            if slot in self.steady:
                source, depth = self.steady[slot]
                return (source, turns[:depth])
            return self.leaves.get(slot, ("input", slot))
        return (n, turns)

    def areas(self, slot: int) -> tuple[int, ...]:
        """The memory that a slot of the frame points to; at the end of a loop, one of two."""
        return self.points.get(slot, (slot,))

    def alive(self, area: int) -> None:
        life = self.temporaries.get(area)
        if life is not None and not life.first <= self.position <= life.last:
            self.wrong(f"slot {area} is used, which lives from {life.first} to {life.last}")

    def read(self, slot: int, version: Version) -> None:
        """Memory must hold a certain value."""
        self.count += 1
        for area in self.areas(slot):
            self.alive(area)
            if self.holds.get(area) != version:
                found = _told(self.holds.get(area))
                self.wrong(f"slot {slot} should hold {_told(version)} and holds {found}")
            walk = self.walks.get(area)
            if walk is not None:
                self.read(walk.base, walk.version)

    def write(self, slot: int, version: Version, nbytes: Dim) -> None:
        """Memory gets a value of so many bytes."""
        self.count += 1
        for area in self.areas(slot):
            self.alive(area)
            self.writers.setdefault(slot, set()).add(self.writer)
            walk = self.walks.get(area)
            if walk is not None:
                self.read(walk.base, walk.version)
            elif not self.room(area, nbytes):
                self.wrong(f"{nbytes} bytes are written to slot {slot}, which is smaller")
            self.holds[area] = version

    def room(self, area: int, nbytes: Dim) -> bool:
        """Whether memory may be written, and has so many bytes."""
        if area < self.program.buffers:
            if area not in self.donated:
                self.wrong(f"input {area} is written, which nobody gave away")
            return any(have == nbytes for have in self.sizes.get(area, ()))
        if area in self.outputs:
            output = self.outputs[area]
            if self.position < output.first:
                self.wrong(f"output {area} is written, said to be free until {output.first}")
            return _enough(output.nbytes, nbytes)
        life = self.temporaries.get(area)
        if life is None:
            self.wrong(f"slot {area} is written, which is no memory")
        return _enough(life.nbytes, nbytes)

    def apart(self, slots: Iterable[int], others: Iterable[int]) -> None:
        """Some arguments of a launch must be memory that no other is."""
        seen = {area for slot in others for area in self.areas(slot)}
        for slot in slots:
            for area in self.areas(slot):
                if area in seen:
                    self.wrong(f"slot {slot} is written, and is the memory of another argument")
                seen.add(area)

    # ---- what runs
    def scope(self, steps: Steps, records: Sequence[Record], first: int, turns: Turns) -> None:
        """Run the records of a graph, or of a turn of a loop, the first of which is a number."""
        following = iter(records)
        for step in steps:
            self.position = self.writer = first
            self.name = _name(step)
            record = next(following, None)
            if isinstance(step, LoweredLoop):
                while isinstance(record, Launch):
                    self.launch_ahead(record, turns)
                    record = next(following, None)
                if not isinstance(record, Repeat):
                    self.wrong("there should be a loop")
                self.loop(step, record, first, turns)
            elif isinstance(step, LoweredCall):
                if record is None or isinstance(record, Repeat):
                    self.wrong("there should be a call")
                self.call(step, record, turns)
            else:
                made = self.made[first]
                if not isinstance(record, Launch) or not isinstance(made, ProgramStep):
                    self.wrong("there should be a launch")
                self.launch(step, made.built, record, turns)
            first += sum(1 for _ in unrolled([step]))
        if next(following, None) is not None:
            self.wrong("something follows that nobody asked for")

    def launch(self, low: Lowered, built: Built, record: Launch, turns: Turns) -> None:
        """A kernel; of one that was begun before the loop, what is left."""
        kernel, slots = built.kernel, record.slots
        if record.binary is not built.binary:
            self.wrong("another kernel is launched")
        arguments, rest = low.arguments, len(kernel.buffers)
        numbers = [self.scalars[s] for s in low.scalars]
        numbers += [self.symbols[s.name] for s in kernel.symbols]
        if list(slots[rest:]) != numbers:
            self.wrong("scalars or sizes are not those of the kernel")
        roles = [b.role for b in kernel.buffers[: len(arguments)]]
        written = [k for k, role in enumerate(roles) if role is not Role.INPUT]
        for k, n in enumerate(arguments):
            if roles[k] is Role.INPUT:
                self.read(slots[k], self.version(n, turns))
            elif roles[k] is Role.INOUT:
                self.read(slots[k], self.version(n.inputs[0], turns))
        scratch = slots[len(arguments) : rest]
        shared = {*built.shared, *(pair for pair, holds in built.known.items() if holds)}
        for k in written:
            mine = kernel.buffers[k].name
            others = [
                slots[j]
                for j in range(len(arguments))
                if j != k and (kernel.buffers[j].name, mine) not in shared
            ]
            self.apart([slots[k]], others)
        self.apart(scratch, slots[: len(arguments)])
        self.own(built, record, scratch)
        for k in written:
            n = arguments[k]
            self.write(slots[k], (n, turns), n.size * n.dtype.itemsize)

    def own(self, built: Built, record: Launch, scratch: Sequence[int]) -> None:
        """Memory that a kernel needs for itself: what was begun before the loop is there."""
        kernel = built.kernel
        buffers = kernel.buffers[len(kernel.buffers) - len(scratch) :]
        begun: set[object] = set()
        later: set[object] = set()
        if record.phases is not None:
            ahead, count = record.phases
            if count != len(kernel.phases) or self.ahead.get(record.slots) != ahead:
                self.wrong("a kernel is not run whole")
            begun = set(_written(kernel.phases[:ahead]))
            later = set(_written(kernel.phases[ahead:]))
        for buffer, slot in zip(buffers, scratch, strict=True):
            if buffer in begun:
                self.read(slot, ("begun", record.slots, buffer.name))
                if buffer not in later:
                    continue
            self.write(slot, None, buffer_bytes(buffer))

    def launch_ahead(self, record: Launch, turns: Turns) -> None:
        """What a kernel of a loop does before it: it reads what stays, and writes for itself."""
        if record.phases is None or self.ahead.get(record.slots) != record.phases[1]:
            self.wrong("something is launched before a loop that is no part of it")
        made, self.writer = self.step_of(record)
        kernel = made.built.kernel
        phases = kernel.phases[: record.phases[1]]
        touched = {b for phase in phases for b, _ in accesses(phase.body)}
        written = _written(phases)
        place = dict(zip(kernel.buffers, record.slots, strict=False))
        for buffer, n in zip(kernel.buffers, made.lowered.arguments, strict=False):
            if buffer in written or (buffer in touched and n.op is not ops.BUFFER):
                self.wrong("what a loop makes is used before it")
            if buffer in touched:
                self.read(place[buffer], self.version(n, turns))
        for buffer in (b for b in kernel.buffers if b in written):
            slot = place[buffer]
            self.apart([slot], [s for b, s in place.items() if b in touched and b is not buffer])
            self.write(slot, ("begun", record.slots, buffer.name), buffer_bytes(buffer))

    def step_of(self, record: Launch) -> tuple[ProgramStep, int]:
        """What a launch, or its beginning, came from, and its number."""
        number = self.numbers.get(record.slots, -1)
        made = self.made[number]
        if number < 0 or not isinstance(made, ProgramStep):
            self.wrong("a kernel is begun that does not follow")
        return made, number

    def call(self, step: LoweredCall, record: Launch | Host, turns: Turns) -> None:
        """An operation of the library."""
        call, operands = step.call, len(step.arguments)
        sizes = [product(shape) * dtype.itemsize for dtype, shape in call.results]
        if isinstance(record, Host):
            read = [o.pointer for o in record.operands]
            results = [o.pointer for o in record.results]
            scratch: Sequence[int] = ()
            for found, forms in ((record.operands, call.operands), (record.results, call.results)):
                for operand, (_, shape) in zip(found, forms, strict=True):
                    if operand.extents != tuple(self.extents[e] for e in shape):
                        self.wrong("a call is told wrong sizes")
        else:
            claim = step.native
            if claim is None or record.binary is not claim.binary:
                self.wrong("other code is launched")
            ends = operands + len(sizes)
            read, results = list(record.slots[:operands]), list(record.slots[operands:ends])
            scratch = record.slots[ends : ends + len(claim.scratch)]
            numbers = tuple(self.extents[e] for e in claim.numbers)
            if record.slots[ends + len(scratch) :] != numbers:
                self.wrong("a call is told wrong sizes")
            for slot, nbytes in zip(scratch, claim.scratch, strict=True):
                self.write(slot, None, nbytes)
        for slot, n in zip(read, step.arguments, strict=True):
            self.read(slot, self.version(n, turns))
        self.apart([*results, *scratch], read)
        for k, (slot, nbytes) in enumerate(zip(results, sizes, strict=True)):
            self.write(slot, (step.items[k], turns) if k in step.items else None, nbytes)

    def loop(self, step: LoweredLoop, record: Repeat, first: int, turns: Turns) -> None:
        """A loop, by its first turns."""
        body = step.body
        scan, carries, xs = body.scan, body.recurrence.carries, body.recurrence.xs
        ys = [(item, body.roots[carries + k]) for k, item in enumerate(body.ys)]
        length = body.recurrence.length
        if record.count != self.extents[length]:
            self.wrong("a loop runs another number of times")
        if len(record.turns) != carries or len(record.cursors) != xs + len(ys):
            self.wrong("a loop moves other pointers")
        given = [self.version(n, turns) for n in scan.inputs]
        leaves = [n.attr.slot for n in body.parameters[: carries + xs]]
        for turn, n, version in zip(record.turns, scan.inputs, given, strict=False):
            self.read(turn.first, version)
            self.points[turn.current] = self.areas(turn.first)
            for slot in (turn.next, turn.spare):
                self.write(slot, None, n.size * n.dtype.itemsize)
            self.apart([turn.next], [turn.spare])
        walked = [*body.xs, *(item for item, _ in ys)]
        for cursor, array in zip(record.cursors, walked, strict=True):
            self.cursor(step, cursor, array)
        for k, cursor in enumerate(record.cursors[:xs], carries):
            self.walks[cursor.slot] = _Walk(cursor.base, given[k])
        for cursor, (item, _) in zip(record.cursors[xs:], ys, strict=True):
            partial = ("part of", item, turns)
            self.write(cursor.base, partial, item.size * item.dtype.itemsize)
            self.walks[cursor.slot] = _Walk(cursor.base, partial)
        ends = first + sum(1 for _ in unrolled([step])) - 1
        for k in range(min(3, length) if isinstance(length, int) else 3):
            inside = (*turns, k)
            before = (*turns, k - 1)
            for slot, root, version in zip(leaves, body.roots[:carries], given, strict=False):
                self.leaves[slot] = (root, before) if k else version
            for slot, cursor in zip(leaves[carries:], record.cursors[:xs], strict=True):
                self.leaves[slot] = self.holds[cursor.slot] = ("element of", slot, inside)
            self.scope(step.steps, record.body, first, inside)
            self.position, self.name = ends, "the end of a loop"
            for turn, root in zip(record.turns, body.roots, strict=False):
                self.read(turn.next, (root, inside))
                self.points[turn.current] = self.areas(turn.next)
                swapped = self.areas(turn.spare), self.areas(turn.next)
                self.points[turn.next], self.points[turn.spare] = swapped
            for cursor, (_, root) in zip(record.cursors[xs:], ys, strict=True):
                self.read(cursor.slot, (root, inside))
            self.forget(first, ends)
        for k, turn in enumerate(record.turns):
            both = (turn.next, turn.spare)
            for slot in both:
                self.points.pop(slot)
                self.holds[slot] = (body.items[k], turns) if k in body.items else None
            self.points[turn.current] = both
        for cursor, (item, _) in zip(record.cursors[xs:], ys, strict=True):
            for area in self.areas(cursor.base):
                self.holds[area] = (item, turns)

    def cursor(self, step: LoweredLoop, cursor: Cursor, array: Node) -> None:
        """A cursor goes through an array element by element."""
        if (cursor.start, cursor.stride) != tuple(self.extents[e] for e in step.body.walk(array)):
            self.wrong("a loop goes through an array in another way")

    def forget(self, first: int, last: int) -> None:
        """From one turn of a loop to the next only that stays which lives all the time."""
        for area, life in self.temporaries.items():
            if area in self.holds and not (life.first <= first and last <= life.last):
                del self.holds[area]

    # ---- what it comes to
    def ends(self, roots: Sequence[Node]) -> None:
        """At the end every result is there, and what was not given away is as it was."""
        self.position, self.name = len(self.made), ""
        for slot, root in zip(self.outputs, roots, strict=True):
            self.read(slot, (root, ()))
        for slot in range(self.program.buffers):
            if slot not in self.donated:
                self.read(slot, ("input", slot))

    def keeps(self) -> None:
        """What may be kept from run to run depends on what it says, and nothing else writes it."""
        for early in self.program.early:
            record = self.program.records[early.record]
            if not isinstance(record, Launch):
                self.wrong("something is kept that is no launch")
            kernel = self.step_of(record)[0].built.kernel
            phases = kernel.phases[: early.phases]
            place = dict(zip(kernel.buffers, record.slots, strict=False))
            touched = {b for p in phases for b, _ in accesses(p.body) if b in place}
            kept = _written(phases) & touched
            if not {place[b] for b in kept} <= {*early.writes}:
                self.wrong("more is written ahead of a run than is kept")
            if not {place[b] for b in touched - kept} <= {*early.reads}:
                self.wrong("what is kept depends on more than is said")
            again = [s for s in early.writes if len(self.writers.get(s, ())) != 1]
            if again or touched & _written(kernel.phases[early.phases :]):
                self.wrong(f"slots {again} are kept and written again")
            if not self.temporaries.keys() >= {*early.writes}:
                self.wrong("a result is kept")


def _steady(steps: Steps, depth: int) -> dict[int, tuple[Node, int]]:
    """What leaves in loops stand for that stay the same there, and in how many loops it is made."""
    found: dict[int, tuple[Node, int]] = {}
    for step in steps:
        if isinstance(step, LoweredLoop):
            loop = step.body.recurrence
            moving = loop.carries + loop.xs
            for i, leaf in list(zip(step.arguments, step.body.parameters, strict=True))[moving:]:
                if leaf.op is ops.BUFFER and i.op is not ops.BUFFER:
                    found[leaf.attr.slot] = i, depth
            found |= _steady(step.steps, depth + 1)
    return found


def _begins(record: Record) -> bool:
    """Whether a record is the part of a kernel that runs before the loop."""
    return isinstance(record, Launch) and record.phases is not None and record.phases[0] == 0


def _written(phases: Iterable[Phase]) -> set[Buffer]:
    return {s.buffer for phase in phases for s in walk(phase.body) if isinstance(s, Store)}


def _enough(have: Dim, needed: Dim) -> bool:
    return have == needed or bounds(have - needed)[0] >= 0


def _name(step: Lowered | LoweredCall | LoweredLoop) -> str:
    if isinstance(step, Lowered):
        return step.kernel.name
    return step.call.name if isinstance(step, LoweredCall) else "loop"


def _told(version: Version) -> str:
    """What memory holds, for people."""
    if version is None:
        return "nothing that is known"
    assert isinstance(version, tuple)
    if isinstance(version[0], Node):
        n, turns = version
        return f"{n.op.name} {n.dtype}{list(n.shape)}{f' of turn {turns}' if turns else ''}"
    return f"{version[0]} {version[1]}"
