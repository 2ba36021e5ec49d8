"""NAdam: Adam with Nesterov's momentum."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ndarray import NDArray
from genesis.optim.adam import decayed, moments
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings


class NAdam(Optimizer):
    """`Adam` that looks one step ahead; its first beta grows as `momentum_decay` says."""

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: Group) -> State:
        """The means as in Adam, and the product of all first betas."""
        return {
            "mu_product": nd.array(1, float64, p.device),
            "exp_avg": nd.zeros_like(p),
            "exp_avg_sq": nd.zeros_like(p),
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        p_now, grad = decayed(p, grad, group)
        mean, square = moments(grad, state, group)
        beta1, beta2 = group.scalars("betas")
        lr, step, product = group.scalar("lr"), state["step"], state["mu_product"]
        now, ahead = (
            beta1 * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (step, step + 1)
        )
        product.assign(product * now)
        scale = nd.sqrt(square / (1 - beta2**step)) + group["eps"]
        by_gradient = lr * (1 - now) / (1 - product) * grad
        by_mean = lr * ahead / (1 - product * ahead) * mean
        p.assign(p_now - (by_gradient + by_mean) / scale)


__all__ = ["NAdam"]
