"""Fuse: decide which values are stored, and which are computed where they are used.

The pass walks the graph from its results towards its inputs. Every value carries *demands*: the
kernels that read it, each with the index at which an element is read, written with that kernel's
axes. When all users of a value have been seen, one decision is taken: compute it inside the
kernels that demand it, or give it a kernel of its own. Because demands carry indices, the pass
sees through any movement: a row maximum demanded by a softmax depends on the row axis only, so it
can be computed once per row inside the same kernel, however it was reshaped and broadcast.

What decides is the cost model at the end of this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from genesis.compiler.movement import ZERO, Indices, Memo, placed, source
from genesis.compiler.streaming import Stream, find
from genesis.ir import ops
from genesis.ir.index import bounds as index_bounds
from genesis.ir.index import simplify
from genesis.ir.kernel import Axis, AxisKind, as_index
from genesis.ir.node import TRUE, Node, Shape, both, topological
from genesis.ir.size import Size, bounds


@dataclass(eq=False)
class Group:
    """A kernel to be: computes `root` over its index `at`, and stores it.

    `rows` are the axes that inlined reductions are computed for, once per point (None: there are
    no reductions). `also` are further values computed on the way that must be stored. Where the
    root is a SCAN it is a loop to be, and `also` are its results.
    """

    root: Node
    at: Indices
    in_place: bool = False  # an UPDATE that writes only its region, into its base's memory
    rows: frozenset[Axis] | None = None
    contraction: Node | None = None
    stream: Stream | None = None  # how the contraction's softmax is streamed, if it is
    also: list[tuple[Node, Indices]] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)  # the buffers and stored values it loads
    nodes: int = 0

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes of the root's index."""
        return frozenset(axes_of(self.at))


@dataclass(frozen=True)
class Demand:
    """One use of a value: the element at `at` where `mask` holds."""

    at: Indices
    mask: Node
    opaque: bool = False  # the index is data, and not told
    stored: bool = False  # the value must lie in memory before the kernel starts
    operand: bool = False  # of a contraction: elements are read many times


@dataclass(frozen=True)
class Fusion:
    """The decisions: groups in an order that respects dependencies, and what is stored."""

    groups: tuple[Group, ...]
    stored: frozenset[Node]


def fuse(
    roots: Sequence[Node], donated: frozenset[int] = frozenset(), enabled: bool = True
) -> Fusion:
    """Group the graph below `roots` into kernels. Disabled, every operation is its own kernel.

    Updates of the buffers in the `donated` slots are done in place where nothing else reads them.
    """
    return _Fuser(roots, donated, enabled).run()


def axes_of(indices: Iterable[Node]) -> list[Axis]:
    """The axes that index expressions mention, in a fixed order."""
    found = [n.attr for n in topological(indices) if n.op is ops.AXIS]
    return list(dict.fromkeys(found))


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


def summed_labels(n: Node) -> dict[int, int | Size]:
    """The labels a contraction sums over, with their extents."""
    left, right, out = n.attr
    extents = dict(zip(left, n.inputs[0].shape, strict=True))
    extents |= dict(zip(right, n.inputs[1].shape, strict=True))
    return {x: e for x, e in extents.items() if x not in out}


