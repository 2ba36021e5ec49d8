"""`save` and `load`: tensors in safetensors files.

A safetensors file is a table (names, dtypes, shapes, places) and then the bytes. It holds no code,
so loading one runs none. The file is mapped, not read: a tensor's bytes are fetched when they are
first used, and never copied unless somebody writes to it.

The library `safetensors` writes files. It cannot map them for NumPy, so reading is done here, and
the table is checked as if somebody hostile had written it. Writing goes to a temporary file that
takes the place of the old one only when it is complete.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genesis.content_store import beside, replacing
from genesis.ir import dtype as dtypes
from genesis.ir.dtype import DType
from genesis.ndarray import NDArray, from_numpy
from genesis.tensor.tensor import Tensor

_DTYPES: dict[str, DType] = {
    "BOOL": dtypes.bool_, "U8": dtypes.uint8, "I8": dtypes.int8, "U16": dtypes.uint16,
    "I16": dtypes.int16, "U32": dtypes.uint32, "I32": dtypes.int32, "U64": dtypes.uint64,
    "I64": dtypes.int64, "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F32": dtypes.float32,
    "F64": dtypes.float64, "C64": dtypes.complex64, "F8_E4M3": dtypes.float8_e4m3fn,
    "F8_E5M2": dtypes.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
_MOST_DIMENSIONS = 64  # NumPy's limit
_PLAIN = "genesis"  # the metadata entry with what is not a tensor


class BadFile(ValueError):
    """A file that is not what its name says, or is damaged."""


def save(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write nested dictionaries and lists of tensors, numbers and texts to a safetensors file.

    >>> import genesis, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     genesis.save({"w": genesis.tensor([1.0, 2.0]), "step": 3}, f"{folder}/x.safetensors")
    ...     genesis.load(f"{folder}/x.safetensors")
    {'w': tensor([1., 2.]), 'step': 3}
    """
    from safetensors import TensorSpec, serialize_file

    if not isinstance(state, Mapping):
        raise TypeError(f"save: the state is a dictionary, not a {type(state).__name__}")
    tensors: dict[str, NDArray] = {}
    plain = flattened(state, "", tensors)
    table = {}
    kept = []  # the file is written from the arrays' own memory
    for name, array in tensors.items():
        if array.dtype not in _NAMES:
            raise TypeError(f"save: {name!r} is {array.dtype}, which safetensors files cannot hold")
        window = array.numpy()
        contents = np.ascontiguousarray(window)
        kept.append(contents)
        table[name] = TensorSpec(
            dtype=array.dtype.name.rstrip("_"),
            shape=list(window.shape),
            data_ptr=contents.ctypes.data,
            data_len=contents.nbytes,
        )
    with replacing(Path(path), durable=True) as unfinished:
        permissions = _created(unfinished)
        serialize_file(table, unfinished, {_PLAIN: json.dumps(plain)})
        unfinished.chmod(permissions)  # the library's file is its owner's only


def require_place(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that `save` would end with, while there is nothing to lose yet."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    place = beside(target)
    _created(place)
    place.unlink()


def _created(path: Path) -> int:
    """What a new file is permitted, which is empty."""
    try:
        with open(path, "xb") as created:
            return os.fstat(created.fileno()).st_mode & 0o777
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "no such folder", str(path.parent)) from None


def flattened(x: Any, path: str, tensors: dict[str, NDArray]) -> Any:
    """What is not a tensor, with names where there are tensors; those go to `tensors` by name."""
    if isinstance(x, Tensor | NDArray):
        if path in tensors:
            raise ValueError(f"save: two tensors would both be called {path!r}")
        tensors[path] = x.array if isinstance(x, Tensor) else x
        return {"tensor": path}
    if isinstance(x, Mapping):
        prefix = f"{path}." if path else ""
        entries = [[k, flattened(v, f"{prefix}{k}", tensors)] for k, v in x.items()]
        if any(not isinstance(k, str | int) for k, _ in entries):
            raise TypeError(f"save: keys are texts or integers, in {path or 'the state'}")
        return {"dict": entries}
    if isinstance(x, list | tuple):
        prefix = f"{path}." if path else ""
        items = [flattened(v, f"{prefix}{k}", tensors) for k, v in enumerate(x)]
        return {"tuple" if isinstance(x, tuple) else "list": items}
    if x is None or isinstance(x, bool | int | float | str):
        return {"plain": x}
    raise TypeError(
        f"save: {path or 'the state'} is a {type(x).__name__}; a file holds tensors, numbers, "
        "texts, and dictionaries and lists of them"
    )


