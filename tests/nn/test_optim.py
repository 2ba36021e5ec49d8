"""Optimizers step by step against PyTorch, or where it has none against a few lines of NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional, nn, optim
from genesis import ndarray as nd
from genesis.nn import utils
from genesis.optim.optimizer import Optimizer
from genesis.tensor.tensor import Tensor

SHAPES = [(4, 3), (3,), (2, 2, 3)]
STEPS = 100


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    """PyTorch keeps counts and rates in its default dtype; Genesis always in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def numbers(dtype: Any = np.float64, shapes: Any = SHAPES) -> list[Any]:
    """For every parameter: where it begins, and the two numbers of its loss.

    The least loss is far away: near it, rounding decides the signs that some rules look at.
    """
    rng = np.random.default_rng(1)
    found = []
    for shape in shapes:
        start = rng.normal(size=shape)
        goal = start + rng.choice([-1, 1], shape) * rng.uniform(3, 5, shape)
        found.append(tuple(x.astype(dtype) for x in (start, rng.uniform(1, 3, shape), goal)))
    return found


def slope(p: Any, a: Any, b: Any, cos: Callable[[Any], Any]) -> Any:
    """The gradient of ``a * (p - b)**2 + sin(p)``."""
    return 2 * a * (p - b) + cos(p)


Use = Callable[[int, int], bool]  # whether parameter k has a gradient at a step


def by_torch(make: Any, steps: int = STEPS, use: Use | None = None, data: Any = None) -> Any:
    """The parameters after some steps, and the optimizer."""
    data = data or numbers()
    params = [torch.tensor(p, requires_grad=True) for p, _, _ in data]
    optimizer = make(params)
    for step in range(steps):
        for k, (p, (_, a, b)) in enumerate(zip(params, data, strict=True)):
            used = use is None or use(step, k)
            p.grad = (
                slope(p.detach(), torch.tensor(a), torch.tensor(b), torch.cos) if used else None
            )
        optimizer.step()
    return [p.detach().numpy() for p in params], optimizer


def by_genesis(
    make: Any, steps: int = STEPS, jit: bool = True, use: Use | None = None, data: Any = None
) -> Any:
    """The same, and how often the step was recorded."""
    data = data or numbers()
    params = [Tensor(nd.array(p), requires_grad=True) for p, _, _ in data]
    others = [(nd.array(a), nd.array(b)) for _, a, b in data]
    optimizer = make(params)

    def step(used: tuple[bool, ...]) -> None:
        for p, (a, b), wanted in zip(params, others, used, strict=True):
            p.grad = Tensor(slope(p.array, a, b, nd.cos)) if wanted else None
        optimizer.step()

    run = genesis.jit(step) if jit else step
    for k in range(steps):
        run(tuple(use is None or use(k, n) for n in range(len(params))))
    return [p.array.numpy() for p in params], optimizer, getattr(run, "captures", 0)


