"""Fuse: decide which values are stored, and which are computed where they are used.

The pass walks the graph from its results towards its inputs. Every value carries *demands*: the
kernels that read it, each with the index at which an element is read, written with that kernel's
axes. When all users of a value have been seen, one decision is taken: compute it inside the
kernels that demand it, or give it a kernel of its own. Because demands carry indices, the pass
sees through any movement: a row maximum demanded by a softmax depends on the row axis only, so it
can be computed once per row inside the same kernel, however it was reshaped and broadcast.

What decides is the cost model, `genesis.compiler.cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from genesis.compiler.cost import (
    MAX_CHAIN,
    MAX_NODES,
    UNROLLED,
    chains,
    count,
    folded,
    joins,
    points,
    reads,
    recompute_pays,
    repetition_pays,
    rows_pay,
)
from genesis.compiler.movement import ZERO, Indices, Memo, placed, source
from genesis.compiler.streaming import Found, Stream, Sweep, find
from genesis.ir import ops
from genesis.ir.index import simplify
from genesis.ir.kernel import Axis, AxisKind, as_index
from genesis.ir.node import TRUE, Node, Prefix, Shape, both, topological
from genesis.ir.size import Size


@dataclass(eq=False)
class Group:
    """A kernel to be: computes `root` over its index `at`, and stores it.

    `rows` are the axes that inlined reductions are computed for, once per point (None: there are
    no reductions). `also` are further values computed on the way that must be stored. Where the
    root is a SCAN or a CALL it is a loop or a call to be, and `also` are its results.
    """

    root: Node
    at: Indices
    in_place: bool = False  # an UPDATE or SCATTER that writes only its part of its base's memory
    rows: frozenset[Axis] | None = None
    contraction: Node | None = None
    stream: Stream | None = None  # how the contraction's softmax is streamed, if it is
    streamed_at: Indices = ()  # the index of that contraction
    sweep: Sweep | None = None  # its results are the root and those of `also`
    prefix: Carried | None = None  # the prefixes its loop carries
    also: list[tuple[Node, Indices]] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)  # the buffers and stored values it loads
    nodes: int = 0

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes of the root's index."""
        return frozenset(axes_of(self.at))


@dataclass(frozen=True)
class Carried:
    """The PREFIX nodes that one loop can compute: the parts of one state, at one index."""

    inputs: tuple[Node, ...]
    how: Prefix  # of part 0
    at: Indices


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
    roots: Sequence[Node],
    donated: frozenset[int] = frozenset(),
    enabled: bool = True,
    sweeps: bool = True,
) -> Fusion:
    """Group the graph below `roots` into kernels. Disabled, every operation is its own kernel.

    Updates of the buffers in the `donated` slots are done in place where nothing else reads them.
    `sweeps` says whether the chip has a schedule for those (see `genesis.compiler.streaming`).
    """
    return _Fuser(roots, donated, enabled, sweeps).run()


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


def sweep_index(sweep: Sweep) -> Indices:
    """The index at which a sweep computes its weights."""
    shape = sweep.weights[0].shape
    grid = iteration(shape, "i", AxisKind.GRID)
    loops = iteration(shape, "i", AxisKind.LOOP)
    inner = (sweep.row, sweep.column)
    return tuple(b if d in inner else a for d, (a, b) in enumerate(zip(grid, loops, strict=True)))


def sweep_results(sweep: Sweep, at: Indices) -> dict[Node, tuple[Indices, Node, Indices]]:
    """For every result: the index it is added to, the other factor, and the index of that."""
    found: dict[Node, tuple[Indices, Node, Indices]] = {}
    for n, weights in zip(sweep.results, sweep.weights, strict=True):
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