def load(path: str | os.PathLike[str], device: str | None = None) -> dict[str, Any]:
    """What `save` wrote, or the tensors by name of any safetensors file.

    The tensors lie in the file until they are written to.
    """
    name = os.fspath(path)
    metadata, table, mapped = open_table(name)
    tensors = {
        key: Tensor(from_numpy(entry.contents(mapped), device)) for key, entry in table.items()
    }
    plain = metadata.get(_PLAIN) if isinstance(metadata, dict) else None
    if plain is None:
        return tensors
    try:
        return restored(json.loads(plain), tensors)  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadFile(f"load: {name}: the description of its contents is damaged") from None


def open_table(name: str) -> tuple[Any, dict[str, TensorEntry], Any]:
    """The metadata and the checked table of a safetensors file, and its tensors' mapped bytes."""
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if start.startswith(b"PK"):
            raise BadFile(
                f"load: {name} is a zip archive, such as torch.save writes; `genesis convert` "
                "makes a safetensors file of it"
            )
        if len(start) < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise BadFile(f"load: {name} is no safetensors file: it has no complete table")
        header = file.read(length)
        mapped: Any = np.memmap(file, np.uint8, "r")[8 + length :]
    try:
        table = json.loads(header, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError):
        raise BadFile(f"load: {name} is no safetensors file: its table cannot be read") from None
    if not isinstance(table, dict):
        raise BadFile(f"load: {name} is no safetensors file: its table is no dictionary")
    metadata = table.pop("__metadata__", {})
    entries = {key: _entry(name, key, entry) for key, entry in table.items()}
    place = 0
    for key, entry in sorted(entries.items(), key=lambda e: (e[1].begin, e[1].end)):
        if entry.begin != place or entry.end > len(mapped):
            raise BadFile(
                f"load: {name}: {key!r} lies at {entry.begin}..{entry.end} of {len(mapped)} bytes, "
                f"the one before it ends at {place}; the file is damaged or cut off"
            )
        place = entry.end
    if place != len(mapped):
        raise BadFile(f"load: {name}: bytes after {place} belong to no tensor; it is damaged")
    return metadata, entries, mapped


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary of a JSON file that somebody hostile may have written."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


class TensorEntry(NamedTuple):
    """A line of the table, after it has been checked."""

    dtype: DType
    shape: list[int]
    begin: int
    end: int

    def contents(self, mapped: Any) -> Any:
        """The tensor as a NumPy array: the mapped bytes, if they can be used as they are."""
        contents = mapped[self.begin : self.end]
        if self.dtype is dtypes.bool_:
            contents = contents != 0  # any byte may stand in the file
        elif contents.ctypes.data % self.dtype.itemsize:
            contents = np.array(contents)
        return contents.view(self.dtype.numpy).reshape(self.shape)


def _entry(name: str, key: str, entry: Any) -> TensorEntry:
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            kind in _DTYPES
            and len(shape) <= _MOST_DIMENSIONS
            and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
            and math.prod(n for n in shape if n) * _DTYPES[kind].itemsize < 1 << 63
        ):
            dtype = _DTYPES[kind]
        case _:
            raise BadFile(f"load: {name}: the entry of {key!r} is not understood")
    if not 0 <= begin <= end or end - begin != math.prod(shape) * dtype.itemsize:
        raise BadFile(
            f"load: {name}: {key!r} of {dtype} {tuple(shape)} cannot lie at {begin}..{end}"
        )
    return TensorEntry(dtype, shape, begin, end)


def restored(x: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `flattened` took apart; anything else raises one of several exceptions."""
    ((kind, content),) = x.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "plain":
        if content is not None and not isinstance(content, bool | int | float | str):
            raise TypeError
        return content
    if kind == "dict":
        return {k: restored(v, tensors) for k, v in content}
    items = [restored(v, tensors) for v in content]
    return {"list": list, "tuple": tuple}[kind](items)
