"""Digits of an index: what `told_apart` says of linear forms, against trying all points."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from genesis.compiler.verify.affine import LinearForm, Variable, VariableKind, Vary, told_apart

SIZES = Variable("n", VariableKind.SYMBOL, Vary.LAUNCH, 1, 3)
GRID = [
    Variable(name, VariableKind.AXIS, Vary.BLOCK, low, high)
    for name, low, high in (("i", 0, 2), ("j", -1, 1), ("k", 0, 1))
]
LOOPS = [
    Variable("p", VariableKind.AXIS, Vary.BLOCK, 0, 2),
    Variable("t", VariableKind.AXIS, Vary.TILE, 0, 3),
]

weights = st.integers(-13, 13)


def values(linear: LinearForm, point: dict[Variable, int], n: int) -> set[int]:
    """What a form can be at a point of the grid, for any values of the other variables."""
    found = set()
    for inner in product(*(range(v.low, v.high + 1) for v in LOOPS)):
        at = {**point, SIZES: n, **dict(zip(LOOPS, inner, strict=True))}
        found.add(linear.constant + sum(k * at[v] for v, k in linear.terms.items()))
    return found


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(weights, min_size=3, max_size=3),
    st.lists(st.integers(-2, 2), min_size=6, max_size=6),
    st.integers(-3, 3),
)
def test_told_apart_is_right(grid: list[int], others: list[int], offset: int) -> None:
    def form(weights: list[int], constant: int) -> LinearForm:
        terms = dict(zip([*GRID, SIZES, *LOOPS], [*grid, *weights], strict=True))
        return LinearForm({v: k for v, k in terms.items() if k}, constant)

    p, q = form(others[:3], 0), form(others[3:], offset)
    told = told_apart(p, q, GRID, Vary.LAUNCH)
    points = [
        dict(zip(GRID, at, strict=True))
        for at in product(*(range(v.low, v.high + 1) for v in GRID))
    ]
    for n in range(SIZES.low, SIZES.high + 1):
        here = [values(p, point, n) for point in points]
        there = [values(q, point, n) for point in points]
        for (a, x), (b, y) in product(
            zip(points, here, strict=True), zip(points, there, strict=True)
        ):
            if not x.isdisjoint(y):
                assert all(a[v] == b[v] for v in told)


def test_tiles_of_a_row_are_told_apart() -> None:
    block, tile = GRID[0], LOOPS[1]
    index = LinearForm({block: 4, tile: 1})
    assert told_apart(index, index, [block], Vary.LAUNCH) == {block}
    assert told_apart(index, index, [tile], Vary.BLOCK) == {tile}
    overlapping = LinearForm({block: 3, tile: 1})
    assert told_apart(overlapping, overlapping, [block], Vary.LAUNCH) == set()
