"""Placements: how an array lies on the ranks of a mesh.

A mesh is a grid of ranks whose axes have names. On each of its axes an array is whole (every rank
has all of it), split along a dimension, or *stored* split: kept in blocks, but gathered wherever it
meets anything but arrays stored the same way (that is what ZeRO does with weights). An array has
the shape of the whole everywhere; only its memory is that of a block.

>>> mesh = MeshShape((("dp", 2), ("tp", 4)))
>>> placement = Placement(mesh, (Split(0), Split(1)))
>>> placement.local((8, 12))
(4, 3)
>>> placement
dp: split 0, tp: split 1
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from genesis.ir.node import Shape
from genesis.ir.size import Size


class Split(NamedTuple):
    """An array in equal blocks along a dimension; `stored`: gathered for use."""

    dim: int
    stored: bool = False

    def __repr__(self) -> str:
        return f"{'stored' if self.stored else 'split'} {self.dim}"


@dataclass(frozen=True)
class MeshShape:
    """The axes of a mesh with their extents; the last one is that of neighbouring ranks.

    Processes that are together for the second time, in an `epoch` of their own, may be other ranks:
    what was recorded before is not theirs.
    """

    axes: tuple[tuple[str, int], ...]
    epoch: int = 0

    @property
    def name(self) -> str:
        """What collectives call the mesh."""
        return ".".join(f"{axis}{size}" for axis, size in self.axes)


@dataclass(frozen=True)
class Placement:
    """How an array lies on a mesh: a split, or None, for every axis.

    Blocks are those of the first axis, each in blocks of the second, and so on.
    """

    mesh: MeshShape
    splits: tuple[Split | None, ...]

    def local(self, shape: Shape) -> Shape:
        """The shape of one rank's block."""
        local = list(shape)
        for (_, size), split in zip(self.mesh.axes, self.splits, strict=True):
            if split is not None:
                local[split.dim] = local[split.dim] // size
        return tuple(local)

    def __repr__(self) -> str:
        pairs = zip(self.mesh.axes, self.splits, strict=True)
        return ", ".join(f"{axis}: {split}" for (axis, _), split in pairs if split is not None)


@cache
def placed(mesh: MeshShape, splits: tuple[Split | None, ...]) -> Placement | None:
    """The placement, one object for equal ones; None if the array is whole on every axis."""
    return Placement(mesh, splits) if any(s is not None for s in splits) else None


def rank_of(axis: str, size: int) -> Size:
    """This process's number along an axis, as a symbol: one program serves all ranks."""
    return Size.symbol(f"rank_{axis}", 0, size - 1)
