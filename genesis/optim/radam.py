"""RAdam: Adam that is careful while it has seen too little to know the variance."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.adam import decayed, moments
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings


class RAdam(Optimizer):
    """`Adam` whose steps are rectified, and momentum alone until the variance can be estimated."""

    buffers = ("exp_avg", "exp_avg_sq")

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        p_now, grad = decayed(p, grad, group)
        mean, square = moments(grad, state, group)
        beta1, beta2 = group.scalars("betas")
        step = state["step"]
        second = 1 - beta2**step
        # The length of the mean over squares, in the end and by now.
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / second
        known = length > 5
        safe = nd.where(known, length, 5.0)
        rectified = nd.sqrt(
            (safe - 4) * (safe - 2) * longest / ((longest - 4) * (longest - 2) * safe)
        )
        adaptive = rectified * nd.sqrt(second) / (nd.sqrt(square) + group["eps"])
        scale = nd.where(known, adaptive, nd.ones_like(adaptive))
        p.assign(p_now - group.scalar("lr") * (mean / (1 - beta1**step)) * scale)


__all__ = ["RAdam"]
