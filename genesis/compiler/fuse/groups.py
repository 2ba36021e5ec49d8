"""Groups: kernels to be, as fusion decides them, and the indices at which they read.

A group computes its root over an iteration space. How an index into a value follows from one into
what is computed from it is the same question for fusion, which decides, and for lowering, which
writes the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from genesis.compiler.fuse.online_softmax import AttentionGradients, StreamedSoftmax
from genesis.compiler.lower.movement import ZERO, Indices
from genesis.ir import ops
from genesis.ir.kernel import Axis, AxisKind, as_index
from genesis.ir.node import Node, Prefix, Shape, mentions, topological
from genesis.ir.size import Size


@dataclass(eq=False)
class FusionGroup:
    """A kernel to be: computes `root` over its index `at`, and stores it.

    `rows` are the axes that inlined reductions are computed for, once per point (None: there are
    no reductions). `also` are further values computed on the way that must be stored. Where the
    root is a SCAN or a CALL it is a loop or a call to be, and `also` are its results. What lowering
    does not ask about is marked by ``compare=False``: groups that differ in it alone are lowered
    once (`genesis.compiler.lower.dedupe`).
    """

    root: Node
    at: Indices
    in_place: bool = False  # an UPDATE or SCATTER that writes only its part of its base's memory
    rows: frozenset[Axis] | None = None
    contraction: Node | None = None
    softmax: StreamedSoftmax | None = None  # how the contraction's softmax is streamed, if it is
    streamed_at: Indices = ()  # the index of that contraction
    gradients: AttentionGradients | None = None  # its results are the root and those of `also`
    # Of either: computed here even if stored elsewhere.
    inside: frozenset[Node] = field(default=frozenset(), compare=False)
    prefix: Carried | None = None  # the prefixes its loop carries
    also: list[tuple[Node, Indices]] = field(default_factory=list)
    pieces: dict[Node, tuple[Node, ...]] = field(default_factory=dict)  # see `pieces`
    # Sums over all its rows, see `fuse.column_sums`.
    column_sums: list[Node] = field(default_factory=list)
    columns: list[tuple[Node, Indices]] = field(default_factory=list)  # what is made of those
    # The buffers and stored values it loads.
    reads: set[Node] = field(default_factory=set, compare=False)
    nodes: int = field(default=0, compare=False)

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes of the root's index."""
        return frozenset(axes_of(self.at))

    @property
    def made(self) -> set[Node]:
        """What it stores."""
        return {self.root, *(n for n, _ in (*self.also, *self.columns))}

    @property
    def computed(self) -> list[Node]:
        """The nodes that it computes."""
        nodes = topological(self.made, lambda n: () if n in self.reads else n.inputs)
        return [n for n in nodes if n.op.group != "leaf" and n not in self.reads]

    @property
    def plain(self) -> bool:
        """Whether it visits elements, or rows of them, in no way of its own."""
        ways = (self.contraction, self.softmax, self.gradients, self.prefix)
        return ways == (None,) * 4 and not self.in_place

    def in_order(self, nodes: Iterable[Node], *more: ops.Op) -> bool:
        """Whether it goes through some of its nodes, `more` among them, as they lie in memory."""
        known = (ops.RESHAPE, ops.EXPAND, *ops.REDUCTIONS, *more)
        lies = all(n.op is not ops.BUFFER or is_row_major(n) for n in self.reads)
        return self.plain and lies and all(n.op.is_elementwise or n.op in known for n in nodes)

    def take(self, guest: FusionGroup) -> None:
        """Do what another group does, over the same index or its rows, as well."""
        # `also` is kept users first, as the walk that made it went.
        self.also = [(guest.root, guest.at), *guest.also, *self.also]
        self.pieces |= guest.pieces
        self.inside |= guest.inside
        self.reads |= guest.reads
        self.nodes += guest.nodes
        self.prefix = self.prefix or guest.prefix


@dataclass(frozen=True)
class Carried:
    """The PREFIX nodes that one loop can compute: the parts of one state, at one index."""

    inputs: tuple[Node, ...]
    how: Prefix  # of part 0
    at: Indices


