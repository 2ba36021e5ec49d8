"""The schedule rules of CPUs, in order: the first that matches a kernel schedules it."""

from __future__ import annotations

from genesis.backends.base import Chip
from genesis.compiler.passes import Rule, Rules
from genesis.compiler.schedule.attention_backward_parts import attention_backward
from genesis.compiler.schedule.attention_parts import AttentionParts, attention, heads_in_groups
from genesis.compiler.schedule.contraction_operands import Operands, operands, recognise
from genesis.compiler.schedule.cpu.attention import attend
from genesis.compiler.schedule.cpu.attention_backward import attend_backward
from genesis.compiler.schedule.cpu.attention_decode import decode, few
from genesis.compiler.schedule.cpu.column_sums import total
from genesis.compiler.schedule.cpu.contraction.bf16_pairs import paired
from genesis.compiler.schedule.cpu.contraction.contraction import contract
from genesis.compiler.schedule.cpu.contraction.gemv import gemv, is_gemv
from genesis.compiler.schedule.cpu.contraction.int8_dot import dot, dots
from genesis.compiler.schedule.cpu.contraction.int8_repack import quads, repack
from genesis.compiler.schedule.cpu.pointwise import pointwise
from genesis.compiler.schedule.cpu.prefix import prefix
from genesis.compiler.schedule.cpu.rows import rows
from genesis.compiler.schedule.cpu.scatter import scatter, updated
from genesis.compiler.schedule.rules import (
    as_it_is,
    has_loops,
    join_axes,
    masked_stores,
    of_pattern,
    on_any,
)
from genesis.ir.kernel import Kernel
from genesis.ir.pattern import ColumnSums, Prefix


def _few_queries(kernel: Kernel, chip: Chip) -> AttentionParts | None:
    found = attention(kernel)
    return found if found is not None and few(found) else None


def _gemv(kernel: Kernel, chip: Chip) -> Operands | None:
    found = operands(kernel)
    return found if found is not None and is_gemv(found, chip) else None


def _contract(kernel: Kernel, found: Operands, chip: Chip) -> Kernel:
    kernel, found, before = paired(kernel, found, chip)
    done = contract(kernel, found, chip)
    return done.with_phases([*before, *done.phases])


RULES: Rules = (
    recognise,
    Rule("column sums", of_pattern(ColumnSums), total),
    heads_in_groups,
    Rule("attention decode", _few_queries, decode),
    Rule("attention", on_any(attention), attend),
    Rule("attention backward", on_any(attention_backward), attend_backward),
    Rule("int8 dot", on_any(dots), dot),
    Rule("int8 repack", on_any(quads), repack),
    join_axes,
    Rule("scatter", on_any(updated), scatter),
    Rule("masked stores", on_any(masked_stores), as_it_is),
    Rule("GEMV", _gemv, gemv),
    Rule("contraction", on_any(operands), _contract),
    Rule("prefix", of_pattern(Prefix), prefix),
    Rule("rows", on_any(has_loops), lambda kernel, _, chip: rows(kernel, chip)),
    Rule("pointwise", lambda *_: True, lambda kernel, _, chip: pointwise(kernel, chip)),
)

__all__ = ["RULES"]
