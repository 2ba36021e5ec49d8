"""A physics-informed network: the heat equation, solved by a network that was told only the law.

    genesis train pinn

The network is a function u(t, x). Nobody shows it a solution: it is punished where it breaks
``u_t = D u_xx`` at places drawn at random, and where it misses the start and the walls (Raissi,
Perdikaris and Karniadakis, 2019). Derivatives by x are `jvp` of `jvp`. The true solution of this
start is known, a sine that fades, and tells how far off the network is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import genesis
from genesis import func, nn, optim
from genesis.tensor.tensor import Tensor

DIFFUSION = 0.1
PLACES = 256  # drawn for every step


def network(width: int = 32) -> nn.Sequential:
    """From (t, x) to u."""
    return nn.Sequential(
        nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


def true(t: Tensor, x: Tensor) -> Tensor:
    """The solution that begins as a sine between cold walls."""
    found: Tensor = (x * math.pi).sin() * (-DIFFUSION * math.pi**2 * t).exp()
    return found


def slope(f: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The derivative of a function of every element."""
    _, found = func.jvp(f, (at,), (genesis.ones_like(at),))
    derivative: Tensor = found
    return derivative


def broken(u: Callable[[Tensor, Tensor], Tensor], t: Tensor, x: Tensor) -> Tensor:
    """How far u is from obeying the law at some places: u_t - D u_xx."""
    u_t = slope(lambda s: u(s, x), t)
    u_xx = slope(lambda z: slope(lambda y: u(t, y), z), x)
    off: Tensor = u_t - DIFFUSION * u_xx
    return off


def train(steps: int = 1500, seed: int = 0) -> dict[str, float]:
    """Train, show u over time, and give the error relative to the true solution."""
    genesis.manual_seed(seed)
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)

    def u(t: Tensor, x: Tensor) -> Tensor:
        found: Tensor = model(genesis.stack([t, x], -1))[..., 0]
        return found

    @genesis.jit
    def step() -> Tensor:
        t, x = genesis.rand(PLACES), genesis.rand(PLACES)
        law = broken(u, t, x).square().mean()
        start = (u(genesis.zeros(PLACES), x) - (x * math.pi).sin()).square().mean()
        walls = u(t, genesis.zeros(PLACES)).square() + u(t, genesis.ones(PLACES)).square()
        loss: Tensor = law + 10 * start + 10 * walls.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        loss = step()
        schedule.step()
        if k % 300 == 0 or k == steps - 1:
            print(f"step {k:5}  broken laws {loss.item():.2e}", flush=True)
    grid = genesis.linspace(0, 1, 41)
    t, x = (z.flatten() for z in genesis.meshgrid(grid, grid, indexing="ij"))
    with genesis.no_grad():
        found, right = u(t, x).view(41, 41), true(t, x).view(41, 41)
    error = ((found - right).norm() / right.norm()).item()
    show(found)
    print(f"off by {error:.2%} of the true solution")
    return {"relative error": error}


def show(found: Tensor) -> None:
    """The temperature over the rod, a line for every tenth of the time."""
    for k, row in enumerate(found[::4].tolist()):
        cells = "".join(" .:-=+*#%@"[int(min(max(v, 0), 0.999) * 10)] for v in row)
        print(f"t = {k / 10:.1f}  |{cells}|")
