"""Genesis as somebody uses it who knows PyTorch: whole programs, typed as they would be there.

Every program runs with PyTorch, with Genesis, and with Genesis and the step recorded. All must see
the same losses, and once a loop is running it must neither compile nor record anything.
"""

import copy
import gc
import math
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import Tensor
from genesis.ndarray import statistics
from tests.interrupts import interrupted_at, moments

STEPS, SETTLED = 12, 8
EXAMPLES = Path(__file__).parents[2] / "examples"

Step = Callable[..., Any]
Program = Callable[[Any, Callable[[Step], Step]], Iterator[float]]


def draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def classes(seed: int, count: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, count, shape)


def like(T: Any, make: Callable[[Any], Any]) -> Any:
    """A model with the parameters PyTorch would draw."""
    torch.manual_seed(0)
    state = {k: T.tensor(v.numpy()) for k, v in make(torch).state_dict().items()}
    model = make(T)
    model.load_state_dict(state)
    return model


def language_model(T: Any, jit: Callable[[Step], Step]) -> Iterator[float]:
    """An LSTM that carries its state over, on neighbouring views of one text."""
    nn, F = T.nn, T.nn.functional

    def make(T: Any) -> Any:
        return T.nn.ModuleDict({
            "embed": T.nn.Embedding(9, 6), "rnn": T.nn.LSTM(6, 8, batch_first=True),
            "out": T.nn.Linear(8, 9),
        })  # fmt: skip

    model = like(T, make)
    opt = T.optim.SGD(model.parameters(), lr=0.5)
    text = T.from_numpy(classes(0, 9, 3, 5 * STEPS + 1))

    @jit
    def step(x: Any, y: Any, h: Any, c: Any) -> Any:
        opt.zero_grad()
        out, (h, c) = model["rnn"](model["embed"](x), (h, c))
        loss = F.cross_entropy(model["out"](out).transpose(1, 2), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss, h.detach(), c.detach()

    h, c = T.zeros(1, 3, 8), T.zeros(1, 3, 8)
    for k in range(0, 5 * STEPS, 5):
        loss, h, c = step(text[:, k : k + 5], text[:, k + 1 : k + 6], h, c)
        yield loss.item()


def penalised_gan(T: Any, jit: Callable[[Step], Step]) -> Iterator[float]:
    """Two players, and a penalty on the gradient of one of them."""
    nn = T.nn

    def make(T: Any) -> Any:
        return T.nn.ModuleDict({
            "g": T.nn.Sequential(
                T.nn.Linear(3, 8), T.nn.BatchNorm1d(8), T.nn.LeakyReLU(0.2, True), T.nn.Linear(8, 2)
            ),
            "d": T.nn.Sequential(T.nn.Linear(2, 8), T.nn.Tanh(), T.nn.Linear(8, 1)),
        })  # fmt: skip

    model = like(T, make)
    g, d = model["g"], model["d"]
    opt_g = T.optim.Adam(g.parameters(), lr=1e-3, betas=(0.5, 0.9), eps=1e-3)
    opt_d = T.optim.Adam(d.parameters(), lr=1e-3, betas=(0.5, 0.9), eps=1e-3)
    bce = nn.BCEWithLogitsLoss()

    @jit
    def step(real: Any, z: Any, share: Any) -> Any:
        fake = g(z)
        d.zero_grad()
        between = (share * real + (1 - share) * fake.detach()).requires_grad_(True)
        scores = d(between)
        (slope,) = T.autograd.grad(
            outputs=scores, inputs=between, grad_outputs=T.ones_like(scores), create_graph=True,
            retain_graph=True, only_inputs=True,
        )  # fmt: skip
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        ones, zeros = T.ones(len(real), 1), T.zeros(len(real), 1)
        loss_d = bce(d(real), ones) + bce(d(fake.detach()), zeros) + 10 * penalty
        loss_d.backward()
        opt_d.step()
        g.zero_grad()
        loss_g = bce(d(fake), ones)
        loss_g.backward()
        opt_g.step()
        return loss_d, loss_g

    for k in range(STEPS):
        share = T.tensor(np.random.default_rng(k).random((6, 1), dtype=np.float32))
        losses = step(T.tensor(draw(k, 6, 2) + 2), T.tensor(draw(k + 100, 6, 3)), share)
        yield losses[0].item() + losses[1].item()


def q_learning(T: Any, jit: Callable[[Step], Step]) -> Iterator[float]:
    """A network and a slowly following copy of it."""
    F = T.nn.functional
    policy = like(T, lambda T: T.nn.Sequential(T.nn.Linear(4, 8), T.nn.ReLU(), T.nn.Linear(8, 3)))
    target = copy.deepcopy(policy).eval()
    for p in target.parameters():
        p.requires_grad = False
    opt = T.optim.RMSprop(policy.parameters(), lr=1e-3)

    @jit
    def step(state: Any, action: Any, reward: Any, after: Any, done: Any) -> Any:
        value = policy(state).gather(1, action.unsqueeze(1)).squeeze(1)
        with T.no_grad():
            expected = reward + 0.99 * target(after).max(1)[0] * (1 - done.float())
        loss = F.smooth_l1_loss(value, expected)
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            p.grad.data.clamp_(-1, 1)
        opt.step()
        with T.no_grad():
            for p, q in zip(policy.parameters(), target.parameters(), strict=True):
                q.mul_(0.95).add_(p, alpha=0.05)
        return loss

    for k in range(STEPS):
        with T.no_grad():
            assert 0 <= policy(T.from_numpy(draw(k, 1, 4))).argmax(1).item() < 3
        yield step(
            T.from_numpy(draw(k, 8, 4)), T.tensor(classes(k, 3, 8)), T.tensor(draw(k + 1, 8)),
            T.from_numpy(draw(k + 2, 8, 4)), T.tensor(draw(k, 8) > 1),
        ).item()  # fmt: skip


def fine_tuning(T: Any, jit: Callable[[Step], Step]) -> Iterator[float]:
    """A frozen body with a new head, batches of several sizes, and an average of the weights."""
    F = T.nn.functional

    def make(T: Any) -> Any:
        return T.nn.Sequential(
            T.nn.Conv2d(1, 3, 3), T.nn.BatchNorm2d(3), T.nn.ReLU(), T.nn.Flatten(),
            T.nn.Linear(27, 4),
        )  # fmt: skip

    model = like(T, make)
    for p in model.parameters():
        p.requires_grad = False
    model[4] = like(T, lambda T: T.nn.Linear(27, 2))
    opt = T.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    schedule = T.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5)
    average = {k: v.detach().clone() for k, v in model.state_dict().items() if v.ndim}

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        return loss

    for k in range(STEPS):
        size = 4 if k % 3 == 2 else 7
        yield step(T.tensor(draw(k, size, 1, 5, 5)), T.tensor(classes(k, 2, size))).item()
        if k % 2:
            opt.step()
            opt.zero_grad()
            schedule.step()
            with T.no_grad():
                for name, x in model.state_dict().items():
                    if name in average:
                        average[name].mul_(0.9).add_(x, alpha=0.1)
    assert model[0].weight.grad is None
    yield sum(x.sum().item() for x in average.values())


