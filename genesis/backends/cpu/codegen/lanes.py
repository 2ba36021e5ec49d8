"""Which tile axis becomes vector lanes, and what an access looks like along it.

The tile axes of a phase are numbered. Code is emitted for one *point* at a time: a list with one
coordinate per axis, an int for an axis that is unrolled, or a *piece* (start, width) for the one
axis that is spread over the lanes of vectors. Statements that share tiled locals form a region and
agree on that axis: the one along which most of their accesses are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import bool_, float32, int8, int32, uint8
from genesis.ir.dtype import index as index_type
from genesis.ir.node import Node, const, topological

Piece = tuple[int, int]
Coordinate = int | Piece
Point = list[Coordinate]
Place = Callable[[Point], object]
Item = kir.Let | kir.Store | kir.Reduce | kir.Scan | kir.Carry  # what evaluates tiles

#: Products of bytes that are added together.
QUAD = 4
_ZERO = const(0, index_type)
# How much a contiguous, a transposable and a scattered access speak for or against an axis. Stores
# count more: a strided load can be transposed in registers.
_CONTIGUOUS, _TRANSPOSED, _STRIDED, _STORE = 1.0, -0.25, -1.0, 1.5
_FULL = 2.0  # how much full vectors count, against one access
_REPEATS = 8.0  # iterations of a loop, for weighing what happens inside it


@dataclass(frozen=True)
class Lane:
    """The lane axis of a region and its coordinates; axis -1 where nothing is a vector."""

    axis: int
    pieces: tuple[Coordinate, ...]

    @property
    def longest(self) -> int:
        """The number of lanes of the longest vector."""
        return max((p[1] for p in self.pieces if not isinstance(p, int)), default=1)


NO_LANE = Lane(-1, ())


@dataclass(frozen=True, eq=False)
class Address:
    """An element's offset: the value of `flat` plus ``slope * coordinate`` for some tile axes."""

    flat: Node
    slopes: dict[int, int]

    def offset(self, point: Sequence[Coordinate]) -> int:
        """The part known at a point."""
        total = 0
        for axis, slope in self.slopes.items():
            total += slope * first_of(point[axis])
        return total


@dataclass(frozen=True, eq=False)
class Votes:
    """For each tile axis of an item: how well it suits lanes, and the bits of what they hold."""

    scores: dict[int, float]
    widths: dict[int, set[int]]


def as_piece(at: Coordinate) -> tuple[int, int]:
    """A coordinate that is known to be a vector: its first lane and its width."""
    assert not isinstance(at, int)
    return at


def first_of(at: Coordinate) -> int:
    """A coordinate's first lane."""
    return at if isinstance(at, int) else at[0]


def moved(point: Point, axis: int, at: Coordinate) -> Point:
    """The point with another coordinate along one axis."""
    result = list(point)
    result[axis] = at
    return result


def pieces(extent: int, width: int) -> tuple[Coordinate, ...]:
    """An extent cut into vectors of `width`, then narrower powers of two; single lanes are ints.

    >>> pieces(37, 16)
    ((0, 16), (16, 16), (32, 4), 36)
    """
    result: list[Coordinate] = []
    start = 0
    while start < extent:
        while start + width > extent:
            width //= 2
        result.append((start, width) if width > 1 else start)
        start += width
    return tuple(result)


def _everywhere(point: Point) -> None:
    """The place of what mentions no tile axis."""


