"""The recipe for kernels without reductions: every element on its own.

The axis along which most accesses are neighbours becomes the innermost loop, in vectors; the rest
of a block's share comes from the axes outside it. Where another buffer is contiguous along another
axis (a transpose), both become tiles: a square of registers is turned in place, and every cache
line is used whole.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.cost import UNROLLED
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.heuristics import (
    BLOCKS,
    accesses,
    affinity,
    elements,
    extent,
    lanes,
    operations,
    stride,
    vectors,
)
from genesis.compiler.schedule.respecialise import rebuild
from genesis.compiler.schedule.steps import sink, split_grid, tile_grid, unroll_grid
from genesis.compiler.schedule.vectorise import vectorise
from genesis.ir import ops
from genesis.ir.kernel import Axis, Body, Buffer, Kernel, Loop, Phase, Store, expressions, walk
from genesis.ir.node import mentions, topological

#: Arrays one loop goes through, at most, where some have nothing to do with others (the weights of
#: an optimizer, say): the hardware foresees only so many streams.
STREAMS = 16
#: Cache lines a transpose writes next to each other.
LINES = 2


def pointwise(kernel: Kernel, chip: Chip) -> Kernel:
    """Schedule a kernel whose body is only stores over its grid."""
    for axis in reversed(kernel.phases[0].grid):  # so that neighbours are stored together
        if _shares(kernel.phases[0], axis):
            kernel = unroll_grid(kernel, axis)
    (phase,) = kernel.phases
    if not phase.grid:
        return kernel
    width = lanes(phase.body, chip)
    wide = [a for a in phase.grid if extent(a) >= width // 2] or list(phase.grid)
    best = max(wide, key=lambda a: (affinity(phase.body, a), extent(a)))
    # Short bodies need several vectors in flight to fill the machine, long ones fill it alone.
    longest = max(map(operations, _parts(phase.body)))
    unroll = 4 if longest <= 16 else 2 if longest <= 48 else 1
    rival = _rival(phase, best, width)
    if rival is not None:
        unroll = 1
    while unroll > 1 and extent(best) < width * unroll:
        unroll //= 2
    inner, block = extent(best), decide("block", BLOCKS)
    tile = width * vectors(unroll, width, inner)
    others = [a for a in phase.grid if a not in (best, rival)]
    others.sort(key=lambda a: -_jump(phase, a))
    if inner > 2 * block or not isinstance(best.extent, int):
        kernel = split_grid(kernel, best, max(tile, block // tile * tile))
        inner = block
    else:
        kernel = sink(kernel, best)
    kernel = gather(kernel, others, inner if rival is None else inner * width // 4)

    def choose(loop: Loop) -> int:
        return tile if loop.axis.name == best.name else 1

    (phase,) = kernel.phases
    kernel = rebuild(kernel, 0, Phase(phase.grid, _apart(phase.body)))
    kernel = vectorise(kernel, choose)
    return kernel if rival is None else tile_grid(kernel, rival, LINES * width)


def _shares(phase: Phase, axis: Axis) -> bool:
    """Whether an axis is short and some loads are the same all along it."""
    if axis.extent not in range(1, UNROLLED + 1) or len(phase.grid) == 1:
        return False
    roots = [e for s in walk(phase.body) for e in expressions(s)]
    loads = [n for n in topological(roots) if n.op is ops.LOAD]
    return any(axis.node not in mentions(n) for n in loads)


def _rival(phase: Phase, best: Axis, width: int) -> Axis | None:
    """Another axis along which a buffer is contiguous that jumps along `best`."""
    for buffer, at in accesses(phase.body):
        if stride(buffer, at, best) in (0, 1, -1, None):
            continue
        for axis in phase.grid:
            if axis != best and extent(axis) >= width and stride(buffer, at, axis) == 1:
                return axis
    return None


def _apart(body: Body) -> Body:
    """Loops around stores, with a loop of its own for every part."""
    (loop,) = body
    assert isinstance(loop, Loop)
    if isinstance(loop.body[0], Loop):
        return (replace(loop, body=_apart(loop.body)),)
    return tuple(replace(loop, body=part) for part in _parts(loop.body))


def _parts(body: Body) -> list[Body]:
    """Statements that share arrays; all of them, unless there are too many for one loop."""
    parts: list[tuple[set[Buffer], list[int]]] = []
    for k, s in enumerate(body):
        buffers, members = {b for b, _ in accesses((s,)) if b.shape}, [k]
        for other in [p for p in parts if not p[0].isdisjoint(buffers)]:
            parts.remove(other)
            buffers |= other[0]
            members += other[1]
        parts.append((buffers, members))
    if sum(len(buffers) for buffers, _ in parts) <= STREAMS:
        return [body]
    return [tuple(body[k] for k in sorted(members)) for _, members in parts]


def _jump(phase: Phase, axis: Axis) -> int:
    """How far apart lies what is read for neighbours along an axis: in order, it is foreseen."""
    written = {s.buffer for s in walk(phase.body) if isinstance(s, Store)}
    reads = [(b, at) for b, at in accesses(phase.body) if b not in written]
    return sum(abs(stride(b, at, axis) or 0) * b.dtype.itemsize * elements(b) for b, at in reads)


def gather(kernel: Kernel, axes: list[Axis], done: int, number: int = 0) -> Kernel:
    """Move grid axes into the block, innermost first, until it has enough to do."""
    wanted = max(1, decide("block", BLOCKS) // max(1, done))
    for axis in reversed(axes):
        if wanted <= 1:
            break
        if isinstance(axis.extent, int) and axis.extent <= wanted:
            kernel = sink(kernel, axis, number)
            wanted //= max(1, axis.extent)
        else:
            kernel = split_grid(kernel, axis, wanted, number)
            break
    return kernel
