"""The recipe for kernels without reductions: tiles of elements that lie together.

A tile is as long as it can be along the axis on which most accesses are neighbours. Where another
buffer is contiguous along another axis (a transpose) it has sides of both; where an axis is short,
it goes on along the next.
"""

from __future__ import annotations

from genesis.backends.base import GPU
from genesis.compiler.schedule.gpu.tiles import TILE, free_axes, power, tile
from genesis.compiler.schedule.heuristics import accesses, affinity, extent, points, stride
from genesis.ir.kernel import Axis, Kernel, Phase

#: The longer side of a tile that is contiguous along two axes, and the least size of a tile.
SIDE = 64
LEAST = 128


def pointwise(kernel: Kernel, chip: GPU, number: int = 0) -> Kernel:
    """Schedule a phase whose blocks are independent, with what loops they have inside."""
    phase = kernel.phases[number]
    axes = sorted(free_axes(phase), key=lambda a: (affinity(phase.body, a), extent(a)))
    if not axes:
        return kernel
    wide = [a for a in axes if extent(a) >= 32] or axes
    best = wide[-1]
    axes.remove(best)
    # Few elements are shared among all multiprocessors, in tiles that still fill a warp or more.
    share = power(points(phase.grid) // (2 * chip.multiprocessors) + 1)
    left = max(LEAST, min(TILE, share))
    rival = _rival(phase, best)
    if rival is not None:
        left = min(2 * left, SIDE * SIDE // 2)
        kernel = tile(kernel, best, min(SIDE, power(extent(best))), number)
        axes = [rival]
        left = max(1, left // SIDE)
    else:
        width = min(left, power(extent(best)))
        kernel = tile(kernel, best, width, number)
        left //= width
    for axis in reversed(axes):
        if left > 1:
            width = min(left, power(extent(axis)))
            kernel = tile(kernel, axis, width, number)
            left //= width
    return kernel


def _rival(phase: Phase, best: Axis) -> Axis | None:
    """Another axis along which a buffer is contiguous that jumps along `best`."""
    for buffer, at in accesses(phase.body):
        if stride(buffer, at, best) in (0, 1, -1, None):
            continue
        for axis in free_axes(phase):
            if axis != best and extent(axis) >= 16 and stride(buffer, at, axis) == 1:
                return axis
    return None


__all__ = ["pointwise"]
