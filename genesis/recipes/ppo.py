"""Balance a pole on a cart: proximal policy optimization (Schulman et al., 2017).

    genesis train ppo

The environment is the one of Barto, Sutton and Anderson (1983), sixteen of them side by side in
NumPy. The policy and the value of states are one network each; an update goes several times over
what was lived through, and is one program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

CARTS = 16
LENGTH = 64  # steps between updates
LONGEST = 500  # steps of an episode
DISCOUNT, TRACE, CLIP = 0.99, 0.95, 0.2

Array = npt.NDArray[np.float32]


class Carts:
    """Carts with poles; whoever falls begins anew."""

    def __init__(self, count: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.state = self._fresh(count)
        self._age = np.zeros(count, int)
        self.returns: list[int] = []  #: of episodes that have ended

    def _fresh(self, count: int) -> Array:
        return self._rng.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, right: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Push every cart to one side for a fiftieth of a second; who has come to an end."""
        _, speed, angle, turn = self.state.T
        force = np.where(right, 10.0, -10.0)
        push = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        lean = 9.8 * np.sin(angle) - np.cos(angle) * push
        fall = lean / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        away = push - 0.05 * fall * np.cos(angle) / 1.1
        change = np.stack([speed, away, turn, fall], 1)
        self.state = (self.state + 0.02 * change).astype(np.float32)
        self._age += 1
        over = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > 12 * np.pi / 180)
        over |= self._age >= LONGEST
        self.returns += self._age[over].tolist()
        self.state[over] = self._fresh(int(over.sum()))
        self._age[over] = 0
        return over


def network(outputs: int) -> nn.Sequential:
    """From a state to some numbers."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def advantages(over: Any, values: Any) -> tuple[Array, Array]:
    """How much better things went than expected, by generalised advantage estimation, and sums."""
    gained = np.zeros_like(values)
    later = np.zeros(CARTS, np.float32)
    for k in reversed(range(LENGTH)):
        alive = 1 - over[k]
        surprise = 1 + DISCOUNT * values[k + 1] * alive - values[k]
        later = surprise + DISCOUNT * TRACE * alive * later
        gained[k] = later
    return gained[:-1], gained[:-1] + values[:-1]


def train(steps: int = 80, seed: int = 0) -> dict[str, float]:
    """Train for some updates; how long poles stayed up at the beginning, and at the end."""
    genesis.manual_seed(seed)
    policy, value = network(2), network(1)
    with genesis.no_grad():
        policy[-1].weight.mul_(0.01)  # begin by trying both sides alike
    optimizer = optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-3)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    carts, rng = Carts(CARTS, seed), np.random.default_rng(seed + 1)

    @genesis.jit
    def look(state: Tensor) -> tuple[Tensor, Tensor]:
        with genesis.no_grad():
            return F.log_softmax(policy(state), -1), value(state)[:, 0]

    @genesis.jit
    def update(state: Tensor, did: Tensor, before: Tensor, gain: Tensor, sums: Tensor) -> Tensor:
        chances = F.log_softmax(policy(state), -1)
        ratio = (chances.gather(1, did[:, None])[:, 0] - before).exp()
        better = genesis.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
        variety = -(chances.exp() * chances).sum(-1).mean()
        loss: Tensor = -better + 0.5 * F.mse_loss(value(state)[:, 0], sums) - 0.01 * variety
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 0.5)
        optimizer.step()
        return loss

    for number in range(1, steps + 1):
        states = np.zeros((LENGTH, CARTS, 4), np.float32)
        did, chances = np.zeros((LENGTH, CARTS), np.int64), np.zeros((LENGTH, CARTS), np.float32)
        over, values = np.zeros((LENGTH, CARTS)), np.zeros((LENGTH + 1, CARTS), np.float32)
        for k in range(LENGTH):
            states[k] = carts.state
            logits, expected = (x.numpy() for x in look(genesis.tensor(carts.state)))
            right = rng.random(CARTS) < np.exp(logits[:, 1])
            did[k], chances[k] = right, np.where(right, logits[:, 1], logits[:, 0])
            values[k] = expected
            over[k] = carts.step(right)
        values[LENGTH] = look(genesis.tensor(carts.state))[1].numpy()
        gain, sums = advantages(over, values)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        flat = [x.reshape(LENGTH * CARTS, *x.shape[2:]) for x in (states, did, chances, gain, sums)]
        for _ in range(4):
            order = rng.permutation(LENGTH * CARTS).reshape(4, -1)
            for chosen in order:
                update(*(genesis.tensor(x[chosen].astype(x.dtype)) for x in flat))
        schedule.step()
        if number % 20 == 0 or number == steps:
            latest = carts.returns[-20:]
            print(f"update {number:4}  poles stay up for {np.mean(latest):5.0f} steps", flush=True)
    fresh = Carts(CARTS, seed + 2)
    while len(fresh.returns) < CARTS:  # without chance: the side that is likelier
        fresh.step(look(genesis.tensor(fresh.state))[0].numpy().argmax(1) == 1)
    return {
        "at first": float(np.mean(carts.returns[:20])),
        "at last": float(np.mean(fresh.returns)),
    }
