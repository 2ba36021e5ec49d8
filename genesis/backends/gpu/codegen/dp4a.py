"""Quadruples of bytes as words: four products that one instruction multiplies and adds up.

A `Reduce` over a tile axis of four, of products of bytes that lie next to each other, needs no such
axis: the four bytes are loaded as one word, halves of bytes are taken out of all four at once, and
``dp4a`` does the rest.
"""

from __future__ import annotations

from genesis.backends.gpu.codegen.address import offset
from genesis.ir import ops
from genesis.ir.dtype import int8, int32, uint8, uint32
from genesis.ir.index import LinearIndex, simplify
from genesis.ir.kernel import Axis, Buffer, Reduce, load_parts, simple_fold
from genesis.ir.node import Node, const, elementwise, is_const, mentions

_BYTES = 4
_EACH = 0x01010101  # a byte in all four places


def quadruple(s: Reduce) -> tuple[Node, Node] | None:
    """The factors of four products of bytes, a signed one first, if they can be words.

    Words are loaded from buffers that have the names of those of the bytes.
    """
    (value, *more) = s.values
    plain = not more and s.axis.extent == _BYTES and simple_fold(s.merge) is ops.ADD
    if not plain or value.op is not ops.MUL or value.dtype is not int32:
        return None
    if not all(f.op is ops.CAST for f in value.inputs):
        return None
    factors = sorted((f.inputs[0] for f in value.inputs), key=lambda n: n.dtype is uint8)
    if [n.dtype for n in factors] not in ([int8, uint8], [int8, int8]):
        return None
    left, right = (_word(n, s.axis) for n in factors)
    return None if left is None or right is None else (left, right)


def _word(n: Node, quad: Axis) -> Node | None:
    """The four values of an expression of bytes, as one word."""
    if n.op is ops.LOAD:
        return _loaded(n, quad)
    if n.op is ops.BITCAST:
        return _word(n.inputs[0], quad)
    if n.op is ops.LOOKUP:
        codes = _word(n.inputs[0], quad)
        return None if codes is None else elementwise(n.op, codes, *n.inputs[1:], dtype=uint32)
    if n.op not in (ops.AND, ops.XOR) or n.inputs[1].op is not ops.CONST or n.dtype is not uint8:
        return None
    taken, bits = n.inputs[0], n.inputs[1].attr
    shifted = n.op is ops.AND and taken.op in (ops.SHL, ops.SHR)
    if not shifted:
        word = _word(taken, quad)
    elif taken.inputs[1].op is ops.CONST and not bits & ~_kept(taken):
        word = _word(taken.inputs[0], quad)
    else:
        return None
    if word is None:
        return None
    if shifted:
        word = elementwise(taken.op, word, const(taken.inputs[1].attr, uint32))
    return elementwise(n.op, word, const(bits * _EACH, uint32))


def _kept(shifted: Node) -> int:
    """The bits of a shifted byte that come from itself, where four are shifted together."""
    count = int(shifted.inputs[1].attr)
    return 0xFF >> count if shifted.op is ops.SHR else 0xFF << count & 0xFF


def _loaded(n: Node, quad: Axis) -> Node | None:
    """The word that four bytes are, if they are one."""
    buffer, at, mask, other = load_parts(n)
    place = LinearIndex.of(simplify(offset(buffer, at)))
    neighbours = place.terms.pop(quad.node, 0) == 1
    whole = all(x % _BYTES == 0 for x in (*place.terms.values(), place.constant))
    apart = quad.node not in mentions(mask).union(*(mentions(t) for t in place.terms))
    if not (neighbours and whole and apart and is_const(other, 0)):
        return None
    parts = LinearIndex({t: c // _BYTES for t, c in place.terms.items()}, place.constant // _BYTES)
    words = Buffer(buffer.name, uint32, (1 << 40,), buffer.role)
    return words.load(parts.emit(), mask=mask)
