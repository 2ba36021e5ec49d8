"""A recorded graph that works on blocks: divided over the ranks that hold the other blocks.

The function was recorded on arrays of the whole shape, as one process would run it. If this
process has only blocks of some of them, the compiler makes one rank's graph of it. All ranks make
the same: they compare it before it first runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from genesis.ir import ops
from genesis.ir.node import Node
from genesis.ir.numpy_library.collectives import PROCESS, Carrier, carrier
from genesis.ndarray.core.value import CaptureError, Value

if TYPE_CHECKING:
    from genesis.compiler.partition import Partitioned
    from genesis.ir.placement import Placement
    from genesis.ndarray.core.source_lines import Places


class Wishes(NamedTuple):
    """How results are to lie: what is `written` as what it replaces, what is `new` as it comes."""

    written: Mapping[Value, Value]
    new: frozenset[Value]


class Divided(NamedTuple):
    """One rank's graph, and this rank's number along every axis."""

    graph: Partitioned
    ranks: Mapping[str, int]
    carrier: Carrier


def divide(
    roots: Sequence[Node],
    nodes: Mapping[Value, Node],
    slots: Mapping[Value, int],
    wishes: Wishes,
) -> Divided | None:
    """One rank's graph; None if this process has all of every array."""
    leaves: dict[int, Placement] = {
        slot: v.placement for v, slot in slots.items() if v.placement is not None
    }
    if not leaves and not PROCESS:
        return None
    from genesis.compiler.partition import (  # loads the compiler
        FREE,
        Wanted,
        constraints,
        partition,
    )

    if not leaves and not constraints(roots):
        return None

    wanted: dict[Node, Wanted] = {nodes[v]: FREE for v in wishes.new if v in nodes}
    for value, before in wishes.written.items():
        if value in nodes:
            wanted[nodes[value]] = before.placement
    try:
        graph = partition(roots, leaves, [wanted.get(n) for n in roots])
    except ValueError as error:
        raise CaptureError(f"genesis.jit: {error}") from None
    found = carrier(graph.mesh.name)
    ranks = {f"rank_{axis}": k for axis, k in found.coordinates.items()}
    return Divided(graph, ranks, found)


def agree(divided: Divided, places: Places) -> None:
    """Compare the graph with what the other ranks have made, or raise an error that says where."""
    from genesis.compiler.partition import described

    lines = [
        f"{text} ({places.where(n) or 'unknown'})" if n.op is not ops.BUFFER else text
        for n, text in described(divided.graph.roots)
    ]
    divided.carrier.agree(places.title, lines)
