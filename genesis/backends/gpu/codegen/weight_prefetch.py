"""Weights that are asked for before they are needed: before a kernel waits, and a turn ahead.

A kernel may start while the one before it still runs, and has to wait before it touches what that
writes. Weights are written by no kernel of a program, so they are on their way meanwhile. A loop of
a few turns is written out, and the weights of a turn are loaded before the last one's are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from genesis.backends.gpu.codegen.dp4a import quadruple
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import uint8
from genesis.ir.index import simplify
from genesis.ir.node import TRUE, Node, topological
from genesis.ir.rewrite import replaced

#: Turns of a loop that are written out at most.
TURNS = 8


@dataclass(frozen=True)
class Ahead:
    """A load, and the tile axes of the expression it is in."""

    load: Node
    tiles: frozenset[kir.Axis]


def pieces(body: kir.Body) -> list[kir.Body]:
    """A body that multiplies bytes by fours in pieces: the turns of its loop."""
    loops = [k for k, s in enumerate(body) if isinstance(s, kir.Loop)]
    if len(loops) != 1:
        return [body]
    (place,) = loops
    loop = body[place]
    assert isinstance(loop, kir.Loop)
    count = loop.axis.extent
    fours = any(isinstance(s, kir.Reduce) and quadruple(s) for s in loop.body)
    if not (fours and isinstance(count, int) and 1 < count <= TURNS and len(loop.carried) == 1):
        return [body]
    (carry,) = loop.carried
    turn = (*loop.body, kir.Let(carry.local, carry.step))
    turns = [_at(turn, {loop.axis.node: kir.as_index(k)}) for k in range(count)]
    first = (*body[:place], kir.Let(carry.local, carry.init), *turns[0])
    return [first, *turns[1:-1], (*turns[-1], *body[place + 1 :])]


def ahead(kernel: kir.Kernel, piece: kir.Body) -> list[Ahead]:
    """What can be loaded before a piece: bytes that it multiplies by fours, and their scales."""
    fours = [f for s in piece if isinstance(s, kir.Reduce) and (f := quadruple(s))]
    values = [(kir.tile_axes(*four), word) for four in fours for word in four]
    values += [(frozenset(s.local.tiles), s.value) for s in piece if isinstance(s, kir.Let)]
    words = {n.attr.name for _, v in values[: 2 * len(fours)] for n in _loads(v)}
    bytes_ = {b.name for b in kernel.buffers if b.dtype is uint8 and b.role is kir.Role.INPUT}
    found = (Ahead(n, tiles) for tiles, v in values for n in _loads(v))
    early = (a for a in found if a.load.attr.name in words & bytes_ and _by_axes(a.load))
    return list(dict.fromkeys(early))


def _at(body: kir.Body, known: dict[Node, Node]) -> kir.Body:
    return kir.map_expressions(body, lambda n: simplify(replaced(n, known)))


def _loads(value: Node) -> list[Node]:
    return [n for n in topological([value]) if n.op is ops.LOAD]


def _by_axes(load: Node) -> bool:
    """Whether axes alone tell what is loaded."""
    _, at, mask, _ = kir.load_parts(load)
    return mask is TRUE and not any(n.op in (ops.LOAD, ops.LOCAL) for n in topological(at))
