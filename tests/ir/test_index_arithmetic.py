"""The canonical form of index arithmetic: one node however a sum was written, and flat again."""

from __future__ import annotations

from functools import reduce

from genesis.ir.dtype import index
from genesis.ir.index import simplify
from genesis.ir.kernel import Axis, AxisKind, Buffer, Role
from genesis.ir.node import Node, const, elementwise
from genesis.ir.ops import MAX, MIN

I = Axis("i", AxisKind.GRID, 64).node  # noqa: E741
DATA = Buffer("a0", index, (64,), Role.INPUT)


def clamped(n: Node, extent: int) -> Node:
    low = elementwise(MAX, n, const(0, index))
    return elementwise(MIN, low, const(extent - 1, index))


def test_long_atoms_that_begin_alike_have_one_order() -> None:
    """Printed, both are the same for hundreds of characters; yet they settle in one order."""
    deep = reduce(lambda n, _: DATA.load(clamped(n, 64)), range(12), I)
    atoms = [clamped(deep, extent) for extent in (30, 40, 50)]
    forward = simplify(reduce(lambda a, b: a + b, atoms))
    backward = simplify(reduce(lambda a, b: a + b, reversed(atoms)))
    assert forward is backward
    assert simplify(forward) is forward


def test_a_flat_position_taken_apart_is_itself_again() -> None:
    """As a gather from a reshaped array reads it, over more axes than two."""
    flat = clamped(DATA.load(I), 2 * 3 * 5 * 7)
    parts = (flat // 105, flat // 35 % 3, flat // 7 % 5, flat % 7)
    together = reduce(
        lambda a, b: a + b, (p * s for p, s in zip(parts, (105, 35, 7, 1), strict=True))
    )
    assert simplify(together) is simplify(flat)
