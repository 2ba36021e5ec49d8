"""Adam and its kin: steps scaled by running means of the gradient and of its square.

Adamax takes the greatest gradient, forgotten slowly, for the mean square; NAdam has Nesterov's
momentum; RAdam is careful while it has seen too little to know the variance; LAMB's step is as long
as the parameter itself asks for, for large batches.
"""

from __future__ import annotations

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Optimizer, ParameterGroup, Params, State, followed, settings


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

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The means of the gradient and of its square."""
        names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        return {name: nd.zeros_like(p) for name in names[: 3 if group["amsgrad"] else 2]}

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
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


class Adamax(Optimizer):
    """``u = max(beta2 * u, |grad| + eps); p -= lr * m / u``, with ``m`` as in `Adam`."""

    buffers = ("exp_avg", "exp_inf")

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        beta1, beta2 = group.scalars("betas")
        mean, greatest = state["exp_avg"], state["exp_inf"]
        mean.assign(mean + (grad - mean) * (1 - beta1))
        greatest.assign(nd.maximum(greatest * beta2, nd.abs(grad) + group["eps"]))
        p.assign(p - group.scalar("lr") / (1 - beta1 ** state["step"]) * (mean / greatest))


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

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The means as in Adam, and the product of all first betas."""
        return {
            "mu_product": nd.array(1, float64, p.device),
            "exp_avg": nd.zeros_like(p),
            "exp_avg_sq": nd.zeros_like(p),
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
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

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
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

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        mean, square = moments(-grad if group["maximize"] else grad, state, group)
        first, second = (1 - beta ** state["step"] for beta in group.scalars("betas"))
        direction = mean / first / (nd.sqrt(square / second) + group["eps"])
        if group["weight_decay"]:
            direction = direction + group.scalar("weight_decay") * p
        p.assign(p - group.scalar("lr") * (trust(p, norm(direction)) * direction))


def decayed(p: NDArray, grad: NDArray, group: ParameterGroup) -> tuple[NDArray, NDArray]:
    """The parameter to step from and the gradient to follow, one of them with weight decay."""
    if not group["decoupled_weight_decay"]:
        return p, followed(p, grad, group)
    shrunk = p * (1 - group.scalar("lr") * group.scalar("weight_decay"))
    return (shrunk if group["weight_decay"] else p), (-grad if group["maximize"] else grad)


def moments(grad: NDArray, state: State, group: ParameterGroup) -> tuple[NDArray, NDArray]:
    """The running means of the gradient and of its square, with this gradient taken in."""
    fresh, kept, fresh_square = group.once(_weights, state["step"], grad.dtype)
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.assign(mean + (grad - mean) * fresh)
    square.assign(square * kept + grad * grad * fresh_square)
    return mean, square


def _weights(group: ParameterGroup, step: NDArray) -> tuple[NDArray, ...]:
    beta1, beta2 = group.scalars("betas")
    return 1 - beta1, beta2, 1 - beta2


def _corrections(group: ParameterGroup, step: NDArray) -> tuple[NDArray, ...]:
    """The rate, and what the root of the mean square is to be divided by."""
    first, second = (1 - beta**step for beta in group.scalars("betas"))
    return group.scalar("lr") / first, nd.sqrt(second)


def norm(x: NDArray) -> NDArray:
    """The length of a tensor as one vector."""
    return nd.sqrt((x * x).sum())


def trust(p: NDArray, length: NDArray) -> NDArray:
    """The norm of a parameter over a `length`; 1 where one of them is zero."""
    size = norm(p)
    usable = (size > 0) & (length > 0)
    return nd.where(usable, size / nd.where(usable, length, 1.0), 1.0)
