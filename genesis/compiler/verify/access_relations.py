"""The accesses of a kernel: every load and store as a relation from points to elements.

A load or store runs inside nested *scopes*: grid axes, loops and branches. Each scope contributes
a condition and at most one axis; the place of a statement in each scope around it says what runs
before what. `collect` finds all accesses of a kernel in program order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from genesis.compiler.verify.affine import (
    AffineValue,
    Condition,
    Conjunction,
    Constraint,
    LinearForm,
    Variable,
    VariableKind,
    Vary,
    alternatives,
    at_least,
    conjoin,
)
from genesis.compiler.verify.integer_sets import Translator, closure
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, show, topological


@dataclass(eq=False)
class BodyScope:
    """A body being run: at statement `place` of the scope around it, for every value of `axis`."""

    outer: BodyScope | None
    place: int
    axis: Variable | None
    condition: tuple[Conjunction, ...]

    @cached_property
    def running(self) -> tuple[Conjunction, ...]:
        """When the body runs."""
        if self.outer is None:
            return self.condition
        return alternatives(self.outer.running, self.condition)


@dataclass(eq=False)
class Access:
    """A load or a store.

    `scopes` begin with those of the grid axes. `memory` is the buffer, or for a stage what one
    Stage statement gives; the first `lifetime` scopes are around its birth, and what another
    iteration of those wrote is gone.
    """

    phase: int
    scopes: tuple[BodyScope, ...]
    place: int
    memory: object
    lifetime: int
    source: Node | kir.Store
    buffer: kir.Buffer
    indices: tuple[Node, ...]
    index: tuple[AffineValue, ...]
    mask: Condition
    elements: tuple[Variable, ...]

    @cached_property
    def subject(self) -> str:
        """The access as text."""
        return f"{self.buffer.name}[{', '.join(map(show, self.indices))}]"

    @property
    def writes(self) -> bool:
        """Whether this is a store."""
        return isinstance(self.source, kir.Store)

    @property
    def atomic(self) -> ops.Op | None:
        """The operation of an atomic store."""
        return self.source.atomic if isinstance(self.source, kir.Store) else None

    @cached_property
    def axes(self) -> tuple[Variable, ...]:
        """The grid and loop axes around it."""
        return tuple(s.axis for s in self.scopes if s.axis is not None)

    @cached_property
    def variables(self) -> dict[Variable, None]:
        """All variables involved."""
        return closure(c for case in self.touching() for c in case)[0]

    def running(self, first: int = 0) -> tuple[Conjunction, ...]:
        """When the statement runs, given that the scopes before `first` are entered."""
        if first == 0 and self.scopes:
            return self.scopes[-1].running
        return alternatives(((),), *(s.condition for s in self.scopes[first:]))

    def touching(self, first: int = 0) -> tuple[Conjunction, ...]:
        """When it also touches the element at `elements`."""
        parts: list[Iterable[Conjunction]] = [self.running(first), self.mask.true]
        for element, value in zip(self.elements, self.index, strict=True):
            difference = [(c.when, c.linear.plus(LinearForm({element: -1}))) for c in value.cases]
            parts.append([(*when, Constraint(zero, True)) for when, zero in difference])
        return alternatives(*parts)


def before(first: Access, then: Access) -> Iterator[tuple[list[Variable], list[Conjunction]]]:
    """When `first` touches an element earlier than a run of `then` in the same block.

    Pairs of variables that stand for the axes of `then`, and of the conditions on them. Earlier
    means: in an earlier iteration of a loop around both, or at an earlier place in the innermost
    scope around both. In one statement loads come before the store.
    """
    shared = 0
    for a, b in zip(first.scopes, then.scopes, strict=False):
        if a is not b:
            break
        shared += 1
    places = [a.scopes[shared].place if len(a.scopes) > shared else a.place for a in (first, then)]
    if places[0] < places[1]:
        yield list(then.axes), list(first.touching(shared))
    for k in range(first.lifetime, shared):
        axis = first.scopes[k].axis
        if axis is not None:
            copies = {s.axis: _copy(s.axis) for s in then.scopes[k:] if s.axis is not None}
            later = LinearForm({copies[axis]: 1, axis: -1})
            cases = (conjoin(case, at_least(later, 1)) for case in first.touching(k))
            axes = [copies.get(a, a) for a in then.axes]
            yield axes, [case for case in cases if case is not None]


def _copy(v: Variable) -> Variable:
    return Variable(v.label, v.kind, v.vary, v.low, v.high)


def collect(kernel: kir.Kernel, meaning: Translator) -> list[Access]:
    """Every access of a kernel, in program order."""
    collector = _Collector(meaning)
    for number, phase in enumerate(kernel.phases):
        scopes: tuple[BodyScope, ...] = ()
        for axis in phase.grid:
            scopes = _inside(scopes, 0, *meaning.enter(axis))
        collector.enter_phase(number, len(scopes))
        collector.body(phase.body, scopes)
    return collector.accesses


def _inside(
    scopes: tuple[BodyScope, ...],
    place: int,
    axis: Variable | None,
    condition: tuple[Conjunction, ...],
) -> tuple[BodyScope, ...]:
    """The scopes and another one in the innermost of them."""
    return (*scopes, BodyScope(scopes[-1] if scopes else None, place, axis, condition))


class _Collector:
    def __init__(self, meaning: Translator) -> None:
        self.meaning = meaning
        self.accesses: list[Access] = []
        self.elements: list[Variable] = []
        self.stages: dict[kir.Buffer, tuple[object, int]] = {}  # memory and lifetime

    def enter_phase(self, number: int, grid: int) -> None:
        self.phase, self.grid = number, grid

    def body(self, body: kir.Body, scopes: tuple[BodyScope, ...]) -> None:
        for place, s in enumerate(body):
            self.meaning.next_statement()
            if isinstance(s, kir.Loop):
                self._loop(s, scopes, place)
                continue
            self._loads(kir.expressions(s), scopes, place)
            if isinstance(s, kir.Store):
                self._access(s, s.buffer, s.index, s.mask, scopes, place)
            elif isinstance(s, kir.Let):
                self.meaning.define(s.local, s.value)
            elif isinstance(s, kir.Reduce | kir.Scan):
                for local in s.locals:
                    self.meaning.define(local, None)
            elif isinstance(s, kir.Stage):
                self.stages[s.buffer] = object(), len(scopes)
            elif isinstance(s, kir.If):
                condition = self.meaning.condition(s.condition)
                self.body(s.body, _inside(scopes, place, None, condition.true))
                self.body(s.orelse, _inside(scopes, place, None, condition.false))

    def _loop(self, s: kir.Loop, scopes: tuple[BodyScope, ...], place: int) -> None:
        """Extent and inits are evaluated before the loop, steps at the end of its body."""
        self._loads([kir.as_index(s.axis.extent), *(c.init for c in s.carried)], scopes, place)
        inner = _inside(scopes, place, *self.meaning.enter(s.axis))
        for c in s.carried:
            self.meaning.define(c.local, None)
        self.body(s.body, inner)
        self.meaning.next_statement()
        self._loads([c.step for c in s.carried], inner, len(s.body))

    def _loads(self, nodes: Iterable[Node], scopes: tuple[BodyScope, ...], place: int) -> None:
        for n in topological(nodes):
            if n.op is ops.LOAD:
                buffer, indices, mask, _ = kir.load_parts(n)
                self._access(n, buffer, indices, mask, scopes, place)

    def _access(
        self,
        source: Node | kir.Store,
        buffer: kir.Buffer,
        indices: tuple[Node, ...],
        mask: Node,
        scopes: tuple[BodyScope, ...],
        place: int,
    ) -> None:
        while len(self.elements) < len(indices):
            label = f"element {len(self.elements)}"
            self.elements.append(
                Variable(label, VariableKind.ELEMENT, Vary.BLOCK, -(1 << 64), 1 << 64)
            )
        memory, lifetime = self.stages.get(buffer, (buffer, self.grid))
        self.accesses.append(
            Access(
                phase=self.phase,
                scopes=scopes,
                place=place,
                memory=memory,
                lifetime=lifetime,
                source=source,
                buffer=buffer,
                indices=indices,
                index=tuple(map(self.meaning.value, indices)),
                mask=self.meaning.condition(mask),
                elements=tuple(self.elements[: len(indices)]),
            )
        )
