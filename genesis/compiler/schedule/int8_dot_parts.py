"""Sums of products of bytes: their roles, and quadruples along k.

Chips multiply four pairs of bytes and add them to one 32-bit sum in a single instruction. For that
four neighbours along k must lie together, and the columns of a block next to each other in such
quadruples: ``[column block][k / 4][column][4]``. Weights that are laid out so (as
`genesis.compress` does) are read once, in order, by every block. A quadruple is a `Reduce` over
a tile axis of four, which a renderer knows; sums over groups of k, each scaled, are loops around.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from genesis.compiler.schedule.contraction_operands import summation
from genesis.compiler.schedule.steps.queries import extent, factors, points, stride
from genesis.compiler.schedule.steps.substitute_axes import Respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import int32
from genesis.ir.index import simplify, static
from genesis.ir.node import TRUE, Node, const, mentions, topological
from genesis.ir.rewrite import substitute

#: Pairs of bytes that one instruction multiplies and adds to a sum.
QUAD = 4
#: Columns of a block, which lie together.
WIDTHS = (16, 32, 48, 64)
#: Sums of one row that are independent of each other.
CHAINS = 2
#: Quadruples written out one after the other; more are a loop.
UNROLLED = 16


@dataclass(frozen=True)
class ByteProduct:
    """The roles in a sum of products of bytes."""

    nest: kir.Loop  # sums the products
    quad: kir.Axis  # its innermost axis, of four
    row: kir.Axis | None  # of the one factor
    column: kir.Axis  # of the other, which lies in quadruples
    width: int  # columns of a block, which lie together
    within: kir.Axis | None  # counts them; None where `column` counts all columns, and not blocks

    def at(self, block: Node, place: Node) -> dict[Node, Node]:
        """The axes of columns, given a block and a place in it."""
        if self.within is None:
            return {self.column.node: block * self.width + place}
        return {self.column.node: block, self.within.node: place}


def dots(kernel: kir.Kernel) -> ByteProduct | None:
    """Recognise ``acc + int32(left) * int32(right)`` of bytes with `right` in quadruples."""
    found, (phase,) = summation(kernel), kernel.phases
    if found is None or not multiplies_bytes(found[1]) or found[0][-1].axis.extent != QUAD:
        return None
    nest, deep, product = found[0][0], found[0][-1], factors(found[1])
    for left, right in (product, product[::-1]):
        in_left, in_right = mentions(left), mentions(right)
        rows = [a for a in phase.grid if a.node in in_left and a.node not in in_right]
        row = max(rows, key=extent, default=None)
        columns = [a for a in phase.grid if a.node in in_right and a.node not in in_left]
        columns = [a for a in columns if static(a.extent) is not None]
        for column in sorted(columns, key=extent, reverse=True):
            digits = [n for n in topological([right]) if _digit(n, column)]
            widths: list[tuple[int, kir.Axis | None]] = [(n.inputs[1].attr, None) for n in digits]
            widths += [(extent(a), a if a != column else None) for a in columns]
            for width, within in widths:
                roles = ByteProduct(nest, deep.axis, row, column, width, within)
                if width in WIDTHS and _lies(right, roles, QUAD) and _lies(left, roles, 0):
                    return roles
    return None


def _digit(n: Node, axis: kir.Axis) -> bool:
    """Whether an index is the place of an axis in a block of constant width."""
    by_constant = n.op is ops.MOD and n.inputs[1].op is ops.CONST
    return by_constant and n.inputs[0] is axis.node and extent(axis) % n.inputs[1].attr == 0


def multiplies_bytes(carry: kir.Carry) -> bool:
    """Whether a carried sum adds products of bytes."""
    casts = [f.inputs[0].dtype for f in factors(carry) if f.op is ops.CAST]
    bytes_ = [dtype for dtype in casts if dtype.is_integer and dtype.itemsize == 1]
    return carry.local.dtype is int32 and len(bytes_) == 2


def _lies(factor: Node, found: ByteProduct, apart: int) -> bool:
    """Whether a factor's bytes lie in quadruples, so far apart in neighbouring columns.

    Codes may be put together from bits of several bytes, all of which lie so; where, may be data
    (which of several matrices, for instance).
    """
    loads, stack = [], [factor]
    while stack:
        n = stack.pop()
        if n.op is ops.LOAD:
            loads.append(n)
        else:
            stack += n.inputs
    return bool(loads) and all(_in_quadruples(n, found, apart) for n in loads)


def _in_quadruples(load: Node, found: ByteProduct, apart: int) -> bool:
    buffer, at, mask, _ = kir.load_parts(load)
    block, place = (kir.Axis.grid("b", 1 << 20), kir.Axis.tile("p", found.width))
    at = tuple(map(simplify, substitute(at, found.at(block.node, place.node))))
    steps = stride(buffer, at, found.quad), stride(buffer, at, place)
    return mask is TRUE and steps == (1, apart)


def quadruples(body: kir.Body, found: ByteProduct) -> kir.Body:
    """The body with the nest in quadruples."""

    def one(s: kir.Statement) -> tuple[kir.Statement, ...]:
        if s is found.nest:
            return _summed(found)
        if isinstance(s, kir.Loop) and found.nest in kir.walk(s.body):
            return (replace(s, body=tuple(x for y in s.body for x in one(y))),)
        return (s,)

    return tuple(x for s in body for x in one(s))


def _summed(found: ByteProduct) -> tuple[kir.Statement, ...]:
    """The nest as quadruples: written out where they are few, in loops around them else."""
    nest = found.nest
    loops: list[kir.Loop] = [nest]
    while loops[-1].body:
        inner = loops[-1].body[0]
        assert isinstance(inner, kir.Loop)
        loops.append(inner)
    *outer, deep = loops
    written: list[kir.Loop] = []  # innermost first
    while outer and static(outer[-1].axis.extent) is not None:
        if points(s.axis for s in [*written, outer[-1]]) > UNROLLED:
            break
        written.append(outer.pop())
    carry = deep.carried[0]
    quad = replace(found.quad, kind=kir.AxisKind.TILE)
    init = carry.init if not written else written[-1].carried[0].init
    statements: list[kir.Statement] = []
    # One row alone waits for every sum, in several chains less; sums of integers have no order.
    chains = CHAINS if found.row is None and points(s.axis for s in written) >= 2 * CHAINS else 1
    values = [init, *[const(0, int32)] * (chains - 1)]
    (added,) = (x for x in carry.step.inputs if x is not carry.local.node)
    # Parts of a byte follow each other, so that it is read once.
    loads = [n for n in topological([carry.step]) if n.op is ops.LOAD]
    weights = [n for n in loads if (found.within or found.column).node in mentions(n)]
    axes = sorted(
        (s.axis for s in reversed(written)),
        key=lambda a: sum(a.node not in mentions(n) for n in weights),
    )
    for k, place in enumerate(product(*(range(extent(a)) for a in axes))):
        known = {a.node: kir.as_index(i) for a, i in zip(axes, place, strict=True)}
        known[found.quad.node] = quad.node
        changed = Respecialise(known, TRUE)
        four, sum_ = (kir.Local(f"{name}{k}", int32) for name in ("four", "sum"))
        products = changed.expr(added)
        statements.append(kir.Reduce((four,), (products,), quad, kir.fold(ops.ADD, int32)))
        statements.append(kir.Let(sum_, values[k % chains] + four.node))
        values[k % chains] = sum_.node
    value = values[0]
    for other in values[1:]:
        value = value + other
    if not outer:
        return (*statements, kir.Let(nest.carried[0].local, value))
    for s in reversed(outer):
        (last,) = s.carried
        statements = [replace(s, body=tuple(statements), carried=(replace(last, step=value),))]
        value = last.local.node
    return tuple(statements)
