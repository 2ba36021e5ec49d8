"""Winograd: convolutions with windows of 3 in half of the products.

Four neighbouring results, each of a window of 3, are 12 products of 6 inputs and 3 weights. Read as
polynomials they are known from their values at 6 points, and each of these is one product. So
inputs and weights are *transformed* into 6 weighted sums each, the planes of a new axis, and the
results are weighted sums of the products of planes:

    result[i] = sum over planes p of RESULTS[p][i] * (INPUTS[p] . inputs) * (TAPS[p] . weights)

This is done along one axis of an image, and never along the last: there it would take vectors
apart. A second axis would halve the products again, but move half as many floats again, and round
more coarsely.

In this form any of the three can be what is asked for. The gradient for the weights is a
contraction of planes of inputs and planes of results, and taps are made of it.

The nodes made here are ordinary ones. Transforms are fused with what is before and behind them,
and everything is scheduled and proven as if the user had written it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from genesis.compiler.fuse.cost import count
from genesis.compiler.graph.simplify.movement import expanded, reshaped
from genesis.compiler.graph.simplify.reductions import contraction
from genesis.ir import ops
from genesis.ir.dtype import float32, index
from genesis.ir.node import Node, const, elementwise, node, topological
from genesis.ir.size import Dim, Size

#: Multiply-adds that take as long as moving a float to memory or from there.
MOVED = 12

#: The points are 0, two pairs of opposite ones, and infinity. A pair has an even and an odd row:
#: a plane is their sum, the next their difference. The pairs are the roots of 1/2 and of 2: with
#: them, errors are 1.3 times those of the plain sum, where 1 and 2 give 1.9.
_R = sqrt(2)
INPUTS = (
    (1, 0, -2.5, 0, 1, 0),
    (0, 0, -2, 0, 1, 0), (0, -_R, 0, _R / 2, 0, 0),
    (0, 0, -0.5, 0, 1, 0), (0, -_R / 2, 0, _R, 0, 0),
    (0, 1, 0, -2.5, 0, 1),
)  # fmt: skip
TAPS = (
    (1, 0, 0),
    (-2 / 3, 0, -1 / 3), (0, -_R / 3, 0),
    (1 / 6, 0, 1 / 3), (0, _R / 6, 0),
    (0, 0, 1),
)  # fmt: skip
RESULTS = (
    (1, 0, 0, 0),
    (1, 0, 0.5, 0), (0, _R / 2, 0, _R / 4),
    (1, 0, 2, 0), (0, _R, 0, 2 * _R),
    (0, 0, 0, 1),
)  # fmt: skip
PLANES, WINDOW, TOGETHER = len(INPUTS), len(TAPS[0]), len(RESULTS[0])


def winograd(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with fewer products where that is less work; `origins` as in `without_complex`."""

    def fewer(n: Node) -> Node | None:
        found = _convolution(n)
        return None if found is None else found.rewritten()

    return with_contractions(roots, origins, fewer)


def with_contractions(
    roots: Sequence[Node], origins: dict[Node, Node], other: Callable[[Node], Node | None]
) -> list[Node]:
    """The graph with another form of contractions, where there is one."""
    order = topological(roots)
    if not any(n.op is ops.CONTRACT and other(n) for n in order):
        return list(roots)
    became: dict[Node, Node] = {}
    known: set[Node] = set()

    def inputs(m: Node) -> tuple[Node, ...]:
        return () if m in known else m.inputs

    for n in order:
        same = n.with_inputs(tuple([became[i] for i in n.inputs]))
        found = other(same) if n.op is ops.CONTRACT else None
        became[n] = new = same if found is None else found
        if new is not n:
            made = [m for m in topological([new], inputs) if m not in known]
            origins.update({m: origins.get(n, n) for m in made})
        known.add(new)
    return [became[n] for n in roots]


