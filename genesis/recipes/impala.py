"""Actors that lag behind: IMPALA with V-trace, on carts that balance poles.

    genesis train impala

Actors play with weights that are some updates old, as they are where many machines play and one
learns; the learner corrects for that by weighing what happened with how likely the new policy
would have done it, cut off at one (V-trace; Espeholt et al., 2018). Environments are those of the
recipe for PPO. Here actors lag by four updates, and still the poles stay up.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.recipes.ppo import Carts, network
from genesis.tensor.tensor import Tensor

CARTS, LENGTH = 32, 32
LAG = 4  # updates between the learner's weights and those an actor plays with
DISCOUNT = 0.99


def v_trace(
    ratio: Tensor, rewards: Tensor, alive: Tensor, values: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """What states are worth to the new policy, from the old one's steps, and the advantages.

    All are ``(time, carts)``, but for the value `last` of the state behind the last step.
    """
    weight = ratio.clamp(max=1.0)
    following = genesis.cat([values[1:], last[None]])
    surprise = weight * (rewards + DISCOUNT * alive * following - values)
    gain = genesis.zeros_like(last)
    gains = []
    for k in reversed(range(len(ratio))):
        gain = surprise[k] + DISCOUNT * alive[k] * weight[k] * gain
        gains.append(gain)
    worth = values + genesis.stack(gains[::-1])
    later = genesis.cat([worth[1:], last[None]])
    advantage = weight * (rewards + DISCOUNT * alive * later - values)
    return worth, advantage


def train(steps: int = 150, seed: int = 0) -> dict[str, float]:
    """Train for some updates; how long poles stayed up at the beginning, and at the end."""
    genesis.manual_seed(seed)
    policy, value, actor = network(2), network(1), network(2)
    optimizer = optim.RMSprop([*policy.parameters(), *value.parameters()], lr=2e-3, alpha=0.95)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    carts, rng = Carts(CARTS, seed), np.random.default_rng(seed + 1)
    weights: deque[dict[str, Any]] = deque(maxlen=LAG + 1)

    @genesis.jit
    def chances(state: Tensor) -> Tensor:
        with genesis.no_grad():
            found: Tensor = F.log_softmax(actor(state), -1)
        return found

    @genesis.jit
    def update(states: Tensor, last: Tensor, did: Tensor, before: Tensor, alive: Tensor) -> Tensor:
        logs = F.log_softmax(policy(states), -1)
        taken = logs.gather(-1, did[..., None])[..., 0]
        values = value(states)[..., 0]
        with genesis.no_grad():
            known = (taken - before).exp(), genesis.ones_like(before), alive
            worth, advantage = v_trace(*known, values, value(last)[..., 0])
            advantage = advantage / (advantage.std() + 1e-6)
        variety = -(logs.exp() * logs).sum(-1).mean()
        loss: Tensor = -(advantage * taken).mean() - 0.01 * variety
        loss = loss + 0.5 * F.smooth_l1_loss(values, worth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 1.0)
        optimizer.step()
        return loss

    for number in range(1, steps + 1):
        weights.append({name: x.clone() for name, x in policy.state_dict().items()})
        actor.load_state_dict(weights[0])  # what the learner knew some updates ago
        states = np.zeros((LENGTH, CARTS, 4), np.float32)
        did, before = np.zeros((LENGTH, CARTS), np.int64), np.zeros((LENGTH, CARTS), np.float32)
        alive = np.zeros((LENGTH, CARTS), np.float32)
        for k in range(LENGTH):
            states[k] = carts.state
            logs = chances(genesis.tensor(carts.state)).numpy()
            did[k] = rng.random(CARTS) < np.exp(logs[:, 1])
            before[k] = np.take_along_axis(logs, did[k][:, None], 1)[:, 0]
            alive[k] = 1 - carts.step(did[k] == 1)
        lived = (states, carts.state, did, before, alive)
        update(*(genesis.tensor(x) for x in lived))
        schedule.step()
        if number % 50 == 0 or number == steps:
            latest = carts.returns[-20:]
            print(f"update {number:4}  poles stay up for {np.mean(latest):5.0f} steps", flush=True)
    actor.load_state_dict(policy.state_dict())
    fresh = Carts(CARTS, seed + 2)
    while len(fresh.returns) < CARTS:  # without chance: the side that is likelier
        fresh.step(chances(genesis.tensor(fresh.state)).numpy().argmax(1) == 1)
    return {
        "at first": float(np.mean(carts.returns[:20])),
        "at last": float(np.mean(fresh.returns)),
    }
