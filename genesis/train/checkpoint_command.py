"""What `genesis checkpoint` prints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from genesis.serialization import BadFile
from genesis.train.checkpoint_files import Checkpoint, read, readable, steps


def listed(folder: str) -> Iterator[str]:
    """A line for each checkpoint of a folder."""
    _require(folder)
    yield f"{'step':>10}  {'written':19}  {'tensors':>8}  {'size':>10}  {'on its own':>10}  metrics"
    for step in reversed(steps(folder)):
        try:
            yield _line(read(folder, step))
        except (BadFile, OSError) as error:
            yield f"{step:>10}  damaged: {error}"


def _line(c: Checkpoint) -> str:
    when = datetime.fromtimestamp(c.written).isoformat(" ", "seconds")
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in c.metrics.items())
    sizes = f"{_size(c.nbytes):>10}  {_size(c.own_bytes):>10}"
    return f"{c.step:>10}  {when}  {len(c.tensors):>8}  {sizes}  {metrics}".rstrip()


def shown(folder: str, step: int | None = None) -> Iterator[str]:
    """What a checkpoint holds: that of a step, or the last."""
    checkpoint = _chosen(folder, step)
    yield f"step {checkpoint.step}, {_size(checkpoint.nbytes)}"
    for name, value in checkpoint.metrics.items():
        yield f"{name} = {value:g}"
    width = max(map(len, checkpoint.tensors), default=0)
    for name, t in checkpoint.tensors.items():
        yield f"{name:{width}}  {t.dtype:9} {t.shape!s:20} {_size(t.nbytes):>10}  {t.file}"


def differences(folder: str, first: int, second: int) -> Iterator[str]:
    """In what two checkpoints differ, and by how much."""
    a, b = (_chosen(folder, step) for step in (first, second))
    before, after = a.arrays(), b.arrays()
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            yield f"{name}: only in {first if name in before else second}"
        elif a.tensors[name].digest != b.tensors[name].digest:
            yield f"{name}: {_difference(before[name], after[name])}"
    same = sum(a.tensors[n].digest == b.tensors[n].digest for n in {*before} & {*after})
    yield f"{same} tensors are the same"
    if a.plain != b.plain:
        yield "what is not a tensor differs (counts, settings, positions)"


def _difference(x: Any, y: Any) -> str:
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{x.dtype} {x.shape} became {y.dtype} {y.shape}"
    if x.dtype.kind not in "fV":
        return f"{int((x != y).sum())} of {x.size} elements differ"
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        largest = np.abs(x - y).max(initial=0.0)
    return f"{int((x != y).sum())} of {x.size} elements differ, by up to {largest:.3g}"


def verified(folder: str) -> Iterator[tuple[bool, str]]:
    """For each checkpoint whether every bit is as it was written, and a line that says so."""
    _require(folder)
    for step in reversed(steps(folder)):
        try:
            read(folder, step).load()
        except (BadFile, OSError) as error:
            yield False, f"{step:>10}  {error}"
        else:
            yield True, f"{step:>10}  whole"


def _chosen(folder: str, step: int | None) -> Checkpoint:
    _require(folder)
    if step is not None:
        if step not in steps(folder):
            raise BadFile(f"there is no checkpoint of step {step} in {folder}: {steps(folder)}")
        return read(folder, step)
    found = readable(Path(folder))
    if not found:
        raise BadFile(f"there is no checkpoint in {folder}")
    return found[0]


def _require(folder: str) -> None:
    if not Path(folder).is_dir():
        raise BadFile(f"there is no folder {folder}")


def _size(nbytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes = nbytes / 1024  # type: ignore[assignment]
    return f"{nbytes:,.1f} GiB"
