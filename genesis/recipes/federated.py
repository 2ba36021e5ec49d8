"""Learning from what stays where it is: federated averaging.

    genesis train federated

Ten clinics each have digits of their own, and not the same ones: most of what a clinic sees is two
of the ten. Nothing but weights leaves a clinic. In every round some train for a while from the same
weights, and what they arrive at is averaged, by how much each has seen (McMahan et al., 2017). What
one clinic reaches alone, and what all data in one place would reach, are shown beside it.
"""

from __future__ import annotations

import numpy as np

import genesis
from genesis import nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

CLINICS, ASKED = 10, 5  # and how many of them take part in a round
LOCAL = 20  # steps in a round
BATCH = 32


def network() -> nn.Sequential:
    """From 64 dots to scores for ten digits."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def shares(labels: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> list[list[int]]:
    """Which images each clinic has: for the most part those of two digits."""
    rng = np.random.default_rng(seed)
    found: list[list[int]] = [[] for _ in range(CLINICS)]
    for place, digit in enumerate(labels.tolist()):
        own = [(digit + k) % CLINICS for k in (0, 1)]
        clinic = rng.choice(own) if rng.random() < 0.9 else rng.integers(CLINICS)
        found[int(clinic)].append(place)
    return found


class Clinic:
    """Data that stays, and a model that is trained on it."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.model, self.size = network(), len(labels)
        optimizer = optim.SGD(self.model.parameters(), lr=0.1)

        @genesis.jit
        def step() -> None:
            chosen = genesis.randint(0, len(images), (BATCH,))
            loss = F.cross_entropy(self.model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        self.step = step

    def trained(self, weights: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
        """The weights that some steps lead to, from given ones."""
        self.model.load_state_dict(weights)
        for _ in range(steps):
            self.step()
        return {name: x.clone() for name, x in self.model.state_dict().items()}


def averaged(states: list[dict[str, Tensor]], sizes: list[int]) -> dict[str, Tensor]:
    """The mean of weights, by the sizes of what they were learnt from."""
    total = sum(sizes)
    return {
        name: sum((n / total * state[name] for state, n in zip(states, sizes, strict=True)),
                  genesis.zeros(()))
        for name in states[0]
    }  # fmt: skip


def train(steps: int = 30, seed: int = 0) -> dict[str, float]:
    """Go through some rounds; what is right of held-out digits, alone, averaged, and together."""
    genesis.manual_seed(seed)
    rng = np.random.default_rng(seed)
    (images, labels), (others, answers) = digits("train"), digits("test")
    images, others = images.float().flatten(1) / 16, others.float().flatten(1) / 16
    clinics = [Clinic(images[s], labels[s]) for s in shares(labels.numpy(), seed)]
    trial = network()

    def right(weights: dict[str, Tensor]) -> float:
        trial.load_state_dict(weights)
        with genesis.no_grad():
            share: float = (trial(others).argmax(1) == answers).float().mean().item()
        return share

    first = {name: x.clone() for name, x in network().state_dict().items()}
    weights = first
    for number in range(1, steps + 1):
        asked = [clinics[k] for k in rng.choice(CLINICS, ASKED, replace=False)]
        states = [clinic.trained(weights, LOCAL) for clinic in asked]
        weights = averaged(states, [clinic.size for clinic in asked])
        if number % 5 == 0 or number == steps:
            print(f"round {number:3}  right {right(weights):.1%}", flush=True)
    alone = [right(clinic.trained(first, steps * LOCAL)) for clinic in clinics]
    together = Clinic(images, labels).trained(first, steps * LOCAL)
    found = {
        "one clinic alone": float(np.mean(alone)),
        "averaged": right(weights),
        "all data in one place": right(together),
    }
    for name, share in found.items():
        print(f"{name:22} {share:6.1%}")
    return found
