"""Block formats: every bit as the package `gguf` has it, and parts that are the same numbers."""

import hashlib
from typing import Any

import numpy as np
import pytest

from genesis import compress
from genesis.compress import Codes, Format, Integer
from genesis.compress.codes import values_of
from genesis.ir.dtype import as_dtype
from genesis.weights.gguf_encode import encode
from genesis.weights.gguf_types import BY_NAME, TYPES, packed_blocks

BLOCKS = [name for name, format in BY_NAME.items() if format.unpack is not None]
COUNT = 200

#: Of the floats in `random_blocks`, with NaN as 0, as the package `gguf` 0.19 makes them.
DIGESTS = {
    "Q4_0": "58240162c81e4a3f", "Q4_1": "8986ac3f84a15521", "Q5_0": "ea53375b0e866291",
    "Q5_1": "49aa581746c58429", "Q8_0": "9487590fa0b1f558", "Q2_K": "73ea67a0263908bf",
    "Q3_K": "c0ae10d45f585ffc", "Q4_K": "dee80ffc6be135b3", "Q5_K": "2c62081c4f37e264",
    "Q6_K": "a442c2111f1fa964", "IQ4_NL": "f347d0bca2652c70", "IQ4_XS": "f7a38bd65142c8ef",
    "MXFP4": "ae80abb700251019", "TQ1_0": "717ce83b03da6038", "TQ2_0": "141344af5af1ffea",
    "IQ2_XXS": "a7b740ecffdaeccb",
    "IQ2_XS": "30c3e99e3a5b654c",
    "IQ2_S": "7021730c03a9965b",
    "IQ3_XXS": "03359e56c182b8ec",
    "IQ3_S": "25734b4e205b3101",
    "IQ1_S": "f4da35a4200ccf3a",
    "IQ1_M": "427463bee26ade9b",
    "NVFP4": "4cbb99c8cd09df56",
}  # fmt: skip


def random_blocks(name: str) -> Any:
    size = BY_NAME[name].size
    octets = np.random.RandomState(7).bytes(COUNT * size)
    return np.frombuffer(octets, np.uint8).reshape(COUNT, size)


def digest(floats: Any) -> str:
    plain = np.where(np.isnan(floats), np.float32(0), floats)
    return hashlib.sha256(plain.astype("<f4").tobytes()).hexdigest()[:16]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with np.errstate(all="ignore"):  # random scales overflow
        yield


@pytest.mark.parametrize("name", BLOCKS)
def test_floats_are_those_of_the_package(name: str) -> None:
    format, blocks = BY_NAME[name], random_blocks(name)
    floats = format.read(blocks.reshape(-1), (COUNT, format.block))
    assert floats.dtype == np.float32
    assert digest(floats) == DIGESTS[name]


