"""Rows that are added where data says: their positions are sorted first, and each row written once.

The gradient of an embedding adds rows to a table of zeros, many times as large as all of them. Done
update by update, that is the table written and read again for its type, and blocks that wait for
each other. With the updates in the order of where they go, a row of the result is the sum of a few
of them in a row, written once, in its own type. Sorting is stable, so sums do not depend on timing.
Few rows look at all of a few updates instead, each for its own: that is one kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from genesis.compiler.fuse.cost import count
from genesis.compiler.graph.simplify.movement import expanded, reshaped
from genesis.ir import ops
from genesis.ir.dtype import DType, int32, int64
from genesis.ir.node import Form, LibraryCall, Node, const, elementwise, is_const, node, topological

#: Shorter rows are added number by number. Of a table that is not empty, so many for each update
#: are not all worth writing again.
LEAST = 32
SPARSE = 4
#: So few numbers, of all updates for every row, are looked at faster than positions are sorted.
FEW = 1 << 24


def sorted_rows(roots: Sequence[Node], became: dict[Node, Node]) -> tuple[Node, ...]:
    """Equivalent roots; `became` is told what its nodes have become."""
    order = topological(roots)
    users = Counter(i for n in order for i in n.inputs)
    scatters = {n for n in order if n.op is ops.SCATTER and _parts(n) is not None}
    if not scatters:
        return tuple(roots)
    done: dict[Node, Node] = {}
    for n in order:
        x = n.inputs[0] if n.op is ops.CAST else n
        # A sum that is only wanted in fewer bits is written in those.
        alone = x is not n and x in scatters and users[x] == 1 and x not in roots
        if n in scatters or (alone and n.dtype.is_float and _is_zero(x.inputs[0])):
            new = _sum(x, n.dtype, done)
        else:
            new = n.with_inputs(tuple(done[i] for i in n.inputs)) if n.inputs else n
        done[n] = new
    for old, new in became.items():
        became[old] = done.get(new, new)
    return tuple(done[n] for n in roots)


def _parts(n: Node) -> tuple[Node, Node] | None:
    """The positions of a scatter of rows, and the updates; None for any other."""
    _, *indices, updates = n.inputs
    axes, mode = n.attr
    sizes = (*n.shape, *updates.shape)
    known = len(n.shape) == 2 and all(isinstance(size, int) and size for size in sizes)
    if mode != "add" or not n.dtype.is_float or not known or n.shape[1] < LEAST:
        return None
    if not _is_zero(n.inputs[0]) and count(n.shape) > SPARSE * count(updates.shape):
        return None
    if axes == (0,) and updates.shape[-1] == n.shape[1]:
        return indices[0], updates
    if axes == (0, 1) and len(updates.shape) == 2:
        whole = updates.shape[1] == n.shape[1] and _counts(indices[1])
        positions = indices[0]
        if whole and positions.op is ops.EXPAND and positions.inputs[0].shape[1] == 1:
            return positions.inputs[0], updates
    return None


def _counts(n: Node) -> bool:
    """Whether an index is the number of its column."""
    if n.op is ops.EXPAND and n.inputs[0].shape[0] == 1:
        n = n.inputs[0]
        n = n.inputs[0] if n.op is ops.RESHAPE else n
        return n.op is ops.IOTA and len(n.shape) == 1
    return False


def _is_zero(n: Node) -> bool:
    while n.op in (ops.EXPAND, ops.RESHAPE):
        n = n.inputs[0]
    return is_const(n, 0)


def _sum(n: Node, dtype: DType, done: dict[Node, Node]) -> Node:
    """A scatter as sums of sorted rows, as another type perhaps."""
    found = _parts(n)
    assert found is not None
    positions, updates = (done[x] for x in found)
    rows, columns = n.shape
    assert isinstance(rows, int) and isinstance(columns, int)
    many = count(positions.shape)
    narrow = updates.inputs[0] if updates.op is ops.CAST else updates
    updates = narrow if narrow.dtype.is_float else updates
    flat = reshaped(positions, (many,))
    base = done[n.inputs[0]]
    if rows * many * columns <= FEW:
        total = _of_every_row(flat, reshaped(updates, (many, columns)), n)
        return elementwise(ops.CAST, _plus(base, total), dtype=dtype)
    inside = elementwise(ops.MAX, elementwise(ops.MIN, flat, const(rows, int64)), const(-1, int64))
    short = elementwise(ops.CAST, inside, dtype=int32)
    ordered, places = _called(
        "sorting.sort", (False,), [short], [(int32, (many,)), (int64, (many,))]
    )
    operands = [ordered, places, reshaped(updates, (many, columns))]
    (total,) = _called("indexing.summed_rows", (rows, dtype.name), operands, [(dtype, n.shape)])
    return _plus(base, total)


def _of_every_row(positions: Node, updates: Node, n: Node) -> Node:
    """For every row the sum of all updates, of which those for others are 0."""
    rows, columns = n.shape
    shape = (*positions.shape, rows, columns)
    many = shape[0]
    row = reshaped(node(ops.IOTA, (), None, int64, (rows,)), (1, rows, 1))
    asked = reshaped(elementwise(ops.CAST, positions, dtype=int64), (many, 1, 1))
    mine = elementwise(ops.EQ, expanded(asked, shape), expanded(row, shape))
    wide = elementwise(ops.CAST, updates, dtype=n.dtype)
    each = expanded(reshaped(wide, (many, 1, columns)), shape)
    chosen = elementwise(ops.WHERE, mine, each, const(0, n.dtype))
    return node(ops.SUM, (chosen,), (0,), n.dtype, n.shape)


def _plus(base: Node, total: Node) -> Node:
    return total if _is_zero(base) else elementwise(ops.ADD, base, total)


def _called(
    name: str, options: tuple[object, ...], operands: Sequence[Node], results: Sequence[Form]
) -> list[Node]:
    """The results of an operation of the library."""
    call = LibraryCall(name, options, tuple((x.dtype, x.shape) for x in operands), tuple(results))
    whole = node(ops.CALL, tuple(operands), call, results[0][0], ())
    return [node(ops.ITEM, (whole,), k, *form) for k, form in enumerate(results)]
