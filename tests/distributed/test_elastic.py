"""Processes are killed, stopped, added and taken away: training ends with the same bits."""

from __future__ import annotations

import itertools
import json
import random
import threading
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import HashStore

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.distributed.elastic import _Council
from genesis.distributed.reshard import Region, common, moved, plan, without
from tests.distributed import networks
from tests.distributed.test_training import launched

SCRIPT = str(Path(__file__).with_name("elastic_train.py"))


# ---- who sends what to whom


def blocks(draw: random.Random, shape: tuple[int, ...]) -> list[Region]:
    """An array in blocks: of some dimension, uneven ones, too."""
    dim = draw.randrange(len(shape))
    cuts = sorted(draw.randint(0, shape[dim]) for _ in range(draw.randint(0, 3)))
    ends = [0, *cuts, shape[dim]]
    whole = [(0, n) for n in shape]
    parts = [(a, b - a) for a, b in itertools.pairwise(ends)]
    return [tuple(p if d == dim else w for d, w in enumerate(whole)) for p in parts]


def test_everybody_gets_what_it_wants_and_nothing_else() -> None:
    draw = random.Random(0)
    for _ in range(200):
        shape = tuple(draw.choice((1, 2, 5, 6)) for _ in range(draw.randint(1, 3)))
        x = np.arange(prod(shape)).reshape(shape)
        have, wanted = blocks(draw, shape), blocks(draw, shape)
        count = max(len(have), len(wanted))
        holds = [{"x": have[k : k + 1]} for k in range(count)]
        wants = [{"x": wanted[k]} if k < len(wanted) else {} for k in range(count)]
        moves = plan(holds, wants)
        received = 0
        for k, region in enumerate(wanted):
            got = np.full([n for _, n in region], -1)
            for move in moves:
                if move.target == k:
                    assert common(holds[move.source]["x"][0], move.region) == move.region
                    inside = tuple(
                        slice(a - o, a - o + n)
                        for (a, n), (o, _) in zip(move.region, region, strict=True)
                    )
                    assert (got[inside] == -1).all()  # nothing comes twice
                    got[inside] = x[_slices(move.region)]
                    received += prod(n for _, n in move.region) * (move.source != k)
            assert np.array_equal(got, x[_slices(region)])
        own = [common(h, w) for h, w in zip(have, wanted, strict=False)]
        kept = sum(prod(n for _, n in r) for r in own if r is not None)
        assert received == x.size - kept  # the least there is


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in region)


def test_what_nobody_has_is_named() -> None:
    with pytest.raises(KeyError, match="w"):
        plan([{"w": [((0, 2),)]}], [{"w": ((0, 4),)}])
    assert without(((0, 4),), ((0, 4),)) == []


def test_one_process_moves_nothing() -> None:
    x = np.arange(6.0).reshape(2, 3)
    box: Region = ((0, 2), (0, 3))
    found, received = moved(
        plan([{"x": [box], "s": [()]}], [{"x": box, "s": ()}]),
        {"x": [(box, x)], "s": [((), np.float64(7))]},
        {"x": (box, x.dtype), "s": ((), np.dtype("f8"))},
        None,
        0,
    )
    assert np.array_equal(found["x"], x) and found["s"] == 7 and not received


# ---- what is held


