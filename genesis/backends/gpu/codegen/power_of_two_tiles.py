"""Padding: Triton's blocks have powers of two for extents, tile axes have any.

The lanes past an axis' end load nothing, store nothing and take the neutral value in reductions.
General merges have none: their padding lanes come last, and the renderer reads the result before.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.gpu.codegen.contractions_to_dot import Dot
from genesis.backends.gpu.codegen.expression import padded
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar
from genesis.ir.node import TRUE, Node, both, const, elementwise
from genesis.ir.ops import Op


def pad(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with the padding lanes of tile axes masked in loads, stores and reductions."""
    return kernel.with_phases(replace(p, body=_pad_body(p.body)) for p in kernel.phases)


def _inside(*nodes: Node) -> Node:
    """The condition that no tile axis the nodes mention is in its padding."""
    inside = TRUE
    for axis in sorted(kir.tile_axes(*nodes), key=lambda a: a.name):
        if padded(axis) != axis.extent:
            inside = both(inside, axis.node < axis.extent)
    return inside


def _pad_expression(n: Node) -> Node:
    def padded_load(load: Node) -> Node:
        buffer, indices, mask, other = kir.load_parts(load)
        return buffer.load(*indices, mask=both(mask, _inside(*indices, mask)), other=other)

    return kir.map_loads(n, padded_load)


def _pad_body(body: kir.Body) -> kir.Body:
    padded_loads = kir.map_expressions(body, _pad_expression)
    return tuple(_pad_statement(x) for s in padded_loads for x in _apart(s))


def _apart(s: kir.Statement) -> tuple[kir.Statement, ...]:
    """Reductions of several values by themselves, if none of them needs another."""
    merges = kir.folds_apart(s.merge) if isinstance(s, kir.Reduce) else None
    if merges is None or not isinstance(s, kir.Reduce):
        return (s,)
    each = zip(s.locals, s.values, merges, strict=True)
    return tuple(kir.Reduce((v,), (x,), s.axis, merge) for v, x, merge in each)


def _pad_statement(s: kir.Statement) -> kir.Statement:
    def within(body: kir.Body) -> kir.Body:
        return tuple(_pad_statement(x) for s in body for x in _apart(s))

    if isinstance(s, kir.Loop):
        return replace(s, body=within(s.body))
    if isinstance(s, kir.If):
        then, orelse = (within(branch) for branch in kir.children(s))
        return kir.If(s.condition, then, orelse)
    if isinstance(s, kir.Store):
        return replace(s, mask=both(s.mask, _inside(*s.index)))
    if isinstance(s, Dot):  # its tiles are powers of two, but it may load through others
        return replace(s, left=_pad_expression(s.left), right=_pad_expression(s.right))
    if isinstance(s, kir.Reduce) and padded(s.axis) != s.axis.extent:
        dtype = s.values[0].dtype
        neutral = _neutral(kir.simple_fold(s.merge), dtype)
        if neutral is not None:
            inside = s.axis.node < s.axis.extent
            value = elementwise(ops.WHERE, inside, s.values[0], const(neutral, dtype))
            return replace(s, values=(value,))
    return s


def _neutral(op: Op | None, dtype: DType) -> Scalar | None:
    """The value that changes nothing when folded in."""
    if op in (ops.ADD, ops.OR, ops.XOR):
        return 0
    if op is ops.MUL:
        return 1
    if op is ops.MAX:
        return dtype.min
    if op is ops.AND:
        return -1 if dtype.kind == "int" else dtype.max
    return dtype.max if op is ops.MIN else None
