"""The roles in a contraction: which factor is `left`, which `right`, and what to tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.queries import NEAR, elements, extent, points, stride
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import ops
from genesis.ir.kernel import Axis, Kernel, Loop, Store, load_parts
from genesis.ir.node import Node, mentions, topological

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
    def rows(self) -> int:
        """How often an element of `right` is used."""
        return points((self.row, *self.others))

    def batch(self, grid: Sequence[Axis]) -> list[Axis]:
        """The grid axes besides the columns that `right` depends on."""
        inside = mentions(self.right)
        return [a for a in grid if a != self.column and a.node in inside]


def operands(kernel: Kernel) -> Operands | None:
    """Recognise ``acc + left * right`` with an axis that only one factor depends on, each way."""
    (phase,) = kernel.phases
    loops = [s for s in phase.body if isinstance(s, Loop)]
    if len(loops) != 1 or not loops[0].carried:
        return None
    nest = loops[0]
    sums = [nest.axis]
    deep = nest
    while deep.body:
        if len(deep.body) != 1 or not isinstance(deep.body[0], Loop):
            return None
        deep = deep.body[0]
        sums.append(deep.axis)
    if len(deep.carried) != 1 or innermost(nest) is not deep:
        return None
    carry = deep.carried[0]
    step = carry.step
    if step.op is not ops.ADD or carry.local.node not in step.inputs:
        return None
    # Sums of integers may be written either way around.
    product = step.inputs[step.inputs[0] is carry.local.node]
    if product.op is not ops.MUL:
        return None
    store = next(s for s in reversed(phase.body) if isinstance(s, Store))
    choices = []
    for left, right in (product.inputs, product.inputs[::-1]):
        in_left, in_right = mentions(left), mentions(right)
        rows = [x for x in phase.grid if x.node in in_left and x.node not in in_right]
        columns = [x for x in phase.grid if x.node in in_right and x.node not in in_left]
        for column in columns:
            if not rows or extent(column) < 8 or points(rows) < 2:
                continue
            row = min(rows, key=lambda x: (reach(left, x), -extent(x)))
            others = tuple(x for x in rows if x != row)
            found = Operands(nest, tuple(sums), left, right, row, column, others)
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
            choices.append((*order, reach(right, column), found))
    if not choices:
        return None
    ranked = [c[4] for c in sorted(choices, key=lambda c: c[:4])]
    by_column = {found.column.name: found for found in ranked}  # which is in one factor only
    found = by_column[decide("column", list(by_column))]
    by_name = {a.name: a for a in (found.row, *found.others)}
    row = by_name.pop(decide("row", list(by_name)))
    return replace(found, row=row, others=tuple(by_name.values()))


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
    """How far apart in memory neighbours along `axis` are read."""
    loads = [n for n in topological([factor]) if n.op is ops.LOAD and axis.node in mentions(n)]
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
