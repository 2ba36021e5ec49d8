"""What the rules ask before they decide: named parts, strides, widths and amounts of work."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd

from genesis.backends.base import Chip
from genesis.compiler.schedule.decisions import decide
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import LinearIndex, bounds
from genesis.ir.kernel import Axis, Body, Loop, Phase, as_index, walk
from genesis.ir.node import Node, mentions, topological

#: Elements a block should visit at least: enough work to be worth handing to a thread. Others that
#: may suit.
BLOCK = 1 << 14
BLOCKS = (BLOCK, BLOCK >> 2, BLOCK << 2)
#: Vectors that are in flight together.
VECTORS = (1, 2, 4, 8)
#: Neighbours this far apart still suit vectors: the parts of complex numbers are.
NEAR = 2
#: Shorter axes are not vectorised: the windows of a pooling, say.
SHORT = 8
#: What an extent known only at launch counts as.
TYPICAL = 256
#: Bounds from here on say nothing about what an extent will be.
LARGEST = 1 << 24


def carrying(body: kir.Body, local: str) -> tuple[kir.Loop, kir.Carry]:
    """The outermost loop that carries what a pattern names, and how it does."""
    loops = (s for s in kir.walk(body) if isinstance(s, kir.Loop))
    return next((s, c) for s in loops for c in s.carried if c.local.name == local)


def lets(body: kir.Body) -> dict[str, kir.Let]:
    """What a body names itself, not in loops of its own."""
    return {s.local.name: s for s in body if isinstance(s, kir.Let)}


def factors(carry: kir.Carry) -> tuple[Node, ...]:
    """What a carried sum adds the product of; nothing if it adds something else."""
    step, total = carry.step, carry.local.node
    if step.op is not ops.ADD or total not in step.inputs:
        return ()
    added = step.inputs[step.inputs[0] is total]  # sums of integers may be written either way
    return added.inputs if added.op is ops.MUL else ()


@lru_cache(maxsize=64)  # rules ask of one body after another, and of each many things
def accesses(body: kir.Body) -> tuple[tuple[kir.Buffer, tuple[Node, ...]], ...]:
    """Every store and every distinct load of a body."""
    statements = list(kir.walk(body))
    stores = [(s.buffer, s.index) for s in statements if isinstance(s, kir.Store)]
    read = topological(n for s in statements for n in kir.expressions(s))
    loads = [kir.load_parts(n)[:2] for n in read if n.op is ops.LOAD]
    return (*stores, *loads)


def stride(buffer: kir.Buffer, at: tuple[Node, ...], axis: kir.Axis) -> int | None:
    """Elements between neighbours along `axis`; None when they are not equally spaced."""
    total = 0
    for i, step in zip(at, buffer.layout, strict=True):
        if axis.node not in mentions(i):
            continue
        linear = LinearIndex.of(i)
        coefficient = linear.terms.pop(axis.node, 0)
        if any(axis.node in mentions(t) for t in linear.terms) or step.op is not ops.CONST:
            return None
        total += coefficient * int(step.attr)
    return total


def page(factor: Node, axis: kir.Axis) -> int:
    """Neighbours along `axis` that are together in a page, pages being looked up; 0: no pages."""
    loads = [n for n in topological([factor]) if n.op is ops.LOAD]
    places = topological(i for n in loads for i in kir.load_parts(n)[1])
    tables = [n for n in places if n.op is ops.LOAD and axis.node in mentions(n)]
    inside = [n for n in topological(tables) if n.op in (ops.FLOORDIV, ops.MOD)]
    sizes = [n.inputs[1] for n in inside if axis.node in mentions(n.inputs[0])]
    size = gcd(*(int(n.attr) if n.op is ops.CONST else 1 for n in sizes))
    return size if size > 1 else 0


def together(factor: Node, axis: kir.Axis) -> int:
    """Neighbours along `axis` that lie side by side where it goes over memory more than once.

    So do the two halves of a row of which a byte holds an element each. 0: it goes over it once.
    """
    loads = [n for n in topological([factor]) if n.op is ops.LOAD]
    places = topological(i for n in loads for i in kir.load_parts(n)[1])
    turns = [n for n in places if n.op is ops.MOD and axis.node in mentions(n.inputs[0])]
    return gcd(*(int(n.inputs[1].attr) if n.inputs[1].op is ops.CONST else 1 for n in turns))


def affinity(body: kir.Body, axis: kir.Axis) -> int:
    """How well `axis` suits vectors: accesses next to each other count for it, jumps against.

    Large buffers count more: a vector of channels does not decide how an image is read.
    """
    score = 0
    for buffer, at in accesses(body):
        step = stride(buffer, at, axis)
        if step is None:
            vote = -4
        elif abs(step) <= 1:
            vote = 4 * abs(step)
        else:
            vote = 1 if abs(step) <= NEAR else -2
        score += vote * elements(buffer)
    return score


def lanes(body: kir.Body, chip: Chip, axis: kir.Axis | None = None) -> int:
    """Elements of the widest type touched, along `axis` if given, that fit one vector register."""
    touched = [b for b, at in accesses(body) if axis is None or stride(b, at, axis) != 0]
    widest = max((b.dtype.itemsize for b in touched), default=4)
    return max(1, chip.vector_bytes // widest)


def vectors(best: int, width: int, size: int) -> int:
    """How many vectors are in flight together along so many points; by rule, `best`."""
    return decide("vectors", [best, *(v for v in VECTORS if v * width <= size)])


def even_width(size: int, lanes: int, most: int) -> int:
    """The width of a tile along so many points: at most some vectors, all whole, or else one."""
    return lanes * next((v for v in range(most, 0, -1) if size % (lanes * v) == 0), 1)


def extent(axis: kir.Axis) -> int:
    """The extent for decisions, which may be wrong for symbolic ones but never for results."""
    if isinstance(axis.extent, int):
        return axis.extent
    _, most = bounds(axis.extent)
    return most if most < LARGEST else TYPICAL


def elements(buffer: kir.Buffer) -> int:
    """The number of elements of a buffer, for decisions."""
    return points(kir.Axis.loop("", e) for e in buffer.shape)


def points(axes: Iterable[kir.Axis]) -> int:
    """The number of points of several axes, for decisions."""
    total = 1
    for a in axes:
        total *= extent(a)
    return total


def operations(body: kir.Body) -> int:
    """The cost of one pass over a body, in multiply-adds."""
    roots = [e for s in kir.walk(body) for e in kir.expressions(s)]
    return sum(n.op.cost for n in topological(roots))


def best_row_axis(phase: Phase) -> Axis | None:
    """The grid axis to vectorise across, when rows are closer together than a row's elements."""
    inner = [a for a in _innermost_axes(phase.body) if extent(a) >= SHORT]
    along = max((affinity(phase.body, a) for a in inner), default=-1)
    # How far a loop runs is the same for a whole tile, so no loop may run as far as its axis says.
    loops = [as_index(s.axis.extent) for s in walk(phase.body) if isinstance(s, Loop)]
    fixed = set(topological(loops))
    candidates = [a for a in phase.grid if extent(a) >= SHORT and a.node not in fixed]
    if not candidates:
        return None
    best = max(candidates, key=lambda a: affinity(phase.body, a))
    return best if affinity(phase.body, best) > max(along, 0) else None


def _innermost_axes(body: Body) -> list[Axis]:
    loops = [s for s in walk(body) if isinstance(s, Loop)]
    return [s.axis for s in loops if not any(isinstance(x, Loop) for x in walk(s.body))]


def power(n: int) -> int:
    """The least power of two that is not below `n`.

    >>> [power(n) for n in (1, 3, 64, 65)]
    [1, 4, 64, 128]
    """
    return 1 << max(0, n - 1).bit_length()
