"""Which recipe a kernel gets, on any chip: what differs between chips is the recipes themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import Operands, operands
from genesis.compiler.schedule.cpu.attention import stores_once
from genesis.compiler.schedule.cpu.prefix import carries_prefix
from genesis.compiler.schedule.cpu.scatter import Updates, updated
from genesis.compiler.schedule.steps.join_axes import flatten, merge_axes
from genesis.ir.kernel import Kernel, Loop, walk

C = TypeVar("C", bound=Chip)


@dataclass(frozen=True)
class Recipes(Generic[C]):
    """A chip's recipes for kernels that stream nothing."""

    scatter: Callable[[Kernel, Updates, C], Kernel]
    contract: Callable[[Kernel, Operands, C], Kernel]
    prefix: Callable[[Kernel, C], Kernel]
    rows: Callable[[Kernel, C], Kernel]
    pointwise: Callable[[Kernel, C], Kernel]

    def apply(self, kernel: Kernel, chip: C) -> Kernel:
        """`kernel` by the recipe for its kind."""
        kernel = merge_axes(flatten(kernel))
        updates = updated(kernel)
        if updates is not None:
            return self.scatter(kernel, updates, chip)
        if stores_once(kernel):  # in one column, which a tile of columns cannot
            return kernel
        found = operands(kernel)
        if found is not None:
            return self.contract(kernel, found, chip)
        if carries_prefix(kernel):
            return self.prefix(kernel, chip)
        loops = any(isinstance(s, Loop) for s in walk(kernel.phases[0].body))
        return (self.rows if loops else self.pointwise)(kernel, chip)
