"""Groups together: the order of kernels, kernels side by side, and updates in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from genesis.compiler.fuse.cost import joins, row_joins
from genesis.compiler.fuse.groups import FusionGroup, is_row_major, iteration
from genesis.compiler.lower.movement import source
from genesis.ir import ops
from genesis.ir.kernel import AxisKind
from genesis.ir.node import Node, Shape, topological


def in_order(groups: Iterable[FusionGroup]) -> list[FusionGroup]:
    """The groups, each after those that make what it reads.

    An update in place also comes after all that read what it overwrites. Where that cannot be, it
    comes too early; whoever lowers the groups sees it (`spoiled`).
    """
    waiting = list(groups)
    makers = {m: g for g in waiting for m in g.made}
    needs = {g: {makers[n] for n in g.reads if n in makers} - {g} for g in waiting}
    readers: dict[Node | int, set[FusionGroup]] = {}
    for g in waiting:
        for n in g.reads:
            readers.setdefault(n.attr.slot if n.op is ops.BUFFER else n, set()).add(g)
    after = dict(needs)
    for g in waiting:
        if g.in_place:
            base = g.root.inputs[0]
            gone = base.attr.slot if base.op is ops.BUFFER else base
            after[g] = needs[g] | readers.get(gone, set()) - {g}
    result: list[FusionGroup] = []
    done: set[FusionGroup] = set()
    while waiting:
        following = next((g for g in waiting if after[g] <= done), None)
        following = following or next(g for g in waiting if needs[g] <= done)
        waiting.remove(following)
        result.append(following)
        done.add(following)
    return result


def side_by_side(groups: Sequence[FusionGroup]) -> list[FusionGroup]:
    """Join independent kernels over the same elements.

    An optimizer's many small updates become one launch, two reductions of one array share a pass
    over it. A kernel joins an earlier one if everything it reads is there before that one starts.
    """
    ready: dict[Node, int] = {}  # stored value -> the position of the group that makes it
    result: list[FusionGroup] = []
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
            result[position].take(group)
        for n in group.made:
            ready[n] = position
    return result


def along_rows(groups: Sequence[FusionGroup]) -> list[FusionGroup]:
    """Join reductions of rows to kernels that visit the same rows, element by element.

    Whatever such a kernel does with a row, the reduction finds the row in a cache. Whichever is the
    later one joins the other, if everything it reads is there before that one starts.
    """
    result = list(groups)
    places = {g: k for k, g in enumerate(groups)}
    readers: dict[Node, list[FusionGroup]] = {}
    for group in groups:
        for n in group.reads:
            readers.setdefault(n, []).append(group)
    for guest in groups:
        if guest.rows is None or guest.rows != guest.axes:
            continue
        beside = {g for n in guest.reads for g in readers[n]}
        for host in sorted(beside & places.keys(), key=places.__getitem__):
            if not (_reduces_rows(guest, host) and row_joins(host, guest)):
                continue
            first, second = sorted(map(result.index, (host, guest)))
            made = {n for g in result[first:second] for n in g.made}
            if result[second].reads.isdisjoint(made):
                result[first] = host
                del result[second], places[guest]
                host.rows = guest.rows
                host.take(guest)
                for n in guest.reads:
                    readers[n].append(host)
                break
    return result


def _reduces_rows(guest: FusionGroup, host: FusionGroup) -> bool:
    """Whether one group reduces, and does nothing else with, the rows that another visits."""
    whole = _visited(host)
    if host.at[:-1] != guest.at or host.axes <= guest.axes:
        return False
    if host.rows not in (None, guest.rows) or not (_in_order(guest) and _in_order(host)):
        return False
    reductions = [n for n in guest.computed if n.op in ops.REDUCTIONS]
    return all(n.attr == (len(whole) - 1,) and n.inputs[0].shape == whole for n in reductions)


def _visited(group: FusionGroup) -> Shape:
    """The shape of what a group goes through: if it is a scatter, of its updates."""
    return (group.root.inputs[-1] if group.root.op is ops.SCATTER else group.root).shape


def _in_order(group: FusionGroup) -> bool:
    """Whether a group visits the elements of each row as they lie in memory."""
    own = [n for n in group.computed if n is not group.root or not _scatters_rows(n)]
    return not group.column_sums and group.in_order(own, ops.GATHER)


def _scatters_rows(n: Node) -> bool:
    """Whether a scatter writes every row of its updates into the same row of its result."""
    if n.op is not ops.SCATTER:
        return False
    _, *where, updates = n.inputs
    indexed, last = n.attr[0], len(n.shape) - 1
    if updates.shape[:last] != n.shape[:last]:
        return False
    places = dict(zip(indexed, where, strict=True))
    return last in places and all(_counts(places[d], d) for d in indexed if d != last)


def _counts(index: Node, axis: int) -> bool:
    """Whether an index is its own position along an axis."""
    every = at = iteration(index.shape, "e", AxisKind.LOOP)
    while index.op.is_movement:
        at, _ = source(index, at, {})
        index = index.inputs[0]
    return index.op is ops.IOTA and index.attr is None and at == (every[axis],)


def in_place(
    order: Sequence[Node], roots: frozenset[Node], donated: frozenset[int]
) -> frozenset[Node]:
    """The updates that may write into their base: results whose old value nobody needs.

    The base is a donated buffer or such an update itself, and only the update and what it is made
    of read it. That may be read by others, too: they must come before the update.
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


def spoiled(
    groups: Sequence[FusionGroup], reads: Sequence[Sequence[Node]], slots: Mapping[Node, int]
) -> set[int]:
    """The slots of which an older value is read when a newer one has been written into them.

    `reads` gives what each group reads and writes, `slots` where updates in place are written.
    """
    latest: dict[int, Node] = {}
    found: set[int] = set()
    for group, nodes in zip(groups, reads, strict=True):
        if group.in_place:
            base, slot = group.root.inputs[0], slots[group.root]
            if latest.get(slot) is not (None if base.op is ops.BUFFER else base):
                found.add(slot)
            latest[slot] = group.root
        for n in nodes:
            if n.op is ops.BUFFER and n.attr.slot in latest:
                found.add(n.attr.slot)
            elif n in slots and latest.get(slots[n]) is not n:
                found.add(slots[n])
    return found


def _owned(n: Node, donated: frozenset[int]) -> bool:
    """Whether a leaf is a donated buffer in plain row-major layout."""
    return n.attr.slot in donated and is_row_major(n)
