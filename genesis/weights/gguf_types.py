"""The block formats of GGUF files, taken apart and put together.

A row of weights is cut into blocks, and a block is a few bytes of scales and then the integers. All
formats are one formula with different packing: a weight is ``scale * value(code) + minimum``, where
a code is an unsigned integer of up to 8 bits, its value is ``code - zero`` or stands in a table of
16, and the scale and the minimum belong to a group of neighbours. So a format is a function that
unpacks `Parts`, and everything else (floats, repacking, sizes) is said once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from genesis.ir import dtype as dtypes

_CHUNK = 1 << 20  # values made floats at once: what is in between stays in the cache


class Parts(NamedTuple):
    """Quantised weights (.., k) as integers and what makes them floats.

    A weight is ``scale * (code - zero) + minimum``, or ``scale * table[code] + minimum``.
    """

    #: Unsigned bytes (.., k).
    codes: Any
    #: Float32 (.., groups): a group is `group` neighbours along k, the last may be shorter.
    scale: Any
    group: int
    #: What is subtracted from the codes, for all or as (.., groups).
    zero: Any = 0
    #: What is added after scaling, as (.., groups); None is nothing.
    minimum: Any = None
    #: The value of each code, where that is not ``code - zero``.
    table: Any = None
    #: Codes at position j belong to column ``order[j]`` of the matrix; None is in order.
    order: Any = None

    @np.errstate(all="ignore")  # not numbers are what a file may hold
    def dequantize(self) -> Any:
        """The weights as float32.

        >>> Parts(np.uint8([[7, 9]]), np.float32([[0.5]]), group=2, zero=8).dequantize()
        array([[-0.5,  0.5]], dtype=float32)
        """
        k = self.codes.shape[-1]
        flat = self._flattened()
        floats = np.empty(flat.codes.shape, np.float32)
        for rows in chunks(len(floats), k):
            floats[rows] = flat._floats(rows, k)
        if self.order is not None:
            floats = np.take(floats, np.argsort(self.order), 1)
        return floats.reshape(self.codes.shape)

    def _flattened(self) -> Parts:
        """The same with one dimension of rows."""
        rows = math.prod(self.codes.shape[:-1])
        fields: list[Any] = list(self)
        return Parts(*(x if np.ndim(x) < 2 else x.reshape(rows, x.shape[-1]) for x in fields))

    def _floats(self, rows: slice, k: int) -> Any:
        codes = self.codes[rows]
        if k % self.group == 0:
            codes = codes.reshape(len(codes), -1, self.group)
        if self.table is not None:
            values = np.take(self.table, codes)
        elif np.ndim(self.zero):
            values = codes.astype(np.float32) - self._spread(self.zero[rows], k)
        else:
            values = codes.astype(np.float32) - np.float32(self.zero)
        values *= self._spread(self.scale[rows], k)
        if self.minimum is not None:
            values += self._spread(self.minimum[rows], k)
        return values.reshape(-1, k)

    def _spread(self, x: Any, k: int) -> Any:
        """A number of every group for each of its codes."""
        return np.repeat(x, self.group, axis=1)[:, :k] if k % self.group else x[:, :, None]


def chunks(rows: int, k: int) -> Iterator[slice]:
    """Slices of rows with about as many values as fit a cache."""
    step = max(1, _CHUNK // max(k, 1))
    return (slice(row, row + step) for row in range(0, rows if k else 0, step))


@dataclass(frozen=True)
class Format:
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
    #: What unpacks blocks (n, size) to parts of (n, block).
    unpack: Callable[[Any], Parts] | None = None

    @np.errstate(all="ignore")
    def parts(self, raw: Any, shape: tuple[int, ...]) -> Parts:
        """The parts of a tensor from its bytes."""
        assert self.unpack is not None
        parts = self.unpack(np.asarray(raw).reshape(-1, self.size))
        groups = (*shape[:-1], shape[-1] // parts.group)
        return parts._replace(
            codes=parts.codes.reshape(shape),
            scale=parts.scale.reshape(groups),
            minimum=None if parts.minimum is None else parts.minimum.reshape(groups),
        )

    @np.errstate(all="ignore")
    def read(self, raw: Any, shape: tuple[int, ...]) -> Any:
        """The values of a tensor from its bytes: float32, or as they are in the file."""
        if self.dtype is not None:
            return np.asarray(raw).view(self.dtype).reshape(shape)
        assert self.unpack is not None
        blocks = np.asarray(raw).reshape(-1, self.size)
        floats = np.empty((len(blocks), self.block), np.float32)
        for some in chunks(len(blocks), self.block):
            floats[some] = self.unpack(blocks[some]).dequantize()
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
    return np.ascontiguousarray(two).view(np.float16).astype(np.float32)


def _q4_0(b: Any) -> Parts:
    return Parts(_fields(b[:, 2:], 4, 16), _half(b[:, :2]), 32, zero=8)


def _q4_1(b: Any) -> Parts:
    return Parts(_fields(b[:, 4:], 4, 16), _half(b[:, :2]), 32, minimum=_half(b[:, 2:4]))


def _q5_0(b: Any) -> Parts:
    codes = _fields(b[:, 6:], 4, 16) | _fields(b[:, 2:6], 1, 1) << 4
    return Parts(codes, _half(b[:, :2]), 32, zero=16)


def _q5_1(b: Any) -> Parts:
    codes = _fields(b[:, 8:], 4, 16) | _fields(b[:, 4:8], 1, 1) << 4
    return Parts(codes, _half(b[:, :2]), 32, minimum=_half(b[:, 2:4]))


def _q8_0(b: Any) -> Parts:
    return Parts(b[:, 2:] ^ np.uint8(0x80), _half(b[:, :2]), 32, zero=128)


def _q2_k(b: Any) -> Parts:
    scale = _half(b[:, 80:82]) * (b[:, :16] & 15)
    minimum = -(_half(b[:, 82:84]) * (b[:, :16] >> 4))
    return Parts(_fields(b[:, 16:80], 2, 32), scale, 16, minimum=minimum)


def _q3_k(b: Any) -> Parts:
    codes = _fields(b[:, 32:96], 2, 32) | _fields(b[:, :32], 1, 32) << 2
    steps = _fields(b[:, 96:104], 4, 8) | _fields(b[:, 104:108], 2, 4) << 4
    return Parts(codes, _half(b[:, 108:110]) * (steps.astype(np.float32) - 32), 16, zero=4)


def _steps(b: Any) -> tuple[Any, Any]:
    """Scales and minima of Q4_K and Q5_K: 6 bits each; those of the last four are in two places."""
    low, high, mixed = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate([low & 63, mixed & 15 | low >> 2 & 48], 1)
    minimum = np.concatenate([high & 63, mixed >> 4 | high >> 2 & 48], 1)
    return _half(b[:, :2]) * scale, -(_half(b[:, 2:4]) * minimum)


def _q4_k(b: Any) -> Parts:
    scale, minimum = _steps(b)
    return Parts(_fields(b[:, 16:], 4, 32), scale, 32, minimum=minimum)


def _q5_k(b: Any) -> Parts:
    scale, minimum = _steps(b)
    codes = _fields(b[:, 48:], 4, 32) | _fields(b[:, 16:48], 1, 32) << 4
    return Parts(codes, scale, 32, minimum=minimum)


def _q6_k(b: Any) -> Parts:
    codes = _fields(b[:, :128], 4, 64) | _fields(b[:, 128:192], 2, 32) << 4
    return Parts(codes, _half(b[:, 208:210]) * b[:, 192:208].view(np.int8), 16, zero=32)


_CURVE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
#: Floats of 4 bits (e2m1), doubled, as in ggml: the scale is half of what the exponent says.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def e8m0(exponents: Any) -> Any:
    """The scales for `E2M1` of exponents in a byte."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def _iq4_nl(b: Any) -> Parts:
    return Parts(_fields(b[:, 2:], 4, 16), _half(b[:, :2]), 32, table=_CURVE)


