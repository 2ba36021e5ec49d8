"""The checker accepts what is well formed and names what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from genesis.ir import ops
from genesis.ir.check import InvalidKernel, check
from genesis.ir.dtype import bool_, float32, float64, index, int32
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Buffer,
    Carry,
    If,
    Kernel,
    Let,
    Local,
    Loop,
    Merge,
    Phase,
    Reduce,
    Role,
    Scan,
    Stage,
    Statement,
    Store,
    fold,
)
from genesis.ir.kernel_builder import Builder, maximum, where
from genesis.ir.node import Node, const, elementwise, node

X = Buffer("x", float32, (8,))
Y = Buffer("y", float32, (8,), Role.OUTPUT)
R = Axis("r", AxisKind.GRID, 8)
V = Axis("v", AxisKind.TILE, 4)
ONE = const(1.0, float32)


def kernel(*body: Statement, buffers: tuple[Buffer, ...] = (X, Y), grid: Axis = R) -> Kernel:
    return Kernel("k", buffers, (), (), (Phase((grid,), body),))


def good() -> Kernel:
    """A kernel with every kind of statement."""
    k = Builder("good")
    M = k.symbol("M", low=1, high=100)
    p = k.param("p", float32)
    x, y = k.input("x", float32, M, 16), k.output("y", float32, M)
    r, v = k.grid("r", M), k.tile("v", 16)
    k.let("row", x[r, v] * p)
    stage = k.stage("s", float32, 16)
    k.store(stage, (v,), x[r, v])
    (top,) = k.reduce(v, ops.MAX, top=stage[v])
    (prefix,) = k.scan(v, ops.ADD, prefix=stage[v])
    with k.loop("c", r + 1, merge=ops.ADD, acc=top) as (c, acc):
        k.step(acc=acc + where(c < 3, top, const(2.0, float32)))
    k.let("unused", maximum(prefix, acc))
    with k.when(r < 5):
        k.let("inner", top)
        k.store(y, (r,), acc)
    k.barrier()
    q = k.grid("q", M)
    k.store(y, (q,), x[q, 0], mask=q >= 5)
    return k.kernel()


def test_a_kernel_with_everything_is_valid() -> None:
    check(good())


def local(name: str, tiles: tuple[Axis, ...] = (), dtype: object = float32) -> Local:
    return Local(name, dtype, tiles)  # type: ignore[arg-type]


r, v = R.node, V.node
LOOP = Axis("c", AxisKind.LOOP, 4)
STAGE = Buffer("s", float32, (4,), Role.STAGE)
LET = Let(local("a"), ONE)
OTHER = local("other")

WRONG: dict[str, tuple[Callable[[], Kernel], str]] = {
    "grid axis outside its scope": (
        lambda: kernel(Store(Y, (Axis("q", AxisKind.GRID, 8).node,), ONE)), "uses axis q"),
    "grid axis with another extent": (
        lambda: kernel(Store(Y, (replace(R, extent=9).node,), ONE)), "uses axis r"),
    "loop axis after its loop": (
        lambda: kernel(Loop(LOOP, ()), Store(Y, (LOOP.node,), ONE)), "uses axis c"),
    "loop axis in its own extent's init": (
        lambda: kernel(Loop(LOOP, (), (Carry(local("a", (), index), LOOP.node, LOOP.node),))),
        "uses axis c"),
    "loop inside a loop of its name": (
        lambda: kernel(Loop(LOOP, (Loop(LOOP, ()),))), "the name c is taken"),
    "loop over a tile axis": (lambda: kernel(Loop(V, ())), "v is a TILE axis, not LOOP"),
    "grid extent from data": (
        lambda: kernel(grid=replace(R, extent=Buffer("n", index, ())[()])), "not on symbols only"),
    "tile extent zero": (
        lambda: kernel(Store(Y, (Axis("z", AxisKind.TILE, 0).node,), ONE)), "not a positive int"),
    "two tile axes of one name": (
        lambda: kernel(Store(Y, (v + replace(V, extent=2).node,), ONE)), "the name v is taken"),
    "undefined local": (lambda: kernel(Store(Y, (r,), local("a").node)), "uses local a"),
    "local of another type": (
        lambda: kernel(LET, Store(Y, (r,), elementwise(
            ops.CAST, local("a", (), float64).node, dtype=float32))), "uses local a"),
    "local defined later": (lambda: kernel(Store(Y, (r,), local("a").node), LET), "uses local a"),
    "local that does not escape": (
        lambda: kernel(If(r < 1, (LET,)), Store(Y, (r,), local("a").node)), "uses local a"),
    "local defined twice": (lambda: kernel(LET, LET), "the name a is taken"),
    "local without its tile axis": (
        lambda: kernel(Let(local("a"), X[v])), "a lacks tile axes of its value: v"),
    "let of another type": (
        lambda: kernel(Let(local("a", (), int32), ONE)), "a is int32, its value float32"),
    "carried step of another type": (
        lambda: kernel(Loop(LOOP, (), (Carry(local("a"), ONE, const(1, index)),))),
        "a is float32, its step int64"),
    "carried step with more tile axes": (
        lambda: kernel(Loop(LOOP, (), (Carry(local("a"), ONE, X[v]),))),
        "a lacks tile axes of its step: v"),
    "float mask": (lambda: kernel(Store(Y, (r,), ONE, ONE)), "the mask of y is float32"),
    "int32 index": (
        lambda: kernel(Store(Y, (const(0, int32),), ONE)), "an index of y is int32, not int64"),
    "too few indices": (lambda: kernel(Store(Y, (), ONE)), "y has 1 dimensions, indexed with 0"),
    "load with too many indices": (
        lambda: kernel(Store(Y, (r,), node(
            ops.LOAD, (r, r, const(True, bool_), ONE), X, float32))), "loaded otherwise"),
    "masked load with another type": (
        lambda: kernel(Store(Y, (r,), X.load(r, mask=r < 3, other=const(0, index)))),
        "masked-off loads is int64"),
    "store to an input": (lambda: kernel(Store(X, (r,), ONE)), "stores to the input x"),
    "store of another type": (
        lambda: kernel(Store(Y, (r,), const(1, int32))), "stores int32 in a float32 buffer"),
    "atomic division": (
        lambda: kernel(Store(Y, (r,), ONE, atomic=ops.DIV)), "div is not an atomic operation"),
    "undeclared buffer": (
        lambda: kernel(Store(Y, (r,), Buffer("z", float32, (8,))[r])), "accesses z"),
    "buffer of another shape": (
        lambda: kernel(Store(Y, (r,), replace(X, shape=(9,))[r])), "accesses x"),
    "buffer names twice": (lambda: kernel(buffers=(X, Y, X)), "the name x is taken"),
    "stage as an argument": (lambda: kernel(buffers=(STAGE,)), "is an argument"),
    "stage before its statement": (
        lambda: kernel(Store(STAGE, (v,), ONE), Stage(STAGE)), "accesses s"),
    "stage after its body": (
        lambda: kernel(If(r < 1, (Stage(STAGE),)), Store(STAGE, (v,), ONE)), "accesses s"),
    "stage of a variable size": (
        lambda: kernel(Stage(replace(STAGE, shape=(r,)))), "layout of a stage is constant"),
    "strides of another rank": (
        lambda: kernel(buffers=(replace(X, strides=(1, 1)), Y)), "1 dimensions and 2 strides"),
    "undeclared symbol": (
        lambda: kernel(Store(Y, (r,), ONE, r < Builder("b").symbol("N"))), "uses symbol N"),
    "undeclared param": (
        lambda: kernel(Store(Y, (r,), Builder("b").param("p", float32))), "uses param p"),
    "tiled condition": (lambda: kernel(If(v < 2, ())), "the condition depends on tile axes: v"),
    "float condition": (lambda: kernel(If(ONE, ())), "the condition is float32"),
    "tiled loop extent": (
        lambda: kernel(Loop(replace(LOOP, extent=v), ())), "the extent depends on tile axes: v"),
    "reduced axis in the result": (
        lambda: kernel(Reduce((local("a", (V,)),), (X[v],), V, fold(ops.ADD, float32))),
        "still has the reduced axis v"),
    "scan without its axis": (
        lambda: kernel(Scan((local("a"),), (X[v],), V, fold(ops.ADD, float32))),
        "a lacks tile axes of its value: v"),
    "merge of another type": (
        lambda: kernel(Reduce((local("a"),), (X[v],), V, fold(ops.ADD, int32))),
        "not like the merged values"),
    "merge with a stranger": (
        lambda: kernel(LET, Reduce((local("b"),), (X[v],), V, Merge(
            (local("left"),), (local("right"),), (local("left").node + local("a").node,)))),
        "merge mentions a, which is neither"),
    "merge with a load": (
        lambda: kernel(Reduce((local("b"),), (X[v],), V, Merge(
            (local("left"),), (local("right"),), (local("left").node + X[r],)))),
        "merge mentions"),
    "mixed operands": (
        lambda: kernel(Let(local("a"), node(ops.ADD, (ONE, const(1, index)), None, float32))),
        "mixes float32 and int64"),
    "comparison that is not bool": (
        lambda: kernel(Let(local("a"), node(ops.LT, (ONE, ONE), None, float32))), "not bool"),
    "square root of an integer": (
        lambda: kernel(Let(local("a", (), index), elementwise(ops.SQRT, r))), "is for floats"),
    "division of floats with floor": (
        lambda: kernel(Let(local("a"), elementwise(ops.FLOORDIV, ONE, ONE))), "is for integers"),
    "bits of a float": (
        lambda: kernel(Let(local("a"), elementwise(ops.NOT, ONE))), "is for integers and bool"),
    "bitcast to another width": (
        lambda: kernel(Let(local("a", (), index), elementwise(ops.BITCAST, ONE, dtype=index))),
        "another width"),
    "where with a number": (
        lambda: kernel(Let(local("a"), elementwise(ops.WHERE, ONE, ONE, ONE))),
        "has a condition of type float32"),
    "one operand too few": (
        lambda: kernel(Let(local("a"), elementwise(ops.ATAN2, ONE))), "has 1 operands"),
    "random of signed integers": (
        lambda: kernel(Let(local("a", (), index), elementwise(ops.RANDOM, r, r))), "uint64"),
    "pairs of signed integers": (
        lambda: kernel(Let(local("a", (), index), elementwise(ops.PAIRS, r, r))),
        "takes uint32 and gives float32"),
    "look-up of signed integers": (
        lambda: kernel(Let(local("a", (), index), elementwise(ops.LOOKUP, r, r, r))),
        "takes uint8 and two uint64"),
    "operation of the tensor graph": (
        lambda: kernel(Let(local("a"), node(ops.SUM, (ONE,), (0,), float32))),
        "is not an operation of kernels"),
    "expression with a shape": (
        lambda: kernel(Let(local("a"), node(ops.NEG, (ONE,), None, float32, (3,)))),
        "has shape (3,)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_names_what_is_wrong(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(InvalidKernel, match="kernel k") as error:
        check(build())
    assert message in str(error.value)


def test_message_shows_the_statement() -> None:
    with pytest.raises(InvalidKernel, match=r"kernel k: y\[r\] = x\[q\]: uses axis q"):
        check(kernel(Store(Y, (r,), X[Axis("q", AxisKind.GRID, 2).node])))


def test_scopes_side_by_side_may_use_the_same_names() -> None:
    body = (Let(local("a"), ONE), Store(Y, (LOOP.node,), local("a").node))
    check(kernel(Loop(LOOP, body), Loop(LOOP, body)))


def test_a_reduction_lets_tile_axes_flow_where_its_merge_does() -> None:
    """In an argmax the position has the axes of the compared value too."""
    W = Axis("w", AxisKind.TILE, 4)
    table = Buffer("t", float32, (4, 4))
    value = table[v, W.node]
    left = (local("l0"), local("l1", (), index))
    right = (local("r0"), local("r1", (), index))
    better: Node = right[0].node < left[0].node
    merge = Merge(left, right, (
        where(better, left[0].node, right[0].node), where(better, left[1].node, right[1].node),
    ))  # fmt: skip

    def argmax(tiles: tuple[Axis, ...]) -> Kernel:
        results = (local("best", (V,)), local("at", tiles, index))
        return kernel(Reduce(results, (value, W.node), W, merge), buffers=(table, Y))

    check(argmax((V,)))
    with pytest.raises(InvalidKernel, match="at lacks tile axes of its value: v"):
        check(argmax(()))


def test_deep_expressions_are_no_problem() -> None:
    total = X[r]
    for _ in range(5000):
        total = total + ONE
    check(kernel(Store(Y, (r,), total)))