def assert_close(found: list[Any], expected: list[Any], rtol: float = 1e-9) -> None:
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.02, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.2, "eps": 1e-3}),
    ("AdamW", {"lr": 0.01, "amsgrad": True}),
    ("Adamax", {"lr": 0.02, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.02, "weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.1}),
    ("RAdam", {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("Adagrad", {"weight_decay": 0.1, "maximize": True}),
    ("Adadelta", {"weight_decay": 0.01, "rho": 0.8, "lr": 0.5}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("RMSprop", {"lr": 0.003, "weight_decay": 0.1, "alpha": 0.9}),
    ("Rprop", {"etas": (0.4, 1.3), "step_sizes": (1e-5, 0.5)}),
    ("ASGD", {"t0": 10, "lambd": 0.01, "weight_decay": 0.1}),
    ("Adafactor", {"weight_decay": 0.1}),
    ("Adafactor", {"lr": 0.1, "d": 1.5, "eps": (1e-4, 1e-2), "maximize": True}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_like_pytorch(name: str, settings: dict[str, Any]) -> None:
    expected, reference = by_torch(lambda ps: getattr(torch.optim, name)(ps, **settings))
    found, optimizer, captures = by_genesis(lambda ps: getattr(optim, name)(ps, **settings))
    assert captures == 1
    assert_close(found, expected)
    theirs, ours = reference.state_dict(), optimizer.state_dict()
    extra = {"step"} if name == "SGD" else set()
    for k, state in theirs["state"].items():
        assert set(ours["state"][k]) - extra == {n for n, x in state.items() if x is not None}
        for n, x in state.items():
            if x is not None:
                np.testing.assert_allclose(ours["state"][k][n].numpy(), x.numpy(), 1e-8, 1e-8)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adafactor"])
def test_one_way_to_execute(name: str) -> None:
    """Settings of PyTorch that say how a step is executed change nothing; a gradient would."""
    x = Tensor(nd.zeros(1), requires_grad=True)
    kind: Any = getattr(optim, name)
    chosen = kind([x], foreach=None, differentiable=False, capturable=True)
    assert chosen.defaults == kind([x]).defaults
    with pytest.raises(TypeError, match="fusd"):
        kind([x], fusd=True)
    with pytest.raises(NotImplementedError, match=f"{name}: differentiable"):
        kind([x], differentiable=True)


def test_without_jit_and_in_float32() -> None:
    def run(make: Any, theirs: Any) -> None:
        assert_close(by_genesis(make, 20, jit=False)[0], by_torch(theirs, 20)[0])
        small = numbers(np.float32)
        found = by_genesis(make, data=small)[0]
        assert all(x.dtype == np.float32 for x in found)
        assert_close(found, by_torch(theirs, data=small)[0], 1e-3)

    run(
        lambda ps: optim.SGD(ps, 0.01, 0.9, dampening=0.3),
        lambda ps: torch.optim.SGD(ps, 0.01, 0.9, dampening=0.3),
    )
    run(lambda ps: optim.AdamW(ps, 0.05), lambda ps: torch.optim.AdamW(ps, 0.05))


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("NAdam", {"lr": 0.02}), ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.2})],
)
def test_gradients_come_and_go(name: str, settings: dict[str, Any], jit: bool) -> None:
    """Parameters begin at different steps and are left out of some, so that clocks part."""

    def use(step: int, k: int) -> bool:
        return step >= 2 * k and (step % 5 != 1 or k == 0)

    expected, _ = by_torch(lambda ps: getattr(torch.optim, name)(ps, **settings), 30, use)
    found, optimizer, captures = by_genesis(
        lambda ps: getattr(optim, name)(ps, **settings), 30, jit, use
    )
    assert_close(found, expected)
    assert len({id(s["step"]) for s in optimizer.state.values()}) == 3
    assert captures < 12


def test_clocks_are_shared() -> None:
    _, optimizer, _ = by_genesis(lambda ps: optim.Adam(ps), 3)
    assert len({id(s["step"]) for s in optimizer.state.values()}) == 1
    assert optimizer.state_dict()["state"][2]["step"].item() == 3


def test_several_steps_in_one_program() -> None:
    (start, a, b), *_ = numbers()
    p = Tensor(nd.array(start), requires_grad=True)
    q = Tensor(nd.zeros(1), requires_grad=True)
    optimizer = optim.Adam([p, q], lr=0.1)
    factors = nd.array(a), nd.array(b)

    @genesis.jit
    def twice(both: bool) -> None:
        q.grad = None if not both else Tensor(nd.ones(1))
        for _ in range(2):
            p.grad = Tensor(slope(p.array, *factors, nd.cos))
            optimizer.step()
            if both:
                q.grad = None

    twice(False)
    twice(False)
    expected, _ = by_torch(lambda ps: torch.optim.Adam(ps, lr=0.1), 4, data=numbers()[:1])
    assert_close([p.array.numpy()], expected)
    other = optim.Adam([p, q], lr=0.1)
    optimizer = other
    with pytest.raises(genesis.ndarray.core.value.CaptureError, match="one step at a time"):
        twice(True)


def test_groups() -> None:
    def make(of: Any) -> Any:
        def made(ps: list[Any]) -> Any:
            first = {"params": ps[0], "betas": (0.5, 0.6)}
            optimizer = of([first, {"params": ps[1:2], "lr": 0.1}], lr=0.01)
            optimizer.add_param_group({"params": ps[2:], "weight_decay": 0.5, "amsgrad": True})
            return optimizer

        return made

    found, optimizer, captures = by_genesis(make(optim.AdamW))
    named = optim.SGD([("weight", Tensor(nd.zeros(2), requires_grad=True))])
    assert named.state_dict()["param_groups"][0]["param_names"] == ("weight",)
    assert_close(found, by_torch(make(torch.optim.AdamW))[0])
    assert [g["lr"] for g in optimizer.param_groups] == [0.01, 0.1, 0.01]
    assert captures == 1


def test_settings_may_change() -> None:
    """Numbers in memory change under a recorded step; a decision is recorded anew."""

    def run(kind: Any, params: list[Any], step: Callable[[Any], None]) -> None:
        optimizer = kind(params, lr=0.1, momentum=0.9)
        for k, change in enumerate([{}, {"lr": 0.05}, {"momentum": 0.5}, {"nesterov": True}, {}]):
            optimizer.param_groups[0].update(change)
            if k == 4:
                optimizer.param_groups[0].update(weight_decay=0.1)
            step(optimizer)

    start, a, b = numbers()[0]
    theirs = [torch.tensor(start, requires_grad=True)]
    ours = [Tensor(nd.array(start), requires_grad=True)]
    factors = nd.array(a), nd.array(b)
    captured = []

    def by_theirs(optimizer: Any) -> None:
        theirs[0].grad = slope(theirs[0].detach(), torch.tensor(a), torch.tensor(b), torch.cos)
        optimizer.step()

    kept: list[Any] = []

    @genesis.jit
    def recorded() -> None:
        ours[0].grad = Tensor(slope(ours[0].array, *factors, nd.cos))
        kept[0].step()

    def by_ours(optimizer: Any) -> None:
        kept[:] = [optimizer]
        recorded()
        captured.append(recorded.captures)

    run(torch.optim.SGD, theirs, by_theirs)
    run(optim.SGD, ours, by_ours)
    assert_close([ours[0].array.numpy()], [theirs[0].detach().numpy()])
    assert captured == [1, 1, 1, 2, 3]


def network(kind: Any) -> Callable[..., Any]:
    """The loss of a small network, with functions of PyTorch or of Genesis."""

    def loss(x: Any, y: Any, w: Any, b: Any, v: Any) -> Any:
        error = kind.matmul(kind.tanh(kind.matmul(x, w) + b), v) - y
        return kind.mean(error * error)

    return loss


def test_a_training_step_is_one_program() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(8, 4)), rng.normal(size=(8, 2))
    weights = [rng.normal(size=s) for s in ((4, 5), (5,), (5, 2))]
    theirs = [torch.tensor(w, requires_grad=True) for w in weights]
    ours = [Tensor(nd.array(w), requires_grad=True) for w in weights]
    reference = torch.optim.Adam(theirs, lr=0.05)
    optimizer = optim.Adam(ours, lr=0.05)
    schedules = [
        kind.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=30)
        for kind, o in ((torch.optim, reference), (optim, optimizer))
    ]

    @genesis.jit
    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = network(functional)(x, y, *ours)
        loss.backward()
        utils.clip_grad_norm_(ours, 0.3)
        optimizer.step()
        return loss.detach()

    for _ in range(30):
        reference.zero_grad()
        expected = network(torch)(torch.tensor(x), torch.tensor(y), *theirs)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(theirs, 0.3)
        reference.step()
        loss = train(Tensor(nd.array(x)), Tensor(nd.array(y)))
        np.testing.assert_allclose(loss.item(), expected.item(), 1e-9)
        for schedule in schedules:
            schedule.step()
    assert train.captures == 1
    assert optimizer.param_groups[0]["betas"] == pytest.approx(reference.param_groups[0]["betas"])


