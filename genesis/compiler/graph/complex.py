"""Complex numbers become pairs of real ones, before anything else happens.

A complex array is two things at once: its real and its imaginary part, which is how arithmetic sees
it, and a real array with a last axis of two, which is how it lies in memory. The pass walks the
graph once and gives every complex node both forms, each in terms of the forms of its inputs; what
nobody asks for is dropped. After it no complex node is left, and no later stage knows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.ir import ops
from genesis.ir.dtype import index
from genesis.ir.node import Leaf, Node, Recurrence, Shape, const, elementwise, node, topological


def without_complex(roots: Sequence[Node], origins: dict[Node, Node] | None = None) -> list[Node]:
    """The graph on real numbers: a complex root is a real array of one more axis, both parts.

    `origins` receives what every new node stands for.
    """
    if not _has_complex(roots):
        return list(roots)
    split = _Split({} if origins is None else origins)
    for n in topological(roots):
        split.visit(n)
    return [split.memory(n) for n in roots]


def _has_complex(roots: Sequence[Node]) -> bool:
    return any(
        n.op.group == "complex"
        or n.dtype.is_complex
        or (n.op is ops.SCAN and _has_complex(n.attr.body))
        for n in topological(roots)
    )


class _Forms(NamedTuple):
    """A complex value as its parts, and as it lies in memory. `lies`: the parts come from there."""

    real: Node
    imag: Node
    pairs: Node
    lies: bool


class _Split:
    """What became of every node seen so far."""

    def __init__(self, origins: dict[Node, Node]) -> None:
        self.plain: dict[Node, Node] = {}
        self.forms: dict[Node, _Forms] = {}
        self.origins = origins

    def memory(self, n: Node) -> Node:
        """The node for the memory of `n`."""
        return self.forms[n].pairs if n in self.forms else self.plain[n]

    def visit(self, n: Node) -> None:
        """Translate a node whose inputs are translated."""
        if n.dtype.is_complex and n.op not in (ops.SCAN, ops.CALL):
            self.forms[n] = forms = self.split(n)
            for made in (forms.real, forms.imag, forms.pairs):
                self.origins.setdefault(made, n)
        elif n.op is ops.REAL:
            self.plain[n] = self.forms[n.inputs[0]].real
        elif n.op is ops.IMAG:
            self.plain[n] = self.forms[n.inputs[0]].imag
        elif n.op is ops.AS_REAL:
            self.plain[n] = self.forms[n.inputs[0]].pairs
        else:
            attr = n.attr
            if n.op is ops.SCAN:
                loop: Recurrence = attr
                attr = replace(loop, body=tuple(without_complex(loop.body)))
            inputs = tuple(self.memory(i) for i in n.inputs)
            self.plain[n] = node(n.op, inputs, attr, n.dtype.real, n.shape)
            self.origins.setdefault(self.plain[n], n)

    def split(self, n: Node) -> _Forms:
        """The forms of a complex node."""
        real = n.dtype.real
        shape = (*n.shape, 2)
        if n.op is ops.COMPLEX:
            a, b = (self.plain[i] for i in n.inputs)
            return _from_parts(_shaped(a, n.shape), _shaped(b, n.shape), n.shape)
        if n.op is ops.AS_COMPLEX:
            return _from_memory(self.plain[n.inputs[0]])
        if n.op is ops.BUFFER:
            leaf: Leaf = n.attr
            strides = (*(stride * 2 for stride in leaf.strides), 1)
            layout = Leaf(leaf.slot, strides, leaf.offset * 2)
            return _from_memory(node(ops.BUFFER, (), layout, real, shape))
        if n.op is ops.PARAMETER:
            return _from_memory(node(ops.PARAMETER, (), n.attr, real, shape))
        if n.op is ops.ITEM or n.op in (ops.GATHER, ops.SCATTER):
            inputs = tuple(self.memory(i) for i in n.inputs)
            return _from_memory(node(n.op, inputs, n.attr, real, shape))
        if n.op is ops.PAD:
            return self.padded(n)
        if n.op.is_movement:
            x = self.forms[n.inputs[0]]
            a, b = (node(n.op, (part,), n.attr, real, n.shape) for part in (x.real, x.imag))
            return _Forms(a, b, _moved(n, x.pairs), x.lies)
        if n.op is ops.UPDATE:
            x, value = (self.forms[i] for i in n.inputs)
            pairs = node(n.op, (x.pairs, value.pairs), (*n.attr, (0, 1)), real, shape)
            if x.lies:
                return _from_memory(pairs)
            a, b = (
                node(n.op, both, n.attr, real, n.shape)
                for both in ((x.real, value.real), (x.imag, value.imag))
            )
            return _Forms(a, b, pairs, lies=False)
        raise ValueError(f"{n.op} is not defined for {n.dtype}")

    def padded(self, n: Node) -> _Forms:
        """Padding by a number whose parts differ: in memory it is no padding by one number."""
        x, fill = (self.forms[i] for i in n.inputs)
        real, imag = (
            node(n.op, both, n.attr, n.dtype.real, n.shape)
            for both in ((x.real, fill.real), (x.imag, fill.imag))
        )
        return _from_parts(real, imag, n.shape)


def _from_memory(pairs: Node) -> _Forms:
    shape = pairs.shape[:-1]
    everything = ((0, 1),) * len(shape)

    def part(k: int) -> Node:
        one = node(ops.SLICE, (pairs,), (*everything, (k, 1)), pairs.dtype, (*shape, 1))
        return node(ops.RESHAPE, (one,), None, pairs.dtype, shape)

    return _Forms(part(0), part(1), pairs, lies=True)


def _from_parts(real: Node, imag: Node, shape: Shape) -> _Forms:
    return _Forms(real, imag, interleaved(real, imag, shape), lies=False)


def interleaved(real: Node, imag: Node, shape: Shape) -> Node:
    """Both parts along a new last axis."""
    full = (*shape, 2)
    which = elementwise(ops.EQ, node(ops.IOTA, (), None, index, (2,)), const(0, index))
    which = node(ops.RESHAPE, (which,), None, which.dtype, (*(1 for _ in shape), 2))
    which = node(ops.EXPAND, (which,), None, which.dtype, full)
    real, imag = (_spread(part, shape) for part in (real, imag))
    return node(ops.WHERE, (which, real, imag), None, real.dtype, full)


def _spread(part: Node, shape: Shape) -> Node:
    """A part repeated along a new last axis; shape () stands for every shape."""
    if not part.shape:
        return part
    column = node(ops.RESHAPE, (part,), None, part.dtype, (*shape, 1))
    return node(ops.EXPAND, (column,), None, part.dtype, (*shape, 2))


def _shaped(part: Node, shape: Shape) -> Node:
    """A part in the shape of the whole: () stood for it."""
    if part.shape == shape:
        return part
    ones = node(ops.RESHAPE, (part,), None, part.dtype, (1,) * len(shape))
    return node(ops.EXPAND, (ones,), None, part.dtype, shape)


def _moved(n: Node, pairs: Node) -> Node:
    """The movement `n` on memory: the last axis, that of the parts, stays the last one."""
    shape = (*n.shape, 2)
    if n.op is ops.PERMUTE:
        return node(n.op, (pairs,), (*n.attr, len(n.attr)), pairs.dtype, shape)
    if n.op is ops.SLICE:
        return node(n.op, (pairs,), (*n.attr, (0, 1)), pairs.dtype, shape)
    if n.op is ops.WINDOW:
        rank = len(n.shape)
        windows = node(n.op, (pairs,), n.attr, pairs.dtype, (*n.shape[:-1], 2, n.shape[-1]))
        axes = (*range(rank - 1), rank, rank - 1)
        return node(ops.PERMUTE, (windows,), axes, pairs.dtype, shape)
    return node(n.op, (pairs,), None, pairs.dtype, shape)
