"""Schedules for chips of many threads.

The recipes are those of any chip (pointwise, rows, prefix, scatter, contraction, streamed softmax),
made of the same steps, with other numbers: a block is a *tile* of about a thousand elements that
hundreds of threads do at once, and what is past the end of an axis is masked rather than peeled.
"""

from __future__ import annotations

from genesis.backends.base import GPU
from genesis.compiler.schedule.cpu.attention import in_groups, streaming
from genesis.compiler.schedule.cpu.attention_backward import sweeping
from genesis.compiler.schedule.cpu.contraction.int8_dot import dots
from genesis.compiler.schedule.gpu.attention import attend
from genesis.compiler.schedule.gpu.attention_backward import sweep
from genesis.compiler.schedule.gpu.attention_decode import decode, few
from genesis.compiler.schedule.gpu.attention_warp_specialised import Grouped, grouped
from genesis.compiler.schedule.gpu.contraction import contract
from genesis.compiler.schedule.gpu.hoist_loads import early
from genesis.compiler.schedule.gpu.int8_dot import dot
from genesis.compiler.schedule.gpu.load_cse import share
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.rows import prefix, rows
from genesis.compiler.schedule.gpu.scatter import scatter
from genesis.compiler.schedule.recipes import Recipes
from genesis.compiler.schedule.steps.tile import unroll_single
from genesis.ir.kernel import Kernel

RECIPES = Recipes[GPU](scatter, contract, prefix, rows, pointwise)


def schedule(kernel: Kernel, chip: GPU) -> Kernel:
    """A schedule for `kernel` that suits `chip`, chosen by rule."""
    if any(axis.extent == 0 for phase in kernel.phases for axis in phase.grid):
        return kernel  # nothing runs
    bytes_ = dots(kernel)
    if bytes_ is not None:  # not shared: bytes are read as words, which a renderer finds
        return early(unroll_single(dot(kernel, bytes_, chip)))
    return early(share(unroll_single(_recipe(kernel, chip))))


def _recipe(kernel: Kernel, chip: GPU) -> Kernel:
    kernel = in_groups(kernel)
    streamed = streaming(kernel)
    if streamed is not None:
        if grouped(streamed, chip):
            return Grouped(streamed, chip).kernel(kernel)
        return (decode if few(streamed, chip) else attend)(kernel, streamed)
    swept = sweeping(kernel)
    if swept is not None:
        return sweep(kernel, swept, chip)
    return RECIPES.apply(kernel, chip)


__all__ = ["schedule"]
