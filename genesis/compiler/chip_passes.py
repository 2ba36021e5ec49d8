"""What the compiler does for a kind of chip: the passes over graphs, fusion, and schedule rules.

A chip names its passes (`genesis.backends.base.Chip.passes`), so a backend outside of the tree
brings its own, or adds to those of another chip, and nothing here is edited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from genesis.backends.base import Chip
from genesis.compiler.options import Options
from genesis.ir.kernel import Kernel
from genesis.ir.node import Node

F = TypeVar("F")
C = TypeVar("C", bound=Chip)

#: A rewriting of kernels that suits whatever it is given.
Step = Callable[[Kernel], Kernel]


@dataclass(frozen=True)
class Rule(Generic[F, C]):
    """A way to schedule kernels of a kind: what is found in one, and what is made of that.

    `match` gives None for a kernel of another kind, or one that another rule suits better.
    """

    name: str
    match: Callable[[Kernel, C], F | None]
    apply: Callable[[Kernel, F, C], Kernel]
    steps: tuple[Step, ...] | None = None  # afterwards; None: those of the chip


#: Rules in order; a step between them is for every kernel that comes so far.
Rules = tuple[Rule[Any, Any] | Step, ...]


@dataclass(frozen=True)
class GraphPass:
    """A rewriting of graphs, unless the `option` of that name is off.

    It gives equivalent roots, and notes in a dictionary what nodes come from or have become.
    """

    name: str
    run: Callable[[Sequence[Node], dict[Node, Node]], Sequence[Node]]
    option: str = "simplify"

    def __call__(
        self, roots: Sequence[Node], noted: dict[Node, Node], options: Options
    ) -> Sequence[Node]:
        """The roots after the pass."""
        return self.run(roots, noted) if getattr(options, self.option) else roots


@dataclass(frozen=True)
class Fusing:
    """What fusion may do on a chip, each field a decision. By default: what suits any chip."""

    #: Sums of columns join a kernel that goes through the same rows one after the other.
    sum_columns_along: bool = False
    #: Reductions of rows join a kernel that visits the same rows element by element.
    reduce_rows_along: bool = False
    #: A long reduction of columns or pieces is a kernel of its own, not done by rows that use it.
    column_reductions_apart: bool = False
    #: What is the same in all rows of a tile is computed once for them.
    share_along_columns: bool = False
    #: One of several readers computes a value, and stores it for the others.
    store_for_others: bool = False
    #: What one kernel needs twice is computed in it rather than stored.
    repeat_in_kernel: bool = False
    #: A kernel more costs so many multiply-adds, and what costs less is computed again instead. 0:
    #: launches do not count.
    launch_price: int = 0
    #: 16-bit floats are made wider where they are used.
    widen_where_used: bool = False
    #: Operands of contractions that are rounded to 16 bits are stored so, and rounded once.
    round_operands_first: bool = False
    #: Operands of contractions that are padded to whole vectors are stored so.
    store_padded_operands: bool = False
    #: Operands of contractions that are few rows, of elements that lie apart, are stored so.
    store_few_rows: bool = False
    #: A product ends with what is made of it, rather than that being done where it meets another.
    finish_products: bool = False
    #: The gradients of attention are converted on the way to memory.
    convert_gradients: bool = False


@dataclass(frozen=True)
class Passes:
    """The passes of a chip, in the order of the pipeline; only rules are needed."""

    rules: Rules  # the first that matches schedules a kernel
    before_simplify: tuple[GraphPass, ...] = ()  # they note where nodes come from
    after_simplify: tuple[GraphPass, ...] = ()  # they note what nodes have become
    fusing: Fusing = Fusing()
    steps: tuple[Step, ...] = ()  # after any rule that has none of its own


def passes_of(chip: Chip) -> Passes:
    """The passes of a chip."""
    return _named(chip.passes)


@cache
def _named(name: str) -> Passes:
    found = resolve_name(name)
    if not isinstance(found, Passes):
        raise TypeError(f"{name} is not the passes of a chip")
    return found
