"""Datasets that are files: NumPy, tables (CSV, Parquet, Arrow), folders of images, tars, lines.

Files are opened when they are first needed in a process, so that datasets are cheap to hand to
workers. Nothing in them is run: arrays of Python objects are refused.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genesis.data.collate import Array
from genesis.data.dataset import Dataset, IterableDataset, Rows
from genesis.data.worker import get_worker_info, shard
from genesis.serialization import BadFile

StrPath = str | os.PathLike[str]
IMAGES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))


class NumpyDataset(Dataset[Any]):
    """Rows of ``.npy`` files, which are mapped, not read: tuples if there are several files.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.arange(6).reshape(3, 2))
    ...     NumpyDataset(f"{folder}/x.npy")[1].tolist()
    [2, 3]
    """

    def __init__(self, *paths: StrPath) -> None:
        if not paths:
            raise ValueError("NumpyDataset: give one file or more")
        self.arrays = [_mapped_array(path) for path in paths]
        sizes = [len(array) for array in self.arrays]
        if len(set(sizes)) > 1:
            raise BadFile(f"NumpyDataset: {', '.join(map(str, paths))} have {sizes} rows")

    def __getitem__(self, index: int) -> Any:
        rows = tuple(array[index] for array in self.arrays)
        return rows if len(rows) > 1 else rows[0]

    def __len__(self) -> int:
        return len(self.arrays[0])


def _mapped_array(path: StrPath) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadFile(
            f"NumpyDataset: {os.fspath(path)} is no .npy file of numbers: {error}"
        ) from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise BadFile(f"NumpyDataset: {os.fspath(path)} holds no array with rows")
    return array


class TableDataset(Dataset[dict[str, Any]]):
    """Rows of a table as dictionaries: a ``.csv``, ``.parquet``, ``.arrow`` or ``.feather`` file.

    Arrow files are mapped, and columns of numbers are used where they lie. `columns` names those
    to read. Needs pyarrow, the extra ``data``.
    """

    def __init__(self, path: StrPath, columns: Sequence[str] | None = None) -> None:
        self.path = os.fspath(path)
        table = _read_table(self.path, list(columns) if columns is not None else None)
        self.columns = {name: _column(self.path, name, table[name]) for name in table.column_names}
        self._rows = int(table.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -self._rows <= index < self._rows:
            raise IndexError(f"{self.path}: row {index} of {self._rows}")
        return {name: column[index] for name, column in self.columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        chosen = np.asarray(indices)
        return Rows({name: column[chosen] for name, column in self.columns.items()})

    def __len__(self) -> int:
        return self._rows


def _read_table(path: str, columns: list[str] | None) -> Any:
    import pyarrow as pa

    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".csv":
            from pyarrow import csv

            options = csv.ConvertOptions(include_columns=columns or [])
            return csv.read_csv(path, convert_options=options)
        if suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path, columns=columns, memory_map=True)
        if suffix in (".arrow", ".feather"):
            from pyarrow import feather

            return feather.read_table(path, columns=columns, memory_map=True)
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
        raise BadFile(f"TableDataset: {path}: {error}") from None
    raise ValueError(f"TableDataset: {path}: the name ends in .csv, .parquet, .arrow or .feather")


def _column(path: str, name: str, column: Any) -> Array:
    """Numbers as they lie in memory, everything else as an array of Python objects."""
    import pyarrow as pa

    if column.null_count and not (
        pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ):
        raise BadFile(
            f"TableDataset: {path}: {column.null_count} values of column {name!r} are missing; "
            "fill them in, or leave the column out"
        )
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    found: Array = whole.to_numpy(zero_copy_only=False)
    return found


class ImageFolder(Dataset[tuple[Any, int]]):
    """Images by class: ``root/CLASS/name.png``, each as uint8 (height, width, 3) with its class.

    `transform` gets the array. Needs Pillow, the extra ``data``.
    """

    def __init__(self, root: StrPath, transform: Callable[[Array], Any] | None = None) -> None:
        self.root, self.transform = Path(root), transform
        self.classes = sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())
        self.class_to_idx = {name: k for k, name in enumerate(self.classes)}
        self.samples = [
            (path, number)
            for name, number in self.class_to_idx.items()
            for path in sorted((self.root / name).rglob("*"))
            if path.suffix.lower() in IMAGES
        ]
        if not self.samples:
            raise FileNotFoundError(f"ImageFolder: there is no image in a folder of {self.root}")

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, number = self.samples[index]
        image = read_image(path.read_bytes(), str(path))
        return (image if self.transform is None else self.transform(image)), number

    def __len__(self) -> int:
        return len(self.samples)


def read_image(content: bytes, name: str = "an image") -> Array:
    """The pixels of an image file: uint8 (height, width, 3). Needs Pillow."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadFile(f"{name} is no image that can be read: {error}") from None


