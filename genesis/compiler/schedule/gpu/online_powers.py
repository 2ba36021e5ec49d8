"""A greatest element and the sum of powers relative to it, in one loop instead of two.

A softmax of a row that no tile holds would read it once for its greatest element and again for the
sum. Instead the sum is kept relative to the greatest element so far, and made smaller when that
changes. Where the greatest of all is infinite or NaN, the sum is what its own power says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, const, elementwise, mentions
from genesis.ir.rewrite import replaced


def online_powers(body: Sequence[kir.Statement]) -> tuple[kir.Statement, ...]:
    """A body with such loops, which follow each other, as one."""
    done: list[kir.Statement] = []
    for s in body:
        joint = _joint(done[-1], s) if done else None
        if joint is None:
            done.append(s)
        else:
            done[-1:] = joint
    return tuple(done)


def _joint(first: kir.Statement, second: kir.Statement) -> tuple[kir.Statement, ...] | None:
    """The loop that does the work of two, and what its sum is."""
    if not (isinstance(first, kir.Loop) and isinstance(second, kir.Loop)):
        return None
    if first.body or second.body or len(first.carried) != 1 or len(second.carried) != 1:
        return None
    (peak,), (total,) = first.carried, second.carried
    merges = first.merge, second.merge
    folds = [m and kir.simple_fold(m) for m in merges]
    if folds != [ops.MAX, ops.ADD] or first.axis.extent != second.axis.extent:
        return None
    greatest, power = (_other(c) for c in (peak, total))
    if greatest is None or power is None or power.op is not ops.EXP:
        return None
    difference = power.inputs[0]
    if difference.op is not ops.SUB or difference.dtype is not peak.local.dtype:
        return None
    element, base = difference.inputs
    own = replaced(element, {second.axis.node: first.axis.node})
    at_peak = mentions(base) - {peak.local.node}
    if own is not greatest or second.axis.node in at_peak or peak.local.node not in mentions(base):
        return None
    if power.dtype is not total.local.dtype or total.init.op is not ops.CONST:
        return None
    raw = replace(total.local, name=f"{total.local.name}raw")
    highest, states = peak.local.node, (peak, replace(total, local=raw))
    carried = tuple(
        replace(c, step=x) for c, x in zip(states, _step(highest, raw.node, own), strict=True)
    )
    left, right = (
        tuple(replace(c.local, name=f"{side}{k}") for k, c in enumerate(states))
        for side in ("left", "right")
    )
    merge = kir.Merge(left, right, _merged(*(v.node for v in (*left, *right))))
    finite = elementwise(ops.ABS, highest) < const(inf, highest.dtype)
    alone = elementwise(ops.EXP, highest - base)
    value = elementwise(ops.WHERE, finite, raw.node, alone)
    return kir.Loop(first.axis, (), carried, merge), kir.Let(total.local, value)


def _other(c: kir.Carry) -> Node | None:
    """What a step puts together with the carried value."""
    if c.step.op not in (ops.MAX, ops.ADD) or c.local.node not in c.step.inputs:
        return None
    a, b = c.step.inputs
    found = b if a is c.local.node else a
    return None if c.local.node in mentions(found) else found


def _step(peak: Node, total: Node, element: Node) -> tuple[Node, ...]:
    """The states with one more element: of the two powers relative to the greater, one is 1."""
    power = _power(-elementwise(ops.ABS, element - peak), elementwise(ops.EQ, peak, element))
    higher, lower = total * power + const(1, power.dtype), total + power
    return (
        elementwise(ops.MAX, peak, element),
        elementwise(ops.WHERE, peak < element, higher, lower),
    )


def _merged(peak: Node, total: Node, other: Node, others: Node) -> tuple[Node, ...]:
    """Two states as one, whichever comes first."""
    both = elementwise(ops.MAX, peak, other)
    parts = (
        sum_ * _power(x - both, elementwise(ops.EQ, x, both))
        for x, sum_ in ((peak, total), (other, others))
    )
    return both, elementwise(ops.ADD, *parts)


def _power(difference: Node, same: Node) -> Node:
    """e to the power of a difference; 1 where that is of equal infinities."""
    one = const(1, difference.dtype)
    return elementwise(ops.WHERE, same, one, elementwise(ops.EXP, difference))
