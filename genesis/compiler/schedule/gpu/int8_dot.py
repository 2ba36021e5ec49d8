"""Sums of products of bytes that lie in quadruples, as quantised weights do.

Few rows times a large matrix take as long as reading the matrix. A block has some columns of it and
a tile of groups: each thread loads the words of four neighbouring columns at once, for all
quadruples of a group one after the other, and has as many loads on their way. Sums of groups are
scaled and carried along; those of different groups meet at the end. The fewer blocks there are, the
more threads has each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import gcd

from genesis.backends.base import GPU
from genesis.compiler.graph.simplify.elementwise import RULES
from genesis.compiler.schedule.gpu.tile_axes import tile
from genesis.compiler.schedule.int8_dot_parts import ByteProduct, quadruples
from genesis.compiler.schedule.steps.queries import extent, points, power
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import static
from genesis.ir.rewrite import replaced, rewrite

#: Columns of a block, and those if less than half of the multiprocessors had one.
COLUMNS = 32
FEWEST = 16
#: Rows that use a word as it comes by.
ROWS = 8
#: Columns of a thread: it loads their words at once.
NEIGHBOURS = 4
#: Threads of a multiprocessor, and the most and the fewest of a block. All blocks that there are
#: run at once, if that can be: while one multiplies, others wait for memory.
THREADS = 1024
MOST, LEAST = 512, 128
#: Turns of a loop that are written out, so that what one reads is on its way before the last ends.
TURNS = 8


def dot(kernel: kir.Kernel, found: ByteProduct, chip: GPU) -> kir.Kernel:
    """Schedule sums of products of bytes."""
    (phase,) = kernel.phases
    row, along = found.row, found.within or found.column
    rows = 1 if row is None else min(ROWS, power(extent(row)))
    columns = min(COLUMNS, found.width)
    if 2 * points(phase.grid) < chip.multiprocessors * columns * rows:
        columns = min(FEWEST, columns)
    # By how much a byte is shifted is known once the halves are written out.
    body = kir.map_expressions(quadruples(phase.body, found), lambda n: rewrite([n], RULES)[0])
    blocks = -(-points(phase.grid) // (columns * rows))
    threads = _threads(-(-blocks // chip.multiprocessors))
    groups = max((extent(s.axis) for s in body if isinstance(s, kir.Loop)), default=1)
    while threads < MOST and groups * columns * rows > TURNS * NEIGHBOURS * threads:
        threads *= 2
    body = _in_groups(body, NEIGHBOURS * threads // (columns * rows))
    kernel = kernel.with_phase(0, kir.Phase(phase.grid, body))
    kernel = tile(kernel, along, columns)
    return kernel if row is None else tile(kernel, row, rows)


def _in_groups(body: kir.Body, most: int) -> kir.Body:
    """A sum over groups with up to so many of them at once."""
    result: list[kir.Statement] = []
    for s in body:
        length = static(s.axis.extent) if isinstance(s, kir.Loop) and _adds(s) else None
        width = 1 if length is None else gcd(length, most)
        if not isinstance(s, kir.Loop) or length is None or width == 1:
            result.append(s)
            continue
        outer = replace(s.axis, name=s.axis.name + "b", extent=length // width)
        inner = kir.Axis.tile(s.axis.name + "t", width)
        (carry,) = s.carried
        parts = kir.Local(f"part_{carry.local.name}", carry.local.dtype)
        known = {carry.local.node: parts.node}  # where sums of spans go on, too
        inside = kir.map_expressions(s.body, partial(replaced, mapping=known))
        adding = kir.Carry(parts, carry.init, replaced(carry.step, known))
        coarse = replace(s, axis=outer, body=inside, carried=(adding,))
        (loop,) = respecialise((coarse,), {s.axis.node: outer.node * width + inner.node})
        assert isinstance(loop, kir.Loop) and s.merge is not None
        result += [loop, kir.Reduce((carry.local,), (loop.carried[0].local.node,), inner, s.merge)]
    return tuple(result)


def _threads(blocks: int) -> int:
    """The threads of a block, if a multiprocessor has so many blocks."""
    share = THREADS // blocks
    return max(LEAST, min(MOST, 1 << max(0, share.bit_length() - 1)))


def _adds(s: kir.Loop) -> bool:
    return len(s.carried) == 1 and s.merge is not None and kir.simple_fold(s.merge) is ops.ADD
