"""Collectives are proven before anything runs: planted mistakes are found, right ones pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import random_values
from graphs import broadcast, full, leaf, matmul, permute, reduce
from ranks import evaluated
from test_partition import MESHES, case_of, drawn, plain

from genesis.backends import get
from genesis.backends.base import Host, waits
from genesis.compiler import compile_graph
from genesis.compiler.partition import FREE, buckets, partition
from genesis.compiler.program.memory_plan import WrongProgram
from genesis.compiler.program.program import Program
from genesis.compiler.verify.collectives import (
    Message,
    verify_cover,
    verify_flights,
    verify_messages,
    verify_states,
)
from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.node import LibraryCall, Node, elementwise, node, topological
from genesis.ir.placement import Placement, Split

MESH = MESHES[0]
ROWS, WHOLE = Placement(MESH, (Split(0),)), None


def rewritten(roots: Sequence[Node], change: Callable[[Node], Node | None]) -> tuple[Node, ...]:
    """A graph in which some nodes are others."""
    made: dict[Node, Node] = {}
    for n in topological(roots):
        again = n.with_inputs(tuple(made[i] for i in n.inputs))
        made[n] = change(again) or again
    return tuple(made[n] for n in roots)


# ---- states


def step() -> tuple[tuple[Node, ...], dict[int, Placement], list[Placement | None]]:
    """A linear layer and its gradient, data parallel: one rank's graph."""
    x, w = leaf(0, 8, 6, dtype=dtypes.float64), leaf(1, 6, 4, dtype=dtypes.float64)
    y = elementwise(ops.TANH, matmul(x, w))
    gradient = matmul(permute(x, 1, 0), y)
    new = elementwise(ops.SUB, w, gradient)
    leaves = {0: ROWS}
    found = partition((new, y), leaves, [None, FREE])
    assert found.placements == (None, ROWS)
    return found.roots, leaves, list(found.placements)


def collective(n: Node, name: str) -> bool:
    return n.op is ops.ITEM and n.inputs[0].op is ops.CALL and name in n.inputs[0].attr.name


def called(x: Node, name: str, shape: Any, *options: Any) -> Node:
    call = LibraryCall(
        f"collectives.{name}",
        (MESH.name, "a", *options),
        ((x.dtype, x.shape),),
        ((x.dtype, shape),),
    )
    return node(ops.ITEM, (node(ops.CALL, (x,), call, x.dtype, ()),), 0, x.dtype, shape)


def dropped(n: Node) -> Node | None:
    return n.inputs[0].inputs[0] if collective(n, "all_reduce") else None


def twice(n: Node) -> Node | None:
    return called(n, "all_reduce", n.shape, "sum") if collective(n, "all_reduce") else None


def greatest(n: Node) -> Node | None:
    return (
        called(n.inputs[0].inputs[0], "all_reduce", n.shape, "max")
        if collective(n, "all_reduce")
        else None
    )


def with_a_bias(n: Node) -> Node | None:
    """What all have is added before the sum, as a bias to rows of a divided product."""
    if not collective(n, "all_reduce"):
        return None
    x = n.inputs[0].inputs[0]
    return called(
        elementwise(ops.ADD, x, leaf(1, *x.shape, dtype=x.dtype)), "all_reduce", x.shape, "sum"
    )


def bent(n: Node) -> Node | None:
    """A function of partial sums instead of one of their sum."""
    if not collective(n, "all_reduce"):
        return None
    x = elementwise(ops.TANH, n.inputs[0].inputs[0])
    return called(x, "all_reduce", x.shape, "sum")


def gathered(n: Node) -> Node | None:
    """Partial sums one after the other."""
    x = n.inputs[0].inputs[0] if collective(n, "all_reduce") else None
    if x is None:
        return None
    both = called(x, "all_gather", (2 * x.shape[0], *x.shape[1:]))
    return node(ops.SLICE, (both,), ((0, 1),) * len(x.shape), x.dtype, x.shape)


@pytest.mark.parametrize("change", [dropped, twice, greatest, with_a_bias, bent, gathered])
def test_wrong_sums_are_found(change: Callable[[Node], Node | None]) -> None:
    roots, leaves, placements = step()
    assert verify_states(roots, MESH, leaves, placements) > 5
    wrong = rewritten(roots, change)
    assert wrong != roots
    with pytest.raises(WrongProgram):
        verify_states(wrong, MESH, leaves, placements)


