"""Rules about reductions, prefixes and contractions: no element is worked on twice."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.graph.simplify.movement import expanded, reshaped
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.node import Node, const, elementwise, node
from genesis.ir.rewrite import Rules
from genesis.ir.size import Dim, product

RULES = Rules("reductions")


@RULES.on(ops.PREFIX)
def _prefix_of_one(n: Node) -> Node | None:
    """A single element is its own prefix."""
    return n.inputs[n.attr.item] if n.shape[n.attr.axis] == 1 else None


@RULES.on(ops.REDUCTIONS)
def _reduce_nothing(n: Node) -> Node | None:
    """Reducing over axes of extent 1 is a reshape."""
    (x,) = n.inputs
    if not all(x.shape[a] == 1 for a in n.attr):
        return None
    once = reshaped(x, n.shape)
    return _from_zero(once) if n.op is ops.SUM else once


@RULES.on((ops.SUM, ops.AMAX, ops.AMIN), ops.EXPAND)
def _reduce_repetition(n: Node) -> Node | None:
    """Repetitions are counted, not added: their sum is one multiplication, their maximum itself.

    The multiplication rounds once, as a sum in some order might; the count must be exact.
    """
    spread, source = n.inputs[0], n.inputs[0].inputs[0]
    repeated = [a for a in n.attr if source.shape[a] == 1 and spread.shape[a] != 1]
    times = product(spread.shape[a] for a in repeated)
    if not repeated or not isinstance(times, int) or not times:
        return None
    if n.op is ops.SUM and not _holds(n.dtype, times):
        return None
    # What is left of a repeated axis has extent 1 and is reduced to nothing.
    shape = tuple(1 if a in repeated else e for a, e in enumerate(spread.shape))
    once = expanded(source, shape)
    kept = tuple(a for a in n.attr if a not in repeated)
    if kept:
        partial = tuple(e for a, e in enumerate(shape) if a not in kept)
        once = node(n.op, (once,), kept, n.dtype, partial)
    once = reshaped(once, n.shape)
    if n.op is not ops.SUM:
        return once
    return _from_zero(elementwise(ops.MUL, once, const(times, n.dtype)))


def _holds(dtype: DType, number: int) -> bool:
    """Whether a count is a number of this type; integers wrap like the sum does."""
    return dtype.is_integer or (dtype.is_float and float(dtype.numpy.type(number)) == number)


def _from_zero(total: Node) -> Node:
    """A sum begins with 0.0, so no -0.0 comes out of it. Integers drop the addition again."""
    return elementwise(ops.ADD, total, const(0, total.dtype))


# ---- contractions


def contraction(
    x: Node, y: Node, left: Sequence[int], right: Sequence[int], out: Sequence[int]
) -> Node:
    """A CONTRACT with labels numbered by first appearance, so that equal ones are equal nodes."""
    numbers = {label: k for k, label in enumerate(dict.fromkeys([*left, *right]))}
    extents = dict(zip(left, x.shape, strict=True)) | dict(zip(right, y.shape, strict=True))
    attr = tuple(tuple(numbers[label] for label in labels) for labels in (left, right, out))
    return node(ops.CONTRACT, (x, y), attr, x.dtype, tuple(extents[label] for label in out))


@RULES.on(ops.CONTRACT)
def _product_without_sum(n: Node) -> Node | None:
    """With nothing to sum over it is elementwise, and fuses into reductions of it, too."""
    left, right, out = n.attr
    if not (set(left) <= set(out) and set(right) <= set(out)):
        return None
    x, y = (_aligned(i, labels, n) for i, labels in zip(n.inputs, (left, right), strict=True))
    return elementwise(ops.MUL, x, y)


def _aligned(x: Node, labels: Sequence[int], n: Node) -> Node:
    """An operand of a contraction, broadcast to the result's axes."""
    out = n.attr[2]
    order = tuple(labels.index(label) for label in out if label in labels)
    moved = node(ops.PERMUTE, (x,), order, x.dtype, tuple(x.shape[d] for d in order))
    shape: tuple[Dim, ...] = tuple(
        e if label in labels else 1 for label, e in zip(out, n.shape, strict=True)
    )
    return expanded(reshaped(moved, shape), n.shape)


@RULES.on(ops.CONTRACT)
def _repeated_operand(n: Node) -> Node | None:
    """An operand repeated along an axis of the result needs no such axis.

    A batch of products with one matrix is one product with it, and a batch of one product is that
    product, repeated.
    """
    for side, x in enumerate(n.inputs):
        if x.op is not ops.EXPAND:
            continue
        (source,), labels, others, out = x.inputs, n.attr[side], n.attr[1 - side], n.attr[2]
        kept = [d for d, e in enumerate(source.shape) if e != 1 or labels[d] not in out]
        if not kept or len(kept) == len(labels):
            continue
        operand = reshaped(source, tuple(source.shape[d] for d in kept))
        operand = expanded(operand, tuple(x.shape[d] for d in kept))
        names = [labels[d] for d in kept]
        inner = [label for label in out if label in names or label in others]
        pair = [(operand, names), (n.inputs[1 - side], others)]
        (a, left), (b, right) = pair if side == 0 else reversed(pair)
        result = contraction(a, b, left, right, inner)
        shape = tuple(e if label in inner else 1 for label, e in zip(out, n.shape, strict=True))
        return expanded(reshaped(result, shape), n.shape)
    return None