def axes_of(indices: Iterable[Node]) -> list[Axis]:
    """The axes that index expressions mention, in a fixed order."""
    named = [n for n in indices if mentions(n)]
    if all(n.op is ops.AXIS for n in named):  # as nearly always
        return [n.attr for n in dict.fromkeys(named)]
    return [n.attr for n in topological(named) if n.op is ops.AXIS]


def iteration(shape: Shape, prefix: str, kind: AxisKind) -> Indices:
    """A fresh axis for every extent of a shape; extents of 1 need none."""
    at = []
    for d, extent in enumerate(shape):
        fixed = as_index(extent) if isinstance(extent, Size) else extent
        at.append(ZERO if extent == 1 else Axis(f"{prefix}{d}", kind, fixed).node)
    return tuple(at)


def reduced_index(n: Node, at: Indices, loops: Indices) -> Indices:
    """The input index of a reduction: `loops` at the reduced axes, `at` elsewhere."""
    kept, inner = iter(at), iter(loops)
    rank = len(n.inputs[0].shape)
    return tuple(next(inner) if d in n.attr else next(kept) for d in range(rank))


def contraction_index(n: Node, at: Indices, loops: dict[int, Node]) -> tuple[Indices, Indices]:
    """The operand indices of a contraction; `loops` maps summed labels to their axes."""
    left, right, out = n.attr
    label = dict(zip(out, at, strict=True)) | loops
    return tuple(label[x] for x in left), tuple(label[x] for x in right)


def gradients_index(gradients: AttentionGradients) -> Indices:
    """The index at which attention backward computes its weights."""
    shape = gradients.weights[0].shape
    grid = iteration(shape, "i", AxisKind.GRID)
    loops = iteration(shape, "i", AxisKind.LOOP)
    inner = (gradients.row, gradients.column)
    return tuple(b if d in inner else a for d, (a, b) in enumerate(zip(grid, loops, strict=True)))


def gradients_results(
    gradients: AttentionGradients, at: Indices
) -> dict[Node, tuple[Indices, Node, Indices]]:
    """For every result: the index it is added to, the other factor, and the index of that."""
    found: dict[Node, tuple[Indices, Node, Indices]] = {}
    for n, weights in zip(gradients.results, gradients.weights, strict=True):
        side = 0 if weights in (n.inputs[0], *n.inputs[0].inputs) else 1
        order = n.inputs[side].attr if n.inputs[side] is not weights else range(len(at))
        label = {x: at[d] for x, d in zip(n.attr[side], order, strict=True)}
        (free,) = (d for d, x in enumerate(n.attr[1 - side]) if x not in label)
        other = n.inputs[1 - side]
        (column,) = iteration((other.shape[free],), f"c{len(found)}_", AxisKind.LOOP)
        label[n.attr[1 - side][free]] = column
        there, where = (tuple(label[x] for x in labels) for labels in (n.attr[2], n.attr[1 - side]))
        found[n] = there, other, where
    return found


def scattered_index(n: Node, at: Indices) -> Indices:
    """The index at which a scatter reads its indices, given that of its updates."""
    first = n.attr[0][0]
    return at[first : first + len(n.inputs[1].shape)]


def summed_labels(n: Node) -> dict[int, int | Size]:
    """The labels a contraction sums over, with their extents."""
    left, right, out = n.attr
    extents = dict(zip(left, n.inputs[0].shape, strict=True))
    extents |= dict(zip(right, n.inputs[1].shape, strict=True))
    return {x: e for x, e in extents.items() if x not in out}


def is_row_major(n: Node) -> bool:
    """Whether a BUFFER leaf covers its memory in row-major order from the start."""
    expected: int | Size = 1
    for extent, stride in zip(reversed(n.shape), reversed(n.attr.strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected = expected * extent
    return bool(n.attr.offset == 0)


def written_where(update: Node) -> tuple[Node, ...]:
    """What an update writes, and before it, if it may write nothing, the condition.

    That is of one element, ``x[i] = where(c, new, x[i])``. Tiles have no masks for more.
    """
    new = update.inputs[-1]
    if update.op is ops.UPDATE and new.op is ops.WHERE and all(n == 1 for n in new.shape):
        condition, value, old = new.inputs
        if old.op is ops.SLICE and old.inputs[0] is update.inputs[0] and old.attr == update.attr:
            return condition, value
    return (new,)
