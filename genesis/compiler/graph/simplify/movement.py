"""Rules about movement alone: chains become shorter, and repetition comes last.

An EXPAND is moved outwards past everything that only rearranges, so that the rules for arithmetic
and reductions find it and do the work once instead of once per repetition.
"""

from __future__ import annotations

from genesis.ir import ops
from genesis.ir.node import Node, Shape, node
from genesis.ir.rewrite import Rules

RULES = Rules("movement")


def reshaped(x: Node, shape: Shape) -> Node:
    """`x` in another shape."""
    return x if x.shape == shape else node(ops.RESHAPE, (x,), None, x.dtype, shape)


def expanded(x: Node, shape: Shape) -> Node:
    """`x` with axes of extent 1 repeated."""
    return x if x.shape == shape else node(ops.EXPAND, (x,), None, x.dtype, shape)


def everywhere(x: Node, shape: Shape) -> Node:
    """An operand of elementwise arithmetic in the result's shape: a scalar stands for every one."""
    return x if x.shape == shape else expanded(reshaped(x, (1,) * len(shape)), shape)


# ---- the same operation twice


@RULES.on(ops.RESHAPE, ops.RESHAPE)
def _reshape_twice(n: Node) -> Node:
    """Only the last shape matters."""
    return reshaped(n.inputs[0].inputs[0], n.shape)


@RULES.on(ops.PERMUTE, ops.PERMUTE)
def _permute_twice(n: Node) -> Node:
    """Two permutations compose."""
    inner = n.inputs[0]
    axes = tuple(inner.attr[a] for a in n.attr)
    return node(ops.PERMUTE, inner.inputs, axes, n.dtype, n.shape)


@RULES.on(ops.EXPAND, ops.EXPAND)
def _expand_twice(n: Node) -> Node:
    """Expanding an expansion reads the same element."""
    return expanded(n.inputs[0].inputs[0], n.shape)


@RULES.on(ops.SLICE, ops.SLICE)
def _slice_twice(n: Node) -> Node:
    """``x[a::s][b::t]`` starts at ``a + s*b`` with step ``s*t``."""
    inner = n.inputs[0]
    steps = tuple((a + s * b, s * t) for (a, s), (b, t) in zip(inner.attr, n.attr, strict=True))
    return node(ops.SLICE, inner.inputs, steps, n.dtype, n.shape)


# ---- nothing moves


@RULES.on((ops.RESHAPE, ops.EXPAND))
def _same_shape(n: Node) -> Node | None:
    return n.inputs[0] if n.shape == n.inputs[0].shape else None


@RULES.on(ops.PERMUTE)
def _order_kept(n: Node) -> Node | None:
    """Where only axes of extent 1 change places no element does: it is a reshape, or nothing."""
    shape = n.inputs[0].shape
    moved = [a for a in n.attr if shape[a] != 1]
    return reshaped(n.inputs[0], n.shape) if moved == sorted(moved) else None


@RULES.on((ops.SLICE, ops.PAD))
def _whole(n: Node) -> Node | None:
    """A slice of everything, or padding by nothing."""
    whole = n.shape == n.inputs[0].shape and all(s == (0, 1) for s in n.attr)
    return n.inputs[0] if whole else None


@RULES.on(ops.WINDOW)
def _window_of_one(n: Node) -> Node | None:
    """A window of one element is a slice: a 1x1 convolution is a matrix product."""
    axis, stride, _ = n.attr
    if n.shape[-1] != 1:
        return None
    steps = tuple((0, stride if d == axis else 1) for d in range(len(n.shape) - 1))
    part = node(ops.SLICE, n.inputs, steps, n.dtype, n.shape[:-1])
    return reshaped(part, n.shape)


# ---- an order for those that commute


@RULES.on(ops.PERMUTE, ops.EXPAND)
def _permute_before_expand(n: Node) -> Node:
    source = n.inputs[0].inputs[0]
    shape = tuple(source.shape[a] for a in n.attr)
    return expanded(node(ops.PERMUTE, (source,), n.attr, n.dtype, shape), n.shape)


@RULES.on(ops.SLICE, ops.EXPAND)
def _slice_before_expand(n: Node) -> Node:
    """Any piece of a repeated axis is that axis repeated less often."""
    source, shape = n.inputs[0].inputs[0], n.inputs[0].shape
    repeated = [e == 1 != f for e, f in zip(source.shape, shape, strict=True)]
    steps = tuple((0, 1) if r else s for r, s in zip(repeated, n.attr, strict=True))
    kept = tuple(1 if r else e for r, e in zip(repeated, n.shape, strict=True))
    return expanded(node(ops.SLICE, (source,), steps, n.dtype, kept), n.shape)


@RULES.on(ops.RESHAPE, ops.EXPAND)
def _reshape_before_expand(n: Node) -> Node | None:
    """Axes of extent 1 that come and go do not concern the repeated ones."""
    source, shape = n.inputs[0].inputs[0], n.inputs[0].shape
    kept = [(e, f) for e, f in zip(source.shape, shape, strict=True) if f != 1]
    if [f for _, f in kept] != [f for f in n.shape if f != 1]:
        return None
    extents = (e for e, _ in kept)
    return expanded(
        reshaped(source, tuple(f if f == 1 else next(extents) for f in n.shape)), n.shape
    )


@RULES.on(ops.SLICE, ops.PERMUTE)
def _slice_before_permute(n: Node) -> Node:
    """Slices go inwards, to the pads, updates and concatenations they undo."""
    inner = n.inputs[0]
    places = {a: d for d, a in enumerate(inner.attr)}
    order = [places[a] for a in range(len(inner.attr))]
    steps, shape = tuple(n.attr[d] for d in order), tuple(n.shape[d] for d in order)
    part = node(ops.SLICE, inner.inputs, steps, n.dtype, shape)
    return node(ops.PERMUTE, (part,), inner.attr, n.dtype, n.shape)
