"""LARS: descent whose rate is scaled to each layer; for large batches."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.lamb import norm
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings


class LARS(Optimizer):
    """`SGD` on the gradient times ``trust_coefficient * |p| / (|grad| + weight_decay * |p|)``.

    `eps` is added to the denominator. The weight decay is part of the gradient. Where a norm is
    zero the factor is 1.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def counts(self, group: Group) -> bool:
        """All steps are alike."""
        return False

    def initial(self, p: NDArray, group: Group) -> State:
        """The direction of the momentum."""
        return {"momentum_buffer": nd.zeros_like(p)} if group["momentum"] else {}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        if group["maximize"]:
            grad = -grad
        decay, size, length = group.scalar("weight_decay"), norm(p), norm(grad)
        local = group["trust_coefficient"] * size / (length + decay * size + group["eps"])
        grad = nd.where((size > 0) & (length > 0), local, 1.0) * (grad + decay * p)
        if group["momentum"]:
            buffer, momentum = state["momentum_buffer"], group.scalar("momentum")
            buffer.assign(momentum * buffer + grad)
            grad = grad + momentum * buffer if group["nesterov"] else buffer
        p.assign(p - group.scalar("lr") * grad)


__all__ = ["LARS"]
