"""Weights in archives of arrays: NumPy's `.npz`, HDF5 as Keras writes it, ONNX models."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from genesis.ir.dtype import as_dtype
from genesis.serialization import BadFile

_MOST_BYTES = 1 << 38


def open_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name; arrays of objects are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            _require_sizes(archive, path)
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (FileNotFoundError, PermissionError, IsADirectoryError, BadFile):
        raise
    except Exception as error:  # what damaged archives and heads of arrays raise is no short list
        raise BadFile(f"{path} is no archive of NumPy arrays: {error}") from None
    for name, x in found.items():
        if not isinstance(x, np.ndarray) or not _is_known(x.dtype):
            kind = x.dtype if isinstance(x, np.ndarray) else "no array"
            raise BadFile(f"{path}: {name!r} is {kind}, and not an array of numbers")
    return found


def _is_known(dtype: Any) -> bool:
    try:
        as_dtype(dtype)
    except TypeError:
        return False
    return True


def _require_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse what would become much larger than the file is."""
    total = sum(entry.file_size for entry in archive.infolist())
    if total > min(1100 * path.stat().st_size, _MOST_BYTES):
        raise BadFile(f"{path}: {total} bytes cannot be in a file of {path.stat().st_size}")


def open_keras(path: Path) -> dict[str, Any]:
    """The weights of a .keras archive: the HDF5 file in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            _require_sizes(archive, path)
            with tempfile.NamedTemporaryFile(suffix=".h5") as copy:
                copy.write(archive.read("model.weights.h5"))
                copy.flush()
                return open_hdf5(Path(copy.name))
    except (zipfile.BadZipFile, KeyError) as error:
        raise BadFile(f"{path} is no model of Keras: {error}") from None


def open_hdf5(path: Path) -> dict[str, Any]:
    """The datasets of an HDF5 file, by their paths with dots for slashes."""
    try:
        import h5py
    except ImportError:
        raise ImportError("HDF5 files need h5py: pip install 'genesis-dl[keras]'") from None
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub":
            if item.external or item.is_virtual or item.nbytes > 1100 * path.stat().st_size:
                raise BadFile(f"{path}: {name!r} does not lie in the file")
            found[name.replace("/", ".")] = item[()]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise BadFile(f"{path} is no HDF5 file: {error}") from None
    return found
