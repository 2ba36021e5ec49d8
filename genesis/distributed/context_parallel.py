"""Ring attention: a sequence that is divided over processes, whose keys go round.

Every process has a block of queries, and sees one block of keys after the other: it keeps, for
every query, a running sum of values and the logarithm of the weights' total, and passes keys and
values on. Nobody has the weights of more than two chunks at a time; gradients are computed from the
totals, block by block again, and those of keys and values go round.

Where queries look at what came before them only, the first process would have little to do and the
last one much. So a sequence is cut into twice as many chunks, and process r computes with chunks r
and 2p-1-r: of each pair of blocks exactly half of the weights is wanted, whoever has it.

It is written on arrays of the whole, with a dimension of blocks: a shift along that is what
processes send each other (`partition/rules.py`). On one process it computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis import functional as F  # noqa: N812
from genesis import ndarray as nd
from genesis.distributed.mesh import current
from genesis.functional.function import Function
from genesis.functional.indexing import Pick
from genesis.ir.dtype import int64
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import wrap

#: Which of a block's two chunks: the first, the second, or depending on the block (None).
Slot = int | None


def ring_attention(
    query: Any,
    key: Any,
    value: Any,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    axis: str = "sp",
    blocks: int | None = None,
) -> Any:
    """`scaled_dot_product_attention` of a sequence that is divided along an axis of the mesh.

    Dimension -2, the sequence, is cut into as many blocks as there are processes, or `blocks`;
    twice that number must divide it.

    >>> import genesis
    >>> x = genesis.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> ring_attention(x, x, x, is_causal=True, scale=0.0, blocks=1)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    count = current().shape.get(axis, 1) if blocks is None else blocks
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if count == 1:
        return F.scaled_dot_product_attention(query, key, value, None, 0.0, is_causal, scale)
    if (
        not query.shape[:-1] == key.shape[:-1] == value.shape[:-1]
        or query.shape[-1] != key.shape[-1]
    ):
        raise ValueError(
            f"ring_attention: queries {tuple(query.shape)}, keys {tuple(key.shape)} and values "
            f"{tuple(value.shape)} must have the same heads and sequence"
        )
    if query.shape[-2] % (2 * count):
        raise ValueError(
            f"ring_attention: a sequence of {query.shape[-2]} does not divide into {count} blocks "
            "of two chunks each"
        )
    return Ring.apply(query, key, value, is_causal, scale, count)