class Analysis:
    """Facts about the expressions of one phase, computed once per node."""

    def __init__(self, mutable: frozenset[kir.Buffer]) -> None:
        self.mutable = mutable
        self.extents: list[int] = []
        self._numbers: dict[str, int] = {}
        self._tiles: dict[Node, tuple[int, ...]] = {}
        self._places: dict[Node, Place] = {}
        self._nodes: dict[Item, list[Node]] = {}
        self._volatile: dict[Node, frozenset[object]] = {}
        self._linear: dict[Node, tuple[Node, dict[int, int]] | None] = {}
        self._addresses: dict[Node | kir.Store, Address] = {}
        self._by_data: dict[tuple[Node, int], bool] = {}
        self._votes: dict[Item, Votes] = {}

    def number(self, axis: kir.Axis) -> int:
        """The number of a tile axis."""
        found = self._numbers.get(axis.name)
        if found is None:
            if not isinstance(axis.extent, int):
                raise ValueError(
                    f"the TILE axis {axis.name} has the extent {axis.extent!r}, not an int"
                )
            found = self._numbers[axis.name] = len(self.extents)
            self.extents.append(axis.extent)
        return found

    def nodes(self, item: Item) -> list[Node]:
        """The nodes of an item's expressions, inputs before users."""
        found = self._nodes.get(item)
        if found is None:
            found = self._nodes[item] = topological(item_expressions(item))
        return found

    def tiles(self, n: Node) -> tuple[int, ...]:
        """The tile axes an expression mentions."""
        found = self._tiles.get(n)
        if found is None:
            self._visit(n)
            found = self._tiles[n]
        return found

    def place(self, n: Node) -> Place:
        """What gives a point's coordinates along the axes an expression mentions.

        Where two points agree in them, they are one place to the expression.
        """
        found = self._places.get(n)
        if found is None:
            tiles = self.tiles(n)
            found = self._places[n] = itemgetter(*tiles) if tiles else _everywhere
        return found

    def volatile(self, n: Node) -> frozenset[object]:
        """The locals and the buffers being written that an expression reads."""
        if n not in self._volatile:
            self._visit(n)
        return self._volatile[n]

    def _visit(self, root: Node) -> None:
        known = self._tiles
        for n in topological([root], lambda m: () if m in known else m.inputs):
            if n in known:
                continue
            tiles: set[int] = set()
            volatile: frozenset[object] = frozenset()
            for i in n.inputs:
                tiles.update(known[i])
                if self._volatile[i]:
                    volatile |= self._volatile[i]
            if n.op is ops.AXIS and n.attr.kind is kir.AxisKind.TILE:
                tiles.add(self.number(n.attr))
            elif n.op is ops.LOCAL:
                tiles.update(map(self.number, n.attr.tiles))
                volatile = frozenset({n.attr})
            elif n.op is ops.LOAD and n.attr in self.mutable:
                volatile |= {n.attr}
            known[n] = tuple(sorted(tiles))
            self._volatile[n] = volatile

    def linear(self, n: Node) -> tuple[Node, dict[int, int]] | None:
        """An index expression as (tile-free part, slope per tile axis), None where it is not."""
        if n not in self._linear:
            self._linear[n] = self._find_linear(n)
        return self._linear[n]

    def _find_linear(self, n: Node) -> tuple[Node, dict[int, int]] | None:
        tiles = self.tiles(n)
        if not tiles:
            return n, {}
        if n.op is ops.AXIS:
            return _ZERO, {tiles[0]: 1}
        if n.op in (ops.ADD, ops.SUB):
            a, b = self.linear(n.inputs[0]), self.linear(n.inputs[1])
            if a is None or b is None:
                return None
            sign = 1 if n.op is ops.ADD else -1
            slopes = dict(a[1])
            for axis, slope in b[1].items():
                slopes[axis] = slopes.get(axis, 0) + sign * slope
            return (a[0] + b[0] if sign > 0 else a[0] - b[0]), slopes
        if n.op is ops.MUL:
            for x, y in (n.inputs, n.inputs[::-1]):
                if y.op is ops.CONST:
                    inner = self.linear(x)
                    if inner is None:
                        return None
                    return inner[0] * y, {a: s * int(y.attr) for a, s in inner[1].items()}
        if n.op is ops.NEG:
            inner = self.linear(n.inputs[0])
            return (
                None if inner is None else (_ZERO - inner[0], {a: -s for a, s in inner[1].items()})
            )
        return None

    def address_of(self, access: Node | kir.Store) -> Address:
        """Where the element of a LOAD or a Store lies, relative to its buffer's first."""
        found = self._addresses.get(access)
        if found is None:
            if isinstance(access, kir.Store):
                buffer, indices = access.buffer, access.index
            else:
                buffer, indices, _, _ = kir.load_parts(access)
            found = self._addresses[access] = self._address(buffer, indices)
        return found

    def _address(self, buffer: kir.Buffer, indices: tuple[Node, ...]) -> Address:
        flat = kir.as_index(buffer.offset)
        slopes: dict[int, int] = {}
        for at, stride in zip(indices, buffer.layout, strict=True):
            linear = self.linear(at)
            if linear is None or (linear[1] and stride.op is not ops.CONST):
                flat = flat + at * stride
                continue
            flat = flat + linear[0] * stride
            for axis, slope in linear[1].items():
                slopes[axis] = slopes.get(axis, 0) + slope * int(stride.attr)
        return Address(flat, slopes)

    def stride(self, address: Address, lane: int) -> int | None:
        """The distance between neighbouring lanes in memory; None where it is not constant."""
        if lane in self.tiles(address.flat):
            return None
        return address.slopes.get(lane, 0)

    def by_data(self, n: Node, lane: int) -> bool:
        """Whether an index differs between lanes because of data that was read."""
        key = (n, lane)
        if key not in self._by_data:
            self._by_data[key] = any(
                m.op in (ops.LOAD, ops.LOCAL) and lane in self.tiles(m) for m in topological([n])
            )
        return self._by_data[key]

    def votes(self, item: Item) -> Votes:
        """How the accesses of an item speak for and against its tile axes as lanes."""
        found = self._votes.get(item)
        if found is None:
            found = self._votes[item] = self._count_votes(item)
        return found

    def _count_votes(self, item: Item) -> Votes:
        scores: dict[int, float] = {}
        widths: dict[int, set[int]] = {}
        # The four bytes of a quadruple are one element.
        quad, near = -1, 1
        if isinstance(item, kir.Reduce) and byte_factors(item) is not None:
            quad, near = self.number(item.axis), QUAD

        def access(source: Node | kir.Store, weight: float) -> None:
            address = self.address_of(source)
            contiguous = any(s == 1 for s in address.slopes.values())
            for axis in {*address.slopes, *self.tiles(address.flat)} - {quad}:
                stride = self.stride(address, axis)
                if stride == near:
                    scores[axis] += weight * _CONTIGUOUS
                elif stride != 0:
                    scores[axis] += weight * (
                        _TRANSPOSED if contiguous and stride is not None else _STRIDED
                    )

        for n in self.nodes(item):
            for axis in self.tiles(n):
                if axis == quad:
                    continue
                scores.setdefault(axis, 0.0)
                bits = widths.setdefault(axis, set())
                if n.op in (ops.LOAD, ops.LOCAL) and n.dtype is not bool_:
                    bits.add(max(n.dtype.bits, float32.bits) if n.dtype.is_float else n.dtype.bits)
            if n.op is ops.LOAD:
                access(n, 1.0)
        if isinstance(item, kir.Store):
            access(item, _STORE)
        return Votes(scores, widths)

    def points(
        self, axes: Iterable[int], lane: Lane, lanes_outermost: bool = False
    ) -> Iterator[Point]:
        """Every point of some tile axes, lanes varying fastest or slowest; other axes are at 0."""
        chosen = sorted(set(axes), key=lambda a: ((a == lane.axis) ^ lanes_outermost, a))
        choices: list[Sequence[Coordinate]] = [
            lane.pieces if a == lane.axis else range(self.extents[a]) for a in chosen
        ]
        for coordinates in product(*choices):
            point: Point = [0] * len(self.extents)
            for axis, at in zip(chosen, coordinates, strict=True):
                point[axis] = at
            yield point


