"""What one rank has of a node, along one axis of a mesh, and how that becomes something else.

A state is None (all of it), the number of a dimension (this rank's block along it), or `PARTIAL`:
an array of the whole shape, and the sum over all ranks is the node. A conversion is free (a slice),
or a collective, which is a CALL. Collectives work along the first dimension; what else a conversion
takes is movement, which fuses with its surroundings.
"""

from __future__ import annotations

from typing import Final, Literal

from genesis.ir import ops
from genesis.ir.node import LibraryCall, Node, Shape, node
from genesis.ir.placement import rank_of
from genesis.ir.size import evaluate, product

PARTIAL: Final = "partial"
State = int | None | Literal["partial"]


class Conversions:
    """Conversions along one axis of a mesh."""

    def __init__(self, mesh: str, axis: str, size: int) -> None:
        self.mesh, self.axis, self.size = mesh, axis, size
        self.rank = rank_of(axis, size)

    def shape(self, shape: Shape, state: State) -> Shape:
        """The shape of what a rank has of an array."""
        if not isinstance(state, int):
            return shape
        return (*shape[:state], shape[state] // self.size, *shape[state + 1 :])

    def divides(self, shape: Shape, dim: int) -> bool:
        """Whether an array can be split along a dimension."""
        extent = shape[dim]
        return isinstance(extent, int) and extent > 0 and extent % self.size == 0

    def whole(self, x: Node, state: State) -> Node:
        """All of a node, from a block or a partial sum."""
        if state == PARTIAL:
            return self.reduce(x, "sum")
        assert isinstance(state, int)
        moved = _front(x, state)
        return _back(self.call("all_gather", moved, moved.shape[0] * self.size), state)

    def reduce(self, x: Node, how: str) -> Node:
        """All ranks' arrays combined."""
        return self.call("all_reduce", x, None, how)

    def block(self, x: Node, state: State, dim: int) -> Node:
        """This rank's block, from all, another block, or a partial sum."""
        if state is None:
            return self.slice(x, dim)
        if state == PARTIAL:
            moved = _front(x, dim)
            return _back(self.call("reduce_scatter", moved, moved.shape[0] // self.size), dim)
        return self.turned(x, state, dim)

    def slice(self, x: Node, dim: int) -> Node:
        """This rank's block of an array that it has all of."""
        shape = self.shape(x.shape, dim)
        starts = tuple((self.rank * shape[d] if d == dim else 0, 1) for d in range(len(shape)))
        return node(ops.SLICE, (x,), starts, x.dtype, shape)

    def turned(self, x: Node, source: int, target: int) -> Node:
        """A block along another dimension: everybody sends everybody a piece."""
        shape, size = x.shape, self.size
        pieces = (*shape[:target], size, shape[target] // size, *shape[target + 1 :])
        sent = _front(node(ops.RESHAPE, (x,), None, x.dtype, pieces), target)
        got = self.call("all_to_all", sent, size)
        got = _back(got, source)
        final = list(shape)
        final[source], final[target] = shape[source] * size, shape[target] // size
        return node(ops.RESHAPE, (got,), None, x.dtype, tuple(final))

    def call(self, name: str, x: Node, first: object = None, *options: object) -> Node:
        """The result of a collective; `first` is its new first extent."""
        shape = x.shape if first is None else (first, *x.shape[1:])
        options = (self.mesh, self.axis, *options)
        operand, result = (x.dtype, x.shape), (x.dtype, shape)
        what = LibraryCall(f"collectives.{name}", options, (operand,), (result,))  # type: ignore[arg-type]
        called = node(ops.CALL, (x,), what, x.dtype, ())
        return node(ops.ITEM, (called,), 0, x.dtype, shape)  # type: ignore[arg-type]


def elements(shape: Shape) -> int:
    """The number of elements; sizes in divided programs are numbers."""
    return evaluate(product(shape), {})


def _front(x: Node, dim: int) -> Node:
    """A dimension moved to the front."""
    axes = (dim, *(d for d in range(len(x.shape)) if d != dim))
    return _permuted(x, axes) if dim else x


def _back(x: Node, dim: int) -> Node:
    """The first dimension moved to its place."""
    axes = (*range(1, dim + 1), 0, *range(dim + 1, len(x.shape)))
    return _permuted(x, axes) if dim else x


def _permuted(x: Node, axes: tuple[int, ...]) -> Node:
    return node(ops.PERMUTE, (x,), axes, x.dtype, tuple(x.shape[a] for a in axes))
