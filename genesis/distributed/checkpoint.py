"""Checkpoints: what a training is made of, in files that any number of processes can go on from.

Every process writes the blocks that it holds; of those that several hold, the first does. That
happens while training goes on: `save` holds on to the values that there are, and the next step
writes elsewhere. A block that has not changed since the checkpoint before is not written again: the
file says in which earlier one it is. A checkpoint counts from the moment its manifest is there,
which is written last and as a whole: a process that is killed while writing leaves the one before.

To restore one, every process reads the parts of the files that are its own by then, whatever
placements and mesh they were written from. Every file has a checksum. Files of parity give back
others that are lost or damaged; a checkpoint that cannot be mended is passed over for the one
before.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from genesis import Tensor, load, nn, optim, tensor
from genesis import save as save_file
from genesis.compiler.program.memory_plan import WrongProgram
from genesis.compiler.verify.collectives import verify_cover
from genesis.content_store import digest, replace_file
from genesis.distributed import process_groups
from genesis.distributed.erasure_code import encode, rebuild
from genesis.distributed.mesh import Mesh, current, mesh
from genesis.distributed.pipeline import Pipeline
from genesis.ir.placement import Placement
from genesis.ir.size import evaluate
from genesis.ndarray import NDArray
from genesis.ndarray.core.interop import copied, realize
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.realisation import backend_of
from genesis.ndarray.core.value import Value
from genesis.ndarray.random import default_generator

#: Checkpoints that are kept: the last one, and the one before.
KEPT = 2

Array = np.ndarray[Any, Any]
Region = tuple[slice, ...]
Blocks = dict[str, "ArrayBlock"]
Parts = dict[str, list[tuple[list[int], list[int], Tensor]]]


class ArrayBlock(NamedTuple):
    """What a process writes of an array: where it begins, the shape of the whole, and itself."""

    starts: list[int]
    shape: list[int]
    value: Value | Array

    def contents(self) -> Array:
        """The elements."""
        return contents_of(self.value) if isinstance(self.value, Value) else self.value


class Saving(Thread):
    """A checkpoint on its way to the disk."""

    def __init__(self, to: Path, on: Mesh, number: int, parity: int, blocks: Blocks, settings: Any):
        super().__init__(name="genesis checkpoint")
        self._to, self._on, self._number, self._parity = to, on, number, parity
        self._blocks, self._settings = blocks, settings
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait until it is written; an error that it met is raised once."""
        self.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def run(self) -> None:
        """Write this process's file, and what is written for all."""
        try:
            self._write()
        except BaseException as error:
            self._error = error

    def _write(self) -> None:
        on, to = self._on, self._to
        path = to / f"rank-{on.rank}.safetensors"
        used = _write_changed(path, self._blocks)
        self._blocks = {}
        files = self._shared("file", [*_sum(path), sorted(used)])
        sums = [file[:2] for file in files]
        if self._parity:
            mine: list[int] = []
            if on.rank < self._parity:
                shards = [_bytes(to / name) for name in _names(on.size, 0)]
                path = to / f"parity-{on.rank}"
                replace_file(path, encode(shards, self._parity, on.rank).tobytes())
                mine = _sum(path)
            sums += self._shared("parity", mine)[: self._parity]
        if on.rank == 0:
            known = {"files": on.size, "parity": self._parity, "sums": sums}
            replace_file(to / "files.json", json.dumps(known).encode())
            uses = sorted({folder for *_, folders in files for folder in folders} - {to.name})
            manifest = {"settings": self._settings, "uses": uses}
            replace_file(to / "manifest.json", json.dumps(manifest).encode())
            _prune(to.parent)

    def _shared(self, kind: str, mine: Any) -> list[Any]:
        """What every process has to say. Notes carry it: training exchanges arrays meanwhile."""
        if self._on.size == 1:
            return [mine]
        name = f"save/{self._number}/{kind}"
        process_groups.notes().set(f"{name}/{self._on.rank}", json.dumps(mine).encode())
        return [json.loads(process_groups.note(f"{name}/{k}")) for k in range(self._on.size)]


#: The checkpoint that is being written, how many there were, and where the last one's blocks are:
#: by file of the process and name of the array, their digests and files.
_last: Saving | None = None
_count = 0
_homes: dict[Path, dict[str, tuple[str, Path]]] = {}