class _Fuser:
    def __init__(self, roots: Sequence[Node], donated: frozenset[int], enabled: bool) -> None:
        self.order = topological(roots)
        self.roots = frozenset(roots)
        self.in_place = _in_place(self.order, self.roots, donated)
        self.streams = find(self.order, self.roots) if enabled else {}
        self.enabled = enabled
        self.demands: dict[Node, dict[Group, list[Demand]]] = {}
        self.groups: list[Group] = []
        self.stored: set[Node] = set()
        self.loops = 0
        self.items: dict[Node, list[tuple[Node, Indices]]] = {}  # of every SCAN
        self.memo: Memo = {}
        self.chain, self.cost = _chains(self.order)
        self.folded = _folded(self.order)
        self.reads = _reads(self.order)

    def run(self) -> Fusion:
        for n in reversed(self.order):
            demands = self.demands.pop(n, {})
            if n.op is ops.BUFFER or n.op is ops.ITEM:
                for reader in demands:
                    reader.reads.add(n)
            if n.op.group == "loop":
                self.repeat(n)
                continue
            if n not in self.roots and (n.op.group == "leaf" or not demands):
                continue  # nothing to compute, or nobody asks for it
            if n in self.in_place:
                self.overwrite(n)
                for reader in demands:
                    reader.reads.add(n)
                continue
            found = self.home(n, demands) or self.passed(n, demands)
            if found is not None:
                group, at = found
                for demand in demands[group]:
                    self.expand(group, n, demand)
                if n in self.roots:
                    group.also.append((n, at))
                    self.stored.add(n)
            elif n in self.roots or not self.recompute(n, demands):
                self.start(n)
                for reader in demands:
                    reader.reads.add(n)
            else:
                for user, uses in demands.items():
                    for demand in uses:
                        self.expand(user, n, demand)
        groups = list(reversed(self.groups))
        if self.enabled:
            groups = _side_by_side(groups)
        return Fusion(tuple(groups), frozenset(self.stored))

    # ---- decisions
    def home(self, n: Node, demands: dict[Group, list[Demand]]) -> tuple[Group, Indices] | None:
        """The one kernel that can compute `n` exactly once per element, and its index there."""
        if not self.enabled or len(demands) != 1:
            return None
        ((group, uses),) = demands.items()
        if len(uses) != 1 or group.nodes >= MAX_NODES:
            return None
        (demand,) = uses
        axes = axes_of(demand.at)
        if demand.opaque or demand.stored or not _bijective(demand.at, n.shape):
            return None
        if n.op in ops.REDUCTIONS:
            fits = group.contraction is None and group.rows in (None, frozenset(axes))
            inside = frozenset(axes) <= group.axes and demand.mask is TRUE
            if not (fits and inside and _rows_pay(axes, n)):
                return None
            group.rows = frozenset(axes)
            return group, demand.at
        if group.stream is not None and n is group.stream.inner:
            return group, demand.at
        if n.op is ops.CONTRACT:
            whole = frozenset(axes) == group.axes and demand.mask is TRUE
            if not whole or group.rows is not None or group.contraction is not None:
                return None
            group.rows, group.contraction = frozenset(axes), n
            return group, demand.at
        if n.op is ops.SCATTER_ADD or self.cut(n) or _worked_on(n, demand):
            return None
        if self.repeats(n, group, demand):
            return None
        return (group, demand.at) if _visits(group, n, demand) or n not in self.roots else None

    def passed(self, n: Node, demands: dict[Group, list[Demand]]) -> tuple[Group, Indices] | None:
        """The kernel that computes the result `n` in several places, and visits it in one."""
        if not self.enabled or n not in self.roots or len(demands) != 1:
            return None
        ((group, uses),) = demands.items()
        visits = [use.at for use in uses if _visits(group, n, use)]
        return (group, visits[0]) if visits and self.recompute(n, demands) else None

    def cut(self, n: Node) -> bool:
        """Long chains are cut at fixed lengths, so that equal pieces become equal kernels."""
        return n.op.is_elementwise and self.chain[n] % MAX_CHAIN == 0

    def recompute(self, n: Node, demands: dict[Group, list[Demand]]) -> bool:
        """Whether evaluating `n` at every use is cheaper than storing it."""
        if n.op in ops.REDUCTIONS or n.op in (ops.CONTRACT, ops.SCATTER_ADD):
            return False
        if n.op is ops.UPDATE and not self.enabled:
            return False
        uses = [(g, d) for g, ds in demands.items() for d in ds]
        if any(d.stored for _, d in uses):
            return False
        if n.op.is_movement:
            # Padding is a mask, and one that depends on data is hard to prove things with.
            return n.op is not ops.PAD or not any(d.opaque for _, d in uses)
        if any(d.opaque or self.repeats(n, g, d) for g, d in uses):
            return False
        if not self.enabled or self.cut(n) or any(g.nodes >= MAX_NODES for g, _ in uses):
            return False
        if any(_worked_on(n, d) for _, d in uses):
            return False
        evaluations = sum(_points(axes_of(d.at)) for _, d in uses) / max(1, _count(n.shape))
        again = self.reads[n] / max(1, _count(n.shape))
        return _recompute_pays(evaluations, len(demands), self.cost[n], again)

    def repeats(self, n: Node, group: Group, use: Demand) -> bool:
        """Whether a kernel would compute `n` over and over along axes that `n` does not have."""
        if not n.op.is_elementwise or n in self.folded:
            return False
        axes = frozenset(axes_of(use.at))
        around = group.axes if axes <= group.axes else axes | (group.rows or group.axes)
        return not _repetition_pays(_points(around) - _points(axes), self.cost[n])

    # ---- propagation
    def start(self, n: Node) -> None:
        """Give `n` a kernel of its own."""
        group = Group(n, iteration(n.shape, "i", AxisKind.GRID))
        self.groups.append(group)
        self.stored.add(n)
        if n.op in ops.REDUCTIONS:
            group.rows = group.axes
        elif n.op is ops.CONTRACT:
            group.rows, group.contraction = group.axes, n
        self.expand(group, n, Demand(group.at, TRUE))

    def repeat(self, n: Node) -> None:
        """A SCAN is a group of its own, between values that lie in memory."""
        if n.op is ops.ITEM:
            self.items.setdefault(n.inputs[0], []).append((n, ()))
            self.stored.add(n)
            return
        group = Group(n, (), also=self.items[n])
        self.groups.append(group)
        for i in n.inputs:
            self.demand(group, i, Demand((), TRUE, stored=True))

    def overwrite(self, n: Node) -> None:
        """Give an update a kernel that visits only the elements it writes."""
        base, value = n.inputs
        group = Group(n, iteration(value.shape, "i", AxisKind.GRID), in_place=True)
        self.groups.append(group)
        self.stored.add(n)
        # A value that reads what it overwrites is computed before the first write.
        slot = base.attr.slot if base.op is ops.BUFFER else None
        below = topological([value])
        reads = any(m is base or (m.op is ops.BUFFER and m.attr.slot == slot) for m in below)
        self.demand(group, value, Demand(group.at, TRUE, stored=reads))
        self.demand(group, base, Demand((), TRUE, stored=True))

    def expand(self, group: Group, n: Node, use: Demand) -> None:
        """Put the demands on n's inputs that computing `n` in `group` makes."""
        group.nodes += 1
        if n.op.is_elementwise:
            for i in n.inputs:
                self.demand(
                    group, i, Demand(use.at if i.shape else (), use.mask, operand=use.operand)
                )
        elif n.op.is_movement:
            at, condition = ((), TRUE) if use.opaque else source(n, use.at, self.memo)
            mask = both(use.mask, condition)
            self.demand(group, n.inputs[0], Demand(at, mask, use.opaque, operand=use.operand))
            if n.op is ops.PAD:
                self.demand(group, n.inputs[1], Demand((), use.mask))
        elif n.op in ops.REDUCTIONS:
            extents = tuple(n.inputs[0].shape[a] for a in n.attr)
            at = reduced_index(n, use.at, self.fresh(extents))
            self.demand(group, n.inputs[0], Demand(at, use.mask))
        elif n.op is ops.CONTRACT:
            summed = summed_labels(n)
            loops = dict(zip(summed, self.fresh(tuple(summed.values())), strict=True))
            indices = contraction_index(n, use.at, loops)
            stream = self.streams.get(n)
            for side, (i, at) in enumerate(zip(n.inputs, indices, strict=True)):
                if stream is not None and side == stream.side:
                    group.stream = stream
                    self.demand(group, stream.scores, Demand(at, use.mask))
                else:
                    self.demand(group, i, Demand(at, use.mask, operand=True))
        elif n.op is ops.GATHER:
            rank = len(n.inputs[1].shape)
            self.demand(group, n.inputs[0], Demand((), use.mask, opaque=True))
            self.demand(group, n.inputs[1], Demand(use.at[n.attr : n.attr + rank], use.mask))
        elif n.op is ops.UPDATE:
            found, condition = placed(use.at, n.attr, n.inputs[1].shape)
            at = tuple(simplify(i, self.memo) for i in found)
            inside = simplify(both(use.mask, condition), self.memo)
            self.demand(group, n.inputs[0], Demand(use.at, use.mask))
            self.demand(group, n.inputs[1], Demand(at, inside))
        elif n.op is ops.SCATTER_ADD:
            for i in n.inputs:
                self.demand(group, i, Demand((), use.mask, opaque=True))

    def demand(self, group: Group, n: Node, new: Demand) -> None:
        uses = self.demands.setdefault(n, {}).setdefault(group, [])
        if new not in uses:
            uses.append(new)

    def fresh(self, extents: Shape) -> Indices:
        self.loops += 1
        return iteration(extents, f"k{self.loops}_", AxisKind.LOOP)


