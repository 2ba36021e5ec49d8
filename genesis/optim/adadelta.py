"""Adadelta: steps scaled by recent gradients and recent steps."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class Adadelta(Optimizer):
    """``d = sqrt(u + eps) / sqrt(v + eps) * grad; p -= lr * d``.

    Both are running means of squares: ``v`` of the gradients, ``u`` of the steps ``d``.
    """

    buffers = ("square_avg", "acc_delta")

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

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
