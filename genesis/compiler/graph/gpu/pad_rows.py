"""Even rows: matrices of floats whose rows are not whole vectors get longer ones.

A vocabulary of 50257 makes rows that begin anywhere, and matrix units want rows that begin with a
vector. What is multiplied is padded with zeros: memory has the zeros, written where the operand is
computed, and nobody copies it for the sake of them. A product with longer rows is one of which the
ends are not read. All of this is said in the graph, with PAD and SLICE, before fusion decides what
lies in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from genesis.compiler.fuse.conversions import is_computed
from genesis.compiler.fuse.cost import count
from genesis.compiler.fuse.groups import summed_labels
from genesis.compiler.graph.simplify.movement import reshaped
from genesis.ir import ops
from genesis.ir.dtype import bfloat16, float16, float32
from genesis.ir.node import Node, Shape, const, node, topological

#: Rows end at multiples of this: whole vectors, and whole tiles of most sizes.
WHOLE = 128
#: Bytes of a vector.
VECTOR = 16
#: Shorter rows are left as they are, and operands of which every element is multiplied less often.
LEAST = 1024
READS = 512


def even(roots: Sequence[Node], became: dict[Node, Node]) -> tuple[Node, ...]:
    """Equivalent roots with even rows; `became` is told what its nodes have become."""
    order = topological(roots)
    users = Counter(i for n in order for i in n.inputs)
    single = {i: n for n in order for i in n.inputs if users[i] == 1}
    done: dict[Node, Node] = {}
    for n in order:
        new = n.with_inputs(tuple(done[i] for i in n.inputs)) if n.inputs else n
        labels = _uneven(new) if n.op is ops.CONTRACT else {}
        done[n] = _padded_product(new, labels, _is_kept(n, users, single)) if labels else new
    for old, new in became.items():
        became[old] = done.get(new, new)
    return tuple(done[n] for n in roots)


def is_end(n: Node) -> bool:
    """Whether a value is padded at the end of one axis only."""
    if n.op is not ops.PAD or any(place != (0, 1) for place in n.attr):
        return False
    return sum(a != b for a, b in zip(n.shape, n.inputs[0].shape, strict=True)) == 1


def _uneven(n: Node) -> dict[int, int]:
    """The labels that run along uneven rows of a product or its operands, with even extents."""
    # Scores of attention are float32, and never in memory.
    if any(i.dtype not in (float16, bfloat16) and not _is_single(i) for i in n.inputs):
        return {}
    left, right, out = n.attr
    extents = dict(zip((*left, *right), (*n.inputs[0].shape, *n.inputs[1].shape), strict=True))
    products = count(tuple(extents.values()))
    if any(products < READS * count(i.shape) for i in n.inputs):
        return {}
    found: dict[int, int] = {}
    for label in {_last(n, out), *map(_last, n.inputs, (left, right))}:
        if label is None or all(label in labels for labels in n.attr):
            continue
        extent = extents[label]
        uneven = isinstance(extent, int) and extent * n.inputs[0].dtype.itemsize % VECTOR
        if uneven and extent >= LEAST:
            found[label] = -(-extent // WHOLE) * WHOLE
    return found


def _is_single(x: Node) -> bool:
    """Whether a value is float32 that lies in memory as such."""
    return x.dtype is float32 and not is_computed(x)


def _last(x: Node, labels: tuple[int, ...]) -> int | None:
    """The label along which a value lies in memory."""
    if not labels:
        return None
    last = len(labels) - 1
    return labels[x.attr.index(last) if x.op is ops.PERMUTE else last]


def _is_kept(n: Node, users: Counter[Node], single: dict[Node, Node]) -> bool:
    """Whether a product lies in memory, converted at most, and several read it there."""
    while n in single and (single[n].op.is_movement or single[n].op is ops.CAST):
        n = single[n]
    return users[n] > 1


def _padded_product(n: Node, labels: dict[int, int], kept: bool) -> Node:
    """A contraction of operands with even rows; its own are even if it is kept in memory."""
    summed = summed_labels(n)
    out = n.attr[2]
    inputs = []
    for x, own in zip(n.inputs, n.attr[:2], strict=True):
        for label in labels.keys() & set(own):
            axis = own.index(label)
            longer = _padded(x, axis, labels[label])
            stays = label in summed or (kept and label == out[-1])
            # Memory is even either way.
            x = longer if stays else _part(longer, x.shape)
        inputs.append(x)
    last = labels.get(out[-1]) if kept else None
    shape = n.shape if last is None else (*n.shape[:-1], last)
    return _part(node(ops.CONTRACT, tuple(inputs), n.attr, n.dtype, shape), n.shape)


def _padded(x: Node, axis: int, size: int) -> Node:
    """`x` with zeros up to `size`, put there before it is rearranged: others may share it."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    if x.op is ops.PERMUTE:
        inner = _padded(x.inputs[0], x.attr[axis], size)
        return node(ops.PERMUTE, (inner,), x.attr, x.dtype, shape)
    if x.op is ops.RESHAPE and axis == len(x.shape) - 1 and x.inputs[0].shape[-1:] == x.shape[-1:]:
        return reshaped(_padded(x.inputs[0], len(x.inputs[0].shape) - 1, size), shape)
    fill = const(0, x.dtype)
    return node(ops.PAD, (x, fill), ((0, 1),) * len(shape), x.dtype, shape)


def _part(x: Node, shape: Shape) -> Node:
    """The beginning of every row."""
    if x.shape == shape:
        return x
    return node(ops.SLICE, (x,), ((0, 1),) * len(shape), x.dtype, shape)