class TextLines(Dataset[str]):
    r"""The lines of a text file, without their ends. It is mapped; where lines begin is kept.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write("first\nsécond".encode()); file.flush()
    ...     lines = TextLines(file.name)
    ...     len(lines), lines[1]
    (2, 'sécond')
    """

    def __init__(self, path: StrPath, encoding: str = "utf-8") -> None:
        self.path, self.encoding = os.fspath(path), encoding
        self._content = _mapped_bytes(self.path)
        ends = np.flatnonzero(np.frombuffer(self._content, np.uint8) == ord("\n"))
        starts = np.concatenate([[0], ends + 1])
        self._starts = starts if starts[-1] == len(self._content) else [*starts, len(self._content)]

    def __getitem__(self, index: int) -> str:
        number = range(len(self))[index]
        line = self._content[self._starts[number] : self._starts[number + 1]]
        return line.rstrip(b"\r\n").decode(self.encoding, "replace")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __reduce__(self) -> Any:
        return TextLines, (self.path, self.encoding)


def _mapped_bytes(path: str) -> bytes | mmap.mmap:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class TarDataset(IterableDataset[dict[str, Any]]):
    """Samples in tar files, as webdataset lays them out: files with one name up to its first dot.

    A sample is a dictionary: the name as ``__key__``, and the contents by what follows the dot.
    With `decode` images, ``json``, ``npy``, ``txt`` and ``cls`` become what they are; anything else
    stays bytes. Workers share the tars or, where these are fewer, the samples.
    """

    def __init__(self, *paths: StrPath, decode: bool = True) -> None:
        if not paths:
            raise ValueError("TarDataset: give one file or more")
        self.paths, self.decode = [os.fspath(p) for p in paths], decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        if info is not None and len(self.paths) < info.num_workers:
            return shard(self._samples(self.paths))
        return self._samples(list(shard(self.paths)))

    def _samples(self, paths: list[str]) -> Iterator[dict[str, Any]]:
        for path in paths:
            try:
                yield from self._of(path)
            except tarfile.TarError as error:
                raise BadFile(f"TarDataset: {path} is damaged or no tar file: {error}") from None

    def _of(self, path: str) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is None:
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                content = file.read()
                sample["__key__"] = key
                sample[suffix] = _decoded(suffix, content, path) if self.decode else content
        if sample:
            yield sample


def _decoded(suffix: str, content: bytes, path: str) -> Any:
    kind = suffix.rpartition(".")[2].lower()
    try:
        if f".{kind}" in IMAGES:
            return read_image(content, f"a {suffix} file in {path}")
        if kind == "json":
            return json.loads(content)
        if kind == "npy":
            return np.load(io.BytesIO(content), allow_pickle=False)
        if kind in ("txt", "cls"):
            return content.decode() if kind == "txt" else int(content)
    except (ValueError, EOFError) as error:
        raise BadFile(f"a {suffix} file in {path} cannot be read: {error}") from None
    return content


__all__ = [
    "ImageFolder", "NumpyDataset", "TableDataset", "TarDataset", "TextLines", "read_image",
]  # fmt: skip
