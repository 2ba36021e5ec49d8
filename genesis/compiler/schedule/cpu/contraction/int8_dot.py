"""Sums of products of bytes: rows and columns of quadruples in registers.

The columns of a block lie next to each other in quadruples (`schedule/int8_dot_parts.py`). A matrix
that lies in rows or in columns is copied into that order first, in a phase before the products,
where enough rows use the copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import is_constant, summation
from genesis.compiler.schedule.cpu.contraction.contraction import by_height
from genesis.compiler.schedule.decisions import decide
from genesis.compiler.schedule.int8_dot_parts import (
    QUAD,
    UNROLLED,
    ByteProduct,
    dots,
    multiplies_bytes,
    quadruples,
)
from genesis.compiler.schedule.steps.join_axes import flatten
from genesis.compiler.schedule.steps.queries import extent, factors, points, stride
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import ceil_div, fixed, least, simplify, static
from genesis.ir.node import Node, elementwise, mentions
from genesis.ir.rewrite import replaced

#: Columns of a vector.
LANES = 16
#: Sums a register tile has at most: each is two vectors, an integer one of the group and the total.
SUMS = 12
#: Rows of one block, in register tiles: while they go by, a block of weights stays in cache.
TILES = 32
#: Columns of a block that are copied into quadruples.
WIDTH = 32
#: With fewer rows than this a copy is not used often enough, unless it is kept.
ROWS = 8


def dot(kernel: kir.Kernel, found: ByteProduct, chip: Chip) -> kir.Kernel:
    """Schedule sums of products of bytes."""
    (phase,) = kernel.phases
    row, column = found.row, found.column
    count = extent(column) // (found.width if found.within is None else 1)
    blocks = kir.Axis.grid(column.name + "b", count)
    vector = kir.Axis.tile(column.name + "v", found.width // LANES)
    lane = kir.Axis.tile(column.name + "t", LANES)
    at = found.at(blocks.node, vector.node * LANES + lane.node)
    grid = [a for a in phase.grid if a not in (row, column, found.within)]
    grid.append(blocks)
    body = quadruples(phase.body, found)
    if row is None:
        return kernel.with_phases([kir.Phase(tuple(grid), respecialise(body, at))])
    most = SUMS * LANES // found.width
    height = decide("rows", [-(-extent(row) // -(-extent(row) // most)), *range(1, most + 1)])
    rows = ceil_div(row.extent, height)
    stripes = kir.Axis.grid(row.name + "b", ceil_div(rows, TILES))
    left = fixed(simplify(kir.as_index(rows) - stripes.node * TILES))
    tiles = kir.Axis.loop(row.name + "p", least(TILES, left))
    inner = kir.Axis.tile(row.name + "t", height)
    first = stripes.node * TILES + tiles.node
    at[row.node] = first * height + inner.node
    each = by_height(respecialise(body, at), row, inner, first)
    return kernel.with_phases([kir.Phase((*grid, stripes), (kir.Loop(tiles, each),))])


@dataclass(frozen=True)
class Repacked:
    """A product of matrices of bytes, of which `packing` puts one into quadruples."""

    kernel: kir.Kernel
    packing: kir.Phase
    found: ByteProduct


def quads(kernel: kir.Kernel) -> Repacked | None:
    """A product of two matrices of bytes after one of them is copied; None for anything else.

    Sums must have a multiple of four terms, and columns come in whole blocks.
    """
    found = summation(kernel)
    if found is None or len(found[0]) != 1 or not multiplies_bytes(found[1]):
        return None
    kernel = flatten(kernel)  # filters lie in rows, too, whatever axes they have
    found, (phase,) = summation(kernel), kernel.phases
    assert found is not None
    (nest,), carry = found
    k, length = nest.axis, static(nest.axis.extent)
    if length is None or length % QUAD:
        return None
    product = factors(carry)
    for left, right in (product, product[::-1]):
        in_left, in_right = mentions(left), mentions(right)
        rows = [a for a in phase.grid if a.node in in_left and a.node not in in_right]
        columns = [a for a in phase.grid if a.node in in_right and a.node not in in_left]
        often = points(rows) >= ROWS or is_constant(right)
        if len(columns) != 1 or not often or not _in_order(left, k):
            continue
        (column,) = columns
        if static(column.extent) is None or extent(column) % WIDTH:
            continue
        batch = [a for a in phase.grid if a.node in in_right and a != column]
        packed, packing = _packed(right.inputs[0], batch, column, k)
        at = (*(a.node for a in batch), column.node // WIDTH, k.node // QUAD)
        bytes_ = packed.load(*at, column.node % WIDTH, k.node % QUAD)
        factor = elementwise(ops.CAST, bytes_, dtype=right.dtype)
        summed = _split(nest, replaced(carry.step, {right: factor}))
        body = tuple(summed if s is nest else s for s in phase.body)
        buffers = (*kernel.buffers, packed)
        plain = replace(kernel, buffers=buffers, phases=(kir.Phase(phase.grid, body),))
        lies = dots(plain)
        if lies is not None:
            return Repacked(plain, packing, lies)
    return None


def repack(kernel: kir.Kernel, found: Repacked, chip: Chip) -> kir.Kernel:
    """Schedule a product of two matrices of bytes, one of them copied."""
    done = dot(found.kernel, found.found, chip)
    return done.with_phases([found.packing, *done.phases])


def _in_order(factor: Node, k: kir.Axis) -> bool:
    """Whether a factor is a matrix whose neighbours along k lie together."""
    load = factor.inputs[0]
    return load.op is ops.LOAD and stride(*kir.load_parts(load)[:2], k) == 1


def _packed(
    value: Node, batch: list[kir.Axis], column: kir.Axis, k: kir.Axis
) -> tuple[kir.Buffer, kir.Phase]:
    """The buffer of quadruples, and the phase that fills it."""
    blocks = kir.Axis.grid(column.name + "q", extent(column) // WIDTH)
    steps = kir.Axis.loop(k.name + "q", extent(k) // QUAD)
    place = kir.Axis.tile(column.name + "r", WIDTH)
    four = kir.Axis.tile(k.name + "j", QUAD)
    shape = (*(a.extent for a in batch), blocks.extent, steps.extent, WIDTH, QUAD)
    packed = kir.Buffer("quads", value.dtype, shape, kir.Role.TEMPORARY)
    known = {column.node: blocks.node * WIDTH + place.node, k.node: steps.node * QUAD + four.node}
    own = {a: replace(a, name=a.name + "q") for a in batch}
    known |= {a.node: b.node for a, b in own.items()}
    where = (*(a.node for a in own.values()), blocks.node, steps.node, place.node, four.node)
    store = kir.Store(packed, where, simplify(replaced(value, known)))
    return packed, kir.Phase((*own.values(), blocks), (kir.Loop(steps, (store,)),))


def _split(nest: kir.Loop, step: Node) -> kir.Loop:
    """The loop over k in quadruples, and where it goes up some of them in a loop of their own."""
    (carry,) = nest.carried
    length = extent(nest.axis)
    some = next(n for n in (UNROLLED // 2, 4, 2, 1) if length % (n * QUAD) == 0)
    sizes = [length // (some * QUAD), *([some] if some > 1 else []), QUAD]
    axes = [kir.Axis.loop(f"{nest.axis.name}_{d}", n) for d, n in enumerate(sizes)]
    position = axes[0].node
    for axis in axes[1:]:
        position = position * extent(axis) + axis.node
    names = [kir.Local(carry.local.name + "_" * d, carry.local.dtype) for d in range(len(axes))]
    known = {nest.axis.node: simplify(position), carry.local.node: names[-1].node}
    value = simplify(replaced(step, known))
    inits = [carry.init, *(v.node for v in names[:-1])]
    body: tuple[kir.Loop, ...] = ()
    for axis, name, init in zip(reversed(axes), reversed(names), reversed(inits), strict=True):
        body = (kir.Loop(axis, body, (kir.Carry(name, init, value),), nest.merge),)
        value = name.node
    return body[0]
