"""Conversions: whether a value lies in memory best as it is, or as what it is made from.

Numbers of few bits are read faster than the wider ones that are computed with.
"""

from __future__ import annotations

from genesis.compiler.fuse import cost
from genesis.ir import ops
from genesis.ir.node import Node


def of_bytes(n: Node) -> bool:
    """Whether a value is an integer of 8 bits, made wider."""
    while n.dtype.itemsize > 1 and (n.op.is_movement or n.op is ops.CAST):
        n = n.inputs[0]
    return n.dtype.is_integer and n.dtype.itemsize == 1


def is_decoded(n: Node) -> bool:
    """Whether a value is made of bytes, one by one, with what many of them share: a scale, say."""
    found, stack, seen = False, [(n, False)], set[Node]()
    while stack:
        m, shared = stack.pop()
        if m in seen or not m.shape:
            continue
        seen.add(m)
        if m.dtype.itemsize == 1:
            found = True
        elif m.op.is_elementwise or m.op.is_movement:
            shared = shared or (m.op is ops.EXPAND and m.inputs[0].shape != m.shape)
            stack += [(i, shared) for i in m.inputs]
        elif not shared:
            return False
    return found


def is_near_bytes(n: Node) -> bool:
    """Whether a value is integers of 8 bits, and less arithmetic than a load with what they share.

    Quantised numbers less their zero point, times their scale, are.
    """
    found, arithmetic, stack, seen = False, 0, [n], set[Node]()
    while stack:
        m = stack.pop()
        if m in seen or cost.count(m.shape) < cost.count(n.shape):
            continue
        seen.add(m)
        if m.dtype.is_integer and m.dtype.itemsize == 1:
            found = True
        elif m.op.is_elementwise or m.op.is_movement:
            arithmetic += cost.price(m) if m.op.is_elementwise else 0
            stack += m.inputs
        else:
            return False
        if arithmetic > cost.LOAD_PRICE:
            return False
    return found


def of_halves(n: Node) -> bool:
    """Whether a conversion makes floats of 16 bits wider."""
    narrow = n.inputs[0].dtype
    return narrow.is_float and narrow.bits == 16 and n.dtype.is_float and n.dtype.bits > 16


def to_halves(n: Node) -> bool:
    """Whether a conversion rounds wider floats to 16 bits."""
    wide = n.inputs[0].dtype
    return n.dtype.is_float and n.dtype.bits == 16 and wide.is_float and wide.bits > 16


def is_computed(n: Node) -> bool:
    """Whether a value is more than what is in memory, rearranged."""
    while n.op.is_movement:
        n = n.inputs[0]
    return n.op is not ops.BUFFER
