"""Schedule: how a kernel runs on a chip.

`schedule` looks at a plain kernel and picks a recipe: *pointwise* (every element on its own),
*rows* (reductions along a row, or across rows), *prefix* (running states), *scatter* (writes where
data says), *contraction* (register tiles over packed panels), *attention* (streamed softmax),
*decode* (the same with few queries) and *sweep* (the gradients of attention).
A recipe is a short list of steps from `steps`, each of which prints. Chips of many threads have
recipes of their own, in `gpu`.
"""

from __future__ import annotations

from genesis.backends.base import GPU, Chip
from genesis.compiler.schedule import gpu
from genesis.compiler.schedule.attention import attend, in_groups, streaming
from genesis.compiler.schedule.contraction import contract
from genesis.compiler.schedule.decode import decode, few
from genesis.compiler.schedule.hoist import hoist
from genesis.compiler.schedule.pointwise import pointwise
from genesis.compiler.schedule.prefix import prefix
from genesis.compiler.schedule.recipes import Recipes
from genesis.compiler.schedule.rows import rows
from genesis.compiler.schedule.scatter import scatter
from genesis.compiler.schedule.steps import unroll_single
from genesis.compiler.schedule.sweep import sweep, sweeping
from genesis.ir.kernel import Kernel

RECIPES = Recipes[Chip](scatter, contract, prefix, rows, pointwise)


def schedule(kernel: Kernel, chip: Chip) -> Kernel:
    """A schedule for `kernel` that suits `chip`, chosen by rule."""
    if isinstance(chip, GPU):
        return gpu.schedule(kernel, chip)
    return hoist(unroll_single(_recipe(kernel, chip)))


def _recipe(kernel: Kernel, chip: Chip) -> Kernel:
    kernel = in_groups(kernel)
    streamed = streaming(kernel)
    if streamed is not None:
        return (decode if few(streamed) else attend)(kernel, streamed, chip)
    swept = sweeping(kernel)
    if swept is not None:
        return sweep(kernel, swept, chip)
    return RECIPES.apply(kernel, chip)
