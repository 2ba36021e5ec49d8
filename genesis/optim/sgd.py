"""Steps along the gradient or its signs: plain, with momentum, averaged, scaled to a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ndarray import NDArray
from genesis.optim.adam import norm
from genesis.optim.optimizer import Optimizer, ParameterGroup, Params, State, followed, settings


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

    def counts(self, group: ParameterGroup) -> bool:
        """Where the first step differs from the others."""
        return bool(group["momentum"] and group["dampening"])

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The direction of the momentum."""
        return {"momentum_buffer": nd.zeros_like(p)} if group["momentum"] else {}

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        if group["momentum"]:
            buffer = state["momentum_buffer"]
            momentum = group.scalar("momentum")
            fresh = momentum * buffer + (1 - group["dampening"]) * grad
            buffer.assign(nd.where(state["step"] == 1, grad, fresh) if "step" in state else fresh)
            grad = grad + momentum * buffer if group["nesterov"] else buffer
        p.assign(p - group.scalar("lr") * grad)

    def loaded(self, given: Mapping[str, Any], group: ParameterGroup) -> Mapping[str, Any]:
        """A momentum that comes without a count is not before its first step."""
        given = super().loaded(given, group)
        begun = self.counts(group) and "momentum_buffer" in given
        return {"step": 1, **given} if begun else given


class ASGD(Optimizer):
    """Descent with a rate that decays by itself, and the average over the steps after `t0`.

    The average is ``"ax"`` in the state.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The rate, the weight of the next point in the average, and the average."""
        return {
            "eta": nd.array(group["lr"], float64, p.device),
            "mu": nd.array(1, float64, p.device),
            "ax": nd.zeros_like(p),
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        rate, weight, average = state["eta"], state["mu"], state["ax"]
        lr, lambd, step = group.scalar("lr"), group["lambd"], state["step"]
        p.assign(p * (1 - lambd * rate) - rate * grad)
        average.assign(nd.where(weight == 1, p, average + (p - average) * weight))
        rate.assign(lr / (1 + lambd * lr * step) ** group["alpha"])
        weight.assign(1 / nd.maximum(step - group["t0"], 1.0))


class LARS(Optimizer):
    """`SGD` on the gradient times ``trust_coefficient * |p| / (|grad| + weight_decay * |p|)``.

    `eps` is added to the denominator. The weight decay is part of the gradient. Where a norm is
    zero the factor is 1.
    """

    counted = False

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

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The direction of the momentum."""
        return {"momentum_buffer": nd.zeros_like(p)} if group["momentum"] else {}

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
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


class Lion(Optimizer):
    """``p -= lr * sign(beta1 * m + (1 - beta1) * grad); m = beta2 * m + (1 - beta2) * grad``.

    The weight decay shrinks the parameter itself, as in `AdamW`.
    """

    buffers = ("exp_avg",)
    counted = False

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

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        if group["maximize"]:
            grad = -grad
        lr, mean = group.scalar("lr"), state["exp_avg"]
        beta1, beta2 = group.scalars("betas")
        direction = nd.sign(mean * beta1 + grad * (1 - beta1))
        p_now = p * (1 - lr * group.scalar("weight_decay")) if group["weight_decay"] else p
        p.assign(p_now - lr * direction)
        mean.assign(mean * beta2 + grad * (1 - beta2))


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

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The last gradient and the step sizes."""
        return {"prev": nd.zeros_like(p), "step_size": nd.full_like(p, group["lr"])}

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
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
