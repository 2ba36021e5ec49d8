"""Adamax: Adam with the greatest gradient, forgotten slowly, instead of the mean square."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class Adamax(Optimizer):
    """``u = max(beta2 * u, |grad| + eps); p -= lr * m / u``, with ``m`` as in `Adam`."""

    buffers = ("exp_avg", "exp_inf")

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        beta1, beta2 = group.scalars("betas")
        mean, greatest = state["exp_avg"], state["exp_inf"]
        mean.assign(mean + (grad - mean) * (1 - beta1))
        greatest.assign(nd.maximum(greatest * beta2, nd.abs(grad) + group["eps"]))
        p.assign(p - group.scalar("lr") / (1 - beta1 ** state["step"]) * (mean / greatest))


__all__ = ["Adamax"]