@pytest.mark.parametrize("program", [language_model, penalised_gan, q_learning, fine_tuning])
def test_programs(program: Program) -> None:
    def counted(step: Step) -> Any:
        recorded.append(genesis.jit(step))
        return recorded[-1]

    recorded: list[Any] = []
    wanted = list(program(torch, lambda step: step))
    for jit in (lambda step: step, counted):
        losses = []
        counts = []
        for loss in program(genesis, jit):
            losses.append(loss)
            counts.append((statistics().compiled, [f.captures for f in recorded]))
        np.testing.assert_allclose(losses, wanted, rtol=2e-4, atol=1e-5)
        assert counts[SETTLED] == counts[STEPS - 1], "a running loop compiles"


def test_mixed_precision_as_in_pytorch() -> None:
    found = []
    for T in (torch, genesis):
        model = like(
            T, lambda T: T.nn.Sequential(T.nn.Linear(6, 8), T.nn.ReLU(), T.nn.Linear(8, 2))
        )
        opt = T.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = T.amp.GradScaler("cpu", init_scale=1024.0)
        losses = []
        for k in range(4):
            opt.zero_grad()
            with T.autocast(device_type="cpu", dtype=T.bfloat16):
                loss = T.nn.functional.cross_entropy(
                    model(T.tensor(draw(k, 5, 6))), T.tensor(classes(k, 2, 5))
                )
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            T.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        found.append(losses)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-2)
    with pytest.raises(TypeError, match="autocast\\('cpu', dtype=bfloat16\\)"):
        genesis.autocast(genesis.bfloat16)  # type: ignore[arg-type]


