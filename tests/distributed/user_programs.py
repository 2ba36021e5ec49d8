"""What users write, once: ``user_programs.py RULE``, on one process or many, prints what came out.

RULE names the axes of the mesh and their rules, as in `train.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from train import RULES

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.utils.checkpoint import checkpoint

ROWS, WIDTH, HIDDEN, CLASSES = 24, 12, 24, 12


class MLP(nn.Module):
    def __init__(self, *between, out=CLASSES):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, out)
        self.between = nn.Sequential(*between)

    def forward(self, x):
        return self.fc2(self.between(F.gelu(self.fc1(x))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x[..., None])[0][:, -1])


class Language(nn.Module):
    """An embedding that is the head, too."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(36, WIDTH, padding_idx=0)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.lm_head = nn.Linear(WIDTH, 36, bias=False)
        self.lm_head.weight = self.tokens.weight

    def forward(self, ids):
        return self.lm_head(self.fc2(F.gelu(self.fc1(self.tokens(ids)))))


class Run:
    """A mesh, and what all programs do."""

    def __init__(self, rule: str) -> None:
        chosen = RULES[rule]
        self.mesh = gd.mesh(**{axis: 2 if len(chosen) > 1 else -1 for axis in chosen})
        self.rules = {k: v for rules in chosen.values() for k, v in rules.items()}

    def place(self, *what: Any) -> None:
        gd.place(*what, **self.rules)

    def data(self, k: int, rows: int = ROWS) -> list[Any]:
        rng = np.random.default_rng(k)
        x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
        mine = self.mesh.rows(rows)
        return [self.mesh.batch(genesis.tensor(a[mine])) for a in (x, np.abs(x).argmax(1))]

    def train(
        self, model: Any, optimizer: Any, loss_of: Any = None, steps: int = 3, **what: Any
    ) -> list[float]:
        """Losses, and sums of squares of weights and buffers."""

        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y) if loss_of is None else loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            if "norm" in what:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5, what["norm"])
            optimizer.step()
            return loss

        jitted, found = genesis.jit(step), []
        for k in range(steps):
            found.append(jitted(*self.data(k, what.get("rows", lambda k: ROWS)(k))).item())
            what.get("after", lambda: None)()
        return found + squares(model)

    def made(self, make: Callable[[], Any], optimizer: Any = None) -> tuple[Any, Any]:
        """A model and its optimizer, in their places."""
        genesis.manual_seed(gd.rank())  # the first process's weights and random numbers count
        model = make()
        genesis.manual_seed(5 * gd.rank())
        made = (optimizer or (lambda ps: optim.SGD(ps, lr=0.1)))(model.parameters())
        self.place(model, made)
        return model, made


def squares(model: nn.Module) -> list[float]:
    return [float(x.double().square().sum()) for x in gd.gather(model.state_dict()).values()]


# ---- programs
def clipping(run: Run) -> list[float]:
    pairs = [(run.made(MLP), norm) for norm in (2.0, float("inf"))]
    return [x for (model, o), norm in pairs for x in run.train(model, o, norm=norm)]


def schedule(run: Run) -> list[float]:
    model, optimizer = run.made(MLP, lambda ps: optim.AdamW(ps, lr=1e-2))
    cosine = optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    return run.train(model, optimizer, after=cosine.step)


def frozen(run: Run) -> list[float]:
    model, optimizer = run.made(MLP, lambda ps: optim.AdamW(ps, lr=1e-2))
    model.fc1.requires_grad_(False)
    found = run.train(model, optimizer)
    model.fc1.requires_grad_(True)
    return found + run.train(model, optimizer)


def tied(run: Run) -> list[float]:
    model, optimizer = run.made(Language)

    def loss(model: Any, x: Any, y: Any) -> Any:
        ids = (x.abs() * 10).long() % 36
        targets = ids.roll(-1, 1).reshape(-1)
        return F.cross_entropy(model(ids).reshape(-1, 36), targets, ignore_index=3)

    return run.train(model, optimizer, loss, norm=2.0)


def batch_norm(run: Run) -> list[float]:
    """A last batch that is smaller, evaluation in between, dropout."""
    model, optimizer = run.made(lambda: MLP(nn.BatchNorm1d(HIDDEN), nn.Dropout(0.2)))
    found = run.train(model, optimizer, steps=6, rows=lambda k: 12 if k % 3 == 2 else ROWS)
    model.eval()
    evaluated = genesis.jit(genesis.no_grad()(lambda x, y: F.cross_entropy(model(x), y)))
    found.append(evaluated(*run.data(9)).item())
    model.train()
    return found + run.train(model, optimizer)


