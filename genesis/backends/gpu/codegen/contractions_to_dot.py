"""Finding the matrix instruction: contractions inside a kernel become `Dot` statements.

A loop that adds the outer product of a column tile and a row tile,

    loop k < K:  acc[i, j] = acc[i, j] + a[i, k] * b[k, j]

is a matrix product with one k at a time. Splitting k into blocks makes each block a product of two
matrices, which is what tensor cores do; lanes past the end of k contribute zeros and load nothing.
A sum of such products over a TILE axis is a matrix product already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import STORED, DType, bfloat16, float16, float32, int8, int32
from genesis.ir.index import simplify
from genesis.ir.node import TRUE, Node, both, const, elementwise, topological
from genesis.ir.rewrite import replaced

#: Matrix instructions by operand type: the accumulator, and how much of k one block takes.
_BLOCK: dict[DType, tuple[DType, int]] = {
    float32: (float32, 32), float16: (float32, 64), bfloat16: (float32, 64), int8: (int32, 128),
    **dict.fromkeys(STORED, (float32, 128)),
}  # fmt: skip
_LEAST = 16  # extents of a matrix instruction's operands


@dataclass(frozen=True, eq=False)
class Dot(kir.Statement):
    """``local[row, column] (+)= sum over inner of left[row, inner] * right[inner, column]``"""

    local: kir.Local
    left: Node
    right: Node
    row: kir.Axis
    inner: kir.Axis
    column: kir.Axis
    accumulate: bool


def find_contractions(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with contractions over suitable tiles as `Dot` statements."""
    return kernel.with_phases(replace(p, body=_body(p.body)) for p in kernel.phases)


def _body(body: kir.Body) -> kir.Body:
    found: list[kir.Statement] = []
    for s in body:
        if isinstance(s, kir.Loop):
            s = _outer_products(s) or _accumulated(replace(s, body=_body(s.body)))
        elif isinstance(s, kir.If):
            s = kir.If(s.condition, _body(s.body), _body(s.orelse))
        elif isinstance(s, kir.Reduce):
            s = _inner_product(s) or s
        found.append(s)
    return _added_up(found)


def _added_up(body: Sequence[kir.Statement]) -> kir.Body:
    """A body in which a sum of two products is one, to which the second adds itself."""
    result = list(body)
    for s in body:
        if not isinstance(s, kir.Let) or s.value.op is not ops.ADD:
            continue
        dots = [d for d in result if isinstance(d, Dot) and d.local.node in s.value.inputs]
        alike = all(d.local.tiles == s.local.tiles and not d.accumulate for d in dots)
        used = Counter(n for x in result for n in set(topological(_operands_of(x))))
        if len(dots) == 2 and alike and all(used[d.local.node] == 1 for d in dots):
            for accumulate, d in enumerate(dots):
                result[result.index(d)] = replace(d, local=s.local, accumulate=bool(accumulate))
            result.remove(s)
    return tuple(result)


