"""Buckets: collectives that do not wait for each other become one.

A collective has a price of its own, however little it carries, and a training step has hundreds of
gradients. The *depth* of a collective is the number of them before it on the longest way from the
inputs: those of one depth cannot depend on each other. So collectives of the same kind, axis,
element type and depth are put together in the order in which they become ready, or are needed if
they are ready from the start, up to `BUCKET` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from genesis.compiler.partition.resharding import elements
from genesis.ir import ops
from genesis.ir.node import LibraryCall, Node, node, topological

#: Bytes of a bucket; beyond that size, a larger collective is not much cheaper per byte.
BUCKET = 4 << 20


def bucketed(
    roots: Sequence[Node], origins: Mapping[Node, Node]
) -> tuple[tuple[Node, ...], dict[Node, Node]]:
    """The graph with its collectives in buckets, and the origins of its nodes."""
    order = topological(roots)
    members = _members(order)
    made: dict[Node, Node] = {}
    found: dict[Node, Node] = {}
    calls: dict[Node, tuple[Node, int]] = {}  # the new call, and which operand an old one became
    stamp = 0  # of all that comes before: by it processes see that they do the same
    for n in _ordered(order, members):
        stamp = crc32(f"{n.op.name}{n.shape}{n.attr if n.op is ops.CONST else ''}".encode(), stamp)
        if n in calls:
            continue
        if n in members:
            bucket = members[n]
            sent = tuple(made[m.inputs[0]] for m in bucket)
            call = node(ops.CALL, sent, _joined(bucket, stamp), n.dtype)
            calls |= {m: (call, k) for k, m in enumerate(bucket)}
            made |= dict.fromkeys(bucket, call)
        elif n.op is ops.ITEM and n.inputs[0] in calls:
            call, k = calls[n.inputs[0]]
            made[n] = node(ops.ITEM, (call,), k, n.dtype, n.shape)
        elif n not in made:
            made[n] = n.with_inputs(tuple(made[i] for i in n.inputs))
        found.setdefault(made[n], origins.get(n, n))
    return tuple(made[n] for n in roots), found


def _members(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """For every collective, those that it is put together with."""
    depth: dict[Node, int] = {}
    open_: dict[Any, list[Node]] = {}
    members: dict[Node, list[Node]] = {}
    filled: dict[int, int] = {}
    for n in order:
        depth[n] = max((depth[i] for i in n.inputs), default=0) + is_collective(n)
    when = _moments(order)
    for n in sorted(filter(is_collective, order), key=when.__getitem__):
        key = depth[n], n.attr.name, n.attr.options, n.dtype
        forms = (*n.attr.operands, *n.attr.results)  # what is gathered is more than what is sent
        nbytes = max(elements(shape) for _, shape in forms) * n.dtype.itemsize
        bucket = open_.get(key)
        if bucket is None or filled[id(bucket)] + nbytes > BUCKET:
            bucket = open_[key] = []
            filled[id(bucket)] = 0
        bucket.append(n)
        filled[id(bucket)] += nbytes
        members[n] = bucket
    return members


def is_collective(n: Node) -> bool:
    """Whether a node is a collective between ranks."""
    return n.op is ops.CALL and bool(n.attr.is_collective)


def _moments(order: Sequence[Node]) -> dict[Node, int]:
    """When collectives can begin, counted in operations; if at once, when they are needed."""
    level: dict[Node, int] = {}
    computed: set[Node] = set()
    for n in order:
        moves = n.op.is_movement or n.op is ops.ITEM or is_collective(n)
        level[n] = max((level[i] for i in n.inputs), default=0) + (not moves)
        if n.inputs and (not moves or not computed.isdisjoint(n.inputs)):
            computed.add(n)
    needed: dict[Node, int] = {}
    for n in reversed(order):
        at = level[n] if n in computed else needed.get(n, level[n])
        for i in n.inputs:
            needed[i] = min(needed.get(i, at), at)
    return {n: level[n] if n in computed else needed[n] for n in order if is_collective(n)}


def _ordered(order: Sequence[Node], members: Mapping[Node, list[Node]]) -> list[Node]:
    """The nodes so that all inputs of a bucket come before it."""

    def inputs(n: Node) -> Sequence[Node]:
        bucket = members.get(n)
        return n.inputs if bucket is None else [i for m in bucket for i in m.inputs]

    return topological(order, inputs)


def _joined(bucket: Sequence[Node], stamp: int) -> LibraryCall:
    first: LibraryCall = bucket[0].attr
    operands = tuple(m.attr.operands[0] for m in bucket)
    results = tuple(m.attr.results[0] for m in bucket)
    return LibraryCall(first.name, (*first.options, stamp), operands, results)
