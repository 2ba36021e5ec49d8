"""Guard: make a kernel safe to run although not everything about it could be proven.

The checks are put into the kernel IR itself, as masks and loops. So a renderer knows nothing of
them, and a kernel that is proven pays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from genesis.compiler.verify.kernel import ClaimKind, UnprovenKernel, Verdict
from genesis.ir import kernel as kir
from genesis.ir.node import Node, both, topological


def guard(kernel: kir.Kernel, verdict: Verdict) -> kir.Kernel:
    """A kernel that is safe to run although claims about it are unknown.

    Accesses that may leave their buffer or overflow get their bounds as part of the mask. Where
    blocks may meet, they run one after the other. A refuted claim, or a donation that is not
    proven, raises `UnprovenKernel`: the second is cured by not donating.
    """
    if verdict.refuted or any(c.kind is ClaimKind.DONATION for c in verdict.unknown):
        raise UnprovenKernel(str(verdict))
    kinds = {c.kind for c in verdict.unknown}
    checked = {
        c.source
        for c in verdict.unknown
        if c.kind in (ClaimKind.BOUNDS, ClaimKind.OVERFLOW) and c.source is not None
    }
    rewriter = _Guard(checked)
    return kernel.with_phases(
        rewriter.phase(p, serial=ClaimKind.RACE in kinds) for p in kernel.phases
    )


class _Guard:
    """Rewrites bodies so that the accesses in `checked` stay in bounds."""

    def __init__(self, checked: set[Node | kir.Store]) -> None:
        self.checked = checked
        self.done: dict[Node, Node] = {}

    def phase(self, phase: kir.Phase, serial: bool) -> kir.Phase:
        if not serial:
            return kir.Phase(phase.grid, self.body(phase.body))
        axes = [self.axis(a) for a in phase.grid]
        return kir.Phase((), kir.nest(axes, self.body(phase.body)))

    def axis(self, axis: kir.Axis) -> kir.Axis:
        made = kir.Axis.loop(axis.name, self._index(axis.extent))
        self.done[axis.node] = made.node
        return made

    def body(self, body: kir.Body) -> kir.Body:
        made: list[kir.Statement] = []
        for s in body:
            if isinstance(s, kir.Loop):
                inits = [self.change(c.init) for c in s.carried]
                axis, inner = self.axis(s.axis), self.body(s.body)
                carried = tuple(
                    kir.Carry(c.local, init, self.change(c.step))
                    for c, init in zip(s.carried, inits, strict=True)
                )
                made.append(replace(s, axis=axis, body=inner, carried=carried))
            elif isinstance(s, kir.If):
                made.append(
                    kir.If(self.change(s.condition), self.body(s.body), self.body(s.orelse))
                )
            else:
                (changed,) = kir.map_expressions((s,), self.change)
                if isinstance(changed, kir.Store) and s in self.checked:
                    inside = _inside(changed.buffer, changed.index)
                    changed = replace(changed, mask=both(inside, changed.mask))
                made.append(changed)
        return tuple(made)

    def change(self, root: Node) -> Node:
        for n in topological([root], lambda m: () if m in self.done else m.inputs):
            if n not in self.done:
                inputs = tuple(self.done[i] for i in n.inputs)
                if n in self.checked:
                    *indices, mask, other = inputs
                    inputs = (*indices, both(_inside(n.attr, indices), mask), other)
                self.done[n] = n.with_inputs(inputs)
        return self.done[root]

    def _index(self, value: kir.Index) -> kir.Index:
        return self.change(value) if isinstance(value, Node) else value


def _inside(buffer: kir.Buffer, indices: Sequence[Node]) -> Node:
    """Whether an element exists, as a condition of the kernel."""
    conditions = [
        both(kir.as_index(0) <= i, i < kir.as_index(extent))
        for i, extent in zip(indices, buffer.shape, strict=True)
    ]
    inside = conditions[0] if conditions else kir.as_index(0) <= 0
    for c in conditions[1:]:
        inside = both(inside, c)
    return inside
