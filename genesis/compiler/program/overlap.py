"""The order of launches around collectives: begin early, wait late.

A collective goes on while kernels run, from its own place to the first that reads its results. So
it comes as soon as what it sends is there, and what waits for it lets others go first, as long as
those go on with something that is there already: work that starts from inputs alone, and could as
well be done later, would only take memory. What is gathered of inputs is begun one gathering ahead:
when what was gathered before is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.scan import Steps
from genesis.compiler.program.kernel_order import results_of
from genesis.ir.node import Node


def overlapped(order: Sequence[int], steps: Steps) -> list[int]:
    """The steps in an order in which collectives overlap with what does not need them."""
    if not any(is_collective(steps[k]) for k in order):
        return list(order)
    return _Queue(order, steps).run()


def is_collective(step: object) -> bool:
    """Whether a step is a collective between processes."""
    return isinstance(step, LoweredCall) and step.call.is_collective


class _Queue:
    """Steps that are still to come, in the order that was wanted, and what has been done."""

    def __init__(self, order: Sequence[int], steps: Steps) -> None:
        self._steps, self._left = steps, list(order)
        self._done: list[int] = []
        self._flying: dict[int, set[Node]] = {}  # collectives, and the results that they owe
        self._ahead: dict[int, set[Node]] = {}  # what was gathered and nobody has used yet
        self._computed = {n for step in steps for n in results_of(step)}
        self._reads = {k: _reads(steps[k]) for k in order}
        self._sending = self._senders(order)
        written: dict[Node, int] = {}
        # What a step overwrites must have been read by those that came before it.
        readers: dict[Node, list[int]] = {}
        self._missing: dict[int, set[int]] = {}
        for k in order:
            reads, writes = self._reads[k], results_of(steps[k])
            needs = {written[n] for n in (*reads, *writes) if n in written}
            needs |= {r for n in writes for r in readers.pop(n, ())}
            for n in reads:
                readers.setdefault(n, []).append(k)
            written |= dict.fromkeys(writes, k)
            self._missing[k] = needs - {k}

    def _senders(self, order: Sequence[int]) -> set[int]:
        """The collectives, and what is computed for nobody but them."""
        sent = {n for k in order if is_collective(self._steps[k]) for n in self._reads[k]}
        others = [k for k in order if not is_collective(self._steps[k])]
        kept = {n for k in others for n in self._reads[k]}
        found = {k for k in others if sent.issuperset(results_of(self._steps[k]))}
        return {
            k for k in order
            if is_collective(self._steps[k])
            or (k in found and kept.isdisjoint(results_of(self._steps[k])))
        }  # fmt: skip

    def run(self) -> list[int]:
        """All steps."""
        while self._left:
            self._take(self._next())
        return self._done

    def _next(self) -> int:
        """What comes next: what is sent and ready, else the first step that waits for nothing."""
        ready = [k for k in self._left if not self._missing[k]]
        sending = [k for k in ready if k in self._sending and self._goes_on(k)]
        if sending:
            return sending[0]
        first = ready[0]
        while self._waits(first):
            others = [k for k in ready if not self._waits(k) and self._goes_on(k)]
            if others:
                return others[0]
            del self._flying[next(iter(self._flying))]  # nothing else to do but wait
        return first

    def _take(self, k: int) -> None:
        used = [g for g, owed in self._ahead.items() if not owed.isdisjoint(self._reads[k])]
        for gathering in used:
            del self._ahead[gathering]
        if used and not self._ahead:
            self._prefetch()
        self._left.remove(k)
        self._done.append(k)
        for needs in self._missing.values():
            needs.discard(k)
        if is_collective(self._steps[k]):
            self._flying[k] = set(results_of(self._steps[k]))
            if not self._goes_on(k):
                self._ahead[k] = self._flying[k]

    def _prefetch(self) -> None:
        """Begin to gather what is needed next."""
        following = (k for k in self._left if is_collective(self._steps[k]))
        k = next((k for k in following if not self._goes_on(k)), None)
        if k is not None and not self._missing[k]:
            self._take(k)

    def _waits(self, k: int) -> bool:
        """Whether a step reads what a collective still owes."""
        return any(not owed.isdisjoint(self._reads[k]) for owed in self._flying.values())

    def _goes_on(self, k: int) -> bool:
        """Whether a step works on something that was computed."""
        return not self._computed.isdisjoint(self._reads[k])


def _reads(step: Any) -> list[Node]:
    """The values that a step reads, but does not write; kernels list both."""
    written = set(results_of(step))
    return [n for n in step.arguments if n not in written]
