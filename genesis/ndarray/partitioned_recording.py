"""A recorded graph that works on blocks: divided over the ranks that hold the other blocks.

The function was recorded on arrays of the whole shape, as one process would run it. If this
process has only blocks of some of them, the compiler makes one rank's graph of it. All ranks make
the same: they compare it before it first runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from genesis.ir import ops
from genesis.ir.node import Node
from genesis.ir.numpy_library.collectives import PROCESS, Carrier, Sketch, carrier
from genesis.ir.size import UndecidableSize
from genesis.ndarray.core.realisation import backend_of
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
    except UndecidableSize:  # it is recorded again, with numbers
        raise
    except ValueError as error:
        raise CaptureError(f"genesis.jit: {error}") from None
    found = carrier(graph.mesh.name)
    ranks = {f"rank_{axis}": k for axis, k in found.coordinates.items()}
    return Divided(graph, ranks, found)


def agree(divided: Divided, places: Places, given: Iterable[Value], scalars: Sequence[Any]) -> None:
    """Compare what this rank is about to run with the other ranks, or raise an error.

    That is the graph, of which the error says where it differs, and what all ranks have all of
    among what is `given`: data, weights that were never placed, learning rates, random numbers.
    """
    from genesis.compiler.partition import described

    lines = [
        f"{text} ({places.where(n) or 'unknown'})" if n.op is not ops.BUFFER else text
        for n, text in described(divided.graph.roots)
    ]
    lines += [f"the number {x!r}" for x in scalars]
    divided.carrier.agree(places.title, lines, [_sketch(v) for v in given if _is_compared(v)])


#: Arrays of more bytes are not compared.
COMPARED = 1 << 20


def _is_compared(v: Value) -> bool:
    return v.memory is not None and v.placement is None and v.memory.nbytes <= COMPARED


def _sketch(v: Value) -> Sketch:
    """What tells arrays apart that differ by more than machines do."""
    assert v.memory is not None
    x = backend_of(v.device).download(v.memory, v.dtype, v.shape, v.strides, v.offset)  # type: ignore[arg-type]
    flat = x.reshape(-1)
    text = f"{v.dtype} {tuple(x.shape)}: {flat[:4].tolist()}{' ..' if flat.size > 4 else ''}"
    if v.dtype.kind != "float":
        return text, float(crc32(flat.tobytes())), 0.0
    with np.errstate(all="ignore"):
        flat = np.nan_to_num(flat.astype("f8"))
    return text, float(flat @ np.cos(np.arange(flat.size))), float(np.abs(flat).sum())
