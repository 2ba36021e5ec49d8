"""Checkpoints: what a training is made of, in files that any number of processes can go on from.

Every process writes the blocks that it holds; of those that several hold, the first does. A
checkpoint counts from the moment its manifest is there, which is written last and as a whole: a
process that is killed while writing leaves the one before. To restore one, every process reads the
parts of the files that are its own by then, whatever placements and mesh they were written from.
The manifest has a checksum of every file. Files of parity give back others that are lost or
damaged; a checkpoint that cannot be mended is passed over for the one before.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from genesis import Tensor, load, nn, optim, tensor
from genesis import save as save_file
from genesis.compiler.program.memory_plan import WrongProgram
from genesis.compiler.verify.exchange import verify_cover
from genesis.distributed.mesh import Mesh, current, mesh
from genesis.distributed.parity import encode, rebuild
from genesis.distributed.pipeline import Pipeline
from genesis.ir.placement import Placement
from genesis.ir.size import evaluate
from genesis.ndarray import NDArray
from genesis.ndarray.core.interop import copied, realize
from genesis.ndarray.core.realisation import backend_of
from genesis.ndarray.random import default_generator
from genesis.store import replace_file

#: Checkpoints that are kept: the last one, and the one before.
KEPT = 2

Region = tuple[slice, ...]
Parts = dict[str, list[tuple[list[int], list[int], Tensor]]]


def save(
    folder: str | Path, step: int, model: nn.Module, optimizer: optim.Optimizer, parity: int = 0
) -> None:
    """Write a checkpoint of a training after `step` steps. All processes call it.

    It has weights, buffers, the optimizer's state and settings, and the random numbers' state.
    So many files as `parity` says may be lost, or damaged, and it can still be gone on from.
    """
    on = _mesh()
    if not 0 <= parity <= on.size:
        raise ValueError(f"save: {on.size} processes write {parity} files of parity, not 0 to that")
    target = Path(folder) / f"step-{step:09}"
    target.mkdir(parents=True, exist_ok=True)
    if on.rank == 0:
        (target / "manifest.json").unlink(missing_ok=True)  # of an earlier life
    on.barrier()
    blocks = {
        name: {"starts": [s.start for s in region], "shape": list(x.shape), "block": Tensor(block)}
        for name, x, region, block in _blocks(on, model, optimizer)
    }
    save_file({"blocks": blocks | _unsent(model)}, target / f"rank-{on.rank}.safetensors")
    on.barrier()
    if on.rank < parity:
        shards = [_bytes(target / f"rank-{k}.safetensors") for k in range(on.size)]
        replace_file(target / f"parity-{on.rank}", encode(shards, parity, on.rank).tobytes())
    on.barrier()
    if on.rank == 0:
        names = _names(on.size, parity)
        manifest = {
            "step": step, "files": on.size, "parity": parity, "settings": settings_of(optimizer),
            "sizes": [(target / name).stat().st_size for name in names],
            "checksums": [crc32(_bytes(target / name)) for name in names],
        }  # fmt: skip
        replace_file(target / "manifest.json", json.dumps(manifest).encode())
        for old in _steps(Path(folder))[:-KEPT]:
            (old / "manifest.json").unlink()
            shutil.rmtree(old)
    on.barrier()


def restore(folder: str | Path, model: nn.Module, optimizer: optim.Optimizer) -> int:
    """Go on from the last checkpoint in a folder: the number of its step, or 0 if there is none.

    All processes call it, after `place`. Arrays stay where they are placed.
    """
    on = _mesh()
    optimizer.prepare()
    whole = next(filter(_mended, reversed(_steps(Path(folder)))), None) if on.rank == 0 else None
    found = int(on.broadcast(np.array(-1 if whole is None else _number(whole), np.int64)))
    if found < 0:
        return 0
    source = Path(folder) / f"step-{found:09}"
    manifest = json.loads((source / "manifest.json").read_text())
    parts = _parts(source, int(manifest["files"]))
    for name, x in arrays_of(model, optimizer).items():
        _fill(on, name, x, parts.get(name, []), source)
    use_settings(optimizer, manifest["settings"])
    _take_over(model, parts)
    default_generator().state = _whole("random", parts, source)
    return found


#: What names of a codec's arrays begin with: what was not sent yet, and what it goes on from.
_LEFT, _CODEC = "codec.left.", "codec.state."


def _unsent(model: nn.Module) -> dict[str, Any]:
    """What the codec of a pipeline has: of what is left every process its own."""
    codec = model.codec if isinstance(model, Pipeline) else None
    if codec is None:
        return {}
    assert isinstance(model, Pipeline)
    number, count = model.beside
    left = {_LEFT + name: (number, count, x) for name, x in codec.residuals.items()}
    if number == 0:
        left |= {_CODEC + name: (0, 1, x) for name, x in codec.state.items()}
    return {
        name: {"starts": [at, *(0,) * x.ndim], "shape": [of, *x.shape], "block": tensor(x[None])}
        for name, (at, of, x) in left.items()
    }


def _take_over(model: nn.Module, parts: Parts) -> None:
    """Give the codec of a pipeline what those before it had."""
    codec = model.codec if isinstance(model, Pipeline) else None
    if codec is None:
        return
    assert isinstance(model, Pipeline)
    own = {f"{name}" for name, _ in model.named_parameters()}

    def found(prefix: str) -> dict[str, list[Any]]:
        names = {n: n.removeprefix(prefix) for n in parts if n.startswith(prefix)}
        mine = {n: short for n, short in names.items() if short.partition("/")[2] in own}
        rows = {short: sorted(parts[n], key=lambda part: part[0]) for n, short in mine.items()}
        return {short: [part.numpy()[0] for _, _, part in each] for short, each in rows.items()}

    codec.take_over(found(_LEFT), *model.beside)
    codec.state.update({name: rows[0] for name, rows in found(_CODEC).items()})


def _mesh() -> Mesh:
    try:
        return current()
    except ValueError:
        return mesh()


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _steps(folder: Path) -> list[Path]:
    """The checkpoints that were written to their end, oldest first."""
    named = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted((p for p in named if (p / "manifest.json").is_file()), key=_number)


def _names(files: int, parity: int) -> list[str]:
    return [f"rank-{k}.safetensors" for k in range(files)] + [f"parity-{k}" for k in range(parity)]


def _bytes(path: Path) -> Any:
    return np.fromfile(path, np.uint8)


def _mended(source: Path) -> bool:
    """Whether all files of a checkpoint are as they were written, or have been made so again."""
    manifest = json.loads((source / "manifest.json").read_text())
    files, parity = int(manifest["files"]), int(manifest.get("parity", 0))
    sizes, sums = manifest.get("sizes"), manifest.get("checksums")
    known: dict[int, Any] = {}
    for k, name in enumerate(_names(files, parity)):
        if (source / name).is_file():
            contents = _bytes(source / name)
            if sums is None or (len(contents), crc32(contents)) == (sizes[k], sums[k]):
                known[k] = contents
    missing = [k for k in range(files) if k not in known]
    if not missing:
        return True
    names = ", ".join(_names(files, 0)[k] for k in missing)
    if len(known) < files:
        warnings.warn(f"{source}: {names} cannot be read; passed over", stacklevel=3)
        return False
    warnings.warn(f"{source}: {names} cannot be read, but made anew by parity", stacklevel=3)
    shards = rebuild(known, manifest["sizes"][:files], parity)
    for k in missing:
        replace_file(source / _names(files, 0)[k], shards[k].tobytes())
    return True


def arrays_of(model: nn.Module, optimizer: optim.Optimizer | None) -> dict[str, NDArray]:
    """Everything that a training changes, by name; what is shared comes once."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    found = {f"model.{name}": x.array for name, x in model.state_dict().items()}
    for p, state in {} if optimizer is None else optimizer.state.items():
        for key, x in state.items():
            if isinstance(x, NDArray):
                found[f"optimizer.{names.get(p, '?')}.{key}"] = x
    return found


