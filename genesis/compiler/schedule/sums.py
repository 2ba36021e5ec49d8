"""The summation loops of a contraction: their order, and where masks may fail.

A padded window is read under a mask. It costs least outside of the innermost loop; along an axis
of pixels it can fail only near the ends, which are summed apart.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.compiler.schedule.heuristics import extent
from genesis.compiler.schedule.operands import Operands, reach
from genesis.compiler.schedule.respecialise import static
from genesis.compiler.schedule.steps import interchange
from genesis.ir import ops
from genesis.ir.index import Linear, bounds, simplify
from genesis.ir.kernel import Axis, Body, Carry, Kernel, Loop, Phase, Statement, load_parts
from genesis.ir.node import mentions, topological
from genesis.ir.rewrite import substitute

#: Points of an innermost loop that are worth reading in order for.
LONG = 4


def innermost_last(kernel: Kernel, found: Operands) -> tuple[Kernel, Operands]:
    """Sum in the innermost loop over an axis that masks do not depend on, but for its ends.

    Masks of padded windows then stay out of it. Of such axes it is the one along which `left` is
    read in order, unless that is short.
    """
    inside = {a: unmasked(found, a) for a in found.sums}

    def rank(axis: Axis) -> tuple[int, int, int]:
        length = len(inside[axis])
        return min(length, LONG), -reach(found.left, axis), length

    order = sorted(found.sums, key=rank)
    if tuple(order) == found.sums:
        return kernel, found
    nest = interchange(found.loop, order)
    (phase,) = kernel.phases
    body = tuple(nest if s is found.loop else s for s in phase.body)
    kernel = kernel.with_phases([Phase(phase.grid, body)])
    return kernel, replace(found, loop=nest, sums=tuple(order))


def unmasked(found: Operands, axis: Axis) -> range:
    """The points of a summation axis at which no mask can fail because of it."""
    begin, end = 0, extent(axis)
    masks = [load_parts(n)[2] for n in topological([found.left, found.right]) if n.op is ops.LOAD]
    for mask in masks:
        for n in topological([mask], lambda n: n.inputs if n.op is ops.AND else ()):
            if n.op is ops.AND or axis.node not in mentions(n):
                continue
            if n.op not in (ops.LT, ops.LE) or static(axis.extent) is None:
                return range(0)
            a, b = map(Linear.of, n.inputs)
            room = b.plus(a, -1)  # the mask holds from `least` on
            least = 1 if n.op is ops.LT else 0
            slope = room.terms.pop(axis.node, 0)
            rest = room.emit()
            if axis.node in mentions(rest):
                return range(0)
            short = least - bounds(rest)[0]
            if slope > 0:
                begin = max(begin, -(-short // slope))
            if slope < 0:
                end = min(end, short // slope + 1)
    return range(begin, end)


def split_ends(body: Body, axis: Axis, inside: range) -> Body:
    """The loop over `axis` in three: its ends, where masks may fail, are apart."""
    result: list[Statement] = []
    for s in body:
        if not isinstance(s, Loop):
            result.append(s)
            continue
        if s.axis != axis:
            result.append(replace(s, body=split_ends(s.body, axis, inside)))
            continue
        pieces = {"first": range(inside.start), "": inside}
        pieces["last"] = range(inside.stop, extent(axis))
        pieces = {suffix: piece for suffix, piece in pieces.items() if piece}
        inits = [c.init for c in s.carried]
        for suffix, piece in pieces.items():
            part = replace(axis, name=axis.name + suffix, extent=len(piece))
            names = [c.local for c in s.carried]
            if piece is not [*pieces.values()][-1]:
                names = [replace(v, name=f"{v.name}{suffix or 'inside'}") for v in names]
            known = {axis.node: part.node + piece.start}
            known |= {c.local.node: v.node for c, v in zip(s.carried, names, strict=True)}
            steps = map(simplify, substitute([c.step for c in s.carried], known))
            result.append(replace(s, axis=part, carried=tuple(map(Carry, names, inits, steps))))
            inits = [v.node for v in names]
    return tuple(result)
