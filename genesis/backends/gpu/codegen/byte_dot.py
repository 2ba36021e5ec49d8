"""Products of bytes by matrix units, from words.

A `Reduce` of products of bytes over a tile axis whose bytes lie in fours is a product of matrices.
Where the codes of weights are parts of bytes, several of those follow each other, and their sum is
one product of matrices that lie side by side: words are loaded once, all their parts are taken out
of four bytes at a time, and only then are they bytes. A matrix for each group is a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from genesis.backends.gpu.codegen.dp4a import factors_of, word
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType, int8, int32, uint8, uint32
from genesis.ir.index import simplify, static
from genesis.ir.node import Node, const, elementwise, is_const, topological
from genesis.ir.rewrite import replaced

_BYTES = 4
#: Bytes that matrix units multiply at once, and rows and columns of their operands.
LEAST = 32
SIDE = 16


@dataclass(frozen=True)
class ByteOperand:
    """An operand: parts that follow each other, as words of four bytes along an axis."""

    parts: tuple[Node, ...]
    inner: kir.Axis


@dataclass(frozen=True, eq=False)
class ByteDot(kir.Statement):
    """``local[batch, row, column] = sum of left[batch, row, k] * right[batch, k, column]``."""

    local: kir.Local
    left: ByteOperand
    right: ByteOperand
    batch: kir.Axis | None
    row: kir.Axis
    column: kir.Axis


def find_byte_products(kernel: kir.Kernel, aligned: bool) -> kir.Kernel:
    """The kernel with products of bytes for several rows as `ByteDot` statements.

    Where memory is not `aligned`, words are put together from bytes.
    """
    phases = [kir.Phase(p.grid, tuple(_body(p.body))) for p in kernel.phases]
    if not aligned:
        dtypes = {b.name: b.dtype for b in kernel.buffers}
        phases = [replace(p, body=_from_bytes(p.body, dtypes)) for p in phases]
    return kernel.with_phases(phases)


def _from_bytes(body: kir.Body, dtypes: Mapping[str, DType]) -> kir.Body:
    """Products whose words are loaded byte by byte."""

    def together(load: Node) -> Node:
        words, (at,), mask, _ = kir.load_parts(load)
        buffer = kir.Buffer(words.name, dtypes[words.name], words.shape, words.role)
        result = None
        for k in range(_BYTES):
            byte = buffer.load(at * _BYTES + k, mask=mask)
            byte = elementwise(ops.BITCAST, byte, dtype=uint8) if byte.dtype is int8 else byte
            part = elementwise(ops.CAST, byte, dtype=uint32)
            part = elementwise(ops.SHL, part, const(8 * k, uint32)) if k else part
            result = part if result is None else elementwise(ops.OR, result, part)
        assert result is not None
        return result

    def one(s: kir.Statement) -> kir.Statement:
        if not isinstance(s, ByteDot):
            return _inside(s, lambda b: _from_bytes(b, dtypes))
        left, right = (
            replace(x, parts=tuple(kir.map_loads(n, together) for n in x.parts))
            for x in (s.left, s.right)
        )
        return replace(s, left=left, right=right)

    return tuple(map(one, body))


def _body(body: kir.Body) -> Iterator[kir.Statement]:
    parts: list[kir.Reduce] = []
    for s in body:
        if isinstance(s, kir.Reduce) and _multiplies(s):
            parts.append(s)
            continue
        found = _joined(s, parts) if isinstance(s, kir.Let) and parts else None
        if found is None:
            yield from parts
            yield _inside(s, lambda b: tuple(_body(b)))
        else:
            yield found
        parts = []
    yield from parts


def _inside(s: kir.Statement, change: Callable[[kir.Body], kir.Body]) -> kir.Statement:
    if isinstance(s, kir.Loop):
        return replace(s, body=change(s.body))
    return kir.If(s.condition, change(s.body), change(s.orelse)) if isinstance(s, kir.If) else s


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
    sizes = {static(p.axis.extent) for p in parts}
    if set(terms) != {p.locals[0].node for p in parts} or len(terms) != len(parts):
        return None
    size = sizes.pop() or 0
    count = len(parts) * size
    if sizes or count < LEAST or count & count - 1:
        return None
    pairs = [factors_of(p) for p in parts]
    left, right = (
        _operand([f[k] for f in pairs if f is not None], [p.axis for p in parts], size)
        for k in range(2)
    )
    if left is None or right is None:
        return None
    roles = _roles(s.local, left, right)
    if roles is None:
        return None
    if roles[1] in kir.tile_axes(*right.parts):
        left, right = right, left
    return ByteDot(s.local, left, right, *roles)


def _operand(factors: list[Node], axes: list[kir.Axis], size: int) -> ByteOperand | None:
    """What the factors of all parts are together; each has an axis of that size."""
    whole = kir.Axis.tile("k", size * len(axes))
    first = simplify(replaced(factors[0], {axes[0].node: whole.node}))
    runs_on = all(
        simplify(replaced(first, {whole.node: a.node + k * size})) is f
        for k, (a, f) in enumerate(zip(axes, factors, strict=True))
    )
    if runs_on:
        axes, factors, size = [whole], [first], size * len(axes)
    words, quad = kir.Axis.tile("w", size // _BYTES), kir.Axis.tile("j", _BYTES)
    at = words.node * _BYTES + quad.node
    found = [
        word(simplify(replaced(f, {a.node: at})), quad) for a, f in zip(axes, factors, strict=True)
    ]
    known = tuple(n for n in found if n is not None)
    return ByteOperand(known, words) if len(known) == len(found) else None


def _roles(
    local: kir.Local, left: ByteOperand, right: ByteOperand
) -> tuple[kir.Axis | None, kir.Axis, kir.Axis] | None:
    """The batch, the rows and the columns."""
    a, b = (kir.tile_axes(*x.parts) - {x.inner} for x in (left, right))
    batch = [x for x in local.tiles if x in a and x in b]
    one = [x for x in local.tiles if x not in batch]
    if len(one) != 2 or len(batch) > 1 or len(a) != len(b) or len(a) != 1 + len(batch):
        return None
    enough = all(isinstance(x.extent, int) and x.extent >= SIDE for x in one)
    whole = all(isinstance(x.extent, int) and not x.extent & x.extent - 1 for x in local.tiles)
    row, column = one
    return (batch[0] if batch else None, row, column) if enough and whole else None


def operands(s: ByteDot) -> tuple[Node, ...]:
    """The expressions of a statement."""
    return (*s.left.parts, *s.right.parts)


Frame = tuple[kir.Axis, ...]


def sides(s: ByteDot, order: Sequence[kir.Axis]) -> list[tuple[Frame, ByteOperand]]:
    """The operands in the order that the result has them, with axes as blocks have them."""
    batch = () if s.batch is None else (s.batch,)
    both = [(s.row, s.left), (s.column, s.right)]
    both.sort(key=lambda side: order.index(side[0]))
    return [((*batch, axis, operand.inner), operand) for axis, operand in both]


@dataclass(frozen=True)
class Stream:
    """What every turn of a loop loads, from a place that the turn alone tells."""

    load: Node
    frame: Frame


def streams(loop: kir.Loop, order: Sequence[kir.Axis]) -> list[Stream]:
    """What a loop over products of bytes reads."""
    dots = [s for s in loop.body if isinstance(s, ByteDot)]
    if len(dots) != 1:
        return []
    values = [(frame, n) for frame, operand in sides(dots[0], order) for n in operand.parts]
    others = [(s.local, s.value) for s in loop.body if isinstance(s, kir.Let)]
    for local, value in (*others, *((c.local, c.step) for c in loop.carried)):
        tiles = {*local.tiles, *kir.tile_axes(value)}
        values.append((tuple(a for a in order if a in tiles), value))
    found = (Stream(n, frame) for frame, v in values for n in topological([v]) if n.op is ops.LOAD)
    return list(dict.fromkeys(x for x in found if _by_axes(x.load)))


def weights_of(kernel: kir.Kernel, loop: kir.Loop) -> set[str]:
    """The buffers of weights that a loop multiplies: no kernel of a program writes them."""
    dots = [s for s in loop.body if isinstance(s, ByteDot)]
    names = {n.attr.name for s in dots for n in topological(operands(s)) if n.op is ops.LOAD}
    given = (b for b in kernel.buffers if b.role is kir.Role.INPUT and b.dtype is uint8)
    return {b.name for b in given if b.name in names}


def _by_axes(load: Node) -> bool:
    """Whether axes alone tell what is loaded."""
    _, at, mask, _ = kir.load_parts(load)
    return not any(n.op in (ops.LOAD, ops.LOCAL) for n in topological([*at, mask]))
