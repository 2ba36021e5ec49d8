"""The schedule rules of GPUs, in order: the first that matches a kernel schedules it.

They are those of any chip, made of the same steps, with other numbers: a block is a *tile* of about
a thousand elements that hundreds of threads do at once, and what is past the end of an axis is
masked rather than peeled.
"""

from __future__ import annotations

from genesis.compiler.chip_passes import Rule, Rules
from genesis.compiler.schedule import conditions
from genesis.compiler.schedule.attention_parts import attention, attention_backward, heads_in_groups
from genesis.compiler.schedule.contraction_operands import operands, recognise
from genesis.compiler.schedule.gpu.attention import attend
from genesis.compiler.schedule.gpu.attention_backward import attend_backward
from genesis.compiler.schedule.gpu.attention_decode import decode, few
from genesis.compiler.schedule.gpu.attention_warp_specialised import attend_grouped, grouped
from genesis.compiler.schedule.gpu.contraction import contract, groups_apart
from genesis.compiler.schedule.gpu.hoist_loads import hoist_loads
from genesis.compiler.schedule.gpu.int8_dot import dot
from genesis.compiler.schedule.gpu.load_cse import eliminate_common_loads
from genesis.compiler.schedule.gpu.pointwise import pointwise
from genesis.compiler.schedule.gpu.rows import join_alike, prefix, rows
from genesis.compiler.schedule.gpu.scatter import scatter
from genesis.compiler.schedule.int8_dot_parts import dots
from genesis.compiler.schedule.scatter_parts import updated
from genesis.compiler.schedule.steps.loop_transforms import unroll_single
from genesis.ir.pattern import Prefix

RULES: Rules = (
    Rule(
        "nothing runs",
        conditions.provided(conditions.nothing_runs),
        conditions.as_it_is,
        steps=(),
    ),
    recognise,
    # Loads are not shared: bytes are read as words, which a renderer finds.
    Rule("int8 dot", conditions.when(dots), dot, steps=(unroll_single, hoist_loads)),
    heads_in_groups,
    Rule("attention, warp specialised", conditions.when(attention, grouped), attend_grouped),
    Rule("attention decode", conditions.when(attention, few), decode),
    Rule("attention", conditions.when(attention), attend),
    Rule("attention backward", conditions.when(attention_backward), attend_backward),
    join_alike,
    Rule("scatter", conditions.when(updated), scatter),
    Rule(
        "masked stores",
        conditions.provided(conditions.masked_stores),
        conditions.as_it_is,
    ),
    groups_apart,
    Rule("contraction", conditions.when(operands), contract),
    Rule("prefix", conditions.of_pattern(Prefix), prefix),
    Rule(
        "rows",
        conditions.provided(conditions.has_loops),
        lambda kernel, _, chip: rows(kernel, chip),
    ),
    Rule("pointwise", lambda *_: True, lambda kernel, _, chip: pointwise(kernel, chip)),
)
STEPS = (unroll_single, eliminate_common_loads, hoist_loads)
