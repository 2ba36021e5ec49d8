"""What the compiler does for GPUs, whoever makes them."""

from __future__ import annotations

from genesis.compiler.chip_passes import Fusing, GraphPass, Passes
from genesis.compiler.graph.gpu.channels_last import channels_last
from genesis.compiler.graph.gpu.pad_rows import even
from genesis.compiler.graph.gpu.shifted_variance import shifted
from genesis.compiler.graph.gpu.sorted_scatter import sorted_rows
from genesis.compiler.schedule.gpu.rules import RULES, STEPS

PASSES = Passes(
    # GPUs multiply so fast that moving what is multiplied decides: channels last, and read once.
    before_simplify=(
        GraphPass("shifted variance", shifted),
        GraphPass("channels last", channels_last),
    ),
    after_simplify=(GraphPass("pad rows", even), GraphPass("sorted scatter", sorted_rows)),
    fusing=Fusing(
        column_reductions_apart=True,  # few blocks would go through everything
        share_along_columns=True,
        store_for_others=True,  # memory is what takes time
        repeat_in_kernel=True,  # in registers
        launch_price=1 << 22,  # all units at work
        widen_where_used=True,
        round_operands_first=True,
        store_padded_operands=True,
        finish_products=True,
        convert_gradients=True,
    ),
    rules=RULES,
    steps=STEPS,
)
