"""The kernel IR: what one kernel computes, block by block, before any target is chosen.

A `Kernel` is one or more *phases* with a grid-wide barrier between them. A phase runs a body of
statements once for every point of its GRID axes; blocks are independent. LOOP axes are sequential
and may carry values. TILE axes have a constant extent and are "done at once": an expression that
mentions a TILE axis is a tile of values, broadcasting over the tile axes it does not mention, and
a statement runs once for all of them together. Only a renderer turns tiles into registers.

Loads and stores index a buffer by logical dimension; flattening, strides and alignment follow from
the buffer's layout. An access needs to be in bounds only where its mask holds, a masked-off load
gives `other`. *Stages* are buffers in fast memory, private to a block, with an implied barrier
between writing and reading. Everything is a frozen dataclass: a scheduling step is a function from
Kernel to Kernel.

A row sum, vectorised by 16 with a masked tail, prints as::

    kernel row_sum(x: in float32[M, N], y: out float32[M])
      grid r < M
        acc = 0.0
        loop c < (N // 16):
          acc = (acc + x[r, ((c * 16) + v)])
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod

from genesis.ir import ops
from genesis.ir.dtype import DType, index
from genesis.ir.node import TRUE, Node, const, mentions, node, show, topological
from genesis.ir.pattern import Pattern
from genesis.ir.size import Size, Symbol

Index = int | Node


class AxisKind(Enum):
    """How the points of an axis are executed (see the module docstring)."""

    GRID = "grid"
    LOOP = "loop"
    TILE = "tile"


@dataclass(frozen=True)
class Axis:
    """An iteration axis from 0 to `extent`, which for TILE axes is an int.

    Names tell axes apart that are in scope together; a loop that has ended frees its name.
    """

    name: str
    kind: AxisKind
    extent: Index

    def __hash__(self) -> int:
        return hash(self.name)  # names nearly tell axes apart, and strings know their hash

    @classmethod
    def grid(cls, name: str, extent: Index) -> Axis:
        """A GRID axis."""
        return cls(name, AxisKind.GRID, extent)

    @classmethod
    def loop(cls, name: str, extent: Index) -> Axis:
        """A LOOP axis."""
        return cls(name, AxisKind.LOOP, extent)

    @classmethod
    def tile(cls, name: str, extent: Index) -> Axis:
        """A TILE axis."""
        return cls(name, AxisKind.TILE, extent)

    @cached_property
    def node(self) -> Node:
        """The axis' current value, as an index expression."""
        return node(ops.AXIS, (), self, index)


class Role(Enum):
    """What a buffer is to its kernel."""

    INPUT = "in"  # read only
    OUTPUT = "out"  # written completely; may be read after it was written
    INOUT = "inout"  # holds a value before, may be written in part
    TEMPORARY = "temp"  # allocated for the kernel, undefined before and after
    STAGE = "stage"  # in fast memory, private to a block


@dataclass(frozen=True)
class Buffer:
    """An array a kernel touches. `strides` and `offset` count elements; None means row-major.

    Two buffers of one kernel never overlap in memory, except that an OUTPUT may be declared to
    share memory with an input by the program (`Launch.donated`), which the verifier checks. What is
    `steady` stays the same while the kernel is repeated: work on nothing else is done once. So is
    work on what is `constant`, from one run of the program to the next.
    """

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    role: Role = Role.INPUT
    strides: tuple[Index, ...] | None = None
    offset: Index = 0
    steady: bool = False
    constant: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    def load(self, *indices: Index, mask: Node = TRUE, other: Node | None = None) -> Node:
        """The element at `indices` where `mask` holds, `other` (default 0) elsewhere."""
        if len(indices) != len(self.shape):
            raise ValueError(
                f"{self.name} has {len(self.shape)} dimensions, indexed with {len(indices)}"
            )
        other = const(0, self.dtype) if other is None else other
        return node(ops.LOAD, (*map(as_index, indices), mask, other), self, self.dtype)

    def __getitem__(self, indices: Index | tuple[Index, ...]) -> Node:
        return self.load(*(indices if isinstance(indices, tuple) else (indices,)))

    @cached_property
    def layout(self) -> tuple[Node, ...]:
        """The stride of every dimension, in elements.

        Of an array without elements, too, every index has a place: expressions keep their axes.
        """
        if self.strides is not None:
            return tuple(map(as_index, self.strides))
        strides: list[Node] = []
        total = as_index(1)
        for extent in reversed(self.shape):
            strides.append(total)
            total = total * (1 if extent == 0 else extent)
        return tuple(reversed(strides))

    @property
    def known_bytes(self) -> int:
        """How large it is; 0 where that is known only at launch."""
        return self.dtype.itemsize * prod(e if isinstance(e, int) else 0 for e in self.shape)


