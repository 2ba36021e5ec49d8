"""The block formats of GGUF files, taken apart and put together.

A row of weights is cut into blocks, and a block is a few bytes of scales and then the integers.
What the numbers are, a `genesis.compress.Format` of the same name says. Here is how they lie in a
block: a function unpacks it to `genesis.compress.Codes`. Everything else (floats, repacking,
products) follows from the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from genesis.compress import FORMATS, Codes
from genesis.compress.codes import chunks
from genesis.ir import dtype as dtypes


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
    #: What unpacks blocks (n, size) to codes (n, block).
    unpack: Callable[[Any], Codes] | None = None

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


def _half(two: Any) -> Any:
    """Scales (n, 1) of which there are the bytes of float16."""
    return np.ascontiguousarray(two).view(np.float16)


def _q4_0(b: Any) -> Codes:
    return Codes(FORMATS["Q4_0"], _fields(b[:, 2:], 4, 16), _half(b[:, :2]))


def _q4_1(b: Any) -> Codes:
    codes = _fields(b[:, 4:], 4, 16)
    return Codes(FORMATS["Q4_1"], codes, _half(b[:, :2]), minimum=_half(b[:, 2:4]))


def _q5_0(b: Any) -> Codes:
    codes = _fields(b[:, 6:], 4, 16) | _fields(b[:, 2:6], 1, 1) << 4
    return Codes(FORMATS["Q5_0"], codes, _half(b[:, :2]))


def _q5_1(b: Any) -> Codes:
    codes = _fields(b[:, 8:], 4, 16) | _fields(b[:, 4:8], 1, 1) << 4
    return Codes(FORMATS["Q5_1"], codes, _half(b[:, :2]), minimum=_half(b[:, 2:4]))


def _q8_0(b: Any) -> Codes:
    return Codes(FORMATS["Q8_0"], b[:, 2:] ^ np.uint8(0x80), _half(b[:, :2]))


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


def _q3_k(b: Any) -> Codes:
    codes = _fields(b[:, 32:96], 2, 32) | _fields(b[:, :32], 1, 32) << 2
    steps = _fields(b[:, 96:104], 4, 8) | _fields(b[:, 104:108], 2, 4) << 4
    return _superblock("Q3_K", codes, (steps, _half(b[:, 108:110])))


def _steps(b: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Scales and minima of Q4_K and Q5_K: 6 bits each; those of the last four are in two places."""
    low, high, mixed = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate([low & 63, mixed & 15 | low >> 2 & 48], 1)
    minimum = np.concatenate([high & 63, mixed >> 4 | high >> 2 & 48], 1)
    return (scale, _half(b[:, :2])), (minimum, _half(b[:, 2:4]))


def _q4_k(b: Any) -> Codes:
    return _superblock("Q4_K", _fields(b[:, 16:], 4, 32), *_steps(b))


def _q5_k(b: Any) -> Codes:
    codes = _fields(b[:, 48:], 4, 32) | _fields(b[:, 16:48], 1, 32) << 4
    return _superblock("Q5_K", codes, *_steps(b))


def _q6_k(b: Any) -> Codes:
    codes = _fields(b[:, :128], 4, 64) | _fields(b[:, 128:192], 2, 32) << 4
    return _superblock("Q6_K", codes, (b[:, 192:208] ^ np.uint8(0x80), _half(b[:, 208:210])))


def e8m0(exponents: Any) -> Any:
    """The scales for floats of 4 bits, doubled, of exponents in a byte."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def _iq4_nl(b: Any) -> Codes:
    return Codes(FORMATS["IQ4_NL"], _fields(b[:, 2:], 4, 16), _half(b[:, :2]))


def _iq4_xs(b: Any) -> Codes:
    steps = _fields(b[:, 4:8], 4, 1) | _fields(b[:, 2:4], 2, 1) << 4
    return _superblock("IQ4_XS", _fields(b[:, 8:], 4, 16), (steps, _half(b[:, :2])))


def _mxfp4(b: Any) -> Codes:
    return Codes(FORMATS["MXFP4"], _fields(b[:, 1:], 4, 16), e8m0(b[:, :1]))


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
        BlockType("Q4_0", 2, 32, 18, unpack=_q4_0),
        BlockType("Q4_1", 3, 32, 20, unpack=_q4_1),
        BlockType("Q5_0", 6, 32, 22, unpack=_q5_0),
        BlockType("Q5_1", 7, 32, 24, unpack=_q5_1),
        BlockType("Q8_0", 8, 32, 34, unpack=_q8_0),
        BlockType("Q2_K", 10, 256, 84, unpack=_q2_k),
        BlockType("Q3_K", 11, 256, 110, unpack=_q3_k),
        BlockType("Q4_K", 12, 256, 144, unpack=_q4_k),
        BlockType("Q5_K", 13, 256, 176, unpack=_q5_k),
        BlockType("Q6_K", 14, 256, 210, unpack=_q6_k),
        BlockType("IQ4_NL", 20, 32, 18, unpack=_iq4_nl),
        BlockType("IQ4_XS", 23, 256, 136, unpack=_iq4_xs),
        BlockType("MXFP4", 39, 32, 17, unpack=_mxfp4),
    )
}
#: The same by name.
BY_NAME = {f.name: f for f in TYPES.values()}
#: Formats that are known by name only.
UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


class Encoded(NamedTuple):
    """A tensor in a block format, to be written to a file."""

    format: BlockType
    shape: tuple[int, ...]
    raw: Any


def encode(values: Any, format: str) -> Encoded:
    """Values in the format Q8_0 or Q4_0, bit by bit as llama.cpp rounds them.

    >>> encode(np.ones((2, 64), np.float32), "Q8_0").raw.shape
    (136,)
    """
    if format not in _ENCODERS:
        raise ValueError(f"encode: the formats are {', '.join(_ENCODERS)}, not {format!r}")
    kind, values = BY_NAME[format], np.asarray(values, np.float32)
    if not values.ndim or values.shape[-1] % kind.block:
        raise ValueError(
            f"encode: rows of {format} are multiples of {kind.block} values, which those of "
            f"{values.shape} are not"
        )
    blocks = _ENCODERS[format](values.reshape(-1, kind.block))
    return Encoded(kind, values.shape, blocks.reshape(-1))


def _bytes(x: Any) -> Any:
    """The bytes of float16 numbers (n, 1)."""
    return x.astype(np.float16).view(np.uint8)


def _inverse(x: Any) -> Any:
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)


def _to_q8_0(x: Any) -> Any:
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(scale)
    codes = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)  # halves go outwards
    return np.concatenate([_bytes(scale), codes.astype(np.int8).view(np.uint8)], 1)


def _to_q4_0(x: Any) -> Any:
    peak = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)  # with its sign: it becomes -8
    scale = peak / np.float32(-8)
    codes = np.minimum(x * _inverse(scale) + np.float32(8.5), 15).astype(np.uint8)
    return np.concatenate([_bytes(scale), codes[:, :16] | codes[:, 16:] << 4], 1)


_ENCODERS = {"Q8_0": _to_q8_0, "Q4_0": _to_q4_0}

__all__ = [
    "BY_NAME", "BlockType", "Encoded", "TYPES", "UNREAD", "e8m0", "encode",
]  # fmt: skip