def test_few_kernels() -> None:
    shapes = [(8, 8), (8,), (16, 8), (16,), (3, 16)] * 10
    params = [Tensor(nd.ones(s).realize(), requires_grad=True) for s in shapes]
    for p in params:
        p.grad = Tensor(nd.ones(p.shape).realize())
    optimizer = optim.Adam(params)
    report = genesis.explain(lambda: optimizer.step())
    assert len(report.kernels) <= 10
    assert report.proven


# ---- rules that PyTorch does not have


def lion(p: Any, g: Any, s: Any, lr: float, b1: float, b2: float, decay: float) -> Any:
    direction = np.sign(b1 * s["m"] + (1 - b1) * g)
    s["m"] = b2 * s["m"] + (1 - b2) * g
    return p * (1 - lr * decay) - lr * direction


def lamb(p: Any, g: Any, s: Any, lr: float, b1: float, b2: float, decay: float) -> Any:
    s["t"] += 1
    s["m"] = b1 * s["m"] + (1 - b1) * g
    s["v"] = b2 * s["v"] + (1 - b2) * g * g
    r = s["m"] / (1 - b1 ** s["t"]) / (np.sqrt(s["v"] / (1 - b2 ** s["t"])) + 1e-6) + decay * p
    sizes = np.linalg.norm(p.ravel()), np.linalg.norm(r.ravel())
    return p - lr * (sizes[0] / sizes[1] if all(sizes) else 1.0) * r


