"""Attention on chips whose groups of threads can have roles of their own.

Two groups with 64 rows each visit the same tiles of keys and values, which a third brings in
(`genesis.backends.gpu.codegen.warp_specialised`): one takes powers while the other multiplies, and
either multiplies weights with values while it waits for its next scores. What a group does is a
block of the grid, and the two of a program are neighbours on its last axis. Keys are visited from
the last tile to the first, so that the one tile that a diagonal cuts comes before the loop. Of the
heads, as many take turns as have keys and values that stay in the cache together, because all their
blocks read those.
"""

from __future__ import annotations

from genesis.backends.base import GPU
from genesis.compiler.schedule.attention_parts import AttentionParts, last_key
from genesis.compiler.schedule.gpu.attention import AttentionTiles, half_of
from genesis.compiler.schedule.steps.queries import points
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import ops
from genesis.ir.index import simplify, static
from genesis.ir.kernel import Axis, Kernel, Phase, as_index, load_parts
from genesis.ir.node import Node, is_const, mentions

#: Groups of a program that multiply, rows of each, and keys they visit at a time.
GROUPS, ROWS, KEYS = 2, 64, 128
#: Features of queries, keys and values that tiles may have.
FEATURES = (64, 128)
#: Keys from which on it pays that nobody shares a multiprocessor with a program.
LEAST_KEYS = 2048


def grouped(p: AttentionParts, chip: GPU) -> bool:
    """Whether two groups of rows can share whole tiles, and nothing but a diagonal is masked."""
    inner, keys = p.inner.axis, p.keys.axis
    operands = (p.query, inner), (p.key, inner), (p.value, p.column)
    if chip.groups < GROUPS or not p.rows or not all(_in_lines(x, a) for x, a in operands):
        return False
    whole = [static(a.extent) or 1 for a in (p.row, keys)]
    if (
        whole[1] < LEAST_KEYS
        or any(n % KEYS for n in whole)
        or any(static(a.extent) not in FEATURES for _, a in operands)
    ):
        return False
    plan = _Grouped(p, chip)
    masked = simplify(as_index(plan.keys.extent) - as_index(plan.plain))
    if plan.causal is None:
        return plan.scaled is not None and last_key(p) is None
    return plan.scaled is not None and is_const(masked, 1)


def attend_grouped(kernel: Kernel, p: AttentionParts, chip: GPU) -> Kernel:
    """Schedule attention by two groups of rows."""
    return _Grouped(p, chip).kernel(kernel)


class _Grouped(AttentionTiles):
    """Streamed softmax by two groups."""

    negates = True  # no branch is in the way of a product that runs beside it

    def __init__(self, p: AttentionParts, chip: GPU) -> None:
        super().__init__(p, False)
        self.chip = chip
        self.width = KEYS
        self.c = Axis.tile("c", KEYS)
        self.r = Axis.tile("r", ROWS)
        self.part = Axis.grid("part", GROUPS)
        self.at_row = simplify(self.place * self.rows + (self.part.node * ROWS + self.r.node))
        count, self.plain = self.tiles()
        self.keys = Axis.loop("jb", count)
        self.tile = simplify(as_index(count) - 1 - self.keys.node)
        self.at_key = simplify(self.tile * self.width + self.c.node)

    def kernel(self, plain: Kernel) -> Kernel:
        """The kernel."""
        body, state = self.streamed()
        body += self.finish(state)
        *batch, head = self.p.batch or (Axis.grid("one", 1),)
        size = self._heads(head)
        group = Axis.grid(f"{head.name}g", points([head]) // size)
        turn = Axis.grid(f"{head.name}t", size)
        grid = (*batch, group, self.block, turn, self.part)
        apart = respecialise(tuple(body), {head.node: group.node * size + turn.node})
        return plain.with_phases([Phase(grid, apart)])

    def _heads(self, head: Axis) -> int:
        """How many heads take turns: a divisor of all, so that half of the cache has their keys."""
        count, keys = static(head.extent), points([self.p.keys.axis])
        if count is None:
            return 1
        nbytes = 2 * keys * (points([self.p.inner.axis]) + points([self.p.column]))
        most = max(1, self.chip.l2_bytes // 2 // nbytes)
        return max(n for n in range(1, count + 1) if count % n == 0 and n <= most)


def _in_lines(x: Node, axis: Axis) -> bool:
    """Whether 16-bit numbers are loaded as they are, neighbours on an axis next to each other."""
    if half_of(x) is None or x.inputs[0].op is not ops.LOAD:
        return False
    buffer, (*others, last), _, _ = load_parts(x.inputs[0])
    *strides, one = buffer.layout
    even = (is_const(s) and s.attr % 8 == 0 for s in (*strides, as_index(buffer.offset)))
    alone = last is axis.node and not any(axis.node in mentions(i) for i in others)
    return alone and is_const(one, 1) and all(even)