@dataclass(frozen=True)
class Param:
    """A scalar argument of the kernel (a Python scalar of the user's program)."""

    name: str
    dtype: DType

    @property
    def node(self) -> Node:
        """The argument's value."""
        return node(ops.PARAM, (), self, self.dtype)


@dataclass(frozen=True)
class Local:
    """A named value private to a block: one value per point of the tile axes `tiles`."""

    name: str
    dtype: DType
    tiles: tuple[Axis, ...] = ()

    @property
    def node(self) -> Node:
        """The current value."""
        return node(ops.LOCAL, (), self, self.dtype)


@dataclass(frozen=True, eq=False)
class Merge:
    """How two partial states of a reduction combine: `result`, written with `left` and `right`.

    It must be associative; the order of the operands is kept.
    """

    left: tuple[Local, ...]
    right: tuple[Local, ...]
    result: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Carry:
    """A value carried by a loop: `init` before it, `step` at the end of every iteration.

    `local` is the current value inside the body and the final one after the loop. All steps of a
    loop happen at once.
    """

    local: Local
    init: Node
    step: Node


class Statement:
    """Base of the statements of a block."""

    def __str__(self) -> str:
        return "\n".join(_print_body((self,)))


@dataclass(frozen=True, eq=False)
class Let(Statement):
    """Name a value. Evaluated once, here."""

    local: Local
    value: Node


@dataclass(frozen=True, eq=False)
class Store(Statement):
    """Write `value` at `index` where `mask` holds; with `atomic`, combine with what is there.

    A value may mention fewer tile axes than the index: it broadcasts. A tile axis mentioned by
    the value or the mask but not by the index would write one element several times: the verifier
    rejects it.
    """

    buffer: Buffer
    index: tuple[Node, ...]
    value: Node
    mask: Node = TRUE
    atomic: ops.Op | None = None


@dataclass(frozen=True, eq=False)
class Loop(Statement):
    """Run `body` for every value of a LOOP axis in order.

    `merge` says that the carried values form an associative reduction from their inits, so that a
    schedule may split the loop.
    """

    axis: Axis
    body: tuple[Statement, ...]
    carried: tuple[Carry, ...] = ()
    merge: Merge | None = None


@dataclass(frozen=True, eq=False)
class Reduce(Statement):
    """Combine `values` along a TILE axis into `locals` (which do not mention the axis)."""

    locals: tuple[Local, ...]
    values: tuple[Node, ...]
    axis: Axis
    merge: Merge


@dataclass(frozen=True, eq=False)
class Scan(Statement):
    """Inclusive prefix combination of `values` along a TILE axis; `locals` mention the axis."""

    locals: tuple[Local, ...]
    values: tuple[Node, ...]
    axis: Axis
    merge: Merge


@dataclass(frozen=True, eq=False)
class If(Statement):
    """Run one of two bodies; the condition mentions no tile axis. Names do not escape."""

    condition: Node
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, eq=False)
class Stage(Statement):
    """Give the rest of the enclosing body a STAGE buffer (undefined at first)."""

    buffer: Buffer


@dataclass(frozen=True, eq=False)
class Prefetch(Statement):
    """A hint that `buffer` will be read at `index`, at all points of its tile axes.

    It is no access: there need not be anything at `index`.
    """

    buffer: Buffer
    index: tuple[Node, ...]


Body = tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class Phase:
    """`body` once per point of the GRID axes, whose extents depend on symbols only."""

    grid: tuple[Axis, ...]
    body: Body


