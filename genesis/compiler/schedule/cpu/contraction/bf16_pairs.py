"""Products of bfloat16 by twos: a word holds two neighbours along k.

Some chips multiply two pairs of bfloat16 and add them to a 32-bit sum in a single instruction, at
twice the rate of float32. Such a contraction is one of half the length whose elements are words:
``acc + pairs(left[m, k/2], right[k/2, n])``. All that is known about tiles, panels and chunks holds
for it as it stands. A matrix whose rows run along k needs no copy for that, only another name for
its memory; of any other, words are put together while it is packed.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.contraction_operands import Operands, is_constant
from genesis.compiler.schedule.cpu.contraction.contraction import PACK_ROWS
from genesis.compiler.schedule.cpu.pointwise import pointwise
from genesis.compiler.schedule.steps.queries import extent
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import bfloat16, float32, uint16, uint32
from genesis.ir.index import LinearIndex, simplify, static
from genesis.ir.node import TRUE, Node, const, elementwise, mentions, topological
from genesis.ir.rewrite import replaced, substitute


def paired(
    kernel: kir.Kernel, found: Operands, chip: Chip
) -> tuple[kir.Kernel, Operands, list[kir.Phase]]:
    """A contraction of bfloat16 as one of words, and phases that come before it.

    Any other contraction is left as it is, and so is one that does not repay packing. Constant
    weights always do, or else how a row is summed would depend on how many there are.
    """
    repays = found.rows >= PACK_ROWS or is_constant(found.right)
    if not chip.has_bfloat16_dots or not _is_of_halves(found) or not repays:
        return kernel, found, []
    (phase,) = kernel.phases
    (k,) = found.sums
    steps = replace(k, name=k.name + "w", extent=extent(k) // 2)
    kernel, left = _words(kernel, found.left.inputs[0], k, steps)
    kernel, right = _words(kernel, found.right.inputs[0], k, steps)
    before: list[kir.Phase] = []
    if left.op is not ops.LOAD:  # every element is used by many columns
        words, left, before = _copied(left, [*phase.grid, steps], chip)
        kernel = replace(kernel, buffers=(*kernel.buffers, words))
    (carry,) = found.loop.carried
    step = carry.local.node + elementwise(ops.PAIRS, left, right, dtype=float32)
    loop = replace(found.loop, axis=steps, carried=(replace(carry, step=step),))
    body = tuple(loop if s is found.loop else s for s in phase.body)
    found = replace(found, loop=loop, sums=(steps,), left=left, right=right)
    return kernel.with_phases([kir.Phase(phase.grid, body)]), found, before


def _is_of_halves(found: Operands) -> bool:
    """Whether both factors are bfloat16, and summed along one axis of even length."""
    length = static(found.sums[0].extent)
    return (
        len(found.sums) == 1
        and length is not None
        and length % 2 == 0
        and all(
            f.op is ops.CAST and f.dtype is float32 and f.inputs[0].dtype is bfloat16
            for f in (found.left, found.right)
        )
    )


def _words(
    kernel: kir.Kernel, value: Node, k: kir.Axis, steps: kir.Axis
) -> tuple[kir.Kernel, Node]:
    """A value as words of two neighbours along k, and the kernel with what they are read from."""
    renamed = _renamed(kernel, value, k, steps)
    if renamed is not None:
        old, load = renamed
        buffers = tuple(load.attr if b == old else b for b in kernel.buffers)
        return replace(kernel, buffers=buffers), load
    low, high = (
        elementwise(ops.CAST, elementwise(ops.BITCAST, simplify(half), dtype=uint16), dtype=uint32)
        for j in range(2)
        for half in substitute([value], {k.node: steps.node * 2 + j})
    )
    return kernel, low | elementwise(ops.SHL, high, const(16, uint32))


def _renamed(
    kernel: kir.Kernel, value: Node, k: kir.Axis, steps: kir.Axis
) -> tuple[kir.Buffer, Node] | None:
    """The buffer of an input whose rows run along k, and a load of it as words, if that can be."""
    if value.op is not ops.LOAD:
        return None
    buffer, at, mask, _ = kir.load_parts(value)
    nodes = topological(
        e for p in kernel.phases for s in kir.walk(p.body) for e in kir.expressions(s)
    )
    alone = sum(n.op is ops.LOAD and n.attr == buffer for n in nodes) == 1
    width = static(buffer.shape[-1])
    plain = buffer.role is kir.Role.INPUT and buffer.strides is None and mask is TRUE
    if not plain or not alone or width is None or width % 2:
        return None
    *outer, last = at
    linear = LinearIndex.of(last)
    along = linear.terms.pop(k.node, 0)
    even = not any(c % 2 for c in (*linear.terms.values(), linear.constant))
    inside = [i for i in (*outer, *linear.terms) if k.node in mentions(i)]
    if along != 1 or not even or inside:
        return None
    half = LinearIndex({t: c // 2 for t, c in linear.terms.items()}, linear.constant // 2).emit()
    words = replace(buffer, dtype=uint32, shape=(*buffer.shape[:-1], width // 2))
    return buffer, words.load(*outer, simplify(half + steps.node))


def _copied(
    value: Node, axes: list[kir.Axis], chip: Chip
) -> tuple[kir.Buffer, Node, list[kir.Phase]]:
    """A buffer of what is computed along some axes, a load of it, and how it is filled."""
    own = [a for a in axes if a.node in mentions(value)]
    words = kir.Buffer("words", value.dtype, tuple(a.extent for a in own), kir.Role.TEMPORARY)
    grid = {a: replace(a, name=a.name + "l", kind=kir.AxisKind.GRID) for a in own}
    there = replaced(value, {a.node: b.node for a, b in grid.items()})
    store = kir.Store(words, tuple(a.node for a in grid.values()), there)
    inputs = {n.attr: None for n in topological([there]) if n.op is ops.LOAD}
    copy = kir.Kernel(
        "words", (*inputs, words), (), (), (kir.Phase(tuple(grid.values()), (store,)),)
    )
    return words, words.load(*(a.node for a in own)), list(pointwise(copy, chip).phases)
