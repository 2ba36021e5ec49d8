"""Meshes: the processes as a grid whose axes have names, and arrays that are spread over it."""

from __future__ import annotations

import itertools
import json
import os
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import prod
from typing import Any, TypeVar

import numpy as np

from genesis import Tensor
from genesis import content_store as disk
from genesis import ndarray as nd
from genesis.distributed import process_groups
from genesis.distributed.process_groups import ProcessGroup, RankLost
from genesis.ir.numpy_library.collectives import (
    PROCESS,
    Array,
    Due,
    Options,
    Sketch,
)
from genesis.ir.placement import MeshShape, Placement, Split, placed
from genesis.ndarray import NDArray
from genesis.ndarray.core.interop import copied, realize
from genesis.ndarray.core.layout import is_row_major, row_major
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.value import Value

T = TypeVar("T")
_meshes: dict[MeshShape, Mesh] = {}


def mesh(**axes: int) -> Mesh:
    """The mesh of all processes with these axes; neighbouring processes differ in the last one.

    One axis may be -1: what is left. Without axes, all processes are along ``dp``. Without a
    launcher there is one process, and every axis has one rank.

    >>> mesh(dp=2, tp=4).shape
    {'dp': 1, 'tp': 1}
    """
    size = process_groups.world_size()
    axes = axes or {"dp": size}
    if not process_groups.is_launched():
        axes = dict.fromkeys(axes, 1)
    given = prod(n for n in axes.values() if n != -1)
    if list(axes.values()).count(-1) == 1 and given > 0 and size % given == 0:
        axes = {name: size // given if n == -1 else n for name, n in axes.items()}
    if not all(type(n) is int and n > 0 for n in axes.values()) or prod(axes.values()) != size:
        wanted = ", ".join(f"{name}={n}" for name, n in axes.items())
        raise ValueError(
            f"mesh({wanted}): the axes must have {size} ranks together, as many as processes were "
            "started; start others with `genesis launch -n N script.py`, or leave one axis to -1"
        )
    shape = MeshShape(tuple(axes.items()), process_groups.epoch)
    found = _meshes.pop(shape, None) or Mesh(shape)
    _meshes[shape] = found  # the one that was asked for last comes last
    return found


def forget() -> None:
    """Leave all meshes: their processes are together no more."""
    for found in _meshes.values():
        PROCESS.pop(found.form.name, None)
        found.close()
    _meshes.clear()


def current() -> Mesh:
    """The mesh that was asked for last."""
    if not _meshes:
        raise ValueError("there is no mesh yet: make one with genesis.distributed.mesh(..)")
    return next(reversed(_meshes.values()))


def mesh_of(form: MeshShape) -> Mesh:
    """The mesh of a placement."""
    return _meshes[form]


class Mesh:
    """A grid of processes with named axes. Make one with `mesh`."""

    def __init__(self, form: MeshShape) -> None:
        self.form = form
        self.rank, self.size = process_groups.rank(), process_groups.world_size()
        extents = tuple(n for _, n in form.axes)
        #: This process's number along every axis.
        self.coordinates: Mapping[str, int] = self.coordinates_of(self.rank)
        place = tuple(self.coordinates.values())
        self._groups: dict[str, ProcessGroup] = {}
        self._links: dict[tuple[str, int], Any] = {}
        self._agreed = 0
        if self.size > 1:
            grid = np.arange(self.size).reshape(extents)
            for k, (name, n) in enumerate(form.axes):
                if n > 1:
                    at = tuple(slice(None) if j == k else i for j, i in enumerate(place))
                    self._groups[name] = ProcessGroup(f"{form.name}/{name}", grid[at].tolist())
            self._all = ProcessGroup(f"{form.name}/all", range(self.size))
        PROCESS[form.name] = self

    def coordinates_of(self, rank: int) -> dict[str, int]:
        """A process's number along every axis."""
        place = np.unravel_index(rank, tuple(n for _, n in self.form.axes))
        return {name: int(k) for (name, _), k in zip(self.form.axes, place, strict=True)}

    @property
    def shape(self) -> dict[str, int]:
        """The extents of the axes by name."""
        return dict(self.form.axes)

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={n}" for name, n in self.form.axes)
        return f"Mesh({axes}; this is rank {self.rank} of {self.size})"

    # ---- data
    def batch(self, x: Any, axis: str = "dp", dim: int = 0) -> Any:
        """An array of the rows of all processes along an axis, of which `x` are this process's.

        Processes along other axes must give the same rows. On a mesh without the axis, or with one
        rank along it, `x` is all there is. Another dimension than that of rows can be divided as
        well: ``mesh.batch(tokens, "sp", 1)`` divides a sequence.

        >>> import genesis
        >>> mesh(dp=1).batch(genesis.ones(4, 3)).shape
        genesis.Size([4, 3])
        """
        if isinstance(x, Tensor):
            array = self._batch(x.array, axis, dim)
            return x if array is x.array else Tensor(array)
        array = x if isinstance(x, NDArray) else nd.asarray(x)
        found = self._batch(array, axis, dim)
        return found if isinstance(x, NDArray) else Tensor(found)

    def _batch(self, x: NDArray, axis: str, dim: int) -> NDArray:
        size = self.shape.get(axis, 1)
        if size == 1:
            return x
        if not -len(x.shape) <= dim < len(x.shape):
            raise ValueError(f"mesh.batch: an array of shape {x.shape} has no dimension {dim}")
        dim %= len(x.shape)
        splits = dict.fromkeys(self.shape) | self.splits(x)
        if splits[axis] is not None:
            raise ValueError(f"mesh.batch: the array is {splits[axis]} along {axis} already")
        splits[axis] = Split(dim)
        shape = [n * size if d == dim else n for d, n in enumerate(x.shape)]
        return self.joined(x, tuple(shape), placed(self.form, tuple(splits.values())))

    def splits(self, x: NDArray) -> dict[str, Split | None]:
        """How an array is split along the axes."""
        if x.steps:
            return {}
        realize(x)
        placement = x.storage.actual.placement
        if placement is None or placement.mesh != self.form:
            return {}
        return dict(zip(self.shape, placement.splits, strict=True))

    def rows(self, count: int, axis: str = "dp") -> slice:
        """Which of `count` rows of a batch are this process's, to be given to `batch`.

        >>> mesh(dp=1).rows(8)
        slice(0, 8, None)
        """
        size = self.shape.get(axis, 1)
        if count % size:
            raise ValueError(f"mesh.rows: {count} rows do not divide among {size} ranks of {axis}")
        each = count // size
        start = self.coordinates.get(axis, 0) * each
        return slice(start, start + each)

    def joined(self, block: NDArray, shape: Any, placement: Placement | None) -> NDArray:
        """The array of a shape and placement of which this process has `block`."""
        block = nd.array(block) if block.steps else block
        realize(block)
        value = block.storage.actual
        if not self.splits(block):
            value.require_whole("making a block of a block")
        if value.offset or not is_row_major(value.shape, value.strides):
            value = copied(block.numpy(), block.device).value
        assert value.memory is not None
        where = value.device, 0, bool(value.attr), placement
        return wrap(Value.realised(value.memory, value.dtype, shape, row_major(shape), *where))

    def block(self, x: Array, placement: Placement) -> Array:
        """This process's block of a whole array."""
        for (name, size), split in zip(self.form.axes, placement.splits, strict=True):
            if split is not None:
                x = np.split(x, size, split.dim)[self.coordinates[name]]
        return np.ascontiguousarray(x)

    def whole(self, x: Array, placement: Placement) -> Array:
        """A whole array of every process's blocks."""
        for (name, _), split in reversed(list(zip(self.form.axes, placement.splits, strict=True))):
            if split is not None:
                moved = np.ascontiguousarray(np.moveaxis(x, split.dim, 0))
                (found,) = self.exchange("all_gather", (self.form.name, name), [moved])
                x = np.moveaxis(found, 0, split.dim)
        return np.ascontiguousarray(x)

    def broadcast(self, x: Array) -> Array:
        """What the first process has."""
        return self._all.broadcast(x) if self.size > 1 else x

    def barrier(self) -> None:
        """Wait for all processes."""
        self.every("all_reduce", "sum", [np.zeros(1, "i4")])

    def every(self, name: str, how: Any, xs: Sequence[Array]) -> Sequence[Array]:
        """A collective of all processes, whatever the axes are."""
        return self._all.start(name, (self.form.name, "all", how), xs)() if self.size > 1 else xs

    def group(self, axis: str) -> ProcessGroup | None:
        """The processes along an axis, this one among them; None if there are no others."""
        return self._groups.get(axis)

    # ---- what programs need
    def start(self, name: str, options: Options, xs: Sequence[Array]) -> Due:
        """Begin to exchange arrays with the other processes along an axis."""
        return self._groups[options[1]].start(name, options, xs)

    def exchange(self, name: str, options: Options, xs: Sequence[Array]) -> Sequence[Array]:
        """Exchange arrays with the other processes along an axis."""
        return self.start(name, options, xs)()

    def link(self, axis: str, backend: Any) -> Any:
        """NCCL along an axis, if every process there has it, and a GPU to itself; else None."""
        key = axis, backend.device.number
        if key not in self._links:
            self._links[key] = self._linked(axis, backend)
        return self._links[key]

    def _linked(self, axis: str, backend: Any) -> Any:
        from genesis.backends.gpu.library import nccl

        group = self._groups[axis]
        name = f"{self.form.name}/{axis}/{'.'.join(map(str, group.members))}/nccl"
        mine = [nccl.version(), socket.gethostname(), backend.device.number]
        process_groups.notes().set(f"{name}/{self.rank}", json.dumps(mine).encode())
        found = [json.loads(process_groups.note(f"{name}/{k}")) for k in group.members]
        versions = {version for version, *_ in found}
        places = {(host, number) for _, host, number in found}
        if 0 in versions or len(versions) > 1 or len(places) < group.size:
            return None
        if group.rank == 0:
            process_groups.notes().set(f"{name}/id", nccl.unique())
        known = process_groups.note(f"{name}/id")
        where = backend.device, backend.pool, group.rank, group.size
        return nccl.Communicator(*where, known, group.lost, process_groups.TIMEOUT)

    def close(self) -> None:
        """Exchange nothing more on devices."""
        for link in filter(None, self._links.values()):
            link.close()
        self._links.clear()

    def agree(self, title: str, lines: Sequence[str], whole: Sequence[Sketch] = ()) -> None:
        """Raise an error where another process comes with something else, in lines of text.

        Processes that run different programs would wait for each other for ever; those that have
        other contents of what is `whole` would compute something else each.
        """
        if self.size == 1:
            return
        self._agreed += 1
        digest = sha256("\n".join(lines).encode()).hexdigest()
        notes = self._notes(json.dumps([title, digest, whole]).encode(), title, "digest")
        found = [json.loads(note) for note in notes]
        other = next((k for k, (_, d, _) in enumerate(found) if d != digest), None)
        if other is not None:
            texts = self._notes(zlib.compress("\n".join(lines).encode()), title, "lines")
            theirs = zlib.decompress(texts[other]).decode().split("\n")
            raise RuntimeError(_difference(self.rank, other, title, found[other][0], lines, theirs))
        for number, k in itertools.product(range(len(whole)), range(1, self.size)):
            (mine, a, size), (text, b, _) = (found[r][2][number] for r in (0, k))
            if abs(a - b) > 1e-3 * size:
                raise RuntimeError(
                    f"{title!r}: every process has all of an array, but not the same:\n"
                    f"  process 0: {mine}\n  process {k}: {text}\n"
                    "Place models and their optimizers (genesis.distributed.place), give all "
                    "processes the same settings and seeds, and rows that are theirs by mesh.batch"
                )

    def in_turn(self, compile_: Callable[[], T]) -> T:
        """Compile the program that was agreed on: the first process of a host, then the others.

        Those find it on disk.
        """
        local = os.environ.get("LOCAL_RANK", "")
        if self.size == 1 or not local.isdigit() or disk.default() is None:
            return compile_()
        name = f"{self.form.name}/{self._agreed}/compiled/{self.rank - int(local)}"
        if int(local):
            process_groups.note(name)
            return compile_()
        try:
            return compile_()
        finally:
            process_groups.notes().set(name, b"")

    def _notes(self, mine: bytes, title: str, kind: str) -> list[bytes]:
        """What every process has written to the store, in turn."""
        name = f"{self.form.name}/{self._agreed}/{kind}"
        process_groups.notes().set(f"{name}/{self.rank}", mine)
        with process_groups.waiting_for_all(repr(title)):
            try:
                return [process_groups.note(f"{name}/{k}") for k in range(self.size)]
            except RankLost as error:
                raise RankLost(f"a process did not come to {title!r}: {error}") from None


def _difference(
    rank: int, other: int, title: str, their_title: str, ours: Sequence[str], theirs: Sequence[str]
) -> str:
    """What to say about two processes that have made different programs."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    k = next((k for k, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    mine, yours = (lines[k] if k < len(lines) else "nothing more" for lines in (ours, theirs))
    return (
        f"process {rank} comes to {title!r} and process {other} to {their_title!r}, which "
        f"differ: process {rank} has\n  {mine}\nwhere process {other} has\n  {yours}\n"
        "Every process must call the same functions on arrays of the same shapes"
    )


__all__ = ["Mesh", "mesh"]