def lars(p: Any, g: Any, s: Any, lr: float, b1: float, b2: float, decay: float) -> Any:
    sizes = np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())
    local = 1e-3 * sizes[0] / (sizes[1] + decay * sizes[0] + 1e-8) if all(sizes) else 1.0
    s["m"] = b1 * s["m"] + local * (g + decay * p)
    return p - lr * s["m"]


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (lion, lambda ps: optim.Lion(ps, 0.02, (0.8, 0.9), 0.1)),
        (lamb, lambda ps: optim.LAMB(ps, 0.02, (0.8, 0.9), weight_decay=0.1)),
        (lars, lambda ps: optim.LARS(ps, 0.02, 0.8, 0.1)),
    ],
)
def test_like_numpy(rule: Any, make: Any) -> None:
    data = numbers()
    data[1] = (np.zeros(3), *data[1][1:])  # a norm of zero
    expected = []
    for p, a, b in data:
        state: dict[str, Any] = {"t": 0, "m": np.zeros_like(p), "v": np.zeros_like(p)}
        for _ in range(STEPS):
            p = rule(p, slope(p, a, b, np.cos), state, 0.02, 0.8, 0.9, 0.1)
        expected.append(p)
    assert_close(by_genesis(make, data=data)[0], expected)


@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_muon(adjust: str | None) -> None:
    """Newton and Schulz's steps are in bfloat16, and round differently."""
    data = numbers(shapes=[(6, 4), (3, 5)])
    settings: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.2, "adjust_lr_fn": adjust}
    expected, _ = by_torch(lambda ps: torch.optim.Muon(ps, **settings), 5, data=data)
    found, optimizer, _ = by_genesis(lambda ps: optim.Muon(ps, **settings), 5, data=data)
    assert_close(found, expected, 0.02)
    assert set(optimizer.state_dict()["state"][0]) == {"momentum_buffer"}


