"""Values put together from pieces, and kernels that become one for what they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import leaf, matmul, pad
from hypothesis import given
from hypothesis import strategies as st
from oracles import interpreted

import genesis
from genesis import ndarray as nd
from genesis.compiler.fuse.concatenation import pieces
from genesis.compiler.fuse.fuse import fuse
from genesis.ir import ops
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Node, elementwise


def joined(parts: list[Node], axis: int) -> Node:
    """The sum of parts, each padded to its own place along an axis."""
    extent = parts[0].shape[axis]
    assert isinstance(extent, int)
    total = extent * len(parts)
    padded = []
    for k, x in enumerate(parts):
        places: list[Any] = [(0, 1, e) for e in x.shape]
        places[axis] = (k * extent, 1, total)
        padded.append(pad(x, *places))
    result = padded.pop()
    while padded:
        result = elementwise(ops.ADD, padded.pop(), result)
    return result


@given(st.integers(2, 5), st.integers(0, 1), st.integers(1, 4), st.integers(1, 4), st.randoms())
def test_pieces_are_found_in_any_order(
    count: int, axis: int, rows: int, columns: int, random: Any
) -> None:
    parts = [elementwise(ops.EXP, leaf(k, rows, columns)) for k in range(count)]
    whole = joined(parts, axis)
    assert [x.inputs[0] for x in pieces(whole)] == parts
    memory = [np.float32([random.uniform(-1, 1) for _ in range(rows * columns)]) for _ in parts]
    (got,), (want,) = interpreted((whole,), memory), evaluate((whole,), memory, [])
    np.testing.assert_allclose(got, want, 1e-6)


def test_what_does_not_lie_side_by_side_has_no_pieces() -> None:
    x, y = leaf(0, 4, 3), leaf(1, 4, 3)
    left, right = pad(x, (0, 1, 4), (0, 1, 6)), pad(y, (0, 1, 4), (3, 1, 6))
    for other in (
        pad(y, (0, 1, 4), (2, 1, 6)),  # overlaps
        pad(y, (0, 1, 4), (3, 1, 6), fill=1.0),
        pad(leaf(1, 4, 2), (0, 1, 4), (3, 1, 6)),  # smaller, with a gap
        pad(leaf(1, 2, 3), (2, 1, 4), (3, 1, 6)),  # smaller in another direction
        pad(y, (0, 1, 4), (5, -1, 6)),  # backwards
        leaf(1, 4, 6),
    ):
        assert pieces(elementwise(ops.ADD, left, other)) == ()
    assert pieces(elementwise(ops.ADD, left, left)) == ()
    assert pieces(elementwise(ops.MUL, left, right)) == ()
    assert pieces(elementwise(ops.ADD, left, right)) == (left, right)


def test_a_kernel_visits_a_piece_and_stores_all() -> None:
    """What pieces have in common is computed once, by a kernel as large as one of them."""
    x, y = leaf(0, 8, 16), leaf(1, 8, 16)
    common = elementwise(ops.TANH, x)
    whole = joined([common * y, common + y, common - y], 1)
    (group,) = fuse((whole,)).groups
    assert [i.attr.extent for i in group.at] == [8, 16]
    # Where it is multiplied it lies in memory, and another result is made on the way.
    product = matmul(whole, leaf(2, 48, 8))
    groups = fuse((product, common)).groups
    assert [g.root for g in groups] == [whole, product]
    assert [n for n, _ in groups[0].also] == [common]


def test_zeros_keep_the_sign_that_a_sum_gives_them() -> None:
    x = nd.array(np.float32([[-0.0, 1.0], [0.0, -0.0]]))
    padded = [nd.pad(x, [(0, 0), pair]) for pair in ((0, 2), (2, 0))]
    got = (padded[0] + padded[1]).numpy()
    assert not np.signbit(got[got == 0]).any()


@pytest.mark.parametrize("gates", [2, 3, 4])
def test_the_gradient_of_a_split_is_one_kernel(gates: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((6, gates * 8)).astype(np.float32)
    x = genesis.tensor(values, requires_grad=True)

    def gradient(x: Any) -> Any:
        first, *others = map(genesis.tanh, genesis.chunk(x, gates, -1))
        for other in others:
            first = first * other
        (found,) = genesis.autograd.grad(first.sum(), [x])
        return found

    assert len(genesis.explain(gradient, x).kernels) == 1
    parts = np.tanh(values.astype(float).reshape(6, gates, 8))
    want = np.prod(parts, 1, keepdims=True) / parts * (1 - parts**2)
    np.testing.assert_allclose(gradient(x).numpy(), want.reshape(6, -1), 1e-4, 1e-6)


def test_kernels_that_need_the_same_value_become_one() -> None:
    x, y = leaf(0, 40, 50), leaf(1, 40, 50)
    costly = elementwise(ops.TANH, elementwise(ops.EXP, x))
    results = (costly * y, costly + y, costly)
    assert len(fuse(results).groups) == 1
    memory = [np.random.default_rng(k).standard_normal(2000).astype(np.float32) for k in (0, 1)]
    wanted = evaluate(results, memory, [])
    for got, want in zip(interpreted(results, memory), wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-5)


def test_kernels_that_wait_for_each_other_stay_apart() -> None:
    """The second needs a product of what the first makes."""
    x, w = leaf(0, 64, 64), leaf(1, 64, 64)
    costly = elementwise(ops.TANH, elementwise(ops.EXP, x))
    first = costly * w
    product = matmul(first, w)
    second = elementwise(ops.EXP, product) * costly
    last = elementwise(ops.SIN, second)
    roots = (first, last)
    groups = fuse(roots).groups
    makers = {n: g for g in groups for n in (g.root, *(m for m, _ in g.also))}
    assert makers[first] is not makers[last]
    memory = [np.random.default_rng(k).standard_normal(4096).astype(np.float32) for k in (0, 1)]
    memory = [m * np.float32(0.1) for m in memory]
    for got, want in zip(interpreted(roots, memory), evaluate(roots, memory, []), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.parametrize("rows", [1, 5, 64, 200])
@pytest.mark.parametrize("columns", [1, 2, 7, 40])
@pytest.mark.parametrize("turned", [False, True])
def test_products_sum_over_all_pieces(rows: int, columns: int, turned: bool) -> None:
    """Of pieces that are computed while they are multiplied; a mask in one says nothing of others.

    Numbers and constants are cheap enough to be computed at every place, masked ones as well.
    """
    rng = np.random.default_rng(0)
    kinds: list[Any] = [
        lambda m, n: m.arange(n) * 2.0,
        lambda m, n: m.ones(n),
        lambda m, n: m.where(m.arange(n) < 3, m.arange(n) * 1.0, 0.0),
        lambda m, n: m.where(m.arange(n) < 3, 5.0, m.arange(n) * 0.5),
    ]
    for chosen in [(0, 1), (1, 0), (2, 0, 1), (3, 2), (1, 2, 3, 0)]:
        weights = rng.standard_normal((len(chosen), columns)).astype(np.float32)
        pieces = [kinds[k](np, rows) for k in chosen]
        want = np.stack(pieces, -1) @ weights
        given = nd.array(np.ascontiguousarray(weights.T) if turned else weights)

        def product(given: nd.NDArray, chosen: Any = chosen) -> nd.NDArray:
            left = nd.stack([kinds[k](nd, rows).astype("float32") for k in chosen], -1)
            return left @ (given.T if turned else given)

        np.testing.assert_allclose(product(given).numpy(), want, 1e-4, 1e-4)
        wide = nd.pad(nd.stack([kinds[k](nd, rows).astype("float32") for k in chosen], -1),
                      [(0, 0), (1, 0)], 3.0)  # fmt: skip
        more = nd.concat([nd.ones((1, columns)), nd.array(weights)])
        np.testing.assert_allclose((wide @ more).numpy(), want + 3, 1e-4, 1e-4)
