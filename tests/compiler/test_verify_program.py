"""Programs are proven, too: planted mistakes in lists of launches are found before they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.base import Host, Launch, Record, Repeat
from genesis.compiler import pipeline
from genesis.compiler.lower.scan import LoweredLoop, Steps
from genesis.compiler.program.memory_plan import (
    MemoryPlan,
    Room,
    Temporary,
    WrongProgram,
    place,
    require_apart,
)
from genesis.compiler.program.program import Program
from genesis.compiler.verify.program import verify_program
from genesis.ir.node import Node


class Proof(NamedTuple):
    """What the checker was asked."""

    program: Program
    steps: Steps
    roots: Sequence[Node]
    donated: frozenset[int]

    def refuted(self, says: str = "wrong program", **changes: Any) -> None:
        """A program with these changes must not pass."""
        wrong = replace(self.program, **changes)
        with pytest.raises(WrongProgram, match=says):
            verify_program(wrong, self.steps, self.roots, self.donated)


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Proof]]:
    """Every proof of a program that is compiled meanwhile; each is compiled anew."""
    found: list[Proof] = []

    def watched(*asked: Any) -> int:
        found.append(Proof(*asked))
        return verify_program(*asked)

    monkeypatch.setattr(pipeline, "verify_program", watched)
    monkeypatch.setenv("GENESIS_CACHE", "off")
    genesis.ndarray.core.realisation.forget_programs()
    yield found
    genesis.ndarray.core.realisation.forget_programs()


def proof_of(proofs: list[Proof], f: Callable[..., Any], *args: Any) -> Proof:
    proofs.clear()
    genesis.explain(f, *args)
    return proofs[-1]  # before it, those of arguments


def chain(w: Any, c: Any) -> None:
    """A value between two updates of the same memory is read."""
    w[0] += 1
    c[:] = w[1] * 2
    w[1] += 3


def two_rows() -> tuple[nd.NDArray, nd.NDArray]:
    return nd.array([[1.0, 1.0], [2.0, 2.0]]), nd.array([0.0, 0.0])


def swaps(records: Sequence[Record]) -> Iterator[tuple[Record, ...]]:
    for k in range(len(records) - 1):
        yield (*records[:k], records[k + 1], records[k], *records[k + 2 :])


# ---- orders


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("make", [nd.array, genesis.tensor])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_value_between_two_updates_of_its_memory_is_read(
    make: Callable[..., Any], size: int, jitted: bool
) -> None:
    rows = np.arange(3.0 * size, dtype=np.float32).reshape(3, size)
    w, c = make(rows.tolist()), make([0.0] * size)
    f = genesis.jit(chain) if jitted else chain
    wanted = [[], []]
    for _ in range(3):
        rows[0] += 1
        last = rows[1] * 2
        rows[1] += 3
        f(w, c)
        wanted = [rows.tolist(), last.tolist()]
        assert [w.tolist(), c.tolist()] == wanted


def test_updates_stay_in_place_around_a_reader() -> None:
    w, c = two_rows()
    program = genesis.jit(chain).recording(w, c)[0].program
    assert [o.reuses for o in program.outputs if o.reuses is not None] == [0]


@pytest.mark.parametrize("jitted", [False, True])
def test_a_reader_of_both_versions_gets_both(jitted: bool) -> None:
    """Whoever reads a value and what it is overwritten with can come neither before nor after."""

    def both(w: Any, c: Any) -> None:
        w[0] += 1
        old = w[1] * 2
        w[1] += 3
        c[:] = old + w[1] * 10

    w, c = two_rows()
    (genesis.jit(both) if jitted else both)(w, c)
    assert (w.tolist(), c.tolist()) == ([[2.0, 2.0], [5.0, 5.0]], [54.0, 54.0])


def test_launches_in_another_order_are_refuted(proofs: list[Proof]) -> None:
    proof = proof_of(proofs, chain, *two_rows())
    records = proof.program.records
    assert len(records) > 2
    # The steps that were planned come along: then it is not the pairing that tells.
    made = proof.program.derivation.steps
    wrong = 0
    for k, swapped in enumerate(swaps(records)):
        order = [*range(len(records))]
        order[k : k + 2] = k + 1, k
        derivation = replace(proof.program.derivation, steps=tuple(made[i] for i in order))
        program = replace(proof.program, records=swapped, derive=lambda d=derivation: d)
        steps = [proof.steps[i] for i in order]
        try:
            verify_program(program, steps, proof.roots, proof.donated)
        except WrongProgram:
            wrong += 1
        proof.refuted(records=swapped)  # without them, all are
    assert wrong >= 2


def test_launches_that_are_missing_or_come_twice_are_refuted(proofs: list[Proof]) -> None:
    proof = proof_of(proofs, chain, *two_rows())
    records = proof.program.records
    proof.refuted(records=records[:-1])
    proof.refuted("nobody asked for", records=(*records, records[-1]))


def test_arguments_of_a_launch_are_looked_at(proofs: list[Proof]) -> None:
    def f(a: Any, b: Any) -> Any:
        return (a @ b) @ a - b.sum()

    proof = proof_of(proofs, f, nd.ones((64, 64)), nd.ones((64, 64)))
    program = proof.program
    for k, record in enumerate(program.records):
        assert isinstance(record, Launch)
        for j in range(len(record.slots)):
            for other in range(program.buffers):
                if other == record.slots[j]:
                    continue
                slots = (*record.slots[:j], other, *record.slots[j + 1 :])
                launch = replace(record, slots=slots)
                records = (*program.records[:k], launch, *program.records[k + 1 :])
                proof.refuted(records=records)


# ---- memory


def test_a_temporary_that_ends_early_is_refuted(proofs: list[Proof]) -> None:
    def f(x: Any) -> Any:
        y = x @ x
        return (y - y.mean()) @ x + y

    proof = proof_of(proofs, f, nd.ones((128, 128)))
    temporaries = proof.program.temporaries
    shortened = 0
    for k, t in enumerate(temporaries):
        for first, last in ((t.first + 1, t.last), (t.first, t.last - 1)):
            if first <= last:
                changed = replace(t, first=first, last=last)
                changed_all = (*temporaries[:k], changed, *temporaries[k + 1 :])
                proof.refuted("lives from", temporaries=changed_all)
                shortened += 1
        small = replace(t, nbytes=t.nbytes - 1)
        proof.refuted("smaller", temporaries=(*temporaries[:k], small, *temporaries[k + 1 :]))
    assert shortened


def test_a_result_is_not_written_while_a_temporary_may_lie_there(proofs: list[Proof]) -> None:
    proof = proof_of(proofs, lambda x: (x @ x) @ x, nd.ones((128, 128)))
    (output,) = proof.program.outputs
    proof.refuted("free until", outputs=(replace(output, first=output.first + 1),))


def test_an_input_that_nobody_gave_away_is_not_written(proofs: list[Proof]) -> None:
    proof = proof_of(proofs, chain, *two_rows())
    for slot in proof.donated:
        with pytest.raises(WrongProgram, match="nobody gave away"):
            verify_program(*proof._replace(donated=proof.donated - {slot}))


def test_memory_of_an_input_that_is_read_later_is_not_taken_over(proofs: list[Proof]) -> None:
    def f(a: Any, b: Any) -> Any:
        a += 1  # in place, as the next
        b += 2
        return a @ b

    proof = proof_of(proofs, f, nd.ones((64, 64)), nd.ones((64, 64)))
    outputs = proof.program.outputs
    assert [output.reuses for output in outputs] == [None, 0, 1]
    for k, output in enumerate(outputs):
        for slot in proof.donated - {output.reuses}:
            wrong = replace(output, reuses=slot)
            proof.refuted(outputs=(*outputs[:k], wrong, *outputs[k + 1 :]))


def test_temporaries_that_share_bytes_are_refuted() -> None:
    block = [Temporary(100, 0, 1), Temporary(100, 1, 2), Temporary(64, 2, 3)]
    rooms = [Room(128, first=3)]
    found = place(block, rooms, {})
    require_apart(found, block, rooms, {})
    with pytest.raises(WrongProgram, match="0 and 1 share bytes"):
        require_apart(MemoryPlan((None, None, None), (0, 99, 0), 256), block, rooms, {})
    require_apart(MemoryPlan((None, None, None), (0, 100, 0), 256), block, rooms, {})
    with pytest.raises(WrongProgram, match="outside"):
        require_apart(MemoryPlan((None, None, None), (0, 128, 0), 200), block, rooms, {})
    with pytest.raises(WrongProgram, match="temporary 2 lives on where a result is written"):
        require_apart(MemoryPlan((None, None, 0), (0, 128, 0), 256), block, rooms, {})


# ---- loops, calls, what is kept


def looped(x: Any, w: Any) -> Any:
    def body(c: Any, row: Any) -> Any:
        new = nd.tanh(c @ w + row)
        return new, new.sum(axis=-1)

    return nd.scan(body, nd.zeros((8, 32)), x)


def changed_loop(records: Sequence[Record], **changes: Any) -> tuple[Record, ...]:
    return tuple(replace(r, **changes) if isinstance(r, Repeat) else r for r in records)


def test_loops_are_run_through(proofs: list[Proof]) -> None:
    proof = proof_of(proofs, looped, nd.ones((5, 8, 32)), nd.ones((32, 32)))
    records = proof.program.records
    (loop,) = (r for r in records if isinstance(r, Repeat))
    (turn,) = loop.turns
    inside = (turn.current, turn.first, turn.next, turn.spare)
    for wrong in (
        turn._replace(next=turn.spare),
        turn._replace(spare=turn.next),
        turn._replace(first=turn.next),
        turn._replace(next=turn.spare, spare=turn.next, first=turn.spare),
        turn._replace(current=turn.next),
    ):
        proof.refuted(records=changed_loop(records, turns=(wrong,)))
    assert len(set(inside)) == 4
    for k, cursor in enumerate(loop.cursors):
        for wrong in (
            cursor._replace(base=turn.next),
            cursor._replace(stride=loop.count),
            cursor._replace(slot=turn.current),
        ):
            cursors = (*loop.cursors[:k], wrong, *loop.cursors[k + 1 :])
            proof.refuted(records=changed_loop(records, cursors=cursors))
    proof.refuted(records=changed_loop(records, count=loop.cursors[0].stride))
    proof.refuted(records=changed_loop(records, body=loop.body[:-1]))


def test_what_a_loop_reads_lives_as_long_as_it(proofs: list[Proof]) -> None:
    def f(x: Any, w: Any) -> Any:
        return looped(x, w @ w)

    proof = proof_of(proofs, f, nd.ones((5, 8, 32)), nd.ones((32, 32)))
    temporaries = proof.program.temporaries
    (loop,) = (s for s in proof.steps if isinstance(s, LoweredLoop))
    ends = max(t.last for t in temporaries)
    assert len(loop.steps) > 1
    for k, t in enumerate(temporaries):
        if t.last == ends and t.first < t.last:
            short = replace(t, last=t.last - 1)
            proof.refuted(temporaries=(*temporaries[:k], short, *temporaries[k + 1 :]))


def test_steps_of_the_host_are_looked_at(proofs: list[Proof]) -> None:
    proof = proof_of(
        proofs, lambda a: nd.linalg.eigh(a + a)[0] * 2, nd.array([[2.0, 1.0], [1.0, 2.0]])
    )
    records = proof.program.records
    (at,) = (k for k, r in enumerate(records) if isinstance(r, Host))
    host = records[at]
    assert isinstance(host, Host)
    (operand,), results = host.operands, host.results
    wrong = [
        replace(host, operands=(operand._replace(pointer=0),)),
        replace(host, operands=(operand._replace(pointer=results[0].pointer),)),
        replace(host, results=(results[0]._replace(pointer=operand.pointer), *results[1:])),
        replace(host, operands=(operand._replace(extents=()),)),
    ]
    for record in wrong:
        proof.refuted(records=(*records[:at], record, *records[at + 1 :]))


def test_what_is_kept_says_what_it_depends_on(proofs: list[Proof]) -> None:
    proof = proof_of(proofs, lambda x, w: (x @ w) @ w, nd.ones((300, 64)), nd.ones((64, 64)))
    early = proof.program.early
    assert early
    for k, e in enumerate(early):
        for wrong in (
            e._replace(reads=()),
            e._replace(writes=()),
            e._replace(writes=(*e.writes, proof.program.first_output)),
        ):
            proof.refuted(early=(*early[:k], wrong, *early[k + 1 :]))


def test_explain_shows_the_verdict() -> None:
    report = genesis.explain(chain, *two_rows())
    assert report.proven and report.accesses
    assert f"{report.accesses} reads and writes of launches meet the right values" in str(report)
    assert not replace(report, accesses=None).proven
    assert "NOT ALL PROVEN" in str(replace(report, accesses=None))


def test_every_order_of_launches_is_right_or_refused(
    proofs: list[Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: Counter[str] = Counter()
    for order in permutations(range(5)):
        monkeypatch.setattr(pipeline, "ordered", lambda work, order=order: [*order])
        w, c = two_rows()
        try:
            genesis.jit(chain)(w, c)
        except WrongProgram as error:
            assert "should hold" in str(error)
            outcomes["refused"] += 1
        except KeyError:
            outcomes["impossible"] += 1  # read before it is written: there is no place for it
        else:
            assert (w.tolist(), c.tolist()) == ([[2.0, 2.0], [5.0, 5.0]], [4.0, 4.0])
            outcomes["right"] += 1
        genesis.ndarray.core.realisation.forget_programs()
    assert outcomes["right"] and outcomes["refused"], outcomes
    assert len(proofs[-1].steps) == 5