@pytest.mark.parametrize("memory", [4, 20])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search: str | None, memory: int) -> None:
    """Rosenbrock's valley, with a memory that is full soon, and one that grows."""
    start = np.array([-1.2, 1.0, 0.5])
    settings: dict[str, Any] = {"lr": 1.0 if search else 1e-2, "max_iter": 7}
    settings["history_size"] = memory
    theirs = torch.tensor(start, requires_grad=True)
    ours = Tensor(nd.array(start), requires_grad=True)
    reference = torch.optim.LBFGS([theirs], line_search_fn=search, **settings)
    optimizer = optim.LBFGS([ours], line_search_fn=search, **settings)
    optimizer.prepare()  # as for processes that divide its state; it makes no difference

    def valley(x: Any, mean: Any) -> Any:
        a, b, c = x
        return (1 - a) ** 2 + 100 * (b - a * a) ** 2 + (1 - b) ** 2 + 100 * (c - b * b) ** 2

    def their_closure() -> Any:
        reference.zero_grad()
        loss = valley(theirs, torch)
        loss.backward()
        return loss

    @genesis.jit
    def gradient(x: Any) -> Any:
        a, b, c = x[0], x[1], x[2]
        u, v = b - a * a, c - b * b
        parts = [-2 * (1 - a) - 400 * a * u, 200 * u - 2 * (1 - b) - 400 * b * v, 200 * v]
        return valley((a, b, c), nd), nd.stack(parts)

    def closure() -> Any:
        loss, grad = gradient(ours.array)
        ours.grad = Tensor(grad)
        return Tensor(loss)

    for k in range(5):
        if k == 3:  # go on with another one that loads the state
            saved = optimizer.state_dict()
            optimizer = optim.LBFGS([ours], line_search_fn=search, **settings)
            optimizer.load_state_dict(saved)
        expected, found = reference.step(their_closure), optimizer.step(closure)
        np.testing.assert_allclose(found.item(), expected.item(), 1e-6, 1e-12)
    assert_close([ours.array.numpy()], [theirs.detach().numpy()], 1e-6)
    mine, other = (next(iter(o.state_dict()["state"].values())) for o in (optimizer, reference))
    assert (mine["n_iter"], mine["func_evals"]) == (other["n_iter"], other["func_evals"])
    with pytest.raises(TypeError, match="closure"):
        optimizer.step()


# ---- saving


