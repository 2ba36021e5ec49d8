"""Kernels without reductions: every element on its own.

The axis along which most accesses are neighbours becomes the innermost loop, in vectors; the rest
of a block's share comes from the axes outside it. Where another buffer is contiguous along another
axis (a transpose), both become tiles: a square of registers is turned in place, and every cache
line is used whole.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.fuse.cost import UNROLLED
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.loop_transforms import sink, split_grid, tile_grid, unroll_grid
from genesis.compiler.schedule.steps.queries import (
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
from genesis.compiler.schedule.steps.vectorise import vectorise
from genesis.ir import kernel as kir  # fmt: skip
from genesis.ir import ops
from genesis.ir.node import Node, mentions, topological

#: Arrays one loop goes through, at most, where some have nothing to do with others (the weights of
#: an optimizer, say): the hardware foresees only so many streams.
STREAMS = 16
#: Runs of memory that are read side by side where none tells where the next is.
ROWS = 8
#: Places at which different things are computed, and which are written out.
KINDS = 8
#: The most that a block may be smaller because of the work at every element.
HEAVIEST = 8
#: Cache lines a transpose writes next to each other.
LINES = 2


def pointwise(kernel: kir.Kernel, chip: Chip) -> kir.Kernel:
    """Schedule a kernel whose body is only stores over its grid."""
    kinds = KINDS
    for axis in reversed(kernel.phases[0].grid):  # so that neighbours are stored together
        count = _together(kernel.phases[0], axis, kinds)
        if count > 1:
            kernel = unroll_grid(kernel, axis, count)
            kinds //= count
    (phase,) = kernel.phases
    # Lanes of a vector are all there or none of them, as far as a branch is concerned.
    branches = {a for s in phase.body if isinstance(s, kir.If) for a in mentions(s.condition)}
    suits = {a: affinity(phase.body, a) for a in phase.grid if a.node not in branches}
    if not suits:
        return kernel
    width = lanes(phase.body, chip)
    # A part of a vector is better than a vector of what lies apart.
    wide = [a for a in suits if extent(a) >= width // 2 and suits[a] >= 0]
    best = max(wide or suits, key=lambda a: (suits[a], extent(a)))
    width = lanes(phase.body, chip, best)
    # Short bodies need several vectors in flight to fill the machine, long ones fill it alone.
    longest = max(map(operations, _parts(phase.body)))
    unroll = 4 if longest <= 16 else 2 if longest <= 48 else 1
    rival = _rival(phase, best, width)
    if rival is not None and not _is_contiguous(phase, best):  # a square would turn nothing
        best, rival, width = rival, None, lanes(phase.body, chip, rival)
    strewn = _strewn(phase, best) if rival is None and longest <= 16 else None
    if rival is not None or strewn is not None:
        unroll = 1
    while unroll > 1 and extent(best) < width * unroll:
        unroll //= 2
    # Where every element is much work, fewer of them are worth a thread.
    heavy = min(HEAVIEST, 1 << max(0, (longest // 16).bit_length() - 1))
    inner, block = extent(best), decide("block", BLOCKS) // heavy
    tile = width * vectors(unroll, width, inner)
    others = [a for a in phase.grid if a not in (best, rival, strewn)]
    others.sort(key=lambda a: -_jump(phase, a))
    if inner >= 2 * block or not isinstance(best.extent, int):
        kernel = split_grid(kernel, best, max(tile, block // tile * tile))
        inner = block
    else:
        kernel = sink(kernel, best)
    kernel = gather(kernel, others, heavy * (inner if rival is None else inner * width // 4))

    def choose(loop: kir.Loop) -> int:
        return tile if loop.axis.name == best.name else 1

    (phase,) = kernel.phases
    kernel = kernel.with_phase(0, kir.Phase(phase.grid, _apart(phase.body)))
    kernel = vectorise(kernel, choose)
    if strewn is not None:
        return tile_grid(kernel, strewn, ROWS)
    return kernel if rival is None else tile_grid(kernel, rival, LINES * width)


def _strewn(phase: kir.Phase, best: kir.Axis) -> kir.Axis | None:
    """An axis along which data says where the next run of memory is."""
    for buffer, at in accesses(phase.body):
        if stride(buffer, at, best) != 1:
            continue
        data = {a for n in topological(at) if n.op is ops.LOAD for a in mentions(n)}
        for axis in phase.grid:
            if axis != best and axis.node in data and extent(axis) >= ROWS:
                return axis
    return None


def _together(phase: kir.Phase, axis: kir.Axis, most: int) -> int:
    """How many neighbours along an axis are written out, for what they have in common.

    All of a very short axis, if some loads are the same along it; and where it depends on the
    place what is computed, as many as there are kinds, at `most`, so that nothing is in vain.
    """
    if len(phase.grid) == 1:
        return 1
    inside = topological(e for s in kir.walk(phase.body) for e in kir.expressions(s))
    same = any(n.op is ops.LOAD and axis.node not in mentions(n) for n in inside)
    if same and axis.extent in range(1, UNROLLED + 1):
        return extent(axis)
    conditions = [n.inputs[0] for n in inside if n.op is ops.WHERE]
    periods = [_period(c, axis) for c in conditions if mentions(c) == {axis.node}]
    count = max((p for p in periods if 0 < p <= most), default=1)
    # What is left over needs a branch, and then another axis must do for the lanes of a vector.
    others = max(extent(a) for a in phase.grid if a != axis)
    left_over = not isinstance(axis.extent, int) or axis.extent % count
    return 1 if left_over and (affinity(phase.body, axis) > 0 or others <= KINDS) else count


def _period(condition: Node, axis: kir.Axis) -> int:
    """After how many points of an axis a condition repeats itself."""
    outside = topological([condition], lambda n: () if n.op is ops.MOD else n.inputs)
    cycles = [n for n in outside if n.op is ops.MOD]
    if axis.node in outside or not all(n.inputs[1].op is ops.CONST for n in cycles):
        return extent(axis)
    return max(int(n.inputs[1].attr) for n in cycles)


def _rival(phase: kir.Phase, best: kir.Axis, width: int) -> kir.Axis | None:
    """Another axis along which a buffer is contiguous that jumps along `best`."""
    for buffer, at in accesses(phase.body):
        if stride(buffer, at, best) in (0, 1, -1, None):
            continue
        for axis in phase.grid:
            if axis != best and extent(axis) >= width and stride(buffer, at, axis) == 1:
                return axis
    return None


def _is_contiguous(phase: kir.Phase, axis: kir.Axis) -> bool:
    """Whether neighbours along an axis are neighbours in some buffer."""
    return any(stride(buffer, at, axis) in (1, -1) for buffer, at in accesses(phase.body))


def _apart(body: kir.Body) -> kir.Body:
    """Loops around stores, with a loop of its own for every part."""
    (loop,) = body
    assert isinstance(loop, kir.Loop)
    if isinstance(loop.body[0], kir.Loop):
        return (replace(loop, body=_apart(loop.body)),)
    return tuple(replace(loop, body=part) for part in _parts(loop.body))


def _parts(body: kir.Body) -> list[kir.Body]:
    """Statements that share arrays; all of them, unless there are too many for one loop."""
    parts: list[tuple[set[kir.Buffer], list[int]]] = []
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


def _jump(phase: kir.Phase, axis: kir.Axis) -> int:
    """How far apart lies what is read for neighbours along an axis: in order, it is foreseen."""
    written = {s.buffer for s in kir.walk(phase.body) if isinstance(s, kir.Store)}
    reads = [(b, at) for b, at in accesses(phase.body) if b not in written]
    return sum(abs(stride(b, at, axis) or 0) * b.dtype.itemsize * elements(b) for b, at in reads)


def gather(kernel: kir.Kernel, axes: list[kir.Axis], done: int, number: int = 0) -> kir.Kernel:
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
