"""Numbers of formats, exactly: every code, every midpoint, packing at odd shapes, bad weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.compress import (
    FORMATS,
    Float,
    Format,
    Integer,
    Table,
    encode,
    from_codes,
    quantize,
)  # fmt: skip
from genesis.compress.codes import ROUNDINGS, element_values, nearest_values, rounded, values_of
from genesis.compress.format import ALL, ROW, named
from genesis.ir.dtype import as_dtype

ml_dtypes = pytest.importorskip("ml_dtypes")

#: Small floats by ml_dtypes' names.
FLOATS = {
    Float(2, 1): "float4_e2m1fn", Float(2, 3): "float6_e2m3fn", Float(3, 2): "float6_e3m2fn",
    Float(4, 3): "float8_e4m3fn", Float(5, 2): "float8_e5m2", Float(3, 4): "float8_e3m4",
}  # fmt: skip
INTEGERS = [FORMATS[f"{sign}int{bits}"].element for sign in ("", "u") for bits in range(1, 9)]
TABLES = [FORMATS[name].element for name in ("nf4", "fp4", "IQ4_NL", "MXFP4")]
DYNAMIC = named(FORMATS["nf4_nested"].scale, "").element  # type: ignore[arg-type]


@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_every_code_is_the_number_of_ml_dtypes(element: Float) -> None:
    every = np.arange(1 << element.bits, dtype=np.uint8)
    wanted = every.view(getattr(ml_dtypes, FLOATS[element])).astype(np.float32)
    np.testing.assert_array_equal(values_of(element), wanted)


def test_powers_of_two_are_those_of_ml_dtypes() -> None:
    exponents = np.arange(255, dtype=np.uint8)
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    np.testing.assert_array_equal(
        scales, exponents.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    )
    codes = encode(scales[:, None] * np.float32([[1, 0.5, -1]]), FORMATS["MXINT8"])
    matrix = from_codes(codes)
    np.testing.assert_array_equal(matrix.dequantize().numpy(), codes.decode())
    reached = np.clip(exponents.astype(int) - 6, 0, None)
    np.testing.assert_array_equal(codes.scale[:, 0], np.ldexp(np.float32(1), reached - 127))


def all_values(element: Any) -> Any:
    if isinstance(element, Integer):
        return np.arange(1 << element.bits, dtype=np.float32) - np.float32(element.zero)
    return values_of(element)


def around_midpoints(element: Any) -> Any:
    """All values, the middles of neighbours, and the float32 numbers on both sides of each."""
    values = all_values(element)
    values = np.unique(values[np.isfinite(values)])
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    x = np.concatenate([values, middles])
    sides = [np.nextafter(x, np.float32(s)) for s in (-np.inf, np.inf)]
    return np.concatenate([x, *sides, -x])


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS, *TABLES, DYNAMIC], ids=str)
def test_midpoints_and_their_neighbours_round_right(element: Any) -> None:
    x, values = around_midpoints(element), all_values(element).astype(np.float64)
    usable = np.where(np.isfinite(values), values, 1e30)
    codes = rounded(x, element)
    off = np.abs(x[:, None].astype(np.float64) - usable)
    np.testing.assert_array_equal(off[np.arange(len(x)), codes], off.min(1))
    tied = [set(np.flatnonzero(o == o.min())) for o in off]
    for code, near in zip(codes, tied, strict=True):  # of two, the even code of floats
        if isinstance(element, Float) and len({abs(values[c]) for c in near}) == 2:
            assert code % 2 == 0
    if isinstance(element, Float):
        top = np.nanmax(np.where(np.isfinite(values), values, np.nan))
        kind = getattr(ml_dtypes, FLOATS[element])
        wanted = np.clip(x, -top, top).astype(kind).view(np.uint8)
        np.testing.assert_array_equal(codes, wanted)


@pytest.mark.parametrize(
    "element", [*FLOATS, INTEGERS[0], INTEGERS[4], INTEGERS[7], *TABLES], ids=str
)
def test_programs_round_to_the_same_values(element: Any) -> None:
    x = np.concatenate([around_midpoints(element), 2 * around_midpoints(element)])
    wanted = element_values(rounded(x, element), element)
    found = genesis.jit(lambda x: nearest_values(x, element))(nd.array(x))
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("element", [Float(2, 1), Float(3, 2), *INTEGERS[:3], *TABLES], ids=str)
def test_other_roundings_give_the_neighbour_they_say(element: Any) -> None:
    values = all_values(element).astype(np.float64)
    finite = values[np.isfinite(values)]
    x = np.clip(around_midpoints(element), finite.min(), finite.max()).astype(np.float32)
    above = np.array([finite[finite >= v].min() for v in x.astype(np.float64)])
    below = np.array([finite[finite <= v].max() for v in x.astype(np.float64)])
    np.testing.assert_array_equal(values[rounded(x, element, rounding="up")], above)
    found = values[rounded(x, element, rounding="zero")]
    if 0 in finite:
        np.testing.assert_array_equal(found, np.where(x >= 0, below, above))
    draw = np.random.default_rng(0)
    tall = np.repeat(x[None], 1000, 0)
    drawn = values[rounded(tall, element, rounding="stochastic", draw=draw)]
    assert ((drawn == above) | (drawn == below)).all()
    width = np.maximum(above - below, 1e-30)
    assert (np.abs(drawn.mean(0) - x) / width).max() < 0.1  # six deviations of the mean


def test_rounding_has_a_known_name() -> None:
    assert ROUNDINGS == ("nearest", "zero", "up", "stochastic")
    with pytest.raises(ValueError, match="rounds nearest, zero, up, stochastic, not 'down'"):
        encode(np.ones((1, 32)), FORMATS["int4"], "down")
    a, b = (encode(np.full((1, 64), 0.3), FORMATS["int2"], "stochastic", s) for s in (1, 1))
    np.testing.assert_array_equal(a.codes, b.codes)


GROUPED = [name for name, format in FORMATS.items() if format.group]
MORE = ["int8/row", "int4/tensor", "float8_e4m3fn/row", "float8_e4m3fn/128x128", "int3/24"]
QUICK = ("int1", "NVFP4", "nf4_nested", "MXFP6_E3M2")


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in [*GROUPED, *MORE]],
)
@pytest.mark.parametrize("shape", [(1, 1), (33, 301), (2, 520)])
def test_packing_keeps_every_code_at_odd_shapes(name: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    codes = encode(x, named(name, "test"))
    wanted = codes.decode()[:, : shape[1]]
    matrix = quantize(genesis.tensor(x), name)
    assert matrix.shape == shape
    assert matrix.nbytes == codes.format.nbytes(-(-shape[0] // 32) * 32, shape[1])
    # Where a scale has a minimum of its own, kernels may round once and NumPy twice.
    limit = 3e-7 if name == "nf4_nested" else 0
    np.testing.assert_allclose(matrix.dequantize().numpy(), wanted, rtol=limit)
    rows = matrix.rows(genesis.tensor([shape[0] - 1])).numpy()
    np.testing.assert_allclose(rows, wanted[-1:], rtol=limit)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("sign", ["", "u"])
@pytest.mark.parametrize("groups", ["", "/row", "/8x16"])
def test_integers_are_off_by_at_most_half_a_scale(bits: int, sign: str, groups: str) -> None:
    x = np.random.default_rng(bits).standard_normal((9, 200)).astype(np.float32)
    x[1] = 0
    codes = encode(x, named(f"{sign}int{bits}{groups}", "test"))
    group = codes.format.group
    steps = np.repeat(codes.scale.astype(np.float32), group, 1)[:, :200]
    off = np.abs(codes.decode()[:, :200] - x)
    # A rounded scale may not reach the last code, and a zero is rounded by itself.
    reach = (1 << bits) * 2**-8 + (1 if sign and bits < 8 else 0.5 if sign else 0)
    assert (off <= steps * (0.5 + reach) + 1e-7).all()
    if not sign and bits > 1:
        inside = np.abs(x) <= steps * ((1 << bits - 1) - 1)
        assert (off <= steps * 0.5 * (1 + 1e-6))[inside].all()


def test_scales_of_rows_and_of_blocks_are_shared() -> None:
    x = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32)
    assert len(np.unique(encode(x, named("int8/tensor", "")).scale)) == 1
    assert len(np.unique(encode(x, named("int8/row", "")).scale)) == 10
    blocks = encode(x, named("float8_e4m3fn/4x32", "")).scale.astype(np.float32)
    wanted = [[np.abs(x[r // 4 * 4 : r // 4 * 4 + 4, c : c + 32]).max() for c in (0, 32)]
              for r in range(10)]  # fmt: skip
    np.testing.assert_allclose(blocks, np.array(wanted) / 448, rtol=2**-8)


@pytest.mark.parametrize("name", ["int4", "uint4", "MXFP4", "NVFP4", "Q4_K", "nf4_nested"])
def test_groups_of_zeros_and_weights_of_all_sizes(name: str) -> None:
    zeros = encode(np.zeros((2, 512)), FORMATS[name])
    assert not zeros.decode().any()
    for size in (1e-30, 1e-4, 1e3):
        x = np.float32(size) * np.random.default_rng(0).standard_normal((2, 512))
        off = np.abs(encode(x, FORMATS[name]).decode() - x)
        small = size < 1e-6 and name in ("Q4_K",)  # scales of 16 bits
        assert off.max() <= np.abs(x).max() * (1.01 if small else 0.25)


@pytest.mark.parametrize("name", ["int4", "Q4_K", "NVFP4", "nf4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_refused(name: str, bad: float) -> None:
    x = np.ones((2, 256), np.float32)
    x[1, 7] = bad
    with pytest.raises(ValueError, match="encode: 1 of the 512 weights are NaN or infinite"):
        encode(x, FORMATS[name])
    with pytest.raises(ValueError, match="NaN or infinite"):
        quantize(genesis.tensor(x), name)


def test_scales_that_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a scale of 7\.87e\+04 is too large for Q8_0, whose"):
        encode(np.full((1, 32), 1e7), FORMATS["Q8_0"])
    assert np.isfinite(encode(np.full((1, 32), 1e7), FORMATS["int8"]).decode()).all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (4,), (), (1, 2, 3, 4)])
def test_what_is_no_matrix_is_refused_with_its_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="quantize: takes a matrix with weights, not a tensor of"):
        quantize(genesis.ones(*shape), "int4")


def test_descriptions_that_mean_nothing_are_refused() -> None:
    for wrong, message in (
        (lambda: Integer(9), "Integer: has 1 to 8 bits, not 9"),
        (lambda: Float(5, 4), "at most 8 bits"),
        (lambda: Table((1.0, 2.0, 3.0)), "a power of two of numbers, not 3"),
        (lambda: Format("x", Integer(4), 32, "float64"), "a scale is bfloat16"),
        (lambda: Format("x", Integer(4), -3), "has groups of -3"),
        (lambda: Format("x", Integer(4), 32, FORMATS["Q4_K"]), "scales are floats"),
        (lambda: named("int4/5", "quantize"), "quantize: a group is a multiple of 8 values, not 5"),
        (lambda: named("int4/x", "quantize"), "quantize: groups are /64, /row, /tensor or"),
        (lambda: named("int9", "quantize"), "quantize: the formats are"),
        (lambda: named("Q4_K/64", "quantize"), "Q4_K has no groups of another size"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_sizes_and_rates_of_whole_rows() -> None:
    assert named("int8/row", "").group == ROW and named("int8/tensor", "").rows == ALL
    assert named("int8/row", "").nbytes(32, 4096) == 32 * (4096 + 2)
    assert FORMATS["NVFP4"].nbytes(32, 4096) == 32 * (2048 + 256 + 4)
    assert FORMATS["NVFP4"].fitted(100).span == 112
    assert FORMATS["nf4_nested"].fitted(1 << 20) == FORMATS["nf4_nested"]
    assert FORMATS["Q4_K"].fitted(32) == FORMATS["Q4_K"]  # superblocks of files keep their size
    assert as_dtype("bfloat16") and replace(FORMATS["int4"], group=64) == named("int4/64", "")
