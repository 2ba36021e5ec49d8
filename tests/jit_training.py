"""Training loops: every order of what a step consists of, inside of jit, outside, and mixed."""
# ruff: noqa: PERF401

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from jit_corpus import Jit, add_program, grad, program, show, weights

import genesis
from genesis import nn, optim
from genesis.nn.utils import clip_grad_norm_, clip_grad_value_

STEPS = 7


def mlp() -> nn.Module:
    genesis.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batch(k: int) -> tuple[genesis.Tensor, genesis.Tensor]:
    x = genesis.tensor([[0.1 * k, -0.2, 0.3], [1.0, 0.5 - 0.1 * k, -1.0]])
    return x, genesis.tensor([[0.5, -0.5], [0.1 * k, 1.0]])


def loss_of(model: nn.Module, x: genesis.Tensor, y: genesis.Tensor) -> genesis.Tensor:
    return ((model(x) - y) ** 2).mean()


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: optim.Adam(p, lr=0.05),
    "amsgrad": lambda p: optim.Adam(p, lr=0.05, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.05),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.05),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "adamax": lambda p: optim.Adamax(p, lr=0.05),
    "nadam": lambda p: optim.NAdam(p, lr=0.05),
    "radam": lambda p: optim.RAdam(p, lr=0.05),
    "lion": lambda p: optim.Lion(p, lr=0.01),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.05),
}


