"""Simplify: algebra on the tensor graph before fusion.

Each rule removes work or exposes a fusion and keeps every bit that IEEE arithmetic defines:
``x * 0`` is not 0 when x may be NaN, so it stays. Rules that only tidy movement make equal graphs
look equal, so that more of them share a program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genesis.ir import ops
from genesis.ir.node import Node, const, is_const, node
from genesis.ir.rewrite import Rules, rewrite
from genesis.ir.scalar import apply

RULES = Rules("simplify")


def simplify(roots: Sequence[Node], memo: dict[Node, Node] | None = None) -> list[Node]:
    """Equivalent roots with less to compute; `memo` receives what became of every node."""
    return rewrite(roots, RULES, memo)


# ---- movement


@RULES.on(ops.RESHAPE, ops.RESHAPE)
def _reshape_twice(n: Node) -> Node:
    """Only the last shape matters."""
    return node(ops.RESHAPE, n.inputs[0].inputs, None, n.dtype, n.shape)


@RULES.on(ops.PERMUTE, ops.PERMUTE)
def _permute_twice(n: Node) -> Node:
    """Two permutations compose."""
    inner = n.inputs[0]
    axes = tuple(inner.attr[a] for a in n.attr)
    return node(ops.PERMUTE, inner.inputs, axes, n.dtype, n.shape)


@RULES.on(ops.EXPAND, ops.EXPAND)
def _expand_twice(n: Node) -> Node:
    """Expanding an expansion reads the same element."""
    return node(ops.EXPAND, n.inputs[0].inputs, None, n.dtype, n.shape)


@RULES.on(ops.SLICE, ops.SLICE)
def _slice_twice(n: Node) -> Node:
    """``x[a::s][b::t]`` starts at ``a + s*b`` with step ``s*t``."""
    inner = n.inputs[0]
    steps = tuple((a + s * b, s * t) for (a, s), (b, t) in zip(inner.attr, n.attr, strict=True))
    return node(ops.SLICE, inner.inputs, steps, n.dtype, n.shape)


@RULES.on((ops.RESHAPE, ops.EXPAND))
def _same_shape(n: Node) -> Node | None:
    return n.inputs[0] if n.shape == n.inputs[0].shape else None


@RULES.on(ops.PERMUTE)
def _identity_permute(n: Node) -> Node | None:
    return n.inputs[0] if n.attr == tuple(range(len(n.attr))) else None


@RULES.on((ops.SLICE, ops.PAD))
def _whole(n: Node) -> Node | None:
    """A slice of everything, or padding by nothing."""
    whole = n.shape == n.inputs[0].shape and all(s == (0, 1) for s in n.attr)
    return n.inputs[0] if whole else None


@RULES.on(ops.UPDATE)
def _overwrite(n: Node) -> Node | None:
    """Writing every element in order leaves nothing of the old value."""
    whole = n.shape == n.inputs[1].shape and all(s == (0, 1) for s in n.attr)
    return n.inputs[1] if whole else None


# ---- scalars


def _is_uniform(n: Node) -> Node | None:
    """The scalar a movement chain repeats everywhere, if it does."""
    while n.op in (ops.RESHAPE, ops.EXPAND, ops.PERMUTE, ops.SLICE):
        n = n.inputs[0]
    return n if n.shape == () else None


@RULES.on([o for o in ops.ALL.values() if o.is_elementwise])
def _uniform_operands(n: Node) -> Node | None:
    """An expanded scalar stands for every shape anyway; one operand must keep the shape."""
    if not n.shape:
        return None
    inputs = list(n.inputs)
    for k, i in enumerate(inputs):
        others_keep = any(j is not i and j.shape for j in inputs[:k] + inputs[k + 1 :])
        scalar = _is_uniform(i) if i.shape else None
        if scalar is not None and others_keep:
            inputs[k] = scalar
    return n.with_inputs(tuple(inputs)) if tuple(inputs) != n.inputs else None


@RULES.on([o for o in ops.ALL.values() if o.is_elementwise])
def _fold(n: Node) -> Node | None:
    """Operations on constants, computed with the oracle's own definition."""
    if n.shape or not all(i.op is ops.CONST for i in n.inputs):
        return None
    values = [np.asarray(i.attr, i.dtype.numpy) for i in n.inputs]
    return const(apply(n.op, n.dtype, *values).item(), n.dtype)


@RULES.on((ops.ADD, ops.SUB), None, ops.CONST)
def _add_zero(n: Node) -> Node | None:
    """``x - 0`` is x; ``x + 0`` turns -0.0 into 0.0, so only ``x + -0.0`` is for floats."""
    zero = n.inputs[1]
    if not is_const(zero, 0) or n.shape != n.inputs[0].shape:
        return None
    exact = not n.dtype.is_float or (repr(zero.attr) == "-0.0") == (n.op is ops.ADD)
    return n.inputs[0] if exact else None


@RULES.on((ops.MUL, ops.DIV), None, ops.CONST)
def _times_one(n: Node) -> Node | None:
    return n.inputs[0] if is_const(n.inputs[1], 1) and n.shape == n.inputs[0].shape else None


@RULES.on(ops.MUL, ops.CONST)
def _one_times(n: Node) -> Node | None:
    return n.inputs[1] if is_const(n.inputs[0], 1) and n.shape == n.inputs[1].shape else None


@RULES.on((ops.NEG, ops.NOT))
def _twice_negated(n: Node) -> Node | None:
    return n.inputs[0].inputs[0] if n.inputs[0].op is n.op else None


@RULES.on(ops.CAST)
def _same_type(n: Node) -> Node | None:
    return n.inputs[0] if n.dtype is n.inputs[0].dtype else None


@RULES.on(ops.WHERE, ops.CONST)
def _known_condition(n: Node) -> Node | None:
    chosen = n.inputs[1] if n.inputs[0].attr else n.inputs[2]
    return chosen if chosen.shape == n.shape else None


# ---- reductions


@RULES.on(ops.REDUCTIONS)
def _reduce_nothing(n: Node) -> Node | None:
    """Reducing over axes of extent 1 is a reshape."""
    shape = n.inputs[0].shape
    if all(shape[a] == 1 for a in n.attr):
        return node(ops.RESHAPE, n.inputs, None, n.dtype, n.shape)
    return None
