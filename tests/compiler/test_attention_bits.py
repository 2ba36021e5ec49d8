"""Attention over pages of a cache: the same bits however a text was cut into pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis.backends.cpu.runtime.runtime import get_num_threads, set_num_threads
from genesis.functional.attention import attention_and_totals


class Paged:
    """One layer's cache, keys transposed, and attention as a server runs it, in two forms."""

    def __init__(self, rng: Any, dtype: Any, heads: int, group: int, size: int, page: int) -> None:
        self.rng, self.dtype = rng, dtype
        self.heads, self.group, self.size, self.page = heads, group, size, page
        self.keys = self.array(40, heads, size, page)
        self.values = self.array(40, heads, page, size)
        self.prefill, self.decode = genesis.jit(self._prefill), genesis.jit(self._decode)

    def array(self, *shape: int) -> Any:
        return genesis.tensor(self.rng.standard_normal(shape, np.float32)).to(self.dtype)

    def _in_order(self, table: Any) -> tuple[Any, Any]:
        keys = self.keys[table].transpose(-4, -3).transpose(-1, -2)
        values = self.values[table].transpose(-4, -3)
        return tuple(x.reshape(*x.shape[:-3], -1, self.size) for x in (keys, values))

    def _seen(self, count: Any, at: Any) -> Any:
        return genesis.arange(count) <= at[:, None]

    def _prefill(self, query: Any, at: Any, table: Any) -> Any:
        """Rows of one text: query (rows, heads * group, size), table (pages,)."""
        keys, values = self._in_order(table)
        query = query.reshape(-1, self.heads, self.group, self.size).permute(1, 2, 0, 3)
        mask = self._seen(keys.shape[-2], at)
        found = attention_and_totals(query, keys[:, None], values[:, None], mask, scale=0.3)
        return [x.permute(2, 0, 1, 3) for x in found]

    def _decode(self, query: Any, at: Any, tables: Any) -> Any:
        """A row each of many texts: tables (rows, pages)."""
        keys, values = self._in_order(tables)
        query = query.reshape(-1, self.heads, self.group, self.size)
        mask = self._seen(keys.shape[-2], at)[:, None, None]
        return attention_and_totals(query, keys, values, mask, scale=0.3)

    def reference(self, query: Any, at: Any, table: Any) -> Any:
        """Attention in float64."""
        keys, values = (
            x.to(genesis.float32).numpy().astype(float) for x in (self.keys, self.values)
        )
        keys = keys[table].transpose(1, 0, 3, 2).reshape(self.heads, -1, self.size)
        values = values[table].transpose(1, 0, 2, 3).reshape(self.heads, -1, self.size)
        query = query.to(genesis.float32).numpy().astype(float)
        query = query.reshape(-1, self.heads, self.group, self.size)
        scores = np.einsum("nhgs,hks->nhgk", query, keys) * 0.3
        seen = np.arange(keys.shape[1]) <= at[:, None, None, None]
        weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        return np.einsum("nhgk,hks->nhgs", weights / weights.sum(-1, keepdims=True), values)


def numbers(found: Any) -> list[Any]:
    return [x.to(genesis.float32).numpy() for x in found]


