"""Tiles of grid axes: the step that every rule for many threads is made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from genesis.compiler.schedule.steps.queries import accesses, extent, power
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, fixed, simplify, static
from genesis.ir.kernel import Axis, Carry, Index, Kernel, Loop, Phase, as_index, walk
from genesis.ir.node import TRUE, Node, topological
from genesis.ir.rewrite import replaced

#: Elements of a tile: a few for each thread of four warps.
TILE = 1024


def tile(kernel: Kernel, axis: Axis, width: int, number: int = 0, exact: bool = False) -> Kernel:
    """Do `width` points of a GRID axis at once, or all of them where there are fewer.

    An `exact` tile has that many points even then, of which the last are masked.
    """
    phase = kernel.phases[number]
    n = static(axis.extent)
    grid = list(phase.grid)
    place = grid.index(axis)
    if n == 0:
        return kernel
    if n is not None and n <= width:
        del grid[place]
        at = Axis.tile(axis.name + "t", width if exact else n).node
        inside = simplify(at < n)
    else:
        grid[place] = Axis.grid(axis.name + "b", ceil_div(axis.extent, width))
        at = grid[place].node * width + Axis.tile(axis.name + "t", width).node
        whole = n is not None and n % width == 0
        inside = TRUE if whole else below(at, axis.extent)
    body = respecialise(phase.body, {axis.node: at}, inside)
    return kernel.with_phase(number, Phase(tuple(grid), body))


def fuse(kernel: Kernel, axes: Sequence[Axis], number: int = 0) -> tuple[Kernel, Axis]:
    """Count through several GRID axes with one; the kernel, and that axis.

    Extents but the first must be known. Where memory does not run on, places are decoded.
    """
    if len(axes) == 1:
        return kernel, axes[0]
    phase = kernel.phases[number]
    size: Index = axes[0].extent
    for axis in axes[1:]:
        size = fixed(simplify(as_index(size) * axis.extent))
    joint = Axis.grid("".join(a.name for a in axes), size)
    body = respecialise(phase.body, decoded(joint, axes))
    grid = [joint if a == axes[0] else a for a in phase.grid if a not in axes[1:]]
    return kernel.with_phase(number, Phase(tuple(grid), body)), joint


def unfuse(kernel: Kernel, axis: Axis, number: int = 0) -> Kernel:
    """Count through a GRID axis with one for each digit that places are decoded into, if any."""
    phase = kernel.phases[number]
    steps = _steps(phase, axis)
    size = static(axis.extent)
    if size is None or not steps:
        return kernel
    whole = [1, *steps, size]
    if any(b % a for a, b in pairwise(whole)):
        return kernel
    digits = [Axis.grid(f"{axis.name}d{k}", b // a) for k, (a, b) in enumerate(pairwise(whole))]
    at = as_index(0)
    for digit, step in zip(digits, whole, strict=False):
        at = at + digit.node * step
    body = respecialise(phase.body, {axis.node: simplify(at)})
    place = phase.grid.index(axis)
    grid = (*phase.grid[:place], *reversed(digits), *phase.grid[place + 1 :])
    return kernel.with_phase(number, Phase(grid, body))


def _steps(phase: Phase, axis: Axis) -> list[int]:
    """What an axis is divided by in places, with what is left of quotients."""
    found: set[int] = set()
    for n in topological(i for _, at in accesses(phase.body) for i in at):
        if n.op in (ops.FLOORDIV, ops.MOD) and n.inputs[1].op is ops.CONST:
            value, step = n.inputs[0], int(n.inputs[1].attr)
            if value.op is ops.FLOORDIV and value.inputs[1].op is ops.CONST:
                step *= int(value.inputs[1].attr)
                value = value.inputs[0]
            if value is axis.node:
                found.add(step)
    return sorted(found - {1})


def decoded(joint: Axis, axes: Sequence[Axis]) -> dict[Node, Node]:
    """The places along `axes` that a place along one axis through them all stands for."""
    places: dict[Node, Node] = {}
    rest = joint.node
    for axis in reversed(axes[1:]):
        assert isinstance(axis.extent, int)
        places[axis.node] = simplify(rest % axis.extent)
        rest = simplify(rest // axis.extent)
    places[axes[0].node] = rest
    return places


def joined(nest: Loop, axes: Sequence[Axis]) -> Loop:
    """A nest of loops that only reduce as one loop, through `axes` in this order."""
    deep = nest
    names = {}
    while deep.body:
        (inner,) = deep.body
        assert isinstance(inner, Loop)
        deep = inner
        for c, outer in zip(deep.carried, nest.carried, strict=True):
            names[c.local.node] = outer.local.node
    size = axes[0].extent
    for axis in axes[1:]:
        size = size * axis.extent
    joint = Axis.loop("".join(a.name for a in axes), size)
    carried = tuple(
        Carry(outer.local, outer.init, replaced(c.step, names))
        for outer, c in zip(nest.carried, deep.carried, strict=True)
    )
    loop = Loop(joint, (), carried, nest.merge)
    (result,) = respecialise((loop,), decoded(joint, axes))
    assert isinstance(result, Loop)
    return result


def free_axes(phase: Phase) -> list[Axis]:
    """The grid axes that no loop's length depends on: it is the same for a whole tile."""
    loops = [as_index(s.axis.extent) for s in walk(phase.body) if isinstance(s, Loop)]
    lengths = set(topological(loops))
    return [a for a in phase.grid if a.node not in lengths]


def padded(axis: Axis) -> int:
    """The lanes that a tile of a whole axis takes."""
    return power(extent(axis))
