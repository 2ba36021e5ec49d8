"""From one placement to another: who sends which part of an array to whom.

A region is a box in a whole array: for every dimension where it begins and how long it is.
Processes hold regions of arrays, and want others. `plan` lets nobody receive what it has, nor
anything twice: the bytes that move are the least there are, whatever the placements are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from genesis.distributed.process_groups import ProcessGroup

Array = np.ndarray[Any, Any]
Region = tuple[tuple[int, int], ...]
Holdings = Mapping[str, Sequence[Region]]


class Move(NamedTuple):
    """A part of an array that goes from one process to another, or stays."""

    name: str
    source: int
    target: int
    region: Region


def common(a: Region, b: Region) -> Region | None:
    """What two regions have in common.

    >>> common(((0, 4), (0, 2)), ((2, 4), (1, 1)))
    ((2, 2), (1, 1))
    """
    found = []
    for (start, length), (other, extent) in zip(a, b, strict=True):
        first, last = max(start, other), min(start + length, other + extent)
        if first >= last:
            return None
        found.append((first, last - first))
    return tuple(found)


def without(a: Region, b: Region) -> list[Region]:
    """A region less another one that lies in it, in boxes.

    >>> without(((0, 4), (0, 2)), ((1, 2), (0, 2)))
    [((0, 1), (0, 2)), ((3, 1), (0, 2))]
    """
    found, rest = [], list(a)
    for d, (start, length) in enumerate(b):
        first, extent = rest[d]
        for low, high in ((first, start), (start + length, first + extent)):
            if low < high:
                found.append((*rest[:d], (low, high - low), *rest[d + 1 :]))
        rest[d] = (start, length)
    return found


def plan(holds: Sequence[Holdings], wants: Sequence[Mapping[str, Region]]) -> list[Move]:
    """What makes up everything that is wanted; ``KeyError`` names an array nobody has all of.

    Of several that hold something, neighbours are asked by different processes.

    >>> [m.source for m in plan([{"w": [((0, 2),)]}, {"w": [((2, 2),)]}], [{"w": ((0, 4),)}])]
    [0, 1]
    """
    moves: list[Move] = []
    for target, wanted in enumerate(wants):
        order = [target, *((target + k) % len(holds) for k in range(1, len(holds)))]
        for name, region in wanted.items():
            missing = [region] if prod(n for _, n in region) else []
            for source in order:
                for held in holds[source].get(name, ()) if source < len(holds) else ():
                    left: list[Region] = []
                    for part in missing:
                        both = common(part, held)
                        if both is not None:
                            moves.append(Move(name, source, target, both))
                        left += [part] if both is None else without(part, both)
                    missing = left
            if missing:
                raise KeyError(name)
    return moves


def moved(
    moves: Sequence[Move],
    held: Mapping[str, Sequence[tuple[Region, Array]]],
    wanted: Mapping[str, tuple[Region, Any]],
    link: ProcessGroup | None,
    me: int,
) -> tuple[dict[str, Array], int]:
    """This process's part in a plan: the arrays that it wanted, and the bytes that it received.

    `wanted` are regions and element types.
    """
    found = {name: np.empty([n for _, n in r], dtype) for name, (r, dtype) in wanted.items()}
    size = 1 if link is None else link.size
    sent: list[list[Array]] = [[] for _ in range(size)]
    counts = [0] * size
    for name, source, target, region in moves:
        if source == me == target:
            _put(found[name], wanted[name][0], region, _part(held[name], region))
        elif source == me:
            sent[target].append(_part(held[name], region).reshape(-1).view(np.uint8))
        elif target == me:
            counts[source] += prod(n for _, n in region) * found[name].itemsize
    if link is None:
        return found, 0
    nothing = np.empty(0, np.uint8)
    got = link.pieces([np.concatenate(x) if x else nothing for x in sent], counts)()
    at = [0] * size
    for name, source, target, region in moves:
        if target == me != source:
            shape = [n for _, n in region]
            nbytes = prod(shape) * found[name].itemsize
            piece = got[source][at[source] : at[source] + nbytes]
            at[source] += nbytes
            kind = found[name].dtype
            _put(found[name], wanted[name][0], region, piece.copy().view(kind).reshape(shape))
    return found, sum(counts)


def _part(held: Sequence[tuple[Region, Array]], region: Region) -> Array:
    """A region of what is held, in memory of its own."""
    for box, contents in held:
        if common(box, region) == region or not region:
            return np.array(contents[_inside(box, region)], order="C", ndmin=len(region))
    raise AssertionError(f"{region} is not held")


def _put(x: Array, box: Region, region: Region, part: Array) -> None:
    x[_inside(box, region)] = part


def _inside(box: Region, region: Region) -> tuple[slice, ...]:
    pairs = zip(box, region, strict=True)
    return tuple(slice(b - a, b - a + n) for (a, _), (b, n) in pairs)


__all__ = ["Move", "Region", "common", "moved", "plan", "without"]
