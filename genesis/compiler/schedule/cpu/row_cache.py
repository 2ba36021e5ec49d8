"""Row cache: what several loops over a row compute, and is costly, is computed once.

The exponentials of a softmax are summed first and divided by their sum later. `cache_row_values`
has the first of these loops write them to a stage as long as a row, and lets the other one read
that: a store and a load in fast memory instead of an exponential. Where the first does not just
combine what it reads, they are computed in a loop of their own before it.
"""

from __future__ import annotations

from dataclasses import replace

from genesis.backends.base import Chip
from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import static
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import replaced

#: What costs as much as so many multiply-adds is not computed twice.
COSTLY = 4
#: In shorter rows there is little to gain.
LEAST = 64
#: What is kept takes this part of the second cache, at most.
SHARE = 4


def cache_row_values(kernel: kir.Kernel, chip: Chip, number: int = 0) -> kir.Kernel:
    """The kernel with costly values of a row computed once, into stages."""
    phase = kernel.phases[number]
    body = list(phase.body)
    left = chip.l2_bytes // SHARE
    kept = 0
    while (found := _repeated(body, left)) is not None:
        length, value, (at, *others) = found
        stage = kir.Buffer(f"kept{kept}", value.dtype, (length,), kir.Role.STAGE)
        first = body[at]
        assert isinstance(first, kir.Loop)
        for k in others:
            body[k] = _reading(body[k], value, stage)
        if first.merge is not None and innermost(first) is first:
            body[at] = replace(first, body=(*first.body, _writing(first.axis, value, stage)))
            body.insert(at, kir.Stage(stage))
        else:
            body[at] = _reading(first, value, stage)
            row = kir.Axis.loop(f"kept{kept}_", length)
            body[at:at] = [kir.Stage(stage), kir.Loop(row, (_writing(row, value, stage),))]
        left -= length * value.dtype.itemsize
        kept += 1
    return kernel.with_phase(number, kir.Phase(phase.grid, tuple(body)))


def _writing(row: kir.Axis, value: Node, stage: kir.Buffer) -> kir.Store:
    """Keeps a value."""
    own = replaced(value, {_row(stage.shape[0]).node: row.node})
    return kir.Store(stage, (row.node,), own)


def _reading(s: kir.Statement, value: Node, stage: kir.Buffer) -> kir.Statement:
    """A loop that reads a value from its stage."""
    assert isinstance(s, kir.Loop)
    here = replaced(value, {_row(stage.shape[0]).node: s.axis.node})
    known = {here: stage.load(s.axis.node)}
    (result,) = kir.map_expressions((s,), lambda e: replaced(e, known))
    return result


def _repeated(body: list[kir.Statement], room: int) -> tuple[int, Node, list[int]] | None:
    """A costly value, along a row of some length, and the loops that compute it, if several do."""
    users: dict[tuple[int, Node], list[int]] = {}
    for at, s in enumerate(body):
        if not isinstance(s, kir.Loop) or any(isinstance(x, kir.Loop) for x in s.body):
            continue
        length = static(s.axis.extent)
        if length is None or length < LEAST:
            continue
        own = {c.local.node for c in s.carried}
        nodes = topological(e for x in kir.walk((s,)) for e in kir.expressions(x))
        for n in nodes:
            of_row = s.axis.node in mentions(n) and mentions(n).isdisjoint(own)
            if n.op.cost >= COSTLY and n.op is not ops.LOAD and n.dtype.is_float and of_row:
                value = replaced(n, {s.axis.node: _row(length).node})
                users.setdefault((length, value), []).append(at)
    for (length, value), loops in users.items():
        if len(loops) > 1 and length * value.dtype.itemsize <= room:
            return length, value, loops
    return None


def _row(length: kir.Index) -> kir.Axis:
    """Stands for the axis of any loop over a row."""
    return kir.Axis.loop("row", length)
