"""Groups of equal structure are lowered once, and the renamed kernel is the one `lower` gives."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.lower.dedupe import Known, lower_once
from genesis.compiler.lower.lower import lower
from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.node import Leaf, Node, Shape, elementwise, node
from genesis.ir.structure import structure


def buffer(slot: int, shape: Shape, strides: Shape | None = None) -> Node:
    strides = strides if strides is not None else (shape[1], 1)
    return node(ops.BUFFER, (), Leaf(slot, strides), float32, shape)


def scalar(slot: int) -> Node:
    return node(ops.SCALAR, (), slot, float32)


def layer(x: Node, slot: int) -> Node:
    """Scale rows by what they sum to, and add an array and a scalar of the layer's own."""
    total = node(ops.SUM, (x,), (1,), float32, (x.shape[0],))
    column = node(ops.RESHAPE, (total,), None, float32, (x.shape[0], 1))
    spread = node(ops.EXPAND, (column,), None, float32, x.shape)
    scaled = elementwise(ops.MUL, elementwise(ops.DIV, x, spread), scalar(slot))
    return elementwise(ops.ADD, scaled, buffer(slot, x.shape))


def lowered(roots: Sequence[Node], fused: bool = True) -> tuple[int, int]:
    """The number of groups and of kernels, after lowering both ways, which must give the same."""
    fusion = fuse(tuple(roots), enabled=fused)
    known = Known()
    for group in fusion.groups:
        renamed, plain = lower_once(group, fusion.stored, known), lower(group, fusion.stored)
        assert structure(renamed.kernel) == structure(plain.kernel)
        assert renamed.kernel.name == plain.kernel.name
        assert renamed.arguments == plain.arguments
        assert renamed.scalars == plain.scalars
        assert renamed.members == plain.members
    return len(fusion.groups), len(known.kernels)


def chain(layers: int) -> list[Node]:
    """The values of layers, each on top of the one before."""
    values = [buffer(0, (8, 32))]
    for slot in range(1, layers + 1):
        values.append(layer(values[-1], slot))
    return values[1:]


def test_fused_layers() -> None:
    groups, kernels = lowered(chain(6))
    assert kernels <= groups


def test_depth_costs_no_kernels() -> None:
    few, many = (lowered(chain(layers), fused=False) for layers in (3, 12))
    assert many[0] == 4 * few[0]
    assert many[1] == few[1] < few[0]


def test_layout_and_sharing_tell_groups_apart() -> None:
    a, b, turned = buffer(0, (4, 4)), buffer(1, (4, 4)), buffer(2, (4, 4), (1, 4))
    pairs = [(a, b), (b, a), (a, a), (a, turned)]
    roots = [elementwise(ops.DIV, *pair) for pair in pairs]
    assert lowered(roots, fused=False) == (4, 3)  # the first two are equal
