"""Splitting axes: a sum that reads an axis by its digits has an axis for each of them.

Heads that were joined, phases of a transposed convolution that were laid side by side: what is
computed behind such a reshape visits ``i``, and the product before it needs ``i // 64`` and
``i % 64``. As axes of their own these are rows, columns or batches, as without the reshape.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from genesis.compiler.schedule.contraction_operands import summation
from genesis.compiler.schedule.steps.queries import factors
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, topological


def delinearize_axes(kernel: kir.Kernel) -> kir.Kernel:
    """A contraction with an axis for each digit of those that both of its factors divide.

    Where one of them does alone, that is how it lies in memory: a weight in blocks of columns, say.
    """
    sums = summation(kernel)
    if sums is None:
        return kernel
    (phase,), (_, carry) = kernel.phases, sums
    orders = [topological([factor]) for factor in factors(carry)]
    digits = {axis: _digits(axis, [*orders[0], *orders[1]]) for axis in phase.grid}
    digits = {
        axis: parts
        for axis, parts in digits.items()
        if len(parts) > 1 and all(len(_digits(axis, order)) > 1 for order in orders)
    }
    if not digits:
        return kernel
    grid = tuple(new for axis in phase.grid for new, _ in digits.get(axis, [(axis, 1)]))
    turned: dict[Node, Node] = {}
    for axis, parts in digits.items():
        total = kir.as_index(0)
        for new, stride in parts:
            total = total + new.node * stride
        turned[axis.node] = total
    return kernel.with_phase(0, kir.Phase(grid, respecialise(phase.body, turned)))


def _digits(axis: kir.Axis, order: list[Node]) -> list[tuple[kir.Axis, int]]:
    """The digits of an axis with what each counts, the most significant first."""
    if not isinstance(axis.extent, int) or not axis.extent:
        return []
    strides = {axis.node: 1}  # what ``axis // stride`` is, for every such node
    cuts = {1, axis.extent}
    for n in order:
        if n.op not in (ops.FLOORDIV, ops.MOD) or n.inputs[0] not in strides:
            continue
        if n.inputs[1].op is not ops.CONST or n.inputs[1].attr < 1:
            return []
        cut = strides[n.inputs[0]] * n.inputs[1].attr
        cuts.add(cut)
        if n.op is ops.FLOORDIV:
            strides[n] = cut
    ends = sorted(cuts)
    if any(high % low for low, high in pairwise(ends)):
        return []
    found = [
        (replace(axis, name=f"{axis.name}d{k}", extent=high // low), low)
        for k, (low, high) in enumerate(pairwise(ends))
    ]
    return found[::-1]
