"""Matrices without their zeros: products are those of the matrix, and only what stays is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional
from genesis.compress.pruning import masked
from genesis.compress.sparse import SparseTensor, sparse_linear

#: By how much of the greatest weight rounding is off.
FORMATS = {None: 0, "int8": 1 / 120, "int4/64": 1 / 6, "float8_e4m3fn": 1 / 14}
PATTERNS = ["64x32", "16x16", "8x4", "2:4", "1:4", "3:4", "4:8", "free"]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pruned(pattern: str, rows: int, k: int, density: float = 0.25) -> Any:
    w = numbers(rows, k)
    return w * masked(np.abs(w), pattern, density)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("format", [None, "int8", *(
    pytest.param(f, marks=pytest.mark.slow) for f in ("int4/64", "float8_e4m3fn"))])  # fmt: skip
def test_products_are_those_of_the_matrix(pattern: str, format: str | None) -> None:
    w = pruned(pattern, 64, 160)
    sparse = SparseTensor.of(genesis.tensor(w), pattern, format)
    dense = sparse.dense().numpy()
    assert np.abs(dense - w).max() <= FORMATS[format] * np.abs(w).max() + 1e-7
    assert ((dense == 0) | (w != 0)).all()
    bias = numbers(64, seed=2)
    for rows in ((1,), (3, 1), (2, 10)):  # one, few and many
        x = numbers(*rows, 160, seed=3)
        y = sparse.linear(genesis.tensor(x), genesis.tensor(bias)).numpy()
        wanted = x @ dense.T + bias
        assert y.shape == wanted.shape
        off = 0.02 * np.abs(wanted).max() if format else 1e-4  # inputs are rounded, too
        np.testing.assert_allclose(y, wanted, atol=off)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sizes_count_places_and_scales(pattern: str) -> None:
    w = pruned(pattern, 128, 512)
    plain, coded = SparseTensor.of(w, pattern), SparseTensor.of(w, pattern, "int8")
    kept = np.count_nonzero(w)
    assert 4 * kept < plain.nbytes < w.nbytes
    assert kept < coded.nbytes < plain.nbytes
    if pattern != "free":  # rows of which are filled up to the longest
        n, m = map(int, pattern.split(":")) if ":" in pattern else (1, 4)
        assert plain.density == pytest.approx(n / m, rel=0.02)
    if pattern == "2:4":  # two bits say where a weight belongs
        assert plain.nbytes * 8 == kept * (32 + 2)


def test_rows_that_are_no_whole_strips_and_rows_without_weights() -> None:
    w = pruned("2:4", 45, 36)
    w[7] = 0
    x = numbers(2, 36)
    for pattern in ("2:4", "free", "5x4", "45x36"):
        y = SparseTensor.of(w, pattern).linear(genesis.tensor(x)).numpy()
        np.testing.assert_allclose(y, x @ w.T, atol=1e-4)
    assert not SparseTensor.of(np.zeros((4, 4)), "2x2").dense().numpy().any()


def test_what_has_no_such_pattern_is_told() -> None:
    w = numbers(8, 8)
    for bad, pattern, message in [
        (w, "2:4", r"a matrix of \(8, 8\) has no pattern 2:4"),
        (w, "3x4", "has no pattern 3x4"), (w, "0x4", "has no pattern 0x4"),
        (w, "2:3", "has no pattern 2:3"), (w, "diagonal", "patterns are free, 2:4 and 64x64"),
        (w[0], "free", r"takes a matrix with weights, not \(8,\)"),
        (w[:0], "free", r"not \(0, 8\)"), (w * np.nan, "free", "some are NaN or infinite"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            SparseTensor.of(bad, pattern)
    with pytest.raises(ValueError, match="the formats are"):
        SparseTensor.of(w, "2x2", "int9")
    with pytest.raises(ValueError, match=r"an input of \(2, 3\) does not fit \(8, 8\)"):
        SparseTensor.of(w, "2x2").linear(genesis.ones(2, 3))


def test_a_product_in_a_short_text() -> None:
    w, bias, x = pruned("64x64", 128, 256), numbers(128), numbers(5, 256)
    product = sparse_linear("mk,nk[64x64]->mn; gelu", w, genesis.tensor(bias))
    wanted = functional.gelu(genesis.tensor(x @ w.T + bias)).numpy()
    np.testing.assert_allclose(product(genesis.tensor(x)).numpy(), wanted, atol=1e-4)
    coded = sparse_linear("mk,nk[64x64 int8]->mn", w)(genesis.tensor(x)).numpy()
    assert 0 < np.abs(coded - x @ w.T).max() < 0.5
    for bad in ("mk,nk->mn", "mk,nk[64x64]->nm", "mk,nk[2:4]->mn; nothing"):
        with pytest.raises(ValueError, match="a product is written as"):
            sparse_linear(bad, w)


@pytest.mark.parametrize("pattern", ["32x32", "2:4"])
def test_one_row_is_one_kernel_that_reads_what_is_stored(pattern: str) -> None:
    sparse, bias = SparseTensor.of(pruned(pattern, 128, 256), pattern), genesis.tensor(numbers(128))
    x = genesis.tensor(numbers(1, 256))
    report = genesis.explain(lambda x: functional.relu(sparse.linear(x, bias)), x)
    products = [str(k) for k in report.kernels if "float32" in str(k)]
    assert len(products) == 1 and "tile" in products[0]


def test_sums_go_along_blocks_whose_places_are_data() -> None:
    sparse = SparseTensor.of(pruned("8x8", 64, 1024, 0.5), "8x8")  # more blocks than columns in one
    report = genesis.explain(sparse.linear, genesis.tensor(numbers(16, 1024)))
    (text,) = (str(k) for k in report.kernels if "contract" in k.name)
    loops = [
        line.split()[3][:-1] for line in text.splitlines() if line.strip().startswith("loop k")
    ]
    assert loops[-2:] == ["64", "8"], text