def _side_by_side(groups: Sequence[Group]) -> list[Group]:
    """Join independent kernels over the same elements.

    An optimizer's many small updates become one launch, two reductions of one array share a pass
    over it. A kernel joins an earlier one if everything it reads is there before that one starts.
    """
    ready: dict[Node, int] = {}  # stored value -> the position of the group that makes it
    result: list[Group] = []
    by_shape: dict[object, list[int]] = {}
    for group in groups:
        alone = (
            group.in_place
            or group.contraction is not None
            or group.root.op in (ops.SCATTER_ADD, ops.SCAN)
        )
        position = None
        if not alone:
            first = max((ready[n] + 1 for n in group.reads if n in ready), default=0)
            for at in by_shape.get((group.at, group.rows), ()):
                if at >= first and _joins(result[at], group):
                    position = at
                    break
        if position is None:
            position = len(result)
            result.append(group)
            if not alone:
                by_shape.setdefault((group.at, group.rows), []).append(position)
        else:
            host = result[position]
            # `also` is kept users first, as the walk that made it went.
            host.also = [(group.root, group.at), *group.also, *host.also]
            host.reads |= group.reads
            host.nodes += group.nodes
        for n in (group.root, *(m for m, _ in group.also)):
            ready[n] = position
    return result


def _visits(group: Group, n: Node, use: Demand) -> bool:
    """Whether the kernel's own loops come by every element of `n` exactly once at a use."""
    plain = use.mask is TRUE and not (use.opaque or use.stored)
    own = frozenset(axes_of(use.at)) in (group.axes, group.rows)
    return plain and own and _bijective(use.at, n.shape)


