"""Schedule: how a kernel runs on a chip.

A chip has an ordered list of rules (`schedule/cpu/rules.py`, `schedule/gpu/rules.py`), and the
first that matches a plain kernel schedules it. What a rule matches is mostly the kernel's pattern,
which fusion knew and lowering said (`genesis.ir.pattern`). Between the rules are steps that every
kernel goes through that has come so far. A rule is made of short steps, too, each of which prints.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from genesis.backends.base import Chip
from genesis.compiler.chip_passes import Passes, Rule, passes_of
from genesis.ir.kernel import Kernel


def schedule(kernel: Kernel, chip: Chip, passes: Passes | None = None) -> Kernel:
    """A schedule for `kernel` that suits `chip`, by the first rule of `passes` that matches.

    They are the chip's own unless others are given.
    """
    passes = passes or passes_of(chip)
    rule, kernel, found = matched(kernel, chip, passes)
    kernel = rule.apply(kernel, found, chip)
    for step in passes.steps if rule.steps is None else rule.steps:
        kernel = step(kernel)
    return replace(kernel, pattern=None)


def matched(kernel: Kernel, chip: Chip, passes: Passes) -> tuple[Rule[Any, Any], Kernel, Any]:
    """The first rule that matches, the kernel as it reaches it, and what the rule finds in it."""
    for rule in passes.rules:
        if not isinstance(rule, Rule):
            kernel = rule(kernel)
            continue
        found = rule.match(kernel, chip)
        if found is not None:
            return rule, kernel, found
    raise NotImplementedError(f"no schedule rule for {chip.name} matches {kernel.name}")
