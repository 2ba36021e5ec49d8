"""Adadelta: steps scaled by recent gradients and recent steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, State, followed


class Adadelta(Optimizer):
    """``d = sqrt(u + eps) / sqrt(v + eps) * grad; p -= lr * d``.

    Both are running means of squares: ``v`` of the gradients, ``u`` of the steps ``d``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize},
        )

    def initial(self, p: NDArray, group: Group) -> State:
        """The means of squares."""
        return {"square_avg": nd.zeros_like(p), "acc_delta": nd.zeros_like(p)}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        rho, eps = group["rho"], group["eps"]
        gradients, steps = state["square_avg"], state["acc_delta"]
        gradients.assign(gradients * rho + grad * grad * (1 - rho))
        delta = nd.sqrt(steps + eps) / nd.sqrt(gradients + eps) * grad
        steps.assign(steps * rho + delta * delta * (1 - rho))
        p.assign(p - group.scalar("lr") * delta)


__all__ = ["Adadelta"]
