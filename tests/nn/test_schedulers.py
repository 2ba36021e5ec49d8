"""Schedules step by step against PyTorch."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import genesis
from genesis import ndarray as nd
from genesis import optim
from genesis.optim import lr_scheduler
from genesis.tensor.tensor import Tensor

STEPS = 40
Make = Callable[[Any, Any], Any]  # of the module of schedules and the optimizer


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """PyTorch warns about schedules without steps of the optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def optimizers(kind: str = "SGD") -> tuple[Any, Any]:
    """The same optimizer of PyTorch and of Genesis, with two groups."""
    theirs = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    ours = [Tensor(nd.zeros(2), requires_grad=True) for _ in range(2)]
    settings: dict[str, Any] = {"lr": 0.4, **({"momentum": 0.7} if kind == "SGD" else {})}

    def made(module: Any, params: list[Any]) -> Any:
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 1.5}]
        return getattr(module, kind)(groups, **settings)

    return made(torch.optim, theirs), made(optim, ours)


def rates(optimizer: Any) -> list[Any]:
    """The rates and momenta of all groups."""
    return [
        x
        for g in optimizer.param_groups
        for x in (g["lr"], *(g["betas"] if "betas" in g else (g["momentum"],)))
    ]


def assert_same(make: Make, kind: str = "SGD", steps: int = STEPS) -> None:
    theirs, ours = optimizers(kind)
    reference, scheduler = make(torch.optim.lr_scheduler, theirs), make(lr_scheduler, ours)
    for step in range(steps):
        assert rates(ours) == pytest.approx(rates(theirs), rel=1e-12, abs=1e-14), step
        assert scheduler.get_last_lr() == pytest.approx(reference.get_last_lr(), abs=1e-14)
        reference.step()
        scheduler.step()


