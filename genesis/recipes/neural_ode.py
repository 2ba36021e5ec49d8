"""A neural ordinary differential equation: how two species hunt and flee, learnt from a curve.

    genesis train neural_ode

The numbers of hares and lynxes follow Lotka and Volterra's equations, which the network does not
know: it learns the rates of change themselves, by following them with Runge and Kutta's steps and
comparing where that leads (Chen et al., 2018). A network that fits the curve alone would know
nothing of what comes after it; this one is asked for twice the time it was shown.
"""

from __future__ import annotations

from collections.abc import Callable

import genesis
from genesis import nn, optim
from genesis.tensor.tensor import Tensor

STEP = 0.1
SEEN, ASKED = 70, 140  # steps that are shown, and that are asked for: one round, and two
SPAN = 10  # steps that are followed at once

Rates = Callable[[Tensor], Tensor]


def lotka_volterra(state: Tensor) -> Tensor:
    """How fast hares and lynxes become more."""
    hares, lynxes = state[..., 0], state[..., 1]
    rates: Tensor = genesis.stack([hares * (1 - lynxes), lynxes * (hares - 1)], -1)
    return rates


def runge_kutta(rates: Rates, state: Tensor) -> Tensor:
    """The state a step later, by the classical method of order four."""
    k1 = rates(state)
    k2 = rates(state + STEP / 2 * k1)
    k3 = rates(state + STEP / 2 * k2)
    k4 = rates(state + STEP * k3)
    later: Tensor = state + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return later


def follow(rates: Rates, state: Tensor, steps: int) -> Tensor:
    """The states after each of some steps, along a new first dimension."""

    def one(carried: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        later = runge_kutta(rates, carried)
        return later, later

    _, states = genesis.scan(one, state, genesis.zeros(steps))
    found: Tensor = states
    return found


class Field(nn.Module):
    """A network for the rates of change of the logarithms: numbers stay positive."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def forward(self, state: Tensor) -> Tensor:
        """The rates of change at a state."""
        rates: Tensor = state * self.layers(state)
        return rates


def train(steps: int = 800, seed: int = 0) -> dict[str, float]:
    """Train on one round, follow two, and give the errors in what was seen and what was not."""
    genesis.manual_seed(seed)
    first = genesis.tensor([1.6, 0.8])
    truth = genesis.cat([first[None], follow(lotka_volterra, first, ASKED)])
    model = Field()
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)
    starts = genesis.arange(0, SEEN - SPAN + 1)

    @genesis.jit
    def step() -> Tensor:
        paths = follow(model, truth[starts], SPAN)
        wanted = truth[starts[None] + genesis.arange(1, SPAN + 1)[:, None]]
        loss: Tensor = (paths - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        loss = step()
        schedule.step()
        if k % 200 == 0 or k == steps - 1:
            print(f"step {k:4}  loss {loss.item():.2e}", flush=True)
    with genesis.no_grad():
        found = genesis.cat([first[None], follow(model, first, ASKED)])
    errors = (found - truth).norm(dim=-1) / truth.norm(dim=-1)
    show(found, truth)
    return {
        "error where it was shown": errors[: SEEN + 1].mean().item(),
        "error beyond": errors[SEEN + 1 :].mean().item(),
    }


def show(found: Tensor, truth: Tensor) -> None:
    """Hares and lynxes over time: o as learnt, . as they were."""
    for k in range(0, ASKED + 1, 5):
        line = [" "] * 60
        for mark, states in ((".", truth), ("o", found)):
            for species, letter in enumerate("hl"):
                place = min(59, int(states[k, species].item() * 25))
                line[place] = letter if mark == "o" else "."
        note = "  not shown from here on" if k == SEEN else ""
        print(f"{k * STEP:5.1f} |{''.join(line)}|{note}")
