"""The block formats of GGUF files, taken apart and put together.

A row of weights is cut into blocks, and a block is a few bytes of scales and then the integers.
What the numbers are, a `genesis.compress.Format` of the same name says. Here is how they lie in a
block: a function unpacks it to `genesis.compress.Codes`. Everything else (floats, repacking,
products) follows from the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from genesis.compress import FORMATS, Codes, Float, Format, Integer, Table
from genesis.compress.codes import chunks, values_of
from genesis.compress.format import E2M1
from genesis.ir import dtype as dtypes
from genesis.weights.gguf_grids import grid


@dataclass(frozen=True)
class BlockType:
    """How the values of a tensor lie in the file."""

    name: str
    #: Its number in the file.
    number: int
    #: Values of a block.
    block: int
    #: Bytes of a block.
    size: int
    #: Numbers that lie as they are.
    dtype: Any = None
    #: What unpacks blocks (n, size) to codes (n, block), and what packs codes to blocks.
    unpack: Callable[[Any], Codes] | None = None
    pack: Callable[[Codes], Any] | None = None

    @property
    def numbers(self) -> Format:
        """What the numbers of a quantised tensor are."""
        return READ_ONLY[self.name] if self.pack is None else FORMATS[self.name]

    def codes(self, raw: Any, *shape: int) -> Codes:
        """The codes of weights of a shape from their bytes."""
        assert self.unpack is not None
        *outer, k = shape
        blocks = self.unpack(np.asarray(raw).reshape(-1, self.size))
        return blocks.each(lambda x: x.reshape(*outer, k // self.block * x.shape[-1]))

    def read(self, raw: Any, shape: tuple[int, ...]) -> Any:
        """The values of a tensor from its bytes: float32, or as they are in the file."""
        if self.dtype is not None:
            return np.asarray(raw).view(self.dtype).reshape(shape)
        assert self.unpack is not None
        blocks = np.asarray(raw).reshape(-1, self.size)
        floats = np.empty((len(blocks), self.block), np.float32)
        for some in chunks(len(blocks), self.block):
            floats[some] = self.unpack(blocks[some]).decode()
        return floats.reshape(shape)


def _fields(packed: Any, bits: int, run: int) -> Any:
    """Integers of few bits: `run` neighbours lie in the lowest bits of bytes, the next above."""
    n, size = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = packed.reshape(n, size // run, 1, run) >> shifts
    fields &= np.uint8((1 << bits) - 1)
    return fields.reshape(n, size * 8 // bits)


def _packed(codes: Any, bits: int, run: int) -> Any:
    """What `_fields` takes apart."""
    fields = (codes & np.uint8((1 << bits) - 1)).reshape(len(codes), -1, 8 // bits, run)
    whole = fields[:, :, 0]
    for k in range(1, 8 // bits):
        whole = whole | fields[:, :, k] << np.uint8(k * bits)
    return whole.reshape(len(codes), -1)


def _half(two: Any) -> Any:
    """Scales (n, 1) of which there are the bytes of float16."""
    return np.ascontiguousarray(two).view(np.float16)


def _bytes(x: Any) -> Any:
    """The bytes of float16 numbers (n, 1)."""
    return np.ascontiguousarray(x, np.float16).view(np.uint8)


def _blocks(*parts: Any) -> Any:
    return np.concatenate(parts, 1)


def _q4_0(b: Any) -> Codes:
    return Codes(FORMATS["Q4_0"], _fields(b[:, 2:], 4, 16), _half(b[:, :2]))


def _to_4(c: Codes) -> Any:
    minimum = [] if c.minimum is None else [_bytes(c.minimum)]
    return _blocks(_bytes(c.scale), *minimum, _packed(c.codes, 4, 16))


def _q4_1(b: Any) -> Codes:
    codes = _fields(b[:, 4:], 4, 16)
    return Codes(FORMATS["Q4_1"], codes, _half(b[:, :2]), minimum=_half(b[:, 2:4]))


def _q5_0(b: Any) -> Codes:
    codes = _fields(b[:, 6:], 4, 16) | _fields(b[:, 2:6], 1, 1) << 4
    return Codes(FORMATS["Q5_0"], codes, _half(b[:, :2]))


def _to_5(c: Codes) -> Any:
    minimum = [] if c.minimum is None else [_bytes(c.minimum)]
    high, low = _packed(c.codes >> 4, 1, 1), _packed(c.codes, 4, 16)
    return _blocks(_bytes(c.scale), *minimum, high, low)


def _q5_1(b: Any) -> Codes:
    codes = _fields(b[:, 8:], 4, 16) | _fields(b[:, 4:8], 1, 1) << 4
    return Codes(FORMATS["Q5_1"], codes, _half(b[:, :2]), minimum=_half(b[:, 2:4]))


def _q8_0(b: Any) -> Codes:
    return Codes(FORMATS["Q8_0"], b[:, 2:] ^ np.uint8(0x80), _half(b[:, :2]))


def _to_q8_0(c: Codes) -> Any:
    return _blocks(_bytes(c.scale), c.codes ^ np.uint8(0x80))


def _superblock(name: str, codes: Any, scale: tuple[Any, Any], minimum: Any = None) -> Codes:
    """Blocks whose scales, and minima to be subtracted, are integers with a scale of their own."""
    format = FORMATS[name]
    parts: list[Any] = [Codes(format.scale, *scale)]  # type: ignore[arg-type]
    if minimum is not None:
        steps, unit = minimum
        parts.append(Codes(format.minimum, steps, -unit))  # type: ignore[arg-type]
    return Codes(format, codes, parts[0], minimum=parts[1] if minimum is not None else None)


def _q2_k(b: Any) -> Codes:
    scale, minimum = (b[:, :16] & 15, _half(b[:, 80:82])), (b[:, :16] >> 4, _half(b[:, 82:84]))
    return _superblock("Q2_K", _fields(b[:, 16:80], 2, 32), scale, minimum)


def _to_q2_k(c: Codes) -> Any:
    steps = c.scale.codes | c.minimum.codes << 4
    return _blocks(steps, _packed(c.codes, 2, 32), _bytes(c.scale.scale), _bytes(-c.minimum.scale))


def _q3_k(b: Any) -> Codes:
    codes = _fields(b[:, 32:96], 2, 32) | _fields(b[:, :32], 1, 32) << 2
    steps = _fields(b[:, 96:104], 4, 8) | _fields(b[:, 104:108], 2, 4) << 4
    return _superblock("Q3_K", codes, (steps, _half(b[:, 108:110])))


def _to_q3_k(c: Codes) -> Any:
    steps = c.scale.codes
    codes = _packed(c.codes >> 2, 1, 32), _packed(c.codes, 2, 32)
    return _blocks(*codes, _packed(steps, 4, 8), _packed(steps >> 4, 2, 4), _bytes(c.scale.scale))


def _steps(b: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Scales and minima of Q4_K and Q5_K: 6 bits each; those of the last four are in two places."""
    low, high, mixed = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate([low & 63, mixed & 15 | low >> 2 & 48], 1)
    minimum = np.concatenate([high & 63, mixed >> 4 | high >> 2 & 48], 1)
    return (scale, _half(b[:, :2])), (minimum, _half(b[:, 2:4]))