# ---- regions


def choose_lanes(phase: kir.Phase, analysis: Analysis, vector_bits: int) -> dict[Item, Lane]:
    """The lane axis of everything in a phase that evaluates tiles.

    Items that share a local must agree on how it lies in registers. That needs one lane axis for
    all of them only if the local has that axis: two parts of a kernel may go along different axes
    and still exchange values that have neither (the scale of a row, say).
    """
    result: dict[Item, Lane] = {}
    often = dict(items(phase.body))
    for region in _regions(list(often), analysis, lambda local: bool(local.tiles)):
        unrolled, lanes = _rivals(region, analysis, vector_bits)
        if len(lanes) < 2:
            result |= dict.fromkeys(region, _choose(region, analysis, vector_bits, often))
            continue

        def along(local: kir.Local, lanes: frozenset[int] = lanes) -> bool:
            return not lanes.isdisjoint(analysis.tiles(local.node))

        for part in _regions(region, analysis, along):
            lane = _choose(part, analysis, vector_bits, often, unrolled)
            result |= dict.fromkeys(part, lane)
    return result


def _rivals(
    items: list[Item], analysis: Analysis, vector_bits: int
) -> tuple[frozenset[int], frozenset[int]]:
    """The axes that some item would rather unroll, and the others: candidates for lanes."""
    axes: set[int] = set()
    beaten: set[int] = set()
    for item in items:
        own = {a for n in item_expressions(item) for a in analysis.tiles(n)}
        own = {a for a in own if analysis.extents[a] > 1}
        axes |= own
        if len(own) > 1:
            beaten |= own - {_choose([item], analysis, vector_bits, {}).axis}
    return frozenset(beaten), frozenset(axes - beaten)


