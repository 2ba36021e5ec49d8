"""Groups together: the order of kernels, kernels side by side, and updates in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genesis.compiler.cost import joins
from genesis.compiler.groups import Group, is_row_major
from genesis.ir import ops
from genesis.ir.node import Node, topological


def in_order(groups: Iterable[Group]) -> list[Group]:
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


def side_by_side(groups: Sequence[Group]) -> list[Group]:
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


def in_place(
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
