"""What keys and values are kept as: the pages of a layer, in any of several formats.

Values are ``(pages, key heads, places, features)``. Keys are transposed: a query is multiplied
with the keys of a page feature by feature, in the same order whether alone or among others.

The formats of 8 and 4 bits have a scale for every token and head, which the greatest of its
features gives; two features of 4 bits, from both halves of a head, share a byte. What is read is
bits made floats, times the scale: attention does that on the way, and writes no copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import genesis
from genesis import functional, nn
from genesis.ir.dtype import DType


def _itself(x: Any) -> Any:
    return x


def _to_int8(x: Any) -> Any:
    return functional.round(x).to(genesis.int8)


def _from_int8(codes: Any) -> Any:
    return codes.to(genesis.float32)


def _to_fp8(x: Any) -> Any:
    return x.to(genesis.float8_e4m3fn).view(genesis.int8)


def _from_fp8(codes: Any) -> Any:
    """Four bits of exponent, moved to the five of float16, count from 2**-8 of what they did."""
    return ((codes.to(genesis.int16) << 7) & -0x4080).view(genesis.float16).to(genesis.float32)


def _to_int4(x: Any) -> Any:
    low, high = functional.chunk(functional.round(x).to(genesis.int32) & 15, 2, -1)
    return (low | high << 4).to(genesis.uint8)


def _from_int4(codes: Any) -> Any:
    """Four bits, moved to the upper end of 32, are signed."""
    shifts = (28 - (genesis.arange(2) << 2)).to(genesis.int32)
    halves = (codes.to(genesis.int32)[..., None, :] << shifts[:, None]) & -(1 << 28)
    return halves.to(genesis.float32).reshape(*codes.shape[:-1], -1)


@dataclass(frozen=True)
class CacheFormat:
    """How a number of the cache is stored: as a float, or in `bits` with a scale of many.

    Numbers up to the `greatest` are stored by `encode`; what `decode` gives of them is to be
    multiplied with `unit`.
    """

    dtype: DType
    bits: int
    greatest: float = 0.0
    unit: float = 1.0
    encode: Callable[[Any], Any] = _itself
    decode: Callable[[Any], Any] = _itself

    @property
    def scaled(self) -> bool:
        """Whether numbers have a scale."""
        return self.greatest > 0

    def token_bytes(self, features: int) -> int:
        """The bytes of a token of one head, with its scale."""
        return features * self.bits // 8 + (SCALE.itemsize if self.scaled else 0)


#: Scales have the range of float32; what is stored is divided by them as they were rounded.
SCALE = genesis.bfloat16

FORMATS = {
    "float32": CacheFormat(genesis.float32, 32),
    "bfloat16": CacheFormat(genesis.bfloat16, 16),
    "float16": CacheFormat(genesis.float16, 16),
    "fp8": CacheFormat(genesis.int8, 8, 448.0, 2.0**8, _to_fp8, _from_fp8),
    "int8": CacheFormat(genesis.int8, 8, 127.0, 1.0, _to_int8, _from_int8),
    "int4": CacheFormat(genesis.uint8, 4, 7.0, 2.0**-28, _to_int4, _from_int4),
}


class Cache(nn.Module):
    """The pages of keys and values of one layer, which belongs to a `group` of them."""

    def __init__(
        self, group: int, pages: int, heads: int, size: int, features: int, format: str = "float32"
    ) -> None:
        super().__init__()
        self.group, self.features, self.format = group, features, FORMATS[format]
        if features * self.format.bits % 8:
            raise ValueError(f"a cache of {format} needs heads of an even size, not of {features}")
        dtype = self.format.dtype
        stored = features * self.format.bits // (8 * dtype.itemsize)
        shapes = {"keys": (stored, size), "values": (size, stored)}
        for name, shape in shapes.items():
            self._make(name, genesis.zeros(pages, heads, *shape, dtype=dtype))
        for name in ("key_scales", "value_scales") if self.format.scaled else ():
            self._make(name, genesis.zeros(pages, heads, size, dtype=SCALE))

    def _make(self, name: str, value: Any) -> None:
        self.register_buffer(name, value, persistent=False)

    @property
    def arrays(self) -> list[Any]:
        """All that makes up its pages, the first dimension of each."""
        return list(self.buffers())

    def write(self, key: Any, value: Any, pages: Any, places: Any) -> None:
        """Put ``(rows, key heads, features)`` into their places."""
        if not self.format.scaled:
            self.keys[pages, :, :, places] = key.to(self.format.dtype)
            self.values[pages, :, places] = value.to(self.format.dtype)
            return
        codes, scales = zip(*(self._encoded(x) for x in (key, value)), strict=True)
        self.keys[pages, :, :, places], self.values[pages, :, places] = codes
        self.key_scales[pages, :, places], self.value_scales[pages, :, places] = scales

    def read(self, tables: Any) -> tuple[Any, Any]:
        """Keys and values ``(.., key heads, places, features)`` in the order of a text."""
        keys, values = self.keys[tables], self.values[tables]
        if self.format.scaled:
            decode = self.format.decode
            keys = decode(keys.transpose(-1, -2)) * _wide(self.key_scales[tables])
            values = decode(values) * _wide(self.value_scales[tables])
        else:
            keys = keys.transpose(-1, -2)
        return tuple(
            x.transpose(-4, -3).reshape(*x.shape[:-4], x.shape[-3], -1, self.features)
            for x in (keys, values)
        )

    def _encoded(self, x: Any) -> tuple[Any, Any]:
        """What is stored of ``(.., features)``, and what it is to be multiplied with."""
        greatest = self.format.greatest
        peak = functional.amax(functional.abs(x.to(genesis.float32)), -1)
        scale = (peak * (self.format.unit / greatest)).to(SCALE)
        # Zeros have no inverse, and not a number becomes the integer 0.
        x = x / _wide(scale) * self.format.unit
        x = functional.clamp(x, -greatest, greatest)
        return self.format.encode(x), scale


def _wide(scales: Any) -> Any:
    return scales.to(genesis.float32)[..., None]


__all__ = ["FORMATS", "Cache", "CacheFormat"]