def snapshot(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict whose contents are apart from the optimizer's."""
    inner = {
        k: {n: x.numpy().copy() if hasattr(x, "numpy") else x for n, x in s.items()}
        for k, s in state["state"].items()
    }
    return {"state": inner, "param_groups": state["param_groups"]}


def test_saved_and_gone_on() -> None:
    def resumed(state: Any) -> Any:
        def made(ps: list[Tensor]) -> Optimizer:
            optimizer = optim.Adam(ps, lr=0.7)
            optimizer.load_state_dict(state)
            return optimizer

        return made

    whole, _, _ = by_genesis(lambda ps: optim.Adam(ps, lr=0.02, amsgrad=True), 12)
    middle, optimizer, _ = by_genesis(lambda ps: optim.Adam(ps, lr=0.02, amsgrad=True), 6)
    data = [(p, a, b) for p, (_, a, b) in zip(middle, numbers(), strict=True)]
    found, later, _ = by_genesis(resumed(snapshot(optimizer.state_dict())), 6, data=data)
    assert_close(found, whole, 1e-14)
    assert later.param_groups[0]["amsgrad"] and later.param_groups[0]["lr"] == 0.02

    middle, theirs = by_torch(lambda ps: torch.optim.Adam(ps, lr=0.02, amsgrad=True), 6)
    data = [(p, a, b) for p, (_, a, b) in zip(middle, numbers(), strict=True)]
    assert_close(by_genesis(resumed(snapshot(theirs.state_dict())), 6, data=data)[0], whole)


def test_loading_under_a_recorded_step() -> None:
    """A recording does not go on with the clocks of before."""
    (start, a, b), *_ = numbers()
    p = Tensor(nd.array(start), requires_grad=True)
    optimizer = optim.Adam([p], lr=0.1)
    factors = nd.array(a), nd.array(b)

    @genesis.jit
    def step() -> None:
        p.grad = Tensor(slope(p.array, *factors, nd.cos))
        optimizer.step()

    for _ in range(3):
        step()
    saved, at, kept = (
        snapshot(optimizer.state_dict()),
        p.array.numpy().copy(),
        optimizer.state_dict(),
    )
    for _ in range(3):
        step()
    expected = p.array.numpy().copy()
    optimizer.load_state_dict(saved)
    p.array.assign(nd.array(at))
    for _ in range(3):
        step()
    assert np.array_equal(p.array.numpy(), expected)
    assert kept["state"][0]["step"].item() == 6 and optimizer.state[p]["step"].item() == 6


def test_sgd_of_pytorch_with_dampening() -> None:
    """PyTorch has no count here; a momentum buffer says that the first step is over."""
    settings = {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}
    whole, _ = by_torch(lambda ps: torch.optim.SGD(ps, **settings), 6)
    middle, theirs = by_torch(lambda ps: torch.optim.SGD(ps, **settings), 3)
    data = [(p, a, b) for p, (_, a, b) in zip(middle, numbers(), strict=True)]

    def made(ps: list[Tensor]) -> Optimizer:
        optimizer = optim.SGD(ps)
        optimizer.load_state_dict(snapshot(theirs.state_dict()))
        return optimizer

    assert_close(by_genesis(made, 3, data=data)[0], whole)


# ---- the rest


def test_complex_parameters() -> None:
    rng = np.random.default_rng(3)
    start, target = (rng.normal(size=4) + 1j * rng.normal(size=4) for _ in range(2))
    theirs = torch.tensor(start, requires_grad=True)
    ours = Tensor(nd.array(start), requires_grad=True)
    reference, optimizer = torch.optim.Adam([theirs], 0.1), optim.Adam([ours], 0.1)
    goal = nd.array(target)
    for _ in range(10):
        theirs.grad = 2 * (theirs.detach() - torch.tensor(target))
        ours.grad = Tensor(2 * (ours.array - goal))
        reference.step()
        optimizer.step()
    assert_close([ours.array.numpy()], [theirs.detach().numpy()])


def test_closures_and_hooks() -> None:
    p = Tensor(nd.array([2.0]), requires_grad=True)
    optimizer = optim.SGD([p], lr=0.25)
    seen: list[str] = []
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.sum(p * p)
        loss.backward()
        seen.append("closure")
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert p.array.item() == 1.0
    before.remove()
    optimizer.step()
    assert seen == ["before", "closure", "after", "after"]
    assert "group 0: 1 parameters, lr=0.25" in repr(optimizer)


def test_refused() -> None:
    p = Tensor(nd.zeros((2, 2)), requires_grad=True)
    q = Tensor(nd.zeros(2), requires_grad=True)
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: optim.Adam([]), ValueError, "no parameters"),
        (lambda: optim.Adam(p), TypeError, "list"),
        (lambda: optim.Adam([p, p]), ValueError, "twice"),
        (lambda: optim.Adam([p * 2]), ValueError, "leaf"),
        (lambda: optim.Adam([p], lr=-1), ValueError, "lr is -1"),
        (lambda: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "beta is 1.0"),
        (lambda: optim.Adam([p], lr="0.1"), TypeError, "lr is a str"),  # type: ignore[arg-type]
        (lambda: optim.SGD([p], nesterov=True), ValueError, "nesterov"),
        (lambda: optim.Muon([q]), ValueError, "matrices"),
        (lambda: optim.LBFGS([p], line_search_fn="x"), ValueError, "strong_wolfe"),
        (lambda: optim.SGD([p]).load_state_dict(optim.SGD([p, q]).state_dict()), ValueError, "[2]"),
    ]
    for call, kind, text in refused:
        with pytest.raises(kind, match=text.replace("[", r"\[")):
            call()


