"""RMSprop: steps scaled by the root of the mean square of recent gradients."""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, followed, settings


class RMSprop(Optimizer):
    """``v = alpha * v + (1 - alpha) * grad**2; p -= lr * grad / (sqrt(v) + eps)``.

    If `centered`, the variance of the gradient counts instead of its mean square.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: Group) -> State:
        """The mean square, and what the settings ask for."""
        names = ["square_avg"]
        names += ["momentum_buffer"] * bool(group["momentum"]) + ["grad_avg"] * group["centered"]
        return {name: nd.zeros_like(p) for name in names}

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        alpha, square = group["alpha"], state["square_avg"]
        square.assign(square * alpha + grad * grad * (1 - alpha))
        spread: NDArray = square
        if group["centered"]:
            mean = state["grad_avg"]
            mean.assign(mean + (grad - mean) * (1 - alpha))
            spread = square - mean * mean
        direction = grad / (nd.sqrt(spread) + group["eps"])
        if group["momentum"]:
            buffer = state["momentum_buffer"]
            buffer.assign(buffer * group.scalar("momentum") + direction)
            direction = buffer
        p.assign(p - group.scalar("lr") * direction)


__all__ = ["RMSprop"]
