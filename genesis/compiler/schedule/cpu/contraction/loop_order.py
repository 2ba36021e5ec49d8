"""The summation loops of a contraction: their order, and where masks may fail.

A padded window is read under a mask. Where a block decides it as a whole, taps outside are not
summed at all. What is left costs least outside of the innermost loop; along an axis of pixels it
can fail only near the ends, which are summed apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.compiler.schedule.contraction_operands import Operands, reach
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.loop_transforms import interchange
from genesis.compiler.schedule.steps.queries import extent
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import LinearIndex, bounds, fixed, least, simplify, static
from genesis.ir.node import TRUE, Node, elementwise, is_const, mentions, topological
from genesis.ir.rewrite import substitute

#: Points of an innermost loop that are worth reading in order for.
LONG = 4
#: Points of a loop that may be written out.
TAPS = 5


def innermost_last(kernel: kir.Kernel, found: Operands) -> tuple[kir.Kernel, Operands]:
    """Sum in the innermost loop over an axis that masks do not depend on, but for its ends.

    Masks of padded windows then stay out of it. Of such axes it is the one along which `left` is
    read in order, unless that is short.
    """
    inside = {a: unmasked(found, a) for a in found.sums}

    def rank(axis: kir.Axis) -> tuple[int, int, int]:
        length = len(inside[axis])
        return min(length, LONG), -reach(found.left, axis), length

    order = sorted(found.sums, key=rank)
    inner = decide("inner", [a.name for a in reversed(order)])
    order.sort(key=lambda a: a.name == inner)
    if tuple(order) == found.sums:
        return kernel, found
    nest = interchange(found.loop, order)
    (phase,) = kernel.phases
    body = tuple(nest if s is found.loop else s for s in phase.body)
    kernel = kernel.with_phases([kir.Phase(phase.grid, body)])
    return kernel, replace(found, loop=nest, sums=tuple(order))


def inside_only(
    body: kir.Body, found: Operands, free: Iterable[kir.Axis]
) -> tuple[kir.Body, Operands]:
    """Sum only where no factor is zero because of a mask over the `free` axes and those summed.

    Rows of pixels above and below an image are skipped so, and the taps that another phase of a
    strided gradient has.
    """
    conditions = masks(found)
    if not conditions:
        return body, found
    fixed_here = {a.node for a in free}
    known: dict[Node, Node] = {}
    moved: dict[Node, Node] = {}
    ranges: dict[kir.Axis, kir.Axis] = {}
    for axis in found.sums:
        begin, end = kir.as_index(0), kir.as_index(axis.extent)
        for condition in conditions:
            limit = _limit(condition, axis)
            if limit is None or not mentions(limit.room) <= fixed_here:
                continue
            known[condition] = TRUE
            if limit.slope > 0:
                begin = elementwise(ops.MAX, begin, -(limit.room // limit.slope))
            else:
                end = elementwise(ops.MIN, end, limit.room // -limit.slope + 1)
        begin, length = simplify(begin), simplify(end - begin)
        if bounds(length)[0] < 0:
            length = simplify(elementwise(ops.MAX, length, kir.as_index(0)))
        part = replace(axis, extent=fixed(length))
        if part != axis:
            ranges[axis] = part
            moved[axis.node] = begin + part.node
    if not known:
        return body, found

    def changed(n: Node, places: dict[Node, Node]) -> Node:
        return simplify(substitute(substitute([n], known), places)[0])

    def one(s: kir.Statement) -> kir.Statement:
        if not isinstance(s, kir.Loop):
            return s
        carried = tuple(replace(c, step=changed(c.step, moved)) for c in s.carried)
        return kir.Loop(ranges.get(s.axis, s.axis), tuple(map(one, s.body)), carried, s.merge)

    sums = tuple(ranges.get(a, a) for a in found.sums)
    renamed = {a.node: b.node for a, b in ranges.items()}
    left, right = changed(found.left, renamed), changed(found.right, renamed)
    return tuple(map(one, body)), replace(found, sums=sums, left=left, right=right)


def masks(found: Operands) -> list[Node]:
    """Conditions without any of which there is nothing to sum."""
    both = (*_nonzero_where(found.left), *_nonzero_where(found.right))
    return list(dict.fromkeys(both))


def _nonzero_where(factor: Node) -> Iterator[Node]:
    """Conditions without any of which a factor is zero."""
    if factor.op is ops.CAST:
        yield from _nonzero_where(factor.inputs[0])
        return
    if factor.op is ops.LOAD:
        *_, condition, other = factor.inputs
    elif factor.op is ops.WHERE:
        condition, then, other = factor.inputs
        if is_const(other, 0):
            yield from _nonzero_where(then)
        else:  # a piece of several, as of a concatenation: zero where all of them are
            elsewhere = set(_nonzero_where(other))
            yield from (c for c in _nonzero_where(then) if c in elsewhere)
    else:
        return
    if is_const(other, 0):
        yield from _conjuncts(condition)


class Limit(NamedTuple):
    """A condition on an axis: that ``room + slope * axis`` is not negative."""

    slope: int
    room: Node


def _limit(condition: Node, axis: kir.Axis) -> Limit | None:
    """A condition as a limit of `axis`, if it mentions it in one linear term."""
    if condition.op not in (ops.LT, ops.LE):
        return None
    a, b = map(LinearIndex.of, condition.inputs)
    room = b.plus(a, -1)
    slope = room.terms.pop(axis.node, 0)
    rest = room.plus(LinearIndex({}, -1 if condition.op is ops.LT else 0)).emit()
    return Limit(slope, rest) if slope and axis.node not in mentions(rest) else None


def _conjuncts(condition: Node) -> list[Node]:
    """The conditions that a condition is the conjunction of."""
    parts = topological([condition], lambda n: n.inputs if n.op is ops.AND else ())
    return [n for n in parts if n.op is not ops.AND and n is not TRUE]


def unmasked(found: Operands, axis: kir.Axis) -> range:
    """The points of a summation axis at which no mask can fail because of it."""
    begin, end = 0, extent(axis)
    loads = [n for n in topological([found.left, found.right]) if n.op is ops.LOAD]
    for condition in (c for n in loads for c in _conjuncts(kir.load_parts(n)[2])):
        if axis.node not in mentions(condition):
            continue
        limit = _limit(condition, axis)
        if limit is None or static(axis.extent) is None:
            return range(0)
        room = bounds(limit.room)[0]
        if limit.slope > 0:
            begin = max(begin, -(room // limit.slope))
        else:
            end = min(end, room // -limit.slope + 1)
    return range(begin, end)


def split_ends(body: kir.Body, axis: kir.Axis, inside: range) -> kir.Body:
    """The loop over `axis` in three: its ends, where masks may fail, are apart."""
    ends = (0, inside.start), (inside.stop, extent(axis) - inside.stop)
    return _in_pieces(body, axis, [ends[0], (inside.start, len(inside)), ends[1]])


def by_tap(body: kir.Body, found: Operands) -> kir.Body:
    """Loops over the few taps of a window written out, where masks say which rows have them.

    At one tap such a mask is a constant for every row, if a tile has all of them.
    """
    for axis in found.sums[:-1]:
        pair = {axis.node, found.row.node}
        if extent(axis) <= TAPS and any(pair <= mentions(c) for c in _nonzero_where(found.left)):
            left = [kir.as_index(axis.extent) - k for k in range(extent(axis))]
            there = [least(1, fixed(elementwise(ops.MAX, n, kir.as_index(0)))) for n in left]
            body = _in_pieces(body, axis, [*enumerate(there)])
    return body


def _in_pieces(body: kir.Body, axis: kir.Axis, pieces: Sequence[tuple[int, kir.Index]]) -> kir.Body:
    """The loop over `axis` as several, one after the other: where they start, and how long."""
    result: list[kir.Statement] = []
    pieces = [piece for piece in pieces if piece[1] != 0]
    for s in body:
        if not isinstance(s, kir.Loop):
            result.append(s)
            continue
        if s.axis != axis:
            result.append(replace(s, body=_in_pieces(s.body, axis, pieces)))
            continue
        inits = [c.init for c in s.carried]
        for number, (start, length) in enumerate(pieces):
            part = replace(axis, name=f"{axis.name}s{number}", extent=length)
            at = part.node + start if extent(part) > 1 else kir.as_index(start)
            suffix = f"_{part.name}" if number < len(pieces) - 1 else ""
            copy = _copied(s, part, {axis.node: at}, suffix)
            carried = zip(copy.carried, inits, strict=True)
            result.append(replace(copy, carried=tuple(replace(c, init=i) for c, i in carried)))
            inits = [c.local.node for c in copy.carried]
    return tuple(result)


def _copied(nest: kir.Loop, axis: kir.Axis, known: dict[Node, Node], suffix: str) -> kir.Loop:
    """A reduction's loop nest over another `axis`, with what it carries renamed."""
    names = [replace(c.local, name=c.local.name + suffix) for c in nest.carried]
    known |= {c.local.node: v.node for c, v in zip(nest.carried, names, strict=True)}
    inits = substitute([c.init for c in nest.carried], known)
    body = tuple(_copied(s, s.axis, known, suffix) for s in nest.body if isinstance(s, kir.Loop))
    steps = map(simplify, substitute([c.step for c in nest.carried], known))
    return replace(nest, axis=axis, body=body, carried=tuple(map(kir.Carry, names, inits, steps)))
