"""Each rule of `simplify`: the graph gets simpler, and no bit of its value changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs import (
    along,
    expand,
    full,
    gather,
    iota,
    leaf,
    matmul,
    pad,
    permute,
    reduce,
    reshape,
    slice_,
    update,
    where,
)
from random_graphs import random_case

from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import RULES, simplify
from genesis.ir import ops
from genesis.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from genesis.ir.evaluate import evaluate
from genesis.ir.node import FALSE, TRUE, Node, Prefix, const, elementwise, node, topological
from genesis.ir.rewrite import Rules, rewrite

SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.0, 3e38, 1e-45, 7.0, -1.0, 0.25]
X = leaf(0, 3, 4)
Y = leaf(1, 3, 4)
I = leaf(2, 3, 4, dtype=int32)  # noqa: E741
B = leaf(3, 3, 4, dtype=bool_)
M = leaf(4, 40, 30)
N = leaf(5, 30, 50)
S = node(ops.SCALAR, (), 0, float32)
MEMORY = [
    np.array(SPECIAL, np.float32),
    np.array(SPECIAL[::-1], np.float32),
    np.array([0, -1, 2**31 - 1, -(2**31), 5, 6, 7, 8, 9, 10, 11, 12], np.int32),
    np.arange(12) % 3 == 0,
    # Sums of these are exact in any order.
    np.array([np.inf, *(np.arange(1, 1200) % 17 - 8)], np.float32),
    np.array([*(np.arange(1499) % 11 + 1), np.nan], np.float32),
]


def ew(op: ops.Op, *inputs: Node) -> Node:
    return elementwise(op, *inputs)


def everywhere(scalar: Node, *shape: int) -> Node:
    shape = shape or (3, 4)
    return expand(reshape(scalar, *(1,) * len(shape)), *shape)


def cast(x: Node, *dtypes: DType) -> Node:
    for dtype in dtypes:
        x = elementwise(ops.CAST, x, dtype=dtype)
    return x


def contract(x: Node, y: Node, subscripts: str) -> Node:
    left, right, out = subscripts.replace("->", ",").split(",")
    numbers = {label: k for k, label in enumerate(dict.fromkeys(left + right))}
    extents = dict(zip(left + right, x.shape + y.shape, strict=True))
    attr = tuple(tuple(numbers[label] for label in term) for term in (left, right, out))
    return node(ops.CONTRACT, (x, y), attr, x.dtype, tuple(extents[label] for label in out))


def window(x: Node, axis: int, size: int, stride: int) -> Node:
    count = (x.shape[axis] - size) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    return node(ops.WINDOW, (x,), (axis, stride, 1), x.dtype, shape)


def joined(x: Node, y: Node) -> Node:
    """Two arrays one below the other, as `nd.concat` writes it."""
    rows, columns = x.shape[0] + y.shape[0], x.shape[1]
    position = expand(reshape(iota(rows), rows, 1), rows, columns)
    first = pad(x, (0, 1, rows), (0, 1, columns))
    second = pad(y, (x.shape[0], 1, rows), (0, 1, columns))
    return where(ew(ops.LT, position, const(x.shape[0], int64)), first, second)


def bits(x: np.ndarray) -> bytes:
    """The bytes of an array; the sign of a NaN means nothing."""
    if x.dtype.kind not in "biu":
        x = np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x)
    return x.tobytes()


V, W = leaf(0, 12), leaf(1, 12)
PLUS = ew(ops.ADD, *(node(ops.PARAMETER, (), k, float32) for k in (0, 1)))


def along_axis(slot: int, axis: int) -> Node:
    """Twelve numbers along one axis of a table."""
    shape = [1, 1]
    shape[axis] = 12
    return expand(reshape(leaf(slot, 12), *shape), 12, 12)


def size(root: Node) -> tuple[int, int]:
    """Elements worked on, and operations."""
    nodes = topological([root])
    working = [n for n in nodes if n.op.group not in ("leaf", "movement")]
    return sum(max(math.prod(i.shape) for i in n.inputs) for n in working), len(nodes)


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
    "permuting extents of 1": (
        reshape(permute(leaf(0, 3, 1, 4), 1, 0, 2), 3, 4),
        reshape(leaf(0, 3, 1, 4), 3, 4),
    ),
    "windows of one": (
        slice_(reshape(window(X, 1, 1, 2), 3, 2), (0, 1, 3), (1, 1, 1)),
        slice_(X, (0, 1, 3), (2, 2, 1)),
    ),
    "a repetition permuted": (
        reduce(ops.AMAX, permute(expand(leaf(0, 1, 12), 5, 12), 1, 0), 1),
        reshape(leaf(0, 1, 12), 12),
    ),
    "a repetition sliced": (
        expand(slice_(expand(leaf(0, 12, 1), 12, 5), (2, 3, 3), (4, -2, 2)), 3, 2),
        expand(slice_(leaf(0, 12, 1), (2, 3, 3), (0, 1, 1)), 3, 2),
    ),
    "a repetition reshaped": (
        expand(reshape(expand(leaf(0, 1, 12), 3, 12), 3, 1, 12, 1), 3, 2, 12, 4),
        expand(reshape(leaf(0, 1, 12), 1, 1, 12, 1), 3, 2, 12, 4),
    ),
    "a slice of a permuted pad": (
        slice_(permute(pad(X, (1, 1, 5), (0, 1, 4)), 1, 0), (0, 1, 4), (1, 1, 3)),
        permute(X, 1, 0),
    ),
    # parts
    "a slice inside a pad": (
        slice_(pad(X, (2, 1, 6), (1, 1, 7), fill=9), (3, 1, 2), (1, 1, 4)),
        slice_(X, (1, 1, 2), (0, 1, 4)),
    ),
    "a slice beside what was padded": (
        slice_(pad(X, (2, 1, 6), (1, 1, 7), fill=9), (0, 1, 6), (5, 1, 2)),
        everywhere(full(9, X), 6, 2),
    ),
    "a slice of spread elements": (
        slice_(pad(X, (1, 3, 9), (0, 1, 4)), (1, 3, 3), (0, 1, 4)),
        X,
    ),
    "a pad of a pad": (
        pad(pad(X, (2, 1, 6), (1, 2, 9), fill=9), (1, 2, 12), (-2, 1, 9), fill=9),
        pad(X, (5, 2, 12), (-1, 2, 9), fill=9),
    ),
    "a region written twice": (
        update(update(X, leaf(1, 2, 2), (0, 2), (1, 1)), leaf(1, 2, 2), (0, 2), (1, 1)),
        update(X, leaf(1, 2, 2), (0, 2), (1, 1)),
    ),
    "a region read after it was written": (
        slice_(update(X, leaf(1, 2, 2), (0, 2), (1, 1)), (0, 2, 2), (1, 1, 2)),
        leaf(1, 2, 2),
    ),
    "a region written back": (update(X, slice_(X, (0, 2, 2), (1, 1, 2)), (0, 2), (1, 1)), X),
    "the first of two that were joined": (
        slice_(joined(X, Y), (0, 1, 3), (1, 1, 2)),
        slice_(X, (0, 1, 3), (1, 1, 2)),
    ),
    "the second of two that were joined": (slice_(joined(X, Y), (3, 1, 3), (0, 1, 4)), Y),
    "joined with nothing": (joined(leaf(1, 0, 4), X), X),
    "positions below their number": (where(ew(ops.LT, iota(12), const(12, int64)), V, W), V),
    "positions at most the last": (where(ew(ops.LE, iota(12), const(11, int64)), V, W), V),
    "positions from the first": (
        where(ew(ops.LT, iota(12) * -1 + 11, const(0, int64)), V, W),
        W,
    ),
    "positions that are never": (where(ew(ops.EQ, iota(12) - 20, const(-8, int64)), V, W), W),
    "the first positions": (
        gather(X, slice_(iota(4), (0, 1, 3)), 1),
        slice_(X, (0, 1, 3), (0, 1, 3)),
    ),
    "every second row from the end": (
        gather(X, ew(ops.SUB, const(2, int64), iota(2) * 2), 0),
        slice_(X, (2, -2, 2), (0, 1, 4)),
    ),
    "one column": (
        gather(X, const(2, int64), 1),
        reshape(slice_(X, (0, 1, 3), (2, 1, 1)), 3),
    ),
    # arithmetic
    "arithmetic on repetitions": (
        ew(ops.SUB, ew(ops.EXP, expand(leaf(0, 12, 1), 12, 5)), expand(leaf(1, 12, 1), 12, 5)),
        expand(ew(ops.SUB, ew(ops.EXP, leaf(0, 12, 1)), leaf(1, 12, 1)), 12, 5),
    ),
    "arithmetic on scalars everywhere": (
        ew(ops.ADD, X, ew(ops.EXP, everywhere(S))),
        ew(ops.ADD, X, ew(ops.EXP, S)),
    ),
    "x ** 1": (ew(ops.POW, X, full(1.0, X)), X),
    "integer // 1": (ew(ops.FLOORDIV, I, full(1, I)), I),
    "integer * 0": (ew(ops.ADD, I, ew(ops.MUL, I, full(0, I))), I),
    "integer & 0": (ew(ops.OR, ew(ops.AND, B, FALSE), B), None),
    "(x + 2) + 3": (ew(ops.ADD, ew(ops.ADD, I, full(2, I)), full(3, I)), I + 5),
    "(x * 3) * 2**30": (
        ew(ops.MUL, ew(ops.MUL, I, full(3, I)), full(2**30, I)),
        ew(ops.MUL, I, full(3 * 2**30, I)),
    ),
    "max(x, x)": (ew(ops.MAX, X, X), X),
    "relu twice": (
        ew(ops.MAX, ew(ops.MAX, X, full(0.0, X)), full(0.0, X)),
        ew(ops.MAX, X, full(0.0, X)),
    ),
    "integer - itself": (ew(ops.ADD, I, ew(ops.SUB, I, I)), I),
    "x < x": (where(ew(ops.LT, X, X), X, Y), Y),
    "integer <= itself": (where(ew(ops.LE, I, I), X, Y), X),
    "x + -y": (ew(ops.ADD, X, ew(ops.NEG, Y)), ew(ops.SUB, X, Y)),
    "x - -y": (ew(ops.SUB, X, ew(ops.NEG, Y)), ew(ops.ADD, X, Y)),
    "-x + y": (ew(ops.ADD, ew(ops.NEG, X), Y), ew(ops.SUB, Y, X)),
    "-x * -y": (ew(ops.MUL, ew(ops.NEG, X), ew(ops.NEG, Y)), ew(ops.MUL, X, Y)),
    "-x / -y": (ew(ops.DIV, ew(ops.NEG, X), ew(ops.NEG, Y)), ew(ops.DIV, X, Y)),
    "|-x|": (ew(ops.ABS, ew(ops.NEG, X)), ew(ops.ABS, X)),
    "||x||": (ew(ops.ABS, ew(ops.ABS, X)), ew(ops.ABS, X)),
    "wider and back": (cast(X, float64, float32), X),
    "integer to float and back": (cast(I, float64, int32), I),
    "wider twice": (cast(I, int64, float32), cast(I, float32)),
    "truth to numbers": (cast(B, float16, int32), cast(B, int32)),
    "narrower twice": (cast(I, int16, uint8), cast(I, uint8)),
    "where(c, x, x)": (where(B, X, X), X),
    "where(c, where(c, x, y), y)": (where(B, where(B, X, ew(ops.NEG, Y)), Y), where(B, X, Y)),
    "where(c, x, where(c, y, z))": (where(B, X, where(B, S, Y)), where(B, X, Y)),
    "where(not c, x, y)": (where(ew(ops.NOT, B), X, Y), where(B, Y, X)),
    "where(c, true, false)": (where(B, TRUE, FALSE), B),
    "where(not c, true, false)": (where(ew(ops.NOT, B), TRUE, FALSE), ew(ops.NOT, B)),
    "not (x == y)": (ew(ops.NOT, ew(ops.EQ, X, Y)), ew(ops.NE, X, Y)),
    "not (i < 7)": (ew(ops.NOT, ew(ops.LT, I, full(7, I))), ew(ops.LE, full(7, I), I)),
    # reductions and contractions
    "a sum of repetitions": (
        reduce(ops.SUM, expand(leaf(0, 12, 1), 12, 8), 1),
        ew(ops.ADD, ew(ops.MUL, reshape(leaf(0, 12, 1), 12), full(8, X)), full(0.0, X)),
    ),
    "a sum of repeated integers": (
        reduce(ops.SUM, expand(leaf(2, 3, 1, 4, dtype=int32), 3, 7, 4), 0, 1),
        ew(ops.MUL, reshape(reduce(ops.SUM, leaf(2, 3, 1, 4, dtype=int32), 0), 4), full(7, I)),
    ),
    "a maximum of repetitions": (
        reduce(ops.AMAX, expand(leaf(0, 3, 1, 4), 3, 7, 4), 1, 2),
        reshape(reduce(ops.AMAX, leaf(0, 3, 1, 4), 2), 3),
    ),
    "a prefix of one": (
        node(ops.PREFIX, (leaf(0, 12, 1),), Prefix((PLUS,), (full(0.0, X),), 1), float32, (12, 1)),
        leaf(0, 12, 1),
    ),
    "one matrix for a batch": (
        contract(leaf(4, 4, 10, 30), expand(reshape(N, 1, 30, 50), 4, 30, 50), "bmk,bkn->bmn"),
        contract(leaf(4, 4, 10, 30), N, "bmk,kn->bmn"),
    ),
    "a batch of one matrix": (
        contract(M, expand(reshape(N, 1, 30, 50), 4, 30, 50), "mk,bkn->bmn"),
        expand(reshape(matmul(M, N), 1, 40, 50), 4, 40, 50),
    ),
    "maximum over one": (reduce(ops.AMAX, leaf(0, 3, 1, 4), 1), reshape(leaf(0, 3, 1, 4), 3, 4)),
    "product over one": (reduce(ops.PROD, leaf(0, 12, 1), 1), reshape(leaf(0, 12, 1), 12)),
}


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("name", SIMPLER)
def test_simpler_and_the_same_to_the_last_bit(name: str) -> None:
    before, expected = SIMPLER[name]
    (after,) = simplify([before])
    if expected is not None:
        assert after is expected
    assert size(after) < size(before)
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    (want,), (got,) = (evaluate([n], MEMORY, [2.5]) for n in (before, after))
    assert bits(got) == bits(want)


#: As many elements worked on, but by cheaper operations, or such that fuse.
CHEAPER = {
    "x / 8": (ew(ops.DIV, X, full(8, X)), ew(ops.MUL, X, full(0.125, X))),
    "x / -0.25": (ew(ops.DIV, X, full(-0.25, X)), ew(ops.MUL, X, full(-4, X))),
    "x ** 2": (ew(ops.POW, X, full(2.0, X)), ew(ops.MUL, X, X)),
    "integer ** 2": (ew(ops.POW, I, full(2, I)), ew(ops.MUL, I, I)),
    "a sum over one": (
        reduce(ops.SUM, leaf(0, 3, 1, 4), 1),
        ew(ops.ADD, reshape(leaf(0, 3, 1, 4), 3, 4), full(0.0, X)),
    ),
    "an outer product": (
        contract(leaf(0, 12), leaf(1, 12), "i,j->ji"),
        ew(ops.MUL, along_axis(0, 1), along_axis(1, 0)),
    ),
    "picked of what was made wider": (
        gather(cast(X, float64), cast(I, int64), 0),
        cast(gather(X, cast(I, int64), 0), float64),
    ),
}


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("name", CHEAPER)
def test_cheaper_and_the_same_to_the_last_bit(name: str) -> None:
    before, expected = CHEAPER[name]
    assert simplify([before]) == [expected]
    (want,), (got,) = (evaluate([n], MEMORY, [2.5]) for n in (before, expected))
    assert bits(got) == bits(want)


#: What looks like it could go, and what it would get wrong.
ACROSS = simplify([joined(X, Y)])[0]
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
    "x / 3": (ew(ops.DIV, X, full(3, X)), "1 / 3 is rounded"),
    "x / 2**20": (ew(ops.DIV, X, full(2**20, X)), "not a number of every float type"),
    "x ** 0.5": (ew(ops.POW, X, full(0.5, X)), "of minus infinity it is infinity, the root NaN"),
    "(x + 2) + 3": (ew(ops.ADD, ew(ops.ADD, X, full(2, X)), full(3, X)), "rounds twice"),
    "max(y, max(x, y))": (ew(ops.MAX, Y, ew(ops.MAX, X, Y)), "which of 0.0 and -0.0 is chosen"),
    "x <= x": (ew(ops.LE, X, X), "NaN is not"),
    "not (x < y)": (ew(ops.NOT, ew(ops.LT, X, Y)), "with NaN neither is less"),
    "narrower and back": (cast(X, float16, float32), "digits are lost"),
    "through a type too small": (cast(I, float32, int32), "digits are lost"),
    "saturates": (cast(I, float64, int8), "directly it would wrap"),
    "a sign lost": (cast(I, uint8, int64), "-1 becomes 255"),
    "sliced across two that were joined": (
        slice_(ACROSS, (2, 1, 3), (0, 1, 4)),
        "a row of each",
    ),
    "a pad of a cropped pad": (
        pad(pad(X, (-1, 1, 3), (0, 1, 4)), (1, 1, 5), (0, 1, 4)),
        "the row cut off must not come back",
    ),
    "a pad of another value": (
        pad(pad(X, (1, 1, 5), (0, 1, 4), fill=1), (1, 1, 7), (0, 1, 4), fill=2),
        "two frames",
    ),
    "read beside what was written": (
        slice_(update(X, leaf(1, 1, 4), (0, 1), (0, 1)), (1, 1, 2), (0, 1, 4)),
        "a reader of the old value would forbid to write in place",
    ),
    "gathered outside": (gather(X, iota(5), 1), "positions are clamped"),
    "positions on both sides": (ew(ops.LT, iota(12), const(11, int64)), "the last is not below"),
    "a sum of too many": (
        reduce(ops.SUM, expand(leaf(0, 12, 1), 12, 2**24 + 1), 1),
        "float32 has no such number",
    ),
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


#: Rules that use the freedom to add up in another order.
REASSOCIATING = {"_reduce_repetition", "_repeated_operand"}


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("seeds", [range(k, k + 25) for k in range(0, 200, 25)], ids=str)
def test_every_step_on_random_graphs_keeps_the_value(seeds: range) -> None:
    """Wherever a rule applies, both sides are the same for the evaluator."""
    steps: list[tuple[str, Node, Node]] = []

    class Watched(Rules):
        def apply(self, n: Node) -> Node | None:
            for inputs, rule in RULES._by_op.get(n.op, ()):
                if all(w is None or w is i.op for w, i in zip(inputs, n.inputs, strict=False)):
                    new = rule(n)
                    if new is not None and new is not n:
                        steps.append((rule.__name__, n, new))
                        return new
            return None

    for seed in seeds:
        case = random_case(seed)
        if any(n.dtype.kind == "complex" for n in topological(case.roots)):
            continue  # those are pairs of numbers before they are simplified
        steps.clear()
        rewrite(case.roots, Watched("watched"))
        for rule, before, after in steps:
            assert (after.shape, after.dtype) == (before.shape, before.dtype), (seed, rule)
            for memory, sizes in zip(case.memory, case.sizes, strict=True):
                want, got = evaluate([before, after], memory, case.scalars, sizes)
                if rule in REASSOCIATING and before.dtype.is_float:
                    wide = [x.astype(np.float64) for x in (got, want)]
                    np.testing.assert_allclose(*wide, 1e-5, 1e-6, err_msg=f"{seed}: {rule}")
                else:
                    assert bits(got) == bits(want), (seed, rule)


def test_an_outer_product_fuses_into_what_reduces_it() -> None:
    product = contract(leaf(0, 12), leaf(1, 12), "i,j->ij")
    powers = ew(ops.EXP, ew(ops.SUB, product, along(ops.AMAX, product, 1)))
    softmax = ew(ops.DIV, powers, along(ops.SUM, powers, 1))
    assert len(fuse([softmax]).groups) == 2
    assert len(fuse(simplify([softmax])).groups) == 1


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
    for before, _ in (*SIMPLER.values(), *CHEAPER.values()):
        for n in topological([before]):
            for inputs, rule in RULES._by_op.get(n.op, ()):
                fits = all(w is None or w is i.op for w, i in zip(inputs, n.inputs, strict=False))
                if fits and rule(n) not in (None, n):
                    applied.add(rule)
    every = {rule for rules in RULES._by_op.values() for _, rule in rules}
    assert {r.__name__ for r in every - applied} == set()
