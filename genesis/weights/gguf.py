"""GGUF files: `GGUFFile` reads them, `write_gguf` writes them.

A file is a table of metadata, a table of tensors and then their bytes. It is mapped, and both
tables are read in one pass, checked as if somebody hostile had written them: every count and length
is compared with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from genesis.compress import Codes
from genesis.content_store import replacing
from genesis.serialization import BadFile
from genesis.weights.gguf_encode import Encoded
from genesis.weights.gguf_types import BY_NAME, TYPES, UNREAD, BlockType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # where the metadata says nothing else
_MOST_DIMENSIONS = 4  # ggml's limit
_MOST_VALUES = 1 << 59  # a tensor of none may have one dimension of many; bytes fit 63 bits
# No model comes near these; with them a Python object for each is little memory.
_MOST_KEYS, _MOST_TENSORS, _MOST_TEXTS = 1 << 16, 1 << 17, 1 << 22

#: Types of metadata: numbers by NumPy's name, in the file's order.
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")


class TensorInfo(NamedTuple):
    """A line of the table of tensors."""

    shape: tuple[int, ...]
    format: BlockType
    #: Bytes of the file.
    begin: int
    end: int


class GGUFFile:
    """A GGUF file of version 2 or 3: `metadata` and `tensors` by name.

    Metadata are numbers, texts, lists of texts and NumPy arrays of numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_gguf(f"{folder}/x.gguf", {"answer": 42}, {"w": np.float32([[1, 2]])})
    ...     file = GGUFFile(f"{folder}/x.gguf")
    ...     file.metadata, file.read("w")
    ({'answer': 42}, array([[1., 2.]], dtype=float32))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._place = 0
        with open(self.path, "rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            if self._size < 24 or file.read(4) != _MAGIC:
                self._refuse("it is no GGUF file: it does not begin like one")
            mapped: Any = np.memmap(file, np.uint8, "r")
        self._mapped, self._bytes = mapped, memoryview(mapped)
        version, tensors, keys = struct.unpack_from("<IQQ", self._bytes, 4)
        if version not in _VERSIONS:
            self._refuse(f"version {version} of the format is not read, only 2 and 3")
        self._within(keys, 13, _MOST_KEYS, "entries of metadata")
        self._within(tensors, 24, _MOST_TENSORS, "tensors")
        self._place = 24
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._new(self._text(), self.metadata)
            self.metadata[key] = self._value(key, self._kind())
        self.tensors: dict[str, TensorInfo] = {}
        for _ in range(tensors):
            name = self._new(self._text(), self.tensors)
            self.tensors[name] = self._tensor(name)
        self._place_tensors()

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r}: {len(self.tensors)} tensors)"

    def read(self, name: str) -> Any:
        """A tensor as float32 if it is quantised, and else as it is in the file."""
        info = self.tensors[name]
        return info.format.read(self.raw(name), info.shape)

    def raw(self, name: str) -> Any:
        """The mapped bytes of a tensor."""
        info = self.tensors[name]
        return self._mapped[info.begin : info.end]

    def codes(self, name: str, rows: slice = slice(None)) -> Codes:
        """The integers of some rows of a quantised tensor, with what makes them floats.

        Rows are counted over all dimensions but the last.
        """
        info = self.tensors[name]
        *outer, k = info.shape
        size = k // info.format.block * info.format.size
        raw = self.raw(name).reshape(math.prod(outer), size)[rows]
        return info.format.codes(raw, len(raw), k)

    # ---- reading the tables

    def _refuse(self, why: str) -> NoReturn:
        raise BadFile(f"GGUFFile: {self.path}: {why}")

    def _within(self, count: int, size: int, most: int, what: str) -> None:
        if count > most or count * size > self._size - self._place:
            self._refuse(f"{count} {what} at byte {self._place} are more than it can hold")

    def _new(self, name: str, known: Mapping[str, Any]) -> str:
        if name in known:
            self._refuse(f"{name!r} appears twice")
        return name

    def _take(self, size: int) -> int:
        """The place of the next bytes, which are in the file."""
        place = self._place
        if size > self._size - place:
            self._refuse(f"it is cut off: {size} bytes at {place} are not there")
        self._place = place + size
        return place

    def _kind(self) -> int:
        return int(_KIND.unpack_from(self._bytes, self._take(4))[0])

    def _length(self) -> int:
        return int(_LENGTH.unpack_from(self._bytes, self._take(8))[0])

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        """Texts that follow each other, in one loop without a call: there are 100,000s of them."""
        self._within(count, 8, _MOST_TEXTS, "texts")
        texts, place, size, data = [], self._place, self._size, self._bytes
        length_at = _LENGTH.unpack_from
        try:
            for _ in range(count):
                (length,) = length_at(data, place)
                place += 8 + length
                if place > size:
                    self._refuse(f"it is cut off: a text at byte {place - length} has no end")
                texts.append(str(data[place - length : place], "utf-8"))
        except UnicodeDecodeError:
            self._refuse(f"the text at byte {place - length} is not UTF-8")
        except struct.error:
            self._refuse(f"it is cut off: a text at byte {place} has no length")
        self._place = place
        return texts

    def _value(self, key: str, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            kind, count = self._kind(), self._length()
            return self._texts(count) if kind == _TEXT else self._numbers(key, kind, count)
        return self._numbers(key, kind, 1)[0].item()

    def _numbers(self, key: str, kind: int, count: int) -> Any:
        if kind not in _SCALARS:
            what = "arrays of arrays are" if kind == _ARRAY else f"the type {kind} is"
            self._refuse(f"{key!r} cannot be read: {what} not known")
        dtype = np.dtype(_SCALARS[kind])
        place = self._take(count * dtype.itemsize)
        contents = self._mapped[place : self._place]
        if dtype == np.bool_ and count and contents.max() > 1:
            self._refuse(f"{key!r} is neither true nor false")
        return np.asarray(contents).view(dtype)

    def _tensor(self, name: str) -> TensorInfo:
        """A line of the table; the place is still relative to the first tensor's."""
        rank = self._kind()
        if rank > _MOST_DIMENSIONS:
            self._refuse(f"{name!r} has {rank} dimensions")
        shape = tuple(self._length() for _ in range(rank))[::-1]
        number, begin = self._kind(), self._length()
        format = TYPES.get(number)
        if format is None:
            known = UNREAD.get(number, "no known format")
            self._refuse(f"{name!r} is of the type {number} ({known}), which is not read")
        if math.prod(n for n in shape if n) >= _MOST_VALUES:
            self._refuse(f"{name!r} of {shape} is too large")
        if (shape[-1] if shape else 1) % format.block:
            self._refuse(f"rows of {name!r}, {shape}, are no blocks of {format.name}")
        return TensorInfo(
            shape, format, begin, begin + math.prod(shape) // format.block * format.size
        )

    def _place_tensors(self) -> None:
        """Find where the tensors are, and refuse what overlaps or is not in the file."""
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if alignment not in [1 << n for n in range(3, 21)]:
            self._refuse(f"an alignment of {alignment!r} is no power of two from 8 on")
        start = -(-self._place // alignment) * alignment
        end = start
        for name, info in sorted(self.tensors.items(), key=lambda e: (e[1].begin, e[1].end)):
            begin = start + info.begin
            if info.begin % alignment or begin < end or start + info.end > self._size:
                self._refuse(
                    f"{name!r} at {begin}..{start + info.end} of {self._size} bytes is not "
                    f"aligned, not all there, or overlaps the one that ends at {end}"
                )
            end = start + info.end
            self.tensors[name] = info._replace(begin=begin, end=end)


# ---- writing


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
) -> None:
    """Write metadata (numbers, texts, lists, arrays) and tensors (arrays, `encode`d) to a file.

    It takes the place of an old file only when it is complete.
    """
    encoded = {
        name: x if isinstance(x, Encoded) else _plain(name, x) for name, x in tensors.items()
    }
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    shapes = {name: (x.format, x.shape) for name, x in encoded.items()}
    with replacing(Path(path)) as unfinished, open(unfinished, "xb") as file:
        file.write(gguf_head(metadata, shapes, alignment))
        for x in encoded.values():
            file.write(bytes(-file.tell() % alignment))
            file.write(x.raw.data)
        file.write(bytes(-file.tell() % alignment))


def gguf_head(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[BlockType, tuple[int, ...]]],
    alignment: int = _ALIGNMENT,
) -> bytes:
    """What stands before the bytes of tensors: metadata, and their types, shapes and places."""
    head = [_MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_packed_text(key), _packed_value(key, value)]
    place = 0
    for name, (format, own) in tensors.items():
        shape = struct.pack(f"<I{len(own)}Q", len(own), *own[::-1])
        head += [_packed_text(name), shape, struct.pack("<IQ", format.number, place)]
        size = math.prod(own) // format.block * format.size
        place += -(-size // alignment) * alignment
    return b"".join(head)


def _plain(name: str, x: Any) -> Encoded:
    array = np.ascontiguousarray(x).reshape(np.shape(x))
    for format in BY_NAME.values():
        if format.dtype == array.dtype:
            return Encoded(format, array.shape, array.reshape(-1).view(np.uint8))
    raise TypeError(f"write_gguf: {name!r} is {array.dtype}, which GGUF files cannot hold")


def _packed_text(text: str) -> bytes:
    contents = text.encode()
    return _LENGTH.pack(len(contents)) + contents


def _packed_value(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _KIND.pack(_TEXT) + _packed_text(value)
    if isinstance(value, list | tuple) and value and all(isinstance(x, str) for x in value):
        texts = b"".join(map(_packed_text, value))
        return struct.pack("<IIQ", _ARRAY, _TEXT, len(value)) + texts
    array = np.asarray(value)
    if array.dtype == np.int64 and not isinstance(value, np.ndarray):
        array = _narrowed(array)
    elif array.dtype == np.float64 and not isinstance(value, np.ndarray):
        array = array.astype(np.float32)
    kinds = [kind for kind, name in _SCALARS.items() if np.dtype(name) == array.dtype]
    if not kinds or array.ndim > 1:
        raise TypeError(f"write_gguf: {key!r} is {value!r}, which metadata cannot hold")
    if array.ndim == 0:
        return _KIND.pack(kinds[0]) + array.tobytes()
    return struct.pack("<IIQ", _ARRAY, kinds[0], len(array)) + array.tobytes()


def _narrowed(array: Any) -> Any:
    """Python's integers as most files have them: a number is unsigned, an array is not."""
    for dtype in (np.uint32, np.int32) if array.ndim == 0 else (np.int32,):
        if (array.astype(dtype) == array).all():
            return array.astype(dtype)
    return array


__all__ = ["GGUFFile", "TensorInfo", "gguf_head", "write_gguf"]