class Affine(nn.Module):
    """A module with a parameter and a buffer."""

    def __init__(self, weight: Any, count: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(nd.array(weight))
        self.register_buffer("count", Tensor(nd.array(count)))

    def forward(self, x: Any) -> Any:
        """Scaled and shifted."""
        return x * self.weight + self.count


@pytest.mark.parametrize("decay", [None, 0.9])
def test_averages(decay: float | None) -> None:
    rng = np.random.default_rng(4)
    start = rng.normal(size=3)

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(start))

    theirs, ours = Theirs(), Affine(start, 1.0)
    functions: list[Any] = [None, None]
    if decay is not None:
        functions = [torch.optim.swa_utils.get_ema_avg_fn(decay), optim.get_ema_avg_fn(decay)]
    reference = torch.optim.swa_utils.AveragedModel(theirs, avg_fn=functions[0])
    average = optim.AveragedModel(ours, avg_fn=functions[1])
    update = genesis.jit(lambda: average.update_parameters(ours))
    for k in range(5):
        weight = rng.normal(size=3)
        theirs.weight.data.copy_(torch.tensor(weight))
        ours.weight.array.assign(nd.array(weight))
        ours.count.array.assign(float(k))
        reference.update_parameters(theirs)
        update()
    (expected,) = reference.parameters()
    assert_close([average.module.weight.array.numpy()], [expected.detach().numpy()])
    assert average.module.count.array.item() == 4 and average.n_averaged.item() == 5
    assert set(average.state_dict()) == {"n_averaged", "module.weight", "module.count"}


def test_running_average_warms_up() -> None:
    """After n updates it keeps (1 + n) / (10 + n), and never more than the decay."""
    model = Affine(np.zeros(1), 0.0)
    average = optim.AveragedModel(model, avg_fn=optim.get_ema_avg_fn(0.25, warmup=True))
    kept = 0.0
    for n in range(6):
        model.weight.array.assign(nd.array([n + 1.0]))
        average.update_parameters(model)
        decay = min(0.25, (1 + n) / (10 + n)) if n else 0.0
        kept = decay * kept + (1 - decay) * (n + 1)
    np.testing.assert_allclose(average.module.weight.array.numpy(), [kept], 1e-12)


def test_a_recording_that_fails_leaves_no_state() -> None:
    """State is made when a step is recorded, and goes again if nothing comes of the recording."""
    weight = genesis.ones(2, requires_grad=True)
    optimizer = optim.Adam([weight])
    rows = [genesis.ones(2)]

    def step(rows: list[Any]) -> None:
        if optimizer.state:
            raise LookupError("this is not the first step")
        (weight * rows[0]).sum().backward()
        optimizer.step()

    @genesis.jit
    def refused() -> None:
        step(rows)
        time.time()

    with pytest.raises(RuntimeError, match=r"time\.time"):
        refused()
    assert not optimizer.state and weight.grad is None

    @genesis.jit
    def aliased(given: list[Any]) -> None:
        step(given)
        rows.append(given[0])  # the same list: it is recorded again with that known

    aliased(rows)
    assert len(rows) == 2 and optimizer.state[weight]["step"].item() == 1
    with pytest.raises(LookupError):
        aliased(rows)
    assert len(rows) == 2 and optimizer.state[weight]["step"].item() == 1


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_a_first_step_has_the_program_of_all_that_follow(kind: Any) -> None:
    """Gradients are computed together, however many there are, and from parameters in memory."""
    from genesis.ndarray.core.realisation import statistics

    def compiled(layers: int) -> list[int]:
        sizes = [5 + layers + k for k in range(layers + 1)]
        model = nn.Sequential(*[nn.Linear(*pair) for pair in pairwise(sizes)])
        x = genesis.tensor(np.ones((4, sizes[0]), np.float32))
        optimizer = kind(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            before = statistics().compiled
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            found.append(statistics().compiled - before)
        return found

    few, many = compiled(2), compiled(6)
    assert few == many and few[1:] == [0, 0]