def _worked_on(n: Node, use: Demand) -> bool:
    """Whether a contraction would redo arithmetic on its operand for every tile it is read for."""
    return use.operand and n.op.is_elementwise and n.op is not ops.CAST


def _in_place(
    order: Sequence[Node], roots: frozenset[Node], donated: frozenset[int]
) -> frozenset[Node]:
    """The updates that may write into their base: results whose old value nobody needs.

    The base is a donated buffer or such an update itself, and only the update and the value it
    writes read it.
    """
    users: dict[Node, list[Node]] = {}
    for n in order:
        for i in n.inputs:
            users.setdefault(i, []).append(n)
    chosen: set[Node] = set()
    for n in order:
        if n.op is not ops.UPDATE:
            continue
        base, value = n.inputs
        inner = base in chosen and base not in roots
        if value is base:  # it would be read while it is overwritten
            continue
        if not inner and not (base.op is ops.BUFFER and _owned(base, donated)):
            continue
        below = set(topological([value]))
        if all(user is n or user in below for user in users[base]):
            chosen.add(n)
    # An inner update is only reached through its user: without that it is an ordinary value.
    for n in reversed(order):
        if n in chosen and n not in roots and not any(u in chosen for u in users.get(n, ())):
            chosen.discard(n)
    return frozenset(chosen)


def _owned(n: Node, donated: frozenset[int]) -> bool:
    """Whether a leaf is a donated buffer in plain row-major layout."""
    return n.attr.slot in donated and is_row_major(n)