def _head(c: Codes) -> Any:
    """What stands before the codes of Q4_K and Q5_K."""
    scale, minimum = c.scale.codes, c.minimum.codes
    low, high = (x[:, :4] | x[:, 4:] >> 4 << 6 for x in (scale, minimum))
    mixed = scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << 4
    return _blocks(_bytes(c.scale.scale), _bytes(-c.minimum.scale), low, high, mixed)


def _q4_k(b: Any) -> Codes:
    return _superblock("Q4_K", _fields(b[:, 16:], 4, 32), *_steps(b))


def _to_q4_k(c: Codes) -> Any:
    return _blocks(_head(c), _packed(c.codes, 4, 32))


def _to_q5_k(c: Codes) -> Any:
    return _blocks(_head(c), _packed(c.codes >> 4, 1, 32), _packed(c.codes, 4, 32))


def _q5_k(b: Any) -> Codes:
    codes = _fields(b[:, 48:], 4, 32) | _fields(b[:, 16:48], 1, 32) << 4
    return _superblock("Q5_K", codes, *_steps(b))


def _q6_k(b: Any) -> Codes:
    codes = _fields(b[:, :128], 4, 64) | _fields(b[:, 128:192], 2, 32) << 4
    return _superblock("Q6_K", codes, (b[:, 192:208] ^ np.uint8(0x80), _half(b[:, 208:210])))


