"""Verify: prove before it runs that a kernel touches only what it may, in a defined order.

An access is a relation from the points of a block (grid and loop axes) to the elements of a
buffer. Every claim about a kernel is then a line of relational algebra over its accesses, which
isl decides for all sizes at once: no point offends, a relation is injective, one set contains
another.

`verify` never guesses. A claim is PROVEN, or REFUTED by a point that violates it, or UNKNOWN when
something in it is not affine (a value from memory, a product of sizes).
`genesis.compiler.verify.guard_unproven` makes a kernel with unknown claims safe by checking at run
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import islpy as isl

from genesis.compiler.verify.access_relations import Access, before, collect
from genesis.compiler.verify.affine import (
    Conjunction,
    LinearForm,
    Undecided,
    Variable,
    VariableKind,
    Vary,
    alternatives,
    at_least,
    conjoin,
    told_apart,
)
from genesis.compiler.verify.integer_sets import (
    Translator,
    closure,
    context,
    find_point,
    relation,
    sample,
    show_point,
)
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import index as index_dtype
from genesis.ir.node import Node


class ClaimKind(Enum):
    """What a claim says."""

    BOUNDS = "bounds"  # an access stays inside its buffer
    OVERFLOW = "overflow"  # index arithmetic and element offsets stay inside 64 bits
    RACE = "race"  # what one point writes, no point running with it writes or reads
    COMPLETE = "complete"  # every element of an output is written
    INITIALISED = "initialised"  # what is read was written before
    DONATION = "donation"  # an input may share its memory with an output


class Status(Enum):
    """What became of a claim."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Claim:
    """One claim about a kernel. `source` is the LOAD or Store it is about, if it is about one."""

    kind: ClaimKind
    subject: str
    status: Status
    detail: str = ""
    source: Node | kir.Store | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.status.value} {self.kind.value} {self.subject}{detail}"


@dataclass(frozen=True)
class Verdict:
    """What is known about a kernel."""

    kernel: str
    claims: tuple[Claim, ...]

    @property
    def proven(self) -> bool:
        """Whether every claim is proven."""
        return all(c.status is Status.PROVEN for c in self.claims)

    @property
    def unknown(self) -> tuple[Claim, ...]:
        """The claims that could not be decided."""
        return tuple(c for c in self.claims if c.status is Status.UNKNOWN)

    @property
    def refuted(self) -> tuple[Claim, ...]:
        """The claims that are wrong."""
        return tuple(c for c in self.claims if c.status is Status.REFUTED)

    def __str__(self) -> str:
        open_claims = [*self.refuted, *self.unknown]
        proven = len(self.claims) - len(open_claims)
        head = f"kernel {self.kernel}: {proven} of {len(self.claims)} claims proven"
        return "\n  ".join([head, *map(str, open_claims)])


class UnprovenKernel(ValueError):
    """A kernel that must not run; the message holds the verdict."""


def verify(kernel: kir.Kernel, donated: Iterable[tuple[str, str]] = ()) -> Verdict:
    """Decide every claim about a valid kernel (see `genesis.ir.check`).

    `donated` are pairs of an input's and an output's name that are to share memory.

    >>> from genesis.ir.kernel_builder import Builder
    >>> from genesis.ir.dtype import float32
    >>> k = Builder("shift")
    >>> x, y = k.input("x", float32, 8), k.output("y", float32, 8)
    >>> i = k.grid("i", 8)
    >>> k.store(y, (i,), x[i + 1])
    >>> print(verify(k.kernel()))
    kernel shift: 5 of 6 claims proven
      refuted bounds x[(i + 1)]: i=7
    """
    return Verdict(kernel.name, tuple(_Verifier(kernel, tuple(donated)).claims()))


# ---- deciding

Finding = tuple[Status, str]
_PROVEN: Finding = (Status.PROVEN, "")

# Atomic updates whose result does not depend on their order, whatever the type.
_ORDERLESS = (ops.MAX, ops.MIN, ops.AND, ops.OR, ops.XOR)