class Parts:
    """What a step of training consists of, by name."""

    def __init__(self, make: Callable[[Any], Any], dtype: Any) -> None:
        self.model = mlp().to(dtype)
        self.average = mlp().to(dtype)
        for p in self.average.parameters():
            p.requires_grad_(False)
        self.optimizer = make(self.model.parameters())
        self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)

    def zero(self, loss: Any, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        return loss

    def zero_keep(self, loss: Any, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad(set_to_none=False)
        return loss

    def none(self, loss: Any, x: Any, y: Any) -> Any:
        for p in self.model.parameters():
            p.grad = None
        return loss

    def forward(self, loss: Any, x: Any, y: Any) -> Any:
        return loss_of(self.model, x, y)

    def backward(self, loss: Any, x: Any, y: Any) -> Any:
        loss.backward()
        return loss.detach()

    def twice(self, loss: Any, x: Any, y: Any) -> Any:
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        return loss.detach()

    def more(self, loss: Any, x: Any, y: Any) -> Any:
        loss_of(self.model, x * 0.5, y).backward()
        return loss

    def clip(self, loss: Any, x: Any, y: Any) -> Any:
        clip_grad_norm_(self.model.parameters(), 0.3)
        return loss

    def clip_value(self, loss: Any, x: Any, y: Any) -> Any:
        clip_grad_value_(self.model.parameters(), 0.1)
        return loss

    def scale(self, loss: Any, x: Any, y: Any) -> Any:
        for p in self.model.parameters():
            p.grad = p.grad * 0.5
        return loss

    def scale_in_place(self, loss: Any, x: Any, y: Any) -> Any:
        for p in self.model.parameters():
            p.grad.mul_(0.5)
        return loss

    def step(self, loss: Any, x: Any, y: Any) -> Any:
        self.optimizer.step()
        return loss

    def ema(self, loss: Any, x: Any, y: Any) -> Any:
        with genesis.no_grad():
            for a, p in zip(self.average.parameters(), self.model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
        return loss

    def lr(self, loss: Any, x: Any, y: Any) -> Any:
        self.schedule.step()
        return loss

    def rate(self, loss: Any, x: Any, y: Any) -> Any:
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * 0.9
        return loss

    def shrink(self, loss: Any, x: Any, y: Any) -> Any:
        for p in self.model.parameters():
            p.data = p.data * 0.5
        return loss


def loop(
    text: str, optimizer: str, steps: int = STEPS, dtype: Any = genesis.float32
) -> Callable[[Jit], Any]:
    """A training loop written as "before | inside | after", of which jit does what is inside."""
    before, inside, after = (part.split() for part in text.split("|"))

    def run(jit: Jit) -> Any:
        parts = Parts(OPTIMIZERS[optimizer], dtype)

        @jit
        def jitted(loss: Any, x: Any, y: Any) -> Any:
            for name in inside:
                loss = getattr(parts, name)(loss, x, y)
            return loss

        seen = []
        for k in range(steps):
            x, y = (t.to(dtype) for t in batch(k % 10))
            loss: Any = None
            for name in before:
                loss = getattr(parts, name)(loss, x, y)
            loss = jitted(loss, x, y)
            for name in after:
                loss = getattr(parts, name)(loss, x, y)
            seen.append((show(loss), weights(parts.model), weights(parts.average)))
            seen.append([g["lr"] for g in parts.optimizer.param_groups])
        return seen

    return run


def add_loop(text: str, optimizer: str = "sgd") -> None:
    """A program of such a loop."""
    add_program(f"loop {optimizer}: {text}", loop(text, optimizer), may_refuse=is_refusable(text))


def is_refusable(text: str) -> bool:
    """Whether a backward pass goes from inside to what was computed outside."""
    before, inside, _ = text.split("|")
    return "forward" in before and not {"backward", "twice"}.isdisjoint(inside.split())


ORDERS = [
    "| forward backward step zero |",
    "| zero forward backward step |",
    "| forward zero backward step |",
    "| forward backward step zero_keep |",
    "| zero_keep forward backward step |",
    "| forward backward step none |",
    "| none forward backward step |",
    "| forward backward step |",
    "| forward backward clip step zero |",
    "| zero forward backward clip step |",
    "| forward backward clip_value step zero |",
    "| zero forward backward clip_value step ema |",
    "| zero forward backward more step |",
    "| forward backward more step zero |",
    "| forward twice step zero |",
    "| zero forward twice clip step ema |",
    "| forward backward scale step zero |",
    "| forward backward scale_in_place step zero |",
    "| forward backward step zero ema |",
    "| ema zero forward backward step |",
    "| forward backward step zero lr |",
    "| lr forward backward step zero |",
    "| zero forward backward step rate |",
    "| forward backward step zero | lr",
    "| zero forward backward step | lr ema",
    "| zero forward backward step shrink |",
    "| shrink forward backward step zero |",
    "| zero forward backward step | shrink",
    "zero | forward backward step |",
    "| forward backward step | zero",
    "| forward backward step | zero_keep",
    "| forward backward step | none",
    "zero_keep | forward backward | step",
    "zero | forward backward | step",
    "| forward backward | step zero",
    "| zero forward backward | step",
    "| forward backward | clip step zero",
    "| forward backward clip | step zero",
    "| forward | backward step zero",
    "zero | forward | backward step",
    "| zero forward | backward step",
    "zero | forward | twice clip step ema lr",
    "| forward | backward more step zero",
    "zero forward backward | step |",
    "zero forward backward | clip step |",
    "forward backward | step zero |",
    "forward backward | clip step zero |",
    "forward backward | step zero_keep |",
    "forward backward | step none |",
    "forward backward | step ema | zero",
    "forward backward | ema | step zero",
    "forward backward step | zero |",
    "forward backward step | zero_keep |",
    "forward backward step | none |",
    "forward backward more | step zero | lr",
    "forward backward | more step zero |",
    "forward | backward step zero |",
    "zero forward | backward | step",
    "forward | backward | step zero",
    "forward backward | clip | step zero",
    "forward backward | scale | step zero",
    "forward backward | scale_in_place | step zero",
    "forward backward step zero | shrink |",
]
for text in ORDERS:
    add_loop(text)
for text in ORDERS[2::5]:
    add_loop(text, "adam")
for name in OPTIMIZERS:
    if name != "sgd":
        add_loop("| forward backward step zero |", name)
        add_loop("| zero forward backward clip step ema | lr", name)


def _stepping(jit: Jit, change: Callable[..., Any], make: str = "sgd", steps: int = STEPS) -> Any:
    """The loop everybody writes, with `change(k, model, optimizer)` before each call."""
    model = mlp()
    optimizer = OPTIMIZERS[make](model.parameters())

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    seen = []
    for k in range(steps):
        change(k, model, optimizer)
        seen.append((show(step(*batch(k))), weights(model)))
    return seen


@program
def the_loop_everybody_writes_sgd(jit: Jit) -> Any:
    return _stepping(jit, lambda *_: None, steps=12)


@program
def the_loop_everybody_writes_adam(jit: Jit) -> Any:
    return _stepping(jit, lambda *_: None, "adam", steps=12)


@program
def lr_set_by_hand_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)

    return _stepping(jit, change, "momentum")


@program
def momentum_set_to_zero_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        if k == 3:
            optimizer.param_groups[0]["momentum"] = 0.0
            optimizer.param_groups[0]["nesterov"] = False
        if k == 5:
            optimizer.param_groups[0]["momentum"] = 0.5

    return _stepping(jit, change, "momentum")


@program
def layers_frozen_and_thawed_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        model[0].weight.requires_grad_(k not in (2, 3, 5))

    return _stepping(jit, change, "adam")


@program
def module_frozen_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        model[2].requires_grad_(k % 2 == 0)

    return _stepping(jit, change)


@program
def weights_loaded_between_calls(jit: Jit) -> Any:
    saved: dict[str, Any] = {}

    def change(k: int, model: Any, optimizer: Any) -> None:
        if k == 1:
            saved.update({n: x.clone() for n, x in model.state_dict().items()})
        if k in (3, 5):
            model.load_state_dict(saved)

    return _stepping(jit, change, "momentum")


@program
def optimizer_state_loaded_between_calls(jit: Jit) -> Any:
    saved: list[Any] = []

    def change(k: int, model: Any, optimizer: Any) -> None:
        if k == 2:
            other = OPTIMIZERS["adam"](model.parameters())
            other.load_state_dict(optimizer.state_dict())
            saved.append(other)
        if k == 4:
            optimizer.load_state_dict(saved[0].state_dict())

    return _stepping(jit, change, "adam")


@program
def parameters_halved_by_data_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        if k in (2, 4):
            for p in model.parameters():
                p.data = p.data * 0.5

    return _stepping(jit, change, "adam")


@program
def parameters_written_in_place_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        if k in (2, 4):
            with genesis.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)

    return _stepping(jit, change, "momentum")


@program
def parameter_replaced_between_calls(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        if k == 3:
            model[2].weight = nn.Parameter(genesis.ones(2, 4) * 0.1)

    return _stepping(jit, change)


@program
def gradient_set_by_hand_before_a_call(jit: Jit) -> Any:
    def change(k: int, model: Any, optimizer: Any) -> None:
        if k in (1, 4):
            model[0].bias.grad = genesis.ones(4) * k

    return _stepping(jit, change)


@program
def parameters_added_to_the_optimizer_later(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss

    seen = []
    for k in range(STEPS):
        if k == 3:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.02})
        seen.append((show(step(*batch(k))), weights(model)))
    return seen


@program
def update_every_second_call(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any, update: bool) -> Any:
        loss = loss_of(model, x, y)
        (loss / 2).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return [(show(step(*batch(k), k % 2 == 1)), weights(model)) for k in range(8)]


@program
def update_every_second_call_zeroed_first(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.Adam(model.parameters(), lr=0.05)

    @jit
    def step(x: Any, y: Any, first: bool) -> Any:
        if first:
            optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        if not first:
            optimizer.step()
        return loss

    return [(show(step(*batch(k), k % 2 == 0)), weights(model)) for k in range(8)]


@program
def update_by_a_counter_outside(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    count = 0

    @jit
    def step(x: Any, y: Any) -> Any:
        nonlocal count
        loss = loss_of(model, x, y)
        loss.backward()
        count += 1
        if count % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return [(show(step(*batch(k))), weights(model), count) for k in range(8)]


@program
def accumulation_with_two_jitted_functions(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @jit
    def accumulate(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    @jit
    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    seen = []
    for k in range(8):
        seen.append(show(accumulate(*batch(k))))
        if k % 3 == 2:
            seen.append(show(update()))
        seen.append(weights(model))
    return seen


@program
def gradients_of_two_calls_share_no_memory(jit: Jit) -> Any:
    model = mlp()

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    seen: list[Any] = []
    kept = []
    for k in range(6):
        step(*batch(k))
        kept.append(model[0].weight.grad)
        seen.append([show(g) for g in kept])
        seen.append([a is b for a in kept for b in kept])
        if k % 2:
            model.zero_grad()
    return seen


@program
def gradient_kept_and_zeroed_in_place(jit: Jit) -> Any:
    model = mlp()
    kept = []

    @jit
    def step(x: Any, y: Any) -> Any:
        model.zero_grad(set_to_none=False)
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    seen = []
    for k in range(5):
        step(*batch(k))
        kept.append(model[0].bias.grad)
        seen.append([show(g) for g in kept])
    return seen


@program
def gradient_returned_from_the_step(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        return [p.grad for p in model.parameters()]

    kept = [step(*batch(k)) for k in range(5)]
    last = list(model.parameters())
    same = [g is p.grad for g, p in zip(kept[-1], last, strict=True)]
    return show(kept), weights(model), same


@program
def the_norm_of_gradients_is_returned(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        norm = clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        return norm

    return [(show(step(*batch(k))), weights(model)) for k in range(6)]


@program
def two_optimizers(jit: Jit) -> Any:
    model = mlp()
    first = optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    second = optim.Adam(model[2].parameters(), lr=0.05)

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(STEPS)]


@program
def two_optimizers_in_turn(jit: Jit) -> Any:
    model = mlp()
    both = [optim.SGD(model[0].parameters(), lr=0.1), optim.Adam(model[2].parameters(), lr=0.05)]

    @jit
    def step(x: Any, y: Any, which: int) -> Any:
        loss = loss_of(model, x, y)
        model.zero_grad()
        loss.backward()
        both[which].step()
        return loss

    return [(show(step(*batch(k), k % 2)), weights(model)) for k in range(STEPS)]


@program
def gan_with_toggles_inside(jit: Jit) -> Any:
    genesis.manual_seed(1)
    make, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    of_make = optim.Adam(make.parameters(), lr=0.05)
    of_judge = optim.Adam(judge.parameters(), lr=0.05)

    @jit
    def step(z: Any, real: Any) -> Any:
        for p in judge.parameters():
            p.requires_grad_(True)
        of_judge.zero_grad()
        bad = (judge(make(z).detach()) ** 2).mean() + ((judge(real) - 1) ** 2).mean()
        bad.backward()
        of_judge.step()
        for p in judge.parameters():
            p.requires_grad_(False)
        of_make.zero_grad()
        good = ((judge(make(z)) - 1) ** 2).mean()
        good.backward()
        of_make.step()
        return bad, good

    seen = []
    for k in range(6):
        x, y = batch(k)
        seen.append((show(step(y, x)), weights(make), weights(judge)))
    return seen


@program
def gan_with_two_steps_and_toggles_outside(jit: Jit) -> Any:
    genesis.manual_seed(1)
    make, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    of_make = optim.SGD(make.parameters(), lr=0.1)
    of_judge = optim.SGD(judge.parameters(), lr=0.1)

    @jit
    def judging(z: Any, real: Any) -> Any:
        of_judge.zero_grad()
        loss = (judge(make(z).detach()) ** 2).mean() + ((judge(real) - 1) ** 2).mean()
        loss.backward()
        of_judge.step()
        return loss

    @jit
    def making(z: Any) -> Any:
        of_make.zero_grad()
        loss = ((judge(make(z)) - 1) ** 2).mean()
        loss.backward()
        of_make.step()
        return loss

    seen = []
    for k in range(6):
        x, y = batch(k)
        judge.requires_grad_(True)
        seen.append(show(judging(y, x)))
        judge.requires_grad_(False)
        seen.append((show(making(y)), weights(make), weights(judge)))
    return seen


@program
def gan_alternating_between_calls(jit: Jit) -> Any:
    genesis.manual_seed(1)
    make, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    both = {
        "make": optim.SGD(make.parameters(), lr=0.1),
        "judge": optim.SGD(judge.parameters(), lr=0.1),
    }

    @jit
    def step(z: Any, who: str) -> Any:
        loss = (judge(make(z)) - (1 if who == "make" else 0)).pow(2).mean()
        loss.backward()
        both[who].step()
        for o in both.values():
            o.zero_grad()
        return loss

    return [
        (show(step(batch(k)[1], "make" if k % 2 else "judge")), weights(make), weights(judge))
        for k in range(7)
    ]


@program
def parameters_decayed_by_data_inside(jit: Jit) -> Any:
    p = genesis.tensor([1.0, 2.0], requires_grad=True)

    @jit
    def decay() -> None:
        p.data = p.data * 0.5

    seen = []
    for _ in range(4):
        decay()
        seen.append(show(p))
    return seen


@program
def data_of_a_module_inside(jit: Jit) -> Any:
    model = mlp()

    @jit
    def decay(x: Any) -> Any:
        y = model(x)
        for p in model.parameters():
            p.data = p.data * 0.5
        return y

    return [(show(decay(batch(k)[0])), weights(model)) for k in range(4)]


@program
def data_mul_in_place_inside(jit: Jit) -> Any:
    model = mlp()

    @jit
    def decay(x: Any) -> Any:
        for p in model.parameters():
            p.data.mul_(0.5)
        return model(x)

    return [(show(decay(batch(k)[0])), weights(model)) for k in range(4)]


@program
def gradients_by_hand_without_an_optimizer(jit: Jit) -> Any:
    model = mlp()

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        with genesis.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(STEPS)]


@program
def gradients_by_hand_zeroed_in_place(jit: Jit) -> Any:
    w = genesis.tensor([1.0, -2.0, 3.0], requires_grad=True)

    @jit
    def step(x: Any) -> Any:
        loss = ((w * x).sum() - 1) ** 2
        loss.backward()
        with genesis.no_grad():
            w.sub_(0.01 * w.grad)
            w.grad.zero_()
        return loss

    x = genesis.tensor([1.0, 2.0, 0.5])
    return [(show(step(x * k)), show(w), grad(w)) for k in range(STEPS)]


@program
def gradients_by_autograd_grad(jit: Jit) -> Any:
    model = mlp()
    parameters = list(model.parameters())

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        slopes = genesis.autograd.grad(loss, parameters)
        with genesis.no_grad():
            for p, g in zip(parameters, slopes, strict=True):
                p -= 0.1 * g
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(STEPS)]


@program
def gradients_by_autograd_grad_set_as_grad(jit: Jit) -> Any:
    model = mlp()
    parameters = list(model.parameters())
    optimizer = optim.Adam(parameters, lr=0.05)

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        for p, g in zip(parameters, genesis.autograd.grad(loss, parameters), strict=True):
            p.grad = g
        optimizer.step()
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(STEPS)]


@program(may_refuse=True)
def lbfgs(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    @jit
    def step(x: Any, y: Any) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return [(show(step(*batch(k))), weights(model)) for k in range(3)]


@program
def lbfgs_outside_with_a_jitted_loss(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    jitted = jit(lambda x, y: loss_of(model, x, y))
    seen = []
    for k in range(3):
        x, y = batch(k)

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = jitted(x, y)
            loss.backward()
            return loss

        seen.append((show(optimizer.step(closure)), weights(model)))
    return seen


@program
def step_with_a_closure(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return [(show(step(*batch(k))), weights(model)) for k in range(5)]


@program
def optimizer_hooks(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(len(steps)))

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return [(show(step(*batch(k))), weights(model), list(steps)) for k in range(5)]


@program
def optimizer_hooks_between_calls(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    before: list[int] = []
    after: list[int] = []

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    seen, hooks = [], []
    for k in range(8):
        if k == 1:
            hooks.append(optimizer.register_step_post_hook(lambda *_: after.append(len(after))))
        if k == 3:
            hooks.append(optimizer.register_step_pre_hook(lambda *_: before.append(len(before))))
        if k > 4 and hooks:
            hooks.pop(0).remove()
        seen.append((show(step(*batch(k))), weights(model), list(before), list(after)))
    return seen


@program
def optimizer_made_anew_between_calls(jit: Jit) -> Any:
    model = mlp()
    holder = {"optimizer": optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        holder["optimizer"].step()
        holder["optimizer"].zero_grad()
        return loss

    seen = []
    for k in range(6):
        if k == 3:
            holder["optimizer"] = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen.append((show(step(*batch(k))), weights(model)))
    return seen


@program
def optimizer_made_inside(jit: Jit) -> Any:
    model = mlp()

    @jit
    def step(x: Any, y: Any) -> Any:
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(5)]


@program
def model_and_optimizer_as_arguments(jit: Jit) -> Any:
    @jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    models = [mlp(), mlp()]
    with genesis.no_grad():
        models[1][0].weight.mul_(2.0)
    optimizers = [
        optim.SGD(models[0].parameters(), lr=0.1),
        optim.Adam(models[1].parameters(), lr=0.05),
    ]
    seen = []
    for k in range(8):
        i = k % 2
        seen.append((show(step(models[i], optimizers[i], *batch(k))), weights(models[i])))
    return seen


@program
def a_trainer_class(jit: Jit) -> Any:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp()
            self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            self.steps = 0
            self.total = genesis.tensor(0.0)
            self.best: Any = None

        @jit
        def step(self, x: Any, y: Any) -> Any:
            loss = loss_of(self.model, x, y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            self.total += loss.detach()
            self.best = (
                loss.detach() if self.best is None else genesis.minimum(self.best, loss.detach())
            )
            return loss

    trainer = Trainer()
    seen = []
    for k in range(6):
        loss = trainer.step(*batch(k))
        seen.append((show(loss), trainer.steps, show(trainer.total), show(trainer.best)))
    return seen, weights(trainer.model)


@program
def schedule_by_lambda_inside(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return loss

    seen = []
    for k in range(6):
        seen.append(
            (show(step(*batch(k))), weights(model), schedule.get_last_lr(), schedule.last_epoch)
        )
    return seen


@program
def averaged_model_inside(jit: Jit) -> Any:
    model = mlp()
    average = optim.swa_utils.AveragedModel(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        return loss

    return [(show(step(*batch(k))), weights(model), weights(average)) for k in range(6)]


@program
def teacher_and_student(jit: Jit) -> Any:
    student, teacher = mlp(), mlp()
    teacher.requires_grad_(False)
    optimizer = optim.SGD(student.parameters(), lr=0.1)

    @jit
    def step(x: Any) -> Any:
        with genesis.no_grad():
            target = teacher(x * 0.5)
        loss = ((student(x) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
            t.data = 0.9 * t.data + 0.1 * s.data
        return loss

    return [(show(step(batch(k)[0])), weights(student), weights(teacher)) for k in range(6)]


@program
def evaluation_between_steps(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @jit
    def evaluate(x: Any) -> Any:
        with genesis.no_grad():
            return model(x)

    seen = []
    for k in range(6):
        model.train()
        seen.append(show(step(*batch(k))))
        model.eval()
        seen.append((show(evaluate(batch(k)[0])), weights(model)))
    return seen


@program
def training_switched_inside(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    @jit
    def both(x: Any) -> Any:
        model.train()
        a = model(x)
        model.eval()
        b = model(x)
        return a, b

    return [(show(both(batch(k)[0])), model.training, weights(model)) for k in range(4)]


@program
def steps_in_a_loop_inside(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @jit
    def epoch(batches: Any) -> Any:
        total = 0.0
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            total = total + loss.detach()
        return total

    return [(show(epoch([batch(k), batch(k + 1)])), weights(model)) for k in range(4)]


@program
def gradient_noise(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    genesis.manual_seed(5)

    @jit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        for p in model.parameters():
            p.grad.add_(genesis.randn_like(p.grad) * 0.01)
        optimizer.step()
        return loss

    return [(show(step(*batch(k))), weights(model)) for k in range(5)]


@program
def only_part_of_the_model_gets_gradients(jit: Jit) -> Any:
    genesis.manual_seed(1)
    heads = nn.ModuleList([nn.Linear(3, 2) for _ in range(2)])
    optimizer = optim.Adam(heads.parameters(), lr=0.05)

    @jit
    def step(x: Any, y: Any, which: int) -> Any:
        loss = loss_of(heads[which], x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return [(show(step(*batch(k), int(k % 3 == 0))), weights(heads)) for k in range(STEPS)]


@program
def gradient_scaler(jit: Jit) -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any, scale: float) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, x, y) * scale
        loss.backward()
        for p in model.parameters():
            p.grad = p.grad / scale
        optimizer.step()
        return loss / scale

    return [(show(step(*batch(k), 2.0 ** (k % 3))), weights(model)) for k in range(6)]


# ---- state of optimizers, changed by hand while somebody holds what it was


def _without_state(model: Any, opt: Any, kept: list[Any]) -> None:
    kept.append(dict(opt.state))
    opt.state.clear()


def _without_one(model: Any, opt: Any, kept: list[Any]) -> None:
    kept.append(opt.state.pop(next(model.parameters())))


def _other_state(model: Any, opt: Any, kept: list[Any]) -> None:
    kept.append(opt.state)
    opt.state = defaultdict(dict)


def _other_array(model: Any, opt: Any, kept: list[Any]) -> None:
    state = opt.state[next(model.parameters())]
    for name in state:
        kept.append(state[name])
        state[name] = (state[name] * 0).realize()


def _fewer(model: Any, opt: Any, kept: list[Any]) -> None:
    kept.append(opt.param_groups[0]["params"].pop())


BY_HAND = {
    "cleared": _without_state, "one removed": _without_one, "another": _other_state,
    "another array": _other_array, "fewer parameters": _fewer,
}  # fmt: skip


def _by_hand(change: Callable[..., None], optimizer: str, inside: bool) -> Callable[[Jit], Any]:
    def run(jit: Jit) -> Any:
        genesis.manual_seed(3)
        model = mlp()
        opt = OPTIMIZERS[optimizer](model.parameters())

        def step(x: Any, y: Any) -> Any:
            opt.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            if inside:
                opt.step()
            return loss

        jitted, seen, kept = jit(step), [], []  # type: ignore[var-annotated]
        with nullcontext() if jit is genesis.jit else genesis.eager():
            for k in range(8):
                if k in (3, 5):
                    change(model, opt, kept)
                seen.append((show(jitted(*batch(k))), weights(model)))
                if not inside:
                    opt.step()
        return seen

    return run


for name, change in BY_HAND.items():
    for optimizer in ("adam", "momentum"):
        add_program(f"state {name}, {optimizer} inside", _by_hand(change, optimizer, True))
        add_program(f"state {name}, {optimizer} outside", _by_hand(change, optimizer, False))


@program
def batch_norm_between_modes_and_sizes(jit: Jit) -> Any:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    forward, seen = jit(model), []
    for k in range(10):
        model.train(k % 3 != 2)
        x = genesis.arange(3 * (4 + k % 3)).reshape(-1, 3) * 0.1 * (k + 1)
        seen.append((show(forward(x)), weights(model)))
        if k == 5:
            model[2].momentum = 0.5
    return seen
