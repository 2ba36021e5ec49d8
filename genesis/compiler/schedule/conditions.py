"""What rules of several chips match, apart from the patterns that have modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from genesis.backends.base import Chip
from genesis.ir import ops
from genesis.ir.kernel import Kernel, Loop, Store, walk
from genesis.ir.node import TRUE, topological

F = TypeVar("F")
C = TypeVar("C", bound=Chip)


def of_pattern(kind: type[F]) -> Callable[[Kernel, Chip], F | None]:
    """Matches kernels of a pattern."""

    def match(kernel: Kernel, chip: Chip) -> F | None:
        return kernel.pattern if isinstance(kernel.pattern, kind) else None

    return match


def when(
    match: Callable[[Kernel], F | None], suits: Callable[[Any, C], bool] = lambda found, chip: True
) -> Callable[[Kernel, C], F | None]:
    """Matches the same on any chip, if what is found suits it."""

    def matches(kernel: Kernel, chip: C) -> F | None:
        found = match(kernel)
        return found if found is not None and suits(found, chip) else None

    return matches


def provided(holds: Callable[[Kernel], bool]) -> Callable[[Kernel, Chip], bool | None]:
    """Matches kernels for which something holds."""
    return lambda kernel, chip: holds(kernel) or None


def nothing_runs(kernel: Kernel) -> bool:
    """Whether the grid has no points."""
    return any(axis.extent == 0 for phase in kernel.phases for axis in phase.grid)


def masked_stores(kernel: Kernel) -> bool:
    """Whether something is stored at some points of the grid only, which tiles are not made for.

    Attention does that which is of a form not planned for, and keeps what it knows of rows.
    """
    (phase,) = kernel.phases
    masks = [s.mask for s in phase.body if isinstance(s, Store) and s.mask is not TRUE]
    return any(n.op is ops.AXIS for n in topological(masks))


def has_loops(kernel: Kernel) -> bool:
    """Whether there are loops inside the rows."""
    return any(isinstance(s, Loop) for s in walk(kernel.phases[0].body))


def as_it_is(kernel: Kernel, found: object, chip: Chip) -> Kernel:
    """The plain kernel."""
    return kernel