class Ring(Function):
    """Attention in blocks; keys and values go round once, and once more for the gradients."""

    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, causal: bool, scale: float, count: int
    ) -> Any:
        way = _Way(causal, count, scale, query.device)
        wide = value.dtype.accumulator
        q, k, v = (way.chunks(F.cast(x, wide)) for x in (query, key, value))
        totals = [nd.full_like(x[..., :1], -math.inf) for x in q]
        sums = [nd.zeros_like(x) for x in v]
        for step in range(count):
            k, v = (way.passed(k), way.passed(v)) if step else (k, v)
            for mine, other, diagonal in way.pairs(step):
                scores = way.scores(q, k, mine, other, diagonal, step)
                total = F.logsumexp(scores, -1, True)
                found = F.matmul(F.exp(scores - total), way.pick(v, other, step))
                for slot in (0, 1):
                    # What belongs to the other chunk weighs nothing here.
                    more = way.masked(total, mine, slot, step, -math.inf)
                    if more is not None:
                        both = F.logaddexp(totals[slot], more)
                        sums[slot] = sums[slot] * F.exp(totals[slot] - both) + found * F.exp(
                            more - both
                        )
                        totals[slot] = both
        ctx.way = way
        ctx.save_for_backward(query, key, value, *sums, *totals)
        return F.cast(way.joined(sums), value.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, *rest = ctx.saved_tensors
        results, totals = rest[:2], rest[2:]
        way, wide = ctx.way, value.dtype.accumulator
        q, k, v, g = (way.chunks(F.cast(x, wide)) for x in (query, key, value, grad))
        shares = [F.sum(a * b, -1, True) for a, b in zip(g, results, strict=True)]
        to_q, to_k, to_v = ([x * 0 for x in xs] for xs in (q, k, v))
        for step in range(way.count):
            if step:  # gradients of keys go along with them
                k, v, to_k, to_v = (way.passed(xs) for xs in (k, v, to_k, to_v))
            for mine, other, diagonal in way.pairs(step):
                scores = way.scores(q, k, mine, other, diagonal, step)
                weights = F.exp(scores - way.pick(totals, mine, step))
                given = way.pick(g, mine, step)
                change = F.matmul(given, F.transpose(way.pick(v, other, step), -1, -2))
                change = weights * (change - way.pick(shares, mine, step)) * way.scale
                turned = F.transpose(change, -1, -2)
                way.add(to_v, F.matmul(F.transpose(weights, -1, -2), given), other, step)
                way.add(to_k, F.matmul(turned, way.pick(q, mine, step)), other, step)
                way.add(to_q, F.matmul(change, way.pick(k, other, step)), mine, step)
        to_k, to_v = way.passed(to_k), way.passed(to_v)  # home again
        pairs = zip((to_q, to_k, to_v), (query, key, value), strict=True)
        return (*(F.cast(way.joined(xs), x.dtype) for xs, x in pairs), None, None, None)


class _Way:
    """How chunks of a sequence lie and go round."""

    def __init__(self, causal: bool, count: int, scale: float, device: str) -> None:
        self.causal, self.count, self.scale, self._device = causal, count, scale, device

    def pairs(self, step: int) -> list[tuple[Slot, Slot, bool]]:
        """Which chunks of queries look at which of keys, and whether along the diagonal."""
        if not self.causal:
            return [(a, b, False) for a in (0, 1) for b in (0, 1)]
        if step == 0:
            return [(0, 0, True), (1, 0, False), (1, 1, True)]
        return [(1, 0, False), (None, None, False)]

    def scores(self, q: Any, k: Any, mine: Slot, other: Slot, diagonal: bool, step: int) -> Any:
        """Products of queries and keys; minus infinity where a query may not look."""
        keys = F.transpose(self.pick(k, other, step), -1, -2)
        found = F.matmul(self.pick(q, mine, step), keys) * self.scale
        if not diagonal:
            return found
        row = nd.arange(found.shape[-1], device=self._device)
        return F.where(F.unsqueeze(row, -1) >= row, found, -math.inf)

    def pick(self, chunks: Any, slot: Slot, step: int) -> Any:
        """A chunk of every block."""
        return F.where(self._late(step), *chunks) if slot is None else chunks[slot]

    def masked(self, x: Any, mine: Slot, slot: int, step: int, other: float) -> Any:
        """What belongs to one of the chunks, `other` where it does not; None if nowhere."""
        if mine is None:
            late = self._late(step)
            return F.where(late, x, other) if slot == 0 else F.where(late, other, x)
        return x if mine == slot else None

    def add(self, chunks: list[Any], x: Any, mine: Slot, step: int) -> None:
        """Add to the chunk that something belongs to."""
        for slot in (0, 1):
            more = self.masked(x, mine, slot, step, 0.0)
            if more is not None:
                chunks[slot] = chunks[slot] + more

    def _late(self, step: int) -> Any:
        """Whether the keys that a block has got come from a block before it, by block."""
        return self._by_block(self._blocks() >= self._number(step))

    def _blocks(self) -> Any:
        return nd.arange(self.count, device=self._device)

    def _by_block(self, x: Any) -> Any:
        return F.reshape(x, (self.count, 1, 1))

    def _number(self, number: int) -> Any:
        """A number that the compiler knows: so it sees what is the same in both passes."""
        return wrap(primitive.constant(number, int64, self._device))

    # ---- where chunks lie
    def chunks(self, x: Any) -> list[Any]:
        """The first and the second chunk of every block: of the blocks' own, if all see all."""
        shape = *x.shape[:-2], self.count, 2, x.shape[-2] // (2 * self.count), x.shape[-1]
        cut = F.reshape(x, shape)
        even, odd = (F.select(cut, -3, k) for k in (0, 1))
        if not self.causal:
            return [even, odd]
        last = 2 * self.count - 1
        even = self._taken(even, lambda b: (b if b % 2 == 0 else last - b) // 2)
        odd = self._taken(odd, lambda b: (b if b % 2 == 1 else last - b) // 2)
        return self._sorted(even, odd)

    def joined(self, chunks: list[Any]) -> Any:
        """The sequence that chunks were cut from."""
        even, odd = chunks
        if self.causal:
            even, odd = self._sorted(even, odd)
            even = self._taken(even, lambda b: self._home(2 * b))
            odd = self._taken(odd, lambda b: self._home(2 * b + 1))
        both = F.stack([even, odd], -3)
        return F.reshape(both, (*both.shape[:-4], -1, both.shape[-1]))

    def _sorted(self, first: Any, second: Any) -> list[Any]:
        """Both chunks, the other way round in odd blocks."""
        even = self._by_block(self._blocks() % self._number(2) == self._number(0))
        return [F.where(even, first, second), F.where(even, second, first)]

    def passed(self, chunks: list[Any]) -> list[Any]:
        """Every block's chunks, from the block before."""
        return [self._taken(x, lambda b: (b - 1) % self.count) for x in chunks]

    def _home(self, chunk: int) -> int:
        """The block that computes with a chunk."""
        return min(chunk, 2 * self.count - 1 - chunk)

    def _taken(self, x: Any, source: Callable[[int], int]) -> Any:
        """Every block from another one: an index that the compiler knows."""
        index = self._number(source(0))
        for block in range(1, self.count):
            here = self._blocks() == self._number(block)
            index = nd.where(here, self._number(source(block)), index)
        return Pick.apply(x, (len(x.shape) - 3,), index)


__all__ = ["ring_attention"]