def is_row_major(n: Node) -> bool:
    """Whether a BUFFER leaf covers its memory in row-major order from the start."""
    expected: int | Size = 1
    for extent, stride in zip(reversed(n.shape), reversed(n.attr.strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected = expected * extent
    return bool(n.attr.offset == 0)


# ---- the cost model

#: Elementwise operations in a row before a value is stored anyway.
MAX_CHAIN = 64
#: Operations in one kernel: code size and compile time grow with it.
MAX_NODES = 400
#: Results one kernel stores.
MAX_STORES = 32
#: Moving one float to memory and back costs as much as about this many multiply-adds.
BYTES_PRICE = 48
#: Loading a value that was stored before costs as much as about this many multiply-adds.
LOAD_PRICE = 16
#: Fewer rows than this leave cores idle when a long reduction is computed once per row.
MIN_ROWS = 8
#: Below this many elements a kernel is too short for that to matter.
SMALL = 1 << 15
#: What a symbolic extent counts as.
TYPICAL = 256


def _chains(order: Sequence[Node]) -> tuple[dict[Node, int], dict[Node, int]]:
    """For each node: how long the elementwise chain above it is, and what computing it costs."""
    length: dict[Node, int] = {}
    cost: dict[Node, int] = {}
    for n in order:
        through = n.op.is_elementwise or n.op.is_movement
        inputs = n.inputs if through else ()
        length[n] = max((length[i] for i in inputs), default=0) + n.op.is_elementwise
        cost[n] = min(10**6, n.op.cost + sum(cost[i] for i in inputs))
    return length, cost


def _folded(order: Sequence[Node]) -> set[Node]:
    """What is made from a reduction by arithmetic: it belongs where the reduction is computed."""
    found: set[Node] = set()
    for n in order:
        if n.op.group == "loop":
            continue
        if n.op.group in ("reduce", "contract") or not found.isdisjoint(n.inputs):
            found.add(n)
    return found


def _reads(order: Sequence[Node]) -> dict[Node, int]:
    """For each node: how many elements are read from memory to compute all of it once."""
    reads: dict[Node, int] = {}
    for n in order:
        if n.op.is_elementwise:
            total = sum(reads[i] for i in set(n.inputs))
            reads[n] = min(total, MAX_NODES * _count(n.shape))
        elif n.op.is_movement:
            reads[n] = reads[n.inputs[0]]
        else:
            reads[n] = 0 if n.op.group == "leaf" and n.op is not ops.BUFFER else _count(n.shape)
    return reads


def _recompute_pays(evaluations: float, kernels: int, cost: int, reads: float) -> bool:
    """Whether to compute a value again in every kernel that uses it; all costs are per element.

    Storing it costs one write, and a read in each kernel. Computing it again costs the arithmetic,
    and reading what it is made from in each kernel but one.
    """
    moving = BYTES_PRICE / 2
    again = (evaluations - 1) * cost + moving * (kernels - 1) * reads
    return again <= moving * (1 + kernels)


def _repetition_pays(extra: int, cost: int) -> bool:
    """Whether computing a broadcast value again is better than a launch, and loads of it."""
    return cost <= LOAD_PRICE or extra * cost <= SMALL


def _joins(host: Group, guest: Group) -> bool:
    """Side by side pays where launches are short or an input is read once instead of twice."""
    stores = len(host.also) + len(guest.also) + 2
    fits = host.nodes + guest.nodes <= MAX_NODES and stores <= MAX_STORES
    short = host.rows is None and host.stream is None
    return fits and (short or not host.reads.isdisjoint(guest.reads))


def _rows_pay(rows: Sequence[Axis], reduction: Node) -> bool:
    """Whether computing a reduction once per row of its user leaves enough parallel rows."""
    return _points(rows) >= MIN_ROWS or _count(reduction.inputs[0].shape) <= SMALL


def _points(axes: Iterable[Axis]) -> int:
    total = 1
    for axis in axes:
        extent = axis.extent
        total *= extent if isinstance(extent, int) else min(TYPICAL, index_bounds(extent)[1])
    return total


def _count(shape: Shape) -> int:
    total = 1
    for extent in shape:
        total *= extent if isinstance(extent, int) else min(TYPICAL, bounds(extent)[1])
    return total


def _bijective(at: Indices, shape: Shape) -> bool:
    """Whether `at` visits each element of `shape` exactly once over the axes it mentions."""
    seen: set[Axis] = set()
    for i, extent in zip(at, shape, strict=True):
        if extent == 1:
            if axes_of([i]):  # in a kernel over nothing: an empty slice of one element
                return False
            continue
        if i.op is not ops.AXIS or i.attr in seen:
            return False
        full = as_index(extent) if isinstance(extent, Size) else extent
        if i.attr.extent != full and i.attr.extent is not full:
            return False
        seen.add(i.attr)
    return True