def _outer_products(loop: kir.Loop) -> kir.Loop | None:
    """The loop with k in blocks, if it does nothing but add outer products."""
    if len(loop.carried) != 1:
        return None
    (carry,) = loop.carried
    step = _inlined(loop.body, carry.step)
    if step is None:
        return None
    acc = carry.local.node
    factors = _added_product(acc, step)
    if factors is None or any(acc in topological([f]) for f in factors):
        return None
    operands = _operands(*factors, carry.local, None)
    if operands is None:
        return None
    left, right, row, column = operands
    _, size = _BLOCK[left.dtype]
    blocks = kir.Axis.loop(loop.axis.name, (kir.as_index(loop.axis.extent) + (size - 1)) // size)
    inner = kir.Axis.tile(f"{loop.axis.name}_inner", size)
    k = blocks.node * size + inner.node
    inside = TRUE if _divides(size, loop.axis.extent) else k < loop.axis.extent
    left, right = (_block(f, loop.axis.node, k, inside) for f in (left, right))
    dot = Dot(carry.local, left, right, row, inner, column, accumulate=True)
    return replace(loop, axis=blocks, body=(dot,), carried=(replace(carry, step=acc),), merge=None)


def _accumulated(loop: kir.Loop) -> kir.Loop:
    """The loop with products that it only adds to a sum added by the instruction itself.

    Nobody waits for those, so that they run beside whatever follows them.
    """
    used = Counter(n for s in kir.walk(loop.body) for n in topological(_operands_of(s)))
    used.update(n for c in loop.carried for n in topological([c.step]))
    body, carried = list(loop.body), list(loop.carried)
    for place, s in enumerate(body):
        if not isinstance(s, Dot) or s.accumulate or used[s.local.node] > 1:
            continue
        for k, c in enumerate(carried):
            total = c.local.node
            added = c.step.op is ops.ADD and set(c.step.inputs) == {total, s.local.node}
            if added and used[total] == 1 and c.local.tiles == s.local.tiles:
                body[place] = replace(s, local=c.local, accumulate=True)
                carried[k] = replace(c, step=total)
    return replace(loop, body=tuple(body), carried=tuple(carried))


def _operands_of(s: kir.Statement) -> tuple[Node, ...]:
    """The expressions of a statement, matrix products included."""
    return (s.left, s.right) if isinstance(s, Dot) else kir.expressions(s)


def _inner_product(s: kir.Reduce) -> Dot | None:
    """A sum of products over a TILE axis as one matrix product."""
    if kir.simple_fold(s.merge) is not ops.ADD or s.values[0].op is not ops.MUL:
        return None
    a, b = s.values[0].inputs
    operands = _operands(a, b, s.locals[0], s.axis)
    if operands is None or not _suitable(s.axis):
        return None
    left, right, row, column = operands
    return Dot(s.locals[0], left, right, row, s.axis, column, accumulate=False)


def _added_product(acc: Node, step: Node) -> tuple[Node, Node] | None:
    """The factors a and b of a step ``acc + a*b``."""
    if step.op is ops.FMA and step.inputs[2] is acc:
        return step.inputs[0], step.inputs[1]
    if step.op is ops.ADD and acc in step.inputs:
        product = step.inputs[1] if step.inputs[0] is acc else step.inputs[0]
        if product.op is ops.MUL:
            return product.inputs[0], product.inputs[1]
    return None


def _operands(
    a: Node, b: Node, result: kir.Local, inner: kir.Axis | None
) -> tuple[Node, Node, kir.Axis, kir.Axis] | None:
    """The matrices of a product and the axes of its result, if they suit a matrix instruction."""
    if len(result.tiles) != 2 or not all(map(_suitable, result.tiles)):
        return None
    over = {inner} - {None}
    row, column = result.tiles
    if kir.tile_axes(a) == {column} | over:
        a, b = b, a
    if kir.tile_axes(a) != {row} | over or kir.tile_axes(b) != {column} | over:
        return None
    # Products of fewer bits are exact in float32: multiply what the casts were made from.
    if a.op is ops.CAST and b.op is ops.CAST and _multiplies(a.inputs[0], b.inputs[0], result):
        return a.inputs[0], b.inputs[0], row, column
    return (a, b, row, column) if _multiplies(a, b, result) else None


def _multiplies(a: Node, b: Node, result: kir.Local) -> bool:
    """Whether there is a matrix instruction for these types."""
    alike = a.dtype is b.dtype or (a.dtype in STORED and b.dtype in STORED)
    return alike and a.dtype in _BLOCK and _BLOCK[a.dtype][0] is result.dtype


def _suitable(axis: kir.Axis) -> bool:
    extent = axis.extent
    return isinstance(extent, int) and extent >= _LEAST and extent & (extent - 1) == 0


def _block(factor: Node, axis: Node, k: Node, inside: Node) -> Node:
    """`factor` with k a block of values, zero outside."""
    factor = simplify(replaced(factor, {axis: k}))
    return factor if inside is TRUE else _only_where(inside, factor, const(0, factor.dtype))


def _divides(size: int, extent: int | Node) -> bool:
    n = kir.as_index(extent)
    if n.op is ops.SYMBOL:
        return bool(n.attr.multiple % size == 0)
    return n.op is ops.CONST and bool(n.attr % size == 0)


def _only_where(condition: Node, value: Node, other: Node) -> Node:
    """`value` where `condition` holds and `other` elsewhere, loading only where it holds."""

    def masked(load: Node) -> Node:
        buffer, indices, mask, fill = kir.load_parts(load)
        return buffer.load(*indices, mask=both(mask, condition), other=fill)

    result = kir.map_loads(value, masked)
    if result.op is ops.LOAD and result.inputs[-1] is other:
        return result
    return elementwise(ops.WHERE, condition, result, other)


def _inlined(body: kir.Body, value: Node) -> Node | None:
    """An expression at the end of a body of nothing but Lets, in terms of what is before it."""
    for s in reversed(body):
        if not isinstance(s, kir.Let):
            return None
        value = replaced(value, {s.local.node: s.value})
    return value
