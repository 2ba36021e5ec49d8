"""Products of bytes by matrix units, from words.

A `Reduce` of products of bytes over a tile axis whose bytes lie in fours is a product of matrices.
Where the codes of weights are parts of bytes, several of those follow each other, and their sum is
one product of matrices that lie side by side: words are loaded once, all their parts are taken out
of four bytes at a time, and only then are they bytes. A matrix for each group is a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from genesis.backends.gpu.codegen.dp4a import factors_of, word
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import int8, int32
from genesis.ir.index import simplify
from genesis.ir.node import Node, is_const, topological
from genesis.ir.rewrite import replaced

_BYTES = 4
#: Bytes that matrix units multiply at once, and rows and columns of their operands.
LEAST = 32
SIDE = 16


@dataclass(frozen=True, eq=False)
class ByteDot(kir.Statement):
    """``local[batch, row, column] = sum of left[batch, row, k] * right[batch, k, column]``.

    The operands are given part by part, as words of four bytes along `words`.
    """

    local: kir.Local
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    batch: kir.Axis | None
    row: kir.Axis
    column: kir.Axis
    words: kir.Axis


def find_byte_products(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with products of bytes for several rows as `ByteDot` statements."""
    return kernel.with_phases(kir.Phase(p.grid, tuple(_body(p.body))) for p in kernel.phases)


def _body(body: kir.Body) -> Iterator[kir.Statement]:
    parts: list[kir.Reduce] = []
    for s in body:
        if isinstance(s, kir.Reduce) and _multiplies(s):
            parts.append(s)
            continue
        found = _joined(s, parts) if isinstance(s, kir.Let) and parts else None
        if found is None:
            yield from parts
            yield _inside(s)
        else:
            yield found
        parts = []
    yield from parts


def _inside(s: kir.Statement) -> kir.Statement:
    if isinstance(s, kir.Loop):
        return replace(s, body=tuple(_body(s.body)))
    if isinstance(s, kir.If):
        return kir.If(s.condition, tuple(_body(s.body)), tuple(_body(s.orelse)))
    return s


def _multiplies(s: kir.Reduce) -> bool:
    """Whether a sum over a tile axis adds products of bytes, of several rows and columns."""
    many = isinstance(s.axis.extent, int) and s.axis.extent > _BYTES
    factors = factors_of(s) if many else None
    return factors is not None and all(f.dtype is int8 for f in factors)


def _joined(s: kir.Let, parts: list[kir.Reduce]) -> ByteDot | None:
    """A sum of nothing but those parts."""
    terms, stack = [], [s.value]
    while stack:
        n = stack.pop()
        if n.op is ops.ADD and n.dtype is int32:
            stack += n.inputs
        elif not is_const(n, 0):
            terms.append(n)
    extents = {p.axis.extent for p in parts}
    if set(terms) != {p.locals[0].node for p in parts} or len(terms) != len(parts):
        return None
    count = len(parts) * parts[0].axis.extent  # type: ignore[operator]
    if len(extents) > 1 or count < LEAST or count & count - 1:
        return None
    words = kir.Axis.tile("w", parts[0].axis.extent // _BYTES)  # type: ignore[operator]
    quad = kir.Axis.tile("j", _BYTES)
    left, right = [], []
    for p in parts:
        factors = factors_of(p)
        assert factors is not None
        at = {p.axis.node: words.node * _BYTES + quad.node}
        a, b = (word(simplify(replaced(f, at)), quad) for f in factors)
        if a is None or b is None:
            return None
        left.append(a)
        right.append(b)
    roles = _roles(s.local, left, right, words)
    if roles is None:
        return None
    if roles[1] in kir.tile_axes(*right):
        left, right = right, left
    return ByteDot(s.local, tuple(left), tuple(right), *roles, words)


def _roles(
    local: kir.Local, left: list[Node], right: list[Node], words: kir.Axis
) -> tuple[kir.Axis | None, kir.Axis, kir.Axis] | None:
    """The batch, the rows and the columns."""
    a, b = kir.tile_axes(*left) - {words}, kir.tile_axes(*right) - {words}
    batch = [x for x in local.tiles if x in a and x in b]
    one = [x for x in local.tiles if x not in batch]
    if len(one) != 2 or len(batch) > 1 or len(a) != len(b) or len(a) != 1 + len(batch):
        return None
    sides = all(isinstance(x.extent, int) and x.extent >= SIDE for x in one)
    whole = all(isinstance(x.extent, int) and not x.extent & x.extent - 1 for x in local.tiles)
    return (batch[0] if batch else None, *one) if sides and whole else None


def operands(s: ByteDot) -> tuple[Node, ...]:
    """The expressions of a statement."""
    return (*s.left, *s.right)


def loads(s: ByteDot) -> list[Node]:
    """The words that are loaded."""
    return [n for n in topological(operands(s)) if n.op is ops.LOAD]
