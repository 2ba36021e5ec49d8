"""LAMB: Adam whose step is as long as the parameter itself asks for; for large batches."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.adam import moments
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings


class LAMB(Optimizer):
    """``r = m / (sqrt(v) + eps) + weight_decay * p; p -= lr * |p| / |r| * r``, as a whole tensor.

    The means ``m`` and ``v`` are Adam's. Where a norm is zero the factor is 1.
    """

    buffers = ("exp_avg", "exp_avg_sq")

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
    ) -> None: ...

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        mean, square = moments(-grad if group["maximize"] else grad, state, group)
        first, second = (1 - beta ** state["step"] for beta in group.scalars("betas"))
        direction = mean / first / (nd.sqrt(square / second) + group["eps"])
        if group["weight_decay"]:
            direction = direction + group.scalar("weight_decay") * p
        p.assign(p - group.scalar("lr") * (trust(p, norm(direction)) * direction))


def norm(x: NDArray) -> NDArray:
    """The length of a tensor as one vector."""
    return nd.sqrt((x * x).sum())


def trust(p: NDArray, length: NDArray) -> NDArray:
    """The norm of a parameter over a `length`; 1 where one of them is zero."""
    size = norm(p)
    usable = (size > 0) & (length > 0)
    return nd.where(usable, size / nd.where(usable, length, 1.0), 1.0)


__all__ = ["LAMB", "norm", "trust"]
