"""Contractions: register tiles over a packed right-hand operand.

A contraction sums ``left[m, k] * right[k, n]`` over k. A tile of rows m and columns n is kept in
registers while k runs: each step loads a few vectors of `right`, broadcasts one element of `left`
per row, and multiplies them all. For that the columns of a tile must lie together, so a first
phase packs `right` into panels ``[column block][k][column]``, padded with zeros; `left` is read
where it lies, because a row is read in order anyway. Where neither suits, a block copies what it
needs for itself (`staging`). Epilogues are computed on the tile before it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import Operands, operands, reach, size, steady
from genesis.compiler.schedule.cpu.contraction import loop_order
from genesis.compiler.schedule.cpu.contraction.k_blocks import chunk_of, cut, in_chunks
from genesis.compiler.schedule.cpu.contraction.packing import (
    CACHE_LINE,
    PanelSource,
    contiguous_run,
    pack,
    source,
)
from genesis.compiler.schedule.cpu.contraction.staging import columns_strewn, rows_strewn, stage
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.steps.join_axes import as_vector, flat, offset
from genesis.compiler.schedule.steps.loop_transforms import branch
from genesis.compiler.schedule.steps.queries import extent, points
from genesis.compiler.schedule.steps.substitute_axes import mask_loads, respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import below, ceil_div, floor_div, simplify, static
from genesis.ir.node import FALSE, TRUE, Node, both, mentions, topological
from genesis.ir.rewrite import substitute

#: Rows of a block of the output, in register tiles, and the blocks there should be at least: cores
#: share them.
TILES_PER_BLOCK = 16
BLOCKS = 16
TILES = (1, 2, 4, 8, 16, 32)
#: With fewer rows than this a packed panel is not used often enough to pay for packing.
PACK_ROWS = 24
#: With no more than this, nor does packing what lies well and near as it is.
FEW_ROWS = 256
#: Products of a tile that hide how long each takes.
PRODUCTS = 8
#: What loading an element of a row and a vector of columns takes, in products; where columns are
#: not packed, most of their vectors lie across two lines.
LOADED = 0.05
ACROSS = 0.5
#: What a second axis of rows costs: they lie apart, and need addresses of their own.
SECOND = 1.1
#: What partial tiles cost besides what they waste: a body of their own.
PARTIAL = 1.03
#: Lines this many bytes apart share a set of the first cache, which holds so many of them.
PAGE = 4096
WAYS = 8
#: Panels of columns that one copy of rows is used for, at most.
PANELS = 8
#: Copies of operands, which have zeros where those end.
COPY = "copy"
COPIES = ("packed", COPY)
#: Blocks there must be for each to have all rows, and so columns that nobody else needs.
ALONE = 64
#: Rows of a register tile at most, where it has a body for every number of them.
HEIGHTS = 6
#: Register tiles that are worth trying.
OFFERED = 10


@dataclass(frozen=True)
class Tile:
    """A register tile: rows and columns, and rows along a `second` axis, which `part` divides."""

    height: int
    width: int
    second: kir.Axis | None = None
    part: int = 1


def contract(kernel: kir.Kernel, found: Operands, chip: Chip) -> kir.Kernel:
    """Schedule a contraction."""
    kernel, found = loop_order.innermost_last(kernel, found)
    narrow = _in_strips(found, kernel.phases[0].grid, chip)
    pays = found.rows >= PACK_ROWS and not narrow and not _lies_well(found, chip)
    packs = decide("packs", [pays, True, False])
    packed_from = source(found, kernel.phases[0].grid)
    if packs and len(contiguous_run(packed_from.operand)) > 1:
        kernel, found, packed_from = _in_vector(kernel, found, packed_from)
    (phase,) = kernel.phases
    ranked = _tiles(found, packs, chip)
    if narrow and not packs:
        line = CACHE_LINE // found.right.dtype.itemsize
        ranked.sort(key=lambda t: (t.width < line, t.width))
    tiles = {_told(t): t for t in ranked}
    tile = tiles[decide("tile", list(tiles)[:OFFERED])]
    width = tile.width
    right = found.right
    phases: list[kir.Phase] = []
    buffers = list(kernel.buffers)
    columns = kir.Axis.grid(found.column.name + "b", ceil_div(found.column.extent, width))
    lane = kir.Axis.tile(found.column.name + "t", width)
    copied = decide("copied", [_copied(found, phase.grid, tile, chip), ""]) if packs else ""
    if packs and copied != "right":
        packed, packing = pack(packed_from.operand, packed_from.grid, width)
        buffers.append(packed)
        phases.append(packing)
        right = packed_from.read(packed, columns, lane)
    body = _replace_factor(phase.body, found.right, right)
    tiled = (found.row, found.column, tile.second)
    body, found = loop_order.inside_only(body, found, [a for a in phase.grid if a not in tiled])
    inside = loop_order.unmasked(found, found.sums[-1])
    if 0 < len(inside) < extent(found.sums[-1]):
        body = loop_order.split_ends(body, found.sums[-1], inside)
    if static(found.row.extent) == tile.height:
        body = loop_order.by_tap(body, found)
    plain_phase = kir.Phase(phase.grid, body)
    # Panels that are one axis' own are read by its blocks only.
    batch = packed_from.batch if packs else found.batch(phase.grid)
    apart = [a for a in batch if a not in tiled]
    alone = copied == "right" or (narrow and not packs)
    compute = _compute(found, plain_phase, apart, columns, lane, tile, packs, copied, alone, chip)
    phases.append(compute)
    return replace(kernel, buffers=tuple(buffers), phases=tuple(phases))


def weigh(kernel: kir.Kernel, found: Operands, chip: Chip) -> kir.Kernel:
    """Schedule a product with constant weights, whose panels are made once.

    Every element of the result is summed in order along k, whatever the number of rows is, so a
    row has the same bits alone and among others. Tiles of every height have a body of their own:
    no row is computed that is not there, and one program suits any number of rows.
    """
    (phase,) = kernel.phases
    tile = _line_tile(found, phase, chip) or _weight_tile(found, chip)
    # Weights of few bits stay so in panels, and are made wider where they are multiplied.
    stored = found.right.inputs[0] if found.right.op is ops.CAST else found.right
    panels = replace(found, right=stored)
    packed, packing = pack(panels, phase.grid, tile.width)
    columns = kir.Axis.grid(found.column.name + "b", ceil_div(found.column.extent, tile.width))
    lane = kir.Axis.tile(found.column.name + "t", tile.width)
    batch = found.batch(phase.grid)
    read = packed.load(*(a.node for a in batch), columns.node, found.sums[0].node, lane.node)
    body = _replace_factor(phase.body, stored, read)
    plain = kir.Phase(phase.grid, body)
    compute = _compute(panels, plain, batch, columns, lane, tile, True, "", False, chip, exact=True)
    return replace(kernel, buffers=(*kernel.buffers, packed), phases=(packing, compute))


def _weight_tile(found: Operands, chip: Chip) -> Tile:
    """The register tile for constant weights: of columns as many as waste least, then of rows.

    Several vectors of columns hide how long a product takes, so that a single row is read as fast
    as memory gives it.
    """
    lanes = max(1, chip.vector_bytes // found.dtype.itemsize)
    n, m = extent(found.column), static(found.row.extent)
    wide = [v for v in (4, 3, 2) if v <= 2 or chip.vector_registers >= 32] if n > lanes else [1]
    vectors = min(wide, key=lambda v: (-(-n // (lanes * v)) * v, -v))
    aliased = reach(found.left, found.row) * found.left.dtype.itemsize % PAGE == 0
    most = min((chip.vector_registers - vectors - 2) // vectors, WAYS if aliased else 14)
    return Tile(min(most, HEIGHTS) if m is None else -(-m // -(-m // most)), lanes * vectors)


def _line_tile(found: Operands, phase: kir.Phase, chip: Chip) -> Tile | None:
    """Whole lines of a result whose columns lie so far apart that their lines share few sets.

    Planes of 64x64 pixels do, say. A line of which a tile writes a part would be gone from the
    cache before the next tile writes the rest.
    """
    itemsize = found.dtype.itemsize
    line = CACHE_LINE // itemsize
    results = [s.buffer.load(*s.index) for s in kir.walk(phase.body) if isinstance(s, kir.Store)]
    gaps = [reach(y, found.column) * itemsize for y in results if reach(y, found.row) == 1]
    shared = any(PAGE <= gap and gap % (PAGE // 4) == 0 for gap in gaps)
    fits = chip.vector_registers >= 2 * line and chip.vector_bytes == CACHE_LINE
    return Tile(line, line) if shared and fits and (static(found.row.extent) or 0) >= line else None


def _in_vector(
    kernel: kir.Kernel, found: Operands, packed_from: PanelSource
) -> tuple[kir.Kernel, Operands, PanelSource]:
    """With what is packed as a vector, in which a run along several axes is one piece."""
    right = packed_from.operand.right
    (load,) = (n for n in topological([right]) if n.op is ops.LOAD)
    buffer, at, mask, other = kir.load_parts(load)
    kernel = flat(kernel, {buffer})
    again = operands(kernel)
    assert again is not None
    read = as_vector(buffer).load(offset(buffer, at), mask=mask, other=other)
    right = substitute([right], {load: read})[0]
    return kernel, again, replace(packed_from, operand=replace(packed_from.operand, right=right))


def _tiles(found: Operands, packs: bool, chip: Chip) -> list[Tile]:
    """Register tiles, the best first.

    Accumulators are as many as registers hold, or as hide how long a product takes; among such
    tiles the one that wastes least on partial tiles wins, and of those the one that loads least.
    Where rows are few, as in a small image or window, rows of a second axis fill the tile.
    """
    itemsize = found.dtype.itemsize
    lanes = max(1, chip.vector_bytes // itemsize)
    n, m = extent(found.column), extent(found.row)
    ranked: dict[Tile, float] = {}
    near = sorted(found.others, key=lambda a: reach(found.left, a))
    seconds = [(a, part) for a in near for part in _divisors(a)]
    limit = WAYS if reach(found.left, found.row) * itemsize % PAGE == 0 else 14
    for vectors in (4, 3, 2, 1):
        if vectors > 2 and chip.vector_registers < 32:
            continue
        most = min((chip.vector_registers - vectors - 2) // vectors, limit)
        even = max(k for k in range(1, most + 1) if m % k == 0)
        for height in sorted({min(most, m), -(-m // -(-m // most)), even}, reverse=True):
            wasted_rows = -(-m // height) * height / m
            wasted_columns = -(-n // (lanes * vectors)) * lanes * vectors / n
            wasted = wasted_rows * wasted_columns
            wasted *= PARTIAL ** ((wasted_rows > 1) + (wasted_columns > 1))
            for second, part in [(None, 1), *seconds]:
                rows = height * part
                if rows > most:
                    continue
                products = rows * vectors
                loads = LOADED * rows + (LOADED if packs else ACROSS) * vectors
                busy = min(1.0, products / PRODUCTS) * products / (products + loads)
                busy /= wasted * (1 if second is None else SECOND)
                ranked[Tile(height, lanes * vectors, second, part)] = busy
    return sorted(ranked, key=lambda t: -ranked[t])


def _told(tile: Tile) -> tuple[int, int, str, int]:
    """A tile as plain data."""
    return tile.height, tile.width, "" if tile.second is None else tile.second.name, tile.part


def _divisors(axis: kir.Axis) -> list[int]:
    n = static(axis.extent)
    return [] if n is None else [k for k in range(2, 15) if n % k == 0]


def _replace_factor(body: kir.Body, old: Node, new: Node) -> kir.Body:
    """The body with a factor of its innermost loop replaced."""

    def one(s: kir.Statement) -> kir.Statement:
        if not isinstance(s, kir.Loop):
            return s
        carried = tuple(
            kir.Carry(c.local, c.init, substitute([c.step], {old: new})[0]) for c in s.carried
        )
        return replace(s, body=tuple(map(one, s.body)), carried=carried)

    return tuple(map(one, body))


def _in_strips(found: Operands, grid: Sequence[kir.Axis], chip: Chip) -> bool:
    """Whether to read `right` where it lies, by blocks of all rows and columns of one line.

    Such a strip stays in the first cache, and nobody else needs it, so that a copy gains nothing.
    """
    itemsize = found.right.dtype.itemsize
    strip = points(found.sums) * CACHE_LINE
    steps = [reach(found.right, a) * itemsize for a in found.sums]
    return (
        found.rows >= PACK_ROWS
        and not loop_order.masks(found)
        and points(grid) * itemsize // (extent(found.row) * CACHE_LINE) >= ALONE
        and strip <= chip.l1_bytes
        and min(steps) % PAGE != 0
        and columns_strewn(found, grid, chip)
    )


def _lies_well(found: Operands, chip: Chip) -> bool:
    """Whether `right` is read where it lies: columns together, and all of it in the second cache.

    What is packed before a loop costs nothing.
    """
    right, itemsize = found.right, found.right.dtype.itemsize
    return (
        len(found.sums) == 1
        and right.op is ops.LOAD
        and not loop_order.masks(found)
        and not steady(right)
        and found.rows <= FEW_ROWS
        and reach(right, found.column) == 1
        and reach(right, found.sums[0]) * itemsize % PAGE != 0
        and 2 * extent(found.sums[0]) * extent(found.column) * itemsize <= chip.l2_bytes
    )


def _copied(found: Operands, grid: Sequence[kir.Axis], tile: Tile, chip: Chip) -> str:
    """The factor that a block copies for itself: "left", "right", or "" for neither."""
    if tile.second is not None or loop_order.masks(found):
        return ""
    blocks = points(grid) // (extent(found.row) * tile.width)  # if each of them has all rows
    if blocks >= ALONE and columns_strewn(found, grid, chip):
        return "right"
    return "left" if rows_strewn(found, grid, chip) else ""


def _compute(
    found: Operands,
    phase: kir.Phase,
    batch: Sequence[kir.Axis],
    columns: kir.Axis,
    lane: kir.Axis,
    tile: Tile,
    packed: bool,
    copied: str,
    alone: bool,
    chip: Chip,
    exact: bool = False,
) -> kir.Phase:
    """Register tiles over blocks of rows, or of all of them; partial tiles get a masked body.

    With `exact`, tiles of fewer rows have bodies of their height instead.
    """
    row, column = found.row, found.column
    height, width = tile.height, tile.width
    all_tiles = kir.Axis.loop(row.name + "p", ceil_div(row.extent, height))
    there = points(phase.grid) // (height * width * tile.part)
    most = max(1, min(TILES_PER_BLOCK, there // BLOCKS))
    if alone:
        most = extent(all_tiles)
    some = min(decide("tiles", [most, *TILES]), static(all_tiles.extent) or most)
    # A copy of rows is used for as many panels as leave enough blocks.
    several = max(1, min(PANELS, there // (some * BLOCKS))) if copied == "left" else 1
    tiles = cut(all_tiles, some, row.name + "b", kir.AxisKind.GRID)
    panels = cut(
        replace(columns, name=columns.name + "p"), several, columns.name, kir.AxisKind.GRID
    )
    inner = kir.Axis.tile(row.name + "t", height)
    at = {
        row.node: tiles.node * height + inner.node,
        columns.node: panels.node,
        column.node: panels.node * width + lane.node,
    }
    chunk = None
    if packed and (some > 1 or copied):
        resident = width + (some * height if copied == "left" else 0)
        chunk = chunk_of(found, phase.body, resident, chip)
    chunks = cut(found.sums[0], chunk, found.sums[0].name + "c")
    body = phase.body
    before: kir.Body = ()
    if copied:
        factor, axis, first, count = {
            "left": (found.left, row, tiles.begin * height, some * height),
            "right": (found.right, column, panels.begin * width, several * width),
        }[copied]
        before, copy = stage(COPY, factor, axis, first, count, found.sums, chunks)
        body = _replace_factor(body, factor, copy)
    grid = list(phase.grid)
    kept = [panels.inner.node, simplify(tiles.inner.node * height + inner.node), lane.node]
    shape = [several, some * height, width]
    if tile.second is not None:
        second, part = tile.second, tile.part
        parts = kir.Axis.grid(second.name + "b", floor_div(second.extent, part))
        within = kir.Axis.tile(second.name + "t", part)
        at[second.node] = parts.node * part + within.node
        grid[grid.index(second)] = parts
        kept.insert(2, within.node)
        shape.insert(2, part)
    full_body = respecialise(body, at)
    m, n = static(row.extent), static(column.extent)
    full_rows = exact or (m is not None and m % height == 0)
    full_columns = n is not None and n % width == 0
    masked, whole = full_body, TRUE
    if not (full_rows and full_columns):
        in_rows = TRUE if full_rows else below(at[row.node], row.extent)
        in_columns = TRUE if full_columns else below(at[column.node], column.extent)
        # Copies are padded, so they need no masks while summing; stores do.
        masked = masked_body(masked_body(full_body, in_rows), in_columns)
        whole = both(
            TRUE if full_rows else tiles.node < kir.as_index(floor_div(row.extent, height)),
            TRUE if full_columns else panels.node < kir.as_index(floor_div(column.extent, width)),
        )
        # Bodies of all heights are enough: a mask decides where the columns end.
        whole = FALSE if exact else simplify(whole)

    def each(step: Callable[[kir.Body], kir.Body]) -> kir.Body:
        if whole.op is ops.CONST:
            made = step(full_body if whole.attr else masked)
        else:
            made = branch(whole, step(full_body), step(masked))
        return by_height(made, row, inner, tiles.node) if exact else made

    loops = (panels.inner, tiles.inner)
    if chunk is None:
        body = (*before, *kir.nest(loops, each(lambda body: body)))
    else:
        body = in_chunks(each, found.sums[0], chunks, before, loops, tuple(kept), tuple(shape))
    rest = [a for a in grid if a not in (row, column) and a not in batch]
    by_rule = "left" if _goes_by_once(found, phase.grid, packed) else "right"
    once = decide("once", [by_rule, "left", "right"])
    rows_first = (*rest, tiles.outer, panels.outer)
    swept = rows_first if once == "left" else (panels.outer, *rest, tiles.outer)
    return kir.Phase((*batch, *swept), body)


def _goes_by_once(found: Operands, grid: Sequence[kir.Axis], packed: bool) -> bool:
    """Whether `left` goes by once and `right` for every block of it, not the other way round.

    What is larger does, while a block of the smaller stays in cache; and so does a strided image,
    say, of which neither rows nor what is summed lie together: panels pass by in order.
    """
    axes = (*grid, *found.sums)
    left, right = (
        min(size(f), points(a for a in axes if a.node in mentions(f)))
        for f in (found.left, found.right)
    )
    row, summed = (reach(found.left, a) for a in (found.row, found.sums[-1]))
    strewn = row > 1 and summed * found.left.dtype.itemsize >= CACHE_LINE
    return left > right or (packed and strewn)


def by_height(body: kir.Body, row: kir.Axis, tile: kir.Axis, number: Node) -> kir.Body:
    """The `body` of a tile of rows, and one for every number of rows that the last may have.

    `number` counts the tiles.
    """
    height, m = extent(tile), static(row.extent)
    heights = range(1, height + 1) if m is None else sorted({m % height, min(m, height)} - {0})
    result: kir.Body = ()
    for h in heights:
        there = below(simplify(number * height + (h - 1)), row.extent)
        part = tile if h == height else kir.Axis.tile(f"{tile.name}{h}", h)
        own = respecialise(body, {tile.node: part.node})
        result = (kir.If(there, own, result),) if result else own
    return result


def with_partial(body: kir.Body, axis: kir.Axis, size: int, tile: Node, position: Node) -> kir.Body:
    """`body` for every tile of `size` points of an axis, of which the last may be partial.

    `tile` counts the tiles, and `position` is where on the axis a point of one lies.
    """
    if static(axis.extent) is not None and extent(axis) % size == 0:
        return body
    partial = masked_body(body, below(position, axis.extent))
    whole = below(tile, floor_div(axis.extent, size))
    return partial if whole.op is ops.CONST else branch(whole, body, partial)


def masked_body(body: kir.Body, inside: Node) -> kir.Body:
    """`body` for a tile of which only what is `inside` exists."""
    if inside is TRUE:
        return body
    tiles = kir.tile_axes(inside)

    def one(s: kir.Statement) -> kir.Statement:
        if isinstance(s, kir.Loop):
            return replace(s, body=tuple(map(one, s.body)))
        return replace(s, mask=both(s.mask, inside)) if isinstance(s, kir.Store) else s

    loads = kir.map_expressions(body, lambda n: mask_loads(n, inside, tiles, COPIES))
    return tuple(map(one, loads))
