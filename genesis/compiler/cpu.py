"""What the compiler does for CPUs."""

from __future__ import annotations

from genesis.compiler.chip_passes import Fusing, GraphPass, Passes
from genesis.compiler.graph.cpu.few_pixels import few_pixels
from genesis.compiler.graph.cpu.winograd import winograd
from genesis.compiler.schedule.cpu.rules import RULES
from genesis.compiler.schedule.steps.hoist_invariants import hoist
from genesis.compiler.schedule.steps.loop_transforms import unroll_single

PASSES = Passes(
    # Where products decide, with fewer of them; where weights do, as these lie in memory.
    before_simplify=(
        GraphPass("few pixels", few_pixels),
        GraphPass("winograd", winograd, "winograd"),
    ),
    after_simplify=(),
    fusing=Fusing(sum_columns_along=True, reduce_rows_along=True, store_few_rows=True),
    rules=RULES,
    steps=(unroll_single, hoist),
)
