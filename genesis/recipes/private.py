"""Training that keeps a secret: DP-SGD, with an account of what could leak.

    genesis train private

The gradient of every example is cut to a length by itself (`vmap` of `grad`), and noise is added to
the sum: so no single digit can be told from the weights (Abadi et al., 2016). How private that is
is a pair (epsilon, delta). The accountant adds up Rényi divergences of the subsampled Gaussian
mechanism over all steps (Mironov, Talwar and Zhang, 2019) and converts them once, at the end.
"""

from __future__ import annotations

import math
from typing import Any

import genesis
from genesis import func, nn, optim
from genesis.datasets import digits
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

BATCH = 128  # in the mean: each example takes part in a step with the same chance
LENGTH, NOISE = 1.0, 1.1
DELTA = 1e-4


def log_moment(order: int, noise: float, share: float) -> float:
    """The logarithm of the moment of an integer order, of one step on a share of the data.

    The sum over k of ``binomial(order, k) (1 - q)^(order - k) q^k exp(k (k - 1) / (2 noise^2))``.
    """
    terms = []
    for k in range(order + 1):
        chosen = math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        taken = k * math.log(share) + (order - k) * math.log1p(-share) if share < 1 else None
        if taken is None:  # all of the data, always
            return order * (order - 1) / (2 * noise**2)
        terms.append(chosen + taken + k * (k - 1) / (2 * noise**2))
    most = max(terms)
    return most + math.log(sum(math.exp(t - most) for t in terms))


def epsilon(steps: int, noise: float, share: float, delta: float) -> float:
    """The privacy loss of some steps, from the best of many Rényi orders.

    The conversion is the sharper one of Canonne, Kamath and Steinke (2020).

    >>> round(epsilon(10_000, 4.0, 0.01, 1e-5), 2)  # 1.26 by the accountant of Abadi et al.
    1.04
    """
    found = []
    for order in range(2, 257):
        divergence = steps * log_moment(order, noise, share) / (order - 1)
        gap = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        found.append(divergence + gap)
    return max(0.0, min(found))


def network() -> nn.Sequential:
    """From 64 dots to scores for ten digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def train(steps: int = 300, seed: int = 0) -> dict[str, float]:
    """Train with and without privacy; what is right of held-out digits, and the privacy loss."""
    (images, labels), (others, answers) = digits("train"), digits("test")
    images, others = images.float().flatten(1) / 16, others.float().flatten(1) / 16
    share = BATCH / len(images)
    results = {}
    for name, private in (("without privacy", False), ("with privacy", True)):
        genesis.manual_seed(seed)
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        names = [key for key, _ in model.named_parameters()]

        def loss(
            parameters: list[Tensor], image: Tensor, label: Tensor,
            model: nn.Module = model, names: list[str] = names,
        ) -> Tensor:  # fmt: skip
            given = dict(zip(names, parameters, strict=True))
            scores = func.functional_call(model, given, (image[None],))
            found: Tensor = F.cross_entropy(scores, label[None])
            return found

        each = func.vmap(func.grad(loss), in_dims=(None, 0, 0))

        @genesis.jit
        def step(
            model: nn.Module = model, optimizer: optim.SGD = optimizer, each: Any = each,
            private: bool = private,
        ) -> None:  # fmt: skip
            values = [p.detach() for p in model.parameters()]
            slopes = each(values, images, labels)
            # Who takes part is drawn for each by itself, as the account supposes.
            part = (genesis.rand(len(images)) < share).float()
            if private:
                sizes = sum((g.flatten(1).square().sum(1) for g in slopes), genesis.zeros(()))
                part = part * (LENGTH / (sizes.sqrt() + 1e-6)).clamp(max=1.0)
            for p, g in zip(model.parameters(), slopes, strict=True):
                total = genesis.tensordot(part, g, 1)
                if private:
                    total = total + NOISE * LENGTH * genesis.randn_like(total)
                p.grad = total / BATCH
            optimizer.step()

        for _ in range(steps):
            step()
        with genesis.no_grad():
            results[name] = (model(others).argmax(1) == answers).float().mean().item()
        print(f"{name:16} {results[name]:6.1%} right", flush=True)
    results["epsilon"] = epsilon(steps, NOISE, share, DELTA)
    print(f"epsilon {results['epsilon']:.2f} at delta {DELTA:g}")
    return results