@dataclass(frozen=True)
class _Convolution:
    """A contraction of windows along `axis` of `x`, and perhaps along other axes, with `other`."""

    n: Node
    side: int  # the operand that the windows are
    x: Node
    axis: int
    windows: tuple[Node, ...]  # along other axes, the first one first
    place: int  # the label of where windows are
    tap: int  # the label of what is in them

    @property
    def forward(self) -> bool:
        """Whether taps are summed over; for the gradient of the weights, places are."""
        return self.place in self.n.attr[2]

    @property
    def other(self) -> Node:
        """The operand without windows."""
        return self.n.inputs[1 - self.side]

    @property
    def places(self) -> int:
        """How many windows there are."""
        return count(self.x.shape[self.axis : self.axis + 1]) - WINDOW + 1

    @property
    def tiles(self) -> int:
        """How many times results are made together."""
        return -(-self.places // TOGETHER)

    def pays(self) -> bool:
        """Whether the products saved are worth what is moved for it.

        Planes of images are written and read. Those of weights are packed or added up, too.
        """
        extents: dict[int, Dim] = {}
        for labels, operand in zip(self.n.attr, self.n.inputs, strict=False):
            extents |= zip(labels, operand.shape, strict=True)
        products = count(tuple(extents.values()))
        more = PLANES * self.tiles / self.places
        pair = (self.n, self.other) if self.forward else (self.other, self.n)
        image, weights = (count(m.shape) for m in pair)
        moved = (count(self.x.shape) + image) * (1 + 2 * more)
        moved += weights * (1 + 4 * PLANES / WINDOW)
        return products * more / WINDOW + MOVED * moved < products

    def rewritten(self) -> Node:
        """The same result, of fewer products."""
        plane = max(map(max, self.n.attr[:2])) + 1
        left, right, out = ([x for x in labels if x != self.tap] for labels in self.n.attr)
        # Planes have an image's axes last, or the axis along which gradients are summed in vectors.
        mine = self.n.attr[self.side]
        last = mine[self.axis :] if self.forward else set(out) - set(mine)
        order = sorted(out, key=lambda x: x in last)
        operands = (self.inputs(), self.others())
        a, b = operands if self.side == 0 else reversed(operands)
        total = contraction(a, b, [plane, *left], [plane, *right], [plane, *order])
        shape = total.shape
        at = 1 + order.index(self.place) if self.forward else len(order)
        total = reshaped(total, (*shape[: at + 1], 1, *shape[at + 1 :]))
        planes = _pairs([_sliced(total, 0, k, 1) for k in range(PLANES)])
        matrix = RESULTS if self.forward else TAPS
        result = _stacked(_weighted(zip(*matrix, strict=True), planes), at + 1)
        if self.forward:
            result = reshaped(result, (*shape[1:at], self.tiles * TOGETHER, *shape[at + 1 :]))
            result = _sliced(result, at - 1, 0, self.places)
        else:
            result, order = reshaped(result, (*shape[1:], WINDOW)), [*order, self.tap]
        axes = tuple(order.index(x) for x in self.n.attr[2])
        return node(ops.PERMUTE, (result,), axes, result.dtype, self.n.shape)

    def inputs(self) -> Node:
        """The planes of x, with windows along the other axes."""
        planes = _planes(INPUTS, self._tiled(self.x, self.axis, PLANES))
        for w in self.windows:
            axis, *how = w.attr
            shape = (*planes.shape[: axis + 1], w.shape[axis], *planes.shape[axis + 2 :])
            attr = (axis + 1, *how)
            planes = node(ops.WINDOW, (planes,), attr, w.dtype, (*shape, w.shape[-1]))
        return planes

    def others(self) -> Node:
        """The planes of the other operand."""
        other, labels = self.other, self.n.attr[1 - self.side]
        if not self.forward:
            return _planes(RESULTS, self._tiled(other, labels.index(self.place), TOGETHER))
        at = labels.index(self.tap)
        other = reshaped(other, (1, *other.shape))
        planes = _planes(TAPS, [_sliced(other, at + 1, k, 1) for k in range(WINDOW)])
        return reshaped(planes, (*planes.shape[: at + 1], *planes.shape[at + 2 :]))

    def _tiled(self, x: Node, axis: int, length: int) -> list[Node]:
        """The elements of all tiles along an axis: the first ones, the second ones, and so on."""
        x = _padded(x, axis, (self.tiles - 1) * TOGETHER + length)
        x = reshaped(x, (1, *x.shape))
        return [_sliced(x, axis + 1, k, self.tiles, TOGETHER) for k in range(length)]


def _convolution(n: Node) -> _Convolution | None:
    """The convolution that a contraction is, if it is one and saving products pays."""
    for side, x in enumerate(n.inputs):
        chain: list[Node] = []
        while x.op is ops.WINDOW:
            chain.append(x)
            x = x.inputs[0]
        if not chain or n.dtype is not float32:
            continue
        *others, first = chain
        axis, rank = first.attr[0], len(x.shape)
        plain = first.attr[1:] == (1, 1) and first.shape[-1] == WINDOW and axis < rank - 1
        alone = all(w.attr[0] not in (axis, rank) for w in others)
        filled = all(isinstance(e, Size) or e > 0 for i in n.inputs for e in i.shape)
        known = filled and isinstance(x.shape[axis], int)
        if not (plain and alone and known):
            continue
        labels = n.attr[side]
        found = _Convolution(n, side, x, axis, tuple(others[::-1]), labels[axis], labels[rank])
        both = {found.place, found.tap}
        among = [both.intersection(part) for part in (n.attr[1 - side], n.attr[2])]
        if among[0] ^ among[1] == both and len(among[0]) == 1 and found.pays():
            return found
    return None


# ---- pieces


def _weighted(rows: Iterable[Sequence[float]], parts: Sequence[Node]) -> list[Node]:
    """A weighted sum of the parts for every row of weights."""
    sums: list[Node] = []
    for row in rows:
        total: Node | None = None
        for weight, part in zip(row, parts, strict=True):
            if weight:
                term = part if weight == 1 else part * weight
                total = term if total is None else total + term
        assert total is not None
        sums.append(total)
    return sums


def _pairs(x: Sequence[Node]) -> list[Node]:
    """Sums and differences of what belongs to opposite points."""
    return [x[0], x[1] + x[2], x[1] - x[2], x[3] + x[4], x[3] - x[4], x[5]]


def _planes(matrix: Sequence[Sequence[float]], parts: Sequence[Node]) -> Node:
    """What becomes of parts by a matrix of halves, along their first axis."""
    return _stacked(_pairs(_weighted(matrix, parts)), 0)


def _stacked(parts: Sequence[Node], axis: int) -> Node:
    """Nodes of one shape along an axis of extent 1."""
    before, after = parts[0].shape[:axis], parts[0].shape[axis + 1 :]
    full = (*before, len(parts), *after)
    along = (*(1 for _ in before), len(parts), *(1 for _ in after))
    position = node(ops.IOTA, (), None, index, (len(parts),))
    total = expanded(parts[-1], full)
    for k in range(len(parts) - 1, 0, -1):
        chosen = expanded(reshaped(position < k, along), full)
        total = elementwise(ops.WHERE, chosen, expanded(parts[k - 1], full), total)
    return total


def _sliced(x: Node, axis: int, first: int, extent: int, step: int = 1) -> Node:
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    steps = tuple((first, step) if d == axis else (0, 1) for d in range(len(shape)))
    return x if shape == x.shape else node(ops.SLICE, (x,), steps, x.dtype, shape)


def _padded(x: Node, axis: int, extent: int) -> Node:
    """`x` with zeros behind it."""
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    places = ((0, 1),) * len(shape)
    return x if shape == x.shape else node(ops.PAD, (x, const(0, x.dtype)), places, x.dtype, shape)
