"""Layouts: what is computed from a convolution lies in memory with its channels last.

A chip of many threads computes a convolution in tiles of pixels and channels, and the next one sums
over these channels: where they lie next to each other, tiles are stored and read in whole vectors.
So the result of such a contraction gets its columns last, behind all of its rows, and what is made
of it keeps that order: the pass gives every value a *form*, its axes in another order. Operations
that do not care about order (arithmetic, reductions, windows, padding, contractions) are done on
forms; the others, and the results of the program, are given a permutation, which is fused with what
is around it like any other movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from genesis.compiler.graph.gpu.pad_channels import even_channels
from genesis.compiler.graph.simplify.movement import reshaped
from genesis.compiler.graph.simplify.reductions import contraction
from genesis.compiler.lower.movement import runs
from genesis.ir import ops
from genesis.ir.node import Node, Shape, node, topological

Order = tuple[int, ...]
T = TypeVar("T")


def channels_last(roots: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The graph with other orders of axes; `origins` as in `without_complex`."""
    order = topological(roots)
    products = [n for n in order if n.op is ops.CONTRACT]
    if all(_columns_last(n) == n.attr[2] and even_channels(n) is n for n in products):
        return list(roots)
    forms: dict[Node, _Form] = {}
    known: set[Node] = set()

    def inputs(m: Node) -> tuple[Node, ...]:
        return () if m in known else m.inputs

    for n in order:
        forms[n] = form = _form(n, [forms[i] for i in n.inputs])
        if form.node is not n:
            made = [m for m in topological([form.node], inputs) if m not in known]
            origins.update({m: origins.get(n, n) for m in made})
        known.add(form.node)
    return [forms[n].plain for n in roots]


class _Form(NamedTuple):
    """A value: its axis d is axis ``order[d]`` of the node."""

    node: Node
    order: Order

    @property
    def straight(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    @property
    def plain(self) -> Node:
        """The value itself."""
        return _permuted(self.node, self.order)

    def arranged(self, values: Sequence[T]) -> tuple[T, ...]:
        """What is given for each axis of the value, for each axis of the node."""
        return tuple(values[d] for d in _inverse(self.order))

    def like(self, other: _Form) -> Node:
        """The node in the order that another form of the same rank has."""
        return _permuted(self.node, tuple(self.order[d] for d in _inverse(other.order)))


def _form(n: Node, forms: Sequence[_Form]) -> _Form:
    """What becomes of a node, given what its inputs have become."""
    if n.op is ops.CONTRACT:
        return _contraction(n, *forms)
    first = next((f for f in forms if not f.straight), None)
    if first is not None:
        x = forms[0]
        if n.op.is_elementwise:
            nodes = tuple(f.like(first) if f.order else f.node for f in forms)
            return _made(n, nodes, n.attr, first.arranged(n.shape), first.order)
        if n.op in ops.REDUCTIONS:
            return _reduction(n, x)
        if n.op is ops.UPDATE:
            nodes = tuple(f.like(first) for f in forms)
            return _made(n, nodes, first.arranged(n.attr), first.arranged(n.shape), first.order)
        if n.op in (ops.SLICE, ops.PAD):
            nodes = (x.node, *(f.node for f in forms[1:]))
            return _made(n, nodes, x.arranged(n.attr), x.arranged(n.shape), x.order)
        if n.op is ops.EXPAND:
            return _made(n, (x.node,), None, x.arranged(n.shape), x.order)
        if n.op is ops.WINDOW:
            axis, *steps = n.attr
            shape = (*x.arranged(n.shape[:-1]), n.shape[-1])
            return _made(n, (x.node,), (x.order[axis], *steps), shape, (*x.order, len(x.order)))
        if n.op is ops.PERMUTE:
            return _Form(x.node, tuple(x.order[a] for a in n.attr))
        if n.op is ops.RESHAPE and (found := _reshape(n, x)):
            return found
    same = n.with_inputs(tuple(f.plain for f in forms))
    return _Form(same, tuple(range(len(n.shape))))


def _made(n: Node, inputs: tuple[Node, ...], attr: object, shape: Shape, order: Order) -> _Form:
    return _Form(node(n.op, inputs, attr, n.dtype, shape), order)


def _contraction(n: Node, x: _Form, y: _Form) -> _Form:
    left, right, out = n.attr
    last = _columns_last(n)
    new = contraction(x.node, y.node, x.arranged(left), y.arranged(right), last)
    return _Form(even_channels(new), tuple(last.index(label) for label in out))


def _columns_last(n: Node) -> tuple[int, ...]:
    """The labels of a result, those that part its rows (of the left operand alone) moved behind."""
    left, right, out = n.attr
    extents = dict(zip(out, n.shape, strict=True))
    rows = [d for d, label in enumerate(out) if label in left and label not in right]
    for row, following in pairwise(rows):
        between = out[row + 1 : following]
        if any(extents[label] != 1 for label in between):
            return (*out[: row + 1], *out[following:], *between)
    return tuple(out)


def _reduction(n: Node, x: _Form) -> _Form:
    folded = sorted(x.order[a] for a in n.attr)
    kept = [e for e in range(len(x.order)) if e not in folded]
    shape = tuple(x.node.shape[e] for e in kept)
    order = tuple(kept.index(e) for a, e in enumerate(x.order) if a not in n.attr)
    return _made(n, (x.node,), tuple(folded), shape, order)


def _reshape(n: Node, x: _Form) -> _Form | None:
    """The reshaped form, if axes that are joined or parted lie in it one behind the other."""
    shape = n.inputs[0].shape
    lies = [e for e in range(len(x.order)) if x.node.shape[e] != 1]
    places: list[tuple[int, range]] = []
    for old, new in runs(shape, n.shape):
        found = [lies.index(x.order[d]) for d in old if shape[d] != 1]
        start = found[0] if found else len(lies)
        if found != list(range(start, start + len(found))):
            return None
        places.append((start, new))
    order = [d for _, new in sorted(places, key=lambda p: p[0]) for d in new]
    laid = reshaped(x.node, tuple(n.shape[d] for d in order))
    return _Form(laid, _inverse(order))


def _permuted(x: Node, axes: Order) -> Node:
    if axes == tuple(range(len(axes))):
        return x
    return node(ops.PERMUTE, (x,), axes, x.dtype, tuple(x.shape[a] for a in axes))


def _inverse(order: Sequence[int]) -> Order:
    places = {e: d for d, e in enumerate(order)}
    return tuple(places[e] for e in range(len(order)))
