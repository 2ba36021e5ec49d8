"""Column sums: sums down the columns of what a kernel goes through row by row anyway.

The gradient of a norm goes through the rows of its input and of the gradient it is given; those of
its weight and its bias are sums of the same over all rows. In a kernel of their own they would read
everything again. So they join the kernel that goes through the rows: it keeps a total for every
column, to which every row adds. The gradient of a bias joins the kernel that makes what it sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from genesis.compiler.fuse.cost import MAX_NODES, column_sums_pay, count
from genesis.compiler.fuse.groups import FusionGroup, axes_of
from genesis.ir import ops
from genesis.ir.kernel import Axis
from genesis.ir.node import Node, topological
from genesis.ir.size import Dim, product


def with_column_sums(
    groups: Sequence[FusionGroup], stored: set[Node], roots: frozenset[Node]
) -> list[FusionGroup]:
    """Join groups that sum columns to others that go through the same rows.

    What was `stored` for those sums alone no longer is.
    """
    result = list(groups)
    for guest in groups:
        sums = _sums(guest)
        host = _host(result, guest, sums) if sums else None
        if host is None:
            continue
        result.remove(guest)
        host.rows = _rows(host, sums[0])
        host.column_sums += sums
        host.columns += [*reversed(guest.also), (guest.root, guest.at)]
        host.reads |= guest.reads - host.made
        host.nodes += guest.nodes
        for user in [g for g in result if _uses(result, g, host)]:
            result.remove(user)
            host.also = [*user.also, (host.root, host.at), *host.also]
            host.root = user.root
            host.column_sums += user.column_sums
            host.columns += user.columns
            host.reads |= user.reads - host.made
            host.nodes += user.nodes
        needed = roots.union(*(g.reads for g in result))
        stored -= {n for n, _ in host.also if n not in needed}
        host.also = [(n, at) for n, at in host.also if n in needed]
    return result


def _uses(groups: Sequence[FusionGroup], user: FusionGroup, host: FusionGroup) -> bool:
    """Whether a group works on what another makes, element by element, and needs nothing later.

    It would be part of it already, had the sums not asked for the same.
    """
    if user is host or user.at != host.at or user.reads.isdisjoint(host.made):
        return False
    fits = user.nodes + host.nodes <= MAX_NODES and (not user.column_sums or user.rows == host.rows)
    reduces = any(n.op in ops.REDUCTIONS and n not in user.column_sums for n in user.computed)
    if not fits or reduces or not user.in_order(user.computed):
        return False
    assert host.rows is not None
    few = column_sums_pay(host.rows, [*host.column_sums, *user.column_sums])
    return few and _ready(_makers(groups), user, host) < groups.index(host)


def _ready(makers: Mapping[Node, int], group: FusionGroup, host: FusionGroup) -> int:
    """The place of the last maker of what a group needs, besides what a host has at an element."""
    needed = group.reads - {host.root, *(n for n, _ in host.also)}
    return max((makers.get(n, -1) for n in needed), default=-1)


def _makers(groups: Sequence[FusionGroup]) -> dict[Node, int]:
    """The place of the group that makes a value."""
    return {n: k for k, g in enumerate(groups) for n in g.made}


def _sums(group: FusionGroup) -> list[Node]:
    """The sums that a group is made of, if all are of columns and over the same rows."""
    if group.rows != group.axes or not group.plain or group.root.op is ops.SCATTER:
        return []
    sums = [n for n in group.computed if n.op in ops.REDUCTIONS]
    for n in sums:
        leading = n.op is ops.SUM and n.attr == tuple(range(len(n.attr)))
        below = topological(n.inputs, lambda m: () if m in group.reads else m.inputs)
        if not leading or _extents(n) != _extents(sums[0]) or not set(sums).isdisjoint(below):
            return []
    return sums


def _host(
    groups: Sequence[FusionGroup], guest: FusionGroup, sums: Sequence[Node]
) -> FusionGroup | None:
    """The group that goes through most of what is summed, and can do the sums, too."""
    own, whole = guest.made, count(sums[0].inputs[0].shape)
    summed = {n for n in guest.reads if count(n.shape) == whole}
    users = (k for k, g in enumerate(groups) if not own.isdisjoint(g.reads))
    makers = _makers(groups)
    made = Counter(makers[n] for n in summed if n in makers)
    best, most = None, 0
    for k, host in enumerate(groups[: next(users, None)]):
        shared = len(summed & host.reads) + made[k]
        in_time = shared > most and _ready(makers, guest, host) < k
        if in_time and host is not guest and _goes_through(host, sums):
            best, most = host, shared
    return best


def _goes_through(host: FusionGroup, sums: Sequence[Node]) -> bool:
    """Whether a group can visit the rows of sums one by one, each as it lies in memory."""
    rows = _rows(host, sums[0])
    if rows is None or host.rows not in (None, rows) or not host.in_order(host.computed):
        return False
    return column_sums_pay(rows, [*host.column_sums, *sums])


def _rows(host: FusionGroup, total: Node) -> frozenset[Axis] | None:
    """The axes of a group that count the rows of a sum, where the others count its columns."""
    shape, wanted = host.root.shape, _extents(total)
    for d in range(1, len(shape)):
        if (product(shape[:d]), product(shape[d:])) == wanted:
            return frozenset(axes_of(host.at[:d]))
    return None


def _extents(total: Node) -> tuple[Dim, Dim]:
    """How many rows a sum is over, and how many columns there are."""
    return product(total.inputs[0].shape[: len(total.attr)]), product(total.shape)
