"""Adamax: Adam with the greatest gradient, forgotten slowly, instead of the mean square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, State, followed


class Adamax(Optimizer):
    """``u = max(beta2 * u, |grad| + eps); p -= lr * m / u``, with ``m`` as in `Adam`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
            },
        )

    def initial(self, p: NDArray, group: Group) -> State:
        """The mean and the greatest gradient."""
        return {"exp_avg": nd.zeros_like(p), "exp_inf": nd.zeros_like(p)}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        beta1, beta2 = group.scalars("betas")
        mean, greatest = state["exp_avg"], state["exp_inf"]
        mean.assign(mean + (grad - mean) * (1 - beta1))
        greatest.assign(nd.maximum(greatest * beta2, nd.abs(grad) + group["eps"]))
        p.assign(p - group.scalar("lr") / (1 - beta1 ** state["step"]) * (mean / greatest))


__all__ = ["Adamax"]
