"""Variances in one pass over memory: down columns, and over rows that lie in runs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.runtime import runtime
from genesis.ndarray.tracing.explain import explain
from genesis.ndarray.tracing.jit import jit

#: More than the caches of a core, with rows and columns that end inside of tiles.
ROWS, COLUMNS = 2101, 1031


def scheduled(function: Any, *args: Any) -> str:
    (kernel,) = explain(jit(function), *args).kernels
    return kernel.scheduled


def table() -> np.ndarray[Any, Any]:
    """Columns of many kinds."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, COLUMNS), np.float32)
    x[:, 1] += 1e4  # far from zero
    x[0, 2] = 1e6  # the first is far from all others
    x[-1, 3] = -1e6
    x[:, 4] = 3.7
    x[:, 5] = np.arange(ROWS)
    x[:, 6] *= 1e-20
    x[:, 7] *= 1e15
    x[17, 8] = np.nan
    x[18, 9] = np.inf
    return x


def test_columns_are_read_once() -> None:
    text = scheduled(lambda x: nd.var(x, 0), nd.zeros((ROWS, COLUMNS)))
    parts, rest = text.split("barrier")
    assert "part_mean" in parts and "part_squares" in parts
    assert "a0[" in parts
    rows = re.findall(r"a0\[([^,]*),", rest)
    assert all(re.fullmatch(r"\(\w+ \* 64\)", row) for row in rows), "the first of every part"


@pytest.mark.parametrize("correction", (0, 1))
def test_variance_of_columns(correction: int) -> None:
    x = table()
    with np.errstate(invalid="ignore"):
        want = np.var(x.astype(np.float64), 0, ddof=correction)
    got = nd.var(nd.array(x), 0, correction=correction).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[10:], want[10:], 2e-6)
    np.testing.assert_allclose(got[:8], want[:8], 2e-5, atol=1e-9)


def test_means_of_columns_come_with_their_variance() -> None:
    x = table()
    want = [f(torch.from_numpy(x).double(), 0).numpy() for f in (torch.mean, torch.var)]
    got = genesis.jit(lambda x: (nd.mean(x, 0), nd.var(x, 0)))(nd.array(x))
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, 2e-5, 1e-6)


def test_the_number_of_threads_changes_nothing() -> None:
    x = nd.array(table())
    results = []
    before = runtime.get_num_threads()
    try:
        for threads in (1, 2):
            runtime.set_num_threads(threads)
            results.append(nd.var(x + 0, 0).numpy())
    finally:
        runtime.set_num_threads(before)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("shape", [(37, 5, 61, 67), (300, 3, 1031)])
def test_batch_norm_of_runs(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(shape) * 3 + 50).astype(np.float32)
    weight, bias = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    grad = rng.standard_normal(shape).astype(np.float32)

    def results(lib: Any, number: Any) -> list[Any]:
        xs = [number(a).requires_grad_() for a in (x, weight, bias)]
        out = lib.nn.functional.batch_norm(xs[0], None, None, xs[1], xs[2], True)
        out.backward(number(grad))
        return [a.detach().numpy() for a in (out, *(a.grad for a in xs))]

    want = results(torch, lambda a: torch.from_numpy(a.astype(np.float64)))
    for ours, theirs in zip(results(genesis, genesis.tensor), want, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4 * np.abs(theirs).max())


def test_the_gradients_of_a_batch_norm_are_one_kernel() -> None:
    """Those of the weights need the sums that those of the input need."""
    x = nd.zeros((16, 64, 45, 46))

    @jit
    def gradients(x: Any, weight: Any, bias: Any, grad: Any) -> Any:
        xs = [genesis.tensor(a).requires_grad_() for a in (x, weight, bias)]
        out = genesis.nn.functional.batch_norm(xs[0], None, None, xs[1], xs[2], True)
        return genesis.autograd.grad(out, xs, genesis.tensor(grad))

    assert len(explain(gradients, x, nd.zeros(64), nd.zeros(64), x + 0).kernels) == 1


def test_runs_are_reduced_in_the_order_of_memory() -> None:
    x = np.random.default_rng(2).standard_normal((70, 33, 517)).astype(np.float32)
    text = scheduled(lambda x: nd.mean(x, (0, 2)), nd.array(x))
    assert "partial0" in text.split("barrier")[0]
    got = nd.mean(nd.array(x), (0, 2)).numpy()
    np.testing.assert_allclose(got, x.astype(np.float64).mean((0, 2)), 1e-4, 1e-6)
