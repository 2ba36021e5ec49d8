"""Rprop: steps that look at nothing of the gradient but its sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings


class Rprop(Optimizer):
    """A step size for every element: longer while the gradient keeps its sign, else shorter.

    `etas` are the two factors, `step_sizes` the bounds. Where the sign has changed, the element
    waits for one step.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
    ) -> None: ...

    def check(self, settings: Mapping[str, Any]) -> None:
        """One factor shrinks and the other grows."""
        super().check(settings)
        shrink, grow = settings["etas"]
        if not 0 < shrink < 1 < grow:
            raise ValueError(f"Rprop: etas are {(shrink, grow)}; they must be 0 < a < 1 < b")

    def initial(self, p: NDArray, group: Group) -> State:
        """The last gradient and the step sizes."""
        return {"prev": nd.zeros_like(p), "step_size": nd.full_like(p, group["lr"])}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        if group["maximize"]:
            grad = -grad
        shrink, grow = group["etas"]
        sizes, before = state["step_size"], state["prev"]
        agreement = grad * before
        turned = agreement < 0
        longer = nd.where(agreement > 0, sizes * grow, sizes)
        sizes.assign(nd.clip(nd.where(turned, sizes * shrink, longer), *group["step_sizes"]))
        grad = nd.where(turned, 0.0, grad)
        p.assign(p - nd.sign(grad) * sizes)
        before.assign(grad)


__all__ = ["Rprop"]