def byte_factors(s: kir.Reduce) -> tuple[Node, Node] | None:
    """The factors of a quadruple: four products of bytes, added as 32-bit integers."""
    (value, *more) = s.values
    plain = not more and s.axis.extent == QUAD and kir.simple_fold(s.merge) is ops.ADD
    if not plain or value.op is not ops.MUL or value.dtype is not int32:
        return None
    a, b = (f.inputs[0] if f.op is ops.CAST else f for f in value.inputs)
    return (a, b) if {a.dtype, b.dtype} <= {int8, uint8} else None


def item_expressions(item: Item) -> tuple[Node, ...]:
    """The expressions an item evaluates."""
    if isinstance(item, kir.Let):
        return (item.value,)
    if isinstance(item, kir.Store):
        return (*item.index, item.value, item.mask)
    if isinstance(item, kir.Carry):
        return (item.init, item.step)
    return item.values


def _item_locals(item: Item) -> tuple[kir.Local, ...]:
    if isinstance(item, kir.Let | kir.Carry):
        return (item.local,)
    return item.locals if isinstance(item, kir.Reduce | kir.Scan) else ()


def items(body: kir.Body, often: float = 1.0) -> Iterator[tuple[Item, float]]:
    """Everything that evaluates tiles, with a guess at how often it runs."""
    for s in body:
        if isinstance(s, kir.Loop):
            yield from ((c, often * _REPEATS) for c in s.carried)
            yield from items(s.body, often * _REPEATS)
        elif isinstance(s, kir.If):
            yield from items(s.body, often)
            yield from items(s.orelse, often)
        elif isinstance(s, kir.Let | kir.Store | kir.Reduce | kir.Scan):
            yield s, often


def _regions(
    items: list[Item], analysis: Analysis, binds: Callable[[kir.Local], bool]
) -> list[list[Item]]:
    """Items connected through locals that bind them together (union-find over the locals)."""
    parent: dict[kir.Local, kir.Local] = {}

    def find(v: kir.Local) -> kir.Local:
        parent.setdefault(v, v)
        while parent[v] is not v:
            parent[v] = v = parent[parent[v]]
        return v

    anchored: list[tuple[Item, kir.Local | None]] = []
    for item in items:
        used = [n.attr for n in analysis.nodes(item) if n.op is ops.LOCAL]
        tiled = [v for v in (*_item_locals(item), *used) if binds(v)]
        for v in tiled[1:]:
            parent[find(v)] = find(tiled[0])
        anchored.append((item, tiled[0] if tiled else None))
    regions: dict[object, list[Item]] = {}
    for item, anchor in anchored:
        regions.setdefault(item if anchor is None else find(anchor), []).append(item)
    return list(regions.values())


def _choose(
    items: list[Item],
    analysis: Analysis,
    vector_bits: int,
    often: Mapping[Item, float],
    unrolled: frozenset[int] = frozenset(),
) -> Lane:
    scores: dict[int, float] = {}
    widths: dict[int, set[int]] = {}
    for item in items:
        votes = analysis.votes(item)
        weight = often.get(item, 1.0)
        for axis, vote in votes.scores.items():
            scores[axis] = scores.get(axis, 0.0) + weight * vote
            widths.setdefault(axis, set()).update(votes.widths[axis])
    candidates = [a for a in scores if analysis.extents[a] > 1 and a not in unrolled]
    if not candidates:
        return NO_LANE
    lanes = {}
    work = sum(often.get(item, 1.0) for item in items)
    for a in candidates:
        width = vector_bits // _lane_bits(widths[a])
        lanes[a] = Lane(a, pieces(analysis.extents[a], width))
        # Vectors that are not full do less per instruction.
        scores[a] += _FULL * work * analysis.extents[a] / (len(lanes[a].pieces) * width)
    return lanes[max(candidates, key=lambda a: (scores[a], analysis.extents[a], -a))]


def _lane_bits(widths: set[int]) -> int:
    """Bits per lane: the narrowest type computed with, at least 32 where any is that wide."""
    wide = [w for w in widths if w >= 32]
    return min(wide) if wide else max(widths, default=32)