class _Verifier:
    """The accesses of a kernel, and the claims about them."""

    def __init__(self, kernel: kir.Kernel, donated: tuple[tuple[str, str], ...]) -> None:
        self.kernel = kernel
        self.donated = donated
        self.meaning = Translator(frozenset(name for name, _ in donated))
        self.accesses = collect(kernel, self.meaning)
        # Layouts may add launch variables, and every relation must know all of those.
        value = self.meaning.value
        buffers = [*kernel.buffers, *(a.buffer for a in self.accesses)]
        self.shapes = {b: tuple(map(value, b.shape)) for b in buffers}
        self.strides = {b: tuple(map(value, (b.offset, *(b.strides or ())))) for b in buffers}
        self._by_block: dict[Access, isl.Map] = {}
        self._completed: dict[tuple[kir.Buffer, int], Finding] = {}

    @property
    def parameters(self) -> list[Variable]:
        return self.meaning.parameters

    def claims(self) -> Iterator[Claim]:
        """Decide everything."""
        seen: set[object] = set()
        for a in self.accesses:
            if (a.source, a.scopes[-1:]) not in seen:
                seen.add((a.source, a.scopes[-1:]))
                yield _claim(ClaimKind.BOUNDS, a.subject, self._bounds, a)
                yield _claim(ClaimKind.OVERFLOW, a.subject, self._overflow, a)
            if isinstance(a.source, kir.Store) and kir.tile_axes(
                *a.indices, a.source.value, a.source.mask
            ):
                yield _claim(ClaimKind.RACE, f"{a.subject} inside a tile", self._tile_race, a)
            reads = not a.writes or a.atomic is not None
            if reads and a.buffer.role not in (kir.Role.INPUT, kir.Role.INOUT):
                yield _claim(ClaimKind.INITIALISED, a.subject, self._initialised, a)
        for number, phase in enumerate(self.kernel.phases):
            written = {a.buffer: None for a in self.accesses if a.phase == number and a.writes}
            for buffer in written:
                if phase.grid and buffer.role is not kir.Role.STAGE:
                    subject = f"{buffer.name} between blocks of phase {number}"
                    yield _claim(ClaimKind.RACE, subject, self._block_race, buffer, number)
        for buffer in self.kernel.buffers:
            if buffer.role is kir.Role.OUTPUT:
                phases = len(self.kernel.phases)
                yield _claim(ClaimKind.COMPLETE, buffer.name, self._complete, buffer, phases)
        for pair in self.donated:
            yield _claim(ClaimKind.DONATION, f"{pair[0]} to {pair[1]}", self._donation, *pair)

    # ---- one access
    def _bounds(self, a: Access) -> Finding:
        offending: list[Conjunction] = []
        for value, extent in zip(a.index, self.shapes[a.buffer], strict=True):
            for c in value.cases:
                below = conjoin(c.when, at_least(c.linear.times(-1), 1))
                beyond = [
                    conjoin(c.when, *e.when, at_least(c.linear.plus(e.linear, -1)))
                    for e in extent.cases
                ]
                offending += [case for case in (below, *beyond) if case is not None]
        if not offending:
            return _PROVEN
        return _nothing(alternatives(a.running(), a.mask.true, offending))

    def _overflow(self, a: Access) -> Finding:
        offending: list[Conjunction] = []
        for v in self.meaning.wrapped:
            if v.unwrapped is not None and v.kind is VariableKind.NONLINEAR and v in a.variables:
                for c in v.unwrapped.cases:
                    over = conjoin(c.when, at_least(c.linear, v.high + 1))
                    under = conjoin(c.when, at_least(c.linear.times(-1), 1 - v.low))
                    offending += [case for case in (over, under) if case is not None]
        if offending:
            found = _nothing(alternatives(a.running(), offending))
            if found is not _PROVEN:
                return found
        return self._offset(a)

    def _offset(self, a: Access) -> Finding:
        """The element's offset. A row-major array exists in memory, so offsets in it fit."""
        if a.buffer.strides is None:
            return _PROVEN
        start, *steps = self.strides[a.buffer]
        low, high = start.low, start.high
        for step, extent in zip(steps, self.shapes[a.buffer], strict=True):
            corners = [0, *(s * max(0, extent.high - 1) for s in (step.low, step.high))]
            low, high = low + min(corners), high + max(corners)
        if index_dtype.min <= low and high <= index_dtype.max:
            return _PROVEN
        return Status.UNKNOWN, f"offsets may be from {low} to {high}"

    def _tile_race(self, a: Access) -> Finding:
        assert isinstance(a.source, kir.Store)
        named = kir.tile_axes(*a.indices)
        for axis in sorted(kir.tile_axes(a.source.value, a.source.mask) - named, key=_name):
            if axis.extent != 1:
                return Status.REFUTED, f"value or mask depend on {axis.name}, the index does not"
        if a.atomic and _commutes(a):
            return _PROVEN
        # Also the axes that cancel out, or that a value from memory depends on.
        tiles = [self.meaning.tile(axis) for axis in sorted(named, key=_name)]
        if _told_apart(a, a, tiles, Vary.BLOCK):
            return _PROVEN
        block = [
            v for v in a.variables if v.vary is Vary.BLOCK and v.kind is not VariableKind.ELEMENT
        ]
        fixed = [*self.parameters, *block]
        points = relation(fixed, tiles, a.elements, a.touching())
        return self._apart(points, points, fixed, tiles, (a, a))

    # ---- pairs of accesses
    def _block_race(self, buffer: kir.Buffer, phase: int) -> Finding:
        touching = [a for a in self.accesses if a.phase == phase and a.buffer == buffer]
        writes = [a for a in touching if a.writes]
        pairs = [(a, b) for k, a in enumerate(writes) for b in writes[k:]]
        pairs += [(a, b) for a in writes for b in touching if not b.writes]
        return _worst(
            self._blocks_apart(a, b)
            for a, b in pairs
            if not (a.atomic and a.atomic is b.atomic and _commutes(a))
        )

    def _blocks_apart(self, a: Access, b: Access) -> Finding:
        grid = a.axes[: len(self.kernel.phases[a.phase].grid)]
        if _told_apart(a, b, grid, Vary.LAUNCH):
            return _PROVEN
        return self._apart(self._blocks(a), self._blocks(b), self.parameters, grid, (a, b))

    def _blocks(self, a: Access) -> isl.Map:
        """From the blocks to the elements they touch."""
        if a not in self._by_block:
            grid = a.axes[: len(self.kernel.phases[a.phase].grid)]
            self._by_block[a] = relation(self.parameters, grid, a.elements, a.touching())
        return self._by_block[a]

    def _apart(
        self,
        first: isl.Map,
        second: isl.Map,
        parameters: Sequence[Variable],
        points: Sequence[Variable],
        accesses: tuple[Access, Access],
    ) -> Finding:
        """No two different points touch one element, one by `first` and one by `second`."""
        meeting = first.apply_range(second.reverse())
        meeting = meeting.subtract(isl.Map.identity(meeting.get_space()))
        if meeting.is_empty():
            return _PROVEN
        a, b = accesses
        if a.atomic and a.atomic is b.atomic:
            return Status.UNKNOWN, "float atomics are not deterministic"
        doubts = _doubts([*a.variables, *b.variables])
        if doubts:
            return Status.UNKNOWN, doubts
        others = [replace(v, label=v.label + "'") for v in points]
        where = show_point(sample(meeting, [*parameters, *points, *others]))
        return Status.REFUTED, f"{a.subject} and {b.subject} at {where}"

    def _complete(self, buffer: kir.Buffer, phases: int) -> Finding:
        """The first `phases` write every element of a buffer."""
        key = (buffer, phases)
        if key not in self._completed:
            self._completed[key] = self._written(buffer, phases)
        return self._completed[key]

    def _written(self, buffer: kir.Buffer, phases: int) -> Finding:
        writes = [a for a in self.accesses if a.writes and a.buffer == buffer and a.phase < phases]
        if not writes:
            return Status.REFUTED, "it is never written"
        elements = writes[0].elements
        inside: list[list[Conjunction]] = [
            [(*e.when, at_least(LinearForm({i: 1})), at_least(e.linear.plus(LinearForm({i: -1})),
            1))
             for e in extent.cases]
            for i, extent in zip(elements, self.shapes[buffer], strict=True)
        ]  # fmt: skip
        wanted = relation(self.parameters, (), elements, alternatives(((),), *inside))
        cases = [case for a in writes for case in a.touching()]
        certain = relation(self.parameters, (), elements, filter(_certain, cases))
        return self._contained(wanted, [certain], (), writes)

    def _initialised(self, a: Access) -> Finding:
        complete = (
            a.buffer.role is not kir.Role.STAGE and self._complete(a.buffer, a.phase) is _PROVEN
        )
        if complete and self._bounds(a) is _PROVEN:
            return _PROVEN
        writes = [w for w in self.accesses if w.writes and w.memory == a.memory]
        used = [w for w in writes if w.phase <= a.phase]
        made: list[tuple[Sequence[Variable], Sequence[Conjunction]]] = []
        for w in used:
            made += before(w, a) if w.phase == a.phase else [(a.axes, w.touching())]
        read = relation(self.parameters, a.axes, a.elements, a.touching())
        written = (
            relation(self.parameters, axes, a.elements, filter(_certain, cases))
            for axes, cases in made
        )
        return self._contained(read, written, a.axes, [a, *used])

    def _contained(
        self,
        wanted: isl.Map,
        given: Iterable[isl.Map],
        axes: Sequence[Variable],
        about: Sequence[Access],
    ) -> Finding:
        missing = wanted
        for part in given:
            missing = missing.subtract(part)
        if missing.is_empty():
            return _PROVEN
        doubts = _doubts(v for a in about for v in a.variables)
        if doubts:
            return Status.UNKNOWN, doubts
        elements = about[0].elements
        point = sample(missing, [*self.parameters, *axes, *elements])
        element = ", ".join(str(point.pop(e)) for e in elements)
        where = f" at {show_point(point)}" if point else ""
        return Status.REFUTED, f"{about[0].buffer.name}[{element}] is not written{where}"

    def _donation(self, given: str, taken: str) -> Finding:
        buffers = {b.name: b for b in self.kernel.buffers}
        x, y = buffers[given], buffers[taken]
        if _memory(x) != _memory(y):
            return Status.REFUTED, "their layouts differ"
        reads = [a for a in self.accesses if a.buffer == x]
        writes = [a for a in self.accesses if a.buffer == y and a.writes]
        return _worst(self._read_first(r, w) for r in reads for w in writes if w.phase <= r.phase)

    def _read_first(self, read: Access, write: Access) -> Finding:
        """No element is read after it was written, nor by a block that does not write it."""
        if write.phase == read.phase:
            found = self._blocks_apart(write, read)
            if found is not _PROVEN:
                return found
            late = list(before(write, read))
        else:
            late = [(list(read.axes), list(write.touching()))]
        reading = relation(self.parameters, read.axes, read.elements, read.touching())
        for axes, cases in late:
            both_touch = reading.intersect(relation(self.parameters, axes, read.elements, cases))
            if not both_touch.is_empty():
                doubts = _doubts([*read.variables, *write.variables])
                if doubts:
                    return Status.UNKNOWN, doubts
                point = sample(both_touch, [*self.parameters, *read.axes, *read.elements])
                order = f"{read.subject} is read after {write.subject} is written"
                return Status.REFUTED, f"{order} at {show_point(point)}"
        return _PROVEN