def test_held_values_stay_as_they_were() -> None:
    """The next steps write elsewhere, jitted ones, too; afterwards in place again."""
    model = nn.Linear(4, 4)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)

    @genesis.jit
    def step() -> genesis.Tensor:
        loss = model(genesis.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step()
    held = model.weight.array.storage.actual
    before = model.weight.tolist()
    for _ in range(3):
        step()
    from genesis.ndarray.core.ndarray import wrap

    assert genesis.Tensor(wrap(held)).tolist() == before != model.weight.tolist()


def test_without_a_launcher_there_is_one_call() -> None:
    calls: list[int] = []

    def train(run: gd.Run) -> str:
        calls.extend(run.steps(3, nn.Linear(2, 2)))
        run.resize(5)  # nobody is there to do it
        return "done"

    assert gd.elastic(train) == "done" and calls == [0, 1, 2]
    with pytest.raises(ValueError, match="resize: 0 processes"):
        gd.elastic(lambda run: run.resize(0))


def test_a_process_that_nobody_lets_in_does_not_wait_for_ever() -> None:
    """It waits for members that are there, and for others on their way to the next epoch."""
    council = object.__new__(_Council)
    council.me, council.first, council.timeout = 5, 2, 60.0
    council.store = HashStore()
    for uid in (0, 1):
        council.store.set(f"gone/{uid}", b"-9")
    with pytest.raises(RuntimeError, match="nobody is left who could let this process in"):
        council._invited()
    council.store.set("3/members", json.dumps([[1, 4], [], True]))
    council.store.set("epoch", b"3")
    timer = threading.Timer(0.1, lambda: council.store.set("gone/4", b"-9"))
    timer.start()
    with pytest.raises(RuntimeError, match="nobody is left"):
        council._invited()
    assert timer.finished.is_set()
    council.store.set("3/change", json.dumps({"at": 9, "join": [5, 6], "leave": []}))
    council.store.set("4/who/1", json.dumps([6, False]))
    council.store.add("4/arrived", 1)
    assert council._invited() == 4


# ---- processes


def run(kind: str, count: int, steps: int, restarts: int = 0, **made: Any) -> list[list[Any]]:
    """What an elastic training prints."""
    options = ("--elastic", "--restarts", str(restarts))
    done = launched(count, SCRIPT, kind, str(steps), json.dumps(made), options=options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(found: list[list[Any]]) -> None:
    """All steps have the losses of one process, those that were done again, too."""
    losses = [(k, loss) for kind, k, loss, *_ in found if kind == "step"]
    alone = run("exact", 1, 1 + max(k for k, _ in losses))
    want = {k: loss for kind, k, loss, *_ in alone if kind == "step"}
    assert {k for k, _ in losses} == want.keys()
    assert all(loss == want[k] for k, loss in losses)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment(seed: int) -> None:
    """Ten of four processes, one after the other, the first one among them."""
    found = run("exact", 4, 10**6, 10, kills=10, seed=seed, slow=0.1, timeout=30)
    assert sum(kind == "begin" for kind, *_ in found) >= 21  # they went on without, and with it
    compare(found)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("member", (0, 2))
def test_a_stopped_process_is_gone_on_without(member: int) -> None:
    """When it wakes up, it comes back."""
    found = run("exact", 4, 60, stop={"5": member}, seconds=25, slow=0.5, timeout=10)
    sizes = [size for kind, _, size, *_ in found if kind == "begin"]
    assert sizes[:2] == [4, 3]
    compare(found)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ("exact", "zero3"))
def test_more_and_fewer_processes(kind: str) -> None:
    """2, 3, 4 and 2 again: what was there before is there after, and no more moved than must."""
    found = run(kind, 2, 10**6, sizes=[3, 4, 2], slow=0.1, timeout=60)
    begins = [line[1:] for line in found if line[0] == "begin"]
    assert [size for _, size, *_ in begins] == [2, 3, 4, 2]
    ends = {k: digest for name, k, _, digest in (x for x in found if x[0] == "end")}
    for k, _, digest, received, _ in begins[1:]:
        assert ends[k] == digest
        assert not received or kind == "zero3"  # the first one has everything, or its blocks
    if kind == "exact":
        compare(found)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_blocks_of_a_lost_process_are_rebuilt() -> None:
    found = run("zero3", 4, 12, kill={"3": 1, "7": 3}, timeout=60)
    begins = [line[1:4] for line in found if line[0] == "begin"]
    assert [size for _, size, _ in begins] == [4, 3, 2]
    (alone,) = (run("zero3", 1, 12),)
    pairs = zip(*([x for x in lines if x[0] == "step"] for lines in (found, alone)), strict=True)
    for (_, k, loss, _), (_, n, want, _) in pairs:
        assert k == n and loss == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not networks.can_be_made(), reason="networks take the rights to make them")
@pytest.mark.parametrize("comes_back", (True, False), ids=("for a while", "for good"))
def test_a_link_is_down(comes_back: bool) -> None:
    """For a while, nobody is lost; for good, the others go on. Both ways the same bits."""
    found: list[list[Any]] = []
    plan = json.dumps({"slow": 0.1, "timeout": 120 if comes_back else 15})
    with networks.network(4, "100mbit"):
        group = networks.Processes(4, True, SCRIPT, "exact", "30", plan)
        try:
            for line in group.read():
                found.append(line)
                if line[:2] == ["step", 6] and len(found) < 10:
                    networks.link(2, "down")
                    if comes_back:
                        threading.Timer(5.0, networks.link, (2, "up")).start()
                if line[0] == "done":
                    break
        finally:
            group.end()
    assert found[-1][:2] == ["done", 30]
    sizes = [size for kind, _, size, *_ in found if kind == "begin"]
    assert sizes[0] == 4 and (comes_back or sizes[-1] == 3)
    compare(found)