def compare(cache: Paged, length: int, pieces: list[int], widths: list[int]) -> None:
    """All rows of a text at once, in pieces and one by one, with tables that may be too wide."""
    table = cache.rng.permutation(40)[: max(widths)]
    query, at = cache.array(length, cache.heads * cache.group, cache.size), np.arange(length)
    enough = -(-length // cache.page)
    whole = numbers(cache.prefill(query, genesis.tensor(at), genesis.tensor(table[:enough])))
    expected = cache.reference(query, at, table[:enough])
    tolerance = 1e-5 if cache.dtype is genesis.float32 else 2e-2
    np.testing.assert_allclose(whole[0], expected, rtol=tolerance, atol=tolerance)
    for width in (enough, *widths):
        if width < enough:
            continue
        for rows in pieces:
            for first in range(0, length, max(rows, length // 3)):  # some of them
                here = slice(first, min(first + rows, length))
                arguments = query[here], genesis.tensor(at[here])
                tables = np.broadcast_to(table[:width], (here.stop - first, width)).copy()
                found = [
                    cache.prefill(*arguments, genesis.tensor(table[:width])),
                    cache.decode(*arguments, genesis.tensor(tables)),
                ]
                for one in found:
                    for ours, theirs in zip(numbers(one), whole, strict=True):
                        shaped = ours.reshape(theirs[here].shape)
                        np.testing.assert_array_equal(shaped, theirs[here], strict=True)


SHAPES = [(2, 2, 16, 16), (1, 1, 64, 16), (2, 4, 64, 32), (1, 16, 32, 16), (1, 3, 80, 16),
          (1, 8, 128, 64), (1, 2, 256, 16), (1, 2, 32, 24)]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(shape, dtype, marks=() if k % 3 == j else pytest.mark.slow)
        for k, shape in enumerate(SHAPES)
        for j, dtype in enumerate([genesis.float32, genesis.bfloat16, genesis.float16])
    ],
)
def test_one_by_one_or_together(shape: tuple[int, ...], dtype: Any) -> None:
    cache = Paged(np.random.default_rng(sum(shape)), dtype, *shape)
    page = shape[-1]
    for length in (1, 23, 8 * page + 5):
        compare(cache, length, [1, 5, 24], [-(-length // page) + 1, 20])


@pytest.mark.parametrize("threads", [1, 2])
def test_long_texts(threads: int) -> None:
    """Several spans of keys, which different threads may have had."""
    before = get_num_threads()
    set_num_threads(threads)
    try:
        cache = Paged(np.random.default_rng(5), genesis.float32, 2, 2, 32, 16)
        compare(cache, 530, [1, 40, 300], [36])
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("form", ["prefill", "decode"])
def test_pages_are_looked_up_once(form: str) -> None:
    """Not for every key, and keys are multiplied as they lie; the kernels are proven."""
    cache = Paged(np.random.default_rng(6), genesis.float32, 2, 2, 32, 16)
    function: Callable[..., Any] = getattr(cache, f"_{form}")
    table = np.zeros(40, np.int64) if form == "prefill" else np.zeros((40, 40), np.int64)
    arguments = cache.array(40, 4, 32), genesis.tensor(np.arange(40)), genesis.tensor(table)
    report = genesis.explain(function, *arguments)
    assert report.proven
    text = report.kernels[0].scheduled
    inner = text[text.index("loop j <") :].splitlines()[1:3]
    assert not any("a2[" in line for line in inner), text


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("window", [None, 300])
def test_keys_that_no_row_sees_are_not_looked_at(rows: int, window: int | None) -> None:
    """Numbers that are none in spans that a mask hides change nothing: they weigh not even zero."""
    rng, heads, size, page = np.random.default_rng(7), 2, 32, 16

    def attend(query: Any, keys: Any, values: Any, first: Any, table: Any) -> Any:
        keys = keys[table].transpose(-4, -3).transpose(-1, -2).reshape(heads, 1, -1, size)
        values = values[table].transpose(-4, -3).reshape(heads, 1, -1, size)
        at = (first + genesis.arange(query.shape[2]))[:, None]
        place = genesis.arange(keys.shape[-2])
        seen = place <= at
        if window is not None:
            seen = seen & (place > at - window)
        return attention_and_totals(query, keys, values, seen)[0]

    program = genesis.jit(attend)
    for first, pages in ((0, 40), (900, 100), (901, 101), (1027, 128)):
        keys = rng.standard_normal((pages, heads, size, page), np.float32)
        values = rng.standard_normal((pages, heads, page, size), np.float32)
        query = rng.standard_normal((heads, 2, rows, size), np.float32)
        table = rng.permutation(pages)
        rest = genesis.tensor(np.array([first])), genesis.tensor(table)

        def run(query: Any, keys: Any, values: Any, first: Any, table: Any) -> Any:
            arrays = map(genesis.tensor, (query, keys, values))
            return program(*arrays, first, table).numpy()

        whole = run(query, keys, values, *rest)
        span = np.arange(pages * page) // 256
        hidden = span > (first + rows - 1) // 256
        if window is not None:
            hidden |= span < (first - window + 1) // 256
        at = table[np.flatnonzero(hidden) // page], np.flatnonzero(hidden) % page
        keys[at[0], :, :, at[1]] = values[at[0], :, at[1]] = np.nan
        np.testing.assert_array_equal(run(query, keys, values, *rest), whole, strict=True)
        assert hidden.any() and not np.isnan(whole).any()
    assert genesis.explain(program, *map(genesis.tensor, (query, keys, values)), *rest).proven