SCHEDULES: dict[str, Make] = {
    "lambda": lambda m, o: m.LambdaLR(o, [lambda t: 0.95**t, lambda t: 1 / (1 + t)]),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda t: 1 - 0.5 / (t + 1)),
    "step": lambda m, o: m.StepLR(o, 7, 0.5),
    "milestones": lambda m, o: m.MultiStepLR(o, [3, 9, 9, 20], 0.3),
    "constant": lambda m, o: m.ConstantLR(o, 0.25, 6),
    "linear": lambda m, o: m.LinearLR(o, 0.2, 0.9, 8),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.9),
    "polynomial": lambda m, o: m.PolynomialLR(o, 30, 1.7),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 12, 0.05),
    "restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 5, 2, 0.01),
    "restarts of one length": lambda m, o: m.CosineAnnealingWarmRestarts(o, 6),
    "cyclic": lambda m, o: m.CyclicLR(o, 0.1, [0.5, 2.0], 5, 8),
    "halved cycles": lambda m, o: m.CyclicLR(o, 0.1, 0.5, 4, mode="triangular2"),
    "falling cycles": lambda m, o: m.CyclicLR(o, 0.1, 0.5, 4, mode="exp_range", gamma=0.95),
    "own cycles": lambda m, o: m.CyclicLR(
        o, 0.1, 0.5, 4, scale_fn=lambda x: 1 / x, cycle_momentum=False
    ),
    "one cycle": lambda m, o: m.OneCycleLR(o, [0.5, 2.0], STEPS),
    "one cycle in lines": lambda m, o: m.OneCycleLR(
        o, 0.5, epochs=5, steps_per_epoch=8, anneal_strategy="linear", pct_start=0.4
    ),
    "one cycle in three": lambda m, o: m.OneCycleLR(
        o, 0.5, STEPS, three_phase=True, base_momentum=0.6, max_momentum=0.8
    ),
    "sequence": lambda m, o: m.SequentialLR(
        o,
        [
            m.LinearLR(o, 0.1, total_iters=5),
            m.CosineAnnealingLR(o, 10),
            m.ConstantLR(o, 0.5, 4),
            m.ExponentialLR(o, 0.8),
        ],
        [5, 15, 22],
    ),
    "another sequence": lambda m, o: m.SequentialLR(
        o,
        [
            m.StepLR(o, 2),
            m.LambdaLR(o, lambda t: 0.9**t),
            m.MultiStepLR(o, [2, 4]),
            m.PolynomialLR(o, 10),
        ],
        [6, 12, 20],
    ),
    "chain": lambda m, o: m.ChainedScheduler(
        [m.ConstantLR(o, 0.1, 10), m.ExponentialLR(o, 0.9), m.StepLR(o, 9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_like_pytorch(name: str) -> None:
    assert_same(SCHEDULES[name])
    assert_same(SCHEDULES[name], "Adam")


def test_any_epoch() -> None:
    theirs, ours = optimizers()
    reference = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(theirs, 3, 2)
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(ours, 3, 2)
    for epoch in (0.5, 2.75, 3.0, 8.9, 9.0, 1.25, 30.5, None, None):
        reference.step(epoch)
        scheduler.step(epoch)
        assert scheduler.get_last_lr() == pytest.approx(reference.get_last_lr(), rel=1e-12)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateau(mode: str, threshold_mode: str) -> None:
    theirs, ours = optimizers()
    settings: dict[str, Any] = {
        "mode": mode, "threshold_mode": threshold_mode, "threshold": 0.05, "patience": 2,
        "cooldown": 1, "factor": 0.5, "min_lr": [0.05, 0.2],
    }  # fmt: skip
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **settings)
    scheduler = lr_scheduler.ReduceLROnPlateau(ours, **settings)
    seen = set()
    for k in range(STEPS):
        metric = math.sin(k / 3) + 2 + 0.01 * k
        reference.step(metric)
        scheduler.step(Tensor(nd.array(metric, genesis.float64)) if k % 2 else metric)
        assert rates(ours) == pytest.approx(rates(theirs), rel=1e-12)
        seen.add(rates(ours)[0])
    assert len(seen) > 2


def test_warm_up() -> None:
    _, ours = optimizers()
    scheduler = lr_scheduler.WarmupCosineLR(ours, 4, 12, start_factor=0.5, eta_min=0.1)
    found = []
    for _ in range(15):
        found.append(scheduler.get_last_lr()[0])
        scheduler.step()
    up = [0.4 * (0.5 + 0.5 * t / 4) for t in range(4)]
    down = [0.1 + 0.3 * (1 + math.cos(math.pi * t / 8)) / 2 for t in range(9)]
    assert found == pytest.approx([*up, *down, 0.1, 0.1], rel=1e-12)


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [0, 6])
def test_averaging_rate(strategy: str, epochs: int) -> None:
    def make(kind: Any, optimizer: Any) -> Any:
        return kind(optimizer, [0.05, 0.6], epochs, strategy)

    theirs, ours = optimizers()
    reference, scheduler = make(torch.optim.swa_utils.SWALR, theirs), make(optim.SWALR, ours)
    for _ in range(10):
        assert rates(ours) == pytest.approx(rates(theirs), rel=1e-12)
        reference.step()
        scheduler.step()


@pytest.mark.parametrize("name", SCHEDULES)
def test_saved_and_gone_on(name: str) -> None:
    """A schedule that loads a state goes on as the other one does."""
    make = SCHEDULES[name]
    _, first = optimizers()
    scheduler = make(lr_scheduler, first)
    for _ in range(11):
        scheduler.step()
    saved = copy.deepcopy(scheduler.state_dict()), first.state_dict()["param_groups"]
    _, second = optimizers()
    later = make(lr_scheduler, second)
    later.load_state_dict(saved[0])
    second.load_state_dict({"state": {}, "param_groups": saved[1]})
    for _ in range(20):
        assert rates(second) == rates(first)
        assert later.get_last_lr() == scheduler.get_last_lr()
        scheduler.step()
        later.step()


@pytest.mark.parametrize("name", ["step", "linear", "exponential", "cosine", "polynomial"])
def test_last_epoch(name: str) -> None:
    """A schedule made for an optimizer that is on its way."""
    theirs, ours = optimizers()
    made: list[Any] = []
    for module, optimizer in ((torch.optim.lr_scheduler, theirs), (lr_scheduler, ours)):
        for group in optimizer.param_groups:
            group["initial_lr"] = 2 * group["lr"]
        kinds = {
            "step": lambda m, o: m.StepLR(o, 3, last_epoch=5),
            "linear": lambda m, o: m.LinearLR(o, total_iters=20, last_epoch=5),
            "exponential": lambda m, o: m.ExponentialLR(o, 0.5, last_epoch=5),
            "cosine": lambda m, o: m.CosineAnnealingLR(o, 20, last_epoch=5),
            "polynomial": lambda m, o: m.PolynomialLR(o, 20, last_epoch=5),
        }
        made.append(kinds[name](module, optimizer))
    for _ in range(10):
        assert rates(ours) == pytest.approx(rates(theirs), rel=1e-12)
        for scheduler in made:
            scheduler.step()
    with pytest.raises(KeyError, match="initial_lr"):
        lr_scheduler.StepLR(optimizers()[1], 3, last_epoch=5)


def test_no_recording_anew() -> None:
    """A recorded step reads the rate when it runs."""
    p = Tensor(nd.zeros(2), requires_grad=True)
    p.grad = Tensor(nd.ones(2))
    optimizer = optim.SGD([p], lr=1.0)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = genesis.jit(lambda: optimizer.step())
    for _ in range(4):
        step()
        scheduler.step()
    assert step.captures == 1
    assert p.array.tolist() == [-1.875, -1.875]


def test_refused() -> None:
    _, ours = optimizers()
    other = optimizers()[1]
    with pytest.raises(TypeError, match="no Optimizer"):
        lr_scheduler.StepLR(3, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 groups"):
        lr_scheduler.LambdaLR(ours, [lambda t: 1.0])
    with pytest.raises(ValueError, match="total_steps"):
        lr_scheduler.OneCycleLR(ours, 0.1)
    with pytest.raises(ValueError, match="step 4 of a schedule of 3"):
        one = lr_scheduler.OneCycleLR(ours, 0.1, 3)
        for _ in range(4):
            one.step()
    with pytest.raises(ValueError, match="no momentum"):
        lr_scheduler.CyclicLR(optim.Adagrad(other.param_groups[0]["params"]), 0.1, 0.2)
    with pytest.raises(ValueError, match="different optimizers"):
        lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(ours, 2), lr_scheduler.StepLR(other, 2)])
    with pytest.raises(ValueError, match="needs a metric"):
        lr_scheduler.SequentialLR(ours, [lr_scheduler.ReduceLROnPlateau(ours)], [])
    with pytest.raises(ValueError, match="1 milestones"):
        lr_scheduler.SequentialLR(ours, [lr_scheduler.StepLR(ours, 2)] * 2, [])
