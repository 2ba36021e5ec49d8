"""Replacing axes by expressions: what every scheduling step rests on.

When an axis becomes ``16*outer + tile``, values computed from it become tiles, and so do the locals
that hold them. `respecialise` replaces axes in a body, works out again which tile axes every local
has, and masks accesses where only some points of a tile exist.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import fixed, simplify
from genesis.ir.node import TRUE, Node, both, topological
from genesis.ir.rewrite import Rules, replaced, rewrite, substitute


def respecialise(body: kir.Body, axes: dict[Node, Node], mask: Node = TRUE) -> kir.Body:
    """`body` with AXIS nodes replaced; accesses that then mention mask's tile axes are masked.

    Locals get the tile axes of their new values. Loops over replaced axes must be gone already.
    """
    return Respecialise(axes, mask).body(body)


class Respecialise:
    """The pass behind `respecialise`: what axes and locals have become so far."""

    def __init__(self, axes: dict[Node, Node], mask: Node) -> None:
        self.memo: dict[Node, Node] = dict(axes)
        self.mask = mask
        self.masked_by = kir.tile_axes(mask)
        self.rules = Rules("mask")
        if mask is not TRUE:
            self.rules.on(ops.LOAD)(self._mask_load)
        self.done: set[Node] = set()

    def _mask_load(self, n: Node) -> Node | None:
        buffer, at, mask, other = kir.load_parts(n)
        if n in self.done or not (kir.tile_axes(*at) & self.masked_by):
            return None
        masked = buffer.load(*at, mask=both(mask, self.mask), other=other)
        self.done.add(masked)
        return masked

    def expr(self, n: Node) -> Node:
        """An expression after the replacement."""
        found = self.memo.get(n)
        return simplify(rewrite([n], self.rules, self.memo)[0] if found is None else found)

    def _rename(self, local: kir.Local, tiles: frozenset[kir.Axis]) -> kir.Local:
        new = kir.Local(local.name, local.dtype, tuple(sorted(tiles, key=lambda a: a.name)))
        self.memo[local.node] = new.node
        return new

    def body(self, body: kir.Body) -> kir.Body:
        """A body after the replacement."""
        return tuple(self._statement(s) for s in body)

    def _statement(self, s: kir.Statement) -> kir.Statement:
        if isinstance(s, kir.Let):
            value = self.expr(s.value)
            return kir.Let(self._rename(s.local, kir.tile_axes(value)), value)
        if isinstance(s, kir.Store):
            at = tuple(map(self.expr, s.index))
            value, mask = self.expr(s.value), self.expr(s.mask)
            if kir.tile_axes(*at) & self.masked_by:
                mask = both(mask, self.mask)
            return replace(s, index=at, value=value, mask=mask)
        if isinstance(s, kir.Loop):
            return self._loop(s)
        if isinstance(s, kir.If):
            return kir.If(self.expr(s.condition), self.body(s.body), self.body(s.orelse))
        if isinstance(s, kir.Reduce | kir.Scan):
            values = tuple(map(self.expr, s.values))
            tiles = [kir.tile_axes(x) - {s.axis} for x in values]
            if isinstance(s, kir.Scan):  # every part of a state may flow into every other
                tiles = [kir.tile_axes(*values) | {s.axis}] * len(values)
            locals_ = tuple(self._rename(v, t) for v, t in zip(s.locals, tiles, strict=True))
            return replace(s, values=values, locals=locals_)
        if isinstance(s, kir.Prefetch):
            return replace(s, index=tuple(map(self.expr, s.index)))
        return s

    def _loop(self, s: kir.Loop) -> kir.Loop:
        extent = s.axis.extent
        axis = s.axis
        if isinstance(extent, Node):
            axis = replace(axis, extent=fixed(self.expr(extent)))
            self.memo[s.axis.node] = axis.node
        inits = [self.expr(c.init) for c in s.carried]
        tiles = [kir.tile_axes(i) for i in inits]
        # A carried value has the tile axes of its init and of its step, which may depend on it.
        while True:
            before = dict(self.memo)
            locals_ = [self._rename(c.local, t) for c, t in zip(s.carried, tiles, strict=True)]
            body = self.body(s.body)
            steps = [self.expr(c.step) for c in s.carried]
            wider = [t | kir.tile_axes(x) for t, x in zip(tiles, steps, strict=True)]
            if wider == tiles:
                break
            tiles, self.memo = wider, before
        carried = tuple(kir.Carry(v, i, x) for v, i, x in zip(locals_, inits, steps, strict=True))
        return kir.Loop(axis, body, carried, s.merge)


def mask_loads(
    value: Node, inside: Node, tiles: Collection[kir.Axis], padded: Collection[str] = ()
) -> Node:
    """`value` with every load that mentions one of these tile axes masked by `inside`.

    Except loads of the buffers called `padded`, which have something to read outside, too.
    """
    if inside is TRUE:
        return value
    loads: dict[Node, Node] = {}
    for n in topological([value]):
        if n.op is ops.LOAD and n.attr.name not in padded:
            buffer, at, mask, other = kir.load_parts(n)
            if not kir.tile_axes(*at).isdisjoint(tiles):
                # Loads inside the index were masked before.
                *where, mask, other = substitute([*at, mask, other], loads)
                loads[n] = buffer.load(*where, mask=both(mask, inside), other=other)
    return replaced(value, loads)
