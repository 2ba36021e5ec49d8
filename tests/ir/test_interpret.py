"""The kernel interpreter: its semantics on small kernels, and every fault it must notice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from genesis.ir import ops
from genesis.ir.dtype import bool_, float32, int32, int64
from genesis.ir.interpret import KernelFault, Order, interpret
from genesis.ir.kernel import If, Kernel, Let, Local, Phase, Role, Store
from genesis.ir.kernel_builder import Builder, where
from genesis.ir.node import Node, const, elementwise

ORDERS: list[Order] = ["forward", "reverse", "shuffle"]


def fresh(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def test_tiles_broadcast_over_the_axes_they_do_not_mention() -> None:
    k = Builder("outer")
    a, b = k.input("a", float32, 3), k.input("b", float32, 4)
    y = k.output("y", float32, 3, 4)
    i, j = k.tile("i", 3), k.tile("j", 4)
    column = k.let("column", a[i] + 1.0)
    k.store(y, (i, j), column * b[j])
    out, x, z = fresh(3, 4), np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)
    interpret(k.kernel(), {"a": x, "b": z, "y": out})
    np.testing.assert_array_equal(out, np.outer(x + 1, z))


def test_carried_values_step_together() -> None:
    k = Builder("fibonacci")
    N = k.symbol("N")
    y = k.output("y", int64)
    with k.loop("n", N, a=k.const(0, int64), b=k.const(1, int64)) as (_, a, b):
        k.step(a=b, b=a + b)
    k.store(y, (), a)
    kernel = k.kernel()
    for n, want in [(0, 0), (1, 1), (10, 55)]:
        out = np.empty((), np.int64)
        interpret(kernel, {"y": out, "N": n})
        assert out == want


def test_masked_load_gives_other_and_does_not_touch_memory() -> None:
    k = Builder("shift")
    x, y = k.input("x", float32, 4), k.output("y", float32, 4)
    v = k.tile("v", 4)
    k.store(y, (v,), x.load(v - 1, mask=v > 0, other=k.const(9.0, float32)))
    out = fresh(4)
    interpret(k.kernel(), {"x": np.arange(4, dtype=np.float32), "y": out})
    np.testing.assert_array_equal(out, [9, 0, 1, 2])


def compose(left: Sequence[Node], right: Sequence[Node]) -> tuple[Node, Node]:
    """First left, then right, of maps ``x -> a*x + b``: associative, not commutative."""
    (a, b), (c, d) = left, right
    return a * c, b * c + d


@pytest.mark.parametrize("extent", [1, 2, 3, 5, 8, 13])
def test_reduce_and_scan_keep_the_order_of_a_general_merge(extent: int) -> None:
    k = Builder("compose")
    a, b = k.input("a", float32, 2, extent), k.input("b", float32, 2, extent)
    y, z = k.output("y", float32, 2, 2), k.output("z", float32, 2, extent)
    i, v = k.tile("i", 2), k.tile("v", extent)
    ra, rb = k.reduce(v, compose, ra=a[i, v], rb=b[i, v])
    _, sb = k.scan(v, compose, sa=a[i, v], sb=b[i, v])
    k.store(y, (i, 0), ra)
    k.store(y, (i, 1), rb)
    k.store(z, (i, v), sb)
    rng = np.random.default_rng(extent)
    factor, shift = rng.integers(-2, 3, (2, 2, extent)).astype(np.float32)
    total, prefixes = fresh(2, 2), fresh(2, extent)
    interpret(k.kernel(), {"a": factor, "b": shift, "y": total, "z": prefixes})
    for row in range(2):
        value = 0.0
        for n in range(extent):
            value = factor[row, n] * value + shift[row, n]
            assert prefixes[row, n] == value
        assert total[row, 0] == factor[row].prod()
        assert total[row, 1] == value


def test_reduce_counts_a_value_that_does_not_mention_the_axis() -> None:
    k = Builder("count")
    y = k.output("y", float32)
    (total,) = k.reduce(k.tile("v", 7), ops.ADD, total=k.const(2.0, float32))
    k.store(y, (), total)
    out = fresh()
    interpret(k.kernel(), {"y": out})
    assert out == 14


def test_params_symbols_and_branches() -> None:
    k = Builder("branch")
    N, p = k.symbol("N", low=2, high=8, multiple=2), k.param("p", float32)
    y = k.output("y", float32, N)
    r = k.grid("r", N)
    body = (
        If(
            r < 2,
            (Store(y, (r,), p),),
            (Store(y, (r,), elementwise(ops.NEG, p)),),
        ),
    )
    kernel = Kernel(
        "branch", (y,), k.kernel().params, k.kernel().symbols, (Phase((r.attr,), body),)
    )
    out = fresh(4)
    interpret(kernel, {"y": out, "N": 4, "p": 1.5})
    np.testing.assert_array_equal(out, [1.5, 1.5, -1.5, -1.5])
    with pytest.raises(ValueError, match=r"N = 3 is not a multiple of 2 in 2\.\.8"):
        interpret(kernel, {"y": fresh(3), "N": 3, "p": 1.5})


def test_layouts_apply_to_the_memory_given() -> None:
    k = Builder("transpose")
    x = k.buffer("x", float32, (3, 2), Role.INPUT, strides=(1, 4), offset=1)
    y = k.buffer("y", float32, (3, 2), Role.OUTPUT, strides=(-2, 1), offset=4)
    i, j = k.tile("i", 3), k.tile("j", 2)
    k.store(y, (i, j), x[i, j])
    memory, out = np.arange(8, dtype=np.float32), fresh(6)
    interpret(k.kernel(), {"x": memory, "y": out})
    np.testing.assert_array_equal(out.reshape(3, 2)[::-1], memory.reshape(2, 4)[:, 1:].T)


def test_stages_are_private_and_undefined_at_first() -> None:
    k = Builder("staged")
    x, y = k.input("x", float32, 2, 4), k.output("y", float32, 2, 4)
    r, v = k.grid("r", 2), k.tile("v", 4)
    s = k.stage("s", float32, 4, strides=(2,))
    k.store(s, (v,), x[r, v], mask=v < 4 - r)
    k.store(y, (r, v), s[3 - v])
    with pytest.raises(KernelFault, match="s is read where nothing was written"):
        interpret(k.kernel(), {"x": fresh(2, 4), "y": fresh(2, 4)})


def test_atomic_stores_combine() -> None:
    k = Builder("histogram")
    x = k.input("x", int64, 6)
    y = k.buffer("y", int32, (3,), Role.INOUT)
    b, v = k.grid("b", 2), k.tile("v", 3)
    k.store(y, (x[b * 3 + v],), k.const(1, int32), atomic=ops.ADD)
    counts = np.array([10, 0, 0], np.int32)
    interpret(k.kernel(), {"x": np.array([0, 2, 2, 2, 0, 2]), "y": counts})
    np.testing.assert_array_equal(counts, [12, 0, 4])


# ---- faults


def test_out_of_bounds_names_kernel_statement_and_point() -> None:
    k = Builder("edge")
    x, y = k.input("x", float32, 5), k.output("y", float32, 5)
    b, v = k.grid("b", 2), k.tile("v", 4)
    i = b * 4 + v
    k.store(y, (i,), x[i], mask=i < 5)
    with pytest.raises(KernelFault) as caught:
        interpret(k.kernel(), {"x": fresh(5), "y": fresh(5)})
    message = str(caught.value)
    assert "kernel edge: x has 5 elements in dimension 0, index 5" in message
    assert "y[((b * 4) + v)] =" in message
    assert "b=1" in message


def test_negative_indices_are_out_of_bounds() -> None:
    k = Builder("negative")
    x, y = k.input("x", float32, 4), k.output("y", float32, 4)
    v = k.tile("v", 4)
    k.store(y, (v,), x[v - 1])
    with pytest.raises(KernelFault, match="index -1"):
        interpret(k.kernel(), {"x": fresh(4), "y": fresh(4)})


def test_a_missing_output_element_is_reported() -> None:
    k = Builder("gap")
    y = k.output("y", float32, 2, 4)
    r, v = k.grid("r", 2), k.tile("v", 4)
    k.store(y, (r, v), k.const(0.0, float32), mask=v + r < 4)
    with pytest.raises(KernelFault, match=r"1 elements of y are never written.*\(1, 3\)"):
        interpret(k.kernel(), {"y": fresh(2, 4)})


def test_reading_an_unwritten_output_or_temporary() -> None:
    for role in (Role.OUTPUT, Role.TEMPORARY):
        k = Builder("early")
        t = k.buffer("t", float32, (2,), role)
        y = k.output("y", float32, 2)
        r = k.grid("r", 2)
        k.store(y, (r,), t[r])
        k.store(t, (r,), k.const(1.0, float32))
        arguments = {"y": fresh(2)} | ({"t": fresh(2)} if role is Role.OUTPUT else {})
        with pytest.raises(KernelFault, match="t is read where nothing was written"):
            interpret(k.kernel(), arguments)


@pytest.mark.parametrize("order", ORDERS)
def test_two_blocks_writing_one_element(order: Order) -> None:
    k = Builder("race")
    y = k.output("y", float32, 1)
    k.grid("b", 2)
    k.store(y, (0,), k.const(1.0, float32))
    with pytest.raises(KernelFault, match="y is written where another block writes"):
        interpret(k.kernel(), {"y": fresh(1)}, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_reading_what_another_block_writes(order: Order) -> None:
    k = Builder("neighbour")
    y = k.buffer("y", float32, (5,), Role.INOUT)
    b = k.grid("b", 4)
    k.store(y, (b,), y[b + 1])
    with pytest.raises(KernelFault, match=r"where another block (reads|writes)"):
        interpret(k.kernel(), {"y": fresh(5)}, order=order)


def test_a_barrier_makes_the_same_exchange_legal() -> None:
    k = Builder("exchange")
    x, y = k.input("x", float32, 4), k.output("y", float32, 4)
    t = k.temporary("t", float32, 4)
    b = k.grid("b", 4)
    k.store(t, (b,), x[b])
    k.barrier()
    c = k.grid("c", 4)
    k.store(y, (c,), t[3 - c])
    memory, out = np.arange(4, dtype=np.float32), fresh(4)
    interpret(k.kernel(), {"x": memory, "y": out}, order="reverse")
    np.testing.assert_array_equal(out, memory[::-1])


def test_one_store_writing_an_element_twice() -> None:
    k = Builder("twice")
    y = k.output("y", float32)
    x = k.input("x", float32, 2)
    k.store(y, (), x[k.tile("v", 2)])
    with pytest.raises(KernelFault, match="writes an element of y twice"):
        interpret(k.kernel(), {"x": fresh(2), "y": fresh()})


def test_writing_an_input() -> None:
    k = Builder("wrong")
    x = k.input("x", float32, 1)
    k.store(x, (0,), k.const(0.0, float32))
    with pytest.raises(KernelFault, match="x is an input"):
        interpret(k.kernel(), {"x": fresh(1)})


def test_names_do_not_escape_their_body() -> None:
    inside = Local("inside", float32)
    k = Builder("scope")
    y = k.output("y", float32)
    body = (
        If(const(True, bool_), (Let(inside, const(1.0, float32)),)),
        Store(y, (), inside.node),
    )
    kernel = Kernel("scope", (y,), (), (), (Phase((), body),))
    with pytest.raises(KernelFault, match="inside has no value here"):
        interpret(kernel, {"y": fresh()})


def test_arguments_are_checked() -> None:
    k = Builder("copy")
    N = k.symbol("N")
    x, y = k.input("x", float32, N), k.output("y", float32, N)
    r = k.grid("r", N)
    k.store(y, (r,), where(x[r] > 0.0, x[r], k.const(-math.inf, float32)))
    kernel = k.kernel()
    with pytest.raises(TypeError, match=r"missing \['y'\], unknown \['z'\]"):
        interpret(kernel, {"x": fresh(2), "z": fresh(2), "N": 2})
    with pytest.raises(ValueError, match=r"buffer y: wants shape \(2,\), not \(3,\)"):
        interpret(kernel, {"x": fresh(2), "y": fresh(3), "N": 2})
    with pytest.raises(TypeError, match="buffer x: wants an array of float32, not float64"):
        interpret(kernel, {"x": np.zeros(2), "y": fresh(2), "N": 2})
    with pytest.raises(ValueError, match="contiguous"):
        interpret(kernel, {"x": fresh(4)[::2], "y": fresh(2), "N": 2})
