"""Dedupe: groups that differ only in what they read are lowered once.

The layers of a network are one computation on different arrays. So a group is made *anonymous*: the
stored values, inputs and scalars it reads become leaves numbered in the order they are met. Nodes
are hash-consed, hence two groups of equal structure become the same node, and a dictionary finds
the kernel. What is left to do for every layer is renaming.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from genesis.compiler.fuse.groups import Carried, FusionGroup
from genesis.compiler.fuse.online_softmax import AttentionGradients, StreamedSoftmax
from genesis.compiler.lower.lower import Lowered, lower
from genesis.compiler.lower.movement import Memo
from genesis.ir import ops
from genesis.ir.node import Node, node, topological


@dataclass
class Known:
    """The kernels of groups that were met before, and the index expressions simplified so far."""

    kernels: dict[Hashable, Lowered] = field(default_factory=dict)
    memo: Memo = field(default_factory=dict)


def lower_once(group: FusionGroup, stored: frozenset[Node], known: Known) -> Lowered:
    """What `lower` gives for a group, from `known` if that has a group of equal structure."""
    names = _anonymous(group, stored - group.inside)
    told = _parts_renamed(group, names)
    key = tuple(map(_hashable, told.values()))
    found = known.kernels.get(key)
    if found is None:
        leaves = frozenset(n for n in names.values() if n.op is ops.PARAMETER)
        found = known.kernels[key] = lower(replace(group, **told), leaves, known.memo)
    real = {anonymous: n for n, anonymous in names.items()}
    scalars = {n.attr: real[n].attr for n in real if n.op is ops.SCALAR}
    return Lowered(
        found.kernel,
        tuple(real[n] for n in found.arguments),
        tuple(scalars[slot] for slot in found.scalars),
        tuple(real[n] for n in found.members),
    )


def _asked(kind: type) -> tuple[tuple[str, str], ...]:
    """What lowering asks about an object: names of fields, and what they hold."""
    found = tuple((f.name, str(f.type)) for f in fields(kind) if f.compare)
    assert all(holds in _OF_INDICES for _, holds in found if "Indices" in holds), found
    return found


#: What fields hold that have indices in them; `_renamed` leaves those as they are.
_OF_INDICES = ("Indices", "list[tuple[Node, Indices]]")


_PARTS = {
    kind: _asked(kind) for kind in (FusionGroup, StreamedSoftmax, AttentionGradients, Carried)
}


def _parts_renamed(x: Any, names: Mapping[Node, Node]) -> dict[str, Any]:
    return {name: _renamed(getattr(x, name), names, holds) for name, holds in _PARTS[type(x)]}


def _renamed(x: Any, names: Mapping[Node, Node], holds: str = "") -> Any:
    """Anything made of nodes with other names for them; what has no name is not asked for.

    An index is no value of the graph, though it may be the same node as one: a constant, say.
    """
    kind = type(x)
    if holds == _OF_INDICES[0]:
        return x
    if holds == _OF_INDICES[1]:
        return [(names[n], at) for n, at in x]
    if kind is Node:
        return names.get(x, x)
    if kind in (tuple, list, frozenset):
        return kind([_renamed(item, names) for item in x]) if x else x
    if kind is dict:
        return {_renamed(k, names): _renamed(v, names) for k, v in x.items()}
    if kind in _PARTS:
        return replace(x, **_parts_renamed(x, names))
    return x


def _hashable(x: Any) -> Hashable:
    if isinstance(x, dict):
        return tuple(x.items())
    return tuple(x) if isinstance(x, list) else x


def _anonymous(group: FusionGroup, stored: frozenset[Node]) -> dict[Node, Node]:
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