def _claim(kind: ClaimKind, subject: str, decide: Callable[..., Finding], *about: object) -> Claim:
    context().reset_operations()
    try:
        status, detail = decide(*about)
    except Undecided as reason:
        status, detail = Status.UNKNOWN, str(reason)
    except isl.Error as reason:
        status, detail = Status.UNKNOWN, f"isl gave up: {reason}"
    source = about[0].source if isinstance(about[0], Access) else None
    return Claim(kind, subject, status, detail, source)


def _memory(b: kir.Buffer) -> tuple[object, ...]:
    """What two buffers in one place of memory must agree on."""
    return tuple(map(kir.as_index, b.shape)), b.layout, kir.as_index(b.offset), b.dtype.bits


def _name(axis: kir.Axis) -> str:
    return axis.name


def _commutes(a: Access) -> bool:
    """Whether the order of the atomic updates of `a` makes no difference to the result."""
    return a.atomic in _ORDERLESS or not a.buffer.dtype.is_float


def _told_apart(a: Access, b: Access, points: Sequence[Variable], fixed: Vary) -> bool:
    """Whether no two points touch one element because an index has a digit for every axis.

    That is how most stores are made; isl decides what is not as plain as that.
    """
    axes = [v for v in points if v.low < v.high]
    told: set[Variable] = set()
    for x, y in zip(a.index, b.index, strict=True):
        if len(x.cases) == len(y.cases) == 1:
            told |= told_apart(x.cases[0].linear, y.cases[0].linear, axes, fixed)
    return told.issuperset(axes)


def _doubts(variables: Iterable[Variable]) -> str | None:
    """Why a point that isl finds may not exist; None when what it finds is real."""
    labels = sorted({v.label for v in variables if v.opaque})
    return f"depends on {', '.join(labels)}" if labels else None


def _certain(case: Conjunction) -> bool:
    """Whether points that satisfy `case` exist whatever the data is."""
    return not any(v.opaque and v.vary is not Vary.LAUNCH for v in closure(case)[0])


def _nothing(offending: Iterable[Conjunction]) -> Finding:
    """No case has a point."""
    found = _PROVEN
    for case in offending:
        point = find_point(case)
        if point is not None:
            doubts = _doubts(point)
            if doubts is None:
                return Status.REFUTED, show_point(point)
            found = Status.UNKNOWN, doubts
    return found


def _worst(findings: Iterable[Finding]) -> Finding:
    """The first refutation, or else something unknown, or else proven."""
    worst = _PROVEN
    for found in findings:
        if found[0] is Status.REFUTED:
            return found
        if found[0] is Status.UNKNOWN:
            worst = found
    return worst
