"""Groups of equal structure are lowered once, and the renamed kernel is the one `lower` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from typing import Any

import pytest

from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.fuse.groups import FusionGroup
from genesis.compiler.lower import dedupe
from genesis.compiler.lower.dedupe import Known, lower_once
from genesis.compiler.lower.lower import Lowered, lower
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


@pytest.mark.parametrize("field", fields(FusionGroup), ids=lambda f: f.name)
def test_groups_are_told_apart_by_every_field(
    field: Field[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by those that are yet to come, unless they say that lowering does not ask about them."""
    monkeypatch.setattr(dedupe, "lower", lambda *_: Lowered(None, (), (), ()))  # type: ignore[arg-type]
    fusion = fuse(tuple(chain(1)))
    known, (group, *_) = Known(), fusion.groups
    below = group.root.inputs[0]
    values = {"root": below, "also": [(below, group.at)], "columns": [(below, group.at)]}
    other = replace(group, **{field.name: values.get(field.name, frozenset([1]))})
    for each in (group, other):
        lower_once(each, fusion.stored, known)
    assert len(known.kernels) == 1 + field.compare
