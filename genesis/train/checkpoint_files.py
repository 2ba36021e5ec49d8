"""Checkpoints on disk.

A checkpoint is ``step-N.json``, which says what it is made of, and tensors in safetensors files:
one with those that have changed since the checkpoint before, and files of earlier ones for the
others. The text carries digests of itself, of every tensor, and of the tables of the files.

A file is written under another name, forced to disk and renamed, the text last: a checkpoint is
there when its text is. What is deleted goes afterwards, texts first. So at whatever moment a
process, or the machine, is stopped, every text that is there has its tensors.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genesis.content_store import digest, replace_file
from genesis.ndarray import NDArray, from_numpy
from genesis.serialization import BadFile, flattened, open_table, restored, save
from genesis.tensor.tensor import Tensor

_TEXT = re.compile(r"step-(\d{8,})\.json")
_DATA = re.compile(r"step-\d{8,}-[0-9a-f]{16}\.safetensors")
_UNFINISHED = re.compile(r"\.step-.*\.[0-9a-f]{16}")  # as `store.beside` calls them
_VERSION = 1
_SMALL = 1 << 16  # bytes that are not worth any thought


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: its file, kind and digest."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint is made of. `plain` is all that is not a tensor.

    Its `number` says when it was written: after those with smaller ones.
    """

    folder: Path
    step: int
    number: int
    written: float
    metrics: dict[str, float]
    plain: Any
    tensors: dict[str, StoredTensor]
    tables: dict[str, str]  #: digests of the tables of the files, by name

    @property
    def nbytes(self) -> int:
        """The size of its tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def own_bytes(self) -> int:
        """The size of the file that was written for it."""
        prefix = f"{_name(self.step)}-"
        files = {t.file for t in self.tensors.values() if t.file.startswith(prefix)}
        return sum((self.folder / name).stat().st_size for name in files)

    def load(self) -> dict[str, Any]:
        """Its contents, after every bit has been checked."""
        try:
            found: dict[str, Any] = restored(self.plain, self._tensors())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, BadFile):
                raise
            raise BadFile(f"checkpoint {self.step} in {self.folder}: it cannot be read") from None
        return found

    def arrays(self) -> dict[str, Any]:
        """Its tensors by name, as NumPy arrays, after they have been checked."""
        tables: dict[str, Any] = {}
        found = {}
        for name, stored in self.tensors.items():
            if stored.file not in tables:
                tables[stored.file] = self._opened(stored.file)
            _, entries, mapped = tables[stored.file]
            array = entries[stored.digest].contents(mapped) if stored.digest in entries else None
            if array is None or _digest(array) != stored.digest:
                raise BadFile(
                    f"checkpoint {self.step} in {self.folder}: {name!r} in {stored.file} is damaged"
                )
            found[name] = array
        return found

    def _tensors(self) -> dict[str, Tensor]:
        return {name: Tensor(from_numpy(x, "cpu")) for name, x in self.arrays().items()}

    def _opened(self, file: str) -> Any:
        path = self.folder / file
        try:
            if _table_digest(path) != self.tables.get(file):
                raise BadFile(f"the table of {file} is damaged")
            return open_table(os.fspath(path))
        except (OSError, BadFile) as error:
            raise BadFile(f"checkpoint {self.step} in {self.folder}: {error}") from None


def _name(step: int) -> str:
    return f"step-{step:08}"


def _digest(array: Any) -> str:
    contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return digest(array.dtype.name, str(array.shape), contents.data)


def _table_digest(path: Path) -> str:
    with open(path, "rb") as file:
        length = file.read(8)
        return digest(length, file.read(min(int.from_bytes(length, "little"), 1 << 30)))


# ---- reading


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps that there are checkpoints of, the last one first."""
    found = (_TEXT.fullmatch(name) for name in os.listdir(folder))
    return sorted((int(m[1]) for m in found if m), reverse=True)


def read(folder: str | os.PathLike[str], step: int) -> Checkpoint:
    """What the checkpoint of a step is made of; `load` it for the contents."""
    path = Path(folder) / f"{_name(step)}.json"
    try:
        expected, _, text = path.read_text().partition("\n")
        if expected != digest(text):
            raise ValueError
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise BadFile(f"{path} is of version {content['version']}, not {_VERSION}")
        tensors = {name: _stored(entry) for name, entry in content["tensors"].items()}
        number, written, metrics = (content[key] for key in ("number", "written", "metrics"))
        plain, tables = content["plain"], dict(content["tables"])
        return Checkpoint(Path(folder), step, number, written, metrics, plain, tensors, tables)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"{path} is damaged") from None