class _Fuser:
    def __init__(
        self, roots: Sequence[Node], donated: frozenset[int], enabled: bool, sweeps: bool
    ) -> None:
        self.order = topological(roots)
        self.roots = frozenset(roots)
        self.in_place = _in_place(self.order, self.roots, donated)
        self.found = find(self.order, self.roots, sweeps) if enabled else Found({}, {}, frozenset())
        self.carried: dict[Node, tuple[Group, Indices]] = {}  # what streams carry besides the sum
        self.enabled = enabled
        self.demands: dict[Node, dict[Group, list[Demand]]] = {}
        self.groups: list[Group] = []
        self.stored: set[Node] = set()
        self.loops = 0
        self.items: dict[Node, list[tuple[Node, Indices]]] = {}  # of every SCAN and CALL
        self.memo: Memo = {}
        self.chain, self.cost = chains(self.order)
        self.folded = folded(self.order)
        self.reads = reads(self.order)

    def run(self) -> Fusion:
        for n in reversed(self.order):
            demands = self.demands.pop(n, {})
            if n.op is ops.BUFFER or n.op is ops.ITEM:
                for reader in demands:
                    reader.reads.add(n)
            if n.op.group == "boundary":
                self.bound(n)
                continue
            if n not in self.roots and (n.op.group == "leaf" or not demands):
                continue  # nothing to compute, or nobody asks for it
            if n in self.in_place:
                self.overwrite(n)
                for reader in demands:
                    reader.reads.add(n)
                continue
            if n in self.found.sweeps:
                self.sweep(n)
                for reader in demands:
                    reader.reads.add(n)
                continue
            if n in self.found.inside and all(g.stream or g.sweep for g in demands):
                for user, uses in demands.items():
                    for demand in uses:
                        self.expand(user, n, demand)
                continue
            if n in self.carried and self.carry(n, demands):
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
        groups = _in_order(reversed(self.groups))
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
        plain = n.op.is_elementwise or n.op.is_movement or n.op in (ops.GATHER, ops.UPDATE)
        if group.root.op is ops.SCATTER and (n in self.roots or not plain):
            return None
        (demand,) = uses
        axes = axes_of(demand.at)
        if demand.opaque or demand.stored or not _bijective(demand.at, n.shape):
            return None
        if n.op in ops.REDUCTIONS:
            fits = group.contraction is None and group.rows in (None, frozenset(axes))
            inside = frozenset(axes) <= group.axes and demand.mask is TRUE
            if not (fits and inside and rows_pay(axes, n.inputs[0])):
                return None
            group.rows = frozenset(axes)
            return group, demand.at
        if n.op is ops.PREFIX:
            rows, carried = frozenset(_rows_of_prefix(n, demand.at)), _carried(n, demand.at)
            fits = group.rows in (None, rows) and group.prefix in (None, carried)
            whole = frozenset(axes) == group.axes and demand.mask is TRUE
            if not (fits and whole) or group.contraction is not None:
                return None
            group.rows, group.prefix = rows, carried
            return group, demand.at
        if n.op is ops.CONTRACT:
            whole = frozenset(axes) == group.axes and demand.mask is TRUE
            if not whole or group.rows is not None or group.contraction is not None:
                return None
            group.rows, group.contraction = frozenset(axes), n
            return group, demand.at
        if n.op is ops.SCATTER or self.cut(n) or _worked_on(n, demand):
            return None
        if self.repeats(n, group, demand):
            return None
        if n in self.roots and not (_visits(group, n, demand) or self.of_row(n, group, demand)):
            return None
        return group, demand.at

    def of_row(self, n: Node, group: Group, use: Demand) -> bool:
        """Whether a result made of reductions, such as a mean, is stored once per row of a kernel.

        If nothing has decided yet what the kernel's rows are, this does.
        """
        axes = frozenset(axes_of(use.at))
        if group.stream is not None:
            return axes < group.axes and use.mask is TRUE
        plain = use.mask is TRUE and n in self.folded and group.rows is None
        if not (plain and axes < group.axes and rows_pay(tuple(axes), group.root)):
            return False
        group.rows = axes
        return True

    def carry(self, n: Node, demands: dict[Group, list[Demand]]) -> bool:
        """Let the kernel that streams a softmax give its peak or total to those who ask for it."""
        group, at = self.carried[n]
        own = demands.get(group, [])
        if any(d.at != at or d.mask is not TRUE or d.opaque or d.stored for d in own):
            return False
        readers = [g for g in demands if g is not group]
        if self.feeds(readers, group):
            return False
        if readers or n in self.roots:
            group.also.append((n, at))
            self.stored.add(n)
        for reader in readers:
            reader.reads.add(n)
        return True

    def feeds(self, sources: Sequence[Group], group: Group) -> bool:
        """Whether a kernel needs something that one of the sources makes, in however many steps."""
        makers = {m: g for g in self.groups for m in (g.root, *(n for n, _ in g.also))}
        seen, stack = {group}, [group]
        while stack:
            new = {makers[n] for n in stack.pop().reads if n in makers} - seen
            seen |= new
            stack += new
        return not seen.isdisjoint(sources)

    def passed(self, n: Node, demands: dict[Group, list[Demand]]) -> tuple[Group, Indices] | None:
        """The kernel that computes the result `n` in several places, and visits it in one."""
        if not self.enabled or n not in self.roots or len(demands) != 1:
            return None
        ((group, uses),) = demands.items()
        if group.root.op is ops.SCATTER:
            return None
        visits = [use.at for use in uses if _visits(group, n, use)]
        return (group, visits[0]) if visits and self.recompute(n, demands) else None

    def cut(self, n: Node) -> bool:
        """Long chains are cut at fixed lengths, so that equal pieces become equal kernels."""
        return n.op.is_elementwise and self.chain[n] % MAX_CHAIN == 0

    def recompute(self, n: Node, demands: dict[Group, list[Demand]]) -> bool:
        """Whether evaluating `n` at every use is cheaper than storing it."""
        if n.op in ops.REDUCTIONS or n.op in (ops.CONTRACT, ops.SCATTER, ops.PREFIX):
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
        evaluations = sum(points(axes_of(d.at)) for _, d in uses) / max(1, count(n.shape))
        again = self.reads[n] / max(1, count(n.shape))
        return recompute_pays(evaluations, len(demands), self.cost[n], again)

    def repeats(self, n: Node, group: Group, use: Demand) -> bool:
        """Whether a kernel would compute `n` over and over along axes that `n` does not have."""
        if not n.op.is_elementwise or n in self.folded:
            return False
        axes = frozenset(axes_of(use.at))
        around = group.axes if axes <= group.axes else axes | (group.rows or group.axes)
        if all(a.extent in range(UNROLLED + 1) for a in around - axes):
            return False
        return not repetition_pays(points(around) - points(axes), self.cost[n])

    # ---- propagation
    def start(self, n: Node) -> None:
        """Give `n` a kernel of its own."""
        # What a scatter visits are its updates.
        visited = n.inputs[-1] if n.op is ops.SCATTER else n
        group = Group(n, iteration(visited.shape, "i", AxisKind.GRID))
        self.groups.append(group)
        self.stored.add(n)
        if n.op in ops.REDUCTIONS:
            group.rows = group.axes
        elif n.op is ops.CONTRACT:
            group.rows, group.contraction = group.axes, n
        elif n.op is ops.PREFIX:
            group.rows = frozenset(_rows_of_prefix(n, group.at))
            group.prefix = _carried(n, group.at)
        self.expand(group, n, Demand(group.at, TRUE))

    def bound(self, n: Node) -> None:
        """A SCAN or a CALL is a group of its own, between values that lie in memory."""
        if n.op is ops.ITEM:
            self.items.setdefault(n.inputs[0], []).append((n, ()))
            self.stored.add(n)
            return
        group = Group(n, (), also=self.items[n])
        self.groups.append(group)
        for i in n.inputs:
            self.demand(group, i, Demand((), TRUE, stored=True))

    def sweep(self, n: Node) -> None:
        """Give the contractions of a sweep one kernel, when the first of them is met."""
        if n in self.stored:
            return
        sweep = self.found.sweeps[n]
        at = sweep_index(sweep)
        group = Group(n, sweep_results(sweep, at)[n][0], contraction=n, sweep=sweep)
        group.rows = group.axes
        self.groups.append(group)
        for result, weights in zip(sweep.results, sweep.weights, strict=True):
            there, other, where = sweep_results(sweep, at)[result]
            self.stored.add(result)
            if result is not n:
                group.also.append((result, there))
            self.demand(group, weights, Demand(at, TRUE))
            self.demand(group, other, Demand(where, TRUE, operand=True))

    def overwrite(self, n: Node) -> None:
        """Give an update a kernel that visits only the elements it writes."""
        base, *where, value = n.inputs
        group = Group(n, iteration(value.shape, "i", AxisKind.GRID), in_place=True)
        self.groups.append(group)
        self.stored.add(n)
        # A value that reads what it overwrites is computed before the first write.
        slot = base.attr.slot if base.op is ops.BUFFER else None
        below = topological([*where, value])
        reads = any(m is base or (m.op is ops.BUFFER and m.attr.slot == slot) for m in below)
        self.demand(group, value, Demand(group.at, TRUE, stored=reads))
        for i in where:
            self.demand(group, i, Demand(scattered_index(n, group.at), TRUE, stored=reads))
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
        elif n.op is ops.PREFIX:
            for i in n.inputs:
                self.demand(group, i, Demand(use.at, use.mask))
        elif n.op is ops.CONTRACT:
            summed = summed_labels(n)
            loops = dict(zip(summed, self.fresh(tuple(summed.values())), strict=True))
            indices = contraction_index(n, use.at, loops)
            stream = self.found.streams.get(n)
            for side, (i, at) in enumerate(zip(n.inputs, indices, strict=True)):
                if stream is not None and side == stream.side:
                    group.stream, group.streamed_at = stream, use.at
                    rows = (*at[: stream.axis], *at[stream.axis + 1 :])
                    self.carried |= dict.fromkeys((stream.peak, stream.total), (group, rows))
                    self.demand(group, stream.scores, Demand(at, use.mask))
                else:
                    self.demand(group, i, Demand(at, use.mask, operand=True))
        elif n.op is ops.GATHER:
            x, *where = n.inputs
            first = n.attr[0]
            self.demand(group, x, Demand((), use.mask, opaque=True))
            for i in where:
                at = use.at[first : first + len(i.shape)]
                self.demand(group, i, Demand(at, use.mask))
        elif n.op is ops.UPDATE:
            found, condition = placed(use.at, n.attr, n.inputs[1].shape)
            at = tuple(simplify(i, self.memo) for i in found)
            inside = simplify(both(use.mask, condition), self.memo)
            self.demand(group, n.inputs[0], Demand(use.at, use.mask))
            self.demand(group, n.inputs[1], Demand(at, inside))
        elif n.op is ops.SCATTER:
            base, *where, updates = n.inputs
            self.demand(group, base, Demand(self.fresh(n.shape), use.mask))
            for i in where:
                self.demand(group, i, Demand(scattered_index(n, use.at), use.mask))
            self.demand(group, updates, Demand(use.at, use.mask))

    def demand(self, group: Group, n: Node, new: Demand) -> None:
        uses = self.demands.setdefault(n, {}).setdefault(group, [])
        if new not in uses:
            uses.append(new)

    def fresh(self, extents: Shape) -> Indices:
        self.loops += 1
        return iteration(extents, f"k{self.loops}_", AxisKind.LOOP)


