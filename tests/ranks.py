"""Threads as ranks: all ranks' programs in one process, by the oracle of tensor graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from itertools import product
from math import prod
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import numpy as np

from genesis.compiler.partition import Partitioned
from genesis.ir.evaluate import evaluate
from genesis.ir.numpy_library.collectives import DEFINITIONS, carriers
from genesis.ir.placement import MeshShape, Placement

Array = np.ndarray[Any, Any]


class Threads:
    """Threads as the ranks along one axis: they meet, and each applies the definition."""

    def __init__(self, size: int) -> None:
        self._given: list[Any] = [None] * size
        self.meeting = Barrier(size)

    def exchange(
        self, rank: int, name: str, options: tuple[Any, ...], xs: Sequence[Array]
    ) -> list[Array]:
        """What rank `rank` gets for `xs`; every other rank must come, too, with the same call."""
        self._given[rank] = (name, options, [x.copy() for x in xs])
        self.meeting.wait()
        given = list(self._given)
        self.meeting.wait()
        if any((n, o, len(xs)) != (name, options, len(all_xs)) for n, o, all_xs in given):
            raise RuntimeError(f"ranks do not agree on a collective: {[g[:2] for g in given]}")
        return [
            DEFINITIONS[name](options, [arrays[k] for _, _, arrays in given])[rank]
            for k in range(len(xs))
        ]


class Rank:
    """The carrier of one thread."""

    def __init__(self, coordinates: Mapping[str, int], groups: Mapping[str, Threads]) -> None:
        self.coordinates, self._groups = coordinates, groups

    def start(self, name: str, options: tuple[Any, ...], xs: Sequence[Array]) -> Any:
        axis = options[1]
        found = self._groups[axis].exchange(self.coordinates[axis], name, options, xs)
        return lambda: found


def on_all(
    mesh: MeshShape, work: Callable[[Mapping[str, int]], Any], kind: type[Rank] = Rank
) -> list[Any]:
    """What `work` gives on every rank, in order, each in a thread of its own."""
    names = [name for name, _ in mesh.axes]
    places = list(product(*(range(size) for _, size in mesh.axes)))
    groups: dict[Any, Threads] = {}
    for place in places:
        for k, (name, size) in enumerate(mesh.axes):
            groups.setdefault((name, place[:k] + place[k + 1 :]), Threads(size))
    results: list[Any] = [None] * len(places)
    errors: list[BaseException] = []

    def run(number: int, place: tuple[int, ...]) -> None:
        mine = {n: groups[n, place[:k] + place[k + 1 :]] for k, n in enumerate(names)}
        at = dict(zip(names, place, strict=True))
        carriers.set({mesh.name: kind(at, mine)})
        try:
            results[number] = work(at)
        except BaseException as error:
            errors.append(error)
            for group in groups.values():
                group.meeting.abort()

    threads = [
        Thread(target=copy_context().run, args=(run, number, place))
        for number, place in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda e: isinstance(e, BrokenBarrierError)):
        raise error
    return results


def block(x: Array, placement: Placement | None, at: Mapping[str, int]) -> Array:
    """One rank's block of an array."""
    if placement is not None:
        for (name, size), split in zip(placement.mesh.axes, placement.splits, strict=True):
            if split is not None:
                x = np.split(x, size, split.dim)[at[name]]
    return x


def joined(blocks: Sequence[Array], placement: Placement | None) -> Array:
    """The whole of every rank's blocks; ranks that have the same must have the same bits."""
    if placement is None:
        for other in blocks[1:]:
            assert other.tobytes() == blocks[0].tobytes()
        return blocks[0]
    (_, size), *rest = placement.mesh.axes
    split = placement.splits[0]
    inner = Placement(MeshShape(tuple(rest)), placement.splits[1:]) if rest else None
    each = len(blocks) // size
    parts = [joined(blocks[k * each : (k + 1) * each], inner) for k in range(size)]
    if split is not None:
        return np.concatenate(parts, split.dim)
    for other in parts[1:]:
        assert other.tobytes() == parts[0].tobytes()
    return parts[0]


def evaluated(
    found: Partitioned,
    mesh: MeshShape,
    memory: Sequence[Array],
    shapes: Mapping[int, tuple[int, ...]],
    leaves: Mapping[int, Placement],
    scalars: Sequence[Any] = (),
) -> list[Array]:
    """The results of all ranks' programs, put together; `memory` is flat and of the whole."""

    def work(at: Mapping[str, int]) -> list[Array]:
        mine = [
            block(x[: prod(shapes[slot])].reshape(shapes[slot]), leaves[slot], at).reshape(-1)
            if slot in leaves
            else x
            for slot, x in enumerate(memory)
        ]
        sizes = {f"rank_{name}": number for name, number in at.items()}
        return evaluate(found.roots, mine, scalars, sizes)

    results = on_all(mesh, work)
    return [
        joined([r[k] for r in results], placement) for k, placement in enumerate(found.placements)
    ]