def test_wrong_blocks_are_found() -> None:
    x = leaf(0, 8, 6)
    from genesis.ir.placement import rank_of

    def cut(start: Any, extent: int) -> Node:
        return node(ops.SLICE, (x,), ((start, 1), (0, 1)), x.dtype, (extent, 6))

    rank = rank_of("a", 2)
    verify_states((cut(4 * rank, 4),), MESH, {}, [ROWS])
    for start, extent, says in (
        (3 * rank, 4, "leave|overlap"), (2 * rank, 4, "overlap"), (4 * rank, 3, "leave part"),
        (5 * rank, 4, "outside"), (4 - 4 * rank, 4, "out of order"),
    ):  # fmt: skip
        with pytest.raises(WrongProgram, match=says):
            verify_states((cut(start, extent),), MESH, {}, [ROWS])
    whole = called(leaf(1, 4, 6), "all_gather", (8, 6))
    verify_states((whole,), MESH, {1: ROWS}, [None])
    for bad, leaves in (
        (called(leaf(1, 4, 6), "all_gather", (8, 6)), {}),  # of what all have
        (called(leaf(1, 4, 6), "all_gather", (12, 6)), {1: ROWS}),  # of three ranks
        (called(leaf(1, 4, 6), "all_gather", (8, 6)), {1: Placement(MESH, (Split(1),))}),
        (called(leaf(1, 4, 6), "permute", (4, 6), (1, 1)), {1: ROWS}),  # one block twice
    ):
        with pytest.raises(WrongProgram):
            verify_states((bad,), MESH, leaves, [None])


def mutated(n: Node, draw: random.Random) -> Node | None:
    """One collective done wrong."""
    call, x = n.inputs[0].attr, n.inputs[0].inputs[n.attr]
    name = call.name.removeprefix("collectives.")
    if name == "all_reduce":
        return draw.choice((x, _again(n, "max"), elementwise(ops.ADD, n, n)))
    if name == "all_gather":
        same = ((0, 1),) * len(n.shape)
        fill = full(0, x)
        return node(ops.PAD, (x, fill), same, x.dtype, n.shape)  # nothing comes from others
    return None


def _again(n: Node, how: str) -> Node:
    call = n.inputs[0].attr
    other = replace(call, options=(*call.options[:2], how))
    return node(
        ops.ITEM,
        (node(ops.CALL, n.inputs[0].inputs, other, n.dtype, ()),),
        n.attr,
        n.dtype,
        n.shape,
    )


