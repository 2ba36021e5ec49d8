"""The formats of keys and values: what is lost, that nothing is copied, and pages that move."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import genesis
from genesis.functional.attention import attention_and_totals
from genesis.llm.decoder import Decoder
from genesis.llm.executor import Executor
from genesis.llm.kv_cache import FORMATS, Cache
from genesis.llm.loading import Settings
from genesis.llm.pages import Copy
from tests.llm.random_models import saved
from tests.llm.run_decoder import load

#: What a number may be off by, of the greatest of its token and head. Of fp8 it is half of the
#: last of four digits; the scales are rounded, too.
LOST = {"float32": 0, "bfloat16": 2**-8, "float16": 2**-11, "fp8": 2**-4, "int8": 0.5 / 127,
        "int4": 0.5 / 7}  # fmt: skip
#: What attention over independent normal numbers is off by, of the greatest value.
BOUNDS = {"float32": 1e-6, "bfloat16": 0.01, "float16": 0.002, "fp8": 0.04, "int8": 0.01,
          "int4": 0.12}  # fmt: skip
HEADS, GROUP, SIZE, PAGE, PAGES = 2, 4, 64, 16, 24


def filled(format: str, features: int = SIZE) -> tuple[Cache, Any, Any]:
    """A cache, and the keys and values that are in the pages 1 to 23, (places, heads, features)."""
    rng = np.random.default_rng(8)
    cache = Cache(0, PAGES + 1, HEADS, PAGE, features, format)
    places = np.arange(PAGE, PAGES * PAGE)
    keys, values = rng.standard_normal((2, len(places), HEADS, features), np.float32)
    keys[3], values[5, 1], keys[7, 0] = 0.0, 0.0, 1e4 * keys[7, 0]
    where = genesis.tensor(places // PAGE), genesis.tensor(places % PAGE)
    genesis.jit(cache.write)(genesis.tensor(keys), genesis.tensor(values), *where)
    return cache, keys, values


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("model")
    saved("gemma3", folder)
    return load(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_are_kept_as_well_as_their_bits_allow(format: str) -> None:
    cache, *written = filled(format)
    table = genesis.tensor(np.arange(1, PAGES))
    for found, wanted in zip(cache.read(table), written, strict=True):
        found = found.to(genesis.float32).numpy().transpose(1, 0, 2)
        peak = np.abs(wanted).max(-1, keepdims=True)
        assert (np.abs(found - wanted) <= LOST[format] * 1.01 * peak).all()
    each = sum(x[0].nbytes for x in cache.arrays) / (2 * HEADS * PAGE)
    assert each == FORMATS[format].token_bytes(SIZE)


@pytest.mark.parametrize("format", FORMATS)
def test_attention_decodes_on_the_way(format: str) -> None:
    """One row or many have the same bits, near those of float64, and no copy is written."""
    cache, keys, values = filled(format)
    rng = np.random.default_rng(9)
    keys[7, 0] = 0  # of a score that is greater than all others there is nothing to see
    cache.write(*(genesis.tensor(x[7:8]) for x in (keys, values)), *map(genesis.tensor, ([1], [7])))
    rows = 20
    query = rng.standard_normal((rows, HEADS * GROUP, SIZE), np.float32)
    first = (PAGES - 1) * PAGE - rows
    at, table = first + np.arange(rows), np.arange(1, PAGES)

    def masked(keys: Any, at: Any) -> Any:
        return genesis.arange(keys.shape[-2]) <= at[:, None]

    def together(query: Any, first: Any, table: Any) -> Any:
        keys, values = cache.read(table)
        query = query.reshape(-1, HEADS, GROUP, SIZE).permute(1, 2, 0, 3).to(keys.dtype)
        mask = masked(keys, first + genesis.arange(query.shape[2]))
        return attention_and_totals(query, keys[:, None], values[:, None], mask)[0]

    def alone(query: Any, at: Any, tables: Any) -> Any:
        keys, values = cache.read(tables)
        query = query.reshape(-1, HEADS, GROUP, SIZE).to(keys.dtype)
        mask = masked(keys, at)[:, None, None]
        return attention_and_totals(query, keys, values, mask)[0]

    piece = tuple(map(genesis.tensor, (query, np.array([first]), table)))
    texts = tuple(map(genesis.tensor, (query, at, np.tile(table, (rows, 1)))))
    found = together(*piece).to(genesis.float32).numpy().transpose(2, 0, 1, 3)
    by_row = alone(*texts).to(genesis.float32).numpy()
    np.testing.assert_array_equal(by_row, found)

    scores = np.einsum("rhgf,khf->rhgk", query.reshape(rows, HEADS, GROUP, SIZE), keys, dtype=float)
    seen = np.arange(len(keys)) <= at[:, None, None, None]
    weights = np.exp(np.where(seen, scores / math.sqrt(SIZE), -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    wanted = np.einsum("rhgk,khf->rhgf", weights, values)
    assert np.abs(found - wanted).max() <= BOUNDS[format] * np.abs(values).max()

    assert genesis.explain(together, *piece).proven
    report = genesis.explain(alone, *texts)
    assert report.proven
    assert report.peak_bytes < rows * keys.nbytes // 4  # of keys for every row there is no copy


@pytest.mark.parametrize("format", ["fp8", "int8", "int4"])
def test_what_is_no_number_stays_none(format: str) -> None:
    cache = Cache(0, 1, 1, PAGE, 8, format)
    x = np.ones((1, 1, 8), np.float32)
    for bad in (np.nan, np.inf):
        x[0, 0, 3] = bad
        cache.write(*[genesis.tensor(x)] * 2, genesis.tensor([0]), genesis.tensor([2]))
        keys, values = (y.numpy()[0] for y in cache.read(genesis.tensor([0])))
        assert np.isnan(keys[2]).any() and np.isnan(values[2]).any()
        assert not np.isnan(np.delete(keys, 2, 0)).any()


def test_formats_that_there_are() -> None:
    with pytest.raises(ValueError, match="even size"):
        Cache(0, 1, 1, PAGE, 7, "int4")
    with pytest.raises(ValueError, match="cache_format is 'int3', none of float32"):
        Settings(cache_format="int3")


@pytest.mark.parametrize("format", ["bfloat16", "int8"])
def test_pages_move_with_their_scales(decoder: Decoder, format: str) -> None:
    executor = Executor(decoder, [3] * len(decoder.config.windows), PAGE, format)
    rng = np.random.default_rng(10)
    for cache in executor.caches:
        for x in cache.arrays:
            x[:] = genesis.tensor(rng.integers(0, 90, x.shape)).to(x.dtype)
    there = executor.read(0, 1)
    size = Executor.page_bytes(decoder.config, 0, PAGE, format)
    assert len(there) == size and executor.read(0, 2) != there
    executor.write(0, 2, there)
    assert executor.read(0, 2) == there
    executor.copy_pages([Copy(0, 2, 0)])
    assert executor.read(0, 0) == there != executor.read(0, 3)