@dataclass(frozen=True, eq=False)
class Kernel:
    """A complete kernel. `buffers`, then `params`, then `symbols` is its argument order.

    Its `pattern` is for the schedule, which ends with a kernel that has none. Whatever rewrites a
    kernel before keeps the names that the pattern tells parts by, or drops it.
    """

    name: str
    buffers: tuple[Buffer, ...]
    params: tuple[Param, ...]
    symbols: tuple[Symbol, ...]
    phases: tuple[Phase, ...]
    pattern: Pattern | None = None

    def __str__(self) -> str:
        return "\n".join(_print_kernel(self))

    def with_phases(self, phases: Iterable[Phase], buffers: Iterable[Buffer] = ()) -> Kernel:
        """The same kernel, of the same pattern, with other phases, and further buffers for them."""
        return replace(self, buffers=(*self.buffers, *buffers), phases=tuple(phases))

    def with_phase(self, number: int, phase: Phase) -> Kernel:
        """The same kernel with another phase `number`."""
        return self.with_phases((*self.phases[:number], phase, *self.phases[number + 1 :]))


# ---- expressions


def as_index(value: Index | Size) -> Node:
    """An int, a size or an index expression as an index expression."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Size):
        return _size_node(value)
    return const(value, index)


def _size_node(size: Size) -> Node:
    total = const(0, index)
    for monomial, coefficient in size.terms:
        term = const(coefficient, index)
        for atom in monomial:
            if isinstance(atom, Symbol):
                term = term * node(ops.SYMBOL, (), atom, index)
            else:
                term = term * (_size_node(atom.size) // atom.divisor)
        total = total + term
    return total


def tile_axes(*nodes: Node) -> frozenset[Axis]:
    """The TILE axes that expressions mention, directly or through a local's."""
    found: set[Axis] = set()
    for n in nodes:
        for leaf in mentions(n):
            if leaf.op is ops.AXIS and leaf.attr.kind is AxisKind.TILE:
                found.add(leaf.attr)
            elif leaf.op is ops.LOCAL:
                found.update(leaf.attr.tiles)
    return frozenset(found)


def load_parts(n: Node) -> tuple[Buffer, tuple[Node, ...], Node, Node]:
    """(buffer, index, mask, other) of a LOAD node."""
    rank = len(n.attr.shape)
    return n.attr, n.inputs[:rank], n.inputs[rank], n.inputs[rank + 1]


def map_loads(value: Node, change: Callable[[Node], Node]) -> Node:
    """An expression with every load replaced by ``change(load)``, those in its index first."""
    done: dict[Node, Node] = {}
    for n in topological([value]):
        new = n.with_inputs(tuple(done[i] for i in n.inputs))
        done[n] = change(new) if new.op is ops.LOAD else new
    return done[value]


# ---- traversal


def nest(axes: Sequence[Axis], body: Body) -> Body:
    """`body` in loops, the outermost first."""
    for axis in reversed(axes):
        body = (Loop(axis, body),)
    return body


def children(s: Statement) -> tuple[Body, ...]:
    """The nested bodies of a statement."""
    if isinstance(s, Loop):
        return (s.body,)
    if isinstance(s, If):
        return (s.body, s.orelse)
    return ()


def expressions(s: Statement) -> tuple[Node, ...]:
    """The expressions a statement evaluates itself (not those of nested bodies)."""
    if isinstance(s, Let):
        return (s.value,)
    if isinstance(s, Store):
        return (*s.index, s.value, s.mask)
    if isinstance(s, Loop):
        extent = as_index(s.axis.extent)
        return (extent, *(c.init for c in s.carried), *(c.step for c in s.carried))
    if isinstance(s, Reduce | Scan):
        return s.values
    if isinstance(s, If):
        return (s.condition,)
    if isinstance(s, Prefetch):
        return s.index
    return ()


def walk(body: Body) -> Iterator[Statement]:
    """Every statement of a body, outer before inner, in program order."""
    for s in body:
        yield s
        for inner in children(s):
            yield from walk(inner)


def map_expressions(body: Body, change: Callable[[Node], Node]) -> Body:
    """A body with every expression replaced by ``change(expression)``; axes are kept."""

    def one(s: Statement) -> Statement:
        if isinstance(s, Let):
            return replace(s, value=change(s.value))
        if isinstance(s, Store):
            return replace(
                s, index=tuple(map(change, s.index)), value=change(s.value), mask=change(s.mask)
            )
        if isinstance(s, Loop):
            carried = tuple(Carry(c.local, change(c.init), change(c.step)) for c in s.carried)
            return replace(s, body=map_expressions(s.body, change), carried=carried)
        if isinstance(s, Reduce | Scan):
            return replace(s, values=tuple(map(change, s.values)))
        if isinstance(s, If):
            return If(
                change(s.condition),
                map_expressions(s.body, change),
                map_expressions(s.orelse, change),
            )
        if isinstance(s, Prefetch):
            return replace(s, index=tuple(map(change, s.index)))
        return s

    return tuple(map(one, body))


