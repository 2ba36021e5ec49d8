"""Graphs that differ in sizes that data decided share a program, and are right for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from genesis import ndarray as nd
from genesis.ir.dtype import float32
from genesis.ndarray.core import data_dependent_sizes


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is noted, and no graph known, before a test."""
    monkeypatch.setattr(data_dependent_sizes, "noted", {})
    monkeypatch.setattr(data_dependent_sizes, "_families", {})
    yield


def _compiled(sizes: list[tuple[int, int]], noted: bool) -> list[int]:
    found = []
    for n, m in sizes:
        if noted:
            data_dependent_sizes.note(n)
        x = np.random.default_rng(n).standard_normal((n, m)).astype(np.float32)
        before = nd.statistics().compiled
        a = nd.array(x)
        got = nd.concat([a[1:] * 2, a[:1]]).reshape(-1) + nd.sum(a) / n
        want = np.concatenate([x[1:] * 2, x[:1]]).reshape(-1) + x.sum() / n
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
        found.append(nd.statistics().compiled - before)
    return found


def test_noted_sizes_are_symbols_from_the_third_on() -> None:
    counts = _compiled([(n, 7) for n in (31, 17, 23, 40, 5, 90, 1, 2)], noted=True)
    assert all(counts[:3])
    assert not any(counts[3:6])


def test_other_sizes_have_programs_of_their_own() -> None:
    assert all(_compiled([(n, 9) for n in (31, 17, 23, 40)], noted=False))
    # The second size was not decided by data, and is no function of the first.
    assert all(_compiled([(32, 11), (18, 13), (24, 15), (41, 16)], noted=True))


def test_a_size_that_follows_from_another() -> None:
    found = []
    for n in (12, 25, 31, 44, 60):
        data_dependent_sizes.note(n)
        before = nd.statistics().compiled
        x = nd.arange(2 * n + 3).astype(float32)
        got = nd.sum(x.reshape(1, -1) + nd.ones((n, 1)), axis=1)
        want = np.full(n, np.arange(2 * n + 3).sum() + 2 * n + 3, np.float32)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)
        found.append(nd.statistics().compiled - before)
    assert not any(found[3:])