def _stored(entry: Any) -> StoredTensor:
    file, dtype, shape, nbytes, expected = entry
    if not _DATA.fullmatch(file):  # no other files are read, whatever a text says
        raise ValueError
    return StoredTensor(file, dtype, tuple(shape), nbytes, expected)


# ---- writing


def write(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    metrics: Mapping[str, float],
    before: Checkpoint | None = None,
) -> Checkpoint:
    """Write a checkpoint. Tensors that `before` has are not written again.

    Its bits are trusted: it is one that this process has written, or loaded.
    """
    arrays: dict[str, NDArray] = {}
    plain = flattened(state, "", arrays)
    contents = {name: x.numpy() for name, x in arrays.items()}
    digests = {name: _digest(x) for name, x in contents.items()}
    homes = _homes(before, set(digests.values())) if before else {}
    fresh = {digests[n]: arrays[n] for n in contents if digests[n] not in homes}
    data = f"{_name(step)}-{secrets.token_hex(8)}.safetensors"
    tables = dict(before.tables) if before else {}
    if fresh:
        save(fresh, folder / data)
        _sync(folder)
        tables[data] = _table_digest(folder / data)

    def stored(name: str, x: Any) -> StoredTensor:
        home = homes.get(digests[name], data)
        return StoredTensor(home, x.dtype.name, x.shape, x.nbytes, digests[name])

    tensors = {name: stored(name, x) for name, x in contents.items()}
    number = 1 + max((c.number for c in readable(folder)), default=0)
    tables = {t.file: tables[t.file] for t in tensors.values()}
    made = Checkpoint(folder, step, number, time.time(), dict(metrics), plain, tensors, tables)
    _write_text(made)
    return made


def _homes(before: Checkpoint, wanted: set[str]) -> dict[str, str]:
    """The files that have tensors with these digests, as far as they are worth keeping.

    A file of which little is used any more is not: it would be kept for that little.
    """
    known = {t.digest: t for t in before.tensors.values() if t.digest in wanted}
    used: Counter[str] = Counter()
    for t in known.values():
        used[t.file] += t.nbytes
    return {d: t.file for d, t in known.items() if _is_worth(before.folder / t.file, used[t.file])}


def _is_worth(path: Path, used: int) -> bool:
    return path.exists() and 2 * used >= path.stat().st_size - _SMALL


def readable(folder: Path) -> list[Checkpoint]:
    """The checkpoints whose texts are in order, the one written last first."""
    found = []
    for step in steps(folder):
        with suppress(BadFile, FileNotFoundError):
            found.append(read(folder, step))
    return sorted(found, key=lambda c: c.number, reverse=True)


def _write_text(made: Checkpoint) -> None:
    content = {
        "version": _VERSION,
        "number": made.number,
        "written": made.written,
        "metrics": made.metrics,
        "plain": made.plain,
        "tables": made.tables,
        "tensors": {
            name: [t.file, t.dtype, list(t.shape), t.nbytes, t.digest]
            for name, t in made.tensors.items()
        },
    }
    text = json.dumps(content)
    target = made.folder / f"{_name(made.step)}.json"
    replace_file(target, f"{digest(text)}\n{text}".encode(), durable=True)
    _sync(made.folder)


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def prune(folder: Path, kept: Callable[[list[Checkpoint]], set[int]]) -> None:
    """Delete all checkpoints but those of the steps that `kept` chooses, and files none needs.

    Damaged texts stay: somebody may want to know. So do their tensors' files, for nobody can tell
    which they are, unless their names say that they belong to another step.
    """
    found = readable(folder)
    keep = kept(found)
    for checkpoint in found:
        if checkpoint.step not in keep:
            (folder / f"{_name(checkpoint.step)}.json").unlink(missing_ok=True)
    _sync(folder)
    needed = {t.file for c in found if c.step in keep for t in c.tensors.values()}
    damaged = {_name(step) for step in set(steps(folder)) - {c.step for c in found}}
    for name in os.listdir(folder):
        is_ours = _DATA.fullmatch(name) and name.rpartition("-")[0] not in damaged
        if (is_ours and name not in needed) or _UNFINISHED.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