# ---- jit


def test_views_of_one_array_are_one_kind_of_call() -> None:
    data = genesis.arange(40.0).view(2, 20)

    @genesis.jit
    def product(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum()

    @genesis.jit
    def swap(x: Tensor, y: Tensor) -> None:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    known = data.numpy().copy()
    for k in range(4):
        x, y = data[:, k : k + 3], data[:, k + 1 : k + 4]
        expected = (known[:, k : k + 3] * known[:, k + 1 : k + 4]).sum()
        assert product(x, y).item() == expected
    assert product.captures == 1
    swap(data[0], data[1])
    swap(data[:, :5], data[:, 3:8])  # they overlap: the last write counts
    known = known[::-1].copy()
    known[:, :5], known[:, 3:8] = known[:, 3:8].copy(), known[:, :5].copy()
    np.testing.assert_array_equal(data.numpy(), known)


def test_batches_of_random_slices_are_one_program() -> None:
    data = genesis.tensor(classes(0, 50, 60))
    known = data.numpy().copy()
    compiled = []
    for k in range(12):  # some begin at the same place, or where another one's target does
        places = [0, 0, 1, 1] if k == 1 else classes(k, 40, 4).tolist()
        x = genesis.stack([data[i : i + 5] for i in places])
        y = genesis.stack([data[i + 1 : i + 6] for i in places])
        assert (x * 50 + y).tolist() == [
            (known[i : i + 5] * 50 + known[i + 1 : i + 6]).tolist() for i in places
        ]
        compiled.append(statistics().compiled)
    assert compiled[0] == compiled[-1]


def test_gradients_of_tensors_made_in_a_recorded_function() -> None:
    model = like(genesis, lambda T: T.nn.Linear(3, 2))
    labels = genesis.tensor([0, 1])

    @genesis.jit
    def attack(x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        genesis.cross_entropy(model(x), labels).backward(inputs=[x])
        return x.grad

    @genesis.jit
    def saliency(x: Tensor) -> Any:
        x.requires_grad_()
        genesis.cross_entropy(model(x).tanh(), labels).backward(inputs=[x])
        return x.grad

    for k in range(3):
        x = genesis.tensor(draw(k, 2, 3))
        y = x.clone().requires_grad_()
        genesis.cross_entropy(model(y), labels).backward(inputs=[y])
        np.testing.assert_allclose(attack(x).numpy(), y.grad.numpy(), rtol=1e-5)
        before = saliency(x).numpy().copy()
        assert x.requires_grad and (x.grad.numpy() == before).all()
        np.testing.assert_allclose(saliency(x).numpy(), 2 * before, rtol=1e-6)
    assert attack.captures == 1


# ---- functions of one's own


def straight_through(T: Any) -> Any:
    class Rounded(T.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            ctx.save_for_backward(x)
            ctx.limit = 1.0
            return x.mul(scale).round().div(scale)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad.masked_fill(x.abs() > ctx.limit, 0.0) * x.sigmoid(), None

    return Rounded


@pytest.mark.parametrize("jit", [False, True])
def test_own_functions_see_tensors(jit: bool) -> None:
    values = draw(0, 5)
    found = []
    for T in (torch, genesis):
        rule = straight_through(T)
        x = T.tensor(values, requires_grad=True)

        def run(x: Any, T: Any = T, rule: Any = rule) -> Any:
            y = rule.apply(x, 4.0)
            (first,) = T.autograd.grad(y.sum(), x, create_graph=True)
            (second,) = T.autograd.grad(first.sum(), x)
            return y.detach(), first.detach(), second

        found.append([r.numpy() for r in (genesis.jit(run) if jit and T is genesis else run)(x)])
    for mine, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_own_functions_may_set_up_their_context_late() -> None:
    class Power(genesis.autograd.Function):
        @staticmethod
        def forward(x: Any, n: int) -> Any:
            return x.pow(n)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, ctx.n = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * ctx.n * x.pow(ctx.n - 1), None

    x = genesis.tensor([1.0, 2.0], requires_grad=True)
    Power.apply(x, 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 12]


# ---- long loops


@pytest.mark.parametrize("jit", [False, True])
def test_a_long_loop_takes_no_more_of_anything(jit: bool) -> None:
    nn, F = genesis.nn, genesis.nn.functional
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    opt = genesis.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = genesis.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    total = genesis.zeros(())

    def step(x: Tensor, y: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    run = genesis.jit(step) if jit else step
    data, labels = draw(0, 40, 4), classes(0, 3, 40)

    def loop(first: int, last: int) -> tuple[int, int, int]:
        nonlocal total
        for k in range(first, last):
            s = slice(k % 30, k % 30 + 8)
            total = total + run(genesis.from_numpy(data[s]), genesis.from_numpy(labels[s])).detach()
            if k % 10 == 9:
                assert math.isfinite(total.item())
            schedule.step()
        gc.collect()
        stats = genesis.memory.stats()
        return stats.live_bytes, statistics().compiled, len(gc.get_objects())

    bytes_before, compiled_before, objects_before = loop(0, 60)
    bytes_after, compiled_after, objects_after = loop(60, 1060 if jit else 260)
    assert (bytes_after, compiled_after) == (bytes_before, compiled_before)
    assert objects_after - objects_before < 100


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # half an object
def test_an_interrupt_leaves_a_model_that_trains_on() -> None:
    """Whatever moment it comes at, a step has been taken as a whole, or not at all."""
    x = genesis.tensor(draw(0, 8, 4))

    def trained() -> Step:
        genesis.manual_seed(0)
        model = genesis.nn.Linear(4, 4)
        opt = genesis.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        @genesis.jit
        def step() -> Tensor:
            opt.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            opt.step()
            return loss

        return step

    step = trained()
    losses = [step().item() for _ in range(3)]
    results: list[Tensor] = []
    each = moments(lambda: results.append(step()))
    assert each > 30
    losses += [results[0].item(), *(step().item() for _ in range(2 * each))]
    step = trained()
    for taken in range(3):
        assert step().item() == losses[taken]
    taken, interrupts = 3, 0
    for moment in range(1, each + 1):
        with interrupted_at(moment) as interrupt, suppress(KeyboardInterrupt):
            step()
        interrupts += interrupt.happened
        loss = step().item()
        assert loss in losses[taken : taken + 2]
        taken = 1 + losses.index(loss)
    assert interrupts > 0.9 * each  # a later step may find more remembered than the counted one


# ---- words and mistakes


def test_words_every_script_begins_with() -> None:
    device = genesis.device("cuda" if genesis.cuda.is_available() else "cpu")
    x = genesis.zeros(2, device=device)
    assert x.to(device).device == device == genesis.device(device.type, device.index)
    assert x.device is genesis.zeros(1, device=device.type).device
    assert genesis.optim.swa_utils.AveragedModel is genesis.optim.AveragedModel


def test_what_is_said_about_mistakes(tmp_path: Path) -> None:
    layer = genesis.nn.Linear(3, 2)
    for given in (np.ones((4, 3), np.float32), torch.ones(4, 3)):
        with pytest.raises(TypeError, match="make a tensor of it"):
            layer(given)
    with pytest.raises(ValueError, match="numbers of classes are integers"):
        genesis.cross_entropy(genesis.zeros(4, 3), genesis.zeros(4))
    with pytest.raises(ValueError, match="use backward"):
        x = genesis.ones(1, requires_grad=True)
        genesis.autograd.grad(x * 2, x, only_inputs=False)
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(Exception, match="genesis convert"):
        genesis.load(tmp_path / "x.pt")


# ---- examples


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet", "--epochs 1 --batch 512 --width 2"),
    ],
)
def test_examples(
    name: str, options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *options.split()])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "loss" in printed
    assert "nan" not in printed.split()
