"""Loops: a SCAN becomes a part of the program that is repeated.

The body of a SCAN is a graph of its own, compiled once however often it runs. Its parameters turn
into buffers: the carries and the elements of the xs are pointers that the runner moves between two
repetitions, what stays the same is read where it lies. From there the body goes through the same
stages as the graph around it, and its temporaries lie in the same block of memory.

Around it, a SCAN is a boundary: what it reads and what it gives lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from genesis.compiler.fuse.groups import is_row_major
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.lower import Lowered
from genesis.ir import ops
from genesis.ir.node import Leaf, Node, Recurrence, Shape, node, topological
from genesis.ir.rewrite import Rules, rewrite, substitute
from genesis.ir.size import Dim, bounds, product


@dataclass(frozen=True)
class ScanBody:
    """The graph that a SCAN repeats, over buffers.

    `parameters` are the leaves that stand for the inputs of the SCAN; those of what stays the same
    are steady, and have the slot of the input if that is a leaf already. `roots` are the next
    carries, then one element each of those ys that somebody asks for; `items` are the results asked
    for, by number.
    """

    scan: Node
    items: Mapping[int, Node]
    parameters: tuple[Node, ...]
    roots: tuple[Node, ...]

    @property
    def recurrence(self) -> Recurrence:
        """How often what is repeated."""
        found: Recurrence = self.scan.attr
        return found

    @property
    def ys(self) -> list[Node]:
        """The stacked results, in the order of the roots."""
        return [self.items[k] for k in sorted(self.items) if k >= self.recurrence.carries]

    @property
    def xs(self) -> tuple[Node, ...]:
        """The inputs read element by element."""
        loop = self.recurrence
        return self.scan.inputs[loop.carries : loop.carries + loop.xs]

    def walk(self, array: Node) -> tuple[Dim, Dim]:
        """Where in an array of elements the first repetition is, and how far the next; in bytes."""
        is_leaf = array.op is ops.BUFFER
        stride = array.attr.strides[0] if is_leaf else product(array.shape[1:])
        stride = stride * array.dtype.itemsize
        if self.recurrence.reverse:
            return stride * (self.recurrence.length - 1), -stride
        return 0, stride


@dataclass(frozen=True)
class LoweredLoop:
    """A loop of kernels. Like a kernel, it has arguments: all it reads of the graph around it."""

    body: ScanBody
    steps: tuple[Lowered | LoweredCall | LoweredLoop, ...]

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The inputs of the SCAN."""
        return self.body.scan.inputs

    @property
    def extents(self) -> Iterator[Dim]:
        """The numbers the runner has to know."""
        yield self.body.recurrence.length
        for array in (*self.body.xs, *self.body.ys):
            yield from self.body.walk(array)

    @property
    def pointers(self) -> int:
        """How many pointers the runner moves."""
        return self.body.recurrence.carries + len(self.body.xs) + len(self.body.ys)


Steps = Sequence[Lowered | LoweredCall | LoweredLoop]


def unrolled(steps: Steps) -> Iterator[Lowered | LoweredCall]:
    """Every kernel and every call once, in order."""
    for step in steps:
        if isinstance(step, LoweredLoop):
            yield from unrolled(step.steps)
        else:
            yield step


def kernels(steps: Steps) -> Iterator[Lowered]:
    """Every kernel once, in order."""
    return (step for step in unrolled(steps) if isinstance(step, Lowered))


def loops(steps: Steps) -> Iterator[LoweredLoop]:
    """Every loop, outer ones first."""
    for step in steps:
        if isinstance(step, LoweredLoop):
            yield step
            yield from loops(step.steps)


def stored_inputs(roots: Sequence[Node]) -> list[Node]:
    """The graph with copies where a loop or a call could not read an input as it is."""
    if not any(n.op in (ops.SCAN, ops.CALL) for n in topological(roots)):
        return list(roots)
    return rewrite(roots, _RULES)


_RULES = Rules("inputs of loops and calls")


@_RULES.on(ops.CALL)
def _dense(n: Node) -> Node:
    """Operands of a call lie in memory without gaps."""

    def lies_dense(i: Node) -> bool:
        return is_row_major(i) if i.op is ops.BUFFER else i.op.group != "leaf"

    return n.with_inputs(tuple(i if lies_dense(i) else _copied(i) for i in n.inputs))


@_RULES.on(ops.SCAN)
def _readable(n: Node) -> Node:
    """Carries and xs lie in memory, carries as densely as the memory they move on to."""
    loop: Recurrence = n.attr
    if bounds(loop.length)[0] < 1:
        raise ValueError(f"a scan over {loop.length} elements, which may be none, has no program")
    inputs = list(n.inputs)
    for k, i in enumerate(inputs[: loop.carries + loop.xs]):
        is_array = i.op is ops.BUFFER and (k >= loop.carries or is_row_major(i))
        if i.op.group == "leaf" and not is_array:
            inputs[k] = _copied(i)
    return n.with_inputs(tuple(inputs))


def _copied(n: Node) -> Node:
    return node(ops.RESHAPE, (n,), None, n.dtype, n.shape)


def opened(scan: Node, items: Sequence[Node], fresh: Callable[[], int]) -> ScanBody:
    """The body of a SCAN of which `items` are asked for; `fresh` gives slots for its leaves."""
    loop: Recurrence = scan.attr

    def leaf(like: Node, shape: Shape, offset: Dim = 0, strides: Shape | None = None) -> Node:
        if strides is None:
            strides = tuple(product(shape[d + 1 :]) for d in range(len(shape)))
        return node(ops.BUFFER, (), Leaf(fresh(), strides, offset), like.dtype, shape)

    parameters: list[Node] = []
    for k, i in enumerate(scan.inputs):
        if k < loop.carries:
            parameters.append(leaf(i, i.shape))
        elif k < loop.carries + loop.xs:
            if i.op is ops.BUFFER:
                parameters.append(leaf(i, i.shape[1:], i.attr.offset, i.attr.strides[1:]))
            else:
                parameters.append(leaf(i, i.shape[1:]))
        elif i.op.group == "leaf" and i.op is not ops.BUFFER:
            parameters.append(i)
        else:
            same = i if i.op is ops.BUFFER else leaf(i, i.shape)
            steady = replace(same.attr, steady=True)
            parameters.append(node(ops.BUFFER, (), steady, i.dtype, i.shape))
    wanted = {item.attr: item for item in items}
    kept = [n for k, n in enumerate(loop.body) if k < loop.carries or k in wanted]
    placed = {n: parameters[n.attr] for n in topological(kept) if n.op is ops.PARAMETER}
    return ScanBody(scan, wanted, tuple(parameters), tuple(substitute(kept, placed)))
