"""Lion: steps of one size, in the direction of the sign of the momentum."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings


class Lion(Optimizer):
    """``p -= lr * sign(beta1 * m + (1 - beta1) * grad); m = beta2 * m + (1 - beta2) * grad``.

    The weight decay shrinks the parameter itself, as in `AdamW`.
    """

    buffers = ("exp_avg",)

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def counts(self, group: Group) -> bool:
        """All steps are alike."""
        return False

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        if group["maximize"]:
            grad = -grad
        lr, mean = group.scalar("lr"), state["exp_avg"]
        beta1, beta2 = group.scalars("betas")
        direction = nd.sign(mean * beta1 + grad * (1 - beta1))
        p_now = p * (1 - lr * group.scalar("weight_decay")) if group["weight_decay"] else p
        p.assign(p_now - lr * direction)
        mean.assign(mean * beta2 + grad * (1 - beta2))


__all__ = ["Lion"]