def save(
    folder: str | Path, step: int, model: nn.Module, optimizer: optim.Optimizer, parity: int = 0
) -> Saving:
    """Write a checkpoint of a training after `step` steps. All processes call it.

    It has weights, buffers, the optimizer's state and settings, and the random numbers' state.
    Training may go on at once; ``save(..).wait()`` waits until it is written, and so do the next
    one, `restore`, and the end of the program. So many files as `parity` says may be lost, or
    damaged, and it can still be gone on from.
    """
    global _last, _count
    on = _mesh()
    if not 0 <= parity <= on.size:
        raise ValueError(f"save: {on.size} processes write {parity} files of parity, not 0 to that")
    finish()
    to = Path(folder) / f"step-{step:09}"
    to.mkdir(parents=True, exist_ok=True)
    if on.rank == 0:
        (to / "manifest.json").unlink(missing_ok=True)  # of an earlier life
    on.barrier()
    _count += 1
    blocks = _blocks(on, model, optimizer) | _unsent(model)
    _last = Saving(to, on, _count, parity, blocks, settings_of(optimizer))
    _last.start()
    return _last


def finish() -> None:
    """Wait until the last checkpoint is written."""
    global _last
    if _last is not None:
        saving, _last = _last, None
        saving.wait()


def interval(cost: float, lifetime: float) -> float:
    """Seconds between checkpoints that lose least: Young's square root.

    A checkpoint delays training by `cost` seconds, and in the mean something fails after
    `lifetime`. Rarer ones would repeat more work after a failure, others delay more.

    >>> round(interval(cost=2.0, lifetime=24 * 3600.0))
    588
    """
    return math.sqrt(2 * cost * lifetime)


def _write_changed(path: Path, blocks: Blocks) -> set[str]:
    """Write a process's blocks; those that lie in files of before are left there: whose folders.

    A file of before is used if half of it still is, or much would be kept for little.
    """
    digests, contents = {}, {}
    for name, block in blocks.items():
        contents[name] = x = np.asarray(block.contents(), order="C")
        form = f"{x.dtype} {block.starts} {block.shape}"
        digests[name] = digest(form, x.reshape(-1).view(np.uint8).data)
    before = _homes.get(path.parent.parent / path.name, {})
    homes = {
        name: before[name][1]
        for name, key in digests.items()
        if before.get(name, ("", path))[0] == key and before[name][1].is_file()
    }
    nbytes = Counter[Path]()
    for name, home in homes.items():
        nbytes[home] += contents[name].nbytes
    worth = {home for home, kept in nbytes.items() if 2 * kept >= home.stat().st_size}
    homes = {name: home if home in worth else path for name, home in homes.items()}
    entries: dict[str, Any] = {}
    for name, (starts, shape, _) in blocks.items():
        home = homes.setdefault(name, path)
        at: dict[str, Any] = {"starts": starts, "shape": shape}
        is_here = home == path
        at |= {"block": tensor(contents[name])} if is_here else {"folder": home.parent.name}
        entries[name] = at
    save_file({"blocks": entries}, path)
    _homes[path.parent.parent / path.name] = {n: (digests[n], homes[n]) for n in entries}
    return {home.parent.name for home in homes.values()}


def _prune(folder: Path) -> None:
    """Delete what the last checkpoints do not need."""
    for path in _steps(folder)[:-KEPT]:
        (path / "manifest.json").unlink()
    needed = {path.name for path in _steps(folder)}
    for path in _steps(folder):
        needed |= set(json.loads((path / "manifest.json").read_text())["uses"])
    last = max(map(_number, _steps(folder)))
    for path in _folders(folder):
        if path.name not in needed and _number(path) < last:
            shutil.rmtree(path)


def _sum(path: Path) -> list[int]:
    contents = _bytes(path)
    return [len(contents), crc32(contents)]


def restore(folder: str | Path, model: nn.Module, optimizer: optim.Optimizer) -> int:
    """Go on from the last checkpoint in a folder: the number of its step, or 0 if there is none.

    All processes call it, after `place`. Arrays stay where they are placed.
    """
    on = _mesh()
    finish()
    optimizer.prepare()
    whole = next(filter(_mended, reversed(_steps(Path(folder)))), None) if on.rank == 0 else None
    found = int(on.broadcast(np.array(-1 if whole is None else _number(whole), np.int64)))
    if found < 0:
        return 0
    source = Path(folder) / f"step-{found:09}"
    manifest = json.loads((source / "manifest.json").read_text())
    parts = _parts(source)
    for name, x in arrays_of(model, optimizer).items():
        _fill(on, name, x, parts.get(name, []), source)
    use_settings(optimizer, manifest["settings"])
    _take_over(model, parts)
    default_generator().state = _whole("random", parts, source)
    return found


