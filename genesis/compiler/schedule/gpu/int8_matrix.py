"""Sums of products of bytes by matrix units: quantised weights, and several rows.

A block has a tile of rows, some columns and a tile of groups, for each of which matrix units
multiply the bytes. As with one row (`gpu/int8_dot.py`), sums of groups are scaled and carried
along, and those of different groups meet at the end. Parts of a byte (two halves of four bits) are
sums of their own, so that it is read once; a renderer puts their operands side by side.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from genesis.backends.base import GPU
from genesis.compiler.graph.simplify.elementwise import RULES
from genesis.compiler.schedule.gpu.int8_dot import in_groups
from genesis.compiler.schedule.gpu.tile_axes import decoded, tile
from genesis.compiler.schedule.int8_dot_parts import QUAD, ByteProduct, dots
from genesis.compiler.schedule.steps.queries import extent, factors, points
from genesis.compiler.schedule.steps.substitute_axes import Respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import int8, int32
from genesis.ir.node import TRUE, mentions, topological
from genesis.ir.rewrite import rewrite

#: Rows from which on matrix units are used.
LEAST = 9
#: Rows, columns and groups of a block.
ROWS = 16
COLUMNS = 32
GROUPS = 8
#: What is done to a word as to its bytes, and what of that takes a byte and constants.
SHIFTS = (ops.SHL, ops.SHR, ops.LOOKUP)
PLAIN = (ops.LOAD, ops.CONST, ops.BITCAST, ops.AND, ops.XOR, *SHIFTS)
#: The bytes of a group that matrix units multiply.
BYTES = (32, 64, 128)


def several(kernel: kir.Kernel) -> ByteProduct | None:
    """Recognise sums of products of bytes for several rows, in groups as matrix units take them."""
    found = dots(kernel)
    if found is None or found.row is None or extent(found.row) < LEAST:
        return None
    axes = [s.axis for s in kir.walk((found.nest,)) if isinstance(s, kir.Loop)]
    known = all(isinstance(a.extent, int) for a in axes)
    return found if known and points(axes) in BYTES and _plain(found) else None


def _plain(found: ByteProduct) -> bool:
    """Whether all bytes are signed, and four codes come out of a word as one does of a byte."""
    deep = [s for s in kir.walk((found.nest,)) if isinstance(s, kir.Loop)][-1]
    stack = [f.inputs[0] for f in factors(deep.carried[0])]
    if any(n.dtype is not int8 for n in stack):
        return False
    while stack:
        n = stack.pop()
        if n.op not in PLAIN:
            return False
        if n.op is not ops.LOAD:
            stack += n.inputs[:1] if n.op in SHIFTS else n.inputs
    return True


def multiply(kernel: kir.Kernel, found: ByteProduct, chip: GPU) -> kir.Kernel:
    """Schedule sums of products of bytes for several rows."""
    (phase,) = kernel.phases
    assert found.row is not None
    body = kir.map_expressions(_by_parts(phase.body, found), lambda n: rewrite([n], RULES)[0])
    kernel = kernel.with_phase(0, kir.Phase(phase.grid, in_groups(body, GROUPS)))
    kernel = tile(kernel, found.within or found.column, min(COLUMNS, found.width), exact=True)
    kernel = tile(kernel, found.row, ROWS, exact=True)
    # Blocks of the same columns follow each other: what one has read is near.
    (phase,) = kernel.phases
    rows = [a for a in phase.grid if a.name == found.row.name + "b"]
    grid = (*(a for a in phase.grid if a not in rows), *rows)
    return kernel.with_phase(0, kir.Phase(grid, phase.body))


def _by_parts(body: kir.Body, found: ByteProduct) -> kir.Body:
    """The body with the nest as a sum over a tile axis for each part of the bytes."""
    result: list[kir.Statement] = []
    for s in body:
        if s is found.nest:
            result += _parts(found)
        elif isinstance(s, kir.Loop):
            result.append(replace(s, body=_by_parts(s.body, found)))
        else:
            result.append(s)
    return tuple(result)


def _parts(found: ByteProduct) -> list[kir.Statement]:
    loops = [s for s in kir.walk((found.nest,)) if isinstance(s, kir.Loop)]
    (carry,) = loops[-1].carried
    (added,) = (x for x in carry.step.inputs if x is not carry.local.node)
    columns = (found.within or found.column).node
    loads = [mentions(n) for n in topological([added]) if n.op is ops.LOAD]
    weights = [names for names in loads if columns in names]
    axes = [s.axis for s in loops]
    parts = [a for a in axes if not all(a.node in names for names in weights)]
    rest = [a for a in axes if a not in parts]
    inner = kir.Axis.tile("k", points(rest))
    statements: list[kir.Statement] = []
    total = found.nest.carried[0]
    value = total.init
    for k, place in enumerate(product(*(range(extent(a)) for a in parts))):
        known = {a.node: kir.as_index(i) for a, i in zip(parts, place, strict=True)}
        changed = Respecialise({**known, **decoded(inner, rest)}, TRUE)
        part = kir.Local(f"part{k}", int32)
        add = kir.fold(ops.ADD, int32)
        statements.append(kir.Reduce((part,), (changed.expr(added),), inner, add))
        value = value + part.node
    statements.append(kir.Let(total.local, value))
    return statements


assert all(n % QUAD == 0 for n in BYTES)
