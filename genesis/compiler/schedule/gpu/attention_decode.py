"""Attention with few queries and many keys, as when a model writes a text.

One block for all keys of a head would leave most of the chip idle. So blocks share them: each takes
a chunk of the keys and leaves its greatest score, the total of its weights and its weighted sum of
values, which a second phase puts together. Where memory tells how many keys there are, blocks whose
chunk is past the end have nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import GPU
from genesis.compiler.fuse.online_softmax import finite
from genesis.compiler.schedule.attention_parts import AttentionParts, stored
from genesis.compiler.schedule.gpu.attention import (
    KEYS,
    LEAST,
    AttentionTiles,
    exists,
    with_a_row,
)
from genesis.compiler.schedule.steps.queries import extent, points, power
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import ceil_div, fixed, least, simplify, static
from genesis.ir.node import TRUE, both, elementwise

#: The most chunks of keys, and the blocks that each multiprocessor should have.
CHUNKS = 64
BLOCKS = 4


def few(p: AttentionParts, chip: GPU) -> bool:
    """Whether there are few queries, and too few heads to keep the chip busy."""
    keys, rows = static(p.keys.axis.extent), points(p.rows[:1])
    return keys is not None and rows <= LEAST and _chunks(p, chip) > 1


def _chunks(p: AttentionParts, chip: GPU) -> int:
    """Among how many blocks the keys of a head are to be shared."""
    return min(CHUNKS, BLOCKS * chip.multiprocessors // max(1, points(p.batch)))


def decode(kernel: kir.Kernel, p: AttentionParts, chip: GPU) -> kir.Kernel:
    """Schedule attention with few queries."""
    return _Decode(*with_a_row(p), _chunks(p, chip)).kernel(kernel)


class _Decode(AttentionTiles):
    parted = False

    def most_keys(self, p: AttentionParts) -> int:
        """Few, which several blocks share."""
        return KEYS if extent(p.column) <= 128 else KEYS // 2

    def __init__(self, p: AttentionParts, single: bool, chunks: int) -> None:
        super().__init__(p, single)
        keys = static(p.keys.axis.extent)
        assert keys is not None
        tiles = power(-(-keys // (chunks * self.width)))
        self.chunk = kir.Axis.grid("kc", ceil_div(keys, tiles * self.width))
        first = self.chunk.node * tiles
        here = simplify(kir.as_index(self.keys.extent) - first)
        here = elementwise(ops.MAX, here, kir.as_index(0))
        self.keys = kir.Axis.loop("jb", least(tiles, fixed(simplify(here))))
        self.tile = first + self.keys.node
        self.at_key = simplify(self.tile * self.width + self.c.node)
        self.keys_inside = exists(self.at_key, p.keys.axis.extent, self.width)

    def kernel(self, plain: kir.Kernel) -> kir.Kernel:
        """The kernel."""
        p = self.p
        if self.chunk.extent == 1:
            return super().kernel(plain)
        grid = (*p.batch, self.chunk)
        shape = (*(a.extent for a in grid), p.row.extent)
        left = [
            kir.Buffer(f"chunk_{name}", self.dtype, (*shape, *more), kir.Role.TEMPORARY)
            for name, more in (("peaks", ()), ("totals", ()), ("sums", (p.column.extent,)))
        ]
        body, state = self.streamed()
        place = (*(a.node for a in grid), self.at_row)
        stores: list[kir.Statement] = [
            kir.Store(b, place, v, self.rows_inside)
            for b, v in zip(left[:2], state[:2], strict=True)
        ]
        inside = both(self.rows_inside, self.columns_inside)
        stores.append(kir.Store(left[2], (*place, self.d.node), state[2], inside))
        own = {a: replace(a, name=f"c{a.name}") for a in (*p.batch, p.row)}
        by_chunk = kir.Phase((*grid, self.block), (*body, *stores))
        together = kir.Phase(tuple(own.values()), self.combined(left, own))
        return plain.with_phases([by_chunk, together], left)

    def combined(self, left: list[kir.Buffer], own: dict[kir.Axis, kir.Axis]) -> kir.Body:
        """One row of the result, from what all chunks left."""
        p, dtype, d = self.p, self.dtype, self.d
        c = kir.Axis.tile("kt", self.chunk.extent)
        place = (*(own[a].node for a in p.batch), c.node, own[p.row].node)
        peaks, totals = (b.load(*place) for b in left[:2])
        sums = kir.Local("sums", dtype, (c, d))
        peak, total, base = (kir.Local(name, dtype) for name in ("peak", "total", "base"))
        merged, scale = kir.Local("merged", dtype, (d,)), kir.Local("scale", dtype, (c,))
        add, greatest = kir.fold(ops.ADD, dtype), kir.fold(ops.MAX, dtype)
        body: list[kir.Statement] = [
            *self.units(),
            kir.Let(sums, left[2].load(*place, d.node, mask=self.columns_inside)),
            kir.Reduce((peak,), (peaks,), c, greatest),
            kir.Let(base, finite(peak.node)),
            kir.Let(scale, self.power(peaks, base.node)),
            kir.Reduce((total,), (totals * scale.node,), c, add),
            kir.Reduce((merged,), (sums.node * scale.node,), c, add),
        ]
        at = {a.node: b.node for a, b in own.items()} | {p.column.node: d.node}
        state = (self.natural(peak.node), total.node, merged.node)
        at |= dict(zip(p.state, state, strict=True))
        for s in (*p.stores, *p.once):
            inside = self.columns_inside if s in p.stores else TRUE
            body.append(stored(s, at, inside, {d}))
        return tuple(body)
