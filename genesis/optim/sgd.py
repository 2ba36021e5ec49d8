"""Stochastic gradient descent, plain or with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class SGD(Optimizer):
    """``p -= lr * grad``, plain or with momentum.

    With momentum it is ``b = momentum * b + (1 - dampening) * grad; p -= lr * b``, where the first
    step takes ``b = grad``. With `nesterov`, ``p -= lr * (grad + momentum * b)``.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def check(self, settings: Mapping[str, Any]) -> None:
        """Nesterov's step is defined with momentum and without dampening."""
        super().check(settings)
        if settings["nesterov"] and (not settings["momentum"] or settings["dampening"]):
            raise ValueError("SGD: nesterov needs a momentum, and dampening=0")

    def counts(self, group: Group) -> bool:
        """Where the first step differs from the others."""
        return bool(group["momentum"] and group["dampening"])

    def initial(self, p: NDArray, group: Group) -> State:
        """The direction of the momentum."""
        return {"momentum_buffer": nd.zeros_like(p)} if group["momentum"] else {}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        if group["momentum"]:
            buffer = state["momentum_buffer"]
            momentum = group.scalar("momentum")
            fresh = momentum * buffer + (1 - group["dampening"]) * grad
            buffer.assign(nd.where(state["step"] == 1, grad, fresh) if "step" in state else fresh)
            grad = grad + momentum * buffer if group["nesterov"] else buffer
        p.assign(p - group.scalar("lr") * grad)

    def loaded(self, given: Mapping[str, Any], group: Group) -> Mapping[str, Any]:
        """A momentum that comes without a count is not before its first step."""
        given = super().loaded(given, group)
        begun = self.counts(group) and "momentum_buffer" in given
        return {"step": 1, **given} if begun else given


__all__ = ["SGD"]
