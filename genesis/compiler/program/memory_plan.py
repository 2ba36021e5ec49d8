"""Plan memory: where the temporaries of a program lie.

All temporaries share one block. A temporary lives from the launch that writes it to the last one
that reads it; two that never live at the same time may overlap. The memory of a result is there
from the start, too, so until the result is written temporaries may lie in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genesis.ir.size import Dim, evaluate

ALIGNMENT = 64


class WrongProgram(AssertionError):
    """A program that would compute something else than it was compiled for; it must not run."""


@dataclass(frozen=True)
class Temporary:
    """A buffer inside a program: its size in bytes and the launches between which it lives."""

    nbytes: Dim
    first: int
    last: int


class Room(NamedTuple):
    """The memory of a result: its size in bytes and the launch that first writes it."""

    nbytes: Dim
    first: int


class MemoryPlan(NamedTuple):
    """Where temporaries lie: each in a room, by number, or in the block (None), at an offset."""

    rooms: tuple[int | None, ...]
    offsets: tuple[int, ...]
    total: int  # of the block


def place(
    temporaries: Sequence[Temporary], rooms: Sequence[Room], sizes: Mapping[str, int]
) -> MemoryPlan:
    """A place for every temporary, in a room where it fits, and the size of the block.

    One after the other, each at the lowest offset where no temporary alive at the same time lies.
    In which order is best depends, so several are tried until no block could be smaller.

    >>> block = [Temporary(100, 0, 1), Temporary(100, 1, 2), Temporary(64, 2, 3)]
    >>> place(block, [], {})
    MemoryPlan(rooms=(None, None, None), offsets=(0, 128, 0), total=256)
    >>> place(block, [Room(300, first=3)], {}).total
    64
    """
    lengths = [_aligned(evaluate(t.nbytes, sizes)) for t in temporaries]
    space = [evaluate(room.nbytes, sizes) for room in rooms]
    least = max(0, _most_alive(temporaries, lengths) - sum(space))
    best: MemoryPlan | None = None
    for key in _ORDERS:
        order = sorted(range(len(temporaries)), key=lambda i: key(temporaries[i], lengths[i]))
        found = _placed(order, temporaries, lengths, rooms, space)
        if best is None or found.total < best.total:
            best = found
        if best.total <= least:
            break
    assert best is not None
    return best


def require_apart(
    placement: MemoryPlan,
    temporaries: Sequence[Temporary],
    rooms: Sequence[Room],
    sizes: Mapping[str, int],
) -> None:
    """Raise unless temporaries that live at the same time lie apart, and inside what they lie in.

    The half of a program's proof (`verify_program`) that depends on sizes.

    >>> block = [Temporary(100, 0, 1), Temporary(100, 1, 2)]
    >>> require_apart(MemoryPlan((None, None), (0, 64), 256), block, [], {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    genesis.compiler.program.memory_plan.WrongProgram: temporaries 0 and 1 share bytes and ...
    """
    by_start = sorted(range(len(temporaries)), key=lambda i: temporaries[i].first)
    alive: dict[int | None, list[tuple[int, int, int]]] = {}  # (start, end, which), by start
    for i in by_start:
        t, room, start = temporaries[i], placement.rooms[i], placement.offsets[i]
        end = start + evaluate(t.nbytes, sizes)
        space = placement.total if room is None else evaluate(rooms[room].nbytes, sizes)
        if start < 0 or end > space:
            raise WrongProgram(f"temporary {i} lies outside of its memory")
        if room is not None and t.last >= rooms[room].first:
            raise WrongProgram(f"temporary {i} lives on where a result is written")
        others = [o for o in alive.get(room, ()) if temporaries[o[2]].last >= t.first]
        for low, high, j in others:
            if low < end and start < high:
                raise WrongProgram(f"temporaries {j} and {i} share bytes and live at one time")
        alive[room] = [*others, (start, end, i)]


#: The largest first; the longest-lived first; those that come first.
_ORDERS: tuple[Callable[[Temporary, int], tuple[int, ...]], ...] = (
    lambda t, length: (-length, t.first),
    lambda t, length: (t.first - t.last, -length),
    lambda t, length: (t.first, -length),
)


def _placed(
    order: Sequence[int],
    temporaries: Sequence[Temporary],
    lengths: Sequence[int],
    rooms: Sequence[Room],
    space: Sequence[int],
) -> MemoryPlan:
    """Temporaries placed in the given order; rooms that are written first come first."""
    chosen: list[int | None] = [None] * len(temporaries)
    offsets = [0] * len(temporaries)
    total = 0
    soonest = sorted(range(len(rooms)), key=lambda r: (rooms[r].first, space[r]))
    inside: dict[int | None, list[int]] = {room: [] for room in (*soonest, None)}
    for i in order:
        first, last, length = temporaries[i].first, temporaries[i].last, lengths[i]
        for room, others in inside.items():
            if room is not None and (space[room] < length or rooms[room].first <= last):
                continue
            alive = [
                (offsets[j], lengths[j])
                for j in others
                if temporaries[j].first <= last and first <= temporaries[j].last
            ]
            offset = 0
            for start, extent in sorted(alive):
                if offset + length <= start:
                    break
                offset = max(offset, start + extent)
            if room is None:
                total = max(total, offset + length)
            elif offset + length > space[room]:
                continue
            chosen[i], offsets[i] = room, offset
            others.append(i)
            break
    return MemoryPlan(tuple(chosen), tuple(offsets), total)


def _most_alive(temporaries: Sequence[Temporary], lengths: Sequence[int]) -> int:
    """The most bytes that are alive at the same time: no placement can do with less."""
    change: dict[int, int] = {}
    for t, length in zip(temporaries, lengths, strict=True):
        change[t.first] = change.get(t.first, 0) + length
        change[t.last + 1] = change.get(t.last + 1, 0) - length
    alive = most = 0
    for launch in sorted(change):
        alive += change[launch]
        most = max(most, alive)
    return most


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