# ---- printing


def _shape(shape: tuple[Index, ...]) -> str:
    return ", ".join(show(as_index(e)) for e in shape)


def _print_kernel(k: Kernel) -> Iterator[str]:
    arguments = [f"{b.name}: {b.role.value} {b.dtype}[{_shape(b.shape)}]" for b in k.buffers]
    arguments += [f"{p.name}: {p.dtype}" for p in k.params]
    arguments += [f"{s.name}: {s.low}..{s.high}" for s in k.symbols]
    yield f"kernel {k.name}({', '.join(arguments)})"
    for number, phase in enumerate(k.phases):
        if number:
            yield "  barrier"
        indent = "  "
        if phase.grid:
            axes = ", ".join(f"{a.name} < {show(as_index(a.extent))}" for a in phase.grid)
            yield f"  grid {axes}"
            indent = "    "
        tiles: set[Axis] = set()
        for s in walk(phase.body):
            tiles |= tile_axes(*expressions(s))
        if tiles:
            names = ", ".join(f"{a.name} < {a.extent}" for a in sorted(tiles, key=lambda a: a.name))
            yield f"{indent}tile {names}"
        for line in _print_body(phase.body):
            yield indent + line


def _print_body(body: Body) -> Iterator[str]:
    for s in body:
        if isinstance(s, Let):
            yield f"{_local(s.local)} = {show(s.value, 2000)}"
        elif isinstance(s, Store):
            sign = "=" if s.atomic is None else f"{s.atomic.name}="
            guard = "" if s.mask is TRUE else f" if {show(s.mask, 2000)}"
            where = ", ".join(show(i) for i in s.index)
            yield f"{s.buffer.name}[{where}] {sign} {show(s.value, 2000)}{guard}"
        elif isinstance(s, Loop):
            for c in s.carried:
                yield f"{_local(c.local)} = {show(c.init, 2000)}"
            yield f"loop {s.axis.name} < {show(as_index(s.axis.extent))}:"
            for line in _print_body(s.body):
                yield "  " + line
            if s.carried:
                names = ", ".join(c.local.name for c in s.carried)
                yield f"  {names} = {', '.join(show(c.step, 2000) for c in s.carried)}"
        elif isinstance(s, Reduce | Scan):
            names = ", ".join(_local(v) for v in s.locals)
            values = ", ".join(show(v, 2000) for v in s.values)
            kind = "reduce" if isinstance(s, Reduce) else "scan"
            combine = ", ".join(show(r) for r in s.merge.result)
            yield f"{names} = {kind} {values} over {s.axis.name} with {combine}"
        elif isinstance(s, If):
            yield f"if {show(s.condition)}:"
            for line in _print_body(s.body):
                yield "  " + line
            if s.orelse:
                yield "else:"
                for line in _print_body(s.orelse):
                    yield "  " + line
        elif isinstance(s, Stage):
            yield f"stage {s.buffer.name}: {s.buffer.dtype}[{_shape(s.buffer.shape)}]"
        elif isinstance(s, Prefetch):
            yield f"prefetch {s.buffer.name}[{', '.join(show(i) for i in s.index)}]"


def _local(local: Local) -> str:
    tiles = f"[{', '.join(a.name for a in local.tiles)}]" if local.tiles else ""
    return local.name + tiles


def fold(op: ops.Op, dtype: DType) -> Merge:
    """The merge of a reduction with one binary operation (ADD, MUL, MAX, MIN, AND, OR)."""
    left, right = Local("left", dtype), Local("right", dtype)
    return Merge((left,), (right,), (node(op, (left.node, right.node), None, dtype),))


def folds_apart(merge: Merge) -> tuple[Merge, ...] | None:
    """The merges of each value of a state, if they are plain folds that need none of the others."""
    parts = zip(merge.left, merge.right, merge.result, strict=True)
    merges = tuple(Merge((left,), (right,), (result,)) for left, right, result in parts)
    return None if None in map(simple_fold, merges) else merges


def simple_fold(merge: Merge) -> ops.Op | None:
    """The binary operation of a one-value merge that is a plain fold, else None."""
    if len(merge.result) != 1:
        return None
    result = merge.result[0]
    plain = result.inputs == (merge.left[0].node, merge.right[0].node)
    return result.op if plain and result.op.group == "binary" else None
