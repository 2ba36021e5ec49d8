"""`compress_file`: a checkpoint to a smaller one, tensor by tensor.

Sizes follow from formats, so the whole layout of the target is known before the first weight is
read. The unfinished file lies beside the target; every tensor is written to its own place, and then
a line is added to a journal. A run that was killed goes on behind the last line, and the bytes are
those of an undisturbed run. No more than some rows of a tensor are in memory at once.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from genesis.compress.codes import chunks
from genesis.compress.format import FORMATS
from genesis.compress.plan import Choice, choose
from genesis.content_store import digest, replace_file
from genesis.weights.checkpoint_reader import Weights, open_weights
from genesis.weights.gguf import gguf_head
from genesis.weights.gguf_encode import encode
from genesis.weights.gguf_types import BY_NAME, BlockType, packed_blocks

#: What is tried where only bytes are said, the largest first.
LADDER = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
#: For rows that are no whole superblocks.
_SMALLER = {"Q6_K": "Q8_0", "Q5_K": "Q5_1", "Q4_K": "Q5_0", "Q3_K": "Q4_0", "Q2_K": "Q4_0",
            "IQ4_XS": "IQ4_NL", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}  # fmt: skip
#: Weights with fewer values stay as they are, and so do vectors.
_LEAST = 1024
#: Values of which the error of a format is measured.
_SAMPLE = 1 << 16
_ALIGNMENT = 32


@dataclass(frozen=True)
class FileReport:
    """What `compress_file` did."""

    target: str
    tensors: int
    bytes_before: int
    bytes_after: int
    #: The mean squared error of all weights by their mean square.
    error: float
    formats: Mapping[str, str]
    #: Tensors that a run before this one had written.
    resumed: int = 0

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for format in self.formats.values():
            counts[format] = counts.get(format, 0) + 1
        kinds = ", ".join(f"{n} {format}" for format, n in counts.items())
        return (
            f"{self.target}: {self.bytes_before} to {self.bytes_after} bytes, relative squared "
            f"error {self.error:.3g}, {self.tensors} tensors ({kinds})"
            + (f", {self.resumed} of them from a run before" if self.resumed else "")
        )


def compress_file(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *,
    format: str | Mapping[str, str] | None = None, bytes: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> FileReport:  # fmt: skip
    """Write the weights of a checkpoint to a GGUF file in fewer bits.

    `format` is one of llama.cpp's for all matrices, or formats by patterns of names; ``F16``,
    ``BF16`` and ``F32`` are such, too. With `bytes` formats are chosen so that the file is not
    larger and the error is least. Vectors and small matrices stay as they are.
    """
    place = Path(target)
    if place.suffix != ".gguf":
        raise ValueError(f"compress_file: the target {place} should end in .gguf")
    if (format is None) == (bytes is None):
        raise ValueError("compress_file: takes a format, or bytes")
    weights = open_weights(source)
    kinds = _chosen(weights, format) if bytes is None else _fitting(weights, bytes)
    _require_different(Path(source), place)
    return _written(weights, place, kinds, _identity(Path(source), kinds), progress)


def _require_different(source: Path, target: Path) -> None:
    if target.exists() and source.exists() and target.resolve() == source.resolve():
        raise ValueError(f"compress_file: {target} is the source itself")


# ---- which format a tensor gets


def _chosen(weights: Weights, format: str | Mapping[str, str] | None) -> dict[str, BlockType]:
    patterns = {"*": format} if isinstance(format, str) else dict(format or {})
    for name in patterns.values():
        if name not in BY_NAME or not (BY_NAME[name].pack or name in ("F32", "F16", "BF16")):
            known = [n for n, f in BY_NAME.items() if f.pack]
            raise ValueError(
                f"compress_file: the formats are F32, F16, BF16, {', '.join(known)}, not {name!r}"
            )
    used, found = set(), {}
    for name in weights:
        fitting = [p for p in patterns if fnmatchcase(name, p)]
        used |= {*fitting[:1]}
        wanted = patterns[fitting[0]] if fitting and _large(weights, name) else None
        found[name] = _kept(weights, name) if wanted is None else _usable(wanted, weights, name)
    if unused := [p for p in patterns if p not in used]:
        raise ValueError(f"compress_file: {unused[0]!r} fits no tensor of the source")
    return found


def _large(weights: Weights, name: str) -> bool:
    shape = weights.shape(name)
    plain = weights.format(name) is not None or weights.dtype(name) in _PLAIN
    return len(shape) >= 2 and math.prod(shape) >= _LEAST and shape[-1] % 32 == 0 and plain


_PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F32"}


def _kept(weights: Weights, name: str) -> BlockType:
    """The type of a tensor that stays as it is."""
    if weights.format(name) is not None:
        own = weights.dtype(name)
        return BY_NAME[own] if own in BY_NAME and BY_NAME[own].pack else BY_NAME["F16"]
    kinds = {**_PLAIN, **{f"int{b}": f"I{b}" for b in (8, 16, 32, 64)}}
    dtype = weights.dtype(name)
    if dtype in _PLAIN and len(weights.shape(name)) < 2:
        return BY_NAME["F32"]  # which llama.cpp wants of vectors
    if dtype not in kinds:
        raise ValueError(f"compress_file: {name!r} is {dtype}, which GGUF files cannot hold")
    return BY_NAME[kinds[dtype]]


def _usable(format: str, weights: Weights, name: str) -> BlockType:
    kind = BY_NAME[format]
    return kind if weights.shape(name)[-1] % kind.block == 0 else BY_NAME[_SMALLER[format]]


def _fitting(weights: Weights, limit: float) -> dict[str, BlockType]:
    """The formats of least error with which a file has at most so many bytes."""
    kept = {name: _kept(weights, name) for name in weights if not _large(weights, name)}
    choices: dict[str, list[Choice]] = {}
    for name in weights:
        if name in kept:
            continue
        rows = _sample(weights, name)
        kinds = {kind.name: kind for kind in (_usable(f, weights, name) for f in LADDER)}
        count = math.prod(weights.shape(name))
        choices[name] = [
            Choice(kind.name, _padded(_size(kind, weights.shape(name))),
                   _raw(rows, kind)[1] * count / max(1, rows.size))
            for kind in kinds.values()
        ]  # fmt: skip
    every = {**kept, **dict.fromkeys(choices, BY_NAME["Q8_0"])}
    spent = len(_head(weights, every)) + _ALIGNMENT
    spent += sum(_padded(_size(kind, weights.shape(name))) for name, kind in kept.items())
    if not choices:
        return kept
    try:
        found = choose(choices, bytes=limit - spent)
    except ValueError:
        least = spent + sum(min(c.bytes for c in own) for own in choices.values())
        raise ValueError(
            f"compress_file: {limit:.0f} bytes are too few: with {LADDER[-1]} it has {least:.0f}"
        ) from None
    formats = {**kept, **{name: BY_NAME[c.format] for name, c in found.choices.items()}}
    return {name: formats[name] for name in weights}


def _sample(weights: Weights, name: str) -> Any:
    """Some rows of a tensor, spread over all of it."""
    shape = weights.shape(name)
    total, k = math.prod(shape[:-1]), shape[-1]
    count = max(1, min(total, _SAMPLE // k))
    return np.concatenate([_rows(weights, name, slice(r, r + 1)) for r in
                           np.linspace(0, total - 1, count).astype(int)])  # fmt: skip


# ---- writing


def _size(kind: BlockType, shape: tuple[int, ...]) -> int:
    return math.prod(shape) // kind.block * kind.size


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _rows(weights: Weights, name: str, rows: slice) -> Any:
    """Some rows of a tensor, counted over all dimensions but the last; not in fewer bits."""
    if weights.format(name) is not None:
        return weights.codes(name, rows).decode().reshape(-1, weights.shape(name)[-1])
    array = weights.read(name)
    flat = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    return flat[rows]


def _raw(rows: Any, kind: BlockType) -> tuple[Any, float, float]:
    """The bytes of rows in a type; the squares of what they are off by, and of the rows, summed."""
    if kind.pack is not None:
        made = encode(rows, kind.name)
        return made.raw, made.off, made.total
    x = np.asarray(rows, np.float32)
    numbers = np.asarray(x, kind.dtype)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all() and np.isfinite(x).all():
        raise ValueError(f"compress_file: a weight is too large for {kind.name}")
    raw = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    off = numbers.astype(np.float32) - x
    return raw, float(np.square(off).sum()), float(np.square(x).sum())


def _head(weights: Weights, kinds: Mapping[str, BlockType]) -> Any:
    metadata = dict(weights.metadata or {"general.name": "genesis", "general.architecture": "none"})
    metadata = {k: v for k, v in metadata.items() if not k.startswith("split.")}
    metadata |= {"general.quantization_version": 2, "general.alignment": _ALIGNMENT}
    shapes = {name: (kinds[name], weights.shape(name)) for name in kinds}
    return gguf_head(metadata, shapes, _ALIGNMENT)


def _identity(source: Path, kinds: Mapping[str, BlockType]) -> str:
    """What a run before must have been about to be gone on with."""
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    facts = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files if f.is_file()]
    return digest(*facts, *(f"{name} {kind.name}" for name, kind in kinds.items()))


def _written(
    weights: Weights, target: Path, kinds: Mapping[str, BlockType], identity: str,
    progress: Callable[[str], None],
) -> FileReport:  # fmt: skip
    unfinished = target.with_name(f".{target.name}.unfinished")
    journal = target.with_name(f".{target.name}.journal")
    head = _head(weights, kinds)
    begin, places = _padded(len(head)), {}
    for name, kind in kinds.items():
        places[name] = begin
        begin += _padded(_size(kind, weights.shape(name)))
    with open(unfinished, "a+b") as lock:
        _locked(lock, target)
        done = _resumed(unfinished, journal, identity, begin)
        if not done:
            replace_file(journal, json.dumps({"run": identity}).encode() + b"\n")
            lock.truncate(0)
            lock.truncate(begin)
        resumed = 0
        with open(unfinished, "r+b") as file, open(journal, "ab") as log:
            file.write(head)
            for name, kind in kinds.items():
                size = _size(kind, weights.shape(name))
                if name in done and _checksum(file, places[name], size) == done[name]["crc"]:
                    resumed += 1
                    continue
                file.seek(places[name])
                done[name] = {"name": name, **_tensor(weights, name, kind, file)}
                file.flush()
                os.fdatasync(file.fileno())
                log.write(json.dumps(done[name]).encode() + b"\n")
                log.flush()
                progress(f"{name}: {weights.dtype(name)} to {kind.name}")
    os.replace(unfinished, target)
    journal.unlink(missing_ok=True)
    before = sum(_bytes_of(weights, name) for name in weights)
    total = sum(x["total"] for x in done.values())
    error = sum(x["off"] for x in done.values()) / total if total else 0.0
    formats = {name: kind.name for name, kind in kinds.items()}
    return FileReport(
        str(target), len(kinds), before, target.stat().st_size, error, formats, resumed
    )


def _locked(file: Any, target: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(f"compress_file: another process is writing {target}") from None


def _resumed(unfinished: Path, journal: Path, identity: str, size: int) -> dict[str, Any]:
    """What a run before wrote of the same file, line by line; a line that is cut off is none."""
    if not unfinished.exists() or not journal.exists() or unfinished.stat().st_size != size:
        return {}
    done: dict[str, Any] = {}
    for number, line in enumerate(journal.read_bytes().split(b"\n")[:-1]):
        try:
            entry = json.loads(line)
            if number == 0 and entry["run"] != identity:
                return {}
            if number:
                done[entry["name"]] = entry
        except (ValueError, LookupError, TypeError):
            break
    _cut(journal, len(done) + 1)
    return done


def _cut(journal: Path, lines: int) -> None:
    whole = journal.read_bytes().split(b"\n")[:lines]
    replace_file(journal, b"\n".join(whole) + b"\n")


def _tensor(weights: Weights, name: str, kind: BlockType, file: Any) -> dict[str, Any]:
    """Write a tensor, some rows at a time; its squared error, its squares and its checksum."""
    shape, format = weights.shape(name), weights.format(name)
    if len(shape) < 2 or (kind.pack is None and kind.dtype.kind not in "fV"):
        raw = np.ascontiguousarray(weights.read(name), kind.dtype).reshape(-1).view(np.uint8)
        file.write(raw.data)
        return {"off": 0.0, "total": 0.0, "crc": zlib.crc32(raw.data)}

    def part(rows: slice) -> tuple[Any, float, float]:
        if format is not None and format == FORMATS.get(kind.name):  # every code stays
            return packed_blocks(weights.codes(name, rows), kind), 0.0, 0.0
        try:
            return _raw(_rows(weights, name, rows), kind)
        except ValueError as error:
            raise ValueError(f"compress_file: {name!r}: {error}") from None

    off, total, crc = 0.0, 0.0, 0
    pieces = chunks(math.prod(shape[:-1]), shape[-1])
    with ThreadPoolExecutor(2) as pool:  # NumPy computes outside of the interpreter's lock
        while some := list(islice(pieces, 16)):
            for raw, one, all_ in pool.map(part, some):
                file.write(raw.data)
                off, total, crc = off + one, total + all_, zlib.crc32(raw, crc)
    return {"off": off, "total": total, "crc": crc}


def _checksum(file: Any, begin: int, size: int) -> int:
    file.seek(begin)
    total = 0
    for piece in _pieces(file, size):
        total = zlib.crc32(piece, total)
    return total


def _pieces(file: Any, size: int) -> Iterator[Any]:
    while size > 0:
        piece = file.read(min(size, 1 << 22))
        if not piece:
            return
        size -= len(piece)
        yield piece


def _bytes_of(weights: Weights, name: str) -> int:
    count, format = math.prod(weights.shape(name)), weights.format(name)
    if format is not None:
        return round(count * format.rate / 8) if format.group > 0 else count * 2
    return int(count * np.dtype(weights.read(name).dtype).itemsize)


def parse_bytes(text: str) -> float:
    """A number of bytes: ``1.5GB``, ``700 MiB``, ``12000``.

    >>> parse_bytes("1.5GB"), parse_bytes("2 KiB")
    (1500000000.0, 2048.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(i?)B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is no number of bytes like 1.5GB, 700MiB or 12000")
    base = 1024 if found[3] else 1000
    return float(found[1]) * float(base ** " KMGT".index((found[2] or " ").upper()))


__all__ = ["LADDER", "FileReport", "compress_file", "parse_bytes"]
