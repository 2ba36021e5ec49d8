"""Each rule of `simplify`: the graph gets simpler, and no bit of its value changes."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import expand, full, leaf, pad, permute, reduce, reshape, slice_, update, where

from genesis.compiler.simplify import RULES, simplify
from genesis.ir import ops
from genesis.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from genesis.ir.evaluate import evaluate
from genesis.ir.node import FALSE, TRUE, Node, const, elementwise, node, topological

SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.0, 3e38, 1e-45, 7.0, -1.0, 0.25]
X = leaf(0, 3, 4)
Y = leaf(1, 3, 4)
I = leaf(2, 3, 4, dtype=int32)  # noqa: E741
B = leaf(3, 3, 4, dtype=bool_)
S = node(ops.SCALAR, (), 0, float32)
MEMORY = [
    np.array(SPECIAL, np.float32),
    np.array(SPECIAL[::-1], np.float32),
    np.array([0, -1, 2**31 - 1, -(2**31), 5, 6, 7, 8, 9, 10, 11, 12], np.int32),
    np.arange(12) % 3 == 0,
]


def ew(op: ops.Op, *inputs: Node) -> Node:
    return elementwise(op, *inputs)


def everywhere(scalar: Node) -> Node:
    return expand(reshape(scalar, 1, 1), 3, 4)


def size(root: Node) -> tuple[int, int]:
    """Operations that compute, and all of them."""
    nodes = topological([root])
    return sum(n.op.group not in ("leaf", "movement") for n in nodes), len(nodes)


SIMPLER = {
    "reshape twice": (reshape(reshape(X, 12), 2, 6), reshape(X, 2, 6)),
    "reshape and back": (reshape(reshape(X, 12), 3, 4), X),
    "permute twice": (permute(permute(leaf(0, 2, 3, 2), 1, 2, 0), 1, 2, 0), None),
    "permute and back": (permute(permute(X, 1, 0), 1, 0), X),
    "permuting nothing": (permute(X, 0, 1), X),
    "expand twice": (
        expand(expand(leaf(0, 3, 1, 1), 3, 4, 1), 3, 4, 5),
        expand(leaf(0, 3, 1, 1), 3, 4, 5),
    ),
    "expand to the same": (expand(X, 3, 4), X),
    "slice of a slice": (
        slice_(slice_(X, (2, -1, 3), (1, 1, 3)), (0, 2, 2), (2, -2, 2)),
        slice_(X, (2, -2, 2), (3, -2, 2)),
    ),
    "slice of everything": (slice_(X, (0, 1, 3), (0, 1, 4)), X),
    "reversed twice": (slice_(slice_(X, (2, -1, 3), (0, 1, 4)), (2, -1, 3), (0, 1, 4)), X),
    "padding by nothing": (pad(X, (0, 1, 3), (0, 1, 4), fill=9), X),
    "overwriting everything": (update(X, Y, (0, 1), (0, 1)), Y),
    "an expanded scalar": (ew(ops.MUL, X, everywhere(S)), ew(ops.MUL, X, S)),
    "two expanded scalars": (
        where(B, everywhere(S), everywhere(full(2.0, X))),
        where(B, S, full(2.0, X)),
    ),
    "constants": (ew(ops.MUL, X, ew(ops.EXP, full(0.0, X))), X),
    "x - 0.0": (ew(ops.SUB, X, full(0.0, X)), X),
    "x + -0.0": (ew(ops.ADD, X, full(-0.0, X)), X),
    "integer + 0": (ew(ops.ADD, I, full(0, I)), I),
    "x * 1": (ew(ops.MUL, X, full(1.0, X)), X),
    "1 * x": (ew(ops.MUL, full(1.0, X), X), X),
    "x / 1": (ew(ops.DIV, X, full(1.0, X)), X),
    "-(-x)": (ew(ops.NEG, ew(ops.NEG, X)), X),
    "~~x": (ew(ops.NOT, ew(ops.NOT, I)), I),
    "cast to its own type": (elementwise(ops.CAST, X, dtype=float32), X),
    "a condition that holds": (where(TRUE, X, Y), X),
    "a condition that fails": (where(FALSE, X, Y), Y),
    "maximum over one": (reduce(ops.AMAX, leaf(0, 3, 1, 4), 1), reshape(leaf(0, 3, 1, 4), 3, 4)),
    "product over one": (reduce(ops.PROD, leaf(0, 12, 1), 1), reshape(leaf(0, 12, 1), 12)),
}


@pytest.mark.parametrize("name", SIMPLER)
def test_simpler_and_the_same_to_the_last_bit(name: str) -> None:
    before, expected = SIMPLER[name]
    (after,) = simplify([before])
    if expected is not None:
        assert after is expected
    assert size(after) < size(before)
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    (want,), (got,) = (evaluate([n], MEMORY, [2.5]) for n in (before, after))
    assert got.tobytes() == want.tobytes()


#: What looks like it could go, and what it would get wrong.
KEPT = {
    "x + 0.0": (ew(ops.ADD, X, full(0.0, X)), "-0.0 + 0.0 is 0.0"),
    "x - -0.0": (ew(ops.SUB, X, full(-0.0, X)), "-0.0 - -0.0 is 0.0"),
    "x * 0": (ew(ops.MUL, X, full(0.0, X)), "NaN and infinity times 0 are NaN, -1 times 0 is -0.0"),
    "x - x": (ew(ops.SUB, X, X), "infinity minus infinity is NaN"),
    "x / x": (ew(ops.DIV, X, X), "0 / 0 is NaN"),
    "x == x": (ew(ops.EQ, X, X), "NaN is not equal to itself"),
    "0 - x": (ew(ops.SUB, full(0.0, X), X), "0 - 0 is 0.0, its negative -0.0"),
    "float to int and back": (
        elementwise(ops.CAST, elementwise(ops.CAST, X, dtype=int32), dtype=float32),
        "conversion truncates",
    ),
    "a part overwritten": (update(X, leaf(1, 3, 3), (0, 1), (1, 1)), "a column is left"),
    "overwritten backwards": (update(X, Y, (2, -1), (0, 1)), "rows change places"),
    "padding that crops and shifts": (pad(X, (1, 1, 3), (0, 1, 4)), "a row falls out"),
    "a sum over two": (reduce(ops.SUM, X, 1), "there is something to add"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    graph, _reason = KEPT[name]
    assert simplify([graph])[0] is graph


@pytest.mark.parametrize("op", [o for o in ops.ALL.values() if o.is_elementwise], ids=repr)
@pytest.mark.parametrize(
    "dtype", [float64, float32, float16, bfloat16, int8, uint8, bool_], ids=repr
)
def test_folding_is_what_the_evaluator_computes(op: ops.Op, dtype: DType) -> None:
    count = {"unary": 1, "binary": 2, "compare": 2, "ternary": 3}[op.group]
    values = (1, 0, 1) if dtype is bool_ else (3, 2, 5)
    inputs = [const(v, dtype) for v in values[:count]]
    if op is ops.WHERE:
        inputs[0] = TRUE
    result = None if op.group == "compare" or op is ops.WHERE else dtype
    graph = elementwise(op, *inputs, dtype=result)
    try:
        (want,) = evaluate([graph], [], [])
    except (TypeError, ValueError):
        pytest.skip("no meaning for this type")
    (folded,) = simplify([graph])
    assert folded.op is ops.CONST
    assert evaluate([folded], [], [])[0].tobytes() == want.tobytes()


def test_shared_parts_stay_shared() -> None:
    part = ew(ops.EXP, reshape(reshape(X, 12), 4, 3))
    first, second = simplify([ew(ops.ADD, part, part), ew(ops.MUL, part, part)])
    assert first.inputs[0] is second.inputs[0] is first.inputs[1]


def test_a_long_chain_is_no_problem() -> None:
    graph = X
    for _ in range(5000):
        graph = ew(ops.NEG, ew(ops.NEG, reshape(reshape(graph, 12), 3, 4)))
    assert simplify([graph])[0] is X


def test_every_rule_is_tried() -> None:
    """The tables above reach every rule: counted by wrapping each of them."""
    applied = set()
    for before, _ in SIMPLER.values():
        for n in topological([before]):
            for inputs, rule in RULES._by_op.get(n.op, ()):
                fits = all(w is None or w is i.op for w, i in zip(inputs, n.inputs, strict=False))
                if fits and rule(n) not in (None, n):
                    applied.add(rule)
    every = {rule for rules in RULES._by_op.values() for _, rule in rules}
    assert {r.__name__ for r in every - applied} == set()