def _in_order(groups: Iterable[Group]) -> list[Group]:
    """The groups, each after those that make what it reads."""
    waiting = list(groups)
    makers = {m: g for g in waiting for m in (g.root, *(n for n, _ in g.also))}
    needs = {g: {makers[n] for n in g.reads if n in makers} - {g} for g in waiting}
    result: list[Group] = []
    done: set[Group] = set()
    while waiting:
        following = next(g for g in waiting if needs[g] <= done)
        waiting.remove(following)
        result.append(following)
        done.add(following)
    return result


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
            or group.root.op in (ops.SCATTER, ops.SCAN, ops.CALL)
        )
        position = None
        if not alone:
            first = max((ready[n] + 1 for n in group.reads if n in ready), default=0)
            for at in by_shape.get((group.at, group.rows), ()):
                if at >= first and joins(result[at], group):
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
            host.prefix = host.prefix or group.prefix
        for n in (group.root, *(m for m, _ in group.also)):
            ready[n] = position
    return result


def _rows_of_prefix(n: Node, at: Indices) -> list[Axis]:
    """The axes along which a PREFIX is computed independently."""
    return axes_of(i for d, i in enumerate(at) if d != n.attr.axis)


def _carried(n: Node, at: Indices) -> Carried:
    return Carried(n.inputs, replace(n.attr, item=0), at)


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
        if n.op not in (ops.UPDATE, ops.SCATTER):
            continue
        base, *others = n.inputs
        inner = base in chosen and base not in roots
        if base in others:  # it would be read while it is overwritten
            continue
        if not inner and not (base.op is ops.BUFFER and _owned(base, donated)):
            continue
        below = set(topological(others))
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
