"""Formats: numbers as the reference has them, products within what rounding allows, same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import genesis
from genesis.compress import (
    FORMATS,
    Codes,
    Format,
    Integer,
    QuantizedTensor,
    encode,
    from_codes,
    quantize,
)
from genesis.compress.bit_packing import PackedLayout
from genesis.compress.codes import bytes_of, values_of

#: What differs most; the others are run with `-m slow`.
QUICK = ("uint4", "int6", "Q5_1", "Q2_K", "Q4_K", "Q6_K", "MXFP4")
GROUPED = [n for n, f in FORMATS.items() if f.group]
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in GROUPED]
INTEGERS = [p for n, p in zip(GROUPED, NAMES, strict=True) if FORMATS[n].integers]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_codes(format: Format, rows: int, k: int, seed: int = 0) -> Codes:
    """Every code and every step of a scale, at random."""
    format = format.fitted(k)
    rng = np.random.default_rng(seed)

    def floats(kind: str | Format | None, count: int, sign: float = 1) -> Any:
        if isinstance(kind, Format):
            most = 1 << kind.bits if isinstance(kind.element, Integer) else 127
            steps = rng.integers(0, most, (rows, count)).astype(np.uint8)
            few = count // kind.group
            return Codes(
                kind, steps, floats(kind.scale, few, sign), minimum=floats(kind.minimum, few)
            )
        if kind in ("e8m0", "e8m0_half"):
            return np.ldexp(np.float32(1), rng.integers(-127, 3, (rows, count)))
        if kind is None:
            return None
        dtype = getattr(genesis, str(kind)).numpy
        return (sign * rng.random((rows, count))).astype(dtype)

    groups = k // format.group
    bits = format.bits if isinstance(format.element, Integer) else 4
    codes = rng.integers(0, 1 << bits, (rows, k)).astype(np.uint8)
    zero = rng.integers(0, 1 << format.zero, (rows, groups)).astype(np.uint8)
    minimum = floats(format.minimum, groups, -1)
    scale = floats(format.scale, groups)
    return Codes(format, codes, scale, zero if format.zero else None, minimum)


@pytest.mark.parametrize("name", NAMES)
def test_packed_weights_are_those_of_the_reference(name: str) -> None:
    format = FORMATS[name].fitted(512)
    codes = random_codes(format, 45, 2 * format.span)
    matrix, floats = from_codes(codes), codes.decode()
    assert matrix.nbytes == format.nbytes(64, 2 * format.span)  # whole blocks of rows
    limit = 3e-7 if name == "nf4_nested" else 0  # whose scales are rounded once, or twice
    np.testing.assert_allclose(matrix.dequantize().numpy(), floats, rtol=limit)
    places = np.array([[44, 0], [31, 32]])
    found = matrix.rows(genesis.tensor(places)).numpy()
    np.testing.assert_allclose(found, floats[places], rtol=limit)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("shape", [(3, 512), (2, 7)])
def test_a_weight_is_the_nearest_of_those_its_group_can_have(
    name: str, shape: tuple[int, int]
) -> None:
    x = numbers(*shape) / 10
    x[0, :5] = 0
    codes = encode(x, FORMATS[name])
    filled = np.pad(x, ((0, 0), (0, codes.shape[1] - shape[1])))
    every = np.arange(1 << codes.format.bits, dtype=np.uint8)
    others = [
        replace(codes, codes=np.full_like(codes.codes, code)).decode().astype(np.float64)
        for code in every
    ]
    least = np.nanmin([np.where(np.isfinite(y), np.abs(y - filled), np.nan) for y in others], 0)
    off = np.abs(codes.decode().astype(np.float64) - filled)
    np.testing.assert_allclose(off, least, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", INTEGERS)
def test_products_are_as_near_as_rounded_activations_allow(name: str) -> None:
    format = FORMATS[name]
    codes = random_codes(format, 70, 2 * format.span, seed=1)
    matrix, weights = from_codes(codes), codes.decode().astype(np.float64)
    x = numbers(5, 2 * format.span, seed=2)
    y = matrix.linear(genesis.tensor(x)).numpy()
    grouped = np.abs(x).reshape(5, -1, format.group)
    bound = np.repeat(grouped.max(2) / 254, format.group, 1) @ np.abs(weights).T
    # Sums of codes and of minima are rounded by themselves.
    parts = np.abs(x) @ np.abs(weights).T + np.abs(y)
    assert (np.abs(y - x @ weights.T) <= bound + 1e-4 * parts.max()).all()
    for rows in (1, 3):  # the same bits with fewer rows
        alone = matrix.linear(genesis.tensor(x[:rows])).numpy()
        np.testing.assert_array_equal(alone, y[:rows])


@pytest.mark.parametrize("name", ["Q4_K", pytest.param("Q6_K", marks=pytest.mark.slow)])
def test_rows_have_the_same_bits_in_programs_for_any_number_of_them(name: str) -> None:
    matrix = from_codes(random_codes(FORMATS[name], 96, 512))
    x, known = numbers(24, 512), {}
    product = genesis.jit(matrix.linear)
    for rows in (1, 2, 5, 13, 24, 1):  # after three the number is symbolic
        for place, y in enumerate(product(genesis.tensor(x[:rows])).numpy()):
            np.testing.assert_array_equal(known.setdefault(place, y.copy()), y)


@pytest.mark.parametrize(
    "name", ["int8", "Q4_K", "MXFP4", pytest.param("uint4", marks=pytest.mark.slow)]
)
def test_products_with_chosen_matrices(name: str) -> None:
    format = FORMATS[name]
    k, rows, count = 2 * format.span, 40, 5
    codes = [random_codes(format, rows, k, seed) for seed in range(count)]
    each = [from_codes(c) for c in codes]
    values = genesis.functional.stack([x.values for x in each])
    several = QuantizedTensor(values, (count, rows, k), format)
    floats = np.stack([c.decode() for c in codes])
    np.testing.assert_array_equal(several.dequantize().numpy(), floats)
    x, chosen = numbers(3, 2, k), np.array([[4, 0], [2, 2], [1, 3]])
    y = several.picked(genesis.tensor(x), genesis.tensor(chosen)).numpy()
    for place in np.ndindex(3, 2):  # the same bits as with the one matrix
        alone = each[chosen[place]].linear(genesis.tensor(x[place][None])).numpy()
        np.testing.assert_array_equal(y[place], alone[0])
    report = genesis.explain(several.picked, genesis.tensor(x), genesis.tensor(chosen))
    assert any("four0" in str(kernel) for kernel in report.kernels)
    jitted = genesis.jit(several.picked)
    for n in (3, 5, 9):  # after which the number of rows is symbolic
        given = genesis.tensor(numbers(n, k)), genesis.tensor(np.arange(n) % count)
        many = jitted(*given).numpy()
        np.testing.assert_array_equal(many, several.picked(*given).numpy())
    for kernel in genesis.explain(jitted, *given).kernels:
        assert "out uint8" not in str(kernel)  # codes are taken apart where they are multiplied
    with pytest.raises(ValueError, match=r"picked: an input of \(2, 3\) does not fit"):
        several.picked(genesis.ones(2, 3), genesis.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"linear: is not for a tensor of \(5, 40"):
        several.linear(genesis.ones(2, k))


@pytest.mark.parametrize("group", [24, 128])
def test_groups_of_other_sizes(group: int) -> None:
    w, x = numbers(40, 250), numbers(2, 250, seed=1)
    matrix = quantize(genesis.tensor(w), "int4", group)
    assert PackedLayout(matrix.format).chunk == {24: 8, 128: 32}[group]
    want = x @ matrix.dequantize().numpy().T
    np.testing.assert_allclose(matrix.linear(genesis.tensor(x)).numpy(), want, atol=0.3)
    np.testing.assert_allclose(matrix.dequantize().numpy(), w, atol=np.abs(w).max() / 13)


@pytest.mark.parametrize("name", ["int4", "int6", "Q4_K", "IQ4_XS", "MXFP4"])
def test_a_product_is_one_kernel_of_byte_products(name: str) -> None:
    format = FORMATS[name].in_groups(128) if name == "int4" else FORMATS[name]
    matrix = from_codes(random_codes(format, 64, 512))
    report = genesis.explain(matrix.linear, genesis.tensor(numbers(1, 512)))
    text = str(report.kernels[-1])
    assert "four0" in text and text.count("uint8[") == 1  # quadruples; the weights and nothing else


@pytest.mark.parametrize("format", FORMATS.values(), ids=str)
def test_sizes_follow_from_the_description(format: Format) -> None:
    if format.group:
        format = format.fitted(512)
        codes = random_codes(format, 32, format.span)
        assert from_codes(codes).nbytes == format.nbytes(32, format.span)
        assert format.nbytes(32, format.span) * 8 == 32 * format.span * format.rate


@pytest.mark.parametrize("name", ["nf4", "fp4", "NVFP4", "MXFP4", "IQ4_NL"])
def test_tables_are_bytes_in_products(name: str) -> None:
    format = FORMATS[name]
    table, unit = bytes_of(format.element)
    values = values_of(format.element)
    off = np.abs(np.array(table) / unit - values).max() / np.abs(values).max()
    assert off <= (1 / 250 if name in ("nf4", "fp4") else 0)
    w = np.random.default_rng(0).standard_normal((40, 192)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((3, 192)).astype(np.float32)
    weight = quantize(genesis.tensor(w), name)
    wanted = x @ weight.dequantize().numpy().T
    found = weight.linear(genesis.tensor(x)).numpy()
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


FLOATS = ["float8_e4m3fn", "float8_e5m2", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E5M2"]


@pytest.mark.parametrize("name", FLOATS)
def test_products_with_floats_are_as_near_as_float32(name: str) -> None:
    format = FORMATS[name]
    codes = random_codes(format, 70, 96, seed=3)
    rng = np.random.default_rng(4)
    finite = np.flatnonzero(np.isfinite(values_of(format.element))).astype(np.uint8)
    codes = replace(codes, codes=rng.choice(finite, codes.codes.shape))  # tiny ones and all
    matrix, weights = from_codes(codes), codes.decode().astype(np.float64)
    for rows in (1, 3, 20):
        x = numbers(rows, 96, seed=rows)
        y = matrix.linear(genesis.tensor(x)).numpy()
        bound = 1e-6 * (np.abs(x) @ np.abs(weights).T) + 1e-18
        assert (np.abs(y - x @ weights.T) <= bound).all()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "MXFP6_E3M2", "float8_e4m3fn/row"])
def test_one_row_reads_the_bits_of_floats_and_what_follows_is_in_vectors(name: str) -> None:
    matrix, bias = quantize(genesis.tensor(numbers(64, 512)), name), genesis.tensor(numbers(64))
    report = genesis.explain(lambda x: matrix.linear(x, bias), genesis.tensor(numbers(1, 512)))
    (kernel,) = report.kernels
    assert "tile" in str(kernel) and "float32[64, 512]" not in str(kernel)


def test_codes_that_are_no_numbers_are_refused() -> None:
    codes = encode(numbers(2, 64), FORMATS["float8_e4m3fn"])
    broken = codes.codes.copy()
    broken[1, 3] = 0x7F
    with pytest.raises(ValueError, match=r"\(2, 64\) some are NaN or infinite"):
        from_codes(replace(codes, codes=broken))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "MXFP6_E2M3"])
def test_chosen_matrices_of_floats(name: str) -> None:
    w = genesis.tensor(numbers(4, 40, 64))
    matrices, x = quantize(w, name), numbers(6, 64)
    chosen = np.array([3, 0, 0, 2, 1, 3])
    wanted = np.einsum("mk,mnk->mn", x, matrices.dequantize().numpy()[chosen])
    found = matrices.picked(genesis.tensor(x), genesis.tensor(chosen)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
