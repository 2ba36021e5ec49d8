"""Plan memory: where temporaries lie, and which outputs take over an input's memory.

All temporaries of a program share one block. A temporary lives from the launch that writes it to
the last one that reads it; two that never live at the same time may overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genesis.ir.size import Dim, evaluate

ALIGNMENT = 64


@dataclass(frozen=True)
class Temporary:
    """A buffer inside a program: its size in bytes and the launches between which it lives."""

    nbytes: Dim
    first: int
    last: int


def place(
    temporaries: Sequence[Temporary], sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], int]:
    """The offset of every temporary in the block, and the block's size.

    Largest first, each at the lowest offset where no temporary alive at the same time lies.

    >>> place([Temporary(100, 0, 1), Temporary(100, 1, 2), Temporary(64, 2, 3)], {})
    ((0, 128, 0), 256)
    """
    lengths = [-(-evaluate(t.nbytes, sizes) // ALIGNMENT) * ALIGNMENT for t in temporaries]
    offsets = [0] * len(temporaries)
    placed: list[int] = []
    for i in sorted(range(len(temporaries)), key=lambda i: -lengths[i]):
        t = temporaries[i]
        alive = [
            j for j in placed if temporaries[j].first <= t.last and t.first <= temporaries[j].last
        ]
        offset = 0
        for j in sorted(alive, key=lambda j: offsets[j]):
            if offset + lengths[i] <= offsets[j]:
                break
            offset = max(offset, offsets[j] + lengths[j])
        offsets[i] = offset
        placed.append(i)
    total = max((o + n for o, n in zip(offsets, lengths, strict=True)), default=0)
    return tuple(offsets), total
