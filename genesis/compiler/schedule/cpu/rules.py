"""The schedule rules of CPUs, in order: the first that matches a kernel schedules it."""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.base import Chip
from genesis.compiler.chip_passes import Rule, Rules
from genesis.compiler.schedule import conditions
from genesis.compiler.schedule.attention_parts import attention, attention_backward, heads_in_groups
from genesis.compiler.schedule.contraction_operands import Operands, operands, recognise, weights
from genesis.compiler.schedule.cpu.attention import attend
from genesis.compiler.schedule.cpu.attention_backward import attend_backward
from genesis.compiler.schedule.cpu.attention_decode import decode, few
from genesis.compiler.schedule.cpu.column_sums import total
from genesis.compiler.schedule.cpu.contraction.bf16_pairs import paired
from genesis.compiler.schedule.cpu.contraction.contraction import contract, weigh
from genesis.compiler.schedule.cpu.contraction.gemv import gemv, is_gemv, is_narrow, narrow
from genesis.compiler.schedule.cpu.contraction.int8_dot import dot, quads, repack
from genesis.compiler.schedule.cpu.pointwise import pointwise
from genesis.compiler.schedule.cpu.prefix import prefix
from genesis.compiler.schedule.cpu.reductions import rows
from genesis.compiler.schedule.cpu.scatter import scatter
from genesis.compiler.schedule.int8_dot_parts import dots
from genesis.compiler.schedule.scatter_parts import updated
from genesis.compiler.schedule.steps.delinearize_axes import delinearize_axes
from genesis.compiler.schedule.steps.join_axes import join_axes
from genesis.ir.kernel import Kernel
from genesis.ir.pattern import ColumnSums, Prefix


def _in_pairs(
    apply: Callable[[Kernel, Operands, Chip], Kernel],
) -> Callable[[Kernel, Operands, Chip], Kernel]:
    """A way to schedule contractions, after bfloat16 is put together in words."""

    def applied(kernel: Kernel, found: Operands, chip: Chip) -> Kernel:
        kernel, found, before = paired(kernel, found, chip)
        done = apply(kernel, found, chip)
        *packing, compute = done.phases  # what weights are packed by comes first, and is kept
        return done.with_phases([*packing, *before, compute])

    return applied


RULES: Rules = (
    Rule(
        "nothing runs",
        conditions.provided(conditions.nothing_runs),
        conditions.as_it_is,
        steps=(),
    ),
    recognise,
    delinearize_axes,
    Rule("column sums", conditions.of_pattern(ColumnSums), total),
    heads_in_groups,
    Rule("attention decode", conditions.when(attention, few), decode),
    Rule("attention", conditions.when(attention), attend),
    Rule("attention backward", conditions.when(attention_backward), attend_backward),
    Rule("int8 dot", conditions.when(dots), dot),
    Rule("int8 repack", conditions.when(quads), repack),
    join_axes,
    Rule("scatter", conditions.when(updated), scatter),
    Rule(
        "masked stores",
        conditions.provided(conditions.masked_stores),
        conditions.as_it_is,
    ),
    Rule("narrow constant weights", conditions.when(weights, is_narrow), narrow),
    Rule("constant weights", conditions.when(weights), _in_pairs(weigh)),
    Rule("GEMV", conditions.when(operands, is_gemv), gemv),
    Rule("contraction", conditions.when(operands), _in_pairs(contract)),
    Rule("prefix", conditions.of_pattern(Prefix), prefix),
    Rule(
        "rows",
        conditions.provided(conditions.has_loops),
        lambda kernel, _, chip: rows(kernel, chip),
    ),
    Rule("pointwise", lambda *_: True, lambda kernel, _, chip: pointwise(kernel, chip)),
)
