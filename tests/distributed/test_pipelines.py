"""Pipelines: schedules that are exactly as good as promised, and training by them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

import genesis
import genesis.distributed as gd
from genesis import nn
from genesis.compiler.verify.collectives import verify_messages
from genesis.distributed.exact_sums import exact_sums
from genesis.distributed.pipeline import _Batch, balanced
from genesis.distributed.pipeline_schedules import (
    Action,
    Schedule,
    gpipe,
    interleaved,
    messages,
    one_forward_one_backward,
    simulate,
    zero_bubble,
)
from tests.distributed.test_training import launched

SCRIPT = str(Path(__file__).with_name("pipelines.py"))


@pytest.mark.parametrize("ranks", range(1, 9))
def test_ranks_are_idle_as_long_as_they_must(ranks: int) -> None:
    for m in (1, 2, 3, 5, 8, 16, 37, 64):
        for make in (gpipe, one_forward_one_backward):
            found = simulate(make(ranks, m), m)
            assert found.idle == pytest.approx((ranks - 1) / (m + ranks - 1))
            assert verify_messages(messages(make(ranks, m), m)) == 2 * (ranks - 1) * m
        assert max(simulate(one_forward_one_backward(ranks, m), m).kept) <= ranks
        found = simulate(zero_bubble(ranks, m), m)
        assert max(found.kept) <= ranks
        if m >= ranks:
            assert found.idle == pytest.approx((ranks - 1) / (3 * m + ranks - 1))
    for rounds in (1, 2, 5, 8):
        for stages in (1, 2, 3):
            m = rounds * ranks
            found = simulate(interleaved(ranks, m, stages), m)
            verify_messages(messages(interleaved(ranks, m, stages), m))
            assert found.idle == pytest.approx((ranks - 1) / (stages * m + ranks - 1))


def _without_cool_down(ranks: int, m: int) -> Schedule:
    """1F1B by someone who stops when the last forward pass has been made."""
    return [
        actions[: 2 * m - (ranks - rank - 1)]
        for rank, actions in enumerate(one_forward_one_backward(ranks, m))
    ]


def _without_remainder(ranks: int, m: int) -> Schedule:
    """Rounds of so many microbatches as there are ranks, whatever is left over."""
    return gpipe(ranks, m // ranks * ranks)


def test_wrong_schedules_are_found() -> None:
    with pytest.raises(ValueError, match="nobody does inputs"):
        simulate(_without_cool_down(4, 8), 8)
    with pytest.raises(ValueError, match="nobody does forward 9"):
        simulate(_without_remainder(3, 10), 10)
    with pytest.raises(ValueError, match="do not divide into rounds"):
        interleaved(3, 10)
    hasty = [list(actions) for actions in gpipe(2, 2)]
    hasty[0][0], hasty[0][2] = hasty[0][2], hasty[0][0]  # a backward pass before the forward one
    with pytest.raises(ValueError, match="waits for ever"):
        simulate(hasty, 2)
    twice = [[*actions, actions[0]] for actions in gpipe(2, 2)]
    with pytest.raises(ValueError, match="a second time"):
        simulate(twice, 2)
    moved = [list(actions) for actions in reversed(gpipe(2, 2))]
    with pytest.raises(ValueError, match="not where it lies"):
        simulate(moved, 2)
    with pytest.raises(ValueError, match="more than 1 microbatch"):
        simulate(gpipe(2, 2), 1)
    crossed = [  # each waits for what the other does next
        [Action("forward", 0, 0), Action("inputs", 0, 0), Action("forward", 0, 1),
         Action("inputs", 0, 1)],
        [Action("forward", 1, 1), Action("inputs", 1, 1), Action("forward", 1, 0),
         Action("inputs", 1, 0)],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="waits for ever"):
        simulate(crossed, 2)


def test_stages_are_balanced() -> None:
    rng = random.Random(0)

    def dearest(costs: list[int], count: int) -> float:
        """The least, by trying everything."""
        if count == 1:
            return sum(costs)
        ends = range(1, len(costs) - count + 2)
        return min(max(sum(costs[:e]), dearest(costs[e:], count - 1)) for e in ends)

    for _ in range(200):
        costs = [rng.randint(0, 9) for _ in range(rng.randint(1, 8))]
        count = rng.randint(1, len(costs))
        parts = balanced(costs, count)
        assert [k for a, b in parts for k in range(a, b)] == list(range(len(costs)))
        assert all(a < b for a, b in parts)
        assert max(sum(costs[a:b]) for a, b in parts) == dearest(costs, count)


def test_one_process_in_stages_is_a_plain_loop() -> None:
    def layers() -> list[nn.Module]:
        genesis.manual_seed(0)
        return [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]

    x, y = genesis.randn(8, 6), genesis.randn(8, 3)
    model = nn.Sequential(*layers())
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    pipeline = gd.Pipeline(
        layers(), nn.functional.mse_loss, gd.mesh(pp=1), microbatches=4, stages=3
    )
    for _ in range(2):  # gradients of a batch begin anew
        found = pipeline(x, y)
    assert found.item() == pytest.approx(loss.item(), rel=1e-6)
    for p, q in zip(pipeline.parameters(), model.parameters(), strict=True):
        assert genesis.allclose(p.grad, q.grad, rtol=1e-5, atol=1e-6)
    names = [f"layers.{name}" for name in model.state_dict()]
    assert sorted(pipeline.state_dict()) == ["batches", *sorted(names)]


def test_a_batch_that_failed_leaves_nothing_to_the_next() -> None:
    layers, loss = [nn.Linear(4, 4), nn.Linear(4, 2)], nn.functional.mse_loss
    pipeline = gd.Pipeline(layers, loss, gd.mesh(pp=1), microbatches=4, stages=2)
    x, y = genesis.randn(8, 4), genesis.randn(8, 2)
    pipeline(x, y)
    want = [p.grad.tolist() for p in pipeline.parameters()]
    do, count = _Batch.do, [0]

    def interrupted(self: _Batch, action: Action) -> None:
        count[0] += 1
        if count[0] == 9:  # in the middle, with gradients of some microbatches
            raise KeyboardInterrupt
        do(self, action)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_Batch, "do", interrupted)
        pipeline(x, y)
    pipeline(x, y)
    assert [p.grad.tolist() for p in pipeline.parameters()] == want


def test_exact_sums_have_no_order() -> None:
    rng = np.random.default_rng(0)
    scale = np.exp(rng.standard_normal(500) * 4)
    terms = [(rng.standard_normal(500) * scale).astype(np.float32) for _ in range(12)]
    (want,) = exact_sums([terms])
    plain = [sum(terms), sum(reversed(terms))]
    assert not np.array_equal(*plain)  # the order of floats matters
    for _ in range(5):
        rng.shuffle(terms)  # type: ignore[arg-type]
        assert np.array_equal(exact_sums([terms])[0], want)
    true = np.sum(terms, 0, dtype=np.float64)
    assert np.abs(want - true).max() <= np.abs(plain[0] - true).max()
    assert np.isnan(exact_sums([[np.array([1, np.inf], np.float32)]])[0]).all()
    assert exact_sums([[np.zeros(3, np.float32)] * 2])[0].tolist() == [0, 0, 0]


def test_bad_pipelines_are_named() -> None:
    mesh, layers = gd.mesh(pp=1), [nn.Linear(2, 2)]
    loss = nn.functional.mse_loss
    with pytest.raises(ValueError, match="no schedule 'fast', but gpipe"):
        gd.Pipeline(layers, loss, mesh, schedule="fast")
    with pytest.raises(ValueError, match="1 layers are too few for 2 stages"):
        gd.Pipeline(layers, loss, mesh, stages=2)
    with pytest.raises(ValueError, match="6 rows and 6 targets do not divide into 4"):
        gd.Pipeline(layers, loss, mesh, microbatches=4)(genesis.ones(6, 2), genesis.ones(6, 2))


def _losses(count: int, *command: str) -> list[float]:
    done = launched(count, SCRIPT, *command)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_schedule_gives_the_bits_of_one_process() -> None:
    """A GPT with dropout, tied weights and clipping."""
    for count in (2, 4):
        alone = _losses(1, "1f1b", str(count))
        for schedule in ("gpipe", "1f1b", "zero-bubble"):
            assert _losses(count, schedule, "0") == alone
    assert _losses(2, "interleaved", "4") == _losses(4, "1f1b", "0")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_exact_sums_give_the_same_bits_on_any_number_of_processes() -> None:
    alone = _losses(1, "1f1b", "1", "exact=12", "dp=1")
    for count in (2, 3, 4):
        assert _losses(count, "1f1b", "1", "exact=12", f"dp={count}") == alone


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_checkpoint_goes_on_with_another_schedule(tmp_path: Path) -> None:
    whole = _losses(4, "1f1b", "0")
    folder = f"folder={tmp_path}"
    assert _losses(4, "gpipe", "0", folder, "until=2") == whole[:4]
    assert _losses(4, "zero-bubble", "0", folder) == whole[4:]
    assert _losses(2, "interleaved", "4", folder) == whole[4:]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_pipelines_beside_each_other_are_a_plain_loop() -> None:
    alone = _losses(1, "plain")
    for axes in (("dp=2", "pp=2"), ("dp=1", "pp=4")):
        assert _losses(4, "zero-bubble", "0", *axes) == pytest.approx(alone, rel=1e-5)
