"""The recipe for kernels without reductions: every element on its own.

The axis along which most accesses are neighbours becomes the innermost loop, in vectors; the rest
of a block's share comes from the axes outside it.
"""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.schedule.heuristics import BLOCK, affinity, extent, lanes, operations
from genesis.compiler.schedule.steps import sink, split_grid
from genesis.compiler.schedule.vectorise import vectorise
from genesis.ir.kernel import Axis, Kernel, Loop


def pointwise(kernel: Kernel, chip: Chip) -> Kernel:
    """Schedule a kernel whose body is only stores over its grid."""
    (phase,) = kernel.phases
    if not phase.grid:
        return kernel
    width = lanes(phase.body, chip)
    wide = [a for a in phase.grid if extent(a) >= width // 2] or list(phase.grid)
    best = max(wide, key=lambda a: (affinity(phase.body, a), extent(a)))
    # Short bodies need several vectors in flight to fill the machine, long ones fill it alone.
    unroll = 4 if operations(phase.body) <= 16 else 2 if operations(phase.body) <= 48 else 1
    while unroll > 1 and extent(best) < width * unroll:
        unroll //= 2
    tile = width * unroll
    inner = extent(best)
    others = [a for a in phase.grid if a != best]
    if inner > 2 * BLOCK or not isinstance(best.extent, int):
        kernel = split_grid(kernel, best, max(tile, BLOCK // tile * tile))
        inner = BLOCK
    else:
        kernel = sink(kernel, best)
    kernel = gather(kernel, others, inner)

    def choose(loop: Loop) -> int:
        return tile if loop.axis.name == best.name else 1

    return vectorise(kernel, choose)


def gather(kernel: Kernel, axes: list[Axis], done: int, number: int = 0) -> Kernel:
    """Move grid axes into the block, innermost first, until it has enough to do."""
    wanted = max(1, BLOCK // max(1, done))
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
