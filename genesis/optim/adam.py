"""Adam and AdamW: steps scaled by running means of the gradient and of its square."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class Adam(Optimizer):
    """``p -= lr * m / (sqrt(v) + eps)``, with both means corrected for starting at zero.

    With `amsgrad` the greatest ``v`` so far counts. The weight decay is part of the gradient, or,
    with `decoupled_weight_decay`, shrinks the parameter itself (`AdamW`).
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: Group) -> State:
        """The means of the gradient and of its square."""
        names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        return {name: nd.zeros_like(p) for name in names[: 3 if group["amsgrad"] else 2]}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        p_now, grad = decayed(p, grad, group)
        mean, square = moments(grad, state, group)
        rate, root = group.once(_corrections, state["step"], p.dtype)
        if group["amsgrad"]:
            state["max_exp_avg_sq"].assign(nd.maximum(state["max_exp_avg_sq"], square))
            square = state["max_exp_avg_sq"]
        scale = nd.sqrt(square) / root + group["eps"]
        p.assign(p_now - rate * (mean / scale))


class AdamW(Adam):
    """`Adam` whose weight decay shrinks the parameter itself: ``p *= 1 - lr * weight_decay``."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        means = betas, eps, weight_decay, amsgrad
        super().__init__(params, lr, *means, maximize=maximize, decoupled_weight_decay=True)


def decayed(p: NDArray, grad: NDArray, group: Group) -> tuple[NDArray, NDArray]:
    """The parameter to step from and the gradient to follow, one of them with weight decay."""
    if not group["decoupled_weight_decay"]:
        return p, followed(p, grad, group)
    shrunk = p * (1 - group.scalar("lr") * group.scalar("weight_decay"))
    return (shrunk if group["weight_decay"] else p), (-grad if group["maximize"] else grad)


def moments(grad: NDArray, state: State, group: Group) -> tuple[NDArray, NDArray]:
    """The running means of the gradient and of its square, with this gradient taken in."""
    fresh, kept, fresh_square = group.once(_weights, state["step"], grad.dtype)
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.assign(mean + (grad - mean) * fresh)
    square.assign(square * kept + grad * grad * fresh_square)
    return mean, square


def _weights(group: Group, step: NDArray) -> tuple[NDArray, ...]:
    beta1, beta2 = group.scalars("betas")
    return 1 - beta1, beta2, 1 - beta2


def _corrections(group: Group, step: NDArray) -> tuple[NDArray, ...]:
    """The rate, and what the root of the mean square is to be divided by."""
    first, second = (1 - beta**step for beta in group.scalars("betas"))
    return group.scalar("lr") / first, nd.sqrt(second)


__all__ = ["Adam", "AdamW", "decayed", "moments"]
