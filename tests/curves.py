"""The same training here and in PyTorch: twins that begin with the same weights.

A model is written once for both, as a function of the library (`genesis` or `torch`), and PyTorch's
weights are loaded into the twin. Problems are smooth and far from their solution: then rounding
stays rounding, and what remains between two curves after many steps is a difference in meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import genesis

#: `genesis` or `torch`.
Library = Any
Model = Any
Optimizer = Any


@dataclass(frozen=True)
class Curve:
    """What a training left: the loss of every step, and all parameters and buffers at the end."""

    losses: np.ndarray
    weights: dict[str, np.ndarray]
    captures: int = 0


@dataclass(frozen=True)
class Problem:
    """A model for either library, and what it is to learn: inputs, and a class for each."""

    model: Callable[[Library], Model]
    inputs: tuple[int, ...]
    classes: int = 3
    #: The end of the names of weights whose gradient is zero by symmetry, in parts or altogether.
    idle: str | None = None

    def data(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(3)
        x = rng.standard_normal(self.inputs).astype(dtype)
        return x, rng.integers(0, self.classes, self.inputs[0])


# ---- models


def mlp(lib: Library) -> Model:
    nn = lib.nn
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3))


def cnn(lib: Library) -> Model:
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Softplus(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def lstm(lib: Library) -> Model:
    class Classifier(lib.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lib.nn.LSTM(3, 5, num_layers=2, batch_first=True, bidirectional=True)
            self.head = lib.nn.Linear(10, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return Classifier()


def transformer(lib: Library) -> Model:
    class Classifier(lib.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            layer = lib.nn.TransformerEncoderLayer(
                8, 2, 12, dropout=0.0, activation="gelu", batch_first=True
            )
            self.encoder = lib.nn.TransformerEncoder(layer, 4)
            self.head = lib.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(x).mean(1))

    return Classifier()


PROBLEMS = {
    "mlp": Problem(mlp, (7, 5)),
    "cnn": Problem(cnn, (6, 2, 8, 8)),
    "lstm": Problem(lstm, (4, 5, 3)),
    # The bias of keys adds the same to all scores of a query.
    "transformer": Problem(transformer, (4, 5, 8), idle="in_proj_bias"),
}

# ---- optimizers: everything PyTorch has, with settings other than the plain ones

OPTIMIZERS: dict[str, Callable[[Library, Any], Optimizer]] = {
    "SGD": lambda lib, ps: lib.optim.SGD(ps, 0.02, momentum=0.9, weight_decay=0.01),
    "Nesterov": lambda lib, ps: lib.optim.SGD(ps, 0.02, momentum=0.8, nesterov=True),
    "Adam": lambda lib, ps: lib.optim.Adam(ps, 0.002, eps=1e-3),
    "AdamW": lambda lib, ps: lib.optim.AdamW(ps, 0.002, eps=1e-3, amsgrad=True),
    "Adamax": lambda lib, ps: lib.optim.Adamax(ps, 0.002, eps=1e-3),
    "NAdam": lambda lib, ps: lib.optim.NAdam(ps, 0.002, eps=1e-3),
    "RAdam": lambda lib, ps: lib.optim.RAdam(ps, 0.002, eps=1e-3),
    "Adagrad": lambda lib, ps: lib.optim.Adagrad(ps, 0.01, lr_decay=0.01, eps=1e-3),
    "Adadelta": lambda lib, ps: lib.optim.Adadelta(ps, 0.5, eps=1e-3),
    "RMSprop": lambda lib, ps: lib.optim.RMSprop(ps, 0.001, centered=True, eps=1e-2),
    "Rprop": lambda lib, ps: lib.optim.Rprop(ps, 1e-4, step_sizes=(1e-6, 1e-3)),
    "ASGD": lambda lib, ps: lib.optim.ASGD(ps, 0.02, t0=20, lambd=0.01),
    "Adafactor": lambda lib, ps: lib.optim.Adafactor(ps, 0.002, eps=(1e-3, 1e-3)),
}

# ---- training


def twins(problem: Problem, dtype: str) -> tuple[Model, Model]:
    """A model of PyTorch, and of Genesis with the same weights."""
    torch.manual_seed(5)
    theirs = problem.model(torch).to(getattr(torch, dtype))
    ours = problem.model(genesis).to(getattr(genesis, dtype))
    weights = {name: genesis.tensor(x.numpy()) for name, x in theirs.state_dict().items()}
    ours.load_state_dict(weights)
    return ours, theirs


def train(
    lib: Library,
    model: Model,
    optimizer: Optimizer,
    data: tuple[np.ndarray, np.ndarray],
    steps: int,
    *,
    jit: bool = False,
    clip: float | None = None,
    schedule: Any = None,
) -> Curve:
    """Train a model on one batch with the cross entropy of its scores.

    `clip` is the greatest norm of all gradients together; `schedule` makes a step of its own after
    each of the optimizer's.
    """
    x, labels = (lib.tensor(part) for part in data)

    def step(x: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        if clip is not None:
            lib.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    run = genesis.jit(step) if jit else step
    losses = []
    for _ in range(steps):
        losses.append(run(x, labels).item())
        if schedule is not None:
            schedule.step()
    return Curve(
        np.array(losses),
        {name: np.array(value.numpy()) for name, value in model.state_dict().items()},
        getattr(run, "captures", 0),
    )


def compare(ours: Curve, theirs: Curve, rtol: float, idle: str | None = None) -> None:
    """The curves are the same to a relative error; weights to that of the greatest in a tensor."""
    assert theirs.losses[-1] < theirs.losses[0], "the problem is not being solved"
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=rtol)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, expected in theirs.weights.items():
        if idle is None or not name.endswith(idle):
            atol = rtol * float(np.abs(expected).max())
            np.testing.assert_allclose(ours.weights[name], expected, rtol, atol, err_msg=name)
