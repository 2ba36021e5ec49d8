"""Fuse: decide which values are stored, and which are computed where they are used.

The pass walks the graph from its results towards its inputs. Every value carries *demands*: the
kernels that read it, each with the index at which an element is read, written with that kernel's
axes. When all users of a value have been seen, one decision is taken: compute it inside the
kernels that demand it, or give it a kernel of its own. Because demands carry indices, the pass
sees through any movement: a row maximum demanded by a softmax depends on the row axis only, so it
can be computed once per row inside the same kernel, however it was reshaped and broadcast.

What decides is the cost model, `genesis.compiler.fuse.cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from genesis.compiler.chip_passes import Fusing
from genesis.compiler.fuse import cost
from genesis.compiler.fuse.access_patterns import (
    Demand,
    bijective,
    in_few_columns,
    in_pieces,
    in_sum,
    is_few_rows,
    is_framed,
    of_columns,
    rounded_once,
    rows_of_prefix,
    visits,
)
from genesis.compiler.fuse.column_sums import with_column_sums
from genesis.compiler.fuse.concatenation import between, pieces
from genesis.compiler.fuse.conversions import (
    is_computed,
    is_decoded,
    is_near_bytes,
    of_bytes,
    of_halves,
    to_halves,
)
from genesis.compiler.fuse.gate_epilogues import Gates
from genesis.compiler.fuse.groups import (
    Carried,
    FusionGroup,
    axes_of,
    contraction_index,
    gradients_index,
    gradients_results,
    iteration,
    reduced_index,
    scattered_index,
    summed_labels,
    written_where,
)
from genesis.compiler.fuse.horizontal import along_rows, in_order, in_place, side_by_side
from genesis.compiler.fuse.online_softmax import Found, find
from genesis.compiler.graph.gpu.pad_rows import is_end
from genesis.compiler.lower.movement import Indices, Memo, placed, source
from genesis.ir import ops
from genesis.ir.index import simplify
from genesis.ir.kernel import AxisKind
from genesis.ir.node import TRUE, Node, Shape, both, topological

#: What fusion may do wherever the kernels run.
ON_ANY_CHIP = Fusing()


@dataclass(frozen=True)
class Fusion:
    """The decisions: groups in an order that respects dependencies, and what is stored."""

    groups: tuple[FusionGroup, ...]
    stored: frozenset[Node]


def fuse(
    roots: Sequence[Node],
    donated: frozenset[int] = frozenset(),
    enabled: bool = True,
    fusing: Fusing = ON_ANY_CHIP,
) -> Fusion:
    """Group the graph below `roots` into kernels. Disabled, every operation is its own kernel.

    Updates of the buffers in the `donated` slots are done in place where nothing else reads them.
    `fusing` says what the chip lets it do besides.
    """
    fusion = _Fuser(roots, donated, enabled, fusing).run()
    if not enabled:
        return fusion
    groups, stored = fusion.groups, set(fusion.stored)
    if fusing.sum_columns_along:
        groups = tuple(with_column_sums(groups, stored, frozenset(roots)))
    if fusing.reduce_rows_along:
        groups = tuple(along_rows(groups))
    return Fusion(groups, frozenset(stored))


class _Fuser:
    def __init__(
        self, roots: Sequence[Node], donated: frozenset[int], enabled: bool, fusing: Fusing
    ) -> None:
        self.order = topological(roots)
        self.roots = frozenset(roots)
        self.in_place = in_place(self.order, self.roots, donated)
        self.found = Found({}, {}, {})
        if enabled:
            self.found = find(self.order, self.roots, fusing.convert_gradients)
        self.carried: dict[
            Node, tuple[FusionGroup, Indices]
        ] = {}  # what streams carry besides the sum
        self.enabled, self.fusing = enabled, fusing
        self.demands: dict[Node, dict[FusionGroup, list[Demand]]] = {}
        self.groups: list[FusionGroup] = []
        self.stored: set[Node] = set()
        self.loops = 0
        self.items: dict[Node, list[tuple[Node, Indices]]] = {}  # of every SCAN and CALL
        self.memo: Memo = {}
        self.chain, self.cost = cost.chains(self.order, columns=fusing.share_along_columns)
        self.folded = cost.folded(self.order)
        self.contracted = cost.contracted(self.order)
        self.reads = cost.reads(self.order)
        self.gates = Gates(self.order, self.roots, self.cost, fusing.finish_products)
        streamed = {m for s in self.found.softmaxes.values() for m in (s.peak, s.total)}
        sums = {n for n in self.order if n.op in ops.REDUCTIONS or n.op is ops.CONTRACT}
        self.finished = cost.epilogue(self.order, sums - streamed)  # by the kernel of a sum

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
            if n in self.found.gradients:
                self.gradients(n)
                for reader in demands:
                    reader.reads.add(n)
                continue
            within = [g for g in demands if n in g.inside]
            for group in within:
                for demand in demands.pop(group):
                    self.expand(group, n, demand)
            if within and not demands and n not in self.roots:
                continue
            if n in self.carried and self.carry(n, demands):
                continue
            found = self.home(n, demands) or self.passed(n, demands) or self.given(n, demands)
            found = found or self.shared(n, demands)
            if found is not None:
                group, at = found
                for demand in demands[group]:
                    self.expand(group, n, demand)
                if n in self.roots or len(demands) > 1:
                    group.also.append((n, at))
                    self.stored.add(n)
                for reader in demands.keys() - {group}:
                    reader.reads.add(n)
            elif n in self.roots or not self.recompute(n, demands):
                self.start(n)
                for reader in demands:
                    reader.reads.add(n)
            else:
                for user, uses in demands.items():
                    for demand in uses:
                        self.expand(user, n, demand)
        groups = in_order(reversed(self.groups))
        if self.enabled:
            groups = side_by_side(groups)
        return Fusion(tuple(groups), frozenset(self.stored))

    # ---- decisions
    def home(
        self, n: Node, demands: dict[FusionGroup, list[Demand]]
    ) -> tuple[FusionGroup, Indices] | None:
        """The one kernel that can compute `n` exactly once per element, and its index there."""
        if not self.enabled or len(demands) != 1:
            return None
        ((group, uses),) = demands.items()
        if len(uses) != 1 or group.nodes >= cost.MAX_NODES:
            return None
        plain = n.op.is_elementwise or n.op.is_movement or n.op in (ops.GATHER, ops.UPDATE)
        if group.root.op is ops.SCATTER and (n in self.roots or not plain):
            return None
        (demand,) = uses
        axes = axes_of(demand.at)
        if demand.opaque or demand.stored or not bijective(demand.at, n.shape):
            return None
        if n.op in ops.REDUCTIONS:
            fits = group.contraction is None and group.rows in (None, frozenset(axes))
            inside = frozenset(axes) <= group.axes and demand.mask is TRUE
            if not (fits and inside and cost.rows_pay(axes, n.inputs[0], group.axes)):
                return None
            apart = frozenset(axes) < group.axes and (of_columns(n) or in_pieces(n))
            if self.fusing.column_reductions_apart and (apart or in_few_columns(n, group)):
                return None
            group.rows = frozenset(axes)
            return group, demand.at
        if n.op is ops.PREFIX:
            rows, carried = frozenset(rows_of_prefix(n, demand.at)), _carried(n, demand.at)
            fits = group.rows in (None, rows) and group.prefix in (None, carried)
            whole = frozenset(axes) == group.axes and demand.mask is TRUE
            if not (fits and whole) or group.contraction is not None:
                return None
            group.rows, group.prefix = rows, carried
            return group, demand.at
        if n.op is ops.CONTRACT:
            whole = frozenset(axes) == group.axes and group.rows is None
            fits = demand.mask is TRUE and group.contraction is None
            if n in self.found.softmaxes:  # streamed by rows that are an axis, and not its digits
                fits = fits and all(i.op in (ops.AXIS, ops.CONST) for i in demand.at)
            if not fits or not (whole or in_sum(n, group, demand.at)):
                return None
            group.rows, group.contraction = group.rows or frozenset(axes), n
            return group, demand.at
        if n.op is ops.SCATTER or self.cut(n) or self.worked_on(n, group, demand):
            return None
        if self.gates.apart(n, group.root):
            return None
        if self.repeats(n, group, demand):
            return None
        if n in self.roots and not (visits(group, n, demand) or self.of_row(n, group, demand)):
            return None
        return group, demand.at

    def of_row(self, n: Node, group: FusionGroup, use: Demand) -> bool:
        """Whether a result made of reductions, such as a mean, is stored once per row of a kernel.

        If nothing has decided yet what the kernel's rows are, this does.
        """
        axes = frozenset(axes_of(use.at))
        if group.softmax is not None:
            rows = axes_of(self.carried[group.softmax.peak][1])
            return axes == frozenset(rows) and use.mask is TRUE and n in self.folded
        plain = use.mask is TRUE and n in self.folded and group.rows is None
        if not (plain and axes < group.axes and cost.rows_pay(tuple(axes), group.root)):
            return False
        leading = frozenset(axes_of(group.at)[: len(axes)])
        large = cost.count(group.root.shape) > cost.SMALL
        if self.fusing.column_reductions_apart and axes != leading and large:
            return False  # few blocks, each with some columns, would go through everything
        group.rows = axes
        return True

    def carry(self, n: Node, demands: dict[FusionGroup, list[Demand]]) -> bool:
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

    def feeds(self, sources: Sequence[FusionGroup], group: FusionGroup) -> bool:
        """Whether a kernel needs something that one of the sources makes, in however many steps."""
        makers = {m: g for g in self.groups for m in (g.root, *(n for n, _ in g.also))}
        seen, stack = {group}, [group]
        while stack:
            new = {makers[n] for n in stack.pop().reads if n in makers} - seen
            seen |= new
            stack += new
        return not seen.isdisjoint(sources)

    def passed(
        self, n: Node, demands: dict[FusionGroup, list[Demand]]
    ) -> tuple[FusionGroup, Indices] | None:
        """The kernel that computes the result `n` in several places, and visits it in one."""
        if not self.enabled or n not in self.roots or len(demands) != 1:
            return None
        ((group, uses),) = demands.items()
        if group.root.op is ops.SCATTER:
            return None
        found = [use.at for use in uses if visits(group, n, use)]
        return (group, found[0]) if found and self.recompute(n, demands) else None

    def given(
        self, n: Node, demands: dict[FusionGroup, list[Demand]]
    ) -> tuple[FusionGroup, Indices] | None:
        """The kernel that needs a reduction of what it reads anyway, and can give it to others.

        Where a chip's kernels store for others, so it is with anything that is stored in any case.
        """
        reduces = n.op in ops.REDUCTIONS
        stores = self.fusing.store_for_others and n.op.is_elementwise
        if len(demands) < 2 or not (reduces or stores):
            return None
        if not reduces and self.recompute(n, demands):
            return None
        for group, uses in demands.items():
            plain = group.contraction is None and group.root.op is not ops.SCATTER
            if not reduces and not (plain and all(visits(group, n, use) for use in uses)):
                continue
            others = [g for g in demands if g is not group]
            if not self.feeds(others, group) and (found := self.home(n, {group: uses})):
                return found
        return None

    def shared(
        self, n: Node, demands: dict[FusionGroup, list[Demand]]
    ) -> tuple[FusionGroup, Indices] | None:
        """The one kernel that those become that need `n` where they are, instead of storing it."""
        if not self.enabled or len(demands) < 2 or not n.op.is_elementwise:
            return None
        if n not in self.roots and self.recompute(n, demands):
            return None
        group, *others = demands
        here = [Demand(group.at, TRUE)]
        for g, uses in demands.items():
            plain = g.rows is None and not g.in_place and g.root.op is not ops.SCATTER
            rest = [h for h in demands if h is not g]
            if not plain or g.at != group.at or uses != here or self.feeds(rest, g):
                return None
        if not all(cost.joins(group, guest) for guest in others):
            return None
        for guest in others:
            group.take(guest)
            self.groups.remove(guest)
            del demands[guest]
            for m, waiting in self.demands.items():
                for use in waiting.pop(guest, ()):
                    self.demand(group, m, use)
        return self.home(n, demands)

    def cut(self, n: Node) -> bool:
        """Long chains are cut at fixed lengths, so that equal pieces become equal kernels."""
        return n.op.is_elementwise and self.chain[n] % cost.MAX_CHAIN == 0

    def recompute(self, n: Node, demands: dict[FusionGroup, list[Demand]]) -> bool:
        """Whether evaluating `n` at every use is cheaper than storing it."""
        if n.op in (ops.CONTRACT, ops.SCATTER, ops.PREFIX):
            return False
        if n.op in ops.REDUCTIONS:
            return self.by_every_row(n, demands)
        if n.op is ops.UPDATE and not self.enabled:
            return False
        uses = [(g, d) for g, ds in demands.items() for d in ds]
        if any(d.stored or self.worked_on(n, g, d) or self.gates.apart(n, g.root) for g, d in uses):
            return False
        if n.op.is_movement:
            # Padding is a mask, and one that depends on data is hard to prove things with.
            return n.op is not ops.PAD or not any(d.opaque for _, d in uses)
        if any(d.opaque for _, d in uses):
            return False
        if not self.enabled or self.cut(n) or any(g.nodes >= cost.MAX_NODES for g, _ in uses):
            return False
        if n.op is ops.CAST and self.fusing.round_operands_first and rounded_once(n, uses):
            return False
        if n.op is ops.CAST:
            halves = self.fusing.widen_where_used and of_halves(n)
            if of_bytes(n.inputs[0]) or halves:
                return True  # if it must lie in memory, then narrow
        if n.op.is_elementwise and n.dtype.itemsize > 1 and is_near_bytes(n):
            return True
        if any(self.repeats(n, g, d) for g, d in uses):
            return False
        evaluations = sum(cost.points(axes_of(d.at)) for _, d in uses) / max(1, cost.count(n.shape))
        if evaluations > 1 and n in self.contracted and all(g.rows is None for g in demands):
            return False  # where it is summed it is made once, and stored instead of the sum
        if self.fusing.repeat_in_kernel and len(demands) == 1 and evaluations <= 2:
            return True
        again = self.reads[n] / max(1, cost.count(n.shape))
        if cost.recompute_pays(evaluations, len(demands), self.cost[n], again):
            return True
        if not self.fusing.launch_price or n in self.finished:
            return False
        extra = int((evaluations - 1) * cost.count(n.shape))
        return not cost.launch_pays(self.fusing.launch_price, extra, self.cost[n], again)

    def by_every_row(self, n: Node, demands: dict[FusionGroup, list[Demand]]) -> bool:
        """Whether each row of the kernels that need a reduction reduces so few numbers for itself.

        That of a norm, where what is normalised is looked at in groups.
        """
        launch = self.fusing.launch_price
        if not (self.enabled and launch):
            return False
        rows = 0
        for group, uses in demands.items():
            outer = frozenset(a for d in uses for a in axes_of(d.at))
            plain = all(d.mask is TRUE and not (d.opaque or d.stored) for d in uses)
            if group.contraction is not None or group.rows is None or not outer < group.rows:
                return False
            if not plain or group.nodes >= cost.MAX_NODES:
                return False
            rows += cost.points(group.rows)
        whole = n.inputs[0]
        each = cost.count(whole.shape) // max(1, cost.count(n.shape))
        return not cost.launch_pays(
            launch, rows * each, cost.arithmetic(whole, self.finished), 1 / 4
        )

    def repeats(self, n: Node, group: FusionGroup, use: Demand) -> bool:
        """Whether a kernel would compute `n` over and over along axes that `n` does not have."""
        if not n.op.is_elementwise or n in self.folded:
            return False
        axes = frozenset(axes_of(use.at))
        around = group.axes if axes <= group.axes else axes | (group.rows or group.axes)
        if all(a.extent in range(cost.UNROLLED + 1) for a in around - axes):
            return False
        return not cost.repetition_pays(cost.points(around) - cost.points(axes), self.cost[n])

    def worked_on(self, n: Node, group: FusionGroup, use: Demand) -> bool:
        """Whether a contraction would redo arithmetic on its operand for every tile it is read for.

        Making it wider is little work, and so is taking bytes apart, or putting them together from
        parts of fewer: less than reading more of them. Keys and values are decoded in the kernel
        that streams them, whatever that takes. Ends that make rows even lie in memory (see
        `genesis.compiler.graph.gpu.pad_rows`), and so do few rows that are laid out of windows.
        """
        if use.operand and self.fusing.store_padded_operands and is_end(n):
            return True
        if use.operand and self.fusing.store_few_rows and (is_few_rows(n) or is_framed(n, use)):
            return True
        if not use.operand or not n.op.is_elementwise or not self.reads[n]:
            return False
        if n.op is ops.CAST:
            rounds = self.fusing.round_operands_first and to_halves(n)
            if rounds and is_computed(n.inputs[0]):
                return True
            return n.dtype.itemsize == 1 < n.inputs[0].dtype.itemsize
        if group.softmax is not None and is_decoded(n):
            return False
        apart = n.op in (ops.AND, ops.XOR, ops.SHL, ops.SHR, ops.BITCAST, ops.LOOKUP)
        together = n.op is ops.OR and cost.sources(n) < cost.count(n.shape)
        return not ((apart or together) and n.dtype.itemsize == 1)

    # ---- propagation
    def start(self, n: Node) -> None:
        """Give `n` a kernel of its own."""
        parts = pieces(n) if self.enabled else ()
        # What a scatter visits are its updates.
        visited = n.inputs[-1] if n.op is ops.SCATTER else parts[0].inputs[0] if parts else n
        group = FusionGroup(n, iteration(visited.shape, "i", AxisKind.GRID))
        self.groups.append(group)
        self.stored.add(n)
        if parts:
            group.pieces, group.inside = {n: parts}, between(n, parts)
            for pad in parts:
                self.demand(group, pad.inputs[0], Demand(group.at, TRUE))
            return
        if n.op in ops.REDUCTIONS:
            group.rows = group.axes
        elif n.op is ops.CONTRACT:
            group.rows, group.contraction = group.axes, n
        elif n.op is ops.PREFIX:
            group.rows = frozenset(rows_of_prefix(n, group.at))
            group.prefix = _carried(n, group.at)
        self.expand(group, n, Demand(group.at, TRUE))

    def bound(self, n: Node) -> None:
        """A SCAN or a CALL is a group of its own, between values that lie in memory."""
        if n.op is ops.ITEM:
            self.items.setdefault(n.inputs[0], []).append((n, ()))
            self.stored.add(n)
            return
        group = FusionGroup(n, (), also=self.items[n])
        self.groups.append(group)
        for i in n.inputs:
            self.demand(group, i, Demand((), TRUE, stored=True))

    def gradients(self, n: Node) -> None:
        """Give the contractions of attention backward one kernel, when the first of them is met."""
        if n in self.stored:
            return
        gradients = self.found.gradients[n]
        at = gradients_index(gradients)
        results = gradients_results(gradients, at)
        contraction = gradients.results[gradients.stored.index(n)]
        group = FusionGroup(
            n, results[contraction][0], contraction=contraction, gradients=gradients
        )
        group.inside = self.found.inside[n]
        group.rows = group.axes
        self.groups.append(group)
        for k, (result, weights) in enumerate(
            zip(gradients.results, gradients.weights, strict=True)
        ):
            there, other, where = results[result]
            self.stored.add(gradients.stored[k])
            if gradients.stored[k] is not n:
                group.also.append((gradients.stored[k], there))
            self.demand(group, weights, Demand(at, TRUE))
            self.demand(group, other, Demand(where, TRUE, operand=True))

    def overwrite(self, n: Node) -> None:
        """Give an update a kernel that visits only the elements it writes."""
        base, *where, value = n.inputs
        group = FusionGroup(n, iteration(value.shape, "i", AxisKind.GRID), in_place=True)
        self.groups.append(group)
        self.stored.add(n)
        # A value that reads what it overwrites is computed before the first write.
        slot = base.attr.slot if base.op is ops.BUFFER else None
        made = written_where(n)
        below = topological([*where, *made])
        reads = any(m is base or (m.op is ops.BUFFER and m.attr.slot == slot) for m in below)
        for x in made:
            self.demand(group, x, Demand(group.at if x.shape else (), TRUE, stored=reads))
        for i in where:
            self.demand(group, i, Demand(scattered_index(n, group.at), TRUE, stored=reads))
        self.demand(group, base, Demand((), TRUE, stored=True))

    def expand(self, group: FusionGroup, n: Node, use: Demand) -> None:
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
            stream = self.found.softmaxes.get(n)
            for side, (i, at) in enumerate(zip(n.inputs, indices, strict=True)):
                if stream is not None and side == stream.side:
                    group.softmax, group.streamed_at = stream, use.at
                    group.inside = self.found.inside[n]
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

    def demand(self, group: FusionGroup, n: Node, new: Demand) -> None:
        uses = self.demands.setdefault(n, {}).setdefault(group, [])
        if new not in uses:
            uses.append(new)

    def fresh(self, extents: Shape) -> Indices:
        self.loops += 1
        return iteration(extents, f"k{self.loops}_", AxisKind.LOOP)


def _carried(n: Node, at: Indices) -> Carried:
    return Carried(n.inputs, replace(n.attr, item=0), at)