def _to_q6_k(c: Codes) -> Any:
    steps = c.scale.codes ^ np.uint8(0x80)
    codes = _packed(c.codes, 4, 64), _packed(c.codes >> 4, 2, 32)
    return _blocks(*codes, steps, _bytes(c.scale.scale))


def _tq1_0(b: Any) -> Codes:
    """Five digits of base 3 in a byte, as 256ths of 243; of the last bytes four."""
    parts = []
    for run, places, digits in (
        (32, slice(0, 32), 5),
        (16, slice(32, 48), 5),
        (4, slice(48, 52), 4),
    ):
        powers = np.array([3**d for d in range(digits)], np.uint8)[:, None]
        parts.append((b[:, places].reshape(-1, 1, run) * powers).reshape(len(b), -1))
    digits3 = (_blocks(*parts).astype(np.uint16) * 3 >> 8).astype(np.uint8)
    return Codes(FORMATS["TQ1_0"], digits3, _half(b[:, 52:]))


def _to_tq1_0(c: Codes) -> Any:
    parts, begin = [], 0
    for run, digits in ((32, 5), (16, 5), (4, 4)):
        own = c.codes[:, begin : begin + run * digits].reshape(-1, digits, run).astype(np.uint16)
        powers = np.array([3 ** (4 - d) for d in range(digits)], np.uint16)[:, None]
        parts.append((own * powers).sum(1, dtype=np.uint16))
        begin += run * digits
    sums = (_blocks(*parts) * 256 + 242) // 243
    return _blocks(sums.astype(np.uint8), _bytes(c.scale))


def _tq2_0(b: Any) -> Codes:
    return Codes(FORMATS["TQ2_0"], _fields(b[:, :64], 2, 32), _half(b[:, 64:]))


def _to_tq2_0(c: Codes) -> Any:
    return _blocks(_packed(c.codes, 2, 32), _bytes(c.scale))