def settings_of(optimizer: optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of an optimizer that are numbers."""
    return [
        {k: v for k, v in group.items() if _is_number(v) or _are_numbers(v)}
        for group in optimizer.param_groups
    ]


def use_settings(optimizer: optim.Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """Give an optimizer the settings that another one had."""
    for group, found in zip(optimizer.param_groups, settings, strict=True):
        group.update({k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float)


def _are_numbers(x: Any) -> bool:
    return isinstance(x, tuple) and all(map(_is_number, x))


def _blocks(
    on: Mesh, model: nn.Module, optimizer: optim.Optimizer
) -> Iterator[tuple[str, NDArray, Region, NDArray]]:
    """What this process writes: names, arrays, and the regions and contents of its blocks."""
    own = model.axis if isinstance(model, Pipeline) else None  # other arrays along it
    arrays = arrays_of(model, optimizer)
    for name, x in (*arrays.items(), ("random", default_generator().state)):
        realize(x)
        value = x.storage.actual
        if _is_first(on, value.placement, own if name in arrays else None):
            region = region_of(on, x.shape, value.placement)
            assert value.memory is not None
            local: Any = tuple(s.stop - s.start for s in region)
            if value.placement is None:
                yield name, x, region, x
            else:
                block = backend_of(value.device).download(value.memory, value.dtype, local)
                yield name, x, region, copied(block)


def _is_first(on: Mesh, placement: Placement | None, own: str | None) -> bool:
    """Whether this process is the first of those that hold the same block."""
    splits = (None,) * len(on.form.axes) if placement is None else placement.splits
    names = [name for name, _ in on.form.axes]
    pairs = zip(names, splits, strict=True)
    return not any(on.coordinates[n] for n, s in pairs if s is None and n != own)


def region_of(on: Mesh, shape: Any, placement: Placement | None, rank: int | None = None) -> Region:
    """Where a process's block lies in the whole array: this one's, if it is not said whose."""
    at = on.coordinates if rank is None else on.coordinates_of(rank)
    starts, extents = [0] * len(shape), list(shape)
    for (name, size), split in zip(
        on.form.axes, placement.splits if placement else (), strict=False
    ):
        if split is not None:
            extents[split.dim] //= size
            starts[split.dim] += at[name] * extents[split.dim]
    return tuple(slice(a, a + n) for a, n in zip(starts, extents, strict=True))


def _parts(source: Path, files: int) -> Parts:
    """The blocks in the files of a checkpoint: where each begins, the whole shape, and itself."""
    found: Parts = {}
    for k in range(files):
        for name, entry in load(source / f"rank-{k}.safetensors")["blocks"].items():
            known = found.setdefault(name, [])
            if all(entry["starts"] != starts for starts, _, _ in known):  # stages may share some
                known.append((entry["starts"], entry["shape"], entry["block"]))
    return found


def _whole(name: str, parts: Parts, source: Path) -> NDArray:
    if len(parts.get(name, ())) != 1:
        raise ValueError(f"{source}: the checkpoint has no {name!r}")
    return copied(parts[name][0][2].numpy())


def _fill(on: Mesh, name: str, x: NDArray, parts: Any, source: Path) -> None:
    """Give an array the contents that a checkpoint has for it; where it lies stays."""
    realize(x)
    placement = x.storage.actual.placement
    region = region_of(on, x.shape, placement)
    block = np.empty([s.stop - s.start for s in region], x.dtype.numpy)
    for starts, shape, part in parts:
        contents = part.numpy()
        if tuple(shape) != x.shape or contents.dtype != block.dtype:
            raise ValueError(
                f"{source}: {name!r} has shape {tuple(shape)} and type {contents.dtype}, the model "
                f"has {x.shape} and {block.dtype}"
            )
        here, there = _overlap(region, starts, contents.shape)
        block[here] = contents[there]
    try:
        blocks = [list(zip(at, part.shape, strict=True)) for at, _, part in parts]
        verify_cover(blocks, [evaluate(extent, {}) for extent in x.shape])
    except WrongProgram as error:
        raise ValueError(
            f"{source}: the checkpoint does not have all of {name!r}: {error}"
        ) from None
    value = copied(block, x.device)
    x.storage.replace((value if placement is None else on.joined(value, x.shape, placement)).value)


def _overlap(region: Region, starts: list[int], extents: tuple[int, ...]) -> tuple[Region, Region]:
    """What a region and a block have in common, as parts of each."""
    here, there = [], []
    for mine, start, extent in zip(region, starts, extents, strict=True):
        first, last = max(mine.start, start), min(mine.stop, start + extent)
        last = max(first, last)
        here.append(slice(first - mine.start, last - mine.start))
        there.append(slice(first - start, last - start))
    return tuple(here), tuple(there)


__all__ = ["restore", "save"]
