"""Which products are fused with a sum follows from the expression, not the kernel around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional

WIDTH = 48


def turned(x: Any, c: Any, s: Any) -> Any:
    a, b = functional.chunk(x, 2, -1)
    return functional.cat([a * c - b * s, b * c + a * s], -1)


def gated(x: Any, c: Any, s: Any) -> Any:
    a, b = functional.chunk(x, 2, -1)
    product = a * b  # used three times
    return (product * c + product) - functional.relu(b - product) * s


def normalised(x: Any, c: Any, s: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    near = x - mean * 0.5
    scale = functional.rsqrt((near * near).mean(-1, keepdim=True) + 1e-5)
    return functional.cat([c - near[:, :24] * scale, near[:, 24:] * scale * s + c], -1)


def softmax(x: Any, c: Any, s: Any) -> Any:
    return functional.softmax(x * 0.37 - functional.cat([c, s], -1) * x, -1) * x - 0.125 * x


@pytest.mark.parametrize("function", [turned, gated, normalised, softmax])
def test_one_row_rounds_as_many(function: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    x, c, s = (rng.standard_normal((40, n), dtype=np.float32) for n in (WIDTH, 24, 24))

    def of(rows: slice) -> Any:
        return function(*(genesis.tensor(v[rows].copy()) for v in (x, c, s))).numpy()

    whole = of(slice(0, 40))
    for first, count in ((0, 1), (7, 1), (3, 2), (5, 17)):
        rows = slice(first, first + count)
        np.testing.assert_array_equal(of(rows), whole[rows])


def test_a_product_that_is_used_twice_is_fused_in_both() -> None:
    rng = np.random.default_rng(1)
    x, y, z = (rng.standard_normal(64, dtype=np.float32) for _ in range(3))

    def both(a: Any, b: Any, c: Any) -> Any:
        product = a * b
        return functional.stack([product + c, c - product, product])

    exact = x.astype(np.float64) * y
    expected = np.stack([exact + z, z - exact, exact]).astype(np.float32)
    found = both(*map(genesis.tensor, (x, y, z))).numpy()
    np.testing.assert_array_equal(found, expected)


def test_the_difference_of_a_product_and_itself_is_zero() -> None:
    x = genesis.tensor(np.random.default_rng(2).standard_normal(64, dtype=np.float32))
    product = x * 0.3
    np.testing.assert_array_equal((product - product).numpy(), np.zeros(64, np.float32))


def test_nothing_is_left_to_llvm() -> None:
    """An instruction that may be contracted is, or is not, by what else is in the kernel."""
    x = genesis.ones(64, 48)

    def made(x: Any) -> Any:
        return functional.softmax(x * 1.5 + x, -1) @ (x - x * 0.5).T

    for kernel in genesis.explain(made, x).kernels:
        assert not {"contract", "reassoc", "fast", "afn"} & set(kernel.code.split())