def test_mistakes_in_random_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the collectives that are left out, or done in another way, are found to be wrong."""
    monkeypatch.setattr(random_values, "EXTENTS", (2, 4, 6, 6, 8, 12, 12, 24))
    found = tried = 0
    for seed in range(60):
        case, draw = case_of(seed), random.Random(seed)
        shapes = {slot: n.shape for slot, n in plain(case.roots).items()}
        leaves = {slot: drawn(draw, MESH, shape, 0.8) for slot, shape in shapes.items()}
        if not leaves:
            continue
        made = partition(case.roots, leaves, [FREE] * len(case.roots))
        items = [n for n in topological(made.roots) if collective(n, "collectives.")]
        for n in items[:2]:
            wrong = mutated(n, draw)
            if wrong is None:
                continue
            roots = rewritten(made.roots, lambda m, n=n, wrong=wrong: wrong if m is n else None)
            if not _differs(made, roots, case, shapes, leaves):
                continue
            tried += 1
            try:
                verify_states(roots, MESH, leaves, made.placements)
            except WrongProgram:
                found += 1
    assert tried >= 30 and found >= 0.6 * tried, (found, tried)


def _differs(made: Any, roots: Any, case: Any, shapes: Any, leaves: Any) -> bool:
    """Whether a graph gives other results than the right one, or fails."""
    right = evaluated(made, MESH, case.memory[0], shapes, leaves, case.scalars)
    try:
        with np.errstate(all="ignore"):
            got = evaluated(
                replace(made, roots=roots), MESH, case.memory[0], shapes, leaves, case.scalars
            )
    except Exception:
        return True
    pairs = zip(right, got, strict=True)
    return not all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in pairs)


# ---- memory


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """Two collectives under way while kernels run."""
    x, w = leaf(0, 64, 32), [leaf(k + 1, 32, 32) for k in range(3)]
    hidden = [x]
    for weight in w:
        hidden.append(elementwise(ops.TANH, matmul(hidden[-1], weight)))
    gradient, new = hidden[-1], []
    for weight, given in zip(reversed(w), reversed(hidden[:-1]), strict=True):
        change = matmul(permute(given, 1, 0), gradient)
        total = broadcast(reduce(ops.SUM, change, 0, 1), (32, 32))
        new.append(elementwise(ops.SUB, weight, elementwise(ops.MUL, change, total)))
        gradient = elementwise(ops.TANH, matmul(gradient, permute(weight, 1, 0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "BUCKET", 4096)
        found = partition(tuple(new), {0: ROWS}, [None] * 3)
    yield compile_graph(found.roots, frozenset(), get("cpu"))


def starts(program: Program) -> list[int]:
    return [k for k, r in enumerate(program.records) if isinstance(r, Host) and r.is_collective]


def test_what_is_under_way_is_left_alone(program: Program) -> None:
    ends = waits(program.records)
    assert verify_flights(program) == len(starts(program)) >= 3
    k, *others = starts(program)
    at = next(n for n, numbers in enumerate(ends) if k in numbers)
    last = len(ends) - 1

    def moved(to: int | None, number: int = k) -> list[list[int]]:
        rest = [[x for x in numbers if x != number] for numbers in ends]
        return rest if to is None else [[*n, number] if m == to else n for m, n in enumerate(rest)]

    assert at < last
    for wrong, says in (
        (moved(None), "not waited for"),  # no WAIT
        (moved(last), "touches what collective"),  # a late one
        (moved(at + 1), "touches what collective"),
        (moved(k), "not free|touches"),  # before it has begun
        ([[*n, k] if m == last else n for m, n in enumerate(ends)], "not once"),  # two
        (moved(None, others[0]), "not waited for"),
    ):
        with pytest.raises(WrongProgram, match=says):
            verify_flights(program, wrong)


def test_memory_under_way_belongs_to_nobody_else(program: Program) -> None:
    first = program.first_temporary
    k = next(k for k in starts(program) if program.records[k].results[0].pointer >= first)
    slot = program.records[k].results[0].pointer
    spare = program.temporaries[slot - first]
    for life in (replace(spare, last=spare.first), replace(spare, first=spare.first + 1)):
        changed = [life if t is spare else t for t in program.temporaries]
        with pytest.raises(WrongProgram, match="is not free"):
            verify_flights(replace(program, temporaries=tuple(changed)))
    record = program.records[k]
    into = replace(record, results=(record.results[0]._replace(pointer=0), *record.results[1:]))
    records = tuple(into if r is record else r for r in program.records)
    with pytest.raises(WrongProgram, match="is not free"):  # an input
        verify_flights(replace(program, records=records))


# ---- messages and blocks


def test_messages_that_do_not_fit_are_found() -> None:
    def send(to: int, tag: int = 0) -> Message:
        return Message("send", to, tag)

    def receive(source: int, tag: int = 0) -> Message:
        return Message("receive", source, tag)

    ring = [[send((r + 1) % 3), receive((r - 1) % 3)] for r in range(3)]
    assert verify_messages(ring) == 3
    for wrong, says in (
        ([[send(1)], []], "never receives"),  # a send without a receive
        ([[], [receive(0)]], "wait for ever"),  # a receive without a send
        ([[receive(1), send(1)], [receive(0), send(0)]], "wait for ever"),  # both wait first
        ([[send(1, 0), send(1, 1)], [receive(0, 1), receive(0, 2)]], "wait for ever"),  # a tag
        ([[send(1), send(1)], [receive(0), receive(0)]], "while one is under way"),
        ([[send(0)]], "no other rank"),
        ([[send(1), receive(2)], [receive(0)], []], "wait for ever"),  # from the wrong one
    ):
        with pytest.raises(WrongProgram, match=says):
            verify_messages(wrong)


def test_blocks_cover_an_array_once() -> None:
    halves = [((0, 4), (0, 3)), ((0, 4), (3, 3))]
    verify_cover(halves, (4, 6))
    verify_cover([*halves, ((0, 0), (0, 6))], (4, 6))  # nothing is no block
    for wrong, says in (
        (halves[:1], "leave part"), ([*halves, halves[0]], "overlap"),
        ([((0, 4), (0, 4)), ((0, 4), (3, 2))], "overlap"), ([((0, 4), (0, 7))], "outside"),
        # as many elements as there are, but one twice
        ([((0, 4), (0, 3)), ((0, 4), (2, 3))], "overlap"),
    ):  # fmt: skip
        with pytest.raises(WrongProgram, match=says):
            verify_cover(wrong, (4, 6))


def test_a_result_that_nobody_reads_has_memory_until_it_has_come() -> None:
    """It arrives with the others: what would lie in its place meanwhile would be overwritten."""
    x, w = leaf(0, 64, 64), leaf(1, 64, 64)
    forms = ((x.dtype, x.shape),) * 2
    call = LibraryCall("collectives.all_reduce", (MESH.name, "a", "sum"), forms, forms)
    y = matmul(x, w)
    both = node(ops.CALL, (y, elementwise(ops.TANH, y)), call, x.dtype, ())
    for _ in range(3):  # work that does not wait, and takes memory
        y = elementwise(ops.TANH, matmul(y, w))
    root = elementwise(ops.ADD, y, node(ops.ITEM, (both,), 0, x.dtype, x.shape))
    program = compile_graph((root,), frozenset(), get("cpu"))
    (k,) = starts(program)
    at = next(n for n, numbers in enumerate(waits(program.records)) if k in numbers)
    assert at > k + 1 and verify_flights(program) == 1
