"""Recognise: groups that differ only in what they read are lowered once.

The layers of a network are one computation on different arrays. So a group is made *anonymous*: the
stored values, inputs and scalars it reads become leaves numbered in the order they are met. Nodes
are hash-consed, hence two groups of equal structure become the same node, and a dictionary finds
the kernel. What is left to do for every layer is renaming.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from genesis.compiler.fuse.groups import Group
from genesis.compiler.lower.lower import Lowered, lower
from genesis.compiler.lower.movement import Memo
from genesis.ir import ops
from genesis.ir.node import Node, node, topological


@dataclass
class Known:
    """The kernels of groups that were met before, and the index expressions simplified so far."""

    kernels: dict[Hashable, Lowered] = field(default_factory=dict)
    memo: Memo = field(default_factory=dict)


def lower_once(group: Group, stored: frozenset[Node], known: Known) -> Lowered:
    """What `lower` gives for a group, from `known` if that has a group of equal structure."""
    names = _anonymous(group, stored - group.inside)
    same = replace(
        group,
        root=names[group.root],
        contraction=group.contraction and names[group.contraction],
        stream=group.stream and group.stream.named(names),
        sweep=group.sweep and group.sweep.named(names),
        prefix=group.prefix
        and replace(group.prefix, inputs=tuple(names[n] for n in group.prefix.inputs)),
        also=[(names[n], at) for n, at in group.also],
        pieces={names[n]: tuple(names[p] for p in parts) for n, parts in group.pieces.items()},
        totals=[names[n] for n in group.totals],
        columns=[(names[n], at) for n, at in group.columns],
    )
    key = (
        same.root, same.at, same.in_place, same.rows, same.contraction, same.stream, same.sweep,
        same.prefix, tuple(same.also), *same.pieces, tuple(same.totals), tuple(same.columns),
    )  # fmt: skip
    found = known.kernels.get(key)
    if found is None:
        leaves = frozenset(n for n in names.values() if n.op is ops.PARAMETER)
        found = known.kernels[key] = lower(same, leaves, known.memo)
    real = {anonymous: n for n, anonymous in names.items()}
    scalars = {n.attr: real[n].attr for n in real if n.op is ops.SCALAR}
    return Lowered(
        found.kernel,
        tuple(real[n] for n in found.arguments),
        tuple(scalars[slot] for slot in found.scalars),
        tuple(real[n] for n in found.members),
    )


def _anonymous(group: Group, stored: frozenset[Node]) -> dict[Node, Node]:
    """What the nodes of a group are called when nobody asks where its inputs come from."""
    own = dict.fromkeys([group.root, *(n for n, _ in (*group.also, *group.columns))])

    def given(n: Node) -> bool:
        return n.op is ops.BUFFER or (n in stored and n not in own)

    names: dict[Node, Node] = {}
    for n in topological(own, lambda n: () if given(n) else n.inputs):
        if n.op is ops.BUFFER:
            names[n] = node(n.op, (), replace(n.attr, slot=len(names)), n.dtype, n.shape)
        elif given(n):
            names[n] = node(ops.PARAMETER, (), len(names), n.dtype, n.shape)
        elif n.op is ops.SCALAR:
            names[n] = node(n.op, (), len(names), n.dtype, n.shape)
        else:
            names[n] = n.with_inputs(tuple([names[i] for i in n.inputs]))
    return names


__all__ = ["Known", "lower_once"]
