"""Schedule: how a kernel runs on a chip.

`schedule` looks at a plain kernel and picks a recipe: *pointwise* (every element on its own),
*rows* (reductions along a row, or across rows), *totals* (rows whose columns are summed on the
way), *prefix* (running states), *scatter* (writes where data says), *contraction* (register tiles
over packed panels), *attention* (streamed softmax), *decode* (the same with few queries), *sweep*
(the gradients of attention), *dots* (products of bytes, four at a time), *pairs* (of bfloat16, two
at a time) and *skinny* (a few rows times a large matrix).
A recipe is a short list of steps from `steps`, each of which prints. Chips of many threads have
recipes of their own, in `gpu`.
"""

from __future__ import annotations

from genesis.backends.base import GPU, Chip
from genesis.compiler.schedule import gpu
from genesis.compiler.schedule.contraction_operands import Operands
from genesis.compiler.schedule.cpu.attention import attend, in_groups, streaming
from genesis.compiler.schedule.cpu.attention_backward import sweep, sweeping
from genesis.compiler.schedule.cpu.attention_decode import decode, few
from genesis.compiler.schedule.cpu.column_sums import total, totals
from genesis.compiler.schedule.cpu.contraction.bf16_pairs import paired
from genesis.compiler.schedule.cpu.contraction.contraction import contract
from genesis.compiler.schedule.cpu.contraction.gemv import skinny
from genesis.compiler.schedule.cpu.contraction.int8_dot import dot, dots
from genesis.compiler.schedule.cpu.contraction.int8_repack import quads
from genesis.compiler.schedule.cpu.pointwise import pointwise
from genesis.compiler.schedule.cpu.prefix import prefix
from genesis.compiler.schedule.cpu.rows import rows
from genesis.compiler.schedule.cpu.scatter import scatter
from genesis.compiler.schedule.recipes import Recipes
from genesis.compiler.schedule.steps.hoist_invariants import hoist
from genesis.compiler.schedule.steps.tile import unroll_single
from genesis.ir.kernel import Kernel


def _contract(kernel: Kernel, found: Operands, chip: Chip) -> Kernel:
    done = skinny(kernel, found, chip)
    if done is not None:
        return done
    kernel, found, before = paired(kernel, found, chip)
    done = contract(kernel, found, chip)
    return done.with_phases([*before, *done.phases])


RECIPES = Recipes[Chip](scatter, _contract, prefix, rows, pointwise)


def schedule(kernel: Kernel, chip: Chip) -> Kernel:
    """A schedule for `kernel` that suits `chip`, chosen by rule."""
    if isinstance(chip, GPU):
        return gpu.schedule(kernel, chip)
    return hoist(unroll_single(_recipe(kernel, chip)))


def _recipe(kernel: Kernel, chip: Chip) -> Kernel:
    if totals(kernel):
        return total(kernel, chip)
    kernel = in_groups(kernel)
    streamed = streaming(kernel)
    if streamed is not None:
        return (decode if few(streamed) else attend)(kernel, streamed, chip)
    swept = sweeping(kernel)
    if swept is not None:
        return sweep(kernel, swept, chip)
    bytes_ = dots(kernel)
    if bytes_ is not None:
        return dot(kernel, bytes_)
    return quads(kernel) or RECIPES.apply(kernel, chip)
