"""The roles in a contraction: which factor is `left`, which `right`, and what to tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.queries import (
    NEAR,
    carrying,
    elements,
    extent,
    factors,
    points,
    stride,
)
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.index import static
from genesis.ir.kernel import Axis, Carry, Kernel, Loop, Store, load_parts, walk
from genesis.ir.node import TRUE, Node, mentions, topological
from genesis.ir.pattern import Contraction

#: Storing an element of a tile whose columns lie apart, in elements packed: where they or its rows
#: are still near each other, and where every element is alone in its line.
APART = 2
STREWN = 16
#: Products that take as long as moving an element: a vector of them.
LANES = 16
#: Vectors that a tile is wide, where it is worth having.
WIDE = (2, 3, 4)


@dataclass(frozen=True)
class Operands:
    """The roles in a contraction: its loop nest, both factors, and the axes to tile."""

    loop: Loop  # the outermost summation loop
    sums: tuple[Axis, ...]  # all summation axes, outermost first
    left: Node
    right: Node
    row: Axis  # in left only
    column: Axis  # in right only
    others: tuple[Axis, ...] = ()  # the other axes in left only

    @property
    def dtype(self) -> DType:
        """Of the sum."""
        (carry,) = self.loop.carried
        return carry.local.dtype

    @property
    def rows(self) -> int:
        """How often an element of `right` is used."""
        return points((self.row, *self.others))

    def batch(self, grid: Sequence[Axis]) -> list[Axis]:
        """The grid axes besides the columns that `right` depends on."""
        inside = mentions(self.right)
        return [a for a in grid if a != self.column and a.node in inside]


def recognise(kernel: Kernel) -> Kernel:
    """A kernel that nobody has said the pattern of, by hand for instance, with its own.

    If it has one loop nest, which sums products, it is a contraction.
    """
    loops = [s for s in kernel.phases[0].body if isinstance(s, Loop)]
    deep = innermost(loops[0]) if len(loops) == 1 and loops[0].carried else None
    if kernel.pattern is not None or deep is None or not factors(deep.carried[0]):
        return kernel
    return replace(kernel, pattern=Contraction(loops[0].carried[0].local.name))


def summation(kernel: Kernel) -> tuple[list[Loop], Carry] | None:
    """The loops of a contraction, outermost first, and the sum that the innermost carries.

    None if there are others than those, and loops around them.
    """
    if not isinstance(kernel.pattern, Contraction):
        return None
    every = [s for s in walk(kernel.phases[0].body) if isinstance(s, Loop)]
    nest, _ = carrying(kernel.phases[0].body, kernel.pattern.accumulator)
    loops = [s for s in walk((nest,)) if isinstance(s, Loop)]
    deep = innermost(nest)
    if deep is None or deep.body or len(deep.carried) != 1 or not factors(deep.carried[0]):
        return None
    alone = all(s in loops or nest in walk(s.body) for s in every)
    return (loops, deep.carried[0]) if alone else None


def operands(kernel: Kernel) -> Operands | None:
    """The roles in a contraction with an axis that only one factor depends on, each way."""
    found = summation(kernel)
    if found is None or found[0][0] not in kernel.phases[0].body:
        return None
    (phase,), (loops, carry) = kernel.phases, found
    nest, sums = loops[0], [s.axis for s in loops]
    if not points(sums):
        return None  # a sum of nothing has nothing to pack
    product = factors(carry)
    store = next(s for s in reversed(phase.body) if isinstance(s, Store))
    choices = []
    for left, right in (product, product[::-1]):
        in_left, in_right = mentions(left), mentions(right)
        rows = [x for x in phase.grid if x.node in in_left and x.node not in in_right]
        columns = [x for x in phase.grid if x.node in in_right and x.node not in in_left]
        for column in columns:
            if not rows or extent(column) < 8 or points(rows) < 2:
                continue
            row = min(rows, key=lambda x: (reach(left, x), -extent(x)))
            others = tuple(x for x in rows if x != row)
            roles = Operands(nest, tuple(sums), left, right, row, column, others)
            # Panels must not repeat elements (windows would); then little should be moved that
            # changes, or read out of order, or computed for columns that are not there; then the
            # wider the better.
            packed = 0 if steady(right) else size(right)
            strewn = min(reach(left, x) for x in sums) > 1
            stored = _apart(store, column, row) * elements(store.buffer)
            moved = packed + stored + strewn * size(left)
            missing = _missing(extent(column))
            wasted = points((*phase.grid, *sums)) // extent(column) * missing
            cost = moved + wasted // LANES
            order = (repeats(right, phase.grid, sums), cost, -extent(column))
            choices.append((*order, reach(right, column), roles))
    if not choices:
        return None
    ranked = [c[4] for c in sorted(choices, key=lambda c: c[:4])]
    by_column = {x.column.name: x for x in ranked}  # which is in one factor only
    best = by_column[decide("column", list(by_column))]
    by_name = {a.name: a for a in (best.row, *best.others)}
    row = by_name.pop(decide("row", list(by_name)))
    return replace(best, row=row, others=tuple(by_name.values()))


def weights(kernel: Kernel) -> Operands | None:
    """The roles in a product with a constant matrix; None for anything else.

    It is known to be the same in every run, as what `genesis.jit` finds outside of a function is.
    """
    found = summation(kernel)
    if found is None or len(found[0]) != 1 or found[0][0] not in kernel.phases[0].body:
        return None
    (phase,), ((nest,), carry) = kernel.phases, found
    if any(static(x.extent) == 0 for x in phase.grid):  # nothing is to be summed
        return None
    product = factors(carry)
    for left, right in (product, product[::-1]):
        stored = right.inputs[0] if right.op is ops.CAST else right
        if stored.op is not ops.LOAD or not stored.attr.constant or is_constant(left):
            continue
        in_left, in_right = mentions(left), mentions(right)
        rows = [x for x in phase.grid if x.node in in_left and x.node not in in_right]
        columns = [x for x in phase.grid if x.node in in_right and x.node not in in_left]
        if not columns or load_parts(stored)[2] is not TRUE or not carry.local.dtype.is_float:
            continue
        row = min(rows, key=lambda x: (reach(left, x), -extent(x)), default=Axis.grid("one", 1))
        others = tuple(x for x in rows if x != row)
        column = max(columns, key=extent)
        return Operands(nest, (nest.axis,), left, right, row, column, others)
    return None


def is_constant(factor: Node) -> bool:
    """Whether a factor is made of what is constant."""
    return all(n.attr.constant for n in topological([factor]) if n.op is ops.LOAD)


def _apart(store: Store, column: Axis, row: Axis) -> int:
    """What storing an element of a tile costs, in elements packed."""
    far = NEAR + 1
    across, along = (abs(stride(store.buffer, store.index, x) or far) for x in (column, row))
    return 0 if across == 1 else APART if min(across, along) <= NEAR else STREWN


def _missing(columns: int) -> int:
    """How many columns there are too few for whole tiles."""
    if columns <= LANES:
        return LANES - columns
    return min(-columns % (LANES * vectors) for vectors in WIDE)


def steady(factor: Node) -> bool:
    """Whether a factor stays the same while the kernel is repeated: it is packed before."""
    return all(n.attr.steady for n in topological([factor]) if n.op is ops.LOAD)


@lru_cache(maxsize=1 << 10)
def reach(factor: Node, axis: Axis) -> int:
    """How far apart in memory neighbours along `axis` are read.

    What only says where something else is read does not count.
    """
    read = topological([factor], lambda n: () if n.op is ops.LOAD else n.inputs)
    loads = [n for n in read if n.op is ops.LOAD and axis.node in mentions(n)]
    steps = [stride(*load_parts(n)[:2], axis) for n in loads]
    return min((abs(x) for x in steps if x), default=1 << 62)


def repeats(factor: Node, grid: Sequence[Axis], sums: Sequence[Axis]) -> bool:
    """Whether copying a factor for every point it is read at would copy elements several times."""
    inside = mentions(factor)
    read = points(a for a in (*grid, *sums) if a.node in inside)
    return 2 * read > 3 * (size(factor) or read)


def size(factor: Node) -> int:
    """How many elements a factor is made from."""
    return max((elements(n.attr) for n in topological([factor]) if n.op is ops.LOAD), default=0)
