"""Attention backward taken apart: a plain kernel, as the schedules of any chip want it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from genesis.compiler.schedule.attention_parts import bounds_on, needed
from genesis.compiler.schedule.steps.queries import carrying, factors, lets
from genesis.ir import ops
from genesis.ir.kernel import Axis, Carry, Kernel, Let, Local, Loop, Store, walk
from genesis.ir.node import Node, is_const, mentions
from genesis.ir.pattern import AttentionBackward, Gradient


@dataclass(frozen=True)
class Product:
    """A contraction that weights are made from: rows of `left` with rows of `right`."""

    loop: Loop
    carry: Carry
    left: Node  # depends on the row
    right: Node  # depends on the column


@dataclass(frozen=True)
class Result:
    """What is added up: ``weight * value``, over rows or over columns."""

    store: Store
    weight: Local
    value: Node
    axis: Axis  # along the short rows of the result
    over_rows: bool
    last: Store  # what is stored of the sum in the end


@dataclass(frozen=True)
class BackwardParts:
    """The parts of a plain kernel."""

    row: Axis
    column: Axis
    products: tuple[Product, ...]
    weights: tuple[Let, ...]
    results: tuple[Result, ...]


def attention_backward(kernel: Kernel) -> BackwardParts | None:
    """The parts of a plain kernel of attention backward; None for any other."""
    found = kernel.pattern
    if not isinstance(found, AttentionBackward):
        return None
    (phase,) = kernel.phases
    loops = [s for s in walk(phase.body) if isinstance(s, Loop)]
    rows = next(s for s in loops if s.axis.name == found.row and found.weights[0] in lets(s.body))
    columns = next(s for s in loops if s.axis.name == found.column and rows in s.body)
    named, inner = lets(rows.body), {s.axis.name: s for s in rows.body if isinstance(s, Loop)}
    stored = {s.buffer.name: s for s in walk(phase.body) if isinstance(s, Store)}
    return BackwardParts(
        rows.axis,
        columns.axis,
        tuple(_product(*carrying(rows.body, name), rows.axis) for name in found.products),
        tuple(named[name] for name in found.weights),
        tuple(_result(x, inner[x.axis], named, rows.axis, stored[x.stored]) for x in found.results),
    )


def _product(loop: Loop, carry: Carry, row: Axis) -> Product:
    left, right = factors(carry)
    if row.node in mentions(right):
        left, right = right, left
    return Product(loop, carry, left, right)


def _result(x: Gradient, loop: Loop, named: dict[str, Let], row: Axis, last: Store) -> Result:
    (store,) = loop.body
    assert isinstance(store, Store)
    weight = named[x.weight].local
    _, added = store.value.inputs
    (value,) = (factor for factor in added.inputs if factor is not weight.node)
    over_rows = all(row.node not in mentions(i) for i in store.index)
    return Result(store, weight, value, loop.axis, over_rows, store if x.sums == x.stored else last)


def diagonal(p: BackwardParts) -> int | None:
    """How far behind its column the first row is whose weights are not zero, if that is fixed."""
    common: set[Node] | None = None
    for s in p.weights:
        here = set(_factors(s.value))
        common = here if common is None else common & here
    for condition in sorted(common or (), key=str):
        bound = bounds_on(condition)
        if bound is not None and bound.terms == {p.column.node: -1, p.row.node: 1}:
            return -bound.constant
    return None


def _factors(weight: Node) -> Iterator[Node]:
    """Conditions without which a weight is zero."""
    if weight.op is ops.MUL:
        for x in weight.inputs:
            yield from _factors(x)
    elif weight.op is ops.WHERE and is_const(weight.inputs[1], 0):
        yield from _factors(weight.inputs[2])
    elif weight.op is ops.EXP and weight.inputs[0].op is ops.SUB:
        yield from needed(weight.inputs[0].inputs[0])