def accumulation(run: Run) -> list[float]:
    model, optimizer = run.made(MLP, lambda ps: optim.AdamW(ps, lr=1e-2))

    def backward(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        return loss

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    first, second, found = genesis.jit(backward), genesis.jit(update), []
    for k in range(4):
        found.append(first(*run.data(k)).item())
        if k % 2:
            second()
    return found + squares(model)


def adversaries(run: Run) -> list[float]:
    """Two jitted functions in turn, with random numbers."""
    maker, its = run.made(lambda: MLP(out=WIDTH), lambda ps: optim.Adam(ps, lr=1e-2))
    judge, own = run.made(lambda: MLP(out=1), lambda ps: optim.Adam(ps, lr=1e-2))

    def judging(x: Any) -> Any:
        false = judge(maker(genesis.randn_like(x)).detach())
        loss = F.softplus(-judge(x)).mean() + F.softplus(false).mean()
        own.zero_grad()
        loss.backward()
        own.step()
        return loss

    def making(x: Any) -> Any:
        loss = F.softplus(-judge(maker(genesis.randn(len(x), WIDTH)))).mean()
        its.zero_grad()
        loss.backward()
        its.step()
        return loss

    functions = genesis.jit(judging), genesis.jit(making)
    found = [f(run.data(k)[0]).item() for k in range(3) for f in functions]
    return found + squares(maker) + squares(judge)


def contrast(run: Run) -> list[float]:
    """Every row with every other one."""
    model, optimizer = run.made(MLP)

    def loss(model: Any, x: Any, y: Any) -> Any:
        views = x, x + 0.1 * genesis.randn_like(x)
        a, b = (F.normalize(model(v), dim=1) for v in views)
        return F.cross_entropy(a @ b.T / 0.1, genesis.arange(len(x)))

    return run.train(model, optimizer, loss)


def average(run: Run) -> list[float]:
    """An average of weights that is kept by the step."""
    model, optimizer = run.made(MLP)
    kept = MLP()
    kept.load_state_dict(gd.gather(model.state_dict()))
    run.place(kept)

    def loss(model: Any, x: Any, y: Any) -> Any:
        with genesis.no_grad():
            for p, q in zip(kept.parameters(), model.parameters(), strict=True):
                p.mul_(0.9).add_(q.detach(), alpha=0.1)
        return F.cross_entropy(model(x), y)

    return run.train(model, optimizer, loss) + squares(kept)


def penalty(run: Run) -> list[float]:
    """The gradient of a gradient."""
    model, optimizer = run.made(MLP)

    def loss(model: Any, x: Any, y: Any) -> Any:
        x = x.detach().requires_grad_()
        found = F.cross_entropy(model(x), y)
        (slope,) = genesis.autograd.grad(found, [x], create_graph=True)
        return found + (slope.norm(dim=1) - 0.1).square().mean()

    return run.train(model, optimizer, loss)


def layers(run: Run) -> list[float]:
    """Recurrent ones, those that compute forward again, weights with a norm of their own."""
    found = run.train(*run.made(Recurrent))
    again = lambda m, x, y: F.cross_entropy(  # noqa: E731
        m.fc2(checkpoint(lambda h: m.between(m.fc1(h)), x, use_reentrant=False)), y
    )
    found += run.train(*run.made(lambda: MLP(nn.Dropout(0.2))), again)
    model, optimizer = run.made(
        lambda: MLP(nn.utils.parametrizations.weight_norm(nn.Linear(HIDDEN, HIDDEN)))
    )
    return found + run.train(model, optimizer)


def optimizers(run: Run) -> list[float]:
    kinds = (
        lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda ps: optim.Adam(ps, lr=1e-2, amsgrad=True),
        lambda ps: optim.Adafactor(ps, lr=1e-2),
        lambda ps: optim.LAMB(ps, lr=1e-2),
    )
    return [x for kind in kinds for x in run.train(*run.made(MLP, kind))]


def states(run: Run) -> list[float]:
    """Saved while training goes on, and loaded from a file and from a dictionary."""
    model, optimizer = run.made(lambda: MLP(nn.Dropout(0.1)), lambda ps: optim.AdamW(ps, lr=1e-2))
    run.train(model, optimizer)
    whole = {name: x.clone() for name, x in gd.gather(model.state_dict()).items()}
    with tempfile.TemporaryDirectory() as own:
        folder = run.mesh.broadcast(np.frombuffer(own.encode().ljust(256), "u1"))
        gd.save(folder.tobytes().decode().strip(), 1, model, optimizer)
        found = run.train(model, optimizer)
        gd.restore(folder.tobytes().decode().strip(), model, optimizer)
        assert run.train(model, optimizer) == found
        run.mesh.barrier()
    model.load_state_dict(whole)
    return found + squares(model) + run.train(model, optimizer)


PROGRAMS = (
    clipping, schedule, frozen, tied, batch_norm, accumulation, adversaries, contrast, average,
    penalty, layers, optimizers, states,
)  # fmt: skip

if __name__ == "__main__":
    made = Run(sys.argv[1])
    found = {program.__name__: program(made) for program in PROGRAMS}
    if gd.rank() == 0:
        print(json.dumps(found))
