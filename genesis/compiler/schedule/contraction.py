"""The recipe for contractions: register tiles over a packed right-hand operand.

A contraction sums ``left[m, k] * right[k, n]`` over k. A tile of rows m and columns n is kept in
registers while k runs: each step loads a few vectors of `right`, broadcasts one element of `left`
per row, and multiplies them all. For that the columns of a tile must lie together, so a first
phase packs `right` into panels ``[column block][k][column]``, padded with zeros; `left` is read
where it lies, because a row is read in order anyway. Epilogues are computed on the tile before it
is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.heuristics import elements, extent, points, stride
from genesis.compiler.schedule.respecialise import (
    ceil_div,
    fixed,
    floor_div,
    least,
    respecialise,
    static,
)
from genesis.compiler.schedule.steps import branch, interchange
from genesis.ir import ops
from genesis.ir.index import simplify
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Body,
    Buffer,
    Carry,
    Kernel,
    Loop,
    Phase,
    Role,
    Statement,
    Store,
    as_index,
    load_parts,
    map_expressions,
    tile_axes,
)
from genesis.ir.node import TRUE, Node, both, mentions, topological
from genesis.ir.rewrite import substitute

#: Rows of a block of the output, in register tiles.
TILES_PER_BLOCK = 16
#: With fewer rows than this a packed panel is not used often enough to pay for packing.
PACK_ROWS = 24


@dataclass(frozen=True)
class Operands:
    """The roles in a contraction: its loop nest, both factors, and the axes to tile."""

    loop: Loop  # the outermost summation loop
    sums: tuple[Axis, ...]  # all summation axes, outermost first
    left: Node
    right: Node
    row: Axis  # in left only
    column: Axis  # in right only
    rows: int  # how often a packed element is used: points of all axes in left only


def operands(kernel: Kernel) -> Operands | None:
    """Recognise ``acc + left * right`` with an axis that only one factor depends on, each way."""
    (phase,) = kernel.phases
    loops = [s for s in phase.body if isinstance(s, Loop)]
    if len(loops) != 1 or not loops[0].carried:
        return None
    nest = loops[0]
    sums = [nest.axis]
    deep = nest
    while deep.body:
        if len(deep.body) != 1 or not isinstance(deep.body[0], Loop):
            return None
        deep = deep.body[0]
        sums.append(deep.axis)
    if len(deep.carried) != 1:
        return None
    carry = deep.carried[0]
    step = carry.step
    if step.op is not ops.ADD or step.inputs[0] is not carry.local.node:
        return None
    product = step.inputs[1]
    if product.op is not ops.MUL:
        return None
    store = next(s for s in reversed(phase.body) if isinstance(s, Store))
    choices = []
    for left, right in (product.inputs, product.inputs[::-1]):
        in_left, in_right = mentions(left), mentions(right)
        rows = [x for x in phase.grid if x.node in in_left and x.node not in in_right]
        columns = [x for x in phase.grid if x.node in in_right and x.node not in in_left]
        for column in columns:
            if not rows or extent(column) < 8 or points(rows) < 2:
                continue
            row = min(rows, key=lambda x: (_reach(left, x), -extent(x)))
            found = Operands(nest, tuple(sums), left, right, row, column, points(rows))
            # Panels must not repeat elements (windows would); then columns should be stored
            # next to each other; then the wider the better.
            apart = stride(store.buffer, store.index, column) != 1
            choices.append((_repeats(right, phase.grid, sums), apart, -extent(column), found))
    return min(choices, key=lambda c: c[:3])[3] if choices else None


def _reach(factor: Node, axis: Axis) -> int:
    """How far apart in memory neighbours along `axis` are read."""
    steps = [stride(*load_parts(n)[:2], axis) for n in topological([factor]) if n.op is ops.LOAD]
    return min((abs(x) for x in steps if x), default=1 << 62)


def _repeats(factor: Node, grid: Sequence[Axis], sums: Sequence[Axis]) -> bool:
    """Whether copying a factor for every point it is read at would copy elements several times."""
    inside = mentions(factor)
    read = points(a for a in (*grid, *sums) if a.node in inside)
    loads = [n for n in topological([factor]) if n.op is ops.LOAD]
    there = max((elements(n.attr) for n in loads), default=read)
    return 2 * read > 3 * there


def innermost_last(kernel: Kernel, found: Operands) -> tuple[Kernel, Operands]:
    """Sum over the longest axis that no mask depends on in the innermost loop.

    Masks of padded windows then stay out of it.
    """
    loads = [n for n in topological([found.left, found.right]) if n.op is ops.LOAD]
    masked = {leaf for n in loads for leaf in mentions(load_parts(n)[2])}
    order = sorted(found.sums, key=lambda a: (a.node not in masked, extent(a)))
    if tuple(order) == found.sums:
        return kernel, found
    nest = interchange(found.loop, order)
    (phase,) = kernel.phases
    body = tuple(nest if s is found.loop else s for s in phase.body)
    kernel = kernel.with_phases([Phase(phase.grid, body)])
    return kernel, replace(found, loop=nest, sums=tuple(order))


def contract(kernel: Kernel, found: Operands, chip: Chip) -> Kernel:
    """Schedule a contraction."""
    kernel, found = innermost_last(kernel, found)
    (phase,) = kernel.phases
    height, width = _tile(found, chip)
    right = found.right
    phases: list[Phase] = []
    buffers = list(kernel.buffers)
    columns = Axis(found.column.name + "b", AxisKind.GRID, ceil_div(found.column.extent, width))
    lane = Axis(found.column.name + "t", AxisKind.TILE, width)
    if found.rows >= PACK_ROWS:
        packed, packing = pack(found, phase.grid, width)
        buffers.append(packed)
        phases.append(packing)
        right = packed.load(
            *(a.node for a in _batch(found, phase.grid)),
            columns.node,
            *(a.node for a in found.sums),
            lane.node,
        )
    body = _replace_right(phase.body, found.right, right)
    plain_phase = Phase(phase.grid, body)
    phases.append(_compute(found, plain_phase, columns, lane, height, right is not found.right))
    return replace(kernel, buffers=tuple(buffers), phases=tuple(phases))


def _tile(found: Operands, chip: Chip) -> tuple[int, int]:
    """Rows and columns of the register tile.

    Accumulators fill the registers but a few; among such tiles the one that wastes least on
    partial tiles wins, and of those the one closest to a square, which loads least.
    """
    lanes = max(1, chip.vector_bytes // found.loop.carried[0].local.dtype.itemsize)
    n, m = extent(found.column), extent(found.row)
    best: tuple[float, int, int] = (0.0, 1, lanes)
    for vectors in (4, 3, 2, 1):
        if vectors > 2 and chip.vector_registers < 32:
            continue
        most = min((chip.vector_registers - vectors - 2) // vectors, 14)
        for height in {min(most, m), -(-m // -(-m // most))}:
            wasted_rows = -(-m // height) * height / m
            wasted_columns = -(-n // (lanes * vectors)) * lanes * vectors / n
            products = height * vectors
            busy = min(1.0, products / 16) * products / (products + 0.2 * (height + vectors))
            score = busy / (wasted_rows * wasted_columns)
            best = max(best, (score, height, lanes * vectors))
    return best[1], best[2]


def _batch(found: Operands, grid: Sequence[Axis]) -> list[Axis]:
    """The other grid axes that the packed operand depends on."""
    inside = mentions(found.right)
    return [a for a in grid if a != found.column and a.node in inside]


def pack(found: Operands, grid: Sequence[Axis], width: int) -> tuple[Buffer, Phase]:
    """The phase that copies `right` into zero-padded panels of `width` columns; their buffer."""
    batch = _batch(found, grid)
    columns = Axis(found.column.name + "b", AxisKind.GRID, ceil_div(found.column.extent, width))
    lane = Axis(found.column.name + "t", AxisKind.TILE, width)
    shape = (*(a.extent for a in batch), columns.extent, *(a.extent for a in found.sums))
    packed = Buffer("packed", found.right.dtype, (*shape, width), Role.TEMPORARY)
    at = columns.node * width + lane.node
    value = substitute([found.right], {found.column.node: at})[0]
    value = mask_loads(value, simplify(at < as_index(found.column.extent)), {lane})
    index = (
        *(a.node for a in batch),
        columns.node,
        *(a.node for a in found.sums),
        lane.node,
    )
    nest: tuple[Statement, ...] = (Store(packed, index, simplify(value)),)
    # The outermost summation axis joins the grid, in chunks, so that all cores pack.
    outer = found.sums[0]
    chunk = max(1, 4096 // points(found.sums[1:]) // width * 16)
    chunks = Axis(outer.name + "b", AxisKind.GRID, ceil_div(outer.extent, chunk))
    left = as_index(outer.extent) - chunks.node * chunk
    part = replace(outer, extent=least(chunk, fixed(simplify(left))))
    for axis in reversed(found.sums[1:]):
        nest = (Loop(axis, nest),)
    body = respecialise(nest, {outer.node: chunks.node * chunk + part.node})
    return packed, Phase((*batch, columns, chunks), (Loop(part, body),))


def mask_loads(
    value: Node, inside: Node, tiles: Collection[Axis], padded: str | None = None
) -> Node:
    """`value` with every load that mentions one of these tile axes masked by `inside`.

    Except loads of the buffer called `padded`, which has something to read outside, too.
    """
    if inside is TRUE:
        return value
    loads: dict[Node, Node] = {}
    for n in topological([value]):
        if n.op is ops.LOAD and n.attr.name != padded:
            buffer, at, mask, other = load_parts(n)
            if not tile_axes(*at).isdisjoint(tiles):
                # Loads inside the index were masked before.
                *where, mask, other = substitute([*at, mask, other], loads)
                loads[n] = buffer.load(*where, mask=both(mask, inside), other=other)
    return substitute([value], loads)[0]


def _replace_right(body: Body, old: Node, new: Node) -> Body:
    """The body with the factor `old` of its innermost loop replaced."""

    def one(s: Statement) -> Statement:
        if not isinstance(s, Loop):
            return s
        carried = tuple(
            Carry(c.local, c.init, substitute([c.step], {old: new})[0]) for c in s.carried
        )
        return replace(s, body=tuple(map(one, s.body)), carried=carried)

    return tuple(map(one, body))


def _compute(
    found: Operands, phase: Phase, columns: Axis, lane: Axis, height: int, packed: bool
) -> Phase:
    """Register tiles over blocks of rows; partial tiles get a masked body."""
    row, column = found.row, found.column
    width = int(lane.extent)  # type: ignore[arg-type]
    rows = ceil_div(row.extent, height)
    blocks = Axis(row.name + "b", AxisKind.GRID, ceil_div(rows, TILES_PER_BLOCK))
    left = simplify(as_index(rows) - blocks.node * TILES_PER_BLOCK)
    tiles = Axis(row.name + "p", AxisKind.LOOP, least(TILES_PER_BLOCK, fixed(left)))
    inner = Axis(row.name + "t", AxisKind.TILE, height)
    first = blocks.node * TILES_PER_BLOCK + tiles.node
    at = {
        row.node: first * height + inner.node,
        column.node: columns.node * width + lane.node,
    }
    full_body = respecialise(phase.body, at)
    m, n = static(row.extent), static(column.extent)
    full_rows = m is not None and m % height == 0
    full_columns = n is not None and n % width == 0
    body = full_body
    if not (full_rows and full_columns):
        in_rows = TRUE if full_rows else simplify(at[row.node] < as_index(row.extent))
        in_columns = TRUE if full_columns else simplify(at[column.node] < as_index(column.extent))
        # Packed panels are padded, so only rows need masks while summing; stores need both.
        masked = _masked(full_body, in_rows)
        masked = _masked(masked, in_columns, "packed" if packed else None)
        whole = both(
            TRUE if full_rows else first < as_index(floor_div(row.extent, height)),
            TRUE if full_columns else columns.node < as_index(floor_div(column.extent, width)),
        )
        whole = simplify(whole)
        never = whole.op is ops.CONST and not whole.attr
        body = masked if never else branch(whole, full_body, masked)
    # Column blocks outside, rows inside: a panel stays in cache while rows pass by.
    batch = [a for a in _batch(found, phase.grid) if a not in (row, column)]
    rest = [a for a in phase.grid if a not in (row, column) and a not in batch]
    return Phase((*batch, columns, *rest, blocks), (Loop(tiles, body),))


def _masked(body: Body, inside: Node, padded: str | None = None) -> Body:
    """`body` for a tile of which only what is `inside` exists; see `mask_loads` for `padded`."""
    if inside is TRUE:
        return body
    tiles = tile_axes(inside)

    def one(s: Statement) -> Statement:
        if isinstance(s, Loop):
            return replace(s, body=tuple(map(one, s.body)))
        return replace(s, mask=both(s.mask, inside)) if isinstance(s, Store) else s

    loads = map_expressions(body, lambda n: mask_loads(n, inside, tiles, padded))
    return tuple(map(one, loads))
