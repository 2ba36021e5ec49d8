"""`convert`: weights from one kind of file to another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from genesis.content_store import replacing
from genesis.ndarray import from_numpy
from genesis.serialization import require_place, save
from genesis.tensor.tensor import Tensor
from genesis.weights.checkpoint_reader import open_weights

TARGETS = (".safetensors", ".npz")


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> str:
    """Write the tensors of a checkpoint to another file; what was done, in a line.

    The target's name says its format: .safetensors, or .npz without bfloat16 and the like.
    """
    place = Path(target)
    if place.suffix not in TARGETS:
        raise ValueError(f"convert: {place} should end in {' or '.join(TARGETS)}")
    require_place(place)
    weights = open_weights(source)
    arrays = {name: np.asarray(weights.read(name)) for name in weights}
    if place.suffix == ".npz":
        _write_npz(arrays, place)
    else:
        save({name: Tensor(from_numpy(np.array(x))) for name, x in arrays.items()}, place)
    total = sum(x.nbytes for x in arrays.values())
    return f"{len(arrays)} tensors, {total} bytes: {place}"


def _write_npz(arrays: dict[str, Any], place: Path) -> None:
    foreign = [name for name, x in arrays.items() if x.dtype.kind not in "fiubc"]
    if foreign:
        dtype = arrays[foreign[0]].dtype
        raise ValueError(f"convert: {foreign[0]!r} is {dtype}, which .npz files cannot hold")
    with replacing(place) as unfinished, open(unfinished, "xb") as file:
        np.savez(file, **arrays)
