"""Mixed precision: what computes in which dtype, and gradients that neither vanish nor overflow."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional, nn, optim
from genesis import ndarray as nd
from genesis.amp import FLOAT32, LOW_PRECISION, WIDEST, GradScaler, autocast
from genesis.autograd import grad
from genesis.functional.function import Function, precision
from genesis.tensor.tensor import Tensor

# ---- the sets


def functions(kind: type) -> Iterator[type]:
    for inner in kind.__subclasses__():
        yield inner
        yield from functions(inner)


def test_every_name_is_that_of_an_operation() -> None:
    known = {f.__name__ for f in functions(Function)}
    compositions = {n for n in dir(functional) if hasattr(getattr(functional, n), "__wrapped__")}
    assert LOW_PRECISION | FLOAT32 | WIDEST <= known | compositions


def test_the_sets_are_disjoint() -> None:
    assert not LOW_PRECISION & FLOAT32
    assert not LOW_PRECISION & WIDEST
    assert not FLOAT32 & WIDEST


@pytest.mark.parametrize("low", [genesis.float16, genesis.bfloat16], ids=str)
def test_dtypes(low: Any) -> None:
    wide = genesis.float32
    x, half = genesis.ones(2, 2), genesis.ones(2, 2).to(low)
    image, kernel = genesis.ones(1, 1, 4, 4), genesis.ones(1, 1, 3, 3)
    target = genesis.tensor([0, 1])
    with autocast("cpu", low):
        found = {
            "matmul": (x @ x, low),
            "matmul of both": (half @ x, low),
            "linear with a bias": (functional.linear(x, x, x[0]), low),
            "convolution": (functional.conv2d(image, kernel), low),
            "einsum": (functional.einsum("ij,kj->ik", x, x), low),
            "exp": (half.exp(), wide),
            "power": (half**2, wide),
            "softmax": (functional.softmax(half), wide),
            "sum": (half.sum(), wide),
            "norm": (functional.vector_norm(half), wide),
            "cross entropy": (functional.cross_entropy(half, target), wide),
            "squares": (functional.mse_loss(half, target=half), wide),
            "relu": (functional.relu(half), low),
            "tanh": (half.tanh(), low),
            "sum of both": (half + x, wide),
            "sum of halves": (half + half, low),
            "cat": (functional.cat([half, x]), wide),
            "float64": (x.double() @ x.double(), genesis.float64),
            "integers": (target + target, genesis.int64),
        }
    for name, (result, dtype) in found.items():
        assert result.dtype is dtype, name
    assert (x @ x).dtype is wide


def test_losses_do_not_overflow() -> None:
    """A difference of 300 squared is no float16."""
    x = genesis.full((4,), 300.0).half()
    with autocast("cpu", genesis.float16):
        assert functional.mse_loss(x, genesis.zeros(4).half()).item() == 90000.0


def test_gradients_arrive_in_the_dtype_of_the_parameters(rng: np.random.Generator) -> None:
    """They are those of float32 up to the rounding of bfloat16."""
    values = [rng.normal(size=shape).astype(np.float32) for shape in ((16, 8), (8, 8), (8,))]
    slopes = []
    for enabled in (True, False):
        x, w, b = (Tensor(nd.array(v), True) for v in values)
        with autocast("cpu", genesis.bfloat16, enabled):
            loss = functional.mse_loss(functional.relu(functional.linear(x, w, b)), x * 0)
        slopes.append(grad(loss, [x, w, b]))
    for got, wanted in zip(*slopes, strict=True):
        assert got.dtype is genesis.float32
        scale = np.abs(wanted.numpy()).max()
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), atol=0.02 * scale)


def test_second_derivatives_under_autocast() -> None:
    x = genesis.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    with autocast("cpu", genesis.bfloat16):
        (first,) = grad(((x @ x) ** 2).sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x)
    assert first.dtype is second.dtype is genesis.float32
    exact = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (one,) = torch.autograd.grad(((exact @ exact) ** 2).sum(), exact, create_graph=True)
    (two,) = torch.autograd.grad(one.sum(), exact)
    np.testing.assert_allclose(second.numpy(), two.numpy(), rtol=0.02)


def test_layers(rng: np.random.Generator) -> None:
    """Layers of every kind under autocast: results and gradients close to those of float32."""
    genesis.manual_seed(0)
    image = Tensor(nd.array(rng.normal(size=(2, 1, 8, 8)).astype(np.float32)))
    words = Tensor(nd.array(rng.normal(size=(2, 3, 8)).astype(np.float32)))
    cases: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
        (
            nn.Sequential(
                nn.Conv2d(1, 4, 3),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.ConvTranspose2d(4, 2, 2),
                nn.GroupNorm(2, 2),
                nn.Flatten(),
                nn.Linear(32, 3),
                nn.LayerNorm(3),
            ),
            (image,),
        ),
        (nn.MultiheadAttention(8, 2, batch_first=True), (words, words, words)),
        (nn.LSTM(8, 4), (words,)),
        (nn.Bilinear(8, 8, 2), (words, words)),
    ]
    found: list[list[Tensor]] = []
    for enabled in (True, False):
        results: list[Tensor] = []
        for model, inputs in cases:
            with autocast("cpu", genesis.bfloat16, enabled):
                output = model(*inputs)
                output = output[0] if isinstance(output, tuple) else output
                loss = (output * output).mean()
            results += [loss, *grad(loss, list(model.parameters()))]
        nd.realize(*(x.array for x in results))
        found.append(results)
    for got, wanted in zip(*found, strict=True):
        assert got.dtype is genesis.float32
        expected = wanted.detach().numpy()
        np.testing.assert_allclose(got.detach().numpy(), expected, 0.1, 0.05)


# ---- where it holds


def test_blocks_nest_and_end() -> None:
    x = genesis.ones(2, 2)
    with autocast("cpu", genesis.float16):
        with autocast(enabled=False):
            assert (x @ x).dtype is genesis.float32
        with autocast("cpu", genesis.bfloat16):
            assert (x @ x).dtype is genesis.bfloat16
        with pytest.raises(ZeroDivisionError), autocast():
            _ = 1 / 0
        assert (x @ x).dtype is genesis.float16
    assert precision.choose is None


def test_as_a_decorator() -> None:
    @autocast("cpu", genesis.float16)
    def product(x: Tensor) -> Tensor:
        """x times x."""
        return x @ x

    assert product(genesis.ones(2, 2)).dtype is genesis.float16
    assert product.__doc__ == "x times x."


def test_threads_are_independent() -> None:
    found: list[Any] = []
    with autocast():
        other = threading.Thread(
            target=lambda: found.append((genesis.ones(2, 2) @ genesis.ones(2, 2)).dtype)
        )
        other.start()
        other.join()
    assert found == [genesis.float32]


def test_recorded_functions_know_the_difference() -> None:
    @genesis.jit
    def product(x: Tensor) -> Tensor:
        return x @ x

    x = genesis.ones(2, 2)
    for low in (genesis.float16, genesis.bfloat16, genesis.float16):
        assert product(x).dtype is genesis.float32
        with autocast("cpu", low):
            assert product(x).dtype is low


def test_recorded_functions_know_whether_gradients_are_recorded() -> None:
    w = genesis.ones(2, requires_grad=True)

    @genesis.jit
    def slope(x: Tensor) -> Tensor:
        return (w * x).detach() + float(genesis.is_grad_enabled())

    x = genesis.ones(2)
    for _ in range(2):
        assert slope(x).tolist() == [2.0, 2.0]
        with genesis.no_grad():
            assert slope(x).tolist() == [1.0, 1.0]


def test_only_half_precisions() -> None:
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        autocast("cpu", genesis.float32)


# ---- the scaler


class Problem:
    """Least squares with a loss so small that its gradients vanish in float16."""

    def __init__(self, rng: np.random.Generator) -> None:
        x = rng.normal(size=(64, 8)).astype(np.float32)
        self.x = Tensor(nd.array(x))
        self.y = Tensor(nd.array(x @ rng.normal(size=(8, 1)).astype(np.float32)))
        self.w = genesis.zeros(1, 8, requires_grad=True)
        self.optimizer = optim.Adam([self.w], lr=0.1)

    def loss(self) -> Tensor:
        with autocast("cpu", genesis.float16):
            found: Tensor = functional.mse_loss(functional.linear(self.x, self.w), self.y) * 1e-8
            return found


def test_what_fails_without_the_scaler_and_trains_with_it(rng: np.random.Generator) -> None:
    problem = Problem(rng)
    start = problem.loss().item()
    problem.loss().backward()
    assert problem.w.grad is not None
    assert not problem.w.grad.numpy().any()
    scaler = GradScaler()

    @genesis.jit
    def step() -> Tensor:
        problem.optimizer.zero_grad()
        loss = problem.loss()
        scaler.scale(loss).backward()
        scaler.step(problem.optimizer)
        scaler.update()
        return loss

    for _ in range(150):
        step()
    assert problem.loss().item() < start * 1e-3


PATTERN = (False, False, True, False, False, False, True, True, False, False, False, False)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_steps_are_left_out_as_in_pytorch(
    rng: np.random.Generator, name: str, recorded: bool
) -> None:
    """Scale, parameters, and through them momenta and counts, step by step."""
    start = rng.normal(size=3).astype(np.float32)
    settings: dict[str, Any] = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    ours, theirs = Tensor(nd.array(start), True), torch.tensor(start, requires_grad=True)
    mine, other = (
        getattr(optim, name)([ours], **settings),
        getattr(torch.optim, name)([theirs], **settings),
    )
    scaler = GradScaler(init_scale=8.0, growth_interval=3)
    reference = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(factor: Tensor) -> None:
        mine.zero_grad()
        scaler.scale((ours * ours * factor).sum()).backward()
        scaler.step(mine)
        scaler.update()

    run = genesis.jit(step) if recorded else step
    for overflow in PATTERN:
        factor = 1e38 if overflow else 1.0
        run(genesis.tensor(factor))
        other.zero_grad()
        reference.scale((theirs * theirs * factor).sum()).backward()
        reference.step(other)
        reference.update()
        assert scaler.get_scale() == reference.get_scale()
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-5, 1e-6)
    assert scaler.state_dict() == reference.state_dict()


def test_several_optimizers() -> None:
    """Each leaves out its own steps; the scale shrinks if any of them has overflowed."""
    a, b = genesis.ones(2, requires_grad=True), genesis.ones(2, requires_grad=True)
    first, second = optim.SGD([a], lr=0.5), optim.SGD([b], lr=0.5)
    scaler = GradScaler(init_scale=4.0)
    scaler.scale(a.sum() + (b * 3e38).sum()).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert a.tolist() == [0.5, 0.5]
    assert b.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 2.0


def test_unscaled_gradients_can_be_clipped() -> None:
    x = genesis.ones(2, requires_grad=True)
    optimizer = optim.SGD([x], lr=1.0)
    scaler = GradScaler(init_scale=1024.0)
    scaler.scale((x * genesis.tensor([3.0, 4.0])).sum()).backward()
    scaler.unscale_(optimizer)
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 4.0]
    x.grad.array.assign(x.grad.array / 10)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_allclose(x.detach().numpy(), [0.7, 0.6], rtol=1e-6)


def test_the_scale_stays_finite() -> None:
    x = genesis.ones(1, requires_grad=True)
    optimizer = optim.SGD([x], lr=0.0)
    scaler = GradScaler(init_scale=2.0**127, growth_interval=1)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale((x * 1e-10).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**127


def test_saved_and_loaded() -> None:
    scaler = GradScaler(init_scale=32.0, growth_interval=7)
    other = GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.get_scale() == 32.0


def test_switched_off() -> None:
    x = genesis.ones(2, requires_grad=True)
    optimizer = optim.SGD([x], lr=1.0)
    scaler = GradScaler(enabled=False)
    scaler.scale(x.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert x.tolist() == [0.0, 0.0]
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}


def test_lists_of_losses() -> None:
    scaler = GradScaler(init_scale=2.0)
    one, (two,) = scaler.scale([genesis.tensor(1.0), (genesis.tensor(2.0),)])
    assert (one.item(), two.item()) == (2.0, 4.0)


def test_what_makes_no_sense() -> None:
    x = genesis.ones(2, requires_grad=True)
    optimizer = optim.SGD([x], lr=1.0)
    scaler = GradScaler()
    with pytest.raises(RuntimeError, match="no gradients"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="no step"):
        scaler.update()
    scaler.scale(x.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="since the last update"):
        scaler.step(optimizer)
    with pytest.raises(TypeError, match="expected a tensor"):
        scaler.scale("loss")
    half = genesis.ones(2, dtype=genesis.float16, requires_grad=True)
    (half * half).sum().backward()
    with pytest.raises(ValueError, match="keep parameters in float32"):
        GradScaler().unscale_(optim.SGD([half], lr=1.0))
    for options in ({"init_scale": 0}, {"growth_factor": 1}, {"backoff_factor": 1}):
        with pytest.raises(ValueError, match="GradScaler"):
            GradScaler(**options)
