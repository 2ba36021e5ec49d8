"""`ArrayCache`: arrays that were made from a model's files, kept in the cache directory.

The first start writes them into one file, array after array, as they are made; a table of what
lies where is written last, when all are complete. So a file that was cut off has no table, and is
written anew. The next start maps the file and compares every array with its checksum in the table.
Files that were not used for longest make room for others.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from genesis.content_store import digest, directory, replace_file

#: The most bytes that all shelves have together, and that are left free on the disk.
LIMIT, FREE = 1 << 35, 1 << 31
_ALIGNMENT = 4096  # pages are mapped


class ArrayCache:
    """Arrays of a model by name; without a key, or where there is no directory, in memory."""

    def __init__(self, *key: str) -> None:
        self._arrays: dict[str, Any] = {}
        self._table: dict[str, tuple[int, list[int], str]] = {}
        self._folder = _folder() if key else None
        self._key = digest(*key)
        self._file: Any = None
        self._open()

    def find(self, name: str, shape: tuple[int, ...], dtype: Any = np.uint8) -> Any:
        """An array that is there, and as expected; None else."""
        found = self._arrays.get(name)
        fits = found is not None and found.shape == shape and found.dtype == dtype
        return found if fits else None

    def make(self, name: str, shape: tuple[int, ...], dtype: Any = np.uint8) -> Any:
        """A new array, to be filled."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if self._folder is None or not nbytes:
            return np.empty(shape, dtype)
        if self._file is None and not self._begin():
            return np.empty(shape, dtype)
        begin = -(-self._file.seek(0, os.SEEK_END) // _ALIGNMENT) * _ALIGNMENT
        try:
            os.posix_fallocate(self._file.fileno(), begin, nbytes)  # a full disk is told here
        except OSError:
            self._give_up()
            return np.empty(shape, dtype)
        array: Any = np.memmap(self._file, dtype, "r+", begin, shape)
        self._arrays[name] = array
        self._table[name] = begin, list(shape), np.dtype(dtype).name
        return array

    def finish(self) -> None:
        """Say that all arrays are filled: the next start finds them."""
        if self._file is None or self._folder is None:
            return
        with suppress(OSError):
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._file.name, self._path(".arrays"))
            arrays = {
                name: [*place, zlib.crc32(self._arrays[name])]
                for name, place in self._table.items()
            }
            replace_file(self._path(".json"), json.dumps(arrays).encode())
        self._file = None

    # ---- files

    def _path(self, end: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._key}{end}"

    def _open(self) -> None:
        """Map what is there, if all of it is right."""
        if self._folder is None:
            return
        # Whatever is wrong with the files: they are made anew.
        wrong = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
        with suppress(*wrong):
            table = json.loads(self._path(".json").read_bytes())
            mapped: Any = np.memmap(self._path(".arrays"), np.uint8, "r")
            arrays = {name: _mapped(mapped, *place) for name, place in table.items()}
            if all(x is not None for x in arrays.values()):
                self._arrays = arrays
                os.utime(self._path(".json"))

    def _begin(self) -> bool:
        """Make room for a new file, and open it."""
        assert self._folder is not None
        self._arrays = dict(self._arrays)
        try:
            _trim(self._folder)
            if shutil.disk_usage(self._folder).free < FREE:
                self._folder = None
                return False
            self._file = open(self._path(f".{secrets.token_hex(6)}"), "x+b")  # noqa: SIM115
        except OSError:
            self._folder = None
            return False
        return True

    def _give_up(self) -> None:
        with suppress(OSError):
            os.unlink(self._file.name)
        self._file = self._folder = None


def _mapped(mapped: Any, begin: int, shape: list[int], dtype: str, checksum: int) -> Any:
    """An array in a mapped file; None if it is not what was written."""
    kind = {"uint8": np.uint8, "int64": np.int64}[dtype]
    size = math.prod(shape) * np.dtype(kind).itemsize
    part = mapped[begin : begin + size]
    if begin < 0 or len(part) != size or zlib.crc32(part) != checksum:
        return None
    return part.view(kind).reshape(shape)


def _folder() -> Path | None:
    """The folder of all shelves, which only this user can write to."""
    base = directory()
    if base is None:
        return None
    folder = base / "weights"
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return folder
    return None


def kept() -> list[tuple[Path, int]]:
    """The files of all shelves, and their bytes."""
    base = directory()
    found = [] if base is None else sorted((base / "weights").glob("*.arrays"))
    return [(path, path.stat().st_size) for path in found]


def clear() -> list[tuple[Path, int]]:
    """Delete all shelves; what was deleted. Who has one mapped keeps it."""
    removed = kept()
    for path, _ in removed:
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
    return removed


def _trim(folder: Path) -> None:
    """Remove what was not used for longest beyond the limit, and what nobody finished."""
    shelves = sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    known, total = set(), 0
    for table in shelves:
        arrays = table.with_suffix(".arrays")
        total += arrays.stat().st_size if arrays.exists() else 0
        if total <= LIMIT:
            known |= {table, arrays}
    for path in folder.iterdir():
        fresh = path.suffix not in (".json", ".arrays")  # somebody may be writing it
        age = max(0.0, folder.stat().st_mtime - path.stat().st_mtime)
        if path not in known and not (fresh and age < 86400):
            path.unlink(missing_ok=True)


__all__ = ["FREE", "LIMIT", "ArrayCache", "clear", "kept"]
