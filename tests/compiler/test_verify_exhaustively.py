"""The verifier against brute force: random small kernels, every claim tried at every point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genesis.compiler.verify.kernel import ClaimKind, Status, verify
from genesis.ir import ops
from genesis.ir.check import check
from genesis.ir.dtype import float32, index
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Body,
    Buffer,
    If,
    Kernel,
    Loop,
    Phase,
    Role,
    Stage,
    Statement,
    Store,
    load_parts,
    tile_axes,
    walk,
)
from genesis.ir.node import TRUE, Node, const, elementwise, topological

K = ClaimKind
Point = Mapping[Axis, int]
Element = tuple[str, tuple[int, ...]]


def evaluate(n: Node, at: Point) -> int:
    """The value of an index expression or a mask at a point."""
    if n.op is ops.CONST:
        return int(n.attr)
    if n.op is ops.AXIS:
        return at[n.attr]
    a = [evaluate(i, at) for i in n.inputs]
    if n.op is ops.WHERE:
        return a[1] if a[0] else a[2]
    if n.op is ops.NOT:
        return not a[0]
    operations = {
        ops.ADD: lambda x, y: x + y, ops.SUB: lambda x, y: x - y, ops.MUL: lambda x, y: x * y,
        ops.FLOORDIV: lambda x, y: x // y, ops.MOD: lambda x, y: x % y,
        ops.MIN: min, ops.MAX: max, ops.LT: lambda x, y: x < y, ops.LE: lambda x, y: x <= y,
        ops.EQ: lambda x, y: x == y, ops.AND: lambda x, y: x and y, ops.OR: lambda x, y: x or y,
    }  # fmt: skip
    return int(operations[n.op](*a))


@dataclass
class Exhaustive:
    """Runs a kernel block by block and notes every kind of claim that fails."""

    kernel: Kernel
    donated: tuple[tuple[str, str], ...]
    failed: set[ClaimKind] = field(default_factory=set)
    written: set[Element] = field(default_factory=set)  # in earlier phases
    mine: set[Element] = field(default_factory=set)  # by this block, in this phase
    writers: dict[Element, set[Point]] = field(default_factory=lambda: defaultdict(set))
    readers: dict[Element, set[Point]] = field(default_factory=lambda: defaultdict(set))

    def run(self) -> set[ClaimKind]:
        for phase in self.kernel.phases:
            stores = [s for s in walk(phase.body) if isinstance(s, Store)]
            if any(tile_axes(s.value, s.mask) - tile_axes(*s.index) for s in stores):
                self.failed.add(K.RACE)  # by its form, wherever it runs
            self.writers.clear()
            self.readers.clear()
            for values in product(*(range(a.extent) for a in phase.grid)):  # type: ignore[arg-type]
                self.block, self.mine = values, set()
                self.body(phase.body, dict(zip(phase.grid, values, strict=True)))
            for element, writers in self.writers.items():
                if len(writers) > 1 or self.readers[element] - writers:
                    self.failed.add(K.RACE)
                for given_to, taken in self.donated:
                    readers = self.readers[given_to, element[1]]
                    if element[0] == taken and any(a != b for a in readers for b in writers):
                        self.failed.add(K.DONATION)
            self.written |= set(self.writers)
        for b in self.kernel.buffers:
            if b.role is Role.OUTPUT:
                everything = product(*(range(e) for e in b.shape))  # type: ignore[arg-type]
                if any((b.name, e) not in self.written for e in everything):
                    self.failed.add(K.COMPLETE)
        return self.failed

    def body(self, body: Body, at: dict[Axis, int]) -> None:
        for s in body:
            if isinstance(s, Loop):
                extent = s.axis.extent
                count = extent if isinstance(extent, int) else evaluate(extent, at)
                for value in range(count):
                    self.body(s.body, {**at, s.axis: value})
            elif isinstance(s, If):
                self.body(s.body if evaluate(s.condition, at) else s.orelse, at)
            elif isinstance(s, Stage):
                self.mine = {e for e in self.mine if e[0] != s.buffer.name}
            elif isinstance(s, Store):
                self.store(s, at)

    def store(self, s: Store, at: dict[Axis, int]) -> None:
        for n in topological([*s.index, s.value, s.mask]):
            if n.op is ops.LOAD:
                buffer, indices, mask, _ = load_parts(n)
                for element in self.touched(buffer, indices, mask, at):
                    self.read(buffer, element)
        elements = list(self.touched(s.buffer, s.index, s.mask, at))
        if len(elements) != len(set(elements)):
            self.failed.add(K.RACE)
        for element in elements:
            self.mine.add(element)
            if s.buffer.role is not Role.STAGE:
                self.writers[element].add(self.block)  # type: ignore[arg-type]

    def touched(
        self, buffer: Buffer, indices: tuple[Node, ...], mask: Node, at: dict[Axis, int]
    ) -> Iterator[Element]:
        tiles = sorted(tile_axes(*indices), key=lambda a: a.name)
        missing = sorted(tile_axes(mask) - set(tiles), key=lambda a: a.name)
        for values in product(*(range(a.extent) for a in tiles)):  # type: ignore[arg-type]
            point = {**at, **dict(zip(tiles, values, strict=True))}
            masks = (
                evaluate(mask, {**point, **dict(zip(missing, m, strict=True))})
                for m in product(*(range(a.extent) for a in missing))  # type: ignore[arg-type]
            )
            if any(masks):
                element = tuple(evaluate(i, point) for i in indices)
                if any(not 0 <= i < e for i, e in zip(element, buffer.shape, strict=True)):  # type: ignore[operator]
                    self.failed.add(K.BOUNDS)
                yield buffer.name, element

    def read(self, buffer: Buffer, element: Element) -> None:
        self.readers[element].add(self.block)  # type: ignore[arg-type]
        if buffer.role is not Role.INPUT and element not in self.mine | self.written:
            self.failed.add(K.INITIALISED)
        for given_to, taken in self.donated:
            if buffer.name == given_to and (taken, element[1]) in self.mine | self.written:
                self.failed.add(K.DONATION)


# ---- random kernels

X = Buffer("x", float32, (6,))
Y = Buffer("y", float32, (6,), Role.OUTPUT)
T = Buffer("t", float32, (4,), Role.TEMPORARY)
S = Buffer("s", float32, (4,), Role.STAGE)
V = Axis("v", AxisKind.TILE, 3)


@st.composite
def expression(draw: st.DrawFn, axes: list[Axis]) -> Node:
    """Something near an index of the buffers above."""
    total = const(draw(st.integers(-1, 2)), index)
    for axis in draw(st.lists(st.sampled_from(axes), max_size=3, unique=True)):
        total = total + axis.node * draw(st.sampled_from([1, 1, 1, 2, 3, -1]))
    shape = draw(st.sampled_from(["plain", "plain", "div", "mod", "clamp", "where"]))
    if shape == "div":
        return total // draw(st.integers(1, 3))
    if shape == "mod":
        return total % draw(st.integers(2, 6))
    if shape == "clamp":
        low = elementwise(ops.MAX, total, const(0, index))
        return elementwise(ops.MIN, low, const(draw(st.integers(3, 5)), index))
    if shape == "where":
        condition = draw(comparison(axes))
        return elementwise(ops.WHERE, condition, total, const(draw(st.integers(0, 3)), index))
    return total


@st.composite
def comparison(draw: st.DrawFn, axes: list[Axis]) -> Node:
    axis = draw(st.sampled_from(axes)).node
    bound = draw(st.integers(0, 4))
    if draw(st.booleans()):
        return axis * draw(st.integers(1, 2)) < bound
    return draw(st.sampled_from([axis.equal(bound), elementwise(ops.NOT, axis.equal(bound))]))


@st.composite
def access(draw: st.DrawFn, buffer: Buffer, axes: list[Axis]) -> tuple[tuple[Node, ...], Node]:
    """An index, often with the mask that keeps it in bounds."""
    at = draw(expression(axes))
    mask = TRUE
    if draw(st.integers(0, 3)):
        mask = elementwise(
            ops.AND, 0 <= at, at < draw(st.sampled_from([buffer.shape[0]] * 4 + [5]))
        )
    if not draw(st.integers(0, 4)):
        more = draw(comparison(axes))
        mask = elementwise(draw(st.sampled_from([ops.AND, ops.OR])), mask, more)
    return (at,), mask


@st.composite
def store(draw: st.DrawFn, axes: list[Axis]) -> Statement:
    to = draw(st.sampled_from([S, S, Y, Y, T]))
    source = draw(st.sampled_from([X, X, S, S, Y, T]))
    everywhere = [*axes, V]
    indices, mask = draw(access(to, everywhere))
    at, inside = draw(access(source, everywhere))
    return Store(to, indices, source.load(*at, mask=inside), mask)


@st.composite
def body(draw: st.DrawFn, axes: list[Axis], depth: int) -> Body:
    statements: list[Statement] = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["store", "store", "loop", "if"])) if depth else "store"
        if kind == "store":
            statements.append(draw(store(axes)))
        elif kind == "loop":
            extents: list[int | Node] = [1, 2, 3, 4, axes[0].node + 1]
            axis = Axis(f"l{depth}{number}", AxisKind.LOOP, draw(st.sampled_from(extents)))
            statements.append(Loop(axis, draw(body([*axes, axis], depth - 1))))
        else:
            condition = draw(comparison(axes))
            branches = draw(body(axes, 0)), draw(body(axes, 0))
            statements.append(If(condition, *branches))
    return tuple(statements)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    phases = []
    for number in range(draw(st.integers(1, 2))):
        names = [f"g{number}", f"h{number}"][: draw(st.integers(1, 2))]
        grid = tuple(Axis(n, AxisKind.GRID, draw(st.integers(1, 4))) for n in names)
        statements = draw(body(list(grid), 2))
        if draw(st.booleans()):  # make it likelier that something is right
            statements = (Store(S, (V.node,), X[V.node]), *statements)
        phases.append(Phase(grid, (Stage(S), *statements)))
    return Kernel("random", (X, Y, T), (), (), tuple(phases))


XY = (("x", "y"),)


@settings(max_examples=300)
@given(kernels())
def test_verdicts_are_those_of_brute_force(kernel: Kernel) -> None:
    check(kernel)
    verdict = verify(kernel, XY)
    assert not verdict.unknown, f"{kernel}\n{verdict}"
    refuted = {c.kind for c in verdict.refuted}
    assert refuted == Exhaustive(kernel, XY).run(), f"{kernel}\n{verdict}"


# ---- mutations: change one thing in a right kernel, and brute force and verifier must agree


def right() -> Kernel:
    """Reverses x through a stage, in place of half of it, in two phases."""
    g, c, h = Axis("g", AxisKind.GRID, 2), Axis("c", AxisKind.LOOP, 3), Axis("h", AxisKind.GRID, 2)
    i = g.node * 3 + V.node
    first = (
        Stage(S),
        Loop(c, (Store(S, (c.node,), X[g.node * 3 + c.node]),)),
        Store(T, (i,), S[2 - V.node], mask=i < 4),
        Store(Y, (i,), S[V.node]),
    )
    j = h.node * 2 + V.node
    inside = V.node < 2
    second = (Store(Y, (j,), T.load(j, mask=inside), mask=inside),)
    return Kernel("right", (X, Y, T), (), (), (Phase((g,), first), Phase((h,), second)))


def mutants() -> Iterator[tuple[str, Kernel]]:
    """Every integer constant and every extent one up and one down, every mask dropped."""
    kernel = right()

    def replaced(n: Node, old: Node, new: Node) -> Node:
        if n is old:
            return new
        return n.with_inputs(tuple(replaced(i, old, new) for i in n.inputs))

    def change(statement: Statement) -> Iterator[tuple[str, Statement]]:
        if isinstance(statement, Loop):
            for d in (-1, 1):
                axis = Axis(statement.axis.name, AxisKind.LOOP, int(statement.axis.extent) + d)  # type: ignore[arg-type]
                (old,) = statement.body
                assert isinstance(old, Store)
                at = tuple(replaced(i, statement.axis.node, axis.node) for i in old.index)
                value = replaced(old.value, statement.axis.node, axis.node)
                yield f"loop extent {d:+}", Loop(axis, (Store(old.buffer, at, value),))
        if isinstance(statement, Store):
            yield "no mask", Store(statement.buffer, statement.index, statement.value)
            parts = (*statement.index, statement.value, statement.mask)
            for n in topological(parts):
                if n.op is ops.CONST and n.dtype is index:
                    for d in (-1, 1):
                        new = const(n.attr + d, index)
                        *at, value, mask = (replaced(p, n, new) for p in parts)
                        text = f"{statement.buffer.name}: {n.attr} to {n.attr + d}"
                        yield text, Store(statement.buffer, tuple(at), value, mask)

    for p, phase in enumerate(kernel.phases):
        for k, statement in enumerate(phase.body):
            for text, mutant in change(statement):
                statements = (*phase.body[:k], mutant, *phase.body[k + 1 :])
                phases = list(kernel.phases)
                phases[p] = Phase(phase.grid, statements)
                yield f"phase {p}, statement {k}, {text}", kernel.with_phases(phases)


def test_the_right_kernel_is_right() -> None:
    assert Exhaustive(right(), ()).run() == set()
    verdict = verify(right())
    assert verdict.proven, str(verdict)


@pytest.mark.parametrize(("name", "kernel"), list(mutants()), ids=[m[0] for m in mutants()])
def test_mutants(name: str, kernel: Kernel) -> None:
    verdict = verify(kernel)
    wrong = Exhaustive(kernel, ()).run()
    assert {c.kind for c in verdict.refuted} == wrong, f"{kernel}\n{verdict}"
    assert all(c.status is not Status.UNKNOWN for c in verdict.claims)


def test_most_mutants_are_wrong() -> None:
    """Otherwise the test above would say little."""
    results = [verify(kernel).proven for _, kernel in mutants()]
    assert results.count(False) > 0.8 * len(results)