#: What names of a codec's arrays begin with: what was not sent yet, and what it goes on from.
_LEFT, _CODEC = "codec.left.", "codec.state."


def _unsent(model: nn.Module) -> Blocks:
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
        name: ArrayBlock([at, *(0,) * x.ndim], [of, *x.shape], np.array(x)[None])
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


def _folders(folder: Path) -> list[Path]:
    """What there is of checkpoints, oldest first."""
    named = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted(named, key=_number)


def _steps(folder: Path) -> list[Path]:
    """The checkpoints that were written to their end, oldest first."""
    return [p for p in _folders(folder) if (p / "manifest.json").is_file()]


def _names(files: int, parity: int) -> list[str]:
    return [f"rank-{k}.safetensors" for k in range(files)] + [f"parity-{k}" for k in range(parity)]


def _bytes(path: Path) -> Any:
    return np.fromfile(path, np.uint8)


def _mended(source: Path) -> bool:
    """Whether all files of a checkpoint are as they were written, or have been made so again."""
    uses = json.loads((source / "manifest.json").read_text())["uses"]
    return all(_are_mended(source.parent / name) for name in (source.name, *uses))


def _are_mended(source: Path) -> bool:
    """Whether all files of a folder are as they were written, or have been made so again."""
    if not (source / "files.json").is_file():
        warnings.warn(f"{source} is not there; passed over", stacklevel=4)
        return False
    known = json.loads((source / "files.json").read_text())
    files, parity, sums = known["files"], known["parity"], known["sums"]
    found: dict[int, Any] = {}
    for k, name in enumerate(_names(files, parity)):
        if (source / name).is_file():
            contents = _bytes(source / name)
            if [len(contents), crc32(contents)] == sums[k]:
                found[k] = contents
    missing = [k for k in range(files) if k not in found]
    if not missing:
        return True
    names = ", ".join(_names(files, 0)[k] for k in missing)
    if len(found) < files:
        warnings.warn(f"{source}: {names} cannot be read; passed over", stacklevel=4)
        return False
    warnings.warn(f"{source}: {names} cannot be read, but made anew by parity", stacklevel=4)
    shards = rebuild(found, [size for size, _ in sums[:files]], parity)
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


def _blocks(on: Mesh, model: nn.Module, optimizer: optim.Optimizer) -> Blocks:
    """What this process writes. Values that are held stay as they are."""
    own = model.axis if isinstance(model, Pipeline) else None  # other arrays along it
    arrays = arrays_of(model, optimizer)
    found = {}
    for name, x in (*arrays.items(), ("random", default_generator().state)):
        realize(x)
        value = x.storage.actual
        if _is_first(on, value.placement, own if name in arrays else None):
            starts = [s.start for s in region_of(on, x.shape, value.placement)]
            shape = [evaluate(extent, {}) for extent in x.shape]
            found[name] = ArrayBlock(starts, shape, value if not x.steps else np.array(x.numpy()))
    return found


def contents_of(value: Value) -> Array:
    """What is in a value's memory, of a block if it has only that."""
    if value.placement is None:
        return np.array(wrap(value).numpy())
    assert value.memory is not None
    shape: Any = value.placement.local(value.shape)
    return np.array(backend_of(value.device).download(value.memory, value.dtype, shape))


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


def _parts(source: Path) -> Parts:
    """The blocks of a checkpoint: where each begins, the whole shape, and itself."""
    files = json.loads((source / "files.json").read_text())["files"]
    found: Parts = {}
    for k in range(files):
        name_of_file = f"rank-{k}.safetensors"
        opened = {source.name: load(source / name_of_file)["blocks"]}
        for name, entry in opened[source.name].items():
            known = found.setdefault(name, [])
            if "folder" in entry:  # it had not changed since then
                folder = entry["folder"]
                if folder not in opened:
                    opened[folder] = load(source.parent / folder / name_of_file)["blocks"]
                entry = opened[folder][name]
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


__all__ = ["Saving", "interval", "restore", "save"]