@pytest.mark.parametrize("name", BLOCKS)
def test_the_package_itself_agrees(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    blocks = random_blocks(name)
    wanted = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    assert digest(wanted) == DIGESTS[name]


@pytest.mark.parametrize("name", BLOCKS)
def test_codes_are_the_same_numbers(name: str) -> None:
    kind, blocks = BY_NAME[name], random_blocks(name)
    shape = (2, COUNT // 4, 2 * kind.block)
    parts = kind.codes(blocks.reshape(-1), *shape)
    assert parts.codes.dtype == np.uint8 and parts.shape == shape
    assert digest(parts.decode()) == DIGESTS[name]
    # One weight by hand, from what a format promises.
    e, row, k = 1, 5, kind.block + 17
    element, group = parts.format.element, k // parts.format.group
    code = int(parts.codes[e, row, k])

    def number(x: Any) -> Any:
        return (x.decode() if isinstance(x, Codes) else x.astype(np.float32))[e, row, group]

    integer = isinstance(element, Integer)
    value = np.float32(code - element.zero) if integer else values_of(element)[code]
    weight = number(parts.scale) * value
    weight = weight if parts.minimum is None else weight + number(parts.minimum)
    assert np.array_equal(weight, parts.decode()[e, row, k], equal_nan=True)


def test_sizes() -> None:
    gguf = pytest.importorskip("gguf")
    for number, format in TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (theirs.name, gguf.GGML_QUANT_SIZES[theirs]) == (
            format.name,
            (format.block, format.size),
        )


def test_groups_that_are_not_full() -> None:
    codes = np.arange(10, dtype=np.uint8).reshape(2, 5)
    scale = np.float32([[1, 2], [3, 4]])
    zero = np.uint8([[0, 1], [2, 3]])
    format = Format("", Integer(8), 3, "float32", zero=8)
    found = Codes(format, codes, scale, zero, order=np.array([4, 3, 2, 1, 0])).decode()
    wanted = [
        [scale[r, k // 3] * (float(codes[r, k]) - zero[r, k // 3]) for k in range(5)][::-1]
        for r in range(2)
    ]
    assert np.array_equal(found, np.float32(wanted))


# ---- encoding


def values(rng: np.random.Generator) -> Any:
    x = rng.normal(size=(40, 256)).astype(np.float32)
    x[1], x[2], x[3] = 0, 1e-30, np.round(x[3] * 2) / 2  # nothing, almost nothing, and halves
    return x


@pytest.mark.parametrize("name", [n for n in BLOCKS if BY_NAME[n].pack and n != "TQ1_0"])
def test_codes_are_packed_to_the_same_bytes(name: str) -> None:
    kind, blocks = BY_NAME[name], random_blocks(name)
    codes = kind.codes(blocks.reshape(-1), COUNT // 2, 2 * kind.block)
    assert np.array_equal(packed_blocks(codes, kind), blocks.reshape(-1))


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_searched_scales_are_better_than_plain_ones(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_t(5, size=(32, 512)).astype(np.float32)
    heed = np.exp(rng.normal(size=512)).astype(np.float32)
    encoded = encode(x, name, heed)
    back = encoded.format.read(encoded.raw, encoded.shape)
    plain = compress.encode(x, compress.FORMATS[name]).decode()

    def off(y: Any) -> float:
        return float((heed * (y - x) ** 2).sum())

    assert off(back) < (0.97 if name == "Q6_K" else 0.9) * off(plain)


@pytest.mark.parametrize(
    "name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4"]
)
def test_encoding_is_the_packages(name: str, rng: np.random.Generator) -> None:
    gguf = pytest.importorskip("gguf")
    x = values(rng)
    wanted = gguf.quantize(x, gguf.GGMLQuantizationType[name])
    assert np.array_equal(encode(x, name).raw, wanted.reshape(-1))


def by_hand(name: str, x: Any) -> tuple[Any, Any]:
    """The codes and scales of blocks (n, 32), step by step as llama.cpp has them."""
    peak = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    if name == "MXFP4":
        scale = np.where(peak == 0, 2.0**-128, np.ldexp(np.float32(1), np.frexp(peak)[1] - 4))
        table = values_of(BY_NAME[name].numbers.element)
        return np.abs(scale.astype(np.float32)[..., None] * table - x[..., None]).argmin(-1), scale
    if name == "Q4_1":
        low = x.min(1, keepdims=True)
        scale = (x.max(1, keepdims=True) - low) / np.float32(15)
        x = x - low
    else:
        scale = np.abs(peak) / np.float32(127) if name == "Q8_0" else peak / np.float32(-8)
    scaled = x * np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    if name == "Q8_0":
        codes = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), x) + 128
    else:
        codes = np.minimum(np.floor(scaled + np.float32(8.5 if name == "Q4_0" else 0.5)), 15)
    return codes, scale.astype(np.float16)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "MXFP4"])
def test_encoding_is_what_each_step_says(name: str, dtype: str, rng: np.random.Generator) -> None:
    x = np.concatenate([values(rng), np.arange(256)[None] / 8, rng.integers(-9, 9, (20, 256))])
    x[2, :40] = -0.0
    x[4, 5], x[4, 9], x[5, 5], x[5, 9] = 9, -9, -9, 9  # of two peaks, the first says the sign
    x = x.astype(as_dtype(dtype).numpy)
    encoded, floats = encode(x, name), x.astype(np.float32)
    codes, scale = by_hand(name, floats.reshape(-1, 32))
    made = encoded.format.codes(encoded.raw, *x.shape)
    np.testing.assert_array_equal(made.codes.reshape(codes.shape), codes)
    np.testing.assert_array_equal(made.scale.reshape(scale.shape), scale)
    # What it says of its error is what a reader finds.
    off = np.square(encoded.format.read(encoded.raw, x.shape).astype(np.float64) - floats).sum()
    assert encoded.off == pytest.approx(off, rel=1e-4)
    assert encoded.total == pytest.approx(np.square(floats.astype(np.float64)).sum(), rel=1e-4)


@pytest.mark.parametrize(("name", "steps"), [("Q8_0", 254), ("Q4_0", 14)])
def test_encoding_loses_half_a_step(name: str, steps: int, rng: np.random.Generator) -> None:
    x = values(rng)
    x[2] = 0
    encoded = encode(x, name)
    back = encoded.format.read(encoded.raw, encoded.shape)
    groups = x.reshape(-1, 32)
    reach = 2 * np.abs(groups).max(1) / steps
    error = np.abs(back.reshape(groups.shape) - groups).max(1)
    assert (error <= reach * 1.05).all() and (back[1] == 0).all()


def test_encoding_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        encode(np.zeros((2, 33), np.float32), "Q8_0")
    with pytest.raises(ValueError, match="the formats are"):
        encode(np.zeros((2, 256), np.float32), "IQ2_XXS")
    with pytest.raises(ValueError, match=r"some of the weights .* are NaN"):
        encode(np.full((2, 32), np.nan), "Q4_0")
    for name in ("Q8_0", "Q4_1", "Q4_K", "IQ4_NL"):
        with pytest.raises(ValueError, match="too large"):
            encode(np.linspace(-1e30, 1e30, 256, dtype=np.float32), name)
