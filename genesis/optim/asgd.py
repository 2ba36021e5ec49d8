"""Averaged stochastic gradient descent."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class ASGD(Optimizer):
    """Descent with a rate that decays by itself, and the average over the steps after `t0`.

    The average is ``"ax"`` in the state.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: Group) -> State:
        """The rate, the weight of the next point in the average, and the average."""
        return {
            "eta": nd.array(group["lr"], float64, p.device),
            "mu": nd.array(1, float64, p.device),
            "ax": nd.zeros_like(p),
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        rate, weight, average = state["eta"], state["mu"], state["ax"]
        lr, lambd, step = group.scalar("lr"), group["lambd"], state["step"]
        p.assign(p * (1 - lambd * rate) - rate * grad)
        average.assign(nd.where(weight == 1, p, average + (p - average) * weight))
        rate.assign(lr / (1 + lambd * lr * step) ** group["alpha"])
        weight.assign(1 / nd.maximum(step - group["t0"], 1.0))


__all__ = ["ASGD"]
