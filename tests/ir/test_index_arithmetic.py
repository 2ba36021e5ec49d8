"""The canonical form of index arithmetic: one node however a sum was written, and flat again."""

from __future__ import annotations

from functools import reduce
from itertools import product
from random import Random

from genesis.ir.dtype import index
from genesis.ir.index import simplify
from genesis.ir.kernel import Axis, AxisKind, Buffer, Role
from genesis.ir.node import Node, const, elementwise, mentions
from genesis.ir.ops import MAX, MIN
from genesis.ir.rewrite import replaced

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


def test_a_mask_of_pages_does_not_mention_places() -> None:
    """Whether a place of a page is there: the page is, whatever the place."""
    page, place, pages = (
        Axis(n, AxisKind.GRID, e).node for n, e in zip("pqn", (9, 16, 9), strict=True)
    )
    assert simplify(page * 16 + place < pages * 16) is simplify(page < pages)
    assert place in mentions(simplify(page * 16 + place + 1 < pages * 16))


def test_comparisons_of_sums_stay_what_they_are() -> None:
    random = Random(0)
    extents = {"a": 3, "b": 4, "c": 5}
    axes = [Axis(n, AxisKind.GRID, e).node for n, e in extents.items()]
    for _ in range(300):
        sides = [
            reduce(
                lambda x, y: x + y,
                (a * random.choice((-8, -4, -1, 0, 1, 2, 4, 8, 16)) for a in axes),
                const(random.randint(-20, 20), index),
            )
            for _ in range(2)
        ]
        for compared in (sides[0] < sides[1], sides[0] <= sides[1]):
            simple = simplify(compared)
            for at in product(*map(range, extents.values())):
                here = {a: const(k, index) for a, k in zip(axes, at, strict=True)}
                found = [simplify(replaced(x, here)) for x in (compared, simple)]
                assert found[0] is found[1], (str(compared), str(simple), at)
