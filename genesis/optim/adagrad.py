"""Adagrad: steps scaled by all gradients so far."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class Adagrad(Optimizer):
    """``s += grad**2; p -= lr / (1 + (step - 1) * lr_decay) * grad / (sqrt(s) + eps)``."""

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: Group) -> State:
        """The sum of squares."""
        return {"sum": nd.full_like(p, group["initial_accumulator_value"])}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        total = state["sum"]
        total.assign(total + grad * grad)
        rate = group.scalar("lr") / (1 + (state["step"] - 1) * group["lr_decay"])
        p.assign(p - rate * (grad / (nd.sqrt(total) + group["eps"])))


__all__ = ["Adagrad"]