def _iq4_xs(b: Any) -> Parts:
    steps = _fields(b[:, 4:8], 4, 1) | _fields(b[:, 2:4], 2, 1) << 4
    scale = _half(b[:, :2]) * (steps.astype(np.float32) - 32)
    return Parts(_fields(b[:, 8:], 4, 16), scale, 32, table=_CURVE)


def _mxfp4(b: Any) -> Parts:
    return Parts(_fields(b[:, 1:], 4, 16), e8m0(b[:, :1]), 32, table=E2M1)


def _numbers(name: str, number: int, dtype: Any) -> Format:
    return Format(name, number, 1, np.dtype(dtype).itemsize, dtype=np.dtype(dtype))


#: The formats that can be read, by their numbers.
FORMATS: dict[int, Format] = {
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
        Format("Q4_0", 2, 32, 18, unpack=_q4_0),
        Format("Q4_1", 3, 32, 20, unpack=_q4_1),
        Format("Q5_0", 6, 32, 22, unpack=_q5_0),
        Format("Q5_1", 7, 32, 24, unpack=_q5_1),
        Format("Q8_0", 8, 32, 34, unpack=_q8_0),
        Format("Q2_K", 10, 256, 84, unpack=_q2_k),
        Format("Q3_K", 11, 256, 110, unpack=_q3_k),
        Format("Q4_K", 12, 256, 144, unpack=_q4_k),
        Format("Q5_K", 13, 256, 176, unpack=_q5_k),
        Format("Q6_K", 14, 256, 210, unpack=_q6_k),
        Format("IQ4_NL", 20, 32, 18, unpack=_iq4_nl),
        Format("IQ4_XS", 23, 256, 136, unpack=_iq4_xs),
        Format("MXFP4", 39, 32, 17, unpack=_mxfp4),
    )
}
#: The same by name.
BY_NAME = {f.name: f for f in FORMATS.values()}
#: Formats that are known by name only.
UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


class Encoded(NamedTuple):
    """A tensor in a block format, to be written to a file."""

    format: Format
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
    "BY_NAME", "E2M1", "Encoded", "FORMATS", "Format", "Parts", "UNREAD", "chunks", "e8m0",
    "encode",
]  # fmt: skip