def e8m0(exponents: Any) -> Any:
    """The scales for floats of 4 bits, doubled, of exponents in a byte."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def _iq4_nl(b: Any) -> Codes:
    return Codes(FORMATS["IQ4_NL"], _fields(b[:, 2:], 4, 16), _half(b[:, :2]))


def _iq4_xs(b: Any) -> Codes:
    steps = _fields(b[:, 4:8], 4, 1) | _fields(b[:, 2:4], 2, 1) << 4
    return _superblock("IQ4_XS", _fields(b[:, 8:], 4, 16), (steps, _half(b[:, :2])))


def _to_iq4_xs(c: Codes) -> Any:
    steps = c.scale.codes
    head = _bytes(c.scale.scale), _packed(steps >> 4, 2, 1), _packed(steps, 4, 1)
    return _blocks(*head, _packed(c.codes, 4, 16))


def _to_mxfp4(c: Codes) -> Any:
    exponents = np.clip(np.frexp(c.scale)[1] + 127, 0, 255).astype(np.uint8)
    return _blocks(exponents, _packed(c.codes, 4, 16))


def _mxfp4(b: Any) -> Codes:
    return Codes(FORMATS["MXFP4"], _fields(b[:, 1:], 4, 16), e8m0(b[:, :1]))


# ---- grids: a code is a vector, with signs; read as integers of 8 bits


def _read_only(name: str, group: int) -> Format:
    return Format(name, Integer(8, 128), group, "float32")


#: What the numbers of formats are that are read only.
READ_ONLY = {
    **{name: _read_only(name, 32) for name in ("IQ2_XXS", "IQ3_XXS", "IQ3_S", "IQ1_S")},
    **{name: _read_only(name, 16) for name in ("IQ2_XS", "IQ2_S", "IQ1_M")},
    "NVFP4": Format("NVFP4", Table(E2M1), 16, "float32"),
}


def _vectors(name: str, places: Any, signs: Any, scale: Any) -> Codes:
    """Vectors at places (n, count), those with a sign bit negative, and scales (n, groups)."""
    values = grid(name)[places].reshape(len(places), -1)
    negative = np.unpackbits(signs.reshape(len(places), -1), axis=1, bitorder="little")
    codes = np.where(negative > 0, -values, values).view(np.uint8) ^ np.uint8(0x80)
    return Codes(READ_ONLY[name], codes, scale.astype(np.float32))


def _even_signs(seven: Any) -> Any:
    """Eight signs of which seven are given: an even number is negative."""
    seven = seven.astype(np.uint8)
    odd = np.bitwise_xor.reduce(np.unpackbits(seven[..., None], axis=-1), -1)
    return seven | odd << 7


def _quarters(words: Any) -> Any:
    """Four times seven bits of words (n, groups), the lowest first."""
    return _even_signs(words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & np.uint32(127))


def _words(b: Any, dtype: Any) -> Any:
    return np.ascontiguousarray(b).view(dtype)


def _steps4(b: Any) -> Any:
    return _fields(b, 4, 1).astype(np.float32)


def _iq2_xxs(b: Any) -> Codes:
    words = _words(b[:, 2:], np.uint32).reshape(len(b), 8, 2)
    places = _words(words[..., 0], np.uint8).reshape(len(b), 32)
    scale = _half(b[:, :2]).astype(np.float32) * (0.5 + (words[..., 1] >> 28).astype(np.float32))
    return _vectors("IQ2_XXS", places, _quarters(words[..., 1]), scale * np.float32(0.25))


def _iq2_xs(b: Any) -> Codes:
    words = _words(b[:, 2:66], np.uint16)
    scale = _half(b[:, :2]).astype(np.float32) * (0.5 + _steps4(b[:, 66:])) * np.float32(0.25)
    return _vectors("IQ2_XS", words & 511, _even_signs(words >> 9), scale)


def _iq2_s(b: Any) -> Codes:
    places = b[:, 2:34].astype(np.uint16) | _fields(b[:, 66:74], 2, 1).astype(np.uint16) << 8
    scale = _half(b[:, :2]).astype(np.float32) * (0.5 + _steps4(b[:, 74:])) * np.float32(0.25)
    return _vectors("IQ2_S", places, b[:, 34:66], scale)


def _iq3_xxs(b: Any) -> Codes:
    words = _words(b[:, 66:], np.uint32)
    scale = _half(b[:, :2]).astype(np.float32) * (0.5 + (words >> 28).astype(np.float32))
    return _vectors("IQ3_XXS", b[:, 2:66], _quarters(words), scale * np.float32(0.5))


def _iq3_s(b: Any) -> Codes:
    places = b[:, 2:66].astype(np.uint16) | _fields(b[:, 66:74], 1, 1).astype(np.uint16) << 8
    scale = _half(b[:, :2]).astype(np.float32) * (1 + 2 * _steps4(b[:, 106:]))
    return _vectors("IQ3_S", places, b[:, 74:106], scale)


def _moved(name: str, places: Any, below: Any, scale: Any) -> Codes:
    """Vectors of -1, 0 and 1, each moved up or down by an eighth: in eighths, integers."""
    values = 8 * grid("IQ1_S")[places] + np.where(below, -1, 1)[..., None]
    codes = values.astype(np.int8).reshape(len(places), -1).view(np.uint8) ^ np.uint8(0x80)
    return Codes(READ_ONLY[name], codes, (scale / 8).astype(np.float32))


def _iq1_s(b: Any) -> Codes:
    high = _words(b[:, 34:], np.uint16)
    scale = _half(b[:, :2]).astype(np.float32) * (2 * (high >> 12 & 7) + 1).astype(np.float32)
    more = (high[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(len(b), 32)
    below = np.repeat(high >> 15 > 0, 4, 1)
    return _moved("IQ1_S", b[:, 2:34].astype(np.uint16) | more << 8, below, scale)


def _iq1_m(b: Any) -> Codes:
    words = _words(b[:, 48:], np.uint16)
    parts = (words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    unit = np.bitwise_or.reduce(parts, 1).astype(np.uint16)[:, None].view(np.float16)
    steps = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(len(b), 16)
    scale = unit.astype(np.float32) * (2 * steps + 1).astype(np.float32)
    more = _fields(b[:, 32:48], 4, 1)
    places = b[:, :32].astype(np.uint16) | (more & 7).astype(np.uint16) << 8
    return _moved("IQ1_M", places, more & 8 > 0, scale)


def _nvfp4(b: Any) -> Codes:
    bytes_ = b[:, :4]
    scale = values_of(Float(4, 3))[bytes_ & 0x7F] * np.float32(0.5)
    scale = np.where(bytes_ == 0x7F, np.float32(0), scale)
    scale = np.where(bytes_ == 0xFF, np.float32(240), scale)  # its sign means nothing, nor NaN
    halves = b[:, 4:].reshape(-1, 4, 1, 8) >> np.array([0, 4], np.uint8)[:, None] & np.uint8(15)
    return Codes(READ_ONLY["NVFP4"], halves.reshape(len(b), 64), scale)


def _numbers(name: str, number: int, dtype: Any) -> BlockType:
    return BlockType(name, number, 1, np.dtype(dtype).itemsize, dtype=np.dtype(dtype))


#: The types that can be read, by their numbers.
TYPES: dict[int, BlockType] = {
    f.number: f
    for f in (
        _numbers("F32", 0, np.float32),
        _numbers("F16", 1, np.float16),
        _numbers("BF16", 30, dtypes.bfloat16.numpy),
        _numbers("F64", 28, np.float64),
        _numbers("I8", 24, np.int8),
        _numbers("I16", 25, np.int16),
        _numbers("I32", 26, np.int32),
        _numbers("I64", 27, np.int64),
        BlockType("Q4_0", 2, 32, 18, unpack=_q4_0, pack=_to_4),
        BlockType("Q4_1", 3, 32, 20, unpack=_q4_1, pack=_to_4),
        BlockType("Q5_0", 6, 32, 22, unpack=_q5_0, pack=_to_5),
        BlockType("Q5_1", 7, 32, 24, unpack=_q5_1, pack=_to_5),
        BlockType("Q8_0", 8, 32, 34, unpack=_q8_0, pack=_to_q8_0),
        BlockType("Q2_K", 10, 256, 84, unpack=_q2_k, pack=_to_q2_k),
        BlockType("Q3_K", 11, 256, 110, unpack=_q3_k, pack=_to_q3_k),
        BlockType("Q4_K", 12, 256, 144, unpack=_q4_k, pack=_to_q4_k),
        BlockType("Q5_K", 13, 256, 176, unpack=_q5_k, pack=_to_q5_k),
        BlockType("Q6_K", 14, 256, 210, unpack=_q6_k, pack=_to_q6_k),
        BlockType("TQ1_0", 34, 256, 54, unpack=_tq1_0, pack=_to_tq1_0),
        BlockType("TQ2_0", 35, 256, 66, unpack=_tq2_0, pack=_to_tq2_0),
        BlockType("IQ4_NL", 20, 32, 18, unpack=_iq4_nl, pack=_to_4),
        BlockType("IQ4_XS", 23, 256, 136, unpack=_iq4_xs, pack=_to_iq4_xs),
        BlockType("IQ2_XXS", 16, 256, 66, unpack=_iq2_xxs),
        BlockType("IQ2_XS", 17, 256, 74, unpack=_iq2_xs),
        BlockType("IQ2_S", 22, 256, 82, unpack=_iq2_s),
        BlockType("IQ3_XXS", 18, 256, 98, unpack=_iq3_xxs),
        BlockType("IQ3_S", 21, 256, 110, unpack=_iq3_s),
        BlockType("IQ1_S", 19, 256, 50, unpack=_iq1_s),
        BlockType("IQ1_M", 29, 256, 56, unpack=_iq1_m),
        BlockType("NVFP4", 40, 64, 36, unpack=_nvfp4),
        BlockType("MXFP4", 39, 32, 17, unpack=_mxfp4, pack=_to_mxfp4),
    )
}
#: The same by name.
BY_NAME = {f.name: f for f in TYPES.values()}
#: Formats that are known by name only.
UNREAD = {9: "Q8_1", 15: "Q8_K"}


def packed_blocks(codes: Codes, kind: BlockType) -> Any:
    """The bytes of codes (rows, k) in a block format."""
    assert kind.pack is not None
    count, k = codes.shape[0], codes.shape[-1]

    def blocks(x: Any) -> Any:
        return x.reshape(count * k // kind.block, -1)

    return kind.pack(codes.each(blocks)).reshape(-1)


__all__ = ["BY_NAME", "BlockType", "TYPES", "UNREAD", "e8m0", "packed_blocks"]
